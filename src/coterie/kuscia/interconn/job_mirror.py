"""What a host shows its partners of a job, and what both sides take from the summaries. Pure.

    in the host's cluster, namespace of the partner's control plane
        KusciaJob          the job, without task ids: what is asked of the partner        host writes
        KusciaJobSummary   stage, phase; approvals and stages of each domain              each its own domains
        KusciaTaskSummary  phase; each party's phase; reservations                        each its own parties

Nobody takes from a summary what it says about the taker's own domains.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from coterie.kube.api.meta import Object, find_condition
from coterie.kuscia.api import labels
from coterie.kuscia.api.domain_ownership import is_partner, master_of
from coterie.kuscia.api.job_statements import (
    LONGEST_STATEMENT,
    PartyStatement,
    Statements,
    statements_taken,
    without_agreements,
)
from coterie.kuscia.api.jobs.conditions import WAITING
from coterie.kuscia.api.jobs.phases import JOB_ENDED, TASK_ENDED
from coterie.kuscia.api.jobs.retries import attempts_taken, most_retries, public_attempt
from coterie.kuscia.api.partner_requests import job_taken
from coterie.kuscia.api.types.domain import Domain
from coterie.kuscia.api.types.job import (
    ACCEPTED,
    CROSS_DOMAIN,
    JobPhase,
    JobStage,
    JobSummarySpec,
    KusciaJob,
    KusciaJobStatus,
    KusciaJobSummary,
    KusciaTask,
    PartyTaskStatus,
    TaskPhase,
    TaskSummaryStatus,
)
from coterie.kuscia.api.waiting import WaitReason

T = TypeVar("T")

HOST_TASK_UID = labels.COTERIE_HOST_TASK_UID
"""Label of a task summary, and annotation of the member's task: which of the host's tasks of this name it is about."""


def initiator_fault(name: str, domain: Domain | None, host: str) -> str:
    """Grants are given to who begins something, so a host can only begin it for domains of its own. Empty when it may."""
    if domain is None:
        return f"{name} began it and is not known here"
    if not domain.partner:
        return f"{name} is a domain of ours and did not begin it"
    if master_of(name, domain) != host:
        return f"{name} began it and is not a domain of {host}"
    return ""


def by_master(parties: Iterable[str], domains: Mapping[str, Domain]) -> dict[str, tuple[str, ...]]:
    """Partners among the parties, by the control plane that hosts them."""
    out: dict[str, tuple[str, ...]] = {}
    for party in parties:
        domain = domains.get(party)
        if is_partner(domain):
            master = master_of(party, domain)
            out[master] = (*out.get(master, ()), party)
    return out


def version_of(meta_labels: Mapping[str, str] | None) -> int:
    text = (meta_labels or {}).get(labels.KUSCIA_JOB_STAGE_VERSION, "")
    return int(text) if text.isdecimal() else 0


def stage_of(meta_labels: Mapping[str, str] | None) -> str:
    return (meta_labels or {}).get(labels.KUSCIA_JOB_STAGE, "") or str(JobStage.CREATE)


def custom_fields(meta_labels: Mapping[str, str] | None) -> dict[str, str]:
    return {
        key: value
        for key, value in (meta_labels or {}).items()
        if key.startswith(labels.KUSCIA_JOB_CUSTOM_FIELDS_PREFIX)
    }


# What the host shows.


def mirror_of(plain: Object, master: str, parties: tuple[str, ...]) -> Object:
    """`plain`: the job with everything in it."""
    spec = dict(plain["spec"])
    spec["tasks"] = [{key: value for key, value in task.items() if key != "taskID"} for task in spec["tasks"]]
    meta: Object = {
        "name": plain["metadata"]["name"],
        "namespace": master,
        "annotations": {
            labels.KUSCIA_INITIATOR: spec["initiator"],
            labels.KUSCIA_INTERCONN_KUSCIA_PARTIES: "_".join(parties),
        },
    }
    if fields := custom_fields(plain["metadata"].get("labels")):
        meta["labels"] = fields
    return {"metadata": meta, "spec": spec}


def job_summary_of(job: KusciaJob, master: str, parties: tuple[str, ...]) -> Object:
    meta = job.metadata
    return {
        "metadata": {
            "name": meta.name,
            "namespace": master,
            "labels": {labels.KUSCIA_JOB_STAGE_VERSION: str(version_of(meta.labels))},
            "annotations": {
                labels.KUSCIA_INITIATOR: job.spec.initiator,
                labels.KUSCIA_INTERCONN_KUSCIA_PARTIES: "_".join(parties),
            },
        },
        "spec": {"stage": stage_of(meta.labels), "stageTrigger": _trigger(job)},
        "status": msgspec.to_builtins(summary_status(job.status, KusciaJobStatus(), parties)),
    }


def _trigger(job: KusciaJob) -> str:
    return (job.metadata.labels or {}).get(labels.KUSCIA_JOB_STAGE_TRIGGER, "") or job.spec.initiator


def summary_status(own: KusciaJobStatus, there: KusciaJobStatus, parties: tuple[str, ...]) -> KusciaJobStatus:
    """What the host writes: how the job is, and everybody's word except that of the partner's own domains."""
    return replace(
        there,
        phase=own.phase,
        reason=own.reason,
        # What a job that runs waits for may name nodes and quotas of ours.
        message="" if own.phase == JobPhase.RUNNING else own.message,
        task_status=own.task_status,
        task_attempts={
            task: tuple(public_attempt(each) for each in attempts)
            for task, attempts in (own.task_attempts or {}).items()
        }
        or None,
        start_time=own.start_time,
        completion_time=own.completion_time,
        approve_status=_merge_by_owner(own.approve_status, there.approve_status, parties),
        party_statements=_merge_by_owner(own.party_statements, there.party_statements, parties),
        stage_status=_merge_by_owner(own.stage_status, there.stage_status, parties),
    )


def _merge_by_owner(
    ours: Mapping[str, T] | None, theirs: Mapping[str, T] | None, partner: Iterable[str]
) -> dict[str, T] | None:
    """Of the partner's domains what it says itself, of all others what we say."""
    named = set(partner)
    out = {key: value for key, value in (ours or {}).items() if key not in named}
    out |= {key: value for key, value in (theirs or {}).items() if key in named}
    return dict(sorted(out.items())) or None


