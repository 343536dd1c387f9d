"""Runs jobs to their end: makes their pods, counts how they ended, and removes finished jobs in time."""

from __future__ import annotations

from typing import Any

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.kube.api.errors import ApiError, NotFound
from coterie.kube.api.labels import FINALIZER_JOB_TRACKING, JOB_CONTROLLER_UID, JOB_NAME
from coterie.kube.api.meta import Object, ObjectKey, ObjectMeta, controller_of
from coterie.kube.api.selectors import selector_of
from coterie.kube.api.types.batch import JOBS, Job, JobStatus
from coterie.kube.api.types.merge import changes
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches, own_key
from coterie.kube.control.controller_refs import CONTROLLER_INDEX, Claimer, by_controller, candidates
from coterie.kube.control.events import EventRecorder
from coterie.kube.control.expectations import Expectations
from coterie.kube.control.pod_control import BURST, PodControl
from coterie.kube.controllers.job.bodies import pod_body
from coterie.kube.controllers.job.plan import Plan, expires_in, plan, tracked

TRACKED = "job/tracked"
MANAGED_HERE = "kubernetes.io/job-controller"
_CACHE_PAUSE = 1.0


def _holder(meta: ObjectMeta) -> tuple[ObjectKey, str] | None:
    """Name and uid of the job a pod is held for; None when it is another controller's.

    A pod that was orphaned still says whose it was.
    """
    owner = controller_of(meta)
    if owner is None:
        labels = meta.labels or {}
        return ObjectKey(meta.namespace, labels.get(JOB_NAME, "")), labels.get(JOB_CONTROLLER_UID, "")
    if owner.kind != "Job" or not owner.api_version.startswith("batch/"):
        return None
    return ObjectKey(meta.namespace, owner.name), owner.uid


def by_tracking_job(pod: Pod) -> tuple[str, ...]:
    """Index: pods with the finalizer, by the name of their job, whether it exists or not."""
    holder = _holder(pod.metadata) if tracked(pod) else None
    return (str(holder[0]),) if holder is not None else ()


