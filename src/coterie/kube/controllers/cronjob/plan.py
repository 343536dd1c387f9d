"""What a cron job does now: start a job, wait, forget old ones. Pure."""

from __future__ import annotations

import zoneinfo
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice

import msgspec

from coterie.base.clock import rfc3339
from coterie.kube.api.meta import Object
from coterie.kube.api.pod_state import parse_time
from coterie.kube.api.types.batch import CRON_JOBS, JOBS, CronJob, CronJobStatus, Job
from coterie.kube.api.types.core import ObjectReference
from coterie.kube.control.controller_refs import reference
from coterie.kube.controllers.cronjob.schedule import CronSchedule, parse

SCHEDULED_AT = "batch.kubernetes.io/cronjob-scheduled-timestamp"
TOO_MANY = 100
"""Missed firings above which a warning is due: the clock is wrong, or we were away for long."""
_SLACK = 0.1
"""Seconds after a firing at which we look, so that it is past."""


@dataclass(slots=True)
class Plan:
    status: CronJobStatus
    create: Object | None = None
    scheduled: datetime | None = None
    """The firing the new job is for."""
    replace: list[Job] = field(default_factory=list)
    """Running jobs that make room for the new one."""
    forget: list[Job] = field(default_factory=list)
    notes: list[tuple[str, str, str]] = field(default_factory=list)
    """Events: type, reason, message."""
    after: float | None = None


def plan(cron: CronJob, jobs: Sequence[Job], now: datetime) -> Plan:
    """`jobs` are those the cron job controls."""
    out = Plan(_status(cron, jobs))
    _note_endings(out, cron, jobs)
    out.forget = _too_old(cron, jobs)
    if cron.metadata.deleting or cron.spec.suspend:
        return out
    try:
        schedule, zone = parse(cron.spec.schedule), _zone(cron.spec.time_zone)
    except ValueError as error:
        out.notes.append(("Warning", "UnparseableSchedule", f"unparseable schedule {cron.spec.schedule!r}: {error}"))
        return out
    except zoneinfo.ZoneInfoNotFoundError:
        out.notes.append(("Warning", "UnknownTimeZone", f"invalid timeZone: {cron.spec.time_zone!r}"))
        return out
    following = schedule.next_after(now, zone)
    if following is None:
        why = "time difference between two schedules is less than 1 second"  # so Kubernetes says that there is no next one
        out.notes.append(("Warning", "InvalidSchedule", f"invalid schedule: {cron.spec.schedule} : {why}"))
        return out
    _start_if_due(out, cron, jobs, schedule, zone, now)
    out.after = (following - now).total_seconds() + _SLACK
    return out


def _zone(name: str | None) -> tzinfo:
    return zoneinfo.ZoneInfo(name) if name else UTC


def _start_if_due(
    out: Plan, cron: CronJob, jobs: Sequence[Job], schedule: CronSchedule, zone: tzinfo, now: datetime
) -> None:
    since = parse_time(cron.status.last_schedule_time) or parse_time(cron.metadata.creation_timestamp) or now
    deadline = cron.spec.starting_deadline_seconds
    # What is later than its deadline allows is not due any more.
    horizon = since if deadline is None else max(since, now - timedelta(seconds=deadline))
    due = schedule.latest(horizon, now, zone)
    if due is None:
        return
    missed = sum(1 for at in islice(schedule.after(horizon, zone), TOO_MANY + 1) if at <= now)
    if missed > TOO_MANY:
        message = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew"
        out.notes.append(("Warning", "TooManyMissedTimes", message))
    name = job_name(cron, due)
    if any(job.metadata.name == name for job in jobs):
        out.status = _scheduled(out.status, due)  # made before, but the status did not get through
        return
    running = [job for job in jobs if not job.finished]
    if running and cron.spec.concurrency_policy == "Forbid":
        message = "Not starting job because prior execution is running and concurrency policy is Forbid"
        out.notes.append(("Normal", "JobAlreadyActive", message))
        return
    if cron.spec.concurrency_policy == "Replace":
        out.replace = [job for job in running if not job.metadata.deleting]
    out.create = body(cron, due, zone)
    out.scheduled = due


