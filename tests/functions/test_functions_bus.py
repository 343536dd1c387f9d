"""One suite for every bus."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
from bus_suite import ModelBus, entry, key_for, read_all, read_topic, read_values
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from coterie.functions.bus.factory import open_bus
from coterie.functions.bus.protocol import VALUE_LIMIT, Bus, BusError, Commit, Entry, UnknownTopic, partition_of

OpenBus = Callable[[], Awaitable[Bus]]
FAR = 1 << 50
CHILD = Path(__file__).with_name("bus_child.py")


async def test_topics_are_created_and_deleted(bus: Bus) -> None:
    assert await bus.topics() == {}
    await bus.create_topic("a_TOPIC")
    await bus.create_topic("b", 2)
    await bus.create_topic("b", 5)  # is there already
    assert await bus.topics() == {"a_TOPIC": 6, "b": 2}
    await bus.delete_topic("b")
    await bus.delete_topic("b")
    assert await bus.topics() == {"a_TOPIC": 6}


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../etc", "a b", "ä", "x" * 201, "a\n"])
async def test_names_that_are_refused(bus: Bus, name: str) -> None:
    with pytest.raises(BusError, match="no name of a topic"):
        await bus.create_topic(name)


async def test_a_shared_topic_is_made_once_and_keeps_what_is_in_it(bus: Bus, opens: OpenBus) -> None:
    assert await bus.share_topic("orders") == await bus.share_topic("orders") == (await bus.topics())["orders"]
    key = key_for(0, 6)
    await bus.publish([entry("orders", key, "one")])
    await bus.refresh("orders")
    await bus.publish([entry("orders", key, "two"), entry("orders", key, "three")])
    assert await bus.share_topic("orders") == 6
    assert await read_values(bus, "orders") == ["one", "two", "three"]
    reading = asyncio.ensure_future(bus.read("orders", 0, (await bus.ends("orders"))[0], 10, 20.0))
    await asyncio.sleep(0)
    await bus.publish([entry("orders", key, "four")])
    assert [each.value for each in await reading] == [b"four"]
    with pytest.raises(UnknownTopic):
        await bus.refresh("none")
    await bus.close()
    again = await opens()
    await again.share_topic("orders")
    await again.refresh("orders")
    assert await read_values(again, "orders") == ["one", "two", "three", "four"]


async def test_numbers_that_are_refused(bus: Bus) -> None:
    for partitions in (0, -1, 1001):
        with pytest.raises(BusError, match="partitions"):
            await bus.create_topic("a", partitions)
    await bus.create_topic("a", 2)
    with pytest.raises(BusError, match="has no partition 2"):
        await bus.read("a", 2, 0, 10)
    with pytest.raises(BusError, match="has no partition 7"):
        await bus.publish([entry("a", "k")], [Commit("g", "a", 7, 0)])
    with pytest.raises(BusError, match="cannot be committed"):
        await bus.publish([entry("a", "k")], [Commit("g", "a", 0, -1)])
    for note in ("x" * 4097, "ä"):
        with pytest.raises(BusError, match="note"):
            await bus.publish([entry("a", "k")], [Commit("g", "a", 0, 0, note)])
    with pytest.raises(BusError, match="too large"):
        await bus.publish([Entry("a", "k", bytes(VALUE_LIMIT + 1))])
    with pytest.raises(BusError, match="Unicode"):
        await bus.publish([Entry("a", "\ud800", b"")])
    assert await read_topic(bus, "a") == [[], []]
    assert await bus.read("a", 0, 0, 0) == []


async def test_order_in_a_partition_and_offsets(bus: Bus) -> None:
    await bus.create_topic("a", 1)
    first = await bus.publish([entry("a", f"k{n}", str(n)) for n in range(20)])
    second = await bus.publish([entry("a", "k", "20")])
    offsets = [each.offset for each in (*first, *second)]
    assert first[0].offset == 0 and offsets == sorted(set(offsets))
    found = await read_all(bus, "a", 0, limit=7)
    assert [record.value for record in found] == [str(n).encode() for n in range(21)]
    assert [record.offset for record in found] == offsets
    assert {(record.topic, record.partition) for record in found} == {("a", 0)}
    assert found[3].key == "k3" and abs(found[3].time - time.time() * 1000) < 600_000
    assert await bus.ends("a") == {0: offsets[-1] + 1}
    assert [record.offset for record in await bus.read("a", 0, offsets[5], 2)] == offsets[5:7]


async def test_a_key_decides_the_partition(bus: Bus) -> None:
    await bus.create_topic("a", 6)
    keys = [f"user-{n % 10}" for n in range(60)]
    positions = await bus.publish([entry("a", key, f"{key}/{n}") for n, key in enumerate(keys)])
    assert [each.partition for each in positions] == [partition_of(key, 6) for key in keys]
    for partition in range(6):
        for record in await read_all(bus, "a", partition):
            assert partition_of(record.key, 6) == partition
    assert sorted(await read_values(bus, "a")) == sorted(f"{key}/{n}" for n, key in enumerate(keys))


def test_the_partition_of_a_key_never_changes() -> None:
    """Records that are there would be in the wrong one."""
    assert [partition_of(key, 6) for key in ("", "a", "user-1", "ключ")] == [0, 3, 2, 0]
    counts = [0] * 6
    for n in range(6000):
        counts[partition_of(f"request-{n}", 6)] += 1
    assert min(counts) > 800


async def test_a_new_group_starts_at_the_earliest(bus: Bus) -> None:
    await bus.create_topic("a", 2)
    key = key_for(1, 2)
    (position,) = await bus.publish([entry("a", key)])
    assert await bus.committed("new", "a") == {}
    assert [record.key for record in await bus.read("a", 1, 0, 10)] == [key]
    await bus.publish([], [Commit("new", "a", 1, position.offset + 1)])
    assert await bus.committed("new", "a") == {1: position.offset + 1} == {1: (await bus.ends("a"))[1]}
    assert await bus.committed("other", "a") == {}


async def test_entries_and_commits_are_one(bus: Bus, opens: OpenBus) -> None:
    for name in ("calls", "answers", "results"):
        await bus.create_topic(name, 2)
    (call,) = await bus.publish([entry("calls", "r1")])
    commit = Commit("g", "calls", call.partition, call.offset + 1, "n" * 4096)
    await bus.publish([entry("answers", "r1"), entry("results", "r1")], [commit])
    for _ in range(2):
        assert await read_values(bus, "answers") == await read_values(bus, "results") == ["r1"]
        assert await bus.committed("g", "calls") == {call.partition: call.offset + 1}
        assert await bus.notes("g", "calls") == {call.partition: "n" * 4096}
        bus = await opens()


async def test_an_unknown_topic_stops_all_of_it(bus: Bus) -> None:
    await bus.create_topic("a", 1)
    with pytest.raises(UnknownTopic, match="nowhere"):
        await bus.publish([entry("a", "k"), entry("nowhere", "k")], [Commit("g", "a", 0, 1)])
    with pytest.raises(UnknownTopic, match="nowhere"):
        await bus.publish([entry("a", "k")], [Commit("g", "nowhere", 0, 1)])
    assert await read_topic(bus, "a") == [[]]
    assert await bus.committed("g", "a") == {}
    for refused in (bus.read("nowhere", 0, 0, 1), bus.ends("nowhere"), bus.trim("nowhere", 0)):
        with pytest.raises(UnknownTopic, match="nowhere"):
            await refused
    with pytest.raises(UnknownTopic):
        await bus.committed("g", "nowhere")


async def test_many_publishers_at_once(bus: Bus) -> None:
    await bus.create_topic("a", 3)
    await bus.create_topic("b", 3)

    async def publisher(number: int) -> None:
        for step in range(10):
            value = f"{number}/{step}"
            await bus.publish([entry("a", f"key-{number}", value), entry("b", f"key-{number}", value)])

    await asyncio.gather(*(publisher(number) for number in range(20)))
    for topic in ("a", "b"):
        values = await read_values(bus, topic)
        assert len(values) == 200
        for number in range(20):  # each in its order
            mine = [value for value in values if value.startswith(f"{number}/")]
            assert mine == [f"{number}/{step}" for step in range(10)]


async def test_a_reader_waits_and_is_woken(bus: Bus) -> None:
    await bus.create_topic("a", 2)
    key = key_for(1, 2)
    assert await bus.read("a", 1, 0, 10, wait=0.01) == []
    readers = [asyncio.ensure_future(bus.read("a", 1, 0, 10, wait=50)) for _ in range(3)]
    other = asyncio.ensure_future(bus.read("a", 0, 0, 10, wait=0.5))
    await asyncio.sleep(0.1)
    await bus.publish([entry("a", key, "hello")])
    for found in await asyncio.gather(*readers):
        assert [record.value for record in found] == [b"hello"]
    assert await other == []
    gone = asyncio.ensure_future(bus.read("a", 0, 0, 10, wait=50))
    await asyncio.sleep(0.05)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone


async def test_a_waiting_reader_hears_that_its_topic_is_deleted(bus: Bus) -> None:
    await bus.create_topic("a", 1)
    reader = asyncio.ensure_future(bus.read("a", 0, 0, 10, wait=50))
    await asyncio.sleep(0.05)
    await bus.delete_topic("a")
    with pytest.raises(UnknownTopic):
        await reader


async def test_a_waiting_reader_ends_with_the_bus(bus: Bus) -> None:
    await bus.create_topic("a", 1)
    reader = asyncio.ensure_future(bus.read("a", 0, 0, 10, wait=50))
    await asyncio.sleep(0.05)
    await bus.close()
    await bus.close()
    with pytest.raises(BusError, match="closed"):
        await reader
    with pytest.raises(BusError, match="closed"):
        await bus.publish([entry("a", "k")])
    with pytest.raises(BusError, match="closed"):
        await bus.topics()


async def test_large_values(bus: Bus) -> None:
    await bus.create_topic("a", 1)
    large = os.urandom(1 << 20) * 16
    assert len(large) == VALUE_LIMIT
    await bus.publish([entry("a", "k", "small")])
    await bus.publish([Entry("a", "k", large)])
    await bus.publish([entry("a", "k", "small too")])
    found = await read_all(bus, "a", 0)
    assert [record.value for record in found] == [b"small", large, b"small too"]


async def test_trim_drops_what_is_old(bus: Bus, opens: OpenBus) -> None:
    await bus.create_topic("a", 2)
    key = key_for(1, 2)
    old = await bus.publish([entry("a", key, f"old {n}") for n in range(700)])
    await asyncio.sleep(0.02)
    limit = int(time.time() * 1000)
    await asyncio.sleep(0.02)
    await bus.publish([entry("a", key, "new")])
    ends = await bus.ends("a")
    await bus.trim("a", 0)
    assert len(await read_all(bus, "a", 1, limit=1000)) == 701
    await bus.trim("a", limit)
    for _ in range(2):
        found = await bus.read("a", 1, old[3].offset, 10)
        assert [record.value for record in found] == [b"new"]
        assert await bus.ends("a") == ends
        bus = await opens()
    await bus.publish([], [Commit("g", "a", 1, ends[1])])
    await bus.trim("a", FAR)
    for _ in range(2):  # nothing is left, and nobody has anything left to read
        assert await read_topic(bus, "a") == [[], []]
        assert await bus.ends("a") == ends
        bus = await opens()
    (position,) = await bus.publish([entry("a", key, "after")])
    assert position.offset >= ends[1]
    assert [record.value for record in await bus.read("a", 1, 0, 10, wait=20)] == [b"after"]


async def test_a_topic_that_is_made_again_is_empty(bus: Bus, opens: OpenBus) -> None:
    for round in range(3):
        await bus.create_topic("a", 2)
        assert await read_topic(bus, "a") == [[], []]
        assert await bus.committed("g", "a") == {}
        assert await bus.ends("a") == {0: 0, 1: 0}
        positions = await bus.publish([entry("a", f"{round}-{n}") for n in range(10)], [Commit("g", "a", 0, 1)])
        assert min(each.offset for each in positions) == 0
        assert len(await read_values(bus, "a")) == 10
        await bus.delete_topic("a")
        with pytest.raises(UnknownTopic):
            await bus.publish([entry("a", "k")])
    bus = await opens()
    assert await bus.topics() == {}


async def test_everything_is_there_after_a_restart(bus: Bus, opens: OpenBus) -> None:
    await bus.create_topic("a", 3)
    positions = await bus.publish([entry("a", f"k{n}") for n in range(30)])
    last = positions[-1]
    await bus.publish([], [Commit("g", "a", last.partition, last.offset + 1)])
    before = await read_topic(bus, "a"), await bus.ends("a"), await bus.committed("g", "a"), await bus.topics()
    bus = await opens()
    assert (
        await read_topic(bus, "a"),
        await bus.ends("a"),
        await bus.committed("g", "a"),
        await bus.topics(),
    ) == before
    (position,) = await bus.publish([entry("a", "k29", "more")])
    assert position.partition == last.partition and position.offset > last.offset


@pytest.mark.timeout(120)
def test_what_was_acknowledged_survives_a_kill(bus_url: str, tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    acknowledged: set[str] = set()
    for round in range(1, 3):
        command = [sys.executable, CHILD, "publish", path, bus_url]
        environment = {**os.environ, "PYTHONPATH": str(CHILD.parent)}
        child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        values = [child.stdout.readline().strip() for _ in range(300)]
        child.send_signal(signal.SIGKILL)
        values += [line.strip() for line in child.stdout if line.endswith("\n")]
        child.stdout.close()
        child.wait()
        acknowledged |= set(values)
        asyncio.run(check_after_kill(bus_url, path, acknowledged, round, values))


async def check_after_kill(url: str, path: Path, acknowledged: set[str], rounds: int, values: list[str]) -> None:
    bus = await open_bus(url, path)
    found = Counter(await read_values(bus, "a"))
    assert Counter(await read_values(bus, "b")) == found  # whole or not there
    assert acknowledged <= set(found)
    assert max(found.values()) <= rounds
    for number in range(8):
        last = max(int(value.split("/")[1]) for value in values if value.startswith(f"{number}/"))
        assert (await bus.committed(f"g{number}", "a"))[0] >= last
    await bus.close()


NAMES = st.sampled_from(["a", "b", "c"])


class BusMachine(RuleBasedStateMachine):
    """Random steps against the model. One event loop for all steps of a run."""

    url = "embedded"
    place = Path()

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory(dir=self.place)
        self.model = ModelBus()
        self.bus = self.do(self.opened())

    async def opened(self) -> Bus:
        return await open_bus(self.url, Path(self.folder.name) / "bus.db")

    def do(self, work: Any) -> Any:
        return self.runner.run(work)

    def teardown(self) -> None:
        self.do(self.emptied())
        self.runner.close()
        self.folder.cleanup()

    async def emptied(self) -> None:
        for name in await self.bus.topics():
            await self.bus.delete_topic(name)
        await self.bus.close()

    @rule(name=NAMES, partitions=st.integers(1, 3))
    def create(self, name: str, partitions: int) -> None:
        self.do(self.bus.create_topic(name, partitions))
        self.model.create(name, partitions)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.do(self.bus.delete_topic(name))
        self.model.delete(name)

    @rule(
        sent=st.lists(st.tuples(NAMES, st.text(max_size=3), st.binary(max_size=9)), max_size=6),
        group=st.sampled_from("gh"),
    )
    def publish(self, sent: list[tuple[str, str, bytes]], group: str) -> None:
        try:
            entries = [Entry(topic, key.encode(errors="ignore").decode(), value) for topic, key, value in sent]
        except UnicodeError:
            return
        commits = [Commit(group, topic, 0, len(value)) for topic, _, value in sent[:2]]
        if all(each.topic in self.model.topics for each in entries):
            positions = self.do(self.bus.publish(entries, commits))
            assert [(each.topic, each.partition) for each in positions] == [
                (each.topic, partition_of(each.key, len(self.model.topics[each.topic]))) for each in entries
            ]
            self.model.publish(entries)
            self.model.commits.update({(group, each.topic, 0): each.offset for each in commits})
        else:
            with pytest.raises(UnknownTopic):
                self.do(self.bus.publish(entries, commits))

    @rule(name=NAMES)
    def trim(self, name: str) -> None:
        if name in self.model.topics:
            self.do(self.bus.trim(name, FAR))
            for records in self.model.topics[name]:
                records.clear()

    @rule()
    def reopen(self) -> None:
        self.do(self.bus.close())
        self.bus = self.do(self.opened())

    @rule(limit=st.integers(1, 4))
    def compare(self, limit: int) -> None:
        assert self.do(self.bus.topics()) == {name: len(each) for name, each in self.model.topics.items()}
        for name, partitions in self.model.topics.items():
            ends = self.do(self.bus.ends(name))
            for number, expected in enumerate(partitions):
                found = self.do(read_all(self.bus, name, number, limit=limit))
                assert [(record.key, record.value) for record in found] == expected
                assert not found or ends[number] == found[-1].offset + 1
            for group in "gh":
                assert self.do(self.bus.committed(group, name)) == {
                    number: offset
                    for (g, topic, number), offset in self.model.commits.items()
                    if (g, topic) == (group, name)
                }


@pytest.mark.timeout(300)
def test_random_steps_agree_with_the_model(bus_url: str, tmp_path: Path) -> None:
    machine = type("Machine", (BusMachine,), {"url": bus_url, "place": tmp_path})
    embedded = bus_url == "embedded"
    run_state_machine_as_test(
        machine,
        settings=hypothesis.settings(
            max_examples=40 if embedded else 20, stateful_step_count=30 if embedded else 20, deadline=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        ),
    )  # fmt: skip
