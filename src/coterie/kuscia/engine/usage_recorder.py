"""Measures CPU and memory of engines while they run, and writes them to the node's `usage.log`.

an engine starts ──> each second, later more seldom ──> a line for each pod
no engine runs   ──> nothing is measured and nothing is awake
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from coterie.base.clock import Clock, rfc3339_micro
from coterie.kube.agent.runtimes.protocol import ContainerUsage, PodRuntime, PodState
from coterie.kube.api.meta import Object
from coterie.kuscia.api.task_usage import ENDED, SAMPLE, STARTING, step_seconds
from coterie.kuscia.control.log_index import LoggedPod
from coterie.kuscia.control.usage_log import UsageLog

_SHORTEST: Final = 0.5
_START_SECONDS: Final = 300.0
"""For which a pod may be without containers: images are pulled."""


@dataclass
class _RunningPod:
    entry: LoggedPod
    begun: float
    measured: float
    cpu_nanoseconds: int = 0
    seen: bool = False
    sampled: bool = False

    @property
    def facts(self) -> dict[str, object]:
        return {"job": self.entry.job, "task": self.entry.task, "pod": self.entry.pod}


class EngineUsageRecorder:
    """A Runnable; ready at once."""

    name = "engine-usage"

    def __init__(self, runtime: PodRuntime, target: UsageLog, clock: Clock) -> None:
        self.ready = asyncio.Event()
        self._runtime = runtime
        self._target = target
        self._clock = clock
        self._pods: dict[str, _RunningPod] = {}
        self._any = asyncio.Event()

    def starting(self, entry: LoggedPod, pod: Object) -> None:
        """Of an engine whose containers are about to start."""
        if entry.uid in self._pods:
            return
        now = self._clock.monotonic()
        running = self._pods[entry.uid] = _RunningPod(entry, now, now)
        meta, status = pod["metadata"], pod.get("status") or {}
        self._target.write(
            STARTING,
            {**running.facts, "made": meta.get("creationTimestamp"), "scheduled": _scheduled(status)},
        )
        self._any.set()

    async def run(self) -> None:
        self.ready.set()
        while True:
            if not self._pods:
                self._any.clear()
                await self._any.wait()
            await self._clock.sleep(1.0)
            await self.measure()

    async def measure(self) -> None:
        for uid, pod in list(self._pods.items()):
            state, now = self._runtime.pod(uid), self._clock.monotonic()
            if _over(state, pod, now):
                del self._pods[uid]
                if pod.seen:
                    self._target.write(ENDED, {**pod.facts, **_outcome(state)})
                continue
            if now - pod.measured < step_seconds(now - pod.begun) - 0.2:
                continue
            used = await self._runtime.usage(uid)
            if state is not None and any(each.memory_bytes for each in used.values()):
                self._sample(pod, state, used, now)

    def _sample(self, pod: _RunningPod, state: PodState, used: Mapping[str, ContainerUsage], now: float) -> None:
        """The first measurement of an engine counts from its start."""
        cpu = sum(each.cpu_nanoseconds for each in used.values())
        grown = cpu - pod.cpu_nanoseconds if cpu >= pod.cpu_nanoseconds else cpu
        facts: dict[str, object] = {
            **pod.facts,
            "cpu": grown / 1e9 / max(now - pod.measured, _SHORTEST),
            "memory": sum(each.memory_bytes for each in used.values()),
        }
        if not pod.sampled:
            facts["began"] = _stamp(min((each.started_at for each in state.containers), default=0.0))
        pod.measured, pod.cpu_nanoseconds, pod.sampled = now, cpu, True
        self._target.write(SAMPLE, facts)


def _scheduled(status: Mapping[str, Any]) -> str:
    """When the pod got its node; the agent may not have the condition yet."""
    for each in status.get("conditions") or ():
        if each.get("type") == "PodScheduled" and each.get("status") == "True":
            return str(each.get("lastTransitionTime") or "")
    return ""


def _over(state: PodState | None, pod: _RunningPod, now: float) -> bool:
    if state is not None and any(each.running for each in state.containers):
        pod.seen = True
        return False
    if state is not None and state.containers:
        pod.seen = True
        return True
    return pod.seen or now - pod.begun > _START_SECONDS


def _stamp(seconds: float) -> str:
    return rfc3339_micro(datetime.fromtimestamp(seconds, UTC)) if seconds else ""


def _outcome(state: PodState | None) -> dict[str, object]:
    """What ended badly goes first."""
    if state is None or not state.containers:
        return {}
    worst = max(state.containers, key=lambda each: (each.exit_code != 0, each.finished_at))
    return {
        "began": _stamp(min(each.started_at for each in state.containers)),
        "finished": _stamp(max(each.finished_at for each in state.containers)),
        "reason": worst.reason,
        "code": worst.exit_code,
    }
