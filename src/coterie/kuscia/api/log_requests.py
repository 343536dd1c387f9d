"""Rules of LogRequests that both sides share: what may be asked, what is taken from a partner, what travels. Pure.

    requester                                                owner
    LogRequest ── spec, without the review ──────────────>   request_taken, request_fault, participation_fault
    status_from_owner  <── phase, sentence, answer ───────   status_for_requester

Neither side takes from the other more than these fields, each within its bounds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec
from msgspec.structs import replace

from coterie.base.clock import parse_rfc3339, rfc3339
from coterie.kube.api.meta import Object
from coterie.kube.api.names import dns_label_faults, dns_subdomain_faults
from coterie.kuscia.api import labels
from coterie.kuscia.api.domain_ownership import master_of
from coterie.kuscia.api.log_query import ALL_SOURCES, ENGINE, printable
from coterie.kuscia.api.partner_requests import PartnerRequestError
from coterie.kuscia.api.types.domain import Domain
from coterie.kuscia.api.types.job import KusciaJob, KusciaTask, TaskTemplate
from coterie.kuscia.api.types.log_request import (
    OPEN,
    LogExcerpt,
    LogRequest,
    LogRequestPhase,
    LogRequestRecord,
    LogRequestSpec,
    LogRequestStatus,
)
from coterie.kuscia.api.types.partner_policy import PartnerLogPolicy, PartnerPolicySpec

MOST_LINES: Final = 5000
MOST_BYTES: Final = 512 << 10
LONGEST_SECONDS: Final = 7 * 86400
"""For which a request may stay open, and an answer may be kept."""
RETENTION_SECONDS: Final = 7 * 86400
"""For which a request that ended stays as a record, without its answer."""
_DEFAULT_LINES, _DEFAULT_BYTES, _DEFAULT_SECONDS = 500, 256 << 10, 86400
_LONGEST_REASON, _LONGEST_GREP, _LONGEST_MESSAGE = 1000, 200, 500
_HISTORY: Final = 20
DEFAULT_OPEN: Final = 5
MOST_PER_HOUR: Final = 60
"""Requests of one partner's control plane, whatever became of them: reading logs and keeping records costs us."""
POLICY: Final = "policy"
"""Who decided, when no person did."""
_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)
FROM: Final = "coterie.io/log-request-from"
"""Annotation of an incoming request: way, control plane of the requester, and uid of what it was made from."""


@dataclass(frozen=True, slots=True)
class LogBounds:
    """What a request asks for, with the defaults."""

    lines: int
    bytes: int
    expires: int
    keep: int
    sources: tuple[str, ...]


def bounds_of(spec: LogRequestSpec) -> LogBounds:
    return LogBounds(
        lines=min(spec.max_lines or _DEFAULT_LINES, MOST_LINES),
        bytes=min(spec.max_bytes or _DEFAULT_BYTES, MOST_BYTES),
        expires=min(spec.expires_seconds or _DEFAULT_SECONDS, LONGEST_SECONDS),
        keep=min(spec.keep_seconds or _DEFAULT_SECONDS, LONGEST_SECONDS),
        sources=tuple(dict.fromkeys(spec.sources or (ENGINE,))),
    )


# What may be asked.


