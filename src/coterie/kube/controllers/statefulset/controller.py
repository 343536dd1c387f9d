"""Keeps the pods of StatefulSets: in order, by name, each with its own claims; and rolls out new templates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.kube.api.errors import AlreadyExists, ApiError, Conflict, NotFound
from coterie.kube.api.meta import Object, ObjectKey, ObjectMeta
from coterie.kube.api.selectors import selector_of
from coterie.kube.api.types.apps import STATEFUL_SETS, ControllerRevision, StatefulSet, StatefulSetStatus
from coterie.kube.api.types.merge import changes
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.api.types.storage import CLAIMS, PersistentVolumeClaim
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches, own_key
from coterie.kube.control.controller_refs import CONTROLLER_INDEX, Claimer, by_controller, candidates, owners_to_enqueue
from coterie.kube.control.events import EventRecorder, reference_to
from coterie.kube.control.expectations import Expectations
from coterie.kube.control.pod_control import namespace_is_going
from coterie.kube.control.revisions import RevisionHistory, RevisionNameTaken, surplus, template_of
from coterie.kube.controllers.statefulset.identity import (
    claim_bodies,
    claim_owners,
    is_member,
    is_stale,
    missing_labels,
    ordinal_of,
    parent_and_ordinal,
    pod_body,
    pod_name,
    revision_of,
)
from coterie.kube.controllers.statefulset.plan import OrdinalPod, Plan, StatefulPods, plan, status

_PLAIN_PODS = PODS.as_dynamic
_PLAIN_CLAIMS = CLAIMS.as_dynamic
_CACHE_PAUSE = 1.0


class ClaimNotUsable(Exception):
    """A claim of the pod is going away: the pod cannot be made before there is another."""


class StatefulSetReconciler:
    def __init__(self, client: Client, informers: Informers, events: EventRecorder | None, clock: Clock) -> None:
        self._client = client
        self._events = events
        self._clock = clock
        self.stateful_sets = informers.get(STATEFUL_SETS)
        self.pods = informers.get(PODS)
        self.claims = informers.get(CLAIMS)
        self.pods.cache.add_index(CONTROLLER_INDEX, by_controller)
        self.history = RevisionHistory(client, informers, STATEFUL_SETS)
        self._expected: Expectations[str] = Expectations(self.pods, clock)
        self._claimer = Claimer(client, STATEFUL_SETS, PODS)

    async def reconcile(self, key: ObjectKey) -> Result:
        stateful_set = self.stateful_sets.cache.by_key(key)
        if stateful_set is None:
            return DONE
        meta = stateful_set.metadata
        selector = selector_of(stateful_set.spec.selector)
        # Asked before the pods are read: what is expected to be in the cache must be in what we count.
        seen = self._expected.fulfilled(meta.uid)
        revisions = await self.history.of(meta, selector)
        found = [pod for pod in candidates(self.pods.cache, key.namespace, meta.uid) if is_member(stateful_set, pod)]
        pods = await self._claimer.claim(meta, selector, found)
        if meta.deleting:
            return DONE
        try:
            update = await self.history.present(
                stateful_set, stateful_set.spec.template or {}, revisions, stateful_set.status.collision_count
            )
        except RevisionNameTaken:
            count = (stateful_set.status.collision_count or 0) + 1
            await self._write_status(stateful_set, msgspec.structs.replace(stateful_set.status, collision_count=count))
            return Result(after=_CACHE_PAUSE)
        named = {revision.metadata.name: revision for revision in (*revisions, update)}
        current = named.get(stateful_set.status.current_revision, update)
        known = StatefulPods(stateful_set, pods, current.metadata.name, update.metadata.name, self._clock.now())
        if not seen:
            await self._write_status(stateful_set, status(known))
            return Result(after=_CACHE_PAUSE)
        wanted = plan(known)
        try:
            await self._apply(stateful_set, wanted, named)
        finally:
            await self._write_status(stateful_set, status(known))
        await self._forget_old(known, revisions)
        return Result(after=wanted.after)

    async def _apply(self, stateful_set: StatefulSet, wanted: Plan, revisions: dict[str, ControllerRevision]) -> None:
        condemned = {pod.metadata.name for pod in wanted.condemned}
        for pod in self.pods.cache.by_index(CONTROLLER_INDEX, stateful_set.metadata.uid):
            if is_member(stateful_set, pod):
                await self._own_claims(stateful_set, pod, condemned=pod.metadata.name in condemned)
                if pod.status.phase == "Pending" and not pod.metadata.deleting:
                    await self._restore_claims(stateful_set, pod)
        for pod in wanted.relabel:
            patch = {"metadata": {"uid": pod.metadata.uid, "labels": missing_labels(pod)}}
            await self._client.patch(PODS, pod.metadata.name, pod.metadata.namespace, patch)
        for pod in wanted.recreated:
            reason = "RecreatingFailedPod" if pod.status.phase == "Failed" else "RecreatingTerminatedPod"
            state = "failed" if pod.status.phase == "Failed" else "terminated"
            message = f"StatefulSet {stateful_set.key} is recreating {state} Pod {pod.metadata.name}"
            self._note(stateful_set, reason, message, warn=state == "failed")
        for pod in wanted.delete:
            await self._delete(stateful_set, pod)
        for new in wanted.create:
            await self._create(stateful_set, new, revisions[new.revision])

    async def _create(self, stateful_set: StatefulSet, new: OrdinalPod, revision: ControllerRevision) -> None:
        name, meta = pod_name(stateful_set, new.ordinal), stateful_set.metadata
        body = pod_body(stateful_set, template_of(revision), new.ordinal, new.revision)
        try:
            await self._ensure_claims(stateful_set, new.ordinal)
            made = await self._client.create(_PLAIN_PODS, body)
        except (ApiError, ClaimNotUsable) as error:
            if isinstance(error, ApiError) and namespace_is_going(error):
                return
            text = error.message if isinstance(error, ApiError) else str(error)
            message = f"create Pod {name} in StatefulSet {meta.name} failed error: {text}"
            self._note(stateful_set, "FailedCreate", message, warn=True)
            raise
        self._expected.expect(meta.uid, made["metadata"].get("resourceVersion") or "")
        self._note(stateful_set, "SuccessfulCreate", f"create Pod {name} in StatefulSet {meta.name} successful")

    async def _delete(self, stateful_set: StatefulSet, pod: Pod) -> None:
        meta, owner = pod.metadata, stateful_set.metadata
        try:
            gone = await self._client.delete(PODS, meta.name, meta.namespace, uid=meta.uid)
        except NotFound:
            return
        except Conflict:
            raise  # another pod of this name: our cache is behind
        except ApiError as error:
            message = f"delete Pod {meta.name} in StatefulSet {owner.name} failed error: {error.message}"
            self._note(stateful_set, "FailedDelete", message, warn=True)
            raise
        self._expected.expect(owner.uid, (gone.get("metadata") or {}).get("resourceVersion") or "")
        self._note(stateful_set, "SuccessfulDelete", f"delete Pod {meta.name} in StatefulSet {owner.name} successful")

    # Claims.

    async def _ensure_claims(self, stateful_set: StatefulSet, ordinal: int, *uids: str) -> None:
        """`uids`: of the pod that has this ordinal. Raises ClaimNotUsable."""
        pod, meta = pod_name(stateful_set, ordinal), stateful_set.metadata
        for body in claim_bodies(stateful_set, ordinal):
            name = body["metadata"]["name"]
            claim = self.claims.cache.get(name, meta.namespace)
            if claim is None:
                owners = claim_owners(stateful_set, ObjectMeta(), None, condemned=False)
                if owners:
                    body["metadata"]["ownerReferences"] = msgspec.to_builtins(owners)
                try:
                    await self._client.create(_PLAIN_CLAIMS, body)
                except AlreadyExists:
                    continue  # the cache is behind; whoever made it, this is its name
                message = f"create Claim {name} Pod {pod} in StatefulSet {meta.name} success"
                self._note(stateful_set, "SuccessfulCreate", message)
            elif claim.metadata.deleting or is_stale(claim.metadata, pod, uids):
                raise ClaimNotUsable(f"pvc {name} is being deleted")

    async def _restore_claims(self, stateful_set: StatefulSet, pod: Pod) -> None:
        """A pod that has not started may wait for a claim that somebody deleted."""
        try:
            await self._ensure_claims(stateful_set, ordinal_of(pod), pod.metadata.uid)
        except ClaimNotUsable:
            return  # it is made anew when the old one is gone

    async def _own_claims(self, stateful_set: StatefulSet, pod: Pod, *, condemned: bool) -> None:
        """Set the owners of a pod's claims as the retention policy says."""
        for body in claim_bodies(stateful_set, ordinal_of(pod)):
            claim = self.claims.cache.get(body["metadata"]["name"], stateful_set.metadata.namespace)
            if claim is None:
                continue
            owners = claim_owners(stateful_set, claim.metadata, pod.metadata, condemned=condemned)
            if owners is None:
                continue
            meta = claim.metadata
            changed: Object = {
                "uid": meta.uid,
                "resourceVersion": meta.resource_version,
                "ownerReferences": msgspec.to_builtins(owners) or None,
            }
            try:
                await self._client.patch(CLAIMS, meta.name, meta.namespace, {"metadata": changed})
            except NotFound:
                continue

    # The rest.

    async def _forget_old(self, known: StatefulPods, revisions: Sequence[ControllerRevision]) -> None:
        live = {known.current, known.update, *(revision_of(pod) for pod in known.pods)}
        for revision in surplus(revisions, live, known.stateful_set.spec.revision_history_limit):
            await self.history.delete(revision)

    async def _write_status(self, stateful_set: StatefulSet, new: StatefulSetStatus) -> None:
        patch = changes(stateful_set.status, new)
        if patch is None:
            return
        for name in ("replicas", "availableReplicas"):
            if patch.get(name, 0) is None:
                patch[name] = 0  # numbers that Kubernetes writes even when they are nought
        meta = stateful_set.metadata
        body: Object = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "status": patch}
        try:
            await self._client.patch_status(STATEFUL_SETS, meta.name, meta.namespace, body)
        except NotFound:
            return

    def _note(self, stateful_set: StatefulSet, reason: str, message: str, *, warn: bool = False) -> None:
        if self._events is not None:
            resource = STATEFUL_SETS.resource
            about = reference_to(stateful_set, api_version=resource.api_version, kind=resource.kind)
            self._events.record(about, "Warning" if warn else "Normal", reason, message)

    def keys_of_pod(self, pod: Pod) -> list[ObjectKey]:
        """The set that controls the pod; for an orphan all that might adopt it."""
        meta = pod.metadata
        found = owners_to_enqueue(meta, "StatefulSet", "apps", self.stateful_sets.cache.list(meta.namespace))
        # Whoever had the name of one of our pods stood in its way.
        parent = ObjectKey(meta.namespace, parent_and_ordinal(meta.name)[0])
        return found if parent in found or self.stateful_sets.cache.by_key(parent) is None else [*found, parent]

    def keys_of_revision(self, revision: ControllerRevision) -> list[ObjectKey]:
        sets = self.stateful_sets.cache.list(revision.metadata.namespace)
        return owners_to_enqueue(revision.metadata, "StatefulSet", "apps", sets)

    def keys_of_claim(self, claim: PersistentVolumeClaim) -> list[ObjectKey]:
        """Sets whose pods have a claim of this name."""
        meta = claim.metadata
        parent, ordinal = parent_and_ordinal(meta.name)
        if ordinal < 0:
            return []
        return [
            found.key
            for found in self.stateful_sets.cache.list(meta.namespace)
            if found.spec.volume_claim_templates and parent.endswith(f"-{found.metadata.name}")
        ]


def make(
    client: Client,
    informers: Informers,
    *,
    events: EventRecorder | None = None,
    workers: int = 4,
    clock: Clock = SYSTEM_CLOCK,
) -> Controller[ObjectKey]:
    """`events` is a recorder of the component `statefulset-controller`; the caller runs it."""
    reconciler = StatefulSetReconciler(client, informers, events, clock)
    watches: list[Watches[Any, ObjectKey]] = [
        Watches(reconciler.stateful_sets, own_key),
        Watches(reconciler.pods, reconciler.keys_of_pod),
        Watches(reconciler.claims, reconciler.keys_of_claim),
        Watches(reconciler.history.informer, reconciler.keys_of_revision),
    ]
    return Controller("statefulset", reconciler.reconcile, watches, workers=workers, clock=clock)
