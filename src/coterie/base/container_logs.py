"""Container logs: files of lines `<time> stdout|stderr F|P <text>`, read as `kubectl logs` asks.

    <domain>/var/stdout/pods/<namespace>_<pod>_<uid>/<container>/<run>.log

A rotated file keeps its name with something appended (`0.log.1`, ...; `0.log.1.gz` when its pod is gone); older files are read
before newer ones.
Following looks at the file a few times a second, and only while somebody follows.
"""

from __future__ import annotations

import io
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from coterie.base.clock import Clock
from coterie.base.lazy_import import lazy_import

if TYPE_CHECKING:
    import gzip
else:
    gzip = lazy_import("gzip")

_CHUNK = 64 * 1024
_POLL_SECONDS = 0.1
_MAX_UNPACKED = 1 << 30
_LONGEST_LINE = 1 << 20
"""Bytes after which a line is shown in pieces."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail: int | None = None
    since: str = ""
    """Lines before this time are left out; written so that it sorts among the times in the files."""
    limit: int | None = None
    """Bytes after which the answer ends."""
    stream: str = "All"


def last_runs(directory: Path) -> dict[str, Path]:
    """Of the directory of one pod: container -> file of its last run."""
    out = {}
    for container in sorted(path for path in directory.iterdir() if path.is_dir()):
        files = sorted((file for file in container.glob("*.log") if file.stem.isdecimal()), key=lambda f: int(f.stem))
        if files:
            out[container.name] = files[-1]
    return out


async def read(
    path: Path, options: LogOptions, running: Callable[[], bool], clock: Clock
) -> AsyncGenerator[bytes, None]:
    """The log as it is asked for, in pieces. Ends when everything is read and, if followed, the container has ended."""
    printer = _Printer(options)
    current = _Tail(path)
    try:
        for chunk in _existing(path, current, options.tail):
            if out := printer.take(chunk):
                yield out
            if printer.done:
                return
        while options.follow:
            alive = running()
            data = current.more()
            if data:
                if out := printer.take(data):
                    yield out
                if printer.done:
                    return
            elif not alive:
                return
            else:
                await clock.sleep(_POLL_SECONDS)
    finally:
        current.close()


class _Tail:
    """The file that is being written, across its rotations."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None

    def open(self) -> BinaryIO | None:
        if self._file is None and self._path.exists():
            self._file = self._path.open("rb")
        return self._file

    def more(self) -> bytes:
        file = self.open()
        if file is None:
            return b""
        data = file.read(_CHUNK)
        if not data and self._rotated(file):
            self.close()
            return self.more()
        return data

    def _rotated(self, file: BinaryIO) -> bool:
        try:
            return self._path.stat().st_ino != os.fstat(file.fileno()).st_ino
        except FileNotFoundError:
            return False

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _existing(path: Path, current: _Tail, tail: int | None) -> Iterator[bytes]:
    """What is in the files now; with `tail`, from where that many last lines begin."""
    named = [each for each in path.parent.glob(path.name + ".*") if each.suffix != ".part"]
    older = sorted(named, key=lambda each: each.stat().st_mtime_ns)
    file = current.open()
    if tail is None:
        wanted = [(each, 0) for each in older]
    else:
        start, found = tail_start(file, tail) if file is not None else (0, 0)
        wanted = []
        for each in reversed(older):
            if found >= tail:
                break
            with _opened(each) as old:
                begin, more = tail_start(old, tail - found)
            wanted.insert(0, (each, begin))
            found += more
        if file is not None:
            file.seek(start)
    for each, begin in wanted:
        with _opened(each) as old:
            old.seek(begin)
            while data := old.read(_CHUNK):
                yield data
    while data := current.more():
        yield data


def _opened(path: Path) -> BinaryIO:
    """A file that was moved aside."""
    if path.suffix != ".gz":
        return path.open("rb")
    with gzip.open(path) as packed:
        return io.BytesIO(packed.read(_MAX_UNPACKED))


def tail_start(file: BinaryIO, lines: int) -> tuple[int, int]:
    """Where the last `lines` lines of a file begin, and how many lines there are from there on."""
    end = file.seek(0, os.SEEK_END)
    if lines == 0 or end == 0:
        return end, 0
    position, found = end, 0
    while position > 0:
        size = min(_CHUNK, position)
        position -= size
        file.seek(position)
        block = file.read(size)
        at = len(block)
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            if position + at == end - 1:
                continue  # the end of the last line, not of the one before it
            found += 1
            if found == lines:
                return position + at + 1, found
    return 0, found + 1


class _Printer:
    """From lines of a log file to what the client sees."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options
        self._rest = b""
        self._since = options.since.encode()
        self._stream = options.stream.lower().encode()
        self._left = options.limit
        self._new_line = True
        self.done = False

    def take(self, data: bytes) -> bytes:
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        out = b"".join([self._shown(line) for line in lines])
        if self._left is not None:
            out = out[: self._left]
            self._left -= len(out)
            self.done = self._left <= 0
        return out

    def _shown(self, line: bytes) -> bytes:
        time, _, rest = line.partition(b" ")
        stream, _, rest = rest.partition(b" ")
        tag, _, text = rest.partition(b" ")
        if self._stream != b"all" and stream != self._stream:
            return b""
        if self._since and time < self._since:
            return b""
        prefix = time + b" " if self._options.timestamps and self._new_line else b""
        self._new_line = tag != b"P"
        return prefix + text + (b"" if tag == b"P" else b"\n")


class Lines:
    """What was read, in whole lines."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, data: bytes) -> list[str]:
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            whole, self._rest = [*whole, self._rest], b""
        return [line.decode("utf-8", "replace") for line in whole]

    def end(self) -> list[str]:
        rest, self._rest = self._rest, b""
        return [rest.decode("utf-8", "replace")] if rest else []
