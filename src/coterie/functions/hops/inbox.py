"""Where partners' calls and replies arrive. Only our own Envoy connects here, and only for partners that it authenticated.

    call    who? (gateway) ─> shape ─> seen before? ─> grant? ─> actors are wanted ─> use in the evidence log
                 ─> publish: call + use + dedupe entry ─> 202
    reply   who? (gateway) ─> shape ─> a call of ours to this partner waits for it? ─> publish: answer + end of waiting ─> 202

A use is on the bus together with the call, never after it. A partner's requestUID is not ours: a call gets a requestUID of its own, at random, so a partner
neither meets a request of ours nor knows under which name its result is kept. Its answer goes to the partner's outbox and nowhere else.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.functions.bus.protocol import VALUE_LIMIT, Bus, BusError, Entry, UnknownTopic
from coterie.functions.hops import call_grants, wire
from coterie.functions.hops.call_grants import CallRefusal, GrantUses, PartnerCall
from coterie.functions.hops.ledger import Answered, HopLedger, Received, SentCall
from coterie.functions.hops.local_functions import LocalFunctions
from coterie.functions.hops.use_evidence import UseEvidence
from coterie.functions.hops.wire import BadMessage, HopCall, HopRefusal, HopReply
from coterie.functions.messages import (
    RESULTS_TOPIC,
    FunctionResponse,
    Invoke,
    action_topic,
    is_outbox,
    outbox_topic,
    payload_size,
)
from coterie.functions.model import partner_pool
from coterie.http.messages import Request, Response
from coterie.kuscia.api.evidence import EvidenceError
from coterie.kuscia.api.functions.types import ActionGrant
from coterie.kuscia.control.evidence_recorder import EvidenceRecorder
from coterie.kuscia.gateway.names import FUNCTION_CALLS_PATH, FUNCTION_REPLIES_PATH

log = logger("functions.hops")

_UNKNOWN_RATE = 600
"""Calls a minute that a hint counts for at most where the grant has no rate of its own."""
QUEUE_SECONDS = 900.0
"""For which a partner's call may wait here, besides the timeout of the action."""
MAX_REMEMBERED = 200_000
"""Calls of one partner that are known, so that a repetition is: as long as the partner said that it waits."""
_MAX_AT_ONCE = 256
"""Messages of one partner that are received at the same time."""


class PartnerAccess(Protocol):
    """What the objects of the domain say now."""

    def grants(self) -> Sequence[ActionGrant]: ...

    def timeouts(self) -> Mapping[str, float]:
        """Of the actions that there are, by name: seconds for one call."""

    def missing_tables(self, grant: ActionGrant) -> Sequence[str]: ...

    def reads_own_tables(self, action: str) -> bool:
        """In calls of our own: those of partners run in other actors."""


@dataclass(frozen=True, slots=True)
class HopAnswer:
    status: int
    sentence: str = ""
    retry_after: float = 0.0


ACCEPTED = HopAnswer(202)
_BUSY = HopAnswer(503, "the bus cannot be written now; send it again", 1.0)
_UNRECORDED = HopAnswer(503, "uses of grants cannot be recorded now; send it again", 1.0)


