"""Bandwidth of one domain as it is now: nodes, links and tasks, from the API's objects. Pure.

KusciaAPI, `coterie bandwidth`, `coterie job show` and the metrics show the same figures. All amounts are bits per second.
A task takes the larger of what it reserved and what it uses, as the scheduler counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coterie.kube.api import quantity
from coterie.kube.api.types.nodes import Node
from coterie.kube.api.types.pods import Pod, QuantityText
from coterie.kuscia.api import labels
from coterie.kuscia.api.bandwidth import MBIT, BandwidthError, larger, parse_bits
from coterie.kuscia.api.bandwidth_capacity import link_of, requested_mbit
from coterie.kuscia.api.types.domain import DomainRoute, Gateway, TaskLinkUsage
from coterie.kuscia.api.types.task_resource import ReservationPhase, TaskResource

_HOLDS = (ReservationPhase.RESERVED, ReservationPhase.SCHEDULABLE)


@dataclass(frozen=True, slots=True)
class NodeBandwidth:
    name: str
    total: int
    allocatable: int
    """What tasks may reserve."""
    reserved: int
    used: int
    available: int


@dataclass(frozen=True, slots=True)
class LinkBandwidth:
    peer: str
    capacity: int | None
    """None: nobody said one."""
    reserved: int
    sent: int
    received: int


@dataclass(frozen=True, slots=True)
class TaskBandwidth:
    """One task on the link to one peer."""

    task: str
    peer: str
    reserved: int
    sent: int
    received: int
    sent_bytes: int
    received_bytes: int
    limit: int | None


@dataclass(frozen=True, slots=True)
class BandwidthReport:
    domain: str
    nodes: tuple[NodeBandwidth, ...] = ()
    links: tuple[LinkBandwidth, ...] = ()
    tasks: tuple[TaskBandwidth, ...] = ()


def bandwidth_report(
    domain: str,
    nodes: Iterable[Node],
    pods: Iterable[Pod],
    gateways: Iterable[Gateway],
    routes: Iterable[DomainRoute],
    reservations: Iterable[TaskResource],
) -> BandwidthReport:
    """Objects of other namespaces and nodes of other domains are passed over."""
    running = [
        pod
        for pod in pods
        if pod.metadata.namespace == domain and pod.spec.node_name and not pod.ended and not pod.metadata.deleting
    ]
    routes, reservations = list(routes), list(reservations)
    tasks, known_peers = _known(domain, running, routes, reservations)
    usage: dict[tuple[str, str], TaskLinkUsage] = {}
    link_rates: dict[str, tuple[int, int]] = {}
    for gateway in gateways:
        if gateway.metadata.namespace != domain or gateway.status is None:
            continue
        # A lite's gateway writes what it likes: rows about tasks and partners that the domain does not have become no rows here.
        for each in gateway.status.usage or ():
            if each.task not in tasks or each.peer not in known_peers:
                continue
            usage[each.task, each.peer] = _added(usage.get((each.task, each.peer)), each)
        for link in gateway.status.links or ():
            if link.peer not in known_peers:
                continue
            sent, received = link_rates.get(link.peer, (0, 0))
            link_rates[link.peer] = (sent + link.sent_bits_per_second, received + link.received_bits_per_second)
    reserved = _link_reservations(domain, reservations)
    capacities: dict[str, int] = {}
    for route in routes:
        found = link_of(route, domain)
        if found is not None:
            capacities[found[0]] = min(found[1], capacities.get(*found))
    keys = sorted(usage.keys() | reserved.keys())
    peers = sorted({peer for _, peer in keys} | capacities.keys() | link_rates.keys())
    return BandwidthReport(
        domain,
        _nodes(domain, nodes, running, usage),
        tuple(
            LinkBandwidth(
                peer,
                capacities.get(peer),
                sum(bits for (_, other), bits in reserved.items() if other == peer),
                *link_rates.get(peer, (0, 0)),
            )
            for peer in peers
        ),
        tuple(_task(task, peer, reserved.get((task, peer), 0), usage.get((task, peer))) for task, peer in keys),
    )


def _known(
    domain: str, running: Iterable[Pod], routes: Iterable[DomainRoute], reservations: Iterable[TaskResource]
) -> tuple[set[str], set[str]]:
    """Tasks and partners of the domain, as the control plane's own objects say."""
    own = [each for each in reservations if each.metadata.namespace == domain]
    tasks = {(each.metadata.annotations or {}).get(labels.KUSCIA_TASK_ID, "") for each in (*running, *own)}
    peers = {peer for each in own for peer in each.spec.peers or ()}
    for route in routes:
        if route.metadata.namespace == domain:
            peers |= {route.spec.source, route.spec.destination}
    return tasks - {""}, peers - {domain}


