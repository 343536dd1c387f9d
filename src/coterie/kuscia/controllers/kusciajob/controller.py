"""Carries out jobs: reads a job with its tasks, asks `plan.py` what is next, and does it.

A job that ended is not looked at again until it is old enough to be removed.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from coterie.base.clock import SYSTEM_CLOCK, Clock, rfc3339
from coterie.base.ids import uid4
from coterie.base.log import logger
from coterie.kube.api import labels
from coterie.kube.api.errors import AlreadyExists, ApiError, Conflict, NotFound, TooManyRequests
from coterie.kube.api.meta import ObjectKey, controller_of
from coterie.kube.api.pod_state import moment
from coterie.kube.api.types.merge import changes
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches, own_key
from coterie.kube.control.events import EventRecorder, reference_to
from coterie.kube.control.preconditions import write, write_status
from coterie.kuscia.api.types.data import DOMAIN_DATA_GRANTS, DOMAIN_DATAS, DomainData, DomainDataGrant
from coterie.kuscia.api.types.domain import DOMAINS, Domain
from coterie.kuscia.api.types.job import (
    APP_IMAGES,
    CROSS_DOMAIN,
    KUSCIA_JOBS,
    KUSCIA_TASKS,
    AppImage,
    JobPhase,
    JobStatus,
    KusciaJob,
    KusciaTask,
    PartyTaskStatus,
    Stage,
    TaskPhase,
    TaskTemplate,
)
from coterie.kuscia.controllers.kusciajob import launch
from coterie.kuscia.controllers.kusciajob.plan import CREATE_TASK_FAILED, Plan, View, settle
from coterie.kuscia.controllers.kusciajob.validate import ungranted

BY_JOB = "kusciajob/job"
BY_NAMED = "kusciajob/named"
STOPPED = "KusciaJobStopped"
_RETENTION = 720 * 3600.0
_OURS_TO_REPAIR = (Conflict, TooManyRequests)
"""Refusals of a create that say nothing about the task itself."""


def by_job(task: KusciaTask) -> tuple[str, ...]:
    uid = (task.metadata.labels or {}).get(labels.KUSCIA_JOB_UID, "")
    return (uid,) if uid else ()


def by_named(job: KusciaJob) -> tuple[str, ...]:
    """Everything whose coming may end a job's waiting, while it is new."""
    if job.status.phase not in ("", JobPhase.INITIALIZED):
        return ()
    parties = {party.domain_id for task in job.spec.tasks for party in task.parties}
    return (*sorted({job.spec.initiator, *parties}), *sorted({f"image/{task.app_image}" for task in job.spec.tasks}))


