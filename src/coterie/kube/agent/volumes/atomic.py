"""Directories whose files change all at once.

    volume/key          -> ..data/key            links that never change
    volume/..data       -> ..2026_01_02_xyz      the one link that is swapped
    volume/..2026_01_02_xyz/key                  the files themselves

Whoever reads through `..data` sees either all old files or all new ones. The names are the kubelet's, because programs
know them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coterie.base.ids import suffix

_DATA = "..data"
_DIRECTORY_MODE = 0o755


@dataclass(frozen=True, slots=True)
class FileContent:
    data: bytes
    mode: int = 0o644

    def __repr__(self) -> str:
        return f"Content({len(self.data)} bytes, {self.mode:o})"  # it may be a secret


Payload = Mapping[str, FileContent]
"""Relative path -> file."""


class UnsafePath(ValueError):
    """A path that would lead out of its volume."""


def checked(path: str) -> str:
    """The path, when it stays below its volume and does not touch our own names."""
    parts = path.split("/")
    if not path or path.startswith("/") or ".." in parts or "" in parts or parts[0].startswith(".."):
        raise UnsafePath(f"{path!r} is not a path inside a volume")
    return path


def write(volume: Path, payload: Payload, *, group: int | None = None, owner: int | None = None) -> bool:
    """Make the volume hold exactly these files; says whether anything changed."""
    for path in payload:
        checked(path)
    volume.mkdir(parents=True, exist_ok=True)
    link = volume / _DATA
    old = volume / os.readlink(link) if link.is_symlink() else None
    if old is not None and _holds(old, payload):
        return False
    fresh = f"..{suffix(12)}"
    _fill(volume / fresh, payload, group, owner)
    aside = volume / f"{_DATA}_tmp"
    with contextlib.suppress(FileNotFoundError):
        aside.unlink()
    aside.symlink_to(fresh)
    os.rename(aside, link)
    _link_names(volume, payload)
    if old is not None and old.parent == volume:
        shutil.rmtree(old, ignore_errors=True)
    return True


def _fill(directory: Path, payload: Payload, group: int | None, owner: int | None) -> None:
    directory.mkdir(mode=_DIRECTORY_MODE)
    directory.chmod(_DIRECTORY_MODE)
    for path, content in payload.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True, mode=_DIRECTORY_MODE)
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(handle, "wb") as file:
            file.write(content.data)
            mode = content.mode
            if group is not None or owner is not None:
                with contextlib.suppress(PermissionError):  # without root the files stay ours, and so do the pods
                    os.fchown(handle, -1 if owner is None else owner, -1 if group is None else group)
            if group is not None:
                mode |= (mode & 0o400) >> 3  # what the owner may read, the pod's group may
            os.fchmod(handle, mode)


def _link_names(volume: Path, payload: Payload) -> None:
    wanted = {path.split("/", 1)[0] for path in payload}
    for name in wanted:
        link = volume / name
        if not link.is_symlink():
            link.symlink_to(f"{_DATA}/{name}")
    for entry in volume.iterdir():
        if not entry.name.startswith("..") and entry.name not in wanted and entry.is_symlink():
            entry.unlink()


def _holds(directory: Path, payload: Payload) -> bool:
    found = {str(path.relative_to(directory)): path for path in directory.rglob("*") if path.is_file()}
    if set(found) != set(payload):
        return False
    return all(path.read_bytes() == payload[name].data for name, path in found.items())
