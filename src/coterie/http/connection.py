"""One HTTP/1.1 connection: bytes in, `Request` out, `Response` back; streams, tunnels and slow clients included.

The parser is httptools (llhttp). A handler that answers at once is served without a task, so that a GET costs one
callback. Requests of one connection are answered in order; reading is paused while one is under way, while a
response is not taken by the client, and so a client can neither pipeline memory full nor reorder answers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple, cast
from urllib.parse import unquote_to_bytes

import httptools

from coterie.http.errors import HttpProblem, bad_request, too_large
from coterie.http.messages import Peer, Request, Response, Stream, Tunnel
from coterie.http.refusal_log import UNAUTHORIZED

if TYPE_CHECKING:
    from coterie.http.server import HttpServer, HttpShares
from coterie.base.log import logger

log = logger("apiserver.http")

MAX_URL_BYTES = 32 * 1024
MAX_HEADER_BYTES = 64 * 1024
MAX_EARLY_BYTES = 1024 * 1024
LINGER = 0.5
"""Seconds in which a client that was refused may read why."""
_PIECE = 128 * 1024
"""Bytes of an answer that are handed to TLS at a time."""

_STATUS_LINES: dict[int, bytes] = {int(code): f"HTTP/1.1 {int(code)} {code.phrase}\r\n".encode() for code in HTTPStatus}
_NO_CACHE = b"Cache-Control: no-cache, private\r\n"
# A client offers each sub-protocol it speaks in a line of its own.
_LISTS = frozenset(("accept", "sec-websocket-protocol", "x-stream-protocol-version"))
_COMMON_NAMES = {
    name.encode(): name.lower()
    for name in (
        "Accept",
        "Accept-Encoding",
        "Authorization",
        "Connection",
        "Content-Length",
        "Content-Type",
        "Host",
        "User-Agent",
    )
}
CREDENTIALS = frozenset(("authorization", "token"))
"""Headers by which callers of the API and of KusciaAPI say who they are."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class _QueuedRequest(NamedTuple):
    """A request that has arrived, and how its connection goes on afterwards."""

    request: Request
    keep_alive: bool
    upgrade: bool


class _SharedRequest:
    __slots__ = ("body", "caller")

    def __init__(self, caller: str) -> None:
        self.caller = caller
        self.body = 0


