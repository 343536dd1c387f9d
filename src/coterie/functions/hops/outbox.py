"""Calls and answers to partners: one sender for each partner, which reads the outbox and posts what is in it through our own gateway.

    outbox-bob ──read in order──> `sent` is on the bus ─> POST ─> 202: done, the offset is committed
                                                          └─> away: again, with pauses that grow, until the deadline ─> 504 to the caller
                                                          └─> refused: bob's sentence to the caller

Up to 64 messages are under way at a time; those with the same key one after the other. An offset is committed when everything below it is done, so after a
kill -9 some are sent again, and the partner knows them by requestUID and hop. No request waits for an answer of a function: the answer comes to the inbox.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from coterie.base.backoff import Backoff, Policy
from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.tasks import TaskFailed, TaskOwner
from coterie.functions.bus.protocol import Bus, BusError, Commit, Record, UnknownTopic
from coterie.functions.hops import wire
from coterie.functions.hops.inbox import publish_answer
from coterie.functions.hops.ledger import HopLedger, Sent
from coterie.functions.hops.local_functions import LocalFunctions
from coterie.functions.hops.wire import HopReply
from coterie.functions.messages import FunctionResponse, Invoke, call_id, outbox_topic
from coterie.kuscia.gateway.names import FUNCTION_CALLS_PATH, FUNCTION_REPLIES_PATH

GROUP = "outbox"
WINDOW = 64
"""Messages to one partner that are under way."""
_AHEAD = 1024
"""Records that may be read above the committed offset."""
_READ, _READ_SECONDS = 64, 30.0
_RETRY = Policy(first=0.1, factor=2.0, limit=10.0, jitter=0.3)
_BUS_RETRY = Policy(first=0.1, factor=2.0, limit=5.0, jitter=0.3)
DEFAULT_WAIT = 3600.0
"""Seconds that a call without a deadline waits for its answer."""
_EXPIRY_SECONDS = 0.5
_BUSY_SECONDS = 2.0
"""A partner that asks for a shorter pause is only busy."""
_GATEWAY_REFUSALS = {
    403: "its gateway does not let us call its functions: it has no ActionGrant for us",
    404: "there is no route to it",
}
"""What it means when a gateway refuses and not the partner's functions."""
_REPLY_GRACE = 60.0
_PROBLEM_LENGTH = 200

log = logger("functions.hops")


@dataclass(frozen=True, slots=True)
class PostResult:
    status: int
    """0: nobody answered."""
    body: bytes = b""
    problem: str = ""
    retry_after: float = 0.0


class HopTransport(Protocol):
    async def post(self, partner: str, path: str, body: bytes) -> PostResult:
        """Through our own gateway. Never raises for the network."""


@dataclass(slots=True)
class _PartitionWork:
    """Of one partition: what is under way, and below which offset all is done."""

    mark: int
    position: int
    unfinished: dict[int, None] = field(default_factory=dict)
    committed: int = 0

    def begin(self, offset: int) -> None:
        self.unfinished[offset] = None
        self.position = offset + 1

    def finish(self, offset: int) -> None:
        self.unfinished.pop(offset, None)
        self.mark = next(iter(self.unfinished), self.position)


