"""What a lite asks of its master's gateway, directly, before its own gateway leads there.

    look       name, TCP, TLS: the certificate that the port shows
    greet      is it a gateway? It answers 401 with `Kuscia-Error-Message`
    probe      GET /handshake: whose gateway it is, and what it knows of our token
    register   POST /register
    shake      POST /handshake

Every request goes over a connection that shows the certificate `look` saw: nothing is sent to anybody else. What stands in
the way is a `JoinFault`, whose `step` tells a wrong name from a closed port from a wrong certificate.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

import aiohttp
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from coterie.http.client_sessions import short_lived_session
from coterie.kuscia.gateway.handshake import crypto
from coterie.kuscia.gateway.handshake import messages as wire
from coterie.kuscia.gateway.names import ERROR, HANDSHAKE_SERVICE, HOST, PROTOCOL, SOURCE, TOKEN
from coterie.kuscia.gateway.registration import messages
from coterie.kuscia.gateway.registration.messages import RegisterAnswer, RegisterRequest, UnreadableMessage
from coterie.kuscia.gateway.registration.registration_files import MasterToken
from coterie.kuscia.gateway.settings import MasterEndpoint
from coterie.kuscia.identity.domain_identity import DomainIdentity

MASTER_HANDSHAKE = f"{HANDSHAKE_SERVICE}.master.svc"
REVISION = "kuscia-token-revision"
_CONNECT = 10.0
_ANSWER = 15.0
_SHAKE = 45.0
"""The master waits up to 30 s until all its gateways know the new token."""
_MAX_ERROR_TEXT = 400


class JoinFault(Exception):
    """`step`: name, tcp, tls, certificate, gateway, master, registration or handshake."""

    def __init__(self, step: str, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.step = step
        self.status = status
        """Of the answer that refused us, 0 when there was none."""

    @property
    def is_of_this_member(self) -> bool:
        """Another member of the control plane may answer otherwise: this one is away or fails. Refused registrations have the status 500,
        as in Kuscia."""
        return self.status == 0 or (self.status >= 500 and not (self.step == "registration" and self.status == 500))


@dataclass(frozen=True, slots=True)
class _MasterReply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def error_text(self) -> str:
        text = self.body.decode("utf-8", "replace")[:_MAX_ERROR_TEXT]
        return "".join(each if each.isprintable() else " " for each in text).strip() or f"status {self.status}"


class MasterClient:
    def __init__(self, endpoint: MasterEndpoint, identity: DomainIdentity) -> None:
        self._endpoint = endpoint
        self._identity = identity
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        self.address = f"{endpoint.host}:{endpoint.port}"
        self._url = f"{'https' if endpoint.tls else 'http'}://{host}:{endpoint.port}{endpoint.prefix}"

    async def fetch_certificate(self) -> x509.Certificate | None:
        """What the port shows; None where the configuration says plain text."""
        host, port = self._endpoint.host, self._endpoint.port
        try:
            async with asyncio.timeout(_CONNECT):
                await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, TimeoutError, UnicodeError) as error:
            raise JoinFault(
                "name", f"the name {host} cannot be resolved ({_why(error)}); check masterEndpoint and DNS"
            ) from error
        try:
            async with asyncio.timeout(_CONNECT):
                _, writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError) as error:
            raise JoinFault(
                "tcp", f"nothing answers at {self.address} ({_why(error)}); check that the master runs and no firewall is in between"
            ) from error  # fmt: skip
        try:
            return await self._peer_certificate(writer) if self._endpoint.tls else None
        finally:
            # Nothing was sent that a goodbye would have to wait for.
            writer.transport.abort()
            with suppress(OSError, TimeoutError):
                await asyncio.wait_for(writer.wait_closed(), _CONNECT)

    async def _peer_certificate(self, writer: asyncio.StreamWriter) -> x509.Certificate:
        try:
            async with asyncio.timeout(_CONNECT):
                await writer.start_tls(_unverified_tls())
        except (OSError, TimeoutError) as error:  # includes ssl.SSLError
            plain = "WRONG_VERSION_NUMBER" in str(error)
            hint = "it speaks plain text: write http:// or set its protocol to TLS" if plain else _why(error)
            raise JoinFault("tls", f"no TLS with {self.address}: {hint}") from error
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        try:
            return x509.load_der_x509_certificate(der)
        except ValueError as error:
            raise JoinFault("tls", f"{self.address} shows something that is no certificate") from error

    async def check_is_gateway(self, shown: x509.Certificate | None) -> None:
        """A gateway answers a stranger in its own way; a proxy's error page or another web server does not."""
        reply = await self._send("gateway", "GET", "/", shown, {})
        if reply.status != 401 or ERROR not in reply.headers:
            raise JoinFault(
                "gateway",
                f"what answers at {self.address} (status {reply.status}) is no gateway of a control plane; "
                "check host, port and path of masterEndpoint, and the proxy in between",
            )

    async def probe(self, shown: x509.Certificate | None, agreed: MasterToken | None = None) -> wire.ProbeAnswer:
        """`agreed`: the token that is asked about; showing it proves that it is we who ask."""
        headers = {REVISION: str(agreed.revision), TOKEN: agreed.token.reveal()} if agreed is not None else {}
        reply = await self._send("master", "GET", "/handshake", shown, self._to_master() | headers)
        try:
            found = wire.decode(reply.body, wire.ProbeAnswer) if reply.status == 200 else wire.ProbeAnswer()
        except wire.HandshakeFault as error:
            raise JoinFault("master", f"{self.address} answers in a way that is not understood: {error}") from error
        if not found.namespace:
            raise JoinFault(
                "master",
                f"the gateway at {self.address} is not a control plane's (it answers {reply.status} for {MASTER_HANDSHAKE})",
                status=reply.status,
            )
        return found

    async def register(self, shown: x509.Certificate | None, request: RegisterRequest, now: datetime) -> RegisterAnswer:
        headers = self._to_master() | {messages.JWT_HEADER: messages.make_jwt(request, self._identity.key, now)}
        reply = await self._send("registration", "POST", messages.REGISTER_PATH, shown, headers, request.encode())
        if reply.status != 200:
            raise JoinFault(
                "registration", f"the master refuses to register us: {reply.error_text}", status=reply.status
            )
        try:
            return RegisterAnswer.decode(reply.body)
        except UnreadableMessage as error:
            raise JoinFault("registration", f"the master's answer is not understood: {error}") from error

    async def handshake(
        self, shown: x509.Certificate | None, master_key: rsa.RSAPublicKey, revision: int, now: datetime
    ) -> MasterToken:
        """A new token; half of it is ours, so that nobody can make us use an old one."""
        own, half = self._identity, crypto.half()
        config = wire.HandshakeTokenConfig(
            token=crypto.encrypt(master_key, half), revision=revision, pubhash=crypto.pubhash(own.key.public_key())
        )
        request = wire.HandshakeRequest(
            domain_id=own.domain, type=wire.RSA, token_config=config, request_time=wire.nanoseconds(now)
        )
        reply = await self._send(
            "handshake", "POST", "/handshake", shown, self._to_master(), wire.encode(request), _SHAKE
        )
        try:
            answer = wire.decode(reply.body, wire.HandshakeResponse)
            if answer.status.code or answer.token is None:
                message = wire.readable(answer.status.message) or f"code {answer.status.code}"
                raise JoinFault("handshake", f"the master refuses the handshake: {message}", status=reply.status)
            theirs = crypto.decrypt(own.key, answer.token.token, crypto.HALF)
        except wire.HandshakeFault as error:
            raise JoinFault("handshake", f"the handshake failed: {error}", status=reply.status) from error
        ends = wire.moment_of(answer.token.expiration_time) if answer.token.expiration_time else None
        return MasterToken(crypto.header_value(half + theirs), answer.token.revision, ends)

    def _to_master(self) -> dict[str, str]:
        return {
            "Host": MASTER_HANDSHAKE,
            HOST: MASTER_HANDSHAKE,
            SOURCE: self._identity.domain,
            PROTOCOL: "kuscia",
            "Content-Type": "application/json",
        }

    async def _send(
        self,
        step: str,
        method: str,
        path: str,
        shown: x509.Certificate | None,
        headers: Mapping[str, str],
        body: bytes = b"",
        seconds: float = _ANSWER,
    ) -> _MasterReply:
        trust: aiohttp.Fingerprint | bool = False
        if shown is not None:
            trust = aiohttp.Fingerprint(hashlib.sha256(shown.public_bytes(serialization.Encoding.DER)).digest())
        limits = aiohttp.ClientTimeout(total=seconds, sock_connect=_CONNECT)
        try:
            # A connection for each request: these are few, and the certificate is compared at each.
            async with (
                short_lived_session(timeout=limits, auto_decompress=False) as session,
                session.request(
                    method, self._url + path, headers=headers, data=body or None, ssl=trust, allow_redirects=False
                ) as response,
            ):
                headers_found = {name.lower(): value for name, value in response.headers.items()}
                return _MasterReply(response.status, headers_found, await _bounded(response))
        except aiohttp.ServerFingerprintMismatch as error:
            raise JoinFault("certificate", f"{self.address} shows another certificate than a moment ago") from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise JoinFault(step, f"no answer from {self.address}: {_why(error)}") from error


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > messages.LONGEST_BODY:
            break
    return b"".join(parts)[: messages.LONGEST_BODY]


def _unverified_tls() -> ssl.SSLContext:
    """To see the certificate; whether it is believed is decided before anything is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _why(error: BaseException) -> str:
    return str(error) or type(error).__name__