def _task(task: str, peer: str, reserved: int, use: TaskLinkUsage | None) -> TaskBandwidth:
    if use is None:
        return TaskBandwidth(task, peer, reserved, 0, 0, 0, 0, None)
    return TaskBandwidth(
        task,
        peer,
        reserved,
        use.sent_bits_per_second,
        use.received_bits_per_second,
        use.sent_bytes,
        use.received_bytes,
        use.limit_bits_per_second,
    )


def _added(one: TaskLinkUsage | None, other: TaskLinkUsage) -> TaskLinkUsage:
    """Of two gateways of the domain."""
    if one is None:
        return other
    return TaskLinkUsage(
        task=one.task,
        peer=one.peer,
        sent_bits_per_second=one.sent_bits_per_second + other.sent_bits_per_second,
        received_bits_per_second=one.received_bits_per_second + other.received_bits_per_second,
        sent_bytes=one.sent_bytes + other.sent_bytes,
        received_bytes=one.received_bytes + other.received_bytes,
        limit_bits_per_second=one.limit_bits_per_second or other.limit_bits_per_second,
        at=max(one.at, other.at),
    )


def _link_reservations(domain: str, reservations: Iterable[TaskResource]) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for each in reservations:
        task = (each.metadata.annotations or {}).get(labels.KUSCIA_TASK_ID, "")
        if each.metadata.namespace != domain or not task or each.status.phase not in _HOLDS:
            continue
        bits = _requested(each)
        if bits:
            for peer in each.spec.peers or ():
                found[task, peer] = found.get((task, peer), 0) + bits
    return found


def _requested(reservation: TaskResource) -> int:
    text = reservation.spec.bandwidth_request
    try:
        if text:
            return parse_bits(text)
    except BandwidthError:
        return 0
    return sum(requested_mbit(pod.resources) for pod in reservation.spec.pods or ()) * MBIT


def _nodes(
    domain: str, nodes: Iterable[Node], running: Iterable[Pod], usage: Mapping[tuple[str, str], TaskLinkUsage]
) -> tuple[NodeBandwidth, ...]:
    pods: dict[str, list[Pod]] = {}
    for pod in running:
        pods.setdefault((pod.metadata.annotations or {}).get(labels.KUSCIA_TASK_ID, ""), []).append(pod)
    reserved: dict[str, int] = {}
    used: dict[str, int] = {}
    taken: dict[str, int] = {}
    for task, own in pods.items():
        rate = _task_rate(task, usage) if task else 0
        total = sum(map(_pod_bits, own))
        for pod in own:
            name = pod.spec.node_name
            bits, share = _pod_bits(pod), rate // len(own)
            reserved[name] = reserved.get(name, 0) + bits
            used[name] = used.get(name, 0) + share
            over = (larger(total, rate) - total) // len(own)
            taken[name] = taken.get(name, 0) + bits + over
    return tuple(
        NodeBandwidth(
            node.metadata.name,
            _bits(node.status.capacity),
            _bits(node.status.allocatable),
            reserved.get(node.metadata.name, 0),
            used.get(node.metadata.name, 0),
            max(0, _bits(node.status.allocatable) - taken.get(node.metadata.name, 0)),
        )
        for node in sorted(nodes, key=lambda each: each.metadata.name)
        if (node.metadata.labels or {}).get(labels.KUSCIA_NODE_NAMESPACE) == domain
        and labels.KUSCIA_BANDWIDTH in (node.status.capacity or {})
    )


def _task_rate(task: str, usage: Mapping[tuple[str, str], TaskLinkUsage]) -> int:
    """The busier direction over all links."""
    mine = [use for (name, _), use in usage.items() if name == task]
    return max(sum(use.sent_bits_per_second for use in mine), sum(use.received_bits_per_second for use in mine))


def _pod_bits(pod: Pod) -> int:
    return sum(requested_mbit(each.resources) for each in pod.spec.containers) * MBIT


def _bits(amounts: Mapping[str, QuantityText] | None) -> int:
    text = (amounts or {}).get(labels.KUSCIA_BANDWIDTH)
    return quantity.parse(text).value() * MBIT if text is not None else 0
