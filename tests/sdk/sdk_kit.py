"""A server that answers as KusciaAPI does, from a table: path -> answer, or a function of the request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Answer = Any
TOKEN = "t0ken"


@dataclass
class FakeApi:
    url: str = ""
    answers: dict[str, Answer | Callable[[dict[str, Any]], Answer]] = field(default_factory=dict)
    streams: dict[str, list[bytes]] = field(default_factory=dict)
    """The chunks that are sent, one at a time."""
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a caller leaves a stream that has not ended."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Token") != TOKEN:
            return web.Response(status=401)
        body = json.loads(await request.read())
        self.asked.append((request.path, body))
        if request.path in self.streams:
            return await self.stream(request)
        answer = self.answers.get(request.path)
        if answer is None:
            return web.Response(status=404, text="nothing here")
        found = answer(body) if callable(answer) else answer
        return web.json_response({"status": {"code": 0, "message": "success", "details": []}, **found})

    async def stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for chunk in self.streams[request.path]:
            if chunk == b"wait":
                try:
                    await asyncio.sleep(30)
                except asyncio.CancelledError:
                    self.left.set()
                    raise
            await response.write(chunk)
            await asyncio.sleep(0)
        return response


@asynccontextmanager
async def fake_api(**answers: Any) -> AsyncIterator[FakeApi]:
    """`job_query={...}` answers `/api/v1/job/query`."""
    fake = FakeApi(answers={"/api/v1/" + name.replace("_", "/"): value for name, value in answers.items()})
    app = web.Application()
    app.router.add_post("/{path:.*}", fake.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield fake
    finally:
        await runner.cleanup()
