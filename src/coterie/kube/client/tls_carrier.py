"""Requests with TLS, or through a proxy: aiohttp carries them. Loaded by the first of them (see `http_transport.py`)."""

from __future__ import annotations

import asyncio
import ssl

import aiohttp
from yarl import URL

from coterie.http.client_sessions import close_session, tcp_connector
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

_CONNECT_TIMEOUT = 10.0
_QUESTIONS = frozenset(("GET", "HEAD"))


class SecureCarrier:
    def __init__(
        self,
        origin: str,
        connection: ClusterConnection,
        tls: ssl.SSLContext | None,
        limits: ResponseLimits | None = None,
    ) -> None:
        self._origin = origin
        self._limits = limits
        self._connection = connection
        self._ssl = tls
        self._session: aiohttp.ClientSession | None = None

    async def send(
        self, call: TransportRequest, target: str, headers: dict[str, str], limit: float | None
    ) -> TransportResponse:
        try:
            response = await self._open_session().request(
                call.method,
                URL(self._origin + target, encoded=True),
                headers=headers,
                data=call.body or None,
                allow_redirects=False,
                timeout=_timeouts(call, limit),
                server_hostname=self._connection.tls_server_name or None,
                proxy=self._connection.proxy_url or None,
            )
            answered = {name.lower(): value for name, value in response.headers.items()}
            if call.stream and response.status < 300:
                return TransportResponse(response.status, answered, lines=_SecureLines(response, self._limits))
            async with response:
                body = await _read(response, self._limits.body if self._limits is not None else None)
                return TransportResponse(response.status, answered, body)
        except aiohttp.ClientConnectorError as error:
            raise NotSent(f"cannot connect to {self._origin}: {error.os_error or error}") from error
        except TimeoutError as error:
            raise ResponseTimeout(f"{call.method} {call.path}: no answer in time") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise Disconnected(f"{call.method} {call.path}: {error or type(error).__name__}") from error

    def _open_session(self) -> aiohttp.ClientSession:
        # Made at first use: a session belongs to the running event loop.
        if self._session is None:
            connector = tcp_connector(limit=0, ssl=self._ssl or False, keepalive_timeout=60)
            self._session = aiohttp.ClientSession(
                connector=connector, auto_decompress=False, read_bufsize=1 << 18, middlewares=(_change_once,)
            )
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await close_session(self._session)
            self._session = None


def _timeouts(call: TransportRequest, limit: float | None) -> aiohttp.ClientTimeout:
    if call.stream:
        return aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT, sock_read=limit)
    return aiohttp.ClientTimeout(total=limit, sock_connect=_CONNECT_TIMEOUT)


async def _read(response: aiohttp.ClientResponse, limit: int | None) -> bytes:
    if limit is None:
        return await response.read()
    pieces, size = [], 0
    while piece := await response.content.readany():
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            response.close()
            raise LimitExceeded(f"{response.method} {response.url.path}: the answer has more than {limit} bytes")
    return b"".join(pieces)


class _SecureLines:
    def __init__(self, response: aiohttp.ClientResponse, limits: ResponseLimits | None) -> None:
        self._response = response
        self._splitter = LineSplitter() if limits is None else LineSplitter(limits.line, limits.line_seconds)

    async def chunk(self) -> bytes:
        """Bytes as they come, for streams whose lines mean nothing; empty at the end."""
        try:
            return await self._response.content.readany()
        except TimeoutError as error:
            raise ResponseTimeout("the server was silent for too long") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise Disconnected(f"the stream broke: {error or type(error).__name__}") from error

    async def read(self) -> list[bytes]:
        return await self._splitter.next_lines(self.chunk)

    async def close(self) -> None:
        connection = self._response.connection
        transport = connection.transport if connection is not None else None
        self._response.close()
        if transport is not None:
            # TLS would wait for the server's farewell, and a program that stops meanwhile would leak the socket.
            transport.abort()
        await asyncio.sleep(0)  # the socket itself is closed in the next turn of the loop


async def _change_once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """aiohttp repeats PUT and DELETE over a new connection. If that one is refused, the error would say "not sent"."""
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
        if request.method in _QUESTIONS:
            raise
        raise Disconnected(f"{request.method} {request.url.path}: {error or type(error).__name__}") from error
