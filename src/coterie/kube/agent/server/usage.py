"""What pods and the node use now, in the kubelet's summary form: the API server makes `kubectl top` from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coterie.base.clock import Clock, rfc3339
from coterie.kube.agent.runtimes.protocol import ContainerUsage, PodRuntime

_SHORTEST = 1.0
"""Seconds between two looks that make a rate."""


@dataclass(frozen=True, slots=True)
class NodeUsage:
    cpu_nanoseconds: int
    memory_bytes: int


class UsageMeter:
    """Rates need two looks: the last one of each container is remembered, and forgotten with it."""

    def __init__(self, runtime: PodRuntime, node: Callable[[], NodeUsage], clock: Clock) -> None:
        self._runtime = runtime
        self._node = node
        self._clock = clock
        self._before: dict[tuple[str, str], tuple[float, int, int]] = {}

    async def summary(self, node_name: str) -> dict[str, Any]:
        moment = self._clock.monotonic()
        now = rfc3339(self._clock.now())
        seen: set[tuple[str, str]] = set()
        pods = []
        for pod in self._runtime.pods():
            containers = []
            for name, usage in sorted((await self._runtime.usage(pod.uid)).items()):
                key = (pod.uid, name)
                seen.add(key)
                containers.append({"name": name, **self._shown(key, usage, moment, now)})
            if containers:
                reference = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
                pods.append({"podRef": reference, "containers": containers})
        node = self._node()
        key = ("", "")
        seen.add(key)
        whole = self._shown(key, ContainerUsage(node.cpu_nanoseconds, node.memory_bytes, 0), moment, now)
        self._before = {key: value for key, value in self._before.items() if key in seen}
        return {"node": {"nodeName": node_name, **whole}, "pods": pods}

    def _shown(self, key: tuple[str, str], usage: ContainerUsage, moment: float, now: str) -> dict[str, Any]:
        rate = self._rate(key, usage.cpu_nanoseconds, moment)
        return {
            "cpu": {"time": now, "usageNanoCores": rate, "usageCoreNanoSeconds": usage.cpu_nanoseconds},
            "memory": {"time": now, "workingSetBytes": usage.memory_bytes},
        }

    def _rate(self, key: tuple[str, str], total: int, moment: float) -> int:
        """Nanoseconds of CPU for each second since the last look; the last rate when that was just now."""
        before = self._before.get(key)
        if before is None:
            self._before[key] = (moment, total, 0)
            return 0
        since, used, rate = before
        if moment - since < _SHORTEST:
            return rate
        rate = max(0, int((total - used) / (moment - since)))
        self._before[key] = (moment, total, rate)
        return rate
