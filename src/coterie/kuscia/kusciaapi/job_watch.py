"""WatchJob: what becomes of jobs, told to everybody who watches.

    jobs, tasks ──informers──> JobBoard ──mailbox──> a watcher
                                        ──mailbox──> a watcher ...

However many watch, jobs and tasks are followed once, from the first watcher's coming to the last one's leaving, and
each change is put into words once. Whoever comes is first told of all jobs there are. A watcher that reads slowly keeps
nobody waiting: in its mailbox newer news of a job take the place of older news, so it never holds more than there are
jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from google.protobuf import json_format
from msgspec.structs import replace

from coterie.base.clock import Clock
from coterie.base.tasks import TaskFailed, TaskOwner
from coterie.kube.client.client import Client
from coterie.kube.client.informer import Informer, ObjectChange
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS, KUSCIA_TASKS, KusciaJob, KusciaTask
from coterie.kuscia.kusciaapi import job_messages, messages
from coterie.kuscia.kusciaapi.codes import ApiErrorCode, CallRefused
from coterie.kuscia.kusciaapi.known_jobs import job_uid_of

HEARTBEAT = 10.0
"""Seconds of silence after which a watcher is told that nothing happened."""
LONGEST = 2**31 - 1
"""Seconds that a watch may last."""
_AT_ONCE = 1e-6
"""Seconds that are none: what adding and subtracting times leaves."""
_SLICE = 32
"""Jobs put into words before others may run again."""
_BY_JOB = "job"

_Event = messages.message("WatchJobEventResponse")
_Status = messages.message("JobStatus")
ADDED, MODIFIED, DELETED, HEARTBEAT_TYPE = (
    messages.message("WatchJobEventResponse").DESCRIPTOR.fields_by_name["type"].enum_type.values_by_name[name].number
    for name in ("ADDED", "MODIFIED", "DELETED", "HEARTBEAT")
)


@dataclass(frozen=True, slots=True)
class WatchedJob:
    """A job as watchers see it."""

    uid: str
    domains: frozenset[str]
    """Who may see it."""
    status: Any
    """JobStatus; shared, so nobody changes it."""
    _events: dict[int, messages.Shared] = field(default_factory=dict, repr=False, compare=False)

    def event(self, type: int) -> messages.Shared:
        """The same for all watchers."""
        if type not in self._events:
            self._events[type] = messages.Shared(_Event(type=type, object=self.status))
        return self._events[type]


class JobUpdate(NamedTuple):
    type: int
    job: WatchedJob


def merged(waiting: tuple[JobUpdate, ...], new: JobUpdate) -> tuple[JobUpdate, ...]:
    """What is left to tell of one job: at most that it went, and that another of its name came."""
    if not waiting or new.type == ADDED:
        return (*waiting, new)
    *before, last = waiting
    if new.type == MODIFIED:
        return (*before, JobUpdate(last.type, new.job))
    return tuple(before) if last.type == ADDED else (*before, new)


class JobEventQueue:
    def __init__(self, domain: str) -> None:
        """`domain`: whose jobs are told of; empty: all."""
        self._domain = domain
        self._waiting: dict[str, tuple[JobUpdate, ...]] = {}
        self.changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, type: int, name: str, job: WatchedJob) -> None:
        if self._domain and self._domain not in job.domains:
            return
        left = merged(self._waiting.get(name, ()), JobUpdate(type, job))
        if left:
            self._waiting[name] = left
        else:
            del self._waiting[name]
        self.changed.set()

    def take(self) -> JobUpdate | None:
        """The oldest news; None when there are none."""
        if not self._waiting:
            self.changed.clear()
            return None
        name = next(iter(self._waiting))
        first, *rest = self._waiting.pop(name)
        if rest:
            self._waiting[name] = tuple(rest)
        return first


class JobWatchers:
    """The watchers of one server."""

    def __init__(self) -> None:
        self._following: _Following | None = None

    @property
    def watchers(self) -> int:
        return len(self._following.queues) if self._following is not None else 0

    async def watch(self, client: Client, clock: Clock, domain: str, seconds: int) -> AsyncGenerator[Any, None]:
        """Events (WatchJobEventResponse) for so many seconds; 0: until the generator is closed."""
        following, queue = self._following, JobEventQueue(domain)
        if following is None or following.failed:
            following = self._following = _Following(client)
        following.join(queue)
        timer = _WatchTimer(clock, seconds or LONGEST)
        try:
            async with TaskOwner("watch of jobs") as owner:
                owner.start("alarm", timer.arm(queue.changed))
                sent = 0
                while not timer.over:
                    if following.failed:
                        raise CallRefused(ApiErrorCode.UNEXPECTED, "jobs cannot be followed any more; watch again")
                    if (updates := queue.take()) is not None:
                        timer.renew()
                        yield updates.job.event(updates.type)
                        sent += 1
                        if sent % _SLICE == 0:
                            await asyncio.sleep(0)
                    elif timer.silent:
                        timer.renew()
                        yield _Event(type=HEARTBEAT_TYPE)
                    else:
                        await queue.changed.wait()
        finally:
            following.queues.discard(queue)
            if not following.queues:
                if self._following is following:
                    self._following = None
                await following.close()


class _WatchTimer:
    """When a watcher is told that nothing happened, and when its time is over. One alarm serves it for as long as it
    watches: most of them find that something happened meanwhile."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._end = clock.monotonic() + seconds
        self.renew()

    def renew(self) -> None:
        self._silence = self._clock.monotonic() + HEARTBEAT

    @property
    def over(self) -> bool:
        return self._until(self._end) <= 0

    @property
    def silent(self) -> bool:
        return self._until(self._silence) <= 0

    async def arm(self, bell: asyncio.Event) -> None:
        while not self.over:
            # Who has not yet taken a heartbeat gets no second one at once.
            await self._clock.sleep(min(self._until(self._end), self._until(self._silence) or HEARTBEAT))
            bell.set()

    def _until(self, moment: float) -> float:
        left = moment - self._clock.monotonic()
        return left if left > _AT_ONCE else 0.0