def request_fault(spec: LogRequestSpec) -> str:
    """Why nobody can answer it, as a sentence; empty when somebody can."""
    for field, name, faults in (
        ("requester", spec.requester, dns_label_faults(spec.requester)),
        ("owner", spec.owner, dns_label_faults(spec.owner)),
        ("job", spec.job, dns_subdomain_faults(spec.job)),
    ):
        if faults:
            return f"{field}: {printable(name[:64])!r} is no name"
    if spec.requester == spec.owner:
        return f"{spec.owner} needs no request for its own logs: `coterie job logs {spec.job}`"
    if not spec.reason.strip() or len(spec.reason) > _LONGEST_REASON:
        return f"reason: say in 1 to {_LONGEST_REASON} characters why the logs are needed"
    if len(spec.task) > 253 or len(spec.grep) > _LONGEST_GREP or len(spec.requested_by) > 253:
        return "task, grep or requestedBy is too long"
    for field, text in (("task", spec.task), ("grep", spec.grep)):
        if printable(text) != text:
            return f"{field}: has characters that cannot be shown"
    if unknown := [each for each in spec.sources or () if each not in ALL_SOURCES]:
        return f"sources: {printable(unknown[0][:64])!r} is unknown; there are {', '.join(ALL_SOURCES)}"
    for field, number, most in (
        ("maxLines", spec.max_lines, MOST_LINES),
        ("maxBytes", spec.max_bytes, MOST_BYTES),
        ("expiresSeconds", spec.expires_seconds, LONGEST_SECONDS),
        ("keepSeconds", spec.keep_seconds, LONGEST_SECONDS),
    ):
        if not 0 <= number <= most:
            return f"{field}: {number} is not between 0 and {most}"
    for field, text in (("since", spec.since), ("until", spec.until)):
        try:
            _time(text)
        except ValueError:
            return f"{field}: {printable(text[:64])!r} is no time such as 2026-01-02T03:04:05Z"
    return ""


def _time(text: str) -> datetime | None:
    return parse_rfc3339(text) if text else None


def parsed_time(text: str) -> datetime | None:
    """None also for what is no time."""
    try:
        return parse_rfc3339(text) if text else None
    except ValueError:
        return None


def times_of(spec: LogRequestSpec, job: KusciaJob) -> tuple[datetime | None, datetime | None]:
    """Not before the job was made: names of earlier jobs and tasks may have been the same."""
    since, made = _time(spec.since), parsed_time(job.metadata.creation_timestamp or "")
    return max((each for each in (since, made) if each is not None), default=None), _time(spec.until)


def shared_tasks(job: KusciaJob, spec: LogRequestSpec) -> tuple[TaskTemplate, ...]:
    """The tasks that are asked about and that both domains take part in."""
    return tuple(
        task
        for task in job.spec.tasks
        if (not spec.task or task.alias == spec.task)
        and {spec.requester, spec.owner} <= {party.domain_id for party in task.parties}
    )


def tasks_of_job(job: KusciaJob, tasks: Iterable[KusciaTask]) -> dict[str, KusciaTask]:
    """By id, the tasks that were made here for this job. Whoever begins a job chooses the ids of its tasks, and may choose those of
    other jobs: the ids in a job prove nothing."""
    return {
        task.metadata.name: task
        for task in tasks
        if job.metadata.uid and (task.metadata.labels or {}).get(labels.KUSCIA_JOB_UID) == job.metadata.uid
    }


def readable_tasks(job: KusciaJob, spec: LogRequestSpec, own: Mapping[str, KusciaTask]) -> tuple[TaskTemplate, ...]:
    """The shared tasks that ran here for this job with both domains as parties."""
    return tuple(
        each
        for each in shared_tasks(job, spec)
        if (task := own.get(each.task_id)) is not None
        and {spec.requester, spec.owner} <= {party.domain_id for party in task.spec.parties}
    )


def participation_fault(job: KusciaJob | None, spec: LogRequestSpec) -> str:
    """Only parties of a task may ask each other about it. The same sentence whether there is no such job or they are strangers to
    it: a partner does not learn which jobs there are."""
    tasks = shared_tasks(job, spec) if job is not None else ()
    if tasks:
        return ""
    what = f"task {spec.task} of job {spec.job}" if spec.task else f"job {spec.job}"
    return f"{spec.requester} and {spec.owner} took part in no {what} that is known to {spec.owner}"


def requester_fault(name: str, domain: Domain | None, control_plane: str) -> str:
    """A control plane asks for its own domains only."""
    if domain is None or not domain.partner or master_of(name, domain) != control_plane:
        return f"{printable(name[:64])} is no domain of {control_plane}"
    return ""


