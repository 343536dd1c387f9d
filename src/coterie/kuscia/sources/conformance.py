"""What every data source must do, as checks that the author of a plug-in runs against a real one.

    python -m coterie.kuscia.sources.conformance sqlite --settings settings.json
    python -m coterie.kuscia.sources.conformance tape --settings settings.json --existing people

Tables named `coterie_conformance_...` are written and deleted. With `--existing`, which names a table that is there, the
source is taken for a read-only one: only reading is checked, and that writing and deleting are refused.

A check ends with a ConformanceFailure or well. Sources may refuse types and partitions that they cannot hold, with a
SourceError; what they take must come back as it was.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pyarrow as pa

from coterie.kuscia.sources.protocol import (
    READ_ALL,
    DataLocation,
    DataNotFound,
    DataSource,
    SourceError,
    SourceForbidden,
    SourceInfo,
    SourceReadOnly,
    SqlSource,
    TableReadOptions,
)
from coterie.kuscia.sources.sealed_sources import settings_info
from coterie.kuscia.sources.source_registry import open_source
from coterie.kuscia.sources.sql_queries import parse_query, resolve, statement

_SMALL = pa.schema([("id", pa.int64()), ("name", pa.string())])
_MOMENT = 1_700_000_000
_VALUES: tuple[tuple[pa.DataType, tuple[object, ...]], ...] = (
    (pa.int8(), (-128, 127, 0)),
    (pa.int16(), (-(2**15), 2**15 - 1, 0)),
    (pa.int32(), (-(2**31), 2**31 - 1, 0)),
    (pa.int64(), (-(2**63), 2**63 - 1, 0)),
    (pa.uint8(), (0, 255, 1)),
    (pa.uint16(), (0, 2**16 - 1, 1)),
    (pa.uint32(), (0, 2**32 - 1, 1)),
    (pa.uint64(), (0, 2**64 - 1, 1)),
    (pa.float32(), (0.5, -3.4028234663852886e38, 0.0)),
    (pa.float64(), (0.1, 1.7976931348623157e308, 5e-324)),
    (pa.bool_(), (True, False, True)),
    (pa.string(), ("", "NULL", "007", 'a,"b"\r\nc\\\'; DROP TABLE t; -- \u00e9\u4e2d\U0001f600')),
    (pa.large_string(), ("\\N", "null", " x ")),
    (pa.binary(), (b"", b"\x00\xff'\\", b"NULL")),
    (pa.date32(), (0, 19782, 47481)),
    (pa.date64(), (_MOMENT * 1000 + 250, 1000, _MOMENT * 1000)),
    (pa.time32("s"), (0, 86399, 43201)),
    (pa.time64("us"), (0, 86_399_999_999, 43_201_000_005)),
    (pa.timestamp("s"), (_MOMENT, 1, 2**31 - 1)),
    (pa.timestamp("us"), (_MOMENT * 10**6 + 123456, 10**6, _MOMENT * 10**6)),
    (pa.timestamp("us", "UTC"), (_MOMENT * 10**6 + 1, 10**6, _MOMENT * 10**6)),
    (pa.duration("s"), (-5, 86_400_000, 0)),
)
_NUMBERED = (pa.types.is_date, pa.types.is_time, pa.types.is_timestamp, pa.types.is_duration)
_OUTSIDE = ("../other", "a/../../b", "/etc/passwd", "")


class ConformanceFailure(Exception):
    """What the source does and should not, or the other way around."""


@dataclass(frozen=True, slots=True)
class ConformanceTarget:
    info: SourceInfo
    source: DataSource
    """Entered."""
    place: DataLocation
    """Where nothing is, or for read-only sources a table with at least one row."""
    read_only: bool = False
    files: bool = False
    """Its locations are paths, of which `..` leads out."""


CheckRun = Callable[[ConformanceTarget], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ConformanceResult:
    name: str
    problem: str = ""
    """Empty: the check ended well."""


def small_batch(start: int, count: int, mark: str = "n") -> pa.RecordBatch:
    ids = range(start, start + count)
    return pa.RecordBatch.from_pydict({"id": list(ids), "name": [f"{mark}{each}" for each in ids]}, schema=_SMALL)


def _typed(kind: pa.DataType, values: Sequence[object]) -> pa.RecordBatch:
    if any(belongs(kind) for belongs in _NUMBERED):
        numbers = pa.array([*values, None], pa.int32() if kind.bit_width == 32 else pa.int64())
        return pa.RecordBatch.from_arrays([numbers.view(kind)], names=["x"])
    return pa.RecordBatch.from_arrays([pa.array([*values, None], kind)], names=["x"])


async def _store(source: DataSource, place: DataLocation, *batches: pa.RecordBatch) -> None:
    async with source.write(place, batches[0].schema) as sink:
        for batch in batches:
            await sink.put(batch)


async def _fetch(
    source: DataSource, place: DataLocation, schema: pa.Schema | None, options: TableReadOptions = READ_ALL
) -> list[pa.RecordBatch]:
    async with source.read(place, schema, options) as stream:
        return [each async for each in stream]


def _rows(batches: Sequence[pa.RecordBatch]) -> list[str]:
    """Sources need not keep an order."""
    return sorted(repr(tuple(row.values())) for batch in batches for row in batch.to_pylist())


def _expect(holds: bool, sentence: str) -> None:
    if not holds:
        raise ConformanceFailure(sentence)


async def _expect_refusal(work: Awaitable[object], kind: type[SourceError], what: str) -> None:
    try:
        await work
    except kind:
        return
    except SourceError as problem:
        raise ConformanceFailure(f"{what}: {type(problem).__name__} is raised in place of {kind.__name__}") from problem
    raise ConformanceFailure(f"{what}: nothing is raised, {kind.__name__} should be")


# For every source.


async def check_missing_table(target: ConformanceTarget) -> None:
    """DataNotFound for a table that is not there."""
    nowhere = DataLocation("coterie_conformance_nowhere")
    await _expect_refusal(target.source.schema(nowhere), DataNotFound, "schema of a table that is not there")
    await _expect_refusal(_fetch(target.source, nowhere, _SMALL), DataNotFound, "reading a table that is not there")


async def check_places_outside(target: ConformanceTarget) -> None:
    """SourceForbidden for places outside of the source."""
    for uri in _OUTSIDE if target.files else ():
        await _expect_refusal(
            _fetch(target.source, DataLocation(uri), _SMALL), SourceForbidden, f"reading the location {uri!r}"
        )


async def check_secrets_stay_hidden(target: ConformanceTarget) -> None:
    """No secret in the text of a source or of its errors."""
    info = target.info
    kept = [each.reveal() for each in (info.password, info.access_key_secret, *info.secrets.values()) if each]
    text = repr(target.source)
    with suppress(SourceError):
        text += repr(await target.source.schema(DataLocation("coterie_conformance_nowhere")))
    try:
        await _fetch(target.source, DataLocation("coterie_conformance_nowhere"), _SMALL)
    except SourceError as problem:
        text += str(problem)
    _expect(not any(each in text for each in kept), "a secret of the settings is in a text that the source makes")


# For those that are written to.


async def check_types(target: ConformanceTarget) -> None:
    """Every type and NULL comes back, or is refused."""
    taken = 0
    for kind, values in _VALUES:
        batch = _typed(kind, values)
        try:
            await _store(target.source, target.place, batch)
        except SourceError:
            continue
        taken += 1
        found = await _fetch(target.source, target.place, batch.schema)
        _expect(all(each.schema == batch.schema for each in found), f"a column of type {kind} comes as another type")
        _expect(_rows(found) == _rows([batch]), f"values of type {kind} do not come back as they were")
    _expect(taken > 0, "no type can be written")


async def check_columns(target: ConformanceTarget) -> None:
    """Chosen columns come in the order asked for, unknown ones are named."""
    await _store(target.source, target.place, small_batch(0, 3))
    found = await _fetch(target.source, target.place, _SMALL, TableReadOptions(columns=("name", "id")))
    _expect(all(each.schema.names == ["name", "id"] for each in found), "columns do not come in the order asked for")
    _expect(_rows(found) == _rows([small_batch(0, 3).select(["name", "id"])]), "chosen columns have other values")
    found = await _fetch(target.source, target.place, _SMALL, TableReadOptions(columns=("name",)))
    _expect(all(each.schema.names == ["name"] for each in found), "columns come that nobody asked for")
    for schema, options in (
        (_SMALL.append(pa.field("age", pa.int8())), READ_ALL),
        (_SMALL, TableReadOptions(columns=("age",))),
    ):
        try:
            await _fetch(target.source, target.place, schema, options)
        except SourceError as problem:
            _expect("age" in str(problem), "the error about a column that is not there does not name it")
        else:
            raise ConformanceFailure("a column that is not there is read without an error")


async def check_schema(target: ConformanceTarget) -> None:
    """The schema has the columns that were written, in their order."""
    await _store(target.source, target.place, small_batch(0, 3))
    found = await target.source.schema(target.place)
    _expect(found.names == _SMALL.names, f"the schema of columns id, name is {', '.join(found.names)}")
    undeclared = await _fetch(target.source, target.place, None)
    _expect(_rows(undeclared) == _rows([small_batch(0, 3)]), "reading without a schema gives other values")


async def check_empty_table(target: ConformanceTarget) -> None:
    """A table without rows is a table."""
    async with target.source.write(target.place, _SMALL):
        pass
    _expect(_rows(await _fetch(target.source, target.place, _SMALL)) == [], "a table without rows has rows")


async def check_bounded_batches(target: ConformanceTarget) -> None:
    """No batch has more rows than asked for, and no row is lost."""
    await _store(target.source, target.place, small_batch(0, 3000), small_batch(3000, 1), small_batch(3001, 999))
    found = await _fetch(target.source, target.place, _SMALL, TableReadOptions(batch_rows=256))
    _expect(max(each.num_rows for each in found) <= 256, "a batch has more rows than batch_rows")
    ids = sorted(each for batch in found for each in batch.column(0).to_pylist())
    _expect(ids == list(range(4000)), "rows are lost or come twice")


async def check_writing_replaces(target: ConformanceTarget) -> None:
    """A write replaces rows and columns."""
    await _store(target.source, target.place, _typed(pa.string(), ("a",)))
    await _store(target.source, target.place, small_batch(5, 2))
    found = await _fetch(target.source, target.place, _SMALL)
    _expect(_rows(found) == _rows([small_batch(5, 2)]), "after a second write the table is not what was written")


async def check_failed_write(target: ConformanceTarget) -> None:
    """A write that fails leaves what was there."""
    fresh = replace(target.place, uri=f"{target.place.uri}_failed")

    async def fails(place: DataLocation) -> None:
        with suppress(_OnPurpose):
            async with target.source.write(place, _SMALL) as sink:
                await sink.put(small_batch(0, 2000))
                raise _OnPurpose

    await fails(fresh)
    await _expect_refusal(_fetch(target.source, fresh, _SMALL), DataNotFound, "reading after the only write failed")
    await _store(target.source, target.place, small_batch(0, 2, "old"))
    await fails(target.place)
    found = await _fetch(target.source, target.place, _SMALL)
    _expect(_rows(found) == _rows([small_batch(0, 2, "old")]), "a write that failed changed the table")


class _OnPurpose(Exception):
    pass


async def check_old_or_new(target: ConformanceTarget) -> None:
    """A read that began before a write sees the old table, whole."""
    await _store(target.source, target.place, small_batch(0, 2000, "old"))
    writing: asyncio.Task[None] | None = None
    names: list[str] = []
    async with target.source.read(target.place, _SMALL, TableReadOptions(batch_rows=100)) as stream:
        async for batch in stream:
            names += batch.column(1).to_pylist()
            if writing is None:
                writing = asyncio.create_task(
                    _store(target.source, target.place, small_batch(0, 2000, "new")), name="conformance/write"
                )
                await asyncio.sleep(0.05)
    if writing is not None:
        await writing
    _expect(len(names) == 2000, "a read beside a write loses rows, or has some twice")
    _expect(len({each[:3] for each in names}) == 1, "a read beside a write has rows of both")
    after = await _fetch(target.source, target.place, _SMALL)
    _expect(_rows(after) == _rows([small_batch(0, 2000, "new")]), "the write beside a read is not there afterwards")


async def check_leaving_early(target: ConformanceTarget) -> None:
    """A read that is left early lets go of the table."""
    await _store(target.source, target.place, small_batch(0, 5000))
    async with target.source.read(target.place, _SMALL, TableReadOptions(batch_rows=10)) as stream:
        await anext(stream)
    await _store(target.source, target.place, small_batch(0, 1))
    _expect(len(_rows(await _fetch(target.source, target.place, _SMALL))) == 1, "the write afterwards is not there")


async def check_required_column(target: ConformanceTarget) -> None:
    """NULL in a column that does not allow it is an error with column and row."""
    batch = pa.RecordBatch.from_pydict({"id": [1, None], "name": ["a", "b"]}, schema=_SMALL)
    await _store(target.source, target.place, batch)
    try:
        await _fetch(target.source, target.place, pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    except SourceError as problem:
        _expect("id" in str(problem) and "2" in str(problem), "the error does not name the column and the row")
    else:
        raise ConformanceFailure("NULL comes in a column that does not allow it")


async def check_odd_names(target: ConformanceTarget) -> None:
    """Names of columns are names, whatever is in them."""
    odd = pa.RecordBatch.from_pydict({'a"b`c': [1], "d,e 'f'; --": ["x"], "\u5b57": [True]})
    try:
        await _store(target.source, target.place, odd)
    except SourceError:
        return
    _expect(_rows(await _fetch(target.source, target.place, odd.schema)) == _rows([odd]), "odd names change values")


async def check_partitions(target: ConformanceTarget) -> None:
    """A partition is read and replaced alone, or partitions are refused."""
    place = replace(target.place, uri=f"{target.place.uri}_parts".replace(".", "_"), format=target.place.format)
    try:
        for day in ("one", "two"):
            await _store(target.source, replace(place, partition=f"ds={day}"), small_batch(0, 2, day))
    except SourceError:
        return
    try:
        await _store(target.source, replace(place, partition="ds=two"), small_batch(7, 1, "new"))
        whole = _SMALL.append(pa.field("ds", pa.string()))
        _expect(len(_rows(await _fetch(target.source, place, whole))) == 3, "writing a partition changed another one")
        found = await _fetch(target.source, replace(place, partition="ds=two"), whole)
        _expect([row["name"] for batch in found for row in batch.to_pylist()] == ["new7"], "the partition is not alone")
    finally:
        await target.source.delete(place)


async def check_sql(target: ConformanceTarget) -> None:
    """Sources with `sql_dialect` answer queries with the rows that they mean, and write nothing for them."""
    if not getattr(target.source, "sql_dialect", ""):
        return
    source = cast(SqlSource, target.source)
    await _store(source, target.place, small_batch(0, 5), small_batch(5, 5, "it's \\ "))
    await _expect_refusal(
        source.sql_tables(["coterie_no_such_table"]), DataNotFound, "SQL on a table that is not there"
    )
    quote = "`" if source.sql_dialect == "mysql" else '"'
    name = quote + target.place.uri.replace(quote, 2 * quote) + quote
    text = (
        f"SELECT a.name, b.id + 1 AS more FROM {name} a JOIN {name} b ON a.id = b.id WHERE a.id > 3 ORDER BY b.id DESC"
    )
    query = parse_query(text, source.sql_dialect)
    tables = await source.sql_tables(query.tables)
    _expect(tables[target.place.uri].columns == tuple(_SMALL.names), "sql_tables gives other columns")
    made = statement(resolve(query, {each: found.columns for each, found in tables.items()}), tables)
    schema = await source.query_schema(made)
    _expect(schema.names == ["name", "more"], "query_schema gives other columns")
    async with source.query(made, schema) as stream:
        found = [row for batch in [each async for each in stream] for row in batch.to_pylist()]
    wanted = [(f"it's \\ {each}" if each >= 5 else f"n{each}", each + 1) for each in range(9, 3, -1)]
    _expect([(row["name"], row["more"]) for row in found] == wanted, "the query gives other rows, or in another order")
    with suppress(SourceError):
        async with source.query(f"DELETE FROM {name}", schema) as stream:
            [each async for each in stream]
    _expect(len(_rows(await _fetch(source, target.place, _SMALL))) == 10, "a statement of a query wrote something")


async def check_delete(target: ConformanceTarget) -> None:
    """What is deleted is gone; what is not there cannot be deleted."""
    await _store(target.source, target.place, small_batch(0, 1))
    await target.source.delete(target.place)
    await _expect_refusal(_fetch(target.source, target.place, _SMALL), DataNotFound, "reading what was deleted")
    await _expect_refusal(target.source.delete(target.place), DataNotFound, "deleting what is not there")


# For those that are only read.


async def check_existing_table(target: ConformanceTarget) -> None:
    """A table that is there is read whole, in bounded batches, in its own schema and by column."""
    schema = await target.source.schema(target.place)
    _expect(len(schema) > 0, "the schema has no columns")
    whole = await _fetch(target.source, target.place, schema)
    _expect(all(each.schema == schema for each in whole), "batches are not of the schema that was declared")
    rows = sum(each.num_rows for each in whole)
    _expect(rows > 0, "the table has no rows; name another one with --existing")
    bounded = await _fetch(target.source, target.place, schema, TableReadOptions(batch_rows=2))
    _expect(max(each.num_rows for each in bounded) <= 2, "a batch has more rows than batch_rows")
    _expect(_rows(bounded) == _rows(whole), "smaller batches have other rows")
    last = (schema.names[-1],)
    one = await _fetch(target.source, target.place, schema, TableReadOptions(columns=last))
    _expect(all(tuple(each.schema.names) == last for each in one), "columns come that nobody asked for")
    _expect(_rows(one) == _rows([each.select(list(last)) for each in whole]), "one column alone has other values")
    try:
        await _fetch(target.source, target.place, schema, TableReadOptions(columns=("coterie_conformance_none",)))
    except SourceError:
        return
    raise ConformanceFailure("a column that is not there is read without an error")


async def check_read_only(target: ConformanceTarget) -> None:
    """Writing and deleting are refused, and change nothing."""
    schema = await target.source.schema(target.place)
    before = _rows(await _fetch(target.source, target.place, schema))
    await _expect_refusal(_store(target.source, target.place, small_batch(0, 1)), SourceReadOnly, "writing")
    await _expect_refusal(target.source.delete(target.place), SourceReadOnly, "deleting")
    _expect(_rows(await _fetch(target.source, target.place, schema)) == before, "the table changed")


ALWAYS: tuple[CheckRun, ...] = (check_missing_table, check_places_outside, check_secrets_stay_hidden)
WRITABLE: tuple[CheckRun, ...] = (
    check_types,
    check_columns,
    check_schema,
    check_empty_table,
    check_bounded_batches,
    check_writing_replaces,
    check_failed_write,
    check_old_or_new,
    check_leaving_early,
    check_required_column,
    check_odd_names,
    check_partitions,
    check_sql,
    check_delete,
)
READ_ONLY: tuple[CheckRun, ...] = (check_existing_table, check_read_only)


def checks(*, read_only: bool) -> tuple[CheckRun, ...]:
    return (*ALWAYS, *(READ_ONLY if read_only else WRITABLE))


async def run_check(check: CheckRun, info: SourceInfo, existing: str = "", ending: str = "", *, files: bool) -> None:
    """On a source that is opened for it. `ending`: of the names of tables that are made, e.g. `.csv`. Raises
    ConformanceFailure, or whatever the source raises and should not."""
    place = DataLocation(existing or f"coterie_conformance_{uuid.uuid4().hex[:12]}{ending}")
    async with open_source(info) as source:
        try:
            await check(ConformanceTarget(info, source, place, bool(existing), files))
        finally:
            if not existing:
                with suppress(SourceError):
                    await source.delete(place)


async def run_checks(
    info: SourceInfo, existing: str = "", ending: str = "", *, files: bool = False
) -> list[ConformanceResult]:
    found = []
    for check in checks(read_only=bool(existing)):
        name = (check.__doc__ or "").strip().rstrip(".")
        try:
            await run_check(check, info, existing, ending, files=files)
        except ConformanceFailure as failure:
            found.append(ConformanceResult(name, str(failure)))
        except SourceError as problem:
            found.append(ConformanceResult(name, f"the source refuses: {problem}"))
        except Exception as problem:  # noqa: BLE001
            # Told as a failure: a plug-in may raise anything, and the author wants to see all checks.
            sentence = f"{type(problem).__name__} is raised, only SourceErrors should be: {problem}"
            found.append(ConformanceResult(name, sentence))
        else:
            found.append(ConformanceResult(name))
    return found


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="coterie.kuscia.sources.conformance", description="checks that a data source does what every one must do"
    )
    parser.add_argument("kind", help="kind of the source, i.e. the name of the plug-in's entry point")
    parser.add_argument("--settings", type=Path, required=True, help="JSON file with the settings of the source")
    parser.add_argument("--existing", default="", help="table that is there, for sources that are only read")
    parser.add_argument("--ending", default="", help="ending of the names of tables that are made, e.g. .csv")
    parser.add_argument("--files", action="store_true", help="locations are paths: check that none leads out")
    chosen = parser.parse_args(words)
    try:
        settings = json.loads(chosen.settings.read_text())
        if not isinstance(settings, dict):
            raise ValueError("not an object")
        info = settings_info(chosen.kind, settings)
        open_source(info)
    except (OSError, ValueError, SourceError) as problem:
        print(f"Error: {chosen.settings}: {problem}", file=sys.stderr)
        return 2
    results = asyncio.run(run_checks(info, chosen.existing, chosen.ending, files=chosen.files))
    for each in results:
        print(f"FAILED  {each.name}: {each.problem}" if each.problem else f"ok      {each.name}")
    failed = sum(1 for each in results if each.problem)
    print(f"{len(results) - failed} of {len(results)} checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
