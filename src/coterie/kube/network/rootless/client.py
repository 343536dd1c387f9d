"""The node's end of the relay: finds a running one or starts it, configures it, starts it again when it dies.

    relay = Relay(directory, RelaySettings(listeners=("0.0.0.0:1080",), target=str(socket)), log_file=...)
    manager.add(relay)

The relay is a process of its own session: a node that is killed leaves it running, and the next node adopts it together with
its connections. A node that stops in order ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import coterie
from coterie.base.backoff import Backoff, Policy
from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.base.log_rotation import open_log
from coterie.kube.network.rootless import limits, messages

_log = logger("network.relay")
_PROGRAM = "import sys; from coterie.kube.network.rootless.relay import main; sys.exit(main(sys.argv[1:]))"
"""Lighter than `-m`: nothing is compiled anew, and runpy is not loaded."""
_ANSWER_SECONDS = 5.0
RESTART = Policy(first=0.2, factor=2.0, limit=15.0, jitter=0.2)


class RelayError(Exception):
    """The relay does not run, or does not do what it is asked for."""


@dataclass(frozen=True, slots=True)
class RelaySettings:
    listeners: tuple[str, ...] = ()
    """The domain's public addresses, `host:port`."""
    target: str = ""
    """The Unix socket that gets their connections, with a PROXY protocol header."""
    others: tuple[tuple[str, str], ...] = ()
    """More addresses, each with a Unix socket of its own."""
    inner_key: str = ""
    """Names the network namespace of the listener inside, e.g. by its inode; empty: nothing goes outward. While it stays the
    same, a relay that is adopted keeps the listener it has."""
    gateway: str = ""
    pod_cidr: str = ""
    egress: bool = False
    """Whether pods may reach the outside; the domain's own processes always may."""


@dataclass(frozen=True, slots=True)
class RelayStatus:
    pid: int
    version: int
    program: str
    inner_key: str
    listeners: tuple[str, ...]
    fields: dict[str, str]
    """All that it reports: connections, bytes, refused, failed."""

    def number(self, name: str) -> int:
        return int(self.fields.get(name, "0"))


