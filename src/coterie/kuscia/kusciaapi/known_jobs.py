"""Jobs with their tasks, for queries: read from the API as long as few ask, followed while many do.

    query ──few──> API (two requests each)
          ──many─> informers of jobs and tasks ──> answers, encoded once for each state of a job

Whoever changes a job through KusciaAPI sees the change in every later query (`wrote`). What others write is seen as soon as a
watch tells it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from google.protobuf import json_format

from coterie.base.clock import Clock
from coterie.base.tasks import TaskFailed, TaskOwner
from coterie.kube.api.errors import NotFound
from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.types.kind import Kind
from coterie.kube.client.client import Client
from coterie.kube.client.informer import Informer, ObjectChange
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS, KUSCIA_TASKS, KusciaJob, KusciaTask
from coterie.kuscia.kusciaapi import job_messages, messages

MANY_QUERIES = 50
"""Queries within a second from which on jobs are followed."""
_FEW_NAMES = 20
"""Jobs that are asked for one by one; of more, all are listed."""
_BY_JOB = "job"
_SUCCESS = {"status": {"message": "success"}}
_Query = messages.message("QueryJobResponse")
_Batch = messages.message("BatchQueryJobStatusResponse")
_Status = messages.message("JobStatus")


class KnownJob:
    """A job and its tasks at one moment, and the answers that tell of them."""

    def __init__(self, job: KusciaJob, tasks: Iterable[KusciaTask]) -> None:
        self.job = job
        self.tasks = tuple(tasks)

    @cached_property
    def domains(self) -> frozenset[str]:
        return job_messages.domains_of(self.job)

    @cached_property
    def answer(self) -> messages.Shared:
        """QueryJobResponse."""
        data = job_messages.job_data(self.job, self.tasks)
        return messages.Shared(json_format.ParseDict({**_SUCCESS, "data": data}, _Query()))

    @cached_property
    def status(self) -> Any:
        """JobStatus; shared, so nobody changes it."""
        return json_format.ParseDict(job_messages.job_status(self.job, self.tasks), _Status())

    @cached_property
    def status_text(self) -> bytes:
        return messages.as_text(messages.as_json(self.status))


def batch_answer(jobs: Sequence[KnownJob]) -> messages.Shared:
    """BatchQueryJobStatusResponse. Its JSON is put together from that of the jobs, which may be encoded already."""
    response = json_format.ParseDict(_SUCCESS, _Batch())
    response.data.SetInParent()
    head, found, tail = messages.as_text(messages.as_json(response)).partition(b'"jobs":[]')
    assert found, "the form of BatchQueryJobStatusResponse has changed"
    for each in jobs:
        response.data.jobs.append(each.status)
    text = head + b'"jobs":[' + b",".join([each.status_text for each in jobs]) + b"]" + tail
    return messages.Shared(response, text)


class KnownJobs:
    """For one server; `close` it."""

    def __init__(self) -> None:
        self._following: _FollowedJobs | None = None
        self._asked: deque[float] = deque(maxlen=MANY_QUERIES)

    @property
    def following(self) -> bool:
        return self._following is not None and self._following.ready

    async def close(self) -> None:
        following, self._following = self._following, None
        if following is not None:
            await following.close()

    async def get(self, client: Client, clock: Clock, name: str) -> KnownJob | None:
        """None: there is no such job. Raises ApiError and TransportError."""
        await self._count(client, clock)
        if self._following is not None and self._following.knows(name):
            return self._following.get(name)
        try:
            job = await client.get(KUSCIA_JOBS, name, CROSS_DOMAIN)
        except NotFound:
            return None
        return KnownJob(job, await _tasks_of(client, [job]))

    async def get_all(self, client: Client, clock: Clock, names: Sequence[str]) -> dict[str, KnownJob]:
        """Those of them that exist, by name."""
        await self._count(client, clock, len(names))
        following = self._following
        if following is not None and all(map(following.knows, names)):
            return {name: known for name in names if (known := following.get(name)) is not None}
        jobs = await _read_jobs(client, names)
        tasks = await _tasks_of(client, jobs)
        by_job: dict[str, list[KusciaTask]] = {}
        for task in tasks:
            by_job.setdefault((task.metadata.labels or {}).get(labels.KUSCIA_JOB_UID, ""), []).append(task)
        return {job.metadata.name: KnownJob(job, by_job.get(job.metadata.uid, ())) for job in jobs}

    def wrote(self, name: str, resource_version: str) -> None:
        """A job was written through KusciaAPI: from now on no query may tell of an older state."""
        if self._following is not None and resource_version.isdecimal():
            self._following.expect(name, int(resource_version))

    async def removed(self, client: Client, name: str) -> None:
        """As `wrote`, of a job that was deleted: the answer to that names no version."""
        if self._following is not None:
            page = await client.page(KUSCIA_JOBS, CROSS_DOMAIN, fields=f"metadata.name={name}", limit=1)
            self.wrote(name, page.resource_version)

    async def _count(self, client: Client, clock: Clock, queries: int = 1) -> None:
        now = clock.monotonic()
        self._asked.extend([now] * min(queries, MANY_QUERIES))
        following = self._following
        if following is not None and following.broken:
            await self.close()
        elif following is None and len(self._asked) == MANY_QUERIES and now - self._asked[0] <= 1.0:
            self._following = _FollowedJobs(client)


class _FollowedJobs:
    """All jobs and tasks, as a FollowObserver of both informers."""

    def __init__(self, client: Client) -> None:
        self.broken = False
        self._behind: set[str] = set()
        """Kinds that cannot be read at the moment."""
        self._expected: dict[str, int] = {}
        """By name, the state of a job that must have been seen before it is told of."""
        self._known: dict[str, KnownJob] = {}
        self._jobs = Informer(client, KUSCIA_JOBS, namespace=CROSS_DOMAIN, observer=self)
        self._tasks = Informer(
            client, KUSCIA_TASKS, namespace=CROSS_DOMAIN, indexes={_BY_JOB: job_uid_of}, observer=self
        )
        self._jobs.add_handler(self._job_changed)
        self._tasks.add_handler(self._task_changed)
        self._owner = TaskOwner("kusciaapi/known jobs", on_failure=self._break)
        self._owner.start("follow jobs", self._jobs.run(), endless=True)
        self._owner.start("follow tasks", self._tasks.run(), endless=True)

    @property
    def ready(self) -> bool:
        return self._jobs.ready.is_set() and self._tasks.ready.is_set() and not self._behind and not self.broken

    def knows(self, name: str) -> bool:
        """Whether what is here of a job may be told, also that it does not exist."""
        if self._expected.get(name, 0) <= self._seen:
            self._expected.pop(name, None)
        return self.ready and name not in self._expected

    @property
    def _seen(self) -> int:
        version = self._jobs.resource_version
        return int(version) if version.isdecimal() else 0

    def get(self, name: str) -> KnownJob | None:
        known = self._known.get(name)
        if known is None and (job := self._jobs.cache.get(name, CROSS_DOMAIN)) is not None:
            known = self._known[name] = KnownJob(job, self._tasks.cache.by_index(_BY_JOB, job.metadata.uid))
        return known

    def expect(self, name: str, version: int) -> None:
        if version > self._seen:
            self._expected[name] = version

    async def close(self) -> None:
        await self._owner.close()

    def _break(self, failure: TaskFailed) -> None:
        self.broken = True

    def _job_changed(self, change: ObjectChange[KusciaJob]) -> None:
        meta = change.object.metadata
        self._known.pop(meta.name, None)
        if self._expected.get(meta.name, 0) <= int(meta.resource_version):
            self._expected.pop(meta.name, None)

    def _task_changed(self, change: ObjectChange[KusciaTask]) -> None:
        self._known.pop((change.object.metadata.annotations or {}).get(labels.KUSCIA_JOB_ID, ""), None)

    # What the informers tell.

    def failed(self, kind: Kind[Any], why: str) -> None:
        self._behind.add(str(kind))

    def recovered(self, kind: Kind[Any]) -> None:
        self._behind.discard(str(kind))

    def left_out(self, kind: Kind[Any], key: ObjectKey, why: str) -> None:
        self.broken = True  # of our own API everything is needed


async def _read_jobs(client: Client, names: Sequence[str]) -> list[KusciaJob]:
    """Those of them that exist."""
    if len(names) > _FEW_NAMES:
        wanted = set(names)
        return [
            job for job in (await client.list(KUSCIA_JOBS, CROSS_DOMAIN)).items if job.metadata.name in wanted
        ]  # fmt: skip

    async def one(name: str) -> KusciaJob | None:
        try:
            return await client.get(KUSCIA_JOBS, name, CROSS_DOMAIN)
        except NotFound:
            return None

    return [job for job in await asyncio.gather(*map(one, names)) if job is not None]


async def _tasks_of(client: Client, jobs: Sequence[KusciaJob]) -> list[KusciaTask]:
    """The tasks of these jobs, in one request; of many jobs, those of others too."""
    uids = [job.metadata.uid for job in jobs]
    selector = f"{labels.KUSCIA_JOB_UID} in ({','.join(uids)})" if len(uids) <= _FEW_NAMES else labels.KUSCIA_JOB_UID
    return (await client.list(KUSCIA_TASKS, CROSS_DOMAIN, labels=selector)).items


def job_uid_of(task: KusciaTask) -> tuple[str, ...]:
    uid = (task.metadata.labels or {}).get(labels.KUSCIA_JOB_UID)
    return (uid,) if uid else ()
