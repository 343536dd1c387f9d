"""AMD's GPUs, by the kernel's own files. Untested: no such GPU was at hand.

    /sys/class/kfd/kfd/topology/nodes/<n>/properties   compute nodes; those with SIMDs are GPUs
    /dev/kfd, /dev/dri/renderD<minor>                  what a container needs

Neither errors nor measurements are read; a GPU whose render node is gone counts as lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from coterie.kube.agent.devices.protocol import AllocatableDevice, DeviceFault, DeviceSample, DriverLibraries

GPU: Final = "amd.com/gpu"
_TOPOLOGY: Final = "sys/class/kfd/kfd/topology/nodes"


def load() -> AmdDevices:
    return AmdDevices()


class AmdDevices:
    name = "amd"

    def __init__(self, root: Path = Path("/"), sleep: Callable[[float], None] = time.sleep) -> None:
        self._root = root
        self._sleep = sleep
        self._known: tuple[AllocatableDevice, ...] = ()
        self._lost: set[str] = set()

    def owns(self, resource: str) -> bool:
        return resource == GPU

    def discover(self) -> Sequence[AllocatableDevice]:
        found: list[AllocatableDevice] = []
        top = self._root / _TOPOLOGY
        folders = sorted(top.iterdir(), key=lambda path: int(path.name) if path.name.isdigit() else 0)
        for folder in folders:
            values = properties(folder / "properties")
            if not values.get("simd_count") or not values.get("drm_render_minor"):
                continue  # a processor
            node = f"/dev/dri/renderD{values['drm_render_minor']}"
            unique = values.get("unique_id", 0)
            identity = f"GPU-{unique:016x}" if unique else f"GPU-{values.get('location_id', len(found)):x}"
            nodes = tuple(path for path in ("/dev/kfd", node) if (self._root / path[1:]).exists())
            if node in nodes:
                found.append(AllocatableDevice(identity, GPU, len(found), _name(folder), nodes))
        self._known = tuple(found)
        return found

    def environment(self, devices: Sequence[AllocatableDevice]) -> Mapping[str, str]:
        return {"ROCR_VISIBLE_DEVICES": ",".join(device.id for device in devices)}

    def libraries(self) -> DriverLibraries:
        return DriverLibraries()  # ROCm lies in the image; only the kernel's part is the machine's

    def faults(self, seconds: float) -> Sequence[DeviceFault]:
        self._sleep(seconds)
        found = []
        for device in self._known:
            gone = [path for path in device.nodes if not (self._root / path[1:]).exists()]
            if gone and device.id not in self._lost:
                self._lost.add(device.id)
                found.append(DeviceFault(device.id, "DeviceLost", f"{gone[0]} is gone"))
        return found

    def samples(self) -> Sequence[DeviceSample]:
        return ()


def properties(file: Path) -> dict[str, int]:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _name(folder: Path) -> str:
    try:
        return (folder / "name").read_text().strip()
    except OSError:
        return ""
