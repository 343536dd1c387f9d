"""Files of a job, as tar archives of which nothing is trusted (`base/archives.py`). Pure.

tar.gz of a user ──read_archive──> {path: JobFile} ──write_archive──> tar.gz of ours ──split──> parts of ConfigMaps
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from coterie.base import archives

MAX_PACKED = 16 * 1024 * 1024
"""Of an archive that is kept in the API."""
MAX_UNPACKED = 64 * 1024 * 1024
MAX_FILES = 10_000
PART_SIZE = 512 * 1024
"""Of the archive in one ConfigMap: an object of the API may have 1.5 MiB, and base64 adds a third."""
MAX_PARTS = 48
LIMITS = archives.ArchiveLimits(MAX_PACKED, MAX_UNPACKED, MAX_FILES)

InvalidFiles = archives.InvalidFiles
JobFile = archives.ArchivedFile
FileTree = archives.FileTree


def checked_path(path: str) -> str:
    """The path, if it stays below the job's directory; raises InvalidFiles."""
    return archives.checked_path(path, "the job's directory")


def joined(directory: str, name: str) -> str:
    """`name` below `directory`, which may be empty."""
    directory = directory.strip("/")
    return checked_path(f"{directory}/{name}" if directory and directory != "." else name)


def read_archive(packed: bytes, *, strip_top: bool = False) -> dict[str, JobFile]:
    """The regular files of a tar, compressed or not, or of a zip. Links, devices and directories are left out; `strip_top`: so is the
    one directory that holds everything, if it is so."""
    found = archives.read_archive(packed, LIMITS)
    return _without_top(found) if strip_top else found


def _without_top(files: dict[str, JobFile]) -> dict[str, JobFile]:
    tops = {path.partition("/")[0] for path in files}
    if len(tops) != 1 or not all("/" in path for path in files):
        return files
    return {path.partition("/")[2]: file for path, file in files.items()}


def write_archive(files: FileTree) -> bytes:
    """The same files give the same bytes."""
    return archives.write_archive(files, LIMITS)


def split(data: bytes) -> list[bytes]:
    return [data[start : start + PART_SIZE] for start in range(0, len(data), PART_SIZE)] or [b""]


def join(parts: Iterable[bytes], sha256: str) -> bytes:
    data = b"".join(parts)
    if digest(data) != sha256:
        raise InvalidFiles("the uploaded parts do not have the sha256 that the job names")
    return data


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
