"""Who goes when memory or processes run short, and who is not let in: pure functions, in the kubelet's words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from coterie.kube.agent.node.pressure import DISK_PRESSURE, MEMORY_PRESSURE, PID_PRESSURE, MetThreshold
from coterie.kube.agent.pods import pod_model
from coterie.kube.agent.runtimes.protocol import ContainerUsage
from coterie.kube.agent.settings import EvictionSettings
from coterie.kube.api import quantity
from coterie.kube.api.labels import TAINT_MEMORY_PRESSURE
from coterie.kube.api.meta import Object
from coterie.kube.api.quantity import BINARY_SI
from coterie.kube.api.rules.pods import qos_class

SYSTEM_CRITICAL = 2_000_000_000
"""The priority from which on a pod is critical for the node or the cluster."""


def priority_of(pod: Object) -> int:
    return int(pod_model.spec_of(pod).get("priority") or 0)


def is_critical(pod: Object) -> bool:
    return priority_of(pod) >= SYSTEM_CRITICAL


def refusal(pod: Object, pressures: frozenset[str]) -> str:
    """Why a new pod is not let in; empty: it is."""
    if not pressures or is_critical(pod):
        return ""
    if pressures == {MEMORY_PRESSURE} and (qos_class(pod_model.spec_of(pod)) != "BestEffort" or _tolerates_memory(pod)):
        return ""
    return f"The node had condition: [{', '.join(sorted(pressures))}]."


def _tolerates_memory(pod: Object) -> bool:
    for toleration in pod_model.spec_of(pod).get("tolerations") or ():
        key, effect = toleration.get("key") or "", toleration.get("effect") or ""
        exists = toleration.get("operator") == "Exists"
        if effect in ("", "NoSchedule") and (
            (not key and exists) or (key == TAINT_MEMORY_PRESSURE and (exists or not toleration.get("value")))
        ):
            return True
    return False


@dataclass(frozen=True, slots=True)
class RunningPod:
    """What a pod uses."""

    uid: str
    usage: Mapping[str, ContainerUsage] = field(default_factory=dict)
    requests: Mapping[str, int] = field(default_factory=dict)
    """Bytes of memory, by container."""
    priority: int = 0

    @property
    def critical(self) -> bool:
        return self.priority >= SYSTEM_CRITICAL

    @property
    def memory(self) -> int:
        return sum(each.memory_bytes for each in self.usage.values())

    @property
    def excess(self) -> int:
        return self.memory - sum(self.requests.values())

    @property
    def pids(self) -> int:
        return sum(each.pids for each in self.usage.values())


def running_pod(pod: Object, usage: Mapping[str, ContainerUsage]) -> RunningPod:
    requests = {}
    for container in pod_model.all_containers(pod):
        resources = container.get("resources") or {}
        text = (resources.get("requests") or {}).get("memory") or (resources.get("limits") or {}).get("memory")
        requests[container["name"]] = quantity.parse(text).value() if text else 0
    counted = {name: amount for name, amount in requests.items() if name in usage}
    return RunningPod(pod_model.uid_of(pod), usage, counted, priority_of(pod))


def victim(pods: Iterable[RunningPod], threshold: MetThreshold, rules: EvictionSettings) -> tuple[str, str] | None:
    """(uid, message) of the pod that goes first: critical ones last; then those above their requests, of the lowest
    priority, with the largest use. None: no pod whose end would help."""
    if threshold.condition == MEMORY_PRESSURE:
        worth = [pod for pod in pods if pod.memory >= rules.evict_memory]
        chosen = max(worth, key=lambda pod: (not pod.critical, pod.excess > 0, -pod.priority, pod.excess), default=None)
        return (chosen.uid, _memory_message(chosen, threshold)) if chosen is not None else None
    assert threshold.condition == PID_PRESSURE, f"{DISK_PRESSURE} is decided by what was counted on disk"
    many = [pod for pod in pods if pod.pids >= rules.evict_pids]
    chosen = max(many, key=lambda pod: (not pod.critical, -pod.priority, pod.pids), default=None)
    if chosen is None:
        return None
    return chosen.uid, (
        f"The node was low on resource: pids. Threshold quantity: {threshold.least}, available: {threshold.available}. "
        f"The pod was using {chosen.pids}."
    )


def _memory_message(pod: RunningPod, threshold: MetThreshold) -> str:
    sentences = [
        f"The node was low on resource: memory. Threshold quantity: {_size(threshold.least)}, "
        f"available: {_size(threshold.available)}."
    ]
    for name, usage in sorted(pod.usage.items()):
        request = pod.requests.get(name, 0)
        if usage.memory_bytes > request:
            sentences.append(
                f"Container {name} was using {_size(usage.memory_bytes)}, request is {_size(request)}, "
                "has larger consumption of memory."
            )
    return " ".join(sentences)


def _size(amount: int) -> str:
    if amount % 1024 and amount > 1024:
        amount -= amount % 1024
    return str(quantity.from_units(amount, BINARY_SI))
