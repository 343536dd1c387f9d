"""What can be measured on this machine. Reading is here; what it means is in `capacity` and `conditions`.

A container's cgroup limits count before the machine's own size, for cgroup v2 and v1. Whatever cannot be read is 0 or
empty, never an error: a node with an unknown network card is still a node.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from coterie.base.ids import uid4

_UNLIMITED = 1 << 60
"""cgroup v1 says "no limit" as a number near 2^63."""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What does not change while the agent runs."""

    cpus: int
    cpu_quota_milli: int
    """CPU that the cgroup grants, in thousandths; 0: no limit."""
    memory_total: int
    memory_limit: int
    """0: no limit."""
    disk_total: int
    nic_mbit: int
    """0: unknown."""
    machine_id: str
    system_uuid: str
    boot_id: str
    kernel: str
    os_image: str
    architecture: str
    operating_system: str = "linux"


@dataclass(frozen=True, slots=True)
class MachineUsage:
    """How full things are now."""

    memory_used: int
    memory_total: int
    disk_total: int
    disk_free: int
    inodes_total: int
    inodes_free: int
    pids: int
    pids_limit: int


def measure_machine(disk: Path, root: Path = Path("/"), machine_id: str = "") -> MachineFacts:
    """`root` is where /proc, /sys and /etc hang; tests hand in a directory of their own."""
    info = _meminfo(root)
    id_text = _text(root / "etc/machine-id") or _text(root / "var/lib/dbus/machine-id")
    boot = _text(root / "proc/sys/kernel/random/boot_id")
    return MachineFacts(
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        cpu_quota_milli=_cpu_quota(root),
        memory_total=info.get("MemTotal", 0),
        memory_limit=_memory_limit(root),
        disk_total=_disk(disk)[0],
        nic_mbit=_nic_speed(root),
        machine_id=machine_id or id_text or boot or uid4(),
        system_uuid=_text(root / "sys/class/dmi/id/product_uuid") or id_text or boot,
        boot_id=boot,
        kernel=platform.release(),
        os_image=_os_name(root),
        architecture={"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
    )


def measure_usage(disk: Path, root: Path = Path("/")) -> MachineUsage:
    info = _meminfo(root)
    limit = _memory_limit(root)
    total = info.get("MemTotal", 0)
    used = total - info.get("MemAvailable", total)
    if limit and limit < total:
        used, total = _memory_used(root), limit
    disk_total, disk_free, inodes, inodes_free = _disk(disk)
    return MachineUsage(
        memory_used=used,
        memory_total=total,
        disk_total=disk_total,
        disk_free=disk_free,
        inodes_total=inodes,
        inodes_free=inodes_free,
        pids=_pids(root),
        pids_limit=_number(root / "proc/sys/kernel/pid_max"),
    )


def _cpu_quota(root: Path) -> int:
    quota, _, period = _text(root / "sys/fs/cgroup/cpu.max").partition(" ")
    if not quota:
        quota = _text(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us")
        period = _text(root / "sys/fs/cgroup/cpu/cpu.cfs_period_us")
    if quota.isdigit() and period.isdigit() and int(period):
        return int(quota) * 1000 // int(period)
    return 0


def _memory_limit(root: Path) -> int:
    for path in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        limit = _number(root / path)
        if limit:
            return limit if limit < _UNLIMITED else 0
    return 0


def _memory_used(root: Path) -> int:
    """Without the page cache that could be dropped, as Kubernetes counts a working set."""
    for base, used, stat, inactive in (
        ("sys/fs/cgroup", "memory.current", "memory.stat", "inactive_file"),
        ("sys/fs/cgroup/memory", "memory.usage_in_bytes", "memory.stat", "total_inactive_file"),
    ):
        total = _number(root / base / used)
        if total:
            for line in _text(root / base / stat).splitlines():
                name, _, value = line.partition(" ")
                if name == inactive and value.isdigit():
                    return max(0, total - int(value))
            return total
    return 0


def _meminfo(root: Path) -> dict[str, int]:
    found = {}
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            found[name] = int(words[0]) * (1024 if words[-1] == "kB" else 1)
    return found


def _pids(root: Path) -> int:
    # The fourth word of loadavg is running/existing tasks: one read instead of listing /proc.
    words = _text(root / "proc/loadavg").split()
    if len(words) >= 4 and "/" in words[3]:
        existing = words[3].partition("/")[2]
        return int(existing) if existing.isdigit() else 0
    return 0


def _nic_speed(root: Path) -> int:
    """eth0's speed, or that of the fastest real card; virtual ones say -1 or nothing."""
    cards = root / "sys/class/net"
    first = _speed(cards / "eth0")
    return first or max((_speed(card) for card in _entries(cards) if card.name != "lo"), default=0)


def _speed(card: Path) -> int:
    text = _text(card / "speed")
    return int(text) if text.isdigit() else 0


def _os_name(root: Path) -> str:
    for line in _text(root / "etc/os-release").splitlines():
        name, _, value = line.partition("=")
        if name == "PRETTY_NAME":
            return value.strip('"')
    return platform.system()


def _disk(path: Path) -> tuple[int, int, int, int]:
    """(size, free for us, inodes, free inodes) of the file system a path lies on; it need not exist yet."""
    while not path.exists() and path != path.parent:
        path = path.parent
    found = os.statvfs(path)
    return (
        found.f_blocks * found.f_frsize,
        found.f_bavail * found.f_frsize,
        found.f_files,
        found.f_favail,
    )


def _entries(path: Path) -> Iterable[Path]:
    try:
        return sorted(path.iterdir())
    except OSError:
        return ()


def _number(path: Path) -> int:
    text = _text(path)
    return int(text) if text.isdigit() else 0


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):  # also: reading the speed of a card that is down fails with EINVAL
        return ""
