"""Files of a job, as tar archives of which nothing is trusted. Pure.

    tar.gz of a user ──read_archive──> {path: JobFile} ──write_archive──> tar.gz of ours ──split──> parts of ConfigMaps

Only regular files are taken. A path is relative, without `..`, and is checked before anything is made of it. Sizes and counts have
limits, of what is packed and of what comes out of it.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MAX_PACKED = 16 * 1024 * 1024
"""Of an archive that is kept in the API."""
MAX_UNPACKED = 64 * 1024 * 1024
MAX_FILES = 10_000
MAX_MEMBERS = 2 * MAX_FILES
"""With directories and what is not taken."""
PART_SIZE = 512 * 1024
"""Of the archive in one ConfigMap: an object of the API may have 1.5 MiB, and base64 adds a third."""
MAX_PARTS = 48
_MAX_PATH = 1024


class InvalidFiles(ValueError):
    """The message says which file, and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class JobFile:
    data: bytes
    executable: bool = False


FileTree = Mapping[str, JobFile]


class _Member(tarfile.TarInfo):
    """A header with a negative size leads tarfile back to itself, for ever."""

    def _block(self, count: int) -> int:
        if count < 0:
            raise tarfile.ReadError("a file has a negative size")
        return int(super()._block(count))  # type: ignore[misc]


def checked_path(path: str) -> str:
    """The path, if it stays below the directory that it is relative to; raises InvalidFiles."""
    parts = path.removeprefix("./").split("/")
    if not path or path.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise InvalidFiles(f"{path!r} is not a path below the job's directory")
    if any(ord(char) < 32 or ord(char) == 127 for char in path) or len(path.encode()) > _MAX_PATH:
        raise InvalidFiles(f"{path[:80]!r}: the name has control characters or is too long")
    return "/".join(parts)


def joined(directory: str, name: str) -> str:
    """`name` below `directory`, which may be empty."""
    directory = directory.strip("/")
    return checked_path(f"{directory}/{name}" if directory and directory != "." else name)


def read_archive(packed: bytes, *, strip_top: bool = False) -> dict[str, JobFile]:
    """The regular files of a tar, compressed or not. Links, devices and directories are left out; `strip_top`: so is the one
    directory that holds everything, if it is so."""
    if len(packed) > MAX_PACKED:
        raise InvalidFiles(f"the archive has {len(packed)} bytes; {MAX_PACKED} are allowed")
    found: dict[str, JobFile] = {}
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(_unzipped(packed)), mode="r:", tarinfo=_Member) as archive:
            for number, member in enumerate(archive):
                if number >= MAX_MEMBERS:
                    raise InvalidFiles(f"the archive has more than {MAX_MEMBERS} entries")
                if not member.isreg():
                    continue
                path = checked_path(member.name)
                total += member.size
                if len(found) >= MAX_FILES or total > MAX_UNPACKED:
                    raise InvalidFiles(f"the archive has more than {MAX_FILES} files or {MAX_UNPACKED} bytes")
                content = archive.extractfile(member)
                assert content is not None
                found[path] = JobFile(content.read(), bool(member.mode & 0o100))
    except (tarfile.TarError, EOFError, OverflowError) as error:
        raise InvalidFiles(f"the archive cannot be read: {error}") from error
    return _without_top(found) if strip_top else found


def _unzipped(packed: bytes) -> bytes:
    """What is in a gzip, at most MAX_UNPACKED and the heads of its members; anything else is taken as it is."""
    if not packed.startswith(b"\x1f\x8b"):
        return packed
    limit = MAX_UNPACKED + MAX_FILES * 2048
    unzip = zlib.decompressobj(31)
    try:
        data = unzip.decompress(packed, limit)
    except zlib.error as error:
        raise InvalidFiles(f"the archive cannot be decompressed: {error}") from error
    if unzip.unconsumed_tail:
        raise InvalidFiles(f"the archive has more than {MAX_UNPACKED} bytes")
    if not unzip.eof:
        raise InvalidFiles("the archive is cut off")
    return data


def _without_top(files: dict[str, JobFile]) -> dict[str, JobFile]:
    tops = {path.partition("/")[0] for path in files}
    if len(tops) != 1 or not all("/" in path for path in files):
        return files
    return {path.partition("/")[2]: file for path, file in files.items()}


def write_archive(files: FileTree) -> bytes:
    """The same files give the same bytes."""
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
    if total > MAX_UNPACKED or len(files) > MAX_FILES:
        raise InvalidFiles(f"the job has more than {MAX_FILES} files or {MAX_UNPACKED} bytes")
    zip_ = zlib.compressobj(6, zlib.DEFLATED, 31)
    packed = zip_.compress(out.getvalue()) + zip_.flush()
    if len(packed) > MAX_PACKED:
        raise InvalidFiles(f"the files have {len(packed)} bytes, compressed; {MAX_PACKED} are allowed")
    return packed


def split(data: bytes) -> list[bytes]:
    return [data[start : start + PART_SIZE] for start in range(0, len(data), PART_SIZE)] or [b""]


def join(parts: Iterable[bytes], sha256: str) -> bytes:
    data = b"".join(parts)
    if digest(data) != sha256:
        raise InvalidFiles("the uploaded parts do not have the sha256 that the job names")
    return data


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
