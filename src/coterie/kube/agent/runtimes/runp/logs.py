"""Output of containers, into log files in the format of CRI.

    2026-01-02T03:04:05.678901234Z stdout F a whole line
    2026-01-02T03:04:05.678901234Z stderr P a piece of a line that goes on

A container is never held up by its log. When the disk is full its lines are dropped and counted, and the count is
written down as soon as there is room again.
"""

from __future__ import annotations

import os
import time

PIECE = 16 << 10
"""A line longer than this is written in pieces, as the kubelet's readers expect."""


class LogFile:
    """One log, shared by both streams of a container, rotated to `<path>.1`, `<path>.2`, ..."""

    def __init__(self, path: str, most_bytes: int, most_files: int, most_age: float = 0.0) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._most_files = max(1, most_files)
        self._most_age = most_age
        self._handle = -1
        self._size = 0
        self._opened_at = time.time()
        self.dropped = 0
        self._why = ""
        try:
            self._open()
        except OSError as problem:
            self._why = problem.strerror or ""

    def _open(self) -> None:
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        self._handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        self._size = os.fstat(self._handle).st_size
        self._opened_at = time.time()

    def write(self, data: bytes, lines: int) -> None:
        if self.dropped:
            message = f"[coterie] {self.dropped} lines were lost here: {self._why}\n"
            data = stamp(b"stderr", b"F") + message.encode() + data
        try:
            if self._handle < 0:
                self._open()
            if self._full(len(data)):
                self._rotate()
            written = os.write(self._handle, data)
        except OSError as problem:
            self._lose(lines, problem.strerror or "")
            return
        if written < len(data):
            # Half a line would spoil the format for every reader: take it back.
            os.ftruncate(self._handle, self._size)
            self._lose(lines, "No space left on device")
            return
        self._size += written
        self.dropped = 0

    def _lose(self, lines: int, why: str) -> None:
        self.dropped += lines
        self._why = why

    def _full(self, more: int) -> bool:
        if not self._size:
            return False
        if self._most_bytes and self._size + more > self._most_bytes:
            return True
        return bool(self._most_age) and time.time() - self._opened_at > self._most_age

    def _rotate(self) -> None:
        for number in range(self._most_files - 1, 0, -1):
            older = f"{self._path}.{number - 1}" if number > 1 else self._path
            try:
                os.replace(older, f"{self._path}.{number}")
            except FileNotFoundError:
                continue
        if self._most_files == 1:
            os.unlink(self._path)
        os.close(self._handle)
        self._handle = -1
        self._open()

    def close(self) -> None:
        if self.dropped:
            self.write(b"", 0)
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def stamp(stream: bytes, tag: bytes) -> bytes:
    now = time.time_ns()
    seconds, nanos = divmod(now, 1_000_000_000)
    return b"%s.%09dZ %s %s " % (time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)).encode(), nanos, stream, tag)


class LogStream:
    """stdout or stderr of one container: bytes in, dated lines out."""

    def __init__(self, name: str, file: LogFile) -> None:
        self._name = name.encode()
        self._file = file
        self._rest = b""

    def feed(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        whole, newline, self._rest = data.rpartition(b"\n")
        if newline:
            self._write_lines(whole)
        while len(self._rest) >= PIECE:
            piece, self._rest = self._rest[:PIECE], self._rest[PIECE:]
            self._file.write(stamp(self._name, b"P") + piece + b"\n", 1)

    def _write_lines(self, whole: bytes) -> None:
        head = stamp(self._name, b"F")
        if _all_short(whole):
            # All lines that came at once bear one date, so dating them is one replacement.
            self._file.write(head + whole.replace(b"\n", b"\n" + head) + b"\n", whole.count(b"\n") + 1)
            return
        partial = stamp(self._name, b"P")
        out = []
        lines = whole.split(b"\n")
        for line in lines:
            while len(line) > PIECE:
                out.append(partial + line[:PIECE])
                line = line[PIECE:]
            out.append(head + line)
        self._file.write(b"\n".join(out) + b"\n", len(lines))

    def end(self) -> None:
        """A last line without its end is written as a piece: readers then add no newline that was never there."""
        if self._rest:
            self._file.write(stamp(self._name, b"P") + self._rest + b"\n", 1)
            self._rest = b""


def _all_short(whole: bytes) -> bool:
    """Whether no line is longer than a piece: looked up in steps, not line by line."""
    at = 0
    while len(whole) - at > PIECE:
        at = whole.rfind(b"\n", at, at + PIECE + 1) + 1
        if not at:
            return False
    return True
