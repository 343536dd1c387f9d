"""A bus in memory, one that dies in the midst of its work, and a real one whose records a test can look at."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from coterie.functions.bus.protocol import (
    PARTITIONS,
    VALUE_LIMIT,
    Bus,
    BusError,
    Commit,
    Entry,
    Position,
    Record,
    UnknownTopic,
    partition_of,
)


class MemoryBus:
    """What is in it outlives whoever uses it, as a file would."""

    shared_value_limit = VALUE_LIMIT

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self.logs: dict[str, list[list[Record]]] = {}
        self.commits: dict[tuple[str, str], dict[int, tuple[int, str]]] = {}
        self._grown = asyncio.Event()

    async def create_topic(self, name: str, partitions: int = PARTITIONS) -> None:
        self.logs.setdefault(name, [[] for _ in range(partitions)])

    async def share_topic(self, name: str) -> int:
        await self.create_topic(name)
        return len(self.logs[name])

    async def refresh(self, topic: str) -> bool:
        if topic not in self.logs:
            raise UnknownTopic(topic)
        return False

    async def delete_topic(self, name: str) -> None:
        self.logs.pop(name, None)
        for place in [place for place in self.commits if place[1] == name]:
            del self.commits[place]
        self._wake()

    async def topics(self) -> Mapping[str, int]:
        return {name: len(parts) for name, parts in self.logs.items()}

    async def publish(self, entries: Sequence[Entry], commits: Sequence[Commit] = ()) -> list[Position]:
        for topic in [entry.topic for entry in entries] + [commit.topic for commit in commits]:
            if topic not in self.logs:
                raise UnknownTopic(topic)
        positions = []
        for entry in entries:
            parts = self.logs[entry.topic]
            number = partition_of(entry.key, len(parts))
            offset = parts[number][-1].offset + 1 if parts[number] else 0
            parts[number].append(Record(entry.topic, number, offset, entry.key, entry.value, self._now()))
            positions.append(Position(entry.topic, number, offset))
        for commit in commits:
            assert len(commit.note) <= 4096 and commit.note.isascii()
            self.commits.setdefault((commit.group, commit.topic), {})[commit.partition] = (commit.offset, commit.note)
        self._wake()
        await asyncio.sleep(0)
        return positions

    def _wake(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()

    async def read(self, topic: str, partition: int, offset: int, limit: int, wait: float = 0.0) -> list[Record]:
        while True:
            if topic not in self.logs:
                raise UnknownTopic(topic)
            found = [record for record in self.logs[topic][partition] if record.offset >= offset][:limit]
            if found or not wait:
                return found
            await self._grown.wait()

    async def committed(self, group: str, topic: str) -> Mapping[int, int]:
        return {part: offset for part, (offset, _) in self.commits.get((group, topic), {}).items()}

    async def notes(self, group: str, topic: str) -> Mapping[int, str]:
        return {part: note for part, (_, note) in self.commits.get((group, topic), {}).items()}

    async def ends(self, topic: str) -> Mapping[int, int]:
        if topic not in self.logs:
            raise UnknownTopic(topic)
        return {number: part[-1].offset + 1 if part else 0 for number, part in enumerate(self.logs[topic])}

    async def trim(self, topic: str, before: int) -> None:
        if topic not in self.logs:
            raise UnknownTopic(topic)
        self.logs[topic] = [[each for each in part if each.time >= before] for part in self.logs[topic]]

    async def close(self) -> None: ...

    def records(self, topic: str) -> list[Record]:
        return [record for part in self.logs.get(topic, []) for record in part]


class RecordedBus:
    """Passes on to a real bus, and remembers what was published."""

    shared_value_limit = VALUE_LIMIT

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._records: dict[str, list[Record]] = {}
        self.changes = 0
        self.busy = 0
        """Changes under way."""

    def records(self, topic: str) -> list[Record]:
        return sorted(self._records.get(topic, ()), key=lambda each: (each.partition, each.offset))

    @contextlib.contextmanager
    def _change(self) -> Iterator[None]:
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1
            self.changes += 1

    async def publish(self, entries: Sequence[Entry], commits: Sequence[Commit] = ()) -> list[Position]:
        with self._change():
            positions = await self._bus.publish(entries, commits)
            for entry, place in zip(entries, positions, strict=True):
                self._records.setdefault(entry.topic, []).append(
                    Record(entry.topic, place.partition, place.offset, entry.key, entry.value, 0)
                )
            return positions

    async def create_topic(self, name: str, partitions: int = PARTITIONS) -> None:
        with self._change():
            await self._bus.create_topic(name, partitions)

    async def share_topic(self, name: str) -> int:
        with self._change():
            return await self._bus.share_topic(name)

    async def refresh(self, topic: str) -> bool:
        return await self._bus.refresh(topic)

    async def delete_topic(self, name: str) -> None:
        with self._change():
            await self._bus.delete_topic(name)
            self._records.pop(name, None)

    async def topics(self) -> Mapping[str, int]:
        return await self._bus.topics()

    async def read(self, topic: str, partition: int, offset: int, limit: int, wait: float = 0.0) -> list[Record]:
        return await self._bus.read(topic, partition, offset, limit, wait)

    async def committed(self, group: str, topic: str) -> Mapping[int, int]:
        return await self._bus.committed(group, topic)

    async def notes(self, group: str, topic: str) -> Mapping[int, str]:
        return await self._bus.notes(group, topic)

    async def ends(self, topic: str) -> Mapping[int, int]:
        return await self._bus.ends(topic)

    async def trim(self, topic: str, before: int) -> None:
        await self._bus.trim(topic, before)

    async def close(self) -> None: ...


class DyingBus:
    """Passes on to another bus until the n-th change; from then on nothing comes back, as for a process that was killed."""

    shared_value_limit = VALUE_LIMIT

    def __init__(self, bus: MemoryBus, changes: int, *, before: bool) -> None:
        """`before`: the last change does not happen; else it happens, and nobody learns of it."""
        self._bus = bus
        self._left = changes
        self._before = before
        self.dead = asyncio.Event()

    async def _pass(self) -> None:
        if self.dead.is_set():
            await asyncio.Event().wait()

    async def publish(self, entries: Sequence[Entry], commits: Sequence[Commit] = ()) -> list[Position]:
        await self._pass()
        self._left -= 1
        last = self._left == 0
        if last and self._before:
            self.dead.set()
        await self._pass()
        positions = await self._bus.publish(entries, commits)
        if last:
            self.dead.set()
        await self._pass()
        return positions

    async def create_topic(self, name: str, partitions: int = PARTITIONS) -> None:
        await self._pass()
        await self._bus.create_topic(name, partitions)

    async def share_topic(self, name: str) -> int:
        await self._pass()
        return await self._bus.share_topic(name)

    async def refresh(self, topic: str) -> bool:
        await self._pass()
        return await self._bus.refresh(topic)

    async def delete_topic(self, name: str) -> None:
        await self._pass()
        await self._bus.delete_topic(name)

    async def topics(self) -> Mapping[str, int]:
        await self._pass()
        return await self._bus.topics()

    async def read(self, topic: str, partition: int, offset: int, limit: int, wait: float = 0.0) -> list[Record]:
        await self._pass()
        records = await self._bus.read(topic, partition, offset, limit, wait)
        await self._pass()
        return records

    async def committed(self, group: str, topic: str) -> Mapping[int, int]:
        await self._pass()
        return await self._bus.committed(group, topic)

    async def notes(self, group: str, topic: str) -> Mapping[int, str]:
        await self._pass()
        return await self._bus.notes(group, topic)

    async def ends(self, topic: str) -> Mapping[int, int]:
        await self._pass()
        return await self._bus.ends(topic)

    async def trim(self, topic: str, before: int) -> None:
        await self._pass()
        await self._bus.trim(topic, before)

    async def close(self) -> None: ...


class UncertainBus(DyingBus):
    """Every n-th publish fails; every other of those has happened nevertheless."""

    def __init__(self, bus: MemoryBus, every: int) -> None:
        super().__init__(bus, -1, before=False)
        self._every = every
        self._count = 0

    async def publish(self, entries: Sequence[Entry], commits: Sequence[Commit] = ()) -> list[Position]:
        self._count += 1
        if self._count % (2 * self._every) == 0:
            raise BusError("not written")
        positions = await self._bus.publish(entries, commits)
        if self._count % self._every == 0:
            raise BusError("written, but nobody knows")
        return positions
