"""Changes of the CPU and memory of a pod that runs (pods/resize): pure functions.

    spec ──admit──> allocated ──ResizePod, or a restart──> actuated

Allocated is what the node gave the pod: it is counted here, and containers are started with it. Actuated is what a running
container has. Both are kept in the pod's history, by container, with `cpu` and `memory` only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coterie.kube.agent.pods import pod_model
from coterie.kube.api import quantity
from coterie.kube.api.meta import Object
from coterie.kube.api.quota import pod_resources

ContainerResources = Mapping[str, Mapping[str, str]]
"""`requests` and `limits`, as in a container."""
RESIZABLE = ("cpu", "memory")
DEFERRED, INFEASIBLE = "Deferred", "Infeasible"
PENDING, IN_PROGRESS = "PodResizePending", "PodResizeInProgress"
RETRY_SECONDS = 10.0
"""How often a resize is tried again that failed, or for which there is no room."""


@dataclass(frozen=True, slots=True)
class Room:
    """What the node has for pods, and what the other pods on it were given. CPU in thousandths."""

    cpu: int
    memory: int
    used_cpu: int = 0
    used_memory: int = 0


@dataclass(frozen=True, slots=True)
class ResizeRefusal:
    reason: str
    """Deferred: it may be granted later. Infeasible: never on this node."""
    message: str


@dataclass(frozen=True, slots=True)
class ResizeState:
    """Where the resize of a pod stands, besides what its history says."""

    refusal: ResizeRefusal | None = None
    error: str = ""
    """Why limits could not be changed at the last attempt."""
    retry_at: float = 0.0
    busy: bool = False
    """Limits are being changed now."""


def resizable_containers(pod: Object) -> list[Object]:
    return [*pod_model.sidecars(pod), *pod_model.containers(pod)]


def requested_resources(pod: Object) -> dict[str, ContainerResources]:
    """What the spec asks for now."""
    return {container["name"]: _only_resizable(container.get("resources")) for container in resizable_containers(pod)}


def _only_resizable(resources: Any) -> ContainerResources:
    found: dict[str, Mapping[str, str]] = {}
    for part in ("requests", "limits"):
        amounts = {name: str(value) for name, value in ((resources or {}).get(part) or {}).items() if name in RESIZABLE}
        if amounts:
            found[part] = amounts
    return found


def from_status(pod: Object) -> dict[str, ContainerResources]:
    """What the API's status says of running containers, for an agent that lost its own record."""
    found: dict[str, ContainerResources] = {}
    for group in ("initContainerStatuses", "containerStatuses"):
        for status in pod_model.status_in(pod).get(group) or ():
            if status.get("resources") and (status.get("state") or {}).get("running"):
                found[status["name"]] = _only_resizable(status["resources"])
    return found


def with_resources(pod: Object, given: Mapping[str, ContainerResources]) -> Object:
    """The pod with the CPU and memory in `given` in place of what its spec asks for."""
    if all(given.get(name, asked) == asked for name, asked in requested_resources(pod).items()):
        return pod
    spec = dict(pod_model.spec_of(pod))
    for key in ("containers", "initContainers"):
        if spec.get(key):
            spec[key] = [
                {**container, "resources": merged(container, given[container["name"]])}
                if container["name"] in given
                else container
                for container in spec[key]
            ]
    return {**pod, "spec": spec}


def merged(container: Object, given: ContainerResources) -> Object:
    """The resources of a container with `given` CPU and memory."""
    resources = dict(container.get("resources") or {})
    for part in ("requests", "limits"):
        others = {name: value for name, value in (resources.pop(part, None) or {}).items() if name not in RESIZABLE}
        if both := {**others, **given.get(part, {})}:
            resources[part] = both
    return resources


def requests_of(pod: Object) -> tuple[int, int]:
    """(thousandths of a CPU, bytes of memory) that the whole pod counts."""
    usage = pod_resources({"spec": pod_model.spec_of(pod)}, "requests")
    cpu, memory = (usage.get(name, quantity.ZERO) for name in RESIZABLE)
    return cpu.milli_value(), memory.value()


def admit(pod: Object, allocated: Mapping[str, ContainerResources], room: Room, problem: str) -> ResizeRefusal | None:
    """Whether the node gives the pod what its spec asks for. `problem`: why its runtime cannot change limits at all."""
    if problem:
        return ResizeRefusal(INFEASIBLE, problem)
    before = requests_of(with_resources(pod, allocated))
    sizes = zip(RESIZABLE, requests_of(pod), before, (room.cpu, room.memory), strict=True)
    growing = [(name, wanted, capacity) for name, wanted, had, capacity in sizes if wanted > had]
    for name, wanted, capacity in growing:
        if wanted > capacity:
            why = f"Node didn't have enough capacity: {name}, requested: {wanted}, capacity: {capacity}"
            return ResizeRefusal(INFEASIBLE, why)
    for name, wanted, capacity in growing:
        used = room.used_cpu if name == "cpu" else room.used_memory
        if used + wanted > capacity:
            why = f"Node didn't have enough resource: {name}, requested: {wanted}, used: {used}, capacity: {capacity}"
            return ResizeRefusal(DEFERRED, why)
    return None


def needs_restart(container: Object, actuated: ContainerResources, allocated: ContainerResources) -> bool:
    """Whether the container's `resizePolicy` asks for a restart for what changes."""
    policies = {
        policy.get("resourceName"): policy.get("restartPolicy") for policy in container.get("resizePolicy") or ()
    }
    return any(
        policies.get(name) == "RestartContainer"
        and any(
            actuated.get(part, {}).get(name) != allocated.get(part, {}).get(name) for part in ("requests", "limits")
        )
        for name in RESIZABLE
    )


def conditions(state: ResizeState, resizing: bool) -> list[Object]:
    found: list[Object] = []
    if state.refusal is not None:
        found.append(
            {"type": PENDING, "status": "True", "reason": state.refusal.reason, "message": state.refusal.message}
        )
    if resizing:
        failed = {"reason": "Error", "message": state.error} if state.error else {}
        found.append({"type": IN_PROGRESS, "status": "True", **failed})
    return found
