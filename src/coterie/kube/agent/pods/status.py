"""A pod's status as Kubernetes reports it: a pure function from a view.

Times that must not move (transitions, start) are taken from the status before, so computing the status of an unchanged
pod again gives an equal value and nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from coterie.base.clock import rfc3339
from coterie.kube.agent.pods import conditions, pod_model, resize
from coterie.kube.agent.pods.decide import pause_before_restart
from coterie.kube.agent.pods.pod_view import (
    PodView,
    anything_runs,
    exit_code,
    finished,
    init_failed,
    initialized,
    will_restart,
)
from coterie.kube.agent.runtimes.protocol import ContainerState
from coterie.kube.agent.settings import PodSettings
from coterie.kube.api.meta import Object
from coterie.kube.api.rules.pods import qos_class


@dataclass(frozen=True, slots=True)
class PodLocation:
    """Where the pod runs."""

    runtime: str
    host_ip: str
    pod_ip: str = ""
    """Empty until the sandbox is there."""
    messages: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """Termination messages by container and attempt."""


def status_of(view: PodView, place: PodLocation, rules: PodSettings) -> Object:
    """The whole status. `view.pod` carries the status before."""
    pod, before = view.pod, pod_model.status_in(view.pod)
    now = rfc3339(datetime.fromtimestamp(view.wall or view.now, UTC))
    inits = [_container_status(view, place, rules, c, init=True) for c in pod_model.init_containers(pod)]
    main = [_container_status(view, place, rules, c, init=False) for c in pod_model.containers(pod)]
    phase = phase_of(view, main)
    status: Object = {
        "phase": phase,
        "conditions": conditions.conditions_of(view, phase, inits, main, now),
        "hostIP": place.host_ip,
        "hostIPs": [{"ip": place.host_ip}],
        "startTime": before.get("startTime") or rfc3339(datetime.fromtimestamp(view.history.started_at, UTC)),
        "qosClass": before.get("qosClass") or qos_class(pod_model.spec_of(pod)),
        "containerStatuses": main,
    }
    if inits:
        status["initContainerStatuses"] = inits
    ephemeral = [_ephemeral_status(view, place, c) for c in pod_model.ephemeral_containers(pod)]
    if ephemeral:
        status["ephemeralContainerStatuses"] = ephemeral
    if place.pod_ip:
        status["podIP"] = place.pod_ip
        status["podIPs"] = [{"ip": place.pod_ip}]
    if view.history.failure is not None:
        status["reason"] = view.history.failure.reason
        status["message"] = view.history.failure.message
    return status


def phase_of(view: PodView, main: list[Object]) -> str:
    """Pending, Running, Succeeded or Failed. An end is told only when nothing runs any more, and never taken back."""
    before = pod_model.status_in(view.pod).get("phase")
    if before in ("Succeeded", "Failed"):
        return str(before)
    if anything_runs(view) or view.operations:
        return _living_phase(view, main)
    if view.history.failure is not None or init_failed(view):
        return "Failed"
    if finished(view):
        return "Succeeded" if all(_succeeded(status) for status in main) else "Failed"
    if pod_model.deleting(view.pod) or view.removed:
        # Stopped before its time. Kubernetes tells how it ended, so that owners can replace it.
        ran = [status for status in main if status["state"].get("terminated")]
        return "Succeeded" if ran and len(ran) == len(main) and all(_succeeded(s) for s in main) else "Failed"
    return _living_phase(view, main)


def _living_phase(view: PodView, main: list[Object]) -> str:
    if not initialized(view):
        return "Pending"
    never_ran = [s for s in main if s["state"].get("waiting") and not s["lastState"].get("terminated")]
    return "Pending" if never_ran else "Running"


def _succeeded(status: Object) -> bool:
    ended = status["state"].get("terminated")
    return ended is not None and ended["exitCode"] == 0


# Containers.


def _container_status(
    view: PodView, place: PodLocation, rules: PodSettings, container: Object, *, init: bool
) -> Object:
    name = container["name"]
    run = view.newest(name)
    state, last = _states(view, place, rules, container, run, init=init)
    status: Object = {
        "name": name,
        "state": state,
        "lastState": last,
        "ready": _ready(view, container, run, init=init),
        "restartCount": max(view.attempts(name) - 1, 0),
        "image": (run.image if run is not None and run.image else "") or container.get("image") or "",
        "imageID": run.image_id if run is not None else "",
        "started": view.started(name),
    }
    if run is not None:
        status["containerID"] = pod_model.container_id(place.runtime, pod_model.uid_of(view.pod), name, run.attempt)
        status.update(_resources(view, container, run))
    return status


def _resources(view: PodView, container: Object, run: ContainerState) -> Object:
    """What the node gave the container, and what it has while it runs."""
    if not container.get("resources"):
        return {}
    name, history, found = container["name"], view.history, {}
    asked = container["resources"]
    given = resize.merged(container, history.allocated[name]) if name in history.allocated else asked
    if given.get("requests"):
        found["allocatedResources"] = given["requests"]
    if run.running:
        actual = resize.merged(container, history.actuated[name]) if name in history.actuated else given
        found["resources"] = {part: actual[part] for part in ("limits", "requests") if actual.get(part)}
    return found


def _ephemeral_status(view: PodView, place: PodLocation, container: Object) -> Object:
    """It is never restarted and never counts for readiness."""
    name = container["name"]
    run = view.newest(name)
    if run is None:
        problem = view.history.of(name).problem
        waiting = {"reason": problem.reason, "message": problem.message} if problem is not None else None
        state: Object = {"waiting": waiting or {"reason": "ContainerCreating"}}
    elif run.running:
        state = {"running": {"startedAt": _moment(run.started_at)}}
    else:
        state = {"terminated": _terminated(view, place, run)}
    status: Object = {
        "name": name,
        "state": state,
        "lastState": {},
        "ready": False,
        "restartCount": 0,
        "image": (run.image if run is not None and run.image else "") or container.get("image") or "",
        "imageID": run.image_id if run is not None else "",
    }
    if run is not None:
        status["containerID"] = pod_model.container_id(place.runtime, pod_model.uid_of(view.pod), name, run.attempt)
    return status


def _states(
    view: PodView, place: PodLocation, rules: PodSettings, container: Object, run: ContainerState | None, *, init: bool
) -> tuple[Object, Object]:
    """(state, lastState)."""
    name = container["name"]
    problem = view.history.of(name).problem
    if run is None:
        return {"waiting": _waiting(view, problem)}, {}
    last = _last_state(view, place, name)
    if run.running:
        return {"running": {"startedAt": _moment(run.started_at)}}, last
    ended = {"terminated": _terminated(view, place, run)}
    if finished(view) or _is_over(view) or not will_restart(view.pod, container, run, init=init):
        return ended, last
    if problem is not None:
        return {"waiting": {"reason": problem.reason, "message": problem.message}}, ended
    pause = pause_before_restart(run, view.history.of(name).backoff, rules)
    if pause and view.now < view.ended(name) + pause:
        message = f"back-off {pause:g}s restarting failed container={name} pod={_full_name(view.pod)}"
        return {"waiting": {"reason": "CrashLoopBackOff", "message": message}}, ended
    return ended, last


def _is_over(view: PodView) -> bool:
    return view.removed or pod_model.deleting(view.pod) or view.history.failure is not None


def _waiting(view: PodView, problem: Any) -> Object:
    if problem is not None:
        return {"reason": problem.reason, "message": problem.message}
    failure = view.history.failure
    if failure is not None:
        return {"reason": failure.reason, "message": failure.message}
    return {"reason": "PodInitializing" if pod_model.init_containers(view.pod) else "ContainerCreating"}


def _last_state(view: PodView, place: PodLocation, name: str) -> Object:
    runs = view.runs.get(name, ())
    if len(runs) < 2:
        return {}
    return {"terminated": _terminated(view, place, runs[-2])}


def _terminated(view: PodView, place: PodLocation, run: ContainerState) -> Object:
    code = exit_code(run)
    ended: Object = {
        "exitCode": code,
        "reason": run.reason or ("Error" if code else "Completed"),
        "startedAt": _moment(run.started_at),
        "finishedAt": _moment(run.finished_at),
        "containerID": pod_model.container_id(place.runtime, pod_model.uid_of(view.pod), run.name, run.attempt),
    }
    # Which limit was reached comes before what the container said itself.
    message = "\n".join(text for text in (run.message, place.messages.get((run.name, run.attempt))) if text)
    if message:
        ended["message"] = message
    return ended


def _ready(view: PodView, container: Object, run: ContainerState | None, *, init: bool) -> bool:
    if run is None:
        return False
    if init and not pod_model.is_sidecar(container):
        return not run.running and exit_code(run) == 0
    name = container["name"]
    return view.started(name) and view.probed(name).ready


def _moment(seconds: float) -> str | None:
    return rfc3339(datetime.fromtimestamp(seconds, UTC)) if seconds else None


def _full_name(pod: Object) -> str:
    key = pod_model.key_of(pod)
    return f"{key.name}_{key.namespace}({pod_model.uid_of(pod)})"
