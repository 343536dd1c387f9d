"""The handshake's server: HTTP on a private Unix socket, to which only our own Envoy leads.

Every header is a mere claim, except the fingerprint of the caller's certificate, which our Envoy sets (and removes when it
comes from outside). Paths are matched by their end: a proxy in front may leave a prefix on them.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from pathlib import Path

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.http.messages import Handler, Request, Response
from coterie.http.server import HttpLimits, HttpServer
from coterie.kube.api.status_response import status_response
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.child_api_listener import private_socket
from coterie.kuscia.api.types.domain import DOMAIN_ROUTES
from coterie.kuscia.gateway.handshake.messages import (
    MAX_BODY,
    HandshakeRefused,
    HandshakeRequest,
    MessageFault,
    decode,
    encode,
    refusal,
)
from coterie.kuscia.gateway.handshake.pinned_certificates import Certificates, Pins, no_certificates
from coterie.kuscia.gateway.handshake.probing import ProbeResponder
from coterie.kuscia.gateway.handshake.responder import HandshakeResponder
from coterie.kuscia.gateway.names import ORIGIN, PEER_FINGERPRINT, SOURCE, TOKEN
from coterie.kuscia.identity.domain_identity import DomainIdentity

HANDSHAKE_PATH = "/handshake"
REVISION = "kuscia-token-revision"
_LIMITS = HttpLimits(max_body=MAX_BODY, max_body_in_flight=8 * 1024 * 1024, max_connections=2000, body_timeout=20.0)


class HandshakeServer:
    """A Runnable; ready when it listens."""

    name = "handshake-server"

    def __init__(
        self,
        client: Client,
        informers: Informers,
        identity: DomainIdentity,
        instance: str,
        clock: Clock = SYSTEM_CLOCK,
        *,
        extra: Mapping[str, Handler] | None = None,
        path: Path,
        certificates: Certificates = no_certificates,
    ) -> None:
        """`path`: of the socket. `extra`: handlers for further paths, such as `/register`. `certificates`: those each domain
        is known by."""
        self.ready = asyncio.Event()
        self._routes = informers.get(DOMAIN_ROUTES, identity.domain)
        pins = Pins(certificates, clock)
        self._answering = HandshakeResponder(client, self._routes, identity, clock, pins)
        self._probing = ProbeResponder(client, self._routes, identity, clock, pins)
        self._extra = dict(extra or {})
        self._stop = asyncio.Event()
        self._log = logger("gateway.handshake").bind(instance=instance)
        self.path = path

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        http = HttpServer(self.handle, limits=_LIMITS, problem_response=status_response)
        try:
            # Before the cache is full a good token would look unknown.
            await self._routes.ready.wait()
            await http.serve(private_socket(self.path, 256))
            self._log.info("The handshake server listens", socket=str(self.path))
            self.ready.set()
            await self._stop.wait()
        finally:
            await http.stop()
            self.path.unlink(missing_ok=True)

    async def handle(self, request: Request) -> Response:
        path = request.path.rstrip("/")
        if path.endswith(HANDSHAKE_PATH):
            if request.method == "GET":
                return await self._probe(request)
            if request.method == "POST":
                return await self._handshake(request)
            return Response(405, b"use GET or POST\n", "text/plain", [("Allow", "GET, POST")])
        for suffix, handler in self._extra.items():
            if path.endswith(suffix):
                answer = handler(request)
                return await answer if inspect.isawaitable(answer) else answer
        return Response(404, b"not found\n", "text/plain")

    async def _handshake(self, request: Request) -> Response:
        try:
            asked = decode(request.body, HandshakeRequest)
        except MessageFault as fault:
            return Response(400, f"{fault}\n".encode(), "text/plain")
        try:
            return Response(200, encode(await self._answering.handshake(asked, _peer_fingerprint(request))))
        except HandshakeRefused as refused:
            return Response(200, encode(refusal(str(refused))))

    async def _probe(self, request: Request) -> Response:
        headers = request.headers
        answer = await self._probing.probe(
            headers.get(ORIGIN) or headers.get(SOURCE) or "",
            headers.get(REVISION, ""),
            headers.get(TOKEN, ""),
            _peer_fingerprint(request),
        )
        return Response(200, encode(answer))


def _peer_fingerprint(request: Request) -> str:
    return request.headers.get(PEER_FINGERPRINT, "").strip().lower()
