"""Two organisations for handshake tests: an API server, the route controller and some gateways each, joined by a network of
a few lines that can lose, delay and repeat what it carries. Time is virtual; each side may have its own wrong clock.

A gateway's Envoy is modelled by the set of tokens that it has loaded.
"""

from __future__ import annotations

import asyncio
import atexit
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa

from coterie.base import pki
from coterie.base.clock import VirtualClock, rfc3339
from coterie.base.secret import SecretValue
from coterie.http.messages import Request, Response, UserInfo
from coterie.kube.api.meta import Object, ObjectKey
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.informer import ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kube.control.events import EventRecorder
from coterie.kube.store.memory import MemoryStore
from coterie.kuscia.api.types.domain import DOMAIN_ROUTES, GATEWAYS, DomainRoute
from coterie.kuscia.controllers.domainroute import controller as domainroute
from coterie.kuscia.extensions.apiserver import KUSCIA
from coterie.kuscia.gateway.handshake import crypto, negotiator
from coterie.kuscia.gateway.handshake.effective_tokens import EffectiveTokens, tokens_of
from coterie.kuscia.gateway.handshake.handshake_client import CALL_SECONDS, HandshakeTarget, PartnerUnreachable
from coterie.kuscia.gateway.handshake.server import HandshakeServer
from coterie.kuscia.identity.domain_identity import DomainIdentity

ADMIN = UserInfo("system:admin", ("system:masters",))
DR = DOMAIN_ROUTES.as_dynamic
GATEWAY = GATEWAYS.as_dynamic
EVENT = Kind.dynamic(builtin("events"))
NAMESPACE = Kind.dynamic(builtin("namespaces"))
STEP = 0.2


def _socket() -> Path:
    """Of a handshake server that is called in this process only."""
    return Path(_sockets()) / f"{next(_numbers)}.sock"


@cache
def _sockets() -> str:
    directory = mkdtemp(prefix="coterie-handshake-")
    atexit.register(shutil.rmtree, directory)
    return directory


_numbers = count()


