"""Archives of which nothing is trusted, as files in memory. Pure.

    tar, tar.gz or zip ──read──> {path: ArchivedFile} ──write──> tar.gz of ours, the same bytes for the same files

A path is relative, without `..`, and is checked before anything is made of it. Sizes and counts have limits, of what is packed and of
what comes out of it. What is not a regular file or a directory is left out, or refused where the caller is `strict`.
"""

from __future__ import annotations

import io
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_MAX_PATH = 1024
_ENTRY_HEAD = 2048
"""Bytes of a tar beside the content, for each file."""


class InvalidFiles(ValueError):
    """The message says which file, and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    data: bytes
    executable: bool = False


FileTree = Mapping[str, ArchivedFile]


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    packed: int
    unpacked: int
    files: int

    @property
    def entries(self) -> int:
        """With directories and what is not taken."""
        return 2 * self.files

    def check(self, files: int, unpacked: int) -> None:
        if files > self.files or unpacked > self.unpacked:
            raise InvalidFiles(f"the archive has more than {self.files} files or {self.unpacked} bytes")


class _Member(tarfile.TarInfo):
    """A header with a negative size leads tarfile back to itself, for ever."""

    def _block(self, count: int) -> int:
        if count < 0:
            raise tarfile.ReadError("a file has a negative size")
        return int(super()._block(count))  # type: ignore[misc]


def checked_path(path: str, top: str = "the archive's directory") -> str:
    """The path, if it stays below the directory that it is relative to; raises InvalidFiles."""
    parts = path.removeprefix("./").split("/")
    if not path or path.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise InvalidFiles(f"{path!r} is not a path below {top}")
    if any(ord(char) < 32 or ord(char) == 127 for char in path) or len(path.encode("utf-8", "replace")) > _MAX_PATH:
        raise InvalidFiles(f"{path[:80]!r}: the name has control characters or is too long")
    if any(0xD800 <= ord(char) <= 0xDFFF for char in path):
        raise InvalidFiles(f"{path[:80]!r}: the name is not UTF-8")
    return "/".join(parts)


def read_archive(packed: bytes, limits: ArchiveLimits, *, strict: bool = False) -> dict[str, ArchivedFile]:
    """The regular files of a tar, compressed or not, or of a zip. `strict`: refuse links, devices, files that occur twice and a file
    below another file, which are else left out or replaced."""
    if len(packed) > limits.packed:
        raise InvalidFiles(f"the archive has {len(packed)} bytes; {limits.packed} are allowed")
    read = _read_zip if packed.startswith((b"PK\x03\x04", b"PK\x05\x06")) else _read_tar
    found: dict[str, ArchivedFile] = {}
    for path, file in read(packed, limits, strict=strict):
        if strict and path in found:
            raise InvalidFiles(f"{path!r} is in the archive twice")
        found[path] = file
    if strict:
        _check_directories(found)
    return found


def _check_directories(files: Iterable[str]) -> None:
    known = set(files)
    for path in known:
        parts = path.split("/")
        for end in range(1, len(parts)):
            if (above := "/".join(parts[:end])) in known:
                raise InvalidFiles(f"{above!r} is a file and a directory")


def _read_tar(packed: bytes, limits: ArchiveLimits, *, strict: bool) -> Iterable[tuple[str, ArchivedFile]]:
    count = total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(_unzipped(packed, limits)), mode="r:", tarinfo=_Member) as archive:
            for number, member in enumerate(archive):
                if number >= limits.entries:
                    raise InvalidFiles(f"the archive has more than {limits.entries} entries")
                if not member.isreg():
                    if strict and not member.isdir():
                        raise InvalidFiles(
                            f"{member.name!r} is a {_tar_type(member)}; only files and directories are taken"
                        )
                    continue
                path = checked_path(member.name)
                count, total = count + 1, total + member.size
                limits.check(count, total)
                content = archive.extractfile(member)
                assert content is not None
                yield path, ArchivedFile(content.read(), bool(member.mode & 0o100))
    except (tarfile.TarError, EOFError, OverflowError) as error:
        raise InvalidFiles(f"the archive cannot be read: {error}") from error


def _tar_type(member: tarfile.TarInfo) -> str:
    if member.issym() or member.islnk():
        return f"link to {member.linkname!r}"
    return "device" if member.isdev() else "special file"


def _read_zip(packed: bytes, limits: ArchiveLimits, *, strict: bool) -> Iterable[tuple[str, ArchivedFile]]:
    count = total = 0
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            entries = archive.infolist()
            if len(entries) > limits.entries:
                raise InvalidFiles(f"the archive has more than {limits.entries} entries")
            for entry in entries:
                mode = entry.external_attr >> 16
                if entry.is_dir():
                    continue
                if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
                    if strict:
                        raise InvalidFiles(
                            f"{entry.filename!r} is a link or a device; only files and directories are taken"
                        )
                    continue
                if entry.flag_bits & 1 or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise InvalidFiles(f"{entry.filename!r} is encrypted or compressed otherwise than by deflate")
                path = checked_path(entry.filename)
                with archive.open(entry) as content:
                    # The size in the head is a claim.
                    data = content.read(limits.unpacked - total + 1)
                count, total = count + 1, total + len(data)
                limits.check(count, total)
                yield path, ArchivedFile(data, bool(mode & 0o100))
    except InvalidFiles:
        raise
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, ArithmeticError, RuntimeError) as error:
        raise InvalidFiles(f"the archive cannot be read: {error}") from error


def _unzipped(packed: bytes, limits: ArchiveLimits) -> bytes:
    """What is in a gzip, up to the limit and the heads of its members; anything else is taken as it is."""
    if not packed.startswith(b"\x1f\x8b"):
        return packed
    unzip = zlib.decompressobj(31)
    try:
        data = unzip.decompress(packed, limits.unpacked + limits.files * _ENTRY_HEAD)
    except zlib.error as error:
        raise InvalidFiles(f"the archive cannot be decompressed: {error}") from error
    if unzip.unconsumed_tail:
        raise InvalidFiles(f"the archive has more than {limits.unpacked} bytes")
    if not unzip.eof:
        raise InvalidFiles("the archive is cut off")
    return data


def write_archive(files: FileTree, limits: ArchiveLimits) -> bytes:
    """A tar.gz. The same files give the same bytes."""
    out = io.BytesIO()
    total = 0
    with tarfile.open(fileobj=out, mode="w:", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(files):
            file = files[path]
            head = tarfile.TarInfo(checked_path(path))
            head.size = len(file.data)
            head.mode = 0o700 if file.executable else 0o600
            total += head.size
            archive.addfile(head, io.BytesIO(file.data))
    if total > limits.unpacked or len(files) > limits.files:
        raise InvalidFiles(f"there are more than {limits.files} files or {limits.unpacked} bytes")
    zip_ = zlib.compressobj(6, zlib.DEFLATED, 31)
    packed = zip_.compress(out.getvalue()) + zip_.flush()
    if len(packed) > limits.packed:
        raise InvalidFiles(f"the files have {len(packed)} bytes, compressed; {limits.packed} are allowed")
    return packed
