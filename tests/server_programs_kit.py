"""Database servers for tests: where they are, and how they run without the rights of root, which they refuse."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TOOLS = Path(__file__).parents[1] / ".tools" / "servers"
_COPIES = Path("/var/tmp/coterie-servers")
_MEMORY = 2 * 1024**3


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def found(*patterns: str) -> Path | None:
    """The first program of these patterns, `folder//pattern`."""
    for pattern in patterns:
        base, _, rest = pattern.partition("//")
        for path in sorted(Path(base or "/").glob(rest), reverse=True):
            if os.access(path, os.X_OK):
                return path
    return None


def unpacked(package: str) -> Path:
    """The folder of a server that `scripts/get-servers` unpacked, where the user that runs it can read it: not below root's home."""
    place = TOOLS / package
    if os.getuid() != 0 or not place.is_dir() or all(each.stat().st_mode & 0o001 for each in (place, *place.parents)):
        return place
    copied = _COPIES / f"{package}-{place.stat().st_mtime_ns}"
    if not copied.exists():
        _COPIES.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=package, dir=_COPIES))
        shutil.copytree(place, made / "tree", symlinks=True)
        try:
            (made / "tree").rename(copied)
        except OSError:
            assert copied.exists()  # another worker was first
        shutil.rmtree(made, ignore_errors=True)
    return copied


@contextmanager
def server_folder(prefix: str, *, in_memory: bool = False, disk: Path | None = None) -> Iterator[Path]:
    """Writable for the unprivileged user; short, as sockets lie in it. `disk`: there and nowhere else."""
    places = ["/tmp", "/var/tmp", "/dev/shm"] if disk is None else [str(disk)]
    if disk is None and in_memory and os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > _MEMORY:
        places.insert(0, "/dev/shm")
    base = next(each for each in places if os.stat(each).st_mode & 0o001)
    made = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
    try:
        if os.getuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(made, nobody.pw_uid, nobody.pw_gid)
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def unprivileged() -> dict[str, Any]:
    """Who runs it, for `subprocess`."""
    if os.getuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def server_environment(unpacked: Path, daemon: Path) -> dict[str, str]:
    """With its own libraries where it was unpacked, not installed."""
    own = daemon.is_relative_to(unpacked)
    paths = [str(unpacked / each) for each in ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu")] if own else []
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(paths), "HOME": "/", "LC_ALL": "C"}
