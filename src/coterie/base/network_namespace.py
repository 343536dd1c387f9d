"""Sockets in another network namespace: a socket stays in the namespace in which it was made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.base.linux_namespaces import CLONE_NEWNET, setns

_OWN = "/proc/thread-self/ns/net"


@contextmanager
def entered(path: Path) -> Iterator[None]:
    """This thread is in the namespace `path` inside the block. Do not await there. Needs root. Raises OSError.

    Threads that are started inside the block stay in that namespace.
    """
    own = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            setns(there, CLONE_NEWNET)
        finally:
            os.close(there)
        try:
            yield
        finally:
            setns(own, CLONE_NEWNET)
    finally:
        os.close(own)
