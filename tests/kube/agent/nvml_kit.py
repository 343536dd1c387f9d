"""A driver in memory: NVML's calls as `pynvml` has them, and the files of /dev and /proc that belong to it."""

from __future__ import annotations

import queue
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.kube.agent.devices import nvml
from coterie.kube.agent.devices.nvidia import NvidiaDevices

MIB = 1 << 20


class FakeNvmlError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


@dataclass(eq=False)
class FakeMig:
    uuid: str
    gpu_instance: int
    compute_instance: int = 0
    slices: int = 1
    compute_slices: int = 1
    memory_mib: int = 16384
    name: str = ""


@dataclass(eq=False)
class FakeGpu:
    uuid: str
    minor: int
    name: str = "NVIDIA H200"
    total_mib: int = 143771
    used_mib: int = 1000
    mig: list[FakeMig | None] | None = None
    """None: it is not in MIG mode; None in the list: a place without an instance."""
    lost: bool = False


@dataclass
class FakeEvent:
    device: Any
    eventData: int
    eventType: int = nvml.EVENT_XID
    gpuInstanceId: int = nvml.NO_INSTANCE
    computeInstanceId: int = nvml.NO_INSTANCE


@dataclass
class Memory:
    total: int
    free: int
    used: int


@dataclass
class Utilization:
    gpu: int = 87
    memory: int = 12


@dataclass
class Attributes:
    gpuInstanceSliceCount: int
    computeInstanceSliceCount: int
    memorySizeMB: int


@dataclass
class FakeNvml:
    gpus: list[FakeGpu]
    events: queue.Queue[FakeEvent | FakeNvmlError] = field(default_factory=queue.Queue)
    registered: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    broken: bool = False
    NVMLError: type[Exception] = FakeNvmlError

    def nvmlInit(self) -> None:
        self.calls.append("nvmlInit")
        if self.broken:
            raise FakeNvmlError(18)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        return self._answering(self.gpus[index])

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any:
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                return self._answering(gpu)
            for mig in gpu.mig or ():
                if mig is not None and mig.uuid == uuid:
                    return mig
        raise FakeNvmlError(nvml.NOT_FOUND)

    @staticmethod
    def _answering(gpu: FakeGpu) -> FakeGpu:
        if gpu.lost:
            raise FakeNvmlError(nvml.GPU_IS_LOST)
        return gpu

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        return str(handle.uuid)

    def nvmlDeviceGetName(self, handle: Any) -> str:
        return str(handle.name)

    def nvmlDeviceGetMinorNumber(self, handle: FakeGpu) -> int:
        return handle.minor

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Memory:
        self.calls.append("nvmlDeviceGetMemoryInfo")
        if isinstance(handle, FakeMig):
            return Memory(handle.memory_mib * MIB, (handle.memory_mib - 64) * MIB, 64 * MIB)
        return Memory(handle.total_mib * MIB, (handle.total_mib - handle.used_mib) * MIB, handle.used_mib * MIB)

    def nvmlDeviceGetMigMode(self, handle: FakeGpu) -> list[int]:
        if "H200" not in handle.name:
            raise FakeNvmlError(nvml.NOT_SUPPORTED)
        return [0, 0] if handle.mig is None else [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: FakeGpu) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: FakeGpu, index: int) -> FakeMig:
        places = handle.mig or []
        found = places[index] if index < len(places) else None
        if found is None:
            raise FakeNvmlError(nvml.NOT_FOUND)
        return found

    def nvmlDeviceGetGpuInstanceId(self, handle: FakeMig) -> int:
        return handle.gpu_instance

    def nvmlDeviceGetComputeInstanceId(self, handle: FakeMig) -> int:
        return handle.compute_instance

    def nvmlDeviceGetAttributes_v2(self, handle: FakeMig) -> Attributes:
        return Attributes(handle.slices, handle.compute_slices, handle.memory_mib)

    def nvmlEventSetCreate(self) -> str:
        return "events"

    def nvmlDeviceRegisterEvents(self, handle: FakeGpu, types: int, events: Any) -> None:
        assert types == nvml.EVENT_XID and events == "events"
        self.registered.append(handle.uuid)

    def nvmlEventSetWait_v2(self, events: Any, milliseconds: int) -> FakeEvent:
        try:
            found = self.events.get(timeout=min(milliseconds / 1000, 0.02))
        except queue.Empty:
            raise FakeNvmlError(nvml.TIMEOUT) from None
        if isinstance(found, FakeNvmlError):
            raise found
        return found

    def nvmlDeviceGetUtilizationRates(self, handle: FakeGpu) -> Utilization:
        self.calls.append("nvmlDeviceGetUtilizationRates")
        if handle.mig is not None:
            raise FakeNvmlError(nvml.NOT_SUPPORTED)
        return Utilization()

    def nvmlDeviceGetTemperature(self, handle: FakeGpu, sensor: int) -> int:
        return 41

    def nvmlDeviceGetPowerUsage(self, handle: FakeGpu) -> int:
        return 123456

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: FakeGpu) -> int:
        raise FakeNvmlError(nvml.NOT_SUPPORTED)

    def nvmlDeviceGetClockInfo(self, handle: FakeGpu, clock: int) -> int:
        return 1980 if clock == nvml.CLOCK_SM else 3201


def gpu(number: int) -> FakeGpu:
    return FakeGpu(f"GPU-{number}", number)


def machine_files(root: Path, *gpus: FakeGpu) -> Path:
    """The nodes in /dev (plain files) and what /proc says of MIG."""
    (root / "dev").mkdir(parents=True, exist_ok=True)
    for name in (
        "nvidiactl",
        "nvidia-uvm",
        "nvidia-uvm-tools",
        "nvidia-modeset",
        *(f"nvidia{each.minor}" for each in gpus),
    ):
        (root / "dev" / name).touch()
    number = 20
    for each in gpus:
        for mig in each.mig or ():
            if mig is None:
                continue
            top = root / f"proc/driver/nvidia/capabilities/gpu{each.minor}/mig/gi{mig.gpu_instance}"
            for folder in (top, top / f"ci{mig.compute_instance}"):
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "access").write_text(f"DeviceFileMinor: {number}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
                number += 1
    return root


def kind(root: Path, library: FakeNvml) -> NvidiaDevices:
    return NvidiaDevices(library, machine_files(root, *library.gpus))
