"""Landlock: which files a process may read and write, decided by itself once and for all its children.

    ruleset = Ruleset(abi); ruleset.allow("/", READ); ruleset.allow("/tmp", WRITE); ruleset.enforce()

A right that the kernel's version does not know cannot be held back; `abi()` tells the version, 0 where there is none.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct

from coterie.kube.agent.runtimes.runp import linux

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_ALL_OF_FIRST = (1 << 13) - 1
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1, 2
_FIRST_WITH_SCOPES = 6

READ = _EXECUTE | _READ_FILE | _READ_DIR
WRITE = READ | _ALL_OF_FIRST | _REFER | _TRUNCATE | _IOCTL_DEV
USE = _READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV
"""For devices and pipes."""


def abi() -> int:
    try:
        return linux.syscall(_CREATE, None, ctypes.c_size_t(0), 1)
    except OSError:
        return 0


class Ruleset:
    """From version 6 on, the machine's nameless ("abstract") sockets are out of reach as well, and if wished signals.

    With `files` off, only these: for processes that have a root file system of their own.
    """

    def __init__(self, version: int, *, files: bool = True, keep_signals_inside: bool = False) -> None:
        self._handled = _ALL_OF_FIRST if files else 0
        for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV)):
            if files and version >= since:
                self._handled |= right
        scoped = 0
        if version >= _FIRST_WITH_SCOPES:
            scoped = _SCOPE_ABSTRACT_SOCKETS | (_SCOPE_SIGNALS if keep_signals_inside else 0)
        attr = struct.pack("QQQ", self._handled, 0, scoped)[: 24 if version >= 6 else 16 if version >= 4 else 8]
        self._handle = linux.syscall(_CREATE, attr, ctypes.c_size_t(len(attr)), 0)

    @staticmethod
    def has_scopes(version: int) -> bool:
        return version >= _FIRST_WITH_SCOPES

    def allow(self, path: str, rights: int) -> None:
        """Grant rights at and below a path; one that does not exist needs no rights."""
        try:
            handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return
        try:
            self.allow_handle(handle, rights)
        finally:
            os.close(handle)

    def allow_handle(self, handle: int, rights: int) -> None:
        rights &= self._handled
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            rights &= _OF_FILES
        linux.syscall(_ADD_RULE, self._handle, 1, struct.pack("=Qi", rights, handle), 0)

    def enforce(self) -> None:
        linux.syscall(_RESTRICT, self._handle, 0)
        os.close(self._handle)


def beside(hidden: list[str], start: str = "/") -> list[str]:
    """Paths that together hold everything below `start` except what is hidden."""
    inside = [path for path in hidden if path == start or path.startswith(start.rstrip("/") + "/")]
    if not inside:
        return [start]
    if start in inside:
        return []
    found: list[str] = []
    try:
        names = os.listdir(start)
    except OSError:
        return []
    for name in names:
        path = f"{start.rstrip('/')}/{name}"
        # A link would give away what it points to, maybe the hidden itself; what it names has its own place.
        if not os.path.islink(path):
            found += beside(inside, path)
    return found
