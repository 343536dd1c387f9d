"""What containers use: from their control group, else summed up over their processes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.kube.agent.runtimes.protocol import ContainerUsage
from coterie.kube.agent.runtimes.runp import processes

if TYPE_CHECKING:
    from coterie.kube.agent.runtimes.runp.cgroups import Cgroups

_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def usage_of(groups: Cgroups | None, run: dict[str, Any], mark: str) -> ContainerUsage | None:
    """None when the container is gone."""
    if groups is not None:
        group_usage = groups.usage(run["group"])
        if group_usage is not None:
            return ContainerUsage(*group_usage)
    pids = processes_of(None, run, mark)
    found = [usage for usage in (_of_process(pid) for pid in pids if pid != run["init"]) if usage is not None]
    if not found:
        return None
    return ContainerUsage(sum(one[0] for one in found), sum(one[1] for one in found), len(found))


def processes_of(groups: Cgroups | None, run: dict[str, Any], mark: str) -> list[int]:
    if groups is not None:
        return groups.processes(run["group"])
    if not run["init"]:
        return processes.marked(mark)
    # Those of an exec are no descendants; those in a namespace of bubblewrap's are not in this one.
    return sorted({*processes.in_namespace(run["init"]), *processes.below(run["init"])})


def network_bytes(pid: int) -> int | None:
    """Bytes, both ways, of the network namespace of a process; None when it is also ours, or the process is gone."""
    try:
        if os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            return None
        with open(f"/proc/{pid}/net/dev") as file:
            return device_bytes(file.read())
    except OSError:
        return None


def device_bytes(text: str) -> int:
    """Bytes received and sent in `/proc/net/dev`, without the loopback device."""
    total = 0
    for line in text.splitlines()[2:]:
        name, _, counters = line.partition(":")
        fields = counters.split()
        if name.strip() != "lo" and len(fields) >= 9:
            total += int(fields[0]) + int(fields[8])
    return total


def deleted_bytes(pids: Iterable[int], directory: Path) -> int:
    """Disk space of files that nobody can find any more but that these processes hold open, as far as they lie on the
    file system of `directory`."""
    try:
        wanted = os.statvfs(directory).f_fsid
    except OSError:
        return 0
    found: dict[tuple[int, int], int] = {}
    for pid in pids:
        try:
            handles = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for handle in handles:
            path = f"/proc/{pid}/fd/{handle}"
            try:
                info = os.stat(path)
                if stat.S_ISREG(info.st_mode) and not info.st_nlink and os.statvfs(path).f_fsid == wanted:
                    found[info.st_dev, info.st_ino] = info.st_blocks * 512
            except OSError:
                continue
    return sum(found.values())


def _of_process(pid: int) -> tuple[int, int] | None:
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) * _TICK, int(fields[21]) * _PAGE
