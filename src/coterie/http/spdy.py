"""SPDY/3.1 as Kubernetes uses it: the client opens streams, both sides send data on them.

Header blocks are compressed with zlib from a preset dictionary. The clients' library sends no WINDOW_UPDATE frames and
heeds none, so flow control is left to the connection below.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from typing import Final

from coterie.http.errors import ProtocolError

_WORDS: Final = """
    options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age
    allow authorization cache-control connection content-base content-encoding content-language content-length
    content-location content-md5 content-range content-type date etag expect expires from host if-match
    if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma
    proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding
    upgrade user-agent vary via warning www-authenticate method get status 200_OK version HTTP/1.1 url public
    set-cookie keep-alive origin
""".split()  # noqa: SIM905 - a table of words reads better than a list of strings
_TAIL: Final = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 Non-Authoritative "
    "Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 Not Found500 "
    "Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec "
    "00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,"
    "application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8"
    "charset=iso-8859-1,utf-,*,enq=0."
)
DICTIONARY: Final = (
    b"".join(len(word).to_bytes(4, "big") + word.replace("_", " ").encode() for word in _WORDS) + _TAIL.encode()
)

_SYN_STREAM, _SYN_REPLY, _RST_STREAM, _PING, _GOAWAY = 1, 2, 3, 6, 7
_FIN: Final = 1
_MAX_FRAME: Final = 1024 * 1024
_MAX_HEADERS: Final = 64 * 1024
_MAX_STREAMS: Final = 1024
_CHUNK: Final = 64 * 1024


class SpdyStream:
    def __init__(self, session: SpdySession, number: int, headers: dict[str, str]) -> None:
        self.headers = headers
        self._session = session
        self._number = number
        self._received: asyncio.Queue[bytes] = asyncio.Queue()
        self._closed = False

    async def read(self) -> bytes:
        """The next bytes; empty at the end."""
        return await self._received.get()

    def feed(self, data: bytes) -> None:
        self._received.put_nowait(data)

    def write(self, data: bytes) -> None:
        for start in range(0, len(data), _CHUNK):
            self._session.send_data(self._number, data[start : start + _CHUNK])

    async def drain(self) -> None:
        await self._session.drain()

    def close(self) -> None:
        """We say no more on this stream; the client may."""
        if not self._closed:
            self._closed = True
            self._session.send_data(self._number, b"", final=True)

    def forget(self) -> None:
        self._session.forget(self._number)


class SpdySession:
    """`receive` answers bytes of the connection, empty at its end; `send` takes bytes for it."""

    def __init__(
        self,
        receive: Callable[[], Awaitable[bytes]],
        send: Callable[[bytes], None],
        drain: Callable[[], Awaitable[None]],
    ) -> None:
        self._receive = receive
        self._send = send
        self.drain = drain
        self._streams: dict[int, SpdyStream] = {}
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)
        self._deflate = zlib.compressobj(zdict=DICTIONARY)
        self.opened: asyncio.Queue[SpdyStream | None] = asyncio.Queue()
        """Streams as the client opens them; None when the connection ended."""

    async def run(self) -> None:
        """Read frames until the connection ends."""
        buffer = bytearray()
        try:
            while data := await self._receive():
                buffer += data
                while len(buffer) >= 8:
                    size = 8 + int.from_bytes(buffer[5:8], "big")
                    if size > _MAX_FRAME:
                        raise ProtocolError("a SPDY frame is too large")
                    if len(buffer) < size:
                        break
                    head, payload = bytes(buffer[:8]), bytes(buffer[8:size])
                    del buffer[:size]
                    if not self._frame(head, payload):
                        return
        except zlib.error as problem:
            raise ProtocolError("a SPDY header block cannot be read") from problem
        finally:
            for stream in self._streams.values():
                stream.feed(b"")
            self.opened.put_nowait(None)

    def _frame(self, head: bytes, payload: bytes) -> bool:
        """Take one frame; False when the client says goodbye."""
        flags = head[4]
        if not head[0] & 0x80:
            stream = self._streams.get(int.from_bytes(head[:4], "big"))
            if stream is not None:
                if payload:
                    stream.feed(payload)
                if flags & _FIN:
                    stream.feed(b"")
            return True
        kind = int.from_bytes(head[2:4], "big")
        number = int.from_bytes(payload[:4], "big") & 0x7FFFFFFF
        if kind == _SYN_STREAM:
            self._open(number, flags, payload)
        elif kind == _PING:
            self._control(_PING, payload)
        elif kind == _RST_STREAM and number in self._streams:
            self._streams.pop(number).feed(b"")
        return kind != _GOAWAY

    def _open(self, number: int, flags: int, payload: bytes) -> None:
        headers = self._headers(payload[10:])
        if len(self._streams) >= _MAX_STREAMS:
            raise ProtocolError("too many streams are open")
        stream = SpdyStream(self, number, headers)
        self._streams[number] = stream
        if flags & _FIN:
            stream.feed(b"")
        none = self._deflate.compress((0).to_bytes(4, "big")) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        self._control(_SYN_REPLY, payload[:4] + none)
        self.opened.put_nowait(stream)

    def _headers(self, block: bytes) -> dict[str, str]:
        data = self._inflate.decompress(block, _MAX_HEADERS)
        if self._inflate.unconsumed_tail:
            raise ProtocolError("a SPDY header block is too large")
        headers: dict[str, str] = {}
        at = 4
        for _ in range(int.from_bytes(data[:4], "big")):
            pair = []
            for _ in range(2):
                size = int.from_bytes(data[at : at + 4], "big")
                if at + 4 + size > len(data):
                    raise ProtocolError("a SPDY header block is cut short")
                pair.append(data[at + 4 : at + 4 + size].decode("utf-8", "replace"))
                at += 4 + size
            headers[pair[0].lower()] = pair[1]
        return headers

    def _control(self, kind: int, payload: bytes) -> None:
        self._send(b"\x80\x03" + kind.to_bytes(2, "big") + b"\0" + len(payload).to_bytes(3, "big") + payload)

    def send_data(self, number: int, data: bytes, *, final: bool = False) -> None:
        self._send(number.to_bytes(4, "big") + bytes((_FIN if final else 0,)) + len(data).to_bytes(3, "big") + data)

    def forget(self, number: int) -> None:
        self._streams.pop(number, None)


class SpdyClient(SpdySession):
    """The client's half: it opens the streams."""

    _next = 1

    def open_stream(self, headers: dict[str, str]) -> SpdyStream:
        number, self._next = self._next, self._next + 2
        stream = self._streams[number] = SpdyStream(self, number, headers)
        pairs = [text.encode() for pair in headers.items() for text in pair]
        block = len(headers).to_bytes(4, "big") + b"".join(len(text).to_bytes(4, "big") + text for text in pairs)
        packed = self._deflate.compress(block) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        self._control(_SYN_STREAM, number.to_bytes(4, "big") + bytes(6) + packed)
        return stream
