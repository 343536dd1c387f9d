"""One server writes to MySQL, the others hand their writes to it: the fence, take-over, and what is refused."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from store_servers_kit import StoreServer, fresh_address

from coterie.base.store_address import StoreAddress, StoreAddressError, parse_store_address
from coterie.kube.api.wire.encode import encode
from coterie.kube.store import (
    CompareFailed,
    DeleteOp,
    PutOp,
    StoreError,
    StoreEvent,
    StoreUnavailable,
    ValueTooLarge,
)
from coterie.kube.store import mysql as mysql_module
from coterie.kube.store.mysql import MysqlStore
from coterie.kube.store.mysql_connection import MysqlStoreConnection
from coterie.kube.store.mysql_decisions import CompareRefusal, LeaseRefusal, decide
from coterie.kube.store.transfer import faults_of, read_snapshot, write_snapshot

_BOUND = 60.0
LONG = pytest.mark.skipif(not os.environ.get("COTERIE_STORES"), reason="takes long: make stores")


@pytest.fixture
def address(mysql: StoreServer) -> StoreAddress:
    return fresh_address("mysql", mysql)


@pytest.fixture
async def opened(address: StoreAddress) -> Any:
    stores: list[MysqlStore] = []

    async def open_one(**settings: Any) -> MysqlStore:
        store = MysqlStore(address, **settings)
        await store.open()
        stores.append(store)
        return store

    yield open_one
    for store in stores:
        await store.close()


Opened = Callable[..., Awaitable[MysqlStore]]


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(_BOUND):
        while not holds():
            await asyncio.sleep(0.01)


async def put(store: MysqlStore, key: str, value: bytes, expect: int | None = None) -> int:
    return (await store.commit([PutOp(key, value, expect)]))[0]


async def test_a_paused_holder_cannot_write_after_a_take_over(opened: Opened) -> None:
    one = await opened(lease_seconds=1.0)
    await put(one, "before", b"1", 0)
    assert one.active
    two = await opened(lease_seconds=1.0)
    stories: tuple[list[StoreEvent], list[StoreEvent]] = ([], [])
    one.subscribe(stories[0].extend)
    two.subscribe(stories[1].extend)
    # Its batch is decided and stands just before the network; as long as it does, there is no heartbeat either.
    assert one._session is not None
    connection = one._session.writer.connection
    send, reached, go_on = connection.packet_of, threading.Event(), threading.Event()

    def paused(statements: Any) -> Any:
        reached.set()
        go_on.wait(_BOUND)
        return send(statements)

    connection.packet_of = paused  # type: ignore[method-assign]
    late = one.submit([PutOp("k", b"late", 0)])
    anyway = one.submit([PutOp("anyway", b"late")])
    await asyncio.to_thread(reached.wait, _BOUND)
    connection.packet_of = send  # type: ignore[method-assign]
    await until(lambda: two.active)
    taken = await put(two, "k", b"two", 0)
    go_on.set()
    with pytest.raises(CompareFailed) as refused:
        await late  # handed to the new holder, which has another "k" already
    assert refused.value.record is not None
    assert (refused.value.actual, refused.value.record.value) == (taken, b"two")
    assert (await anyway)[0] > taken
    assert not one.active
    assert one.holder == two.holder
    for store in (one, two):
        await store.reached(await store.current())
    assert stories[0] == stories[1]
    assert [event.key for event in stories[1]] == ["k", "anyway"]


async def test_who_goes_hands_over_at_once(opened: Opened) -> None:
    one = await opened(lease_seconds=1000.0)
    await put(one, "a", b"1")
    two = await opened(lease_seconds=1000.0)
    third = await opened(lease_seconds=1000.0)
    await put(two, "b", b"2")
    assert (one.active, two.active, third.active) == (True, False, False)
    await one.close()
    await until(lambda: two.active or third.active)
    await asyncio.gather(put(two, "c", b"3"), put(third, "d", b"4"))
    assert [record.key for record in (await two.scan("")).records] == ["a", "b", "c", "d"]
    assert two.active != third.active


async def test_a_write_that_nobody_takes_is_withdrawn(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mysql_module, "ANSWERED_WITHIN", 0.3)
    only = await opened(following=True)
    with pytest.raises(StoreUnavailable, match="no server took the write; nobody holds the store"):
        await put(only, "a", b"1")
    one = await opened()
    await put(one, "b", b"2")
    assert [record.key for record in (await only.scan("")).records] == ["b"]


async def test_values_that_do_not_fit_are_refused(opened: Opened) -> None:
    store = await opened()
    with pytest.raises(ValueTooLarge, match="max_allowed_packet"):
        await put(store, "a", b"x" * 20_000_000)
    with pytest.raises(StoreError, match="bytes at most"):
        await put(store, "k" * 3000, b"")
    await put(store, "a", b"x" * 1_500_000)
    standby = await opened()
    await put(standby, "b", b"\xff" * 1_500_000)
    assert [len(record.value) for record in (await store.scan("")).records] == [1_500_000] * 2


_WRITER = """
import asyncio, sys
from coterie.base.store_address import parse_store_address
from coterie.kube.store import PutOp, StoreError
from coterie.kube.store.mysql import MysqlStore

