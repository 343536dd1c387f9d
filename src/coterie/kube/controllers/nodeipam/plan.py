"""Which range of pod addresses does a node get? Pure.

the Node has                                  and                           then
no range                                      a part of the pool is free    it gets that part
no range                                      nothing is free               NetworkUnavailable, PodCIDRsExhausted
a range that no older Node of its pool has                                  it keeps it
a range that an older Node of its pool has                                  NetworkUnavailable, PodCIDRConflict
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from coterie.kube.api.labels import COTERIE_POD_NAMESPACE
from coterie.kube.api.types.nodes import Node

IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

NETWORK_UNAVAILABLE = "NetworkUnavailable"
ASSIGNED, EXHAUSTED, CONFLICT = "PodCIDRAssigned", "PodCIDRsExhausted", "PodCIDRConflict"
_OURS = frozenset((ASSIGNED, EXHAUSTED, CONFLICT))


@dataclass(frozen=True, slots=True)
class ClusterRange:
    """The pod addresses of one address family, and the length of the prefix of a node's part."""

    network: IPNetwork
    node_prefix: int

    @classmethod
    def of(cls, cidr: str, node_prefix: int) -> ClusterRange:
        return cls(ipaddress.ip_network(cidr), node_prefix)

    @property
    def size(self) -> int:
        """How many nodes have room."""
        return 1 << (self.node_prefix - self.network.prefixlen)

    def part(self, index: int) -> str:
        shift = self.network.max_prefixlen - self.node_prefix
        return f"{self.network.network_address + (index << shift)}/{self.node_prefix}"

    def indexes(self, cidr: str) -> range:
        """The parts that have an address in common with a range."""
        other = ipaddress.ip_network(cidr, strict=False)
        if other.version != self.network.version or not overlaps(str(self.network), cidr):
            return range(0)
        shift = self.network.max_prefixlen - self.node_prefix
        base = int(self.network.network_address)
        first = max(0, (int(other.network_address) - base) >> shift)
        last = min(self.size - 1, (int(other.broadcast_address) - base) >> shift)
        return range(first, last + 1)


@dataclass(frozen=True, slots=True)
class Settings:
    ranges: tuple[ClusterRange, ...]
    """One for each address family; a node gets a part of each."""
    reserved: Mapping[str, str] = field(default_factory=dict)
    """Ranges by the name of the only node that gets them."""


@dataclass(slots=True)
class RangePool:
    """What is remembered of one pool while the controller runs."""

    released: dict[str, int] = field(default_factory=dict)
    """When ranges of deleted Nodes became free, as a growing number."""


def pool_of(node: Node) -> str:
    return (node.metadata.labels or {}).get(COTERIE_POD_NAMESPACE, "")


def ranges_of(node: Node) -> tuple[str, ...]:
    return node.spec.pod_cidrs or ((node.spec.pod_cidr,) if node.spec.pod_cidr else ())


def overlaps(one: str, other: str) -> bool:
    first, second = ipaddress.ip_network(one, strict=False), ipaddress.ip_network(other, strict=False)
    if first.version != second.version:
        return False
    shift = first.max_prefixlen - min(first.prefixlen, second.prefixlen)
    return int(first.network_address) >> shift == int(second.network_address) >> shift


def choose(node: str, used: Collection[str], pool: RangePool, settings: Settings) -> tuple[str, ...] | None:
    """The ranges for a new node; None: one of the cluster's ranges has no part left. `used`: of the other nodes."""
    chosen = []
    for cluster in settings.ranges:
        mine = [cidr for name, cidr in settings.reserved.items() if name == node and cluster.indexes(cidr)]
        if mine and not any(overlaps(mine[0], each) for each in used):
            chosen.append(mine[0])
            continue
        taken = {index for cidr in used for index in cluster.indexes(cidr)}
        kept = {index for name, cidr in settings.reserved.items() if name != node for index in cluster.indexes(cidr)}
        index = _free(cluster, taken | kept, pool.released)
        if index is None:
            return None
        chosen.append(cluster.part(index))
    return tuple(chosen)


def _free(cluster: ClusterRange, taken: Collection[int], released: Mapping[str, int]) -> int | None:
    """The part that was in use longest ago: never known ones first, those above all known ones before gaps."""
    freed: dict[int, int] = {}
    for cidr, when in released.items():
        for index in cluster.indexes(cidr):
            freed[index] = max(when, freed.get(index, 0))
    highest = max((*taken, *freed), default=-1)
    if highest + 1 < cluster.size:
        return highest + 1
    # There are at most as many known parts as nodes, so a gap is found soon.
    gap = next((index for index in range(cluster.size) if index not in taken and index not in freed), None)
    if gap is not None:
        return gap
    return min((index for index in freed if index not in taken), key=lambda index: freed[index], default=None)


def conflicting(node: Node, others: Iterable[Node]) -> Node | None:
    """An older node of the same pool that has addresses of this one's."""
    mine, pool = ranges_of(node), pool_of(node)
    for other in others:
        if other.metadata.uid == node.metadata.uid or pool_of(other) != pool or _age(other) > _age(node):
            continue
        if any(overlaps(one, each) for one in mine for each in ranges_of(other)):
            return other
    return None


def _age(node: Node) -> tuple[str, str]:
    """Sorts older nodes first."""
    return node.metadata.creation_timestamp or "", node.metadata.uid


@dataclass(frozen=True, slots=True)
class NetworkCondition:
    status: str
    reason: str
    message: str


def condition_change(node: Node, wanted: NetworkCondition) -> bool:
    """Whether the condition has to be written. One that all is well is written only to replace a problem of ours."""
    for found in node.status.conditions or ():
        if found.type == NETWORK_UNAVAILABLE:
            same = (found.status, found.reason, found.message) == (wanted.status, wanted.reason, wanted.message)
            return not same and (wanted.status == "True" or found.reason in _OURS)
    return wanted.status == "True"


def exhausted(settings: Settings) -> NetworkCondition:
    what = " and ".join(f"{each.size} ranges /{each.node_prefix} of {each.network}" for each in settings.ranges)
    return NetworkCondition(
        "True",
        EXHAUSTED,
        f"all {what} are in use; delete the Nodes of machines that are gone, "
        "or start the control plane with a wider network.podCIDR or a longer network.nodeMaskSize",
    )


def conflict(node: Node, other: Node) -> NetworkCondition:
    name, theirs = node.metadata.name, other.metadata.name
    return NetworkCondition(
        "True",
        CONFLICT,
        f"the pod addresses {', '.join(ranges_of(node))} are in use by node {theirs}; "
        f"delete node {name} and make a new join file for it (coterie node add {name})",
    )


def assigned(ranges: Sequence[str]) -> NetworkCondition:
    return NetworkCondition("False", ASSIGNED, f"the node has the pod addresses {', '.join(ranges)}")
