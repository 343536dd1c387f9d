"""Backup, restore, migration and check between all kinds of stores."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from store_servers_kit import SHARED, fresh_address, shared_store

from coterie.base.store_address import StoreAddress, parse_store_address
from coterie.kube.store import Compacted, DeleteOp, PutOp, Store, StoreError, StoreEvent, StoreRecord
from coterie.kube.store.opening import store_of
from coterie.kube.store.transfer import (
    LOST_REVISIONS,
    StoreSnapshot,
    counts_of,
    faults_of,
    load_snapshot,
    read_snapshot,
    save_snapshot,
    write_snapshot,
)

KINDS = ("sqlite", *SHARED)
OBJECT = b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"uid":"u","name":"%b","namespace":"d"}}'


@pytest.fixture
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    def make(kind: str, name: str) -> StoreAddress:
        if kind == "sqlite":
            return parse_store_address(f"sqlite://{tmp_path}/{name}.db")
        return fresh_address(kind, request.getfixturevalue(kind))

    return make


async def opened(address: StoreAddress) -> Store:
    store = store_of(address, Path("unused"))
    await store.open()
    return store


async def fill(address: StoreAddress) -> dict[str, bytes]:
    store = await opened(address)
    big = OBJECT % b"big" + b" " * 200_000
    content = {f"/registry/core/configmaps/d/c{n}": OBJECT % b"c%d" % n for n in range(30)}
    content["/registry/core/configmaps/d/big"] = big
    for key, value in content.items():
        await store.commit([PutOp(key, b"first")])
        await store.commit([PutOp(key, value)])
    await store.commit([PutOp("/registry/core/configmaps/d/gone", b"x")])
    await store.commit([DeleteOp("/registry/core/configmaps/d/gone")])
    lease = await store.grant(100)
    await store.commit([PutOp("/registry/core/events/d/e", OBJECT % b"e", lease=lease)])
    await store.close()
    return content


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("source", KINDS)
async def test_from_one_kind_into_another(address: Any, source: str, target: str, tmp_path: Path) -> None:
    first, second = address(source, "first"), address(target, "second")
    content = await fill(first)
    snapshot = await read_snapshot(first)
    assert faults_of(snapshot) == []
    assert counts_of(snapshot) == [("core/configmaps", 31), ("core/events", 1)]
    assert save_snapshot(tmp_path / "backup", snapshot) == 31
    assert (tmp_path / "backup").stat().st_mode & 0o777 == 0o600
    reached = await write_snapshot(second, load_snapshot(tmp_path / "backup"), replace=False)
    assert reached > snapshot.revision + LOST_REVISIONS
    store = await opened(second)
    try:
        page = await store.scan("")
        assert {record.key: record.value for record in page.records if record.key.startswith("/registry")} == content
        assert all(snapshot.revision + LOST_REVISIONS < record.revision <= page.revision for record in page.records)
        with pytest.raises(Compacted):
            await store.get(page.records[0].key, snapshot.revision)
        (newer,) = await store.commit([PutOp(page.records[0].key, b"new", page.records[0].revision)])
        assert newer > page.revision - 1 and newer > reached
        assert (await store.scan("/registry/core/configmaps/d/c1", limit=1)).records
    finally:
        await store.close()
    with pytest.raises(StoreError, match="not empty"):
        await write_snapshot(second, snapshot, replace=False)
    again = await write_snapshot(second, snapshot, replace=True)
    assert again > newer
    assert len((await read_snapshot(second)).records) == 31


@pytest.mark.parametrize("kind", SHARED)
async def test_servers_that_run_take_over_what_was_restored(address: Any, kind: str) -> None:
    where = address(kind, "")
    store = shared_store(where)
    await store.open()
    told: list[StoreEvent] = []
    resets: list[tuple[dict[str, bytes], int]] = []
    store.subscribe(told.extend, lambda records, at: resets.append(({r.key: r.value for r in records}, at)))
    try:
        await store.commit([PutOp("/registry/a", b"old")])
        snapshot = await read_snapshot(where)
        await store.commit([PutOp("/registry/b", b"later")])
        reached = await write_snapshot(where, snapshot, replace=True)
        async with asyncio.timeout(60):
            while not resets or store.revision < reached:
                await asyncio.sleep(0.02)
        assert resets[-1][0] == {"/registry/a": b"old"}
        async with asyncio.timeout(60):
            while store.away:
                await asyncio.sleep(0.02)
        (after,) = await store.commit([PutOp("/registry/c", b"new")])
        assert after > reached
        assert told[-1].key == "/registry/c"
    finally:
        await store.close()


def test_damaged_and_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "backup"
    save_snapshot(path, StoreSnapshot(7, [StoreRecord("a", b"1", 3, 3), StoreRecord("b", b"2", 7, 7)]))
    assert load_snapshot(path).records[1].key == "b"
    whole = path.read_bytes()
    for harm, why in (
        (whole.replace(b'"a"', b'"x"'), "damaged"),
        (b"\n".join(whole.split(b"\n")[:2]), "no backup|damaged"),
        (b"", "no backup"),
        (b"{}\n{}\n", "no backup"),
        (whole.replace(b"coterie-store-1", b"coterie-store-9"), "another format"),
    ):
        path.write_bytes(harm)
        with pytest.raises(StoreError, match=why):
            load_snapshot(path)


def test_faults_are_found() -> None:
    good = StoreRecord("/registry/core/configmaps/d/a", OBJECT % b"a", 3, 3)
    records = [
        good,
        StoreRecord("/registry/core/configmaps/d/b", OBJECT % b"a", 4, 4),
        StoreRecord("/registry/core/configmaps/d/c", b"{", 5, 5),
        StoreRecord("/registry/core/configmaps/d/d", OBJECT % b"d", 9, 9),
        StoreRecord("/guards/x", b"", 6, 6),
    ]
    assert faults_of(StoreSnapshot(8, [good])) == []
    found = faults_of(StoreSnapshot(8, records, 9))
    assert [each.partition(":")[0].rpartition("/")[2] for each in found[:3]] == ["b", "c", "d"]
    assert "compacted" in found[3]
