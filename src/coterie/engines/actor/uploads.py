"""Code that comes as an archive: .tar.gz or .zip, unpacked into a fresh directory. Nothing in it is trusted: files and directories below
that directory only, no links, and bounds on their number and size.

Most actors need none of this, so the module is imported when the first archive comes."""

from __future__ import annotations

import io
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from urllib.parse import parse_qs

MOST_UNPACKED = 16 << 20
MOST_FILES = 1000


class ArchiveError(Exception):
    """The archive cannot be used; the message says why."""


def unpack(data: bytes, directory: str) -> None:
    """`directory` is empty."""
    left = MOST_UNPACKED
    seen = 0
    for name, content in _members(data):
        seen += 1
        if seen > MOST_FILES:
            raise ArchiveError(f"the archive has more than {MOST_FILES} files")
        target = _target(directory, name)
        if content is None:
            os.makedirs(target, 0o755, exist_ok=True)
            continue
        left -= len(content)
        if left < 0:
            raise ArchiveError(f"the archive has more than {MOST_UNPACKED >> 20} MiB")
        os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
        try:
            with open(target, "xb") as file:
                file.write(content)
        except FileExistsError as problem:
            raise ArchiveError(f"{name!r} is in the archive twice") from problem


def _target(directory: str, name: str) -> str:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\\" in name or "\0" in name or len(name) > 1000:
        raise ArchiveError(f"{name[:200]!r} would be outside of the code")
    return os.path.join(directory, *parts)


def _members(data: bytes) -> Iterator[tuple[str, bytes | None]]:
    """Name and content; None: a directory."""
    try:
        if data.startswith(b"\x1f\x8b"):
            yield from _tar(data)
        elif data.startswith(b"PK"):
            yield from _zip(data)
        else:
            raise ArchiveError("the code is neither a .tar.gz nor a .zip")
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as problem:
        raise ArchiveError(f"the archive is broken: {problem}") from problem


def _tar(data: bytes) -> Iterator[tuple[str, bytes | None]]:
    # Unpacked as a whole within the bound: the tar format lets a header say how much of it is read at once.
    stream = zlib.decompressobj(wbits=31)
    plain = stream.decompress(data, MOST_UNPACKED + MOST_FILES * 1024)
    if stream.unconsumed_tail:
        raise ArchiveError(f"the archive has more than {MOST_UNPACKED >> 20} MiB")
    if not stream.eof:
        raise ArchiveError("the archive is not complete")
    with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as archive:
        for member in archive:
            if member.isdir():
                yield member.name, None
            elif member.isreg():
                file = archive.extractfile(member)
                yield member.name, file.read() if file is not None else b""
            else:
                raise ArchiveError(f"{member.name[:200]!r} is neither a file nor a directory")


def _zip(data: bytes) -> Iterator[tuple[str, bytes | None]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for member in archive.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            if member.is_dir():
                yield member.filename, None
            elif kind not in (0, stat.S_IFREG):
                raise ArchiveError(f"{member.filename[:200]!r} is neither a file nor a directory")
            else:
                yield member.filename, _content(archive, member)


def _content(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    with archive.open(member) as file:
        content = file.read(MOST_UNPACKED + 1)
    if len(content) > MOST_UNPACKED:
        raise ArchiveError(f"the archive has more than {MOST_UNPACKED >> 20} MiB")
    return content


def remove(directory: str) -> None:
    shutil.rmtree(directory, ignore_errors=True)


def query_parameters(query: str) -> dict[str, str]:
    """ValueError when there are too many."""
    found = parse_qs(query, keep_blank_values=True, max_num_fields=16)
    return {name: values[-1] for name, values in found.items()}
