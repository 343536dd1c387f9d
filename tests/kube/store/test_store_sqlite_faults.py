"""Killed processes, full disks, failing transactions: nothing acknowledged is lost, nothing else is shown."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.base.clock import VirtualClock
from coterie.kube.store import (
    CompareFailed,
    DeleteOp,
    PutOp,
    SqliteStore,
    StoreClosed,
    StoreError,
    StoreEvent,
    StoreRecord,
)
from coterie.kube.store.ledger import PendingWrite
from coterie.kube.store.sqlite_writer import SqliteWriter

# Prints "key revision" once a write is acknowledged; some values lie aside, some keys go, history is compacted.
WRITER = """
import asyncio, os, sys
from coterie.kube.store import DeleteOp, PutOp, SqliteStore

async def write(store, name, start):
    for i in range(start, 1_000_000):
        key = f"{name}-{i}"
        ops = [PutOp(key, os.urandom(700 if i % 10 else 70_000), expect=0)]
        if i % 5 == 0 and i > start:
            ops.append(DeleteOp(f"{name}-{i - 1}"))
        revisions = await store.commit(ops)
        os.write(1, b"".join(b"%s %d\\n" % (op.key.encode(), r) for op, r in zip(ops, revisions)))
        if i % 50 == 0:
            await store.compact(max(store.revision - 20, 0))

async def main():
    store = SqliteStore(sys.argv[1])
    await store.open()
    os.write(1, b"open %d\\n" % store.revision)
    start = store.revision + 1
    await asyncio.gather(*(write(store, f"writer{n}", start) for n in range(4)))

asyncio.run(main())
"""


def _write_and_kill(path: Path, seconds: float) -> tuple[int, bytes]:
    """The revision that the child found, and what it said before it died."""
    with subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        word, revision = child.stdout.readline().split()
        assert word == b"open"
        time.sleep(seconds)
        child.send_signal(signal.SIGKILL)
        return int(revision), child.stdout.read()


async def test_kill_minus_nine_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    exists: dict[str, int] = {}
    acknowledged: set[int] = set()
    for round in range(8):
        opened, said = _write_and_kill(path, 0.05 + 0.02 * round)
        assert opened >= max(acknowledged, default=0)
        for line in said.splitlines(keepends=True):
            if not line.endswith(b"\n"):
                continue  # cut while it was said
            key, number = line.decode().split()
            revision = int(number)
            assert revision not in acknowledged, "a revision was given out twice"
            assert revision > opened
            acknowledged.add(revision)
            if key in exists:
                del exists[key]
            else:
                exists[key] = revision
    assert len(acknowledged) > 100

    store = SqliteStore(path)
    await store.open()
    assert store.revision >= max(acknowledged)
    found = {record.key: record for record in (await store.scan("")).records}
    # A batch may have been written and never acknowledged: then it may have deleted a key or made one, wholly.
    lost = {key for key in exists if key not in found}
    assert len(lost) <= 4 * 8
    for key in lost:
        name, number = key.rsplit("-", 1)
        assert f"{name}-{int(number) + 1}" in found
    assert all(found[key].revision == revision for key, revision in exists.items() if key not in lost)
    assert await store.commit([PutOp("next", b"")]) == [store.revision]
    await store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs root: mounts a file system; test_a_file_that_may_not_grow does without")
    yield place
    subprocess.run(["umount", str(place)], check=True)


async def test_a_full_disk_refuses_writes_until_there_is_room(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(800_000))
    heard: list[StoreEvent] = []
    store = SqliteStore(small_disk / "s.db")
    await store.open()
    store.subscribe(heard.extend)
    acknowledged = await _write_until_refused(store)
    assert acknowledged > 5
    await _assert_holds(store, acknowledged, heard)
    ballast.unlink()
    assert await store.commit([PutOp("b", b"there is room", expect=0)]) == [acknowledged + 1]
    assert await store.get("b") == StoreRecord("b", b"there is room", acknowledged + 1, acknowledged + 1)
    await store.close()

    store = SqliteStore(small_disk / "s.db")
    await store.open()
    assert store.revision == acknowledged + 1
    await store.close()


async def test_a_file_that_may_not_grow_takes_writes_again_after_compaction(tmp_path: Path) -> None:
    heard: list[StoreEvent] = []
    store = SqliteStore(tmp_path / "s.db", max_bytes=300_000)
    await store.open()
    store.subscribe(heard.extend)
    acknowledged = await _write_until_refused(store)
    assert acknowledged > 5
    await _assert_holds(store, acknowledged, heard)
    await store.compact(store.revision)
    assert await store.commit([PutOp("a", b"there is room", expect=acknowledged)]) == [acknowledged + 1]
    await store.close()


async def _write_until_refused(store: SqliteStore) -> int:
    """Overwrites one key with ever new values; returns how many writes were acknowledged."""
    for i in range(1000):
        try:
            await store.commit([PutOp("a", b"%06d" % (i + 1) + os.urandom(20_000), expect=i)])
        except StoreError as error:
            assert not isinstance(error, StoreClosed | CompareFailed)
            assert "full" in str(error)
            return i
    raise AssertionError("the disk never was full")


async def _assert_holds(store: SqliteStore, acknowledged: int, heard: list[StoreEvent]) -> None:
    assert store.revision == acknowledged
    record = await store.get("a")
    assert record is not None
    assert (record.revision, record.value[:6]) == (acknowledged, b"%06d" % acknowledged)
    assert [event.revision for event in heard] == list(range(1, acknowledged + 1))
    with pytest.raises(CompareFailed) as refused:
        store.submit([PutOp("a", b"", expect=acknowledged + 1)])
    assert refused.value.actual == acknowledged


def _sqlite_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("the test says no")
    error.sqlite_errorcode = code
    return error


class FailingDisk:
    """Holds the writer's transactions until released, then fails the next or lets them pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.transactions: list[int] = []
        real = SqliteWriter._transact

        def transact(writer: SqliteWriter, writes: list[PendingWrite]) -> None:
            self.gate.wait(5)
            self.transactions.append(len(writes))
            error, self.error = self.error, None
            if error is not None:
                raise error
            real(writer, writes)

        monkeypatch.setattr(SqliteWriter, "_transact", transact)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FailingDisk:
    return FailingDisk(monkeypatch)