class Relay:
    """A `Runnable`: ready when the relay listens; ends with an OSError when an address is taken at the start."""

    def __init__(
        self,
        directory: Path,
        settings: RelaySettings,
        *,
        open_inner: Callable[[], Awaitable[socket.socket]] | None = None,
        log_file: Path | None = None,
        drain: float = 5.0,
        clock: Clock = SYSTEM_CLOCK,
        random: Random | None = None,
    ) -> None:
        """`open_inner` makes the listening socket inside the domain's network namespace. It is closed here once the relay has
        it. `drain`: seconds that connections have to end when the node stops."""
        self.name = "relay"
        self.ready = asyncio.Event()
        self.restarts = 0
        self._directory = directory
        self._settings = settings
        self._open_inner = open_inner
        self._log_file = log_file or directory / "relay.log"
        self._drain = drain
        self._clock = clock
        self._backoff = Backoff(RESTART, random)
        self._stopping = asyncio.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._changing = asyncio.Lock()
        self._configured = False
        """A relay runs and has the settings."""

    @property
    def settings(self) -> RelaySettings:
        return self._settings

    async def run(self) -> None:
        """Until `stop()` or cancellation; both end the relay."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            while not self._stopping.is_set():
                await self._one_life()
        except asyncio.CancelledError:
            with contextlib.suppress(OSError, RelayError):
                exchange(self._directory, "quit")
                self._reap()
            raise
        finally:
            self.ready.clear()
        await self._end()

    async def _one_life(self) -> None:
        first = not self.ready.is_set() and not self.restarts
        try:
            watch = await self._begin()
        except (OSError, RelayError) as error:
            if first:
                await self._end()
                raise
            wait = self._backoff.failed()
            _log.error("The relay cannot be started", error=error, retry_in=wait)
            await self._until_stop(self._clock.sleep(wait))
            return
        try:
            self.ready.set()
            self._backoff.succeeded()
            await self._until_stop(_closed(watch))
        finally:
            self._configured = False
            watch.close()
        if not self._stopping.is_set():
            self.restarts += 1
            code = await asyncio.to_thread(self._reap)
            wait = self._backoff.failed()
            _log.warning("The relay ended", exit_code=code, restart_in=wait)
            await self._until_stop(self._clock.sleep(wait))

    async def _begin(self) -> socket.socket:
        """A connection to a configured relay, which breaks when it dies."""
        watch, status = await self._adopt()
        if watch is None:
            await asyncio.to_thread(self._start)
            watch = await asyncio.to_thread(dial, self._directory)
            status = None
        try:
            async with self._changing:
                await self._send(self._settings, status.inner_key if status is not None else "")
                self._configured = True
        except BaseException:
            watch.close()
            raise
        return watch

    async def _adopt(self) -> tuple[socket.socket | None, RelayStatus | None]:
        """A relay that runs already. One of another version ends when its connections do, and a new one takes its place."""
        try:
            watch = await asyncio.to_thread(dial, self._directory)
        except (FileNotFoundError, ConnectionRefusedError):
            return None, None
        try:
            status = await self.status()
            if status.version == messages.VERSION and status.program == coterie.__version__:
                _log.info("Adopted the running relay", pid=status.pid)
                return watch, status
            _log.info("Replacing a relay of another version", pid=status.pid, was=status.program)
            await asyncio.to_thread(exchange, self._directory, "quit", (("drain", limits.MAX_DRAIN_SECONDS),))
        except BaseException:
            watch.close()
            raise
        watch.close()
        return None, None

    def _start(self) -> None:
        read, write = os.pipe()
        output = open_log(self._log_file)
        try:
            self._child = subprocess.Popen(
                # Without `site` it starts faster and loads nothing of what else is installed.
                (sys.executable, "-S", "-c", _PROGRAM, "--directory", str(self._directory), "--ready", str(write)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={"PYTHONPATH": str(Path(coterie.__file__).parents[1]), "PATH": os.defpath, "LANG": "C.UTF-8"},
                pass_fds=(write,),
                start_new_session=True,
            )
        finally:
            os.close(write)
            os.close(output)
        with open(read, "rb") as ready:
            if ready.readline() != b"ready\n":
                raise RelayError(f"the relay did not start (exit code {self._reap()}); see {self._log_file}")

    def _reap(self) -> int | None:
        """The exit code of a child that has ended; None: the relay was started by an earlier node."""
        child, self._child = self._child, None
        if child is None:
            return None
        try:
            return child.wait(_ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            return child.wait()

    async def configure(self, settings: RelaySettings) -> None:
        """Change what the relay does; connections stay. OSError: an address is taken, and nothing has changed. While no relay
        runs, the next one gets the new settings."""
        async with self._changing:
            if self._configured:
                await self._send(settings, self._settings.inner_key)
            self._settings = settings

    async def _send(self, settings: RelaySettings, inner_key: str) -> None:
        """`inner_key`: of the listener that the relay has."""
        fields: list[tuple[str, object]] = [("listen", each) for each in settings.listeners]
        for address, target in settings.others:
            fields += [("listen", address), ("target-of", f"{address} {target}")]
        for name, value in (
            ("target", settings.target),
            ("gateway", settings.gateway),
            ("pod-cidr", settings.pod_cidr),
            ("egress", "yes" if settings.egress else "no"),
            ("inner-key", settings.inner_key),
        ):
            fields.append((name, value))
        inner: socket.socket | None = None
        if settings.inner_key and settings.inner_key == inner_key:
            fields.append(("inner", "keep"))
        elif settings.inner_key and self._open_inner is not None:
            inner = await self._open_inner()
            fields.append(("inner", "given"))
        try:
            given = (inner.fileno(),) if inner is not None else ()
            await asyncio.to_thread(exchange, self._directory, "configure", fields, given)
        finally:
            if inner is not None:
                inner.close()

    async def status(self) -> RelayStatus:
        return await asyncio.to_thread(read_status, self._directory)

    def stop(self) -> None:
        """`run()` ends the relay and returns."""
        self._stopping.set()

    async def _end(self) -> None:
        """Without a relay that was started here, or was adopted, this does nothing."""
        try:
            watch = await asyncio.to_thread(dial, self._directory)
        except OSError:
            return
        try:
            await asyncio.to_thread(exchange, self._directory, "quit", (("drain", self._drain),))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(_closed(watch), self._drain + _ANSWER_SECONDS)
        except (OSError, RelayError) as error:
            _log.warning("The relay does not end", error=error)
        finally:
            watch.close()
        await asyncio.to_thread(self._reap)

    async def _until_stop(self, work: Awaitable[None]) -> None:
        waits = asyncio.ensure_future(work), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)


async def _closed(connection: socket.socket) -> None:
    """Until the other end of a connection on which nothing is ever sent is gone."""
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    loop.add_reader(connection.fileno(), gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(connection.fileno())


def dial(directory: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(_ANSWER_SECONDS)
        with messages.ShortPath(str(directory / messages.SOCKET_NAME)) as name:
            connection.connect(name)
        owner = int.from_bytes(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[4:8], sys.byteorder)
        if owner not in (0, os.getuid()):
            raise RelayError("the relay's socket belongs to another user")
    except BaseException:
        connection.close()
        raise
    return connection


def exchange(
    directory: Path, verb: str, fields: Fields = (), descriptors: tuple[int, ...] = ()
) -> list[tuple[str, str]]:
    """One request and its answer. OSError with the relay's own number when the machine refused what was asked for."""
    with dial(directory) as connection:
        socket.send_fds(connection, [messages.encode(verb, fields)], descriptors)
        data = connection.recv(limits.CONTROL_MESSAGE)
    if not data:
        raise RelayError("the relay closed the connection")
    answer, pairs = messages.decode(data)
    if answer == "ok":
        return pairs
    message = messages.one(pairs, "message")
    number = int(messages.one(pairs, "errno", "0"))
    if number == errno.EADDRINUSE:
        message = f"{message}. Another program has this port: stop it, or configure another port"
    raise OSError(number, message) if number else RelayError(message)


def read_status(directory: Path) -> RelayStatus:
    pairs = exchange(directory, "status")
    return RelayStatus(
        pid=int(messages.one(pairs, "pid")),
        version=int(messages.one(pairs, "version")),
        program=messages.one(pairs, "program"),
        inner_key=messages.one(pairs, "inner-key"),
        listeners=tuple(value for name, value in pairs if name == "listen"),
        fields=dict(pairs),
    )


Fields = tuple[tuple[str, object], ...] | list[tuple[str, object]]
