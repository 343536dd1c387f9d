"""Whether a request for bandwidth could ever be met by the nodes and links of a domain. Pure.

What cannot be met now waits; what could never be met is refused at once: by KusciaAPI, `coterie job run`, the controllers of
jobs and tasks. A domain without nodes, or a link without a stated capacity, refuses nothing: they may come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from coterie.kube.api import quantity
from coterie.kube.api.types.nodes import Node
from coterie.kube.api.types.pods import QuantityText, ResourceRequirements
from coterie.kuscia.api import labels
from coterie.kuscia.api.appimages import choose_template, replicas_of
from coterie.kuscia.api.bandwidth import MBIT, BandwidthError, bits_text, parse_bits
from coterie.kuscia.api.jobs.validation import Problem
from coterie.kuscia.api.types.domain import DomainRoute
from coterie.kuscia.api.types.job import AppImage, JobParty, KusciaJobSpec, TaskTemplate


@dataclass(frozen=True, slots=True)
class DomainBandwidth:
    """What a domain of ours has."""

    nodes: Mapping[str, int] = field(default_factory=dict)
    """By node: bits per second that tasks may reserve."""
    links: Mapping[str, int] = field(default_factory=dict)
    """By peer."""


def domain_bandwidth(domain: str, nodes: Iterable[Node], routes: Iterable[DomainRoute]) -> DomainBandwidth:
    """`nodes`: of all domains; those that name the resource count. `routes`: the DomainRoutes of the domain's namespace."""
    offered = {
        node.metadata.name: quantity.parse(amount).value() * MBIT
        for node in nodes
        if (node.metadata.labels or {}).get(labels.KUSCIA_NODE_NAMESPACE) == domain
        and (amount := (node.status.allocatable or {}).get(labels.KUSCIA_BANDWIDTH)) is not None
    }
    links: dict[str, int] = {}
    for route in routes:
        found = link_of(route, domain)
        if found is not None:
            peer, bits = found
            links[peer] = min(bits, links.get(peer, bits))
    return DomainBandwidth(offered, links)


def link_of(route: DomainRoute, domain: str) -> tuple[str, int] | None:
    """The peer and the capacity that a route of the domain states."""
    text = (route.metadata.annotations or {}).get(labels.COTERIE_LINK_BANDWIDTH, "")
    ends = {route.spec.source, route.spec.destination}
    if not text or domain not in ends or len(ends) != 2 or route.metadata.namespace != domain:
        return None
    try:
        return (ends - {domain}).pop(), parse_bits(text)
    except BandwidthError:
        return None


def never_met(domain: str, has: DomainBandwidth, pod_bits: int, link_bits: int, peers: Iterable[str]) -> str:
    """Why a request could never be met; empty when it could. `pod_bits`: of one pod, which is on one node."""
    if has.nodes and pod_bits > max(has.nodes.values()):
        name = max(has.nodes, key=lambda each: has.nodes[each])
        return (
            f"{bits_text(pod_bits)} of bandwidth are requested on one node, and no node of {domain} has more than "
            f"{bits_text(has.nodes[name])} ({name})"
        )
    for peer in sorted(set(peers)):
        if peer in has.links and link_bits > has.links[peer]:
            return (
                f"{bits_text(link_bits)} of bandwidth are requested on the link {domain}-{peer}, which has "
                f"{bits_text(has.links[peer])}"
            )
    return ""


def unmet_requests(
    spec: KusciaJobSpec, ours: Mapping[str, DomainBandwidth], images: Mapping[str, AppImage]
) -> Iterator[Problem]:
    """`ours`: the domains that are hosted here. What cannot be read is somebody else's problem."""
    for index, task in enumerate(spec.tasks):
        for place, party in enumerate(task.parties):
            has = ours.get(party.domain_id)
            if has is None:
                continue
            total, request = _party_bits(party, task, spec)
            pods = _pods(images.get(task.app_image), party.role)
            peers = {each.domain_id for each in task.parties} - {party.domain_id}
            why = never_met(party.domain_id, has, -(-total // pods), request or total, peers)
            if why:
                field_name = "bandwidthRequest" if request else f"parties[{place}].resources"
                yield Problem(f"tasks[{index}].{field_name}", why)


def _party_bits(party: JobParty, task: TaskTemplate, spec: KusciaJobSpec) -> tuple[int, int]:
    """What the party's pods request together, and what the task requests for each party; 0: nothing."""
    text = task.bandwidth_request or spec.bandwidth_request
    try:
        request = parse_bits(text) if text else 0
        own = requested_mbit(party.resources) * MBIT
    except (BandwidthError, quantity.QuantityError):
        return 0, 0
    return own or request, request


def requested_mbit(resources: ResourceRequirements | None) -> int:
    kinds: tuple[Mapping[str, QuantityText] | None, ...] = (
        (resources.requests, resources.limits) if resources is not None else ()
    )
    return max(
        (
            quantity.parse(kind[labels.KUSCIA_BANDWIDTH]).value()
            for kind in kinds
            if kind and labels.KUSCIA_BANDWIDTH in kind
        ),
        default=0,
    )


def _pods(image: AppImage | None, role: str) -> int:
    chosen = choose_template(image.spec.deploy_templates, role) if image is not None else None
    return max(1, replicas_of(chosen)) if chosen is not None else 1
