"""What the process knows of its topics without asking: ends, committed offsets, the last records.

The functions process is the only one that publishes, so everything new passes through it: readers at the end of a partition get
their records from memory (but for shared topics), woken by the answer to whoever published. Only older ones are read from the file or from Kafka.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from operator import attrgetter
from typing import Any

from coterie.functions.bus.protocol import BusError, Commit, Record, UnknownTopic
from coterie.functions.bus.validation import check_partition

RECENT_BYTES = 4 << 20
RECENT_RECORDS = 4096
BYTES_PER_READ = 4 << 20
"""A read ends after the record that reaches it."""
_RECORD_OVERHEAD = 256
_OFFSET = attrgetter("offset")


class PartitionState:
    __slots__ = ("committed", "deleted", "end", "first", "id", "recent", "recent_from", "shared", "waiters")

    def __init__(self, id: int, first: int, end: int, committed: dict[str, tuple[int, str]]) -> None:
        self.id = id
        self.first = first
        self.end = end
        self.committed = committed
        """Offset and note of each group."""
        self.recent: deque[Record] = deque()
        self.recent_from = end
        """`recent` has all records from this offset on."""
        self.waiters: list[asyncio.Future[None]] = []
        self.deleted = False
        self.shared = False
        """Others write to it too: there may be records of theirs between ours, so none are kept in memory."""

    def forget_recent(self) -> None:
        self.recent.clear()
        self.recent_from = self.end

    def grow(self, end: int) -> None:
        """Of a shared one: there are records up to here."""
        self.end = max(self.end, end)
        self.forget_recent()

    def trim(self, first: int) -> None:
        self.first = first
        while self.recent and self.recent[0].offset < first:
            self.recent_from = self.recent.popleft().offset + 1

    def wake(self) -> None:
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class TopicState(ABC):
    """The part of a bus that is the same for all of them. Belongs to one event loop."""

    def __init__(self) -> None:
        self._topics: dict[str, list[PartitionState]] = {}
        self._recent: deque[tuple[PartitionState, int, int]] = deque()
        """(partition, offset, size) of records in memory, oldest first."""
        self._recent_bytes = 0
        self._closed = False

    @abstractmethod
    async def _read_old(
        self, source: PartitionState, topic: str, partition: int, offset: int, limit: int
    ) -> list[Record]:
        """Records that are not in memory: at least one, unless they were dropped meanwhile."""

    async def topics(self) -> Mapping[str, int]:
        self._check_open()
        return {name: len(partitions) for name, partitions in self._topics.items()}

    async def read(self, topic: str, partition: int, offset: int, limit: int, wait: float = 0.0) -> list[Record]:
        partitions = self._partitions(topic)
        check_partition(topic, partition, len(partitions))
        source = partitions[partition]
        loop = asyncio.get_running_loop()
        until = loop.time() + wait if wait > 0 else 0.0
        if limit <= 0:
            return []
        while True:
            start = max(offset, source.first)
            if start < source.end:
                if start >= source.recent_from:
                    found = _from_memory(source.recent, start, limit)
                else:
                    found = await self._read_old(source, topic, partition, start, limit)
                if found:
                    return found
            elif not until or loop.time() >= until:
                return []
            else:
                await _wait(source, until)
            # Nothing: the topic was trimmed or deleted while it was read, or the wait was for something else.
            self._check_open()
            if source.deleted:
                raise UnknownTopic(f"topic {topic} does not exist")

    async def committed(self, group: str, topic: str) -> Mapping[int, int]:
        partitions = self._partitions(topic)
        return {number: each.committed[group][0] for number, each in enumerate(partitions) if group in each.committed}

    async def notes(self, group: str, topic: str) -> Mapping[int, str]:
        partitions = self._partitions(topic)
        return {number: each.committed[group][1] for number, each in enumerate(partitions) if group in each.committed}

    async def ends(self, topic: str) -> Mapping[int, int]:
        return {number: each.end for number, each in enumerate(self._partitions(topic))}

    def _check_open(self) -> None:
        if self._closed:
            raise BusError("the bus is closed")

    def _partitions(self, topic: str) -> list[PartitionState]:
        self._check_open()
        try:
            return self._topics[topic]
        except KeyError:
            raise UnknownTopic(f"topic {topic} does not exist") from None

    def _take_over(self, records: Iterable[Record], commits: Iterable[Commit]) -> None:
        """What was written, in the order of each partition. Wakes who waits for it."""
        touched: set[PartitionState] = set()
        for record in records:
            partition = self._topics[record.topic][record.partition]
            touched.add(partition)
            if partition.shared:
                partition.grow(record.offset + 1)
                continue
            partition.end = record.offset + 1
            partition.recent.append(record)
            size = len(record.value) + _RECORD_OVERHEAD
            self._recent.append((partition, record.offset, size))
            self._recent_bytes += size
        for commit in commits:
            self._topics[commit.topic][commit.partition].committed[commit.group] = commit.offset, commit.note
        while self._recent_bytes > RECENT_BYTES or len(self._recent) > RECENT_RECORDS:
            partition, offset, size = self._recent.popleft()
            self._recent_bytes -= size
            if partition.recent and partition.recent[0].offset == offset:
                partition.recent.popleft()
                partition.recent_from = offset + 1
        for partition in touched:
            partition.wake()

    def _remove(self, topic: str) -> None:
        for partition in self._topics.pop(topic, ()):
            partition.deleted = True
            partition.forget_recent()
            partition.wake()

    def _wake_all(self) -> None:
        for partitions in self._topics.values():
            for each in partitions:
                each.wake()


def _from_memory(recent: deque[Record], offset: int, limit: int) -> list[Record]:
    at = bisect_left(recent, offset, key=_OFFSET)
    found = []
    size = 0
    for record in islice(recent, at, at + limit):
        found.append(record)
        size += len(record.value)
        if size >= BYTES_PER_READ:
            break
    return found


def answer(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():
        return
    if isinstance(result, BusError):
        future.set_exception(result)
    else:
        future.set_result(result)


async def _wait(partition: PartitionState, until: float) -> None:
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    partition.waiters.append(waiter)
    timer = loop.call_at(until, answer, waiter, None)
    try:
        await waiter
    finally:
        timer.cancel()
        with contextlib.suppress(ValueError):
            partition.waiters.remove(waiter)
