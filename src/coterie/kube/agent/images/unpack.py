"""One layer of an image, from a tar stream onto disk, in the form that overlayfs reads.

An archive is somebody else's word: no name may lead out of the layer, neither by `..` nor through a link that an earlier
member made, devices are not made, and what is unpacked has a limit. Removed files (`.wh.name`) become the overlay's own
mark for it, a character device 0:0; a directory that hides all below it (`.wh..wh..opq`) is marked opaque.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from coterie.kube.agent.images.model import ImageError

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
MOST_BYTES = 256 << 30
MOST_MEMBERS = 2_000_000
_MOST_HEADER = 256 << 10
"""Bytes of a member's extended header, which tarfile reads at once."""
_MOST_SHARED_HEADERS = 16
_LONGEST_NAME, _DEEPEST = 3072, 512
_MOST_DIRECTORY_NAMES = 64 << 20
"""Characters: they are kept until the layer is unpacked."""
_SPARE_BYTES = 64 << 20
_CHUNK = 1 << 20
_ROOT = os.geteuid() == 0
_OPAQUE_MARKS = ("trusted.overlay.opaque", "user.overlay.opaque")


class LayerMember(tarfile.TarInfo):
    """For `tarfile.open(tarinfo=...)`: of what tarfile reads into memory by itself, as much as any image needs."""

    def _proc_member(self, archive: tarfile.TarFile) -> Any:
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise ImageError("the image has files with holes, which are not supported")
        if self.type in _EXTENDED and not 0 <= self.size <= _MOST_HEADER:
            raise ImageError("the image has a file with a header that is too large")
        if self.type == tarfile.XGLTYPE and len(archive.pax_headers) >= _MOST_SHARED_HEADERS:
            raise ImageError("the image has too many headers")
        return super()._proc_member(archive)  # type: ignore[misc]

    def _block(self, count: int) -> int:
        if count < 0:  # it would lead tarfile back to where it was, for ever
            raise ImageError("the image has a file with an impossible size")
        return int(super()._block(count))  # type: ignore[misc]

    def _proc_gnusparse_10(self, *_: object) -> None:
        raise ImageError("the image has files with holes, which are not supported")


_EXTENDED = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)


def unpack(
    archive: tarfile.TarFile,
    target: Path,
    *,
    most_bytes: int = MOST_BYTES,
    observe: Callable[[int, int, str], None] = lambda offset, size, path: None,
) -> int:
    """Unpack into an empty directory; the bytes of all files. Raises ImageError also when the disk has not that much room.
    `observe` gets each member: where its content begins in the tar, the content's size, and the file that has it now."""
    total = names = 0
    disk = os.statvfs(target)
    most_bytes = min(most_bytes, disk.f_bavail * disk.f_frsize - _SPARE_BYTES)
    # Some file systems have no limit, and say 0.
    most_members = min(MOST_MEMBERS, disk.f_favail // 2) if disk.f_files else MOST_MEMBERS
    directories: list[tuple[str, tarfile.TarInfo]] = []
    root = _Directories(target)
    try:
        for count, member in enumerate(archive):
            archive.members.clear()  # type: ignore[attr-defined]  # of no use here, and without end
            parts = _parts(member.name)
            if member.size < 0:
                raise ImageError(f'the image has a file "{member.name}" of an impossible size')
            total += member.size if member.isreg() else 0
            if total > most_bytes or count > most_members:
                raise ImageError("the image is larger than what may be unpacked")
            observe(member.offset_data, member.size if member.isreg() else 0, "/".join(parts))
            if parts:
                _place(archive, member, root, parts)
                if member.isdir():
                    names += len(member.name)
                    if names > _MOST_DIRECTORY_NAMES:
                        raise ImageError("the image has more directories than what may be unpacked")
                    member.pax_headers = {}
                    directories.append(("/".join(parts), member))
        # Times and modes of directories last: unpacking into them changes the one and may need the other.
        for _, member in reversed(directories):
            parts = _parts(member.name)
            with root.parent(parts[:-1]) as parent:
                _own(member, parent, parts[-1])
    finally:
        root.close()
    return total


def _parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if len(name) > _LONGEST_NAME or len(parts) > _DEEPEST:
        raise ImageError("the image has a file whose name is too long")
    if ".." in parts or "\0" in name:
        raise ImageError(f'the image has a file "{name}" that leads out of it')
    return parts


class _Directories:
    """Handles of directories of a layer. The last one is kept: members come directory by directory, and what is a directory
    stays one."""

    def __init__(self, target: Path) -> None:
        self._root = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._last: list[str] = []
        self._handle = os.dup(self._root)

    def close(self) -> None:
        os.close(self._root)
        os.close(self._handle)

    @contextlib.contextmanager
    def parent(self, parts: list[str]) -> Iterator[int]:
        """A handle of a directory in the layer, made if it lacks; never through a link."""
        if parts != self._last:
            found = self._open(parts)
            os.close(self._handle)
            self._handle, self._last = found, parts
        handle = os.dup(self._handle)
        try:
            yield handle
        finally:
            os.close(handle)

    def _open(self, parts: list[str]) -> int:
        handle = os.dup(self._root)
        try:
            for part in parts:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=handle)
                try:
                    below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
                except OSError as problem:
                    raise ImageError(f'the image puts files below "{part}", which is not a directory') from problem
                os.close(handle)
                handle = below
        except BaseException:
            os.close(handle)
            raise
        return handle


