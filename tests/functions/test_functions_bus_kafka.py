"""The bus on Kafka: its URL always; brokers that stop, die and come back with COTERIE_KAFKA (`make kafka`)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from bus_suite import entry, key_for, read_all, read_values
from kafka_broker import KafkaCluster, kafka_wanted, shared_kafka

from coterie.functions.bus import factory
from coterie.functions.bus.factory import check_bus_url, open_bus
from coterie.functions.bus.kafka import KafkaBus
from coterie.functions.bus.kafka_clients import KafkaClients, StoredTopic
from coterie.functions.bus.kafka_settings import KafkaSettings, client_options, parse_kafka_url
from coterie.functions.bus.protocol import Bus, BusError, Commit, Entry, Record
from coterie.functions.bus.topic_state import PartitionState

real_kafka = pytest.mark.skipif(not kafka_wanted(), reason="COTERIE_KAFKA is not set")


def test_a_short_url() -> None:
    settings = parse_kafka_url("kafka://one:9092,[::1]:9093")
    assert settings == KafkaSettings(("one:9092", "[::1]:9093"))
    assert client_options(settings)["security_protocol"] == "PLAINTEXT"
    assert parse_kafka_url("kafka://one:9092", "alice-").prefix == "alice-"
    assert parse_kafka_url("kafka://one:9092?prefix=bob-", "alice-").prefix == "bob-"


def test_a_url_with_everything(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("from a file\n")
    settings = parse_kafka_url("kafka://me:p%40ss@one:9092?tls=true&sasl=SCRAM-SHA-512&replication=2&timeout=5")
    assert (settings.user, settings.password.reveal(), settings.sasl) == ("me", "p@ss", "SCRAM-SHA-512")
    assert (settings.tls, settings.replication, settings.timeout) == (True, 2, 5.0)
    options = client_options(settings)
    assert (options["security_protocol"], options["sasl_plain_password"]) == ("SASL_SSL", "p@ss")
    assert options["ssl_context"].check_hostname
    assert "p@ss" not in repr(settings) and "p%40ss" not in repr(settings)
    filed = parse_kafka_url(f"kafka://me@one:9092?password-file={tmp_path}/password")
    assert filed.password.reveal() == "from a file"
    assert client_options(filed)["security_protocol"] == "SASL_PLAINTEXT"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis://host:1", "must be `embedded` or"),
        ("Embedded", "must be `embedded` or"),
        ("kafka:one:9092", "must be `embedded` or"),
        ("kafka://", "no host:port"),
        ("kafka://one", "no host:port"),
        ("kafka://one:9092,", "no host:port"),
        ("kafka://one:70000", "no host:port"),
        ("kafka://one:9092/topic", "nothing after"),
        ("kafka://one:9092?acks=0", "no option 'acks'"),
        ("kafka://one:9092?tls", "option=value"),
        ("kafka://one:9092?tls=yes", "true or false"),
        ("kafka://one:9092?tls=true&tls=false", "twice"),
        ("kafka://one:9092?replication=0", "number from 1"),
        ("kafka://one:9092?timeout=soon", "number from 1"),
        ("kafka://one:9092?prefix=a/b", "prefix"),
        ("kafka://one:9092?prefix=", "prefix"),
        ("kafka://me:secret@one:9092?sasl=GSSAPI", "sasl must be"),
        ("kafka://me@one:9092", "a user and a password"),
        ("kafka://one:9092?sasl=PLAIN", "a user and a password"),
        ("kafka://one:9092?cert=/a", "together"),
        ("kafka://me:secret@one:9092?password-file=/nowhere", "not in both"),
        ("kafka://me@one:9092?password-file=/nowhere", "cannot be read"),
    ],
)
def test_urls_that_are_refused(url: str, reason: str) -> None:
    with pytest.raises(BusError, match=reason) as caught:
        check_bus_url(url)
    assert "secret" not in str(caught.value)


def test_files_of_certificates_that_are_not_there() -> None:
    with pytest.raises(BusError, match="certificates"):
        client_options(parse_kafka_url("kafka://one:9092?ca=/nowhere"))


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "find_spec", lambda _: None)
    check_bus_url("embedded")
    with pytest.raises(BusError, match=r"install coterie\[kafka\]"):
        check_bus_url("kafka://one:9092")


@pytest.mark.skipif(find_spec("aiokafka") is None, reason="aiokafka is not installed")
async def test_nobody_is_there(tmp_path: Path) -> None:
    with pytest.raises(BusError, match=r"Kafka at 127.0.0.1:1 cannot be used"):
        await open_bus("kafka://127.0.0.1:1?timeout=2", tmp_path)


class PlayedConsumer:
    """What `KafkaClients.growth` asks of a consumer. `held`: where an open transaction of somebody else begins."""

    def __init__(self, records: list[int], end: int, first: int = 0, held: int = 1 << 40) -> None:
        self.records, self.end, self.first, self.held = records, end, first, held
        self.at = 0
        self.asked = 0

    async def beginning_offsets(self, partitions: list[Any]) -> dict[Any, int]:
        return dict.fromkeys(partitions, self.first)

    async def end_offsets(self, partitions: list[Any]) -> dict[Any, int]:
        return dict.fromkeys(partitions, self.end)

    def assign(self, partitions: list[Any]) -> None: ...

    def pause(self, *partitions: Any) -> None: ...

    def seek(self, partition: Any, offset: int) -> None:
        self.at = offset

    async def position(self, partition: Any) -> int:
        return self.at

    async def getmany(self, partition: Any, timeout_ms: int) -> dict[Any, list[Any]]:
        self.asked += 1
        limit = min(self.end, self.held)
        found = [SimpleNamespace(offset=each) for each in self.records if self.at <= each < limit]
        self.at = max(self.at, limit)
        return {partition: found} if found else {}


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Callable[[PlayedConsumer], KafkaBus]:
    """A bus with a shared topic of one partition, whose first two records were there when it was opened."""

    def make(consumer: PlayedConsumer) -> KafkaBus:
        clients = object.__new__(KafkaClients)
        clients.consumer, clients.commits = consumer, "alice-committed-offsets"  # type: ignore[assignment]
        bus = KafkaBus(parse_kafka_url("kafka://127.0.0.1:1", "alice-"))
        bus._clients = clients
        bus._topics["orders"] = [PartitionState(0, 0, 2, {})]
        bus._shared["orders"] = []
        bus._mark_shared("orders")
        return bus

    return make


class PlayedBroker:
    """What `share_topic` asks of the clients."""

    def __init__(self, stored: dict[str, StoredTopic]) -> None:
        self.stored = stored
        self.made: list[tuple[str, str]] = []

    async def create_topic(self, name: str, partitions: int, configs: dict[str, str]) -> bool:
        if name in self.stored:
            return False
        self.stored[name] = StoredTopic([0] * partitions, [0] * partitions)
        self.made.append((name, configs["retention.ms"]))
        return True

    async def made_topic(self, name: str) -> StoredTopic:
        return self.stored[name]


async def test_a_topic_that_is_there_is_shared_as_it_is() -> None:
    """Also an empty one, with as many partitions as somebody gave it."""
    broker = PlayedBroker({"alice.empty": StoredTopic([0], [0]), "alice.full": StoredTopic([3, 0], [7, 1])})
    bus = KafkaBus(parse_kafka_url("kafka://127.0.0.1:1", "alice."))
    bus._clients = broker  # type: ignore[assignment]
    bus._stale["trigger-1", "full", 0] = 5, ""
    assert [await bus.share_topic(name) for name in ("empty", "full", "new", "full")] == [1, 2, 6, 2]
    assert broker.made == [("alice.new", str(7 * 24 * 3600 * 1000))]
    assert (await bus.ends("full"), await bus.committed("trigger-1", "full")) == ({0: 7, 1: 1}, {0: 5})
    assert all(each.shared and not each.recent for name in bus._shared for each in bus._topics[name])
    for name in ("committed-offsets", "../x", ""):
        with pytest.raises(BusError):
            await bus.share_topic(name)


async def test_what_others_wrote_wakes_who_reads(played: Callable[[PlayedConsumer], KafkaBus]) -> None:
    consumer = PlayedConsumer([0, 1], 3)  # a mark of a transaction at the end
    bus = played(consumer)
    assert await bus.refresh("orders") and (await bus.ends("orders"))[0] == 2
    assert await bus.refresh("orders") and consumer.asked == 1, "it is not looked at again"
    (partition,) = bus._topics["orders"]
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    partition.waiters.append(waiter)
    consumer.records, consumer.end = [0, 1, 3, 4], 6
    await bus.refresh("orders")
    assert waiter.done() and (await bus.ends("orders"))[0] == 5
    # One of ours behind those of others: nothing is taken from memory, where theirs are not.
    bus._take_over([Record("orders", 0, 9, "k", b"ours", 0)], [])
    assert (partition.end, partition.recent_from, len(partition.recent)) == (10, 10, 0)
    consumer.records, consumer.end = [0, 1, 3, 4, 7, 9], 10
    await bus.refresh("orders")
    assert (await bus.ends("orders"))[0] == 10


async def test_an_open_transaction_of_others_and_records_that_a_broker_dropped(
    played: Callable[[PlayedConsumer], KafkaBus],
) -> None:
    consumer = PlayedConsumer([0, 1, 2, 5, 6], 7, held=4)
    bus = played(consumer)
    await bus.refresh("orders")
    assert (await bus.ends("orders"))[0] == 3, "as far as it goes, and it does not wait"
    assert consumer.asked == 2
    consumer.held = 1 << 40
    await bus.refresh("orders")
    assert (await bus.ends("orders"))[0] == 7
    consumer.records, consumer.first, consumer.end = [], 20, 20
    await bus.refresh("orders")
    (partition,) = bus._topics["orders"]
    assert (partition.first, partition.end) == (20, 20)
    assert await bus.read("orders", 0, 3, 10) == []


@real_kafka
async def test_records_of_other_clients_of_kafka(tmp_path: Path) -> None:
    kafka = shared_kafka()
    bus = await open_bus(f"{kafka.url('shared-')}&timeout=10", tmp_path)
    other = AIOKafkaProducer(bootstrap_servers=kafka.addresses)
    unsure = AIOKafkaProducer(bootstrap_servers=kafka.addresses, transactional_id="shared-other")
    try:
        for each in (other, unsure):
            await each.start()
        await other.send_and_wait("shared-early", b"before")
        partitions = await bus.share_topic("orders")
        assert await bus.share_topic("early") >= 1
        found: list[bytes] = []

        async def read(topic: str, count: int) -> list[bytes]:
            async with asyncio.timeout(30):
                while True:
                    await bus.refresh(topic)
                    parts = (await bus.topics())[topic]
                    found[:] = [each.value for number in range(parts) for each in await read_all(bus, topic, number)]
                    if len(found) >= count:
                        return sorted(found)
                    await asyncio.sleep(0.2)

        assert await read("early", 1) == [b"before"]
        await other.send_and_wait("shared-orders", b"1", partition=0)
        await bus.publish([Entry("orders", key_for(0, partitions), b"2")])
        await unsure.begin_transaction()
        await unsure.send_and_wait("shared-orders", b"4", partition=0)
        assert await read("orders", 2) == [b"1", b"2"]
        await bus.refresh("orders")
        await unsure.commit_transaction()
        await other.send_and_wait("shared-orders", b"3", partition=0)
        assert await read("orders", 4) == [b"1", b"2", b"3", b"4"]
    finally:
        await other.stop()
        await unsure.stop()
        await bus.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaCluster]:
    with KafkaCluster(tmp_path) as cluster:
        yield cluster


@real_kafka
async def test_a_broker_that_goes_and_comes_back(broker: KafkaCluster, tmp_path: Path) -> None:
    bus = await open_bus(f"{broker.url('one-')}&timeout=4", tmp_path)
    await bus.create_topic("a", 2)
    await bus.create_topic("b", 1)
    await bus.publish([entry("a", "before"), entry("b", "before")], [Commit("g", "a", 0, 1)])
    committed = await bus.committed("g", "a")
    assert committed == {0: 1}
    reader = asyncio.ensure_future(bus.read("b", 0, (await bus.ends("b"))[0], 1, wait=200))
    broker.kill(0)
    with pytest.raises(BusError, match="did not acknowledge"):
        await bus.publish([entry("a", "lost?"), entry("b", "lost?")])
    with pytest.raises(BusError, match=r"does not answer|did not acknowledge"):
        await bus.publish([entry("a", "lost?")])
    with pytest.raises(BusError, match=r"did not do it|away"):
        await bus.create_topic("c")
    broker.start_broker(0)
    broker.wait_for(0)
    for _ in range(20):
        with contextlib.suppress(BusError):
            await bus.publish([entry("a", "after"), entry("b", "after")])
            break
    assert [record.key for record in await reader] in (["after"], ["lost?"])
    for topic in ("a", "b"):
        values = await read_values(bus, topic)
        assert values.count("before") == values.count("after") == 1
        assert set(values) <= {"before", "lost?", "after"}
    assert await bus.committed("g", "a") == committed
    await bus.create_topic("c")
    await bus.close()


@real_kafka
async def test_a_second_process_fences_the_first(tmp_path: Path) -> None:
    url = shared_kafka().url("fenced-") + "&timeout=10"
    first = await open_bus(url, tmp_path)
    await first.create_topic("a", 1)
    await first.publish([entry("a", "1"), entry("a", "2")])
    second = await open_bus(url, tmp_path)
    with pytest.raises(BusError, match="another process uses the same prefix"):
        await first.publish([entry("a", "3"), entry("a", "4")])
        await first.publish([entry("a", "3"), entry("a", "4")])  # the producers take turns
    await first.close()
    assert await read_values(second, "a") == ["1", "2"]
    await second.close()


@real_kafka
async def test_brokers_that_ask_for_a_password(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("s3cret\n")
    with KafkaCluster(tmp_path, login=("alice", "s3cret")) as cluster:
        servers = ",".join(cluster.addresses)
        bus = await open_bus(f"kafka://alice@{servers}?password-file={tmp_path}/password", tmp_path)
        await bus.create_topic("a", 1)
        await bus.publish([entry("a", "1"), entry("a", "2")], [Commit("g", "a", 0, 1)])
        await bus.close()
        bus = await open_bus(f"kafka://alice:s3cret@{servers}", tmp_path)
        assert await read_values(bus, "a") == ["1", "2"]
        await bus.close()
        for login in ("alice:wr0ng@", ""):
            with pytest.raises(BusError, match="cannot be used") as caught:
                await open_bus(f"kafka://{login}{servers}?timeout=5", tmp_path)
            assert "wr0ng" not in str(caught.value)


@real_kafka
async def test_what_lies_on_the_broker_is_read_in_pieces(tmp_path: Path) -> None:
    url = shared_kafka().url("pieces-")
    bus = await open_bus(url, tmp_path)
    await bus.create_topic("a", 3)
    for step in range(5):
        await bus.publish([entry("a", f"{number}", f"{step}/{number}" + "x" * 2000) for number in range(200)])
    await bus.close()
    bus = await open_bus(url, tmp_path)  # nothing is in memory
    for partition in range(3):
        found = await read_all(bus, "a", partition, limit=37)
        offsets = [record.offset for record in found]
        assert offsets == sorted(set(offsets)) and len(found) > 200
        again = await bus.read("a", partition, offsets[10], 5)
        assert [record.offset for record in again] == offsets[10:15]
    assert len(await read_values(bus, "a")) == 1000
    await bus.close()


@real_kafka
@pytest.mark.timeout(240)
async def test_three_brokers_lose_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything that was acknowledged is there, whole and in order; publishing goes on by itself."""
    with KafkaCluster(tmp_path, brokers=3) as cluster:
        bus = await open_bus(cluster.url("three-"), tmp_path)
        await bus.create_topic("a", 6)
        await bus.create_topic("b", 6)
        acknowledged: list[list[int]] = [[] for _ in range(8)]
        failures = 0
        slowest = 0.0
        stop = asyncio.Event()

        async def publisher(number: int) -> None:
            nonlocal failures, slowest
            step = 0
            while not stop.is_set():
                began = time.monotonic()
                try:
                    value = f"{number}/{step}"
                    await bus.publish([entry("a", f"key-{number}", value), entry("b", f"key-{number}", value)])
                    acknowledged[number].append(step)
                except BusError:
                    failures += 1
                slowest = max(slowest, time.monotonic() - began)
                step += 1

        publishers = [asyncio.ensure_future(publisher(number)) for number in range(8)]
        await asyncio.sleep(4)
        before = sum(map(len, acknowledged))
        memory = [cluster.resident_megabytes(number) for number in range(3)]
        await asyncio.to_thread(cluster.kill, 1)
        await asyncio.sleep(20)
        stop.set()
        await asyncio.gather(*publishers)
        count = sum(map(len, acknowledged))
        with capsys.disabled():
            print(
                f"\nthree brokers, one killed: {before} publishes before, {count - before} after, {failures} failed, "
                f"longest {slowest:.1f} s; brokers have {memory} MB"
            )
        assert before > 0 and count > before
        await check_acknowledged(bus, acknowledged)
        await bus.close()
        bus = await open_bus(cluster.url("three-"), tmp_path)
        await check_acknowledged(bus, acknowledged)
        await bus.close()


async def check_acknowledged(bus: Bus, acknowledged: list[list[int]]) -> None:
    values = await read_values(bus, "a")
    assert await read_values(bus, "b") == values
    for number, steps in enumerate(acknowledged):
        mine = [int(value.split("/")[1]) for value in values if value.startswith(f"{number}/")]
        assert mine == sorted(set(mine))
        assert set(steps) <= set(mine)
