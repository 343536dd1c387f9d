"""What traces cost: nothing where they are off, and what each step of a span takes where they are on. CPU time.

a place that could record    `if RING.on:`, the only thing that is there when traces are off
one span                     made and kept in the ring; as a line of the file
a line of an access log      read, and added to the calls of its task
one party of a trivial job   all changes of its objects as informers tell them (13), spans recorded and written
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from benchmarks.measures import Bench
from benchmarks.table import Row
from coterie.base import otlp, trace
from coterie.base.clock import VirtualClock, rfc3339
from coterie.base.trace import Span, TraceRing
from coterie.kube.client.informer import ObjectChange
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.job import KusciaJob, KusciaTask
from coterie.kuscia.api.types.task_resource import TaskResource
from coterie.kuscia.control.job_spans import JobSpans
from coterie.kuscia.gateway.access_log_spans import GatewayHops

_LINE = (
    '100.96.0.3 - [2026-01-02T03:04:05.000Z] - psi-1-0-global.bob.svc "POST /x HTTP/1.1" - - 200 - 5 17 20 1 2 3'
    " - - via_upstream -"
)


class _SteppingClock(VirtualClock):
    """Each look at it is a hundredth of a second later."""

    def now(self) -> datetime:
        self._elapsed += 0.01
        return super().now()


@dataclass(frozen=True, slots=True)
class TraceCosts:
    """Microseconds of CPU."""

    off: float
    record: float
    line: float
    access_line: float
    job: float
    spans: int
    """Of that job."""


def _each(work: Callable[[], object], count: int) -> float:
    """The best of three rounds: neighbours come and go."""
    best = float("inf")
    for _ in range(3):
        begin = time.process_time()
        for _ in range(count):
            work()
        best = min(best, time.process_time() - begin)
    return best / count * 1e6


def _loop(count: int) -> float:
    """The loop itself and a call that does nothing."""
    return _each(lambda: None, count)


def measure(count: int = 200_000) -> TraceCosts:
    ring, empty = TraceRing(), _loop(count)
    attributes = {"coterie.job": "psi", "coterie.task": "psi-1", "coterie.domain": "alice"}
    parent = trace.span_id("task", "u")

    def off() -> None:
        if ring.on:
            raise AssertionError

    def record() -> None:
        now = trace.now()
        ring.record(Span("ab" * 16, trace.new_span_id(), parent, "data read", now, now, attributes))

    record()
    span = ring.after(0)[0][0]
    tasks = _tasks()
    hops = GatewayHops(TraceRing(), "alice")
    spans = _job()
    return TraceCosts(
        off=max(0.0, _each(off, count) - empty),
        record=_each(record, count) - empty,
        line=_each(lambda: otlp.encode(otlp.export_request([span], {"service.name": "coterie"}, "1")), count // 20),
        access_line=_each(lambda: hops.read(_LINE, tasks, 0.0, outbound=True), count // 20),
        job=_each(_job, max(1, count // 2000)),
        spans=spans,
    )


def _tasks() -> Any:
    scene = JobSpans(TraceRing(), VirtualClock(), "alice")
    scene.task_changed(_CHANGES[1])
    return scene.tasks


def _job() -> int:
    """One party's objects from the first to the last change, and what is recorded as lines of a file."""
    ring = TraceRing()
    scene = JobSpans(ring, _SteppingClock(), "alice")
    for change in _CHANGES:
        match change.object:
            case KusciaJob():
                scene.job_changed(change)
            case KusciaTask():
                scene.task_changed(change)
            case TaskResource():
                scene.reservation_changed(change)
            case _:
                scene.pod_changed(change)
    found = ring.after(0)[0]
    otlp.encode(otlp.export_request(found, {"service.name": "coterie"}, "1"))
    return len(found)


def _objects() -> list[Any]:
    now = rfc3339(VirtualClock().now())

    def condition(name: str) -> dict[str, str]:
        return {"type": name, "status": "True", "lastTransitionTime": now}

    def job(phase: str, **status: Any) -> Any:
        meta = {"name": "psi", "namespace": "cross-domain", "uid": "u-job", "creationTimestamp": now}
        whole = {"phase": phase, "conditions": [condition("JobValidated")], **status}
        return msgspec.convert(
            {"metadata": meta, "spec": {"initiator": "alice", "tasks": []}, "status": whole}, KusciaJob
        )

    def task(*conditions: str, **status: Any) -> Any:
        meta = {
            "name": "psi-1",
            "namespace": "cross-domain",
            "uid": "u-task",
            "creationTimestamp": now,
            "labels": {labels.KUSCIA_JOB_UID: "u-job"},
            "annotations": {labels.KUSCIA_JOB_ID: "psi"},
        }
        spec = {"initiator": "alice", "taskInputConfig": "{}", "parties": []}
        whole = {"conditions": [condition(each) for each in conditions], **status}
        return msgspec.convert({"metadata": meta, "spec": spec, "status": whole}, KusciaTask)

    def reservation(phase: str) -> Any:
        meta = {"name": "r", "namespace": "alice", "uid": "u-res", "labels": {labels.KUSCIA_TASK_UID: "u-task"}}
        whole = {"phase": phase, "conditions": [condition(phase)]}
        return msgspec.convert({"metadata": meta, "spec": {"pods": [{"name": "p"}]}, "status": whole}, TaskResource)

    def pod(phase: str, **state: Any) -> Any:
        known = {labels.KUSCIA_CONTROLLER: labels.KUSCIA_CONTROLLER_TASK, labels.KUSCIA_TASK_UID: "u-task"}
        notes = {labels.KUSCIA_INITIATOR: "alice", labels.KUSCIA_TASK_ID: "psi-1", labels.KUSCIA_JOB_ID: "psi"}
        meta = {"name": "p", "namespace": "alice", "uid": "u-pod", "creationTimestamp": now, "labels": known}
        whole = {"phase": phase, "conditions": [condition("PodScheduled")]}
        if state:
            whole["containerStatuses"] = [{"name": "c", "state": state}]
        return {"metadata": {**meta, "annotations": notes}, "spec": {"nodeName": "n"}, "status": whole}

    made = [
        job("AwaitingApproval"),
        task(phase="Pending"),
        job("Running"),
        reservation("Reserving"),
        reservation("Reserved"),
        reservation("Schedulable"),
        pod("Pending"),
        task("ResourceCreated", phase="Pending"),
        pod("Running", running={"startedAt": now}),
        task("ResourceCreated", "Running", phase="Running"),
        pod("Succeeded", terminated={"startedAt": now, "finishedAt": now, "exitCode": 0}),
        task("ResourceCreated", "Running", "Success", phase="Succeeded", completionTime=now),
        job("Succeeded", completionTime=now),
    ]
    return [ObjectChange("updated", each) for each in made]


_CHANGES = _objects()


def traces(bench: Bench) -> list[Row]:
    found = measure(200_000 if bench.plan.seconds >= 1 else 2000)
    return [
        Row("traces: a place that could record, traces off", found.off * 1000, "ns", found.off),
        Row("traces: one span into the ring", found.record, "µs", found.record),
        Row("traces: one span as a line of the file", found.line, "µs", found.line),
        Row("traces: one line of an access log", found.access_line, "µs", found.access_line),
        Row("traces: one party of a trivial job, all of it", found.job, "µs", found.job, note=f"{found.spans} spans"),
    ]


if __name__ == "__main__":
    print(measure())
