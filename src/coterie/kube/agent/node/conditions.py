"""How the node is: pure functions from measured use to the conditions of its Node object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.kube.agent.node.facts import MachineUsage
from coterie.kube.agent.settings import PressureSettings
from coterie.kube.api.meta import Object


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


FENCED_NETWORK = PodNetworkState()


def readings(
    usage: MachineUsage,
    limits: PressureSettings,
    *,
    runtime_problem: str = "",
    network: PodNetworkState = FENCED_NETWORK,
) -> list[ConditionReading]:
    """In the order in which `kubectl describe node` shows them. `runtime_problem`: why pods cannot be run."""
    problem = runtime_problem or network.problem
    return [
        ConditionReading("NetworkUnavailable", "True", "PodNetworkNotReady", network.problem)
        if network.problem
        else ConditionReading(
            "NetworkUnavailable",
            "False",
            "AgentHasNetwork",
            "every pod has an address of its own" if network.own else "pods use the network of this machine",
        ),
        ConditionReading(FENCED, "True", "PodsFenced", "pods have a network, a user and a root of their own")
        if network.own
        else ConditionReading(FENCED, "False", NOT_FENCED, network.remedy),
        _memory(usage, limits),
        _disk(usage, limits),
        _out_of_disk(usage, limits),
        _pids(usage, limits),
        ConditionReading("Ready", "False", "RuntimeNotReady" if runtime_problem else "PodNetworkNotReady", problem)
        if problem
        else ConditionReading("Ready", "True", "AgentReady", "agent is posting ready status"),
    ]


def _memory(usage: MachineUsage, limits: PressureSettings) -> ConditionReading:
    if usage.memory_total and usage.memory_used / usage.memory_total >= limits.memory_used:
        return ConditionReading(
            "MemoryPressure", "True", "AgentHasInsufficientMemory", "agent has insufficient memory available"
        )
    return ConditionReading(
        "MemoryPressure", "False", "AgentHasSufficientMemory", "agent has sufficient memory available"
    )


def disk_pressure(usage: MachineUsage, limits: PressureSettings) -> str:
    """`disk` or `inodes`, whichever runs short; empty: neither."""
    full = usage.disk_total and 1 - usage.disk_free / usage.disk_total >= limits.disk_used
    if full and usage.disk_free <= limits.disk_free:
        return "disk"
    inodes = usage.inodes_total and 1 - usage.inodes_free / usage.inodes_total >= limits.inodes_used
    return "inodes" if inodes else ""


def _disk(usage: MachineUsage, limits: PressureSettings) -> ConditionReading:
    if disk_pressure(usage, limits):
        return ConditionReading("DiskPressure", "True", "AgentHasDiskPressure", "agent has disk pressure")
    return ConditionReading("DiskPressure", "False", "AgentHasNoDiskPressure", "agent has no disk pressure")


def _out_of_disk(usage: MachineUsage, limits: PressureSettings) -> ConditionReading:
    no_space = usage.disk_total and usage.disk_free <= limits.out_of_disk_free
    no_inodes = usage.inodes_total and usage.inodes_free <= limits.out_of_disk_inodes
    if no_space or no_inodes:
        return ConditionReading("OutOfDisk", "True", "AgentOutOfDisk", "agent is out of disk space or inodes")
    return ConditionReading("OutOfDisk", "False", "AgentHasSufficientDisk", "agent has sufficient disk space available")


def _pids(usage: MachineUsage, limits: PressureSettings) -> ConditionReading:
    if usage.pids_limit and usage.pids / usage.pids_limit >= limits.pids_used:
        return ConditionReading(
            "PIDPressure", "True", "AgentHasInsufficientPID", "agent has insufficient PID available"
        )
    return ConditionReading("PIDPressure", "False", "AgentHasSufficientPID", "agent has sufficient PID available")


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
