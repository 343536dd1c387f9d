"""Watches the disk, the memory and the processes of the node, and evicts who uses too much.

    every 2 s while there are pods: free space, inodes, memory, processes
        ├─ a pod may have exceeded its limit on disk ──> count its files, in a thread ──> evict it
        ├─ the disk is nearly full ──> count all pods' files ──> evict the largest
        └─ memory or processes run short ──> ask the runtime what pods use ──> evict one; no new pods meanwhile

Without pods it is only looked at now and then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner
from coterie.kube.agent.images.store import remove_tree
from coterie.kube.agent.node.facts import MachineUsage, measure_usage
from coterie.kube.agent.node.pressure import DISK_PRESSURE, NO_PRESSURE, MetThreshold, NodePressure, advance
from coterie.kube.agent.pods import pod_model
from coterie.kube.agent.pods.disk_usage import DiskUsage, Pace, TreeMeter
from coterie.kube.agent.pods.eviction import priority_of, running_pod, victim
from coterie.kube.agent.pods.limits import LimitDefaults, StorageLimits, resolve, storage_limits
from coterie.kube.agent.pods.manager import PodManager
from coterie.kube.agent.pods.operations import pod_files
from coterie.kube.agent.pods.storage import (
    EvictionCandidate,
    Measurement,
    PodStorage,
    due,
    exceeded,
    to_evict,
    written_since,
)
from coterie.kube.agent.runtimes.protocol import PodRuntime
from coterie.kube.agent.settings import AgentSettings
from coterie.kube.api.meta import Object

log = logger("agent.storage")
_HURRY = 0.5
"""The part of the time that counting takes under disk pressure."""
_IDLE_CHECKS = 5
"""Without pods the disk is looked at so much more rarely."""
_LONGEST_COUNT = 5.0
"""Seconds to wait for counts before one of the pods that were counted goes."""
_EVICTION_PAUSE = 10.0
"""Seconds for an eviction to free its space before the next pod goes."""


class StorageMonitor:
    """A Runnable."""

    name = "pod-storage"

    def __init__(
        self,
        pods: PodManager,
        runtime: PodRuntime,
        settings: AgentSettings,
        clock: Clock,
        allocatable: Callable[[], Mapping[str, str]],
        *,
        pressure_changed: Callable[[], None] = lambda: None,
        measure: Callable[[], MachineUsage] | None = None,
        free_images: Callable[[], Awaitable[int]] | None = None,
    ) -> None:
        """`free_images` removes images that nobody uses, and says how many went."""
        self.ready = asyncio.Event()
        self._pods = pods
        self._runtime = runtime
        self._settings = settings
        self._rules = settings.storage
        self._clock = clock
        self._allocatable = allocatable
        self._pressure_changed = pressure_changed
        self._free_images = free_images
        self.measure = measure or (lambda: measure_usage(settings.pods_directory))
        self._pace = Pace(self._rules.measure_share)
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="pod-storage")
        self._counting: dict[str, asyncio.Task[None]] = {}
        self._measured: dict[str, Measurement] = {}
        self._before: MachineUsage | None = None
        self._written = 0
        self._freed: set[str] = set()
        self._evicted_at = float("-inf")
        """When a pod had to go for the disk."""
        self._relieved_at = float("-inf")
        """When one had to go for memory or processes."""
        self._pressure = NO_PRESSURE
        self._owner = TaskOwner("pod-storage")

    async def run(self) -> None:
        self.ready.set()
        try:
            while True:
                try:
                    await self.check()
                except OSError as error:
                    log.warning("The disk that pods use cannot be measured", error=error)
                await self._wait()
        finally:
            self._pace.stopped = True
            await self._owner.close()
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _wait(self) -> None:
        """Until the next round. Without pods that run or will run, the first new one ends the wait."""
        if not all(pod_model.phase_is_final(pod) for pod in self._pods.pods()):
            await self._clock.sleep(self._rules.check_seconds)
            return
        self._pods.pod_added.clear()
        waits = {
            asyncio.ensure_future(self._clock.sleep(self._rules.check_seconds * _IDLE_CHECKS)),
            asyncio.ensure_future(self._pods.pod_added.wait()),
        }
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def check(self) -> None:
        """One round."""
        usage = self.measure()
        self._written += written_since(self._before, usage)
        self._before = usage
        now = self._clock.monotonic()
        self._note(advance(self._pressure, usage, self._settings.pressure, now))
        pods = self._alive()
        self._measured = {uid: known for uid, known in self._measured.items() if uid in pods}
        defaults = resolve(self._settings.pods.defaults, self._allocatable())
        for uid, pod in pods.items():
            limits = storage_limits(pod, defaults)
            if due(limits, self._measured.get(uid), now, self._written, self._rules):
                self._count(pod, limits)
        for threshold in self._pressure.acting:
            if threshold.condition == DISK_PRESSURE:
                if now - self._evicted_at >= _EVICTION_PAUSE:
                    await self._relieve(pods, threshold, defaults)
            elif now - self._relieved_at >= self._settings.eviction.pause_seconds:
                await self._relieve_machine(pods, threshold)

    def _note(self, pressure: NodePressure) -> None:
        before, self._pressure = self._pressure.conditions, pressure
        if pressure.conditions == before:
            return
        self._pods.pressures = pressure.conditions
        self._pace.share = _HURRY if DISK_PRESSURE in pressure.conditions else self._rules.measure_share
        for condition in sorted(pressure.conditions - before):
            log.warning("The node runs short of something", condition=condition)
        for condition in sorted(before - pressure.conditions):
            log.info("The node has enough again", condition=condition)
        self._pressure_changed()

    def _alive(self) -> dict[str, Object]:
        """Pods that may still write, and are not being stopped for it."""
        found = {}
        for pod in self._pods.pods():
            uid = pod_model.uid_of(pod)
            state, worker = self._runtime.pod(uid), self._pods.worker(uid)
            if worker is None or worker.history.failure is not None or state is None:
                continue
            if any(run.running for run in state.containers):
                found[uid] = pod
        return found

    def _count(self, pod: Object, limits: StorageLimits) -> asyncio.Task[None]:
        uid = pod_model.uid_of(pod)
        if uid not in self._counting:
            task = self._owner.start(f"count/{pod_model.key_of(pod)}", self._count_and_judge(pod, limits), vital=False)
            self._counting[uid] = task
            task.add_done_callback(lambda _: self._counting.pop(uid, None))
        return self._counting[uid]

    async def _count_and_judge(self, pod: Object, limits: StorageLimits) -> None:
        uid, key = pod_model.uid_of(pod), pod_model.key_of(pod)
        volumes = [volume["name"] for volume in pod_model.spec_of(pod).get("volumes") or () if "emptyDir" in volume]
        written = self._written
        storage, took = await asyncio.get_running_loop().run_in_executor(
            self._threads,
            measure_pod,
            self._settings.pods_directory / uid,
            self._settings.paths.pod_stdout(key.namespace, key.name, uid),
            self._runtime.writable_directories(uid),
            volumes,
            lambda: self._runtime.deleted_files(uid),
            self._pace,
        )
        self._measured[uid] = Measurement(storage, self._clock.monotonic(), took, written)
        why = exceeded(limits, storage)
        if why:
            self._evict(uid, why)

    async def _relieve_machine(self, pods: Mapping[str, Object], threshold: MetThreshold) -> None:
        """Free memory or processes: one pod goes."""
        found = [running_pod(pod, await self._runtime.usage(uid)) for uid, pod in pods.items()]
        chosen = victim(found, threshold, self._settings.eviction)
        if chosen is not None:
            self._relieved_at = self._clock.monotonic()
            self._evict(*chosen)

    async def _relieve(self, pods: Mapping[str, Object], threshold: MetThreshold, defaults: LimitDefaults) -> None:
        """Free space: what pods that have ended left, else images that nobody uses, else the pod that uses most."""
        if await self._free_ended():
            return
        if self._free_images is not None and await self._free_images():
            return
        limits = {uid: storage_limits(pod, defaults) for uid, pod in pods.items()}
        counting = [self._count(pod, limits[uid]) for uid, pod in pods.items()]
        if counting:
            await asyncio.wait(counting, timeout=_LONGEST_COUNT)
        candidates = [
            EvictionCandidate(uid, limits[uid], self._measured[uid].storage, priority_of(pod))
            for uid, pod in self._alive().items()
            if uid in self._measured and uid in limits
        ]
        chosen = to_evict(candidates, threshold, self._rules)
        if chosen is not None:
            self._evicted_at = self._clock.monotonic()
            self._evict(*chosen)

    async def _free_ended(self) -> bool:
        """Whether there was something to free."""
        known = {pod_model.uid_of(pod): pod for pod in self._pods.pods()}
        self._freed &= set(known)
        found: list[Path] = []
        for uid, pod in known.items():
            if pod_model.phase_is_final(pod) and uid not in self._freed:
                self._freed.add(uid)
                found += [path for path in pod_files(self._runtime, self._settings, uid) if path.is_dir()]
        for path in found:
            await asyncio.to_thread(remove_tree, path)
        return bool(found)

    def _evict(self, uid: str, why: str) -> None:
        worker = self._pods.worker(uid)
        if worker is not None and worker.history.failure is None:
            log.warning("Evicting a pod", pod=str(pod_model.key_of(worker.pod)), why=why)
            self._pods.evict(uid, why)


def measure_pod(
    directory: Path,
    logs: Path,
    written: Mapping[str, Sequence[Path]],
    volumes: Sequence[str],
    deleted: Callable[[], int],
    pace: Pace,
) -> tuple[PodStorage, float]:
    """All that a pod has on disk, and how many seconds counting took without its pauses. `written` are its containers'
    own directories, `volumes` its emptyDirs."""
    meter = TreeMeter(pace)
    names = {*written, *(path.name for path in logs.iterdir() if path.is_dir())} if logs.is_dir() else set(written)
    containers = {
        name: sum((meter.measure(path) for path in written.get(name, ())), meter.measure(logs / name))
        for name in sorted(names)
    }
    found = {name: meter.measure(directory / "volumes" / name) for name in volumes}
    return PodStorage(containers, found, DiskUsage(deleted())), meter.worked
