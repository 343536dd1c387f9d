"""The calls of NVML that are used, by their names in `pynvml` (nvidia-ml-py).

The module itself is a `Nvml`; tests have another. It is imported by `nvidia.load`, when there is a driver.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

NOT_SUPPORTED: Final = 3
NO_PERMISSION: Final = 4
NOT_FOUND: Final = 6
TIMEOUT: Final = 10
GPU_IS_LOST: Final = 15

EVENT_XID: Final = 0x8
"""nvmlEventTypeXidCriticalError"""
TEMPERATURE_GPU: Final = 0
CLOCK_SM: Final = 1
CLOCK_MEMORY: Final = 2
NO_INSTANCE: Final = 0xFFFFFFFF
"""The instance of an event that concerns the whole GPU."""

Handle = Any
"""Of a GPU or MIG device; opaque."""


class NvmlMemory(Protocol):
    total: int
    free: int
    used: int


class NvmlUtilization(Protocol):
    gpu: int
    memory: int


class NvmlEvent(Protocol):
    device: Handle
    eventType: int
    eventData: int
    gpuInstanceId: int
    computeInstanceId: int


class NvmlAttributes(Protocol):
    gpuInstanceSliceCount: int
    computeInstanceSliceCount: int
    memorySizeMB: int


class Nvml(Protocol):
    @property
    def NVMLError(self) -> type[Exception]:
        """Its instances have the number of the error as `value`."""

    def nvmlInit(self) -> None: ...

    def nvmlSystemGetDriverVersion(self) -> str: ...

    def nvmlDeviceGetCount(self) -> int: ...

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Handle: ...

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Handle: ...

    def nvmlDeviceGetUUID(self, handle: Handle) -> str: ...

    def nvmlDeviceGetName(self, handle: Handle) -> str: ...

    def nvmlDeviceGetMinorNumber(self, handle: Handle) -> int: ...

    def nvmlDeviceGetMemoryInfo(self, handle: Handle) -> NvmlMemory: ...

    def nvmlDeviceGetMigMode(self, handle: Handle) -> list[int]:
        """[current, pending]; 1 means on."""

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Handle) -> int: ...

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Handle, index: int) -> Handle: ...

    def nvmlDeviceGetGpuInstanceId(self, handle: Handle) -> int: ...

    def nvmlDeviceGetComputeInstanceId(self, handle: Handle) -> int: ...

    def nvmlDeviceGetAttributes_v2(self, handle: Handle) -> NvmlAttributes: ...

    def nvmlEventSetCreate(self) -> Any: ...

    def nvmlDeviceRegisterEvents(self, handle: Handle, types: int, events: Any) -> None: ...

    def nvmlEventSetWait_v2(self, events: Any, milliseconds: int) -> NvmlEvent: ...

    def nvmlDeviceGetUtilizationRates(self, handle: Handle) -> NvmlUtilization: ...

    def nvmlDeviceGetTemperature(self, handle: Handle, sensor: int) -> int: ...

    def nvmlDeviceGetPowerUsage(self, handle: Handle) -> int: ...

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Handle) -> int: ...

    def nvmlDeviceGetClockInfo(self, handle: Handle, clock: int) -> int: ...


def error_number(error: Exception) -> int:
    return int(getattr(error, "value", 0))