class _Following:
    """Jobs and tasks as long as somebody watches."""

    def __init__(self, client: Client) -> None:
        self.queues: set[JobEventQueue] = set()
        self.failed = False
        self._shown: dict[str, WatchedJob] = {}
        self._changed: dict[str, None] = {}
        self._stirred = asyncio.Event()
        self._jobs = Informer(client, KUSCIA_JOBS, namespace=CROSS_DOMAIN, transform=_light_job)
        self._tasks = Informer(
            client, KUSCIA_TASKS, namespace=CROSS_DOMAIN, indexes={_BY_JOB: job_uid_of}, transform=_light_task
        )
        self._jobs.add_handler(self._job_changed)
        self._tasks.add_handler(self._task_changed)
        self._owner = TaskOwner("kusciaapi/jobs", on_failure=self._break)
        self._owner.start("follow jobs", self._jobs.run(), endless=True)
        self._owner.start("follow tasks", self._tasks.run(), endless=True)
        self._owner.start("tell", self._publish(), endless=True)

    def join(self, queue: JobEventQueue) -> None:
        for name, job in self._shown.items():
            queue.put(ADDED, name, job)
        self.queues.add(queue)

    async def close(self) -> None:
        await self._owner.close()

    def _break(self, failure: TaskFailed) -> None:
        self.failed = True
        for queue in self.queues:
            queue.changed.set()

    def _job_changed(self, change: ObjectChange[KusciaJob]) -> None:
        self._mark(change.object.metadata.name)

    def _task_changed(self, change: ObjectChange[KusciaTask]) -> None:
        self._mark((change.object.metadata.annotations or {}).get(labels.KUSCIA_JOB_ID, ""))

    def _mark(self, name: str) -> None:
        self._changed[name] = None
        self._stirred.set()

    async def _publish(self) -> None:
        # A job is shown with its tasks: nobody shall be told of it without them.
        await self._jobs.ready.wait()
        await self._tasks.ready.wait()
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            changed, self._changed = self._changed, {}
            for place, name in enumerate(changed, 1):
                self._show(name)
                if place % _SLICE == 0:
                    await asyncio.sleep(0)

    def _show(self, name: str) -> None:
        job, before = self._jobs.cache.get(name, CROSS_DOMAIN), self._shown.get(name)
        if before is not None and (job is None or job.metadata.uid != before.uid):
            del self._shown[name]
            self._put(DELETED, name, before)
            before = None
        if job is None:
            return
        shown = _watched_job(job, self._tasks.cache.by_index(_BY_JOB, job.metadata.uid))
        if before is None or before.status != shown.status:
            self._shown[name] = shown
            self._put(ADDED if before is None else MODIFIED, name, shown)

    def _put(self, type: int, name: str, job: WatchedJob) -> None:
        for queue in self.queues:
            queue.put(type, name, job)


def _watched_job(job: KusciaJob, tasks: Iterable[KusciaTask]) -> WatchedJob:
    status = json_format.ParseDict(job_messages.job_status(job, tasks), _Status())
    return WatchedJob(job.metadata.uid, job_messages.domains_of(job), status)


def _light_job(job: KusciaJob) -> KusciaJob:
    """Without what no status tells: inputs of engines may be large."""
    tasks = tuple(replace(task, task_input_config="") for task in job.spec.tasks)
    return replace(job, spec=replace(job.spec, tasks=tasks))


def _light_task(task: KusciaTask) -> KusciaTask:
    return replace(task, spec=replace(task.spec, task_input_config="", parties=()))