class HopInbox:
    def __init__(
        self,
        domain: str,
        bus: Bus,
        ledger: HopLedger,
        access: PartnerAccess,
        functions: LocalFunctions,
        clock: Clock,
        *,
        on_use: Callable[[str], None] = lambda grant: None,
        evidence: EvidenceRecorder | None = None,
    ) -> None:
        """`on_use`: told the uid of a grant that was used. `evidence` None: there is no evidence log."""
        self._domain = domain
        self._bus = bus
        self._ledger = ledger
        self._access = access
        self._functions = functions
        self._clock = clock
        self._on_use = on_use
        self._evidence = UseEvidence(evidence, clock)
        self._reserved: Counter[str] = Counter()
        """Uses of grants, by uid, that are recorded now and not on the bus yet."""
        self._receiving: dict[tuple[str, ...], asyncio.Future[HopAnswer]] = {}
        self._at_once: dict[str, int] = {}
        self._outboxes: set[str] = set()

    # HTTP.

    @staticmethod
    def caller_of(headers: Mapping[str, str]) -> str:
        """The partner, as our own gateway says; empty: it was not the gateway."""
        return headers.get(wire.CALLER_HEADER, "")

    async def handle(self, request: Request) -> Response:
        partner = self.caller_of(request.headers)
        if request.path not in (FUNCTION_CALLS_PATH, FUNCTION_REPLIES_PATH):
            return _response(HopAnswer(404, "there is nothing here"))
        if request.method != "POST":
            return _response(HopAnswer(405, "send it with POST"))
        if not partner or partner == self._domain:
            # Our own gateway always says who; our own pods do not call here.
            log.warning("A call without a partner's name was refused", path=request.path)
            return _response(HopAnswer(403, "only partners send calls here"))
        if self._at_once.get(partner, 0) >= _MAX_AT_ONCE:
            return _response(HopAnswer(429, f"more than {_MAX_AT_ONCE} messages at once", 1.0))
        self._at_once[partner] = self._at_once.get(partner, 0) + 1
        try:
            receive = self.call if request.path == FUNCTION_CALLS_PATH else self.reply
            return _response(await receive(partner, request.body))
        finally:
            self._at_once[partner] -= 1
            if not self._at_once[partner]:
                del self._at_once[partner]

    # Calls.

    async def call(self, partner: str, body: bytes) -> HopAnswer:
        largest = call_grants.largest_body(self._access.grants(), partner)
        if largest < 0:
            await self._evidence.refused(partner, "", "grant")
            return self._refused(partner, "", CallRefusal(403, f'"{partner}" has no grant for this action'))
        if len(body) > largest * 4 // 3 + wire.OVERHEAD:
            return self._refused(partner, "", CallRefusal(413, f"the body of a call has at most {largest} bytes here"))
        try:
            call = wire.decode_call(body)
        except BadMessage as problem:
            return self._refused(partner, "", CallRefusal(problem.status, str(problem)))
        return await self._once((partner, "call", call.request_uid, str(call.hop)), lambda: self._call(partner, call))

    async def _call(self, partner: str, call: HopCall) -> HopAnswer:
        try:
            await self._ledger.settle()
        except BusError as problem:
            log.error("The bus cannot be read", partner=partner, error=problem)
            return _BUSY
        digest = _digest(call)
        known = self._ledger.received(partner, call.request_uid, call.hop)
        if known is not None:
            if known.digest == digest:
                return ACCEPTED
            return self._refused(partner, call.action, CallRefusal(409, "another call had this requestUID and hop"))
        timeouts = self._access.timeouts()
        decision = call_grants.decide(
            self._access.grants(),
            PartnerCall(partner, call.action, wire.body_size(call)),
            timeouts.keys(),
            self._uses,
            self._access.missing_tables,
            self._clock.now(),
        )
        if decision.grant is None:
            assert decision.refusal is not None
            await self._evidence.refused(partner, call.action, decision.refusal.rule)
            return self._refused(partner, call.action, decision.refusal)
        grant = decision.grant
        apart = bool(grant.spec.tables) or self._access.reads_own_tables(call.action)
        pool = partner_pool(call.action, partner) if apart else call.action
        self._functions.wanted(pool, min(call.calls_per_minute, grant.spec.limit.calls_per_minute or _UNKNOWN_RATE))
        now, request = self._ledger.now(), f"hop-{secrets.token_hex(16)}"
        wait = call.wait_milliseconds or int(wire.LONGEST_WAIT * 1000)
        invoke = Invoke(
            request_uid=request,
            action=pool,
            return_topic=outbox_topic(partner),
            trigger_path=call.trigger_path,
            params=call.params,
            content_type=call.content_type,
            payload=call.payload,
            payload_base64=call.payload_base64,
            headers=call.headers,
            hop=call.hop,
            # Keys of ours and of other partners are others.
            key=f"{partner}/{call.key}" if call.key else "",
            deadline=now + min(wait, int((timeouts[call.action] + QUEUE_SECONDS) * 1000)),
            version=self._functions.version(pool, request),
            origin=partner,
            traceparent=call.traceparent,
        )
        entry = Entry(action_topic(pool), invoke.key or request, msgspec.json.encode(invoke))
        if len(entry.value) > VALUE_LIMIT:
            return self._refused(partner, call.action, CallRefusal(413, "the call is larger than the bus takes"))
        if not self._functions.has_room(pool, payload_size(invoke)):
            return self._refused(partner, call.action, CallRefusal(503, "too many calls wait here; send it later", 5.0))
        if self._ledger.remembered(partner) >= MAX_REMEMBERED:
            sentence = f"{MAX_REMEMBERED} calls of the last hours are remembered, which is the most"
            return self._refused(partner, call.action, CallRefusal(503, sentence, 30.0))
        uid = grant.metadata.uid
        self._reserved[uid] += 1
        try:
            await self._evidence.used(grant, self._uses(grant).total)
            await self._outbox(partner)
        except EvidenceError as problem:
            log.error("A partner's call was not accepted: it cannot be recorded", partner=partner, error=problem)
            return _UNRECORDED
        except BusError as problem:
            log.error("A partner's call was not accepted: the bus failed", partner=partner, error=problem)
            return _BUSY
        finally:
            # Until the ledger has it nothing else runs.
            self._reserved[uid] -= 1
            if not self._reserved[uid]:
                del self._reserved[uid]
        received = Received(
            partner=partner,
            uid=call.request_uid,
            hop=call.hop,
            digest=digest,
            request=request,
            action=call.action,
            grant=uid,
            uses=self._ledger.uses(uid, grant.status.uses).total + 1,
            size=wire.body_size(call),
            time=now,
            until=now + wait,
        )
        try:
            await self._ledger.publish([received], [entry])
        except BusError as problem:
            log.error("A partner's call was not accepted: the bus failed", partner=partner, error=problem)
            return _BUSY
        self._functions.added(pool, payload_size(invoke))
        self._on_use(uid)
        log.debug("Call of a partner", partner=partner, action=call.action, request=request)
        return ACCEPTED

    def _uses(self, grant: ActionGrant) -> GrantUses:
        uid = grant.metadata.uid
        found, reserved = self._ledger.uses(uid, grant.status.uses), self._reserved[uid]
        return replace(found, total=found.total + reserved, last_minute=found.last_minute + reserved)

    async def _outbox(self, partner: str) -> None:
        """The way back is there before the call."""
        if partner not in self._outboxes:
            await self._bus.create_topic(outbox_topic(partner))
            self._outboxes.add(partner)

    def forget_outbox(self, partner: str) -> None:
        """It is about to be removed."""
        self._outboxes.discard(partner)

    # Replies.

    async def reply(self, partner: str, body: bytes) -> HopAnswer:
        if len(body) > wire.MAX_MESSAGE:
            return HopAnswer(413, f"a reply has at most {wire.MAX_MESSAGE >> 20} MiB")
        try:
            reply = wire.decode_reply(body)
        except BadMessage as problem:
            return self._refused(partner, "", CallRefusal(problem.status, str(problem)))
        return await self._once((partner, "reply", reply.request_uid), lambda: self._reply(partner, reply))

    async def _reply(self, partner: str, reply: HopReply) -> HopAnswer:
        try:
            await self._ledger.settle()
        except BusError as problem:
            log.error("The bus cannot be read", partner=partner, error=problem)
            return _BUSY
        waiting = self._ledger.sent(partner, reply.request_uid)
        if waiting is None or waiting.record.hop != reply.hop:
            return self._refused(partner, "", CallRefusal(404, "no call waits for this reply"))
        if waiting.answered:
            # It was answered before, by this reply or because its time was over: whoever sent it may forget it.
            return ACCEPTED
        try:
            await publish_answer(self._ledger, self._functions, waiting, reply)
        except BusError as problem:
            log.error("A partner's reply was not accepted: the bus failed", partner=partner, error=problem)
            return _BUSY
        return ACCEPTED

    # Both.

    async def _once(self, key: tuple[str, ...], receive: Callable[[], Awaitable[HopAnswer]]) -> HopAnswer:
        """A message that comes again while the first is received gets the same answer."""
        running = self._receiving.get(key)
        if running is not None:
            return await asyncio.shield(running)
        future: asyncio.Future[HopAnswer] = asyncio.get_running_loop().create_future()
        self._receiving[key] = future
        answer = _BUSY
        try:
            answer = await receive()
        finally:
            del self._receiving[key]
            if not future.done():
                future.set_result(answer)
        return answer

    def _refused(self, partner: str, action: str, refusal: CallRefusal) -> HopAnswer:
        log.warning(
            "A partner was refused", partner=partner, action=action, status=refusal.status, why=refusal.sentence
        )
        return HopAnswer(refusal.status, refusal.sentence, refusal.retry_after)