def request_taken(given: object) -> LogRequestSpec:
    """From the spec of a LogRequest that a partner wrote. The review is the owner's own."""
    try:
        spec = msgspec.convert(given, LogRequestSpec)
    except msgspec.ValidationError as problem:
        raise PartnerRequestError(f"it cannot be read: {problem}") from problem
    if fault := request_fault(spec):
        raise PartnerRequestError(fault)
    return replace(
        spec, review=None, reason=printable(spec.reason), requested_by=printable(spec.requested_by), grep=spec.grep
    )


def incoming_request(name: str, spec: LogRequestSpec, origin: str) -> Object:
    """The owner's object. `origin`: see FROM."""
    return {
        "metadata": {"name": name, "namespace": spec.owner, "annotations": {FROM: origin}},
        "spec": msgspec.to_builtins(spec),
    }


def origin_of(way: str, control_plane: str, uid: str) -> str:
    return f"{way}/{control_plane}/{uid}"


def parse_origin(request: LogRequest) -> tuple[str, str, str]:
    """Way, control plane and uid; empty texts for what was made by hand."""
    way, _, rest = (request.metadata.annotations or {}).get(FROM, "").partition("/")
    control_plane, _, uid = rest.partition("/")
    return way, control_plane, uid


# States.


def recorded(status: LogRequestStatus, record: LogRequestRecord) -> LogRequestStatus:
    """The first record, which says who asked, always stays."""
    known = (*(status.history or ()), record)
    return replace(status, history=known if len(known) <= _HISTORY else (known[0], *known[-_HISTORY + 1 :]))


def ended(
    status: LogRequestStatus, phase: LogRequestPhase, message: str, now: datetime, *, by: str = ""
) -> LogRequestStatus:
    """Nothing that was read stays; what happened does."""
    done = replace(
        status, phase=str(phase), message=message, preview=None, answer=None, expire_time="", end_time=rfc3339(now)
    )
    record = LogRequestRecord(
        time=rfc3339(now), event=str(phase), by=by, message=message[:_LONGEST_MESSAGE], digest=status.digest
    )
    return recorded(done, record)


def is_over(status: LogRequestStatus) -> bool:
    """Nothing of it but the record is left."""
    return status.phase not in OPEN and status.phase != LogRequestPhase.ANSWERED


def withdrawn(status: LogRequestStatus, requester: str, now: datetime) -> LogRequestStatus:
    """The requester deleted it, or its control plane did."""
    if is_over(status):
        return status
    return ended(status, LogRequestPhase.WITHDRAWN, f"{requester} withdrew the request", now, by=requester)


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def excerpt_of(
    lines: Iterable[str],
    bounds: LogBounds,
    now: datetime,
    *,
    redactions: int = 0,
    truncated: bool = False,
    notes: Iterable[str] = (),
    generation: int = 0,
) -> LogExcerpt:
    """The newest of these redacted lines that fit."""
    kept: list[str] = []
    size = 0
    every = list(lines)
    for line in reversed(every[-bounds.lines :]):
        size += len(line.encode("utf-8", "replace")) + 1
        if size > bounds.bytes:
            break
        kept.append(line)
    text = "".join(f"{line}\n" for line in reversed(kept))
    return LogExcerpt(
        text=text,
        lines=len(kept),
        redactions=redactions,
        truncated=truncated or len(kept) < len(every),
        digest=digest_of(text),
        time=rfc3339(now),
        notes=tuple(printable(each)[:300] for each in notes)[:16] or None,
        generation=generation,
    )


# How much a partner asks for.


@dataclass(frozen=True, slots=True)
class RequesterLoad:
    """What the requester's control plane has here besides this request."""

    open: int = 0
    last_hour: int = 0
    automatic_last_day: int = 0


def counts_for_policy(request: LogRequest, now: datetime) -> bool:
    """It was answered without a person in the last 24 hours."""
    made = parsed_time(request.metadata.creation_timestamp or "")
    return made is not None and now - made < _DAY and request.status.decided_by == POLICY


def load_of(others: Iterable[LogRequest], now: datetime) -> RequesterLoad:
    opened = last_hour = automatic = 0
    for each in others:
        made = parsed_time(each.metadata.creation_timestamp or "")
        opened += each.status.phase in OPEN
        last_hour += made is not None and now - made < _HOUR
        automatic += counts_for_policy(each, now)
    return RequesterLoad(opened, last_hour, automatic)


