"""A gateway: HTTP for clients on one port, the link of the functions process on another.

A request becomes a call, which is accepted when it is on the bus; then it goes on whatever happens to the client, the link or this process.
Paths of triggers are for everybody who reaches the address. `/actions/NAME` calls an action without a trigger and `/coterie/topics/NAME` writes a record
that Triggers read, so they are only for those who may: through the API server, which checks roles and connects from the pod's own loopback, or with the token.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable
from dataclasses import dataclass, replace

import msgspec
import orjson

from coterie.base import exposition
from coterie.base.log import logger
from coterie.base.secret import SecretValue
from coterie.base.tasks import TaskOwner
from coterie.functions.gateway.http_calls import (
    DEFAULT_SECONDS,
    TOPICS_PATH,
    MethodRefused,
    RouteIndex,
    action_of,
    http_response,
    invoke_of,
    is_asynchronous,
    record_key,
    request_id_of,
    seconds_of,
    topic_of,
)
from coterie.functions.gateway.link_messages import (
    DONE,
    LINK_PATH,
    MAX_MESSAGE,
    PENDING,
    SILENT_SECONDS,
    CallSent,
    FromGateway,
    LinkAlive,
    RouteTable,
    TriggerRoute,
    decode_to_gateway,
    encode_message,
)
from coterie.functions.gateway.waiting_calls import NoLink, TooManyCalls, WaitingCall, WaitingCalls
from coterie.functions.messages import FunctionResponse, body_of
from coterie.http.errors import HttpProblem, ProtocolError
from coterie.http.messages import Request, Response, plain_problem_response
from coterie.http.server import HttpLimits, HttpServer
from coterie.http.streamed_body import StreamedBody, TruncatedBody
from coterie.http.upgraded_connection import UpgradedConnection
from coterie.http.websocket import WebSocket, accept_key

log = logger("functions.gateway")

MAX_BODY = 6 << 20
INVOKE_HEADER = "Coterie-Invoke-Token"
CONNECTIONS = HttpLimits(
    max_connections=8192, max_unknown_per_address=4096, header_timeout=10.0, body_timeout=60.0, write_timeout=60.0
)
"""Nobody has shown who it is here, so `header_timeout` is also what a connection may be idle between two requests. One address cannot take all
connections: that of an ingress, through which many come, gets half of them."""
_ACCEPT_SECONDS = 15.0
_RETRY_AFTER = 2
_HEALTH = ("/healthz", "/coterie/healthz")
_READY = "/readyz"
"""From the first link on: before it, no path is known."""
_SEED_HEALTH = "/cubernetes/healthTest"
_PLAIN = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class HttpGatewaySettings:
    link_token: SecretValue
    invoke_token: SecretValue | None = None
    """Whoever has it may call every action by its name."""
    own_network: bool = False
    """The pod has a network of its own: what comes from its loopback comes through the API server, which checked the caller's role."""
    max_body: int = MAX_BODY
    link_wait: float = 10.0
    """Seconds for which a request waits for a link that broke, or is not there yet."""


