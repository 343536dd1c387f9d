"""Takes calls onto the bus, each once, and knows their results.

A gateway whose link broke and a partner without an answer send a call again; a client repeats its `Idempotency-Key`. The first is accepted, the
others are told so and get the same answer.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.functions.bus.protocol import Bus, Entry, Position, Record, partition_of
from coterie.functions.dispatcher.answers import invoke_entry
from coterie.functions.dispatcher.bus_retry import until_done
from coterie.functions.dispatcher.result_index import ResultIndex, ResultPlace
from coterie.functions.messages import RESULTS_TOPIC, FunctionResponse, Invoke, action_topic, result_key

log = logger("functions.acceptance")

_PAGE = 500
_OVERLAP = 256
decode_invoke = msgspec.json.Decoder(Invoke).decode
_decode_response = msgspec.json.Decoder(FunctionResponse).decode


@dataclass(frozen=True, slots=True)
class Accepted:
    """The call is on the bus."""

    repeated: bool = False
    response: FunctionResponse | None = None
    """Of a repeated call that is answered already."""


def acceptance_key(invoke: Invoke) -> str:
    """Equal for repetitions. Our own requests have unique ids; a partner may call several times in one request."""
    if invoke.hop == 0 and not invoke.origin:
        return invoke.request_uid
    return f"{invoke.origin}/{invoke.request_uid}#{invoke.hop}#{invoke.action}"


class CallAcceptance:
    def __init__(self, bus: Bus, index: ResultIndex, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock
        self._index = index
        self._publishing: dict[str, asyncio.Future[None]] = {}
        self._uncertain: dict[str, Invoke] = {}
        """Their publish failed and may have happened nevertheless."""
        self._waiters: defaultdict[str, list[asyncio.Future[FunctionResponse]]] = defaultdict(list)

    async def accept(self, invoke: Invoke, partitions: int, *, repeated: bool) -> Accepted:
        """`repeated`: this call may have been sent before. Raises BusError: then the sender tries again."""
        key = acceptance_key(invoke)
        while (publishing := self._publishing.get(key)) is not None:
            await asyncio.shield(publishing)
            repeated = True
        if repeated and await self._is_known(key, invoke, partitions):
            return Accepted(repeated=True, response=await self.result(invoke.request_uid, invoke.origin))
        publishing = self._publishing[key] = asyncio.get_running_loop().create_future()
        self._uncertain[key] = invoke
        try:
            await self._bus.publish([invoke_entry(invoke)])
            del self._uncertain[key]
            self._index.add_accepted(key, self._now())
        finally:
            del self._publishing[key]
            publishing.set_result(None)
        return Accepted()

    async def _is_known(self, key: str, invoke: Invoke, partitions: int) -> bool:
        if self._index.is_accepted(key):
            return True
        if key not in self._uncertain:
            return False
        topic = action_topic(invoke.action)
        number = partition_of(invoke.key or invoke.request_uid, partitions)
        await self.index_calls(topic, number, self._index.positions(topic).get(number, 0))
        del self._uncertain[key]
        return self._index.is_accepted(key)

    def add_record(self, record: Record, invoke: Invoke) -> None:
        if invoke.hop == 0 or invoke.origin:
            self._index.add_accepted(acceptance_key(invoke), record.time)
        self._index.set_position(record.topic, record.partition, record.offset + 1)

    async def index_calls(self, topic: str, partition: int, offset: int) -> None:
        """Which calls a partition holds from this offset on."""
        end = (await self._bus.ends(topic)).get(partition, 0)
        while offset < end:
            records = await self._bus.read(topic, partition, offset, _PAGE)
            if not records:
                return
            for record in records:
                offset = record.offset + 1
                try:
                    invoke = decode_invoke(record.value)
                except msgspec.DecodeError:
                    continue  # whoever runs it says so
                self.add_record(record, invoke)

    # -- results ------------------------------------------------------------------------------------------------

    async def index_results(self) -> None:
        """What is on the bus and not in the index."""
        known = self._index.positions(RESULTS_TOPIC)
        for partition, end in (await self._bus.ends(RESULTS_TOPIC)).items():
            # Results are written by several; a later one may have been noted before an earlier one.
            offset = max(0, known.get(partition, 0) - _OVERLAP)
            while offset < end:
                records = await self._bus.read(RESULTS_TOPIC, partition, offset, _PAGE)
                if not records:
                    break
                for record in records:
                    offset = record.offset + 1
                    place = ResultPlace(partition, record.offset, record.time, len(record.value))
                    self._index.add_result(RESULTS_TOPIC, record.key, place)

    def add_result(self, key: str, response: FunctionResponse, position: Position, time: int, size: int) -> None:
        place = ResultPlace(position.partition, position.offset, time, size)
        self._index.add_result(RESULTS_TOPIC, key, place)
        for waiter in self._waiters.pop(key, ()):
            if not waiter.done():
                waiter.set_result(response)

    async def add_results(
        self, response: FunctionResponse, entries: Sequence[Entry], positions: Sequence[Position] | None
    ) -> None:
        """What was written; None: it is not known where."""
        if positions is None:
            await until_done(self.index_results, self._clock)
            return
        for entry, position in zip(entries, positions, strict=True):
            if entry.topic == RESULTS_TOPIC:
                self.add_result(entry.key, response, position, self._now(), len(entry.value))

    async def result(self, request_uid: str, origin: str = "") -> FunctionResponse | None:
        key = result_key(request_uid, origin)
        place = self._index.result(key)
        if place is None:
            return None
        records: Sequence[Record] = await self._bus.read(RESULTS_TOPIC, place.partition, place.offset, 1)
        if not records or records[0].key != key:
            return None  # dropped a moment ago
        return _decode_response(records[0].value)

    def is_pending(self, request_uid: str) -> bool:
        return self._index.is_accepted(request_uid) and self._index.result(request_uid) is None

    async def wait_result(self, request_uid: str, origin: str = "") -> FunctionResponse:
        """The result, as soon as there is one."""
        key = result_key(request_uid, origin)
        waiter: asyncio.Future[FunctionResponse] = asyncio.get_running_loop().create_future()
        self._waiters[key].append(waiter)
        try:
            found = await self.result(request_uid, origin)
            return found if found is not None else await waiter
        finally:
            if waiter in self._waiters.get(key, ()):
                self._waiters[key].remove(waiter)
                if not self._waiters[key]:
                    del self._waiters[key]

    def _now(self) -> int:
        return int(self._clock.now().timestamp() * 1000)
