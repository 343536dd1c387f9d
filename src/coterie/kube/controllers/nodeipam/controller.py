"""Gives Nodes their ranges of pod addresses, and says why one cannot have any."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from coterie.base.clock import SYSTEM_CLOCK, Clock, rfc3339
from coterie.base.log import logger
from coterie.kube.api.errors import NotFound
from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.types.nodes import NODES, Node
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches
from coterie.kube.control.events import EventRecorder, reference_to
from coterie.kube.controllers.nodeipam.plan import (
    NETWORK_UNAVAILABLE,
    NetworkCondition,
    RangePool,
    Settings,
    assigned,
    choose,
    condition_change,
    conflict,
    conflicting,
    exhausted,
    pool_of,
    ranges_of,
)


class NodeIpam:
    """One worker: two nodes must not be given the same range."""

    def __init__(
        self, client: Client, informers: Informers, events: EventRecorder | None, settings: Settings, clock: Clock
    ) -> None:
        self._client = client
        self._events = events
        self._settings = settings
        self._clock = clock
        self.nodes = informers.get(NODES)
        self._known: dict[str, tuple[str, str, tuple[str, ...]]] = {}
        """By name: uid, pool and ranges of each Node that has some, also when the cache does not show it yet."""
        self._pools: dict[str, RangePool] = {}
        self._waiting: set[str] = set()
        """Nodes that have a problem, which may be over when another Node goes."""
        self._checked: set[tuple[str, tuple[str, ...]]] = set()
        """uid and ranges of Nodes that are in order, so that their heartbeats cost nothing."""
        self._releases = 0
        self._full: dict[str, int] = {}
        """Pools without a free range, and how many had been released by then: until another is, nobody needs to look again."""
        self._log = logger("controllers.nodeipam")

    def keys_of_node(self, node: Node) -> Iterable[ObjectKey]:
        known, current = self._known.get(node.metadata.name), self.nodes.cache.get(node.metadata.name)
        if known is None or (
            current is not None and known[0] == current.metadata.uid and known[2] == ranges_of(current)
        ):
            return [node.key]  # nothing became free: a heartbeat, or a Node that is new
        return [node.key, *(ObjectKey("", name) for name in self._waiting if name != node.metadata.name)]

    async def reconcile(self, key: ObjectKey) -> Result:
        name = key.name
        node = self.nodes.cache.get(name)
        if node is not None and (node.metadata.uid, ranges_of(node)) in self._checked:
            return DONE
        if node is not None and self._finds_nothing(node):
            await self._say(node, exhausted(self._settings))
            return DONE
        self._note_all()
        if node is None:
            self._waiting.discard(name)
            return DONE
        if not ranges_of(node):
            known = self._known.get(name)
            if known is not None and known[0] == node.metadata.uid:
                return DONE  # the cache is behind what was written
            await self._assign(node)
            return DONE
        other = conflicting(node, self.nodes.cache)
        if other is not None:
            await self._say(node, conflict(node, other))
        else:
            await self._say(node, assigned(ranges_of(node)))
            self._checked.add((node.metadata.uid, ranges_of(node)))
        return DONE

    def _finds_nothing(self, node: Node) -> bool:
        """Without looking at all Nodes: thousands may be without a range, each with its heartbeats."""
        name = node.metadata.name
        if ranges_of(node) or name in self._settings.reserved or name in self._known:
            return False
        return self._full.get(pool_of(node)) == self._releases

    def _note_all(self) -> None:
        """Remember the ranges of all Nodes, and release those of Nodes that are gone."""
        current = {node.metadata.name: node for node in self.nodes.cache}
        for name, (uid, pool, ranges) in list(self._known.items()):
            node = current.get(name)
            if node is None or node.metadata.uid != uid:
                del self._known[name]
                self._checked.discard((uid, ranges))
                self._releases += 1
                released = self._pools.setdefault(pool, RangePool()).released
                released.update(dict.fromkeys(ranges, self._releases))
        for name, node in current.items():
            if ranges_of(node):
                self._known[name] = (node.metadata.uid, pool_of(node), ranges_of(node))

    async def _assign(self, node: Node) -> None:
        meta, pool_name = node.metadata, pool_of(node)
        others = [known for name, known in self._known.items() if name != meta.name]
        used = [cidr for _, pool, ranges in others if pool == pool_name for cidr in ranges]
        pool_state = self._pools.setdefault(pool_name, RangePool())
        chosen = choose(meta.name, used, pool_state, self._settings)
        if chosen is None:
            self._full[pool_name] = self._releases
            await self._say(node, exhausted(self._settings))
            return
        # The version: an agent that writes its own range at this moment wins.
        patch = {
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "spec": {"podCIDR": chosen[0], "podCIDRs": list(chosen)},
        }
        try:
            written = await self._client.patch(NODES, meta.name, "", patch)
        except NotFound:
            return
        self._known[meta.name] = (meta.uid, pool_name, chosen)
        for cidr in chosen:
            pool_state.released.pop(cidr, None)
        self._log.info("Node got its pod addresses", node=meta.name, cidr=chosen[0])
        await self._say(written, assigned(chosen))

    async def _say(self, node: Node, wanted: NetworkCondition) -> None:
        meta = node.metadata
        if wanted.status == "True":
            self._waiting.add(meta.name)
        else:
            self._waiting.discard(meta.name)
        if not condition_change(node, wanted):
            return
        now = rfc3339(self._clock.now())
        condition = {
            "type": NETWORK_UNAVAILABLE,
            "status": wanted.status,
            "reason": wanted.reason,
            "message": wanted.message,
            "lastTransitionTime": now,
            "lastHeartbeatTime": now,
        }
        patch = {"metadata": {"uid": meta.uid}, "status": {"conditions": [condition]}}
        try:
            await self._client.patch(NODES, meta.name, "", patch, type="strategic", subresource="status")
        except NotFound:
            return
        if wanted.status == "True":
            self._log.warning("Node has no pod addresses of its own", node=meta.name, why=wanted.message)
            if self._events is not None:
                about = reference_to(node, api_version="v1", kind="Node")
                self._events.record(about, "Warning", wanted.reason, wanted.message)


def make(
    client: Client,
    informers: Informers,
    *,
    settings: Settings,
    events: EventRecorder | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Controller[ObjectKey]:
    """`events` is a recorder of the component `node-ipam-controller`; the caller runs it."""
    ipam = NodeIpam(client, informers, events, settings, clock)
    watches: list[Watches[Any, ObjectKey]] = [Watches(ipam.nodes, ipam.keys_of_node)]
    return Controller("nodeipam", ipam.reconcile, watches, workers=1, clock=clock)
