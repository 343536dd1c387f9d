"""The embedded bus: its file after kills, on a full disk, damaged; its memory; its times."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from bus_suite import entry, read_all, read_values

from coterie.base.clock import VirtualClock
from coterie.functions.bus import topic_state
from coterie.functions.bus.embedded import EmbeddedBus
from coterie.functions.bus.factory import open_bus
from coterie.functions.bus.protocol import BusError, Commit, Entry

CHILD = Path(__file__).with_name("bus_child.py")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(CHILD.parent)}


def test_a_full_disk(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, CHILD, "fill", tmp_path / "bus.db"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.stdout == "done\n", done.stderr


@pytest.mark.parametrize("content", [b"garbage" * 1000, b"SQLite format 3\0" + b"\xff" * 5000])
async def test_a_file_that_is_no_database(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bus.db"
    path.write_bytes(content)
    with pytest.raises(BusError, match="cannot be opened as a bus"):
        await open_bus("embedded", path)
    assert path.read_bytes() == content
    path.unlink()
    bus = await open_bus("embedded", path)  # nothing of the failure holds it up
    await bus.close()


async def test_databases_that_are_refused(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE a (b)")
    other.close()
    with pytest.raises(BusError, match="another program"):
        await open_bus("embedded", tmp_path / "other.db")
    bus = await open_bus("embedded", tmp_path / "newer.db")
    await bus.close()
    newer = sqlite3.connect(tmp_path / "newer.db")
    newer.execute("PRAGMA user_version = 7")
    newer.close()
    with pytest.raises(BusError, match="schema version 7"):
        await open_bus("embedded", tmp_path / "newer.db")
    (tmp_path / "file").write_text("")
    with pytest.raises(BusError, match="cannot be opened"):
        await open_bus("embedded", tmp_path / "file" / "bus.db")


async def test_a_file_is_open_once(tmp_path: Path) -> None:
    bus = await open_bus("embedded", tmp_path / "bus.db")
    with pytest.raises(BusError, match="already open"):
        await open_bus("embedded", tmp_path / "bus.db")
    assert (tmp_path / "bus.db").stat().st_mode & 0o077 == 0
    await bus.close()


async def test_a_changed_record_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    bus = await open_bus("embedded", path)
    await bus.create_topic("a", 1)
    await bus.create_topic("b", 1)
    await bus.publish([entry("a", "k", "first"), entry("a", "k", "precious"), entry("b", "k", "other")])
    await bus.close()
    content = path.read_bytes()
    assert content.count(b"precious") == 1
    path.write_bytes(content.replace(b"precious", b"worthles"))
    bus = await open_bus("embedded", path)
    with pytest.raises(BusError, match="record 1 of partition 0 of topic a is damaged"):
        await bus.read("a", 0, 0, 10)
    assert [record.value for record in await bus.read("a", 0, 0, 1)] == [b"first"]
    assert await read_values(bus, "b") == ["other"]
    await bus.close()


async def test_a_damaged_page_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    bus = await open_bus("embedded", path)
    await bus.create_topic("a", 1)
    for _ in range(20):
        await bus.publish([Entry("a", str(number), b"v" * 1000) for number in range(10)])
    await bus.close()
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 4096] = os.urandom(4096)
    path.write_bytes(content)
    with pytest.raises(BusError, match=r"cannot be read|cannot be opened|damaged"):
        bus = await open_bus("embedded", path)
        try:
            await read_all(bus, "a", 0)
        finally:
            await bus.close()


async def test_old_records_are_read_from_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_state, "RECENT_RECORDS", 10)
    bus = await EmbeddedBus.open(tmp_path / "bus.db")
    await bus.create_topic("a", 2)
    for step in range(10):
        await bus.publish([entry("a", str(number), f"{step}/{number}") for number in range(10)])
        assert len(await read_values(bus, "a")) == 10 * (step + 1)
        assert sum(len(each.recent) for each in bus._topics["a"]) <= 10
    await bus.close()


async def test_memory_is_bounded(tmp_path: Path) -> None:
    bus = await EmbeddedBus.open(tmp_path / "bus.db")
    await bus.create_topic("a", 1)
    for _ in range(6):
        await bus.publish([Entry("a", "", bytes(1 << 20)) for _ in range(3)])
    assert sum(len(record.value) for record in bus._topics["a"][0].recent) <= topic_state.RECENT_BYTES
    assert len(await bus.read("a", 0, 0, 1000)) == 4  # of 1 MiB each
    assert len(await read_all(bus, "a", 0)) == 18
    await bus.close()


async def test_dropped_records_give_their_space_back(tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    bus = await EmbeddedBus.open(path)
    await bus.create_topic("a", 2)
    await bus.create_topic("b", 1)
    for _ in range(8):
        await bus.publish([Entry("a", str(number), bytes(1 << 20)) for number in range(8)])
    await bus.publish([entry("b", "stays")])
    await bus.delete_topic("a")
    await bus.close()  # before all is dropped
    bus = await EmbeddedBus.open(path)
    for _ in range(200):
        if not bus._writer._dropped:
            break
        await asyncio.sleep(0.02)
    assert await read_values(bus, "b") == ["stays"]
    await bus.close()
    assert path.stat().st_size < 20 << 20
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT count(*) FROM records").fetchone() == (1,)
        assert database.execute("SELECT count(*) FROM partitions").fetchone() == (1,)
    database.close()


async def test_trim_goes_by_the_clock(tmp_path: Path) -> None:
    clock = VirtualClock()
    bus = await EmbeddedBus.open(tmp_path / "bus.db", clock)
    await bus.create_topic("a", 1)
    times = []
    for number in range(4):
        await bus.publish([entry("a", "k", str(number))])
        times.append(int(clock.now().timestamp() * 1000))
        await clock.advance(10)
    assert [record.time for record in await read_all(bus, "a", 0)] == times
    await bus.trim("a", times[1])
    assert await read_values(bus, "a") == ["1", "2", "3"]
    await bus.trim("a", times[2] + 1)
    assert await read_values(bus, "a") == ["3"]
    assert [record.offset for record in await bus.read("a", 0, 0, 10)] == [3]
    await bus.close()


async def test_a_cancelled_publish_harms_nobody(tmp_path: Path) -> None:
    bus = await EmbeddedBus.open(tmp_path / "bus.db")
    await bus.create_topic("a", 1)
    gone = asyncio.ensure_future(bus.publish([entry("a", "gone")]))
    await asyncio.sleep(0)
    gone.cancel()
    await bus.publish([entry("a", "stays")], [Commit("g", "a", 0, 1)])
    assert (await read_values(bus, "a"))[-1] == "stays"
    await bus.close()


async def test_a_writer_that_fails_leaves_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of ours: the thread ends, all that wait are answered."""
    bus = await EmbeddedBus.open(tmp_path / "bus.db")
    await bus.create_topic("a", 1)
    reader = asyncio.ensure_future(bus.read("a", 0, 0, 1, wait=50))
    await asyncio.sleep(0)
    monkeypatch.setattr(bus._writer, "_insert", lambda *_: 1 / 0)
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    with pytest.raises(BusError, match="closed"):
        await bus.publish([entry("a", "k")])
    with pytest.raises(BusError, match="closed"):
        await reader
    await asyncio.to_thread(bus._writer._thread.join, 60)  # before the hook for its exception is taken away
