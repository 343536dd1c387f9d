"""What would become of a job at one domain of ours, and what another may know of that. Pure.

    PlanObjects (as they are now) + job + how much the asker may know ──plan_of_party──> PartyPlan

What the asker may not know is left out *before* anything is decided, not cut out of the result: at `summary` a table without a grant to
the asker, and an engine that its policy does not name, are treated as if they did not exist. So the answer about them is the same
whether they exist or not. Names of nodes are for the domain itself only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from coterie.kube.api.meta import Object
from coterie.kube.api.names import dns_subdomain_faults
from coterie.kube.api.quantity import QuantityError
from coterie.kube.api.types.nodes import Node
from coterie.kube.api.types.pods import Pod
from coterie.kube.scheduler import plan as scheduling
from coterie.kube.scheduler.facts import node_facts, pod_facts
from coterie.kube.scheduler.plan import Unschedulable
from coterie.kube.scheduler.snapshot import Snapshot
from coterie.kuscia.api import grants, labels
from coterie.kuscia.api.appimages import party_containers, with_bandwidth
from coterie.kuscia.api.bandwidth import MBIT, BandwidthError, bits_text, parse_bits
from coterie.kuscia.api.bandwidth_capacity import DomainBandwidth, domain_bandwidth, never_met, requested_mbit
from coterie.kuscia.api.engine_template import (
    EngineTemplateError,
    container_of,
    engine_of,
    is_templated,
    node_affinity,
    pod_spec,
)
from coterie.kuscia.api.engine_versions import (
    EngineVersion,
    as_offers,
    engine_named,
    missing_sentence,
    node_digests,
    version_of,
    versions_named,
)
from coterie.kuscia.api.grants import DataUse
from coterie.kuscia.api.job_plans import MOST_ROWS
from coterie.kuscia.api.job_statements import OfferedEngine
from coterie.kuscia.api.jobs.references import use_names_of
from coterie.kuscia.api.partner_policy import (
    ALLOWED,
    AdmissionDecision,
    Usage,
    Verdict,
    admit,
    over_quota,
    quota_of,
)
from coterie.kuscia.api.partner_requests import job_request, versions_allowed
from coterie.kuscia.api.types.data import DomainData, DomainDataGrant
from coterie.kuscia.api.types.domain import ClusterDomainRoute, DomainRoute
from coterie.kuscia.api.types.job import AppImage, JobParty, KusciaJobSpec, TaskTemplate
from coterie.kuscia.api.types.job_plan import (
    JobOutlook,
    PartyPlan,
    PlanDetail,
    PlannedApproval,
    PlannedEngine,
    PlannedLink,
    PlannedPlacement,
    PlannedTable,
)
from coterie.kuscia.api.types.partner_policy import PartnerPolicySpec

OWN = "own"
"""What the domain itself is told."""
NO_GRANT = "there is no grant for it"
HIDDEN_TABLES = "a table that the input names and that is not listed here cannot be used"
UNTOLD_TABLES = "whether it would run is not told: its input has texts that may name tables, and a summary says nothing about other tables"
HIDDEN_ENGINES = "engine and placement are only told of engines that the policy names"
_NO_ROOM = "no node is suitable"
_SHORT = re.compile(r"Insufficient ([A-Za-z0-9./_-]{1,64})")
_MOST_PODS = 256
"""Of one party of one task; more are not tried."""


@dataclass(frozen=True, slots=True)
class PlanObjects:
    """Of this control plane, as they are now. `datas`, `grants`, `links`: of the domain's namespace."""

    images: Mapping[str, AppImage] = field(default_factory=dict)
    """By name; while a plan is made, also by what tasks write."""
    pinned: Mapping[str, str] = field(default_factory=dict)
    """By engine, versions outside of which the domain uses nothing."""
    nodes: Sequence[Node] = ()
    pods: Sequence[Pod] = ()
    datas: Sequence[DomainData] = ()
    grants: Sequence[DomainDataGrant] = ()
    routes: Sequence[ClusterDomainRoute] = ()
    links: Sequence[DomainRoute] = ()
    policy: PartnerPolicySpec | None = None
    """For the job's initiator."""
    from_partner: bool = False
    requires_approval: bool | None = None
    used: Usage = field(default_factory=Usage)
    """What the initiator's workloads have here at this moment."""


