"""Runs one pod of each DaemonSet on every node that matches, and rolls out new templates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from coterie.base.backoff import Policy, base_delay
from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.kube.api.errors import ApiError, NotFound
from coterie.kube.api.labels import CONTROLLER_REVISION_HASH
from coterie.kube.api.meta import Object, ObjectKey, ObjectMeta
from coterie.kube.api.selectors import selector_of
from coterie.kube.api.types.apps import DAEMON_SETS, ControllerRevision, DaemonSet, DaemonSetStatus
from coterie.kube.api.types.merge import changes
from coterie.kube.api.types.nodes import NODES, Node
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.client.client import Client
from coterie.kube.client.informer import ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches, own_key
from coterie.kube.control.controller_refs import CONTROLLER_INDEX, Claimer, by_controller, candidates, owners_to_enqueue
from coterie.kube.control.events import EventRecorder
from coterie.kube.control.expectations import Expectations
from coterie.kube.control.pod_control import BURST, PodControl
from coterie.kube.control.revisions import RevisionHistory, RevisionNameTaken, revision_hash, surplus
from coterie.kube.controllers.daemonset.nodes import NodeMatcher, node_of, pod_for
from coterie.kube.controllers.daemonset.plan import DaemonPods, Plan, plan, status, survey

_CACHE_PAUSE = 1.0
_FAILED_PAUSES = Policy(first=1.0, factor=2.0, limit=900.0, jitter=0.0)
_ALWAYS = ("currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady")
"""Numbers that Kubernetes writes even when they are nought."""


class DaemonSetReconciler:
    def __init__(self, client: Client, informers: Informers, events: EventRecorder | None, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self.daemon_sets = informers.get(DAEMON_SETS)
        self.nodes = informers.get(NODES)
        self.pods = informers.get(PODS)
        self.pods.cache.add_index(CONTROLLER_INDEX, by_controller)
        self.history = RevisionHistory(client, informers, DAEMON_SETS)
        self._expected: Expectations[str] = Expectations(self.pods, clock)
        self._claimer = Claimer(client, DAEMON_SETS, PODS)
        self._work = PodControl(client, DAEMON_SETS, events, self._expect_version)
        self._failed: dict[tuple[str, str], tuple[int, float]] = {}
        """(uid of the DaemonSet, node) -> how often its pod failed, and when the last one was deleted."""

    def _expect_version(self, owner: ObjectMeta, version: str) -> None:
        self._expected.expect(owner.uid, version)

    async def reconcile(self, key: ObjectKey) -> Result:
        daemon_set = self.daemon_sets.cache.by_key(key)
        if daemon_set is None:
            return DONE
        meta = daemon_set.metadata
        selector = selector_of(daemon_set.spec.selector)
        if selector.everything:
            message = "This daemon set is selecting all pods. A non-empty selector is required."
            self._work.record_event(daemon_set, "Warning", "SelectingAll", message)
            return DONE
        # Asked before the pods are read: what is expected to be in the cache must be in what we count.
        seen = self._expected.fulfilled(meta.uid)
        revisions = await self.history.of(meta, selector)
        pods = await self._claimer.claim(meta, selector, candidates(self.pods.cache, key.namespace, meta.uid))
        if meta.deleting:
            return DONE
        try:
            present = await self.history.present(
                daemon_set, daemon_set.spec.template or {}, revisions, daemon_set.status.collision_count
            )
        except RevisionNameTaken:
            collided = msgspec.structs.replace(
                daemon_set.status, collision_count=(daemon_set.status.collision_count or 0) + 1
            )
            await self._write_status(daemon_set, collided)
            return Result(after=_CACHE_PAUSE)
        known = survey(daemon_set, self.nodes.cache.list(), pods, revision_hash(present), self._clock.now())
        refused: ApiError | None = None
        pause: float | None = None
        if seen:
            wanted = plan(known, lambda node: self._pause(meta.uid, node))
            pause = wanted.after
            refused = await self._apply(known, wanted)
            await self._forget_old(known, revisions, present)
        new, wait = status(known)
        await self._write_status(daemon_set, new)
        if refused is not None:
            raise refused
        if not seen:
            return Result(after=_CACHE_PAUSE)
        return Result(after=min((t for t in (wait, pause) if t is not None), default=None))

    async def _apply(self, known: DaemonPods, wanted: Plan) -> ApiError | None:
        daemon_set = known.daemon_set
        for pod, node in wanted.ended:
            self._note_ended(daemon_set, pod, node)
        refused: ApiError | None = None
        if wanted.delete:
            refused = (await self._work.delete(daemon_set, wanted.delete[:BURST])).refused
        if wanted.create:
            bodies = [pod_for(daemon_set, node, known.revision) for node in wanted.create[:BURST]]
            refused = (await self._work.create(daemon_set, bodies)).refused or refused
        return refused

    def _note_ended(self, daemon_set: DaemonSet, pod: Pod, node: str) -> None:
        name = pod.metadata.name
        if pod.status.phase == "Failed":
            message = f"Found failed daemon pod {pod.metadata.namespace}/{name} on node {node}, will try to kill it"
            self._work.record_event(daemon_set, "Warning", "FailedDaemonPod", message)
            uid = daemon_set.metadata.uid
            count = self._failed.get((uid, node), (0, 0.0))[0]
            self._failed[uid, node] = (count + 1, self._clock.monotonic())
        else:
            message = (
                f"Found succeeded daemon pod {pod.metadata.namespace}/{name} on node {node}, will try to delete it"
            )
            self._work.record_event(daemon_set, "Normal", "SucceededDaemonPod", message)

    def _pause(self, uid: str, node: str) -> float:
        """Pods that fail again and again are replaced ever more slowly; a long run starts anew."""
        count, at = self._failed.get((uid, node), (0, 0.0))
        if not count:
            return 0.0
        passed = self._clock.monotonic() - at
        if passed > 2 * _FAILED_PAUSES.limit:
            del self._failed[uid, node]
            return 0.0
        return max(0.0, base_delay(_FAILED_PAUSES, count - 1) - passed)

    async def _forget_old(
        self, known: DaemonPods, revisions: Sequence[ControllerRevision], present: ControllerRevision
    ) -> None:
        used = {
            (pod.metadata.labels or {}).get(CONTROLLER_REVISION_HASH) for pods in known.pods.values() for pod in pods
        }
        live = {present.metadata.name} | {r.metadata.name for r in revisions if revision_hash(r) in used}
        for revision in surplus(revisions, live, known.daemon_set.spec.revision_history_limit):
            await self.history.delete(revision)

    async def _write_status(self, daemon_set: DaemonSet, new: DaemonSetStatus) -> None:
        patch = changes(daemon_set.status, new)
        if patch is None:
            return
        for name in _ALWAYS:
            if patch.get(name, 0) is None:
                patch[name] = 0
        meta = daemon_set.metadata
        body: Object = {"metadata": {"uid": meta.uid}, "status": patch}
        try:
            await self._client.patch_status(DAEMON_SETS, meta.name, meta.namespace, body)
        except NotFound:
            return

    def keys_of_pod(self, pod: Pod) -> list[ObjectKey]:
        """The set that controls the pod; for an orphan all that might adopt it."""
        sets = self.daemon_sets.cache.list(pod.metadata.namespace)
        return owners_to_enqueue(pod.metadata, "DaemonSet", "apps", sets)

    def keys_of_revision(self, revision: ControllerRevision) -> list[ObjectKey]:
        sets = self.daemon_sets.cache.list(revision.metadata.namespace)
        return owners_to_enqueue(revision.metadata, "DaemonSet", "apps", sets)

    def keys_of_node(self, node: Node) -> list[ObjectKey]:
        """Sets that want the node, or have a pod for it."""
        name = node.metadata.name
        return [
            found.key
            for found in self.daemon_sets.cache
            if NodeMatcher(found).fit(node).run
            or any(node_of(pod) == name for pod in self.pods.cache.by_index(CONTROLLER_INDEX, found.metadata.uid))
        ]


def follow_nodes(controller: Controller[ObjectKey], reconciler: DaemonSetReconciler) -> None:
    """Nodes report themselves every few seconds: only changes of what a DaemonSet looks at are passed on."""

    def changed(change: ObjectChange[Node]) -> None:
        if change.type == "updated" and change.old is not None and _same_node(change.old, change.object):
            return
        for key in reconciler.keys_of_node(change.object):
            controller.enqueue(key)

    reconciler.nodes.add_handler(changed)


def _same_node(old: Node, new: Node) -> bool:
    return (
        old.metadata.uid == new.metadata.uid
        and old.metadata.labels == new.metadata.labels
        and old.spec.taints == new.spec.taints
    )


def make(
    client: Client,
    informers: Informers,
    *,
    events: EventRecorder | None = None,
    workers: int = 4,
    clock: Clock = SYSTEM_CLOCK,
) -> Controller[ObjectKey]:
    """`events` is a recorder of the component `daemonset-controller`; the caller runs it."""
    reconciler = DaemonSetReconciler(client, informers, events, clock)
    watches: list[Watches[Any, ObjectKey]] = [
        Watches(reconciler.daemon_sets, own_key),
        Watches(reconciler.pods, reconciler.keys_of_pod),
        Watches(reconciler.history.informer, reconciler.keys_of_revision),
        Watches(reconciler.nodes, lambda node: ()),  # waited for here, followed below
    ]
    controller = Controller("daemonset", reconciler.reconcile, watches, workers=workers, clock=clock)
    follow_nodes(controller, reconciler)
    return controller
