"""Measurements of devices as families of metrics, by the names of NVIDIA's DCGM exporter, so that its dashboards work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from coterie.base.exposition import Family, labels
from coterie.kube.agent.devices.protocol import DeviceSample

METRICS: Final[Mapping[str, tuple[str, str]]] = {
    "DCGM_FI_DEV_SM_CLOCK": ("gauge", "SM clock frequency (in MHz)."),
    "DCGM_FI_DEV_MEM_CLOCK": ("gauge", "Memory clock frequency (in MHz)."),
    "DCGM_FI_DEV_GPU_TEMP": ("gauge", "GPU temperature (in C)."),
    "DCGM_FI_DEV_POWER_USAGE": ("gauge", "Power draw (in W)."),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("counter", "Total energy consumption since boot (in mJ)."),
    "DCGM_FI_DEV_GPU_UTIL": ("gauge", "GPU utilization (in %)."),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("gauge", "Memory utilization (in %)."),
    "DCGM_FI_DEV_XID_ERRORS": ("gauge", "Value of the last XID error encountered."),
    "DCGM_FI_DEV_FB_FREE": ("gauge", "Framebuffer memory free (in MiB)."),
    "DCGM_FI_DEV_FB_USED": ("gauge", "Framebuffer memory used (in MiB)."),
}


@dataclass(frozen=True, slots=True)
class DeviceUser:
    """The pod that has a device."""

    namespace: str = ""
    pod: str = ""
    uid: str = ""


_NOBODY: Final = DeviceUser()


def families(samples: Sequence[DeviceSample], users: Mapping[str, DeviceUser], node: str) -> list[Family]:
    """`users`: by id of the device; one without has empty labels."""
    found: list[Family] = []
    for name, (kind, help_text) in METRICS.items():
        rows = [(_labels(sample, users, node), sample.values[name]) for sample in samples if name in sample.values]
        if rows:
            found.append(Family(name, help_text, kind, rows))
    return found


def _labels(sample: DeviceSample, users: Mapping[str, DeviceUser], node: str) -> str:
    user = users.get(sample.id, _NOBODY)
    return labels(
        gpu=str(sample.index),
        UUID=sample.parent or sample.id,
        device=f"nvidia{sample.index}",
        modelName=sample.model,
        **({"GPU_I_ID": sample.instance} if sample.instance else {}),
        Hostname=node,
        namespace=user.namespace,
        pod=user.pod,
    )
