"""Our side of a tunnel in Kuscia's frames where we are the one with the public port: the partner fetches its calls.

    our pods ──> Envoy ──> calls.sock      a call becomes a frame, down the poll of the partner and service it is for
    partner  ──> Envoy ──> partners.sock   GET /poll: the stream of frames; POST /reply: what the service answered

Who polls or replies is who our Envoy authenticated; a reply counts only from the partner that was asked. One poll for each
partner and service: the newest. Calls wait for a poll, and answers for whoever asked, in bounded number, size and time; one partner has half of
the room.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from coterie.base.log import logger
from coterie.http.messages import Request, Response
from coterie.http.server import HttpLimits, HttpServer, HttpShares
from coterie.http.streamed_body import StreamedBody, TruncatedBody
from coterie.kube.control.child_api_listener import private_socket
from coterie.kuscia.gateway.names import ERROR, HOST, ORIGIN, POLLED_PATH, SOURCE
from coterie.kuscia.gateway.polling.frames import (
    MAX_FRAME,
    AnswerFrame,
    CallFrame,
    PollFault,
    decode_answer,
    encode_call,
)
from coterie.kuscia.gateway.polling.passed_headers import answer_headers, call_headers

ANSWER_SECONDS = 300.0
"""For the first part of an answer, with the wait for a poll."""
IDLE_SECONDS = 360.0
"""Between two parts of an answer that is streamed."""
LONGEST_POLL = 300.0
MOST_CALLS = 2000
MOST_WAITING_BYTES = 128 << 20
MOST_UNREAD_BYTES = 64 << 20
"""Of the answers of one partner: what came before its turn, or nobody has read yet."""
_MOST_PARTS = 1024
"""The same for one answer."""
_AT_ONCE = 1000
"""Polls and replies of one partner."""
_HOST = re.compile(r"(?P<service>[a-z0-9-]{1,63})\.(?P<domain>[a-z0-9-]{1,63})\.svc")
_TIMEOUT = re.compile(r"(?:(\d{1,4})h)?(?:(\d{1,4})m)?(?:(\d{1,5})s)?")
# All connections are our own Envoy's, which keeps them for the next call.
_LIMITS = HttpLimits(
    max_body=MAX_FRAME + (1 << 20),
    max_body_in_flight=256 << 20,
    max_connections=4000,
    max_unknown_per_address=4000,
    header_timeout=1800.0,
    idle_timeout=1800.0,
)
Key = tuple[str, str]
"""A partner and a service of its."""


class _Broken(Exception):
    """The partner sent more of an answer than anybody reads."""


@dataclass(slots=True)
class _Waiting:
    """What calls to one partner hold."""

    calls: int = 0
    frames: int = 0
    """Bytes."""
    unread: int = 0
    """Bytes of answers."""


@dataclass(slots=True)
class _Call:
    """One that waits for its answer."""

    partner: str
    waiting: _Waiting
    frame: bytes = field(repr=False)
    parts: dict[int, AnswerFrame] = field(default_factory=dict)
    came: asyncio.Event = field(default_factory=asyncio.Event)
    gone: bool = False
    broken: bool = False
    read: int = 0
    """The place of the part that is wanted next."""

    def take(self, part: AnswerFrame) -> None:
        # An answer in one piece, and Kuscia's word that a stream broke, have no place among others.
        place = part.index if part.chunk else max(self.parts, default=self.read - 1) + 1
        if self.broken or place < self.read or place in self.parts:
            return
        if len(self.parts) >= _MOST_PARTS or self.waiting.unread + len(part.body) > MOST_UNREAD_BYTES:
            self.broken = True
            self.drop()
        else:
            self.parts[place] = part
            self.waiting.unread += len(part.body)
        self.came.set()

    async def part(self, seconds: float) -> AnswerFrame:
        """The next. Raises TimeoutError, _Broken."""
        async with asyncio.timeout(seconds):
            while self.read not in self.parts and not self.broken:
                self.came.clear()
                await self.came.wait()
        if self.broken:
            raise _Broken
        part = self.parts.pop(self.read)
        self.waiting.unread -= len(part.body)
        self.read += 1
        return part

    def drop(self) -> None:
        self.waiting.unread -= sum(len(part.body) for part in self.parts.values())
        self.parts.clear()


@dataclass(slots=True)
class _Poll:
    calls: deque[_Call] = field(default_factory=deque)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    replaced: bool = False


class PollReceiver:
    """A Runnable; ready when it listens."""

    name = "poll-receiver"

    def __init__(self, domain: str, partners: Path, calls: Path) -> None:
        self.ready = asyncio.Event()
        self._domain = domain
        self._paths = (partners, calls)
        self._stop = asyncio.Event()
        self._polls: dict[Key, _Poll] = {}
        self._waiting: dict[Key, deque[_Call]] = {}
        self._calls: dict[str, _Call] = {}
        self._of_partner: dict[str, _Waiting] = {}
        self._held = 0
        self._log = logger("gateway.polling").bind(domain=domain)
        shares = HttpShares(lambda headers: headers.get(SOURCE, ""), _AT_ONCE, _LIMITS.max_body_in_flight // 2)
        self._partners = HttpServer(self.from_partner, limits=_LIMITS, shares=shares, cancels=True)
        self._own = HttpServer(self.from_us, limits=_LIMITS, cancels=True)

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        try:
            await self._partners.serve(private_socket(self._paths[0], 256))
            await self._own.serve(private_socket(self._paths[1], 256))
            self.ready.set()
            await self._stop.wait()
        finally:
            await self._partners.stop()
            await self._own.stop()
            for path in self._paths:
                path.unlink(missing_ok=True)

    # ---- the partner ----

    def from_partner(self, request: Request) -> Response:
        """Envoy leads only those here who have a route, and who speak for themselves."""
        partner = request.headers.get(SOURCE, "")
        if not partner or request.headers.get(ORIGIN, partner) != partner:
            return _text(403, "only a partner itself polls here")
        if request.method == "GET" and request.path.endswith("/poll"):
            return self._poll(partner, request)
        if request.method == "POST" and request.path.endswith("/reply"):
            return self._reply(partner, request)
        return _text(404, "there is /poll and /reply")

    def _poll(self, partner: str, request: Request) -> Response:
        service = request.param("service")
        if not re.fullmatch(r"[a-z0-9-]{1,63}", service):
            return _text(400, "service: name the service whose calls are fetched")
        frames = self._frames((partner, service), _seconds(request.param("timeout")))
        body = StreamedBody(frames, self._partners.tasks, f"poll {partner} {service}")
        return Response(200, content_type="application/octet-stream", stream=body)

    async def _frames(self, key: Key, seconds: float) -> AsyncGenerator[bytes, None]:
        mine = _Poll(self._waiting.pop(key, deque()))
        if (older := self._polls.get(key)) is not None:
            older.replaced = True
            older.changed.set()
            mine.calls = older.calls + mine.calls
            older.calls = deque()
        self._polls[key] = mine
        self._log.debug("A partner fetches calls", partner=key[0], service=key[1])
        deadline = asyncio.get_running_loop().time() + seconds
        try:
            while not mine.replaced:
                while mine.calls:
                    call = mine.calls.popleft()
                    if not call.gone:
                        yield call.frame
                mine.changed.clear()
                try:
                    async with asyncio.timeout_at(deadline):
                        await mine.changed.wait()
                except TimeoutError:
                    return
        finally:
            if self._polls.get(key) is mine:
                del self._polls[key]
            if mine.calls:
                self._waiting.setdefault(key, deque()).extendleft(reversed(mine.calls))

    def _reply(self, partner: str, request: Request) -> Response:
        try:
            answer = decode_answer(request.body)
        except PollFault as fault:
            return _text(400, str(fault))
        call = self._calls.get(request.param("msgid"))
        if call is not None and call.partner == partner:
            call.take(answer)
        # Whoever was not asked is not told so.
        return Response(200, b"", "text/plain")

    # ---- our own calls ----

    async def from_us(self, request: Request) -> Response:
        """Envoy leads only calls here whose route is such a tunnel."""
        found = _HOST.fullmatch(request.headers.get("host", "").partition(":")[0])
        if found is None:
            return _failed(404, "this host is no service of a partner")
        key = (found["domain"], found["service"])
        path = request.headers.get(POLLED_PATH) or quote(request.path) + (f"?{request.query}" if request.query else "")
        headers = call_headers(request.headers, to_partner=True) | {HOST: found[0]}
        name = str(uuid.uuid4())
        try:
            frame = encode_call(CallFrame(name, found[0], path, request.method, headers, request.body))
        except PollFault as fault:
            return _failed(413, str(fault))
        of_partner = self._of_partner.setdefault(key[0], _Waiting())
        if (
            len(self._calls) >= MOST_CALLS
            or self._held + len(frame) > MOST_WAITING_BYTES
            or of_partner.calls >= MOST_CALLS // 2
            or of_partner.frames + len(frame) > MOST_WAITING_BYTES // 2
        ):
            return _failed(503, f"too many calls wait for {key[0]} to fetch or answer them")
        call = self._calls[name] = _Call(key[0], of_partner, frame)
        self._held += len(frame)
        of_partner.calls += 1
        of_partner.frames += len(frame)
        kept = False
        try:
            self._queue(key, call)
            first = await call.part(ANSWER_SECONDS)
            kept = first.chunk and not first.end
            return self._answered(name, call, first)
        except _Broken:
            return _failed(502, f"{key[0]} answers with more than is taken before it is read")
        except TimeoutError:
            fetched = key in self._polls
            why = "does not answer" if fetched else "does not fetch calls of this service"
            return _failed(504, f"{key[0]} {why}; see the route and the service there")
        finally:
            if not kept:
                self._forget(name, call)

    def _queue(self, key: Key, call: _Call) -> None:
        poll = self._polls.get(key)
        if poll is not None:
            poll.calls.append(call)
            poll.changed.set()
        else:
            waiting = self._waiting.setdefault(key, deque())
            while waiting and waiting[0].gone:
                waiting.popleft()
            waiting.append(call)

    def _forget(self, name: str, call: _Call) -> None:
        if call.gone:
            return
        call.gone = True
        call.drop()
        self._held -= len(call.frame)
        call.waiting.frames -= len(call.frame)
        call.waiting.calls -= 1
        call.frame = b""
        if not call.waiting.calls:
            self._of_partner.pop(call.partner, None)
        self._calls.pop(name, None)
        for key in [key for key, waiting in self._waiting.items() if all(each.gone for each in waiting)]:
            del self._waiting[key]

    def _answered(self, name: str, call: _Call, first: AnswerFrame) -> Response:
        headers = answer_headers(first.headers)
        kind = headers.pop("content-type", "application/octet-stream")
        status = first.status or 502
        if not first.chunk or first.end:
            return Response(status, first.body, kind, list(headers.items()))
        parts = _AnswerBody(_rest(call, first.body), lambda: self._forget(name, call))
        body = StreamedBody(parts, self._own.tasks, f"answer {name}")
        return Response(status, b"", kind, list(headers.items()), stream=body)


class _AnswerBody:
    """The parts of an answer. The call is over when they are, or when nobody wants them any more."""

    def __init__(self, parts: AsyncGenerator[bytes, None], over: Callable[[], None]) -> None:
        self._parts, self._over = parts, over

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._parts

    async def aclose(self) -> None:
        await self._parts.aclose()
        self._over()


async def _rest(call: _Call, body: bytes) -> AsyncGenerator[bytes, None]:
    if body:
        yield body
    while True:
        try:
            part = await call.part(IDLE_SECONDS)
        except (TimeoutError, _Broken):
            raise TruncatedBody from None
        if not part.chunk:
            raise TruncatedBody  # it broke over there
        if part.body:
            yield part.body
        if part.end:
            return


def _seconds(text: str) -> float:
    """`300s`, `5m`; without any, as long as a poll may take."""
    found = _TIMEOUT.fullmatch(text)
    hours, minutes, rest = (int(part or 0) for part in found.groups()) if found is not None else (0, 0, 0)
    return min(float(hours * 3600 + minutes * 60 + rest) or LONGEST_POLL, LONGEST_POLL)


def _text(status: int, message: str) -> Response:
    return Response(status, f"{message}\n".encode(), "text/plain")


def _failed(status: int, message: str) -> Response:
    """For our own callers, with the reason where they look for it."""
    return Response(status, f"{message}\n".encode(), "text/plain", [(ERROR, message)])