async def main():
    store = MysqlStore(parse_store_address(sys.argv[1]), lease_seconds=1.0)
    await store.open()
    number = 0
    while True:
        number += 1
        try:
            (revision,) = await store.commit([PutOp(f"/w/{number}", b"v", 0)])
        except StoreError:
            continue
        print(number, revision, flush=True)

asyncio.run(main())
"""


@LONG
@pytest.mark.timeout(180)
async def test_a_stopped_process_loses_nothing_and_writes_nothing_twice(
    address: StoreAddress, mysql: StoreServer, opened: Opened
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _WRITER, f"{mysql.url}/{address.database}", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    acknowledged: dict[str, int] = {}

    async def hear() -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            number, revision = line.split()
            acknowledged[f"/w/{int(number)}"] = int(revision)

    hearing = asyncio.create_task(hear())
    try:
        store = await opened(lease_seconds=1.0)
        for _ in range(3):
            before = len(acknowledged)
            await until(lambda b=before: len(acknowledged) > b + 200)  # type: ignore[misc]
            process.send_signal(signal.SIGSTOP)
            await until(lambda: store.active)
            mine = await asyncio.gather(*(put(store, f"/mine/{len(acknowledged)}/{n}", b"") for n in range(100)))
            process.send_signal(signal.SIGCONT)
            assert len(set(mine) | set(acknowledged.values())) == len(mine) + len(acknowledged)
            before = len(acknowledged)
            await until(lambda b=before: len(acknowledged) > b + 20)  # type: ignore[misc]
    finally:
        process.kill()
        await process.wait()
        await hearing
    found = {record.key: record.revision for record in (await store.scan("/w/")).records}
    assert {key: found.get(key) for key in acknowledged} == acknowledged
    await until(lambda: store.active)


def test_decisions() -> None:
    heads = {"a": (5, 2, 0), "b": (7, 7, 3)}
    batch = decide(
        heads,
        [
            [PutOp("a", b"", 4)],
            [PutOp("a", b"", 5), DeleteOp("b")],
            [PutOp("b", b"new", 0)],
            [PutOp("c", b"", lease=9)],
            [PutOp("c", b"", lease=3), DeleteOp("nothing")],
            [PutOp("c", b"", 0, lease=3)],
            [DeleteOp("c", 11)],
        ],
        7,
        {3},
    )
    assert batch.verdicts[1:3] == [[8, 9], [10]]
    assert isinstance(batch.verdicts[0], CompareRefusal) and batch.verdicts[0].actual == 5
    assert batch.verdicts[3] == LeaseRefusal(9)
    assert isinstance(batch.verdicts[4], CompareRefusal) and batch.verdicts[4].index == 1
    assert batch.verdicts[5:] == [[11], [12]]
    assert [(row.revision, row.key, row.created, row.previous, row.deleted) for row in batch.rows] == [
        (8, "a", 2, 5, 0),
        (9, "b", 7, 7, 1),
        (10, "b", 10, 0, 0),
        (11, "c", 11, 0, 0),
        (12, "c", 11, 11, 1),
    ]
    assert batch.refused_at == {5}


def test_addresses() -> None:
    found = parse_store_address("mysql://u:p@ss:w/rd@tcp(db:3307)/kine?charset=utf8mb4&parseTime=true&tls=skip-verify")
    assert (found.user, found.password.reveal(), found.hosts, found.database) == (
        "u",
        "p@ss:w/rd",
        (("db", 3307),),
        "kine",
    )
    assert found.tls
    assert "ss:w" not in repr(found) + found.label
    for wrong, why in (
        ("mysql://u@tcp(h)/", "names no database"),
        ("mysql://u@tcp(h)/d?tls=preferred", "tls: true"),
        ("mysql://u@tcp(h)/d?ca=/x", "needs tls"),
        ("mysql://u@tcp(h)/d?table=other", "only `kine`"),
        ("mysql://u@unix(/tmp/s)/d", "tcp"),
    ):
        with pytest.raises(StoreAddressError, match=why):
            parse_store_address(wrong)


def _kine(address: StoreAddress) -> None:
    """As Kuscia's K3s leaves it: history, deletions, JSON and protobuf, kine's own keys."""
    domain = {"kind": "Domain", "apiVersion": "kuscia.secretflow/v1alpha1", "spec": {"role": "partner"}}
    rows: list[tuple[str, int, int, int, bytes]] = []

    def add(name: str, obj: dict[str, Any] | bytes, created: int = 1, deleted: int = 0, lease: int = 0) -> None:
        value = obj if isinstance(obj, bytes) else orjson.dumps(obj)
        rows.append((name, created, deleted, lease, value))

    def core(kind: str, namespace: str, name: str, **more: Any) -> bytes:
        metadata = {"name": name, "uid": "u", **({"namespace": namespace} if namespace else {})}
        found = encode({"apiVersion": "v1", "kind": kind, "metadata": metadata, **more})
        assert found is not None
        return found

    def named(name: str) -> dict[str, Any]:
        return {**domain, "metadata": {"uid": f"u-{name}", "name": name, "resourceVersion": "3"}}

    add("compact_rev_key", b"")
    add("/registry/kuscia.secretflow/domains/alice", named("alice"))
    add("/registry/kuscia.secretflow/domains/bob", named("bob"))
    add("/registry/kuscia.secretflow/domains/alice", {**named("alice"), "spec": {"role": ""}}, created=0)
    add("/registry/kuscia.secretflow/domains/bob", named("bob"), created=0, deleted=1)
    add("/registry/namespaces/alice", core("Namespace", "", "alice"))
    add("/registry/namespaces/kube-system", core("Namespace", "", "kube-system"))
    add("/registry/secrets/alice/s", core("Secret", "alice", "s", data={"k": "dg=="}, type="Opaque"))
    add("/registry/secrets/alice/sealed", b"k8s:enc:aescbc:v1:...")
    add("/registry/configmaps/alice/kube-root-ca.crt", core("ConfigMap", "alice", "kube-root-ca.crt"))
    add("/registry/configmaps/alice/broken", b"k8s\x00\xff\xff")
    add("/registry/minions/n1", b"k8s\x00")
    add("/registry/events/alice/e", b"k8s\x00", lease=3600)
    line = MysqlStoreConnection(address, address.hosts[0], isolation="READ COMMITTED", idle_seconds=60)
    line.connect()
    try:
        line.run(
            "CREATE TABLE kine (id INTEGER AUTO_INCREMENT, name VARCHAR(630) CHARACTER SET ascii, created INTEGER,"
            " deleted INTEGER, create_revision INTEGER, prev_revision INTEGER, lease INTEGER, value MEDIUMBLOB,"
            " old_value MEDIUMBLOB, PRIMARY KEY (id))"
        )
        for name, created, deleted, lease, value in rows:
            line.run(
                "INSERT INTO kine (name, created, deleted, create_revision, prev_revision, lease, value) VALUES"
                f" ('{name}', {created}, {deleted}, {0 if created else 2}, 0, {lease}, x'{value.hex()}')"
            )
    finally:
        line.close()


async def test_the_table_of_a_kuscia_is_read(address: StoreAddress, mysql: StoreServer, tmp_path: Path) -> None:
    await asyncio.to_thread(_kine, address)
    wanted = {"kuscia.secretflow/domains", "core/namespaces", "core/secrets", "core/configmaps"}
    found = await read_snapshot(address, wanted)
    assert faults_of(found) == []
    assert found.revision == 13
    values = {record.key: record.value for record in found.records}
    assert list(values) == [
        "/registry/kuscia.secretflow/domains/alice",
        "/registry/core/namespaces/alice",
        "/registry/core/secrets/alice/s",
    ]
    assert values["/registry/kuscia.secretflow/domains/alice"] == (
        b'{"apiVersion":"kuscia.secretflow/v1alpha1","kind":"Domain",'
        b'"metadata":{"uid":"u-alice","name":"alice"},"spec":{"role":""}}'
    )
    assert orjson.loads(values["/registry/core/secrets/alice/s"])["data"] == {"k": "dg=="}
    assert sum(found.skipped.values()) == 6
    assert {reason.partition(":")[2].strip()[:9] for reason in found.skipped} == {
        "not taken", "encrypted", "cannot be", "of Kubern",
    }  # fmt: skip
    # Into tables of our own, in the same database; from then on they are what is read, unless kine's is named.
    await write_snapshot(address, found, replace=False)
    assert {record.key: record.value for record in (await read_snapshot(address)).records} == values
    named = parse_store_address(f"{mysql.url}/{address.database}?table=kine")
    assert len((await read_snapshot(named, wanted)).records) == 3
    with pytest.raises(StoreError, match="only read"):
        await write_snapshot(named, found, replace=True)
