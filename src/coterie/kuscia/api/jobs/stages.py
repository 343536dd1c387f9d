"""The stages of a job that its objects know: from when to when, and under which span. Pure.

    job            job, check, approval
    task           task, prepare, schedule, start, run; party: one for each domain whose pods are known here
    TaskResource   reserve, wait for partners
    pod            pod, schedule, start, run

Objects have whole seconds; whoever follows them while they change knows better (`kuscia/control/job_spans.py`). A stage without
`end` goes on; one that is no longer in the list has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from coterie.base.trace import Value, span_id
from coterie.kube.api.meta import Condition, find_condition
from coterie.kube.api.pod_state import parse_time
from coterie.kube.api.types.pods import Pod
from coterie.kuscia.api import labels
from coterie.kuscia.api.jobs import conditions, trace_context
from coterie.kuscia.api.jobs.phases import JOB_ENDED, TASK_ENDED
from coterie.kuscia.api.jobs.trace_context import PodTrace
from coterie.kuscia.api.types.job import JobPhase, KusciaJob, KusciaTask, PodOfTask, TaskPhase
from coterie.kuscia.api.types.task_resource import ReservationPhase, TaskResource

JOB, TASK, PARTY, POD = "coterie.job", "coterie.task", "coterie.party", "k8s.pod.name"
"""Attributes of spans."""
MESSAGE, PHASE = "coterie.message", "coterie.phase"
_RESERVATIONS: Mapping[str, str] = {
    ReservationPhase.RESERVING: "reserve",
    ReservationPhase.RESERVED: "wait for partners",
}


class Stage(NamedTuple):
    span: str
    parent: str
    name: str
    begin: float
    """Seconds since 1970."""
    end: float | None
    attributes: Mapping[str, Value]
    error: str = ""


def job_stages(job: KusciaJob) -> list[Stage]:
    meta, status = job.metadata, job.status
    own, created = trace_context.job_span(meta.uid), _time(meta.creation_timestamp)
    if created is None:
        return []
    marks: dict[str, Value] = {JOB: meta.name, "coterie.initiator": job.spec.initiator}
    over = status.phase in JOB_ENDED
    failed = _reason(status.phase if over and status.phase != JobPhase.SUCCEEDED else "", status.message)
    ended = (_time(status.completion_time) or created) if over else None
    about = {PHASE: status.phase, "coterie.parties": ",".join(job.spec.party_domains), **_message(status.message)}
    again = find_condition(status.conditions, conditions.RESTARTED)
    restarted = _time(again.last_transition_time) if again is not None else None
    if again is not None and restarted is not None:
        # The span of the first attempt is recorded already.
        begun_again = span_id("job", meta.uid, again.message)
        out = [Stage(begun_again, own, f"job {meta.name} restarted", restarted, ended, marks | about, failed)]
    else:
        out = [Stage(own, "", f"job {meta.name}", created, ended, marks | about, failed)]
    validated = find_condition(status.conditions, conditions.VALIDATED)
    checked = _time(validated.last_transition_time) if validated is not None else None
    out.append(Stage(span_id("check", meta.uid), own, "check", created, checked, marks))
    if status.phase == JobPhase.AWAITING_APPROVAL:
        begin = created if checked is None else checked
        out.append(Stage(span_id("approval", meta.uid), own, "approval", begin, None, marks | _message(status.message)))
    return out


def job_error(job: KusciaJob) -> str:
    """Why the approval ended badly; empty when it did not."""
    if job.status.phase not in (JobPhase.APPROVAL_REJECT, JobPhase.CANCELLED):
        return ""
    return job.status.message or job.status.phase


def task_stages(task: KusciaTask) -> list[Stage]:
    meta, status = task.metadata, task.status
    own, created = trace_context.task_span(meta.uid), _time(meta.creation_timestamp)
    if created is None:
        return []
    notes = meta.annotations or {}
    marks: dict[str, Value] = {JOB: notes.get(labels.KUSCIA_JOB_ID, ""), TASK: meta.name}
    alias = notes.get(labels.KUSCIA_TASK_ALIAS) or meta.name
    over = status.phase in TASK_ENDED
    end = _time(status.completion_time) if over else None
    if over and end is None:
        end = _true_since(status.conditions, conditions.SUCCESS, whatever=True) or created
    failed = _reason(status.phase if over and status.phase != TaskPhase.SUCCEEDED else "", status.message)
    parent = trace_context.job_span((meta.labels or {}).get(labels.KUSCIA_JOB_UID, ""))
    about = {PHASE: status.phase, "coterie.alias": alias, **_message(status.message)}
    out = [Stage(own, parent, f"task {alias}", created, end, marks | about, failed)]
    pods = list((status.pod_statuses or {}).values())
    moments = (
        ("prepare", _true_since(status.conditions, conditions.RESOURCE_CREATED)),
        ("schedule", _all_scheduled(pods)),
        ("start", _true_since(status.conditions, conditions.RUNNING)),
        ("run", end),
    )
    out += _chain(moments, meta.uid, own, created, end, marks, message=status.message)
    for domain in dict.fromkeys(pod.namespace for pod in pods):
        made = [found for pod in pods if pod.namespace == domain and (found := _time(pod.create_time)) is not None]
        where = marks | {PARTY: domain}
        out.append(
            Stage(trace_context.party_span(meta.uid, domain), own, domain, min(made, default=created), end, where)
        )
    return out


def task_stage_span(name: str, task_uid: str) -> str:
    """Of one of the stages that follow each other in a task: prepare, schedule, start, run."""
    return span_id(name, task_uid)


def reservation_stages(reservation: TaskResource) -> list[Stage]:
    """The stage it is in: each attempt has its own spans. One without pods is a partner's, whose own node has the spans."""
    meta, phase = reservation.metadata, reservation.status.phase
    task_uid = (meta.labels or {}).get(labels.KUSCIA_TASK_UID, "")
    name = _RESERVATIONS.get(phase, "")
    begin = _true_since(reservation.status.conditions, phase)
    if not task_uid or not reservation.spec.pods or not name or begin is None:
        return []
    marks = {TASK: (meta.annotations or {}).get(labels.KUSCIA_TASK_ID, ""), PARTY: meta.namespace}
    parent = trace_context.party_span(task_uid, meta.namespace)
    return [Stage(span_id(name, meta.uid, f"{begin:.0f}"), parent, name, begin, None, marks)]


