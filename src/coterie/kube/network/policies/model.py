"""A NetworkPolicy in the form in which it is evaluated: selectors compiled, ports and address blocks as numbers."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.kube.api.selectors import EVERYTHING, LabelSelector, selector_of
from coterie.kube.api.types.network_policies import NetworkPolicy
from coterie.kube.api.types.pods import Pod

INGRESS, EGRESS = "ingress", "egress"
PROTOCOLS = {"TCP": 6, "UDP": 17, "SCTP": 132}
_LAST_PORT = 65535


@dataclass(frozen=True, slots=True)
class PolicyPorts:
    protocol: int
    first: int = 0
    last: int = _LAST_PORT

    def __contains__(self, port: tuple[int, int]) -> bool:
        return port[0] == self.protocol and self.first <= port[1] <= self.last


@dataclass(frozen=True, slots=True)
class NamedPort:
    protocol: int
    name: str


@dataclass(frozen=True, slots=True)
class PolicyPod:
    """A pod, or a service of the node that policies select as if it were one."""

    namespace: str
    labels: Mapping[str, str]
    address: str
    local: bool = False
    """Whether it runs on this node, so that policies that select it are enforced here."""
    ports: tuple[tuple[str, int, int], ...] = ()
    """(name, protocol, number) of its containers' named ports."""
    only: tuple[tuple[int, int], ...] = ()
    """(protocol, number): a service of the node is nothing but these ports of its address."""

    def numbers(self, named: NamedPort) -> list[int]:
        return [number for name, protocol, number in self.ports if (protocol, name) == (named.protocol, named.name)]


@dataclass(frozen=True, slots=True)
class AddressBlock:
    network: ipaddress.IPv4Network
    exceptions: tuple[ipaddress.IPv4Network, ...] = ()

    def __contains__(self, address: str) -> bool:
        found = ipaddress.IPv4Address(address)
        return found in self.network and not any(found in each for each in self.exceptions)


@dataclass(frozen=True, slots=True)
class PodPeer:
    pods: LabelSelector
    namespaces: LabelSelector | None = None
    """None: the policy's own namespace."""

    def matches(self, pod: PolicyPod, own: str, labels_of_namespace: Mapping[str, str] | None) -> bool:
        if self.namespaces is None:
            there = pod.namespace == own
        else:
            there = labels_of_namespace is not None and self.namespaces.matches(labels_of_namespace)
        return there and self.pods.matches(pod.labels)


@dataclass(frozen=True, slots=True)
class CompiledPolicyRule:
    anyone: bool
    """No peers are named: all are meant."""
    peers: tuple[PodPeer, ...]
    blocks: tuple[AddressBlock, ...]
    any_port: bool
    ports: tuple[PolicyPorts, ...]
    named: tuple[NamedPort, ...]

    def selects(self, pod: PolicyPod, own: str, labels_of_namespace: Mapping[str, str] | None) -> bool:
        return any(peer.matches(pod, own, labels_of_namespace) for peer in self.peers)


@dataclass(frozen=True, slots=True)
class CompiledPolicy:
    key: str
    namespace: str
    pods: LabelSelector
    rules: Mapping[str, tuple[CompiledPolicyRule, ...]] = field(default_factory=dict)
    """By direction; a direction that is absent is not restricted."""

    def selects(self, pod: PolicyPod) -> bool:
        return pod.local and pod.namespace == self.namespace and self.pods.matches(pod.labels)


def compile_policy(policy: NetworkPolicy) -> CompiledPolicy:
    spec = policy.spec
    # The API server writes the default; an object that is older than it has none.
    types = spec.policy_types or (("Ingress", "Egress") if spec.egress else ("Ingress",))
    rules: dict[str, tuple[CompiledPolicyRule, ...]] = {}
    if "Ingress" in types:
        rules[INGRESS] = tuple(_rule(rule, "from") for rule in spec.ingress or ())
    if "Egress" in types:
        rules[EGRESS] = tuple(_rule(rule, "to") for rule in spec.egress or ())
    meta = policy.metadata
    return CompiledPolicy(f"{meta.namespace}/{meta.name}", meta.namespace, _selector(spec.pod_selector), rules)


def _selector(obj: Mapping[str, Any] | None) -> LabelSelector:
    return EVERYTHING if obj is None else selector_of(obj)


def _rule(rule: Mapping[str, Any], peers_field: str) -> CompiledPolicyRule:
    peers, ports = rule.get(peers_field) or (), rule.get("ports") or ()
    ranges = [_range(port) for port in ports if not isinstance(port.get("port"), str)]
    named = [
        NamedPort(PROTOCOLS[port.get("protocol") or "TCP"], port["port"])
        for port in ports
        if isinstance(port.get("port"), str)
    ]
    return CompiledPolicyRule(
        anyone=not peers,
        peers=tuple(
            PodPeer(
                _selector(peer.get("podSelector")),
                selector_of(peer["namespaceSelector"]) if peer.get("namespaceSelector") is not None else None,
            )
            for peer in peers
            if peer.get("ipBlock") is None
        ),
        blocks=tuple(_blocks(peer["ipBlock"] for peer in peers if peer.get("ipBlock") is not None)),
        any_port=not ports,
        ports=tuple(ranges),
        named=tuple(named),
    )


def _range(port: Mapping[str, Any]) -> PolicyPorts:
    protocol, first = PROTOCOLS[port.get("protocol") or "TCP"], port.get("port")
    if first is None:
        return PolicyPorts(protocol)
    return PolicyPorts(protocol, first, port.get("endPort") or first)


def _blocks(blocks: Iterable[Mapping[str, Any]]) -> Iterable[AddressBlock]:
    """Those of IPv4: pods have no other addresses."""
    for block in blocks:
        network = ipaddress.ip_network(block["cidr"], strict=False)
        if isinstance(network, ipaddress.IPv4Network):
            inner = (ipaddress.ip_network(each, strict=False) for each in block.get("except") or ())
            yield AddressBlock(network, tuple(each for each in inner if isinstance(each, ipaddress.IPv4Network)))


def policy_pod(pod: Pod, address: str, *, local: bool) -> PolicyPod:
    ports = {
        (port.name, PROTOCOLS[port.protocol or "TCP"], port.container_port)
        for container in (*pod.spec.containers, *(pod.spec.init_containers or ()))
        for port in container.ports or ()
        if port.name
    }
    meta = pod.metadata
    return PolicyPod(meta.namespace, meta.labels or {}, address, local, tuple(sorted(ports)))
