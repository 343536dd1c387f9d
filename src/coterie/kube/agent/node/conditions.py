"""How the node is: pure functions from measured use to the conditions of its Node object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.kube.agent.node.facts import MachineUsage
from coterie.kube.agent.node.pressure import DISK_PRESSURE, MEMORY_PRESSURE, PID_PRESSURE, met
from coterie.kube.agent.settings import PressureSettings
from coterie.kube.api.meta import Object
from coterie.kube.api.types.nodes import NETWORK_UNAVAILABLE, SHARED_NETWORK


@dataclass(frozen=True, slots=True)
class ConditionReading:
    """One condition without its times."""

    type: str
    status: str
    reason: str
    message: str


FENCED, NOT_FENCED = "PodsFenced", "NotFenced"


@dataclass(frozen=True, slots=True)
class PodNetworkState:
    """How the network of pods is on a node."""

    own: bool = True
    """Pods have a network, a user and a root of their own."""
    problem: str = ""
    """Why pods cannot work at all."""
    remedy: str = ""
    """Why they have none of their own, and what to do."""
    shared: bool = False
    """Pods are in the network of the machine: all have its address."""


FENCED_NETWORK = PodNetworkState()


def readings(
    usage: MachineUsage,
    limits: PressureSettings,
    *,
    runtime_problem: str = "",
    network: PodNetworkState = FENCED_NETWORK,
    pressures: frozenset[str] = frozenset(),
) -> list[ConditionReading]:
    """In the order in which `kubectl describe node` shows them. `runtime_problem`: why pods cannot be run; `pressures`:
    conditions that are kept although nothing runs short any more."""
    problem = runtime_problem or network.problem
    short = pressures | {each.condition for each in met(usage, limits)}
    return [
        ConditionReading(NETWORK_UNAVAILABLE, "True", "PodNetworkNotReady", network.problem)
        if network.problem
        else ConditionReading(
            NETWORK_UNAVAILABLE,
            "False",
            SHARED_NETWORK if network.shared else "AgentHasNetwork",
            "pods use the network of this machine" if network.shared else "every pod has an address of its own",
        ),
        ConditionReading(FENCED, "True", "PodsFenced", "pods have a network, a user and a root of their own")
        if network.own
        else ConditionReading(FENCED, "False", NOT_FENCED, network.remedy),
        _PRESSURES[MEMORY_PRESSURE][MEMORY_PRESSURE in short],
        _PRESSURES[DISK_PRESSURE][DISK_PRESSURE in short],
        _out_of_disk(usage, limits),
        _PRESSURES[PID_PRESSURE][PID_PRESSURE in short],
        ConditionReading("Ready", "False", "RuntimeNotReady" if runtime_problem else "PodNetworkNotReady", problem)
        if problem
        else ConditionReading("Ready", "True", "AgentReady", "agent is posting ready status"),
    ]


_PRESSURES = {
    # Without and with pressure, in the words that tools for Kubernetes look for.
    MEMORY_PRESSURE: (
        ConditionReading(
            MEMORY_PRESSURE, "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"
        ),
        ConditionReading(
            MEMORY_PRESSURE, "True", "KubeletHasInsufficientMemory", "kubelet has insufficient memory available"
        ),
    ),
    DISK_PRESSURE: (
        ConditionReading(DISK_PRESSURE, "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ConditionReading(DISK_PRESSURE, "True", "KubeletHasDiskPressure", "kubelet has disk pressure"),
    ),
    PID_PRESSURE: (
        ConditionReading(PID_PRESSURE, "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ConditionReading(PID_PRESSURE, "True", "KubeletHasInsufficientPID", "kubelet has insufficient PID available"),
    ),
}


def _out_of_disk(usage: MachineUsage, limits: PressureSettings) -> ConditionReading:
    no_space = usage.disk_total and usage.disk_free <= limits.out_of_disk_free
    no_inodes = usage.inodes_total and usage.inodes_free <= limits.out_of_disk_inodes
    if no_space or no_inodes:
        return ConditionReading("OutOfDisk", "True", "AgentOutOfDisk", "agent is out of disk space or inodes")
    return ConditionReading("OutOfDisk", "False", "AgentHasSufficientDisk", "agent has sufficient disk space available")


def conditions(found: Sequence[ConditionReading], before: Sequence[Object], now: str) -> list[Object]:
    """With times: the heartbeat is now, the transition only moves when the status does."""
    old = {condition.get("type"): condition for condition in before}
    out = []
    for reading in found:
        known = old.get(reading.type)
        since = known.get("lastTransitionTime") if known and known.get("status") == reading.status else None
        out.append(
            {
                "type": reading.type,
                "status": reading.status,
                "reason": reading.reason,
                "message": reading.message,
                "lastHeartbeatTime": now,
                "lastTransitionTime": since or now,
            }
        )
    return out