class HttpConnection(asyncio.Protocol):
    __slots__ = (
        "_body",
        "_body_size",
        "_busy",
        "_closing",
        "_drained",
        "_early",
        "_eof",
        "_header_bytes",
        "_headers",
        "_keep_alive",
        "_parser",
        "_queue",
        "_raw",
        "_receiving",
        "_server",
        "_shared",
        "_sink",
        "_task",
        "_tunnel",
        "_upgrade",
        "_url",
        "_write_paused",
        "_writing",
        "deadline",
        "known",
        "peer",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[_QueuedRequest] = deque()
        self._busy = False
        self._receiving = False
        """A request has begun to arrive and is not complete."""
        self._eof = False
        self._raw = False
        """The client asked for another protocol: what follows is not HTTP."""
        self._closing = False
        self._write_paused = False
        self._writing = False
        self._drained: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._sink: _ChunkedSink | None = None
        self._tunnel: Tunnel | None = None
        self._upgrade = False
        """The request being served asks for another protocol."""
        self._early = b""
        self._keep_alive = True
        self._shared: deque[_SharedRequest] = deque()
        """Requests that count against the share of their caller, the oldest first; the last may be arriving."""
        self.deadline = server.now + server.limits.header_timeout
        """Loop time at which the server's sweeper drops this connection; 0 while the server owes the answer."""
        self.known = False
        """Somebody has shown who it is: by a certificate, or by a credential that was not refused."""
        self.peer = Peer()
        self._start_message()

    def _start_message(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._body_size = 0
        self._header_bytes = 0

    # -- connection ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.peer = self._server.peer_of(self.transport)
        if not self._server.register(self):
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._server.unregister(self)
        self._release_body()
        while self._shared:
            self._release_share()
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if self._task is not None and (not self._writing or self._server.cancels):
            self._task.cancel()
        if self._sink is not None:
            self._sink.lost()
        if self._tunnel is not None:
            tunnel, self._tunnel = self._tunnel, None
            tunnel.closed()

    def eof_received(self) -> bool:
        # A client may half-close after its requests and still wait for the answers. But a stream has no end of its own,
        # and only this tells that its reader left.
        self._eof = True
        if self._server.cancels:
            return False
        return self._busy and self._sink is None and self._tunnel is None and not self.peer.encrypted

    def pause_writing(self) -> None:
        self._write_paused = True
        self.deadline = self._server.now + self._server.limits.write_timeout

    def resume_writing(self) -> None:
        self._write_paused = False
        self._set_deadline()
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None
        if not self._busy:
            self._next()

    async def drained(self) -> None:
        if self._closing:
            raise ConnectionResetError("the client went away")
        if self._write_paused:
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drained)
            if self._closing:
                raise ConnectionResetError("the client went away")

    # -- parsing ------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._tunnel is not None:
            self._tunnel.received(data)
            return
        if self._closing:
            return
        if self._raw:
            # The client may speak the new protocol before it has our 101; what it says waits for the tunnel.
            self._early += data
            if len(self._early) > MAX_EARLY_BYTES:
                self.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :] if upgrade.args and isinstance(upgrade.args[0], int) else b""
            if rest:
                self.data_received(rest)
        except httptools.HttpParserError as problem:
            self._fail(bad_request(f"the request is not valid HTTP/1.1: {problem}"))

    def on_message_begin(self) -> None:
        self._start_message()
        self._receiving = True
        if not self._busy and not self._write_paused:
            self.deadline = self._server.now + self._server.limits.header_timeout

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > MAX_URL_BYTES:
            self._fail(too_large("the request URL is too long", HTTPStatus.REQUEST_URI_TOO_LONG))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MAX_HEADER_BYTES:
            self._fail(too_large("the request headers are too large", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))
            return
        key = _COMMON_NAMES.get(name) or name.decode("latin-1").lower()
        text = value.decode("latin-1")
        if key in self._headers:
            # Only these may stand several times and mean several values; of others the last counts.
            if key.startswith("impersonate-"):
                text = f"{self._headers[key]}\n{text}"
            elif key in _LISTS:
                text = f"{self._headers[key]}, {text}"
        self._headers[key] = text

    def on_headers_complete(self) -> None:
        if not self._write_paused:
            self._set_deadline()
        length = self._headers.get("content-length")
        if length is not None and length.isdigit() and int(length) > self._server.limits.max_body:
            self._fail(self._too_large())
        elif not self._take_share():
            self._fail(
                HttpProblem(429, "TooManyRequests", "too many requests of one caller; retry later", retry_after=1)
            )
        elif self._headers.get("expect", "").lower() == "100-continue" and not self._busy:
            # While another answer is under way it would land in its midst; the client will send the body unasked.
            self.transport.write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        if self._closing:
            return
        self._body_size += len(body)
        self._server.body_bytes += len(body)
        fits = self._server.shares is None or self._body_fits_share(self._server.shares, len(body))
        if self._body_size > self._server.limits.max_body:
            self._fail(self._too_large())
        elif self._server.body_bytes > self._server.limits.max_body_in_flight or not fits:
            message = "the server holds too many request bodies; retry later"
            self._fail(HttpProblem(429, "TooManyRequests", message, retry_after=1))
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self._closing:
            return
        if self._server.shares is None:
            self._server.body_bytes -= self._body_size
        self._body_size = 0
        self._receiving = False
        method = self._parser.get_method().decode("ascii")
        keep_alive = self._parser.should_keep_alive()
        self._raw = self._parser.should_upgrade()
        url = self._url
        path, _, query = url.partition(b"?")
        try:
            if b"%" in path:
                path = unquote_to_bytes(path)
            if path[:1] != b"/":
                path = _path_of_absolute(path)
            request = Request(
                method, path.decode(), query.decode("ascii"), self._headers, b"".join(self._body), self.peer
            )
        except UnicodeDecodeError:
            self._fail(bad_request("the request path is not valid UTF-8"))
            return
        self._body = []
        waiting = _QueuedRequest(request, keep_alive, self._raw)
        if self._busy or self._queue or self._write_paused:
            self._queue.append(waiting)
            self.transport.pause_reading()
        else:
            self._serve(waiting)

    def _release_body(self) -> None:
        """What has arrived of a request that will not be served."""
        if self._server.shares is None:
            self._server.body_bytes -= self._body_size
        elif self._body_size:
            self._release_shared_body(self._shared[-1])
        self._body_size = 0
        self._body = []

    # -- shares of callers --------------------------------------------------------------------------------------

    def _take_share(self) -> bool:
        shares, server = self._server.shares, self._server
        if shares is None:
            return True
        caller = shares.caller_of(self._headers)
        running = server.requests_of.get(caller, 0)
        if running >= shares.max_requests:
            return False
        server.requests_of[caller] = running + 1
        self._shared.append(_SharedRequest(caller))
        return True

    def _body_fits_share(self, shares: HttpShares, size: int) -> bool:
        """It is counted, whether or not it fits."""
        request, server = self._shared[-1], self._server
        request.body += size
        held = server.body_bytes_of[request.caller] = server.body_bytes_of.get(request.caller, 0) + size
        return held <= shares.max_body

    def _release_share(self) -> None:
        """Of the oldest request: it was answered, or nobody waits for the answer."""
        request = self._shared.popleft()
        _subtract(self._server.requests_of, request.caller, 1)
        if request.body:
            self._release_shared_body(request)

    def _release_shared_body(self, request: _SharedRequest) -> None:
        self._server.body_bytes -= request.body
        _subtract(self._server.body_bytes_of, request.caller, request.body)
        request.body = 0

    def _too_large(self) -> HttpProblem:
        return too_large(f"the request body is larger than the limit of {self._server.limits.max_body} bytes")

    # -- serving ------------------------------------------------------------------------------------------------

    def _serve(self, waiting: _QueuedRequest) -> None:
        request, self._keep_alive, self._upgrade = waiting
        self._busy = True
        # A write whose client leaves is finished all the same, so that it is known how it ended.
        self._writing = request.method not in ("GET", "HEAD")
        self.deadline = 0.0
        self._server.requests.served += 1
        try:
            answer = self._server.handler(request)
        except Exception as problem:  # noqa: BLE001 - the edge of one request: report, answer 500, serve the others
            answer = self._crashed(request, problem)
        if isinstance(answer, Response):
            self._answer(request, answer)
        else:
            self._task = self._server.tasks.create_task(
                self._serve_later(request, answer), name=f"http {request.method} {request.path}"
            )

    async def _serve_later(self, request: Request, pending: Awaitable[Response]) -> None:
        try:
            response = await pending
        except Exception as problem:  # noqa: BLE001 - as above
            response = self._crashed(request, problem)
        self._task = None
        if self._closing:
            _discard(response)
        else:
            self._answer(request, response)

    def _crashed(self, request: Request, problem: Exception) -> Response:
        log.error(
            "Internal error while handling a request",
            error=problem,
            trace=True,
            method=request.method,
            path=request.path,
        )
        message = "the server failed inside; its log has the details"
        return self._server.problem_response(HttpProblem(500, "InternalError", message))

    def _answer(self, request: Request, response: Response) -> None:
        if response.status == UNAUTHORIZED:
            if self._server.refusals is not None:
                self._server.refusals.request(request)
        elif not self.known and (
            self.peer.certificate_user is not None
            or response.upgrade is not None
            or not self._server.credential_headers.isdisjoint(request.headers)
        ):
            self.known = True
            self._server.now_known(self)
        if response.upgrade is not None:
            self._start_tunnel(response)
            return
        head = self._head(response)
        if request.method == "HEAD" and response.stream is not None:
            _discard(response)
            self.transport.write(head + b"\r\n")
            self._finished()
            return
        if response.stream is None:
            body = response.body
            if request.method == "HEAD":
                body = b""
            head += self._length_lines(len(response.body)) + b"\r\n"
            if len(body) <= _PIECE:
                self.transport.write(head + body)
            else:
                self._write_big(head, body)
            self._finished()
            return
        sink: _ChunkedSink
        if response.stream_length >= 0:
            self._sink = sink = _SizedSink(self, response.stream)
            # The next piece is made while the last one is still being sent.
            self.transport.set_write_buffer_limits(high=2 * _PIECE, low=_PIECE)
            self.transport.write(head + self._length_lines(response.stream_length) + b"\r\n")
        else:
            self._sink = sink = _ChunkedSink(self, response.stream)
            self.transport.write(head + b"Transfer-Encoding: chunked\r\n\r\n")
        response.stream.opened(sink)

    def _write_big(self, head: bytes, body: bytes) -> None:
        """In pieces, so that the client decrypts the first while the next is encrypted, and no copy is as big."""
        write, view = self.transport.write, memoryview(body)
        write(head)
        for start in range(0, len(body), _PIECE):
            if self._closing:
                return
            write(view[start : start + _PIECE])

    def _head(self, response: Response) -> bytes:
        if response.headers:
            return self._make_head(response)
        heads, kind = self._server.plain_heads, (response.status, response.content_type)
        head = heads.get(kind)
        if head is None:
            head = heads[kind] = self._make_head(response)
        return head

    def _make_head(self, response: Response) -> bytes:
        line = _STATUS_LINES.get(response.status) or f"HTTP/1.1 {response.status} Status\r\n".encode()
        head = line + self._server.common_headers
        if response.content_type:
            head += b"Content-Type: %b\r\n" % response.content_type.encode("latin-1")
        if not any(name == "Cache-Control" for name, _ in response.headers):
            head += _NO_CACHE
        for name, value in response.headers:
            head += f"{name}: {value}\r\n".encode("latin-1", "replace")
        return head

    def _length_lines(self, length: int) -> bytes:
        if self._keep_alive and not self._upgrade and not self._server.stopping:
            return b"Content-Length: %d\r\n" % length
        return b"Content-Length: %d\r\nConnection: close\r\n" % length

    def _finished(self) -> None:
        self._busy = False
        if self._shared:
            self._release_share()
        done = self._eof and not self._queue
        if not self._keep_alive or self._upgrade or self._server.stopping or done:
            self._closing = True
            self.transport.close()
            return
        if not self._write_paused:
            self._set_deadline()
            if self._queue:
                asyncio.get_running_loop().call_soon(self._next)

    def _set_deadline(self) -> None:
        limits = self._server.limits
        if self._busy:
            self.deadline = 0.0
        else:
            idle = limits.idle_timeout
            if not self.known and self.peer.address:
                idle = min(idle, limits.header_timeout)
            self.deadline = self._server.now + (limits.body_timeout if self._receiving else idle)

    def _next(self) -> None:
        if self._closing or self._busy or self._write_paused or self._tunnel is not None:
            return
        if not self._queue:
            self.transport.resume_reading()
            return
        waiting = self._queue.popleft()
        if not self._queue:
            self.transport.resume_reading()
        self._serve(waiting)

    def _fail(self, problem: HttpProblem) -> None:
        """Answer a request that cannot be understood and close: what follows cannot be trusted either."""
        if self._closing:
            return
        self._closing = True
        self._release_body()
        if self._busy:
            self.transport.close()
            return
        response = self._server.problem_response(problem)
        body = response.body if self._parser.get_method() != b"HEAD" else b""
        self.transport.write(
            b"%bContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (self._head(response), len(response.body), body)
        )
        # Closing at once, with bytes of the client unread, would reset the connection and lose the answer.
        asyncio.get_running_loop().call_later(LINGER, self.transport.close)

    # -- streams and tunnels ------------------------------------------------------------------------------------

    def stream_ended(self, aborted: bool, last: bytes) -> None:
        self._sink = None
        if self._closing:
            return
        if aborted:
            self._closing = True
            self.transport.abort()
            return
        if last:
            self.transport.write(last)
        else:
            self.transport.set_write_buffer_limits()
        self._finished()

    def _start_tunnel(self, response: Response) -> None:
        tunnel = response.upgrade
        assert tunnel is not None
        lines = b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in response.headers)
        self.transport.write(_STATUS_LINES[101] + lines + b"\r\n")
        self._tunnel = tunnel
        tunnel.opened(_RawSink(self))
        if self._early:
            tunnel.received(self._early)
            self._early = b""

    def end(self) -> None:
        """The server stops: end streams, finish what is under way, close."""
        if self._sink is not None:
            self._sink.close()
        if self._tunnel is not None or not self._busy:
            self._closing = True
            self.transport.close()

    @property
    def idle(self) -> bool:
        """Nothing is under way and nothing waits to be sent."""
        return not self._busy and self._tunnel is None and not self.transport.get_write_buffer_size()

    def abort(self) -> None:
        self._closing = True
        self.transport.abort()


