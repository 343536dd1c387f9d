"""The seam under the client: send one request, get one answer.

    Client -> Call -> Transport.send -> Reply
                                        ├── body   a whole answer
                                        └── lines  an answer without end (watch, followed log), batch by batch

Whatever carries requests implements the one method `send`; whatever changes them (dry-run, counting, impersonation)
wraps a transport and is one. What the server answers is never an exception here: that is the client's reading of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable


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


class UnreadableResponse(TransportError):
    """The answer came but is not what was asked for: not JSON, or not of the expected shape."""


@dataclass(frozen=True, slots=True)
class TransportRequest:
    """One request. `path` is not percent-encoded, `query` is; `stream` asks for lines instead of a body."""

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
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


class LineSplitter:
    """Cuts arriving chunks into whole lines; the unfinished rest waits for the next chunk."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        if b"\n" not in chunk:
            # Joining only when the line is whole keeps a huge object in small chunks from costing quadratic time.
            if chunk:
                self._parts.append(chunk)
            return []
        if self._parts:
            self._parts.append(chunk)
            chunk = b"".join(self._parts)
            self._parts.clear()
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if rest:
            self._parts.append(rest)
        return [line for line in lines if line]

    def rest(self) -> bytes:
        """What came after the last line end."""
        rest = b"".join(self._parts)
        self._parts.clear()
        return rest

    async def next_lines(self, chunk: Callable[[], Awaitable[bytes]]) -> list[bytes]:
        """At least one line from a source of chunks; nothing when it has ended."""
        while True:
            data = await chunk()
            if not data:
                rest = self.rest()
                return [rest] if rest else []
            lines = self.feed(data)
            if lines:
                return lines
