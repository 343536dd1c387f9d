"""A child process that serves, started when somebody needs it and ended when nobody does.

Some libraries weigh as much as all the rest of a node, so a node does without them until they are needed:

    node holds the doors ──somebody needs it, or connects──> child starts ──opens the ports──> gets the connections
                         <──not needed for minutes── child ends

Doors are ports, which pass over to the child while it lives (base/listener_handover.py), and Unix sockets, whose connections the node
always carries. What connects before the child listens waits at the node and is passed on. The child reaches the API through
the node (kube/control/child_api_listener.py). When it dies it is started again; it does not outlive the node.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.base import child_logging, listener_handover
from coterie.base.backoff import Policy
from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.log_rotation import STANDARD, Rotation
from coterie.base.process import ProcessExit, ProcessSpec, Supervised
from coterie.base.tasks import TaskOwner
from coterie.kube.client.transport import Transport
from coterie.kube.control.child_api_listener import Allowed, ChildApiListener, private_socket

log = logger("child")

IDLE = 300.0
"""Seconds without need after which the child ends."""
UNUSED = 15.0
"""The same for a child that was started for somebody who then never called: most engines of small jobs read no data, and
the data mesh is larger than the rest of the node."""
_RESTART = Policy(first=0.2, factor=2.0, limit=10.0, jitter=0.2)
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_CHUNK = 1 << 20
_POLL_SECONDS = 10.0
_REMEMBERED = 10.0
"""Seconds for which we know our own connections to the child."""
_VERSION_4 = "::ffff:"
"""How a socket for both versions spells addresses of the older one."""
_MOST_WAITING = 512
"""Connections that wait for a child to serve; further ones are closed."""
_BREATH = 1.0

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Dial = Callable[[], Awaitable[socket.socket]]


@dataclass(frozen=True, slots=True)
class OnDemandProcessSpec:
    name: str
    """Of the process and its log."""
    who: str
    """As refusals of the API call it: "a data mesh"."""
    module: str
    """`python -m` of this."""
    options: Mapping[str, str]
    """Command line options; `--api` is added."""
    ports: Sequence[tuple[str, int]]
    """With the address of each."""
    api: Path
    """The socket by which the child reaches the API; its directory is private."""
    log_file: Path
    sockets: Mapping[Path, Path] = field(default_factory=dict)
    """Where the node listens, and where the child does, for what comes that way."""
    env: Mapping[str, str] = field(default_factory=dict)
    logging: Path | None = None
    """How it logs (base/child_logging.py)."""
    log_rotation: Rotation = STANDARD


class OnDemandProcess:
    """The ports are held from the beginning. Raises OSError when one cannot be had."""

    def __init__(
        self,
        plan: OnDemandProcessSpec,
        transport: Transport,
        allowed: Allowed,
        clock: Clock,
        *,
        idle: float = IDLE,
        in_use: Callable[[], bool] = lambda: False,
    ) -> None:
        """`in_use`: a need that lasts, besides connections and what the child says."""
        self.open = asyncio.Event()
        """The doors are: who connects will be served."""
        self._plan = plan
        self._clock = clock
        self._idle = idle
        self._in_use = in_use
        self._api_listener = ChildApiListener(
            plan.api, transport, who=plan.who, allowed=allowed, ready=self._announced, used=self._called, asked=self._asked
        )  # fmt: skip
        self._needed = asyncio.Event()
        self._last_need = 0.0
        self._used = False
        """Somebody connected, or the child asked the API for somebody."""
        self._serving = asyncio.Event()
        self._stop = asyncio.Event()
        self._child = Supervised(_spec(plan), clock=clock, on_exit=self._exited)
        self._waiting = 0
        """Those who came before the child serves."""
        self._passing: set[tuple[str, int]] = set()
        self._always = False
        self._held: list[socket.socket] = []
        self._listen()

    def _listen(self) -> None:
        try:
            for place in self._plan.ports:
                self._held.append(listener_handover.listen_until_handover(*place))
        except listener_handover.HandoverUnsupported:
            # An old kernel: the child is there from the beginning.
            listener_handover.close(*self._held)
            self._held, self._always = [], True
        except OSError:
            listener_handover.close(*self._held)
            raise

    @property
    def pid(self) -> int | None:
        """Of the process that serves, while there is one."""
        return self._child.pid

    def need(self) -> None:
        self._last_need = self._clock.monotonic()
        self._needed.set()

    def _called(self) -> None:
        self._used = True
        self.need()

    def _asked(self) -> None:
        self._used = True

    def stop(self) -> None:
        self._stop.set()

    def release(self) -> None:
        """Of one that is never run."""
        listener_handover.close(*self._held)

    async def run(self) -> None:
        listening: list[socket.socket] = []
        try:
            await self._api_listener.open()
            listening = [private_socket(path) for path in self._plan.sockets]
            async with TaskOwner(self._plan.name) as owner:
                owner.start("child", self._keep(), endless=True)
                for place, held in zip(self._plan.ports, self._held, strict=False):
                    owner.start("doorman", self._at_port(held, place, owner), endless=True)
                for bound, target in zip(listening, self._plan.sockets.values(), strict=True):
                    owner.start("doorman", self._at_socket(bound, target, owner), endless=True)
                self.open.set()
                await _first(self._stop.wait(), owner.wait())
                self._stop.set()
                await self._child.stop()
        finally:
            listener_handover.close(*self._held, *listening)
            for path in self._plan.sockets:
                path.unlink(missing_ok=True)
            await self._api_listener.close()

    # The child.

    def _announced(self) -> None:
        self.need()
        self._serving.set()

    def _exited(self, _: ProcessExit) -> None:
        self._serving.clear()

    async def _keep(self) -> None:
        while True:
            if not self._always:
                await self._needed.wait()
            life = asyncio.ensure_future(self._child.run())
            try:
                while self._always or self._is_needed():
                    await self._clock.sleep(min(self._idle, _POLL_SECONDS))
                log.info("Idle; process stopped", child=self._plan.name)
                self._used = False
                await self._child.stop()
            finally:
                life.cancel()
                await asyncio.gather(life, return_exceptions=True)

    def _is_needed(self) -> bool:
        if self._waiting or self._in_use():
            self._last_need = self._clock.monotonic()
        elif self._clock.monotonic() - self._last_need > (self._idle if self._used else min(self._idle, UNUSED)):
            self._needed.clear()
        return self._needed.is_set()

    # Those who come before the child listens, and those who come by a Unix socket.

    async def _at_port(self, held: socket.socket, place: tuple[str, int], owner: TaskOwner) -> None:
        while True:
            early, caller = await self._accepted(held)
            if (caller[0].removeprefix(_VERSION_4), caller[1]) in self._passing:
                # Our own way to the child has come back to us: it ended just now.
                early.close()
                continue
            self._receive(early, lambda: self._to_port(*place), owner)

    async def _at_socket(self, bound: socket.socket, target: Path, owner: TaskOwner) -> None:
        while True:
            early, _ = await self._accepted(bound)
            self._receive(early, lambda: _to_socket(target), owner)

    async def _accepted(self, bound: socket.socket) -> tuple[socket.socket, Any]:
        """The next connection. That there is no room for it, or that it broke off at once, must not end the node."""
        while True:
            try:
                return await asyncio.get_running_loop().sock_accept(bound)
            except OSError as problem:
                log.warning("Connection cannot be accepted", child=self._plan.name, error=problem)
                await self._clock.sleep(_BREATH)

    def _receive(self, early: socket.socket, dial: Dial, owner: TaskOwner) -> None:
        if self._waiting >= _MOST_WAITING:
            early.close()
            return
        self._called()
        owner.start("early", self._passed_on(early, dial), vital=False)

    async def _passed_on(self, early: socket.socket, dial: Dial) -> None:
        with contextlib.suppress(OSError):
            ours, theirs = await self._joined(early, dial)
            await asyncio.gather(_carry(ours[0], theirs[1]), _carry(theirs[0], ours[1]))

    async def _joined(self, early: socket.socket, dial: Dial) -> tuple[Stream, Stream]:
        """Both halves of the way, as soon as the child serves. OSError when it is gone again."""
        self._waiting += 1
        try:
            await self._serving.wait()
            there = await dial()
        except BaseException:
            early.close()
            raise
        finally:
            self._waiting -= 1
        # Streams close their sockets themselves, when nothing waits in them any more.
        return await asyncio.open_connection(sock=early), await asyncio.open_connection(sock=there, limit=_CHUNK)

    async def _to_port(self, address: str, port: int) -> socket.socket:
        address = _EVERYWHERE.get(address, address)
        made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        made.setblocking(False)
        # Bound first: who is called may be ourselves, and must know.
        made.bind((address, 0))
        here = (address, int(made.getsockname()[1]))
        self._passing.add(here)
        asyncio.get_running_loop().call_later(_REMEMBERED, self._passing.discard, here)
        try:
            await asyncio.get_running_loop().sock_connect(made, (address, port))
        except OSError:
            made.close()
            raise
        return made


async def _to_socket(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(made, str(path))
    except OSError:
        made.close()
        raise
    return made


def _spec(plan: OnDemandProcessSpec) -> ProcessSpec:
    options = {**plan.options, "--api": str(plan.api)}
    return ProcessSpec(
        plan.name,
        (sys.executable, "-m", plan.module, *(word for pair in options.items() for word in pair)),
        env={
            "PATH": os.defpath,
            "PYTHONPATH": os.pathsep.join(each for each in sys.path if each),
            "MALLOC_ARENA_MAX": "2",
            **child_logging.environment(plan.log_file, plan.logging),
            **plan.env,
        },
        log_file=plan.log_file,
        log_rotation=plan.log_rotation,
        stop_grace=7.0,
        restart=_RESTART,
        die_with_parent=True,
    )


async def _first(*works: Coroutine[Any, Any, Any]) -> None:
    """A failure is raised by the owner of what failed."""
    waits = [asyncio.ensure_future(each) for each in works]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def _carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(_CHUNK):
            target.write(data)
            await target.drain()
    except OSError:
        pass  # the other direction ends by the same
    finally:
        target.close()
