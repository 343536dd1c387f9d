"""A small HTTPS server for tests of what calls webhooks; each path behaves as its function says."""

from __future__ import annotations

import asyncio
import base64
import inspect
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from coterie.base import pki

Object = dict[str, Any]
Reply = tuple[int, dict[str, str], bytes]
Behaviour = Callable[[Object], Any]
"""The review -> an object (answered as JSON with 200), a Reply, None (the connection is closed), or an awaitable of these."""


class WebhookServer:
    def __init__(self, port: int, ca: bytes) -> None:
        self.port = port
        self.ca = ca
        self.behaviours: dict[str, Behaviour] = {}
        self.reviews: list[tuple[str, Object]] = []
        self.connections = 0

    @property
    def ca_bundle(self) -> str:
        return base64.b64encode(self.ca).decode()

    def on(self, path: str, behaviour: Behaviour) -> Object:
        """Its clientConfig."""
        self.behaviours[path] = behaviour
        return {"url": f"https://127.0.0.1:{self.port}{path}", "caBundle": self.ca_bundle}

    def requests(self, path: str) -> list[Object]:
        return [review["request"] for asked, review in self.reviews if asked == path]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self._answer(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ")[1].partition("?")[0]
        lines = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
        review = orjson.loads(await reader.readexactly(int(lines["content-length"])))
        self.reviews.append((path, review))
        answer = self.behaviours[path](review)
        if inspect.isawaitable(answer):
            answer = await answer
        if answer is None:
            return
        status, headers, body = answer if isinstance(answer, tuple) else (200, {}, orjson.dumps(answer))
        given = {"Content-Length": str(len(body)), "Content-Type": "application/json", **headers}
        text = "".join(f"{name}: {value}\r\n" for name, value in given.items() if value)
        writer.write(f"HTTP/1.1 {status} x\r\n{text}\r\n".encode() + body)
        await writer.drain()
        if "" in headers.values():
            return
        await reader.read()


@asynccontextmanager
async def webhook_server(*names: str) -> AsyncIterator[WebhookServer]:
    """`names`: of its certificate, 127.0.0.1 unless given."""
    now = datetime.now(UTC)
    authority = pki.self_signed_ca("webhooks", pki.new_key(), now=now)
    key = pki.new_key()
    issued = pki.issue_server(authority, "webhook", key.public_key(), names=names or ("127.0.0.1",), now=now)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "pair.pem"
        file.write_bytes(pki.certificate_pem(issued) + pki.key_pem(key))
        context.load_cert_chain(file)
    server = WebhookServer(0, pki.certificate_pem(authority.certificate))
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=context)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()


def hang(_: Object) -> Awaitable[None]:
    return asyncio.sleep(3600)
