"""Jobs that need no second look at what we wrote ourselves.

Each write of a status comes back as news. Of most, the next step follows from it. Not of a job that was refused, and of one that waits for objects
which are not there: the next look would find what this one found, as long as nothing else changed.
"""

from __future__ import annotations

from dataclasses import dataclass

from coterie.base.clock import Clock
from coterie.kube.api.meta import ObjectKey
from coterie.kube.control.controller import Result
from coterie.kuscia.api.jobs.phases import JOB_NEW
from coterie.kuscia.api.types.job import KusciaJob, KusciaJobStatus
from coterie.kuscia.api.waiting import WaitReason
from coterie.kuscia.controllers.kusciajob.plan import JobView, Plan


def is_settled(view: JobView, wanted: Plan, status: KusciaJobStatus) -> bool:
    """Whether nothing follows from this status alone. Pure."""
    acts = wanted.mark or wanted.name_tasks or wanted.stop or wanted.delete or wanted.create or wanted.start_again
    if acts or view.tasks or view.stage is not None:
        return False
    if status.phase in JOB_NEW:
        return wanted.waiting is not None and wanted.waiting.reason == WaitReason.MISSING_OBJECTS
    return bool(status.completion_time)


@dataclass(frozen=True, slots=True)
class _Look:
    version: str
    """Of the job as the look left it."""
    facts: tuple[int, ...]
    due: float | None


class SettledJobs:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looks: dict[ObjectKey, _Look] = {}

    def note(self, job: KusciaJob, facts: tuple[int, ...], after: float | None) -> None:
        """`facts`: as they were when the look began. `after`: seconds, as in its Result."""
        due = None if after is None else self._clock.monotonic() + after
        self._looks[job.key] = _Look(job.metadata.resource_version, facts, due)

    def result(self, job: KusciaJob, facts: tuple[int, ...]) -> Result | None:
        """What a look at the job would answer; None: it must be looked at. Asked once for each note: news of the write comes once."""
        look = self._looks.pop(job.key, None)
        if look is None or (look.version, look.facts) != (job.metadata.resource_version, facts):
            return None
        if look.due is None:
            return Result()
        left = look.due - self._clock.monotonic()
        return Result(after=left) if left > 0 else None

    def forget(self, key: ObjectKey) -> None:
        self._looks.pop(key, None)
