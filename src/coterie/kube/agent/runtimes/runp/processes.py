"""Facts about processes, from /proc."""

from __future__ import annotations

import os

MARK = "COTERIE_CONTAINER"
"""Set in the environment of every container; finds its processes where there is neither a namespace nor a group."""


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def start_ticks(pid: int) -> int:
    """When the process began, in the kernel's count; with the pid it names a process for ever. 0: there is none."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[19])
    except (OSError, IndexError):
        return 0


def marked(mark: str) -> list[int]:
    """All processes of ours that carry a mark: the slow way, for machines that leave no other."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    found.append(int(name))
        except OSError:
            continue
    return found


def in_namespace(pid: int) -> list[int]:
    """All processes in the pid namespace that `pid` began, itself among them."""
    try:
        wanted = os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return []
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.readlink(f"/proc/{name}/ns/pid") == wanted:
                    found.append(int(name))
            except OSError:
                continue
    return found


def below(pid: int) -> list[int]:
    """All descendants of a process."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(name))
    found = list(children.get(pid, ()))
    for each in found:
        found += children.get(each, ())
    return found


def send(pid: int, number: int) -> None:
    """Signal one process; a number that names none, or all of them, is nobody's."""
    if pid <= 1:
        return
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def memory_above(pids: list[int], limit: int) -> bool:
    """Whether processes together have more than that in memory; pages that they share count once."""
    if sum(_resident(pid) for pid in pids) <= limit:
        return False
    return sum(_proportional(pid) for pid in pids) > limit


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def _proportional(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            for line in file:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) << 10
    except OSError:
        return _resident(pid)
    return 0
