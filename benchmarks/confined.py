"""This process, and all that it starts from now on, on one core and with so much memory: what a small machine would have.

The memory is that of a control group, version 1 or 2, which only root can make; page cache counts too, and is given up first.
Agents put containers into groups of their own at the top of the hierarchy. For a command that is run by `within`, this group
is the top.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class CannotConfine(Exception):
    """The sentence says why."""


@dataclass(frozen=True, slots=True)
class Group:
    path: Path
    peak_file: str
    mounting: str

    @property
    def peak_mb(self) -> float:
        return int((self.path / self.peak_file).read_text()) / (1 << 20)

    def within(self, command: Sequence[str]) -> list[str]:
        """The command in a namespace where nothing is above the group."""
        return ["unshare", "--mount", "--cgroup", "sh", "-c", f'{self.mounting} && exec "$@"', "sh", *command]


def size(text: str) -> int:
    """`2G`, `512M`, or bytes."""
    unit = _UNITS.get(text[-1:].upper())
    return int(text[:-1]) * unit if unit else int(text)


@contextmanager
def on_core(core: int) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def in_memory(limit: int) -> Iterator[Group]:
    """Raises CannotConfine."""
    controller = _ROOT / "memory"
    old = (controller / "memory.limit_in_bytes").exists()
    parent = (controller if old else _ROOT) / _own_group("memory" if old else "")
    made = parent / f"coterie-bench-{os.getpid()}"
    try:
        made.mkdir()
    except OSError as problem:
        raise CannotConfine(f"a control group cannot be made ({problem.strerror}): only root can") from problem
    try:
        (made / ("memory.limit_in_bytes" if old else "memory.max")).write_text(str(limit))
        (made / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as problem:
        made.rmdir()
        raise CannotConfine(f"the memory of a control group cannot be limited: {problem.strerror}") from problem
    try:
        if old:
            yield Group(
                made,
                "memory.max_usage_in_bytes",
                f"umount -l {controller} && mount -t cgroup -o memory none {controller}",
            )
        else:
            yield Group(made, "memory.peak", f"umount -l {_ROOT} && mount -t cgroup2 none {_ROOT}")
    finally:
        (parent / "cgroup.procs").write_text(str(os.getpid()))
        for below in sorted(made.rglob("*/"), reverse=True):
            below.rmdir()
        made.rmdir()


def _own_group(controller: str) -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return path.lstrip("/")
    return ""
