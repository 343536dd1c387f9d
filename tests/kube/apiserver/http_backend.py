"""A small HTTP/1.1 server on the loopback, with or without TLS, that answers as a test says and keeps what it was asked."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Asked:
    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes = b""

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key.lower() == name), "")

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name]


def answer(status: int = 200, body: bytes = b"", content_type: str = "text/plain", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Type: {content_type}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass
class Backend:
    respond: Callable[[Asked], bytes | None] = lambda asked: answer(body=b"hello")
    """None: no answer comes."""
    tls: ssl.SSLContext | None = None
    asked: list[Asked] = field(default_factory=list)
    port: int = 0
    _server: asyncio.Server | None = None
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def __aenter__(self) -> Backend:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *problem: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head[:-4].split("\r\n")
            method, target, _ = first.split(" ")
            headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
            asked = Asked(method, target, headers)
            asked.body = await reader.readexactly(int(asked.header("content-length") or 0))
            self.asked.append(asked)
            given = self.respond(asked)
            if given is None:
                await reader.read()
                return
            writer.write(given)
            if given.startswith(b"HTTP/1.1 101"):
                while data := await reader.read(1024):
                    writer.write(data.upper())
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
