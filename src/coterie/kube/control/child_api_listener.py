"""The way of a serving child to the API: a socket of its node, which passes on what the child needs and no more.

    child ──HTTP over a socket in the node's private directory──> ApiDoor ──the node's own client──> API

The process that reads what others send has no credential of its own, and can do no more than `allowed` says even if somebody
took it over. The node's way to the API, in-process or through gateways, is of no concern to it. Watches and followed logs
are carried too, at the speed of their reader. The child also says here that it serves, and that it is in use.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qsl

import orjson

from coterie.http.messages import Request, Response
from coterie.http.server import HttpServer
from coterie.http.streamed_body import StreamedBody, TruncatedBody
from coterie.kube.api.status_response import status_response
from coterie.kube.client.transport import ByteStream, LineStream, Transport, TransportError, TransportRequest

READY = "/ready"
USED = "/used"
_PASSED_ON = ("accept", "content-type", "user-agent")
_ENDLESS = frozenset(("watch", "follow"))
_YES = frozenset(("1", "t", "T", "true", "True", "TRUE"))

Allowed = Callable[[str, str, str], bool]
"""Of method, path and query."""


class ChildApiListener:
    """The node's end; the child's is in `apisocket`."""

    def __init__(
        self,
        path: Path,
        transport: Transport,
        *,
        who: str,
        allowed: Allowed,
        ready: Callable[[], None],
        used: Callable[[], None] = lambda: None,
        asked: Callable[[], None] = lambda: None,
    ) -> None:
        """`who`: the child, as refusals call it: "a data mesh". `asked` is called with each request for the API."""
        self.path = path
        self._transport = transport
        self._who = who
        self._allowed = allowed
        self._asked = asked
        self._notifications = {READY: ready, USED: used}
        self._http = HttpServer(self._handle, problem_response=status_response)

    async def open(self) -> None:
        await self._http.serve(private_socket(self.path))

    async def close(self) -> None:
        await self._http.stop(1.0)
        self.path.unlink(missing_ok=True)

    async def _handle(self, request: Request) -> Response:
        if request.path in self._notifications:
            self._notifications[request.path]()
            return Response(body=b"{}")
        if not self._allowed(request.method, request.path, request.query):
            return Response(403, _status(403, "Forbidden", f"{self._who} does not {request.method} {request.path}"))
        self._asked()
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        endless = request.method == "GET" and is_endless(request.query)
        call = TransportRequest(request.method, request.path, request.query, headers, request.body, stream=endless)
        try:
            reply = await self._transport.send(call)
        except TransportError as problem:
            return Response(503, _status(503, "ServiceUnavailable", str(problem)))
        kind = reply.headers.get("content-type", "application/json")
        if reply.lines is not None:
            return Response(
                reply.status,
                content_type=kind,
                stream=StreamedBody(_Carried(reply.lines), self._http.tasks, "api watch"),
            )
        after = reply.headers.get("retry-after")
        return Response(reply.status, reply.body, kind, [("Retry-After", after)] if after else [])


def is_endless(query: str) -> bool:
    """Whether the answer has no end of its own: a watch, a followed log."""
    return any(name in _ENDLESS and value in _YES for name, value in parse_qsl(query))


def private_socket(path: Path, backlog: int = 64) -> socket.socket:
    """Listens there; only we may connect."""
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX)
    try:
        # The socket's mode becomes that of its name. A umask would be that of all threads meanwhile.
        os.fchmod(bound.fileno(), 0o600)
        bound.bind(str(path))
        bound.listen(backlog)
        bound.setblocking(False)
    except OSError:
        bound.close()
        raise
    return bound


class _Carried:
    """The pieces of a stream from the API."""

    def __init__(self, lines: LineStream) -> None:
        self._lines = lines

    def __aiter__(self) -> _Carried:
        return self

    async def __anext__(self) -> bytes:
        try:
            if isinstance(self._lines, ByteStream):
                data = await self._lines.chunk()
            else:
                data = b"".join(line + b"\n" for line in await self._lines.read())
        except TransportError as problem:
            raise TruncatedBody(str(problem)) from problem
        if not data:
            raise StopAsyncIteration
        return data

    async def aclose(self) -> None:
        await self._lines.close()


def _status(code: int, reason: str, message: str) -> bytes:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
    return orjson.dumps(body)