def plan_of_party(objects: PlanObjects, job: KusciaJobSpec, domain: str, detail: str, now: datetime) -> PartyPlan:
    """`detail`: OWN, or what the policy lets the asker know."""
    known = objects if detail == OWN else replace(objects, grants=_grants_to(objects, job.initiator, domain))
    if detail == PlanDetail.SUMMARY:
        known = visible(objects, job.initiator, domain)
    tasks = [task for task in job.tasks if any(party.domain_id == domain for party in task.parties)]
    versions = {task.app_image: _versions(known, task) for task in tasks}
    known = replace(known, images={**known.images, **_resolved(known, versions)})
    hidden = [task.app_image for task in tasks if detail == PlanDetail.SUMMARY and _is_hidden(known, task, versions)]
    has = domain_bandwidth(domain, objects.nodes, objects.links)
    decision = _decision(known, job, domain, now)
    tables = [row for task in tasks for row in _tables(known, job, task, domain, now, guessed=detail != OWN)]
    digests = node_digests(domain, objects.nodes)
    engines = [
        _engine(known, job, task, domain, detail, as_offers(versions[task.app_image], digests))
        if task.app_image not in hidden
        else PlannedEngine(task=task.alias, app_image=task.app_image)
        for task in tasks
    ]
    snapshot = _snapshot(objects)
    tried = [row for task in tasks for row in _placed(known, job, task, domain, detail, snapshot, has)]
    links = [_link(known, job, tasks, domain, peer, detail, has) for peer in _peers(tasks, domain)]
    waiting = _over_quota(objects, job, domain, known)
    notes = [waiting] if waiting else []
    if detail == PlanDetail.SUMMARY:
        notes += [HIDDEN_TABLES] if any(task.task_input_config.strip() not in ("", "{}") for task in tasks) else []
        notes += [HIDDEN_ENGINES] if hidden else []
    untold = detail == PlanDetail.SUMMARY and any(_may_name_others(known, job, task) for task in tasks)
    if not tasks:
        notes.append(f"{domain} takes part in no task")
    failing = (
        decision.verdict is Verdict.REFUSE
        or any(row.problem for row in tables)
        or any(row.problem for row in engines)
        or any(never for _, never in tried)
        or any(never for _, never in links)
    )
    waits = (
        decision.verdict is Verdict.ASK
        or bool(waiting)
        or any(not row.fits for row, _ in tried)
        or any(not row.ready for row, _ in links)
    )
    outlook = JobOutlook.FAILS if failing else JobOutlook.WAITS if waits else JobOutlook.RUNS
    if untold and outlook is JobOutlook.RUNS:
        outlook = JobOutlook.UNKNOWN
        notes.append(UNTOLD_TABLES)
    return PartyPlan(
        domain=domain,
        outlook=str(outlook),
        detail=str(detail),
        approval=_approval(objects, decision, detail, is_initiator=domain == job.initiator),
        tables=tuple(tables[:MOST_ROWS]) or None,
        engines=tuple(engines[:MOST_ROWS]) or None,
        placements=tuple(row for row, _ in tried[:MOST_ROWS]) or None,
        links=tuple(row for row, _ in links[:MOST_ROWS]) or None,
        notes=tuple(notes) or None,
    )


# What the asker may know.


def visible(objects: PlanObjects, initiator: str, owner: str) -> PlanObjects:
    """As if nothing else existed: grants to the asker with their tables, results of its own jobs, engines that its policy names."""
    given = _grants_to(objects, initiator, owner)
    named = {each.spec.domain_data_id for each in given}
    datas = [
        each
        for each in objects.datas
        if each.metadata.name in named
        or grants.mark(each.metadata.annotations, labels.COTERIE_MADE_FOR) == initiator
        or initiator == owner
    ]
    images = dict(objects.images)
    if objects.from_partner and (objects.policy is not None or objects.requires_approval is not False):
        images = {
            name: image
            for name, image in images.items()
            if _names(objects.policy, name) or _names(objects.policy, version_of(image).engine)
        }
    return replace(objects, datas=datas, grants=given, images=images)


