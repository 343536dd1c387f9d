"""Control groups, both versions, behind one face: make, enter, read, kill, remove.

    <base>/coterie/<node>/<pod uid>/<container>.<attempt>

Version 1 has one tree for each controller, version 2 one tree for all. A machine with both (hybrid) has the controllers
that matter in the trees of version 1. `detect` answers None where this process may not make groups.
"""

from __future__ import annotations

import errno
import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Protocol

    class Cgroups(Protocol):
        """`group` is a path below the node's own group, e.g. `<pod uid>/<container>.0`."""

        version: int
        missing: list[str]
        """Controllers that are not there."""

        def path(self, group: str) -> str:
            """As container runtimes are told it: from the top of the hierarchy."""

        def exists(self, group: str) -> bool: ...
        def create(self, group: str, cpu: int, shares: int, memory: int, pids: int) -> None:
            """With these limits; 0: none, and the least share of the CPU."""

        def update(self, group: str, cpu: int, shares: int, memory: int) -> None:
            """Other limits for a group that is there; 0 as for `create`."""

        def open_for_joining(self, group: str) -> list[int]:
            """Handles: a process that writes `0` to each is inside."""

        def processes(self, group: str) -> list[int]: ...
        def kill(self, group: str) -> None:
            """SIGKILL to all that is inside, also to what is being born."""

        def out_of_memory(self, group: str) -> int:
            """How many processes were killed for want of memory."""

        def memory_limit_reached(self, group: str) -> bool:
            """Whether it was this group's own limit that was reached, not that of a group around it."""

        def watch_pids(self, group: str) -> int:
            """A handle for `refused_forks`; -1: there is none. With version 2 it gets EPOLLPRI when a fork was refused."""

        def usage(self, group: str) -> tuple[int, int, int] | None:
            """CPU nanoseconds, working set in bytes, processes."""

        def remove(self, group: str) -> bool:
            """False when something is still inside: try again later."""


WANTED = ("cpu", "memory", "pids")
_PERIOD = 100_000
_UNLIMITED = 1 << 63


def _write(path: str, value: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, value.encode())
    finally:
        os.close(handle)


def _write_if_there(path: str, value: str) -> None:
    if os.path.exists(path):
        _write(path, value)


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError as problem:
        # A group that vanishes while it is read answers ENODEV.
        if problem.errno in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
            return ""
        raise


def _number(path: str) -> int:
    text = _read(path).strip()
    return int(text) if text.isdigit() else 0