async def test_writes_that_wait_for_a_transaction_share_the_next(tmp_path: Path, disk: FailingDisk) -> None:
    store = SqliteStore(tmp_path / "s.db")
    await store.open()
    disk.gate.clear()
    writes = [store.submit([PutOp("first", b"")])]
    await asyncio.sleep(0.02)
    for i in range(20):
        await asyncio.sleep(0)
        writes.append(store.submit([PutOp(f"k{i}", b"")]))
    await asyncio.sleep(0.02)
    disk.gate.set()
    await asyncio.gather(*writes)
    assert disk.transactions == [1, 20]
    await store.close()


async def test_what_was_built_on_a_failed_write_fails_with_it(tmp_path: Path, disk: FailingDisk) -> None:
    store = SqliteStore(tmp_path / "s.db")
    await store.open()
    lease = await store.grant(100)
    await store.commit([PutOp("a", b"1"), PutOp("leased", b"", lease=lease)])
    heard: list[StoreEvent] = []
    store.subscribe(heard.extend)
    disk.gate.clear()
    disk.error = _sqlite_error(sqlite3.SQLITE_FULL)
    writes = [store.submit([PutOp("a", b"2", expect=1), PutOp("b", b"")])]
    await asyncio.sleep(0.02)  # it is with the writer; the next ones wait behind it
    writes.append(store.submit([PutOp("a", b"3", expect=3), DeleteOp("b")]))
    ended = asyncio.create_task(store.revoke(lease))
    granted = asyncio.create_task(store.grant(5))
    await asyncio.sleep(0.02)
    disk.gate.set()
    outcomes = await asyncio.gather(*writes, ended, granted, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StoreError] * 4
    assert (store.revision, heard) == (2, [])
    assert await store.commit([PutOp("a", b"4", expect=1), PutOp("b", b"", expect=0)]) == [3, 4]
    assert [event.revision for event in heard] == [3, 4]
    assert await store.get("leased") == StoreRecord("leased", b"", 2, 2, lease)
    await store.revoke(lease)
    assert await store.get("leased") is None
    await store.close()

    store = SqliteStore(tmp_path / "s.db")
    await store.open()
    assert store.revision == 5
    assert await store.get("a") == StoreRecord("a", b"4", 3, 1)
    assert store._ledger.leases.granted == {}
    await store.close()


