"""Whole control planes with real gateways: the API in memory, the domain controllers, everything a node's gateway has.

async with control_plane("alice", root) as alice, control_plane("bob", root) as bob:
    await befriend(alice, bob)          # Domains and routes both ways
    await ready(alice, "alice-bob")
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
from cryptography.hazmat.primitives.asymmetric import rsa
from gateway_kit import HOSTS, free_port

from coterie.base import pki
from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.files import private_directory
from coterie.base.paths import DomainPaths
from coterie.base.secret import SecretValue
from coterie.http.messages import UserInfo
from coterie.http.server import HttpServer
from coterie.kube.api.errors import AlreadyExists, ApiError
from coterie.kube.api.meta import Object
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.apiserver.auth.tokens import TokenSigner
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.informers import Informers
from coterie.kube.control.child_api_listener import private_socket
from coterie.kube.control.manager import Manager, Runnable
from coterie.kube.store.memory import MemoryStore
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.domain import CLUSTER_DOMAIN_ROUTES, DOMAIN_ROUTES, DOMAINS, GATEWAYS
from coterie.kuscia.controllers.clusterdomainroute import controller as clusterdomainroute
from coterie.kuscia.controllers.domain import controller as domain
from coterie.kuscia.controllers.domainroute import controller as domainroute
from coterie.kuscia.controllers.gateway import controller as gateway
from coterie.kuscia.extensions.apiserver import KUSCIA
from coterie.kuscia.gateway.addresses import Protocol, SocketAddress
from coterie.kuscia.gateway.callers import PodCallers
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.kuscia.gateway.settings import GatewaySettings
from coterie.kuscia.identity import domain_identity as identities
from coterie.kuscia.identity.domain_identity import DomainIdentity
from coterie.node.parts.gateway import gateway_parts

DOMAIN = DOMAINS.as_dynamic
CDR = CLUSTER_DOMAIN_ROUTES.as_dynamic
DR = DOMAIN_ROUTES.as_dynamic
GATEWAY = GATEWAYS.as_dynamic
SERVICE = Kind.dynamic(builtin("services"))
ENDPOINTS = Kind.dynamic(builtin("endpoints"))
EVENT = Kind.dynamic(builtin("events"))
ADMIN = UserInfo("system:admin", ("system:masters", "system:authenticated"))
PATIENCE = 25.0


@cache
def key_of(name: str) -> str:
    """One key per domain for the whole run: making them takes longer than using them."""
    return pki.key_pem(rsa.generate_private_key(public_exponent=65537, key_size=2048)).decode()


def settings_of(name: str, **more: Any) -> GatewaySettings:
    host = HOSTS[name]
    given: dict[str, Any] = {
        "instance": f"gw-{name}",
        "internal": SocketAddress(host, free_port(host)),
        "external": SocketAddress(host, free_port(host)),
        **more,
    }
    return GatewaySettings(name, **given)


@dataclass
class Plane:
    name: str
    client: Client
    server: ApiServer
    settings: GatewaySettings
    identity: DomainIdentity
    paths: DomainPaths
    manager: Manager
    groups: list[list[Runnable]] = field(repr=False)
    callers: PodCallers = field(repr=False)

    @property
    def inside(self) -> str:
        return f"http://{self.settings.internal}"

    def as_node(self) -> aiohttp.ClientSession:
        """For calls that the node itself makes to its gateway, to any URL."""
        return aiohttp.ClientSession(connector=aiohttp.UnixConnector(GatewayPaths.of(self.paths).node_socket.host))

    @property
    def certificate(self) -> str:
        return base64.b64encode(self.identity.certificate.encode()).decode()

    def part(self, name: str) -> Any:
        return next(each for group in self.groups for each in group if each.name == name)

    async def serve(self, name: str, where: SocketAddress, **annotations: str) -> None:
        """A service of this domain with one address, open to all partners unless the annotations say otherwise."""
        meta: Object = {
            "name": name,
            "namespace": self.name,
            "annotations": {labels.KUSCIA_ACCESS_DOMAIN: "*", **annotations},
        }
        port = {"name": "http", "port": where.port}
        subset = {"addresses": [{"ip": where.host}], "ports": [port]}
        await self.client.create(SERVICE, {"metadata": meta, "spec": {"clusterIP": "None", "ports": [port]}})
        await self.client.create(ENDPOINTS, {"metadata": {**meta, "annotations": {}}, "subsets": [subset]})

    @asynccontextmanager
    async def replica(self, instance: str) -> AsyncIterator[GatewaySettings]:
        """Another gateway of this domain, on ports and files of its own."""
        settings = settings_of(self.name, instance=instance)
        paths = DomainPaths(self.paths.home.parent / instance).prepare()
        informers = Informers(self.client)
        parts = gateway_parts(settings, paths, self.identity, self.client, informers, clock=SYSTEM_CLOCK).groups
        async with running(Manager([[informers], *parts], name=instance)):
            yield settings

    async def tokens(self, route: str) -> list[Object]:
        found = await self.client.get(DR, route, self.name)
        return list(((found.get("status") or {}).get("tokenStatus") or {}).get("tokens") or ())


async def until(question: Callable[[], Awaitable[Any]], seconds: float = PATIENCE) -> Any:
    """The first answer that is true; an error of the API or the network counts as no."""
    answer: Any = None
    deadline = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < deadline:
        with contextlib.suppress(ApiError, OSError):
            answer = await question()
            if answer:
                return answer
        await asyncio.sleep(0.05)
    raise AssertionError(f"not within {seconds} s; the last answer was {answer!r}")


@asynccontextmanager
async def control_plane(name: str, root: Path, **more: Any) -> AsyncIterator[Plane]:
    """An API with the domain controllers and one gateway. Its own Domain is there."""
    async with contextlib.AsyncExitStack() as stack:
        paths = DomainPaths.of(root, name).prepare()
        identity = identities.ensure(paths, name, SecretValue(key_of(name)), datetime.now(UTC))
        store = MemoryStore()
        await store.open()
        stack.push_async_callback(store.close)
        signer = TokenSigner(pki.new_key("ec"))
        server = ApiServer(store, Settings(extensions=[KUSCIA], signer=signer), SYSTEM_CLOCK)
        await server.start()
        stack.push_async_callback(server.stop)
        client = Client(InProcessTransport(server.handle, ADMIN))
        await client.create(DOMAIN, {"metadata": {"name": name}, "spec": {"cert": _encoded(identity.certificate)}})
        api = await _port(stack, server, paths)
        informers = Informers(client)
        settings = settings_of(name, **more)
        parts = gateway_parts(settings, paths, identity, client, informers, clock=SYSTEM_CLOCK, api=lambda: api)
        groups = parts.groups
        controllers: list[Runnable] = [
            domain.make(client, informers, control_plane=name),
            clusterdomainroute.make(client, informers, control_plane=name),
            domainroute.make(client, informers),
            gateway.make(client, informers),
        ]
        manager = Manager([[informers], controllers, *groups], name=name)
        plane = Plane(name, client, server, settings, identity, paths, manager, groups, parts.callers)
        async with running(manager):
            yield plane


@asynccontextmanager
async def running(manager: Manager) -> AsyncIterator[None]:
    task = asyncio.create_task(manager.run())
    waiting = asyncio.create_task(manager.ready.wait())
    try:
        await asyncio.wait({waiting, task}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not task.done():
            assert manager.ready.is_set(), manager.waiting_for
            yield
    finally:
        manager.stop()
        await task


async def _port(stack: contextlib.AsyncExitStack, server: ApiServer, paths: DomainPaths) -> SocketAddress:
    """The API's socket for the gateway, as a node opens it."""
    http = HttpServer(server.handle)
    found = GatewayPaths.of(paths).api_socket
    await http.serve(private_socket(private_directory(Path(found.host).parent) / Path(found.host).name))
    stack.push_async_callback(http.stop)
    return found


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def a_route(source: str, there: Plane, **more: Any) -> Object:
    assert there.settings.external is not None
    port = {
        "name": "http",
        "protocol": "HTTP",
        "port": there.settings.external.port,
        "isTLS": there.settings.protocol is not Protocol.NOTLS,
    }
    spec = {
        "source": source,
        "destination": there.name,
        "interConnProtocol": "kuscia",
        "authenticationType": "Token",
        "endpoint": {"host": there.settings.external.host, "ports": [port]},
        "tokenConfig": {"tokenGenMethod": "RSA-GEN", "rollingUpdatePeriod": 0},
        **more,
    }
    return {"metadata": {"name": f"{source}-{there.name}"}, "spec": spec}


async def befriend(one: Plane, other: Plane, **more: Any) -> None:
    """Each knows the other as a partner, with routes both ways, in both control planes."""
    await introduce(one, other, **more)
    await introduce(other, one, **more)


async def introduce(here: Plane, there: Plane, **more: Any) -> None:
    """One side of it."""
    known = {"cert": there.certificate, "role": "partner", "interConnProtocols": ["kuscia"]}
    with contextlib.suppress(AlreadyExists):
        await here.client.create(DOMAIN, {"metadata": {"name": there.name}, "spec": known})
    await here.client.create(CDR, a_route(here.name, there, **more))
    await here.client.create(CDR, a_route(there.name, here, **more))


async def ready(plane: Plane, route: str) -> None:
    async def is_ready() -> bool:
        found = (await plane.client.get(CDR, route)).get("status", {}).get("conditions") or []
        return any(each["type"] == "Ready" and each["status"] == "True" for each in found)

    try:
        await until(is_ready)
    except AssertionError as error:
        found = await plane.client.get(CDR, route)
        raise AssertionError(f"{route} at {plane.name} is not ready: {found.get('status')}") from error
