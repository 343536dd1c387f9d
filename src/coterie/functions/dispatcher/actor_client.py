"""Calls of actors over HTTP (docs/designs/functions.md, "Actor protocol").

Connections are kept. How an attempt ends decides what happens next:

    ActorUnreachable   the call was certainly not begun: another actor gets it, and it does not count
    ActorFailed        the actor ended, or answered something else than the protocol: it counts, and is tried again
    ActorTimeout       the same, and the actor has to be replaced
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec

from coterie.functions.messages import MAX_DEPTH, is_deep
from coterie.functions.model import ActorAddress
from coterie.functions.pod_connections import ConnectToPod
from coterie.http.plain_client import Broken, HttpFailure, NotConnected, PlainResponse, Pool

MAX_HEAD_LINE = 256 * 1024
_CONNECT_SECONDS = 3.0
_KEEP_SECONDS = 25.0
_MAX_REASON = 300


class ActorUnreachable(Exception):
    pass


class ActorFailed(Exception):
    pass


class ActorTimeout(Exception):
    pass


class AnswerTooLarge(Exception):
    pass


class CallHead(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The first line of a call."""

    id: str
    request: str
    action: str
    path: str
    params: dict[str, Any]
    content_type: str
    headers: dict[str, str]
    deadline: int
    attempt: int
    traceparent: str


class ResponseHead(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    status: int = 200
    content_type: str = "text/plain; charset=utf-8"
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    error: str = ""
    """Of the user's code, when it raised."""


class NextCall(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    action: str
    params: dict[str, Any] = msgspec.field(default_factory=dict)
    path: str = ""
    content_type: str = ""


class AnswerHead(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of an answer: one of both."""

    response: ResponseHead | None = None
    invoke: NextCall | None = None


class ActorAnswer(Protocol):
    head: AnswerHead

    async def body(self, limit: int) -> bytes:
        """All of it. Raises AnswerTooLarge, ActorFailed, ActorTimeout."""

    @property
    def streamed(self) -> bool:
        """Its end is not there yet, and nobody said how long it is."""

    def pieces(self) -> AsyncIterator[bytes]: ...

    def close(self) -> None:
        """Do without the rest."""


class ActorCaller(Protocol):
    """What the dispatcher needs of actors; tests have one without a network."""

    async def invoke(self, actor: ActorAddress, head: CallHead, body: bytes, timeout: float) -> ActorAnswer: ...

    async def forget(self, actor: ActorAddress) -> None:
        """It takes no more calls."""

    async def close(self) -> None: ...


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AnswerHead).decode


class HttpActorCaller:
    def __init__(self, connect: ConnectToPod | None = None) -> None:
        self._connect = connect
        self._pools: dict[ActorAddress, Pool] = {}

    async def invoke(self, actor: ActorAddress, head: CallHead, body: bytes, timeout: float) -> HttpActorAnswer:
        pool = self._pools.get(actor)
        if pool is None:
            place = (actor.host, actor.port)
            pool = Pool(place, keep=_KEEP_SECONDS, connecting=_CONNECT_SECONDS, connect=self._connect)
            self._pools[actor] = pool
        ends = asyncio.get_running_loop().time() + timeout
        headers = {
            "Host": "actor",
            "Authorization": f"Bearer {actor.token}",
            "Content-Type": "application/octet-stream",
        }
        sent = False
        try:
            async with asyncio.timeout_at(ends):
                await pool.connected(_CONNECT_SECONDS)
                sent = True
                response = await pool.request("POST", "/invoke", headers, _encode(head) + b"\n" + body)
                return await _answer(response, ends)
        except TimeoutError:
            if not sent:
                raise ActorUnreachable("it does not accept connections") from None
            raise ActorTimeout(f"no answer within {timeout:g} s") from None
        except NotConnected as problem:
            raise ActorUnreachable(str(problem)) from problem
        except HttpFailure as problem:
            raise ActorFailed(str(problem)[:_MAX_REASON]) from problem

    async def forget(self, actor: ActorAddress) -> None:
        pool = self._pools.pop(actor, None)
        if pool is not None:
            await pool.close()

    async def close(self) -> None:
        for actor in list(self._pools):
            await self.forget(actor)


async def _answer(response: PlainResponse, ends: float) -> HttpActorAnswer:
    if response.status != 200:
        text = (await response.read(_MAX_REASON)).decode("utf-8", "replace")[:_MAX_REASON]
        response.close()
        if response.status == 503:
            raise ActorUnreachable(f"it takes no calls now: {text}")
        raise ActorFailed(f"the actor answered HTTP {response.status}: {text}")
    received = b""
    while (end := received.find(b"\n")) < 0:
        piece = await response.chunk()
        received += piece
        if not piece or len(received) > MAX_HEAD_LINE:
            response.close()
            raise ActorFailed("the actor's answer does not begin with a line of JSON")
    try:
        head = _decode(received[:end])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        response.close()
        raise ActorFailed(f"the actor's answer does not follow the protocol: {problem}"[:_MAX_REASON]) from None
    if head.invoke is not None and is_deep(head.invoke.params):
        response.close()
        raise ActorFailed(f"the actor's answer has parameters that are nested more than {MAX_DEPTH} times")
    if (head.response is None) == (head.invoke is None):
        response.close()
        raise ActorFailed("the actor's answer must have `response` or `invoke`, and not both")
    return HttpActorAnswer(head, received[end + 1 :], response, ends)


class HttpActorAnswer:
    def __init__(self, head: AnswerHead, begin: bytes, response: PlainResponse, ends: float) -> None:
        self.head = head
        self._begin = begin
        self._response = response
        self._ends = ends

    @property
    def streamed(self) -> bool:
        return not self._response.complete and "content-length" not in self._response.headers

    async def body(self, limit: int) -> bytes:
        pieces, size = [], 0
        async for piece in self.pieces():
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                self.close()
                raise AnswerTooLarge
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def pieces(self) -> AsyncIterator[bytes]:
        if self._begin:
            begin, self._begin = self._begin, b""
            yield begin
        if self._response.drained:
            return
        try:
            while True:
                async with asyncio.timeout_at(self._ends):
                    piece = await self._response.chunk()
                if not piece:
                    return
                yield piece
        except TimeoutError:
            self.close()
            raise ActorTimeout("the answer did not end in time") from None
        except Broken as problem:
            raise ActorFailed(str(problem)[:_MAX_REASON]) from problem

    def close(self) -> None:
        self._response.close()
