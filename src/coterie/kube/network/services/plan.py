"""Which addresses and ports of a Service lead to which endpoints. Pure.

A port of a Service has one chain for endpoints of all nodes, and one for those of this node where
`internalTrafficPolicy: Local` asks for it. Endpoints are chosen as kube-proxy does: those that are ready; where there is none,
those that are terminating but still serve. A port without endpoints has no chain: connections to it are refused.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from coterie.kube.api.labels import SERVICE_NAME
from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.service_endpoints import is_headless
from coterie.kube.api.types.network import Endpoint, EndpointSlice, Service, ServicePort

T = TypeVar("T")

PROTOCOLS = {"TCP": 6, "UDP": 17}
OTHER_PROXY_LABEL = "service.kubernetes.io/service-proxy-name"
_AFFINITY_SECONDS = 10800

Key = tuple[str, int, int]
"""Address, number of the protocol, port."""


@dataclass(frozen=True, slots=True, order=True)
class Backend:
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class PortChain:
    """What the chain of one port does."""

    protocol: int
    keys: tuple[Key, ...]
    """What leads here."""
    backends: tuple[Backend, ...]
    affinity_seconds: int = 0
    """0, or how long a client stays with its endpoint."""


@dataclass(frozen=True, slots=True)
class PortBackends:
    """The endpoints behind one port of a Service."""

    cluster: tuple[Backend, ...] = ()
    local: tuple[Backend, ...] = ()
    """Those on this node."""


def service_of_slice(found: EndpointSlice) -> ObjectKey | None:
    name = (found.metadata.labels or {}).get(SERVICE_NAME)
    return ObjectKey(found.metadata.namespace, name) if name else None


def is_proxied(service: Service) -> bool:
    spec = service.spec
    if spec.type == "ExternalName" or is_headless(service) or not _is_ipv4(spec.cluster_ip):
        return False
    return OTHER_PROXY_LABEL not in (service.metadata.labels or {})


def affinity_seconds(service: Service) -> int:
    if service.spec.session_affinity != "ClientIP":
        return 0
    config = service.spec.session_affinity_config
    chosen = config.client_ip.timeout_seconds if config is not None and config.client_ip is not None else None
    return chosen or _AFFINITY_SECONDS


def external_addresses(service: Service) -> tuple[str, ...]:
    """`externalIPs` and the addresses of a load balancer."""
    balanced = service.status.load_balancer.ingress or ()
    found = [*(service.spec.external_ips or ()), *(each.ip for each in balanced if each.ip_mode != "Proxy")]
    return tuple(dict.fromkeys(each for each in found if _is_ipv4(each)))


@dataclass(frozen=True, slots=True)
class NodeView:
    """From which node Services are seen."""

    name: str
    unreachable: frozenset[str] = frozenset()
    """Nodes of other domains: their pods have addresses in a network of their own, which may be the same as ours."""


def backends(port: ServicePort, slices: Iterable[EndpointSlice], view: NodeView) -> PortBackends:
    ready: set[Backend] = set()
    leaving: set[Backend] = set()
    here: set[Backend] = set()
    for found in slices:
        if found.address_type != "IPv4":
            continue
        number = next((p.port for p in found.ports or () if p.name == port.name and p.protocol == port.protocol), None)
        if number is None:
            continue
        for endpoint in found.endpoints or ():
            chosen = ready if _is_ready(endpoint) else leaving if _still_serves(endpoint) else None
            if chosen is None or not endpoint.addresses or not _is_ipv4(endpoint.addresses[0]):
                continue
            if endpoint.node_name in view.unreachable:
                continue
            backend = Backend(endpoint.addresses[0], number)
            chosen.add(backend)
            if endpoint.node_name == view.name:
                here.add(backend)
    return PortBackends(_chosen(ready, leaving), _chosen(ready & here, leaving & here))


def _chosen(ready: set[Backend], leaving: set[Backend]) -> tuple[Backend, ...]:
    return tuple(sorted(ready or leaving))


def _is_ready(endpoint: Endpoint) -> bool:
    return endpoint.conditions.ready is not False


def _still_serves(endpoint: Endpoint) -> bool:
    return bool(endpoint.conditions.serving) and bool(endpoint.conditions.terminating)


def plan(service: Service | None, slices: Sequence[EndpointSlice], view: NodeView) -> dict[str, PortChain]:
    """The chains of a Service by name."""
    if service is None or service.metadata.deleting or not is_proxied(service):
        return {}
    out: dict[str, PortChain] = {}
    seconds = affinity_seconds(service)
    spec = service.spec
    for port in spec.ports or ():
        protocol = PROTOCOLS.get(port.protocol)
        if protocol is None:
            continue
        found = backends(port, slices, view)
        name = f"service-{service.metadata.namespace}/{service.metadata.name}/{port.protocol.lower()}/{port.port}"
        # Whoever is here and calls an external address is a pod of the domain: all endpoints are as good for it.
        everywhere = [(address, protocol, port.port) for address in external_addresses(service)]
        inside = (spec.cluster_ip, protocol, port.port)
        if spec.internal_traffic_policy == "Local":
            _add(out, f"{name}/local", protocol, [inside], found.local, seconds)
        else:
            everywhere.insert(0, inside)
        _add(out, name, protocol, everywhere, found.cluster, seconds)
    return out


def _add(
    out: dict[str, PortChain], name: str, protocol: int, keys: list[Key], found: tuple[Backend, ...], seconds: int
) -> None:
    if keys and found:
        out[name] = PortChain(protocol, tuple(dict.fromkeys(keys)), found, seconds)


def _is_ipv4(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


# --- the table as a whole -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TableChange:
    """The difference between two states of the table: what one transaction does."""

    added: Mapping[str, PortChain]
    changed: Mapping[str, tuple[PortChain, PortChain]]
    """Chains with other endpoints or another affinity: (before, after)."""
    removed: Mapping[str, PortChain]
    keys_removed: tuple[Key, ...] = ()
    keys_added: tuple[tuple[Key, str], ...] = ()
    """Keys and the chains that they lead to now."""
    hairpins_added: tuple[str, ...] = ()
    """Addresses of endpoints: their own connections by way of a Service may come back to them."""
    hairpins_removed: tuple[str, ...] = ()
    gone_udp: tuple[Backend, ...] = ()
    """Endpoints that no UDP port leads to any more: the kernel still sends datagrams of known clients to them."""

    @property
    def empty(self) -> bool:
        return not (self.added or self.changed or self.removed or self.keys_removed or self.keys_added)


class ServiceTable:
    """All chains of the table. Where two Services have the same address and port, the one that came first keeps it."""

    def __init__(self) -> None:
        self._services: dict[ObjectKey, dict[str, PortChain]] = {}
        self._claims: dict[Key, list[str]] = {}
        """Chains that have the key; the first one gets the connections."""
        self._users: dict[str, int] = {}
        """By address: in how many chains it is an endpoint."""
        self._udp: dict[Backend, int] = {}

    def __len__(self) -> int:
        return len(self._services)

    def chains(self) -> dict[str, PortChain]:
        return {name: chain for chains in self._services.values() for name, chain in chains.items()}

    def everything(self) -> TableChange:
        """From an empty table to this state."""
        keys = tuple((key, names[0]) for key, names in self._claims.items())
        return TableChange(self.chains(), {}, {}, keys_added=keys, hairpins_added=tuple(self._users))

    def update(self, wanted: Mapping[ObjectKey, dict[str, PortChain]]) -> TableChange:
        """Set the chains of some Services; those that are given none are forgotten."""
        added: dict[str, PortChain] = {}
        changed: dict[str, tuple[PortChain, PortChain]] = {}
        removed: dict[str, PortChain] = {}
        for service, chains in wanted.items():
            before = self._services.get(service, {})
            removed |= {name: chain for name, chain in before.items() if name not in chains}
            for name, chain in chains.items():
                old = before.get(name)
                if old is None:
                    added[name] = chain
                elif old != chain:
                    changed[name] = (old, chain)
            if chains:
                self._services[service] = dict(chains)
            else:
                self._services.pop(service, None)
        transitions: list[tuple[str, PortChain | None, PortChain | None]] = [
            *((name, chain, None) for name, chain in removed.items()),
            *((name, old, new) for name, (old, new) in changed.items()),
            *((name, None, chain) for name, chain in added.items()),
        ]
        keys_removed, keys_added = self._move_claims(transitions)
        hairpins_added, hairpins_removed, gone_udp = self._count_backends(transitions)
        # Only what the rules of a chain depend on makes it be written again.
        rewritten = {
            name: (old, new)
            for name, (old, new) in changed.items()
            if (old.backends, old.affinity_seconds) != (new.backends, new.affinity_seconds)
        }
        return TableChange(
            added, rewritten, removed, keys_removed, keys_added, hairpins_added, hairpins_removed, gone_udp
        )

    def _move_claims(
        self, transitions: Iterable[tuple[str, PortChain | None, PortChain | None]]
    ) -> tuple[tuple[Key, ...], tuple[tuple[Key, str], ...]]:
        first: dict[Key, str | None] = {}
        for name, old, new in transitions:
            had = set(old.keys) if old is not None else set()
            has = set(new.keys) if new is not None else set()
            for key in had ^ has:
                names = self._claims.setdefault(key, [])
                first.setdefault(key, names[0] if names else None)
                if key in has:
                    names.append(name)
                else:
                    names.remove(name)
        removed, added = [], []
        for key, before in first.items():
            names = self._claims[key]
            after = names[0] if names else None
            if not names:
                del self._claims[key]
            if before != after:
                if before is not None:
                    removed.append(key)
                if after is not None:
                    added.append((key, after))
        return tuple(removed), tuple(added)

    def _count_backends(
        self, transitions: Iterable[tuple[str, PortChain | None, PortChain | None]]
    ) -> tuple[tuple[str, ...], tuple[str, ...], tuple[Backend, ...]]:
        addresses: dict[str, int] = {}
        udp: dict[Backend, int] = {}
        for _, old, new in transitions:
            for chain, step in ((old, -1), (new, 1)):
                if chain is None:
                    continue
                for backend in chain.backends:
                    addresses[backend.address] = addresses.get(backend.address, 0) + step
                    if chain.protocol == PROTOCOLS["UDP"]:
                        udp[backend] = udp.get(backend, 0) + step
        came, went = _counted(self._users, addresses)
        _, gone = _counted(self._udp, udp)
        return came, went, gone


def _counted(counts: dict[T, int], steps: Mapping[T, int]) -> tuple[tuple[T, ...], tuple[T, ...]]:
    """Apply the steps; what was not there before, and what is not there any more."""
    came, went = [], []
    for item, step in steps.items():
        before = counts.get(item, 0)
        after = before + step
        if after:
            counts[item] = after
        else:
            counts.pop(item, None)
        if not before and after:
            came.append(item)
        elif before and not after:
            went.append(item)
    return tuple(came), tuple(went)
