"""A control plane that lites register at: the API server in memory with the domain controller, and the registrar."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa

from coterie.base import pki
from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.secret import SecretValue
from coterie.base.tasks import TaskOwner
from coterie.http.messages import Request, Response, UserInfo
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.informers import Informers
from coterie.kube.store.memory import MemoryStore
from coterie.kuscia.api.types.domain import CLUSTER_DOMAIN_ROUTES, DOMAINS, Domain
from coterie.kuscia.controllers.domain import controller as domains
from coterie.kuscia.extensions.apiserver import KUSCIA
from coterie.kuscia.gateway.registration import messages
from coterie.kuscia.gateway.registration.server import RegistrationServer
from coterie.kuscia.identity.domain_identity import DomainIdentity

PLANE = "hq"
ADMIN = UserInfo("admin", ("system:masters", "system:authenticated"))
DOMAIN = DOMAINS.as_dynamic
ROUTE = CLUSTER_DOMAIN_ROUTES.as_dynamic


@cache
def key(name: str) -> rsa.RSAPrivateKey:
    """One for each name; making them takes longer than all the tests."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def identity(name: str, now: datetime, directory: Path = Path("nowhere")) -> DomainIdentity:
    made = pki.self_signed_ca(name, key(name), now=now)
    pem = pki.certificate_pem(made.certificate).decode()
    return DomainIdentity(name, directory / "domain.crt", directory / "domain.key", pem, key(name))


def an_application(
    domain: str,
    token: str | None,
    now: datetime,
    *,
    signer: str = "",
    name_in_csr: str = "",
    jwt_by: str = "",
    request_time: int | None = None,
) -> tuple[messages.RegisterRequest, str]:
    """What an honest lite sends, or one that lies in one respect."""
    own = key(signer or domain)
    csr = messages.make_csr(name_in_csr or domain, own, SecretValue(token) if token is not None else None)
    at = int(now.timestamp() * 1e9) if request_time is None else request_time
    request = messages.RegisterRequest(domain, csr, at)
    return request, messages.make_jwt(request, key(jwt_by) if jwt_by else own, now)


def posted(body: bytes, jwt: str, address: str = "10.0.0.9") -> Request:
    """As our own Envoy passes it on."""
    headers = {"jwt-token": jwt, "x-forwarded-for": f"1.2.3.4, {address}", "content-type": "application/json"}
    return Request("POST", "/register", headers=headers, body=body)


class Plane:
    def __init__(self, client: Client, registrar: RegistrationServer, identity: DomainIdentity, clock: Clock) -> None:
        self.client = client
        self.registrar = registrar
        self.identity = identity
        self.clock = clock

    async def add_domain(self, name: str, **spec: Any) -> str:
        """Create a Domain; answers its deploy token once it has one."""
        center = {"authenticationType": "Token", "tokenGenMethod": "RSA-GEN"}
        await self.client.create(DOMAIN, {"metadata": {"name": name}, "spec": {"authCenter": center, **spec}})
        return await self.unused_token(name) if spec.get("role") != "partner" and name != PLANE else ""

    async def unused_token(self, name: str, other_than: str = "") -> str:
        return str(await eventually(lambda: self._unused(name, other_than)))

    async def _unused(self, name: str, other_than: str) -> str:
        listed = (await self.domain(name)).status.deploy_token_statuses or ()
        return next((each.token for each in listed if each.state == "unused" and each.token != other_than), "")

    async def domain(self, name: str) -> Domain:
        return await self.client.get(DOMAINS, name)

    async def states(self, name: str) -> dict[str, str]:
        return {each.token: each.state for each in (await self.domain(name)).status.deploy_token_statuses or ()}

    async def register(self, request: messages.RegisterRequest, jwt: str, address: str = "10.0.0.9") -> Response:
        return await self.registrar.register(posted(request.encode(), jwt, address))

    async def join(self, domain: str, token: str | None, **lies: Any) -> Response:
        return await self.register(*an_application(domain, token, self.clock.now(), **lies))


async def eventually(question: Callable[[], Awaitable[Any]], seconds: float = 60.0) -> Any:
    """What a question answers once it is true."""
    async with asyncio.timeout(seconds):
        while not (answer := await question()):
            await asyncio.sleep(0.01)
        return answer


@asynccontextmanager
async def plane(clock: Clock = SYSTEM_CLOCK) -> AsyncIterator[Plane]:
    store = MemoryStore()
    await store.open()
    server = ApiServer(store, Settings(extensions=[KUSCIA]), clock)
    await server.start()
    transport = InProcessTransport(server.handle, ADMIN)
    client = Client(transport, clock=clock)
    informers = Informers(client)
    keeper = domains.make(client, informers, control_plane=PLANE, clock=clock)
    own = identity(PLANE, clock.now())
    try:
        async with TaskOwner("plane") as owner:
            owner.start("informers", informers.run())
            owner.start("domains", keeper.run())
            yield Plane(client, RegistrationServer(client, own, clock=clock), own, clock)
    finally:
        await transport.close()
        await server.stop()
        await store.close()


def answer(response: Response) -> dict[str, str]:
    assert response.status == 200, (response.status, response.body)
    return {name: base64.b64decode(value).decode() for name, value in json.loads(response.body).items()}


def logged(records: list[logging.LogRecord]) -> str:
    """Sentences with their facts."""
    return "\n".join(f"{each.getMessage()} {getattr(each, 'coterie_fields', {})}" for each in records)
