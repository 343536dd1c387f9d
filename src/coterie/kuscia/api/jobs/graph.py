"""The tasks of a job as a graph: which are ready, which can never run, whether there is a circle. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from coterie.kuscia.api.jobs.phases import TASK_ENDED
from coterie.kuscia.api.types.job import TaskPhase, TaskTemplate


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Where each task of a job stands, by alias."""

    ready: tuple[TaskTemplate, ...]
    """Not begun, everything they wait for has succeeded; the most urgent first."""
    active: tuple[TaskTemplate, ...]
    failed: tuple[TaskTemplate, ...]
    blocked: tuple[TaskTemplate, ...]
    """Not begun, and never will be: something they wait for failed or is blocked itself."""

    @property
    def lost(self) -> tuple[TaskTemplate, ...]:
        """Tasks that had to succeed and cannot any more."""
        return tuple(task for task in (*self.failed, *self.blocked) if not task.tolerable)

    @property
    def resting(self) -> bool:
        return not self.ready and not self.active


def progress(tasks: Sequence[TaskTemplate], phases: Mapping[str, str]) -> JobProgress:
    """`phases`: by alias, of tasks that exist; an empty phase is that of a task nobody has looked at yet."""
    dead = {alias for alias, phase in phases.items() if phase == TaskPhase.FAILED}
    failed = tuple(task for task in tasks if task.alias in dead)
    blocked: list[TaskTemplate] = []
    for task in in_order(tasks):
        if task.alias not in phases and not dead.isdisjoint(task.dependencies or ()):
            dead.add(task.alias)
            blocked.append(task)
    ready = [
        task
        for task in tasks
        if task.alias not in phases
        and all(phases.get(other) == TaskPhase.SUCCEEDED for other in task.dependencies or ())
    ]
    active = tuple(task for task in tasks if task.alias in phases and phases[task.alias] not in TASK_ENDED)
    return JobProgress(tuple(sorted(ready, key=lambda task: -task.priority)), active, failed, tuple(blocked))


def in_order(tasks: Sequence[TaskTemplate]) -> Iterator[TaskTemplate]:
    """Each task after those it waits for. Tasks of a circle, or that wait for one, are left out."""
    done: set[str] = set()
    left = list(tasks)
    while left:
        free = [task for task in left if done.issuperset(task.dependencies or ())]
        if not free:
            return
        yield from free
        done.update(task.alias for task in free)
        left = [task for task in left if task.alias not in done]


def circle(tasks: Sequence[TaskTemplate]) -> tuple[str, ...]:
    """The aliases of one circle, in the order in which they wait for each other; empty when there is none."""
    sorted_out = {task.alias for task in in_order(tasks)}
    waits = {
        task.alias: [other for other in task.dependencies or () if other not in sorted_out]
        for task in tasks
        if task.alias not in sorted_out
    }
    if not waits:
        return ()
    # Whoever is left waits for somebody who is left, so following the first of them must come round.
    path = [next(iter(waits))]
    while True:
        onward = next((other for other in waits[path[-1]] if other in waits), None)
        if onward is None:
            return ()  # it waits for a task that does not exist, which is told elsewhere
        if onward in path:
            return (*path[path.index(onward) :], onward)
        path.append(onward)