class _ChunkedSink:
    __slots__ = ("_connection", "_stream")
    _last = b"0\r\n\r\n"

    def __init__(self, connection: HttpConnection, stream: Stream) -> None:
        self._connection: HttpConnection | None = connection
        self._stream = stream

    @property
    def pending(self) -> int:
        return self._connection.transport.get_write_buffer_size() if self._connection is not None else 0

    def write(self, chunk: bytes) -> None:
        if self._connection is not None and chunk:
            self._connection.transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))

    async def drain(self) -> None:
        if self._connection is None:
            raise ConnectionResetError("the client went away")
        await self._connection.drained()

    def close(self) -> None:
        self._end(aborted=False)

    def abort(self) -> None:
        self._end(aborted=True)

    def lost(self) -> None:
        if self._connection is not None:
            self._connection = None
            self._stream.closed()

    def _end(self, aborted: bool) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._stream.closed()
            connection.stream_ended(aborted, self._last)


class _SizedSink(_ChunkedSink):
    """For a body whose length was announced: bytes as they are."""

    __slots__ = ()
    _last = b""

    def write(self, chunk: bytes) -> None:
        if self._connection is not None and chunk:
            self._connection.transport.write(chunk)


class _RawSink:
    """The sink of a tunnel: bytes as they are."""

    __slots__ = ("_connection",)

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection

    @property
    def pending(self) -> int:
        return self._connection.transport.get_write_buffer_size()

    def write(self, chunk: bytes) -> None:
        self._connection.transport.write(chunk)

    async def drain(self) -> None:
        await self._connection.drained()

    def close(self) -> None:
        self._connection.transport.close()

    def abort(self) -> None:
        self._connection.abort()

    def pause(self) -> None:
        self._connection.transport.pause_reading()

    def resume(self) -> None:
        self._connection.transport.resume_reading()


def _subtract(counts: dict[str, int], name: str, size: int) -> None:
    left = counts[name] - size
    if left:
        counts[name] = left
    else:
        del counts[name]


def _path_of_absolute(url: bytes) -> bytes:
    """The path of `http://host/path`, the form proxies may send."""
    _, separator, rest = url.partition(b"://")
    slash = rest.find(b"/")
    return rest[slash:] if separator and slash >= 0 else b"/"


def _discard(response: Response) -> None:
    """The client went away before its answer was ready: whoever stands behind it must still be told."""
    if response.stream is not None:
        response.stream.closed()
    if response.upgrade is not None:
        response.upgrade.closed()
