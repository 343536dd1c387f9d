"""The server's half of WebSocket (RFC 6455): messages in and out, ping and close, with bounded sizes."""

from __future__ import annotations

import base64
import hashlib
from typing import Final

from coterie.http.upgraded_connection import Pipe

_KEY_SUFFIX: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
MAX_MESSAGE: Final = 4 * 1024 * 1024


class ProtocolError(ConnectionError):
    """The other side does not keep to the protocol."""


def accept_key(key: str) -> str:
    """`Sec-WebSocket-Accept` for a client's key."""
    digest = hashlib.sha1(key.encode("latin-1") + _KEY_SUFFIX, usedforsecurity=False).digest()
    return base64.b64encode(digest).decode()


class WebSocket:
    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._buffer = bytearray()

    async def receive(self) -> bytes | None:
        """The next message; None when the other side closed or left."""
        message = bytearray()
        started = False
        while True:
            frame = await self._frame()
            if frame is None:
                return None
            final, opcode, payload = frame
            if opcode == _PING:
                self._send(_PONG, payload)
            elif opcode == _CLOSE:
                self._send(_CLOSE, payload[:2])
                return None
            elif opcode in (_TEXT, _BINARY, _CONTINUATION):
                if (opcode == _CONTINUATION) != started:
                    raise ProtocolError("a continuation without a beginning, or the reverse")
                started = True
                message += payload
                if len(message) > MAX_MESSAGE:
                    raise ProtocolError("a message is too large")
                if final:
                    return bytes(message)
            elif opcode != _PONG:
                raise ProtocolError(f"unknown frame {opcode}")

    def send(self, payload: bytes) -> None:
        self._send(_BINARY, payload)

    async def drain(self) -> None:
        await self._pipe.drain()

    def close(self) -> None:
        self._send(_CLOSE, (1000).to_bytes(2, "big"))

    async def _frame(self) -> tuple[bool, int, bytes] | None:
        head = await self._take(2)
        if head is None:
            return None
        length = head[1] & 0x7F
        if length >= 126:
            wide = await self._take(2 if length == 126 else 8)
            if wide is None:
                return None
            length = int.from_bytes(wide, "big")
        if length > MAX_MESSAGE:
            raise ProtocolError("a frame is too large")
        if not head[1] & 0x80:
            raise ProtocolError("a client must mask its frames")
        mask, payload = await self._take(4), await self._take(length)
        if mask is None or payload is None:
            return None
        return bool(head[0] & 0x80), head[0] & 0x0F, _unmasked(payload, mask)

    async def _take(self, count: int) -> bytes | None:
        while len(self._buffer) < count:
            data = await self._pipe.read()
            if not data:
                return None
            self._buffer += data
        out = bytes(self._buffer[:count])
        del self._buffer[:count]
        return out

    def _send(self, opcode: int, payload: bytes) -> None:
        length = len(payload)
        if length < 126:
            size = bytes((length,))
        elif length < 65536:
            size = b"\x7e" + length.to_bytes(2, "big")
        else:
            size = b"\x7f" + length.to_bytes(8, "big")
        self._pipe.write(bytes((0x80 | opcode,)) + size + payload)


def _unmasked(payload: bytes, mask: bytes) -> bytes:
    length = len(payload)
    spread = (mask * (length // 4 + 1))[:length]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(spread, "big")).to_bytes(length, "big")
