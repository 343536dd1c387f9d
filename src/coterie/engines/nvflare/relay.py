"""WebSockets of NVFlare passed on, frame by frame, after a look at each; and a few calls of the launchers themselves."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp
from aiohttp import WSMsgType, web

from coterie.engines.launching.http_relay import LIMIT, SOURCE_HEADER, HttpCall, HttpReply
from coterie.engines.nvflare import frames
from coterie.engines.nvflare.frames import BadFrame, F3Frame

PATH = "/f3"
_SECONDS = 120.0
_CALL_LIMIT = 1 << 20

Socket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


@dataclass(frozen=True)
class RelayRules:
    target: str
    """host:port that connections go on to."""
    source: Callable[[str], str]
    """Whose connection it is, by what the gateways say; empty: it is refused."""
    inward: Callable[[F3Frame, str], str]
    """Why a frame of this source does not pass; empty: it does."""
    outward: Callable[[F3Frame, str], str]
    """The same of what comes back to it."""
    partner: str = ""
    """The own name, where the target is a partner's: it is reached through the proxy of the environment where there is one."""
    calls: Callable[[HttpCall], HttpReply] | None = None
    """Other calls than for WebSockets."""


class FrameRelay:
    """Listens in a thread of its own until the process ends."""

    def __init__(self, host: str, port: int, rules: RelayRules) -> None:
        self._rules = rules
        self._reported: set[str] = set()
        self.port = 0
        self._listening = threading.Event()
        self._problem: OSError | None = None
        threading.Thread(target=asyncio.run, args=(self._run(host, port),), name="relay", daemon=True).start()
        self._listening.wait()
        if self._problem is not None:
            raise self._problem

    async def _run(self, host: str, port: int) -> None:
        app = web.Application(client_max_size=_CALL_LIMIT)
        app.router.add_get(PATH, self._socket)
        app.router.add_route("*", "/{rest:.*}", self._call)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            site = web.TCPSite(runner, host or None, port)
            await site.start()
            self.port = int(runner.addresses[0][1])
        except OSError as problem:
            self._problem = problem
            return
        finally:
            self._listening.set()
        await asyncio.Event().wait()

    async def _call(self, request: web.Request) -> web.Response:
        if self._rules.calls is None:
            return web.Response(status=404)
        source = request.headers.get(SOURCE_HEADER, "")
        body = await request.read()
        call = HttpCall(request.method, request.path_qs, source, dict(request.headers), body)
        reply = await asyncio.to_thread(self._rules.calls, call)
        return web.Response(status=reply.status, body=reply.body, headers=reply.headers)

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        source = self._rules.source(request.headers.get(SOURCE_HEADER, ""))
        if not source:
            return web.Response(status=403)
        proxy = os.environ.get("http_proxy") if self._rules.partner else None
        headers = {SOURCE_HEADER: self._rules.partner} if self._rules.partner else {}
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_connect=_SECONDS)) as session:
            url = f"http://{self._rules.target}{PATH}"
            try:
                further = await session.ws_connect(url, proxy=proxy, headers=headers, max_msg_size=LIMIT)
            except (aiohttp.ClientError, OSError) as problem:
                self._report(f"{self._rules.target} cannot be reached: {problem}")
                return web.Response(status=503)
            async with further:
                near = web.WebSocketResponse(max_msg_size=LIMIT, compress=False)
                await near.prepare(request)
                passing = (
                    asyncio.create_task(self._pass(near, further, source, self._rules.inward)),
                    asyncio.create_task(self._pass(further, near, source, self._rules.outward)),
                )
                await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
                for each in passing:
                    each.cancel()
                await asyncio.gather(*passing, return_exceptions=True)
                await near.close()
        return near

    async def _pass(self, giver: Socket, taker: Socket, source: str, look: Callable[[F3Frame, str], str]) -> None:
        """Until one of them closes, or sends what is no frame."""
        async for message in giver:
            if message.type == WSMsgType.ERROR:
                self._report(f"the connection with {source} is closed: {giver.exception()}")
            if message.type != WSMsgType.BINARY:
                return
            try:
                refused = look(frames.read(message.data), source)
            except BadFrame as problem:
                self._report(f"the connection with {source} is closed: {problem}")
                return
            if refused:
                self._report(f"not passed on between {source} and the server: {refused}")
                continue
            try:
                await taker.send_bytes(message.data)
            except (aiohttp.ClientError, OSError):
                return

    def _report(self, sentence: str) -> None:
        """Each once."""
        if sentence not in self._reported and len(self._reported) < 100:
            self._reported.add(sentence)
            print(sentence, file=sys.stderr, flush=True)
