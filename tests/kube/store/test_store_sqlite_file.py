"""The file: what survives a restart, and which files are refused."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.base.clock import VirtualClock
from coterie.kube.store import Compacted, DeleteOp, PutOp, SqliteStore, StoreError, StoreEvent, StoreRecord


async def opened(path: Path, **settings: object) -> SqliteStore:
    store = SqliteStore(path, **settings)  # type: ignore[arg-type]
    await store.open()
    return store


async def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "folder with 100% ?#" / "s.db"
    store = await opened(path)
    await store.commit([PutOp("a", b"1"), PutOp("b", b"2"), PutOp("a", b"3"), DeleteOp("b")])
    await store.compact(2)
    await store.close()
    assert sorted(file.name for file in path.parent.iterdir()) == ["s.db", "s.db.lock"]
    assert path.stat().st_mode & 0o077 == 0

    store = await opened(path)
    assert (store.revision, store.compacted) == (4, 2)
    assert await store.get("a") == StoreRecord("a", b"3", 3, 1)
    assert await store.get("b", revision=3) == StoreRecord("b", b"2", 2, 2)
    with pytest.raises(Compacted):
        await store.get("a", revision=1)
    events = await anext(store.watch("", 2))
    assert events == [StoreEvent("a", 3, b"3", 1, 1), StoreEvent("b", 4, None, 2, 2)]
    assert await store.commit([PutOp("a", b"4", expect=3), PutOp("b", b"", expect=0)]) == [5, 6]
    await store.close()


async def test_no_revision_comes_twice_after_the_newest_row_was_compacted(tmp_path: Path) -> None:
    store = await opened(tmp_path / "s.db")
    await store.commit([PutOp("a", b"1"), DeleteOp("a")])
    await store.compact(2)
    await store.close()
    store = await opened(tmp_path / "s.db")
    assert (store.revision, store.compacted) == (2, 2)
    assert await store.commit([PutOp("a", b"", expect=0)]) == [3]
    await store.close()
    with sqlite3.connect(tmp_path / "s.db") as connection:
        assert connection.execute("SELECT count(*) FROM log").fetchone() == (1,)
    connection.close()


async def test_leases_start_anew_with_their_full_time(tmp_path: Path) -> None:
    clock = VirtualClock()
    store = await opened(tmp_path / "s.db", clock=clock)
    lease, ended = await store.grant(10), await store.grant(10)
    await store.commit([PutOp("a", b"", lease=lease)])
    await store.revoke(ended)
    await clock.advance(9)
    await store.close()

    store = await opened(tmp_path / "s.db", clock=clock)
    assert await store.get("a") == StoreRecord("a", b"", 1, 1, lease)
    await clock.advance(9)
    assert await store.keep_alive(lease) == 10
    assert await store.grant(1) == ended + 1  # the number of a revoked lease is not given again
    await clock.advance(10.1)
    (last,) = [events async for events in _first(store, 2)]
    assert last == StoreEvent("a", 2, None, 1, 1)
    await store.close()


async def _first(store: SqliteStore, revision: int):  # type: ignore[no-untyped-def]
    async for events in store.watch("", revision - 1):
        yield events[0]
        return


async def test_compaction_goes_on_where_a_crash_cut_it(tmp_path: Path) -> None:
    store = await opened(tmp_path / "s.db")
    await store.commit([PutOp("a", str(i).encode()) for i in range(2500)])
    await store._mark_compacted(2500)  # and nothing was dropped
    await store.close()
    store = await opened(tmp_path / "s.db")
    assert store.compacted == 2500
    await store.compact(2500)
    await store.close()
    connection = sqlite3.connect(tmp_path / "s.db")
    assert connection.execute("SELECT revision FROM log").fetchall() == [(2500,)]
    connection.close()


def _garbage(path: Path) -> None:
    path.write_bytes(b"apiVersion: v1\nkind: Pod\n" * 400)


def _short_garbage(path: Path) -> None:
    path.write_bytes(b"hello")


def _other_program(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE songs (title TEXT)")
    connection.close()


def _newer_version(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.executescript("PRAGMA application_id = 0x436F7465; PRAGMA user_version = 2; CREATE TABLE log (x)")
    connection.close()


def _directory(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        pytest.param(_garbage, "cannot be opened as a store: file is not a database", id="garbage"),
        pytest.param(_short_garbage, "cannot be opened as a store: file is not a database", id="short-garbage"),
        pytest.param(_other_program, "is a database of another program, not a store", id="other-program"),
        pytest.param(_newer_version, "has schema version 2; this program reads version 1 only", id="newer-version"),
        pytest.param(_directory, "cannot be opened as a store: .*Is a directory", id="directory"),
    ],
)
async def test_a_file_that_is_not_ours_is_refused_and_left_alone(tmp_path: Path, make, sentence: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "s.db"
    make(path)
    before = path.read_bytes() if path.is_file() else b""
    for _ in range(2):  # the refusal lets go of the lock
        with pytest.raises(StoreError, match=f"s.db {sentence}") as refused:
            await opened(path)
        assert "\n" not in str(refused.value)
    assert (path.read_bytes() if path.is_file() else b"") == before


async def test_one_file_one_store(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    store = await opened(path)
    with pytest.raises(StoreError, match="already open"):
        await opened(path)
    told = await asyncio.to_thread(_open_elsewhere, path)
    assert told.endswith("s.db is already open, in another process or another store object")
    await store.close()
    await (await opened(path)).close()


def _open_elsewhere(path: Path) -> str:
    program = (
        "import asyncio, sys\nfrom coterie.kube.store import SqliteStore, StoreError\n"
        "try: asyncio.run(SqliteStore(sys.argv[1]).open())\nexcept StoreError as error: print(error)"
    )
    other = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    return other.stdout.strip()


@pytest.mark.parametrize("cut", [1, 100, 4096, 30_000], ids=str)
async def test_a_wal_cut_short_costs_only_its_end(tmp_path: Path, cut: int) -> None:
    store = await opened(tmp_path / "s.db")
    for i in range(1, 21):
        await store.commit([PutOp(f"a{i}", bytes(1000)), PutOp("last", str(i).encode())])
    for name in ("s.db", "s.db-wal"):
        shutil.copy(tmp_path / name, tmp_path / f"copy-{name}")
    await store.close()
    wal = tmp_path / "copy-s.db-wal"
    with wal.open("r+b") as file:
        file.truncate(wal.stat().st_size - cut)

    store = await opened(tmp_path / "copy-s.db")
    assert 20 <= store.revision < 40
    assert store.revision % 2 == 0  # batches are whole
    last = await store.get("last")
    assert last is not None
    assert last.value == str(store.revision // 2).encode()
    assert len((await store.scan("a")).records) == store.revision // 2
    revision = store.revision
    assert await store.commit([PutOp("b", b"")]) == [revision + 1]
    await store.close()
