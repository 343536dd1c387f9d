"""Descriptions of the Kuscia kinds that people follow: domains, jobs and tasks."""

from __future__ import annotations

from typing import Any

import msgspec

from coterie.base.trace import trace_id
from coterie.cli.describe_sheet import NONE, Sheet, moment, pairs, scalar
from coterie.kube.api.resources import Resource
from coterie.kube.api.types.pods import Pod
from coterie.kube.apiserver.tables.ages import age, human_duration, parse_time
from coterie.kuscia.api import labels
from coterie.kuscia.api.jobs.phases import JOB_ENDED
from coterie.kuscia.api.types.job import TaskResourceGroup
from coterie.kuscia.api.types.task_resource import TaskResource
from coterie.kuscia.api.waiting import Waiting, group_waiting, pod_waiting, reservation_waiting

Object = dict[str, Any]


def domain(sheet: Sheet, obj: Object, now: float) -> None:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    sheet.field("Created", _created(obj, now))
    sheet.field("Role", spec.get("role") or "own")
    if spec.get("master"):
        sheet.field("Master", spec["master"])
    sheet.field("Protocols", ", ".join(spec.get("interConnProtocols") or ()) or NONE)
    sheet.field("Certificate", "present" if spec.get("cert") else NONE)
    auth = spec.get("authCenter") or {}
    sheet.field(
        "Authentication", " ".join(filter(None, (auth.get("authenticationType"), auth.get("tokenGenMethod")))) or NONE
    )
    sheet.field("Most Pods", scalar((spec.get("resourceQuota") or {}).get("podMaxCount")))
    nodes = status.get("nodeStatuses") or []
    if nodes:
        with sheet.section("Nodes"):
            rows = (
                (n.get("name"), n.get("status"), n.get("version"), age(n.get("lastHeartbeatTime"), now)) for n in nodes
            )
            sheet.table(("Name", "Status", "Version", "Heartbeat"), rows)
    else:
        sheet.field("Nodes", NONE)
    tokens = [token.get("state") for token in status.get("deployTokenStatuses") or ()]
    sheet.field("Deploy Tokens", f"{tokens.count('unused')} unused, {tokens.count('used')} used")


def waiting(obj: Object, resource: Resource) -> str:
    """What an engine's pod or a reservation waits for; empty for nothing, and for kinds whose status has a message."""
    found: Waiting | None = None
    marks = (obj.get("metadata") or {}).get("annotations") or {}
    try:
        match (resource.group, resource.kind):
            case ("", "Pod") if labels.KUSCIA_TASK_ID in marks:
                found = pod_waiting(msgspec.convert(obj, Pod, strict=False))
            case ("kuscia.secretflow", "TaskResource"):
                found = reservation_waiting(msgspec.convert(obj, TaskResource, strict=False))
            case ("kuscia.secretflow", "TaskResourceGroup"):
                found = group_waiting(msgspec.convert(obj, TaskResourceGroup, strict=False))
    except msgspec.ValidationError:
        return ""  # its fields are shown all the same
    return found.sentence if found is not None else ""


def job(sheet: Sheet, obj: Object, now: float) -> None:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    sheet.field("Initiator", spec.get("initiator") or "")
    sheet.field("Trace ID", trace_id(spec.get("initiator") or "", (obj.get("metadata") or {}).get("name") or ""))
    sheet.field("Schedule Mode", spec.get("scheduleMode") or "Strict")
    sheet.field("Parallelism", spec.get("maxParallelism") or 1)
    labels_ = (obj.get("metadata") or {}).get("labels") or {}
    prefix = labels.KUSCIA_JOB_CUSTOM_FIELDS_PREFIX
    custom = {key.removeprefix(prefix): value for key, value in labels_.items() if key.startswith(prefix)}
    if custom:
        sheet.fields("Custom Fields", pairs(custom))
    if labels_.get(labels.KUSCIA_JOB_STAGE):
        by = labels_.get(labels.KUSCIA_JOB_STAGE_TRIGGER) or spec.get("initiator") or ""
        sheet.field("Last Order", f"{labels_[labels.KUSCIA_JOB_STAGE]}, by {by}")
    _progress(sheet, obj, now)
    # Keys are names of domains, which are not to be made into titles.
    approvals = status.get("approveStatus") or {}
    records = status.get("approvalRecords") or {}
    given = {party: f"{word}{_answered(records.get(party), now)}" for party, word in approvals.items()}
    for title, answers in (("Approvals", given), ("Stages", status.get("stageStatus"))):
        if answers:
            sheet.fields(title, pairs(answers, ": "))
    phases = status.get("taskStatus") or {}
    absent = "Not run" if status.get("phase") in JOB_ENDED else "Waiting"
    with sheet.section("Tasks"):
        rows = [
            (
                task.get("alias"),
                task.get("taskID") or NONE,
                phases.get(task.get("taskID") or "", absent),
                ",".join(task.get("dependencies") or ()) or NONE,
                "yes" if task.get("tolerable") else "no",
                task.get("appImage"),
                _parties(task.get("parties") or ()),
            )
            for task in spec.get("tasks") or ()
        ]
        sheet.table(("Alias", "Task", "Phase", "After", "Tolerable", "Image", "Parties"), rows)
    if attempts := status.get("taskAttempts"):
        with sheet.section("Failed Attempts"):
            attempt_rows = [
                (
                    name,
                    each.get("attempt"),
                    moment(each.get("endTime")) if each.get("endTime") else NONE,
                    moment(each["retryTime"]) if each.get("retryTime") else "never",
                    ": ".join(filter(None, (each.get("reason"), each.get("message")))),
                )
                for name in sorted(attempts)
                for each in attempts[name]
            ]
            sheet.table(("Task", "Attempt", "Ended", "Next", "Reason"), attempt_rows)
    _conditions(sheet, status)