async def publish_answer(ledger: HopLedger, functions: LocalFunctions, call: SentCall, reply: HopReply) -> None:
    """A call of ours to a partner has an answer: to whom waits for it, and to the results. Raises BusError."""
    sent = call.record
    record = Answered(partner=sent.partner, uid=sent.uid, time=ledger.now())
    response = FunctionResponse(
        request_uid=sent.request,
        status_code=reply.status_code,
        content_type=reply.content_type,
        payload=reply.payload,
        payload_base64=reply.payload_base64,
        headers=reply.headers,
        action=sent.action,
    )
    value = msgspec.json.encode(response)
    if len(value) > VALUE_LIMIT:
        sentence = f"the answer of {sent.partner} is larger than {VALUE_LIMIT >> 20} MiB\n"
        response = FunctionResponse(request_uid=sent.request, status_code=502, payload=sentence, action=sent.action)
        value = msgspec.json.encode(response)
    results = [Entry(RESULTS_TOPIC, sent.request, value)] if not is_outbox(sent.return_topic) else []
    waiting = [Entry(sent.return_topic, sent.key, value)] if sent.return_topic else []
    try:
        positions = await ledger.publish([record], [*results, *waiting])
    except UnknownTopic:
        # Whoever waited is gone with its topic.
        positions = await ledger.publish([record], results)
    if results:
        functions.result_published(response, positions[0])


def _digest(call: HopCall) -> str:
    """Of what a call says; a repetition has less time left and another hint."""
    plain = msgspec.structs.replace(call, wait_milliseconds=0, calls_per_minute=0)
    return hashlib.sha256(msgspec.json.encode(plain, order="deterministic")).hexdigest()[:32]


def _response(answer: HopAnswer) -> Response:
    if answer.status == ACCEPTED.status:
        return Response(202, b"{}")
    headers = [("Retry-After", str(max(1, round(answer.retry_after))))] if answer.retry_after else []
    return Response(
        answer.status,
        msgspec.json.encode(HopRefusal(refused=answer.sentence)),
        headers=headers,
    )
