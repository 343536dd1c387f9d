"""Which ports of this machine are opened, and to which pods their connections go. Pure.

Engines are never published: their addresses are in the upper half of a node's range.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.pod_state import addresses
from coterie.kube.api.types.network import EndpointSlice, Service
from coterie.kube.api.types.pods import Pod
from coterie.kube.network.services.plan import (
    Backend,
    NodeView,
    affinity_seconds,
    backends,
    external_addresses,
    is_proxied,
)

EVERY_ADDRESS = ("", "0.0.0.0", "::")
_PROTOCOLS = ("TCP", "UDP")


@dataclass(frozen=True, slots=True, order=True)
class Listening:
    """A socket on the machine."""

    address: str
    port: int
    protocol: str

    def __str__(self) -> str:
        return f"{self.address}:{self.port}/{self.protocol}"


@dataclass(frozen=True, slots=True)
class Destination:
    """Where the connections of a socket go."""

    owner: str
    """Kind, namespace and name of the object that asks for the port."""
    backends: tuple[Backend, ...]
    """None: connections are refused."""
    affinity_seconds: int = 0


def node_addresses(address: str, chosen: Sequence[str] = ()) -> tuple[str, ...]:
    """Where node ports and host ports listen: as chosen, or on every address; a node that is on loopback itself is not
    opened to the network by a port."""
    if chosen:
        return tuple(chosen)
    return (address,) if ipaddress.ip_address(address).is_loopback else ("0.0.0.0",)


@dataclass(frozen=True, slots=True)
class MachineView:
    """What decides about ports on this machine."""

    node: NodeView
    addresses: tuple[str, ...]
    """Of node ports, and of host ports without `hostIP`."""
    has_address: Callable[[str], bool]
    """Whether an address is one of this machine; of `externalIPs` the others belong elsewhere."""
    is_engine: Callable[[str], bool] = lambda address: False
    """Whether an address is one of the range for engines."""


def service_ports(
    service: Service | None, slices: Sequence[EndpointSlice], view: MachineView
) -> dict[Listening, Destination]:
    if service is None or service.metadata.deleting or not is_proxied(service):
        return {}
    spec, out = service.spec, {}
    owner = f"Service {service.metadata.namespace}/{service.metadata.name}"
    outside = [each for each in external_addresses(service) if view.has_address(each)]
    for port in spec.ports or ():
        if port.protocol not in _PROTOCOLS:
            continue
        found = backends(port, slices, view.node)
        chosen = found.local if spec.external_traffic_policy == "Local" else found.cluster
        allowed = tuple(each for each in chosen if not view.is_engine(each.address))
        destination = Destination(owner, allowed, affinity_seconds(service))
        if port.node_port and spec.type in ("NodePort", "LoadBalancer"):
            for address in view.addresses:
                out[Listening(address, port.node_port, port.protocol)] = destination
        for address in outside:
            out[Listening(address, port.port, port.protocol)] = destination
    return out


def pod_ports(pod: Pod, view: MachineView) -> dict[Listening, Destination]:
    """Of a pod on this node with a network of its own. While it has no address its ports are opened and refuse."""
    spec = pod.spec
    if spec.host_network or pod.ended or spec.node_name != view.node.name:
        return {}
    known = [address for address in addresses(pod) if ":" not in address][:1]
    if any(view.is_engine(address) for address in known):
        return {}
    out: dict[Listening, Destination] = {}
    owner = f"Pod {pod.metadata.namespace}/{pod.metadata.name}"
    sidecars = [each for each in spec.init_containers or () if each.restart_policy == "Always"]
    for container in (*spec.containers, *sidecars):
        for port in container.ports or ():
            if not port.host_port or port.protocol not in _PROTOCOLS:
                continue
            targets = tuple(Backend(address, port.container_port) for address in known)
            where = view.addresses if port.host_ip in EVERY_ADDRESS else (port.host_ip,)
            for address in where:
                out[Listening(address, port.host_port, port.protocol)] = Destination(owner, targets)
    return out


@dataclass(frozen=True, slots=True)
class PortConflict:
    listening: Listening
    owner: str
    holder: str


class PublishedPorts:
    """What all objects together ask for. A socket belongs to the object that asked first."""

    def __init__(self) -> None:
        self._asked: dict[tuple[str, ObjectKey], dict[Listening, Destination]] = {}
        self._claims: dict[Listening, list[tuple[str, ObjectKey]]] = {}

    def update(
        self, kind: str, key: ObjectKey, wanted: dict[Listening, Destination]
    ) -> tuple[dict[Listening, Destination | None], list[PortConflict]]:
        """Sockets with another destination than before (None: to be closed), and sockets that another object has."""
        owner = (kind, key)
        before = self._asked.get(owner, {})
        if before == wanted:
            return {}, []
        changed: dict[Listening, Destination | None] = {}
        conflicts = []
        for listening in before.keys() - wanted.keys():
            self._claims[listening].remove(owner)
            changed[listening] = None
        if wanted:
            self._asked[owner] = wanted
        else:
            self._asked.pop(owner, None)
        for listening, destination in wanted.items():
            claims = self._claims.setdefault(listening, [])
            if owner not in claims:
                claims.append(owner)
                if claims[0] != owner:
                    holder = self._asked[claims[0]][listening].owner
                    conflicts.append(PortConflict(listening, destination.owner, holder))
            changed[listening] = destination
        for listening in list(changed):
            claims = self._claims.get(listening) or []
            if not claims:
                self._claims.pop(listening, None)
                changed[listening] = None
            else:
                changed[listening] = self._asked[claims[0]].get(listening)
        return changed, conflicts


def engine_addresses(cluster: str, node_mask_size: int) -> Callable[[str], bool]:
    """Whether an address is in the upper half of the range of a node."""
    network = ipaddress.IPv4Network(cluster)
    half = 1 << (31 - node_mask_size)

    def is_engine(text: str) -> bool:
        address = ipaddress.IPv4Address(text)
        return address in network and bool(int(address) & half)

    return is_engine
