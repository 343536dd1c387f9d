"""The devices of this node: found when the agent starts, given to pods, taken back, watched.

    open      kinds whose driver is there ──> devices; the record of an earlier agent
    allocate  pod ──> claim on the machine ──> record on disk ──> only then a container may start
    free      when nothing of the pod runs any more
    faults    a thread for each kind waits for them ──> allocatable shrinks, the Node and the pod's events say why

With no driver on the machine all of this does nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from coterie.base.clock import Clock
from coterie.base.exposition import Family
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner
from coterie.kube.agent.devices import allocation, libraries, metrics, records, registry
from coterie.kube.agent.devices.allocation import DevicesUnavailable, PodDevices
from coterie.kube.agent.devices.claims import MachineClaims, machine_directory
from coterie.kube.agent.devices.metrics import DeviceUser
from coterie.kube.agent.devices.protocol import (
    AllocatableDevice,
    DeviceError,
    DeviceFault,
    DeviceKind,
    DeviceSample,
    DriverLibraries,
)
from coterie.kube.agent.devices.records import AllocationRecords
from coterie.kube.agent.node.capacity import NodeDevices
from coterie.kube.agent.node.conditions import ConditionReading
from coterie.kube.agent.pods import pod_model
from coterie.kube.agent.runtimes.protocol import Mount
from coterie.kube.agent.settings import DeviceSettings
from coterie.kube.api.meta import Object

log = logger("agent.devices")
CONDITION = "DevicesHealthy"
_WAIT_SECONDS = 5.0
"""How long one call waits for faults."""
_DRIVER_PAUSE = 60.0
"""Before a driver that does not report faults is asked again."""
_OTHERS_SECONDS = 2.0
"""How often devices of other agents are looked at while pods wait for one."""
_ELSEWHERE = "another agent of this machine"


@dataclass(frozen=True, slots=True)
class ContainerDevices:
    """What a container gets with its devices, or to keep it from those of others."""

    nodes: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()


NOTHING = ContainerDevices()


class DeviceManager:
    """A Runnable; ready when the devices are known."""

    name = "devices"

    def __init__(
        self,
        settings: DeviceSettings,
        directory: Path,
        node_name: str,
        clock: Clock,
        *,
        kinds: Callable[[], Mapping[str, registry.Load]] = registry.found,
        shared: Path | None = None,
        in_thread: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        """`directory`: where the record lies; `shared`: where all agents of the machine have their claims; `in_thread` calls what
        blocks."""
        self.ready = asyncio.Event()
        self.on_change: Callable[[], None] = lambda: None
        """Capacity or health changed."""
        self.on_fault: Callable[[DeviceFault, DeviceUser | None], None] = lambda fault, user: None
        self.on_free: Callable[[Collection[str]], None] = lambda uids: None
        """Devices came back: these pods may try again."""
        self._settings = settings
        self._directory = directory
        self._node_name = node_name
        self._clock = clock
        self._find_kinds = kinds
        self._in_thread = in_thread
        self._claims = MachineClaims(shared or machine_directory(), directory)
        self._kinds: list[DeviceKind] = []
        self._libraries: dict[str, DriverLibraries] = {}
        self._devices: dict[str, AllocatableDevice] = {}
        self._kind_of: dict[str, DeviceKind] = {}
        self._faults: dict[str, DeviceFault] = {}
        self._driver_problem = ""
        self._records = AllocationRecords()
        self._gone: tuple[str, ...] = ()
        """Resources that the Node offered before and that were not found again."""
        self._unrecorded: set[str] = set()
        """Pods that run, ask for devices and have no record: nobody knows which devices they use."""
        self._waiting: set[str] = set()
        self._held_elsewhere = False
        """Whether the last shortage has to do with another agent."""
        self._wait_for_others = asyncio.Event()
        self._lock = asyncio.Lock()
        self._scraping = asyncio.Lock()
        self._stopping = threading.Event()
        self._stop = asyncio.Event()

    # Life.

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        await self.open()
        self.ready.set()
        loop = asyncio.get_running_loop()
        for kind in self._kinds:
            # Not of the pool that everybody shares: these threads wait all the time.
            threading.Thread(target=self._watch, args=(kind, loop), name=f"devices-{kind.name}", daemon=True).start()
        try:
            async with TaskOwner("devices") as owner:
                owner.start("others", self._retry_waiting(), endless=True)
                await self._stop.wait()
        finally:
            self._stopping.set()

    async def open(self) -> None:
        if self._settings.enabled:
            for name, load in self._find_kinds().items():
                try:
                    kind: DeviceKind = await self._in_thread(load)
                    found: Sequence[AllocatableDevice] = await self._in_thread(kind.discover)
                    self._libraries[name] = await self._in_thread(kind.libraries)
                except (DeviceError, ImportError, OSError) as problem:
                    self._driver_problem = f"the {name} driver cannot be used: {problem}"
                    log.error("Devices cannot be used", driver=name, why=str(problem))
                    continue
                self._kinds.append(kind)
                for device in found:
                    if self._is_offered(device):
                        self._devices[device.id] = device
                        self._kind_of[device.id] = kind
                log.info("Devices were found", driver=name, count=len(self._devices))
        self._read_records()

    def _is_offered(self, device: AllocatableDevice) -> bool:
        only = self._settings.only
        whole = device.parent or device.id
        return not only or any(
            each == str(device.index) or device.id.startswith(each) or whole.startswith(each) for each in only
        )

    def _read_records(self) -> None:
        found = records.load(self._directory)
        if found is None:
            # What runs now is found by `adopt`; until it has ended, nothing is given out.
            (self._directory / records.FILE).replace(self._directory / f"{records.FILE}.unreadable")
            found = AllocationRecords()
        resources = tuple(sorted({device.resource for device in self._devices.values()}))
        self._gone = tuple(sorted({*found.resources} - {*resources}))
        self._records = found
        if resources and resources != found.resources:
            self._records = replace(found, resources=tuple(sorted({*found.resources, *resources})))
            try:
                records.save(self._directory, self._records)
            except OSError as error:
                # Pods are given no devices then; everything else goes on.
                log.error("The record of device allocations cannot be written", error=error)

    # What the Node says.

    def node(self) -> NodeDevices:
        capacity: dict[str, int] = dict.fromkeys(self._gone, 0)
        allocatable: dict[str, int] = dict.fromkeys(self._gone, 0)
        for device in self._devices.values():
            capacity[device.resource] = capacity.get(device.resource, 0) + 1
            allocatable[device.resource] = allocatable.get(device.resource, 0) + (device.id not in self._faults)
        return NodeDevices(capacity, allocatable, self._condition(), self._labels())

    def _condition(self) -> ConditionReading | None:
        if self._driver_problem:
            return ConditionReading(CONDITION, "False", "DriverError", self._driver_problem)
        if not self._devices:
            return None
        if not self._faults:
            return ConditionReading(CONDITION, "True", "DevicesHealthy", "no device has reported an error")
        faults = sorted(self._faults.values(), key=lambda fault: fault.id)
        message = "; ".join(f"{fault.id}: {fault.message}" for fault in faults[:8])
        return ConditionReading(CONDITION, "False", faults[0].reason, message)

    def _labels(self) -> dict[str, str]:
        """As NVIDIA's feature discovery sets them, for node selectors."""
        whole = [device for device in self._devices.values() if device.resource == "nvidia.com/gpu"]
        if not whole:
            return {}
        return {
            "nvidia.com/gpu.present": "true",
            "nvidia.com/gpu.count": str(len(whole)),
            "nvidia.com/gpu.product": "".join(c if c.isalnum() or c in "-_." else "-" for c in whole[0].model)[:63],
            "nvidia.com/gpu.memory": str(whole[0].memory >> 20),
        }

    # What pods get.

    def resources_of(self, pod: Object) -> list[str]:
        """Those of the pod that this node has a driver for."""
        return [name for name in allocation.resources_of(pod) if any(kind.owns(name) for kind in self._kinds)]

    async def allocate(self, pod: Object, *, running: bool = False) -> None:
        """When this returns, the pod's devices are its own, and a restart knows it. Raises DevicesUnavailable, OSError."""
        wanted = self.resources_of(pod)
        if not wanted or not any(allocation.needed(pod, name) for name in wanted):
            return
        uid = pod_model.uid_of(pod)
        async with self._lock:
            try:
                found: AllocationRecords = await self._in_thread(self._allocate_locked, uid, pod, wanted, running)
            except DevicesUnavailable:
                self._waiting.add(uid)
                if self._held_elsewhere:
                    self._wait_for_others.set()
                raise
            if uid not in self._records.pods:
                ids = sorted(found.pods[uid].ids())
                log.info("Devices were given to a pod", pod=str(pod_model.key_of(pod)), uid=uid, ids=ids)
            self._records = found
            self._waiting.discard(uid)

    def _allocate_locked(self, uid: str, pod: Object, wanted: Sequence[str], running: bool) -> AllocationRecords:
        """In a thread; what it changes in memory is what it returns."""
        with self._claims.locked():
            others = self._claims.others(self._devices)
            self._held_elsewhere = bool(others)
            known = self._records.pods.get(uid)
            if known is not None and (running or (known.ids() <= self._devices.keys() and not known.ids() & others)):
                self._claims.take(known.ids(), uid)
                return self._records
            unknown = self._unrecorded - {uid}
            if unknown:
                raise DevicesUnavailable(
                    "DevicesUnavailable",
                    f"{len(unknown)} running pods use devices of which there is no record any more",
                )
            taken = dict.fromkeys(others, _ELSEWHERE)
            for other, held in self._records.pods.items():
                if other != uid:
                    taken |= dict.fromkeys(held.ids(), f"{held.namespace}/{held.name}")
            chosen = allocation.allocate(pod, list(self._devices.values()), taken, self._faults, wanted)
            # The claim first: without the record it is void.
            self._claims.take(chosen.ids(), uid)
            changed = replace(self._records, pods={**self._records.pods, uid: chosen})
            records.save(self._directory, changed)
            return changed

    def container(
        self, pod: Object, container: Object, *, own_root: bool, given: Mapping[str, str]
    ) -> ContainerDevices:
        """`own_root`: the image has a file system of its own; `given`: the variables that the container has so far."""
        if not self._kinds:
            return NOTHING
        held = self._records.pods.get(pod_model.uid_of(pod))
        ids = held.of(container["name"]) if held is not None else ()
        nodes: dict[str, None] = {}
        variables: dict[str, str] = {}
        mounts: list[Mount] = []
        for kind in self._kinds:
            devices = [self._devices[each] for each in ids if self._kind_of.get(each) is kind]
            variables |= kind.environment(devices)
            if not devices:
                continue
            nodes |= dict.fromkeys(node for device in devices for node in device.nodes)
            files = self._libraries[kind.name]
            if own_root:
                mounts += libraries.image_mounts(files)
            else:
                mounts += libraries.host_mounts(files)
                if files.search:
                    variables["LD_LIBRARY_PATH"] = libraries.search_path(files, given.get("LD_LIBRARY_PATH", ""))
        return ContainerDevices(tuple(nodes), variables, tuple(mounts))

    async def free(self, uid: str) -> None:
        """Nothing of the pod runs any more."""
        self._waiting.discard(uid)
        self._unrecorded.discard(uid)
        if uid in self._records.pods:
            async with self._lock:
                self._records = await self._in_thread(self._free_locked, uid)
            log.info("Devices of a pod are free", uid=uid)
        if self._waiting:
            self.on_free(frozenset(self._waiting))

    def _free_locked(self, uid: str) -> AllocationRecords:
        """In a thread. The record first: a claim that it does not confirm is void."""
        with self._claims.locked():
            kept = {each: held for each, held in self._records.pods.items() if each != uid}
            changed = replace(self._records, pods=kept)
            records.save(self._directory, changed)
            if uid in self._records.pods:
                self._claims.drop(self._records.pods[uid].ids(), uid)
            return changed

    async def adopt(self, known: Collection[str], running: Sequence[Object]) -> None:
        """Called once, when the pods of this node are known: `known` are the uids of all, `running` those that have running
        containers. Records of others are dropped."""
        for uid in [uid for uid in self._records.pods if uid not in known]:
            try:
                await self.free(uid)
            except OSError as error:
                log.error("The record of device allocations cannot be written", error=error, uid=uid)
        for pod in running:
            uid = pod_model.uid_of(pod)
            if uid in self._records.pods or not self.resources_of(pod):
                continue
            if any(allocation.needed(pod, name) for name in self.resources_of(pod)):
                log.warning("A running pod has devices that are not recorded", pod=str(pod_model.key_of(pod)), uid=uid)
                self._unrecorded.add(uid)

    # Faults.

    def _watch(self, kind: DeviceKind, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread of its own."""
        while not self._stopping.is_set():
            try:
                found = kind.faults(_WAIT_SECONDS)
            except DeviceError as problem:
                log.warning("The driver does not report errors of devices", driver=kind.name, why=str(problem))
                self._stopping.wait(_DRIVER_PAUSE)
                continue
            if found and not self._stopping.is_set() and not loop.is_closed():
                loop.call_soon_threadsafe(self.report, found)

    def report(self, faults: Sequence[DeviceFault]) -> None:
        for fault in faults:
            if fault.id not in self._devices or (fault.id in self._faults) != fault.healthy:
                continue
            if fault.healthy:
                del self._faults[fault.id]
            else:
                self._faults[fault.id] = fault
            log.warning("A device changed its health", device=fault.id, healthy=fault.healthy, why=fault.message)
            self.on_fault(fault, self._users().get(fault.id))
        self.on_change()

    async def _retry_waiting(self) -> None:
        """Other agents do not say when they are done with a device."""
        while True:
            await self._wait_for_others.wait()
            self._wait_for_others.clear()
            await self._clock.sleep(_OTHERS_SECONDS)
            self.on_free(frozenset(self._waiting))

    # Measurements.

    async def families(self) -> Sequence[Family]:
        """Measured now, in a thread: a source of the node's page of metrics."""
        async with self._scraping:
            samples: list[DeviceSample] = []
            for kind in self._kinds:
                samples += await self._in_thread(kind.samples)
        return metrics.families(samples, self._users(), self._node_name)

    def _users(self) -> dict[str, DeviceUser]:
        return {
            each: DeviceUser(held.namespace, held.name, uid)
            for uid, held in self._records.pods.items()
            for each in held.ids()
        }

    @property
    def held(self) -> Mapping[str, PodDevices]:
        """By uid of the pod."""
        return self._records.pods

    @property
    def devices(self) -> Sequence[AllocatableDevice]:
        return list(self._devices.values())
