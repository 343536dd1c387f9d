"""Directories as volumes: emptyDir, hostPath, and the subPath of a mount; nothing leads out of where it belongs."""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from coterie.base.log import logger
from coterie.kube.agent.pods.downward import ConfigProblem
from coterie.kube.api import quantity
from coterie.kube.api.meta import Object

log = logger("agent.volumes")

_MS_NOSUID, _MS_NODEV = 2, 4
_MNT_DETACH = 2


def empty_directory(path: Path, source: Object, group: int | None, memory: int = 0) -> None:
    """An emptyDir. In memory when asked for and when we may mount; otherwise a plain directory, which the runtime may cover.
    `memory` is the pod's limit, which bounds what lies in memory; 0: none."""
    fresh = not path.exists()
    path.mkdir(parents=True, exist_ok=True)
    if is_in_memory(source) and not os.path.ismount(path):
        size = memory_size(source, memory)
        mount_tmpfs(path, f"mode=0777,size={size}" if size else "mode=0777")
    if fresh:
        # Whoever the container runs as must be able to write, as in any emptyDir.
        path.chmod(0o777 if group is None else 0o2777)
        if group is not None and os.geteuid() == 0:
            os.chown(path, -1, group)


def is_in_memory(source: Object) -> bool:
    return bool(source.get("medium") == "Memory")


def memory_size(source: Object, memory: int) -> int:
    """How large an emptyDir in memory may become; 0: no limit."""
    wanted = quantity.parse(source["sizeLimit"]).value() if source.get("sizeLimit") else 0
    return min(wanted or memory, memory or wanted)


def mount_tmpfs(path: Path, options: str) -> bool:
    if os.geteuid() != 0:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV)
    return bool(libc.mount(b"tmpfs", os.fsencode(path), b"tmpfs", flags, options.encode()) == 0)


def unmount(path: Path) -> None:
    if os.path.ismount(path):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.umount2(os.fsencode(path), _MNT_DETACH) != 0:
            log.warning("A memory volume cannot be unmounted", volume=str(path), errno=ctypes.get_errno())


def host_path(source: Object, allowed: Sequence[str], withheld: Sequence[Path] = ()) -> Path:
    """The host's path, made when its type says so. Refused unless it really lies below an allowed directory.

    `withheld`: directories of the node itself, with its keys. Nothing that holds one of them is given, and of what lies
    inside only what was allowed by a path inside. All paths are compared as they really are, without links.
    """
    path_text = source.get("path") or ""
    kind = source.get("type") or ""
    if not os.path.isabs(path_text) or ".." in path_text.split("/"):
        raise ConfigProblem(f"hostPath {path_text!r} is not an absolute path")
    path = Path(path_text)
    real = path.resolve()
    if not any(_below(real, Path(prefix).resolve()) for prefix in allowed):
        raise ConfigProblem(f"hostPath {path_text} is not below a directory that this node allows; see agent.hostPaths")
    for own in (each.resolve() for each in withheld):
        named_inside = any(
            prefix != own and _below(prefix, own) and _below(real, prefix)
            for prefix in (Path(each).resolve() for each in allowed)
        )
        if _below(own, real) or (_below(real, own) and not named_inside):
            raise ConfigProblem(f"hostPath {path_text} holds files of the node itself, and these are not for pods")
    if kind == "DirectoryOrCreate":
        real.mkdir(parents=True, exist_ok=True, mode=0o755)
    elif kind == "FileOrCreate":
        real.touch(mode=0o644, exist_ok=True)
    fits = {
        "Directory": stat.S_ISDIR,
        "DirectoryOrCreate": stat.S_ISDIR,
        "File": stat.S_ISREG,
        "FileOrCreate": stat.S_ISREG,
        "Socket": stat.S_ISSOCK,
        "CharDevice": stat.S_ISCHR,
        "BlockDevice": stat.S_ISBLK,
    }.get(kind)
    if fits is not None and not (real.exists() and fits(real.stat().st_mode)):
        raise ConfigProblem(f"hostPath type check failed: {path_text} is not a {kind}")
    return real


def sub_path(volume: Path, wanted: str) -> Path:
    """A file or directory inside a volume. Links may point about inside the volume, but not out of it."""
    parts = wanted.split("/")
    if wanted.startswith("/") or ".." in parts:
        raise ConfigProblem(f"subPath {wanted!r} must be relative and must not contain '..'")
    root = volume.resolve()
    target = (root / wanted).resolve()
    if not _below(target, root):
        raise ConfigProblem(f"subPath {wanted!r} leads out of its volume")
    if not target.exists():
        try:
            _make_below(root, target.relative_to(root).parts)
        except OSError as error:
            raise ConfigProblem(f"subPath {wanted!r} cannot be made: {error.strerror}") from error
    return target


def _make_below(root: Path, parts: Sequence[str]) -> None:
    """By handles, and never through a link: one may be planted at any moment by whoever has the volume."""
    at = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=at)
            below = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = below
    finally:
        os.close(at)


def _below(path: Path, parent: Path) -> bool:
    return path == parent or parent in path.parents