class KusciaJobReconciler:
    def __init__(
        self,
        client: Client,
        informers: Informers,
        *,
        requires_approval: bool,
        retention: float,
        events: EventRecorder | None,
        clock: Clock,
    ) -> None:
        self._client = client
        self._requires_approval = requires_approval
        self._retention = retention
        self._events = events
        self._clock = clock
        self.jobs = informers.get(KUSCIA_JOBS, CROSS_DOMAIN)
        self.tasks = informers.get(KUSCIA_TASKS, CROSS_DOMAIN)
        self.domains = informers.get(DOMAINS)
        self.images = informers.get(APP_IMAGES)
        self.datas = informers.get(DOMAIN_DATAS)
        self.grants = informers.get(DOMAIN_DATA_GRANTS)
        self.tasks.cache.add_index(BY_JOB, by_job)
        self.jobs.cache.add_index(BY_NAMED, by_named)
        self._first_seen: dict[str, float] = {}
        self._log = logger("controllers.kusciajob")

    async def reconcile(self, key: ObjectKey) -> Result:
        job = self.jobs.cache.by_key(key)
        if job is None or job.metadata.deleting:
            return DONE  # its tasks have an owner, and go with it
        if job.status.completion_time and (left := self._until_removal(job)) is not None and left <= 0:
            return await self._remove(job)
        view = self._view(job)
        wanted = settle(view)
        if wanted.mark is not None:
            await self._patch(job, {"metadata": wanted.mark})
            return DONE
        if wanted.name_tasks:
            await self._name_tasks(job, wanted.name_tasks)
            return DONE
        status = await self._act(view, wanted)
        await self._write(job, status)
        if wanted.start_again:
            await self._start_again(job)
        return Result(after=self._next_look(job, wanted))

    def _view(self, job: KusciaJob) -> View:
        tasks = {task.metadata.name: task for task in self.tasks.cache.by_index(BY_JOB, job.metadata.uid)}
        ids = {template.task_id for template in job.spec.tasks if template.task_id}
        there = {name for name in ids if self.tasks.cache.get(name, CROSS_DOMAIN) is not None}
        named = {party.domain_id for template in job.spec.tasks for party in template.parties} | {job.spec.initiator}
        return View(
            job=job,
            domains={name: found for name in named if (found := self.domains.cache.get(name)) is not None},
            images={
                template.app_image: image
                for template in job.spec.tasks
                if (image := self.images.cache.get(template.app_image)) is not None
            },
            ungranted=self._ungranted(job),
            tasks=tasks,
            strangers=frozenset(there - tasks.keys()),
            requires_approval=self._requires_approval,
            age=self._age(job),
            now=rfc3339(self._clock.now()),
        )

    def _ungranted(self, job: KusciaJob) -> tuple[str, ...]:
        if job.status.phase not in ("", JobPhase.INITIALIZED):
            return ()
        parties = {party.domain_id for template in job.spec.tasks for party in template.parties}
        ours = sorted(
            name
            for name in parties - {job.spec.initiator}
            if (domain := self.domains.cache.get(name)) is not None and not domain.partner
        )
        datas = {name: self.datas.cache.list(name) for name in ours}
        given = {name: self.grants.cache.list(name) for name in ours}
        return ungranted(job.spec, ours, datas, given, self._clock.now())

    def _age(self, job: KusciaJob) -> float:
        if job.status.phase not in ("", JobPhase.INITIALIZED):
            self._first_seen.pop(job.metadata.uid, None)
            return 0.0
        now = self._clock.monotonic()
        return now - self._first_seen.setdefault(job.metadata.uid, now)

    # Doing.

    async def _act(self, view: View, wanted: Plan) -> JobStatus:
        """Everything but the status, which it answers."""
        for task in wanted.stop:
            await self._stop(task, view)
        for task in wanted.delete:
            await self._delete(task)
        status = wanted.status
        for template in wanted.create:
            problem = await self._create(view, template)
            if problem is not None:
                # A task that is refused is refused again: the job ends, and says why.
                return replace(status, phase=JobPhase.FAILED, reason=CREATE_TASK_FAILED, message=problem)
            status = replace(
                status, task_status={**(status.task_status or {}), template.task_id: str(TaskPhase.PENDING)}
            )
        return status

    async def _create(self, view: View, template: TaskTemplate) -> str | None:
        try:
            await self._client.create(KUSCIA_TASKS.as_dynamic, launch.task_of(view, template))
        except AlreadyExists:
            return None  # the cache is behind, or another job's task came first: the next look tells
        except _OURS_TO_REPAIR:
            raise
        except ApiError as error:
            if error.code >= 500:
                raise
            return f"Task {template.alias} cannot be created: {error}"
        return None

    async def _stop(self, task: KusciaTask, view: View) -> None:
        own = set(view.own_parties)
        told = tuple(
            replace(party, phase=TaskPhase.FAILED)
            if party.domain_id in own and party.phase not in (TaskPhase.SUCCEEDED, TaskPhase.FAILED)
            else party
            for party in task.status.party_task_status
            or (PartyTaskStatus(domain_id=each.domain_id, role=each.role) for each in task.spec.parties)
        )
        stopped = replace(
            task.status,
            phase=TaskPhase.FAILED,
            reason=STOPPED,
            message="Job was stopped",
            party_task_status=told,
            last_reconcile_time=view.now,
        )
        await write_status(self._client, KUSCIA_TASKS, task, task.status, stopped)

    async def _delete(self, task: KusciaTask) -> None:
        meta = task.metadata
        try:
            await self._client.delete(KUSCIA_TASKS, meta.name, meta.namespace, uid=meta.uid)
        except NotFound:
            return

    async def _name_tasks(self, job: KusciaJob, aliases: tuple[str, ...]) -> None:
        """The list is written whole: a merge patch cannot reach into it."""
        plain = await self._client.get(KUSCIA_JOBS.as_dynamic, job.metadata.name, job.metadata.namespace)
        named = [
            {**task, "taskID": launch.task_id(job.metadata.name, uid4()[-12:])}
            if task["alias"] in aliases and not task.get("taskID")
            else task
            for task in plain["spec"]["tasks"]
        ]
        version = plain["metadata"]["resourceVersion"]
        patch = {"metadata": {"uid": job.metadata.uid, "resourceVersion": version}, "spec": {"tasks": named}}
        await self._client.patch(KUSCIA_JOBS, job.metadata.name, job.metadata.namespace, patch)

    async def _start_again(self, job: KusciaJob) -> None:
        version = (job.metadata.labels or {}).get(labels.KUSCIA_JOB_STAGE_VERSION, "")
        following = str(int(version) + 1 if version.isdigit() else 1)
        told = {labels.KUSCIA_JOB_STAGE: str(Stage.START), labels.KUSCIA_JOB_STAGE_VERSION: following}
        await self._client.patch(
            KUSCIA_JOBS,
            job.metadata.name,
            job.metadata.namespace,
            {"metadata": {"uid": job.metadata.uid, "labels": told}},
        )

    async def _patch(self, job: KusciaJob, patch: dict[str, Any]) -> None:
        await write(self._client, KUSCIA_JOBS, job, patch)

    async def _write(self, job: KusciaJob, status: JobStatus) -> None:
        if changes(job.status, status) is None:
            return
        status = replace(status, last_reconcile_time=rfc3339(self._clock.now()))
        written = await write_status(self._client, KUSCIA_JOBS, job, job.status, status)
        if written and status.phase != job.status.phase:
            self._tell(job, status)

    def _tell(self, job: KusciaJob, status: JobStatus) -> None:
        log = self._log.bind(job=job.metadata.name, phase=status.phase)
        log.info("The job moved on", why=status.message)
        if self._events is None:
            return
        resource = KUSCIA_JOBS.resource
        about = reference_to(job, api_version=resource.api_version, kind=resource.kind)
        if status.phase in (JobPhase.FAILED, JobPhase.APPROVAL_REJECT, JobPhase.CANCELLED):
            self._events.warning(about, status.phase, status.message or f"The job is {status.phase}")
        else:
            self._events.normal(
                about, status.phase[:1].upper() + status.phase[1:], status.message or "The job moved on"
            )

    # Time.

    def _until_removal(self, job: KusciaJob) -> float | None:
        ended = moment(job.status.completion_time)
        if ended is None or self._retention <= 0:
            return None
        return self._retention - (self._clock.now() - ended).total_seconds()

    async def _remove(self, job: KusciaJob) -> Result:
        meta = job.metadata
        self._log.info("An old job is removed", job=meta.name, ended=job.status.completion_time)
        try:
            await self._client.delete(KUSCIA_JOBS, meta.name, meta.namespace, uid=meta.uid)
        except NotFound:
            return DONE
        return DONE

    def _next_look(self, job: KusciaJob, wanted: Plan) -> float | None:
        if wanted.after is not None:
            return wanted.after
        return self._until_removal(job) if job.status.completion_time else None

    # Whom a change concerns.

    def keys_of_task(self, task: KusciaTask) -> list[ObjectKey]:
        owner = controller_of(task.metadata)
        return [ObjectKey(CROSS_DOMAIN, owner.name)] if owner is not None else []

    def keys_of_domain(self, domain: Domain) -> list[ObjectKey]:
        return [job.key for job in self.jobs.cache.by_index(BY_NAMED, domain.metadata.name)]

    def keys_of_data(self, data: DomainData | DomainDataGrant) -> list[ObjectKey]:
        return [job.key for job in self.jobs.cache.by_index(BY_NAMED, data.metadata.namespace)]

    def keys_of_image(self, image: AppImage) -> list[ObjectKey]:
        return [job.key for job in self.jobs.cache.by_index(BY_NAMED, f"image/{image.metadata.name}")]


def make(
    client: Client,
    informers: Informers,
    *,
    requires_approval: bool = False,
    retention: float = _RETENTION,
    events: EventRecorder | None = None,
    workers: int = 4,
    clock: Clock = SYSTEM_CLOCK,
) -> Controller[ObjectKey]:
    """`requires_approval`: jobs of partners wait until a user approves them. `retention`: seconds after which an ended
    job is removed; 0 keeps them."""
    reconciler = KusciaJobReconciler(
        client, informers, requires_approval=requires_approval, retention=retention, events=events, clock=clock
    )
    watches: list[Watches[Any, ObjectKey]] = [
        Watches(reconciler.jobs, own_key),
        Watches(reconciler.tasks, reconciler.keys_of_task),
        Watches(reconciler.domains, reconciler.keys_of_domain),
        Watches(reconciler.images, reconciler.keys_of_image),
        Watches(reconciler.datas, reconciler.keys_of_data),
        Watches(reconciler.grants, reconciler.keys_of_data),
    ]
    return Controller("kusciajob", reconciler.reconcile, watches, workers=workers, clock=clock)
