"""Files that are whole or not there: written aside, flushed to disk, then renamed into place.

A crash at any moment leaves either the old content or the new. Private files (keys, tokens, kubeconfigs) have their
mode from the moment they exist, not after; nobody can read them in between.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from coterie.base.ids import suffix

PRIVATE_FILE = 0o600
PUBLIC_FILE = 0o644
PRIVATE_DIRECTORY = 0o700


def write_atomic(path: Path, data: bytes | str, *, mode: int = PRIVATE_FILE, durable: bool = True) -> None:
    """Replace `path` by `data` in one step. `durable` waits until disk and directory know of it."""
    content = data.encode() if isinstance(data, str) else data
    # Same directory, so that the rename stays within one file system; O_EXCL, so that nobody can plant a link.
    aside = path.with_name(f".{path.name}.{suffix(8)}.tmp")
    handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with open(handle, "wb") as file:
            os.fchmod(handle, mode)  # the umask may have taken bits away
            file.write(content)
            file.flush()
            if durable:
                os.fsync(handle)
        os.replace(aside, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside)
        raise
    if durable:
        sync_directory(path.parent)


def create_exclusive(path: Path, data: bytes | str, *, mode: int = PRIVATE_FILE) -> bool:
    """Write `path` whole unless it exists; says whether this call made it. Two processes cannot both win."""
    content = data.encode() if isinstance(data, str) else data
    aside = path.with_name(f".{path.name}.{suffix(8)}.tmp")
    write_atomic(aside, content, mode=mode)
    try:
        os.link(aside, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(aside)
    sync_directory(path.parent)
    return True


def sync_directory(path: Path) -> None:
    """Make renames and new names in a directory survive a power cut."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def private_directory(path: Path) -> Path:
    """Make the directory (and its parents) so that only its owner may look inside; tightens one that exists."""
    path.mkdir(parents=True, exist_ok=True, mode=PRIVATE_DIRECTORY)
    if path.stat().st_mode & 0o077:
        path.chmod(PRIVATE_DIRECTORY)
    return path


def read_bytes_or_none(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def is_private(path: Path) -> bool:
    """Whether nobody but the owner may read or write the file."""
    return not path.stat().st_mode & 0o077
