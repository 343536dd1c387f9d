"""Requests of clients that wait for their answer, and the link over which they are sent.

All of a gateway wait on one stream of answers; each answer is for one of them. A link may break and come back: calls that were not accepted are
sent again, with the same requestUID, and answers that were not received come again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable

from coterie.functions.gateway.link_messages import (
    NO_OFFSET,
    UNKNOWN,
    AnswerArrived,
    AnswerReceived,
    CallAccepted,
    CallNotAccepted,
    CallQuery,
    CallSent,
    CallState,
    FromGateway,
    PartTaken,
    RecordSent,
    RecordWritten,
)
from coterie.functions.messages import FunctionResponse

MAX_WAITING = 10_000
MAX_BYTES = 64 << 20
"""Of calls that were not accepted yet."""
_CONFIRM_SECONDS = 0.3


class NoLink(Exception):
    """Nothing was sent."""


class TooManyCalls(Exception):
    pass


class WaitingCall:
    def __init__(self, message: CallSent, size: int) -> None:
        self.uid = message.invoke.request_uid
        self.message: CallSent | None = message
        """To be sent when there is a link; None once it is on the bus and its answer will come."""
        self.size = size
        self.sent = False
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Raises Refusal."""
        self.finished = asyncio.Event()
        self._parts: deque[FunctionResponse] = deque()
        self._last_part = 0
        self._arrived = asyncio.Event()

    def refuse(self, refusal: CallNotAccepted) -> None:
        self.arrived(FunctionResponse(request_uid=self.uid, status_code=refusal.status, payload=refusal.message + "\n"))

    def arrived(self, response: FunctionResponse) -> None:
        if self.finished.is_set() or 0 < response.part <= self._last_part:
            return  # came twice
        self._last_part = response.part
        self._parts.append(response)
        if response.last:
            self.finished.set()
        if not self.accepted.done():
            self.accepted.set_result(None)
        self._arrived.set()

    async def next(self) -> FunctionResponse:
        """The answer, or its next part."""
        while not self._parts:
            self._arrived.clear()
            await self._arrived.wait()
        return self._parts.popleft()


class WaitingCalls:
    def __init__(self) -> None:
        self._calls: dict[str, WaitingCall] = {}
        self._send: Callable[[FromGateway], None] | None = None
        self._linked = asyncio.Event()
        self._queries: dict[int, asyncio.Future[CallState]] = {}
        self._records: dict[int, asyncio.Future[RecordWritten | None]] = {}
        self._numbers = itertools.count(1)
        self._bytes = 0
        self._received = NO_OFFSET
        self._confirming: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def linked(self) -> bool:
        return self._send is not None

    # -- the link -------------------------------------------------------------------------------------------------

    def connect(self, send: Callable[[FromGateway], None]) -> None:
        """There is a link (again)."""
        self._send = send
        self._linked.set()
        for call in list(self._calls.values()):
            if call.message is not None:
                self._send_call(call)

    def disconnect(self, send: Callable[[FromGateway], None]) -> None:
        """That link is gone; another may have taken its place already."""
        if self._send == send:
            self._send = None
            self._linked.clear()
            queries, self._queries = self._queries, {}
            for number, waiter in queries.items():
                if not waiter.done():
                    waiter.set_result(CallState(query=number, state=UNKNOWN))
            records, self._records = self._records, {}
            for written in records.values():
                if not written.done():
                    written.set_result(None)

    def receive(self, message: CallAccepted | CallNotAccepted | AnswerArrived | CallState | RecordWritten) -> None:
        match message:
            case CallAccepted():
                if (call := self._calls.get(message.uid)) is not None:
                    if not message.repeated:
                        self._drop_message(call)
                    if not call.accepted.done():
                        call.accepted.set_result(None)
            case CallNotAccepted():
                if (call := self._calls.get(message.uid)) is not None:
                    self._drop_message(call)
                    call.refuse(message)
            case AnswerArrived():
                if (call := self._calls.get(message.response.request_uid)) is not None:
                    self._drop_message(call)
                    call.arrived(message.response)
                if message.offset != NO_OFFSET:
                    self._confirm(message.offset)
            case CallState():
                waiter = self._queries.pop(message.query, None)
                if waiter is not None and not waiter.done():
                    waiter.set_result(message)

            case RecordWritten():
                written = self._records.pop(message.query, None)
                if written is not None and not written.done():
                    written.set_result(message)

    def _confirm(self, offset: int) -> None:
        """Many at once: until then they would only come again."""
        self._received = max(self._received, offset)
        if self._confirming is None:
            self._confirming = asyncio.get_running_loop().call_later(_CONFIRM_SECONDS, self._send_received)

    def _send_received(self) -> None:
        self._confirming = None
        if self._send is not None:
            self._send(AnswerReceived(offset=self._received))

    # -- requests -------------------------------------------------------------------------------------------------

    async def linked_within(self, seconds: float) -> None:
        """Raises NoLink."""
        if self._send is None:
            try:
                async with asyncio.timeout(seconds):
                    await self._linked.wait()
            except TimeoutError:
                raise NoLink from None

    def get(self, uid: str) -> WaitingCall | None:
        return self._calls.get(uid)

    def add(self, message: CallSent, size: int) -> WaitingCall:
        """It is sent at once, and again until it is accepted. Raises TooManyCalls."""
        if len(self._calls) >= MAX_WAITING or self._bytes + size > MAX_BYTES:
            raise TooManyCalls
        call = self._calls[message.invoke.request_uid] = WaitingCall(message, size)
        self._bytes += size
        if self._send is not None:
            self._send_call(call)
        return call

    def remove(self, call: WaitingCall) -> None:
        """Nobody waits for it any more; the call itself goes on."""
        self._drop_message(call)
        call.finished.set()
        if self._calls.get(call.uid) is call:
            del self._calls[call.uid]

    def part_taken(self, uid: str, part: int) -> None:
        if self._send is not None:
            self._send(PartTaken(uid=uid, part=part))

    async def ask(self, uid: str) -> CallState:
        """Raises NoLink."""
        if self._send is None:
            raise NoLink
        number = next(self._numbers)
        waiter: asyncio.Future[CallState] = asyncio.get_running_loop().create_future()
        self._queries[number] = waiter
        try:
            self._send(CallQuery(query=number, uid=uid))
            return await waiter
        finally:
            self._queries.pop(number, None)

    async def write(self, topic: str, key: str, value: bytes) -> RecordWritten | None:
        """None: the link broke, and nobody knows whether it was written. Raises NoLink, TooManyCalls."""
        size = len(value)
        if len(self._records) >= MAX_WAITING or self._bytes + size > MAX_BYTES:
            raise TooManyCalls
        if self._send is None:
            raise NoLink
        number = next(self._numbers)
        waiter: asyncio.Future[RecordWritten | None] = asyncio.get_running_loop().create_future()
        self._records[number] = waiter
        self._bytes += size
        try:
            self._send(RecordSent(query=number, topic=topic, key=key, value=value))
            return await waiter
        finally:
            self._bytes -= size
            self._records.pop(number, None)

    def _send_call(self, call: WaitingCall) -> None:
        message = call.message
        assert message is not None and self._send is not None
        if call.sent and not message.repeated:
            message = CallSent(invoke=message.invoke, wait=message.wait, repeated=True)
            call.message = message
        call.sent = True
        self._send(message)

    def _drop_message(self, call: WaitingCall) -> None:
        if call.message is not None:
            call.message = None
            self._bytes -= call.size