def _grants_to(objects: PlanObjects, initiator: str, owner: str) -> list[DomainDataGrant]:
    """Grants to others are nobody else's business, whatever the policy says."""
    return [
        each
        for each in objects.grants
        if each.spec.author == owner and initiator in (each.spec.grant_domain, each.limit.initiator)
    ]


def _names(policy: PartnerPolicySpec | None, name: str) -> bool:
    """Whether the policy speaks of this AppImage or engine at all."""
    entries = (policy.app_images if policy is not None else None) or ()
    return any(fnmatchcase(name, re.split("[:@]", each, maxsplit=1)[0]) for each in entries)


def _is_hidden(known: PlanObjects, task: TaskTemplate, versions: Mapping[str, Sequence[EngineVersion]]) -> bool:
    """Whether the asker may not know if there is such an engine."""
    if not known.from_partner or versions[task.app_image]:
        return False
    if known.policy is None:
        return known.requires_approval is not False
    return not _names(known.policy, engine_named(task.app_image))


def _versions(known: PlanObjects, task: TaskTemplate) -> tuple[EngineVersion, ...]:
    found = versions_named(task.app_image, known.images.values(), known.pinned)
    return versions_allowed(known.policy if known.from_partner else None, found)


def _resolved(known: PlanObjects, versions: Mapping[str, Sequence[EngineVersion]]) -> dict[str, AppImage]:
    """By what tasks write, the newest that may be used."""
    return {text: found[0].image for text, found in versions.items() if found}


# Approval.


def _decision(known: PlanObjects, job: KusciaJobSpec, domain: str, now: datetime) -> AdmissionDecision:
    if not known.from_partner:
        return ALLOWED
    tables = {domain: {each.metadata.name for each in known.datas if each.spec.author == domain}}
    return admit(known.requires_approval, known.policy, job_request(job, {domain}, known.images, tables), now)


def _approval(objects: PlanObjects, decision: AdmissionDecision, detail: str, *, is_initiator: bool) -> PlannedApproval:
    if not objects.from_partner:
        return PlannedApproval(by="initiator" if is_initiator else "control plane")
    rules = tuple(dict.fromkeys(each.rule for each in decision.reasons))
    if decision.verdict is Verdict.ASK:
        by = "person"
    else:
        by = "policy" if objects.policy is not None else "setting"
    return PlannedApproval(
        verdict=str(decision.verdict),
        by=by,
        rules=rules or None,
        message=decision.sentence if detail != PlanDetail.SUMMARY else "",
    )


def _over_quota(objects: PlanObjects, job: KusciaJobSpec, domain: str, known: PlanObjects) -> str:
    """Whether a task would have to wait for others of the same partner; what could never be is a rule of the policy."""
    if not objects.from_partner:
        return ""
    for work in job_request(job, {domain}, known.images, {}).workloads:
        quota = quota_of(objects.policy)
        if over_quota(quota, Usage(), work.usage, job.initiator):
            continue
        if sentence := over_quota(quota, objects.used, work.usage, job.initiator):
            return f"{work.name} would wait: {sentence}"
    return ""


# Tables.


def _tables(
    known: PlanObjects, job: KusciaJobSpec, task: TaskTemplate, owner: str, now: datetime, *, guessed: bool
) -> Iterator[PlannedTable]:
    """`guessed`: also names that stand where engines of ours read tables of this domain, whether there are such or not."""
    own = {each.metadata.name: each for each in known.datas if each.spec.author == owner}
    columns = _asked_columns(task.task_input_config, owner)
    for name in grants.data_named(task.task_input_config, own.keys()):
        yield _table(known, job, task, own[name], owner, columns, now)
    for name in _named_tables(task.task_input_config, owner):
        if name not in own:
            problem = NO_GRANT if guessed or job.initiator != owner else f"{owner} has no such table"
            yield PlannedTable(task=task.alias, table=name, problem=problem)


