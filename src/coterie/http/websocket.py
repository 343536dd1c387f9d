"""WebSocket (RFC 6455), client and server in one: frames, fragmented messages, ping and close, bounded sizes.

The roles differ in two points only: a client masks its frames, and each side insists on what the other must do.
A violation closes the connection with the status code that RFC 6455 names for it and raises ProtocolError.
Text messages are handed over as bytes. The one extension is permessage-deflate (RFC 7692) in its form without memory of earlier
messages: a server that wants it asks `deflate_answer` what to answer to a client's offer.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import zlib
from typing import Final, NamedTuple, Protocol

from coterie.http.errors import ProtocolError

CLIENT_MESSAGE_LIMIT: Final = 4 * 1024 * 1024
"""Bytes of a message that a server accepts."""
SERVER_MESSAGE_LIMIT: Final = 16 * 1024 * 1024
"""Bytes of a message that a client accepts."""
_KEY_SUFFIX: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
_MAX_CONTROL: Final = 125
_MASK_CHUNK: Final = 32 * 1024
_COMPRESSED: Final = 0x40
_LEAST_COMPRESSED: Final = 512
"""Bytes below which a message does not become enough smaller to be worth it."""
_LEVEL: Final = 5
_TAIL: Final = b"\x00\x00\xff\xff"
"""Ends each compressed message and is not sent (RFC 7692, 7.2.1)."""
_DEFLATE: Final = "permessage-deflate"
_NORMAL, _PROTOCOL_VIOLATION, _BAD_DATA, _TOO_BIG = 1000, 1002, 1007, 1009


def new_key() -> str:
    return base64.b64encode(secrets.token_bytes(16)).decode()


def accept_key(key: str) -> str:
    """`Sec-WebSocket-Accept` for a client's key."""
    digest = hashlib.sha1(key.encode("latin-1") + _KEY_SUFFIX, usedforsecurity=False).digest()
    return base64.b64encode(digest).decode()


def deflate_answer(offers: str) -> str:
    """`Sec-WebSocket-Extensions` for what a client offers; empty: without compression."""
    for offer in offers.split(","):
        name, *params = (part.strip().lower() for part in offer.split(";"))
        if name == _DEFLATE and not any(each.startswith("server_max_window_bits") for each in params):
            return f"{_DEFLATE}; server_no_context_takeover; client_no_context_takeover"
    return ""


class WebSocketTransport(Protocol):
    """What carries the frames after the upgrade."""

    async def read(self) -> bytes:
        """The next bytes; empty when the other side is gone."""

    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None: ...


class Frame(NamedTuple):
    final: bool
    opcode: int
    payload: bytes
    compressed: bool = False


