"""The way of the serving process to the API: a socket of its node, which passes on what a data mesh needs and no more.

    data mesh ──HTTP over a socket in the node's private directory──> ApiDoor ──the node's own client──> API

The process that reads what engines send has no credential of its own, and can do no more than the table below even if an
engine took it over. The node's way to the API, in-process or through gateways, is of no concern to it.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import orjson

from coterie.apiserver.http.messages import Request, Response
from coterie.apiserver.http.server import HttpServer
from coterie.client.transport import Call, Transport, TransportError

READY = "/ready"
_GROUP = "/apis/kuscia.secretflow/v1alpha1/namespaces"
_NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
_PASSED_ON = ("accept", "content-type", "user-agent")


def allowed(method: str, path: str, query: str, domain: str) -> bool:
    """Own data, sources and grants in every way; own pods and their values, and jobs, by name."""
    if "watch=" in query:
        return False
    own = rf"{_GROUP}/{re.escape(domain)}/(domaindatas|domaindatasources|domaindatagrants)(/{_NAME}(/status)?)?"
    if re.fullmatch(own, path):
        return True
    seen = (
        rf"/api/v1/namespaces/{re.escape(domain)}/(pods|configmaps)/{_NAME}",
        rf"{_GROUP}/cross-domain/kusciajobs/{_NAME}",
    )
    return method == "GET" and any(re.fullmatch(each, path) for each in seen)


class ApiDoor:
    """The node's end; the other is in `apisocket`."""

    def __init__(self, path: Path, transport: Transport, domain: str, ready: Callable[[], None]) -> None:
        self._path = path
        self._transport = transport
        self._domain = domain
        self._ready = ready
        self._http = HttpServer(self._handle)

    async def open(self) -> None:
        self._path.unlink(missing_ok=True)
        bound = socket.socket(socket.AF_UNIX)
        before = os.umask(0o177)
        try:
            bound.bind(str(self._path))
        finally:
            os.umask(before)
        bound.listen(64)
        bound.setblocking(False)
        await self._http.serve(bound)

    async def close(self) -> None:
        await self._http.stop(1.0)
        self._path.unlink(missing_ok=True)

    async def _handle(self, request: Request) -> Response:
        if request.path == READY:
            self._ready()
            return Response(body=b"{}")
        if not allowed(request.method, request.path, request.query, self._domain):
            return Response(403, _status(403, "Forbidden", f"a data mesh does not {request.method} {request.path}"))
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        call = Call(request.method, request.path, request.query, headers, request.body)
        try:
            reply = await self._transport.send(call)
        except TransportError as problem:
            return Response(503, _status(503, "ServiceUnavailable", str(problem)))
        after = reply.headers.get("retry-after")
        return Response(
            reply.status,
            reply.body,
            reply.headers.get("content-type", "application/json"),
            [("Retry-After", after)] if after else [],
        )


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
