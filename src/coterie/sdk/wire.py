"""Calls over HTTP: JSON in POST requests, answers with a status, streams of objects."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from coterie.base.json_stream import Objects
from coterie.base.secret import SecretValue
from coterie.http.client_sessions import close_session, tcp_connector
from coterie.sdk.errors import Unauthorized, Unreachable, refused
from coterie.sdk.models import to_request

SERVER_NAME = "kusciaapi"
"""What every node's certificate is for, wherever the node is."""
_CONNECT, _ANSWER = 10.0, 120.0
_PIECE = 64 * 1024


@dataclass(frozen=True, slots=True)
class Address:
    """Where an API is and how one is known there."""

    url: str
    domain: str = ""
    """Whose API it is, where that is known."""
    token: SecretValue | None = None
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str = ""
    """The name in the server's certificate; empty: that in the address, or `kusciaapi` where `ca` is given."""

    def tls(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except OSError as problem:
            named = ", ".join(str(path) for path in (self.ca, self.certificate, self.key) if path is not None)
            raise Unreachable(f"the certificates cannot be used ({named}): {problem}") from problem
        return context


class Wire:
    """One session. Made inside the loop that uses it."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._url = address.url.rstrip("/")
        secure = self._url.startswith("https:")
        self._server_name = address.server_name or (SERVER_NAME if address.ca is not None else None)
        headers = {"Token": address.token.reveal()} if address.token is not None else {}
        self._session = aiohttp.ClientSession(
            connector=tcp_connector(ssl=address.tls() if secure else True, limit=0),
            headers={"Content-Type": "application/json", **headers},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT, sock_read=_ANSWER),
        )

    async def ask(self, path: str, request: dict[str, Any]) -> dict[str, Any]:
        """The answer without its status; raises what the status tells."""
        try:
            async with self._post(path, request) as response:
                answer = self._understood(response, await response.read())
        except (aiohttp.ClientError, OSError, TimeoutError) as problem:
            raise self._unreachable(problem) from problem
        status = answer.pop("status", None) or {}
        if status.get("code"):
            raise refused(int(status["code"]), str(status.get("message", "")), tuple(status.get("details") or ()))
        return answer

    async def pieces(
        self, path: str, request: dict[str, Any], silence: float | None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Of a stream. `silence`: how long nothing may come; None: as long as it likes."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT, sock_read=silence)
        objects = Objects()
        try:
            async with self._post(path, request, timeout) as response:
                if response.status != 200:
                    self._understood(response, await response.read())
                async for chunk in response.content.iter_chunked(_PIECE):
                    for piece in objects.feed(chunk):
                        yield piece
        except (aiohttp.ClientError, OSError, TimeoutError) as problem:
            raise self._unreachable(problem) from problem
        except ValueError as problem:
            raise self._strange(200) from problem

    async def close(self) -> None:
        await close_session(self._session)

    def _post(self, path: str, request: dict[str, Any], timeout: aiohttp.ClientTimeout | None = None) -> Any:
        more: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
        return self._session.post(
            self._url + path,
            data=json.dumps(to_request(request)).encode(),
            server_hostname=self._server_name,
            allow_redirects=False,  # the token is for this address only
            **more,
        )

    def _understood(self, response: aiohttp.ClientResponse, body: bytes) -> dict[str, Any]:
        if response.status == 401:
            raise Unauthorized(f"{self._url} does not take the token, or not for this; see var/certs/token of the node")
        try:
            answer = json.loads(body)
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or (response.status != 200 and "status" not in answer):
            raise self._strange(response.status)
        return answer

    def _strange(self, status: int) -> Unreachable:
        return Unreachable(f"{self._url} answers {status}, not as KusciaAPI does; is it the right port?")

    def _unreachable(self, problem: Exception) -> Unreachable:
        return Unreachable(f"{self._url} cannot be reached: {str(problem) or type(problem).__name__}; is the node up?")