async def test_a_fault_that_may_have_lost_data_closes_the_store(tmp_path: Path, disk: FailingDisk) -> None:
    store = SqliteStore(tmp_path / "s.db")
    await store.open()
    await store.commit([PutOp("a", b"1")])
    batches = store.watch("", 1)
    step = asyncio.ensure_future(anext(batches))
    await asyncio.sleep(0.01)
    disk.error = _sqlite_error(sqlite3.SQLITE_IOERR_FSYNC)
    with pytest.raises(StoreClosed, match="did not reach the disk"):
        await store.commit([PutOp("a", b"2")])
    with pytest.raises(StoreClosed, match="did not reach the disk"):
        store.submit([PutOp("a", b"3")])
    with pytest.raises(StoreClosed):
        await step
    await store.close()
    store = SqliteStore(tmp_path / "s.db")
    await store.open()
    assert await store.get("a") == StoreRecord("a", b"1", 1, 1)
    await store.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_fault_of_ours_in_the_writer_leaves_nobody_waiting(tmp_path: Path, disk: FailingDisk) -> None:
    store = SqliteStore(tmp_path / "s.db")
    await store.open()
    disk.error = ZeroDivisionError()
    with pytest.raises(StoreClosed, match="writer failed"):
        await store.commit([PutOp("a", b"")])
    with pytest.raises(StoreClosed):
        await store.compact(0)
    await store.close()
    again = SqliteStore(tmp_path / "s.db")  # the lock was let go
    await again.open()
    await again.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_fault_of_ours_in_a_compaction_leaves_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(tmp_path / "s.db")
    await store.open()
    await store.commit([PutOp("a", b"")])
    monkeypatch.setattr(store, "_sweep_blobs", lambda connection: 1 // 0)
    with pytest.raises(StoreClosed):
        await asyncio.wait_for(store.compact(1), 5)
    with pytest.raises(StoreClosed, match="writer failed"):
        await store.commit([PutOp("a", b"")])
    await store.close()


async def test_expiry_tries_again_when_its_write_failed(tmp_path: Path, disk: FailingDisk) -> None:
    clock = VirtualClock()
    store = SqliteStore(tmp_path / "s.db", clock=clock)
    await store.open()
    await store.commit([PutOp("a", b"", lease=await store.grant(10))])
    disk.error = _sqlite_error(sqlite3.SQLITE_FULL)
    # Not a whole second more than the lease lives: the next attempt, a second later, is not to fall into this step.
    await clock.advance(10.5)
    while disk.error is not None or clock.sleepers == 0:
        await asyncio.sleep(0.001)
    assert await store.get("a") is not None
    await clock.advance(1.1)
    events = await anext(store.watch("", 1))
    assert events[0].key == "a"
    await store.close()


async def test_a_failed_compaction_can_be_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteStore(tmp_path / "s.db")
    await store.open()
    await store.commit([PutOp("a", str(i).encode()) for i in range(10)])

    def fail(connection: sqlite3.Connection) -> None:
        raise _sqlite_error(sqlite3.SQLITE_FULL)

    monkeypatch.setattr(store, "_sweep_blobs", fail)
    with pytest.raises(StoreError, match="says no"):
        await store.compact(10)
    monkeypatch.undo()
    await store.compact(10)
    assert await store.commit([PutOp("a", b"", expect=10)]) == [11]
    await store.close()


def test_a_program_may_end_without_closing(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys\nfrom coterie.kube.store import PutOp, SqliteStore\n"
        "async def main():\n    store = SqliteStore(sys.argv[1]); await store.open()\n"
        "    print(await store.commit([PutOp('a', b'1')])); store.submit([PutOp('b', b'2')])\n"
        "asyncio.run(main())"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "s.db"], capture_output=True, text=True, timeout=20
    )
    assert (ended.returncode, ended.stdout) == (0, "[1]\n")
