"""The machine by node_exporter's names: CPU, memory, disks, file systems, network, load, open files.

Each page of /proc has one pure function that makes families of its text; `MachineSource` reads the files when it is asked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.base.exposition import Family, Row, labels

_TICKS = os.sysconf("SC_CLK_TCK")
_SECTOR = 512
_CPU_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_VIRTUAL_DISK = re.compile(r"(?:z?ram|loop|fd|(?:h|s|v|xv)d[a-z]+|nvme\d+n\d+p|mmcblk\d+p)\d+")
"""Partitions and what is no disk, as node_exporter leaves them out."""
_NO_DISK = frozenset(
    [
        "autofs",
        "binfmt_misc",
        "bpf",
        "cgroup",
        "cgroup2",
        "configfs",
        "debugfs",
        "devpts",
        "devtmpfs",
        "fusectl",
        "hugetlbfs",
        "iso9660",
        "mqueue",
        "nsfs",
        "overlay",
        "proc",
        "procfs",
        "pstore",
        "rpc_pipefs",
        "securityfs",
        "selinuxfs",
        "squashfs",
        "sysfs",
        "tracefs",
        "tmpfs",
        "ramfs",
    ]
)
_IGNORED_MOUNTS = ("/dev", "/proc", "/run/credentials", "/sys", "/var/lib/docker/", "/var/lib/containers/storage/")
_MEMORY = ("MemTotal", "MemFree", "MemAvailable", "Buffers", "Cached", "SwapTotal", "SwapFree", "Dirty", "Slab")
_DISK_COLUMNS: tuple[tuple[str, str, str, int, float], ...] = (
    # name, help, kind, column of /proc/diskstats after the name, factor
    ("reads_completed_total", "Reads completed successfully.", "counter", 0, 1),
    ("read_bytes_total", "Bytes read successfully.", "counter", 2, _SECTOR),
    ("read_time_seconds_total", "Seconds spent by all reads.", "counter", 3, 0.001),
    ("writes_completed_total", "Writes completed successfully.", "counter", 4, 1),
    ("written_bytes_total", "Bytes written successfully.", "counter", 6, _SECTOR),
    ("write_time_seconds_total", "Seconds spent by all writes.", "counter", 7, 0.001),
    ("io_now", "I/Os in progress.", "gauge", 8, 1),
    ("io_time_seconds_total", "Seconds spent doing I/Os.", "counter", 9, 0.001),
    ("io_time_weighted_seconds_total", "Weighted seconds spent doing I/Os.", "counter", 10, 0.001),
)
_NETWORK_COLUMNS: tuple[tuple[str, int], ...] = (
    ("receive_bytes", 0), ("receive_packets", 1), ("receive_errs", 2), ("receive_drop", 3),
    ("transmit_bytes", 8), ("transmit_packets", 9), ("transmit_errs", 10), ("transmit_drop", 11),
)  # fmt: skip
_NETSTAT = ("CurrEstab", "ActiveOpens", "PassiveOpens", "RetransSegs", "InSegs", "OutSegs")
_SOCKSTAT = ("inuse", "orphan", "tw", "alloc", "mem")


@dataclass(frozen=True, slots=True)
class FileSystem:
    device: str
    mount: str
    kind: str
    size: int
    free: int
    available: int
    files: int
    files_free: int


def cpu(stat: str) -> list[Family]:
    """Of /proc/stat."""
    rows: list[Row] = []
    others: list[Family] = []
    for line in stat.splitlines():
        name, _, rest = line.partition(" ")
        if name.startswith("cpu") and name != "cpu":
            ticks = rest.split()
            rows += [
                (f'cpu="{name[3:]}",mode="{mode}"', int(count) / _TICKS)
                for mode, count in zip(_CPU_MODES, ticks, strict=False)
            ]
        elif name == "btime":
            others.append(_one("node_boot_time_seconds", "Node boot time, in unixtime.", "gauge", int(rest)))
        elif name == "ctxt":
            others.append(
                _one("node_context_switches_total", "Total number of context switches.", "counter", int(rest))
            )
        elif name == "procs_running":
            others.append(_one("node_procs_running", "Number of processes in runnable state.", "gauge", int(rest)))
        elif name == "procs_blocked":
            others.append(
                _one("node_procs_blocked", "Number of processes blocked waiting for I/O.", "gauge", int(rest))
            )
    return [Family("node_cpu_seconds_total", "Seconds the CPUs spent in each mode.", "counter", rows), *others]


def memory(meminfo: str) -> list[Family]:
    """Of /proc/meminfo."""
    found = {line.partition(":")[0]: line.split() for line in meminfo.splitlines()}
    return [
        _one(
            f"node_memory_{name}_bytes", f"Memory information field {name}_bytes.", "gauge", int(found[name][1]) * 1024
        )
        for name in _MEMORY
        if name in found
    ]


def kills(vmstat: str) -> list[Family]:
    """Of /proc/vmstat: processes that the kernel ended for want of memory."""
    counts = dict(line.split() for line in vmstat.splitlines())
    name = "oom_kill"
    return (
        [_one(f"node_vmstat_{name}", f"/proc/vmstat information field {name}.", "untyped", int(counts[name]))]
        if name in counts
        else []
    )


def disks(diskstats: str) -> list[Family]:
    """Of /proc/diskstats: whole disks."""
    found = []
    for line in diskstats.splitlines():
        fields = line.split()
        if len(fields) >= 14 and _VIRTUAL_DISK.fullmatch(fields[2]) is None:
            found.append((labels(device=fields[2]), fields[3:]))
    return [
        Family(f"node_disk_{name}", words, kind, [(where, int(fields[column]) * factor) for where, fields in found])
        for name, words, kind, column, factor in _DISK_COLUMNS
    ]


def network(dev: str) -> list[Family]:
    """Of /proc/net/dev."""
    found = []
    for line in dev.splitlines()[2:]:
        name, _, rest = line.partition(":")
        found.append((labels(device=name.strip()), rest.split()))
    return [
        Family(
            f"node_network_{name}_total",
            f"Network device statistic {name}.",
            "counter",
            [(where, int(fields[column])) for where, fields in found],
        )
        for name, column in _NETWORK_COLUMNS
    ]


def load(loadavg: str) -> list[Family]:
    """Of /proc/loadavg."""
    return [
        _one(f"node_load{minutes}", f"{minutes}m load average.", "gauge", float(value))
        for minutes, value in zip((1, 5, 15), loadavg.split(), strict=False)
    ]


def open_files(file_nr: str) -> list[Family]:
    """Of /proc/sys/fs/file-nr."""
    used, _, most = file_nr.split()
    return [
        _one("node_filefd_allocated", "File descriptor statistics: allocated.", "gauge", int(used)),
        _one("node_filefd_maximum", "File descriptor statistics: maximum.", "gauge", int(most)),
    ]


def tcp(snmp: str, sockstat: str) -> list[Family]:
    """Of /proc/net/snmp and /proc/net/sockstat."""
    found: list[Family] = []
    lines = [line.split() for line in snmp.splitlines() if line.startswith("Tcp:")]
    if len(lines) == 2:
        values = dict(zip(*lines, strict=False))
        found += [
            _one(f"node_netstat_Tcp_{name}", f"Statistic Tcp{name}.", "untyped", int(values[name]))
            for name in _NETSTAT
            if name in values
        ]
    for line in sockstat.splitlines():
        if line.startswith("TCP:"):
            fields = line.split()[1:]
            pairs = dict(zip(fields[::2], fields[1::2], strict=False))
            found += [
                _one(f"node_sockstat_TCP_{name}", f"Number of TCP sockets in state {name}.", "gauge", int(pairs[name]))
                for name in _SOCKSTAT
                if name in pairs
            ]
    return found


def file_systems(found: Iterable[FileSystem]) -> list[Family]:
    rows = [(labels(device=each.device, mountpoint=each.mount, fstype=each.kind), each) for each in found]
    return [
        Family(f"node_filesystem_{name}", words, "gauge", [(where, getattr(each, field)) for where, each in rows])
        for name, words, field in (
            ("size_bytes", "Filesystem size in bytes.", "size"),
            ("free_bytes", "Filesystem free space in bytes.", "free"),
            ("avail_bytes", "Filesystem space available to non-root users in bytes.", "available"),
            ("files", "Filesystem total file nodes.", "files"),
            ("files_free", "Filesystem total free file nodes.", "files_free"),
        )
    ]


def mounted(mounts: str) -> list[tuple[str, str, str]]:
    """(device, mount point, type) of the disks in /proc/self/mounts; each mount point once, the last of them."""
    found: dict[str, tuple[str, str, str]] = {}
    for line in mounts.splitlines():
        device, place, kind = line.split(" ")[:3]
        place = place.replace("\\040", " ").replace("\\011", "\t")
        if kind not in _NO_DISK and not place.startswith(_IGNORED_MOUNTS):
            found[place] = (device, place, kind)
    by_device: dict[str, tuple[str, str, str]] = {}
    for each in found.values():
        # A file of the disk that is mounted into a container is the same file system again.
        shortest = by_device.get(each[0])
        if shortest is None or len(each[1]) < len(shortest[1]):
            by_device[each[0]] = each
    return list(by_device.values())


def process(status: str, limits: str, open_count: int) -> list[Family]:
    """Of /proc/self/status and /proc/self/limits: this process."""
    found = [_one("process_open_fds", "Number of open file descriptors.", "gauge", open_count)]
    sizes = {line.partition(":")[0]: line.split() for line in status.splitlines()}
    if "VmSize" in sizes:
        size = int(sizes["VmSize"][1]) * 1024
        found.append(_one("process_virtual_memory_bytes", "Virtual memory size in bytes.", "gauge", size))
    if "VmRSS" in sizes:
        size = int(sizes["VmRSS"][1]) * 1024
        found.append(_one("process_resident_memory_bytes", "Resident memory size in bytes.", "gauge", size))
    for line in limits.splitlines():
        if line.startswith("Max open files"):
            most = float(line.split()[3].replace("unlimited", "inf"))
            found.append(_one("process_max_fds", "Maximum number of open file descriptors.", "gauge", most))
        elif line.startswith("Max address space"):
            # -1 stands for "no limit", as in Prometheus' own clients.
            text = line.split()[3]
            most = -1.0 if text == "unlimited" else float(text)
            words = "Maximum amount of virtual memory available in bytes."
            found.append(_one("process_virtual_memory_max_bytes", words, "gauge", most))
    return found


class MachineSource:
    """Reads /proc when somebody scrapes; nothing before that."""

    name = "machine"

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc

    async def families(self) -> Sequence[Family]:
        return [
            *cpu(self._read("stat")),
            *memory(self._read("meminfo")),
            *kills(self._read("vmstat")),
            *disks(self._read("diskstats")),
            *network(self._read("net/dev")),
            *load(self._read("loadavg")),
            *open_files(self._read("sys/fs/file-nr")),
            *tcp(self._read("net/snmp"), self._read("net/sockstat")),
            *file_systems(self._file_systems()),
            *process(self._read("self/status"), self._read("self/limits"), len(os.listdir(self._proc / "self/fd"))),
        ]

    def _read(self, name: str) -> str:
        return (self._proc / name).read_text(encoding="utf-8", errors="replace")

    def _file_systems(self) -> list[FileSystem]:
        found = []
        for device, place, kind in mounted(self._read("self/mounts")):
            try:
                facts = os.statvfs(place)
            except OSError:
                continue  # unmounted meanwhile, or not for us
            found.append(
                FileSystem(
                    device,
                    place,
                    kind,
                    size=facts.f_blocks * facts.f_frsize,
                    free=facts.f_bfree * facts.f_frsize,
                    available=facts.f_bavail * facts.f_frsize,
                    files=facts.f_files,
                    files_free=facts.f_ffree,
                )
            )
        return found


def _one(name: str, words: str, kind: str, value: float) -> Family:
    return Family(name, words, kind, [("", value)])