class GatewayServer:
    def __init__(self, settings: HttpGatewaySettings) -> None:
        self._settings = settings
        self._secret = settings.link_token.reveal().encode()
        self._routes: RouteIndex | None = None
        self._routed = False
        self._calls = WaitingCalls()
        self._statuses: Counter[tuple[str, int]] = Counter()
        self._owner = TaskOwner("gateway")
        limits = replace(CONNECTIONS, max_body=settings.max_body)
        self.http = HttpServer(self.handle, limits=limits, problem_response=_problem, credential_headers=frozenset())
        self.link = HttpServer(
            self.handle_link,
            limits=HttpLimits(max_connections=256, max_unknown_per_address=8),
            credential_headers=frozenset(),
        )

    @property
    def linked(self) -> bool:
        return self._calls.linked

    async def stop(self, grace: float) -> None:
        """Requests under way get their answers; then the link ends."""
        await self.http.stop(grace)
        await self.link.stop(0.5)
        await self._owner.close()

    # -- the link -------------------------------------------------------------------------------------------------

    def handle_link(self, request: Request) -> Response:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not self._settings.link_token.matches(token.encode("utf-8", "replace")):
            return plain_problem_response(HttpProblem(401, "Unauthorized", "the link needs its token"))
        key = request.headers.get("sec-websocket-key", "")
        if request.path != LINK_PATH or not key:
            return plain_problem_response(HttpProblem(404, "NotFound", "there is a WebSocket at /link only"))
        headers = [("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", accept_key(key))]
        return Response(101, headers=headers, upgrade=UpgradedConnection(self._owner, "link", self._serve_link))

    async def _serve_link(self, connection: UpgradedConnection) -> None:
        socket = WebSocket(connection, limit=MAX_MESSAGE)

        def send(message: FromGateway) -> None:
            socket.send(encode_message(message))

        usable = False
        log.info("Link opened")
        try:
            while True:
                async with asyncio.timeout(SILENT_SECONDS):
                    data = await socket.receive()
                if data is None:
                    break
                message = decode_to_gateway(data)
                match message:
                    case RouteTable():
                        self._routes = RouteIndex(message.routes)
                        if not usable:
                            usable = True
                            self._calls.connect(send)
                        self._routed = True
                    case LinkAlive():
                        send(LinkAlive())
                    case _:
                        self._calls.receive(message)
        except (TimeoutError, ProtocolError, ConnectionError) as problem:
            log.info("Link broke", error=problem)
        except msgspec.DecodeError as problem:
            log.error("The link brought something else than its protocol", error=problem)
        finally:
            self._calls.disconnect(send)
            connection.abort()

    # -- requests -------------------------------------------------------------------------------------------------

    def handle(self, request: Request) -> Response | Awaitable[Response]:
        path = request.path
        if path in _HEALTH:
            return Response(200, b"ok\n", _PLAIN)
        if path == _READY:
            return Response(200, b"ok\n", _PLAIN) if self._routed else _problem(_no_link())
        if path == _SEED_HEALTH:
            return Response(200, b"OK", _PLAIN)
        try:
            if path == "/metrics":
                return self._metrics(request)
            if path.startswith("/calls/"):
                return self._state(request, request_id_of(path))
            if path.startswith(TOPICS_PATH):
                self._check_may_invoke(request)
                return self._record(request, topic_of(path), record_key(request))
            if path.startswith("/actions/"):
                self._check_may_invoke(request)
                route = TriggerRoute(path=path, action=action_of(path))
            else:
                if self._routes is None:
                    return self._call_when_linked(request)
                route = self._routes.find(request.method, path)
        except HttpProblem as problem:
            self._statuses["", problem.status] += 1
            return _problem(problem)
        return self._call(request, route)

    async def _call_when_linked(self, request: Request) -> Response:
        """A gateway that has just started: nobody knows yet which paths there are."""
        try:
            await self._calls.linked_within(self._settings.link_wait)
            route = (self._routes or RouteIndex()).find(request.method, request.path)
        except NoLink:
            return _problem(_no_link())
        except HttpProblem as problem:
            return _problem(problem)
        return await self._call(request, route)

    def _check_may_invoke(self, request: Request) -> None:
        settings = self._settings
        if settings.own_network and request.peer.address in ("127.0.0.1", "::1"):
            return
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        # A proxy keeps `Authorization` for itself, as that of the API server does.
        given = token if scheme.lower() == "bearer" else request.headers.get(INVOKE_HEADER.lower(), "")
        if settings.invoke_token is not None and settings.invoke_token.matches(given.encode("utf-8", "replace")):
            return
        raise HttpProblem(
            403,
            "Forbidden",
            "actions are called by name through the API server (coterie action invoke) or with the token; others need a Trigger",
        )

    async def _call(self, request: Request, route: TriggerRoute) -> Response:
        try:
            response = await self._answered(request, route)
        except HttpProblem as problem:
            response = _problem(problem)
        self._statuses[route.action, response.status] += 1
        return response

    async def _answered(self, request: Request, route: TriggerRoute) -> Response:
        asynchronous = is_asynchronous(request)
        seconds = seconds_of(request, 0.0 if asynchronous else DEFAULT_SECONDS)
        began = asyncio.get_running_loop().time()
        invoke, repeated = invoke_of(request, route, self._secret, int(time.time() * 1000), seconds)
        uid, size, request.body = invoke.request_uid, len(request.body), b""  # the client may wait for an hour
        try:
            await self._calls.linked_within(min(self._settings.link_wait, seconds or self._settings.link_wait))
        except NoLink:
            raise _no_link() from None
        if (same := self._calls.get(uid)) is not None:
            return await self._joined(uid, same, asynchronous, seconds)
        try:
            call = self._calls.add(CallSent(invoke=invoke, wait=not asynchronous, repeated=repeated), size)
            del invoke
        except TooManyCalls:
            raise HttpProblem(503, "TooManyCalls", "too many calls wait here; try again later", retry_after=1) from None
        if asynchronous:
            return await self._accepted(call)
        return await self._waited(call, began + seconds)

    async def _accepted(self, call: WaitingCall) -> Response:
        try:
            async with asyncio.timeout(_ACCEPT_SECONDS):
                await asyncio.shield(call.accepted)
            if call.finished.is_set():
                return http_response(await call.next())  # refused, or answered already
            return _pending(call.uid)
        except TimeoutError:
            message = "it is not known whether the call was accepted; repeat it with an Idempotency-Key"
            raise HttpProblem(503, "NotAccepted", message, retry_after=_RETRY_AFTER) from None
        finally:
            self._calls.remove(call)

    async def _waited(self, call: WaitingCall, ends: float) -> Response:
        streaming = False
        try:
            async with asyncio.timeout_at(ends):
                first = await call.next()
            if first.part == 0 or (first.last and first.part >= 1):
                return http_response(first)
            streaming = True
            response = http_response(first)
            response.body = b""
            response.stream = StreamedBody(self._pieces(call, first, ends), self.http.tasks, f"stream {call.uid}")
            return response
        except TimeoutError:
            raise HttpProblem(504, "Timeout", "the call was not answered in time") from None
        finally:
            if not streaming:
                self._calls.remove(call)

    async def _pieces(self, call: WaitingCall, part: FunctionResponse, ends: float) -> AsyncGenerator[bytes, None]:
        try:
            while not part.last:
                yield body_of(part)
                self._calls.part_taken(call.uid, part.part)
                try:
                    async with asyncio.timeout_at(ends):
                        part = await call.next()
                except TimeoutError:
                    raise TruncatedBody from None
            if part.status_code == 502:
                raise TruncatedBody
        finally:
            self._calls.remove(call)

    async def _joined(self, uid: str, same: WaitingCall, asynchronous: bool, seconds: float) -> Response:
        """Another request of this gateway waits for the same call."""
        if asynchronous:
            return _pending(uid)
        try:
            async with asyncio.timeout(seconds):
                await same.finished.wait()
                state = await self._calls.ask(uid)
                while state.state == PENDING:
                    await asyncio.sleep(0.2)
                    state = await self._calls.ask(uid)
        except TimeoutError:
            raise HttpProblem(504, "Timeout", "the call was not answered in time") from None
        except NoLink:
            raise _no_link() from None
        if state.response is None:
            raise HttpProblem(502, "NoResult", "the answer is not kept")
        return http_response(state.response)

    async def _state(self, request: Request, uid: str) -> Response:
        if request.method not in ("GET", "HEAD"):
            return _problem(MethodRefused(["GET"]))
        try:
            await self._calls.linked_within(self._settings.link_wait)
            async with asyncio.timeout(_ACCEPT_SECONDS):
                state = await self._calls.ask(uid)
        except (NoLink, TimeoutError):
            return _problem(_no_link())
        if state.state == DONE and state.response is not None:
            return http_response(state.response)
        if state.state == PENDING:
            return _pending(uid)
        return _problem(HttpProblem(404, "NotFound", "there is no such call, or it is too long ago"))

    async def _record(self, request: Request, topic: str, key: str) -> Response:
        value, request.body = request.body, b""
        try:
            await self._calls.linked_within(self._settings.link_wait)
            async with asyncio.timeout(_ACCEPT_SECONDS):
                written = await self._calls.write(topic, key, value)
        except NoLink:
            return _problem(_no_link())
        except TooManyCalls:
            return _problem(HttpProblem(503, "TooManyCalls", "too much waits here; try again later", retry_after=1))
        except TimeoutError:
            written = None
        if written is None:
            message = "it is not known whether the record was written; when it is sent again, it may be there twice"
            return _problem(HttpProblem(503, "NotAccepted", message, retry_after=_RETRY_AFTER))
        if written.status != 200:
            retry = _RETRY_AFTER if written.status == 503 else 0
            return _problem(HttpProblem(written.status, "NotWritten", written.message, retry_after=retry))
        place = {"topic": topic, "partition": written.partition, "offset": written.offset}
        return Response(200, orjson.dumps(place), "application/json")

    def _metrics(self, request: Request) -> Response:
        rows = [
            (exposition.labels(action=action, code=str(status)), count)
            for (action, status), count in sorted(self._statuses.items())
        ]
        families = [
            exposition.Family(
                "coterie_functions_gateway_requests_total", "Requests by action and status.", "counter", rows
            ),
            exposition.Family(
                "coterie_functions_gateway_waiting", "Requests that wait.", "gauge", [("", len(self._calls))]
            ),
            exposition.Family(
                "coterie_functions_gateway_linked", "There is a link.", "gauge", [("", int(self.linked))]
            ),
        ]
        return Response(200, exposition.render(families).encode(), exposition.CONTENT_TYPE)


def _problem(problem: HttpProblem) -> Response:
    headers = [("Retry-After", str(problem.retry_after))] if problem.retry_after else []
    if isinstance(problem, MethodRefused):
        headers.append(("Allow", problem.allowed))
    return Response(problem.status, f"{problem.message}\n".encode(), _PLAIN, headers)


def _no_link() -> HttpProblem:
    message = "this gateway is not connected to the functions of its domain; try again later"
    return HttpProblem(503, "NoLink", message, retry_after=_RETRY_AFTER)


def _pending(uid: str) -> Response:
    headers = [("Location", f"/calls/{uid}"), ("Coterie-Request", uid), ("Retry-After", "1")]
    return Response(202, orjson.dumps({"id": uid}), "application/json", headers)