def task(sheet: Sheet, obj: Object, now: float) -> None:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    sheet.field("Initiator", spec.get("initiator") or "")
    _progress(sheet, obj, now)
    if status.get("progress") is not None:
        sheet.field("Progress", f"{status['progress'] * 100:.0f}%")
    phases = {(p.get("domainID"), p.get("role")): p for p in status.get("partyTaskStatus") or ()}
    with sheet.section("Parties"):
        rows = []
        for party in spec.get("parties") or ():
            party_status = phases.get((party.get("domainID"), party.get("role"))) or {}
            rows.append(
                (
                    party.get("domainID"),
                    party.get("role") or NONE,
                    party.get("appImageRef"),
                    party_status.get("phase") or NONE,
                    party_status.get("message") or "",
                )
            )
        sheet.table(("Domain", "Role", "Image", "Phase", "Message"), rows)
    pods = status.get("podStatuses") or {}
    if pods:
        with sheet.section("Pods"):
            pod_rows = (
                (key, pods[key].get("podPhase"), pods[key].get("nodeName") or NONE, _why(pods[key]))
                for key in sorted(pods)
            )
            sheet.table(("Name", "Phase", "Node", "Reason"), pod_rows)
    services = status.get("serviceStatuses") or {}
    if services:
        with sheet.section("Services"):
            service_rows = (
                (
                    key,
                    services[key].get("portName") or NONE,
                    scalar(services[key].get("portNumber")),
                    services[key].get("scope") or NONE,
                )
                for key in sorted(services)
            )
            sheet.table(("Name", "Port", "Number", "Scope"), service_rows)
    _conditions(sheet, status)


def _created(obj: Object, now: float) -> str:
    created = (obj.get("metadata") or {}).get("creationTimestamp")
    return f"{moment(created)} ({age(created, now)} ago)" if created else NONE


def _progress(sheet: Sheet, obj: Object, now: float) -> None:
    status = obj.get("status") or {}
    sheet.field("Phase", status.get("phase") or "not taken up yet")
    if status.get("reason"):
        sheet.field("Reason", status["reason"])
    if status.get("message"):
        sheet.fields("Message", str(status["message"]).splitlines())
    sheet.field("Created", _created(obj, now))
    started, ended = parse_time(status.get("startTime")), parse_time(status.get("completionTime"))
    if started is not None:
        sheet.field("Started", moment(status["startTime"]))
        if ended is not None:
            sheet.field("Completed", moment(status["completionTime"]))
        sheet.field("Duration", human_duration((now if ended is None else ended) - started))


def _answered(record: Object | None, now: float) -> str:
    if not record:
        return ""
    at = parse_time(record.get("at"))
    return f", by {record.get('by')}" + (f", {human_duration(now - at)} ago" if at is not None else "")


def _parties(parties: Any) -> str:
    return ", ".join(f"{p.get('domainID')} ({p['role']})" if p.get("role") else str(p.get("domainID")) for p in parties)


def _why(pod: Object) -> str:
    return ": ".join(filter(None, (pod.get("reason"), pod.get("message") or pod.get("terminationLog"))))


def _conditions(sheet: Sheet, status: Object) -> None:
    conditions = status.get("conditions") or []
    if conditions:
        with sheet.section("Conditions"):
            rows = ((c.get("type"), c.get("status"), c.get("reason") or "", c.get("message") or "") for c in conditions)
            sheet.table(("Type", "Status", "Reason", "Message"), rows)
