"""The streams of a remote command (stdin, stdout, stderr, error, resize), whatever carries them.

WebSocket: the first byte of a message names the channel; in v5, 255 followed by a channel closes it.
SPDY:      one stream for each channel, named by its `streamtype` header.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

import orjson

from coterie.http.spdy import SpdySession, SpdyStream
from coterie.http.upgraded_connection import UpgradedConnection
from coterie.http.websocket import WebSocket

_NUMBERS = {"stdin": 0, "stdout": 1, "stderr": 2, "error": 3, "resize": 4}
_CLOSE = 255
WEBSOCKET_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io", "v3.channel.k8s.io", "channel.k8s.io")
SPDY_PROTOCOLS = ("v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io")
_OPEN_TIMEOUT = 30.0


class Channels(Protocol):
    async def read_stdin(self) -> bytes:
        """Bytes of standard input; empty at its end."""

    async def read_resize(self) -> tuple[int, int] | None:
        """The next size of the terminal, (columns, rows); None when there will be none."""

    async def write(self, name: str, data: bytes) -> None: ...

    async def finish(self, status: Mapping[str, Any]) -> None:
        """Tell how it ended and close."""


def exit_status(code: int) -> dict[str, Any]:
    """How a command ended, as the error channel tells it."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def failure_status(message: str) -> dict[str, Any]:
    """The command could not be run at all."""
    return {"metadata": {}, "status": "Failure", "message": message, "reason": "InternalError", "code": 500}


class WebSocketChannels:
    def __init__(self, socket: WebSocket, protocol: str) -> None:
        self._socket = socket
        self._sends_status = protocol in ("v4.channel.k8s.io", "v5.channel.k8s.io")
        self._stdin: asyncio.Queue[bytes] = asyncio.Queue(maxsize=64)
        self._sizes: asyncio.Queue[tuple[int, int] | None] = asyncio.Queue()

    async def run(self) -> None:
        """Sort what the client sends until it leaves."""
        try:
            while (message := await self._socket.receive()) is not None:
                if not message:
                    continue
                channel, data = message[0], message[1:]
                if channel == _NUMBERS["stdin"] and data:
                    await self._stdin.put(data)
                elif channel == _NUMBERS["resize"]:
                    size = read_size(data)
                    if size is not None:
                        self._sizes.put_nowait(size)
                elif channel == _CLOSE and data[:1] == b"\0":
                    await self._stdin.put(b"")
        finally:
            self._sizes.put_nowait(None)
            await self._stdin.put(b"")

    async def read_stdin(self) -> bytes:
        return await self._stdin.get()

    async def read_resize(self) -> tuple[int, int] | None:
        return await self._sizes.get()

    async def write(self, name: str, data: bytes) -> None:
        self._socket.send(bytes((_NUMBERS[name],)) + data)
        await self._socket.drain()

    async def finish(self, status: Mapping[str, Any]) -> None:
        await self.write("error", _encode_status(status, self._sends_status))
        self._socket.close()


class SpdyChannels:
    def __init__(self, streams: Mapping[str, SpdyStream], protocol: str) -> None:
        self._streams = streams
        self._sends_status = protocol == "v4.channel.k8s.io"
        self._resize = b""

    async def read_stdin(self) -> bytes:
        stream = self._streams.get("stdin")
        return await stream.read() if stream is not None else b""

    async def read_resize(self) -> tuple[int, int] | None:
        stream = self._streams.get("resize")
        if stream is None:
            return None
        while True:
            line, separator, rest = self._resize.partition(b"}")
            if separator:
                self._resize = rest
                size = read_size(line + b"}")
                if size is not None:
                    return size
                continue
            data = await stream.read()
            if not data:
                return None
            self._resize += data

    async def write(self, name: str, data: bytes) -> None:
        stream = self._streams.get(name)
        if stream is not None:
            stream.write(data)
            await stream.drain()

    async def finish(self, status: Mapping[str, Any]) -> None:
        await self.write("error", _encode_status(status, self._sends_status))
        for stream in self._streams.values():
            stream.close()


async def gather_streams(session: SpdySession, wanted: set[str]) -> dict[str, SpdyStream]:
    """The streams of a remote command as the client opens them; raises when it leaves or dawdles."""
    streams: dict[str, SpdyStream] = {}
    async with asyncio.timeout(_OPEN_TIMEOUT):
        while not wanted <= set(streams):
            stream = await session.opened.get()
            if stream is None:
                raise ConnectionResetError("the client left before it opened all streams")
            streams[stream.headers.get("streamtype", "")] = stream
    return streams


def spdy_over(pipe: UpgradedConnection) -> SpdySession:
    return SpdySession(pipe.read, pipe.write, pipe.drain)


def spdy_over_websocket(socket: WebSocket) -> SpdySession:
    async def receive() -> bytes:
        while (message := await socket.receive()) is not None:
            if message:
                return message
        return b""

    return SpdySession(receive, socket.send, socket.drain)


def read_size(data: bytes) -> tuple[int, int] | None:
    try:
        size = orjson.loads(data)
        columns, rows = size["Width"], size["Height"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
    if isinstance(columns, int) and isinstance(rows, int) and 0 < columns < 65536 and 0 < rows < 65536:
        return columns, rows
    return None


def _encode_status(status: Mapping[str, Any], as_status: bool) -> bytes:
    """Old protocols tell a failure as text and success as silence."""
    if as_status:
        return orjson.dumps(status)
    return b"" if status.get("status") == "Success" else str(status.get("message", "")).encode()
