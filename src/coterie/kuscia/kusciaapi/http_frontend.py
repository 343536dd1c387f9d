"""The HTTP doors: each operation is a POST with JSON or protobuf in its body.

The same handler serves the operator's port, ConfManager's, and the socket to which the gateway leads lites; they differ
in how a caller is recognised. A failure of an operation is an answer with status 200 and a code; streams are JSON
objects that follow each other without separators.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from coterie import __version__
from coterie.base.secret import SecretValue
from coterie.http.messages import Request, Response, UserInfo
from coterie.http.server import HttpLimits, HttpServer
from coterie.http.streamed_body import StreamedBody
from coterie.kube.api.errors import ApiError
from coterie.kube.api.meta import Object
from coterie.kube.api.status_response import status_response
from coterie.kube.client.client import Client
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api.types.domain import DOMAINS
from coterie.kuscia.kusciaapi import messages, openapi, plain_messages
from coterie.kuscia.kusciaapi.authorization import OPERATOR, ApiCaller, Role
from coterie.kuscia.kusciaapi.codes import ApiErrorCode, CallRefused
from coterie.kuscia.kusciaapi.dispatcher import Dispatcher
from coterie.kuscia.kusciaapi.master_forwarding import PROTOBUF
from coterie.kuscia.kusciaapi.messages import as_text
from coterie.kuscia.kusciaapi.operations import ApiOperation
from coterie.kuscia.kusciaapi.settings import USUAL_TIMEOUTS, Timeouts

LIMITS = HttpLimits(max_body=32 << 20)
_ORIGIN, _SOURCE = "kuscia-origin-source", "kuscia-source"
"""Headers that gateways set themselves, whatever a caller wrote into them."""

_PLAIN_HANDLERS = {"/openapi.json": "openapi", "/probe": "probe", "/version": "version"}

Recognise = Callable[[Request], Awaitable[ApiCaller | None]]
"""Who calls; None: nobody that is let in."""


def limits(timeouts: Timeouts) -> HttpLimits:
    return replace(
        LIMITS,
        header_timeout=timeouts.read or LIMITS.header_timeout,
        body_timeout=timeouts.read or LIMITS.body_timeout,
        write_timeout=timeouts.write or LIMITS.write_timeout,
        idle_timeout=timeouts.idle or LIMITS.idle_timeout,
    )


class HttpFrontend:
    def __init__(
        self,
        dispatcher: Dispatcher,
        operations: Sequence[ApiOperation],
        recognise: Recognise,
        timeouts: Timeouts = USUAL_TIMEOUTS,
        *,
        user_of: Callable[[Mapping[str, Any]], UserInfo] | None = None,
    ) -> None:
        """`user_of`: what is taken from a client's certificate; None: nothing."""
        self._dispatcher = dispatcher
        self._operations = {each.path: each for each in operations}
        self._recognise = recognise
        self._handlers = {path: each.method for path, each in self._operations.items()} | _PLAIN_HANDLERS
        self.server = HttpServer(
            self._counted, limits=limits(timeouts), user_of=user_of, problem_response=status_response
        )

    async def _counted(self, request: Request) -> Response:
        began, answer = time.monotonic(), None
        try:
            answer = await self._handle(request)
            return answer
        finally:
            code, sent = (answer.status, len(answer.body)) if answer is not None else (500, 0)
            took = time.monotonic() - began
            self._dispatcher.metrics.request(
                request.method, request.path, self._handlers, code, took, len(request.body), sent
            )

    async def _handle(self, request: Request) -> Response:
        if request.method in ("GET", "HEAD") and (plain := self._plain(request.path)) is not None:
            return _json(plain)
        caller = await self._recognise(request)
        if caller is None:
            return Response(401, b"", "")
        operation = self._operations.get(request.path)
        if operation is None:
            return _json(_error_body(ApiErrorCode.VALIDATION, f"there is nothing at {request.path}"), 404)
        if not caller.everything and not operation.for_domains:
            return Response(401, b"", "")
        if request.method != "POST":
            return _json(_error_body(ApiErrorCode.VALIDATION, "only POST is taken here"), 405, [("Allow", "POST")])
        protobuf = request.headers.get("content-type", "").split(";")[0].strip().lower() == PROTOBUF
        try:
            asked = _read(operation, request.body, protobuf)
        except CallRefused as problem:
            return _failed(operation, problem, protobuf)
        if operation.stream is not None:
            pieces = _texts(self._dispatcher.pieces(operation, caller, asked))
            return Response(stream=StreamedBody(pieces, self.server.tasks, f"stream {operation.method}"))
        answer = await self._dispatcher.answer(operation, caller, asked)
        return _binary(answer) if protobuf else Response(body=messages.answer_text(answer))

    @functools.cached_property
    def _document(self) -> Object:
        return openapi.document(tuple(self._operations.values()))

    def _plain(self, path: str) -> Object | None:
        """What everybody may read; None: nothing that is for everybody."""
        if path == "/openapi.json":
            return self._document
        return {"/probe": {}, "/version": {"version": __version__}}.get(path)


