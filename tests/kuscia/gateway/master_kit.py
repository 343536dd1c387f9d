"""A master as a lite meets it: its gateway's port with TLS, a real registrar behind it, and handshakes in a few lines."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from registration_kit import PLANE, Plane, key

from coterie.base import pki
from coterie.base.clock import Clock
from coterie.base.paths import DomainPaths
from coterie.base.secret import SecretValue
from coterie.base.tasks import TaskOwner
from coterie.http.messages import Request, Response
from coterie.http.server import HttpServer
from coterie.kuscia.gateway.handshake import crypto, messages
from coterie.kuscia.gateway.registration.master_connection import MasterLink
from coterie.kuscia.gateway.settings import GatewaySettings, MasterEndpoint
from coterie.kuscia.identity import domain_identity as identities
from coterie.kuscia.identity.domain_identity import DomainIdentity


class Master:
    """Behaves like a control plane's gateway; attributes make it behave otherwise."""

    def __init__(self, center: Plane, where: Path) -> None:
        self.center = center
        self.where = where
        self.requests: list[Request] = []
        self.tokens: dict[int, SecretValue] = {}
        self.revision = 0
        self.refuses_handshakes = False
        self.greeting = (401, [("Kuscia-Error-Message", "<unauthorized>")])
        self.namespace = PLANE
        self.certificate: x509.Certificate | None = None
        self.port = 0
        self._http: HttpServer | None = None

    async def open(
        self, certificate: x509.Certificate | None = None, key_name: str = PLANE, *, tls: bool = True
    ) -> None:
        """Serve, on the same port as before; unless another certificate is given, with the master's own."""
        context = None
        if tls:
            self.certificate = certificate or pki.load_certificate(self.center.identity.certificate.encode())
            pki.save_certificate(self.where / "port.crt", self.certificate)
            pki.save_key(self.where / "port.key", key(key_name))
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.where / "port.crt", self.where / "port.key")
        self._http = HttpServer(self.handle)
        _, self.port = await self._http.listen("127.0.0.1", self.port, context)

    async def close(self) -> None:
        if self._http is not None:
            await self._http.stop(grace=0.1)
            self._http = None

    def seen(self, path: str, method: str = "POST") -> int:
        return sum(each.path == path and each.method == method for each in self.requests)

    async def handle(self, request: Request) -> Response:
        self.requests.append(request)
        if request.headers["host"] != "kuscia-handshake.master.svc":
            return Response(self.greeting[0], b"{}", headers=self.greeting[1])
        if request.path == "/register":
            return await self.center.registrar.register(request)
        if request.method == "GET":
            return Response(200, json.dumps({"namespace": self.namespace, "state": self._state(request)}).encode())
        return Response(
            200, messages.encode(await self._shake(messages.decode(request.body, messages.HandshakeRequest)))
        )

    def _state(self, request: Request) -> int:
        told = int(request.headers.get("kuscia-token-revision", "0"))
        return 0 if self.tokens.get(told) == SecretValue(request.headers.get("kuscia-token", "")) else 4

    async def _shake(self, asked: messages.HandshakeRequest) -> messages.HandshakeResponse:
        if self.refuses_handshakes:
            return messages.refusal("DomainRoute not found")
        assert asked.token_config is not None
        cert = (await self.center.domain(asked.domain_id)).spec.cert
        source = pki.load_certificate(base64.b64decode(cert)).public_key()
        assert asked.token_config.pubhash == crypto.pubhash(source)  # type: ignore[arg-type]
        theirs = crypto.decrypt(self.center.identity.key, asked.token_config.token, crypto.HALF)
        own = crypto.half()
        self.revision += 1
        self.tokens[self.revision] = crypto.header_value(theirs + own)
        made = messages.HandshakeToken(token=crypto.encrypt(source, own), revision=self.revision)  # type: ignore[arg-type]
        return messages.HandshakeResponse(status=messages.HandshakeStatus(), token=made)


class Lite:
    """A lite's identity on disk, and its link."""

    def __init__(self, root: Path, name: str, clock: Clock) -> None:
        self.paths = DomainPaths.of(root, name).prepare()
        pki.save_key(self.paths.domain_key, key(name), pkcs1=True)
        self.name = name
        self.clock = clock
        self.changes = 0

    @property
    def identity(self) -> DomainIdentity:
        return identities.ensure(self.paths, self.name, None, datetime.now(UTC))

    def link(
        self, port: int, token: str | None, *, tls: bool = True, host: str = "127.0.0.1", others: tuple[int, ...] = ()
    ) -> MasterLink:
        settings = GatewaySettings(
            self.name, "lite-1", control_plane=False, master=MasterEndpoint(host, port, tls),
            other_masters=tuple(MasterEndpoint(host, each, tls) for each in others),
            deploy_token=SecretValue(token) if token is not None else None,
        )  # fmt: skip
        return MasterLink(settings, self.identity, self.paths, self._changed, clock=self.clock)

    def _changed(self) -> None:
        self.changes += 1


@asynccontextmanager
async def running(link: MasterLink) -> AsyncIterator[MasterLink]:
    async with TaskOwner("lite") as owner:
        task = owner.start("link", link.run())
        try:
            yield link
        finally:
            link.stop()
            await task


async def linked(link: MasterLink, seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        await link.ready.wait()


def document(path: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(path.read_text())
    return read
