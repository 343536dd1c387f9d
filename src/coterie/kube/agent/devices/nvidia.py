"""NVIDIA's GPUs and their MIG instances, by NVML.

    GPU without MIG   nvidia.com/gpu           /dev/nvidia<minor>
    MIG instance      nvidia.com/mig-1g.18gb   the same, and two nodes of /dev/nvidia-caps: GPU and compute instance
    both                                       /dev/nvidiactl, /dev/nvidia-uvm, /dev/nvidia-uvm-tools

A GPU in MIG mode is offered by its instances only. It is unhealthy after a critical Xid event that is not an application's
own fault, and when it does not answer any more; until the agent starts again, since a GPU must be reset after such errors.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from coterie.base.lazy_import import lazy_import
from coterie.base.log import logger
from coterie.kube.agent.devices import libraries, nvml
from coterie.kube.agent.devices.nvml import Handle, Nvml
from coterie.kube.agent.devices.protocol import (
    AllocatableDevice,
    DeviceError,
    DeviceFault,
    DeviceSample,
    DriverLibraries,
)

log = logger("agent.devices")
DOMAIN: Final = "nvidia.com/"
GPU: Final = "nvidia.com/gpu"
_APPLICATION_XIDS: Final = frozenset((13, 31, 43, 45, 68, 109))
"""Errors of programs, not of the GPU, as NVIDIA's own device plug-in has them."""
_SHARED_NODES: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
_LIBRARIES: Final = (
    "libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1", "libnvidia-nvvm.so.4", "libnvidia-nvvm70.so.4",
    "libnvidia-gpucomp.so.*", "libcudadebugger.so.1", "libnvidia-opencl.so.1", "libnvidia-cfg.so.1", "libnvidia-allocator.so.1",
    "libnvidia-tileiras.so.*", "libnvidia-pkcs11*.so.*",
)  # fmt: skip
_PROGRAMS: Final = ("nvidia-smi",)
_DRIVER_DIRECTORIES: Final = (
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/opt/nvidia/lib64",
    "/run/nvidia/driver/usr/lib64",
)
_PRESENCE_SECONDS: Final = 30.0
_MIB: Final = 1 << 20
_GIB: Final = 1 << 30

pynvml = lazy_import("pynvml")
_P = ParamSpec("_P")
_T = TypeVar("_T")


def load() -> NvidiaDevices:
    """Raises DeviceError when the library does not fit the driver, or is not there."""
    files = libraries.find(_LIBRARIES[:2], _DRIVER_DIRECTORIES)
    for path in files:
        if path.name.startswith("libnvidia-ml"):
            # Loaded by its path, it is found by its name afterwards, also where the loader does not search.
            try:
                ctypes.CDLL(str(path))
            except OSError as problem:
                log.warning("The library of the NVIDIA driver cannot be loaded", file=str(path), why=str(problem))
    return NvidiaDevices(pynvml)