@cache
def identity(name: str) -> DomainIdentity:
    """A small key, so that tests are fast. `alice#2` is another key of alice."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    domain = name.partition("#")[0]
    certificate = pki.self_signed_ca(domain, key, now=VirtualClock().now()).certificate
    return DomainIdentity(domain, Path("none"), Path("none"), pki.certificate_pem(certificate).decode(), key)


def public_key(name: str) -> str:
    return crypto.public_text(identity(name).key.public_key())


def a_route(source: str = "alice", destination: str = "bob", namespace: str = "bob", **token_config: Any) -> Object:
    config = {
        "tokenGenMethod": "RSA-GEN",
        "rollingUpdatePeriod": 0,
        "sourcePublicKey": public_key(source),
        "destinationPublicKey": public_key(destination),
        **token_config,
    }
    port = {"name": "http", "protocol": "HTTP", "port": 1080}
    return {
        "metadata": {"name": f"{source}-{destination}", "namespace": namespace},
        "spec": {
            "source": source,
            "destination": destination,
            "authenticationType": "Token",
            "endpoint": {"host": f"{destination}.example.com", "ports": [port]},
            "tokenConfig": config,
        },
    }


class OffClock:
    """Passes as the other does and shows another time of day."""

    def __init__(self, inner: VirtualClock, off: float = 0.0) -> None:
        self._inner = inner
        self.off = off

    def now(self) -> datetime:
        return self._inner.now() + timedelta(seconds=self.off)

    def monotonic(self) -> float:
        return self._inner.monotonic()

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


@dataclass
class Gate:
    """One gateway of a domain."""

    side: Side
    name: str
    server: HandshakeServer
    effective: EffectiveTokens
    informers: Informers
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    loaded: dict[str, tuple[SecretValue, ...]] = field(default_factory=dict)
    load_seconds: float = 0.1
    stuck: bool = False
    """Its Envoy takes no new configuration."""

    def watch(self) -> None:
        self.informers.get(DOMAIN_ROUTES, self.side.domain).add_handler(self._changed)

    def _changed(self, change: ObjectChange[DomainRoute]) -> None:
        if not self.stuck:
            self.tasks.append(asyncio.ensure_future(self._load(change.object.key)))

    async def _load(self, key: ObjectKey) -> None:
        await self.side.clock.sleep(self.load_seconds)
        route = self.informers.get(DOMAIN_ROUTES, self.side.domain).cache.by_key(key)
        if route is None or self.stuck:
            self.loaded.pop(key.name, None)
            return
        self.loaded[key.name] = tokens_of(route, self.side.identity)
        newest = route.token_status.newest
        if newest is not None:
            self.effective.loaded(key.name, newest.revision, route.metadata.uid)

    def stop(self) -> list[asyncio.Task[None]]:
        for task in self.tasks:
            task.cancel()
        return self.tasks


class Side:
    """One organisation."""

    def __init__(self, identity: DomainIdentity, clock: OffClock) -> None:
        self.identity = identity
        self.domain = identity.domain
        self.clock = clock
        self.gates: dict[str, Gate] = {}
        self.client: Client
        self.server: ApiServer
        self._tasks: list[asyncio.Task[None]] = []
        self._beaten = -100.0
        self._turn = 0

    async def start(self, stack: AsyncExitStack) -> None:
        store = MemoryStore()
        await store.open()
        stack.push_async_callback(store.close)
        self.server = ApiServer(store, Settings(extensions=[KUSCIA]), self.clock)
        await self.server.start()
        stack.push_async_callback(self.server.stop)
        transport = InProcessTransport(self.server.handle, ADMIN)
        stack.push_async_callback(transport.close)
        self.client = Client(transport, clock=self.clock)
        await self.client.create(NAMESPACE, {"metadata": {"name": self.domain}})
        informers = Informers(self.client)
        controller = domainroute.make(self.client, informers, clock=self.clock)
        self._tasks = [asyncio.ensure_future(each.run()) for each in (informers, controller)]
        stack.push_async_callback(self._end)

    async def _end(self) -> None:
        tasks = [*self._tasks, *(task for gate in self.gates.values() for task in gate.stop())]
        for task in self._tasks:
            assert not task.done(), task
            task.cancel()
        await asyncio.wait(tasks)

    def add_gate(self, name: str, network: Network) -> Gate:
        informers = Informers(self.client)
        server = HandshakeServer(
            self.client, informers, self.identity, name, self.clock, path=_socket(), certificates=network.certificates
        )
        effective = EffectiveTokens(self.client, informers, self.domain, name, self.clock)
        recorder = EventRecorder(self.client, "gateway", instance=name, clock=self.clock)
        gate = Gate(self, name, server, effective, informers)
        shaking = negotiator.make(
            self.client,
            informers,
            self.identity,
            name,
            network.caller(gate),
            clock=self.clock,
            workers=4,
            events=recorder,
        )
        gate.watch()
        runs: Iterable[Any] = (informers, server, effective.controller, shaking, recorder)
        gate.tasks = [asyncio.ensure_future(each.run()) for each in runs]
        self.gates[name] = gate
        self._beaten = -100.0
        return gate

    async def remove_gate(self, name: str) -> None:
        """It dies without a word; its object stays."""
        await asyncio.wait(self.gates.pop(name).stop())

    async def beat(self) -> None:
        now = self.clock.monotonic()
        if now - self._beaten < 15:
            return
        self._beaten = now
        told = rfc3339(self.clock.now())
        status = {"address": "127.0.0.1", "uptime": told, "heartbeatTime": told, "publicKey": "", "version": "1"}
        there = {each["metadata"]["name"] for each in (await self.client.list(GATEWAY, self.domain)).items}
        for name in self.gates:
            if name not in there:
                await self.client.create(GATEWAY, {"metadata": {"name": name, "namespace": self.domain}})
            await self.client.patch_status(GATEWAY, name, self.domain, {"status": status})

    def next_gate(self) -> Gate | None:
        """As a load balancer in front of several gateways."""
        names = sorted(self.gates)
        self._turn += 1
        return self.gates[names[self._turn % len(names)]] if names else None

    async def route(self, name: str = "alice-bob") -> DomainRoute:
        return await self.client.get(DOMAIN_ROUTES, name, self.domain)

    async def told(self) -> dict[str, str]:
        """The events about routes: the last message by reason."""
        found = (await self.client.list(EVENT, self.domain)).items
        return {each["reason"]: each.get("message") or each.get("note") or "" for each in found}

    async def add_route(self, **config: Any) -> None:
        await self.client.create(DR, a_route(namespace=self.domain, **config))


Fault = Callable[[HandshakeTarget, bytes | None], str]
"""What the network does with a call: nothing, "lose", "lose answer" or "hang"."""


class Network:
    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.sides: dict[str, Side] = {}
        self.fault: Fault = lambda target, body: ""
        self.seen: list[tuple[HandshakeTarget, bytes]] = []
        """Handshakes, for who wants to replay them."""
        self.mtls = False
        self.with_token = True
        """Our gateways put the token on each call, Kuscia's not on probes."""
        self.outages: list[str] = []
        self.known: dict[str, str] = {}
        """Domains and their certificates."""

    def certificates(self, domain: str) -> list[str]:
        return [self.known[domain]] if domain in self.known else []

    def caller(self, gate: Gate) -> _Caller:
        return _Caller(self, gate)

    async def deliver(self, request: Request, domain: str) -> Response:
        gate = self.sides[domain].next_gate() if domain in self.sides else None
        if gate is None:
            raise PartnerUnreachable("HTTP 503: no healthy upstream")
        return await gate.server.handle(request)

    def check(self) -> None:
        """Every token that some gateway of alice sends is taken by every gateway of bob."""
        for sender in self.sides["alice"].gates.values():
            newest = sender.loaded.get("alice-bob", ())[-1:]
            for taker in self.sides["bob"].gates.values():
                if newest and newest[0] not in taker.loaded.get("alice-bob", ()):
                    self.outages.append(f"{self.clock.monotonic():.1f}: {sender.name} -> {taker.name}")

    async def settle(self, seconds: float) -> None:
        for _ in range(max(1, round(seconds / STEP))):
            for side in self.sides.values():
                await side.beat()
            await self.clock.advance(STEP)
            self.check()

    async def until(self, question: Callable[[], Awaitable[bool]], seconds: float = 60.0) -> None:
        for _ in range(round(seconds / STEP)):
            if await question():
                return
            await self.settle(STEP)
        pictures = [(await side.route()).status for side in self.sides.values()]
        raise AssertionError(f"not true within {seconds} s: {pictures}")

    async def until_talking(self, beyond: int = 0, seconds: float = 60.0) -> int:
        """Until all gateways send a token of a later revision than `beyond`, and all take it. Gives the revision."""

        async def question() -> bool:
            newest = (await self.sides["alice"].route()).token_status.newest
            sent = {gate.loaded.get("alice-bob", ())[-1:] for gate in self.sides["alice"].gates.values()}
            if newest is None or newest.revision <= beyond or len(sent) != 1 or sent == {()}:
                return False
            token = next(iter(sent))[0]
            fresh = token == tokens_of(await self.sides["alice"].route(), self.sides["alice"].identity)[-1]
            return fresh and all(token in gate.loaded.get("alice-bob", ()) for gate in self.sides["bob"].gates.values())

        await self.until(question, seconds)
        found = (await self.sides["alice"].route()).token_status.newest
        assert found is not None
        return found.revision