def _fields(path: str) -> dict[str, int]:
    pairs = (line.split() for line in _read(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _pids(path: str) -> list[int]:
    return [int(line) for line in _read(path).split()]


def _kill_each(pids: Iterable[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _remove(path: str) -> bool:
    """A group and the groups that a container may have made in it."""
    try:
        for name in os.listdir(path):
            below = f"{path}/{name}"
            if os.path.isdir(below) and not _remove(below):
                return False
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError as problem:
        if problem.errno in (errno.EBUSY, errno.ENOTEMPTY):
            return False
        raise
    return True


def _open_events(path: str) -> int:
    try:
        return os.open(f"{path}/pids.events", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def refused_forks(handle: int) -> int:
    """From a handle of `watch_pids`; reading it also makes the next refusal an event again."""
    try:
        text = os.pread(handle, 256, 0).decode()
    except OSError:
        return 0
    words = text.split()
    return int(words[words.index("max") + 1]) if "max" in words else 0


def shares_of(milli: int) -> int:
    return max(2, milli * 1024 // 1000)


def weight_of(milli: int) -> int:
    """Shares 2..262144 of version 1 as the weight 1..10000 of version 2, as Kubernetes does it."""
    return 1 + (min(shares_of(milli), 262144) - 2) * 9999 // 262142


class CgroupV1:
    version = 1

    def __init__(self, mounts: dict[str, str], prefix: str) -> None:
        self.missing = [name for name in WANTED if name not in mounts]
        self._trees = {name: f"{mount}/{prefix}" for name, mount in mounts.items()}
        self._prefix = prefix

    def path(self, group: str) -> str:
        return f"/{self._prefix}/{group}"

    def _at(self, controller: str, group: str) -> str:
        return f"{self._trees[controller]}/{group}"

    def exists(self, group: str) -> bool:
        return os.path.isdir(self._member(group, ""))

    def create(self, group: str, cpu: int, shares: int, memory: int, pids: int) -> None:
        for controller in self._trees:
            os.makedirs(self._at(controller, group), exist_ok=True)
        if "cpu" in self._trees:
            at = self._at("cpu", group)
            _write(f"{at}/cpu.shares", str(shares_of(shares)))
            if cpu:
                _write(f"{at}/cpu.cfs_period_us", str(_PERIOD))
                _write(f"{at}/cpu.cfs_quota_us", str(max(1000, cpu * _PERIOD // 1000)))
        if memory and "memory" in self._trees:
            at = self._at("memory", group)
            _write(f"{at}/memory.limit_in_bytes", str(memory))
            if os.path.exists(f"{at}/memory.memsw.limit_in_bytes"):
                _write(f"{at}/memory.memsw.limit_in_bytes", str(memory))
            else:
                # A kernel that does not count swap for each group: nothing of this one is swapped, or the limit would not hold.
                _write_if_there(f"{at}/memory.swappiness", "0")
        if pids and "pids" in self._trees:
            _write(f"{self._at('pids', group)}/pids.max", str(pids))

    def update(self, group: str, cpu: int, shares: int, memory: int) -> None:
        if "cpu" in self._trees:
            at = self._at("cpu", group)
            _write(f"{at}/cpu.shares", str(shares_of(shares)))
            _write(f"{at}/cpu.cfs_quota_us", str(max(1000, cpu * _PERIOD // 1000) if cpu else -1))
        if "memory" in self._trees:
            at = self._at("memory", group)
            files = [f"{at}/memory.limit_in_bytes", f"{at}/memory.memsw.limit_in_bytes"]
            wanted, now = memory or _UNLIMITED, _number(files[0])
            # The limit without swap may never be above the one with it.
            for path in files if wanted < now else reversed(files):
                _write_if_there(path, str(memory or -1))

    def open_for_joining(self, group: str) -> list[int]:
        # `tasks`, not `cgroup.procs`: a thread that moves itself needs no lock on all forks of the machine, which costs
        # ten milliseconds for each tree; and a process before exec has one thread only.
        return [os.open(f"{tree}/{group}/tasks", os.O_WRONLY | os.O_CLOEXEC) for tree in self._trees.values()]

    def _member(self, group: str, file: str) -> str:
        for controller in ("pids", "memory", "cpu", *self._trees):
            if controller in self._trees:
                return f"{self._at(controller, group)}/{file}"
        return ""

    def processes(self, group: str) -> list[int]:
        return _pids(self._member(group, "cgroup.procs"))

    def kill(self, group: str) -> None:
        if "pids" in self._trees:
            # Nothing can be born any more between the reading of the list and the killing.
            _write(f"{self._at('pids', group)}/pids.max", "0")
        _kill_each(self.processes(group))

    def out_of_memory(self, group: str) -> int:
        if "memory" not in self._trees:
            return 0
        return _fields(self._at("memory", group) + "/memory.oom_control").get("oom_kill", 0)

    def memory_limit_reached(self, group: str) -> bool:
        if "memory" not in self._trees:
            return False
        at = self._at("memory", group)
        # Memory with swap has the same limit and is checked first where swap is counted, often without a failcnt.
        close = _number(f"{at}/memory.max_usage_in_bytes") >= _number(f"{at}/memory.limit_in_bytes") * 0.99
        return close or _number(f"{at}/memory.failcnt") > 0

    def watch_pids(self, group: str) -> int:
        return _open_events(self._at("pids", group)) if "pids" in self._trees else -1

    def usage(self, group: str) -> tuple[int, int, int] | None:
        accounting = next((name for name in ("cpuacct", "cpu") if name in self._trees), "")
        if not accounting or "memory" not in self._trees:
            return None
        memory = self._at("memory", group)
        text = _read(f"{memory}/memory.usage_in_bytes").strip()
        if not text:
            return None
        inactive = _fields(f"{memory}/memory.stat").get("total_inactive_file", 0)
        cpu = _number(self._at(accounting, group) + "/cpuacct.usage")
        return cpu, max(0, int(text) - inactive), len(self.processes(group))

    def remove(self, group: str) -> bool:
        return all([_remove(self._at(controller, group)) for controller in self._trees])


class CgroupV2:
    version = 2

    def __init__(self, mount: str, prefix: str, top: str = "") -> None:
        """`mount`: where to begin; `top`: where the hierarchy is mounted, if that is above."""
        self._top = top or mount
        self._tree = mount
        for part in (p for p in prefix.split("/") if p):
            _delegate(self._tree)
            self._tree = f"{self._tree}/{part}"
            os.makedirs(self._tree, exist_ok=True)
        _delegate(self._tree)
        there = _read(f"{self._tree}/cgroup.subtree_control").split()
        self.missing = [name for name in WANTED if name not in there]

    def _at(self, group: str) -> str:
        return f"{self._tree}/{group}"

    def path(self, group: str) -> str:
        return self._at(group)[len(self._top) :]

    def exists(self, group: str) -> bool:
        return os.path.isdir(self._at(group))

    def create(self, group: str, cpu: int, shares: int, memory: int, pids: int) -> None:
        at = self._at(group)
        parent = os.path.dirname(at)
        os.makedirs(parent, exist_ok=True)
        if parent != self._tree:
            _delegate(parent)
        os.makedirs(at, exist_ok=True)
        if "cpu" not in self.missing:
            _write(f"{at}/cpu.weight", str(weight_of(shares)))
            if cpu:
                _write(f"{at}/cpu.max", f"{max(1000, cpu * _PERIOD // 1000)} {_PERIOD}")
        if memory and "memory" not in self.missing:
            _write(f"{at}/memory.max", str(memory))
            _write_if_there(f"{at}/memory.swap.max", "0")
        if "memory" not in self.missing and parent != self._tree:
            # All processes of a container go together; the containers of a pod do not.
            _write_if_there(f"{at}/memory.oom.group", "1")
        if pids and "pids" not in self.missing:
            _write(f"{at}/pids.max", str(pids))

    def update(self, group: str, cpu: int, shares: int, memory: int) -> None:
        at = self._at(group)
        if "cpu" not in self.missing:
            _write(f"{at}/cpu.weight", str(weight_of(shares)))
            _write(f"{at}/cpu.max", f"{max(1000, cpu * _PERIOD // 1000) if cpu else 'max'} {_PERIOD}")
        if "memory" not in self.missing:
            _write(f"{at}/memory.max", str(memory or "max"))
            _write_if_there(f"{at}/memory.swap.max", "0" if memory else "max")

    def open_for_joining(self, group: str) -> list[int]:
        return [os.open(f"{self._at(group)}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)]

    def processes(self, group: str) -> list[int]:
        return _pids(f"{self._at(group)}/cgroup.procs")

    def kill(self, group: str) -> None:
        switch = f"{self._at(group)}/cgroup.kill"
        if os.path.exists(switch):
            _write(switch, "1")
        else:
            _kill_each(self.processes(group))

    def out_of_memory(self, group: str) -> int:
        return _fields(f"{self._at(group)}/memory.events").get("oom_kill", 0)

    def memory_limit_reached(self, group: str) -> bool:
        return _fields(f"{self._at(group)}/memory.events").get("max", 0) > 0

    def watch_pids(self, group: str) -> int:
        return _open_events(self._at(group)) if "pids" not in self.missing else -1

    def usage(self, group: str) -> tuple[int, int, int] | None:
        at = self._at(group)
        text = _read(f"{at}/memory.current").strip()
        if not text:
            return None
        inactive = _fields(f"{at}/memory.stat").get("inactive_file", 0)
        cpu = _fields(f"{at}/cpu.stat").get("usage_usec", 0) * 1000
        pids = _number(f"{at}/pids.current") or len(self.processes(group))
        return cpu, max(0, int(text) - inactive), pids

    def remove(self, group: str) -> bool:
        return _remove(self._at(group))


def _delegate(path: str) -> None:
    """Let the groups below use the controllers; one that is refused is simply missing there."""
    there = _read(f"{path}/cgroup.controllers").split()
    for name in WANTED:
        if name in there:
            try:
                _write(f"{path}/cgroup.subtree_control", f"+{name}")
            except OSError:
                continue


def mounts(table: str) -> tuple[dict[str, str], str]:
    """Controllers of version 1 with their trees, and the tree of version 2, from /proc/self/mounts."""
    v1: dict[str, str] = {}
    v2 = ""
    for line in table.splitlines():
        _, at, kind, options = line.split()[:4]
        if kind == "cgroup2" and not v2:
            v2 = at
        elif kind == "cgroup":
            for option in options.split(","):
                if option in ("cpu", "cpuacct", "memory", "pids"):
                    v1.setdefault(option, at)
    return v1, v2


def detect(prefix: str) -> Cgroups | None:
    """The machine's groups, if this process may make some below `prefix`."""
    v1, v2 = mounts(_read("/proc/self/mounts"))
    try:
        if any(name in v1 for name in WANTED):
            # cpu and cpuacct are often one tree under two names.
            for tree in v1.values():
                os.makedirs(f"{tree}/{prefix}", exist_ok=True)
            return CgroupV1(v1, prefix)
        if v2:
            for start in dict.fromkeys((v2, v2 + _own_group())):
                if os.access(start, os.W_OK):
                    found = CgroupV2(start, prefix, v2)
                    if "memory" not in found.missing or "pids" not in found.missing:
                        return found
    except OSError:
        return None
    return None


def _own_group() -> str:
    for line in _read("/proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            return line[3:].rstrip("/")
    return ""


def leave_service(prefix: str) -> None:
    """Leave the group by which systemd knows our parent, or a restart of its service would take the containers along."""
    table = _read("/proc/self/mounts")
    trees = [line.split()[1] for line in table.splitlines() if " cgroup2 " in line or "name=systemd" in line]
    for tree in trees:
        try:
            os.makedirs(f"{tree}/{prefix}/shepherd", exist_ok=True)
            _write(f"{tree}/{prefix}/shepherd/cgroup.procs", "0")
        except OSError:
            continue  # not ours to leave; the unit then needs KillMode=process


def remove_node(prefix: str) -> bool:
    """Remove the groups of a node that is given up, in every tree. False while something is still inside."""
    table = _read("/proc/self/mounts")
    v1, v2 = mounts(table)
    named = [line.split()[1] for line in table.splitlines() if " cgroup2 " in line or "name=systemd" in line]
    own = [v2 + _own_group()] if v2 else []
    empty = True
    for tree in dict.fromkeys((*v1.values(), *named, *own)):
        try:
            empty &= _remove(f"{tree}/{prefix}")
        except OSError:
            continue  # not ours to change, so nothing of ours is there
    return empty