class NvidiaDevices:
    name = "nvidia"

    def __init__(
        self,
        library: Nvml,
        root: Path = Path("/"),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`root` is where /dev and /proc hang; tests hand in a directory of their own."""
        self._nvml = library
        self._root = root
        self._clock = clock
        self._sleep = sleep
        self._opened = False
        self._gpus: dict[str, int] = {}
        """By uuid of the whole GPU: its index."""
        self._instances: dict[tuple[str, int, int], str] = {}
        """(uuid of the GPU, GPU instance, compute instance) -> uuid of the MIG device."""
        self._events: object | None = None
        self._reports_events = True
        self._xids: dict[str, int] = {}
        self._lost: set[str] = set()
        self._looked = 0.0

    def owns(self, resource: str) -> bool:
        return resource.startswith(DOMAIN)

    # Discovery.

    def discover(self) -> Sequence[AllocatableDevice]:
        self._open()
        self._make_nodes()
        gpus: dict[str, int] = {}
        instances: dict[tuple[str, int, int], str] = {}
        found: list[AllocatableDevice] = []
        for index in range(self._ask(self._nvml.nvmlDeviceGetCount)):
            try:
                handle = self._ask(self._nvml.nvmlDeviceGetHandleByIndex, index)
                uuid = self._ask(self._nvml.nvmlDeviceGetUUID, handle)
                gpus[uuid] = index
                found += self._devices_of(index, uuid, handle, instances)
            except DeviceError as problem:
                log.warning("A GPU is left out: it does not answer", index=index, why=str(problem))
        self._gpus, self._instances = gpus, instances
        return found

    def _devices_of(
        self, index: int, uuid: str, handle: Handle, instances: dict[tuple[str, int, int], str]
    ) -> Iterator[AllocatableDevice]:
        minor = self._ask(self._nvml.nvmlDeviceGetMinorNumber, handle)
        model = self._ask(self._nvml.nvmlDeviceGetName, handle)
        memory = self._ask(self._nvml.nvmlDeviceGetMemoryInfo, handle).total
        nodes = self._existing(f"/dev/nvidia{minor}", *_SHARED_NODES)
        if not self._mig(handle):
            yield AllocatableDevice(uuid, GPU, index, model, nodes, memory=memory)
            return
        for at in range(self._ask(self._nvml.nvmlDeviceGetMaxMigDeviceCount, handle)):
            try:
                instance = self._ask(self._nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, at)
            except DeviceError:
                continue  # indexes are places; not each of them has an instance
            gpu_instance = self._ask(self._nvml.nvmlDeviceGetGpuInstanceId, instance)
            compute_instance = self._ask(self._nvml.nvmlDeviceGetComputeInstanceId, instance)
            own = self._ask(self._nvml.nvmlDeviceGetUUID, instance)
            instances[uuid, gpu_instance, compute_instance] = own
            profile, size = self._profile(instance, memory)
            yield AllocatableDevice(
                own,
                f"nvidia.com/mig-{profile}",
                index,
                f"{model} MIG {profile}",
                (*nodes, *self._capabilities(minor, gpu_instance, compute_instance)),
                parent=uuid,
                memory=size,
            )

    def _mig(self, handle: Handle) -> bool:
        try:
            return self._ask(self._nvml.nvmlDeviceGetMigMode, handle)[0] == 1
        except DeviceError:
            return False  # GPUs without MIG do not know the question

    def _profile(self, instance: Handle, total: int) -> tuple[str, int]:
        """(name of the profile, bytes)."""
        attributes = self._ask(self._nvml.nvmlDeviceGetAttributes_v2, instance)
        size = attributes.memorySizeMB * _MIB
        named = self._ask(self._nvml.nvmlDeviceGetName, instance).partition(" MIG ")[2].strip()
        if named:
            return named.replace("+", "."), size
        return (
            mig_profile(attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount, size, total),
            size,
        )

    def _capabilities(self, minor: int, gpu_instance: int, compute_instance: int) -> Iterator[str]:
        """Nodes of /dev/nvidia-caps that give access to the instance."""
        top = self._root / f"proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{gpu_instance}"
        for file in (top / "access", top / f"ci{compute_instance}" / "access"):
            number = capability_minor(file)
            if number is None:
                raise DeviceError(
                    f"the driver does not say which device node opens MIG instance {gpu_instance} of GPU {minor}"
                )
            yield f"/dev/nvidia-caps/nvidia-cap{number}"

    def _existing(self, *paths: str) -> tuple[str, ...]:
        return tuple(path for path in paths if (self._root / path[1:]).exists())

    def _make_nodes(self) -> None:
        """The node of unified memory is made when the first program uses CUDA, which no pod may do by itself."""
        tool = shutil.which("nvidia-modprobe")
        if (self._root / "dev/nvidia-uvm").exists() or tool is None:
            return
        try:
            subprocess.run([tool, "-u", "-c=0"], check=False, capture_output=True, timeout=20)
        except (OSError, subprocess.TimeoutExpired) as problem:
            log.warning("nvidia-modprobe did not make /dev/nvidia-uvm", why=str(problem))

    # What a container gets.

    def environment(self, devices: Sequence[AllocatableDevice]) -> Mapping[str, str]:
        if not devices:
            # `void`: NVIDIA's container runtime must not add GPUs because an image asks for all of them.
            return {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}
        ids = ",".join(device.id for device in devices)
        return {"CUDA_VISIBLE_DEVICES": ids, "NVIDIA_VISIBLE_DEVICES": ids}

    def libraries(self) -> DriverLibraries:
        return libraries.driver(_LIBRARIES, _PROGRAMS, _DRIVER_DIRECTORIES)

    # Health.

    def faults(self, seconds: float) -> Sequence[DeviceFault]:
        found = list(self._xid_faults(seconds))
        now = self._clock()
        if now - self._looked >= _PRESENCE_SECONDS:
            self._looked = now
            found += self._lost_gpus()
        return found

    def _xid_faults(self, seconds: float) -> Iterator[DeviceFault]:
        if not self._reports_events:
            self._sleep(seconds)
            return
        try:
            if self._events is None:
                self._events = self._register_events()
            event = self._nvml.nvmlEventSetWait_v2(self._events, int(seconds * 1000))
        except self._nvml.NVMLError as problem:
            number = nvml.error_number(problem)
            if number == nvml.GPU_IS_LOST:
                yield from self._lost_gpus()
            elif number != nvml.TIMEOUT:
                # Virtual GPUs, and machines that let a program see only a part of the driver.
                self._reports_events = False
                log.warning(
                    "The driver reports no Xid errors here; GPUs are only asked whether they answer", why=str(problem)
                )
            return
        if event.eventType != nvml.EVENT_XID:
            return
        try:
            uuid = self._ask(self._nvml.nvmlDeviceGetUUID, event.device)
        except DeviceError:
            uuid = ""  # it cannot be said which GPU: all of them count
        for gpu in [uuid] if uuid in self._gpus else list(self._gpus):
            self._xids[gpu] = event.eventData
        if event.eventData in _APPLICATION_XIDS:
            return
        message = f"Xid {event.eventData}: a critical error of the GPU"
        for device in self._concerned(uuid, event.gpuInstanceId, event.computeInstanceId):
            yield DeviceFault(device, "XidError", message)

    def _concerned(self, uuid: str, gpu_instance: int, compute_instance: int) -> list[str]:
        """Ids of the devices: the MIG instance that the event names, else all of the GPU, else all there are."""
        gpus = [uuid] if uuid in self._gpus else list(self._gpus)
        found = []
        for gpu in gpus:
            own = {key: value for key, value in self._instances.items() if key[0] == gpu}
            exact = own.get((gpu, gpu_instance, compute_instance))
            if nvml.NO_INSTANCE not in (gpu_instance, compute_instance) and exact is not None:
                found.append(exact)
            else:
                found += list(own.values()) or [gpu]
        return found

    def _register_events(self) -> object:
        events: object = self._nvml.nvmlEventSetCreate()
        for uuid in self._gpus:
            try:
                handle = self._ask(self._nvml.nvmlDeviceGetHandleByUUID, uuid)
                self._ask(self._nvml.nvmlDeviceRegisterEvents, handle, nvml.EVENT_XID, events)
            except DeviceError as problem:
                log.warning("Errors of a GPU are not reported by its driver", uuid=uuid, why=str(problem))
        return events

    def _lost_gpus(self) -> Iterator[DeviceFault]:
        for uuid in self._gpus:
            if uuid in self._lost:
                continue
            try:
                handle = self._ask(self._nvml.nvmlDeviceGetHandleByUUID, uuid)
                self._ask(self._nvml.nvmlDeviceGetMemoryInfo, handle)
            except DeviceError as problem:
                self._lost.add(uuid)
                for device in self._concerned(uuid, nvml.NO_INSTANCE, nvml.NO_INSTANCE):
                    yield DeviceFault(device, "DeviceLost", f"the GPU does not answer: {problem}")

    # Measurements.

    def samples(self) -> Sequence[DeviceSample]:
        found = []
        for uuid, index in self._gpus.items():
            try:
                handle = self._ask(self._nvml.nvmlDeviceGetHandleByUUID, uuid)
                model = self._ask(self._nvml.nvmlDeviceGetName, handle)
            except DeviceError:
                continue
            values = dict(self._values(handle))
            values["DCGM_FI_DEV_XID_ERRORS"] = float(self._xids.get(uuid, 0))
            found.append(DeviceSample(uuid, index, model, values))
            found += [
                DeviceSample(own, index, model, values, instance=f"{gpu_instance}", parent=uuid)
                for (gpu, gpu_instance, _), own in self._instances.items()
                if gpu == uuid and (values := self._instance_values(own))
            ]
        return found

    def _instance_values(self, uuid: str) -> dict[str, float]:
        """What is measured for a MIG instance: its memory."""
        try:
            handle = self._ask(self._nvml.nvmlDeviceGetHandleByUUID, uuid)
            memory = self._ask(self._nvml.nvmlDeviceGetMemoryInfo, handle)
        except DeviceError:
            return {}
        return {
            "DCGM_FI_DEV_FB_USED": float(memory.used // _MIB),
            "DCGM_FI_DEV_FB_FREE": float(memory.free // _MIB),
        }

    def _values(self, handle: Handle) -> Iterator[tuple[str, float]]:
        library = self._nvml
        try:
            use = self._ask(library.nvmlDeviceGetUtilizationRates, handle)
            yield "DCGM_FI_DEV_GPU_UTIL", float(use.gpu)
            yield "DCGM_FI_DEV_MEM_COPY_UTIL", float(use.memory)
        except DeviceError:
            pass  # not measured in MIG mode
        try:
            memory = self._ask(library.nvmlDeviceGetMemoryInfo, handle)
            yield "DCGM_FI_DEV_FB_USED", float(memory.used // _MIB)
            yield "DCGM_FI_DEV_FB_FREE", float(memory.free // _MIB)
        except DeviceError:
            pass
        single: tuple[tuple[str, Callable[[], int], float], ...] = (
            ("DCGM_FI_DEV_GPU_TEMP", lambda: library.nvmlDeviceGetTemperature(handle, nvml.TEMPERATURE_GPU), 1.0),
            ("DCGM_FI_DEV_POWER_USAGE", lambda: library.nvmlDeviceGetPowerUsage(handle), 0.001),
            ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", lambda: library.nvmlDeviceGetTotalEnergyConsumption(handle), 1.0),
            ("DCGM_FI_DEV_SM_CLOCK", lambda: library.nvmlDeviceGetClockInfo(handle, nvml.CLOCK_SM), 1.0),
            ("DCGM_FI_DEV_MEM_CLOCK", lambda: library.nvmlDeviceGetClockInfo(handle, nvml.CLOCK_MEMORY), 1.0),
        )
        for name, read, factor in single:
            try:
                yield name, self._ask(read) * factor
            except DeviceError:
                continue

    # Calls.

    def _open(self) -> None:
        if not self._opened:
            self._ask(self._nvml.nvmlInit)
            self._opened = True
            log.info("The NVIDIA driver is loaded", version=self._ask(self._nvml.nvmlSystemGetDriverVersion))

    def _ask(self, call: Callable[_P, _T], *arguments: _P.args, **named: _P.kwargs) -> _T:
        try:
            return call(*arguments, **named)
        except self._nvml.NVMLError as problem:
            raise DeviceError(str(problem)) from problem


def mig_profile(gpu_slices: int, compute_slices: int, size: int, total: int) -> str:
    """The name as NVIDIA spells it: parts of the GPU, and its memory in eighths of the whole, in GB rounded."""
    eighths = int(size / total * 8 + 0.5) / 8
    gigabytes = int(eighths * -(-total // _GIB) + 0.5)
    part = f"{gpu_slices}g.{gigabytes}gb"
    return part if compute_slices == gpu_slices else f"{compute_slices}c.{part}"


def capability_minor(file: Path) -> int | None:
    """The number of the device node, from a file of /proc/driver/nvidia/capabilities."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "DeviceFileMinor" and value.strip().isdigit():
            return int(value)
    return None
