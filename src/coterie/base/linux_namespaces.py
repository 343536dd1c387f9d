"""unshare(2) and setns(2), which the standard library has from Python 3.12 on only."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(kinds: int) -> None:
    """Put this thread into new namespaces of these kinds (CLONE_NEW*)."""
    _checked(_libc.unshare(ctypes.c_int(kinds)), "unshare")


def setns(handle: int, kind: int) -> None:
    """Put this thread into the namespace behind a descriptor."""
    _checked(_libc.setns(ctypes.c_int(handle), ctypes.c_int(kind)), "setns")


def _checked(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
