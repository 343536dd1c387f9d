"""HTTP/1.1 for one client, our own Envoy, on a private socket: one request for each connection.

The general server (`http/server.py`) keeps a whole body before it calls its handler. Here bodies are measured, not used: they
are counted piece by piece and dropped, so that a body of any size costs no memory, and refused before they are read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qsl

MAX_HEAD = 64 << 10
PIECE = 64 << 10
_LINGER_BYTES = 1 << 20
_LINGER_SECONDS = 1.0


class MalformedCall(Exception):
    """What came is not a request that Envoy would send."""


@dataclass(slots=True)
class IncomingCall:
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    reader: asyncio.StreamReader = field(repr=False)
    writer: asyncio.StreamWriter = field(repr=False)
    read: int = 0
    """Bytes of the body that were taken."""

    async def body(self) -> AsyncIterator[bytes]:
        """Piece by piece. MalformedCall when it ends too early."""
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            while size := await self._chunk_size():
                async for piece in self._exactly(size):
                    yield piece
                await self._line()
            while await self._line():  # trailers
                pass
            return
        length = self.headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            raise MalformedCall("the length of the body is no number")
        async for piece in self._exactly(int(length)):
            yield piece

    async def _chunk_size(self) -> int:
        text = (await self._line()).partition(b";")[0].strip()
        try:
            return int(text, 16)
        except ValueError:
            raise MalformedCall("a chunk has no length") from None

    async def _line(self) -> bytes:
        try:
            return (await self.reader.readuntil(b"\r\n"))[:-2]
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise MalformedCall("the body ends too early") from error

    async def _exactly(self, size: int) -> AsyncIterator[bytes]:
        while size > 0:
            piece = await self.reader.read(min(size, PIECE))
            if not piece:
                raise MalformedCall("the body ends too early")
            size -= len(piece)
            self.read += len(piece)
            yield piece

    async def small_body(self, limit: int) -> bytes:
        """The whole of a body that must be small. MalformedCall when it is not."""
        found = bytearray()
        async for piece in self.body():
            found += piece
            if len(found) > limit:
                raise MalformedCall("the body is too long")
        return bytes(found)

    async def answer(self, status: int, body: bytes = b"", kind: str = "application/json") -> None:
        self.begin(status, kind, len(body))
        self.writer.write(body)
        await self.writer.drain()

    def begin(self, status: int, kind: str, length: int | None) -> None:
        """The head of an answer; without a length chunks follow."""
        size = f"Content-Length: {length}" if length is not None else "Transfer-Encoding: chunked"
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {kind}\r\n{size}\r\nConnection: close\r\n\r\n"
        self.writer.write(head.encode())

    async def send_chunk(self, data: bytes) -> None:
        """An empty one ends the answer."""
        self.writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await self.writer.drain()

    async def gone(self) -> None:
        """Until the caller closes its end."""
        while await self.reader.read(PIECE):
            pass

    async def linger(self) -> None:
        """Take a little of what was not read, or the end of the connection would overtake the answer."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                left = _LINGER_BYTES
                while left > 0 and (piece := await self.reader.read(PIECE)):
                    left -= len(piece)


async def read_call(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> IncomingCall:
    """The head of a request."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise MalformedCall("the request ends too early, or its head is too long") from error
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3:
        raise MalformedCall("this is no HTTP request")
    path, _, query = words[1].partition("?")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    return IncomingCall(words[0], path, dict(parse_qsl(query)), headers, reader, writer)