class JobReconciler:
    def __init__(self, client: Client, informers: Informers, events: EventRecorder | None, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self.jobs = informers.get(JOBS)
        self.pods = informers.get(PODS)
        self.pods.cache.add_index(CONTROLLER_INDEX, by_controller)
        self.pods.cache.add_index(TRACKED, by_tracking_job)
        self._expected: Expectations[str] = Expectations(self.pods, clock)
        self._claimer = Claimer(client, JOBS, PODS, FINALIZER_JOB_TRACKING)
        self._work = PodControl(client, JOBS, events, self._expect_version)
        self._log = logger("controllers.job")

    def _expect_version(self, owner: ObjectMeta, version: str) -> None:
        self._expected.expect(owner.uid, version)

    async def reconcile(self, key: ObjectKey) -> Result:
        job = self.jobs.cache.by_key(key)
        await self._release_strays(key, job)
        if job is None or job.spec.managed_by not in (None, MANAGED_HERE):
            return DONE
        meta = job.metadata
        if not self._expected.fulfilled(meta.uid):
            return Result(after=_CACHE_PAUSE)
        if job.finished:
            return await self._after_the_end(job)
        found = candidates(self.pods.cache, key.namespace, meta.uid)
        pods = await self._claimer.claim(meta, selector_of(job.spec.selector), found)
        wanted = plan(job, pods, self._clock.now())
        return await self._apply(job, wanted)

    async def _apply(self, job: Job, wanted: Plan) -> Result:
        # The order is the point: nothing may be let go before it is noted.
        await self._write_status(job, wanted.status)
        for type_, reason, message in wanted.notes:
            self._work.record_event(job, type_, reason, message)
        for pod in (*wanted.release, *wanted.withdraw):
            await self._release(job.metadata, pod)
        refused: ApiError | None = None
        if wanted.delete or wanted.withdraw:
            refused = (await self._work.delete(job, [*wanted.delete, *wanted.withdraw][:BURST])).refused
        if wanted.create:
            bodies = [pod_body(job, new.index, new.index_failures) for new in wanted.create[:BURST]]
            refused = (await self._work.create(job, bodies)).refused or refused
        if refused is not None:
            raise refused
        return Result(after=wanted.after)

    async def _write_status(self, job: Job, status: JobStatus) -> None:
        patch = changes(job.status, status)
        if patch is None:
            return
        meta = job.metadata
        # The version is what makes counting exact: a count made from an old status must not be written.
        body: Object = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "status": patch}
        try:
            await self._client.patch_status(JOBS, meta.name, meta.namespace, body)
        except NotFound:
            return

    async def _release(self, owner: ObjectMeta, pod: Pod) -> None:
        if not tracked(pod):
            return
        meta = pod.metadata
        kept = [name for name in meta.finalizers or () if name != FINALIZER_JOB_TRACKING]
        patch = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": kept or None}}
        try:
            written = await self._client.patch(PODS, meta.name, meta.namespace, patch)
        except NotFound:
            return
        self._expected.expect(owner.uid, written.metadata.resource_version)

    async def _release_strays(self, key: ObjectKey, job: Job | None) -> None:
        """Pods whose job is gone, or was replaced by another of its name, are held for nobody."""
        for pod in self.pods.cache.by_index(TRACKED, str(key)):
            holder = _holder(pod.metadata)
            assert holder is not None
            uid = holder[1]
            if job is not None and job.metadata.uid == uid:
                continue
            if job is None and not await self._is_gone(key, uid):
                continue  # the cache of jobs is behind the one of pods
            await self._release(ObjectMeta(uid=uid), pod)
            self._expected.forget(uid)

    async def _is_gone(self, key: ObjectKey, uid: str) -> bool:
        if not key.name:
            return True
        try:
            return (await self._client.get(JOBS, key.name, key.namespace)).metadata.uid != uid
        except NotFound:
            return True

    async def _after_the_end(self, job: Job) -> Result:
        meta = job.metadata
        for pod in self.pods.cache.by_index(TRACKED, str(meta.key)):
            if pod.ended or pod.metadata.deleting:
                await self._release(meta, pod)
        left = expires_in(job, self._clock.now())
        if left is None or meta.deleting:
            return DONE
        if left > 0:
            return Result(after=left + 0.1)
        try:
            await self._client.delete(
                JOBS, meta.name, meta.namespace, uid=meta.uid, propagation="Foreground",
                resource_version=meta.resource_version,
            )  # fmt: skip
        except NotFound:
            return DONE
        self._log.info("Finished job is removed", job=str(meta.key), ttl=job.spec.ttl_seconds_after_finished)
        return DONE

    def keys_of_pod(self, pod: Pod) -> list[ObjectKey]:
        meta = pod.metadata
        holder = _holder(meta)
        if holder is None:
            return []
        if controller_of(meta) is not None:
            return [holder[0]]
        keys = [holder[0]] if tracked(pod) else []
        if not meta.labels or meta.deleting:
            return keys
        return keys + [
            job.key
            for job in self.jobs.cache.list(meta.namespace)
            if not job.finished and selector_of(job.spec.selector).matches(meta.labels)
        ]


def make(
    client: Client,
    informers: Informers,
    *,
    events: EventRecorder | None = None,
    workers: int = 4,
    clock: Clock = SYSTEM_CLOCK,
) -> Controller[ObjectKey]:
    """`events` is a recorder of the component `job-controller`; the caller runs it."""
    reconciler = JobReconciler(client, informers, events, clock)
    watches: list[Watches[Any, ObjectKey]] = [
        Watches(reconciler.jobs, own_key),
        Watches(reconciler.pods, reconciler.keys_of_pod),
    ]
    return Controller("job", reconciler.reconcile, watches, workers=workers, clock=clock)
