"""Tasks that have a name and an owner.

A bare `asyncio.create_task` can die unseen. A `TaskOwner` starts tasks by name, hears of the first that fails, and at
its end cancels what still runs and waits for it:

    async with TaskOwner("apiserver") as owner:
        owner.start("compactor", compact_forever(), endless=True)
        owner.start("listener", listen())
        await owner.wait()          # ends when all have ended; the first failure stops the rest and is raised
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any

from coterie.base.lean_event import LeanEvent
from coterie.base.log import Logger, logger

_log = logger("base.tasks")


class TaskFailed(Exception):
    """A named task ended by an error; the error itself is the cause."""

    def __init__(self, owner: str, name: str, error: BaseException) -> None:
        super().__init__(f"{owner}/{name}: {type(error).__name__}: {error}")
        self.owner = owner
        self.name = name
        self.__cause__ = error


class TaskEndedEarly(Exception):
    """A task that should run until it is cancelled returned by itself."""


class TaskOwner:
    def __init__(
        self,
        name: str,
        *,
        grace: float = 10.0,
        on_failure: Callable[[TaskFailed], None] | None = None,
        log: Logger = _log,
    ) -> None:
        """`grace`: how long cancelled tasks may take to clean up before they are given up by name."""
        self.name = name
        self.grace = grace
        self.failure: TaskFailed | None = None
        self._on_failure = on_failure
        self._log = log.bind(owner=name)
        self._tasks: dict[asyncio.Task[Any], str] = {}
        self._changed = LeanEvent()
        self._closing = False

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def names(self) -> list[str]:
        """What runs now."""
        return sorted(self._tasks.values())

    def start(
        self, name: str, work: Coroutine[Any, Any, Any], *, endless: bool = False, vital: bool = True
    ) -> asyncio.Task[Any]:
        """Run `work` as a task. `endless`: returning is a failure. `vital=False`: a failure is logged, not raised."""
        if self._closing:
            work.close()
            raise RuntimeError(f"{self.name} is closing and starts no task {name!r}")
        task = asyncio.get_running_loop().create_task(work, name=f"{self.name}/{name}")
        self._tasks[task] = name
        task.add_done_callback(lambda done: self._ended(done, endless=endless, vital=vital))
        return task

    def _ended(self, task: asyncio.Task[Any], *, endless: bool, vital: bool) -> None:
        name = self._tasks.pop(task)
        self._changed.set()
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            if not endless or self._closing:
                return
            error = TaskEndedEarly(f"{name} was to run until cancelled")
        failure = TaskFailed(self.name, name, error)
        self._log.error("Task failed", error=error, trace=not isinstance(error, TaskEndedEarly), task=name)
        if not vital or self.failure is not None:
            return
        self.failure = failure
        if self._on_failure is not None:
            self._on_failure(failure)

    async def wait(self) -> None:
        """Until every task has ended. The first failure cancels the others and is raised."""
        while self._tasks and self.failure is None:
            self._changed.clear()
            await self._changed.wait()
        if self.failure is not None:
            await self.close()
            raise self.failure

    async def drain(self, timeout: float) -> bool:
        """Give tasks time to end by themselves; says whether all did."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=timeout)
        return not self._tasks

    async def close(self) -> None:
        """Cancel what runs and wait for it, at most `grace` seconds. May be called twice."""
        self._closing = True
        current = asyncio.current_task()
        mine = [task for task in self._tasks if task is not current]
        for task in mine:
            task.cancel()
        if not mine:
            return
        _, stuck = await asyncio.wait(mine, timeout=self.grace)
        if stuck:
            self._log.error("Tasks ignore their cancellation", tasks=sorted(self._tasks[task] for task in stuck))
        await asyncio.sleep(0)  # the done callbacks run before the caller goes on

    async def __aenter__(self) -> TaskOwner:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
        if error is None and self.failure is not None:
            raise self.failure


def retrieve_exception(task: asyncio.Future[Any]) -> None:
    """For `add_done_callback`: what it failed with counts as told, where nobody may ask any more and that is no
    news."""
    if not task.cancelled():
        task.exception()
