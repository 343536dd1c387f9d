"""What a job asks for: which tables and columns of ours, for whom, by which engine, and what the policy says to it.

The same pure functions decide that accept jobs and that check grants; here nothing is decided, only shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from coterie.console.rows import text
from coterie.kube.api.errors import Forbidden
from coterie.kube.api.meta import Object, find_condition
from coterie.kube.api.quantity import NANO
from coterie.kube.client.client import Client
from coterie.kuscia.api import grants
from coterie.kuscia.api.domain_ownership import is_own
from coterie.kuscia.api.jobs.commands import approvers, rejections
from coterie.kuscia.api.jobs.conditions import ADMITTED
from coterie.kuscia.api.partner_policy import Usage, WorkloadRequest, decide
from coterie.kuscia.api.types.data import DOMAIN_DATA_GRANTS, DomainData, DomainDataGrant
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS, KusciaJob, TaskTemplate
from coterie.kuscia.control import partner_admission
from coterie.kuscia.control.partner_admission import OwnSide

_MOST_COLUMNS: Final = 500
LONGEST: Final = 16_384
"""Of the input of a task."""


async def request_view(client: Client, name: str, now: datetime) -> Object:
    job = await client.get(KUSCIA_JOBS, name, CROSS_DOMAIN)
    domains = await partner_admission.domains_by_name(client)
    ours = await partner_admission.own_side(client, job, domains)
    given = {domain: await _grants(client, domain) for domain in ours.tables}
    foreign = not is_own(domains.get(job.spec.initiator))
    policy = await partner_admission.policy_for(client, job.spec.initiator, domains) if foreign else None
    view: Object = {
        "job": job.metadata.name,
        "initiator": text(job.spec.initiator),
        "foreign": foreign,
        "approvers": list(approvers(job)) if foreign else [],
        "answers": dict(job.status.approve_status or {}),
        "answeredBy": {
            party: {"by": text(record.by), "at": text(record.at)}
            for party, record in (job.status.approval_records or {}).items()
        },
        "rejectReason": text("; ".join(dict.fromkeys(rejections(job).values()))),
        "tasks": tasks_view(job, ours, given, now),
    }
    if foreign:
        decision = decide(policy.spec if policy is not None else None, ours.request, now)
        admitted = find_condition(job.status.conditions, ADMITTED)
        view |= {
            "policy": policy.metadata.name if policy is not None else "",
            "verdict": str(decision.verdict),
            "reasons": [text(each.sentence) for each in decision.reasons],
            "recorded": text(admitted.message) if admitted is not None else "",
            "recordedAt": text(admitted.last_transition_time) if admitted is not None else "",
        }
    return view


async def _grants(client: Client, domain: str) -> Sequence[DomainDataGrant]:
    try:
        return (await client.list(DOMAIN_DATA_GRANTS, domain)).items
    except Forbidden:
        return ()


def tasks_view(
    job: KusciaJob, ours: OwnSide, given: Mapping[str, Sequence[DomainDataGrant]], now: datetime
) -> list[Object]:
    works = {work.name: work for work in ours.request.workloads}
    return [_task(job, task, ours, works.get(f"task {task.alias}"), given, now) for task in job.spec.tasks]


def _task(
    job: KusciaJob,
    task: TaskTemplate,
    ours: OwnSide,
    work: WorkloadRequest | None,
    given: Mapping[str, Sequence[DomainDataGrant]],
    now: datetime,
) -> Object:
    tables: list[Object] = []
    for party in task.parties:
        datas = {each.metadata.name: each for each in ours.tables.get(party.domain_id, ())}
        tables += [
            _table(job, task, party.domain_id, datas[name], given.get(party.domain_id, ()), now)
            for name in grants.data_named(task.task_input_config, datas.keys())
        ]
    return {
        "alias": text(task.alias),
        "engine": text(task.app_image),
        "version": text(work.version) if work is not None else "",
        "digest": text(work.digest) if work is not None else "",
        "components": [text(each) for each in (work.components if work is not None else ())][:1],
        "parties": [{"domain": text(each.domain_id), "role": text(each.role)} for each in task.parties][:32],
        "input": text(task.task_input_config, LONGEST),
        "usage": _usage(work.usage) if work is not None else {},
        "tables": tables,
    }


def _table(
    job: KusciaJob,
    task: TaskTemplate,
    owner: str,
    data: DomainData,
    given: Sequence[DomainDataGrant],
    now: datetime,
) -> Object:
    columns = [each.name for each in data.spec.columns or ()]
    named = grants.data_named(task.task_input_config, columns)
    use = grants.DataUse(
        data.metadata.name,
        job.spec.initiator,
        frozenset(each.domain_id for each in task.parties),
        components=grants.use_names(task.app_image, (), grants.components_of(task.task_input_config)),
        flow=job.spec.flow_id,
        input_config=task.task_input_config,
        columns=named or None,
    )
    own = job.spec.initiator == owner
    decision = grants.GrantDecision(None) if own else grants.decide(given, use, owner, now)
    allowed = grants.granted_columns(decision.grant) if decision.grant is not None else None
    return {
        "table": data.metadata.name,
        "owner": owner,
        "columns": [
            {"name": text(name), "named": name in named, "granted": own or allowed is None or name in allowed}
            for name in columns[:_MOST_COLUMNS]
        ],
        "grant": decision.grant.metadata.name if decision.grant is not None else "",
        "needsGrant": not own,
        "refusal": text(decision.sentence),
    }


def _usage(usage: Usage) -> dict[str, Any]:
    """In the units that people use; what is not asked for is left out."""
    found = {
        "cpu": usage.cpu / NANO,
        "memory": usage.memory / NANO,
        "bandwidth": usage.bandwidth / NANO,
        "gpus": usage.gpus / NANO,
        "pods": usage.pods,
    }
    return {name: amount for name, amount in found.items() if amount}
