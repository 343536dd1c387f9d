"""Hive tables, read-only: on a real HiveServer2 (`make warehouses`), and what a server that means ill can do."""

from __future__ import annotations

import asyncio
import datetime as dt
import decimal
import logging
import os
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import hive_kit
import pyarrow as pa
import pytest
from pyarrow import parquet

from coterie.base.secret import SecretValue
from coterie.kuscia.sources import conformance, hive
from coterie.kuscia.sources.endpoints import endpoint_of
from coterie.kuscia.sources.protocol import (
    DataLocation,
    DataNotFound,
    SourceError,
    SourceForbidden,
    SourceInfo,
    SourceReadOnly,
    SourceUnreachable,
    TableReadOptions,
)
from coterie.kuscia.sources.source_registry import open_source

WORD = "a-word-for-hive"
GOOD = SourceInfo(kind="hive", endpoint="127.0.0.1:1", user="mesh", password=SecretValue(WORD), database="shop")

pytestmark = pytest.mark.timeout(300)


# Without the library.


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"endpoint": ""}, "host:port"),
        ({"endpoint": "/run/hive"}, "host and a port"),
        ({"endpoint": "h:1?tls=maybe"}, "host:port[?]tls"),
        ({"endpoint": "h:1?sslmode=require"}, "host:port[?]tls"),
        ({"database": "shop`.x"}, "`database`"),
        ({"extra": {"region": "x"}}, "no setting region"),
        ({"extra": {"ca": "x"}}, "no certificate"),
        ({"extra": {"query_seconds": "-1"}}, "query_seconds"),
    ],
)
def test_settings_that_cannot_be_right(change: dict[str, Any], sentence: str) -> None:
    open_source(GOOD)
    with pytest.raises(SourceError, match=sentence):
        open_source(replace(GOOD, **change))


@pytest.mark.parametrize(
    ("shown", "kind"),
    [
        ("decimal(10,2)", pa.decimal128(10, 2)),
        ("decimal(20,0)", pa.uint64()),
        ("varchar(9)", pa.string()),
        ("timestamp", pa.timestamp("ns")),
        ("timestamp with local time zone", None),
        ("array<string>", None),
        ("struct<a:int>", None),
    ],
)
def test_types(shown: str, kind: pa.DataType | None) -> None:
    assert hive.of_hive(shown) == kind


async def test_without_the_library_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing:
        def __getattr__(self, name: str) -> Any:
            raise ModuleNotFoundError("No module named 'impala'")

    monkeypatch.setattr(hive, "hive_client", Missing())
    with pytest.raises(SourceUnreachable, match=r"pip install coterie\[hive\]"):
        async with open_source(GOOD):
            pass


async def fetch(
    info: SourceInfo, place: DataLocation | str, schema: pa.Schema | None = None, **options: Any
) -> list[tuple[Any, ...]]:
    found = DataLocation(place) if isinstance(place, str) else place
    async with open_source(info) as source, source.read(found, schema, TableReadOptions(**options)) as stream:
        rows = [row async for batch in stream for row in batch.to_pylist()]
    return [tuple(row.values()) for row in rows]


# Servers that are none.