def reservation_error(reservation: TaskResource) -> str:
    """Why the stage before this one ended badly; empty when it did not."""
    failed = find_condition(reservation.status.conditions, ReservationPhase.FAILED)
    if failed is None or failed.status != "True":
        return ""
    return failed.message or failed.reason or "reservation failed"


def pod_stages(pod: Pod, where: PodTrace) -> list[Stage]:
    meta, status = pod.metadata, pod.status
    created = _time(meta.creation_timestamp)
    if created is None:
        return []
    marks: dict[str, Value] = {JOB: where.job, TASK: where.task, PARTY: where.domain, POD: meta.name}
    states = [each.state or {} for each in status.container_statuses or ()]
    ends = [each["terminated"] for each in states if each.get("terminated")]
    starts = [_time((each.get("running") or each.get("terminated") or {}).get("startedAt")) for each in states]
    begun = [each for each in starts if each is not None]
    finished = [found for each in ends if (found := _time(each.get("finishedAt"))) is not None]
    end = max([*finished, created]) if pod.ended else None
    codes = [f"{each.get('reason') or 'Error'} ({each.get('exitCode')})" for each in ends if each.get("exitCode")]
    why = status.message or status.reason or "; ".join(codes) or "failed"
    failed = why if status.phase == "Failed" else ""
    about: dict[str, Value] = {"k8s.node.name": pod.spec.node_name, PHASE: status.phase}
    out = [Stage(where.pod, where.party, f"pod {meta.name}", created, end, marks | about, failed)]
    all_begun = max(begun) if begun and len(begun) == len(states) else None
    moments = (("schedule", _true_since(status.conditions, "PodScheduled")), ("start", all_begun), ("run", end))
    return out + _chain(moments, meta.uid, where.pod, created, end, marks)


def _chain(
    moments: tuple[tuple[str, float | None], ...],
    uid: str,
    parent: str,
    begin: float,
    end: float | None,
    marks: Mapping[str, Value],
    message: str = "",
) -> list[Stage]:
    """Stages that follow each other, each up to its moment. The one that an early end cut off ends with it."""
    out, at = [], begin
    for name, moment in moments:
        until = max(at, moment) if moment is not None else end
        about = {**marks, **_message(message)} if moment is None else marks
        out.append(Stage(span_id(name, uid), parent, name, at, until, about))
        if moment is None:
            break
        at = max(at, moment)
    return out


def _all_scheduled(pods: list[PodOfTask]) -> float | None:
    found = [each for pod in pods if (each := _time(pod.schedule_time)) is not None]
    return max(found) if pods and len(found) == len(pods) else None


def _true_since(found: tuple[Condition, ...] | None, type_: str, *, whatever: bool = False) -> float | None:
    condition = find_condition(found, type_)
    if condition is None or not (whatever or condition.status == "True"):
        return None
    return _time(condition.last_transition_time)


def _message(text: str) -> dict[str, Value]:
    return {MESSAGE: text} if text else {}


def _reason(phase: str, message: str) -> str:
    return message or phase if phase else ""


@lru_cache(maxsize=512)
def _time(text: str | None) -> float | None:
    """An object has the same times at each of its changes."""
    found = parse_time(text)
    return found.timestamp() if found is not None else None
