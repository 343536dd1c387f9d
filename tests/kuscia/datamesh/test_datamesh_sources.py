"""Every data source under the shared suite; servers are real and started here."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import asyncpg
import pyarrow as pa
import pymysql
import pytest
import servers_kit
from sources_suite import SMALL, ServerSuite, SourcesSuite, fetch, files_below, rows_of, small, store

from coterie.base.secret import SecretValue
from coterie.kuscia.sources.protocol import (
    DataLocation,
    DataSource,
    FileFormat,
    SourceError,
    SourceForbidden,
    SourceInfo,
    TableReadOptions,
)
from coterie.kuscia.sources.s3_client import S3Client
from coterie.kuscia.sources.source_registry import open_source

pytestmark = pytest.mark.timeout(600)  # a bound for machines under load, and for COTERIE_SOURCES_ROWS


@pytest.fixture
def unused_port() -> int:
    return servers_kit.free_port()


class LocalSuite(SourcesSuite):
    @pytest.fixture
    def info(self, tmp_path: Path) -> SourceInfo:
        self.folder = tmp_path
        return SourceInfo(kind="localfs", path=str(tmp_path))

    async def check_nothing_left(self, source: DataSource) -> None:
        assert all(not each.rsplit("/", 1)[-1].startswith(".") for each in files_below(self.folder))


class TestLocalCsv(LocalSuite):
    ending = ".csv"


class TestLocalParquet(LocalSuite):
    ending = ".parquet"

    def format_of(self, place: DataLocation) -> object:
        return FileFormat.PARQUET


class TestLocalOrc(LocalSuite):
    ending = ".orc"

    def format_of(self, place: DataLocation) -> object:
        return FileFormat.ORC


class TestLocalIpc(LocalSuite):
    ending = ".arrow"

    def format_of(self, place: DataLocation) -> object:
        return FileFormat.IPC


@pytest.fixture(scope="module")
def mariadb_server() -> Iterator[servers_kit.Server]:
    with servers_kit.mariadb() as server:
        yield server


@pytest.fixture(scope="module")
def postgresql_server() -> Iterator[servers_kit.Server]:
    with servers_kit.postgresql() as server:
        yield server


@pytest.fixture(scope="module")
def s3_source() -> Iterator[SourceInfo]:
    with servers_kit.s3_server() as server:
        yield asyncio.run(_with_bucket(server))


async def _with_bucket(server: servers_kit.Server) -> SourceInfo:
    key, secret = await servers_kit.s3_keys(server)
    info = replace(server.info, access_key_id=key, access_key_secret=SecretValue(secret))
    client = S3Client(info)
    await client.open()
    try:
        where = "<LocationConstraint>us-west-2</LocationConstraint>"
        await client.put("", f"<CreateBucketConfiguration>{where}</CreateBucketConfiguration>".encode())
    finally:
        await client.close()
    return info


class TestMariaDB(ServerSuite):
    @pytest.fixture
    def info(self, mariadb_server: servers_kit.Server) -> SourceInfo:
        self.server = mariadb_server
        return mariadb_server.info

    def query(self, statement: str) -> tuple[tuple[object, ...], ...]:
        with (
            pymysql.connect(
                host="127.0.0.1", port=self.server.port, user="alice", password=servers_kit.PASSWORD, database="mesh"
            ) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(statement)
            return tuple(cursor.fetchall())

    @pytest.mark.slow
    async def test_bounded_memory(self, info: SourceInfo) -> None:
        await _load(info, "large", 500_000)

    async def check_nothing_left(self, source: DataSource) -> None:
        assert not [name for (name,) in self.query("SHOW TABLES") if str(name).startswith("coterie_")]

    async def check_connections_closed(self, source: DataSource) -> None:
        async def only_we() -> None:
            while len(self.query("SHOW PROCESSLIST")) > 1:
                await asyncio.sleep(0.05)

        await asyncio.wait_for(only_we(), 30)

    async def test_types_are_kuscias(self, source: DataSource) -> None:
        schema = pa.schema(
            [
                ("a", pa.uint64()),
                ("b", pa.duration("s")),
                ("c", pa.timestamp("s")),
                ("d", pa.time64("us")),
                ("e", pa.bool_()),
            ]
        )
        await store(source, DataLocation("kinds"), schema=schema)
        found = [row[1] for row in self.query("DESCRIBE kinds")]
        assert found == ["bigint(20) unsigned", "bigint(20)", "timestamp", "time(6)", "tinyint(1)"]

    async def test_sql_in_a_name_is_a_name(self, source: DataSource) -> None:
        await store(source, DataLocation("safe"), small(0, 1))
        for name in ("x`; DROP TABLE safe; -- ", "safe` WHERE 1=1 -- x", "mysql.user", "x'; DROP TABLE safe"):
            place = DataLocation(name.strip())
            await store(source, place, small(3, 1))
            assert rows_of(await fetch(source, place, SMALL)) == [(3, "n3")]
        assert rows_of(await fetch(source, DataLocation("safe"), SMALL)) == [(0, "n0")]

    async def test_what_mysql_cannot_hold_is_an_error(self, source: DataSource) -> None:
        floats = pa.RecordBatch.from_pydict({"f": [1.0, float("nan")]})
        with pytest.raises(SourceError, match='column "f", row 2'):
            await store(source, DataLocation("floats"), floats)
        long = pa.RecordBatch.from_pydict({"s": ["x" * 70_000]})
        with pytest.raises(SourceError, match="does not fit"):
            await store(source, DataLocation("long"), long)

    async def test_leftovers_of_killed_writers_go(self, source: DataSource) -> None:
        self.query("CREATE TABLE coterie_staging_dead (x INT)")
        await store(source, DataLocation("after"), small(0, 1))
        await self.check_nothing_left(source)


class TestPostgreSQL(ServerSuite):
    @pytest.fixture
    def info(self, postgresql_server: servers_kit.Server) -> SourceInfo:
        self.server = postgresql_server
        return postgresql_server.info

    async def query(self, statement: str) -> list[tuple[object, ...]]:
        connection = await asyncpg.connect(
            host="127.0.0.1", port=self.server.port, user="alice", password=servers_kit.PASSWORD, database="postgres"
        )
        try:
            return [tuple(row) for row in await connection.fetch(statement)]
        finally:
            await connection.close()

    @pytest.mark.slow
    async def test_bounded_memory(self, info: SourceInfo) -> None:
        await _load(info, "large", 1_000_000)

    async def check_nothing_left(self, source: DataSource) -> None:
        assert await self.query("SELECT relname FROM pg_class WHERE relname LIKE 'coterie%'") == []

    async def check_connections_closed(self, source: DataSource) -> None:
        others = "SELECT 1 FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"

        async def only_we() -> None:
            while await self.query(others):
                await asyncio.sleep(0.05)

        await asyncio.wait_for(only_we(), 30)

    async def test_types_are_kuscias(self, source: DataSource) -> None:
        schema = pa.schema(
            [
                ("a", pa.uint64()),
                ("b", pa.duration("s")),
                ("c", pa.timestamp("s")),
                ("d", pa.time64("us")),
                ("e", pa.uint8()),
            ]
        )
        await store(source, DataLocation("kinds"), schema=schema)
        found = await self.query(
            "SELECT format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = 'kinds'::regclass AND attnum > 0 ORDER BY attnum"
        )
        assert [each for (each,) in found] == [
            "numeric(20,0)",
            "interval",
            "timestamp with time zone",
            "time without time zone",
            "smallint",
        ]

    async def test_sql_in_a_name_is_a_name(self, source: DataSource) -> None:
        await store(source, DataLocation("safe"), small(0, 1))
        for name in ('x"; DROP TABLE safe; --', "pg_catalog.pg_user", 'safe" WHERE true --', "x'; DROP TABLE safe"):
            await store(source, DataLocation(name), small(3, 1))
            assert rows_of(await fetch(source, DataLocation(name), SMALL)) == [(3, "n3")]
        assert rows_of(await fetch(source, DataLocation("safe"), SMALL)) == [(0, "n0")]

    async def test_value_that_does_not_fit_the_declared_type(self, source: DataSource) -> None:
        await store(source, DataLocation("wide"), small(300, 3))
        with pytest.raises(SourceError, match='column "id", row 1'):
            await fetch(source, DataLocation("wide"), pa.schema([("id", pa.int8())]))


class TestS3(ServerSuite):
    ending = ".csv"

    @pytest.fixture
    def info(self, s3_source: SourceInfo) -> SourceInfo:
        return s3_source

    @pytest.mark.slow
    async def test_bounded_memory(self, info: SourceInfo) -> None:
        await _load(info, "large.csv", 1_000_000)

    async def check_nothing_left(self, source: DataSource) -> None:
        client: S3Client = source._store._client  # type: ignore[attr-defined]
        async with client.request("GET", "", {"uploads": ""}) as response:
            assert "<UploadId>" not in await response.text()

    async def test_large_tables_go_in_parts(
        self, source: DataSource, place: DataLocation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("coterie.kuscia.sources.s3.PART", 64 * 1024)
        await store(source, place, *(small(each * 5000, 5000) for each in range(10)))
        found = await fetch(source, place, SMALL)
        assert sorted(found["id"].to_pylist()) == list(range(50_000))
        with pytest.raises(RuntimeError, match="on purpose"):
            async with source.write(place, SMALL) as sink:
                for each in range(10):
                    await sink.put(small(each * 5000, 5000))
                raise RuntimeError("on purpose")
        assert (await fetch(source, place, SMALL)).num_rows == 50_000
        await self.check_nothing_left(source)

    @pytest.mark.parametrize("uri", ["../other.csv", "a/../../b.csv", "/a.csv", ""])
    async def test_names_stay_below_the_prefix(self, source: DataSource, uri: str) -> None:
        with pytest.raises(SourceForbidden):
            await fetch(source, DataLocation(uri), SMALL)

    @pytest.mark.parametrize("ending", ["parquet", "orc", "arrow"])
    async def test_formats_that_are_read_in_ranges(self, source: DataSource, ending: str) -> None:
        place = DataLocation(f"ranges/table.{ending}")
        await store(source, place, small(0, 1000))
        assert rows_of(await fetch(source, place, SMALL, TableReadOptions(columns=("name",))))[:1] == [("n0",)]
        assert (await source.schema(place)).names == SMALL.names


async def test_unknown_kind_is_named() -> None:
    with pytest.raises(SourceError, match="'tape'"):
        open_source(SourceInfo(kind="tape"))


class TestMemory:
    """Tables of any size in bounded memory, each in a process of its own. COTERIE_SOURCES_ROWS asks for more rows."""

    @pytest.mark.slow
    @pytest.mark.parametrize("uri", ["t.csv", "t.parquet", "t.orc", "t.arrow"])
    async def test_local(self, tmp_path: Path, uri: str) -> None:
        await _load(SourceInfo(kind="localfs", path=str(tmp_path)), uri, 2_000_000)


async def _load(info: SourceInfo, uri: str, rows: int) -> None:
    named = ("kind", "path", "endpoint", "bucket", "prefix", "access_key_id", "user", "database")
    fields: dict[str, str] = {name: getattr(info, name) for name in named}
    for name in ("password", "access_key_secret"):
        secret = getattr(info, name)
        if secret:
            fields[name] = secret.reveal()
    program = Path(__file__).with_name("sources_load.py")
    rows = int(os.environ.get("COTERIE_SOURCES_ROWS", rows))
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(program), json.dumps(fields), uri, str(rows), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    assert json.loads(out)["peak_mb"] < 300
