"""Engines on other machines of the domain: the gateway runs at the control plane's node, or at the first machine of a lite, and
learns of them from the API.

    node that joined                                        the gateway's node
    RemoteGateway.register ── status.podIP ──> Pod ──> RemoteEngines ── callers.set, loaded ──> Envoy
       waits for the condition <── GatewayReady, the address ──┘

An engine's first container starts when the condition names the pod's address. So an address that had another pod is never called
from before the gateway has forgotten that pod. An address counts only if it is one of the engine addresses of the pod's node.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Iterable
from typing import NamedTuple

from coterie.base.clock import Clock, rfc3339
from coterie.base.log import logger
from coterie.kube.agent.pods import pod_model
from coterie.kube.agent.runtimes.runp.network_access import engine_range, ordinary_range
from coterie.kube.api.errors import Conflict, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.types.core import CONFIG_MAPS
from coterie.kube.api.types.nodes import NODES, Node
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.client.client import Client
from coterie.kube.client.informer import Informer, ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import Controller, Watches
from coterie.kuscia.api import labels
from coterie.kuscia.engine import peers
from coterie.kuscia.engine.engine_plugin import EngineCallers
from coterie.kuscia.engine.remote_groups import AppliedRemotePods

log = logger("engine.remote")

EVERYTHING = frozenset({"*"})
"""What ordinary pods may call: all that the gateway leads to."""
_CONDITION = labels.COTERIE_GATEWAY_READY
_LOAD_SECONDS = 10.0
_REGISTER_SECONDS = 20.0


def engine_address(pod: Pod, node: Node | None) -> str:
    """Where the engine calls from; empty: nowhere yet, or not any more, or not from where its node's engines do. Pure."""
    address = pod.status.pod_ip
    if node is None or not node.spec.pod_cidr or not address or pod.ended or pod.spec.host_network:
        return ""
    try:
        inside = ipaddress.ip_address(address) in ipaddress.ip_network(engine_range(node.spec.pod_cidr))
    except ValueError:
        return ""
    return address if inside else ""


def registered_address(conditions: Iterable[Object]) -> str:
    """The address by which the gateway knows a pod, as its conditions say."""
    found = [each for each in conditions if each.get("type") == _CONDITION and each.get("status") == "True"]
    return str(found[0].get("message") or "") if found else ""


class _Key(NamedTuple):
    kind: str
    name: str