def only_informs(before: KusciaJobStatus, after: KusciaJobStatus) -> bool:
    """Whether a summary would say nothing that a member acts on: words and ends it does, how far tasks are it sees itself. What its host
    agrees to comes with the task."""
    kept = replace(
        after,
        phase=before.phase,
        reason=before.reason,
        message=before.message,
        task_status=before.task_status,
        start_time=before.start_time,
        party_statements=before.party_statements,
    )
    if without_agreements(after.party_statements) != without_agreements(before.party_statements):
        return False
    return kept == before and not (after.phase != before.phase and after.phase in JOB_ENDED)


def only_confirms(before: KusciaJobStatus, after: KusciaJobStatus) -> bool:
    """Whether a member learns nothing but that others agree with it, which the task that they begin says too."""
    waiting = find_condition(before.conditions, WAITING)
    if replace(after, party_statements=before.party_statements) != before or (
        waiting is not None and waiting.reason == WaitReason.AGREEMENT
    ):
        return False
    if without_agreements(after.party_statements) != without_agreements(before.party_statements):
        return False
    own: dict[str, set[str]] = {}
    for statement in (before.party_statements or {}).values():
        for alias, task in (statement.tasks or {}).items():
            own.setdefault(alias, set()).add(task.agreement)
    return all(
        task.agreement in own.get(alias, ())
        for statement in (after.party_statements or {}).values()
        for alias, task in (statement.tasks or {}).items()
    )


def newer_command_from(job: KusciaJob, summary: KusciaJobSummary) -> Object | None:
    """Labels for our job when the summary carries a newer command; a cancelled job stays cancelled."""
    theirs = version_of(summary.metadata.labels)
    if theirs <= version_of(job.metadata.labels) or stage_of(job.metadata.labels) == JobStage.CANCEL:
        return None
    return {
        labels.KUSCIA_JOB_STAGE: summary.spec.stage or str(JobStage.CREATE),
        labels.KUSCIA_JOB_STAGE_VERSION: str(theirs),
        labels.KUSCIA_JOB_STAGE_TRIGGER: summary.spec.stage_trigger,
    }


def newer_command_for(job: KusciaJob, summary: KusciaJobSummary) -> tuple[Object, JobSummarySpec] | None:
    """Labels and spec for the summary when our job carries a newer command."""
    ours = version_of(job.metadata.labels)
    if ours <= version_of(summary.metadata.labels):
        return None
    spec = JobSummarySpec(stage=stage_of(job.metadata.labels), stage_trigger=_trigger(job))
    return {labels.KUSCIA_JOB_STAGE_VERSION: str(ours)}, spec


