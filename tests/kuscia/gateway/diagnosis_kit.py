"""Two domains with real Envoys and diagnostic endpoints, and middleboxes between them that do what middleboxes do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from gateway_kit import Domain, make_inputs, route, running

from coterie.kuscia.gateway.addresses import Protocol, SocketAddress
from coterie.kuscia.gateway.diagnosis.link_probe import PartnerLinkProbe
from coterie.kuscia.gateway.diagnosis.messages import (
    FactsRequest,
    LinkReport,
    PartyFacts,
    ProbePlan,
    decode_mock,
    mock_head,
)
from coterie.kuscia.gateway.diagnosis.reverse_probe import ReverseProbe
from coterie.kuscia.gateway.diagnosis.server import DiagnosticServer
from coterie.kuscia.gateway.model import DiagnosticSockets, RoutePort

PIECE = 16 << 10


@dataclass
class Middlebox:
    """What it does to calls is changed while it runs. 0: nothing."""

    where: SocketAddress
    target: SocketAddress
    buffers: bool = False
    largest_body: int = 0
    idle_seconds: float = 0
    bytes_per_second: int = 0
    passed: int = field(default=0)

    def reset(self) -> None:
        self.buffers, self.largest_body, self.idle_seconds, self.bytes_per_second = False, 0, 0, 0

    async def slow_down(self, size: int) -> None:
        self.passed += size
        if self.bytes_per_second:
            await asyncio.sleep(size / self.bytes_per_second)


@contextlib.asynccontextmanager
async def http_middlebox(box: Middlebox) -> AsyncIterator[Middlebox]:
    """Reads HTTP/1.1, as proxies with a virus scanner or a time limit do."""
    http = aiohttp.ClientSession(auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None))

    async def pieces(request: web.Request) -> AsyncIterator[bytes]:
        async for piece in request.content.iter_chunked(PIECE):
            await box.slow_down(len(piece))
            yield piece

    async def handle(request: web.Request) -> web.StreamResponse:
        if box.largest_body and (request.content_length or 0) > box.largest_body:
            return web.Response(status=413, text="Request Entity Too Large")
        headers = [(key, value) for key, value in request.headers.items() if key.lower() != "transfer-encoding"]
        data = pieces(request) if request.can_read_body else None
        url = f"http://{box.target}{request.raw_path}"
        try:
            async with asyncio.timeout(box.idle_seconds or None):
                answer = await http.request(request.method, url, headers=headers, data=data)
        except TimeoutError:
            return web.Response(status=504, text="Gateway Time-out")
        async with answer:
            kept = [(k, v) for k, v in answer.headers.items() if k.lower() not in ("transfer-encoding", "connection")]
            if box.buffers:
                return web.Response(status=answer.status, headers=kept, body=await answer.read())
            reply = web.StreamResponse(status=answer.status, headers=kept)
            await reply.prepare(request)
            with contextlib.suppress(ConnectionError):
                async for piece in answer.content.iter_any():
                    await box.slow_down(len(piece))
                    await reply.write(piece)
            return reply

    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{rest:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, box.where.host, 0).start()
    box.where = SocketAddress(box.where.host, runner.addresses[0][1])
    try:
        yield box
    finally:
        await runner.cleanup()
        await http.close()


@contextlib.asynccontextmanager
async def tcp_middlebox(box: Middlebox) -> AsyncIterator[Middlebox]:
    """Cannot read what passes, as firewalls in front of TLS: cuts idle connections and slows down."""
    tasks: set[asyncio.Task[Any]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError):
            while True:
                async with asyncio.timeout(box.idle_seconds or None):
                    piece = await reader.read(PIECE)
                if not piece:
                    break
                await box.slow_down(len(piece))
                writer.write(piece)
                await writer.drain()
        writer.transport.abort()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        there, onwards = await asyncio.open_connection(box.target.host, box.target.port)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(pump(reader, onwards), pump(there, writer))
        for each in (writer, onwards):
            each.transport.abort()

    server = await asyncio.start_server(serve, box.where.host, 0)
    box.where = SocketAddress(box.where.host, server.sockets[0].getsockname()[1])
    try:
        yield box
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def kuscia_endpoint(host: str) -> AsyncIterator[SocketAddress]:
    """Answers as Kuscia's diagnose server does."""

    async def healthy(request: web.Request) -> web.Response:
        return web.Response(body=bytes.fromhex("0a0308c801"))

    async def mock(request: web.Request) -> web.StreamResponse:
        asked = decode_mock((await request.read())[:100])
        if not asked.chunked:
            await asyncio.sleep(asked.duration / 1000)
            return web.Response(body=mock_head(asked.size) + bytes(asked.size))
        reply = web.StreamResponse()
        await reply.prepare(request)
        with contextlib.suppress(ConnectionError):
            for _ in range(-(-asked.size // asked.chunk_size)):
                await reply.write(bytes(asked.chunk_size))
                await asyncio.sleep(asked.interval / 1000)
        return reply

    app = web.Application(client_max_size=1 << 30)
    app.router.add_get("/diagnose/v1/network/healthy", healthy)
    app.router.add_post("/diagnose/v1/network/mock", mock)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, host, 0).start()
    try:
        yield SocketAddress(host, runner.addresses[0][1])
    finally:
        await runner.cleanup()


async def no_facts(asked: FactsRequest) -> PartyFacts:
    return PartyFacts("test")


@dataclass
class DiagnosedPair:
    alice: Domain
    bob: Domain
    box: Middlebox
    """On the way from alice to bob."""

    def probe(self, source: str = "alice", destination: str = "bob") -> PartnerLinkProbe:
        domain = self.alice if source == "alice" else self.bob
        return PartnerLinkProbe(Path(domain.inputs.node_socket.host), source, destination)

    async def measure(self, **plan: Any) -> LinkReport:
        given: dict[str, Any] = {"grpc": False, "buffering": False, "body_bytes": 0, "bandwidth_bytes": 0, **plan}
        async with self.probe() as probe:
            return await probe.measure(ProbePlan(**given))


@contextlib.asynccontextmanager
async def diagnosed_pair(root: Path, protocol: Protocol, **servers: Any) -> AsyncIterator[DiagnosedPair]:
    async with contextlib.AsyncExitStack() as stack:
        alice, bob = make_inputs("alice", root, protocol), make_inputs("bob", root, protocol)
        assert bob.external is not None
        box = Middlebox(SocketAddress("127.0.1.9", 0), bob.external)
        between = http_middlebox if protocol is Protocol.NOTLS else tcp_middlebox
        await stack.enter_async_context(between(box))
        made = []
        for each in (alice, bob):
            run = root / each.domain / "run"
            run.mkdir(parents=True, exist_ok=True)
            sockets = DiagnosticSockets(SocketAddress(str(run / "d.sock"), 0), SocketAddress(str(run / "dg.sock"), 0))
            probe = ReverseProbe(each.domain, Path(each.node_socket.host))
            server = DiagnosticServer(
                each.domain, Path(sockets.http.host), Path(sockets.grpc.host), no_facts, probe.measure, **servers
            )
            task = asyncio.create_task(server.run())
            await server.ready.wait()
            stack.push_async_callback(asyncio.wait_for, task, 10)
            stack.callback(server.stop)
            made.append(replace(each, diagnose=sockets))
        alice, bob = made
        there = route("alice", "bob", bob, "alice", host=box.where.host)
        there = replace(there, ports=(RoutePort("http", box.where.port, tls=protocol is not Protocol.NOTLS),))
        alice = replace(alice, routes=(there, route("bob", "alice", alice, "alice")))
        bob = replace(bob, routes=(route("alice", "bob", bob, "bob"), route("bob", "alice", alice, "bob")))
        domains = await stack.enter_async_context(running(alice, bob, root=root))
        yield DiagnosedPair(domains[0], domains[1], box)
