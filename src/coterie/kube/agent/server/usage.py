"""What pods and the node use now, in the kubelet's summary form: the API server makes `kubectl top` from it.

CPU is a rate, so it takes two measurements: this one and that of the last request. Where there is none, or it is old, two are made
one second apart. Nothing is measured while nobody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from coterie.base.clock import Clock, rfc3339
from coterie.kube.agent.runtimes.protocol import ContainerUsage, PodAccess, PodState

_SHORTEST = 0.9
"""Seconds between two measurements that make a rate."""
_PAUSE = 1.0
"""Seconds between two measurements for one answer."""
_LONGEST = 60.0
"""A rate over more seconds than this says little of the present."""

_Key = tuple[str, str]
"""(uid of the pod, container); the node itself has empty ones."""
_NODE: _Key = ("", "")


@dataclass(frozen=True, slots=True)
class NodeUsage:
    cpu_nanoseconds: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class _Measured:
    at: float
    usage: ContainerUsage


@dataclass(frozen=True, slots=True)
class _Rate:
    nanocores: int
    window: float


class UsageMeter:
    """Remembers the last measurement of each container, and forgets it with the container."""

    def __init__(self, runtime: PodAccess, node: Callable[[], NodeUsage], clock: Clock) -> None:
        self._runtime = runtime
        self._node = node
        self._clock = clock
        self._last: dict[_Key, _Measured] = {}
        self._rates: dict[_Key, _Rate] = {}

    async def summary(self, node_name: str) -> dict[str, Any]:
        measured = await self._measure()
        if any(key not in self._rates for key in measured):
            await self._clock.sleep(_PAUSE)
            measured = await self._measure()
        now = rfc3339(self._clock.now())
        pods = []
        for pod in self._runtime.pods():
            containers = self._containers(pod, measured, now)
            if containers:
                reference = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
                pods.append({"podRef": reference, "containers": containers})
        return {"node": {"nodeName": node_name, **self._shown(_NODE, measured[_NODE], now)}, "pods": pods}

    async def _measure(self) -> dict[_Key, ContainerUsage]:
        found: dict[_Key, ContainerUsage] = {}
        moment = self._clock.monotonic()
        for pod in self._runtime.pods():
            for name, usage in (await self._runtime.usage(pod.uid)).items():
                found[(pod.uid, name)] = usage
        node = self._node()
        found[_NODE] = ContainerUsage(node.cpu_nanoseconds, node.memory_bytes, 0)
        self._last = {key: value for key, value in self._last.items() if key in found}
        self._rates = {key: value for key, value in self._rates.items() if key in found}
        for key, usage in found.items():
            self._remember(key, _Measured(moment, usage))
        return found

    def _remember(self, key: _Key, new: _Measured) -> None:
        old = self._last.get(key)
        if old is None or new.at - old.at > _LONGEST or new.usage.cpu_nanoseconds < old.usage.cpu_nanoseconds:
            # The first one, or the first of a restarted container.
            self._rates.pop(key, None)
            self._last[key] = new
        elif (window := new.at - old.at) >= _SHORTEST:
            used = new.usage.cpu_nanoseconds - old.usage.cpu_nanoseconds
            self._rates[key] = _Rate(int(used / window), window)
            self._last[key] = new

    def _containers(self, pod: PodState, measured: Mapping[_Key, ContainerUsage], now: str) -> list[dict[str, Any]]:
        """Those that have a rate: without one the figures would be guesses."""
        keys = sorted(key for key in measured if key[0] == pod.uid and key in self._rates)
        return [{"name": key[1], **self._shown(key, measured[key], now)} for key in keys]

    def _shown(self, key: _Key, usage: ContainerUsage, now: str) -> dict[str, Any]:
        rate = self._rates.get(key, _Rate(0, 0.0))
        return {
            "cpu": {
                "time": now,
                "usageNanoCores": rate.nanocores,
                "usageCoreNanoSeconds": usage.cpu_nanoseconds,
                "windowSeconds": round(rate.window, 3),
            },
            "memory": {"time": now, "workingSetBytes": usage.memory_bytes},
        }
