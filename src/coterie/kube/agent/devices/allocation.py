"""Who gets which device: pure functions from a pod and what is free to an allocation.

A device belongs to one pod at a time, and inside of it to one container, except that init containers, which end before the
others begin, use the devices of those. Sidecars go on beside the others and keep theirs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from coterie.kube.agent.devices.protocol import AllocatableDevice
from coterie.kube.agent.pods import pod_model
from coterie.kube.api import quantity
from coterie.kube.api.meta import Object


@dataclass(frozen=True, slots=True)
class PodDevices:
    """What a pod has: for each container and resource the ids of devices."""

    namespace: str
    name: str
    containers: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)

    def ids(self) -> set[str]:
        return {each for resources in self.containers.values() for ids in resources.values() for each in ids}

    def of(self, container: str) -> tuple[str, ...]:
        return tuple(each for ids in self.containers.get(container, {}).values() for each in ids)


class DevicesUnavailable(Exception):
    """A pod cannot have the devices it asks for. `final`: not even when all others have ended."""

    def __init__(self, reason: str, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.final = final


def amount(container: Object, resource: str) -> int:
    """Devices are never overcommitted, so the request is the limit; either may be missing."""
    resources = container.get("resources") or {}
    for group in ("limits", "requests"):
        text = (resources.get(group) or {}).get(resource)
        if text is not None:
            return max(0, quantity.parse(text).value())
    return 0


def resources_of(pod: Object) -> list[str]:
    """Names of all resources that containers of the pod ask for."""
    found: dict[str, None] = {}
    for container in pod_model.all_containers(pod):
        for group in ("limits", "requests"):
            found |= dict.fromkeys((container.get("resources") or {}).get(group) or {})
    return list(found)


def needed(pod: Object, resource: str) -> int:
    """How many devices the pod needs at once: what goes on together, or the largest init container with the sidecars that
    are there before it."""
    together = sum(amount(each, resource) for each in (*pod_model.sidecars(pod), *pod_model.containers(pod)))
    most, before = together, 0
    for container in pod_model.init_containers(pod):
        count = amount(container, resource)
        most = max(most, before + count)
        if pod_model.is_sidecar(container):
            before += count
    return most


def divide(pod: Object, resource: str, ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The devices of each container, from as many as the pod needs."""
    out: dict[str, tuple[str, ...]] = {}
    rest = list(ids)
    for container in pod_model.init_containers(pod):
        count = amount(container, resource)
        if count:
            out[container["name"]] = tuple(rest[:count])
        if pod_model.is_sidecar(container):
            rest = rest[count:]
    for container in pod_model.containers(pod):
        count = amount(container, resource)
        if count:
            out[container["name"]] = tuple(rest[:count])
        rest = rest[count:]
    return out


def allocate(
    pod: Object,
    devices: Sequence[AllocatableDevice],
    taken: Mapping[str, str],
    unhealthy: Collection[str],
    resources: Collection[str],
) -> PodDevices:
    """`taken`: by id of a device whose it is, in words; `resources`: those of the pod that are devices of this node's kinds."""
    containers: dict[str, dict[str, tuple[str, ...]]] = {}
    for resource in sorted(resources):
        count = needed(pod, resource)
        if not count:
            continue
        known = [device for device in devices if device.resource == resource]
        if count > len(known):
            raise DevicesUnavailable(
                f"OutOf{resource}", f"the pod needs {count} {resource}, the node has {len(known)}", final=True
            )
        free = [device for device in known if device.id not in taken and device.id not in unhealthy]
        if count > len(free):
            raise DevicesUnavailable("DevicesUnavailable", _shortage(resource, count, known, free, taken, unhealthy))
        chosen = [device.id for device in _in_order(free, known)[:count]]
        for name, ids in divide(pod, resource, chosen).items():
            containers.setdefault(name, {})[resource] = ids
    meta = pod["metadata"]
    return PodDevices(meta.get("namespace") or "", meta["name"], containers)


def _in_order(free: Sequence[AllocatableDevice], known: Sequence[AllocatableDevice]) -> list[AllocatableDevice]:
    """Partitions of devices that have the fewest free ones first, so that others stay whole; else by their number."""
    left: dict[str, int] = {}
    for device in free:
        if device.parent:
            left[device.parent] = left.get(device.parent, 0) + 1
    places = {device.id: place for place, device in enumerate(known)}
    return sorted(free, key=lambda device: (left.get(device.parent, 0), places[device.id]))


def _shortage(
    resource: str,
    count: int,
    known: Sequence[AllocatableDevice],
    free: Sequence[AllocatableDevice],
    taken: Mapping[str, str],
    unhealthy: Collection[str],
) -> str:
    broken = sum(device.id in unhealthy for device in known)
    holders = sorted({taken[device.id] for device in known if device.id in taken})
    words = list(_reasons(broken, holders))
    return f"the pod needs {count} {resource}, {len(free)} of {len(known)} are free: {'; '.join(words)}"


def _reasons(broken: int, holders: Sequence[str]) -> Iterator[str]:
    if holders:
        yield f"held by {', '.join(holders[:4])}" + (f" and {len(holders) - 4} more" if len(holders) > 4 else "")
    if broken:
        yield f"{broken} unhealthy"
