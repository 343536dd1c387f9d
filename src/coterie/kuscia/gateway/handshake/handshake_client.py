"""How a handshake leaves us: through our own gateway's socket for the node, as every other call to a partner.

The host names the destination, so the gateway's table decides on the way: the partner's address, its TLS, its path prefix,
or the third domain that carries the route. It adds who we are, and the token in use, which makes a probe a proof.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from coterie.http.plain_client import HttpFailure, Pool
from coterie.kuscia.gateway.addresses import SocketAddress
from coterie.kuscia.gateway.handshake.messages import MAX_BODY, HandshakeFault, readable
from coterie.kuscia.gateway.names import ERROR, HANDSHAKE_SERVICE, HOST, SOURCE

CALL_SECONDS = 10.0
_PATH = "/handshake"
_AT_ONCE = 256


class PartnerUnreachable(HandshakeFault):
    """The partner's handshake server was not reached, or something else answered in its place."""


@dataclass(frozen=True, slots=True)
class HandshakeTarget:
    source: str
    destination: str

    @property
    def host(self) -> str:
        return f"{HANDSHAKE_SERVICE}.{self.destination}.svc"


class HandshakeTransport(Protocol):
    async def call(self, target: HandshakeTarget, headers: Mapping[str, str], body: bytes | None) -> bytes:
        """POST with a body, GET without. The body of a 200; everything else is NoAnswer."""


class HttpHandshakeTransport:
    def __init__(self, gateway: SocketAddress, seconds: float = CALL_SECONDS) -> None:
        """`gateway`: where it listens for the node itself."""
        self._pool = Pool(Path(gateway.host) if gateway.is_socket else (gateway.host, gateway.port))
        self._seconds = seconds
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def call(self, target: HandshakeTarget, headers: Mapping[str, str], body: bytes | None) -> bytes:
        method = "GET" if body is None else "POST"
        sent = {"Host": target.host, HOST: target.host, SOURCE: target.source, **headers}
        if body is not None:
            sent["Content-Type"] = "application/json"
        try:
            async with asyncio.timeout(self._seconds), self._turns:
                response = await self._pool.request(method, _PATH, sent, body or b"")
                with contextlib.closing(response):
                    content = await response.read(MAX_BODY)
        except TimeoutError as error:
            raise PartnerUnreachable(f"no answer within {self._seconds:g} s") from error
        except HttpFailure as error:
            raise PartnerUnreachable(f"{type(error).__name__}: {readable(str(error))}") from error
        if len(content) > MAX_BODY:
            raise PartnerUnreachable(f"the answer has more than {MAX_BODY} bytes")
        if response.status != 200:
            raise PartnerUnreachable(
                f"HTTP {response.status}: {readable(response.headers.get(ERROR.lower()) or content.decode('utf-8', 'replace'))}"
            )
        return content

    async def close(self) -> None:
        await self._pool.close()
