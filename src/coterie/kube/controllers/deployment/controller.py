"""Rolls out deployments: asks the plan for one step, writes it, and waits for the replica sets to report."""

from __future__ import annotations

from typing import Any

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.kube.api.errors import AlreadyExists, ApiError, NotFound
from coterie.kube.api.labels import DEPLOYMENT_REVISION
from coterie.kube.api.meta import Object, ObjectKey, controller_of
from coterie.kube.api.selectors import selector_of
from coterie.kube.api.types.apps import DEPLOYMENTS, REPLICA_SETS, Deployment, DeploymentStatus, ReplicaSet
from coterie.kube.api.types.merge import changes
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches, own_key
from coterie.kube.control.controller_refs import CONTROLLER_INDEX, Claimer, by_controller, candidates, owners_to_enqueue
from coterie.kube.control.events import EventRecorder, reference_to
from coterie.kube.control.pod_control import namespace_is_going
from coterie.kube.controllers.deployment.plan import Plan, collided, observed, plan, refused
from coterie.kube.controllers.deployment.revisions import newest_of, same_template

_PLAIN = REPLICA_SETS.as_dynamic
_CACHE_PAUSE = 0.5
_SCALING = "ScalingReplicaSet"


class DeploymentReconciler:
    def __init__(self, client: Client, informers: Informers, events: EventRecorder | None, clock: Clock) -> None:
        self._client = client
        self._events = events
        self._clock = clock
        self.deployments = informers.get(DEPLOYMENTS)
        self.replica_sets = informers.get(REPLICA_SETS)
        self.pods = informers.get(PODS)
        self.replica_sets.cache.add_index(CONTROLLER_INDEX, by_controller)
        self.pods.cache.add_index(CONTROLLER_INDEX, by_controller)
        self._claimer = Claimer(client, DEPLOYMENTS, REPLICA_SETS)

    async def reconcile(self, key: ObjectKey) -> Result:
        deployment = self.deployments.cache.by_key(key)
        if deployment is None:
            return DONE
        selector = selector_of(deployment.spec.selector)
        if selector.everything:
            message = "This deployment is selecting all pods. A non-empty selector is required."
            self._note(deployment, "SelectingAll", message, warn=True)
            await self._write_status(deployment, observed(deployment))
            return DONE
        found = candidates(self.replica_sets.cache, key.namespace, deployment.metadata.uid)
        sets = await self._claimer.claim(deployment.metadata, selector, found)
        wanted = plan(deployment, sets, self._old_pods_left(deployment, sets), self._clock.now())
        return await self._apply(deployment, wanted)

    def _old_pods_left(self, deployment: Deployment, sets: list[ReplicaSet]) -> bool:
        if deployment.spec.strategy.type != "Recreate":
            return False
        newest = newest_of(deployment, sets)
        # Also what is being deleted counts: it runs until it is gone.
        return any(
            not pod.ended
            for found in sets
            if found is not newest
            for pod in self.pods.cache.by_index(CONTROLLER_INDEX, found.metadata.uid)
        )

    async def _apply(self, deployment: Deployment, wanted: Plan) -> Result:
        status = wanted.status
        if wanted.create is not None:
            problem = await self._create(deployment, wanted.create)
            if problem is not None:
                return problem
            if wanted.note:
                self._note(deployment, _SCALING, wanted.note)
        for draft in wanted.resize:
            patch = draft.patch()
            if patch is not None:
                meta = draft.before.metadata
                await self._client.patch(REPLICA_SETS, meta.name, meta.namespace, patch)
            if draft.note:
                self._note(deployment, _SCALING, draft.note)
        for found in wanted.forget:
            await self._forget(found)
        await self._number(deployment, wanted.revision)
        await self._write_status(deployment, status)
        return Result(after=wanted.after)

    async def _create(self, deployment: Deployment, body: Object) -> Result | None:
        """None when the set is there now."""
        name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
        try:
            await self._client.create(_PLAIN, body)
        except AlreadyExists:
            try:
                there = await self._client.get(REPLICA_SETS, name, namespace)
            except NotFound:
                return Result(after=_CACHE_PAUSE)
            owner = controller_of(there.metadata)
            ours = owner is not None and owner.uid == deployment.metadata.uid
            if not ours or not same_template(there.spec.template, body["spec"]["template"]):
                await self._write_status(deployment, collided(deployment))
            return Result(after=_CACHE_PAUSE)  # our cache is behind, or the next name is another one
        except ApiError as error:
            if namespace_is_going(error):
                return DONE
            message = f'Failed to create new replica set "{name}": {error.message}'
            self._note(deployment, "ReplicaSetCreateError", message, warn=True)
            await self._write_status(deployment, refused(deployment, message, self._clock.now()))
            raise
        return None

    async def _forget(self, found: ReplicaSet) -> None:
        meta = found.metadata
        try:
            await self._client.delete(REPLICA_SETS, meta.name, meta.namespace, uid=meta.uid, propagation="Background")
        except NotFound:
            return

    async def _number(self, deployment: Deployment, revision: str | None) -> None:
        if revision is None:
            return
        meta = deployment.metadata
        patch = {"metadata": {"uid": meta.uid, "annotations": {DEPLOYMENT_REVISION: revision}}}
        await self._client.patch(DEPLOYMENTS, meta.name, meta.namespace, patch)

    async def _write_status(self, deployment: Deployment, status: DeploymentStatus) -> None:
        patch = changes(deployment.status, status)
        if patch is None:
            return
        meta = deployment.metadata
        try:
            # No version here: we alone write the status, and the observed generation says what it was made from.
            await self._client.patch_status(
                DEPLOYMENTS, meta.name, meta.namespace, {"metadata": {"uid": meta.uid}, "status": patch}
            )
        except NotFound:
            return

    def _note(self, deployment: Deployment, reason: str, message: str, *, warn: bool = False) -> None:
        if self._events is not None:
            resource = DEPLOYMENTS.resource
            about = reference_to(deployment, api_version=resource.api_version, kind=resource.kind)
            self._events.record(about, "Warning" if warn else "Normal", reason, message)

    def keys_of_set(self, replica_set: ReplicaSet) -> list[ObjectKey]:
        """The deployment that controls the set; for an orphan all that might adopt it."""
        owners = self.deployments.cache.list(replica_set.metadata.namespace)
        return owners_to_enqueue(replica_set.metadata, "Deployment", "apps", owners)

    def keys_of_pod(self, pod: Pod) -> list[ObjectKey]:
        """Pods matter only to deployments that wait for the last old one to go."""
        owner = controller_of(pod.metadata)
        if owner is None or owner.kind != "ReplicaSet":
            return []
        replica_set = self.replica_sets.cache.get(owner.name, pod.metadata.namespace)
        if replica_set is None or replica_set.metadata.uid != owner.uid:
            return []
        return [
            key
            for key in self.keys_of_set(replica_set)
            if (found := self.deployments.cache.by_key(key)) is not None and found.spec.strategy.type == "Recreate"
        ]


def make(
    client: Client,
    informers: Informers,
    *,
    events: EventRecorder | None = None,
    workers: int = 4,
    clock: Clock = SYSTEM_CLOCK,
) -> Controller[ObjectKey]:
    """`events` is a recorder of the component `deployment-controller`; the caller runs it."""
    reconciler = DeploymentReconciler(client, informers, events, clock)
    watches: list[Watches[Any, ObjectKey]] = [
        Watches(reconciler.deployments, own_key),
        Watches(reconciler.replica_sets, reconciler.keys_of_set),
        Watches(reconciler.pods, reconciler.keys_of_pod),
    ]
    return Controller("deployment", reconciler.reconcile, watches, workers=workers, clock=clock)
