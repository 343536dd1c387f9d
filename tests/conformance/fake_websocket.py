"""As much of a WebSocket server (RFC 6455) as the stand-in agent needs: whole messages, ping, close."""

from __future__ import annotations

import asyncio
import base64
import hashlib

_KEY_SUFFIX = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTINUATION, _BINARY, _CLOSE, _PING, _PONG = 0, 2, 8, 9, 10


def accept_key(key: str) -> str:
    return base64.b64encode(hashlib.sha1(key.encode() + _KEY_SUFFIX).digest()).decode()


class WebSocket:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self) -> bytes | None:
        """The next message; None when the other side closed."""
        message = b""
        while True:
            try:
                final, opcode, payload = await self._frame()
            except asyncio.IncompleteReadError:
                return None
            if opcode == _PING:
                self._send(_PONG, payload)
            elif opcode == _CLOSE:
                return None
            elif opcode != _PONG:
                message += payload
                if final:
                    return message

    async def _frame(self) -> tuple[bool, int, bytes]:
        first, second = await self._reader.readexactly(2)
        length = second & 0x7F
        if length >= 126:
            length = int.from_bytes(await self._reader.readexactly(2 if length == 126 else 8))
        mask = await self._reader.readexactly(4) if second & 0x80 else b"\0\0\0\0"
        payload = await self._reader.readexactly(length)
        spread = (mask * (length // 4 + 1))[:length]
        unmasked = (int.from_bytes(payload) ^ int.from_bytes(spread)).to_bytes(length)
        return bool(first & 0x80), first & 0x0F, unmasked

    def send(self, payload: bytes) -> None:
        self._send(_BINARY, payload)

    def _send(self, opcode: int, payload: bytes) -> None:
        length = len(payload)
        if length < 126:
            size = bytes([length])
        elif length < 65536:
            size = b"\x7e" + length.to_bytes(2)
        else:
            size = b"\x7f" + length.to_bytes(8)
        self._writer.write(bytes([0x80 | opcode]) + size + payload)

    async def close(self) -> None:
        self._send(_CLOSE, (1000).to_bytes(2))
        await self._writer.drain()
