"""`DeviceKind`: what the agent needs of one kind of device, such as NVIDIA's GPUs.

A kind finds devices and knows how a container reaches them. Who gets which device is decided in `allocation`, the same for
all kinds.

    discover ──> AllocatableDevice (id, resource, nodes in /dev)      environment, libraries ──> what a container gets with them
    faults   ──> DeviceFault (blocks; a thread waits)      samples ──> DeviceSample (blocks; read when somebody asks)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class AllocatableDevice:
    """One piece that a pod can have for itself: a GPU, or a partition of one."""

    id: str
    """The same for as long as the device exists, also after a restart of the machine: the uuid."""
    resource: str
    """The extended resource that counts it, such as nvidia.com/gpu."""
    index: int
    model: str = ""
    nodes: tuple[str, ...] = ()
    """Device nodes that a container needs for it."""
    parent: str = ""
    """The id of the whole device that this is a partition of; empty: it is whole."""
    memory: int = 0
    """Bytes."""


@dataclass(frozen=True, slots=True)
class DeviceFault:
    """A device must not be given out any more, or (`healthy`) may be again."""

    id: str
    reason: str
    """One word, such as XidError or DeviceLost."""
    message: str
    healthy: bool = False


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """Measurements of one device at one time."""

    id: str
    index: int
    model: str
    values: Mapping[str, float] = field(default_factory=dict)
    """By the name of the metric; what the device does not measure is missing."""
    instance: str = ""
    """The number of the partition, where it is one."""
    parent: str = ""
    """The id of the whole device, for a partition."""


@dataclass(frozen=True, slots=True)
class DriverLibraries:
    """Files of the driver that programs load: an image cannot bring them, since they belong to the kernel module."""

    files: tuple[Path, ...] = ()
    """Under the names by which programs look for them (libcuda.so.1), with links resolved by whoever mounts them."""
    programs: tuple[Path, ...] = ()
    search: tuple[str, ...] = ()
    """Directories among those of `files` that the dynamic loader does not search by itself."""


class DeviceKind(Protocol):
    """All methods may block; they are called in threads. Raises DeviceError for what the driver does not answer."""

    name: str

    def owns(self, resource: str) -> bool:
        """Whether devices of this kind could have this resource."""

    def discover(self) -> Sequence[AllocatableDevice]: ...

    def environment(self, devices: Sequence[AllocatableDevice]) -> Mapping[str, str]:
        """Variables of a container that has these devices, or none. Does not block."""

    def libraries(self) -> DriverLibraries: ...

    def faults(self, seconds: float) -> Sequence[DeviceFault]:
        """Waits so long for faults, and returns those that happened."""

    def samples(self) -> Sequence[DeviceSample]: ...


class DeviceError(Exception):
    """The driver does not do what it was asked for; the message says what."""
