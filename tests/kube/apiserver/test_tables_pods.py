"""The columns of pods: one row for each way a pod can be."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from coterie.kube.api.resources import BUILTIN
from coterie.kube.apiserver.tables.build import builder_for

NOW = datetime(2026, 11, 15, 9, 0, tzinfo=UTC).timestamp()
PODS = next(r for r in BUILTIN if (r.group, r.plural) == ("", "pods"))
BUILDER = builder_for(PODS)


def pod(
    *,
    phase: str = "Running",
    containers: int = 1,
    init: list[str] | None = None,
    statuses: list[dict[str, Any]] | None = None,
    init_statuses: list[dict[str, Any]] | None = None,
    conditions: list[dict[str, str]] | None = None,
    deleted: bool = False,
    reason: str = "",
    **spec: Any,
) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": "p", "namespace": "default", "creationTimestamp": "2026-11-15T08:55:00Z"}
    if deleted:
        meta["deletionTimestamp"] = "2026-11-15T08:59:00Z"
    status: dict[str, Any] = {"phase": phase}
    for key, value in (
        ("containerStatuses", statuses),
        ("initContainerStatuses", init_statuses),
        ("conditions", conditions),
        ("reason", reason),
    ):
        if value:
            status[key] = value
    body: dict[str, Any] = {"containers": [{"name": f"c{i}", "image": "i"} for i in range(containers)], **spec}
    if init:
        # "name*" is a sidecar: an init container that is restarted for ever
        body["initContainers"] = [
            {"name": n.rstrip("*"), **({"restartPolicy": "Always"} if n.endswith("*") else {})} for n in init
        ]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": body, "status": status}


def running(name: str = "c0", ready: bool = True, restarts: int = 0, **more: Any) -> dict[str, Any]:
    return {"name": name, "ready": ready, "restartCount": restarts, "state": {"running": {}}, **more}


def waiting(reason: str, name: str = "c0", restarts: int = 0, **more: Any) -> dict[str, Any]:
    return {"name": name, "ready": False, "restartCount": restarts, "state": {"waiting": {"reason": reason}}, **more}


def ended(name: str = "c0", **terminated: Any) -> dict[str, Any]:
    return {"name": name, "ready": False, "restartCount": 0, "state": {"terminated": terminated}}


def last(finished: str) -> dict[str, Any]:
    return {"lastState": {"terminated": {"exitCode": 1, "finishedAt": finished}}}


INITIALIZED = {"type": "Initialized", "status": "True"}
READY = {"type": "Ready", "status": "True"}

ROWS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "pending": (pod(phase="Pending"), "0/1", "Pending", "0"),
    "no-status": ({**pod(), "status": {}}, "0/1", "", "0"),
    "gated": (
        pod(phase="Pending", conditions=[{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]),
        "0/1", "SchedulingGated", "0",
    ),
    "running": (pod(statuses=[running()]), "1/1", "Running", "0"),
    "not-ready": (pod(statuses=[running(ready=False)]), "0/1", "Running", "0"),
    "creating": (pod(phase="Pending", statuses=[waiting("ContainerCreating")]), "0/1", "ContainerCreating", "0"),
    "pod-initializing": (
        pod(phase="Pending", init=["i"], init_statuses=[ended("i", exitCode=0)], statuses=[waiting("PodInitializing")]),
        "0/1", "PodInitializing", "0",
    ),
    "crash-loop": (
        pod(statuses=[waiting("CrashLoopBackOff", restarts=3, **last("2026-11-15T08:55:00Z"))]),
        "0/1", "CrashLoopBackOff", "3 (5m ago)",
    ),
    "restarts-without-time": (pod(statuses=[running(restarts=2)]), "1/1", "Running", "2"),
    "latest-restart-counts": (
        pod(
            containers=2,
            statuses=[
                running("c0", restarts=1, **last("2026-11-15T08:58:30Z")),
                running("c1", restarts=4, **last("2026-11-15T06:00:00Z")),
            ],
        ),
        "2/2", "Running", "5 (90s ago)",
    ),
    "completed": (pod(phase="Succeeded", statuses=[ended(exitCode=0, reason="Completed")]), "0/1", "Completed", "0"),
    "error": (pod(phase="Failed", statuses=[ended(exitCode=1, reason="Error")]), "0/1", "Error", "0"),
    "exit-code": (pod(phase="Failed", statuses=[ended(exitCode=137)]), "0/1", "ExitCode:137", "0"),
    "signal": (pod(phase="Failed", statuses=[ended(exitCode=137, signal=9)]), "0/1", "Signal:9", "0"),
    "evicted": (pod(phase="Failed", reason="Evicted"), "0/1", "Evicted", "0"),
    "first-container-decides": (
        pod(containers=2, statuses=[waiting("ErrImagePull"), ended("c1", exitCode=1, reason="Error")]),
        "0/2", "ErrImagePull", "0",
    ),
    "one-done-others-run": (
        pod(containers=2, statuses=[ended(exitCode=0, reason="Completed"), running("c1")], conditions=[READY]),
        "1/2", "Running", "0",
    ),
    "one-done-not-ready": (
        pod(containers=2, statuses=[ended(exitCode=0, reason="Completed"), running("c1")]), "1/2", "NotReady", "0",
    ),
    "terminating": (pod(statuses=[running()], deleted=True), "1/1", "Terminating", "0"),
    "done-while-deleted": (
        pod(phase="Succeeded", statuses=[ended(exitCode=0, reason="Completed")], deleted=True),
        "0/1", "Completed", "0",
    ),
    "node-lost": (pod(statuses=[running()], deleted=True, reason="NodeLost"), "1/1", "Unknown", "0"),
    "init-first": (
        pod(phase="Pending", init=["a", "b"], init_statuses=[{"name": "a", "state": {"running": {}}}]),
        "0/1", "Init:0/2", "0",
    ),
    "init-second": (
        pod(phase="Pending", init=["a", "b"], init_statuses=[ended("a", exitCode=0), waiting("PodInitializing", "b")]),
        "0/1", "Init:1/2", "0",
    ),
    "init-crash-loop": (
        pod(
            phase="Pending",
            init=["a"],
            init_statuses=[waiting("CrashLoopBackOff", "a", 2, **last("2026-11-15T08:59:30Z"))],
            statuses=[waiting("PodInitializing")],
        ),
        "0/1", "Init:CrashLoopBackOff", "2 (30s ago)",
    ),
    "init-error": (pod(phase="Pending", init=["a"], init_statuses=[ended("a", exitCode=1, reason="Error")]), "0/1", "Init:Error", "0"),
    "init-exit-code": (pod(phase="Pending", init=["a"], init_statuses=[ended("a", exitCode=2)]), "0/1", "Init:ExitCode:2", "0"),
    "init-signal": (pod(phase="Pending", init=["a"], init_statuses=[ended("a", exitCode=2, signal=15)]), "0/1", "Init:Signal:15", "0"),
    "sidecar-counts": (
        pod(
            init=["s*"],
            init_statuses=[running("s", started=True, restarts=1, **last("2026-11-15T08:50:00Z"))],
            statuses=[running()],
        ),
        "2/2", "Running", "1 (10m ago)",
    ),
    "sidecar-starting": (
        pod(phase="Pending", init=["s*"], init_statuses=[running("s", ready=False, started=False)]),
        "0/2", "Init:0/1", "0",
    ),
    "initialized-again": (
        pod(init=["a"], init_statuses=[ended("a", exitCode=1)], statuses=[running()], conditions=[INITIALIZED]),
        "1/1", "Init:ExitCode:1", "0",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("obj", "ready", "status", "restarts"), ROWS.values(), ids=ROWS.keys())
def test_pod(obj: dict[str, Any], ready: str, status: str, restarts: str) -> None:
    assert BUILDER.row(obj, NOW)[:5] == ["p", ready, status, restarts, "5m"]


@pytest.mark.parametrize("obj", [row[0] for row in ROWS.values()], ids=ROWS.keys())
def test_reading_bytes_in_part_gives_the_same_row(obj: dict[str, Any]) -> None:
    assert orjson.loads(BUILDER.row_json(orjson.dumps(obj), "", NOW)) == orjson.loads(BUILDER.row_of(obj, NOW))


def test_wide_columns() -> None:
    obj = pod(
        statuses=[running()],
        conditions=[{"type": "a", "status": "True"}, {"type": "b", "status": "False"}],
        nodeName="n1",
        readinessGates=[{"conditionType": "a"}, {"conditionType": "b"}, {"conditionType": "c"}],
    )
    assert BUILDER.row(obj, NOW)[5:] == ["<none>", "n1", "<none>", "1/3"]
    obj["status"] |= {"podIPs": [{"ip": "10.0.0.7"}, {"ip": "fd00::7"}], "nominatedNodeName": "n2"}
    del obj["spec"]["readinessGates"], obj["spec"]["nodeName"]
    assert BUILDER.row(obj, NOW)[5:] == ["10.0.0.7", "<none>", "n2", "<none>"]


@pytest.mark.parametrize(("phase", "reasons"), [("Succeeded", ["Succeeded"]), ("Failed", ["Failed"]), ("Running", [])])
def test_row_conditions(phase: str, reasons: list[str]) -> None:
    row = orjson.loads(BUILDER.row_of(pod(phase=phase), NOW))
    assert [c["reason"] for c in row.get("conditions", [])] == reasons


def test_unforeseen_nulls_do_no_harm() -> None:
    raw = b'{"metadata":{"name":"p","creationTimestamp":null},"spec":{"containers":null,"nodeName":null},"status":null}'
    assert orjson.loads(BUILDER.row_json(raw, "3", NOW))["cells"][:5] == ["p", "0/0", "", "0", "<unknown>"]
