"""Domains with real Envoys on loopback addresses, services that echo, and clients that attack."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import random
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import aiohttp
import h2.config
import h2.connection
import h2.events
from aiohttp import web

from coterie.base import pki
from coterie.base.secret import SecretValue
from coterie.kuscia.gateway.addresses import KeyPair, Protocol, SocketAddress
from coterie.kuscia.gateway.envoy import Envoy, EnvoySettings
from coterie.kuscia.gateway.model import DomainService, Route, RoutePort, ServiceProtocol, SnapshotInputs
from coterie.kuscia.gateway.snapshot import snapshot

HOSTS = {"alice": "127.0.1.1", "bob": "127.0.1.2", "joe": "127.0.1.3", "carol": "127.0.1.4"}


@cache
def certificates() -> Path:
    """One directory of keys for the whole run: making them takes longer than using them."""
    directory = Path(mkdtemp(prefix="coterie-gateway-keys-"))
    atexit.register(shutil.rmtree, directory)
    authorities = {}
    for name in HOSTS:
        authorities[name] = pki.self_signed_ca(name, pki.new_key("ec"), now=datetime.now(UTC))
        pki.save_key(directory / f"{name}.key", authorities[name].key)
        pki.save_certificate(directory / f"{name}.crt", authorities[name].certificate)
    # Carol is a partner, and signs a certificate that carries alice's name.
    key = pki.new_key("ec")
    forged = pki.issue_client(authorities["carol"], "alice", key.public_key(), now=datetime.now(UTC))
    pki.save_key(directory / "forged.key", key)
    pki.save_certificate(directory / "forged.crt", forged)
    return directory


def pem(name: str) -> str:
    return (certificates() / f"{name}.crt").read_text()


def identity(name: str) -> KeyPair:
    return KeyPair(certificates() / f"{name}.crt", certificates() / f"{name}.key")


def client_tls(name: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if name is not None:
        pair = identity(name)
        context.load_cert_chain(pair.certificate, pair.key)
    return context


def free_port(host: str) -> int:
    """None that outgoing connections or engines (20000 and up) are given: somebody might take it before Envoy does."""
    while True:
        port = random.SystemRandom().randrange(11000, 19900)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            return port


def token(source: str, destination: str, revision: int = 1) -> SecretValue:
    return SecretValue(f"{source}-{destination}-{revision}=")


# ---- services ----


@contextlib.asynccontextmanager
async def echo(host: str) -> AsyncIterator[SocketAddress]:
    """HTTP/1.1 and web sockets: says what it got."""

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.path == "/ws":
            stream = web.WebSocketResponse(max_msg_size=0)
            await stream.prepare(request)
            async for message in stream:
                await stream.send_bytes(message.data)
            return stream
        if request.path == "/big":
            reply = web.StreamResponse()
            await reply.prepare(request)
            with contextlib.suppress(ConnectionError):
                for _ in range(int(request.query["mib"])):
                    await reply.write(bytes(1 << 20))
            return reply
        body = await request.read()
        headers = [(key.lower(), value) for key, value in request.headers.items()]
        return web.json_response({"path": request.raw_path, "size": len(body), "headers": headers})

    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{rest:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, host, 0)
    await site.start()
    try:
        yield SocketAddress(host, runner.addresses[0][1])
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def streaming_echo(host: str) -> AsyncIterator[SocketAddress]:
    """HTTP/2 in plain text: sends back each piece as it comes, and trailers at the end, as gRPC does."""
    tasks: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())  # type: ignore[arg-type]
        link = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        link.initiate_connection()
        writer.write(link.data_to_send())
        # Cancelled when the test is over, with streams still open.
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            while data := await reader.read(65536):
                for event in link.receive_data(data):
                    if isinstance(event, h2.events.RequestReceived):
                        said = dict(event.headers).get(b"kuscia-source", b"-")
                        reply = [(":status", "200"), ("content-type", "application/grpc"), ("x-source", said)]
                        link.send_headers(event.stream_id, reply)
                    elif isinstance(event, h2.events.DataReceived):
                        link.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                        if event.data:
                            link.send_data(event.stream_id, event.data)
                    elif isinstance(event, h2.events.StreamEnded):
                        link.send_headers(event.stream_id, [("grpc-status", "0")], end_stream=True)
                writer.write(link.data_to_send())
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, host, 0)
    try:
        yield SocketAddress(host, server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass
class Wire:
    """A relay that keeps a copy of what passes in either direction, and may be cut."""

    where: SocketAddress
    seen: bytearray
    ends: set[asyncio.StreamWriter]

    def cut(self) -> None:
        for end in self.ends:
            end.transport.abort()


@contextlib.asynccontextmanager
async def wire(host: str, target: SocketAddress) -> AsyncIterator[Wire]:
    made = Wire(SocketAddress(host, 0), bytearray(), set())
    tasks: set[asyncio.Task[Any]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                made.seen.extend(data)
                writer.write(data)
                await writer.drain()
        writer.transport.abort()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())  # type: ignore[arg-type]
        try:
            there, onwards = await asyncio.open_connection(target.host, target.port)
        except ConnectionError:
            writer.transport.abort()
            return
        made.ends |= {writer, onwards}
        await asyncio.gather(pump(reader, onwards), pump(there, writer))

    server = await asyncio.start_server(serve, host, 0)
    made.where = SocketAddress(host, server.sockets[0].getsockname()[1])
    try:
        yield made
    finally:
        server.close()
        made.cut()
        await asyncio.gather(*tasks)


class Http2Stream:
    """One HTTP/2 request in plain text whose pieces are sent and read in turn."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.link = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.headers: dict[str, str] = {}
        self.trailers: dict[str, str] = {}
        self.body = b""
        self.ended = False

    @classmethod
    async def open(
        cls, where: SocketAddress, host: str, path: str, *, method: str = "POST", kind: str = ""
    ) -> Http2Stream:
        self = cls(*await asyncio.open_connection(where.host, where.port))
        self.link.initiate_connection()
        headers = [(":method", method), (":scheme", "http"), (":authority", host), (":path", path), ("te", "trailers")]
        self.link.send_headers(1, [*headers, *([("content-type", kind)] if kind else [])], end_stream=method == "GET")
        self._flush()
        return self

    @classmethod
    async def connect(cls, where: SocketAddress, authority: str, headers: dict[str, str]) -> Http2Stream:
        """A CONNECT, in plain text."""
        self = cls(*await asyncio.open_connection(where.host, where.port))
        self.link.initiate_connection()
        self.link.send_headers(1, [(":method", "CONNECT"), (":authority", authority), *headers.items()])
        self._flush()
        return self

    def _flush(self) -> None:
        self.writer.write(self.link.data_to_send())

    def send(self, data: bytes, *, end: bool = False) -> None:
        self.link.send_data(1, data, end_stream=end)
        self._flush()

    async def until(self, size: int | None = None, *, headers: bool = False) -> bytes:
        """Read until so many bytes have come, or the end; or, when only they are asked for, the headers."""
        while not (self.ended or (headers and self.headers)) and (size is None or len(self.body) < size):
            data = await asyncio.wait_for(self.reader.read(65536), 30)
            if not data:
                break
            for event in self.link.receive_data(data):
                if isinstance(event, h2.events.ResponseReceived):
                    self.headers = {key.decode(): value.decode() for key, value in event.headers}
                elif isinstance(event, h2.events.TrailersReceived):
                    self.trailers = {key.decode(): value.decode() for key, value in event.headers}
                elif isinstance(event, h2.events.DataReceived):
                    self.body += event.data
                    self.link.acknowledge_received_data(event.flow_controlled_length, 1)
                elif isinstance(event, (h2.events.StreamEnded, h2.events.StreamReset)):
                    self.ended = True
            self._flush()
        return self.body

    def close(self) -> None:
        self.writer.close()


