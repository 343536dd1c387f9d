"""Network namespaces as descriptors."""

from __future__ import annotations

import os

from coterie.base.linux_namespaces import CLONE_NEWNET, setns, unshare


def unshare_net() -> None:
    """Leave for a new, empty network namespace."""
    unshare(CLONE_NEWNET)


def enter(handle: int, kind: int = CLONE_NEWNET) -> None:
    setns(handle, kind)


def own_netns_fd() -> int:
    """The network namespace of this thread. An open descriptor keeps the namespace and its devices alive: close it."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def netns_of(pid: int) -> int:
    return os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def inode(handle: int) -> int:
    """Two descriptors with the same inode are the same namespace."""
    return os.fstat(handle).st_ino
