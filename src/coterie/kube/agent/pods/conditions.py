"""The conditions of a pod that its node answers for. Those of others (scheduler, readiness gates) pass through."""

from __future__ import annotations

from coterie.kube.agent.pods import pod_model, resize
from coterie.kube.agent.pods.pod_view import PodView, anything_runs, init_done, initialized
from coterie.kube.api.meta import Object

OURS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")


def conditions_of(view: PodView, phase: str, inits: list[Object], main: list[Object], now: str) -> list[Object]:
    before = {condition["type"]: condition for condition in pod_model.status_in(view.pod).get("conditions") or ()}
    sidecars = {container["name"] for container in pod_model.sidecars(view.pod)}
    serving = [status for status in inits if status["name"] in sidecars] + main
    containers_ready = _containers_ready(phase, serving)
    found = [
        {"type": "PodReadyToStartContainers", "status": _truth(phase not in _FINAL and _has_sandbox(view))},
        _initialized(view, phase),
        _ready(view, phase, containers_ready, before),
        containers_ready,
        # Whoever sees the pod here sees it bound.
        {"type": "PodScheduled", "status": "True"},
    ]
    if view.history.failure is not None and view.history.failure.reason == "Evicted":
        found.append(
            {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "TerminationByKubelet",
                "message": view.history.failure.message,
            }
        )
    found += resize.conditions(view.resize, view.history.resizing) if phase not in _FINAL else []
    types = {condition["type"] for condition in found} | {resize.PENDING, resize.IN_PROGRESS}
    found += [condition for kind, condition in before.items() if kind not in types]
    return [_since(condition, before.get(condition["type"]), now) for condition in found]


_FINAL = ("Succeeded", "Failed")


def _initialized(view: PodView, phase: str) -> Object:
    if phase == "Succeeded":
        return {"type": "Initialized", "status": "True", "reason": "PodCompleted"}
    if initialized(view):
        return {"type": "Initialized", "status": "True"}
    missing = [container["name"] for container in pod_model.init_containers(view.pod) if not init_done(view, container)]
    return {
        "type": "Initialized",
        "status": "False",
        "reason": "ContainersNotInitialized",
        "message": f"containers with incomplete status: [{' '.join(missing)}]",
    }


def _containers_ready(phase: str, serving: list[Object]) -> Object:
    if phase in _FINAL:
        return {
            "type": "ContainersReady",
            "status": "False",
            "reason": "PodCompleted" if phase == "Succeeded" else "PodFailed",
        }
    unready = [status["name"] for status in serving if not status["ready"]]
    if not unready:
        return {"type": "ContainersReady", "status": "True"}
    return {
        "type": "ContainersReady",
        "status": "False",
        "reason": "ContainersNotReady",
        "message": f"containers with unready status: [{' '.join(unready)}]",
    }


def _ready(view: PodView, phase: str, containers_ready: Object, before: dict[str, Object]) -> Object:
    if containers_ready["status"] != "True":
        return {**containers_ready, "type": "Ready"}
    closed = []
    for gate in pod_model.spec_of(view.pod).get("readinessGates") or ():
        kind = gate["conditionType"]
        condition = before.get(kind)
        if condition is None:
            closed.append(f'corresponding condition of pod readiness gate "{kind}" does not exist.')
        elif condition.get("status") != "True":
            closed.append(f'the status of pod readiness gate "{kind}" is not "True", but {condition.get("status")}')
    if closed:
        return {"type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady", "message": ", ".join(closed)}
    return {"type": "Ready", "status": "True"}


def _has_sandbox(view: PodView) -> bool:
    # A pod found running after a restart of the agent has one, although it was not prepared in this life.
    return view.stage == "prepared" or anything_runs(view)


def _truth(value: bool) -> str:
    return "True" if value else "False"


def _since(condition: Object, before: Object | None, now: str) -> Object:
    """The transition time moves only when the status does."""
    same = before is not None and before.get("status") == condition["status"]
    since = before.get("lastTransitionTime") if same and before is not None else None
    return {**condition, "lastTransitionTime": since or now}
