"""The initiator's side: shows jobs to the partners that take part, and takes their words.

All of it happens in our own cluster. Partners read and write their own namespace of it and nothing else, so what stands
there is believed only where it concerns the partner's own domains.
"""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from coterie.base.clock import SYSTEM_CLOCK, Clock, rfc3339
from coterie.base.log import logger
from coterie.kube.api.errors import AlreadyExists, NotFound
from coterie.kube.api.meta import Object, ObjectKey
from coterie.kube.api.types.kind import Kind
from coterie.kube.api.types.merge import changes
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches
from coterie.kube.control.deferred import Deferred, earliest
from coterie.kube.control.finalizers import add_finalizer, remove_finalizer
from coterie.kube.control.preconditions import write, write_status
from coterie.kuscia.api import labels
from coterie.kuscia.api.domain_ownership import is_own
from coterie.kuscia.api.jobs.phases import JOB_UNSUCCESSFUL
from coterie.kuscia.api.types.domain import BFIA_PROTOCOL, DOMAINS, Domain
from coterie.kuscia.api.types.job import (
    CROSS_DOMAIN,
    KUSCIA_JOB_SUMMARIES,
    KUSCIA_JOBS,
    KUSCIA_TASK_SUMMARIES,
    KUSCIA_TASKS,
    JobPhase,
    JobStage,
    KusciaJob,
    KusciaJobSummary,
    KusciaTask,
    KusciaTaskSummary,
    TaskPhase,
    TaskSummaryStatus,
)
from coterie.kuscia.api.types.task_resource import TASK_RESOURCES, TaskResource
from coterie.kuscia.interconn import job_mirror
from coterie.kuscia.interconn.reservations import exchange, host_step, only_begins

FINALIZER = labels.FINALIZER_INTERCONN
BY_NAME = "interconn/name"
BY_GROUP = "interconn/group"
_LATER = 2.0
"""Seconds after which a partner's namespace that was missing is tried again."""


def by_name(summary: KusciaJobSummary | KusciaTaskSummary) -> tuple[str, ...]:
    return (summary.metadata.name,)


def by_group(reservation: TaskResource) -> tuple[str, ...]:
    name = (reservation.metadata.annotations or {}).get(labels.KUSCIA_TASK_RESOURCE_GROUP, "")
    return (name,) if name else ()


