"""The service of bandwidth: what nodes, links and tasks have and use, capacities, and limits of running tasks.

Who may: the operator everything; a domain that calls through the gateway may ask about itself, set what its own nodes and
links have, and change the limits of its own parties. Nobody changes limits of a partner's party: they hold at its gateway.
"""

from __future__ import annotations

from typing import Any

from coterie.base.log import logger
from coterie.kube.api.errors import Conflict, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.types.nodes import NODES
from coterie.kube.api.types.pods import PODS
from coterie.kube.client.client import retry_on_conflict
from coterie.kuscia.api import labels
from coterie.kuscia.api.bandwidth import MBIT, bandwidth_problem, limited_party, parse_bits
from coterie.kuscia.api.bandwidth_capacity import DomainBandwidth, domain_bandwidth, unmet_requests
from coterie.kuscia.api.bandwidth_report import BandwidthReport, bandwidth_report
from coterie.kuscia.api.domain_ownership import is_own
from coterie.kuscia.api.jobs.phases import TASK_ENDED
from coterie.kuscia.api.types.domain import CLUSTER_DOMAIN_ROUTES, DOMAIN_ROUTES, DOMAINS, GATEWAYS
from coterie.kuscia.api.types.job import APP_IMAGES, CROSS_DOMAIN, KUSCIA_JOBS, KUSCIA_TASKS
from coterie.kuscia.api.types.task_resource import TASK_RESOURCES
from coterie.kuscia.kusciaapi import job_messages
from coterie.kuscia.kusciaapi.authorization import ApiCaller
from coterie.kuscia.kusciaapi.codes import ApiErrorCode, CallRefused, invalid
from coterie.kuscia.kusciaapi.job_messages import named
from coterie.kuscia.kusciaapi.operations import ApiOperation, OnLite, OperationContext

log = logger("kusciaapi.bandwidth")
_MOST_KIB = 1 << 40


