"""The client's half of WebSocket (RFC 6455): messages in and out over a connection that was upgraded."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
from typing import Final

from coterie.kube.client.transport import Disconnected

_KEY_SUFFIX: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
MAX_MESSAGE: Final = 16 * 1024 * 1024


def new_key() -> str:
    return base64.b64encode(secrets.token_bytes(16)).decode()


def accept_key(key: str) -> str:
    """What a server that understood us answers to our key."""
    digest = hashlib.sha1(key.encode("ascii") + _KEY_SUFFIX, usedforsecurity=False).digest()
    return base64.b64encode(digest).decode()


class WebSocket:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self) -> bytes | None:
        """The next message; None when the other side closed. Raises Disconnected when it broke off."""
        parts: list[bytes] = []
        size = 0
        while True:
            try:
                final, opcode, payload = await self._frame()
            except asyncio.IncompleteReadError as problem:
                if problem.partial or parts:
                    raise Disconnected("the stream broke off inside a message") from problem
                return None
            except OSError as problem:
                raise Disconnected(f"the stream broke: {problem.strerror or type(problem).__name__}") from problem
            if opcode == _CLOSE:
                self._write(_CLOSE, payload[:2])
                return None
            if opcode == _PING:
                self._write(_PONG, payload)
            elif opcode in (_TEXT, _BINARY, _CONTINUATION):
                if (opcode == _CONTINUATION) != bool(parts):
                    raise Disconnected("the server does not keep to the WebSocket protocol")
                parts.append(payload)
                size += len(payload)
                if size > MAX_MESSAGE:
                    raise Disconnected("the server sent a message that is too large")
                if final:
                    return b"".join(parts)
            elif opcode != _PONG:
                raise Disconnected(f"the server sent a frame of the unknown kind {opcode}")

    async def send(self, payload: bytes) -> None:
        """Waits while the other side is slow. Raises Disconnected when it is gone."""
        self._write(_BINARY, payload)
        try:
            await self._writer.drain()
        except OSError as problem:
            raise Disconnected(f"the stream broke: {problem.strerror or type(problem).__name__}") from problem

    async def close(self) -> None:
        if not self._writer.is_closing():
            self._write(_CLOSE, (1000).to_bytes(2, "big"))
        self._writer.close()
        # The other side may be gone or not answer; there is nothing left to lose.
        await asyncio.wait({asyncio.ensure_future(self._closed())}, timeout=1)

    async def _closed(self) -> None:
        try:
            await self._writer.wait_closed()
        except OSError:
            return

    async def _frame(self) -> tuple[bool, int, bytes]:
        first, second = await self._reader.readexactly(2)
        length = second & 0x7F
        if length >= 126:
            length = int.from_bytes(await self._reader.readexactly(2 if length == 126 else 8), "big")
        if length > MAX_MESSAGE:
            raise Disconnected("the server sent a frame that is too large")
        if second & 0x80:
            raise Disconnected("the server masks its frames, which only clients do")
        return bool(first & 0x80), first & 0x0F, await self._reader.readexactly(length)

    def _write(self, opcode: int, payload: bytes) -> None:
        length = len(payload)
        if length < 126:
            size = bytes((0x80 | length,))
        elif length < 65536:
            size = b"\xfe" + length.to_bytes(2, "big")
        else:
            size = b"\xff" + length.to_bytes(8, "big")
        mask = secrets.token_bytes(4)
        self._writer.write(bytes((0x80 | opcode,)) + size + mask + masked(payload, mask))


def masked(payload: bytes, mask: bytes) -> bytes:
    """Each byte combined with the mask's; as one large number, because a loop over bytes is slow."""
    length = len(payload)
    spread = (mask * (length // 4 + 1))[:length]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(spread, "big")).to_bytes(length, "big")