# Who calls.


def with_token(token: SecretValue) -> Recognise:
    """The operator, who knows the token."""
    expected = token.reveal().encode()

    async def recognise(request: Request) -> ApiCaller | None:
        shown = request.headers.get("token", "").encode("latin-1", "replace")
        return OPERATOR if hmac.compare_digest(shown, expected) else None

    return recognise


async def anybody(request: Request) -> ApiCaller | None:
    """Whoever got so far: through mutual TLS, or where the owner wants no protection."""
    return OPERATOR


def lites_of(client: Client, own: str) -> Recognise:
    """Domains of this control plane, as the gateway names them. Our own pods come by the gateway too and are not let
    in."""

    async def recognise(request: Request) -> ApiCaller | None:
        name = request.headers.get(_ORIGIN, "")
        if not name or name == own or request.headers.get(_SOURCE) != name:
            return None
        try:
            domain = await client.get(DOMAINS, name)
        except (ApiError, TransportError):
            return None
        return ApiCaller(Role.DOMAIN, name) if not domain.partner and not domain.metadata.deleting else None

    return recognise


# Bodies.


def _read(operation: ApiOperation, body: bytes, protobuf: bool) -> Any:
    """The request; Refused when the body is none."""
    try:
        if protobuf:
            return operation.request.FromString(body)
        given = json.loads(body or b"{}")
        if not isinstance(given, dict):
            raise ValueError("it is not an object")
        return plain_messages.parse(given, operation.request, ignore_unknown_fields=True)
    except (DecodeError, json_format.ParseError, ValueError, RecursionError, TypeError) as problem:
        raise CallRefused(
            ApiErrorCode.UNEXPECTED, f"the body is no {operation.request.DESCRIPTOR.name}: {_fault(operation, problem)}"
        ) from None


def _fault(operation: ApiOperation, problem: Exception) -> str:
    if isinstance(problem, RecursionError):
        return "it nests too deep"
    if operation.secret and not isinstance(problem, json.JSONDecodeError):
        # The sentence of the library may quote what is in a field, and it goes into the log too.
        return "a field has another form than in /openapi.json"
    return str(problem)


async def _texts(pieces: AsyncGenerator[Any, None]) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(pieces) as found:
        try:
            async for piece in found:
                yield messages.event_text(piece)
        except CallRefused as problem:
            yield as_text(_error_body(problem.code, str(problem)))


def _failed(operation: ApiOperation, problem: CallRefused, protobuf: bool) -> Response:
    if operation.reports_status:
        answer = operation.failed(problem)
    else:
        answer = messages.ErrorResponse(status=messages.Status(code=int(problem.code), message=str(problem)))
    return _binary(answer) if protobuf else _json(messages.as_json(answer))


def _error_body(code: ApiErrorCode, message: str) -> dict[str, Any]:
    return {"status": {"code": int(code), "message": message, "details": []}}


def _json(value: Any, status: int = 200, headers: list[tuple[str, str]] | None = None) -> Response:
    return Response(status, as_text(value), headers=headers or [])


def _binary(answer: Any) -> Response:
    return Response(body=answer.SerializeToString(), content_type=PROTOBUF)
