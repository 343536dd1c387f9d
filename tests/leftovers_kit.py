"""What a domain has on this machine, and what is still there after it should be gone.

    traces = DomainTraces(root)
    traces.note()                   # while it runs, as often as one likes
    ... coterie down --purge ...
    traces.assert_gone()

Looks at the whole machine: processes, namespaces (by process and by descriptor), mounts in any mount namespace, control
groups, ranges of users, devices, files. `root` is the directory of one domain, or of several.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from coterie.kube.agent.runtimes.runp import cgroups, pod_networks, users
from coterie.kube.agent.runtimes.runp.client import group_of

_GONE = (FileNotFoundError, ProcessLookupError, PermissionError, NotADirectoryError)
_NAMESPACES = ("net", "user", "mnt", "pid", "ipc", "uts")


def process_ids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def start_ticks(pid: int) -> int:
    """0: there is none, or it has ended and was not reaped."""
    with contextlib.suppress(*_GONE):
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(words[19]) if words[0] not in "ZX" else 0
    return 0


def namespaces_of(pid: int) -> set[str]:
    """As `net:[4026531840]`."""
    found = set()
    for name in _NAMESPACES:
        with contextlib.suppress(*_GONE):
            found.add(os.readlink(f"/proc/{pid}/ns/{name}"))
    return found


def handles_of(pid: int) -> list[str]:
    """What its descriptors are."""
    found = []
    with contextlib.suppress(*_GONE):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(*_GONE):
                found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def devices_of(pid: int) -> list[str]:
    """The network devices where the process is."""
    with contextlib.suppress(*_GONE):
        lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
        return sorted(line.partition(":")[0].strip() for line in lines)
    return []


def mounts_below(pid: int, path: str) -> list[str]:
    # A process that is just ending has no mount namespace any more, and the kernel says EINVAL.
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
        return [line for line in lines if _mentions(line, path)]
    return []


def _mentions(text: str, path: str) -> bool:
    return re.search(rf"{re.escape(path)}(?![^/\s\0,:])", text) is not None


def group_directories(group: str) -> list[str]:
    """Of a node, in all hierarchies."""
    table = Path("/proc/self/mounts").read_text()
    v1, v2 = cgroups.mounts(table)
    trees = {*v1.values(), *([v2] if v2 else ())}
    trees |= {line.split()[1] for line in table.splitlines() if "name=systemd" in line}
    return sorted(at for tree in trees for at, _, _ in os.walk(f"{tree}/{group}"))


def user_ranges_below(path: str) -> list[str]:
    """Ranges of users that pods of a supervisor below this path have."""
    found = []
    with contextlib.suppress(*_GONE):
        for name in os.listdir(users.DIRECTORY):
            with contextlib.suppress(*_GONE):
                if name.isdigit() and _mentions(Path(users.DIRECTORY, name).read_text(), path):
                    found.append(name)
    return sorted(found)


class DomainTraces:
    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._processes: dict[int, int] = {}
        self._namespaces: set[str] = set()
        self._groups: set[str] = set()

    def note(self) -> None:
        """Remember what the domain has now that would not tell by itself afterwards whose it was."""
        own = namespaces_of(os.getpid())
        for pid in self._belonging():
            ticks = start_ticks(pid)
            if ticks:
                self._processes[pid] = ticks
                self._namespaces |= namespaces_of(pid) - own
        for directory in Path(self._root).rglob("runp"):
            if (directory / "shepherd.lock").exists():
                self._groups |= set(self._groups_of(directory))

    def _groups_of(self, directory: Path) -> Iterator[str]:
        ending = group_of("", directory).rpartition("-")[2]
        for line in group_directories("coterie"):
            below = line.partition("/coterie/")[2]
            if below and "/" not in below and below.endswith(f"-{ending}"):
                yield f"coterie/{below}"

    def _belonging(self) -> set[int]:
        """Those that name the root, what they started, and the holders of pod networks with all who are in there."""
        parents: dict[int, int] = {}
        found = set()
        holders = {
            facts.get("holder")
            for path in Path(self._root).rglob(pod_networks.FACTS_FILE)
            if (facts := _read(path)) is not None
        }
        mine = {os.getpid(), os.getppid()}
        for pid in process_ids():
            with contextlib.suppress(*_GONE):
                parents[pid] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
                if pid not in mine and (pid in holders or self._names_root(pid)):
                    found.add(pid)
        grown = True
        while grown:
            more = {pid for pid, parent in parents.items() if parent in found} - found - mine
            grown = bool(more)
            found |= more
        return found

    def _names_root(self, pid: int) -> bool:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        # Whoever runs the tests, or started them, may say the directory too.
        return _mentions(words, self._root) and "pytest" not in words

    def left(self) -> list[str]:
        found = [f"process {pid}: {_command(pid)}" for pid in self._belonging()]
        found += [
            f"process {pid} of before: {_command(pid)}"
            for pid, ticks in self._processes.items()
            if start_ticks(pid) == ticks
        ]
        me = os.getpid()
        for pid in process_ids():
            if pid == me or not start_ticks(pid):
                continue
            found += [f"{each} has process {pid}: {_command(pid)}" for each in namespaces_of(pid) & self._namespaces]
            for each in handles_of(pid):
                if each in self._namespaces or _mentions(each, self._root):
                    found.append(f"descriptor of {each} in process {pid}: {_command(pid)}")
            found += [f"mount in process {pid}: {line}" for line in mounts_below(pid, self._root)]
        found += [f"mount: {line}" for line in mounts_below(me, self._root)]
        found += [f"descriptor of {each} in this process" for each in handles_of(me) if each in self._namespaces]
        found += [f"control group {path}" for group in self._groups for path in group_directories(group)]
        found += [f"users {slot}" for slot in user_ranges_below(self._root)]
        if os.path.exists(self._root):
            found.append(f"files in {self._root}: {sorted(os.listdir(self._root))[:10]}")
        return found

    def assert_gone(self, seconds: float = 20.0) -> None:
        """The kernel takes a moment for namespaces and groups."""
        deadline = time.monotonic() + seconds
        while left := self.left():
            assert time.monotonic() < deadline, "\n".join(["left on this machine:", *left])
            time.sleep(0.1)


def _read(path: Path) -> dict[str, int] | None:
    with contextlib.suppress(OSError, ValueError):
        found: dict[str, int] = json.loads(path.read_text())
        return found
    return None


def _command(pid: int) -> str:
    with contextlib.suppress(*_GONE):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        return words[:200] or Path(f"/proc/{pid}/comm").read_text().strip()
    return ""
