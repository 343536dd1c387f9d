"""How to make the tar of an unpacked layer again, byte by byte: headers and padding are kept, contents are taken from the files.

    R <length>\\n<bytes>                    headers and padding
    F <size> <length of path>\\n<path>      the content of a file of the layer

gzip-compressed, at `<layer>/tar`. A layer's digest is that of its tar, and no tool packs the same files into the same bytes
again; with the record an image keeps its id when it is saved.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from coterie.kube.agent.images.model import ImageError

RECORD = "tar"
_CHUNK = 1 << 20
_MOST_RAW = 64 << 20


class TarRecorder:
    """Is fed with a tar as it is read, and told of each member when its header has been read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._out = gzip.GzipFile(fileobj=file, mode="wb", compresslevel=1, mtime=0)
        self._pending = bytearray()
        self._begin = 0
        """Position in the tar of the first pending byte."""
        self._end = 0
        self._skip_to = 0

    def feed(self, data: bytes) -> None:
        skipped = min(len(data), max(0, self._skip_to - self._end))
        if not self._pending:
            self._begin = self._end + skipped
        self._pending += memoryview(data)[skipped:]
        self._end += len(data)

    def member(self, offset: int, size: int, path: str) -> None:
        """`offset`: of its content in the tar; `size`: of the content that lies in the file `path` now."""
        self._write(offset - self._begin)
        if size:
            name = path.encode("utf-8", "surrogateescape")
            self._out.write(b"F %d %d\n%s" % (size, len(name), name))
            self._skip_to = offset + size
            dropped = min(len(self._pending), size)
            del self._pending[:dropped]
            self._begin = offset + dropped if self._pending else self._skip_to

    def close(self) -> None:
        self._write(len(self._pending))
        self._out.close()

    def _write(self, count: int) -> None:
        if count > 0:
            self._out.write(b"R %d\n" % count)
            self._out.write(memoryview(self._pending)[:count])
            del self._pending[:count]
            self._begin += count


def rebuilt(layer: Path) -> Iterator[bytes]:
    """The tar of an unpacked layer. The caller checks its digest. Raises ImageError or OSError."""
    files = os.open(layer / "fs", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with gzip.open(layer / RECORD, "rb") as record:
            while line := record.readline(64):
                kind, *numbers = line.split()
                if kind == b"R":
                    yield _exactly(record, int(numbers[0]))
                else:
                    yield from _content(files, _exactly(record, int(numbers[1])), int(numbers[0]))
    except (ValueError, IndexError, EOFError) as problem:
        raise ImageError(f"the record of layer {layer.name[:12]} is damaged") from problem
    finally:
        os.close(files)


def _exactly(record: gzip.GzipFile, size: int) -> bytes:
    data = record.read(size) if 0 <= size <= _MOST_RAW else b""
    if len(data) != size:
        raise EOFError
    return data


def _content(root: int, path: bytes, size: int) -> Iterator[bytes]:
    with open(_open(root, os.fsdecode(path)), "rb") as file:
        left = size
        while left and (data := file.read(min(_CHUNK, left))):
            left -= len(data)
            yield data
        if left:
            raise EOFError


def _open(root: int, path: str) -> int:
    """Never through a link."""
    *folders, name = path.split("/")
    handle = os.dup(root)
    try:
        for folder in folders:
            below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
            os.close(handle)
            handle = below
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=handle)
    finally:
        os.close(handle)
