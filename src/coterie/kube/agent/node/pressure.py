"""When the node runs short of something: a pure step from what was known and what is measured to pressures.

signal below a threshold ──> the node has the condition at once ──> after the grace of a soft threshold: pods are evicted
signal above it again    ──> nobody is evicted                  ──> after the transition period: the condition goes
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coterie.kube.agent.node.facts import MachineUsage
from coterie.kube.agent.settings import PressureSettings

MEMORY, DISK, INODES, PIDS = "memory.available", "nodefs.available", "nodefs.inodesFree", "pid.available"
MEMORY_PRESSURE, DISK_PRESSURE, PID_PRESSURE = "MemoryPressure", "DiskPressure", "PIDPressure"
CONDITIONS = {MEMORY: MEMORY_PRESSURE, DISK: DISK_PRESSURE, INODES: DISK_PRESSURE, PIDS: PID_PRESSURE}


@dataclass(frozen=True, slots=True)
class MetThreshold:
    signal: str
    least: int
    """What should be available."""
    available: int
    soft: bool = False

    @property
    def condition(self) -> str:
        return CONDITIONS[self.signal]


@dataclass(frozen=True, slots=True)
class NodePressure:
    """What is known after a measurement."""

    conditions: frozenset[str] = frozenset()
    """Those that the node has, also for a while after the signal recovered."""
    acting: tuple[MetThreshold, ...] = ()
    """Because of which pods are evicted now; memory first, then processes, then disk."""
    met_since: Mapping[tuple[str, bool], float] = field(default_factory=dict)
    """By (signal, whether the threshold is the soft one): when it was first met."""
    last_met: Mapping[str, float] = field(default_factory=dict)
    """By condition."""

    def of(self, condition: str) -> MetThreshold | None:
        return next((each for each in self.acting if each.condition == condition), None)


NO_PRESSURE = NodePressure()


def met(usage: MachineUsage, rules: PressureSettings) -> list[MetThreshold]:
    """All thresholds that are met."""
    signals = (
        (MEMORY, usage.memory_total - usage.memory_used, usage.memory_total, rules.memory, rules.soft_memory),
        (PIDS, usage.pids_limit - usage.pids, usage.pids_limit, rules.pids, None),
        (DISK, usage.disk_free, usage.disk_total, rules.disk, rules.soft_disk),
        (INODES, usage.inodes_free, usage.inodes_total, rules.inodes, None),
    )
    found = []
    for signal, available, total, hard, soft in signals:
        for threshold, is_soft in ((hard, False), (soft, True)):
            least = threshold.of(total) if threshold is not None and total else 0
            if least and available <= least:
                found.append(MetThreshold(signal, least, max(0, available), is_soft))
    return found


def advance(before: NodePressure, usage: MachineUsage, rules: PressureSettings, now: float) -> NodePressure:
    found = met(usage, rules)
    since = {(each.signal, each.soft): before.met_since.get((each.signal, each.soft), now) for each in found}
    last = {**before.last_met, **{each.condition: now for each in found}}
    here = {each.condition for each in found}
    kept = {condition for condition in before.conditions if now - last[condition] < rules.transition_seconds}
    acting = [each for each in found if not each.soft or now - since[each.signal, True] >= rules.soft_grace_seconds]
    return NodePressure(frozenset(here | kept), tuple(acting), since, last)
