"""What is known of calls from and to partners, durably: a topic of the bus, and tables in memory that are built from it.

    received   a call of a partner: which grant it used, how often that was used by then, and which request of ours it became
    sent       a call of ours to a partner: whom to give the answer
    answered   a call of ours has its answer

A record is published together with what it is about (the call, the answer), all or nothing. So after a kill -9 a call that is on the bus is counted, a
repeated one is known, and an answer goes to whoever waits for it once. After a failed publish nobody knows what is on the bus: `settle` reads it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.functions.bus.protocol import Bus, BusError, Commit, Entry, Position, UnknownTopic
from coterie.functions.hops.call_grants import MINUTE, GrantUses
from coterie.functions.messages import PARTNER_CALLS_TOPIC as TOPIC
from coterie.functions.messages import BusMessage

_READ = 1000
_KEPT = 25 * 3600
"""Seconds for which records are kept: longer than any call waits."""
_GRACE = 60_000
"""Milliseconds after its deadline for which a call is remembered."""
_EXPIRE_EVERY = 30.0
_LATEST = 100
"""Uses of a grant that are remembered for its status."""

log = logger("functions.hops")


class Received(BusMessage, frozen=True, kw_only=True, tag_field="kind", tag="received"):
    partner: str
    uid: str
    """As the partner calls it."""
    hop: int
    digest: str
    """Of the message."""
    request: str
    """Our own requestUID for it."""
    action: str
    grant: str
    """Its uid."""
    uses: int
    """Of the grant, with this one."""
    size: int
    time: int
    until: int
    """Milliseconds since 1970, until which the partner may repeat it."""


class Sent(BusMessage, frozen=True, kw_only=True, tag_field="kind", tag="sent"):
    partner: str
    uid: str
    """As we call it towards the partner."""
    hop: int
    request: str
    """The requestUID of the call."""
    action: str
    return_topic: str
    key: str
    time: int
    deadline: int


class Answered(BusMessage, frozen=True, kw_only=True, tag_field="kind", tag="answered"):
    partner: str
    uid: str
    time: int


LedgerRecord = Received | Sent | Answered
_decoder = msgspec.json.Decoder(LedgerRecord)


@dataclass(slots=True)
class SentCall:
    """A call of ours to a partner."""

    record: Sent
    answered: bool = False


@dataclass(slots=True)
class _Tables:
    """What the records say."""

    received: dict[tuple[str, str, int], Received] = field(default_factory=dict)
    requests: dict[str, Received] = field(default_factory=dict)
    sent: dict[tuple[str, str], SentCall] = field(default_factory=dict)
    of_partner: Counter[str] = field(default_factory=Counter)
    """How many of `received` are whose."""
    totals: dict[str, int] = field(default_factory=dict)
    recent: dict[str, deque[int]] = field(default_factory=dict)
    latest: dict[str, deque[Received]] = field(default_factory=dict)

    def apply(self, record: LedgerRecord) -> None:
        match record:
            case Received():
                if (record.partner, record.uid, record.hop) in self.received:
                    return
                self.received[record.partner, record.uid, record.hop] = record
                self.requests[record.request] = record
                self.of_partner[record.partner] += 1
                self.totals[record.grant] = max(self.totals.get(record.grant, 0), record.uses)
                self.recent.setdefault(record.grant, deque()).append(record.time)
                self.latest.setdefault(record.grant, deque(maxlen=_LATEST)).append(record)
            case Sent():
                self.sent.setdefault((record.partner, record.uid), SentCall(record))
            case Answered():
                known = self.sent.get((record.partner, record.uid))
                if known is not None:
                    known.answered = True

    def undo(self, record: LedgerRecord) -> None:
        """It was not written."""
        match record:
            case Received():
                if self.received.pop((record.partner, record.uid, record.hop), None) is not None:
                    self.of_partner[record.partner] -= 1
                self.requests.pop(record.request, None)
                if self.totals.get(record.grant) == record.uses:
                    self.totals[record.grant] = record.uses - 1
                if record.time in self.recent.get(record.grant, ()):
                    self.recent[record.grant].remove(record.time)
                if record in self.latest.get(record.grant, ()):
                    self.latest[record.grant].remove(record)
            case Sent():
                self.sent.pop((record.partner, record.uid), None)
            case Answered():
                known = self.sent.get((record.partner, record.uid))
                if known is not None:
                    known.answered = False


class HopLedger:
    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock
        self._tables = _Tables()
        self._in_flight: list[LedgerRecord] = []
        self._journal: list[LedgerRecord] | None = None
        """While the bus is read: what is written meanwhile."""
        self._unsure = False
        """A write failed, and what is on the bus was not read since."""
        self._reading = asyncio.Lock()

    # Reading.

    async def load(self) -> None:
        await self._bus.create_topic(TOPIC, 1)
        self._unsure = True
        await self.settle()

    async def settle(self) -> None:
        """Whoever decides by the tables calls this first: after a failed write they say more than is on the bus. Raises BusError while the
        bus cannot be read."""
        while self._unsure:
            async with self._reading:
                if not self._unsure:
                    return
                self._unsure = False
                try:
                    self._tables = await self._read()
                except BusError:
                    self._unsure = True
                    raise

    async def _read(self) -> _Tables:
        tables = _Tables()
        # What is being written now, or in the meantime: it may be on the bus after we looked. What fails makes us look again.
        self._journal = list(self._in_flight)
        try:
            await self._scan(tables)
            for unsure in self._journal:
                tables.apply(unsure)
        finally:
            self._journal = None
        return tables

    async def _scan(self, tables: _Tables) -> None:
        offset = 0
        while records := await self._bus.read(TOPIC, 0, offset, _READ):
            for each in records:
                try:
                    tables.apply(_decoder.decode(each.value))
                except msgspec.DecodeError as problem:
                    log.error("A record of calls between domains cannot be read", offset=each.offset, error=problem)
            offset = records[-1].offset + 1

    # Writing.

    async def publish(
        self, records: Iterable[LedgerRecord], entries: Iterable[Entry], commits: Iterable[Commit] = ()
    ) -> list[Position]:
        """All or nothing; the places of the entries. What the records say is in the tables at once, so that nobody decides without it. Raises BusError;
        then `settle` is needed."""
        written = list(records)
        for each in written:
            self._tables.apply(each)
        self._in_flight += written
        if self._journal is not None:
            self._journal += written
        mine = [Entry(TOPIC, each.partner, msgspec.json.encode(each)) for each in written]
        try:
            positions = await self._bus.publish([*mine, *entries], list(commits))
        except UnknownTopic:
            # Nothing was written.
            self._land(written)
            if self._journal is not None:
                self._unsure = True
            for each in written:
                self._tables.undo(each)
            raise
        except BaseException:
            self._land(written)
            self._unsure = True
            raise
        self._land(written)
        return positions[len(mine) :]

    def _land(self, written: list[LedgerRecord]) -> None:
        done = {id(each) for each in written}
        self._in_flight = [each for each in self._in_flight if id(each) not in done]

    # Calls of partners.

    def received(self, partner: str, uid: str, hop: int) -> Received | None:
        return self._tables.received.get((partner, uid, hop))

    def remembered(self, partner: str) -> int:
        """How many calls of the partner are known."""
        return self._tables.of_partner[partner]

    def by_request(self, request: str) -> Received | None:
        """`request`: our own requestUID."""
        return self._tables.requests.get(request)

    def may_owe_answers(self, partner: str) -> bool:
        """Whether a call of the partner may still be answered: its time is not over."""
        now = self.now()
        return any(each.partner == partner and each.until + _GRACE >= now for each in self._tables.received.values())

    def uses(self, grant: str, known: int) -> GrantUses:
        """`known`: what the status of the grant says; a bus that was lost has less."""
        now = self.now()
        recent = self._tables.recent.get(grant) or deque()
        while recent and recent[0] <= now - MINUTE * 1000:
            recent.popleft()
        left = (recent[0] + MINUTE * 1000 - now) / 1000 if recent else 0.0
        return GrantUses(max(self._tables.totals.get(grant, 0), known), len(recent), left)

    def latest_uses(self, grant: str) -> tuple[Received, ...]:
        return tuple(self._tables.latest.get(grant) or ())

    # Calls to partners.

    def sent(self, partner: str, uid: str) -> SentCall | None:
        return self._tables.sent.get((partner, uid))

    def overdue(self) -> list[Sent]:
        """Calls whose deadline has passed without an answer."""
        now = self.now()
        return [each.record for each in self._tables.sent.values() if not each.answered and each.record.deadline <= now]

    def waiting(self, partner: str) -> int:
        return sum(not each.answered for (who, _), each in self._tables.sent.items() if who == partner)

    # Time.

    def now(self) -> int:
        return int(self._clock.now().timestamp() * 1000)

    def expire(self) -> None:
        """Forget what nobody asks for any more."""
        now = self.now()
        for key in [key for key, each in self._tables.received.items() if each.until + _GRACE < now]:
            gone = self._tables.received.pop(key)
            self._tables.requests.pop(gone.request, None)
            self._tables.of_partner[gone.partner] -= 1
        ended = [
            key for key, each in self._tables.sent.items() if each.answered and each.record.deadline + _GRACE < now
        ]
        for sent in ended:
            del self._tables.sent[sent]

    async def keep_short(self) -> None:
        """Forever: expired entries go from memory, old records from the bus."""
        while True:
            await self._clock.sleep(_EXPIRE_EVERY)
            self.expire()
            try:
                await self._bus.trim(TOPIC, self.now() - _KEPT * 1000)
            except BusError as problem:
                log.warning("Old records of calls between domains were not removed", error=problem)
