"""What every data source must do, whichever it is. A test class per source inherits it and says where a table may lie."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from coterie.base.secret import SecretValue
from coterie.kuscia.sources.protocol import (
    READ_ALL,
    DataLocation,
    DataNotFound,
    DataSource,
    SourceError,
    SourceInfo,
    SourceUnreachable,
    TableReadOptions,
    TableWriteOptions,
)
from coterie.kuscia.sources.source_registry import open_source

DAY = 1_700_000_000
VALUES: tuple[tuple[str, pa.DataType, list[object]], ...] = (
    ("i8", pa.int8(), [-128, 127, 0]),
    ("i16", pa.int16(), [-(2**15), 2**15 - 1, 0]),
    ("i32", pa.int32(), [-(2**31), 2**31 - 1, 0]),
    ("i64", pa.int64(), [-(2**63), 2**63 - 1, 0]),
    ("u8", pa.uint8(), [0, 255, 1]),
    ("u16", pa.uint16(), [0, 2**16 - 1, 1]),
    ("u32", pa.uint32(), [0, 2**32 - 1, 1]),
    ("u64", pa.uint64(), [0, 2**64 - 1, 1]),
    ("f32", pa.float32(), [0.10000000149011612, -3.4028234663852886e38, 0.0]),
    ("f64", pa.float64(), [0.1, 1.7976931348623157e308, 5e-324]),
    ("yes", pa.bool_(), [True, False, True]),
    ("text", pa.string(), ["", "NULL", 'a,"b"\r\nc\\\'; DROP TABLE t; -- \u00e9\u4e2d\U0001f600']),
    ("long", pa.large_string(), ["\\N", "null", " x "]),
    ("bytes", pa.binary(), [b"", b"\x00\xff'\\", b"NULL"]),
    ("day", pa.date32(), [dt.date(1970, 1, 1), dt.date(2024, 2, 29), dt.date(2099, 12, 31)]),
    ("moment", pa.date64(), [DAY * 1000 + 250, 1000, DAY * 1000]),
    ("clock", pa.time32("s"), [dt.time(0, 0, 0), dt.time(23, 59, 59), dt.time(12, 0, 1)]),
    ("fine", pa.time64("us"), [dt.time(0, 0, 0), dt.time(23, 59, 59, 999999), dt.time(12, 0, 1, 5)]),
    ("stamp", pa.timestamp("s"), [DAY, 1, 2**31 - 1]),
    ("micro", pa.timestamp("us"), [DAY * 10**6 + 123456, 10**6, DAY * 10**6]),
    ("zoned", pa.timestamp("us", "UTC"), [DAY * 10**6 + 1, 10**6, DAY * 10**6]),
    ("took", pa.duration("s"), [-5, 86400 * 1000, 0]),
)
EVERY = pa.schema([pa.field(name, kind) for name, kind, _ in VALUES])
SMALL = pa.schema([("id", pa.int64()), ("name", pa.string())])


def every_type() -> pa.RecordBatch:
    columns = []
    for _, kind, values in VALUES:
        numbers = pa.types.is_date64(kind) or pa.types.is_timestamp(kind) or pa.types.is_duration(kind)
        found = pa.array([*values, None], pa.int64()).view(kind) if numbers else pa.array([*values, None], kind)
        columns.append(found)
    return pa.RecordBatch.from_arrays(columns, schema=EVERY)


def small(start: int, count: int, mark: str = "n") -> pa.RecordBatch:
    ids = range(start, start + count)
    return pa.RecordBatch.from_pydict({"id": list(ids), "name": [f"{mark}{each}" for each in ids]}, schema=SMALL)


async def store(
    source: DataSource, place: DataLocation, *batches: pa.RecordBatch, schema: pa.Schema | None = None
) -> None:
    async with source.write(place, schema or batches[0].schema) as sink:
        for batch in batches:
            await sink.put(batch)


async def fetch(
    source: DataSource, place: DataLocation, schema: pa.Schema | None = None, options: TableReadOptions = READ_ALL
) -> pa.Table:
    async with source.read(place, schema, options) as stream:
        batches = [each async for each in stream]
    names = schema or (batches[0].schema if batches else pa.schema([]))
    chosen = pa.schema([names.field(each) for each in options.columns]) if options.columns else names
    return pa.Table.from_batches(batches, chosen if not batches else batches[0].schema)


def rows_of(table: pa.Table) -> list[tuple[object, ...]]:
    """Databases keep no order, so neither does the comparison."""
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


class SourcesSuite:
    ending = ""

    @pytest.fixture
    async def source(self, info: SourceInfo) -> AsyncIterator[DataSource]:
        async with open_source(info) as opened:
            yield opened

    @pytest.fixture
    def place(self, request: pytest.FixtureRequest) -> DataLocation:
        return DataLocation(f"t {request.node.name}{self.ending}"[-60:].strip())

    async def test_every_type_and_null_comes_back(self, source: DataSource, place: DataLocation) -> None:
        batch = every_type()
        await store(source, place, batch)
        found = await fetch(source, place, EVERY)
        assert found.schema == EVERY
        assert rows_of(found) == rows_of(pa.Table.from_batches([batch]))

    async def test_chosen_columns_come_in_the_order_asked_for(self, source: DataSource, place: DataLocation) -> None:
        await store(source, place, every_type())
        found = await fetch(source, place, EVERY, TableReadOptions(columns=("yes", "i8")))
        assert found.column_names == ["yes", "i8"]
        assert rows_of(found) == rows_of(pa.Table.from_batches([every_type().select(["yes", "i8"])]))

    async def test_unknown_column_is_named(self, source: DataSource, place: DataLocation) -> None:
        await store(source, place, small(0, 1))
        more = SMALL.append(pa.field("age", pa.int8()))
        with pytest.raises(SourceError, match="age"):
            await fetch(source, place, more)
        with pytest.raises(SourceError, match="other"):
            await fetch(source, place, SMALL, TableReadOptions(columns=("other",)))

    async def test_one_column_of_nulls_and_empty_texts(self, source: DataSource, place: DataLocation) -> None:
        one = pa.RecordBatch.from_pydict({"x": pa.array([None, "", None, "a", ""], pa.string())})
        await store(source, place, one)
        assert rows_of(await fetch(source, place, one.schema)) == rows_of(pa.Table.from_batches([one]))

    async def test_names_with_quotes_and_unicode(self, source: DataSource, place: DataLocation) -> None:
        odd = pa.RecordBatch.from_pydict({'a"b`c': [1], "d,e 'f'; --": ["x"], "\u5b57": [None]}).cast(
            pa.schema([('a"b`c', pa.int64()), ("d,e 'f'; --", pa.string()), ("\u5b57", pa.int64())])
        )
        await store(source, place, odd)
        assert rows_of(await fetch(source, place, odd.schema)) == [(1, "x", None)]

    async def test_empty_table(self, source: DataSource, place: DataLocation) -> None:
        await store(source, place, schema=SMALL)
        found = await fetch(source, place, SMALL)
        assert (found.num_rows, found.schema) == (0, SMALL)
        assert (await source.schema(place)).names == SMALL.names

    async def test_many_batches_come_in_bounded_ones(self, source: DataSource, place: DataLocation) -> None:
        await store(source, place, small(0, 30_000), small(30_000, 1), small(30_001, 10_000))
        sizes, ids = [], []
        async with source.read(place, SMALL, TableReadOptions(batch_rows=4096)) as stream:
            async for batch in stream:
                sizes.append(batch.num_rows)
                ids += batch.column(0).to_pylist()
        assert max(sizes) <= 4096
        assert sorted(ids) == list(range(40_001))

    async def test_schema_is_told_or_guessed(self, source: DataSource, place: DataLocation) -> None:
        await store(source, place, small(0, 3))
        assert await source.schema(place) == SMALL
        assert rows_of(await fetch(source, place)) == rows_of(pa.Table.from_batches([small(0, 3)]))

    async def test_writing_replaces_also_the_columns(self, source: DataSource, place: DataLocation) -> None:
        await store(source, place, every_type())
        await store(source, place, small(5, 2))
        assert rows_of(await fetch(source, place, SMALL)) == [(5, "n5"), (6, "n6")]

    async def test_failed_write_leaves_what_was_there(self, source: DataSource, place: DataLocation) -> None:
        with pytest.raises(RuntimeError, match="on purpose"):
            async with source.write(place, SMALL) as sink:
                await sink.put(small(0, 20_000))
                raise RuntimeError("on purpose")
        with pytest.raises(DataNotFound):
            await fetch(source, place, SMALL)
        await store(source, place, small(0, 2, "old"))
        with pytest.raises(SourceError, match="id"):
            async with source.write(place, SMALL) as sink:
                await sink.put(small(0, 20_000))
                await sink.put(pa.RecordBatch.from_pydict({"id": ["no number"], "name": ["x"]}))
        assert rows_of(await fetch(source, place, SMALL)) == [(0, "old0"), (1, "old1")]
        await self.check_nothing_left(source)

    async def check_nothing_left(self, source: DataSource) -> None:
        """Of writes that failed. Each source looks for itself."""

    async def test_cancelled_write_leaves_nothing(self, source: DataSource, place: DataLocation) -> None:
        begun = asyncio.Event()

        async def writing() -> None:
            async with source.write(place, SMALL) as sink:
                await sink.put(small(0, 1000))
                begun.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(writing())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(DataNotFound):
            await fetch(source, place, SMALL)
        await self.check_nothing_left(source)

    async def test_readers_see_the_old_or_the_new(self, source: DataSource, place: DataLocation) -> None:
        await store(source, place, small(0, 5000, "v0-"))
        written = asyncio.Event()
        seen = set()

        async def reading() -> None:
            last = False
            while not last:
                last = written.is_set()
                found = await fetch(source, place, SMALL)
                assert found.num_rows == 5000
                marks = {name.split("-")[0] for name in found["name"].to_pylist()}
                assert len(marks) == 1
                seen.update(marks)

        async def writing() -> None:
            try:
                for version in (1, 2, 3):
                    await store(source, place, small(0, 2500, f"v{version}-"), small(2500, 2500, f"v{version}-"))
            finally:
                written.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(reading())
            group.create_task(reading())
            group.create_task(writing())
        assert "v3" in seen

    async def test_leaving_a_read_early(self, source: DataSource, place: DataLocation) -> None:
        await store(source, place, *(small(each * 20_000, 20_000) for each in range(5)))
        async with source.read(place, SMALL, TableReadOptions(batch_rows=1000)) as stream:
            assert (await anext(stream)).num_rows == 1000
        await store(source, place, small(0, 1))
        assert (await fetch(source, place, SMALL)).num_rows == 1

    async def test_cancelled_read_lets_go(self, source: DataSource, place: DataLocation) -> None:
        await store(source, place, *(small(each * 20_000, 20_000) for each in range(5)))
        begun = asyncio.Event()

        async def reading() -> None:
            async with source.read(place, SMALL, TableReadOptions(batch_rows=100)) as stream:
                async for _ in stream:
                    begun.set()
                    await asyncio.sleep(0)

        task = asyncio.create_task(reading())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await self.check_connections_closed(source)

    async def check_connections_closed(self, source: DataSource) -> None:
        """Each source with a server looks for itself."""

    async def test_partitions_are_read_and_replaced_alone(self, source: DataSource, place: DataLocation) -> None:
        place = replace(place, uri=place.uri.replace(".", "-"), format=self.format_of(place))
        for day in ("2024-01-01", "2024-01-02"):
            await store(source, replace(place, partition=f"ds={day}"), small(0, 2, day))
        whole = SMALL.append(pa.field("ds", pa.string()))
        await store(source, replace(place, partition="ds=2024-01-02"), small(7, 1, "new"))
        second = await fetch(source, replace(place, partition="ds=2024-01-02"), whole)
        assert rows_of(second) == [(7, "new7", "2024-01-02")]
        assert (await fetch(source, place, whole)).num_rows == 3
        with pytest.raises(SourceError, match="not understood"):
            await fetch(source, replace(place, partition="ds"), whole)

    def format_of(self, place: DataLocation) -> object:
        return place.format

    async def test_missing_table(self, source: DataSource) -> None:
        for work in (source.schema(DataLocation("nowhere")), fetch(source, DataLocation("nowhere"), SMALL)):
            with pytest.raises(DataNotFound):
                await work
        with pytest.raises(DataNotFound):
            await source.delete(DataLocation("nowhere"))

    async def test_deleting(self, source: DataSource, place: DataLocation) -> None:
        await store(source, place, small(0, 1))
        await source.delete(place)
        with pytest.raises(DataNotFound):
            await fetch(source, place, SMALL)

    async def test_required_column_with_a_null(self, source: DataSource, place: DataLocation) -> None:
        await store(source, place, pa.RecordBatch.from_pydict({"id": [1, None], "name": ["a", "b"]}, schema=SMALL))
        strict = pa.schema([pa.field("id", pa.int64(), nullable=False)])
        with pytest.raises(SourceError, match='column "id", row 2'):
            await fetch(source, place, strict)


class ServerSuite(SourcesSuite):
    """What holds for sources behind a server."""

    wrong_secret = "not-the-secret"

    async def test_wrong_secret_is_refused_and_not_told(self, info: SourceInfo) -> None:
        wrong = SecretValue(self.wrong_secret)
        info = replace(info, password=info.password and wrong, access_key_secret=info.access_key_secret and wrong)
        async with open_source(info) as source:
            with pytest.raises(SourceUnreachable) as caught:
                await fetch(source, DataLocation("people"), SMALL)
        assert self.wrong_secret not in str(caught.value)

    async def test_server_that_is_not_there(self, info: SourceInfo, unused_port: int) -> None:
        scheme = "http://" if info.kind in ("oss", "azure", "gcs") else ""
        async with open_source(replace(info, endpoint=f"{scheme}127.0.0.1:{unused_port}")) as source:
            with pytest.raises(SourceUnreachable):
                await fetch(source, DataLocation("people"), SMALL)
            with pytest.raises(SourceUnreachable):
                await store(source, DataLocation("people"), small(0, 1))


def options_of(delimiter: str) -> TableWriteOptions:
    return TableWriteOptions(delimiter=delimiter)


def files_below(folder: Path) -> list[str]:
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if not each.is_dir())
