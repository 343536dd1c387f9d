"""Pods as rows. The status column is the one people look at: it tells the phase, or what keeps the pod from running."""

from __future__ import annotations

from typing import Any, NamedTuple, TypedDict

import msgspec

from coterie.kube.apiserver.tables.ages import age, human_duration, parse_time
from coterie.kube.apiserver.tables.columns import AGE, NAME, NONE, Cells, Object, TableLayout, text

POD_COLUMNS = (
    NAME,
    text("Ready", "Containers that are ready, of all that should be."),
    text("Status", "Phase of the pod, or the reason why it does not run."),
    text("Restarts", "How often containers were restarted, and when last."),
    AGE,
    text("IP", "Address of the pod.", 1),
    text("Node", "Node the pod was placed on.", 1),
    text("Nominated Node", "Node that is being freed for the pod.", 1),
    text("Readiness Gates", "Conditions that hold, of those the pod waits for.", 1),
)

_TERMINAL = ("Succeeded", "Failed")
_COMPLETED = {
    "Succeeded": [
        {
            "type": "Completed",
            "status": "True",
            "reason": "Succeeded",
            "message": "The pod has completed successfully.",
        }
    ],
    "Failed": [{"type": "Completed", "status": "True", "reason": "Failed", "message": "The pod failed."}],
}


class PodSummary(NamedTuple):
    ready: int
    total: int
    status: str
    restarts: int
    last_restart: float
    """Seconds since 1970; 0 when nothing was restarted or the time is not known."""