class OutboxSender:
    """One partner."""

    def __init__(
        self,
        partner: str,
        bus: Bus,
        ledger: HopLedger,
        transport: HopTransport,
        functions: LocalFunctions,
        clock: Clock,
    ) -> None:
        self.partner = partner
        self.topic = outbox_topic(partner)
        self.reached = True
        """Whether the last message got any answer."""
        self.problem = ""
        self._bus = bus
        self._ledger = ledger
        self._transport = transport
        self._clock = clock
        self._functions = functions
        self._slots = asyncio.Semaphore(WINDOW)
        self._keys: dict[tuple[int, str], deque[Record]] = {}
        self._finished = asyncio.Event()
        self._recent: dict[str, deque[float]] = {}

    async def run(self) -> None:
        """Until it is cancelled, or the topic is deleted."""
        backoff = Backoff(_BUS_RETRY)
        while True:
            try:
                await self._bus.create_topic(self.topic)
                partitions = (await self._bus.topics())[self.topic]
                committed = await self._bus.committed(GROUP, self.topic)
                self._keys.clear()
                async with TaskOwner(f"outbox-{self.partner}") as owner:
                    for partition in range(partitions):
                        owner.start(
                            f"partition {partition}", self._partition(owner, partition, committed.get(partition, 0))
                        )
                    await owner.wait()
                backoff.succeeded()
            except BusError as problem:
                await self._again(problem, backoff)
            except TaskFailed as failure:
                if not isinstance(failure.__cause__, BusError):
                    raise
                await self._again(failure.__cause__, backoff)

    async def _again(self, problem: BusError, backoff: Backoff) -> None:
        log.warning("The outbox cannot be read now", partner=self.partner, error=problem)
        await self._clock.sleep(backoff.failed())

    async def drained(self) -> bool:
        """Nothing is to be sent, and no answer is waited for."""
        ends, committed = await self._bus.ends(self.topic), await self._bus.committed(GROUP, self.topic)
        sent = all(committed.get(each, 0) >= end for each, end in ends.items())
        return sent and not self._ledger.waiting(self.partner)

    async def needed(self) -> bool:
        """Whether something is or may come to be sent, though no object names the partner any more."""
        return self._ledger.may_owe_answers(self.partner) or not await self.drained()

    # One partition.

    async def _partition(self, owner: TaskOwner, partition: int, offset: int) -> None:
        work = _PartitionWork(mark=offset, position=offset, committed=offset)
        committing = asyncio.Event()
        owner.start(f"commit {partition}", self._commits(partition, work, committing), endless=True)
        backoff = Backoff(_BUS_RETRY)
        while True:
            try:
                records = await self._bus.read(self.topic, partition, work.position, _READ, _READ_SECONDS)
            except UnknownTopic:
                raise
            except BusError as problem:
                await self._again(problem, backoff)
                continue
            backoff.succeeded()
            for record in records:
                while record.offset - work.mark >= _AHEAD:
                    self._finished.clear()
                    await self._finished.wait()
                work.begin(record.offset)
                self._enqueue(owner, record, work, committing)

    def _enqueue(self, owner: TaskOwner, record: Record, work: _PartitionWork, committing: asyncio.Event) -> None:
        """Records with the same key wait for each other."""
        key = (record.partition, record.key)
        waiting = self._keys.get(key)
        if waiting is not None:
            waiting.append(record)
            return
        self._keys[key] = deque([record])
        owner.start(f"send {record.partition}:{record.offset}", self._key(key, work, committing))

    async def _key(self, key: tuple[int, str], work: _PartitionWork, committing: asyncio.Event) -> None:
        waiting = self._keys[key]
        while waiting:
            async with self._slots:
                await self._record(waiting[0])
            work.finish(waiting.popleft().offset)
            self._finished.set()
            committing.set()
        del self._keys[key]

    async def _commits(self, partition: int, work: _PartitionWork, committing: asyncio.Event) -> None:
        backoff = Backoff(_BUS_RETRY)
        while True:
            await committing.wait()
            committing.clear()
            mark = work.mark
            if mark <= work.committed:
                continue
            try:
                await self._bus.publish((), [Commit(GROUP, self.topic, partition, mark)])
            except UnknownTopic:
                raise
            except BusError as problem:
                committing.set()
                await self._again(problem, backoff)
                continue
            backoff.succeeded()
            work.committed = mark

    # One record.

    async def _record(self, record: Record) -> None:
        message = decode_outbox(record.value)
        if isinstance(message, Invoke):
            await self._call(message, record)
        elif message is not None:
            await self._response(message, record)
        else:
            log.error(
                "Something in an outbox is neither a call nor an answer", partner=self.partner, offset=record.offset
            )

    async def _call(self, invoke: Invoke, record: Record) -> None:
        uid = call_id(invoke.request_uid, invoke.hop, f"{self.partner}/{invoke.action.rpartition('/')[2]}")
        await self._until_written(self._ledger.settle)
        known = self._ledger.sent(self.partner, uid)
        if known is None:
            deadline = invoke.deadline or record.time + int(DEFAULT_WAIT * 1000)
            sent = Sent(
                partner=self.partner,
                uid=uid,
                hop=invoke.hop,
                request=invoke.request_uid,
                action=invoke.action,
                return_topic=invoke.return_topic,
                key=record.key,
                time=self._ledger.now(),
                deadline=min(deadline, record.time + int(wire.LONGEST_WAIT * 1000)),
            )
            # Before it is sent: the answer may come before anything else.
            await self._until_written(lambda: self._ledger.publish([sent], []))
        if invoke.hop > wire.MAX_HOPS:
            sentence = f"the chain has more than {wire.MAX_HOPS} steps; does it come back to itself?"
            return await self._answer(uid, 508, sentence)
        hint = self._hint(invoke)
        backoff = Backoff(_RETRY)
        # Looked up each time: the ledger may have been read anew.
        while await self._is_waiting(uid):
            known = self._ledger.sent(self.partner, uid)
            assert known is not None
            left = known.record.deadline - self._ledger.now()
            if left <= 0:
                return await self._answer(uid, 504, self._too_late())
            body = msgspec.json.encode(wire.call_of(invoke, uid, left, hint))
            result = await self._transport.post(self.partner, FUNCTION_CALLS_PATH, body)
            if result.status == 202:
                return self._note(result)
            if self._is_final(result):
                why = wire.refusal_sentence(result.body) or _GATEWAY_REFUSALS.get(result.status) or result.problem
                return await self._answer(uid, result.status, f"{self.partner}: {why}")
            self._note(result)
            await self._clock.sleep(min(max(backoff.failed(), result.retry_after), max(left / 1000, 0.001)))

    async def _is_waiting(self, uid: str) -> bool:
        await self._until_written(self._ledger.settle)
        known = self._ledger.sent(self.partner, uid)
        return known is not None and not known.answered

    async def _response(self, response: FunctionResponse, record: Record) -> None:
        """Our answer to a call of the partner."""
        await self._until_written(self._ledger.settle)
        received = self._ledger.by_request(response.request_uid)
        if received is None or received.partner != self.partner:
            log.warning("An answer in an outbox belongs to no call of the partner", partner=self.partner)
            return
        reply = wire.reply_of(response, received.uid, received.hop)
        body = msgspec.json.encode(reply)
        if len(body) > wire.MAX_MESSAGE:
            sentence = f"the answer has {wire.body_size(response)} bytes; between domains it has at most {wire.MAX_MESSAGE >> 20} MiB"
            body = msgspec.json.encode(
                HopReply(request_uid=received.uid, hop=received.hop, status_code=502, payload=sentence)
            )
        backoff, ends = Backoff(_RETRY), received.until + int(_REPLY_GRACE * 1000)
        while True:
            result = await self._transport.post(self.partner, FUNCTION_REPLIES_PATH, body)
            self._note(result)
            if result.status == 202:
                return
            if self._is_final(result) or self._ledger.now() >= ends:
                why = wire.refusal_sentence(result.body) or result.problem or f"status {result.status}"
                log.warning(
                    "An answer was not taken by the partner", partner=self.partner, status=result.status, why=why
                )
                return
            await self._clock.sleep(max(backoff.failed(), result.retry_after))

    @staticmethod
    def _is_final(result: PostResult) -> bool:
        """Whether sending it again would not help. 401 is what a gateway says between two tokens."""
        return result.status in (400, 403, 404, 405, 409, 413) or (
            result.status == 429 and bool(wire.refusal_sentence(result.body)) and result.retry_after >= _BUSY_SECONDS
        )

    def _note(self, result: PostResult) -> None:
        reached = result.status == 202
        if self.reached and not reached:
            log.warning(
                "A partner's functions are not reached", partner=self.partner, status=result.status, why=result.problem
            )
        elif reached and not self.reached:
            log.info("A partner's functions are reached again", partner=self.partner)
        self.reached = reached
        self.problem = "" if reached else (result.problem or f"status {result.status}")[:_PROBLEM_LENGTH]

    def _too_late(self) -> str:
        if self.problem:
            return f"{self.partner} could not be reached until the deadline of the call: {self.problem}"
        return f"the deadline of the call passed before it could be sent to {self.partner}"

    # Answers that we give in the partner's place.

    async def _answer(self, uid: str, status: int, sentence: str) -> None:
        await self._until_written(
            lambda: answer_locally(self._ledger, self._functions, self.partner, uid, status, sentence)
        )

    async def _until_written(self, write: Callable[[], Awaitable[object]]) -> None:
        backoff = Backoff(_BUS_RETRY)
        while True:
            try:
                await write()
                return
            except BusError as problem:
                await self._again(problem, backoff)

    def _hint(self, invoke: Invoke) -> int:
        """Calls a minute that the partner should expect: those of the last minute, or what the calling action's own calls let expect."""
        target = f"{self.partner}/{invoke.action.rpartition('/')[2]}"
        now = self._clock.monotonic()
        recent = self._recent.setdefault(target, deque(maxlen=100_000))
        recent.append(now)
        while recent[0] < now - 60.0:
            recent.popleft()
        return max(len(recent), self._functions.expected_calls(invoke.source, target))


