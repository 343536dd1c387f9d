"""Big values: transparent to readers, kept once, checked, and gone when nobody names them."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from coterie.kube.store import DeleteOp, MemoryStore, PutOp, SqliteStore, Store, StoreError, StoreEvent
from coterie.kube.store import blobs as blobs_module

MakeStore = Callable[..., Awaitable[Store]]
BIG = b"0123456789" * 20_000

STORES = ("memory", "sqlite")
"""Databases have their own way with big values."""


def kept(store: Store) -> int:
    """How many values lie aside."""
    if isinstance(store, MemoryStore):
        return len(store._blobs)
    assert isinstance(store, SqliteStore)
    folder = store._blobs.folder
    return len(os.listdir(folder)) if folder.exists() else 0


async def test_readers_and_watchers_do_not_notice(store: Store) -> None:
    heard: list[StoreEvent] = []
    store.subscribe(heard.extend)
    await store.commit([PutOp("big", BIG), PutOp("small", b"s"), PutOp("again", BIG)])
    await store.commit([PutOp("big", b"now small")])
    assert [event.value for event in heard] == [BIG, b"s", BIG, b"now small"]
    page = await store.scan("", revision=3)
    assert [record.value for record in page.records] == [BIG, BIG, b"s"]
    record = await store.get("again")
    assert record is not None
    assert record.value == BIG
    async for events in store.watch("", 0):
        assert list(events) == heard
        break
    assert kept(store) == 1


@pytest.mark.parametrize(("size", "aside"), [(64 * 1024, 0), (64 * 1024 + 1, 1)], ids=["at", "above"])
async def test_the_threshold(store: Store, size: int, aside: int) -> None:
    await store.commit([PutOp("a", bytes(size))])
    assert kept(store) == aside
    record = await store.get("a")
    assert record is not None
    assert record.value == bytes(size)


async def test_compaction_removes_what_no_row_names(make_store: MakeStore) -> None:
    store = await make_store(blob_threshold=10)
    await store.commit(
        [PutOp("a", b"first value of a"), PutOp("b", b"shared by b and c"), PutOp("c", b"shared by b and c")]
    )
    await store.commit([PutOp("a", b"second value of a"), DeleteOp("b")])
    assert kept(store) == 3
    await store.compact(4)
    assert kept(store) == 2  # the second of a, and the shared one
    await store.compact(5)
    assert kept(store) == 2
    await store.commit([DeleteOp("c"), DeleteOp("a")])
    await store.compact(7)
    assert kept(store) == 0
    assert await store.commit([PutOp("a", b"first value of a")]) == [8]
    record = await store.get("a")
    assert record is not None
    assert record.value == b"first value of a"


async def test_reading_now_while_compaction_takes_the_old_value(make_store: MakeStore) -> None:
    store = await make_store(blob_threshold=10)
    await store.commit([PutOp("a", b"value number 000")])
    done = False

    async def write() -> None:
        nonlocal done
        for i in range(1, 40):
            (revision,) = await store.commit([PutOp("a", b"value number %03d" % i)])
            await store.compact(revision)
        done = True

    async def read() -> None:
        while not done:
            record = await store.get("a")
            assert record is not None
            assert record.value == b"value number %03d" % (record.revision - 1)

    await asyncio.gather(write(), read(), read())


@pytest.mark.parametrize("damage", ["changed", "missing"])
async def test_damage_is_told_with_the_key(tmp_path: Path, damage: str) -> None:
    store = SqliteStore(tmp_path / "s.db")
    await store.open()
    await store.commit([PutOp("/secrets/big", BIG), PutOp("/small", b"s")])
    (blob,) = (tmp_path / "s.db.blobs").iterdir()
    if damage == "changed":
        blob.write_bytes(BIG[:-1] + b"!")
    else:
        blob.unlink()
    for ask in (store.get("/secrets/big"), store.scan("/"), anext(store.watch("/", 0))):
        with pytest.raises(StoreError, match=r"/secrets/big at revision 1: the value kept aside as [0-9a-f]{64}"):
            await ask
    assert await store.get("/small") is not None
    await store.close()


async def test_what_a_crash_left_is_removed_at_open(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")
    await store.open()
    await store.commit([PutOp("a", BIG)])
    await store.close()
    folder = tmp_path / "s.db.blobs"
    (named,) = folder.iterdir()
    (folder / ("0" * 64)).write_bytes(b"written, but its row never was")
    (folder / ".half.tmp").write_bytes(b"not even written whole")
    again = SqliteStore(tmp_path / "s.db")
    await again.open()
    assert list(folder.iterdir()) == [named]
    record = await again.get("a")
    assert record is not None
    assert record.value == BIG
    assert folder.stat().st_mode & 0o077 == 0
    assert named.stat().st_mode & 0o077 == 0
    await again.close()


async def test_a_blob_that_cannot_be_written_fails_its_batch_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(tmp_path / "s.db")
    await store.open()
    real = blobs_module.write_atomic

    def fail(path: Path, data: bytes) -> None:
        real(path, data)  # there, but not known to last
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(blobs_module, "write_atomic", fail)
    with pytest.raises(StoreError, match="No space left"):
        await store.commit([PutOp("a", b"small"), PutOp("b", BIG)])
    assert store.revision == 0
    assert await store.scan("") == (await store.scan("", revision=0))
    written: list[Path] = []
    monkeypatch.setattr(blobs_module, "write_atomic", lambda path, data: (written.append(path), real(path, data)))
    assert await store.commit([PutOp("b", BIG, expect=0)]) == [1]
    assert len(written) == 1  # not taken for granted because a file was there
    await store.close()
