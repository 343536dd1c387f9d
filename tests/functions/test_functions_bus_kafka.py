"""The bus on Kafka: its URL always; brokers that stop, die and come back with COTERIE_KAFKA (`make kafka`)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from bus_suite import entry, read_all, read_values
from kafka_broker import KafkaCluster, kafka_wanted, shared_kafka

from coterie.functions.bus import factory
from coterie.functions.bus.factory import check_bus_url, open_bus
from coterie.functions.bus.kafka_settings import KafkaSettings, client_options, parse_kafka_url
from coterie.functions.bus.protocol import Bus, BusError, Commit

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
