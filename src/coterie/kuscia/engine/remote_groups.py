"""Engines on other machines of the domain, as the pod network of this node has to know them: those of one task reach each other
across machines, and guests are told from the domain's own."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Mapping, Sequence

from coterie.base.backoff import Backoff, Policy
from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.kube.agent.pods import pod_model
from coterie.kube.agent.runtimes.protocol import PodKind, PodNetworkClass, RemotePod, RuntimeFailure
from coterie.kube.agent.runtimes.runp.network_access import engine_range
from coterie.kube.api.meta import Object, ObjectKey
from coterie.kube.api.types.nodes import NODES, Node
from coterie.kube.api.types.pods import PODS
from coterie.kube.client.informer import Informer, ObjectChange
from coterie.kube.client.informers import Informers

_log = logger("engine.remote")
_RETRY = Policy(first=0.2, factor=2.0, limit=10.0)
_ENDED = ("Succeeded", "Failed")

Classify = Callable[[Object], PodNetworkClass | None]


def remote_pod(pod: Object, classify: Classify, node_range: str) -> RemotePod | None:
    """`node_range`: of the pod's node. None: no engine, or one whose address is none of the engine addresses of its node. Pure."""
    status = pod.get("status") or {}
    address = str(status.get("podIP") or "")
    if not address or not node_range or status.get("phase") in _ENDED or (pod.get("spec") or {}).get("hostNetwork"):
        return None
    kind = classify(pod)
    if kind is None or kind.kind == PodKind.ORDINARY:
        return None
    try:
        inside = ipaddress.ip_address(address) in ipaddress.ip_network(engine_range(node_range))
    except ValueError:
        return None
    return RemotePod(address, kind.kind, kind.group) if inside else None


class AppliedRemotePods:
    """Which engines of other machines the pod network of this node knows. Until it does, they count as a partner's, and are
    refused where those are."""

    def __init__(self) -> None:
        self._addresses: Mapping[ObjectKey, str] = {}
        self._changed = asyncio.Event()

    def set(self, addresses: Mapping[ObjectKey, str]) -> None:
        self._addresses = addresses
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, pod: ObjectKey, address: str) -> None:
        while self._addresses.get(pod) != address:
            await self._changed.wait()


class RemoteGroups:
    """A Runnable."""

    name = "remote-groups"

    def __init__(
        self,
        informers: Informers,
        classify: Classify,
        apply: Callable[[Sequence[RemotePod]], Awaitable[None]],
        clock: Clock,
        *,
        domain: str,
        node: str,
        selector: str,
        applied: AppliedRemotePods | None = None,
    ) -> None:
        """`node`: this one, whose pods are known here; `selector`: of the domain's Nodes; `apply`: given all of them; `applied`:
        who waits for that."""
        self.ready = asyncio.Event()
        self._informers = informers
        self._domain = domain
        self._pods: Informer[Object] | None = None
        """Asked for when there is another node: most domains have one."""
        self._nodes = informers.get(NODES, labels=selector)
        self._classify = classify
        self._apply = apply
        self._clock = clock
        self._node = node
        self._applied = applied
        self._found: dict[ObjectKey, RemotePod] = {}
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    async def run(self) -> None:
        await self._nodes.ready.wait()
        removes = [self._nodes.add_handler(self._node_changed)]
        backoff = Backoff(_RETRY)
        try:
            while not self._stop.is_set():
                self._wake.clear()
                if self._pods is None and self._has_others():
                    self._pods = self._informers.get(PODS.as_dynamic, self._domain)
                    await self._pods.ready.wait()
                    removes.append(self._pods.add_handler(self._pod_changed))
                found = dict(self._found)
                try:
                    await self._apply(sorted(found.values(), key=lambda each: each.address))
                except RuntimeFailure as problem:
                    _log.error("Engines of other nodes are not known to the pod network; trying again", error=problem)
                    await self._clock.sleep(backoff.failed())
                    continue
                backoff.succeeded()
                if self._applied is not None:
                    self._applied.set({key: each.address for key, each in found.items()})
                self.ready.set()
                await self._wake.wait()
        finally:
            for remove in removes:
                remove()

    def _has_others(self) -> bool:
        return any(node.metadata.name != self._node for node in self._nodes.cache.list())

    def _pod_changed(self, change: ObjectChange[Object]) -> None:
        self._note(change.object, gone=change.type == "deleted")

    def _note(self, pod: Object, *, gone: bool = False) -> None:
        key, where = pod_model.key_of(pod), str((pod.get("spec") or {}).get("nodeName") or "")
        node = self._nodes.cache.get(where) if where and where != self._node and not gone else None
        found = remote_pod(pod, self._classify, node.spec.pod_cidr) if node is not None else None
        if found == self._found.get(key):
            return
        if found is None:
            del self._found[key]
        else:
            self._found[key] = found
        self._wake.set()

    def _node_changed(self, change: ObjectChange[Node]) -> None:
        if change.old is not None and change.old.spec.pod_cidr == change.object.spec.pod_cidr:
            return
        if self._pods is None:
            self._wake.set()
            return
        for pod in self._pods.cache.list():
            if (pod.get("spec") or {}).get("nodeName") == change.object.metadata.name:
                self._note(pod)