class _Caller:
    def __init__(self, network: Network, gate: Gate) -> None:
        self._network = network
        self._gate = gate

    async def call(self, target: HandshakeTarget, headers: Mapping[str, str], body: bytes | None) -> bytes:
        network = self._network
        if body is not None:
            network.seen.append((target, body))
        fault = network.fault(target, body)
        if fault == "lose":
            raise PartnerUnreachable("HTTP 503: connection refused")
        sent = {"kuscia-source": target.source, "kuscia-origin-source": target.source, **headers}
        if network.mtls:
            own = self._gate.side.identity.certificate.encode()
            sent["x-coterie-peer-fingerprint"] = pki.fingerprint(pki.load_certificate(own))
        tokens = self._gate.loaded.get(f"{target.source}-{target.destination}", ())
        if network.with_token and tokens:
            sent["kuscia-token"] = tokens[-1].reveal()
        request = Request("GET" if body is None else "POST", "/handshake", "", sent, body or b"")
        answering = asyncio.ensure_future(network.deliver(request, target.destination))
        alarm = asyncio.ensure_future(network.clock.sleep(CALL_SECONDS))
        try:
            await asyncio.wait({answering, alarm}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() or fault == "hang":
                await asyncio.wait({alarm})
                raise PartnerUnreachable("no answer within 10 s")
        finally:
            alarm.cancel()
            if not answering.done():
                answering.cancel()
        response = answering.result()
        if fault == "lose answer":
            raise PartnerUnreachable("HTTP 503: connection reset")
        if response.status != 200:
            raise PartnerUnreachable(f"HTTP {response.status}")
        return response.body


@asynccontextmanager
async def alice_and_bob(
    *,
    gates: int = 1,
    alice: str = "alice",
    bob: str = "bob",
    bob_clock: float = 0.0,
    **config: Any,
) -> AsyncIterator[Network]:
    """A route from alice to bob, known at both. Fails at the end if a token was ever sent that was not taken."""
    clock = VirtualClock()
    network = Network(clock)
    async with AsyncExitStack() as stack:
        for name, off in ((alice, 0.0), (bob, bob_clock)):
            side = Side(identity(name), OffClock(clock, off))
            network.sides[side.domain] = side
            network.known[side.domain] = side.identity.certificate
            await side.start(stack)
            for index in range(gates):
                side.add_gate(f"gw-{side.domain}-{index}", network)
        for side in network.sides.values():
            await side.add_route(**config)
        yield network
