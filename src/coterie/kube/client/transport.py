"""The seam under the client: send one request, get one answer.

    Client -> Call -> Transport.send -> Reply
                                        ├── body   a whole answer
                                        └── lines  an answer without end (watch, followed log), batch by batch

Whatever carries requests implements the one method `send`; whatever changes them (dry-run, counting, impersonation)
wraps a transport and is one. What the server answers is never an exception here: that is the client's reading of it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

MAX_LINE = 64 << 20
"""Bytes of a line of any server, also of one that is trusted."""
_HEAD = 4096
"""Bytes that are kept of a line that is too long: enough to name the object in it."""
_SKIPPED_LINES = 4
"""How many times its limit a line may have before the connection is closed instead of waiting for its end."""


class TransportError(Exception):
    """The request got no answer that can be used."""


class NotSent(TransportError):
    """The server was not reached; the request was certainly not carried out."""


class Disconnected(TransportError):
    """The connection broke; whether the request was carried out is unknown."""


class ResponseTimeout(TransportError):
    """The time for the request is over; whether it was carried out is unknown."""


class CredentialsError(TransportError):
    """The credentials for the request could not be had: a missing file, a failing credential program."""


class LimitExceeded(TransportError):
    """The server sent more than it may: the answer, or the rest of it, was not read."""


class UnreadableResponse(TransportError):
    """The answer came but is not what was asked for: not JSON, or not of the expected shape."""


@dataclass(frozen=True, slots=True)
class TransportRequest:
    """One request. `path` is not percent-encoded, `query` is; `stream` asks for lines instead of a body."""

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """May hold a token."""
    body: bytes = field(default=b"", repr=False)
    stream: bool = False
    timeout: float | None = None
    """Seconds for a whole answer, or for the silence between two batches of a stream; None: the transport's own."""

    @property
    def mutating(self) -> bool:
        return self.method not in ("GET", "HEAD", "OPTIONS")


class LineStream(Protocol):
    async def read(self) -> list[bytes]:
        """The whole lines that have come since the last call, without line ends; [] at the end of the stream.

        Raises TransportError when the stream broke instead of ending.
        """

    async def close(self) -> None:
        """Stop reading; the server is told. May be called at any time, also twice."""


@runtime_checkable
class ByteStream(Protocol):
    """What a transport's stream may be beside a stream of lines: one that gives the bytes untouched."""

    async def chunk(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class TransportResponse:
    """One answer; header names are lower-case. `lines` is there only for a streamed call that succeeded."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    lines: LineStream | None = None


class Transport(Protocol):
    async def send(self, call: TransportRequest) -> TransportResponse: ...

    async def close(self) -> None: ...


class TruncatedLine(bytes):
    """The beginning of a line that was longer than it may be; the rest was thrown away."""


class LineSplitter:
    """Cuts arriving chunks into whole lines; the unfinished rest waits for the next chunk.

    Of a line above `limit` bytes only the beginning is kept (`TruncatedLine`). A server that goes on with such a line,
    or takes longer than `seconds` for one, is given up: `LimitExceeded`.
    """

    __slots__ = ("_began", "_limit", "_parts", "_seconds", "_size", "_skipped")

    def __init__(self, limit: int = MAX_LINE, seconds: float | None = None) -> None:
        self._limit = limit
        self._seconds = seconds
        self._parts: list[bytes] = []
        self._size = 0
        self._skipped = 0
        """Bytes of the line at hand that were thrown away; then `_parts` holds its beginning only."""
        self._began: float | None = None

    def feed(self, chunk: bytes) -> list[bytes]:
        if b"\n" not in chunk:
            if chunk:
                self._hold(chunk)
            return []
        first, rest = chunk.split(b"\n", 1)
        self._hold(first)
        found = [self._finish()]
        lines = rest.split(b"\n")
        last = lines.pop()
        found += [line if len(line) <= self._limit else TruncatedLine(line[:_HEAD]) for line in lines]
        if last:
            self._hold(last)
        return [line for line in found if line]

    def rest(self) -> bytes:
        """What came after the last line end."""
        return self._finish()

    def check_time(self, now: float) -> None:
        """`now`: of any clock that does not go back; called with each chunk."""
        if self._began is None:
            self._began = now
        elif self._seconds is not None and now - self._began > self._seconds:
            raise LimitExceeded(f"a line was not complete after {self._seconds:g} s")

    async def next_lines(self, chunk: Callable[[], Awaitable[bytes]]) -> list[bytes]:
        """At least one line from a source of chunks; nothing when it has ended."""
        while True:
            data = await chunk()
            if not data:
                rest = self.rest()
                return [rest] if rest else []
            self.check_time(time.monotonic())
            lines = self.feed(data)
            if lines:
                return lines

    def _hold(self, piece: bytes) -> None:
        # Joining only when the line is whole keeps a huge object in small chunks from costing quadratic time.
        self._size += len(piece)
        if self._skipped:
            self._skipped += len(piece)
        else:
            self._parts.append(piece)
            if self._size > self._limit:
                self._skipped = self._size
                self._parts = [b"".join(self._parts)[:_HEAD]]
        if self._skipped > _SKIPPED_LINES * self._limit:
            raise LimitExceeded(f"a line has more than {_SKIPPED_LINES * self._limit} bytes")

    def _finish(self) -> bytes:
        line = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        if self._skipped:
            line = TruncatedLine(line)
        self._parts.clear()
        self._size = self._skipped = 0
        self._began = None
        return line
