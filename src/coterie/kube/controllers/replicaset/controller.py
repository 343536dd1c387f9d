"""Keeps as many pods running as each ReplicaSet (or ReplicationController, see `replication_controller.py`) asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.kube.api.errors import ApiError, NotFound, ServiceUnavailable
from coterie.kube.api.meta import Object, ObjectKey, ObjectMeta, controller_of
from coterie.kube.api.selectors import LabelSelector, selector_of
from coterie.kube.api.types.apps import REPLICA_SETS, ReplicaSet
from coterie.kube.api.types.kind import Kind
from coterie.kube.api.types.merge import changes
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.client.client import Client
from coterie.kube.client.informer import Informer
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches, own_key
from coterie.kube.control.controller_refs import CONTROLLER_INDEX, Claimer, by_controller, candidates, owners_to_enqueue
from coterie.kube.control.events import EventRecorder
from coterie.kube.control.expectations import Expectations
from coterie.kube.control.pod_control import BURST, PodBatchResult, PodControl, pod_from_template
from coterie.kube.control.pod_hooks import PodHook, PodHookProblem
from coterie.kube.controllers.replicaset.plan import ReplicaFailure, plan, status

_CACHE_PAUSE = 1.0
"""Seconds after which a key is looked at again while the cache is behind; usually the pod's own event is faster."""


class ReplicaSetReconciler:
    def __init__(
        self,
        client: Client,
        informers: Informers,
        events: EventRecorder | None,
        pod_hook: PodHook | None,
        clock: Clock,
        kind: Kind[Any] = REPLICA_SETS,
        selector: Callable[[Any], LabelSelector] = selector_of,
    ) -> None:
        """`kind`: whose objects are replica sets here; `selector` reads their `spec.selector`."""
        self._client = client
        self._kind = kind
        self._selector = selector
        self._clock = clock
        self._pod_hook = pod_hook
        self.replica_sets: Informer[ReplicaSet] = informers.get(kind)
        self.pods = informers.get(PODS)
        self.replica_sets.cache.add_index(CONTROLLER_INDEX, by_controller)
        self.pods.cache.add_index(CONTROLLER_INDEX, by_controller)
        self._expected: Expectations[str] = Expectations(self.pods, clock)
        self._claimer = Claimer(client, kind, PODS)
        self._work = PodControl(client, kind, events, self._expect_version)

    def _expect_version(self, owner: ObjectMeta, version: str) -> None:
        self._expected.expect(owner.uid, version)

    async def reconcile(self, key: ObjectKey) -> Result:
        replica_set = self.replica_sets.cache.by_key(key)
        if replica_set is None:
            return DONE
        meta = replica_set.metadata
        # Asked before the pods are read: what is expected to be in the cache must be in what we count.
        seen = self._expected.fulfilled(meta.uid)
        found = candidates(self.pods.cache, key.namespace, meta.uid)
        pods = await self._claimer.claim(meta, self._selector(replica_set.spec.selector), found)
        refused: ApiError | None = None
        failure: ReplicaFailure | None = None
        if seen and not meta.deleting:
            refused, failure = await self._manage(replica_set, pods)
        wait = await self._write_status(replica_set, pods, failure)
        if refused is not None:
            raise refused  # the queue asks again, with pauses that grow
        if not seen:
            return Result(after=_CACHE_PAUSE)
        return Result(after=wait)

    async def _manage(self, replica_set: ReplicaSet, pods: list[Pod]) -> tuple[ApiError | None, ReplicaFailure | None]:
        wanted = plan(replica_set, pods, self._related(replica_set), self._clock.now(), BURST)
        if wanted.create:
            body = pod_from_template(self._kind, replica_set.metadata, replica_set.spec.template or {})
            outcome = await self._create(replica_set, body, wanted.create)
            reason = "FailedCreate"
        elif wanted.delete:
            outcome = await self._work.delete(replica_set, wanted.delete)
            reason = "FailedDelete"
        else:
            return None, None
        if outcome.refused is None:
            return None, None
        return outcome.refused, ReplicaFailure(reason, outcome.refused.message)

    async def _create(self, replica_set: ReplicaSet, body: Object, count: int) -> PodBatchResult:
        if self._pod_hook is None:
            return await self._work.create(replica_set, [body] * count)
        pods: list[Object] = []
        try:
            for _ in range(count):
                pods.append(self._pod_hook.prepare_pod(body))
        except PodHookProblem as problem:
            self._work.record_event(replica_set, "Warning", "FailedCreate", f"Error creating: {problem}")
            if not pods:
                return PodBatchResult(0, ServiceUnavailable(str(problem)))
        outcome = PodBatchResult()
        try:
            outcome = await self._work.create(replica_set, pods)
        finally:
            # Those behind the first refusal were not created.
            for pod in pods[outcome.done :]:
                self._pod_hook.abandon_pod(pod)
        return outcome

    def _related(self, replica_set: ReplicaSet) -> list[Pod]:
        """Pods of all replica sets that share our controller: of the whole deployment, that is."""
        owner = controller_of(replica_set.metadata)
        sets = [replica_set] if owner is None else self.replica_sets.cache.by_index(CONTROLLER_INDEX, owner.uid)
        return [pod for one in sets for pod in self.pods.cache.by_index(CONTROLLER_INDEX, one.metadata.uid)]

    async def _write_status(
        self, replica_set: ReplicaSet, pods: list[Pod], failure: ReplicaFailure | None
    ) -> float | None:
        new, wait = status(replica_set, pods, failure, self._clock.now())
        patch = changes(replica_set.status, new)
        if patch is None:
            return wait
        if patch.get("replicas", 0) is None:
            patch["replicas"] = 0  # the one number that Kubernetes writes even when it is nought
        meta = replica_set.metadata
        body: Object = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "status": patch}
        try:
            await self._client.patch_status(self._kind, meta.name, meta.namespace, body)
        except NotFound:
            return None
        return wait

    def keys_of_pod(self, pod: Pod) -> list[ObjectKey]:
        """The set that controls the pod; for an orphan all that might adopt it."""
        sets = self.replica_sets.cache.list(pod.metadata.namespace)
        resource = self._kind.resource
        return owners_to_enqueue(pod.metadata, resource.kind, resource.group, sets, self._selector)


def make(
    client: Client,
    informers: Informers,
    *,
    events: EventRecorder | None = None,
    pod_hook: PodHook | None = None,
    workers: int = 4,
    clock: Clock = SYSTEM_CLOCK,
) -> Controller[ObjectKey]:
    """`events` is a recorder of the component `replicaset-controller`; the caller runs it. `pod_hook` sees
    each pod before it is created."""
    reconciler = ReplicaSetReconciler(client, informers, events, pod_hook, clock)
    return controller_of_sets("replicaset", reconciler, workers, clock)


def controller_of_sets(
    name: str, reconciler: ReplicaSetReconciler, workers: int, clock: Clock
) -> Controller[ObjectKey]:
    watches: list[Watches[Any, ObjectKey]] = [
        Watches(reconciler.replica_sets, own_key),
        Watches(reconciler.pods, reconciler.keys_of_pod),
    ]
    return Controller(name, reconciler.reconcile, watches, workers=workers, clock=clock)
