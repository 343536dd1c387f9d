"""Which range of pod addresses does a node get? Pure.

the Node has                                  and                           then
no range                                      a part of the pool is free    it gets that part
no range                                      nothing is free               NetworkUnavailable, PodCIDRsExhausted
a range that no older Node of its pool has                                  it keeps it
a range that an older Node of its pool has                                  NetworkUnavailable, PodCIDRConflict
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
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


class RangePool:
    """The parts of one pool: who has them, and in which order those that were given back became free.

    Each change and each question costs the same whether the pool has five nodes or five thousand. Ranges that are not one part of
    the cluster's (wider, or from elsewhere) come from agents that bring their own; these few are kept apart.
    """

    def __init__(self, settings: Settings) -> None:
        self.full = False
        """Nothing was free, and nothing was given back since: nobody needs to look."""
        self._settings = settings
        self._ranges: dict[str, tuple[str, ...]] = {}
        self._parts: dict[tuple[int, int], set[str]] = {}
        """By range of the cluster and part: the nodes that have addresses of it."""
        self._wide: dict[str, list[tuple[int, range]]] = {}
        """Nodes that have several parts at once."""
        self._elsewhere: set[str] = set()
        """Nodes with addresses that no range of the cluster has."""
        count = len(settings.ranges)
        self._freed: list[dict[int, None]] = [{} for _ in range(count)]
        """Parts that were given back, the one that has been free for longest first."""
        self._kept = [
            frozenset(index for cidr in settings.reserved.values() for index in cluster.indexes(cidr))
            for cluster in settings.ranges
        ]
        self._highest = [max(kept, default=-1) for kept in self._kept]
        """Of all parts that were ever in use."""
        self._gap = [0] * count
        """No part below is unknown."""

    def hold(self, name: str, ranges: tuple[str, ...]) -> None:
        """The node has these now, and no others."""
        if self._ranges.get(name) == ranges:
            return
        self.release(name)
        self._ranges[name] = ranges
        for cidr in ranges:
            if not any(within(cidr, str(cluster.network)) for cluster in self._settings.ranges):
                self._elsewhere.add(name)
            for at, parts in self._parts_of(cidr):
                self._highest[at] = max(self._highest[at], parts[-1])
                if len(parts) > 1:
                    self._wide.setdefault(name, []).append((at, parts))
                else:
                    self._parts.setdefault((at, parts[0]), set()).add(name)
                    self._freed[at].pop(parts[0], None)

    def release(self, name: str) -> bool:
        """Whether it had any."""
        ranges = self._ranges.pop(name, ())
        self._elsewhere.discard(name)
        for at, parts in self._wide.pop(name, ()):
            self._gap[at] = min(self._gap[at], parts[0])
        for cidr in ranges:
            for at, parts in self._parts_of(cidr):
                holders = self._parts.get((at, parts[0]))
                if len(parts) == 1 and holders is not None:
                    holders.discard(name)
                    if not holders:
                        del self._parts[at, parts[0]]
                        self._freed[at][parts[0]] = None
        if ranges:
            self.full = False
        return bool(ranges)

    def neighbours(self, name: str) -> Iterable[str]:
        """The nodes that may have addresses of this one's: those of its parts, and those that did not get theirs here."""
        if name in self._wide or name in self._elsewhere:
            return list(self._ranges)
        near = {*self._wide, *self._elsewhere}
        for cidr in self._ranges.get(name, ()):
            for at, parts in self._parts_of(cidr):
                near |= self._parts.get((at, parts[0]), set())
        return near

    def choose(self, node: str) -> tuple[str, ...] | None:
        """The ranges for a new node; None: one of the cluster's ranges has no part left."""
        chosen = []
        for at, cluster in enumerate(self._settings.ranges):
            mine = self._settings.reserved.get(node, "")
            parts = cluster.indexes(mine) if mine else range(0)
            if parts and not any(self._taken(at, index) for index in parts):
                chosen.append(mine)
                continue
            index = self._free(at, cluster)
            if index is None:
                self.full = True
                return None
            chosen.append(cluster.part(index))
        return tuple(chosen)

    def _free(self, at: int, cluster: ClusterRange) -> int | None:
        """The part that was in use longest ago: never known ones first, those above all known ones before gaps."""
        if self._highest[at] + 1 < cluster.size:
            return self._highest[at] + 1
        freed, kept = self._freed[at], self._kept[at]
        for index in range(self._gap[at], cluster.size):
            if index not in freed and index not in kept and not self._taken(at, index):
                return index
            self._gap[at] = index + 1
        return next((index for index in freed if index not in kept and not self._taken(at, index)), None)

    def _taken(self, at: int, index: int) -> bool:
        return (at, index) in self._parts or any(
            family == at and index in parts for wide in self._wide.values() for family, parts in wide
        )

    def _parts_of(self, cidr: str) -> Iterable[tuple[int, range]]:
        for at, cluster in enumerate(self._settings.ranges):
            if parts := cluster.indexes(cidr):
                yield at, parts


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


def within(cidr: str, wider: str) -> bool:
    network = ipaddress.ip_network(cidr, strict=False)
    return overlaps(cidr, wider) and network.prefixlen >= ipaddress.ip_network(wider, strict=False).prefixlen


def choose(node: str, used: Iterable[str], settings: Settings) -> tuple[str, ...] | None:
    """For one node, where these ranges are in use."""
    pool = RangePool(settings)
    for cidr in used:
        pool.hold(cidr, (cidr,))
    return pool.choose(node)


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
