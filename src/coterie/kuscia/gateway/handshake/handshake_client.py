"""How a handshake leaves us: through the internal door of our own gateway, as every other call to a partner.

The host names the destination, so the gateway's table decides on the way: the partner's address, its TLS, its path prefix,
or the third domain that carries the route. It adds who we are, and the token in use, which makes a probe a proof.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import aiohttp

from coterie.http.client_sessions import part
from coterie.kuscia.gateway.handshake.messages import MAX_BODY, HandshakeFault, readable
from coterie.kuscia.gateway.model import Address
from coterie.kuscia.gateway.names import ERROR, HANDSHAKE_SERVICE, HOST, SOURCE

CALL_SECONDS = 10.0
_PATH = "/handshake"


class NoAnswer(HandshakeFault):
    """The partner's handshake server was not reached, or something else answered in its place."""


@dataclass(frozen=True, slots=True)
class Target:
    source: str
    destination: str

    @property
    def host(self) -> str:
        return f"{HANDSHAKE_SERVICE}.{self.destination}.svc"


class Caller(Protocol):
    async def call(self, target: Target, headers: Mapping[str, str], body: bytes | None) -> bytes:
        """POST with a body, GET without. The body of a 200; everything else is NoAnswer."""


class HttpCaller:
    def __init__(self, internal: Address, seconds: float = CALL_SECONDS) -> None:
        self._url = f"http://{internal}{_PATH}"
        self._timeout = aiohttp.ClientTimeout(total=seconds)
        self._session: aiohttp.ClientSession | None = None

    async def call(self, target: Target, headers: Mapping[str, str], body: bytes | None) -> bytes:
        method = "GET" if body is None else "POST"
        sent = {"Host": target.host, HOST: target.host, SOURCE: target.source, **headers}
        if body is not None:
            sent["Content-Type"] = "application/json"
        try:
            async with self._open().request(
                method, self._url, headers=sent, data=body, allow_redirects=False
            ) as response:
                content = await _bounded(response)
                if response.status != 200:
                    why = response.headers.get(ERROR) or content.decode("utf-8", "replace")
                    raise NoAnswer(f"HTTP {response.status}: {readable(why)}")
                return content
        except TimeoutError as error:
            raise NoAnswer(f"no answer within {self._timeout.total:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise NoAnswer(f"{type(error).__name__}: {readable(str(error))}") from error

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            # A cookie that a partner sets is no matter of another's.
            connector = aiohttp.TCPConnector(limit=256)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=self._timeout, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
            )
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await part(self._session)


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    content = bytearray()
    async for chunk in response.content.iter_chunked(16 * 1024):
        content += chunk
        if len(content) > MAX_BODY:
            raise NoAnswer(f"the answer has more than {MAX_BODY} bytes")
    return bytes(content)