def _table(
    known: PlanObjects,
    job: KusciaJobSpec,
    task: TaskTemplate,
    data: DomainData,
    owner: str,
    columns: tuple[str, ...] | None,
    now: datetime,
) -> PlannedTable:
    name, every = data.metadata.name, tuple(each.name for each in data.spec.columns or ())
    free = job.initiator == owner or (grants.mark(data.metadata.annotations, labels.COTERIE_MADE_FOR) == job.initiator)
    if free:
        wrong = [each for each in columns or () if every and each not in every]
        problem = f"{name} has no column {', '.join(wrong)}" if wrong else ""
        return PlannedTable(task=task.alias, table=name, columns=columns, all_columns=columns is None, problem=problem)
    use = DataUse(
        data=name,
        initiator=job.initiator,
        parties=frozenset(party.domain_id for party in task.parties),
        components=use_names_of(known.images.get(task.app_image), task.task_input_config),
        flow=job.flow_id,
        input_config=task.task_input_config,
        columns=columns,
    )
    decision = grants.decide(known.grants, use, owner, now)
    if decision.grant is None:
        nothing = all(each.limit in ("grant", "grantDomain", "initiator") for each in decision.refusals)
        return PlannedTable(task=task.alias, table=name, problem=NO_GRANT if nothing else decision.sentence)
    limit, given = decision.grant.limit, grants.granted_columns(decision.grant)
    left = max(0, limit.use_count - len(decision.grant.uses)) if limit.use_count > 0 else None
    earlier = _uses_before(known, job, task, name, owner) if left is not None else 0
    problem = ""
    if left is not None and earlier + 1 > left:
        problem = f'grant "{decision.grant.metadata.name}" would be used up by tasks of this job'
    wrong = [each for each in columns or () if every and each not in every]
    if wrong:
        problem = f"{name} has no column {', '.join(wrong)}"
    shown = columns if columns is not None else (tuple(sorted(given)) if given is not None else None)
    return PlannedTable(
        task=task.alias,
        table=name,
        columns=shown,
        all_columns=shown is None,
        grant=decision.grant.metadata.name,
        uses=1,
        uses_left=left,
        problem=problem,
    )


def _uses_before(known: PlanObjects, job: KusciaJobSpec, task: TaskTemplate, name: str, owner: str) -> int:
    """Tasks of the job before this one that read the table, too."""
    count = 0
    for each in job.tasks:
        if each.alias == task.alias:
            break
        if any(party.domain_id == owner for party in each.parties):
            count += name in grants.data_named(each.task_input_config, (name,))
    return count


def _input(text: str) -> Mapping[str, Any]:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _named_tables(text: str, owner: str) -> tuple[str, ...]:
    """Where engines of this project read tables: `{"inputs": {"<domain>": "<table>"}}`."""
    inputs = _input(text).get("inputs")
    found = inputs.get(owner) if isinstance(inputs, dict) else None
    every = found if isinstance(found, list) else [found]
    return tuple(dict.fromkeys(each[:253] for each in every if isinstance(each, str) and each))


def _may_name_others(known: PlanObjects, job: KusciaJobSpec, task: TaskTemplate) -> bool:
    """Whether the input has texts that may name tables of this domain in a way that `_named_tables` does not know. The same whether it has such
    tables or not. An input with `inputs` by party is for an engine of this project, which reads tables nowhere else."""
    image = known.images.get(task.app_image)
    if image is not None and grants.mark(image.metadata.annotations, labels.COTERIE_TABLES_IN) == "inputs":
        return False
    inputs = _input(task.task_input_config).get("inputs")
    if isinstance(inputs, dict) and inputs and inputs.keys() <= {party.domain_id for party in task.parties}:
        return False
    explained = {each.metadata.name for each in known.datas}
    for each in job.tasks:
        explained |= {each.alias, engine_named(each.app_image)}
        explained |= {word for party in each.parties for word in (party.domain_id, party.role)}
    texts = grants.texts_of(task.task_input_config)
    return any(text not in explained and not dns_subdomain_faults(text) for text in texts)


