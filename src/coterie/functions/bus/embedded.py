"""The bus in one SQLite file: nothing to install, nothing that runs beside the functions process.

    publish ─ one turn of the loop ─> writer thread (one transaction, one fsync) ─> loop: answers, recent records, readers
    read ── recent records in memory, or ──> reader thread

Everything but old records is known in memory (`topic_state.py`). Nothing polls, and an idle bus costs nothing. See `log_file.py`
for the file and `log_writer.py` for group commit and failures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.functions.bus.log_file import BusFile, open_file
from coterie.functions.bus.log_reader import BusReader
from coterie.functions.bus.log_writer import BusWriter, Publication, TopicChange, TrimStep, Written
from coterie.functions.bus.protocol import PARTITIONS, VALUE_LIMIT, BusError, Commit, Entry, Position, Record
from coterie.functions.bus.topic_state import PartitionState, TopicState, answer
from coterie.functions.bus.validation import check_publish, check_topic


class EmbeddedBus(TopicState):
    """Made by `EmbeddedBus.open`."""

    def __init__(self, file: BusFile, clock: Clock) -> None:
        super().__init__()
        self._topics = {
            name: [PartitionState(each.id, each.first, each.end, each.committed) for each in partitions]
            for name, partitions in file.content.topics.items()
        }
        self._pending: list[Publication] = []
        self._asked: set[asyncio.Future[Any]] = set()
        self._reader = BusReader(file.path)
        self._writer = BusWriter(file, _Listener(self), clock)

    @classmethod
    async def open(cls, path: Path, clock: Clock = SYSTEM_CLOCK) -> EmbeddedBus:
        """Raises BusError for a file that is no bus, is damaged, or is open elsewhere."""
        return cls(await asyncio.to_thread(open_file, path), clock)

    async def create_topic(self, name: str, partitions: int = PARTITIONS) -> None:
        check_topic(name, partitions)
        await self._change(True, name, partitions)

    @property
    def shared_value_limit(self) -> int:
        return VALUE_LIMIT

    async def share_topic(self, name: str) -> int:
        await self.create_topic(name)
        return len(self._partitions(name))

    async def refresh(self, topic: str) -> bool:
        self._partitions(topic)
        return False

    async def delete_topic(self, name: str) -> None:
        await self._change(False, name, 0)

    async def _change(self, create: bool, name: str, partitions: int) -> None:
        self._hand_over_pending()  # what was published before comes before
        future: asyncio.Future[bool] = self._future()
        self._writer.hand_over(TopicChange(create, name, partitions, future))
        await future

    async def publish(self, entries: Sequence[Entry], commits: Sequence[Commit] = ()) -> list[Position]:
        check_publish(entries, commits)
        future: asyncio.Future[list[Record]] = self._future()
        if not self._pending:
            asyncio.get_running_loop().call_soon(self._hand_over_pending)
        self._pending.append(Publication(entries, commits, future))
        return [Position(record.topic, record.partition, record.offset) for record in await future]

    async def trim(self, topic: str, before: int) -> None:
        self._partitions(topic)
        done = False
        while not done:
            self._hand_over_pending()
            future: asyncio.Future[tuple[list[int], bool]] = self._future()
            self._writer.hand_over(TrimStep(topic, before, future))
            _, done = await future

    async def close(self) -> None:
        """Publishes that were begun are finished; readers that wait get BusError."""
        if self._closed:
            return
        self._hand_over_pending()
        self._closed = True
        self._wake_all()
        await self._writer.stop()
        await self._reader.close()

    async def _read_old(
        self, source: PartitionState, topic: str, partition: int, offset: int, limit: int
    ) -> list[Record]:
        return await self._reader.read(topic, partition, source.id, offset, source.end, limit)

    def _future(self) -> asyncio.Future[Any]:
        self._check_open()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked.add(future)
        future.add_done_callback(self._asked.discard)
        return future

    def _hand_over_pending(self) -> None:
        if self._pending:
            self._writer.hand_over(self._pending)
            self._pending = []


class _Listener(Written):
    """Takes over what the writer has written."""

    def __init__(self, bus: EmbeddedBus) -> None:
        self._bus = bus

    def published(self, publications: list[Publication]) -> None:
        for each in publications:
            if each.failure is None:
                self._bus._take_over(each.records, each.commits)
            answer(each.future, each.records if each.failure is None else each.failure)

    def created(self, topic: str, ids: list[int]) -> None:
        self._bus._topics[topic] = [PartitionState(each, 0, 0, {}) for each in ids]

    def deleted(self, topic: str) -> None:
        self._bus._remove(topic)

    def trimmed(self, topic: str, firsts: list[int]) -> None:
        for partition, first in zip(self._bus._topics[topic], firsts, strict=True):
            partition.trim(first)

    def ended(self) -> None:
        self._bus._closed = True
        for future in list(self._bus._asked):
            answer(future, BusError("the bus is closed"))
        self._bus._wake_all()
