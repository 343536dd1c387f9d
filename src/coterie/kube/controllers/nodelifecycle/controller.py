"""Watches over nodes: says when one is gone, taints it, and moves its pods off in time.

Nothing is polled. A lease that is renewed brings its node up, and each look sets the alarm for the moment at which the
next silence would be too long or the next pod's time is over.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from coterie.base.clock import SYSTEM_CLOCK, Clock, rfc3339
from coterie.base.log import logger
from coterie.kube.api.errors import NotFound
from coterie.kube.api.labels import COTERIE_LEASE_DURATION, TAINT_UNREACHABLE
from coterie.kube.api.meta import Object, ObjectKey
from coterie.kube.api.pod_state import DISRUPTION_TARGET, is_active
from coterie.kube.api.pod_state import is_ready as pod_is_ready
from coterie.kube.api.types.coordination import LEASES, Lease
from coterie.kube.api.types.nodes import NODES, Node
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches, own_key
from coterie.kube.control.events import EventRecorder, reference_to
from coterie.kube.controllers.nodelifecycle.plan import (
    READY,
    NodeObservation,
    Settings,
    clocks,
    conditions_patch,
    evicting,
    evictions,
    is_ready,
    lease_duration,
    observe,
    silence_left,
    taints,
    unknown_conditions,
)

LEASE_NAMESPACE = "kube-node-lease"
BY_NODE = "nodelifecycle/node"
NODE_LOST = "NodeLost"
_ALL_DOWN_PAUSE = 5.0
_ALARM_SLACK = 0.05
"""Seconds after an alarm's moment, so that the moment is past when it rings."""


def by_node(pod: Pod) -> tuple[str, ...]:
    return (pod.spec.node_name,) if pod.spec.node_name else ()


