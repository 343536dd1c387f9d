"""Child processes that are kept alive: started, watched, restarted with back-off, stopped with patience.

    child = Supervised(ProcessSpec("envoy", ("envoy", "-c", path), log_file=paths.log("envoy")))
    owner.start("envoy", child.run(), endless=True)
    ...
    await child.stop()

Each child leads a session of its own, so that stopping it also stops what it started, and Ctrl-C in the terminal is
ours to translate. What it writes goes straight into its own log file, not through this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from coterie.base.backoff import Backoff, Policy
from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import Logger, logger
from coterie.base.log_rotation import STANDARD, Rotation, is_full, move_aside, open_log

_log = logger("base.process")
RESTART_POLICY = Policy(first=0.5, factor=2.0, limit=30.0, jitter=0.2)
_PR_SET_PDEATHSIG = 1
# The parent may have died before the wish was made.
_DIE_WITH = (
    "import ctypes, os, sys; "
    f"ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {int(signal.SIGKILL)}); "
    "os.getppid() == int(sys.argv[1]) or os._exit(1); "
    "os.execvp(sys.argv[2], sys.argv[2:])"
)


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    name: str
    argv: Sequence[str]
    env: Mapping[str, str] | None = field(default=None, repr=False)
    """The whole environment; None: ours. Not shown by repr: it may hold credentials."""
    cwd: Path | None = None
    log_file: Path | None = None
    """None: output is thrown away."""
    log_rotation: Rotation = STANDARD
    """A log that is full is moved aside when the child starts."""
    stop_grace: float = 10.0
    """Seconds between SIGTERM and SIGKILL."""
    restart: Policy = RESTART_POLICY
    stable_after: float = 30.0
    """A child that lived this long is forgiven its earlier failures."""
    die_with_parent: bool = False
    """Linux: the kernel ends the child when this process dies, even by SIGKILL."""
    pass_fds: Sequence[int] = ()
    """Descriptors that the child gets under the same numbers."""
    prefix: Sequence[str] = ()
    """A command that becomes the one that follows it, in other namespaces for example. It must not fork."""


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """How a child ended; `code` is negative for a signal."""

    pid: int
    code: int
    lived: float

    @property
    def describe(self) -> str:
        if self.code >= 0:
            return f"exit code {self.code}"
        try:
            return signal.Signals(-self.code).name
        except ValueError:
            return f"signal {-self.code}"


class Supervised:
    """One child that is to run for as long as `run()` does."""

    def __init__(
        self,
        spec: ProcessSpec,
        *,
        clock: Clock = SYSTEM_CLOCK,
        random: Random | None = None,
        on_start: Callable[[int], None] | None = None,
        on_exit: Callable[[ProcessExit], None] | None = None,
        log: Logger = _log,
    ) -> None:
        self.spec = spec
        self.restarts = 0
        self.last_exit: ProcessExit | None = None
        self._clock = clock
        self._backoff = Backoff(spec.restart, random)
        self._on_start = on_start
        self._on_exit = on_exit
        self._log = log.bind(process=spec.name)
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._stopped = asyncio.Event()
        self._stopped.set()

    @property
    def pid(self) -> int | None:
        """The running child's, or None."""
        return self._process.pid if self._process is not None else None

    async def run(self) -> None:
        """Keep the child alive until `stop()` is called or the task is cancelled; the child never outlives this."""
        self._stopping.clear()
        self._stopped.clear()
        try:
            while not self._stopping.is_set():
                wait = await self._one_life()
                if self._stopping.is_set():
                    break
                self.restarts += 1
                await self._pause(wait)
        finally:
            self._stopped.set()

    async def _one_life(self) -> float:
        """Start the child and see it end. Answers how long to wait before the next."""
        started = self._clock.monotonic()
        try:
            process = await self._spawn()
        except OSError as error:
            self._log.error("Child process cannot be started", error=error)
            return self._backoff.failed()
        self._process = process
        self._log.info("Child process started", pid=process.pid)
        if self._on_start is not None:
            self._on_start(process.pid)
        try:
            await self._until_exit_or_stop(process)
        finally:
            if process.returncode is None:
                await self._terminate(process)
            # What the child left in its group goes with it. The number cannot mean a stranger while any of them lives,
            # and right after the end no new process has come round to it.
            _signal_group(process.pid, signal.SIGKILL)
            self._process = None
        ended = ProcessExit(process.pid, process.returncode or 0, self._clock.monotonic() - started)
        self.last_exit = ended
        if self._on_exit is not None:
            self._on_exit(ended)
        if self._stopping.is_set():
            self._log.info("Child process stopped", pid=ended.pid, how=ended.describe)
            return 0.0
        if ended.lived >= self.spec.stable_after:
            self._backoff.succeeded()
        wait = self._backoff.failed()
        self._log.warning("Child process ended", pid=ended.pid, how=ended.describe, lived=ended.lived, restart_in=wait)
        return wait

    async def _spawn(self) -> asyncio.subprocess.Process:
        spec = self.spec
        output = _open_log(spec.log_file, spec.log_rotation) if spec.log_file is not None else None
        try:
            return await asyncio.create_subprocess_exec(
                # The prefix comes first: the kernel forgets PR_SET_PDEATHSIG of a process that enters a user namespace.
                *spec.prefix,
                *(_following(spec.argv) if spec.die_with_parent else spec.argv),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL if output is None else output,
                stderr=asyncio.subprocess.DEVNULL if output is None else asyncio.subprocess.STDOUT,
                cwd=spec.cwd,
                env=dict(spec.env) if spec.env is not None else None,
                start_new_session=True,
                pass_fds=tuple(spec.pass_fds),
            )
        finally:
            if output is not None:
                os.close(output)

    async def _until_exit_or_stop(self, process: asyncio.subprocess.Process) -> None:
        ended = asyncio.ensure_future(process.wait())
        asked = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((ended, asked), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            asked.cancel()
            await asyncio.gather(ended, asked, return_exceptions=True)

    async def _terminate(self, process: asyncio.subprocess.Process) -> None:
        _signal_group(process.pid, signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), self.spec.stop_grace)
        except TimeoutError:
            self._log.warning("Child process ignores SIGTERM and is killed", pid=process.pid)
        finally:
            # Also when this very wait is cancelled: a child that nobody awaits would be left behind.
            if process.returncode is None:
                _signal_group(process.pid, signal.SIGKILL)
                await asyncio.shield(process.wait())

    async def _pause(self, seconds: float) -> None:
        pause = asyncio.ensure_future(self._clock.sleep(seconds))
        asked = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((pause, asked), return_when=asyncio.FIRST_COMPLETED)
        finally:
            pause.cancel()
            asked.cancel()
            await asyncio.gather(pause, asked, return_exceptions=True)

    async def stop(self) -> None:
        """Ask the child to end, kill it after the grace, and return when it is gone. `run()` then returns."""
        self._stopping.set()
        await self._stopped.wait()

    def signal(self, number: int) -> bool:
        """Send a signal to the child itself; False when none runs."""
        if self._process is None or self._process.returncode is not None:
            return False
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)
            return True
        return False


def _open_log(path: Path, rotation: Rotation) -> int:
    if is_full(path, rotation):
        move_aside(path, rotation)
    return open_log(path)


def _signal_group(pid: int, number: int) -> None:
    """The child leads its group, so the group's number is the child's."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _following(argv: Sequence[str]) -> Sequence[str]:
    """The same program, begun by a process that makes the wish and then becomes it.

    Making it between fork and exec would run Python in a copy of this process that lacks all its other threads: whoever
    of them held a lock, gRPC's for example, holds it there for ever, or the copy dies of it.
    """
    if not sys.platform.startswith("linux"):
        return argv
    return (sys.executable, "-I", "-S", "-c", _DIE_WITH, str(os.getpid()), *argv)
