"""What a message bus does: topics of partitions, each an append-only log with offsets, as in Kafka.

The functions process of a domain is the only one that uses its topics: it assigns partitions itself, so nothing is ever
rebalanced. Actors and gateways never speak to the bus. Shared topics are the exception: Triggers read them, and on Kafka others may write to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from zlib import crc32

PARTITIONS = 6
VALUE_LIMIT = 16 << 20
"""Bytes of one value. More is refused."""


class BusError(Exception):
    """The bus cannot do it; the message says why and what to do. What was not acknowledged may or may not be there."""


class UnknownTopic(BusError):
    pass


@dataclass(frozen=True, slots=True)
class Entry:
    """Something to append."""

    topic: str
    key: str
    """Decides the partition: the same key is always in the same one (`partition_of`)."""
    value: bytes


@dataclass(frozen=True, slots=True)
class Position:
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Record:
    topic: str
    partition: int
    offset: int
    key: str
    value: bytes
    time: int
    """When it was appended, milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Commit:
    """All records of a partition below `offset` are done for a group."""

    group: str
    topic: str
    partition: int
    offset: int
    note: str = ""
    """Kept with the offset and replaced with it, at most 4096 ASCII characters (Kafka: the metadata of a committed offset). The
    dispatcher notes which records above the offset are done already."""


class Bus(Protocol):
    @property
    def shared_value_limit(self) -> int:
        """Bytes of a value that is published to a shared topic."""

    async def create_topic(self, name: str, partitions: int = PARTITIONS) -> None:
        """Nothing happens when it is there."""

    async def share_topic(self, name: str) -> int:
        """A topic that others may write to as well, where the bus lets them. It is made where it is not there, and never replaced.
        Its number of partitions."""

    async def refresh(self, topic: str) -> bool:
        """Looks what others have written to a shared topic, and wakes who reads it. False: nobody else can write to this bus, nor keep
        or drop records of it."""

    async def delete_topic(self, name: str) -> None:
        """With its records and the offsets of all groups. Nothing happens when it is not there."""

    async def topics(self) -> Mapping[str, int]:
        """All topics with their number of partitions."""

    async def publish(self, entries: Sequence[Entry], commits: Sequence[Commit] = ()) -> list[Position]:
        """Durable when it returns, all or nothing, entries and commits together. Concurrent calls share one write to disk.
        UnknownTopic when one is not there; then nothing is written."""

    async def read(self, topic: str, partition: int, offset: int, limit: int, wait: float = 0.0) -> list[Record]:
        """From `offset` on, at most `limit`, in order; waits up to `wait` seconds for the first. Offsets that were dropped by
        `trim` are skipped. There may be fewer than `limit` though more exist (large values), and gaps between offsets (Kafka):
        go on at the offset after the last record, and commit that. UnknownTopic also when the topic is deleted meanwhile."""

    async def committed(self, group: str, topic: str) -> Mapping[int, int]:
        """The next offset of each partition; partitions without a commit are missing: a new group reads from the earliest."""

    async def notes(self, group: str, topic: str) -> Mapping[int, str]:
        """The notes of the last commits, by partition; empty ones may be missing."""

    async def ends(self, topic: str) -> Mapping[int, int]:
        """The offset after the last record of each partition. A group that has committed it has nothing left to read."""

    async def trim(self, topic: str, before: int) -> None:
        """Drops records older than `before` (milliseconds since 1970), from the oldest to the first that is not older."""

    async def close(self) -> None: ...


def partition_of(key: str, partitions: int) -> int:
    """The same on every bus and after every restart (CRC-32)."""
    return crc32(key.encode()) % partitions