async def query(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    domain = named("domain_id", request.domain_id)
    caller.must_be_one_of(domain, to=f"query the bandwidth of {domain}")
    await _own_domain(here, domain, ApiErrorCode.QUERY_BANDWIDTH)
    report = bandwidth_report(
        domain,
        (await here.client.list(NODES)).items,
        (await here.client.list(PODS, domain)).items,
        (await here.client.list(GATEWAYS, domain)).items,
        (await here.client.list(DOMAIN_ROUTES, domain)).items,
        (await here.client.list(TASK_RESOURCES, domain)).items,
    )
    return {"data": _shown(report)}


async def set_capacity(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    domain = named("domain_id", request.domain_id)
    caller.must_be_one_of(domain, to=f"set the bandwidth of {domain}")
    if bool(request.node_name) == bool(request.peer_id):
        raise invalid("node_name", "give either a node_name or a peer_id")
    if request.capacity and (problem := bandwidth_problem(request.capacity)):
        raise invalid("capacity", problem)
    await _own_domain(here, domain, ApiErrorCode.SET_BANDWIDTH)
    text = request.capacity or None
    if request.node_name:
        if text is not None and parse_bits(text) < MBIT:
            raise invalid("capacity", "a node has at least 1 Mbit/s")
        await _set_node(here, domain, request.node_name, text)
    else:
        await _set_link(here, domain, named("peer_id", request.peer_id), text)
    return {}


async def _set_node(here: OperationContext, domain: str, name: str, text: str | None) -> None:
    missing = CallRefused(ApiErrorCode.SET_BANDWIDTH, f"{domain} has no node {name}")
    try:
        node = await here.client.get(NODES, name)
    except NotFound as problem:
        raise missing from problem
    if (node.metadata.labels or {}).get(labels.KUSCIA_NODE_NAMESPACE) != domain:
        raise missing
    patch = {"metadata": {"uid": node.metadata.uid, "annotations": {labels.COTERIE_NODE_BANDWIDTH: text}}}
    await here.client.patch(NODES, name, "", patch)


async def _set_link(here: OperationContext, domain: str, peer: str, text: str | None) -> None:
    """On every route between the two; the copies in the domains' namespaces follow."""
    ends = {(domain, peer), (peer, domain)}
    found = [
        route
        for route in (await here.client.list(CLUSTER_DOMAIN_ROUTES)).items
        if (route.spec.source, route.spec.destination) in ends
    ]
    if not found:
        raise CallRefused(ApiErrorCode.SET_BANDWIDTH, f"there is no route between {domain} and {peer}")
    for route in found:
        patch = {"metadata": {"annotations": {labels.COTERIE_LINK_BANDWIDTH: text}}}
        await here.client.patch(CLUSTER_DOMAIN_ROUTES, route.metadata.name, "", patch)


async def set_limit(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    name = named("job_id", request.job_id)
    domain = named("domain_id", request.domain_id)
    destination = named("destination_id", request.destination_id)
    if request.limit_kbps > _MOST_KIB:
        raise invalid("limit_kbps", f"must be at most {_MOST_KIB}; 0 takes the limit away")
    caller.must_be_one_of(domain, to=f"limit what {domain} sends")
    failure = ApiErrorCode.SET_BANDWIDTH
    await _own_domain(here, domain, failure)
    try:
        job = await here.client.get(KUSCIA_JOBS, name, CROSS_DOMAIN)
    except NotFound as problem:
        raise CallRefused(failure, f"there is no job {name}") from problem
    caller.must_be_one_of(*job_messages.domains_of(job), to=f"limit job {name}: it takes no part in it")
    selector = f"{labels.KUSCIA_JOB_UID}={job.metadata.uid}"
    tasks = (await here.client.list(KUSCIA_TASKS, CROSS_DOMAIN, labels=selector)).items
    wanted = set(request.tasks)
    chosen = [
        task
        for task in tasks
        if task.status.phase not in TASK_ENDED
        and (not wanted or (task.metadata.annotations or {}).get(labels.KUSCIA_TASK_ALIAS, "") in wanted)
        and {domain, destination} <= {party.domain_id for party in task.spec.parties}
    ]
    if not chosen:
        raise CallRefused(failure, f"job {name} has no such task that runs between {domain} and {destination}")
    for task in chosen:
        await _limit_task(here, task.metadata.name, domain, destination, request.limit_kbps)
    log.info(
        "Bandwidth limit",
        job=name,
        party=domain,
        to=destination,
        kib=request.limit_kbps,
        by=caller.domain or "operator",
    )
    return {"data": {"task_ids": sorted(task.metadata.name for task in chosen)}}


async def _limit_task(here: OperationContext, name: str, domain: str, destination: str, kib: int) -> None:
    async def attempt() -> None:
        task = await here.client.get(KUSCIA_TASKS.as_dynamic, name, CROSS_DOMAIN)
        meta = task["metadata"]
        patch = {
            "metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]},
            "spec": {"parties": [limited_party(party, domain, destination, kib) for party in task["spec"]["parties"]]},
        }
        await here.client.patch(KUSCIA_TASKS.as_dynamic, name, CROSS_DOMAIN, patch)

    try:
        await retry_on_conflict(attempt)
    except (Conflict, NotFound) as problem:
        raise CallRefused(ApiErrorCode.SET_BANDWIDTH, f"task {name} changed meanwhile; try again") from problem


async def _own_domain(here: OperationContext, name: str, failure: ApiErrorCode) -> None:
    try:
        found = await here.client.get(DOMAINS, name)
    except NotFound as problem:
        raise CallRefused(failure, f"there is no domain {name}") from problem
    if not is_own(found):
        raise CallRefused(failure, f"{name} is a partner; ask at its own control plane")


async def refuse_unmet(here: OperationContext, job: Object) -> None:
    """Before a job is made: a request for bandwidth that no node or link of ours could ever meet."""
    plain = job["spec"]
    if not plain.get("bandwidthRequest") and not any(_asks(task) for task in plain["tasks"]):
        return
    spec = job_messages.spec_of(job)
    ours: dict[str, DomainBandwidth] = {}
    nodes = (await here.client.list(NODES)).items
    for name in spec.party_domains:
        try:
            domain = await here.client.get(DOMAINS, name)
        except NotFound:
            continue
        if is_own(domain):
            ours[name] = domain_bandwidth(name, nodes, (await here.client.list(DOMAIN_ROUTES, name)).items)
    images = {each.metadata.name: each for each in (await here.client.list(APP_IMAGES)).items} if ours else {}
    for problem in unmet_requests(spec, ours, images):
        raise invalid(job_messages.request_field(problem.field), problem.text)


# Pure.


def _asks(task: Object) -> bool:
    return bool(task.get("bandwidthRequest")) or any(
        labels.KUSCIA_BANDWIDTH in (party.get("resources") or {}).get("requests", {}) for party in task["parties"]
    )


def _shown(report: BandwidthReport) -> Object:
    return {
        "domain_id": report.domain,
        "nodes": [
            {
                "name": each.name,
                "total_bits": each.total,
                "allocatable_bits": each.allocatable,
                "reserved_bits": each.reserved,
                "used_bits": each.used,
                "available_bits": each.available,
            }
            for each in report.nodes
        ],
        "links": [
            {
                "peer_id": each.peer,
                "capacity_bits": each.capacity or 0,
                "reserved_bits": each.reserved,
                "sent_bits": each.sent,
                "received_bits": each.received,
            }
            for each in report.links
        ],
        "tasks": [
            {
                "task_id": each.task,
                "peer_id": each.peer,
                "reserved_bits": each.reserved,
                "sent_bits": each.sent,
                "received_bits": each.received,
                "sent_bytes": each.sent_bytes,
                "received_bytes": each.received_bytes,
                "limit_bits": each.limit or 0,
            }
            for each in report.tasks
        ],
    }


def _operation(method: str, path: str, failure: ApiErrorCode, work: Any) -> ApiOperation:
    where = f"/api/v1/bandwidth/{path}"
    return ApiOperation("BandwidthService", method, where, failure, work, for_domains=True, on_lite=OnLite.FORWARD)


OPERATIONS = (
    _operation("QueryBandwidth", "query", ApiErrorCode.QUERY_BANDWIDTH, query),
    _operation("SetBandwidthCapacity", "capacity/set", ApiErrorCode.SET_BANDWIDTH, set_capacity),
    _operation("SetBandwidthLimit", "limit/set", ApiErrorCode.SET_BANDWIDTH, set_limit),
)
