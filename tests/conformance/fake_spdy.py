"""As much of SPDY/3.1 as kubectl uses: the client opens streams, both sides send data on them, nothing is pushed.

Header blocks are compressed with zlib from a preset dictionary. kubectl's library ignores flow control, and so do we.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable

_WORDS = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges "
    "age allow authorization cache-control connection content-base content-encoding content-language "
    "content-length content-location content-md5 content-range content-type date etag expect expires from "
    "host if-match if-modified-since if-none-match if-range if-unmodified-since last-modified location "
    "max-forwards pragma proxy-authenticate proxy-authorization range referer retry-after server te trailer "
    "transfer-encoding upgrade user-agent vary via warning www-authenticate method get status 200_OK version "
    "HTTP/1.1 url public set-cookie keep-alive origin"
)
_TAIL = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 Non-Authoritative "
    "Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 Not Found500 "
    "Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec "
    "00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,"
    "application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8"
    "charset=iso-8859-1,utf-,*,enq=0."
)
DICTIONARY = b"".join(len(w).to_bytes(4) + w.replace("_", " ").encode() for w in _WORDS.split()) + _TAIL.encode()

_SYN_STREAM, _SYN_REPLY, _RST_STREAM, _PING = 1, 2, 3, 6
_FIN = 1


class Stream:
    def __init__(self, session: Session, number: int, headers: dict[str, str]) -> None:
        self.headers = headers
        self._session = session
        self._number = number
        self._received: asyncio.Queue[bytes] = asyncio.Queue()

    async def read(self) -> bytes:
        """The next bytes; empty at the end."""
        return await self._received.get()

    def feed(self, data: bytes) -> None:
        self._received.put_nowait(data)

    def write(self, data: bytes) -> None:
        self._session.send_data(self._number, data)

    def close(self) -> None:
        self._session.send_data(self._number, b"", final=True)


class Session:
    """The server's end. `receive` answers bytes of the connection, empty at its end; `send` takes bytes for it."""

    def __init__(self, receive: Callable[[], Awaitable[bytes]], send: Callable[[bytes], None]) -> None:
        self._receive = receive
        self._send = send
        self._streams: dict[int, Stream] = {}
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)
        self._deflate = zlib.compressobj(zdict=DICTIONARY)
        self.opened: asyncio.Queue[Stream | None] = asyncio.Queue()
        """Streams as the client opens them; None when the connection ended."""

    async def run(self) -> None:
        buffer = b""
        while data := await self._receive():
            buffer += data
            while len(buffer) >= 8:
                size = 8 + int.from_bytes(buffer[5:8])
                if len(buffer) < size:
                    break
                self._frame(buffer[:8], buffer[8:size])
                buffer = buffer[size:]
        for stream in self._streams.values():
            stream.feed(b"")
        self.opened.put_nowait(None)

    def _frame(self, head: bytes, payload: bytes) -> None:
        flags = head[4]
        if not head[0] & 0x80:
            stream = self._streams.get(int.from_bytes(head[:4]))
            if stream is not None:
                if payload:
                    stream.feed(payload)
                if flags & _FIN:
                    stream.feed(b"")
            return
        kind = int.from_bytes(head[2:4])
        number = int.from_bytes(payload[:4]) & 0x7FFFFFFF
        if kind == _SYN_STREAM:
            stream = Stream(self, number, self._headers(payload[10:]))
            self._streams[number] = stream
            if flags & _FIN:
                stream.feed(b"")
            none = self._deflate.compress((0).to_bytes(4)) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
            self._control(_SYN_REPLY, payload[:4] + none)
            self.opened.put_nowait(stream)
        elif kind == _PING:
            self._control(_PING, payload)
        elif kind == _RST_STREAM and number in self._streams:
            self._streams.pop(number).feed(b"")

    def _headers(self, block: bytes) -> dict[str, str]:
        data = self._inflate.decompress(block)
        headers, at = {}, 4
        for _ in range(int.from_bytes(data[:4])):
            pair = []
            for _ in range(2):
                size = int.from_bytes(data[at : at + 4])
                pair.append(data[at + 4 : at + 4 + size].decode())
                at += 4 + size
            headers[pair[0]] = pair[1]
        return headers

    def _control(self, kind: int, payload: bytes) -> None:
        self._send(b"\x80\x03" + kind.to_bytes(2) + b"\0" + len(payload).to_bytes(3) + payload)

    def send_data(self, number: int, data: bytes, *, final: bool = False) -> None:
        self._send(number.to_bytes(4) + bytes([_FIN if final else 0]) + len(data).to_bytes(3) + data)
