"""Spans of jobs as their objects change: precise when seen, true when not, each once; and those of calls between engines."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from coterie.base.clock import VirtualClock, rfc3339
from coterie.base.trace import Span, TraceParent, TraceRing, span_id, trace_id, traceparent
from coterie.kube.client.informer import ObjectChange
from coterie.kuscia.api import labels
from coterie.kuscia.api.jobs import trace_context
from coterie.kuscia.api.types.job import KusciaJob, KusciaTask
from coterie.kuscia.api.types.task_resource import TaskResource
from coterie.kuscia.control.job_spans import JobSpans
from coterie.kuscia.gateway.access_log_spans import IDLE, GatewayHops, parse_line, task_of

BEGIN = datetime(2026, 1, 2, 3, 4, 5, 250_000, tzinfo=UTC)
TRACE = trace_id("alice", "psi")


class Scene:
    def __init__(self) -> None:
        self.clock = VirtualClock(BEGIN)
        self.ring = TraceRing()
        self.spans = JobSpans(self.ring, self.clock, "alice")
        self._seen = 0

    @property
    def time(self) -> str:
        return rfc3339(self.clock.now())

    def new(self) -> dict[str, Span]:
        found, _, self._seen = self.ring.after(self._seen)
        return {each.name: each for each in found}

    def job(self, phase: str, created: str, validated: str = "", type_: Any = "updated", **status: Any) -> None:
        conditions = [{"type": "JobValidated", "status": "True", "lastTransitionTime": validated}] if validated else []
        made = {
            "metadata": {"name": "psi", "namespace": "cross-domain", "uid": "u-job", "creationTimestamp": created},
            "spec": {"initiator": "alice", "tasks": []},
            "status": {"phase": phase, "conditions": conditions, **status},
        }
        self.spans.job_changed(ObjectChange(type_, msgspec.convert(made, KusciaJob)))

    def task(self, created: str, type_: Any = "updated", conditions: Any = (), **status: Any) -> None:
        made = {
            "metadata": {
                "name": "psi-1",
                "namespace": "cross-domain",
                "uid": "u-task",
                "creationTimestamp": created,
                "labels": {labels.KUSCIA_JOB_UID: "u-job"},
                "annotations": {labels.KUSCIA_JOB_ID: "psi", labels.KUSCIA_TASK_ALIAS: "psi"},
            },
            "spec": {"initiator": "alice", "taskInputConfig": "{}", "parties": []},
            "status": {
                "conditions": [{"type": name, "status": "True", "lastTransitionTime": at} for name, at in conditions],
                **status,
            },
        }
        self.spans.task_changed(ObjectChange(type_, msgspec.convert(made, KusciaTask)))

    def pod(self, created: str, type_: Any = "updated", *, marks: Any = None, **status: Any) -> None:
        known = {labels.KUSCIA_CONTROLLER: labels.KUSCIA_CONTROLLER_TASK, labels.KUSCIA_TASK_UID: "u-task"}
        notes = {labels.KUSCIA_INITIATOR: "alice", labels.KUSCIA_TASK_ID: "psi-1", labels.KUSCIA_JOB_ID: "psi"}
        made = {
            "metadata": {
                "name": "psi-1-0",
                "namespace": "alice",
                "uid": "u-pod",
                "creationTimestamp": created,
                "labels": known if marks is None else marks,
                "annotations": notes,
            },
            "spec": {"nodeName": "n"},
            "status": status,
        }
        self.spans.pod_changed(ObjectChange(type_, made))


def seconds(span: Span) -> float:
    return (span.end - span.begin) / 1e9


async def test_a_job_that_waits_for_approval() -> None:
    scene = Scene()
    created = scene.time
    scene.job("initialized", created, type_="added")
    await scene.clock.advance(0.5)
    checked = scene.time
    scene.job("AwaitingApproval", created, checked)
    check = scene.new()["check"]
    assert seconds(check) == 0.5, "objects know whole seconds, whoever looks on knows more"
    await scene.clock.advance(90)
    scene.job("Pending", created, checked)
    approval = scene.new()["approval"]
    assert (approval.trace, approval.parent, seconds(approval)) == (TRACE, trace_context.job_span("u-job"), 90)
    await scene.clock.advance(10)
    scene.job("Failed", created, checked, completionTime=scene.time, message="engine failed")
    found = scene.new()
    assert list(found) == ["job psi"]
    assert (found["job psi"].span, found["job psi"].error) == (trace_context.job_span("u-job"), "engine failed")
    assert seconds(found["job psi"]) == 100.5
    scene.job("Failed", created, checked, completionTime=scene.time, message="engine failed", type_="deleted")
    assert scene.new() == {}, "each span once"


async def test_a_rejected_approval_says_so() -> None:
    scene = Scene()
    scene.job("AwaitingApproval", scene.time, scene.time, type_="added")
    await scene.clock.advance(5)
    scene.job("ApprovalReject", scene.time, scene.time, message="bob rejected it", completionTime=scene.time)
    assert scene.new()["approval"].error == "bob rejected it"


async def test_the_stages_of_a_task() -> None:
    scene = Scene()
    created = scene.time
    scene.task(created, "added", phase="Pending")
    assert scene.spans.tasks["psi-1"].trace == TRACE
    await scene.clock.advance(1)
    made = ("ResourceCreated", scene.time)
    pod = {"podName": "psi-1-0", "podPhase": "Pending", "namespace": "alice", "createTime": scene.time}
    scene.task(created, conditions=[made], phase="Pending", podStatuses={"alice/psi-1-0": pod})
    await scene.clock.advance(30)
    scene.task(created, conditions=[made], phase="Pending", podStatuses={"alice/psi-1-0": pod}, message="no room")
    await scene.clock.advance(30)
    pod |= {"scheduleTime": scene.time}
    scene.task(created, conditions=[made], phase="Pending", podStatuses={"alice/psi-1-0": pod})
    await scene.clock.advance(2)
    running = ("Running", scene.time)
    scene.task(created, conditions=[made, running], phase="Running", podStatuses={"alice/psi-1-0": pod})
    await scene.clock.advance(8)
    ended = [made, running, ("Success", scene.time)]
    scene.task(
        created, conditions=ended, phase="Succeeded", podStatuses={"alice/psi-1-0": pod}, completionTime=scene.time
    )
    found = scene.new()
    assert {name: seconds(each) for name, each in found.items()} == {
        "prepare": 1,
        "schedule": 60,
        "start": 2,
        "task psi": 71,
        "run": 8,
        "alice": 70,
    }
    assert found["task psi"].parent == trace_context.job_span("u-job")
    assert found["run"].parent == found["task psi"].span == found["alice"].parent
    assert not scene.spans.tasks
    assert {each.trace for each in found.values()} == {TRACE}


async def test_each_attempt_to_reserve_has_its_span() -> None:
    scene = Scene()
    scene.task(scene.time, "added", phase="Pending")

    def reservation(phase: str, at: str, reason: str = "", pods: Any = ({"name": "psi-1-0"},)) -> None:
        made = {
            "metadata": {
                "name": "psi-1-x",
                "namespace": "alice",
                "uid": "u-res",
                "labels": {labels.KUSCIA_TASK_UID: "u-task"},
                "annotations": {labels.KUSCIA_TASK_ID: "psi-1"},
            },
            "spec": {"pods": list(pods)},
            "status": {
                "phase": phase,
                "conditions": [{"type": phase, "status": "True", "lastTransitionTime": at, "reason": reason}],
            },
        }
        scene.spans.reservation_changed(ObjectChange("updated", msgspec.convert(made, TaskResource)))

    reservation("Reserving", scene.time)
    await scene.clock.advance(30)
    reservation("Failed", scene.time, "timed out")
    await scene.clock.advance(30)
    reservation("Reserving", scene.time)
    await scene.clock.advance(3)
    reservation("Reserved", scene.time)
    await scene.clock.advance(4)
    reservation("Schedulable", scene.time)
    found = scene.ring.after(0)[0]
    assert [(each.name, seconds(each), each.error) for each in found] == [
        ("reserve", 30, "timed out"),
        ("reserve", 3, ""),
        ("wait for partners", 4, ""),
    ]
    assert {each.parent for each in found} == {trace_context.party_span("u-task", "alice")}
    assert len({each.span for each in found}) == 3


async def test_a_pod_from_creation_to_its_end() -> None:
    scene = Scene()
    created = scene.time
    scene.pod(created, "added", phase="Pending")
    await scene.clock.advance(2)
    scheduled = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": scene.time}]
    scene.pod(created, phase="Pending", conditions=scheduled)
    await scene.clock.advance(3)
    begun = scene.time
    one = [{"name": "c", "state": {"running": {"startedAt": begun}}}]
    scene.pod(created, phase="Running", conditions=scheduled, containerStatuses=one)
    await scene.clock.advance(4)
    one = [{"name": "c", "state": {"terminated": {"startedAt": begun, "finishedAt": scene.time, "exitCode": 3}}}]
    scene.pod(created, phase="Failed", conditions=scheduled, containerStatuses=one)
    found = scene.new()
    assert {name: seconds(each) for name, each in found.items()} == {
        "schedule": 2,
        "start": 3,
        "pod psi-1-0": 9,
        "run": 4,
    }
    assert found["pod psi-1-0"].error == "Error (3)"
    assert found["pod psi-1-0"].span == trace_context.pod_span("u-task", "psi-1-0")


async def test_a_pod_that_no_task_has_is_not_of_a_job_whatever_it_says() -> None:
    scene = Scene()
    scene.pod(scene.time, "added", marks={"app": "x"}, phase="Running")
    scene.pod(scene.time, "deleted", marks={"app": "x"}, phase="Running")
    assert scene.new() == {} and not scene.spans.tasks


async def test_what_ended_before_the_start_was_recorded_before() -> None:
    scene = Scene()
    before = rfc3339(BEGIN - timedelta(seconds=600))
    ended = rfc3339(BEGIN - timedelta(seconds=300))
    scene.job("Succeeded", before, before, type_="added", completionTime=ended)
    assert scene.new() == {}
    scene.job("Running", before, before, type_="added")
    scene.task(before, "added", phase="Running", conditions=[("ResourceCreated", before), ("Running", before)])
    await scene.clock.advance(5)
    scene.task(before, "deleted", phase="Running")
    found = scene.new()
    assert seconds(found["task psi"]) == pytest.approx(605.25), "its begin is the object's"


# Calls between engines.

LINE = (
    '100.96.0.3 - [2026-01-02T03:04:05.000Z] {source} psi-1-0-global.bob.svc "POST /x HTTP/1.1" - - {status} - 5 17 20'
    "{durations} - - via_upstream {sender}"
)


def line(status: int = 200, source: str = "-", durations: str = " 1 2 3", sender: str = "-") -> str:
    return LINE.format(status=status, source=source, durations=durations, sender=sender)


def test_lines_of_both_listeners_are_read_and_those_of_older_gateways() -> None:
    parent = traceparent("ab" * 16, "cd" * 8)
    found = parse_line(line(503, "bob", "", parent))
    assert found is not None
    assert (found.source, found.host, found.status, found.received) == ("bob", "psi-1-0-global.bob.svc", 503, 17)
    assert found.end - found.begin == 20_000_000 and found.sender == TraceParent("ab" * 16, "cd" * 8)
    assert (parse_line(line()) or found).sender is None
    assert parse_line(line().removesuffix(" -")) is not None
    for broken in ("", "x", line().replace("2026-01-02T03:04:05.000Z", "2026-13-02T03:04:05.000Z")):
        assert parse_line(broken) is None


def test_the_task_of_a_host_is_the_longest_that_fits() -> None:
    spans = JobSpans(TraceRing(), VirtualClock(), "alice")
    tasks = {name: spans for name in ("psi", "psi-1")}
    assert task_of("psi-1-0-global.bob.svc", tasks) == "psi-1"  # type: ignore[arg-type]
    assert task_of("psi-x.bob.svc", tasks) == "psi"  # type: ignore[arg-type]
    assert task_of("psi.bob.svc", tasks) == task_of("other-1.bob.svc", tasks) == ""  # type: ignore[arg-type]


def test_what_a_partner_sends_is_a_link_and_never_the_parent() -> None:
    scene = Scene()
    scene.task(scene.time, "added", phase="Running")
    hops = GatewayHops(scene.ring, "alice")
    foreign = traceparent("ab" * 16, "cd" * 8)
    for _ in range(3):
        hops.read(line(source="bob", durations="", sender=foreign), scene.spans.tasks, 0.0, outbound=False)
    hops.read(line(source="bob", durations="", sender="00-junk"), scene.spans.tasks, 0.0, outbound=False)
    hops.flush(scene.spans.tasks, 1.0)
    assert scene.ring.recorded == 0
    hops.flush(scene.spans.tasks, IDLE)
    (found,) = scene.ring.after(0)[0]
    assert (found.name, found.trace) == ("calls from bob", TRACE)
    assert found.parent == span_id("party", "u-task", "alice")
    assert list(found.links) == [TraceParent("ab" * 16, "cd" * 8)]
    assert found.attributes["coterie.calls"] == 4