class _Violation(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class FrameDecoder:
    """Bytes in, frames out. `masked` says whether the other side must mask its frames, `deflate` whether it may compress."""

    def __init__(self, *, masked: bool, limit: int, deflate: bool = False) -> None:
        self._masked = masked
        self._reserved = 0x30 if deflate else 0x70
        self._limit = limit
        self._buffer = bytearray()

    @property
    def empty(self) -> bool:
        return not self._buffer

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next_frame(self) -> Frame | None:
        """None when more bytes are needed. A frame that cannot be accepted is refused by its header alone."""
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        first, second = buffer[0], buffer[1]
        opcode, length, start = first & 0x0F, second & 0x7F, 2
        self._check_header(first, second)
        if length > _MAX_CONTROL:
            start = 4 if length == 126 else 10
            if len(buffer) < start:
                return None
            length = int.from_bytes(buffer[2:start], "big")
            if length > self._limit:
                raise _Violation(_TOO_BIG, "a frame is too large")
        mask = b""
        if self._masked:
            mask = bytes(buffer[start : start + 4])
            start += 4
        end = start + length
        if len(buffer) < end:
            return None
        payload = bytes(memoryview(buffer)[start:end])
        del buffer[:end]
        payload = mask_payload(payload, mask) if mask else payload
        return Frame(bool(first & 0x80), opcode, payload, bool(first & _COMPRESSED))

    def _check_header(self, first: int, second: int) -> None:
        opcode = first & 0x0F
        if first & self._reserved or (first & _COMPRESSED and opcode not in (_TEXT, _BINARY)):
            raise _Violation(_PROTOCOL_VIOLATION, "a frame has reserved bits set")
        if opcode not in (_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG):
            raise _Violation(_PROTOCOL_VIOLATION, f"a frame has the unknown opcode {opcode}")
        if bool(second & 0x80) != self._masked:
            problem = "a client must mask its frames" if self._masked else "a server must not mask its frames"
            raise _Violation(_PROTOCOL_VIOLATION, problem)
        if opcode >= _CLOSE and (not first & 0x80 or second & 0x7F > _MAX_CONTROL):
            raise _Violation(_PROTOCOL_VIOLATION, "a control frame is fragmented or too large")


def encode_frame(
    opcode: int, payload: bytes, mask: bytes = b"", *, final: bool = True, compressed: bool = False
) -> bytes:
    length, masked = len(payload), 0x80 if mask else 0
    first = opcode | (0x80 if final else 0) | (_COMPRESSED if compressed else 0)
    if length <= _MAX_CONTROL:
        head = bytes((first, masked | length))
    elif length < 65536:
        head = bytes((first, masked | 126)) + length.to_bytes(2, "big")
    else:
        head = bytes((first, masked | 127)) + length.to_bytes(8, "big")
    return head + mask + mask_payload(payload, mask) if mask else head + payload


def mask_payload(payload: bytes, mask: bytes) -> bytes:
    """XOR with the repeated mask, which also removes it. In large integers: a loop over bytes is slow."""
    if len(payload) > _MASK_CHUNK:
        # A piece that fits into the processor's cache is faster than all at once.
        pieces = (payload[at : at + _MASK_CHUNK] for at in range(0, len(payload), _MASK_CHUNK))
        return b"".join([mask_payload(piece, mask) for piece in pieces])
    length = len(payload)
    spread = (mask * (length // 4 + 1))[:length]
    return (int.from_bytes(payload, "little") ^ int.from_bytes(spread, "little")).to_bytes(length, "little")


class WebSocket:
    """Messages over a connection whose upgrade is done. Closing the connection below is up to its owner."""

    def __init__(
        self, connection: WebSocketTransport, *, client: bool = False, deflate: bool = False, limit: int = 0
    ) -> None:
        """`deflate`: both sides agreed on compression. `limit`: bytes of a message, if not those of the role."""
        self._connection = connection
        self._deflate = deflate
        self._client = client
        self._limit = limit or (SERVER_MESSAGE_LIMIT if client else CLIENT_MESSAGE_LIMIT)
        self._decoder = FrameDecoder(masked=not client, limit=self._limit, deflate=deflate)
        self._closed = False

    async def receive(self) -> bytes | None:
        """The next message; None when the other side has closed. Raises ProtocolError when it violates the protocol
        or breaks off inside a message."""
        try:
            return await self._message()
        except _Violation as problem:
            self.close(problem.code)
            raise ProtocolError(str(problem)) from None

    async def _message(self) -> bytes | None:
        message: bytearray | None = None
        compressed = False
        while (frame := await self._data_frame()) is not None:
            final, opcode, payload, marked = frame
            if (opcode == _CONTINUATION) != (message is not None):
                raise _Violation(_PROTOCOL_VIOLATION, "a continuation without a beginning, or the reverse")
            if message is None:
                compressed = marked
                if final:
                    return self._inflated(payload) if compressed else payload
                message = bytearray(payload)
            else:
                message += payload
            if len(message) > self._limit:
                raise _Violation(_TOO_BIG, "a message is too large")
            if final:
                return self._inflated(bytes(message)) if compressed else bytes(message)
        if message is not None:
            raise ProtocolError("the connection ended inside a message")
        return None

    def _inflated(self, payload: bytes) -> bytes:
        inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            out = inflate.decompress(payload + _TAIL, self._limit + 1)
        except zlib.error:
            raise _Violation(_BAD_DATA, "a message cannot be decompressed") from None
        if len(out) > self._limit:
            raise _Violation(_TOO_BIG, "a message is too large")
        return out

    async def _data_frame(self) -> Frame | None:
        """The next frame that carries data, after answering control frames; None when the other side has closed."""
        while True:
            frame = self._decoder.next_frame()
            if frame is None:
                data = await self._connection.read()
                if not data:
                    if not self._decoder.empty:
                        raise ProtocolError("the connection ended inside a frame")
                    return None
                self._decoder.feed(data)
            elif frame.opcode < _CLOSE:
                return frame
            elif frame.opcode == _PING:
                self._send(_PONG, frame.payload)
                await self._connection.drain()  # whoever pings without reading has to wait
            elif frame.opcode == _CLOSE:
                if len(frame.payload) == 1:
                    raise _Violation(_PROTOCOL_VIOLATION, "a close frame has half a status code")
                self._close(frame.payload[:2])
                return None

    def send(self, payload: bytes) -> None:
        self._send(_BINARY, payload)

    def send_text(self, payload: bytes) -> None:
        """UTF-8."""
        self._send(_TEXT, payload)

    async def drain(self) -> None:
        await self._connection.drain()

    def close(self, code: int = _NORMAL) -> None:
        """Send a close frame, once; nothing is sent after it."""
        self._close(code.to_bytes(2, "big"))

    def _close(self, payload: bytes) -> None:
        self._send(_CLOSE, payload)
        self._closed = True

    def _send(self, opcode: int, payload: bytes) -> None:
        if not self._closed:
            mask = secrets.token_bytes(4) if self._client else b""
            compressed = self._deflate and opcode < _CLOSE and len(payload) >= _LEAST_COMPRESSED
            if compressed:
                deflate = zlib.compressobj(_LEVEL, wbits=-zlib.MAX_WBITS)
                payload = (deflate.compress(payload) + deflate.flush(zlib.Z_SYNC_FLUSH)).removesuffix(_TAIL)
            self._connection.write(encode_frame(opcode, payload, mask, compressed=compressed))
