"""Tables of one SQLite file. In: the SourceInfo, of which only `path` is used. Out: a DataSource."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from coterie.kuscia.sources.convert import fit, is_bytes, is_text
from coterie.kuscia.sources.files import selected
from coterie.kuscia.sources.protocol import (
    READ_ALL,
    WRITE_PLAIN,
    DataLocation,
    DataNotFound,
    DataSource,
    SourceError,
    SourceInfo,
    SourceUnreachable,
    TableReadOptions,
    TableSink,
    TableWriteOptions,
)
from coterie.kuscia.sources.types import arrow_of, kuscia_of
from coterie.kuscia.sources.worker_thread import WorkerThread, stepping

_AFFINITY = {"int": pa.int64(), "char": pa.string(), "text": pa.string(), "clob": pa.string(), "blob": pa.binary()}
_AFFINITIES = (" INTEGER", " TEXT", " BLOB", " REAL")
_WAIT = 30.0


def open_sqlite(info: SourceInfo) -> DataSource:
    """The entry point. Called with the settings, before anything is read."""
    if not info.path:
        raise SourceError("the source needs `path`, the SQLite file")
    return SqliteSource(Path(info.path))


class SqliteSource:
    def __init__(self, file: Path) -> None:
        self._file = file

    async def __aenter__(self) -> DataSource:
        if not self._file.parent.is_dir():
            raise SourceUnreachable("the directory of the SQLite file is not there")
        return self

    async def __aexit__(self, *problem: object) -> None:
        """Each stream has a connection of its own and closes it."""

    async def schema(self, place: DataLocation) -> pa.Schema:
        lane = WorkerThread("sqlite")
        try:
            return await lane.run(lambda: self._schema(place))
        finally:
            await lane.finish()

    def _schema(self, place: DataLocation) -> pa.Schema:
        with self._connected() as connection:
            return _schema(connection, place)

    @asynccontextmanager
    async def read(
        self, place: DataLocation, schema: pa.Schema | None, options: TableReadOptions = READ_ALL
    ) -> AsyncIterator[AsyncIterator[pa.RecordBatch]]:
        _plain(place, options.raw)

        def batches() -> Iterator[pa.RecordBatch]:
            with self._connected() as connection:
                connection.execute("BEGIN")  # all statements see one version
                there = _schema(connection, place)
                wanted = selected(schema if schema is not None else there, options.columns)
                stored = selected(there, tuple(wanted.names))
                cursor = connection.execute(f"SELECT {_names(stored)} FROM {_quoted(place.uri)}")
                first = 0
                while rows := cursor.fetchmany(options.batch_rows):
                    yield fit(_batch(rows, stored), wanted, first)
                    first += len(rows)

        # A source that waits for a network also gives `stepping` a function that ends the waiting.
        async with stepping(batches) as stream:
            yield stream

    @asynccontextmanager
    async def write(
        self, place: DataLocation, schema: pa.Schema, options: TableWriteOptions = WRITE_PLAIN
    ) -> AsyncIterator[TableSink]:
        _plain(place, options.raw)
        for column in schema:
            if arrow_of(kuscia_of(column.type)) != column.type or pa.types.is_uint64(column.type):
                raise SourceError(f'column "{column.name}": SQLite tables cannot hold the type {column.type}')
        lane = WorkerThread("sqlite")
        connected = self._connected()
        try:
            connection = await lane.run(connected.__enter__)
            await lane.run(lambda: _begin(connection, place, schema))
            yield _SqliteSink(lane, connection, place, schema)
            await lane.run(lambda: connection.execute("COMMIT"))
        except sqlite3.Error as problem:
            raise SourceError(f"SQLite refused: {type(problem).__name__}") from problem
        finally:
            # Closing rolls back what was not committed.
            await lane.finish(lambda: connected.__exit__(None, None, None))

    async def delete(self, place: DataLocation) -> None:
        def drop() -> None:
            with self._connected() as connection:
                _schema(connection, place)
                connection.execute(f"DROP TABLE {_quoted(place.uri)}")

        lane = WorkerThread("sqlite")
        try:
            await lane.run(drop)
        finally:
            await lane.finish()

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        try:
            connection = sqlite3.connect(self._file, timeout=_WAIT, isolation_level=None, check_same_thread=False)
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA trusted_schema=OFF")
                yield connection
            finally:
                connection.close()
        except sqlite3.OperationalError as problem:
            raise SourceUnreachable(f"the SQLite file cannot be used: {type(problem).__name__}") from problem
        except sqlite3.DatabaseError as problem:
            raise SourceError("the file is no SQLite file, or a broken one") from problem


class _SqliteSink:
    def __init__(
        self, lane: WorkerThread, connection: sqlite3.Connection, place: DataLocation, schema: pa.Schema
    ) -> None:
        self._lane, self._connection, self._schema = lane, connection, schema
        self._insert = f"INSERT INTO {_quoted(place.uri)} VALUES ({','.join('?' * len(schema))})"

    async def put(self, batch: pa.RecordBatch) -> None:
        def insert() -> None:
            columns = [_cells(each) for each in fit(batch, self._schema).columns]
            self._connection.executemany(self._insert, zip(*columns, strict=True))

        await self._lane.run(insert)


def _plain(place: DataLocation, raw: bool) -> None:
    if raw:
        raise SourceError("a table has no bytes to be read or written as they are; use its rows")
    if place.partition:
        raise SourceError("SQLite tables have no partitions")


def _quoted(name: str) -> str:
    if "\0" in name or not name or name.lower().startswith("sqlite_"):
        raise DataNotFound("there is no table of that name")
    return '"' + name.replace('"', '""') + '"'


def _names(schema: pa.Schema) -> str:
    return ",".join(_quoted(each) for each in schema.names)


def _schema(connection: sqlite3.Connection, place: DataLocation) -> pa.Schema:
    _quoted(place.uri)  # refuses names that no table has
    rows = connection.execute('SELECT name, type, "notnull" FROM pragma_table_info(?)', (place.uri,)).fetchall()
    if not rows:
        raise DataNotFound(f"there is no table {place.uri}")
    return pa.schema([pa.field(name, _arrow(declared), nullable=not required) for name, declared, required in rows])


def _arrow(declared: str) -> pa.DataType:
    """By our own name, which is the first word, else as SQLite itself goes by what the declaration holds."""
    found = arrow_of(declared.partition(" ")[0]) if declared.endswith(_AFFINITIES) else None
    if found is not None:
        return found
    low = declared.lower()
    return next((kind for part, kind in _AFFINITY.items() if part in low), pa.float64() if low else pa.binary())


def _declared(kind: pa.DataType) -> str:
    """`str TEXT`: SQLite would make a number of the text 007 in a column that is declared as `str` alone."""
    stored = "INTEGER"
    if is_text(kind):
        stored = "TEXT"
    elif is_bytes(kind):
        stored = "BLOB"
    elif pa.types.is_floating(kind):
        stored = "REAL"
    return f"{kuscia_of(kind)} {stored}"


def _begin(connection: sqlite3.Connection, place: DataLocation, schema: pa.Schema) -> None:
    columns = ",".join(f"{_quoted(each.name)} {_declared(each.type)}" for each in schema)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(f"DROP TABLE IF EXISTS {_quoted(place.uri)}")
    connection.execute(f"CREATE TABLE {_quoted(place.uri)} ({columns})")


def _cells(column: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_temporal(kind):
        return column.view(_number(kind)).to_pylist()
    if pa.types.is_boolean(kind):
        return column.cast(pa.int8()).to_pylist()
    found: list[Any] = column.to_pylist()
    return found


def _batch(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = []
    for number, field in enumerate(schema):
        cells, kind = [row[number] for row in rows], field.type
        try:
            if pa.types.is_temporal(kind):
                columns.append(pa.array(cells, _number(kind)).view(kind))
            elif pa.types.is_boolean(kind):
                columns.append(pa.array(cells, pa.int8()).cast(kind))
            else:
                columns.append(pa.array(cells, kind))
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            # SQLite lets any value into any column. Which one it was is not told: it may be nobody's to see.
            raise SourceError(f'column "{field.name}" has values that are not of its type {kind}') from None
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


def _number(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if kind.bit_width == 32 else pa.int64()
