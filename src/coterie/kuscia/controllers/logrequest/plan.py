"""What becomes of a LogRequest. Pure.

    outgoing (requester)   "" ─> Pending ─> AwaitingApproval ─> Answered ─> Expired
                                    └──────────┴──> Rejected, Expired        └──> Revoked
    incoming (owner)       "" ─> AwaitingApproval: preview ─> policy or person: Answered, Rejected; or Expired
                           Answered ─> Revoked, Expired                    any state ─> Withdrawn when the requester deletes it

Every state that waits has an end: an open request and an answer expire, a record is deleted after `RETENTION_SECONDS`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from coterie.base.clock import rfc3339
from coterie.kuscia.api import evidence
from coterie.kuscia.api.evidence import EventRequest, EvidenceEvent
from coterie.kuscia.api.log_requests import (
    POLICY,
    RETENTION_SECONDS,
    LogBounds,
    RequesterLoad,
    bounds_of,
    counts_for_policy,
    ended,
    is_over,
    load_fault,
    parsed_time,
    participation_fault,
    recorded,
    request_fault,
    shared_tasks,
)
from coterie.kuscia.api.partner_policy import AdmissionDecision, Reason, Verdict, policy_faults
from coterie.kuscia.api.types.job import KusciaJob, KusciaTask, TaskPhase
from coterie.kuscia.api.types.log_request import (
    APPROVE,
    REJECT,
    REVOKE,
    LogExcerpt,
    LogRequest,
    LogRequestPhase,
    LogRequestRecord,
    LogRequestSpec,
    LogRequestStatus,
    LogReview,
    Way,
)
from coterie.kuscia.api.types.partner_policy import REFUSE, PartnerLogPolicy, PartnerPolicySpec

DEFAULT_PER_DAY: Final = 10
MOST_OWN: Final = 100
"""Requests of one domain of ours that may be open."""
MOST_RECORDS: Final = 200
"""Records of one partner's control plane that stay; older ones are deleted before their time."""
NO_POLICY_FOR_LOGS: Final = "logs"
_UID_DIGITS: Final = 8


@dataclass(frozen=True, slots=True)
class RequestStep:
    """What to write, and when to look again."""

    status: LogRequestStatus
    after: float | None = None
    read: bool = False
    """The logs have to be read first: `previewed` goes on."""
    delete: bool = False


def recorded_events(request: LogRequest, status: LogRequestStatus) -> list[EventRequest]:
    """What the owner's log says of this change, before it is made: who decided, and the digest of what is given. `run` tells the requests for
    one job apart, so that a change that is made again after a crash has its events once."""
    spec = request.spec
    if status.phase == request.status.phase:
        return []
    kinds = {
        LogRequestPhase.ANSWERED: (evidence.LOGS_APPROVED, evidence.LOGS_GIVEN),
        LogRequestPhase.REJECTED: (evidence.LOGS_DENIED,),
        LogRequestPhase.REVOKED: (evidence.LOGS_DENIED,),
    }
    phase = LogRequestPhase(status.phase) if status.phase else None
    found = []
    for kind in kinds.get(phase, ()) if phase is not None else ():
        given = kind == evidence.LOGS_GIVEN and status.answer is not None
        event = EvidenceEvent(
            kind=kind,
            job=spec.job,
            partner=spec.requester,
            outcome=status.phase,
            count=status.answer.lines if given and status.answer is not None else 0,
            more={"run": _run(request, status.digest if given else ""), **({"digest": status.digest} if given else {})},
        )
        found.append(EventRequest(event=event, person=status.decided_by, object_name=request.metadata.name))
    return found


def _run(request: LogRequest, digest: str) -> str:
    uid = request.metadata.uid[:_UID_DIGITS]
    return f"{uid}/{digest[:_UID_DIGITS]}" if digest else uid


def _seconds_until(text: str, now: datetime) -> float:
    """Zero when it has passed, or cannot be read: then it is due."""
    moment = parsed_time(text)
    return max(0.0, (moment - now).total_seconds()) if moment is not None else 0.0


def _over(status: LogRequestStatus, now: datetime) -> RequestStep:
    """A record waits for its end."""
    ended_at = parsed_time(status.end_time) or now
    left = RETENTION_SECONDS - (now - ended_at).total_seconds()
    return RequestStep(status, after=left + 1 if left > 0 else None, delete=left <= 0)


def way_of(owner_is_own: bool, owner_control_plane: str, initiator_is_own: bool, followed: Collection[str]) -> Way:
    """A partner follows us when it takes part in a job that we began; we follow who began one."""
    if owner_is_own:
        return Way.LOCAL
    return Way.MEMBER if owner_control_plane in followed and not initiator_is_own else Way.HOST


# The requester's side.