def summarize(pod: Object) -> PodSummary:
    """What a pod's container states amount to."""
    spec: Object = pod.get("spec") or {}
    status: Object = pod.get("status") or {}
    conditions = status.get("conditions") or ()
    phase = status.get("phase") or ""
    reason = status.get("reason") or phase
    initialized = False
    for condition in conditions:
        kind = condition.get("type")
        if kind == "PodScheduled":
            if condition.get("reason") == "SchedulingGated":
                reason = "SchedulingGated"
        elif kind == "Initialized":
            initialized = condition.get("status") == "True"

    total = len(spec.get("containers") or ())
    ready = restarts = 0
    last_restart = 0.0
    initializing = False
    init_containers = spec.get("initContainers")
    if init_containers:
        sidecars = {c["name"] for c in init_containers if c.get("restartPolicy") == "Always"}
        total += len(sidecars)
        before = _before_main(status.get("initContainerStatuses") or (), sidecars, len(init_containers))
        initializing = before.reason != ""
        reason = before.reason or reason
        ready = before.ready
        restarts, last_restart = before.restarts, before.last_restart
        if not initializing or initialized:
            restarts, last_restart = before.sidecar_restarts, before.sidecar_last_restart

    if not initializing or initialized:
        running = False
        for container in reversed(status.get("containerStatuses") or ()):
            restarts += container.get("restartCount") or 0
            last_restart = max(last_restart, _last_finish(container))
            state = container.get("state") or {}
            waiting, terminated = state.get("waiting"), state.get("terminated")
            if waiting and waiting.get("reason"):
                reason = waiting["reason"]
            elif terminated is not None:
                reason = _ending(terminated)
            elif container.get("ready") and state.get("running") is not None:
                running = True
                ready += 1
        if running and reason == "Completed":
            # Some containers are done, others still run: the pod as a whole does.
            reason = "Running" if _is_ready(conditions) else "NotReady"

    if pod["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            reason = "Unknown"
        elif phase not in _TERMINAL:
            reason = "Terminating"
    return PodSummary(ready, total, reason, restarts, last_restart)


class _Before(NamedTuple):
    """What the init containers say."""

    reason: str
    ready: int
    restarts: int
    last_restart: float
    sidecar_restarts: int
    sidecar_last_restart: float


def _before_main(statuses: Any, sidecars: set[str], total: int) -> _Before:
    ready = restarts = sidecar_restarts = 0
    last = sidecar_last = 0.0
    reason = ""
    for index, container in enumerate(statuses):
        is_sidecar = container.get("name") in sidecars
        count, finish = container.get("restartCount") or 0, _last_finish(container)
        restarts += count
        last = max(last, finish)
        if is_sidecar:
            sidecar_restarts += count
            sidecar_last = max(sidecar_last, finish)
        state = container.get("state") or {}
        waiting, terminated = state.get("waiting"), state.get("terminated")
        if terminated is not None and not terminated.get("exitCode"):
            continue
        if is_sidecar and container.get("started"):
            ready += 1 if container.get("ready") else 0
            continue
        if terminated is not None:
            reason = "Init:" + _ending(terminated)
        elif waiting and waiting.get("reason") and waiting["reason"] != "PodInitializing":
            reason = "Init:" + waiting["reason"]
        else:
            reason = f"Init:{index}/{total}"
        break
    return _Before(reason, ready, restarts, last, sidecar_restarts, sidecar_last)


def _ending(terminated: Object) -> str:
    reason: str = terminated.get("reason") or ""
    if reason:
        return reason
    signal = terminated.get("signal")
    return f"Signal:{signal}" if signal else f"ExitCode:{terminated.get('exitCode') or 0}"


def _last_finish(container: Object) -> float:
    last = container.get("lastState")
    if not last:
        return 0.0
    return parse_time((last.get("terminated") or {}).get("finishedAt")) or 0.0


def _is_ready(conditions: Any) -> bool:
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def restarts_text(summary: PodSummary, now: float) -> str:
    if summary.restarts and summary.last_restart:
        return f"{summary.restarts} ({human_duration(now - summary.last_restart)} ago)"
    return str(summary.restarts)


def pod_cells(pod: Object, now: float) -> Cells:
    summary = summarize(pod)
    spec: Object = pod.get("spec") or {}
    status: Object = pod.get("status") or {}
    meta = pod["metadata"]
    addresses = status.get("podIPs")
    gates = spec.get("readinessGates")
    return [
        meta.get("name"),
        f"{summary.ready}/{summary.total}",
        summary.status,
        restarts_text(summary, now) if summary.restarts else "0",
        age(meta.get("creationTimestamp"), now),
        (addresses[0].get("ip") if addresses else status.get("podIP")) or NONE,
        spec.get("nodeName") or NONE,
        status.get("nominatedNodeName") or NONE,
        _gates(gates, status.get("conditions") or ()) if gates else NONE,
    ]


def _gates(gates: Any, conditions: Any) -> str:
    held: dict[str, bool] = {}
    for condition in conditions:
        held.setdefault(condition.get("type"), condition.get("status") == "True")
    return f"{sum(held.get(gate.get('conditionType'), False) for gate in gates)}/{len(gates)}"


def pod_conditions(pod: Object) -> list[dict[str, str]]:
    return _COMPLETED.get((pod.get("status") or {}).get("phase") or "", [])


# The fields that are read above. Of a pod kept as bytes nothing else is decoded, which makes a table of many pods cheap.


class _Container(TypedDict, total=False):
    name: str
    restartPolicy: str


class _PodSpec(TypedDict, total=False):
    containers: list[_Container] | None
    initContainers: list[_Container] | None
    nodeName: str
    readinessGates: list[dict[str, str]] | None


class _State(TypedDict, total=False):
    waiting: Any
    running: Any
    terminated: Any


class _ContainerStatus(TypedDict, total=False):
    name: str
    ready: bool
    started: bool
    restartCount: int
    state: _State | None
    lastState: _State | None


class _Condition(TypedDict, total=False):
    type: str
    status: str
    reason: str


class _PodStatus(TypedDict, total=False):
    phase: str
    reason: str
    conditions: list[_Condition] | None
    containerStatuses: list[_ContainerStatus] | None
    initContainerStatuses: list[_ContainerStatus] | None
    podIP: str
    podIPs: list[dict[str, str]] | None
    nominatedNodeName: str


class PodParts(TypedDict, total=False):
    metadata: msgspec.Raw
    spec: _PodSpec | None
    status: _PodStatus | None


PODS = TableLayout(POD_COLUMNS, pod_cells, PodParts, pod_conditions)
