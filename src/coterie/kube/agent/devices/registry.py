"""The kinds of devices, and by which files of the kernel one knows that there is a driver.

Nothing of a kind is imported before one of its files is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from coterie.base.lazy_import import lazy_import
from coterie.kube.agent.devices.protocol import DeviceKind

if TYPE_CHECKING:
    from coterie.kube.agent.devices import amd, nvidia
else:
    amd = lazy_import("coterie.kube.agent.devices.amd")
    nvidia = lazy_import("coterie.kube.agent.devices.nvidia")

Load = Callable[[], DeviceKind]
"""Raises DeviceError when the driver cannot be used."""

_KINDS: Final[Sequence[tuple[str, tuple[str, ...], Load]]] = (
    ("nvidia", ("proc/driver/nvidia/version", "dev/nvidiactl"), lambda: nvidia.load()),
    ("amd", ("sys/class/kfd/kfd/topology/nodes",), lambda: amd.load()),
)


def found(root: Path = Path("/")) -> dict[str, Load]:
    """By name, the kinds whose driver is there."""
    return {name: load for name, files, load in _KINDS if any((root / file).exists() for file in files)}
