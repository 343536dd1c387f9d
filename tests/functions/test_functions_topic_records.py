"""Topics that Triggers read: how much may wait, and what goes when."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from memory_bus_kit import MemoryBus

from coterie.base.clock import VirtualClock
from coterie.functions import topic_records
from coterie.functions.bus.protocol import Commit, Entry
from coterie.functions.topic_records import NobodyReads, RecordTooLarge, TooManyRecords, TopicRecords

BEGIN = datetime(2026, 1, 2, tzinfo=UTC)
GROUPS = {"orders": ["one", "two"]}


class World:
    def __init__(self) -> None:
        self.clock = VirtualClock(BEGIN)
        self.bus = MemoryBus(lambda: int(self.clock.now().timestamp() * 1000))
        self.records = TopicRecords(self.bus, self.clock)
        self.records.set_topics(GROUPS)

    async def read(self, group: str, offset: int) -> None:
        await self.bus.publish([], [Commit(group, "orders", self.partition, offset)])

    async def write(self, value: bytes) -> None:
        self.partition = (await self.records.write("orders", "k", value)).partition

    def values(self) -> list[bytes]:
        return [each.value for each in self.bus.records("orders")]


async def test_nobody_writes_where_nobody_reads() -> None:
    world = World()
    with pytest.raises(NobodyReads):
        await world.records.write("others", "k", b"x")
    world.records.set_topics({"a_DLQ": ["one"], "partner-calls": ["one"]})
    for own in ("a_DLQ", "partner-calls"):
        with pytest.raises(NobodyReads):
            await world.records.write(own, "k", b"x")
    assert not await world.bus.topics()


async def test_a_record_is_no_larger_than_the_bus_takes() -> None:
    world = World()
    world.bus.shared_value_limit = 3
    await world.write(b"123")
    with pytest.raises(RecordTooLarge, match="at most 3 bytes"):
        await world.write(b"1234")
    assert world.values() == [b"123"]


async def test_what_waits_is_bounded_until_every_trigger_has_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_records, "MOST_WAITING", 3)
    monkeypatch.setattr(topic_records, "MOST_WAITING_BYTES", 10)
    world = World()
    for value in (b"1234", b"1234"):
        await world.write(value)
    with pytest.raises(TooManyRecords):
        await world.write(b"1234")
    await world.write(b"12")
    await world.read("one", 3)
    with pytest.raises(TooManyRecords):
        await world.write(b"")
    await world.read("two", 1)
    await world.write(b"1234")
    with pytest.raises(TooManyRecords):
        await world.write(b"1")
    assert world.values() == [b"1234", b"1234", b"12", b"1234"]
    world.records.set_topics({})
    world.records.set_topics(GROUPS)
    await world.write(b"1234567890")


async def test_records_go_when_all_have_read_them_and_no_later_than_after_a_week() -> None:
    world = World()
    await world.write(b"read")
    await world.clock.advance(1)
    await world.write(b"waits")
    await world.read("one", 2)
    await world.read("two", 1)
    await world.clock.advance(timedelta(hours=1).total_seconds())
    await world.records.trim()
    assert world.values() == [b"waits"]
    await world.write(b"new")
    await world.clock.advance(timedelta(days=7).total_seconds() - 10)
    await world.records.trim()
    assert world.values() == [b"new"]


async def test_a_topic_without_a_trigger_goes_after_a_while_and_those_of_functions_never() -> None:
    world = World()
    own = ("a_TOPIC", "a_DLQ", "action-monitor", "action-results", "outbox-bob", "partner-calls", "ReturnGateway-1")
    for topic in own:
        await world.bus.create_topic(topic)
        await world.bus.publish([Entry(topic, "k", b"kept")])
    await world.write(b"one")
    world.records.set_topics({})
    await world.records.trim()
    await world.clock.advance(60)
    await world.records.trim()
    assert "orders" in await world.bus.topics(), "the Trigger may be made again"
    await world.clock.advance(61)
    await world.records.trim()
    assert set(await world.bus.topics()) == set(own)
    assert all(world.bus.records(topic) for topic in own)


async def test_topics_that_belong_to_others_too_are_left_alone() -> None:
    world = World()

    async def others(_: str) -> bool:
        return True

    world.bus.refresh = others  # type: ignore[method-assign]
    await world.write(b"one")
    world.records.set_topics({})
    for _ in range(3):
        await world.records.trim()
        await world.clock.advance(timedelta(days=30).total_seconds())
    assert world.values() == [b"one"]
