"""Jobs and tasks as events where the job controller did not write them: answers of partners to jobs that ended meanwhile, tasks without a job.

informers ─▶ recorded_events.py (pure) ─▶ queue ─▶ job_events.py ─▶ the log
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coterie.base.clock import Clock
from coterie.kube.client.informer import ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kuscia.api.evidence import EventRequest
from coterie.kuscia.api.jobs.recorded_events import events_of_job, task_ended
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS, KUSCIA_TASKS, KusciaJob, KusciaTask
from coterie.kuscia.evidence.event_queue import QueuedRecorder
from coterie.kuscia.evidence.job_events import JobEvents
from coterie.kuscia.evidence.service import EvidenceService


class EvidenceFollower(QueuedRecorder):
    name = "evidence-follower"

    def __init__(self, service: EvidenceService, events: JobEvents, informers: Informers, clock: Clock) -> None:
        super().__init__(service, clock)
        self._events = events
        self._jobs = informers.get(KUSCIA_JOBS, CROSS_DOMAIN)
        self._tasks = informers.get(KUSCIA_TASKS, CROSS_DOMAIN)

    async def begin(self) -> None:
        self._jobs.add_handler(self._job_changed)
        self._tasks.add_handler(self._task_changed)

    async def write(self, batch: Sequence[EventRequest]) -> None:
        await self._events.ensure(batch)

    def _job_changed(self, change: ObjectChange[KusciaJob]) -> None:
        if change.type != "deleted":
            self._add_new(events_of_job(change.object))

    def _task_changed(self, change: ObjectChange[KusciaTask]) -> None:
        if change.type != "deleted" and (ended := task_ended(change.object)) is not None:
            self._add_new([ended])

    def _add_new(self, found: Iterable[EventRequest]) -> None:
        self.add(each for each in found if not self._events.knows(each))
