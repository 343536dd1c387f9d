"""Topics that Triggers read: who may write to them, how much may wait in them, and when their records go.

    POST /coterie/topics/NAME ──> gateway ──link──> write ──> topic ──> Trigger ──> a call for each record
    a client of Kafka ────────────────────────────────────────┘  (seen by `look`)

On the embedded bus records are dropped ten minutes after every Trigger has read them, at the latest after seven days; a topic that no Trigger names goes
after two minutes. On Kafka topics belong to more than us: the brokers' retention holds, and nothing is removed.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from coterie.base.backoff import Backoff, Policy
from coterie.base.clock import Clock
from coterie.base.ids import uid4
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner
from coterie.functions.bus.protocol import Bus, BusError, Entry, Position, UnknownTopic
from coterie.functions.messages import is_own_topic

log = logger("functions.topics")

MOST_WAITING = 50_000
"""Records of one topic that were written here and not read."""
MOST_WAITING_BYTES = 1 << 30
"""Of all topics."""
MOST_VALUE = 11 << 20
"""Bytes of one record: a call with this body fits on the bus."""
LOOK_SECONDS = 1.0
KEEP_READ = 10 * 60 * 1000
KEEP = 7 * 24 * 3600 * 1000
_TRIM_SECONDS = 60.0
_GONE_SECONDS = 120.0
_PAUSE = Policy(first=1.0, factor=2.0, limit=30.0, jitter=0.2)


class NobodyReads(Exception):
    """No Trigger names this topic."""


class TooManyRecords(Exception):
    """More wait than may; nothing was written."""


class RecordTooLarge(Exception):
    """For this bus; nothing was written."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    offset: int
    size: int
    time: int


class TopicRecords:
    """A Runnable."""

    name = "topics"

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self.ready = asyncio.Event()
        self._bus = bus
        self._clock = clock
        self._groups: Mapping[str, Collection[str]] = {}
        self._waiting: defaultdict[str, defaultdict[int, deque[_Waiting]]] = defaultdict(lambda: defaultdict(deque))
        """By topic and partition, what was written here since the start and is not read."""
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._bytes = 0
        self._unnamed: dict[str, float] = {}
        """Topics without a Trigger, and since when."""

    def set_topics(self, groups: Mapping[str, Collection[str]]) -> None:
        """All topics that Triggers read, each with the groups that do."""
        self._groups = groups
        for topic in [topic for topic in self._waiting if topic not in groups]:
            self._forget(topic)

    async def write(self, topic: str, key: str, value: bytes) -> Position:
        """It is durably there when it returns. NobodyReads, RecordTooLarge, TooManyRecords, BusError."""
        if topic not in self._groups or is_own_topic(topic):
            raise NobodyReads(f"no Trigger reads the topic {topic!r}")
        if len(value) > (most := min(MOST_VALUE, self._bus.shared_value_limit)):
            raise RecordTooLarge(f"a record of a topic has at most {most} bytes here")
        await self._bus.share_topic(topic)
        await self._note_read(topic)
        size = len(value)
        if self._counts[topic] >= MOST_WAITING or self._bytes + size > MOST_WAITING_BYTES:
            raise TooManyRecords(f"too many records of the topic {topic!r} wait; try again later")
        self._counts[topic] += 1
        self._bytes += size
        try:
            (position,) = await self._bus.publish([Entry(topic, key or uid4(), value)])
        except BaseException:
            self._counts[topic] -= 1
            self._bytes -= size
            raise
        waiting = _Waiting(position.offset, size, self._now())
        self._waiting[topic][position.partition].append(waiting)
        return position

    async def _note_read(self, topic: str) -> None:
        read = await self._read_by_all(topic)
        before = self._now() - KEEP
        for partition, waiting in self._waiting[topic].items():
            while waiting and (waiting[0].offset < read.get(partition, 0) or waiting[0].time < before):
                self._bytes -= waiting.popleft().size
                self._counts[topic] -= 1

    async def _read_by_all(self, topic: str) -> dict[int, int]:
        """By partition, up to where every Trigger has read."""
        found = [await self._bus.committed(group, topic) for group in self._groups.get(topic, ())]
        partitions = {partition for each in found for partition in each}
        return {partition: min(each.get(partition, 0) for each in found) for partition in partitions}

    def _forget(self, topic: str) -> None:
        for waiting in self._waiting.pop(topic, {}).values():
            self._bytes -= sum(each.size for each in waiting)
        self._counts.pop(topic, None)

    async def look(self, topic: str) -> None:
        """Forever, where others may write to the topic: sees what they have written."""
        backoff = Backoff(_PAUSE)
        while True:
            try:
                if not await self._bus.refresh(topic):
                    await asyncio.Event().wait()
                backoff.succeeded()
            except UnknownTopic:
                raise
            except BusError as problem:
                log.warning("A topic cannot be looked at", topic=topic, error=problem)
                await self._clock.sleep(backoff.failed())
            await self._clock.sleep(LOOK_SECONDS)

    # What is old.

    async def run(self) -> None:
        async with TaskOwner(self.name) as owner:
            owner.start("trim", self._trim_forever(), endless=True)
            self.ready.set()
            await owner.wait()

    async def _trim_forever(self) -> None:
        while True:
            await self._clock.sleep(_TRIM_SECONDS)
            try:
                await self.trim()
            except BusError as problem:
                log.warning("Old records of topics were not removed", error=problem)

    async def trim(self) -> None:
        there = [topic for topic in await self._bus.topics() if not is_own_topic(topic)]
        now = self._clock.monotonic()
        self._unnamed = {topic: self._unnamed.get(topic, now) for topic in there if topic not in self._groups}
        for topic in there:
            if await self._bus.refresh(topic):
                continue
            if topic in self._groups:
                await self._bus.trim(topic, await self._oldest_needed(topic))
            elif now - self._unnamed[topic] >= _GONE_SECONDS:
                await self._bus.delete_topic(topic)
                log.info("A topic was removed: no Trigger names it", topic=topic)

    async def _oldest_needed(self, topic: str) -> int:
        now, read = self._now(), await self._read_by_all(topic)
        before = now - KEEP_READ
        for partition in await self._bus.ends(topic):
            found = await self._bus.read(topic, partition, read.get(partition, 0), 1)
            if found:
                before = min(before, found[0].time)
        return max(before, now - KEEP)

    def _now(self) -> int:
        return int(self._clock.now().timestamp() * 1000)