@contextmanager
def scripted(talk: Callable[[socket.socket], None]) -> Iterator[SourceInfo]:
    """A server for one connection at a time."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                line, _ = listening.accept()
            except OSError:
                return
            with line:
                line.settimeout(20)
                try:
                    talk(line)
                except OSError:
                    continue

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield replace(GOOD, endpoint=f"127.0.0.1:{listening.getsockname()[1]}?tls=false")
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(25)


def _sasl(line: socket.socket) -> bytes:
    """The mechanism and the initial response."""
    parts = b""
    for _ in range(2):
        _, size = struct.unpack(">BI", line.recv(5, socket.MSG_WAITALL))
        parts += line.recv(size, socket.MSG_WAITALL) + b"|"
    return parts


def test_the_password_is_sent_as_sasl_plain_says() -> None:
    pytest.importorskip("impala", reason="the extra `hive` is not installed")
    heard: list[bytes] = []

    def talk(line: socket.socket) -> None:
        heard.append(_sasl(line))
        line.sendall(struct.pack(">BI", 3, 26) + b"Error validating the login")

    with scripted(talk) as info, pytest.raises(SourceUnreachable, match="denied its user") as caught:
        asyncio.run(fetch(info, "people"))
    assert heard == [b"PLAIN|\0mesh\0" + WORD.encode() + b"|"]
    assert WORD not in str(caught.value) + repr(open_source(info))


async def test_no_password_in_clear_text_unless_the_endpoint_says_so(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("impala", reason="the extra `hive` is not installed")
    caplog.set_level(logging.DEBUG)
    heard: list[bytes] = []

    def talk(line: socket.socket) -> None:
        heard.append(line.recv(4096))
        line.sendall(b"\x04\0\0\0\0")

    with scripted(talk) as info:
        info = replace(info, endpoint=info.endpoint.partition("?")[0])
        with pytest.raises(SourceUnreachable, match=r"needs [?]tls=false"):
            await fetch(info, "people")
    assert heard and WORD.encode() not in b"".join(heard) and WORD not in caplog.text


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\0", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x05\0\0\0\0" + b"\0\0\0\x04\xff\xff\xff\xff", b"\x02\0\0\0\0"],
)
async def test_garbage(garbage: bytes) -> None:
    pytest.importorskip("impala", reason="the extra `hive` is not installed")

    def talk(line: socket.socket) -> None:
        _sasl(line)
        line.sendall(garbage)
        line.shutdown(socket.SHUT_WR)
        line.recv(4096)

    with scripted(talk) as info, pytest.raises(SourceError):
        await fetch(info, "people")


async def test_a_read_that_is_left_ends_at_once() -> None:
    pytest.importorskip("impala", reason="the extra `hive` is not installed")
    there = threading.Event()

    def talk(line: socket.socket) -> None:
        _sasl(line)
        there.set()
        while line.recv(4096):
            pass

    with scripted(talk) as info:
        reading = asyncio.create_task(fetch(info, "people"), name="left")
        while not there.is_set():
            await asyncio.sleep(0.01)
        reading.cancel()
        assert (await asyncio.wait({reading}, timeout=8))[0] and reading.cancelled()


async def test_nobody_listens() -> None:
    pytest.importorskip("impala", reason="the extra `hive` is not installed")
    with pytest.raises(SourceUnreachable, match="does not answer"):
        await fetch(GOOD, "people")


@pytest.mark.parametrize("uri", ["stock.people", "a/b", "people` x", "", "a b", "${env:HOME}", "people\n"])
async def test_names_that_lead_elsewhere(uri: str) -> None:
    pytest.importorskip("impala", reason="the extra `hive` is not installed")
    with pytest.raises(SourceForbidden):
        await fetch(GOOD, uri)


async def test_it_is_only_read() -> None:
    pytest.importorskip("impala", reason="the extra `hive` is not installed")
    async with open_source(GOOD) as source:
        with pytest.raises(SourceReadOnly):
            source.write(DataLocation("people"), pa.schema([("id", pa.int64())]))


# On HiveServer2.

PEOPLE = pa.table({"id": [1, 2, 3], "name": ["a", None, "q\"'\\\n;é"], "score": [0.5, None, -1.0]})
TYPES = {
    "i8": ("TINYINT", pa.int8(), -128),
    "i16": ("SMALLINT", pa.int16(), 2**15 - 1),
    "i32": ("INT", pa.int32(), -(2**31)),
    "i64": ("BIGINT", pa.int64(), 2**63 - 1),
    "f32": ("FLOAT", pa.float32(), 0.10000000149011612),
    "f64": ("DOUBLE", pa.float64(), 5e-324),
    "yes": ("BOOLEAN", pa.bool_(), True),
    "text": ("STRING", pa.string(), "NULL"),
    "bytes": ("BINARY", pa.binary(), b"\x00\xff'"),
    "day": ("DATE", pa.date32(), dt.date(2024, 2, 29)),
    "moment": ("TIMESTAMP", pa.timestamp("us"), dt.datetime(2024, 2, 29, 12, 0, 0, 123456)),
    "money": ("DECIMAL(10,2)", pa.decimal128(10, 2), decimal.Decimal("-12345678.90")),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SourceInfo]:
    pytest.importorskip("impala", reason="the extra `hive` is not installed")
    if not hive_kit.LIBRARIES.is_dir() or not os.environ.get("COTERIE_HIVE"):
        pytest.skip("HiveServer2 is not here; `make warehouses` gets it")
    with hive_kit.hive_server(tmp_path_factory.mktemp("hive")) as made:
        context = ssl.create_default_context(cadata=made.ca)

        def run(statement: str) -> None:
            line = hive.hive_client.HiveLine(endpoint_of(f"127.0.0.1:{made.port}", 1), "mesh", WORD, context)
            line.connect()
            operation = line._session.execute(statement)
            assert operation.get_status() == "FINISHED_STATE", operation.get_state().errorMessage
            line.close()

        def table(name: str, columns: str, data: pa.Table, folder: str = "") -> None:
            place = made.folder / "tables" / name
            (place / folder).mkdir(parents=True, exist_ok=True)
            parquet.write_table(data, place / folder / "data.parquet", use_deprecated_int96_timestamps=True)
            kind = "EXTERNAL TABLE IF NOT EXISTS"
            partitioned = "PARTITIONED BY (ds STRING)" if folder else ""
            run(f"CREATE {kind} shop.{name} ({columns}) {partitioned} STORED AS PARQUET LOCATION 'file://{place}'")

        run("CREATE DATABASE shop")
        table("people", "id BIGINT, name STRING, score DOUBLE", PEOPLE)
        every = pa.table({name: pa.array([value, None], kind) for name, (_, kind, value) in TYPES.items()})
        table("types", ", ".join(f"{name} {shown}" for name, (shown, _, _) in TYPES.items()), every)
        for day in ("x", "y"):
            table("parts", "id BIGINT, name STRING, score DOUBLE", PEOPLE, f"ds={day}")
        run("MSCK REPAIR TABLE shop.parts")
        many = pa.table({"id": list(range(30_000)), "text": ["x" * 100] * 30_000})
        table("many", "id BIGINT, text STRING", many)
        run("CREATE VIEW shop.`some` AS SELECT id, name FROM shop.people WHERE id < 3")
        yield replace(GOOD, endpoint=f"127.0.0.1:{made.port}", extra={"ca": made.ca})


@pytest.mark.parametrize("check", conformance.checks(read_only=True), ids=lambda each: each.__name__)
async def test_hive_conforms(server: SourceInfo, check: conformance.CheckRun) -> None:
    await conformance.run_check(check, server, "people", files=False)


async def test_every_type(server: SourceInfo) -> None:
    declared = pa.schema([(name, kind) for name, (_, kind, _) in TYPES.items()])
    assert await fetch(server, "types", declared) == [
        tuple(value for _, _, value in TYPES.values()),
        (None,) * len(TYPES),
    ]
    async with open_source(server) as source:
        assert (await source.schema(DataLocation("types"))).names == [*TYPES]


async def test_columns_case_and_views(server: SourceInfo) -> None:
    wanted = pa.schema([("Name", pa.string()), ("ID", pa.int32())])
    assert await fetch(server, "People", wanted) == [(row["name"], row["id"]) for row in PEOPLE.to_pylist()]
    assert await fetch(server, "some", None, columns=("id",)) == [(1,), (2,)]
    with pytest.raises(SourceError, match="no column age"):
        await fetch(server, "people", pa.schema([("age", pa.int8())]))
    with pytest.raises(SourceError, match='column "name", row 1'):
        await fetch(server, "people", pa.schema([("name", pa.int64())]))


async def test_partitions(server: SourceInfo) -> None:
    assert len(await fetch(server, "parts")) == 6
    chosen = await fetch(server, DataLocation("parts", partition="ds=x"), None, columns=("id", "ds"))
    assert sorted(chosen) == [(1, "x"), (2, "x"), (3, "x")]
    assert await fetch(server, DataLocation("parts", partition="ds=x' OR '1'='1"), None) == []
    with pytest.raises(SourceForbidden, match="would replace"):
        await fetch(server, DataLocation("parts", partition="ds=${env:HOME}"))
    with pytest.raises(SourceError, match="no column day"):
        await fetch(server, DataLocation("parts", partition="day=x"))


async def test_rows_come_in_bounded_parts(server: SourceInfo) -> None:
    async with open_source(server) as source, source.read(DataLocation("many"), None) as stream:
        sizes = [(each.num_rows, each.nbytes) async for each in stream]
    assert sum(rows for rows, _ in sizes) == 30_000
    assert sizes[0][0] <= 64 and max(rows for rows, _ in sizes) <= 10_000


async def test_certificates(server: SourceInfo) -> None:
    with pytest.raises(SourceUnreachable, match="not trusted"):
        await fetch(replace(server, extra={}), "people")
    assert len(await fetch(replace(server, endpoint=f"{server.endpoint}?tls=skip-verify", extra={}), "people")) == 3
    with pytest.raises(SourceUnreachable, match="does not answer"):
        await fetch(replace(server, endpoint=f"{server.endpoint}?tls=false"), "people")


async def test_what_is_not_there(server: SourceInfo) -> None:
    with pytest.raises(DataNotFound):
        await fetch(server, "nowhere")
    with pytest.raises(SourceUnreachable, match="no database"):
        await fetch(replace(server, database="nothing"), "people")