async def answer_locally(
    ledger: HopLedger, functions: LocalFunctions, partner: str, uid: str, status: int, sentence: str
) -> None:
    """In the place of a partner that will not answer. Nothing happens when it has an answer. Raises BusError."""
    await ledger.settle()
    call = ledger.sent(partner, uid)
    if call is None or call.answered:
        return
    sent = call.record
    reply = HopReply(
        request_uid=sent.uid,
        hop=sent.hop,
        status_code=status,
        content_type="text/plain; charset=utf-8",
        payload=sentence + "\n",
    )
    await publish_answer(ledger, functions, call, reply)
    log.info(
        "A call to a partner was answered here", partner=sent.partner, action=sent.action, status=status, why=sentence
    )


async def answer_overdue(ledger: HopLedger, functions: LocalFunctions, clock: Clock) -> None:
    """Forever: calls whose partner took them and did not answer in time are answered with 504."""
    while True:
        await clock.sleep(_EXPIRY_SECONDS)
        for sent in ledger.overdue():
            sentence = f"{sent.partner} has not answered {sent.action} until the deadline of the call"
            try:
                await answer_locally(ledger, functions, sent.partner, sent.uid, 504, sentence)
            except BusError as problem:
                log.warning("A call that is overdue was not answered yet", partner=sent.partner, error=problem)


def decode_outbox(value: bytes) -> Invoke | FunctionResponse | None:
    """Only calls say where their answer goes."""
    try:
        return msgspec.json.decode(value, type=Invoke)
    except msgspec.DecodeError:
        pass
    try:
        return msgspec.json.decode(value, type=FunctionResponse)
    except msgspec.DecodeError:
        return None
