"""Domains whose routes are encrypted, with the child process beside each Envoy, and a wire that listens or meddles."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from gateway_kit import HOSTS, Domain, make_inputs, route, running, streaming_echo

from coterie.base.tasks import TaskOwner
from coterie.kuscia.gateway.addresses import Protocol, SocketAddress
from coterie.kuscia.gateway.crypt.keys import keys_of
from coterie.kuscia.gateway.crypt.process import BodyEncryptionProcess, CryptSettings
from coterie.kuscia.gateway.model import DomainService, RoutePort, ServiceProtocol, SnapshotInputs

MARKER = b"the-marker-that-must-not-be-seen"
ENCRYPTED: dict[str, Any] = {"body_encryption": "AES", "revisions": (1,)}


@dataclass
class Wire:
    """Stands between two gateways: notes what passes, and changes what comes back or goes on as it is told."""

    target: SocketAddress
    address: SocketAddress = field(init=False)
    seen: bytearray = field(default_factory=bytearray)
    there: Callable[[bytes], bytes] = lambda data: data
    back: Callable[[bytes], bytes] = lambda data: data

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            far_reader, far_writer = await asyncio.open_connection(self.target.host, self.target.port)
            await asyncio.gather(
                self._pump(reader, far_writer, lambda data: self.there(data)),
                self._pump(far_reader, writer, lambda data: self.back(data)),
            )

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, change: Callable[[bytes], bytes]
    ) -> None:
        try:
            while data := await reader.read(1 << 16):
                if len(self.seen) < 8 << 20:
                    self.seen += data
                writer.write(change(data))
                await writer.drain()
        finally:
            writer.close()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Wire]:
        owner = TaskOwner("wire")

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            owner.start("connection", self._serve(reader, writer))

        server = await asyncio.start_server(accept, self.target.host, 0)
        self.address = SocketAddress(self.target.host, server.sockets[0].getsockname()[1])
        try:
            yield self
        finally:
            server.close()
            await owner.close()


@contextlib.asynccontextmanager
async def mirror(host: str) -> AsyncIterator[SocketAddress]:
    """HTTP/1.1: gives the body back, with the status and the coding that the query asks for; `/ws` is a web socket."""

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.path == "/ws":
            stream = web.WebSocketResponse()
            await stream.prepare(request)
            async for message in stream:
                await stream.send_bytes(message.data)
            return stream
        headers = {"x-names": ",".join(sorted(key.lower() for key in request.headers))}
        headers |= {"content-encoding": coding} if (coding := request.query.get("coding")) else {}
        if "whole" in request.query:  # with Content-Length, as most services answer
            return web.Response(body=await request.read() or MARKER, headers=headers)
        reply = web.StreamResponse(status=int(request.query.get("status", "200")), headers=headers)
        await reply.prepare(request)
        async for piece in request.content.iter_any():
            await reply.write(piece)
        return reply

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, host, 0).start()
    try:
        yield SocketAddress(host, runner.addresses[0][1])
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def encrypting(*inputs: SnapshotInputs, root: Path) -> AsyncIterator[dict[str, BodyEncryptionProcess]]:
    """The child process of each domain, with its keys."""
    children = {
        each.domain: BodyEncryptionProcess(
            CryptSettings(each.domain, root / each.domain / "run", root / each.domain / "logs")
        )
        for each in inputs
    }
    tasks = [asyncio.create_task(each.run()) for each in children.values()]
    try:
        for each in inputs:
            await children[each.domain].ready.wait()
            await children[each.domain].update(keys_of(each))
        yield children
    finally:
        for child in children.values():
            child.stop()
        await asyncio.gather(*tasks)


def with_crypt(inputs: SnapshotInputs, root: Path, **changes: Any) -> SnapshotInputs:
    return replace(inputs, crypt=root / inputs.domain / "run" / "crypt.sock", **changes)


@dataclass
class Secretive:
    """Alice calls, bob serves, the wire between them is in plain text and everything on it is seen."""

    alice: Domain
    bob: Domain
    wire: Wire
    children: dict[str, BodyEncryptionProcess]
    http: aiohttp.ClientSession

    async def change(self, domain: Domain, **changes: Any) -> None:
        """As the gateway does it: keys first."""
        await self.children[domain.name].update(keys_of(replace(domain.inputs, **changes)))
        await domain.change(**changes)


@contextlib.asynccontextmanager
async def secretive(root: Path) -> AsyncIterator[Secretive]:
    async with contextlib.AsyncExitStack() as stack:
        plain = await stack.enter_async_context(mirror(HOSTS["bob"]))
        stream = await stack.enter_async_context(streaming_echo(HOSTS["bob"]))
        alice, bob = (make_inputs(name, root, Protocol.NOTLS) for name in ("alice", "bob"))
        assert bob.external is not None
        wire = await stack.enter_async_context(Wire(bob.external).open())
        away = {"host": wire.address.host, "ports": (RoutePort("http", wire.address.port),)}
        alice = with_crypt(alice, root, routes=(route("alice", "bob", bob, "alice", **ENCRYPTED, **away),))
        services = (
            DomainService("mirror", (plain,)),
            DomainService("stream", (stream,), ServiceProtocol.GRPC),
            DomainService("empty"),
            DomainService("closed", (plain,), access=frozenset({"carol"})),
        )
        bob = with_crypt(
            bob,
            root,
            services=services,
            routes=(
                route("alice", "bob", bob, "bob", **ENCRYPTED, headers=(("x-added", "yes"),)),
                route("carol", "bob", bob, "bob"),
            ),
        )
        children = await stack.enter_async_context(encrypting(alice, bob, root=root))
        domains = await stack.enter_async_context(running(alice, bob, root=root))
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)))
        yield Secretive(domains[0], domains[1], wire, children, http)