def job_status_from(job: KusciaJob, summary: KusciaJobStatus, others: Iterable[str]) -> KusciaJobStatus:
    """Our job with what the summary says about `others`, who are not ours."""
    named, own = tuple(others), job.status
    aliases = {task.alias for task in job.spec.tasks}
    created = {
        key: tuple(party_status for party_status in each if party_status.domain_id in named)
        for key, each in (summary.party_task_create_status or {}).items()
    }
    merged = {**(own.party_task_create_status or {}), **{key: each for key, each in created.items() if each}}
    return replace(
        own,
        approve_status=_with(own.approve_status, summary.approve_status, named),
        party_statements=statements_taken(own.party_statements, summary.party_statements, named, aliases),
        stage_status=_with(own.stage_status, summary.stage_status, named),
        party_task_create_status=merged or None,
    )


def _with(ours: Mapping[str, T] | None, theirs: Mapping[str, T] | None, named: Iterable[str]) -> dict[str, T] | None:
    taken = {key: value for key, value in (theirs or {}).items() if key in named}
    return {**(ours or {}), **taken} or None


# What a member makes of it.


def working_copy(
    mirror: Object, host: str, namespace: str, ours: Iterable[str], statements: Statements | None = None
) -> Object:
    """`namespace`: of the mirror, which is the name of our control plane there. `ours`: the parties that we host. `statements`: what the
    others said so far. PartnerRequestError when nothing can be taken from it."""
    named = tuple(ours)
    own = "_".join(named)
    spec = job_taken(mirror.get("spec"))
    others = {spec.initiator, *spec.party_domains} - {*named}
    known = statements_taken(None, statements, others, {task.alias for task in spec.tasks})
    stated = msgspec.json.encode(known, order="deterministic").decode() if known else ""
    annotations = mirror["metadata"].get("annotations") or {}
    meta: Object = {
        "name": mirror["metadata"]["name"],
        "namespace": CROSS_DOMAIN,
        "annotations": {
            labels.KUSCIA_INITIATOR: spec.initiator,
            labels.KUSCIA_SELF_AS_INITIATOR: "false",
            labels.KUSCIA_INITIATOR_MASTER_DOMAIN: host,
            labels.KUSCIA_PARTY_MASTER_DOMAIN: namespace,
            labels.KUSCIA_INTERCONN_KUSCIA_PARTIES: annotations.get(labels.KUSCIA_INTERCONN_KUSCIA_PARTIES, ""),
            **({labels.KUSCIA_INTERCONN_SELF_PARTIES: own} if own else {}),
            # Ours are said in the same write as our approval, which is planned from what is known by then.
            **({labels.COTERIE_HOST_STATEMENTS: stated} if 0 < len(stated) <= LONGEST_STATEMENT // 2 else {}),
        },
    }
    if fields := custom_fields(mirror["metadata"].get("labels")):
        meta["labels"] = fields
    return {"metadata": meta, "spec": msgspec.to_builtins(spec)}


def member_status(
    own: KusciaJobStatus, there: KusciaJobStatus, ours: Iterable[str], *, states: bool = False
) -> KusciaJobStatus:
    """What a member writes into the summary: the words of its own domains, nothing else. `states`: our domains give statements, without
    which the approval of a person is not told yet."""
    named = tuple(ours)
    stated = own.party_statements or {}
    approving = tuple(
        party for party in named if not states or party in stated or (own.approve_status or {}).get(party) != ACCEPTED
    )
    created = {
        key: own_entries
        for key, each in (own.party_task_create_status or {}).items()
        if (own_entries := tuple(entry for entry in each if entry.domain_id in named))
    }
    return replace(
        there,
        approve_status=_with(there.approve_status, own.approve_status, approving),
        party_statements=_with(there.party_statements, _accepted(own, named), named),
        stage_status=_with(there.stage_status, own.stage_status, named),
        party_task_create_status={**(there.party_task_create_status or {}), **created} or None,
    )


def _accepted(own: KusciaJobStatus, named: Iterable[str]) -> dict[str, PartyStatement]:
    """A statement is part of an approval."""
    approvals = own.approve_status or {}
    return {
        party: statement
        for party, statement in (own.party_statements or {}).items()
        if party in named and approvals.get(party) == ACCEPTED
    }


def with_attempts(own: KusciaJobStatus, summary: KusciaJobStatus, job: KusciaJob) -> KusciaJobStatus:
    """A member's status with the failed attempts that its host recorded."""
    allowed = {task.task_id: task.schedule_config for task in job.spec.tasks if task.task_id}
    return replace(own, task_attempts=attempts_taken(summary.task_attempts, allowed))


class TaskRetries(msgspec.Struct, frozen=True):
    """How often a member began tasks again since the last command to their job."""

    version: int = 0
    counts: dict[str, int] = {}


def retry_granted(job: KusciaJob, task: str, alias: str) -> TaskRetries | None:
    """What the member notes before it begins a task again because its host did; None: it was begun often enough. One
    more than the job says is granted: hosts also begin tasks anew when a restart overtook the end of a task."""
    version = version_of(job.metadata.labels)
    noted = (job.metadata.annotations or {}).get(labels.COTERIE_TASK_RETRIES, "")
    try:
        known = msgspec.json.decode(noted, type=TaskRetries) if noted else TaskRetries(version)
    except msgspec.DecodeError:
        known = TaskRetries(version)
    counts = known.counts if known.version == version else {}
    config = next((each.schedule_config for each in job.spec.tasks if each.alias == alias), None)
    if counts.get(task, 0) > most_retries(config):
        return None
    return TaskRetries(version, {**counts, task: counts.get(task, 0) + 1})


# Tasks.


def parties_from(
    own: tuple[PartyTaskStatus, ...] | None, reported: tuple[PartyTaskStatus, ...] | None, named: Iterable[str]
) -> tuple[PartyTaskStatus, ...] | None:
    """`own` with what is told about the parties of `named` domains. Who has ended stays so."""
    domains = set(named)
    reported_parties = {(party.domain_id, party.role): party for party in reported or () if party.domain_id in domains}
    out = [
        reported_parties.pop((party.domain_id, party.role), party) if party.phase not in TASK_ENDED else party
        for party in own or ()
    ]
    known = {(party.domain_id, party.role) for party in out}
    out += [party for key, party in reported_parties.items() if key not in known]
    return tuple(out) or None


def only_progress(before: tuple[PartyTaskStatus, ...] | None, after: tuple[PartyTaskStatus, ...] | None) -> bool:
    """Whether the same parties have ended, and alike: nobody waits for a party to begin."""
    ended = [
        {(party.domain_id, party.role, party.phase) for party in parties or () if party.phase in TASK_ENDED}
        for parties in (before, after)
    ]
    return ended[0] == ended[1]


def task_summary_of(task: KusciaTask, master: str, theirs: tuple[str, ...], version: int) -> Object:
    """`version`: of the job's last command, so that a member knows news of before a restart."""
    marks = task.metadata.annotations or {}
    job = marks.get(labels.KUSCIA_JOB_ID, "")
    status = task_summary_status(task, TaskSummaryStatus(), theirs)
    return {
        "metadata": {
            "name": task.metadata.name,
            "namespace": master,
            "labels": {HOST_TASK_UID: task.metadata.uid, labels.KUSCIA_JOB_STAGE_VERSION: str(version)},
            "annotations": {
                labels.KUSCIA_INITIATOR: task.spec.initiator,
                labels.KUSCIA_INTERCONN_KUSCIA_PARTIES: "_".join(theirs),
                labels.KUSCIA_JOB_ID: job,
                **({labels.COTERIE_AGREEMENT: agreed} if (agreed := marks.get(labels.COTERIE_AGREEMENT)) else {}),
            },
        },
        "spec": {"alias": marks.get(labels.KUSCIA_TASK_ALIAS, ""), "jobID": job},
        "status": msgspec.to_builtins(status),
    }


def task_summary_status(task: KusciaTask, there: TaskSummaryStatus, theirs: Iterable[str]) -> TaskSummaryStatus:
    """What the host writes: the task's phase, and how all parties are but the partner's own."""
    named = set(theirs)
    others = [party.domain_id for party in task.spec.parties if party.domain_id not in named]
    return replace(
        there,
        phase=task.status.phase,
        reason=task.status.reason,
        completion_time=task.status.completion_time,
        start_time=task.status.start_time,
        party_task_status=parties_from(there.party_task_status, task.status.party_task_status, others),
    )


def fail_own(status: Any, ours: Iterable[str], message: str) -> Any:
    """A task status in which our unfinished parties have failed; what they waited for stays told."""
    named = set(ours)
    parties = tuple(
        replace(party, phase=str(TaskPhase.FAILED), message=f"{message}; {party.message}" if party.message else message)
        if party.domain_id in named and party.phase not in TASK_ENDED
        else party
        for party in status.party_task_status or ()
    )
    return replace(status, party_task_status=parties or None)