class NodeLifecycle:
    def __init__(
        self, client: Client, informers: Informers, events: EventRecorder | None, settings: Settings, clock: Clock
    ) -> None:
        self._client = client
        self._events = events
        self._settings = settings
        self._clock = clock
        self.nodes = informers.get(NODES)
        self.leases = informers.get(LEASES, LEASE_NAMESPACE)
        self.pods = informers.get(PODS)
        self.pods.cache.add_index(BY_NODE, by_node)
        self._sights: dict[str, NodeObservation] = {}
        self._tainted_since: dict[str, dict[str, float]] = {}
        self._log = logger("controllers.nodelifecycle")

    async def reconcile(self, key: ObjectKey) -> Result:
        name = key.name
        node = self.nodes.cache.get(name)
        if node is None:
            self._sights.pop(name, None)
            self._tainted_since.pop(name, None)
            return DONE  # its pods are the pod collector's
        now = self._clock.monotonic()
        lease = self.leases.cache.get(name, LEASE_NAMESPACE)
        if lease is not None:
            await self._set_lease_duration(lease)
        sight = observe(self._sights.get(name), node, lease, now)
        self._sights[name] = sight
        left = silence_left(sight, node, self._settings, now)
        gone = left <= 0
        if gone:
            node = await self._say_unknown(node)
        node = await self._taint(node)
        if gone:
            await self._pods_not_ready(node)
        wait = await self._evict(node, now)
        waits = [seconds for seconds in (None if gone else left, wait) if seconds is not None]
        return Result(after=min(waits) + _ALARM_SLACK) if waits else DONE

    async def _set_lease_duration(self, lease: Lease) -> None:
        wanted = lease_duration(lease, self._settings)
        if wanted is None:
            return
        meta = lease.metadata
        patch = {"metadata": {"uid": meta.uid, "annotations": {COTERIE_LEASE_DURATION: wanted or None}}}
        with contextlib.suppress(NotFound):
            await self._client.patch(LEASES, meta.name, LEASE_NAMESPACE, patch)

    async def _say_unknown(self, node: Node) -> Node:
        wanted = unknown_conditions(node, self._clock.now())
        if not wanted:
            return node
        meta = node.metadata
        # The version matters: an agent that comes back this very moment must win.
        patch = {
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "status": {"conditions": conditions_patch(wanted)},
        }
        written = await self._client.patch(NODES, meta.name, "", patch, type="strategic", subresource="status")
        if any(each.type == READY for each in wanted):  # not of a machine that has not joined yet
            self._log.warning("Node heartbeat is overdue", node=meta.name, seconds=self._settings.grace)
            self._note(node, "NodeNotReady", f"Node {meta.name} status is now: NodeNotReady")
        return written

    async def _taint(self, node: Node) -> Node:
        wanted = taints(node, self._clock.now())
        if wanted is None:
            return node
        meta = node.metadata
        patch = {
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "spec": {"taints": [msgspec.to_builtins(taint) for taint in wanted] or None},
        }
        return await self._client.patch(NODES, meta.name, "", patch)

    async def _pods_not_ready(self, node: Node) -> None:
        """Services must not send anybody there, although no agent says so."""
        for pod in self.pods.cache.by_index(BY_NODE, node.metadata.name):
            if pod.ended or not pod_is_ready(pod):
                continue
            message = f"Node {node.metadata.name} which runs this pod is unresponsive"
            await self._pod_status(pod, {"conditions": [self._condition("Ready", "False", NODE_LOST, message)]})
            self._note(pod, "NodeNotReady", "Node is not ready", warn=True)

    async def _evict(self, node: Node, now: float) -> float | None:
        name = node.metadata.name
        since = clocks(node, self._tainted_since.get(name), now, self._clock.now())
        nowhere_to_go = bool(since) and not any(is_ready(other) for other in self.nodes.cache)
        if nowhere_to_go:
            since = dict.fromkeys(since, now)  # their time begins when there is a place again
        self._tainted_since[name] = since
        if nowhere_to_go:
            return _ALL_DOWN_PAUSE
        wanted = evictions(node, self.pods.cache.by_index(BY_NODE, name), since, self._settings, now)
        unreachable = any(taint.key == TAINT_UNREACHABLE for taint in evicting(node))
        for pod in wanted.now:
            await self._evict_one(pod, node, unreachable)
        return wanted.next

    async def _evict_one(self, pod: Pod, node: Node, unreachable: bool) -> None:
        meta = pod.metadata
        self._log.info("Pod evicted from its node", pod=str(meta.key), node=node.metadata.name, unreachable=unreachable)
        self._note(pod, "TaintManagerEviction", f"Marking for deletion Pod {meta.key}")
        message = "Taint manager: deleting due to NoExecute taint"
        status: Object = {"conditions": [self._condition(DISRUPTION_TARGET, "True", "DeletionByTaintManager", message)]}
        if unreachable:
            # kubectl shows a deleted pod with this reason as Unknown.
            status["reason"] = NODE_LOST
            status["message"] = f"Node {node.metadata.name} which was running pod {meta.name} is unresponsive"
        if not await self._pod_status(pod, status):
            return
        try:
            await self._client.delete(PODS, meta.name, meta.namespace, uid=meta.uid)
        except NotFound:
            return

    def _condition(self, type_: str, word: str, reason: str, message: str) -> Object:
        now = rfc3339(self._clock.now())
        return {"type": type_, "status": word, "reason": reason, "message": message, "lastTransitionTime": now}

    async def _pod_status(self, pod: Pod, status: Object) -> bool:
        """False when the pod is gone."""
        meta = pod.metadata
        patch = {"metadata": {"uid": meta.uid}, "status": status}
        try:
            await self._client.patch(PODS, meta.name, meta.namespace, patch, type="strategic", subresource="status")
        except NotFound:
            return False
        return True

    def _note(self, about: Node | Pod, reason: str, message: str, *, warn: bool = False) -> None:
        if self._events is not None:
            kind = "Node" if isinstance(about, Node) else "Pod"
            reference = reference_to(about, api_version="v1", kind=kind)
            self._events.record(reference, "Warning" if warn else "Normal", reason, message)

    def keys_of_lease(self, lease: Lease) -> list[ObjectKey]:
        return [ObjectKey("", lease.metadata.name)]

    def keys_of_pod(self, pod: Pod) -> list[ObjectKey]:
        """Pods matter only on nodes that drive them away."""
        if not pod.spec.node_name or not is_active(pod):
            return []
        node = self.nodes.cache.get(pod.spec.node_name)
        return [node.key] if node is not None and evicting(node) else []


def make(
    client: Client,
    informers: Informers,
    *,
    events: EventRecorder | None = None,
    settings: Settings | None = None,
    workers: int = 2,
    clock: Clock = SYSTEM_CLOCK,
) -> Controller[ObjectKey]:
    """`events` is a recorder of the component `node-controller`; the caller runs it."""
    lifecycle = NodeLifecycle(client, informers, events, settings or Settings(), clock)
    watches: list[Watches[Any, ObjectKey]] = [
        Watches(lifecycle.nodes, own_key),
        Watches(lifecycle.leases, lifecycle.keys_of_lease),
        Watches(lifecycle.pods, lifecycle.keys_of_pod),
    ]
    return Controller("nodelifecycle", lifecycle.reconcile, watches, workers=workers, clock=clock)