def outgoing(
    request: LogRequest, job: KusciaJob | None, owner_known: bool, own_open: int, way: Way, now: datetime
) -> RequestStep:
    status, spec = request.status, request.spec
    if is_over(status):
        return _over(status, now)
    if not status.phase:
        fault = request_fault(spec) or participation_fault(job, spec)
        if not fault and not owner_known:
            fault = f"{spec.owner} is no domain that is known here"
        if not fault and own_open >= MOST_OWN:
            fault = f"{spec.requester} has {own_open} open log requests already; delete some"
        first = _first_record(request, now)
        if fault:
            return RequestStep(ended(first, LogRequestPhase.REJECTED, fault, now))
        until = rfc3339(now + timedelta(seconds=bounds_of(spec).expires))
        words = f"waits until {spec.owner} has received it, since {rfc3339(now)}; it expires at {until}"
        status = replace(first, phase=str(LogRequestPhase.PENDING), message=words, way=str(way), expire_time=until)
        return RequestStep(status, after=_seconds_until(until, now))
    left = _seconds_until(status.expire_time, now)
    if left > 0:
        return RequestStep(status, after=left)
    return RequestStep(_expired(request, now))


def _first_record(request: LogRequest, now: datetime) -> LogRequestStatus:
    record = LogRequestRecord(
        time=rfc3339(now),
        event="Requested",
        by=f"{request.spec.requester}: {request.spec.requested_by}"
        if request.spec.requested_by
        else request.spec.requester,
        message=request.spec.reason,
    )
    return recorded(request.status, record)


def _expired(request: LogRequest, now: datetime) -> LogRequestStatus:
    status, owner = request.status, request.spec.owner
    if status.phase == LogRequestPhase.ANSWERED:
        words = "the answer was removed because its time was over"
    elif status.phase == LogRequestPhase.AWAITING_APPROVAL:
        words = f"{owner} decided nothing before {status.expire_time}; ask them, and make a new request"
    else:
        words = (
            f"{owner} did not receive the request before {status.expire_time}; "
            f"`coterie route check` shows whether it can be reached; then make a new request"
        )
    return ended(status, LogRequestPhase.EXPIRED, words, now)


# The owner's side.


def incoming(
    request: LogRequest, job: KusciaJob | None, load: RequesterLoad, policy: PartnerPolicySpec | None, now: datetime
) -> RequestStep:
    status, review = request.status, request.spec.review or LogReview()
    if is_over(status):
        return _over(status, now)
    if not status.phase:
        first = _first_record(request, now)
        if fault := arrival_fault(request.spec, job, load, policy):
            return RequestStep(ended(first, LogRequestPhase.REJECTED, fault, now, by=POLICY))
        until = rfc3339(now + timedelta(seconds=bounds_of(request.spec).expires))
        words = f"its logs are being read since {rfc3339(now)}"
        waiting = replace(first, phase=str(LogRequestPhase.AWAITING_APPROVAL), message=words, expire_time=until)
        return RequestStep(waiting, after=0.0)
    if status.phase == LogRequestPhase.ANSWERED:
        if review.decision == REVOKE:
            return RequestStep(
                ended(
                    replace(status, decided_by=review.by),
                    LogRequestPhase.REVOKED,
                    f"{request.spec.owner} took the answer back{_because(review)}",
                    now,
                    by=review.by,
                )
            )
        left = _seconds_until(status.expire_time, now)
        return RequestStep(status, after=left) if left > 0 else RequestStep(_expired(request, now))
    if review.decision in (REJECT, REVOKE):
        words = f"{request.spec.owner} rejected it{_because(review)}"
        return RequestStep(
            ended(replace(status, decided_by=review.by), LogRequestPhase.REJECTED, words, now, by=review.by)
        )
    left = _seconds_until(status.expire_time, now)
    if left <= 0:
        return RequestStep(_expired(request, now))
    preview = status.preview
    if preview is None or preview.generation != review.generation:
        if job is None:
            return RequestStep(ended(status, LogRequestPhase.REJECTED, f"job {request.spec.job} was deleted", now))
        return RequestStep(status, read=True, after=left)
    if review.decision == APPROVE:
        if review.digest == preview.digest:
            return _answer(request, status, preview, bounds_of(request.spec).keep, review.by, now)
        words = "the approval names another preview than the present one: look at it again and approve that one"
        return RequestStep(replace(status, message=words), after=left)
    return RequestStep(status, after=left)


def _because(review: LogReview) -> str:
    return f": {review.reason}" if review.reason else ""


def arrival_fault(
    spec: LogRequestSpec, job: KusciaJob | None, load: RequesterLoad, policy: PartnerPolicySpec | None
) -> str:
    """Why nobody is asked about it at all."""
    if fault := request_fault(spec):
        return fault
    if fault := load_fault(spec.requester, load, policy):
        return fault
    return participation_fault(job, spec)


def previewed(
    request: LogRequest,
    before: LogRequestStatus,
    preview: LogExcerpt,
    decision: AdmissionDecision,
    policy: PartnerPolicySpec | None,
    now: datetime,
) -> RequestStep:
    """`before`: of the step that wanted the logs. The policy decides once, on the first preview."""
    if before.preview is None:
        if decision.verdict is Verdict.REFUSE:
            return RequestStep(ended(before, LogRequestPhase.REJECTED, decision.sentence, now, by=POLICY))
        if decision.verdict is Verdict.ALLOW:
            keep = min(bounds_of(request.spec).keep, policy_bounds(policy).keep)
            return _answer(request, before, preview, keep, POLICY, now)
    why = f" ({decision.sentence})" if decision.reasons else ""
    words = (
        f"waits for approval by {request.spec.owner} since {rfc3339(now)}{why}; "
        f"`coterie logrequest preview {request.metadata.name}` shows what would be sent"
    )
    status = replace(before, phase=str(LogRequestPhase.AWAITING_APPROVAL), message=words, preview=preview)
    record = LogRequestRecord(
        time=rfc3339(now), event="Previewed", message=f"{preview.lines} lines", digest=preview.digest
    )
    return RequestStep(recorded(status, record), after=_seconds_until(before.expire_time, now))