def job_name(cron: CronJob, due: datetime) -> str:
    """The same for the same firing, so that none is started twice."""
    return f"{cron.metadata.name}-{int(due.timestamp()) // 60}"


def body(cron: CronJob, due: datetime, zone: tzinfo) -> Object:
    template = cron.spec.job_template
    meta = template.metadata or {}
    return {
        "apiVersion": JOBS.resource.api_version,
        "kind": JOBS.resource.kind,
        "metadata": {
            "name": job_name(cron, due),
            "namespace": cron.metadata.namespace,
            "labels": dict(meta.get("labels") or {}),
            "annotations": {
                **(meta.get("annotations") or {}),
                SCHEDULED_AT: due.astimezone(zone).isoformat(timespec="seconds").replace("+00:00", "Z"),
            },
            "ownerReferences": [msgspec.to_builtins(reference(CRON_JOBS, cron.metadata))],
        },
        "spec": template.spec or {},
    }


def started(wanted: Plan, due: datetime, job: Object) -> CronJobStatus:
    """The status when the new job is there and those it replaces are not."""
    meta = job["metadata"]
    entry = ObjectReference(
        api_version=JOBS.resource.api_version,
        kind=JOBS.resource.kind,
        namespace=meta.get("namespace", ""),
        name=meta["name"],
        uid=meta.get("uid", ""),
        resource_version=meta.get("resourceVersion", ""),
    )
    gone = {replaced.metadata.uid for replaced in wanted.replace}
    kept = (known for known in wanted.status.active or () if known.uid not in gone)
    return msgspec.structs.replace(_scheduled(wanted.status, due), active=(*kept, entry))


def _scheduled(status: CronJobStatus, due: datetime) -> CronJobStatus:
    return msgspec.structs.replace(status, last_schedule_time=rfc3339(due))


# Status and history.


def _status(cron: CronJob, jobs: Sequence[Job]) -> CronJobStatus:
    known = {entry.uid: entry for entry in cron.status.active or ()}
    active = tuple(
        known.get(job.metadata.uid)
        or ObjectReference(
            api_version=JOBS.resource.api_version,
            kind=JOBS.resource.kind,
            namespace=job.metadata.namespace,
            name=job.metadata.name,
            uid=job.metadata.uid,
            resource_version=job.metadata.resource_version,
        )
        for job in sorted(jobs, key=lambda job: job.metadata.name)
        if not job.finished
    )
    ends = [job.status.completion_time for job in jobs if job.finished == "Complete" and job.status.completion_time]
    best = max((*ends, cron.status.last_successful_time or ""), default="")
    return msgspec.structs.replace(cron.status, active=active or None, last_successful_time=best or None)


def _note_endings(out: Plan, cron: CronJob, jobs: Sequence[Job]) -> None:
    by_uid = {job.metadata.uid: job for job in jobs}
    for entry in cron.status.active or ():
        job = by_uid.get(entry.uid)
        if job is None:
            out.notes.append(("Normal", "MissingJob", f"Active job went missing: {entry.name}"))
        elif job.finished:
            message = f"Saw completed job: {entry.name}, condition: {job.finished}"
            out.notes.append(("Normal", "SawCompletedJob", message))


def _too_old(cron: CronJob, jobs: Sequence[Job]) -> list[Job]:
    out: list[Job] = []
    limits = (
        ("Complete", cron.spec.successful_jobs_history_limit),
        ("Failed", cron.spec.failed_jobs_history_limit),
    )
    for outcome, limit in limits:
        if limit is None:
            continue
        ended = [job for job in jobs if job.finished == outcome and not job.metadata.deleting]
        ended.sort(key=lambda job: (job.status.start_time or "", job.metadata.name))
        out += ended[: max(0, len(ended) - limit)]
    return out
