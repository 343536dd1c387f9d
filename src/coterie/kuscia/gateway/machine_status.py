"""Load, memory and traffic of the gateway's machine, under the names that Kuscia's gateway has for them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from coterie.base.exposition import Family, Row, labels

_PROC = Path("/proc")


def cpu(loadavg: str, processors: int) -> Family:
    """Of /proc/loadavg."""
    loads = [float(each) for each in loadavg.split()[:3]]
    rows: list[Row] = [(labels(stat="num"), processors)]
    rows += [(labels(stat=f"load{minutes}"), value) for minutes, value in zip((1, 5, 15), loads, strict=False)]
    return Family("cpu", "Processors and load of the gateway's machine.", "gauge", rows)


def mem(meminfo: str) -> Family:
    """Of /proc/meminfo, in bytes."""
    found = {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in meminfo.splitlines() if ":" in line}
    total, free = found.get("MemTotal", 0), found.get("MemFree", 0)
    cached = found.get("Buffers", 0) + found.get("Cached", 0) + found.get("SReclaimable", 0)
    values = {
        "total": total,
        "used": max(0, total - free - cached),
        "free": free,
        "shared": found.get("Shmem", 0),
        "buff.cache": cached,
        "available": found.get("MemAvailable", 0),
    }
    return Family(
        "mem",
        "Memory of the gateway's machine.",
        "gauge",
        [(labels(stat=name), value) for name, value in values.items()],
    )


def io(dev: str, route: str) -> Family:
    """Of /proc/net/dev and /proc/net/route: the devices that lead outside, that is with a default route."""
    outside = {fields[0] for line in route.splitlines()[1:] if (fields := line.split()) and fields[1] == "00000000"}
    sums = dict.fromkeys(("send.bytes", "send.packets", "recv.bytes", "recv.packets"), 0)
    for line in dev.splitlines()[2:]:
        name, _, rest = line.partition(":")
        if name.strip() in outside:
            fields = rest.split()
            for stat, column in (("recv.bytes", 0), ("recv.packets", 1), ("send.bytes", 8), ("send.packets", 9)):
                sums[stat] += int(fields[column])
    return Family(
        "io",
        "Traffic of the network devices with a default route.",
        "gauge",
        [(labels(stat=stat), value) for stat, value in sums.items()],
    )


class GatewayMachineSource:
    """A source of metrics."""

    name = "gateway-machine"

    def __init__(self, proc: Path = _PROC) -> None:
        self._proc = proc

    async def families(self) -> Sequence[Family]:
        return [
            cpu(self._read("loadavg"), os.cpu_count() or 1),
            mem(self._read("meminfo")),
            io(self._read("net/dev"), self._read("net/route")),
        ]

    def _read(self, name: str) -> str:
        return (self._proc / name).read_text(encoding="utf-8", errors="replace")
