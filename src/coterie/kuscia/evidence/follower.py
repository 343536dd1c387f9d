"""Jobs and tasks as events where the job controller did not write them: answers of partners to jobs that ended meanwhile, tasks without a job.

informers ─▶ recorded_events.py (pure) ─▶ queue ─▶ job_events.py ─▶ the log
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from coterie.base.backoff import Backoff, Policy
from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner
from coterie.kube.client.informer import ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kuscia.api.evidence import EventRequest, EvidenceError
from coterie.kuscia.api.jobs.recorded_events import events_of_job, task_ended
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS, KUSCIA_TASKS, KusciaJob, KusciaTask
from coterie.kuscia.evidence.job_events import JobEvents
from coterie.kuscia.evidence.service import EvidenceService

log = logger("evidence")

_BACKOFF = Policy(first=0.5, factor=2.0, limit=30.0)


class EvidenceFollower:
    """A Runnable: after the log and the informers."""

    name = "evidence-follower"

    def __init__(self, service: EvidenceService, events: JobEvents, informers: Informers, clock: Clock) -> None:
        self.ready = asyncio.Event()
        self._service = service
        self._events = events
        self._clock = clock
        self._jobs = informers.get(KUSCIA_JOBS, CROSS_DOMAIN)
        self._tasks = informers.get(KUSCIA_TASKS, CROSS_DOMAIN)
        self._waiting: deque[EventRequest] = deque()
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        self.ready.set()
        async with TaskOwner(self.name) as owner:
            owner.start("writer", self._write(), endless=True)
            await self._stop.wait()

    async def _write(self) -> None:
        """The log may be unusable for a while; nothing is lost meanwhile, for objects keep what happened."""
        backoff = Backoff(_BACKOFF)
        while self._service.log is None:
            await self._clock.sleep(backoff.failed())
        self._jobs.add_handler(self._job_changed)
        self._tasks.add_handler(self._task_changed)
        backoff = Backoff(_BACKOFF)
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                batch = [self._waiting[index] for index in range(min(64, len(self._waiting)))]
                try:
                    await self._events.ensure(batch)
                except EvidenceError as problem:
                    log.error("Events of jobs cannot be recorded yet", error=problem, waiting=len(self._waiting))
                    await self._clock.sleep(backoff.failed())
                    continue
                backoff = Backoff(_BACKOFF)
                for _ in batch:
                    self._waiting.popleft()

    def _job_changed(self, change: ObjectChange[KusciaJob]) -> None:
        if change.type != "deleted":
            self._add(events_of_job(change.object))

    def _task_changed(self, change: ObjectChange[KusciaTask]) -> None:
        if change.type != "deleted" and (ended := task_ended(change.object)) is not None:
            self._add([ended])

    def _add(self, found: Iterable[EventRequest]) -> None:
        fresh = [each for each in found if not self._events.knows(each)]
        if fresh:
            self._waiting += fresh
            self._wake.set()