def _answer(
    request: LogRequest, status: LogRequestStatus, sent: LogExcerpt, keep: int, by: str, now: datetime
) -> RequestStep:
    until = rfc3339(now + timedelta(seconds=keep))
    words = f"{sent.lines} lines were sent to {request.spec.requester}; they are removed at {until}"
    done = replace(
        status,
        phase=str(LogRequestPhase.ANSWERED),
        message=words,
        preview=None,
        answer=sent,
        digest=sent.digest,
        decided_by=by,
        expire_time=until,
    )
    record = LogRequestRecord(time=rfc3339(now), event="Answered", by=by, message=words, digest=sent.digest)
    return RequestStep(recorded(done, record), after=float(keep))


# The standing policy.


def policy_bounds(policy: PartnerPolicySpec | None) -> LogBounds:
    """What one answer may be without a person."""
    logs = (policy.logs if policy is not None else None) or PartnerLogPolicy()
    default = bounds_of(LogRequestSpec(requester="", owner="", job="", reason=""))
    return LogBounds(
        lines=logs.max_lines or default.lines,
        bytes=logs.max_bytes or default.bytes,
        expires=default.expires,
        keep=logs.keep_seconds or default.keep,
        sources=logs.sources or (),
    )


def decide(
    policy: PartnerPolicySpec | None,
    spec: LogRequestSpec,
    job: KusciaJob | None,
    tasks: Mapping[str, KusciaTask],
    load: RequesterLoad,
) -> AdmissionDecision:
    """Whether it is answered without a person. `tasks`: by task id."""
    if policy is None:
        return AdmissionDecision(Verdict.ASK, (Reason("no-policy", f"there is no policy for {spec.requester}"),))
    reasons = tuple(_against(policy, spec, job, tasks, load))
    if not reasons:
        return AdmissionDecision(Verdict.ALLOW)
    return AdmissionDecision(Verdict.REFUSE if policy.outside == REFUSE else Verdict.ASK, reasons)


def _against(
    policy: PartnerPolicySpec,
    spec: LogRequestSpec,
    job: KusciaJob | None,
    tasks: Mapping[str, KusciaTask],
    load: RequesterLoad,
) -> Iterable[Reason]:
    logs = policy.logs or PartnerLogPolicy()
    if faults := policy_faults(policy):
        yield Reason("spec", f"the policy of {spec.requester} cannot be applied: {'; '.join(faults)}")
    if not logs.sources:
        yield Reason(NO_POLICY_FOR_LOGS, f"the policy of {spec.requester} opens no logs")
        return
    asked, most = bounds_of(spec), policy_bounds(policy)
    if beyond := [each for each in asked.sources if each not in most.sources]:
        yield Reason("logs.sources", f"{spec.requester} may not read {', '.join(beyond)}")
    for rule, wanted, limit, unit in (
        ("logs.maxLines", asked.lines, most.lines, "lines"),
        ("logs.maxBytes", asked.bytes, most.bytes, "bytes"),
        ("logs.keepSeconds", asked.keep, most.keep, "seconds of keeping"),
    ):
        if wanted > limit:
            yield Reason(rule, f"asks for {wanted} {unit}, {spec.requester} may have {limit}")
    if logs.only_failed and job is not None:
        found = [tasks.get(task.task_id) for task in shared_tasks(job, spec)]
        if any(task is None or task.status.phase != TaskPhase.FAILED for task in found):
            yield Reason("logs.onlyFailed", f"{spec.requester} may read logs of failed tasks only")
    per_day = logs.per_day if logs.per_day is not None else DEFAULT_PER_DAY
    if load.automatic_last_day >= per_day:
        yield Reason("logs.perDay", f"{per_day} requests of {spec.requester} were answered in the last 24 hours")


# Records.


def surplus(records: Iterable[LogRequest], now: datetime) -> tuple[LogRequest, ...]:
    """Records that make room for newer ones. Those that count for `perDay` stay: a partner could have them forgotten."""
    over = [each for each in records if is_over(each.status) and not counts_for_policy(each, now)]
    over.sort(key=lambda each: each.status.end_time)
    return tuple(over[: max(0, len(over) - MOST_RECORDS)])


def mirror(request: LogRequest, now: datetime) -> RequestStep:
    """Removed when nobody else did: after longer than any request may live."""
    made = parsed_time(request.metadata.creation_timestamp or "") or now
    left = 3 * RETENTION_SECONDS - (now - made).total_seconds()
    return RequestStep(request.status, after=left + 1 if left > 0 else None, delete=left <= 0)
