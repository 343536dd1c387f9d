"""How much disk a directory tree uses. Runs in a thread, slowly on purpose, over files that a pod may change meanwhile.

Nothing that a pod puts there leads out: every step is relative to an open directory and follows no links, and other file
systems (volumes in memory) are not entered.
"""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path

MOST_LEVELS = 200
"""Directories nested deeper are not counted, and `too_deep` says so: each level costs an open file."""
_SLICE = 0.01
"""Seconds of work between two pauses."""


@dataclass(frozen=True, slots=True)
class DiskUsage:
    bytes: int = 0
    inodes: int = 0
    too_deep: bool = False

    def __add__(self, other: DiskUsage) -> DiskUsage:
        return DiskUsage(self.bytes + other.bytes, self.inodes + other.inodes, too_deep=self.too_deep or other.too_deep)


NOTHING = DiskUsage()


@dataclass(slots=True)
class Pace:
    """How fast counting goes; may be changed while it goes on."""

    share: float = 1.0
    """The part of the time that is spent working."""
    stopped: bool = False


class TreeMeter:
    """Counts several trees; a file with several names counts once."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self.worked = 0.0
        """Seconds without the pauses."""
        self._linked: set[tuple[int, int]] = set()
        self._since = time.monotonic()

    def measure(self, path: Path, *, leave_out: frozenset[str] = frozenset()) -> DiskUsage:
        """`leave_out`: names directly below `path`. What is gone or was never there uses nothing."""
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return NOTHING
        info = os.fstat(handle)
        found = self._below(handle, info.st_dev, leave_out)
        return found + DiskUsage(info.st_blocks * 512, 1)

    def _below(self, top: int, device: int, leave_out: frozenset[str]) -> DiskUsage:
        """Takes over `top` and closes it."""
        used = inodes = 0
        too_deep = False
        levels: list[tuple[int, list[str]]] = []
        pending = top
        while True:
            if pending >= 0:
                files, names = self._entries(pending, device, leave_out if not levels else frozenset())
                used += files.bytes
                inodes += files.inodes
                levels.append((pending, names))
            pending = -1
            handle, names = levels[-1]
            if not names:
                os.close(handle)
                levels.pop()
                if not levels:
                    return DiskUsage(used, inodes, too_deep)
            elif len(levels) >= MOST_LEVELS:
                names.clear()
                too_deep = True
            else:
                pending = _open_below(handle, names.pop())

    def _entries(self, handle: int, device: int, leave_out: frozenset[str]) -> tuple[DiskUsage, list[str]]:
        """What lies directly in a directory, and the directories among it that are still to be counted."""
        used = inodes = 0
        directories = []
        try:
            with os.scandir(handle) as entries:
                for entry in entries:
                    self._pause()
                    try:
                        info = entry.stat(follow_symlinks=False)
                    except OSError:
                        continue  # gone meanwhile
                    if entry.name in leave_out or info.st_dev != device:
                        continue
                    if stat.S_ISDIR(info.st_mode):
                        directories.append(entry.name)
                    elif info.st_nlink > 1:
                        if (info.st_dev, info.st_ino) in self._linked:
                            continue
                        self._linked.add((info.st_dev, info.st_ino))
                    used += info.st_blocks * 512
                    inodes += 1
        except OSError:
            return DiskUsage(used, inodes), directories
        return DiskUsage(used, inodes), directories

    def _pause(self) -> None:
        worked = time.monotonic() - self._since
        if worked >= _SLICE:
            self.worked += worked
            if self._pace.share < 1.0 and not self._pace.stopped:
                time.sleep(min(1.0, worked * (1 / self._pace.share - 1)))
            self._since = time.monotonic()


def _open_below(parent: int, name: str) -> int:
    """-1: gone, or no directory any more. One that its owner may not read is made readable: hiding files is no way
    around the limit."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=parent)
    except PermissionError:
        pass
    except OSError:
        return -1
    try:
        handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            os.chmod(f"/proc/self/fd/{handle}", stat.S_IMODE(os.fstat(handle).st_mode) | 0o500)
        finally:
            os.close(handle)
        return os.open(name, flags, dir_fd=parent)
    except OSError:
        return -1