def _place(archive: tarfile.TarFile, member: tarfile.TarInfo, root: _Directories, parts: list[str]) -> None:
    name = parts[-1]
    with root.parent(parts[:-1]) as parent:
        if name == OPAQUE:
            _make_opaque(parent)
            return
        if name.startswith(WHITEOUT):
            hidden = name.removeprefix(WHITEOUT)
            if hidden in ("", ".", ".."):
                raise ImageError(f'the image has a file "{member.name}" that removes nothing')
            _clear(parent, hidden)
            os.mknod(hidden, stat.S_IFCHR, os.makedev(0, 0), dir_fd=parent)
            return
        if member.isdir():
            _make_directory(parent, name)
            return
        if member.isdev():
            return  # containers get a /dev of their own
        _clear(parent, name)
        if member.issym():
            os.symlink(member.linkname, name, dir_fd=parent)
        elif member.islnk():
            _link(member, root, parent, name)
            return
        elif member.isfifo():
            os.mkfifo(name, 0o600, dir_fd=parent)
        elif member.isreg():
            _write(archive, member, parent, name)
        else:
            raise ImageError(f'the image has a file "{member.name}" of a kind that is not known')
        _own(member, parent, name)


def _make_directory(parent: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=parent)


def _make_opaque(directory: int) -> None:
    for mark in _OPAQUE_MARKS:
        with contextlib.suppress(OSError):
            os.setxattr(directory, mark, b"y")


def _clear(parent: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return
    except IsADirectoryError as problem:
        raise ImageError(f'the image has "{name}" both as a directory and as a file') from problem


def _link(member: tarfile.TarInfo, root: _Directories, parent: int, name: str) -> None:
    target = _parts(member.linkname)
    if not target:
        raise ImageError(f'the image has a link "{member.name}" to nothing')
    with root.parent(target[:-1]) as folder:
        try:
            os.link(target[-1], name, src_dir_fd=folder, dst_dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError as problem:
            raise ImageError(f'the image has a link "{member.name}" to a file that it lacks') from problem


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, parent: int, name: str) -> None:
    source = archive.extractfile(member)
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent)
    with open(handle, "wb") as file:
        while source is not None and (data := source.read(_CHUNK)):
            file.write(data)


def _own(member: tarfile.TarInfo, parent: int, name: str) -> None:
    if _ROOT:
        os.chown(name, member.uid, member.gid, dir_fd=parent, follow_symlinks=False)
    if not member.issym():
        mode = stat.S_IMODE(member.mode)
        # An ordinary user must keep the right to read and to remove what it unpacked.
        os.chmod(name, mode if _ROOT else mode | (0o700 if member.isdir() else 0o400), dir_fd=parent)
    os.utime(name, (member.mtime, member.mtime), dir_fd=parent, follow_symlinks=False)


def is_whiteout(path: str) -> bool:
    info = os.lstat(path)
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


def is_opaque(path: str) -> bool:
    for mark in _OPAQUE_MARKS:
        with contextlib.suppress(OSError):
            if os.getxattr(path, mark, follow_symlinks=False) == b"y":
                return True
    return False