def _asked_columns(text: str, owner: str) -> tuple[str, ...] | None:
    """`{"keys": {"<domain>": ["<column>"]}}`; None: the input does not say."""
    keys = _input(text).get("keys")
    found = keys.get(owner) if isinstance(keys, dict) else None
    if isinstance(found, list) and found and all(isinstance(each, str) for each in found):
        return tuple(each[:253] for each in found)
    return None


# Engine.


def _engine(
    known: PlanObjects,
    job: KusciaJobSpec,
    task: TaskTemplate,
    domain: str,
    detail: str,
    offers: Sequence[OfferedEngine],
) -> PlannedEngine:
    row = PlannedEngine(task=task.alias, app_image=task.app_image)
    image = known.images.get(task.app_image)
    if image is None or not offers:
        problem = f"{domain}: {missing_sentence(task.app_image, known.images.values())}"
        return msgspec.structs.replace(row, problem=problem)
    problem = ""
    try:
        _workloads(job, task, domain, known.images)
    except (EngineTemplateError, QuantityError, msgspec.ValidationError) as found:
        problem = str(found)
    if detail == PlanDetail.SUMMARY:
        offers = [msgspec.structs.replace(each, digest="") for each in offers]
    return msgspec.structs.replace(
        row,
        version=offers[0].version or image.spec.image.tag,
        digest=offers[0].digest,
        offers=tuple(offers),
        problem=problem,
    )


# Placement.


@dataclass(frozen=True, slots=True)
class _Workload:
    """The pods of one party of a task, which are all alike."""

    role: str
    replicas: int
    containers: tuple[Object, ...]
    pod: Pod


def _workloads(job: KusciaJobSpec, task: TaskTemplate, domain: str, images: Mapping[str, AppImage]) -> list[_Workload]:
    """EngineTemplateError, QuantityError or msgspec.ValidationError where they cannot be made."""
    return [_workload(job, task, each, images) for each in task.parties if each.domain_id == domain]


def _workload(job: KusciaJobSpec, task: TaskTemplate, party: JobParty, images: Mapping[str, AppImage]) -> _Workload:
    given = party_containers(party, images.get(task.app_image))
    engine = engine_of(images, task.app_image, party.role, {"containers": given} if given else None, None)
    try:
        containers = with_bandwidth(engine.containers, task.bandwidth_request or job.bandwidth_request, engine.replicas)
    except BandwidthError as problem:
        raise EngineTemplateError(f"bandwidthRequest: {problem}") from problem
    numbers = {port.name: 1 for port in engine.ports}
    made = [container_of(each, engine.image, numbers, (), templated=False) for each in containers]
    spec = pod_spec(party.domain_id, "Never", made, "")
    if is_templated(engine.config_templates, containers):
        affinity = node_affinity(engine.config_templates, containers)
        if affinity is not None:
            spec["affinity"] = {"nodeAffinity": affinity}
    body = {"metadata": {"name": f"plan-{task.alias}", "namespace": party.domain_id}, "spec": spec}
    return _Workload(party.role, engine.replicas, containers, msgspec.convert(body, Pod, strict=False))


def _snapshot(objects: PlanObjects) -> Snapshot:
    out = Snapshot()
    for node in objects.nodes:
        out.set_node(node_facts(node))
    for pod in objects.pods:
        if pod.spec.node_name and not pod.ended:
            out.place(pod_facts(pod), pod.spec.node_name)
    return out


