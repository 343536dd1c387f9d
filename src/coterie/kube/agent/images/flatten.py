"""Layers copied into one directory, for machines that have no overlay file system."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

from coterie.kube.agent.images.store import remove_tree
from coterie.kube.agent.images.unpack import is_opaque, is_whiteout


def flatten(layers: Sequence[Path], target: Path) -> None:
    """`layers` lowest first."""
    target.mkdir(parents=True, exist_ok=True)
    for layer in layers:
        _copy(str(layer), str(target))


def _copy(source: str, target: str) -> None:
    for entry in os.scandir(source):
        to = f"{target}/{entry.name}"
        if is_whiteout(entry.path):
            _remove(to)
        elif entry.is_dir(follow_symlinks=False):
            if is_opaque(entry.path) or (os.path.lexists(to) and not _is_directory(to)):
                _remove(to)
            os.makedirs(to, exist_ok=True)
            _copy(entry.path, to)
            _own(entry, to)
        else:
            _remove(to)
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), to)
            elif entry.is_file(follow_symlinks=False):
                shutil.copyfile(entry.path, to)
            else:
                os.mkfifo(to)
            _own(entry, to)


def _own(entry: os.DirEntry[str], to: str) -> None:
    info = entry.stat(follow_symlinks=False)
    if os.geteuid() == 0:
        os.chown(to, info.st_uid, info.st_gid, follow_symlinks=False)
    if not stat.S_ISLNK(info.st_mode):
        os.chmod(to, stat.S_IMODE(info.st_mode))


def _is_directory(path: str) -> bool:
    return stat.S_ISDIR(os.lstat(path).st_mode)


def _remove(path: str) -> None:
    if not os.path.lexists(path):
        return
    if _is_directory(path):
        remove_tree(Path(path))
    else:
        os.unlink(path)
