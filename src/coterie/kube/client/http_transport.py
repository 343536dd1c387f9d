"""The transport to a server behind a socket: ours, K3s, any kube-apiserver.

aiohttp carries requests with TLS or through a proxy (`tls_carrier.py`). A node at rest sends none of those, only plain ones to
its own gateway and API socket, and `http/plain_client.py` does these in a fraction of the memory and time.

Connections are kept and shared. A watch holds one of its own, so their number is not limited. Whole answers have a
time limit; streams have one for silence only. A question that failed on a kept connection which the server had closed
meanwhile is asked again; a change is never sent twice, because nobody knows whether the first was carried out.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote, urlsplit

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.lazy_import import lazy_import
from coterie.http import plain_client
from coterie.kube.client.credentials import Credentials, credentials_for
from coterie.kube.client.kubeconfig import ClusterConnection
from coterie.kube.client.limits import ResponseLimits
from coterie.kube.client.transport import (
    Disconnected,
    LimitExceeded,
    LineSplitter,
    NotSent,
    ResponseTimeout,
    TransportRequest,
    TransportResponse,
)

if TYPE_CHECKING:
    from coterie.kube.client import tls_carrier
else:
    tls_carrier = lazy_import("coterie.kube.client.tls_carrier")

_PATH_SAFE = "/:@!$&'()*+,;=-._~"


class Carrier(Protocol):
    async def send(
        self, call: TransportRequest, target: str, headers: dict[str, str], limit: float | None
    ) -> TransportResponse:
        """`target` is the percent-encoded path and query, `limit` the seconds of `TransportRequest.timeout`."""

    async def close(self) -> None: ...


class HttpTransport:
    def __init__(
        self,
        connection: ClusterConnection,
        *,
        timeout: float = 30.0,
        user_agent: str = "coterie",
        credentials: Credentials | None = None,
        clock: Clock = SYSTEM_CLOCK,
        socket: Path | None = None,
        limits: ResponseLimits | None = None,
        lean: bool = False,
    ) -> None:
        """`socket`: a Unix socket by which the server is reached, whatever the connection's address says.
        `limits`: what the server may send; None: it is trusted. `lean`: also TLS is done without aiohttp, for small
        processes whose server is our own API server."""
        self._connection = connection
        self._socket = socket
        self._limits = limits
        self._lean = lean
        self._timeout = timeout
        self._credentials = credentials or credentials_for(connection, clock)
        self._headers = {"User-Agent": user_agent, "Accept-Encoding": "identity"}
        if connection.impersonate:
            self._headers["Impersonate-User"] = connection.impersonate
        self._ssl = tls_context(connection) if connection.server.startswith("https://") else None
        self._prefix = urlsplit(connection.server).path.rstrip("/")
        self._carrier: Carrier | None = None
        self._closed = False

    async def send(self, call: TransportRequest) -> TransportResponse:
        reply = await self._send_once(call)
        if reply.status == 401 and self._credentials.refused():
            reply = await self._send_once(call)
        return reply

    async def _send_once(self, call: TransportRequest) -> TransportResponse:
        headers = {**self._headers, **call.headers}
        authorization = await self._credentials.authorization()
        if authorization:
            headers["Authorization"] = authorization
        path = self._prefix + quote(call.path, safe=_PATH_SAFE)
        limit = call.timeout if call.timeout is not None else (None if call.stream else self._timeout)
        return await self._open().send(call, f"{path}?{call.query}" if call.query else path, headers, limit)

    def _open(self) -> Carrier:
        # Made at first use: connections belong to the running event loop.
        if self._closed:
            raise NotSent("the transport is closed")
        if self._carrier is None:
            parts = urlsplit(self._connection.server)
            origin = f"{parts.scheme}://{parts.netloc}"
            if self._socket is not None:
                self._carrier = PlainCarrier(origin, self._socket, self._limits)
            elif parts.scheme == "http" and parts.hostname and not (parts.username or self._connection.proxy_url):
                self._carrier = PlainCarrier(origin, (parts.hostname, parts.port or 80), self._limits)
            elif self._lean and parts.hostname and not (parts.username or self._connection.proxy_url):
                place, name = (parts.hostname, parts.port or 443), self._connection.tls_server_name
                self._carrier = PlainCarrier(origin, place, self._limits, self._ssl, name)
            else:
                self._carrier = tls_carrier.SecureCarrier(origin, self._connection, self._ssl, self._limits)
        return self._carrier

    async def close(self) -> None:
        self._closed = True
        if self._carrier is not None:
            await self._carrier.close()
            self._carrier = None


def line_splitter(limits: ResponseLimits | None) -> LineSplitter:
    return LineSplitter() if limits is None else LineSplitter(limits.line, limits.line_seconds)


class PlainCarrier:
    """To our own gateway, to the API socket of our own node: without aiohttp, and mostly without TLS."""

    def __init__(
        self,
        origin: str,
        place: tuple[str, int] | Path,
        limits: ResponseLimits | None = None,
        tls: ssl.SSLContext | None = None,
        server_name: str = "",
    ) -> None:
        self._origin = origin
        self._limits = limits
        self._host = urlsplit(origin).netloc
        self._pool = plain_client.Pool(place, tls=tls, server_name=server_name)

    async def send(
        self, call: TransportRequest, target: str, headers: dict[str, str], limit: float | None
    ) -> TransportResponse:
        try:
            async with asyncio.timeout(limit):
                response = await self._pool.request(call.method, target, {"Host": self._host, **headers}, call.body)
                if call.stream and response.status < 300:
                    return TransportResponse(
                        response.status, response.headers, lines=_PlainLines(response, limit, self._limits)
                    )
                with contextlib.closing(response):
                    most = self._limits.body if self._limits is not None else None
                    body = await response.read(most)
                    if most is not None and len(body) > most:
                        raise LimitExceeded(f"{call.method} {call.path}: the answer has more than {most} bytes")
                    return TransportResponse(response.status, response.headers, body)
        except plain_client.NotConnected as error:
            raise NotSent(f"cannot connect to {self._origin}: {error}") from error
        except TimeoutError as error:
            raise ResponseTimeout(f"{call.method} {call.path}: no answer in time") from error
        except plain_client.Broken as error:
            raise Disconnected(f"{call.method} {call.path}: {error}") from error

    async def close(self) -> None:
        await self._pool.close()


class _PlainLines:
    def __init__(
        self, response: plain_client.PlainResponse, limit: float | None, limits: ResponseLimits | None
    ) -> None:
        self._response = response
        self._limit = limit
        self._splitter = line_splitter(limits)

    async def chunk(self) -> bytes:
        """Bytes as they come, for streams whose lines mean nothing; empty at the end."""
        try:
            if self._limit is None:
                return await self._response.chunk()
            async with asyncio.timeout(self._limit):
                return await self._response.chunk()
        except TimeoutError as error:
            raise ResponseTimeout("the server was silent for too long") from error
        except plain_client.Broken as error:
            raise Disconnected(f"the stream broke: {error}") from error

    async def read(self) -> list[bytes]:
        return await self._splitter.next_lines(self.chunk)

    async def close(self) -> None:
        self._response.close()
        await asyncio.sleep(0)  # the socket itself is closed in the next turn of the loop


def tls_context(connection: ClusterConnection) -> ssl.SSLContext:
    """Who we trust and who we are. Without a CA of its own the system's authorities count."""
    if connection.ca:
        context = ssl.create_default_context(cadata=connection.ca.decode("ascii", "replace"))
    else:
        context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if connection.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if connection.certificate:
        # The ssl module reads a key only from a file; this one is private and gone before anything is sent.
        with tempfile.TemporaryDirectory() as folder:
            pair = Path(folder) / "pair.pem"
            pair.touch(mode=0o600)
            pair.write_bytes(connection.certificate + b"\n" + connection.key)
            context.load_cert_chain(pair)
    return context