# ---- domains ----


@dataclass
class Domain:
    name: str
    inputs: SnapshotInputs
    envoy: Envoy
    settings: EnvoySettings

    @property
    def inside(self) -> str:
        return f"http://{self.inputs.internal}"

    @property
    def outside(self) -> str:
        assert self.inputs.external is not None
        scheme = "http" if self.inputs.protocol is Protocol.NOTLS else "https"
        return f"{scheme}://{self.inputs.external}"

    async def change(self, **changes: Any) -> None:
        self.inputs = replace(self.inputs, **changes)
        applied = await self.envoy.apply(snapshot(self.inputs))
        assert applied.accepted, applied

    def log(self, side: str) -> str:
        return (self.settings.logs / f"{side}.log").read_text()


def make_inputs(name: str, root: Path, protocol: Protocol, **more: Any) -> SnapshotInputs:
    host = HOSTS[name]
    given: dict[str, Any] = {
        "internal": SocketAddress(host, free_port(host)),
        "external": SocketAddress(host, free_port(host)),
        "handshake": SocketAddress(str(root / name / "run" / "handshake.sock"), 0),
        "node_socket": SocketAddress(str(root / name / "run" / "gw.sock"), 0),
        "version": "test",
        "protocol": protocol,
        "identity": identity(name),
        **more,
    }
    return SnapshotInputs(domain=name, directory=root / name / "xds", logs=root / name / "logs", **given)


