"""A small HTTP/1.1 client for servers on this machine: a Unix socket, or TCP without TLS.

A node calls its own gateway, its Envoy's admin socket and its API socket all day long, and nothing else. aiohttp would
cost it 12 MB for that; this is httptools' parser and a pool of connections. Not here: TLS, proxies, redirects, cookies,
compression, uploads in pieces. Whoever needs those takes aiohttp.

    pool = Pool(("127.0.0.1", 80))
    async with asyncio.timeout(10):
        response = await pool.request("GET", "/ready", {"Host": "envoy"})
        text = await response.read()

Time limits are the caller's: a request that is cancelled closes its connection.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import cast

import httptools

MAX_HEAD_BYTES = 64 * 1024
KEEP = 60.0
"""Seconds for which an unused connection stays open."""
_BUFFER = 512 * 1024
"""Bytes of a body that may wait for the reader before the server has to."""
_REPEATABLE = frozenset(("GET", "HEAD"))
_WITHOUT_BODY = frozenset(("GET", "HEAD", "OPTIONS", "TRACE"))
_BAD_IN_TARGET = re.compile(r"[^\x21-\x7e]")
_BAD_IN_HEADER = re.compile(r"[\r\n\0]")


class HttpFailure(Exception):
    """There is no response, or not all of it."""


class NotConnected(HttpFailure):
    """The server could not be reached: the request was certainly not sent."""


class Broken(HttpFailure):
    """The connection ended, or what came is not HTTP: whether the request was carried out is unknown."""


class PlainResponse:
    """`headers` have lower-case names. The body must be read to its end, or `close` called."""

    __slots__ = ("_chunks", "_connection", "_failure", "_finished", "_waiter", "_waiting", "headers", "status")

    def __init__(self, connection: _Connection) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._connection = connection
        self._chunks: list[bytes] = []
        self._waiting = 0
        self._finished = False
        self._failure: Broken | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def complete(self) -> bool:
        """All of the body has come; some may still be unread."""
        return self._finished

    @property
    def drained(self) -> bool:
        """All of the body has come and was read."""
        return self._finished and not self._chunks

    async def chunk(self) -> bytes:
        """What has come of the body since the last call; empty at its end."""
        while not self._chunks:
            if self._failure is not None:
                raise self._failure
            if self._finished:
                return b""
            await self._wait_for_wake()
        found = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._waiting = 0
        if not self._finished:
            self._connection.resume()
        return found

    async def read(self, limit: int | None = None) -> bytes:
        """The whole body; of one that is longer than `limit`, a little more than that."""
        pieces, size = [], 0
        while piece := await self.chunk():
            pieces.append(piece)
            size += len(piece)
            if limit is not None and size > limit:
                self.close()
                break
        return b"".join(pieces)

    def close(self) -> None:
        """Do without the rest."""
        if not self._finished:
            self._connection.abort()

    async def head(self) -> None:
        """Until status and headers are there."""
        while not self.status:
            if self._failure is not None:
                raise self._failure
            await self._wait_for_wake()

    def received(self, data: bytes) -> None:
        self._chunks.append(data)
        self._waiting += len(data)
        if self._waiting > _BUFFER:
            self._connection.pause()
        self.wake()

    def finish(self) -> None:
        self._finished = True
        self.wake()

    def fail(self, failure: Broken) -> None:
        if not self._finished and self._failure is None:
            self._failure = failure
            self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait_for_wake(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, pool: Pool) -> None:
        self.idle_since = 0.0
        self.used = False
        self.lost = asyncio.get_running_loop().create_future()
        self._pool = pool
        self._transport: asyncio.Transport
        self._parser = httptools.HttpResponseParser(self)
        self._response: PlainResponse | None = None
        self._method = ""
        self._headers: dict[str, str] = {}
        self._head_bytes = 0
        self._without_body = 0
        """Bytes since the last of the body: ends of chunks, their extensions, trailers."""
        self._paused = False

    async def exchange(self, method: str, request: bytes) -> PlainResponse:
        self._method, self._headers, self._head_bytes, self._without_body = method, {}, 0, 0
        self._response = response = PlainResponse(self)
        self._transport.write(request)
        try:
            await response.head()
        finally:
            if not response.status:
                self.abort()
        return response

    def abort(self) -> None:
        self._transport.abort()

    @property
    def usable(self) -> bool:
        return not self._transport.is_closing()

    def pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            if self.usable:
                self._transport.resume_reading()

    # asyncio calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:
            self.abort()  # nobody asked
            return
        if not response.status:
            self._head_bytes += len(data)
        else:
            self._without_body += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(Broken(f"the answer is not HTTP: {error}"))
            return
        if not response.status and self._head_bytes > MAX_HEAD_BYTES:
            self._fail(Broken(f"the answer has more than {MAX_HEAD_BYTES} bytes of headers"))
        elif self._without_body > MAX_HEAD_BYTES:
            self._fail(Broken(f"the answer has more than {MAX_HEAD_BYTES} bytes of trailers or between its chunks"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.forget(self)
        if not self.lost.done():
            self.lost.set_result(None)
        response, self._response = self._response, None
        if response is None:
            return
        if exc is None and response.status and not self._headers.keys() & {"content-length", "transfer-encoding"}:
            response.finish()  # such a body ends with its connection
        else:
            response.fail(Broken(str(exc) if exc and str(exc) else "the server closed the connection"))

    # httptools calls these.

    def on_message_begin(self) -> None:
        if self._response is None:
            self.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("utf-8", "surrogateescape")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200 or self._response is None:
            return
        self._response.headers = self._headers
        self._response.status = status
        if self._method == "HEAD":
            # The parser would wait for the body that the headers tell of.
            self._response.finish()
            self._response = None
            self.abort()
        else:
            self._response.wake()

    def on_body(self, data: bytes) -> None:
        self._without_body = 0
        if self._response is not None:
            self._response.received(data)

    def on_message_complete(self) -> None:
        response = self._response
        if response is None:
            return
        if not response.status:
            self._headers = {}  # 100 Continue and the like: the answer is still to come
            return
        self._response = None
        response.finish()
        self.resume()
        if self._parser.should_keep_alive():
            self._pool.keep(self)
        else:
            self.abort()

    def _fail(self, failure: Broken) -> None:
        if self._response is not None:
            self._response.fail(failure)
        self.abort()


class Pool:
    """The connections to one server: as many as there are requests at once. Unused ones are kept for the next."""

    def __init__(
        self,
        place: tuple[str, int] | Path,
        *,
        keep: float = KEEP,
        connecting: float = 10.0,
        tls: ssl.SSLContext | None = None,
        server_name: str = "",
        connect: Callable[[str, int], Awaitable[socket.socket]] | None = None,
    ) -> None:
        """`keep` 0: a connection for each request. `connecting`: seconds, then TimeoutError. `server_name`: whom the
        certificate must name, if not the host. `connect`: how a host in another network is reached; OSError if it is not."""
        self._place = place
        self._connect_socket = connect
        self._tls = tls
        self._server_name = server_name
        self._connecting = connecting
        self._keep = keep
        self._open: set[_Connection] = set()
        self._idle: list[_Connection] = []
        self._sweeping: asyncio.TimerHandle | None = None

    async def request(self, method: str, target: str, headers: Mapping[str, str], body: bytes = b"") -> PlainResponse:
        """`headers` need a Host. A question that fails on a kept connection, which the server may have closed meanwhile,
        is asked again; a change is never sent twice."""
        request = _request(method, target, headers, body, keep=self._keep > 0)
        while True:
            connection = self._kept() or await self._connect()
            repeatable = connection.used and method in _REPEATABLE
            connection.used = True
            try:
                return await connection.exchange(method, request)
            except Broken:
                if not repeatable:
                    raise

    async def connected(self, timeout: float) -> None:
        """There is an unused connection, so a request that fails from here on was perhaps carried out. Raises NotConnected."""
        if not any(each.usable for each in self._idle):
            try:
                async with asyncio.timeout(timeout):
                    self.keep(await self._connect())
            except TimeoutError:
                raise NotConnected("it does not accept connections") from None

    async def close(self) -> None:
        """Ends requests that are under way, too."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        ending = list(self._open)
        for connection in ending:
            connection.abort()
        await asyncio.gather(*(connection.lost for connection in ending))

    def keep(self, connection: _Connection) -> None:
        if self._keep <= 0:
            connection.abort()
            return
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.append(connection)
        if self._sweeping is None:
            self._sweeping = loop.call_later(self._keep, self._sweep)

    def forget(self, connection: _Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _kept(self) -> _Connection | None:
        while self._idle:
            found = self._idle.pop()
            if found.usable:
                return found
        return None

    def _sweep(self) -> None:
        self._sweeping = None
        loop = asyncio.get_running_loop()
        fresh = [each for each in self._idle if each.idle_since > loop.time() - self._keep]
        for connection in self._idle:
            if connection not in fresh:
                connection.abort()
        self._idle = fresh
        if fresh:
            self._sweeping = loop.call_at(fresh[0].idle_since + self._keep, self._sweep)

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._connecting):
            try:
                if isinstance(self._place, Path):
                    _, made = await loop.create_unix_connection(lambda: _Connection(self), str(self._place))
                else:
                    name = (self._server_name or self._place[0]) if self._tls is not None else None
                    if self._connect_socket is not None:
                        connected = await self._connect_socket(*self._place)
                        _, made = await loop.create_connection(
                            lambda: _Connection(self), sock=connected, ssl=self._tls, server_hostname=name
                        )
                    else:
                        _, made = await loop.create_connection(
                            lambda: _Connection(self), *self._place, ssl=self._tls, server_hostname=name
                        )
            except (OSError, UnicodeError) as error:
                raise NotConnected(str(error)) from error
        self._open.add(made)
        return made


def _request(method: str, target: str, headers: Mapping[str, str], body: bytes, *, keep: bool) -> bytes:
    if _BAD_IN_TARGET.search(target):
        raise ValueError("the target of a request must be percent-encoded")
    lines = [f"{method} {target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if any(_BAD_IN_HEADER.search(line) for line in lines):
        raise ValueError("a header must not hold line ends")
    given = {name.lower() for name in headers}
    if "accept" not in given:
        lines.append("Accept: */*")
    if "accept-encoding" not in given:
        lines.append("Accept-Encoding: identity")
    if body or method not in _WITHOUT_BODY:
        lines.append(f"Content-Length: {len(body)}")
    if body and "content-type" not in given:
        lines.append("Content-Type: application/octet-stream")
    if not keep:
        lines.append("Connection: close")
    return "\r\n".join((*lines, "", "")).encode("utf-8") + body