def load_fault(requester: str, load: RequesterLoad, policy: PartnerPolicySpec | None) -> str:
    logs = (policy.logs if policy is not None else None) or PartnerLogPolicy()
    most = logs.open_requests if logs.open_requests is not None else DEFAULT_OPEN
    if load.open >= most:
        return f"{requester} has {load.open} open log requests here; at most {most} may wait at once"
    if load.last_hour >= MOST_PER_HOUR:
        return (
            f"{requester} made {load.last_hour} log requests here in the last hour; at most {MOST_PER_HOUR} are taken"
        )
    return ""


# What travels.


def status_for_requester(status: LogRequestStatus) -> LogRequestStatus:
    """Of the owner's status: neither the preview nor the history."""
    answered = status.phase == LogRequestPhase.ANSWERED
    return LogRequestStatus(
        phase=status.phase,
        message=status.message,
        expire_time=status.expire_time if answered else "",
        decided_by=status.decided_by,
        digest=status.digest,
        answer=status.answer if answered else None,
    )


def status_from_owner(request: LogRequest, there: LogRequestStatus, now: datetime) -> LogRequestStatus:
    """The requester's status after it has seen the owner's. What has ended stays ended."""
    own, owner = request.status, request.spec.owner
    if is_over(own) or there.phase == own.phase or there.phase in ("", LogRequestPhase.PENDING):
        return own
    message = printable(there.message)[:_LONGEST_MESSAGE]
    by = f"{owner}: {printable(there.decided_by)[:200]}" if there.decided_by else owner
    if there.phase == LogRequestPhase.AWAITING_APPROVAL:
        if own.phase == LogRequestPhase.ANSWERED:
            return own
        words = f"waits for approval by {owner} since {rfc3339(now)}; it expires at {own.expire_time}"
        record = LogRequestRecord(time=rfc3339(now), event="Received", by=owner)
        return recorded(replace(own, phase=there.phase, message=words), record)
    if there.phase == LogRequestPhase.ANSWERED:
        return _answered(request, there, by, now)
    for phase in (LogRequestPhase.REVOKED, LogRequestPhase.EXPIRED, LogRequestPhase.REJECTED):
        if there.phase == phase:
            return ended(replace(own, decided_by=by), phase, message or f"{owner}: {phase}", now, by=by)
    return own


def _answered(request: LogRequest, there: LogRequestStatus, by: str, now: datetime) -> LogRequestStatus:
    own, bounds = request.status, bounds_of(request.spec)
    answer = there.answer
    if answer is None:
        return own  # it is on its way
    if len(answer.text.encode("utf-8", "replace")) > bounds.bytes or answer.text.count("\n") > bounds.lines:
        words = f"the answer of {request.spec.owner} is larger than was asked for"
        return ended(own, LogRequestPhase.REJECTED, words, now, by=by)
    if digest_of(answer.text) != answer.digest:
        return ended(
            own, LogRequestPhase.REJECTED, f"the answer of {request.spec.owner} does not fit its digest", now, by=by
        )
    text = "".join(f"{printable(line)}\n" for line in answer.text.removesuffix("\n").split("\n")) if answer.text else ""
    shown = replace(
        answer,
        text=text,
        time=printable(answer.time)[:40],
        notes=tuple(printable(each)[:300] for each in answer.notes or ())[:16] or None,
    )
    until = now + timedelta(seconds=bounds.keep)
    if (theirs := parsed_time(there.expire_time)) is not None:
        until = min(until, theirs)
    words = f"{request.spec.owner} sent {shown.lines} lines; they are removed at {rfc3339(until)}"
    status = replace(
        own,
        phase=str(LogRequestPhase.ANSWERED),
        message=words,
        answer=shown,
        digest=answer.digest,
        decided_by=by,
        expire_time=rfc3339(until),
    )
    record = LogRequestRecord(time=rfc3339(now), event="Answered", by=by, message=words, digest=answer.digest)
    return recorded(status, record)
