"""Starts jobs by the clock."""

from __future__ import annotations

from typing import Any

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.kube.api.errors import AlreadyExists, ApiError, NotFound
from coterie.kube.api.meta import Object, ObjectKey, controller_of
from coterie.kube.api.types.batch import CRON_JOBS, JOBS, CronJob, CronJobStatus, Job
from coterie.kube.api.types.merge import changes
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches, own_key, owner_key
from coterie.kube.control.controller_refs import CONTROLLER_INDEX, by_controller
from coterie.kube.control.events import EventRecorder, reference_to
from coterie.kube.control.pod_control import namespace_is_going
from coterie.kube.controllers.cronjob.plan import Plan, plan, started

_PLAIN = JOBS.as_dynamic
_CACHE_PAUSE = 1.0
_LONGEST_SLEEP = 300.0
"""Seconds after which the clock is looked at again, however far the next firing: it may have been set meanwhile."""


class CronJobReconciler:
    def __init__(self, client: Client, informers: Informers, events: EventRecorder | None, clock: Clock) -> None:
        self._client = client
        self._events = events
        self._clock = clock
        self.cron_jobs = informers.get(CRON_JOBS)
        self.jobs = informers.get(JOBS)
        self.jobs.cache.add_index(CONTROLLER_INDEX, by_controller)

    async def reconcile(self, key: ObjectKey) -> Result:
        cron = self.cron_jobs.cache.by_key(key)
        if cron is None:
            return DONE
        jobs = self.jobs.cache.by_index(CONTROLLER_INDEX, cron.metadata.uid)
        wanted = plan(cron, jobs, self._clock.now())
        for type_, reason, message in wanted.notes:
            self._note(cron, type_, reason, message)
        for job in wanted.forget:
            if await self._delete(job):
                self._note(cron, "Normal", "SuccessfulDelete", f"Deleted job {job.metadata.name}")
        status = await self._start(cron, wanted)
        if status is None:
            return Result(after=_CACHE_PAUSE)
        await self._write_status(cron, status)
        return Result(after=None if wanted.after is None else min(wanted.after, _LONGEST_SLEEP))

    async def _start(self, cron: CronJob, wanted: Plan) -> CronJobStatus | None:
        """The status after starting what is due; None when it has to be looked at again soon."""
        if wanted.create is None or wanted.scheduled is None:
            return wanted.status
        for job in wanted.replace:
            if await self._delete(job):
                self._note(cron, "Normal", "SuccessfulDelete", f"Deleted job {job.metadata.name}")
        name, namespace = wanted.create["metadata"]["name"], cron.metadata.namespace
        try:
            made = await self._client.create(_PLAIN, wanted.create)
        except AlreadyExists:
            there = await self._client.get(JOBS, name, namespace)
            owner = controller_of(there.metadata)
            if owner is not None and owner.uid == cron.metadata.uid:
                return None  # our cache is behind
            raise
        except ApiError as error:
            if namespace_is_going(error):
                return wanted.status
            self._note(cron, "Warning", "FailedCreate", f"Error creating job: {error.message}")
            raise
        self._note(cron, "Normal", "SuccessfulCreate", f"Created job {name}")
        return started(wanted, wanted.scheduled, made)

    async def _delete(self, job: Job) -> bool:
        meta = job.metadata
        try:
            await self._client.delete(JOBS, meta.name, meta.namespace, uid=meta.uid, propagation="Background")
        except NotFound:
            return False
        return True

    async def _write_status(self, cron: CronJob, status: CronJobStatus) -> None:
        patch = changes(cron.status, status)
        if patch is None:
            return
        meta = cron.metadata
        body: Object = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "status": patch}
        try:
            await self._client.patch_status(CRON_JOBS, meta.name, meta.namespace, body)
        except NotFound:
            return

    def _note(self, cron: CronJob, type_: str, reason: str, message: str) -> None:
        if self._events is not None:
            resource = CRON_JOBS.resource
            about = reference_to(cron, api_version=resource.api_version, kind=resource.kind)
            self._events.record(about, "Warning" if type_ == "Warning" else "Normal", reason, message)


def make(
    client: Client,
    informers: Informers,
    *,
    events: EventRecorder | None = None,
    workers: int = 2,
    clock: Clock = SYSTEM_CLOCK,
) -> Controller[ObjectKey]:
    """`events` is a recorder of the component `cronjob-controller`; the caller runs it."""
    reconciler = CronJobReconciler(client, informers, events, clock)
    watches: list[Watches[Any, ObjectKey]] = [
        Watches(reconciler.cron_jobs, own_key),
        Watches(reconciler.jobs, owner_key("batch/v1", "CronJob")),
    ]
    return Controller("cronjob", reconciler.reconcile, watches, workers=workers, clock=clock)
