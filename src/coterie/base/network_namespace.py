"""Sockets in another network namespace: a socket stays in the namespace in which it was made."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_OWN = "/proc/thread-self/ns/net"

_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def entered(path: Path) -> Iterator[None]:
    """This thread is in the namespace `path` inside the block. Do not await there. Needs root. Raises OSError.

    Threads that are started inside the block stay in that namespace.
    """
    own = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _enter(there, path)
        finally:
            os.close(there)
        try:
            yield
        finally:
            _enter(own, path)
    finally:
        os.close(own)


def _enter(handle: int, path: Path) -> None:
    if _libc.setns(ctypes.c_int(handle), ctypes.c_int(_CLONE_NEWNET)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
