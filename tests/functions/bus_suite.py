"""What the tests of the bus share: a small model, and records in short."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.functions.bus.protocol import Bus, Entry, Record, partition_of


def entry(topic: str, key: str, value: str = "") -> Entry:
    return Entry(topic, key, (value or key).encode())


async def read_all(bus: Bus, topic: str, partition: int, offset: int = 0, limit: int = 100) -> list[Record]:
    """To the end, in pieces."""
    found: list[Record] = []
    while True:
        some = await bus.read(topic, partition, offset, limit)
        if not some:
            return found
        found += some
        offset = some[-1].offset + 1


async def read_topic(bus: Bus, topic: str) -> list[list[str]]:
    """The values of each partition."""
    partitions = (await bus.topics())[topic]
    return [[record.value.decode() for record in await read_all(bus, topic, each)] for each in range(partitions)]


async def read_values(bus: Bus, topic: str) -> list[str]:
    return [value for values in await read_topic(bus, topic) for value in values]


def key_for(partition: int, partitions: int, start: str = "k") -> str:
    return next(key for key in (f"{start}{n}" for n in range(10_000)) if partition_of(key, partitions) == partition)


class ModelBus:
    """The bus as plain lists."""

    def __init__(self) -> None:
        self.topics: dict[str, list[list[tuple[str, bytes]]]] = {}
        self.commits: dict[tuple[str, str, int], int] = {}

    def create(self, name: str, partitions: int) -> None:
        self.topics.setdefault(name, [[] for _ in range(partitions)])

    def delete(self, name: str) -> None:
        self.topics.pop(name, None)
        self.commits = {key: value for key, value in self.commits.items() if key[1] != name}

    def publish(self, entries: Sequence[Entry]) -> None:
        for each in entries:
            partitions = self.topics[each.topic]
            partitions[partition_of(each.key, len(partitions))].append((each.key, each.value))