class HostReconciler:
    def __init__(self, client: Client, informers: Informers, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self.jobs = informers.get(KUSCIA_JOBS, CROSS_DOMAIN)
        self.tasks = informers.get(KUSCIA_TASKS, CROSS_DOMAIN)
        self.domains = informers.get(DOMAINS)
        self.job_summaries = informers.get(KUSCIA_JOB_SUMMARIES)
        self.task_summaries = informers.get(KUSCIA_TASK_SUMMARIES)
        self.reservations = informers.get(TASK_RESOURCES)
        self.job_summaries.cache.add_index(BY_NAME, by_name)
        self.task_summaries.cache.add_index(BY_NAME, by_name)
        self.reservations.cache.add_index(BY_GROUP, by_group)
        self._later: Deferred[ObjectKey] = Deferred(clock)
        self._log = logger("interconn.host")

    # Jobs.

    async def reconcile_job(self, key: ObjectKey) -> Result:
        job = self.jobs.cache.by_key(key)
        if job is None or not self._ours(job.spec.initiator) or _speaks_bfia(job):
            return DONE
        masters = job_mirror.by_master(job.spec.party_domains, self._domains(job.spec.party_domains))
        if job.metadata.deleting:
            return await self._withdraw(job, set(masters))
        if not masters or job.status.phase in ("", JobPhase.INITIALIZED):
            return DONE
        begun = job.status.phase not in JOB_UNSUCCESSFUL
        if not job.metadata.has_finalizer(FINALIZER):
            if not begun:
                return DONE  # it ended before anybody was asked
            await add_finalizer(self._client, KUSCIA_JOBS, key.name, key.namespace, FINALIZER)
            return DONE
        pauses: list[float | None] = []
        for master, parties in masters.items():
            summary = self.job_summaries.cache.get(key.name, master)
            if summary is None:
                pauses.append(_LATER if begun and not await self._show(job, master, parties) else None)
            else:
                job, pause = await self._exchange(job, summary, parties)
                pauses.append(pause)
        return Result(after=earliest(*pauses))

    async def _show(self, job: KusciaJob, master: str, parties: tuple[str, ...]) -> bool:
        """Mirror and summary; False when the partner has no namespace here yet."""
        if job_mirror.stage_of(job.metadata.labels) in (JobStage.STOP, JobStage.CANCEL):
            return True
        plain = await self._client.get(KUSCIA_JOBS.as_dynamic, job.metadata.name, job.metadata.namespace)
        made = (
            (KUSCIA_JOBS.as_dynamic, job_mirror.mirror_of(plain, master, parties)),
            (KUSCIA_JOB_SUMMARIES.as_dynamic, job_mirror.job_summary_of(job, master, parties)),
        )
        if not all(await asyncio.gather(*(self._made(kind, body) for kind, body in made))):
            return False
        self._log.info("Job mirrored to a partner", job=job.metadata.name, partner=master)
        return True

    async def _made(self, kind: Kind[Object], body: Object) -> bool:
        try:
            await self._client.create(kind, body)
        except AlreadyExists:
            return True
        except NotFound:
            return False
        return True

    async def _exchange(
        self, job: KusciaJob, summary: KusciaJobSummary, parties: tuple[str, ...]
    ) -> tuple[KusciaJob, float | None]:
        """The job as it is afterwards, and the seconds after which what is not told yet is due."""
        if (ordered := job_mirror.newer_command_from(job, summary)) is not None:
            await write(self._client, KUSCIA_JOBS, job, {"metadata": {"labels": ordered}})
            return job, None  # its own event brings us back with everything else
        merged = job_mirror.job_status_from(job, summary.status, parties)
        await write_status(self._client, KUSCIA_JOBS, job, job.status, merged)
        patch: dict[str, Any] = {}
        if (newer := job_mirror.newer_command_for(job, summary)) is not None:
            patch["metadata"] = {"labels": newer[0]}
            patch["spec"] = {"stage": newer[1].stage, "stageTrigger": newer[1].stage_trigger}
        new_status = job_mirror.summary_status(merged, summary.status, parties)
        status = changes(summary.status, new_status)
        pause = None
        if status is not None:
            if not patch and job_mirror.only_informs(summary.status, new_status):
                pause = self._later.wait(summary.key)
            if pause is None:
                patch["status"] = status
        if pause is None:
            self._later.clear(summary.key)
        await write(self._client, KUSCIA_JOB_SUMMARIES, summary, patch)
        return (job if merged == job.status else replace(job, status=merged)), pause

    async def _withdraw(self, job: KusciaJob, masters: set[str]) -> Result:
        meta = job.metadata
        if not meta.has_finalizer(FINALIZER):
            return DONE
        shown = {summary.metadata.namespace for summary in self.job_summaries.cache.by_index(BY_NAME, meta.name)}
        for namespace in sorted(masters | shown):
            for kind in (KUSCIA_JOBS, KUSCIA_JOB_SUMMARIES):
                await self._delete(kind, meta.name, namespace)
        await remove_finalizer(self._client, KUSCIA_JOBS, meta.name, meta.namespace, FINALIZER, uid=meta.uid)
        self._log.info("Job mirror removed from the partners", job=meta.name)
        return DONE

    # Tasks.

    async def reconcile_task(self, key: ObjectKey) -> Result:
        task = self.tasks.cache.by_key(key)
        if task is None or task.metadata.deleting:
            for old in self.task_summaries.cache.by_index(BY_NAME, key.name):
                await self._delete(KUSCIA_TASK_SUMMARIES, key.name, old.metadata.namespace)
            return DONE
        job = self.jobs.cache.get((task.metadata.annotations or {}).get(labels.KUSCIA_JOB_ID, ""), CROSS_DOMAIN)
        if job is None or not self._ours(task.spec.initiator) or _speaks_bfia(job):
            return DONE
        # Also to partners that only take part in other tasks of the job: they must know when it is over.
        named = job.spec.party_domains
        pauses: list[float | None] = []
        for master, theirs in job_mirror.by_master(named, self._domains(named)).items():
            summary = self.task_summaries.cache.get(key.name, master)
            if summary is None:
                version = job_mirror.version_of(job.metadata.labels)
                await self._create_task_summary(task, master, theirs, version)
            elif (summary.metadata.labels or {}).get(job_mirror.HOST_TASK_UID) != task.metadata.uid:
                await self._delete(KUSCIA_TASK_SUMMARIES, key.name, master)
            else:
                pauses.append(await self._exchange_task(task, summary, theirs))
        return Result(after=earliest(*pauses))

    async def _create_task_summary(self, task: KusciaTask, master: str, theirs: tuple[str, ...], version: int) -> None:
        body = job_mirror.task_summary_of(task, master, theirs, version)
        try:
            await self._client.create(KUSCIA_TASK_SUMMARIES.as_dynamic, body)
        except AlreadyExists:
            return

    async def _exchange_task(
        self, task: KusciaTask, summary: KusciaTaskSummary, theirs: tuple[str, ...]
    ) -> float | None:
        """The seconds after which what is not told yet is due."""
        there = summary.status
        known = task.status.party_task_status
        merged = job_mirror.parties_from(known, there.party_task_status, theirs)
        status = job_mirror.task_summary_status(task, there, theirs)
        status = await self._exchange_reservations(task, status, theirs)
        change = changes(there, status)
        quiet_here = job_mirror.only_progress(known, merged)
        quiet_there = (
            job_mirror.only_progress(there.party_task_status, status.party_task_status)
            and only_begins(there.resource_status, status.resource_status)
            and not (status.phase == TaskPhase.FAILED and there.phase != status.phase)
        )
        pause = None
        if (merged != known and quiet_here) or (change is not None and quiet_there):
            pause = self._later.wait(summary.key)
        if pause is None:
            self._later.clear(summary.key)
        if pause is None or not quiet_here:
            merged_status = replace(task.status, party_task_status=merged)
            await write_status(self._client, KUSCIA_TASKS, task, task.status, merged_status)
        if change is not None and (pause is None or not quiet_there):
            await write(self._client, KUSCIA_TASK_SUMMARIES, summary, {"status": change})
        return pause

    async def _exchange_reservations(
        self, task: KusciaTask, status: TaskSummaryStatus, theirs: tuple[str, ...]
    ) -> TaskSummaryStatus:
        owned = self.reservations.cache.by_index(BY_GROUP, task.metadata.name)
        kept = [each for each in owned if each.metadata.namespace in theirs]
        now = rfc3339(self._clock.now())
        reported = await exchange(
            self._client, kept, status.resource_status, host_step, lambda domain: f"{domain} told so", now
        )
        return replace(status, resource_status=reported)

    # Small things.

    def _ours(self, name: str) -> bool:
        return is_own(self.domains.cache.get(name))

    def _domains(self, names: tuple[str, ...]) -> dict[str, Domain]:
        return {name: found for name in names if (found := self.domains.cache.get(name)) is not None}

    async def _delete(self, kind: Any, name: str, namespace: str) -> None:
        try:
            await self._client.delete(kind, name, namespace)
        except NotFound:
            return


def _speaks_bfia(job: KusciaJob) -> bool:
    """Its partners are told by kuscia/bfia."""
    return (job.metadata.labels or {}).get(labels.KUSCIA_INTERCONN_PROTOCOL_TYPE) == BFIA_PROTOCOL


def job_key(obj: KusciaJob | KusciaJobSummary) -> list[ObjectKey]:
    return [ObjectKey(CROSS_DOMAIN, obj.metadata.name)]


def task_key(obj: KusciaTask | KusciaTaskSummary) -> list[ObjectKey]:
    return [ObjectKey(CROSS_DOMAIN, obj.metadata.name)]


def reservation_key(reservation: TaskResource) -> list[ObjectKey]:
    return [ObjectKey(CROSS_DOMAIN, name) for name in by_group(reservation)]


def make(
    client: Client, informers: Informers, *, workers: int = 4, clock: Clock = SYSTEM_CLOCK
) -> list[Controller[ObjectKey]]:
    host = HostReconciler(client, informers, clock)
    jobs: list[Watches[Any, ObjectKey]] = [Watches(host.jobs, job_key), Watches(host.job_summaries, job_key)]
    tasks: list[Watches[Any, ObjectKey]] = [
        Watches(host.tasks, task_key),
        Watches(host.task_summaries, task_key),
        Watches(host.reservations, reservation_key),
    ]
    return [
        Controller("interconn-host-jobs", host.reconcile_job, jobs, workers=workers, clock=clock),
        Controller("interconn-host-tasks", host.reconcile_task, tasks, workers=workers, clock=clock),
    ]
