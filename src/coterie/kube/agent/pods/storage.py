"""When a pod uses too much disk: pure functions over limits and what was measured, in the kubelet's words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from coterie.kube.agent.node.facts import MachineUsage
from coterie.kube.agent.node.pressure import INODES, MetThreshold
from coterie.kube.agent.pods.disk_usage import MOST_LEVELS, NOTHING, DiskUsage
from coterie.kube.agent.pods.eviction import SYSTEM_CRITICAL
from coterie.kube.agent.pods.limits import StorageLimits
from coterie.kube.agent.settings import StorageSettings
from coterie.kube.api import quantity
from coterie.kube.api.quantity import BINARY_SI


@dataclass(frozen=True, slots=True)
class PodStorage:
    """What a pod uses on disk."""

    containers: Mapping[str, DiskUsage] = field(default_factory=dict)
    """What each container wrote outside of volumes, with its logs."""
    volumes: Mapping[str, DiskUsage] = field(default_factory=dict)
    other: DiskUsage = NOTHING

    @property
    def total(self) -> DiskUsage:
        return sum((*self.containers.values(), *self.volumes.values()), self.other)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was last counted of a pod."""

    storage: PodStorage
    at: float
    """Seconds on the monotonic clock."""
    took: float
    written: int
    """How much had been written to the disk by anybody until then, see `written_since`."""


def exceeded(limits: StorageLimits, found: PodStorage) -> str:
    """Why the pod must go; empty: it may stay."""
    for name, limit in limits.volumes.items():
        if name in found.volumes and found.volumes[name].bytes > limit:
            return f'Usage of EmptyDir volume "{name}" exceeds the limit "{size(limit)}".'
    for name, limit in limits.containers.items():
        if name in found.containers and found.containers[name].bytes > limit:
            return f'Container {name} exceeded its local ephemeral storage limit "{size(limit)}".'
    total = found.total
    if limits.pod and total.bytes > limits.pod:
        whose = "the node's default limit" if limits.is_default else "the total limit of containers"
        return f"Pod ephemeral local storage usage exceeds {whose} {size(limits.pod)}."
    if total.too_deep:
        return (
            "Pod ephemeral local storage usage cannot be measured: "
            f"directories are nested more than {MOST_LEVELS} levels deep."
        )
    return ""


def room(limits: StorageLimits, found: PodStorage) -> int:
    """How much the pod may still write before it may have exceeded one of its limits."""
    rooms = [limits.pod - found.total.bytes] if limits.pod else []
    for each, used in ((limits.containers, found.containers), (limits.volumes, found.volumes)):
        rooms += [limit - used.get(name, NOTHING).bytes for name, limit in each.items()]
    return max(0, min(rooms)) if rooms else 1 << 62


def due(limits: StorageLimits, last: Measurement | None, now: float, written: int, rules: StorageSettings) -> bool:
    """Whether a pod's files are to be counted now: when the disk has filled by half of the room that the pod has left,
    and once in a while. Counting that takes long is done less often."""
    if last is None:
        return True
    since = now - last.at
    if since < last.took / rules.measure_share:
        return False
    return since >= rules.measure_seconds or written - last.written >= room(limits, last.storage) // 2


def written_since(before: MachineUsage | None, now: MachineUsage) -> int:
    """Bytes by which the free space fell. Space that is freed does not count against it: it hides no growth."""
    return max(0, before.disk_free - now.disk_free) if before is not None else 0


@dataclass(frozen=True, slots=True)
class EvictionCandidate:
    uid: str
    limits: StorageLimits
    storage: PodStorage
    priority: int = 0


def to_evict(
    candidates: Iterable[EvictionCandidate], threshold: MetThreshold, rules: StorageSettings
) -> tuple[str, str] | None:
    """(uid, message) of the pod that goes first when the disk runs short: critical ones last; then those above their
    request, of the lowest priority, the largest. None: no pod whose end would help."""
    inodes = threshold.signal == INODES
    worth = [
        each
        for each in candidates
        if (
            each.storage.total.inodes >= rules.evict_inodes if inodes else each.storage.total.bytes >= rules.evict_bytes
        )
    ]
    if not worth:
        return None

    def rank(each: EvictionCandidate) -> tuple[bool, bool, int, int]:
        total = each.storage.total
        excess = total.inodes if inodes else total.bytes - each.limits.requests
        return each.priority < SYSTEM_CRITICAL, excess > 0, -each.priority, excess

    chosen = max(worth, key=rank)
    total = chosen.storage.total
    if inodes:
        return chosen.uid, (
            f"The node was low on resource: inodes. Threshold quantity: {threshold.least}, "
            f"available: {threshold.available}. The pod was using {total.inodes}."
        )
    return chosen.uid, (
        f"The node was low on resource: ephemeral-storage. Threshold quantity: {size(threshold.least)}, "
        f"available: {size(threshold.available)}. The pod was using {size(total.bytes)}, request is "
        f"{size(chosen.limits.requests)}, has larger consumption of ephemeral-storage."
    )


def size(amount: int) -> str:
    """Bytes as a quantity in whole Ki, unless they come out even in a larger unit."""
    if amount % 1024 and amount > 1024:
        amount -= amount % 1024
    return str(quantity.from_units(amount, BINARY_SI))
