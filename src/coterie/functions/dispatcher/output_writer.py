"""Writes what calls lead to: one `publish` at a time, with everything that has come up since the last one.

An answer, its result, its record and the committed offset of its call are in the same publish: all or nothing. There is one writer for all
partitions because a commit replaces the last one of its partition; two under way could replace each other in the wrong order.

A publish that fails may have happened nevertheless. The committed offset and its note tell: they are different after every publish.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coterie.base.backoff import Backoff, Policy
from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.functions.bus.protocol import Bus, BusError, Commit, Entry, Position, UnknownTopic
from coterie.functions.dispatcher.progress import PartitionProgress

log = logger("functions.outputs")

_MOST_OUTPUTS = 256
_MOST_BYTES = 8 << 20
_RETRY = Policy(first=0.05, factor=2.0, limit=5.0, jitter=0.2)


@dataclass(frozen=True, slots=True, eq=False)
class PartitionOf:
    """A partition that the dispatcher reads."""

    group: str
    topic: str
    number: int
    progress: PartitionProgress

    def commit(self) -> Commit:
        return Commit(self.group, self.topic, self.number, self.progress.mark, self.progress.note())


@dataclass(slots=True, eq=False)
class Output:
    entries: Sequence[Entry]
    partition: PartitionOf | None = None
    change: Callable[[PartitionProgress], None] | None = None
    """What happened to the call: it is done, it failed once more."""
    without: Callable[[frozenset[str]], Sequence[Entry]] | None = None
    """The entries instead when some topics are not there (any more)."""


@dataclass(slots=True, eq=False)
class _Waiting:
    output: Output
    written: asyncio.Future[list[Position] | None]


class OutputWriter:
    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock
        self._queue: deque[_Waiting] = deque()
        self._queued = asyncio.Event()

    def put(self, output: Output) -> asyncio.Future[list[Position] | None]:
        """Done when it is on the bus, with the positions of its entries; None: they are not known, but written."""
        written: asyncio.Future[list[Position] | None] = asyncio.get_running_loop().create_future()
        self._queue.append(_Waiting(output, written))
        self._queued.set()
        return written

    async def run(self) -> None:
        while True:
            await self._queued.wait()
            batch = self._take()
            positions = await self._publish(batch)
            at = 0
            for waiting in batch:
                count = len(waiting.output.entries)
                if not waiting.written.done():
                    waiting.written.set_result(positions[at : at + count] if positions is not None else None)
                at += count

    def _take(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        size = 0
        while self._queue and len(batch) < _MOST_OUTPUTS and size < _MOST_BYTES:
            waiting = self._queue.popleft()
            batch.append(waiting)
            size += sum(len(entry.value) for entry in waiting.output.entries)
        if not self._queue:
            self._queued.clear()
        for waiting in batch:
            output = waiting.output
            if output.partition is not None and output.change is not None:
                output.change(output.partition.progress)
        return batch

    async def _publish(self, batch: list[_Waiting]) -> list[Position] | None:
        partitions = {id(each.output.partition): each.output.partition for each in batch if each.output.partition}
        commits = [partition.commit() for partition in partitions.values()]
        backoff = Backoff(_RETRY)
        while True:
            entries = [entry for waiting in batch for entry in waiting.output.entries]
            if not entries and not commits:
                return []
            try:
                return await self._bus.publish(entries, commits)
            except UnknownTopic as problem:
                commits = await self._without_missing(batch, commits, problem)
            except BusError as problem:
                log.warning("The bus did not take what was answered; it is tried again", error=problem)
                await self._clock.sleep(backoff.failed())
                if await self._is_written(commits):
                    return None

    async def _without_missing(
        self, batch: list[_Waiting], commits: list[Commit], problem: UnknownTopic
    ) -> list[Commit]:
        """Topics go with their action or their gateway while calls are under way."""
        there = await self._topics()
        used = {entry.topic for waiting in batch for entry in waiting.output.entries}
        missing = frozenset(used | {commit.topic for commit in commits}) - there
        if not missing:
            log.warning("A topic was not there for a moment", error=problem)
            await self._clock.sleep(_RETRY.first)
            return commits
        log.info("Topics are gone", topics=sorted(missing))
        for waiting in batch:
            output = waiting.output
            if any(entry.topic in missing for entry in output.entries):
                entries = output.without(missing) if output.without is not None else output.entries
                output.entries = [entry for entry in entries if entry.topic not in missing]
        return [commit for commit in commits if commit.topic not in missing]

    async def _topics(self) -> frozenset[str]:
        backoff = Backoff(_RETRY)
        while True:
            try:
                return frozenset(await self._bus.topics())
            except BusError as problem:
                log.warning("The bus does not answer", error=problem)
                await self._clock.sleep(backoff.failed())

    async def _is_written(self, commits: list[Commit]) -> bool:
        """Without commits nobody knows; such entries may be there twice, and readers drop the second."""
        if not commits:
            return False
        last = commits[-1]
        backoff = Backoff(_RETRY)
        while True:
            try:
                offsets = await self._bus.committed(last.group, last.topic)
                notes = await self._bus.notes(last.group, last.topic)
            except UnknownTopic:
                return False
            except BusError as problem:
                log.warning("The bus does not answer", error=problem)
                await self._clock.sleep(backoff.failed())
            else:
                return offsets.get(last.partition) == last.offset and notes.get(last.partition, "") == last.note
