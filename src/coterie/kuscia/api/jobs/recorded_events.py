"""What of a job and its tasks is recorded in the evidence log. Pure.

    the job as its status is about to be written ─▶ job.approved, job.rejected of each party, job.ended
    a task that is about to be created           ─▶ task.started
    a task that has ended                        ─▶ task.ended

`run` tells jobs of the same name apart, and a restarted job from itself before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from coterie.kube.api.meta import find_condition
from coterie.kuscia.api import evidence, labels
from coterie.kuscia.api.evidence import EventRequest, EvidenceEvent, RecordedEngine
from coterie.kuscia.api.job_agreement import TaskAgreement
from coterie.kuscia.api.jobs.conditions import RESTARTED
from coterie.kuscia.api.jobs.phases import JOB_ENDED, TASK_ENDED
from coterie.kuscia.api.types.job import ACCEPTED, REJECTED, KusciaJob, KusciaTask, TaskTemplate

_UID_DIGITS = 8


def run_of(job: KusciaJob) -> str:
    restarted = find_condition(job.status.conditions, RESTARTED)
    uid = job.metadata.uid[:_UID_DIGITS]
    return f"{uid}/{restarted.message}" if restarted is not None else uid


def events_of_job(job: KusciaJob, tables: Mapping[str, Sequence[str]] | None = None) -> Iterator[EventRequest]:
    """`tables`: by party of ours that approves now, what it gives."""
    name, status = job.metadata.name, job.status
    parties = job.spec.party_domains
    uid = job.metadata.uid[:_UID_DIGITS]
    for party, answer in sorted((status.approve_status or {}).items()):
        record = (status.approval_records or {}).get(party)
        if answer in (ACCEPTED, REJECTED):
            kind = evidence.JOB_APPROVED if answer == ACCEPTED else evidence.JOB_REJECTED
            event = EvidenceEvent(kind=kind, job=name, partner=party, parties=parties, more={"run": uid})
            given = tuple((tables or {}).get(party, ()))
            yield EventRequest(event=event, person=record.by if record is not None else "", tables=given)
    if status.phase in JOB_ENDED:
        event = EvidenceEvent(
            kind=evidence.JOB_ENDED, job=name, parties=parties, outcome=status.phase, more={"run": run_of(job)}
        )
        yield EventRequest(event=event)


def task_started(job: KusciaJob, template: TaskTemplate, agreed: TaskAgreement, own: Sequence[str]) -> EventRequest:
    """`own`: our parties."""
    stated = [
        task
        for party in own
        if (statement := (job.status.party_statements or {}).get(party)) is not None
        and (task := (statement.tasks or {}).get(template.alias)) is not None
    ]
    event = EvidenceEvent(
        kind=evidence.TASK_STARTED,
        job=job.metadata.name,
        task=template.task_id,
        parties=tuple(dict.fromkeys(party.domain_id for party in template.parties)),
        agree=agreed.digest,
        engines={party: RecordedEngine(each.digest, each.version) for party, each in agreed.engines.items()},
        inputs=tuple(each for task in stated for each in task.inputs or ()),
        grant=tuple(each for task in stated for each in task.grants or ()),
        count=len((job.status.task_attempts or {}).get(template.task_id, ())),
        more={"run": run_of(job)},
    )
    return EventRequest(event=event)


def task_ended(task: KusciaTask, results: Sequence[str] = ()) -> EventRequest | None:
    """`results`: of our parties. None while it runs."""
    if task.status.phase not in TASK_ENDED:
        return None
    marks = task.metadata.annotations or {}
    attempt = marks.get(labels.COTERIE_ATTEMPT, "")
    event = EvidenceEvent(
        kind=evidence.TASK_ENDED,
        job=marks.get(labels.KUSCIA_JOB_ID, ""),
        task=task.metadata.name,
        parties=tuple(dict.fromkeys(each.domain_id for each in task.spec.parties)),
        agree=marks.get(labels.COTERIE_AGREEMENT, ""),
        outcome=str(task.status.phase),
        count=int(attempt) - 1 if attempt.isdecimal() else 0,
        more={"run": marks.get(labels.COTERIE_RUN, "")},
    )
    return EventRequest(event=event, results=tuple(results))
