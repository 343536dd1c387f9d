"""Which limits a pod and its containers get: pure functions from the pod, the node's defaults and what it can allocate.

    container   its own `resources.limits`; processes and open files as the node's defaults say
    pod         the sum of its containers where each has a limit, else the node's default

A pod is limited as a whole too: its containers share the processes, memory and disk of the pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coterie.kube.agent.pods import pod_model
from coterie.kube.agent.runtimes.protocol import ContainerLimits
from coterie.kube.agent.settings import GIB, PodDefaults
from coterie.kube.api import quantity
from coterie.kube.api.meta import Object

EPHEMERAL_STORAGE = "ephemeral-storage"
_MOST_DEFAULT_STORAGE = 20 * GIB


@dataclass(frozen=True, slots=True)
class LimitDefaults:
    """`PodDefaults` in numbers, for this node; 0 means no limit."""

    pids: int = 0
    open_files: int = 0
    memory: int = 0
    ephemeral_storage: int = 0


@dataclass(frozen=True, slots=True)
class StorageLimits:
    """Bytes on disk that a pod may use; 0 means no limit."""

    pod: int = 0
    is_default: bool = False
    """Whether `pod` is the node's default, not the sum of what the containers say."""
    containers: Mapping[str, int] = field(default_factory=dict)
    """Of containers that have a limit of their own: what they write besides volumes, and their logs."""
    volumes: Mapping[str, int] = field(default_factory=dict)
    """Of emptyDir volumes with a `sizeLimit`."""
    requests: int = 0


def resolve(defaults: PodDefaults, allocatable: Mapping[str, str]) -> LimitDefaults:
    disk = _bytes(allocatable.get(EPHEMERAL_STORAGE))
    return LimitDefaults(
        pids=defaults.pids,
        open_files=defaults.open_files,
        memory=_bytes(defaults.memory or allocatable.get("memory")),
        ephemeral_storage=_bytes(defaults.ephemeral_storage) or min(_MOST_DEFAULT_STORAGE, disk // 2),
    )


def container_limits(
    pod: Object, container: Object, defaults: LimitDefaults, *, writes_outside: bool = False
) -> ContainerLimits:
    """One file cannot be larger than what the pod may use on disk, unless the container writes outside of the pod's own
    directories too (`writes_outside`): results in the domain's data are no ephemeral storage."""
    storage = storage_limits(pod, defaults).pod
    limits, requests = _of(container, "limits"), _of(container, "requests")
    memory = _bytes(limits.get("memory"))
    return ContainerLimits(
        cpu_milli=_milli(limits.get("cpu")),
        memory_bytes=memory,
        pids=defaults.pids,
        cpu_shares_milli=_milli(requests.get("cpu") or limits.get("cpu")),
        open_files=defaults.open_files,
        # Files in memory (/dev/shm) have the same bound, and may be as large as the memory limit.
        file_bytes=max(storage, memory) if storage and not writes_outside else 0,
    )


def pod_limits(pod: Object, defaults: LimitDefaults) -> ContainerLimits:
    """For the pod as a whole, with the overhead of its RuntimeClass. CPU without a limit is unlimited; its share is what the
    containers request."""
    overhead = pod_model.spec_of(pod).get("overhead") or {}
    cpu, memory = _total(pod, "cpu", milli=True), _total(pod, "memory")
    more_cpu, more_memory = _milli(overhead.get("cpu")), _bytes(overhead.get("memory"))
    return ContainerLimits(
        cpu_milli=cpu + more_cpu if cpu else 0,
        memory_bytes=memory + more_memory if memory else max(defaults.memory, _largest(pod, "limits", "memory")),
        pids=defaults.pids,
        cpu_shares_milli=_sum(pod, "requests", "cpu", "limits") + more_cpu,
    )


def storage_limits(pod: Object, defaults: LimitDefaults) -> StorageLimits:
    own = {
        container["name"]: amount
        for container in pod_model.all_containers(pod)
        if (amount := _bytes(_of(container, "limits").get(EPHEMERAL_STORAGE)))
    }
    total = _total(pod, EPHEMERAL_STORAGE)
    volumes = {}
    for volume in pod_model.spec_of(pod).get("volumes") or ():
        source = volume.get("emptyDir") or {}
        if source.get("sizeLimit"):
            volumes[volume["name"]] = _bytes(source["sizeLimit"])
    return StorageLimits(
        pod=total or max(defaults.ephemeral_storage, sum(own.values())),
        is_default=not total,
        containers=own,
        volumes=volumes,
        requests=_sum(pod, "requests", EPHEMERAL_STORAGE, "requests"),
    )


def _of(container: Object, group: str) -> Mapping[str, str]:
    return (container.get("resources") or {}).get(group) or {}


def _bytes(text: str | int | None) -> int:
    return quantity.parse(text).value() if text else 0


def _milli(text: str | int | None) -> int:
    return quantity.parse(text).milli_value() if text else 0


def _running_together(pod: Object) -> list[Object]:
    return [*pod_model.sidecars(pod), *pod_model.containers(pod)]


def _alone(pod: Object) -> list[Object]:
    return [container for container in pod_model.init_containers(pod) if not pod_model.is_sidecar(container)]


def _total(pod: Object, resource: str, *, milli: bool = False) -> int:
    """The limit of the whole pod, 0 when a container has none: as much as its containers together, or as the largest of
    its init containers."""
    read = _milli if milli else _bytes
    found = {
        container["name"]: read(_of(container, "limits").get(resource)) for container in pod_model.all_containers(pod)
    }
    if not found or not all(found.values()):
        return 0
    return max(
        sum(found[container["name"]] for container in _running_together(pod)),
        max((found[container["name"]] for container in _alone(pod)), default=0),
    )


def _largest(pod: Object, group: str, resource: str) -> int:
    return max((_bytes(_of(container, group).get(resource)) for container in pod_model.all_containers(pod)), default=0)


def _sum(pod: Object, group: str, resource: str, otherwise: str) -> int:
    read = _milli if resource == "cpu" else _bytes

    def amount(container: Object) -> int:
        return read(_of(container, group).get(resource) or _of(container, otherwise).get(resource))

    together = sum(amount(container) for container in _running_together(pod))
    return max(together, max((amount(container) for container in _alone(pod)), default=0))