def make_settings(inputs: SnapshotInputs, root: Path, **more: Any) -> EnvoySettings:
    # Short, because the path of a socket has a limit.
    more.setdefault("tuning", inputs.tuning)
    return EnvoySettings(inputs.domain, inputs.directory, root / inputs.domain / "run", inputs.logs, **more)


def route(source: str, destination: str, there: SnapshotInputs, me: str, **more: Any) -> Route:
    partner = destination if me == source else source
    assert there.external is not None
    port = RoutePort("http", there.external.port, tls=there.protocol is not Protocol.NOTLS)
    given: dict[str, Any] = {
        "host": there.external.host,
        "ports": (port,),
        "tokens": (token(source, destination),),
        "certificates": (pem(partner),),
        **more,
    }
    return Route(source, destination, **given)


@contextlib.asynccontextmanager
async def running(*inputs: SnapshotInputs, root: Path, **settings: Any) -> AsyncIterator[list[Domain]]:
    domains = []
    for each in inputs:
        # A busy machine is no refusal.
        chosen = make_settings(each, root, **{"stop_seconds": 2.0, "accept_seconds": 30.0, **settings})
        domains.append(Domain(each.domain, each, Envoy(chosen, snapshot(each)), chosen))
    tasks = [asyncio.create_task(each.envoy.run()) for each in domains]
    try:
        for each in domains:
            await asyncio.wait_for(each.envoy.ready.wait(), 60)
        yield domains
    finally:
        for each in domains:
            each.envoy.stop()
        await asyncio.gather(*tasks)


@dataclass
class Pair:
    alice: Domain
    bob: Domain
    http: aiohttp.ClientSession

    async def call(self, host: str, path: str = "/", **more: Any) -> tuple[int, Any, dict[str, str]]:
        return await call(self.http, f"{self.alice.inside}{path}", host, **more)


async def call(
    http: aiohttp.ClientSession, url: str, host: str = "", *, headers: Any = None, data: Any = None, **more: Any
) -> tuple[int, Any, dict[str, str]]:
    """(status, body, headers of the reply)."""
    sent = [*(headers or {}).items()] if not isinstance(headers, list) else list(headers)
    sent += [("Host", host)] if host else []
    method = "GET" if data is None else "POST"
    async with http.request(method, url, headers=sent, data=data, **more) as reply:
        text = await reply.text()
        seen = {key.lower(): value for key, value in reply.headers.items()}
        with contextlib.suppress(json.JSONDecodeError):
            return reply.status, json.loads(text), seen
        return reply.status, text, seen


async def until_status(expected: int, ask: Callable[[], Awaitable[tuple[int, Any, dict[str, str]]]]) -> Any:
    """Ask again until the status is the expected one; the last answer."""
    for _ in range(1200):
        answer = await ask()
        if answer[0] == expected:
            return answer
        await asyncio.sleep(0.05)
    raise AssertionError(f"{answer[0]} instead of {expected}: {answer[1]} {answer[2]}")


@contextlib.asynccontextmanager
async def pair(root: Path, protocol: Protocol = Protocol.MTLS, **more: Any) -> AsyncIterator[Pair]:
    """Alice calls, bob serves: `echo`, `stream` (HTTP/2), `closed` (opened to zed only), `own` (for bob's pods)."""
    async with contextlib.AsyncExitStack() as stack:
        plain = await stack.enter_async_context(echo(HOSTS["bob"]))
        stream = await stack.enter_async_context(streaming_echo(HOSTS["bob"]))
        alice = make_inputs("alice", root, protocol)
        bob = make_inputs("bob", root, protocol)
        services = (
            DomainService("echo", (plain,)),
            DomainService("stream", (stream,), ServiceProtocol.GRPC),
            DomainService("closed", (plain,), access=frozenset({"zed"})),
            DomainService("opened", (plain,), access=frozenset({"alice", "zed"})),
            DomainService("own", (plain,), domain_only=True),
            DomainService("empty"),
        )
        alice = replace(alice, routes=(route("alice", "bob", bob, "alice"), route("bob", "alice", alice, "alice")))
        bob = replace(
            bob,
            handshake=plain,
            services=services,
            routes=(
                route("alice", "bob", bob, "bob", headers=(("x-added", "100%"),)),
                route("bob", "alice", alice, "bob"),
                route("carol", "bob", bob, "bob"),
            ),
        )
        bob = replace(bob, **more)
        domains = await stack.enter_async_context(running(alice, bob, root=root))
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=15)))
        yield Pair(domains[0], domains[1], http)
