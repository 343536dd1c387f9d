"""KusciaAPI with everything around it: an API server in memory, the domain's keys; with or without doors.

async with here(tmp_path) as world:                                 # no sockets: for the services
    answer = await world.call(OPERATIONS, "QueryJob", job_id="x")   # as the operator; `caller=` for others

async with served(OPERATIONS, tmp_path) as place:                   # HTTP and gRPC
    status, answer = await place.post("/api/v1/job/query", {"job_id": "x"})
    answer = await place.ask("JobService", "QueryJob", job_id="x")
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
import pytest

from coterie.base import pki
from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.paths import DomainPaths
from coterie.base.secret import SecretValue
from coterie.http.messages import UserInfo
from coterie.kube.api.meta import Object
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.api.types.pods import PODS
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.control.on_demand_process import NamespaceListeners
from coterie.kube.store.memory import MemoryStore
from coterie.kuscia.api import labels
from coterie.kuscia.extensions.apiserver import KUSCIA
from coterie.kuscia.identity import domain_identity, engine_certificates
from coterie.kuscia.identity.engine_certificates import EngineIdentity, EnginePair
from coterie.kuscia.kusciaapi import server_certificates
from coterie.kuscia.kusciaapi.authorization import OPERATOR, ApiCaller, Role
from coterie.kuscia.kusciaapi.operations import ApiOperation, Mode, OperationContext
from coterie.kuscia.kusciaapi.process import KusciaApiProcess
from coterie.kuscia.kusciaapi.server import KusciaApiServer
from coterie.kuscia.kusciaapi.settings import KusciaApiSettings, Protection
from coterie.kuscia.kusciaapi.table import OPERATIONS

_KEY = SecretValue(pki.key_pem(pki.new_key("rsa"), pkcs1=True))
"""Made once: it takes longer than most tests."""
ADMIN = UserInfo("admin", ("system:masters",))


def logged(caplog: pytest.LogCaptureFixture) -> str:
    """All that was logged, in every detail. There must be something."""
    assert caplog.records
    return "\n".join(str(vars(record)) for record in caplog.records)


def domain_caller(name: str) -> ApiCaller:
    return ApiCaller(Role.DOMAIN, name)


def operation(operations: Sequence[ApiOperation], method: str) -> ApiOperation:
    return next(each for each in operations if each.method == method)


@dataclass
class World:
    here: OperationContext

    @property
    def client(self) -> Client:
        return self.here.client

    async def call(
        self, operations: Sequence[ApiOperation], method: str, *, caller: ApiCaller = OPERATOR, **request: Any
    ) -> Any:
        """The answer of one operation with `work`."""
        chosen = operation(operations, method)
        return await chosen.run(self.here, caller, chosen.request(**request))

    def pieces(
        self, operations: Sequence[ApiOperation], method: str, *, caller: ApiCaller = OPERATOR, **request: Any
    ) -> AsyncIterator[Any]:
        """The answers of one operation with `stream`."""
        chosen = operation(operations, method)
        return chosen.pieces(self.here, caller, chosen.request(**request))

    async def namespace(self, name: str) -> None:
        obj: Object = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await self.client.create(Kind.dynamic(builtin("namespaces")), obj)


@asynccontextmanager
async def here(
    directory: Path,
    *,
    mode: Mode = Mode.AUTONOMY,
    domain: str = "alice",
    namespaces: Sequence[str] = (),
    clock: Clock = SYSTEM_CLOCK,
    client: Client | None = None,
) -> AsyncIterator[World]:
    """The domain's own namespace and `cross-domain` exist; `namespaces`: further ones. `client`: of another world's API."""
    paths = DomainPaths.of(directory, domain).prepare()
    own = domain_identity.ensure(paths, domain, _KEY, SYSTEM_CLOCK.now())
    if client is not None:
        yield World(OperationContext(client, domain, mode, paths, own, clock))
        return
    store = MemoryStore()
    await store.open()
    server = ApiServer(store, Settings(extensions=[KUSCIA]), SYSTEM_CLOCK)
    await server.start()
    transport = InProcessTransport(server.handle, ADMIN)
    world = World(OperationContext(Client(transport), domain, mode, paths, own, clock))
    try:
        for name in dict.fromkeys((domain, *namespaces)):
            await world.namespace(name)
        yield world
    finally:
        await transport.close()
        await server.stop()
        await store.close()


# With doors.


@dataclass
class Place:
    """A served KusciaAPI and the credentials of its operator."""

    world: World
    settings: KusciaApiSettings
    operations: Sequence[ApiOperation]
    doors: KusciaApiServer | None = None

    @property
    def client(self) -> Client:
        return self.world.client

    @property
    def paths(self) -> DomainPaths:
        return self.settings.paths

    @property
    def token(self) -> str:
        return self.paths.api_token.read_text()

    @property
    def url(self) -> str:
        scheme = "http" if self.settings.protection is Protection.NOTLS else "https"
        return f"{scheme}://{self.settings.address}:{self.settings.http_port}"

    def tls(self, client: str = server_certificates.CLIENT) -> ssl.SSLContext:
        """As a caller with that certificate; empty: without one."""
        context = ssl.create_default_context(cafile=str(self.paths.ca_certificate))
        if client:
            context.load_cert_chain(self.paths.certificate(client), self.paths.key(client))
        return context

    def session(self, client: str = server_certificates.CLIENT, token: str | None = None) -> aiohttp.ClientSession:
        """`token`: None for the right one."""
        connector = aiohttp.TCPConnector(ssl=self.tls(client))
        headers = {"Token": self.token if token is None else token}
        return aiohttp.ClientSession(self.url, connector=connector, headers=headers)

    async def post(self, path: str, body: Object | None = None) -> tuple[int, Any]:
        """Status and answer."""
        async with self.session() as session, session.post(path, json=body or {}) as answer:
            return answer.status, json.loads(await answer.read() or b"null")

    def channel(self, client: str = server_certificates.CLIENT) -> grpc.aio.Channel:
        """To be used with `async with`."""
        target = f"{self.settings.address}:{self.settings.grpc_port}"
        if self.settings.protection is Protection.NOTLS:
            return grpc.aio.insecure_channel(target)
        pair = (
            (self.paths.key(client).read_bytes(), self.paths.certificate(client).read_bytes())
            if client
            else (None, None)
        )
        credentials = grpc.ssl_channel_credentials(self.paths.ca_certificate.read_bytes(), *pair)
        return grpc.aio.secure_channel(target, credentials)

    async def engine(self, directory: Path, initiator: str = "alice") -> EnginePair:
        """The certificate of a running pod, also in `engine.pem`."""
        marks = {labels.KUSCIA_TASK_ID: "task", labels.KUSCIA_INITIATOR: initiator}
        pod = {
            "metadata": {"name": "task-0", "annotations": marks},
            "spec": {"containers": [{"name": "engine", "image": "engine:1"}]},
        }
        made = await self.client.create(PODS.as_dynamic, pod, "alice")
        authority = engine_certificates.ensure_authority(self.paths, "alice", SYSTEM_CLOCK.now())
        engine = EngineIdentity("alice", "task-0", made["metadata"]["uid"], "task")
        pair = engine_certificates.issue_client_pair(authority, engine, SYSTEM_CLOCK.now())
        (directory / "engine.pem").write_bytes(pair.certificate + pair.key)
        return pair

    def engine_tls(self, directory: Path) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.paths.ca_certificate))
        context.load_cert_chain(directory / "engine.pem")
        return context

    async def ask(self, service: str, method: str, *, token: str | None = None, **request: Any) -> Any:
        """Over gRPC; an operation with `work`."""
        chosen = next(each for each in self.operations if (each.service, each.method) == (service, method))
        async with self.channel() as channel:
            call = channel.unary_unary(f"/{chosen.package}.{service}/{method}")
            metadata = (("token", self.token if token is None else token),)
            return chosen.response.FromString(
                await call(chosen.request(**request).SerializeToString(), metadata=metadata)
            )


@asynccontextmanager
async def slept(
    directory: Path, *, idle: float = 300.0, mode: Mode = Mode.MASTER, pods: NamespaceListeners | None = None
) -> AsyncIterator[tuple[Place, KusciaApiProcess]]:
    """The real process, which is not there before somebody calls."""
    async with here(directory, mode=mode) as world:
        http, rpc, conf_http, conf_rpc = free_ports(4)
        asked = KusciaApiSettings(
            world.here.domain, mode, world.here.paths, http_port=http, grpc_port=rpc,
            conf_http_port=conf_http, conf_grpc_port=conf_rpc, conf_address=pods.address if pods else "127.0.0.1",
        )  # fmt: skip
        server_certificates.ensure(asked, (), SYSTEM_CLOCK.now(), conf_names=("127.0.0.1",))
        run = directory / "run"
        run.mkdir(mode=0o700)
        made = KusciaApiProcess(asked, run, world.client, SYSTEM_CLOCK, inner=True, pods=pods, idle=idle)
        running = asyncio.ensure_future(made.run())
        try:
            await made.ready.wait()
            yield Place(world, asked, OPERATIONS), made
        finally:
            made.stop()
            await running


def free_ports(count: int) -> list[int]:
    bound = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in bound]
    finally:
        for each in bound:
            each.close()


@asynccontextmanager
async def served(
    operations: Sequence[ApiOperation],
    directory: Path,
    *,
    protection: Protection = Protection.MTLS,
    mode: Mode = Mode.AUTONOMY,
    conf_operations: Sequence[ApiOperation] = (),
    inner: Path | None = None,
    gateway: str = "",
    **options: Any,
) -> AsyncIterator[Place]:
    """`options`: as of `here`."""
    async with here(directory, mode=mode, **options) as world:
        asked = KusciaApiSettings(
            world.here.domain, mode, world.here.paths, http_port=0, grpc_port=0, protection=protection,
            conf_http_port=0, conf_grpc_port=0, inner=inner, gateway=gateway,
        )  # fmt: skip
        server_certificates.ensure(asked, (), SYSTEM_CLOCK.now())
        async with KusciaApiServer(asked, world.here, operations, conf_operations, run=directory) as doors:
            bound = replace(
                asked, http_port=doors.http_port, grpc_port=doors.grpc_port,
                conf_http_port=doors.conf_http_port, conf_grpc_port=doors.conf_grpc_port,
            )  # fmt: skip
            yield Place(world, bound, operations, doors)
