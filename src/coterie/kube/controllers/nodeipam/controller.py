"""Gives Nodes their ranges of pod addresses, and says why one cannot have any."""

from __future__ import annotations

from collections import defaultdict
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
        self._unsure: set[str] = set()
        """Nodes whose ranges are being written, or were with an answer that was lost: nobody else gets these."""
        self._pools: defaultdict[str, RangePool] = defaultdict(lambda: RangePool(settings))
        self._waiting: dict[str, str] = {}
        """Nodes that have a problem, which may be over when another Node of the pool goes, and their pools."""
        self._checked: set[tuple[str, str, tuple[str, ...]]] = set()
        """uid, pool and ranges of Nodes that are in order, so that their heartbeats cost nothing."""
        self._log = logger("controllers.nodeipam")

    def keys_of_node(self, node: Node) -> Iterable[ObjectKey]:
        name = node.metadata.name
        released = self._note(name)
        if released is None:
            return [node.key]  # nothing became free: a heartbeat, or a Node that is new
        return [node.key, *(ObjectKey("", each) for each, pool in self._waiting.items() if pool == released)]

    async def reconcile(self, key: ObjectKey) -> Result:
        name = key.name
        node = self.nodes.cache.get(name)
        if node is None:
            self._waiting.pop(name, None)
            return DONE
        if _facts(node) in self._checked:
            return DONE
        if not ranges_of(node):
            known = self._known.get(name)
            if known is not None and known[0] == node.metadata.uid and name not in self._unsure:
                return DONE  # the cache is behind what was written
            await self._assign(node)
            return DONE
        self._unsure.discard(name)
        cache = self.nodes.cache
        near = (cache.get(each) for each in self._pools[pool_of(node)].neighbours(name))
        other = conflicting(node, (each for each in near if each is not None))
        if other is not None:
            await self._say(node, conflict(node, other))
        else:
            await self._say(node, assigned(ranges_of(node)))
            if self._known.get(name) == _facts(node):
                self._checked.add(_facts(node))
        return DONE

    def _note(self, name: str) -> str | None:
        """Compare what is remembered of a Node with the cache, at each of its changes: so nobody ever walks all Nodes. Returns the pool in
        which something became free."""
        node, known = self.nodes.cache.get(name), self._known.get(name)
        if node is not None and known is not None and known[0] == node.metadata.uid and not ranges_of(node):
            return None  # the cache is behind what was written
        now = _facts(node) if node is not None and ranges_of(node) else None
        if known == now:
            return None
        released = self._forget(name)
        if now is not None:
            self._known[name] = now
            self._pools[now[1]].hold(name, now[2])
        return released

    def _forget(self, name: str) -> str | None:
        known = self._known.pop(name, None)
        if known is None:
            return None
        self._unsure.discard(name)
        self._checked.discard(known)
        self._pools[known[1]].release(name)
        return known[1]

    async def _assign(self, node: Node) -> None:
        meta, pool_name = node.metadata, pool_of(node)
        pool = self._pools[pool_name]
        known = self._known.get(meta.name)
        if known is not None and known[:2] == (meta.uid, pool_name):
            chosen: tuple[str, ...] | None = known[2]
        else:
            self._forget(meta.name)
            chosen = None if pool.full and meta.name not in self._settings.reserved else pool.choose(meta.name)
        if chosen is None:
            await self._say(node, exhausted(self._settings))
            return
        self._known[meta.name] = meta.uid, pool_name, chosen
        self._unsure.add(meta.name)
        pool.hold(meta.name, chosen)
        # The version: an agent that writes its own range at this moment wins.
        patch = {
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "spec": {"podCIDR": chosen[0], "podCIDRs": list(chosen)},
        }
        try:
            written = await self._client.patch(NODES, meta.name, "", patch)
        except NotFound:
            self._forget(meta.name)
            return
        self._unsure.discard(meta.name)
        self._log.info("Node got its pod addresses", node=meta.name, cidr=chosen[0])
        await self._say(written, assigned(chosen))

    async def _say(self, node: Node, wanted: NetworkCondition) -> None:
        meta = node.metadata
        if wanted.status == "True":
            self._waiting[meta.name] = pool_of(node)
        else:
            self._waiting.pop(meta.name, None)
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


def _facts(node: Node) -> tuple[str, str, tuple[str, ...]]:
    return node.metadata.uid, pool_of(node), ranges_of(node)


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
