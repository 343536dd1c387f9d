"""The manager: starts what lives long in order, watches over it, stops it in reverse.

    groups:   storage ──ready──> apiserver ──ready──> informers ──ready──> controllers
    stop:     controllers, then informers, then ... each given time to finish what it does

A `Runnable` has a name, a `run()` that lives until it is cancelled (or told to `stop`), and `ready`. The first that
fails, or that ends by itself without being a job that may, stops all the others, and its error is raised from `run`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, runtime_checkable

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger

_log = logger("control.manager")


class Runnable(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def ready(self) -> asyncio.Event:
        """Set once others may rely on it."""

    async def run(self) -> None: ...


@runtime_checkable
class Stoppable(Protocol):
    def stop(self) -> None:
        """Finish what is being done and return from `run`; cancellation comes only when that takes too long."""


class RunnableFailed(Exception):
    """A runnable failed or ended early; the error itself is the cause."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.runnable = name


class RunOnce:
    """A runnable that is done when it returns: a migration, a bootstrap. Ready when done."""

    finite = True

    def __init__(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        self.name = name
        self.ready = asyncio.Event()
        self._work = work

    async def run(self) -> None:
        await self._work()
        self.ready.set()


class RunForever:
    """A runnable made of a function that runs for ever; ready as soon as it runs."""

    def __init__(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        self.name = name
        self.ready = asyncio.Event()
        self._work = work

    async def run(self) -> None:
        self.ready.set()
        await self._work()


class Manager:
    """Itself a Runnable, so managers nest."""

    def __init__(
        self,
        groups: Sequence[Sequence[Runnable]],
        *,
        name: str = "manager",
        grace: float = 10.0,
        ready_timeout: float = 60.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.name = name
        self.ready = asyncio.Event()
        self._groups = [list(group) for group in groups]
        self._grace = grace
        self._ready_timeout = ready_timeout
        self._clock = clock
        self._stop = asyncio.Event()
        self._tasks: dict[asyncio.Task[None], Runnable] = {}
        self._failure: RunnableFailed | None = None

    @property
    def waiting_for(self) -> list[str]:
        """Names of what is not ready yet."""
        return [runnable.name for group in self._groups for runnable in group if not runnable.ready.is_set()]

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        try:
            for group in self._groups:
                for runnable in group:
                    task = asyncio.get_running_loop().create_task(runnable.run(), name=f"{self.name}/{runnable.name}")
                    self._tasks[task] = runnable
                    task.add_done_callback(self._ended)
                if not await self._all_ready(group):
                    break
            else:
                self.ready.set()
                await self._stop.wait()
        finally:
            await self._shut_down()
        if self._failure is not None:
            raise self._failure

    def _ended(self, task: asyncio.Task[None]) -> None:
        runnable = self._tasks[task]
        if task.cancelled():
            if self._stop.is_set():
                return
            failure = RunnableFailed(runnable.name, "was cancelled")
        elif (error := task.exception()) is not None:
            failure = RunnableFailed(runnable.name, f"{type(error).__name__}: {error}")
            failure.__cause__ = error
        elif self._stop.is_set() or getattr(runnable, "finite", False):
            return
        else:
            failure = RunnableFailed(runnable.name, "ended by itself")
        _log.error("Runnable failed; stopping the rest", error=failure.__cause__ or failure, runnable=runnable.name)
        self._failure = self._failure or failure
        self._stop.set()

    async def _all_ready(self, group: Sequence[Runnable]) -> bool:
        """False when something failed or the manager is to stop."""
        for runnable in group:
            waits = [
                asyncio.ensure_future(runnable.ready.wait()),
                asyncio.ensure_future(self._stop.wait()),
                asyncio.ensure_future(self._clock.sleep(self._ready_timeout)),
            ]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
            if self._stop.is_set():
                return False
            if not runnable.ready.is_set():
                self._failure = RunnableFailed(runnable.name, f"was not ready within {self._ready_timeout:g} s")
                self._stop.set()
                return False
        return True

    async def _shut_down(self) -> None:
        self._stop.set()
        self.ready.clear()
        for group in reversed(self._groups):
            tasks = [task for task, runnable in self._tasks.items() if runnable in group and not task.done()]
            for task in tasks:
                runnable = self._tasks[task]
                if isinstance(runnable, Stoppable):
                    runnable.stop()
                else:
                    task.cancel()
            await self._ended_within_grace(tasks)

    async def _ended_within_grace(self, tasks: list[asyncio.Task[None]]) -> None:
        pending = set(tasks)
        for attempt in ("stop", "cancel"):
            if not pending:
                return
            if attempt == "cancel":
                names = sorted(self._tasks[task].name for task in pending)
                _log.warning("Runnables did not stop in time; cancelling them", runnables=names)
                for task in pending:
                    task.cancel()
            sleeper = asyncio.ensure_future(self._clock.sleep(self._grace))
            everything = asyncio.ensure_future(asyncio.wait(pending))
            await asyncio.wait({sleeper, everything}, return_when=asyncio.FIRST_COMPLETED)
            for helper in (sleeper, everything):
                helper.cancel()
            pending = {task for task in pending if not task.done()}
        if pending:
            _log.error(
                "Runnables ignore their cancellation", runnables=sorted(self._tasks[task].name for task in pending)
            )