def _placed(
    known: PlanObjects,
    job: KusciaJobSpec,
    task: TaskTemplate,
    domain: str,
    detail: str,
    snapshot: Snapshot,
    has: DomainBandwidth,
) -> Iterator[tuple[PlannedPlacement, bool]]:
    """With whether it could never be placed. All pods of a task must have room at once; tasks are tried one by one."""
    if task.app_image not in known.images:
        return
    try:
        found = _workloads(job, task, domain, known.images)
    except (EngineTemplateError, QuantityError, msgspec.ValidationError):
        return  # a problem of the engine
    tried: list[str] = []
    for workload in found:
        row = PlannedPlacement(task=task.alias, role=workload.role, pods=workload.replicas)
        if why := _never(workload, domain, has, detail):
            yield msgspec.structs.replace(row, problem=why), True
            continue
        if workload.replicas > _MOST_PODS:
            words = f"{workload.replicas} pods are not tried, at most {_MOST_PODS} are"
            yield msgspec.structs.replace(row, problem=words), False
            continue
        nodes: list[str] = []
        problem = ""
        for _ in range(workload.replicas):
            facts = pod_facts(workload.pod)
            facts.uid = f"plan/{task.alias}/{len(tried)}"
            outcome = scheduling.plan(snapshot, facts)
            if isinstance(outcome, Unschedulable):
                problem = outcome.message if detail != PlanDetail.SUMMARY else _shortage(outcome)
                break
            snapshot.place(facts, outcome.node)
            tried.append(facts.uid)
            nodes.append(outcome.node)
        yield (
            msgspec.structs.replace(
                row,
                fits=not problem,
                problem=problem,
                nodes=tuple(nodes) if detail == OWN and nodes and not problem else None,
            ),
            False,
        )
    for uid in tried:
        snapshot.remove(uid)


def _shortage(outcome: Unschedulable) -> str:
    """Which resource is short, without how many nodes there are or what else is wrong with them."""
    short = sorted({found[1] for reason in outcome.reasons if (found := _SHORT.fullmatch(reason))})
    return f"not enough {', '.join(short)}" if short else _NO_ROOM


def _never(workload: _Workload, domain: str, has: DomainBandwidth, detail: str) -> str:
    bits = sum(_container_mbit(each) for each in workload.containers) * MBIT
    why = never_met(domain, has, bits, 0, ()) if bits else ""
    return why if detail == OWN or not why else "more bandwidth is requested on one node than any node has"


def _container_mbit(container: Mapping[str, Any]) -> int:
    party = msgspec.convert({"domainID": "plan", "resources": container.get("resources")}, JobParty, strict=False)
    return requested_mbit(party.resources)


# Links.


def _peers(tasks: Iterable[TaskTemplate], domain: str) -> list[str]:
    return sorted({party.domain_id for task in tasks for party in task.parties} - {domain})


def _link(
    known: PlanObjects,
    job: KusciaJobSpec,
    tasks: Iterable[TaskTemplate],
    domain: str,
    peer: str,
    detail: str,
    has: DomainBandwidth,
) -> tuple[PlannedLink, bool]:
    """With whether the link could never carry it."""
    bits = 0
    for task in tasks:
        if peer in (party.domain_id for party in task.parties):
            bits = max(bits, _requested_bits(job, task, domain))
    capacity = has.links.get(peer)
    row = PlannedLink(
        peer=peer,
        ready=True,
        requested=bits_text(bits) if bits else "",
        capacity=bits_text(capacity) if capacity is not None and detail != PlanDetail.SUMMARY else "",
    )
    if capacity is not None and bits > capacity:
        why = never_met(domain, has, 0, bits, (peer,)) if detail != PlanDetail.SUMMARY else "the link is too slow"
        return msgspec.structs.replace(row, problem=why), True
    for route in known.routes:
        if {route.spec.source, route.spec.destination} != {domain, peer}:
            continue
        ready = route.ready
        if ready is None or ready.status != "True":
            why = f"the route from {route.spec.source} to {route.spec.destination} is not ready"
            if detail != PlanDetail.SUMMARY and ready is not None and (ready.message or ready.reason):
                why = f"{why}: {ready.message or ready.reason}"
            return msgspec.structs.replace(row, ready=False, problem=why), False
    return row, False


def _requested_bits(job: KusciaJobSpec, task: TaskTemplate, domain: str) -> int:
    text = task.bandwidth_request or job.bandwidth_request
    try:
        if text:
            return parse_bits(text)
        return sum(requested_mbit(party.resources) for party in task.parties if party.domain_id == domain) * MBIT
    except (BandwidthError, QuantityError):
        return 0