class RemoteEngines:
    """At the gateway: registers the pods of the domain's other nodes. `controller` is a Runnable."""

    def __init__(
        self,
        client: Client,
        informers: Informers,
        callers: EngineCallers,
        domain: str,
        node: str,
        clock: Clock,
        *,
        own_only: bool = False,
        network: AppliedRemotePods | None = None,
    ) -> None:
        """`node`: the own one, whose agent registers its pods itself. `own_only`: this gateway sees Nodes and pods of its domain
        only, as that of a lite. `network`: the rules of the own pod network, which let an engine in as what it is."""
        self._client = client
        self._callers = callers
        self._domain = domain
        self._node = node
        self._clock = clock
        self._network = network
        self._pods: Informer[Pod] = informers.get(PODS, domain if own_only else "")
        selector = f"{labels.KUSCIA_NODE_NAMESPACE}={domain}" if own_only else ""
        self._nodes: Informer[Node] = informers.get(NODES, labels=selector)
        self._known: dict[str, tuple[str, str]] = {}
        """By pod: its uid and the address by which it is registered."""
        self._holders: dict[str, str] = {}
        """By address: the pod that has it."""
        self._warned: set[str] = set()
        self._ranges: dict[str, str] = {}
        """By node: where its ordinary pods are."""
        watches = (Watches(self._pods, self._pod_keys), Watches(self._nodes, self._node_keys))
        self.controller: Controller[_Key] = Controller("remote-engines", self.reconcile, watches, clock=clock)

    def _pod_keys(self, pod: Pod) -> list[_Key]:
        ours = pod.metadata.namespace == self._domain
        return [_Key("pod", pod.metadata.name)] if ours and pod.spec.node_name not in ("", self._node) else []

    def _node_keys(self, node: Node) -> list[_Key]:
        name = node.metadata.name
        if name == self._node:
            return []
        pods = [each for each in self._pods.cache.list(self._domain) if each.spec.node_name == name]
        return [_Key("node", name), *(_Key("pod", each.metadata.name) for each in pods)]

    async def reconcile(self, key: _Key) -> None:
        if key.kind == "node":
            self._reconcile_node(key.name)
        else:
            await self._reconcile_pod(key.name)

    def _reconcile_node(self, name: str) -> None:
        node = self._nodes.cache.get(name)
        wanted = ordinary_range(node.spec.pod_cidr) if node is not None and self._is_ours(node) else ""
        before = self._ranges.pop(name, "")
        if before and before != wanted and before not in self._ranges.values():
            self._callers.remove(before)
        if wanted:
            self._ranges[name] = wanted
            self._callers.set(wanted, EVERYTHING)

    def _is_ours(self, node: Node) -> bool:
        owner = (node.metadata.labels or {}).get(labels.KUSCIA_NODE_NAMESPACE)
        return owner == self._domain and bool(node.spec.pod_cidr)

    async def _reconcile_pod(self, name: str) -> None:
        pod = self._pods.cache.get(name, self._domain)
        address = engine_address(pod, self._nodes.cache.get(pod.spec.node_name)) if pod is not None else ""
        known = self._known.get(name)
        if known is not None and (pod is None or known != (pod.metadata.uid, address)):
            self._forget(name)
        if pod is None or not address:
            if pod is not None:
                self._warn(pod)
            else:
                self._warned.discard(name)
            return
        if name not in self._known and not await self._register(pod, address):
            return
        await self._callers.loaded(address, _LOAD_SECONDS)
        await self._let_in(pod, address)
        await self._confirm(pod, address)

    async def _let_in(self, pod: Pod, address: str) -> None:
        """Until the gateway's node takes the address for that of an engine of this task. Without it, the engine's first calls to
        ConfManager would be refused."""
        if self._network is None:
            return
        try:
            async with asyncio.timeout(_LOAD_SECONDS):
                await self._network.wait(pod.key, address)
        except TimeoutError:
            log.warning("The pod network does not know an engine of another node yet", pod=pod.metadata.name)

    def _warn(self, pod: Pod) -> None:
        """Of an engine that waits in vain: its node would only say that it was not registered."""
        meta, address = pod.metadata, pod.status.pod_ip
        marks = {"namespace": meta.namespace, "labels": meta.labels, "annotations": meta.annotations}
        waits = address and not pod.ended and not pod.spec.host_network
        if not waits or meta.name in self._warned or not peers.is_task_pod({"metadata": marks}, self._domain):
            return
        self._warned.add(meta.name)
        node = self._nodes.cache.get(pod.spec.node_name)
        log.warning(
            "An engine cannot use the gateway: its address is none that its node has for engines",
            pod=meta.name,
            address=address,
            node=pod.spec.node_name,
            cidr=node.spec.pod_cidr if node is not None else "",
        )

    async def _register(self, pod: Pod, address: str) -> bool:
        """False: no engine, or gone."""
        try:
            full = await self._client.get(PODS.as_dynamic, pod.metadata.name, self._domain)
        except NotFound:
            return False
        if pod_model.uid_of(full) != pod.metadata.uid or not peers.is_task_pod(full, self._domain):
            return False
        hosts = peers.callable_hosts(full, await self._values(peers.values_map_name(full)), self._domain)
        self._known[pod.metadata.name] = (pod.metadata.uid, address)
        self._holders[address] = pod.metadata.name
        self._callers.set(address, hosts, peers.task_of(full))
        return True

    async def _values(self, name: str) -> Object | None:
        if not name:
            return None
        try:
            found: Object = await self._client.get(CONFIG_MAPS.as_dynamic, name, self._domain)
        except NotFound:
            return None
        return found

    def _forget(self, name: str) -> None:
        _, address = self._known.pop(name)
        # Another pod of that node may have the address by now.
        if self._holders.get(address) == name:
            del self._holders[address]
            self._callers.remove(address)

    async def _confirm(self, pod: Pod, address: str) -> None:
        conditions = [
            {"type": each.type, "status": each.status, "message": each.message} for each in pod.status.conditions or ()
        ]
        if registered_address(conditions) == address:
            return
        condition = {
            "type": _CONDITION,
            "status": "True",
            "reason": "Registered",
            "message": address,
            "lastTransitionTime": rfc3339(self._clock.now()),
        }
        patch = {"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [condition]}}
        try:
            await self._client.patch(
                PODS.as_dynamic, pod.metadata.name, self._domain, patch, type="strategic", subresource="status"
            )
        except (NotFound, Conflict):
            return  # gone, or another pod has its name


class RemoteGateway:
    """At a node that joined: the gateway of its domain, which is on another machine."""

    def __init__(self, client: Client, informers: Informers, node: str, namespace: str = "") -> None:
        """`namespace`: the only one that this node may read."""
        self._client = client
        # The agent's own: see `PodManager`.
        self._pods: Informer[Object] = informers.get(PODS.as_dynamic, namespace, fields=f"spec.nodeName={node}")

    async def register(self, pod: Object, address: str) -> None:
        """Until the gateway knows the pod by this address. Raises OSError (TimeoutError among them), ApiError or
        TransportError."""
        if self._is_registered(pod, address):
            return
        changed = asyncio.Event()
        remove = self._pods.add_handler(_wakes(pod, changed))
        try:
            await self._announce(pod, address)
            async with asyncio.timeout(_REGISTER_SECONDS):
                while not self._is_registered(pod, address):
                    changed.clear()
                    await changed.wait()
        except TimeoutError as problem:
            text = f"the gateway at the control plane's node did not register the pod within {_REGISTER_SECONDS:.0f} s"
            raise TimeoutError(text) from problem
        finally:
            remove()

    async def _announce(self, pod: Object, address: str) -> None:
        key = pod_model.key_of(pod)
        patch = {
            "metadata": {"uid": pod_model.uid_of(pod)},
            "status": {"podIP": address, "podIPs": [{"ip": address}]},
        }
        await self._client.patch(
            PODS.as_dynamic, key.name, key.namespace, patch, type="strategic", subresource="status"
        )

    def _is_registered(self, pod: Object, address: str) -> bool:
        known = self._pods.cache.by_key(pod_model.key_of(pod))
        if known is None or pod_model.uid_of(known) != pod_model.uid_of(pod):
            return False
        return registered_address(pod_model.status_in(known).get("conditions") or ()) == address


def _wakes(pod: Object, event: asyncio.Event) -> Callable[[ObjectChange[Object]], None]:
    uid = pod_model.uid_of(pod)

    def handle(change: ObjectChange[Object]) -> None:
        if pod_model.uid_of(change.object) == uid:
            event.set()

    return handle
