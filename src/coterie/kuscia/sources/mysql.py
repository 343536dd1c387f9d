"""Tables of a MySQL or MariaDB server.

Reading: the server puts a row's cells together as a line of CSV (one cell per row to unpack in Python), which Arrow
parses a block at a time; rows stream, neither side holds the table. Writing: rows go into a table with a name of its
own by large INSERTs, which then takes the old one's place in one RENAME. The driver blocks, so all of it is in a
thread.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pyarrow as pa

from coterie.kuscia.sources import mysql_text
from coterie.kuscia.sources.convert import convert, fit, is_bytes
from coterie.kuscia.sources.csv_text import Dialect, read_csv
from coterie.kuscia.sources.files import selected
from coterie.kuscia.sources.mysql_connection import MySQLConnection
from coterie.kuscia.sources.paths import partition_of
from coterie.kuscia.sources.protocol import (
    READ_ALL,
    WRITE_PLAIN,
    DataLocation,
    DataNotFound,
    DataSource,
    SourceError,
    SourceInfo,
    SqlTable,
    TableReadOptions,
    TableSink,
    TableWriteOptions,
)
from coterie.kuscia.sources.sql_types import (
    STAGING,
    mysql_type,
    of_mysql,
    of_mysql_result,
    query_seconds,
    result_schema,
    table_name,
)
from coterie.kuscia.sources.worker_thread import PulledFile, WorkerThread, stepping

_LONGEST = 64
_FETCH = 4096
_UNSIGNED = 32
"""A flag of columns on the wire."""
_DIALECT = Dialect(nulls=("",), blank_lines_count=True)
_COLUMNS = """
    SELECT column_name, data_type, column_type, is_nullable FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = {} ORDER BY ordinal_position
"""


def mysql(info: SourceInfo) -> DataSource:
    return MySQL(info)


class MySQL:
    sql_dialect = "mysql"

    def __init__(self, info: SourceInfo) -> None:
        self._info = info
        self._query_seconds = query_seconds(info)

    async def __aenter__(self) -> DataSource:
        return self

    async def __aexit__(self, *problem: object) -> None:
        pass

    async def schema(self, place: DataLocation) -> pa.Schema:
        async with self._lane() as (lane, line):
            return await lane.run(lambda: _schema(_columns(line, place)))

    @asynccontextmanager
    async def _lane(self) -> AsyncIterator[tuple[WorkerThread, MySQLConnection]]:
        lane, line = WorkerThread("mysql"), MySQLConnection(self._info)
        try:
            await lane.run(line.connect)
            yield lane, line
        finally:
            line.interrupt()
            await lane.finish(line.close)

    @asynccontextmanager
    async def read(
        self, place: DataLocation, schema: pa.Schema | None, options: TableReadOptions = READ_ALL
    ) -> AsyncIterator[AsyncIterator[pa.RecordBatch]]:
        _no_raw(options.raw)
        line = MySQLConnection(self._info)

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                line.connect()
                columns = _columns(line, place)
                declared = selected(schema if schema is not None else _schema(columns), options.columns)
                file = pa.PythonFile(PulledFile(_lines(line, place, declared, columns)), mode="r")
                row = 0
                for batch in read_csv(file, mysql_text.wire(declared), _DIALECT, options.batch_rows):
                    yield fit(batch, declared, row)
                    row += batch.num_rows
            finally:
                line.close()

        async with stepping(batches, line.interrupt) as stream:
            yield stream

    # SQL.

    async def sql_tables(self, names: Sequence[str]) -> Mapping[str, SqlTable]:
        async with self._lane() as (lane, line):
            return {each: await lane.run(partial(_sql_table, line, self._info.database, each)) for each in names}

    async def query_schema(self, statement: str) -> pa.Schema:
        async with self._lane() as (lane, line):

            def described() -> pa.Schema:
                _begin_query(line, self._query_seconds)
                return _result_schema(line, statement)

            return await lane.run(described)

    @asynccontextmanager
    async def query(
        self, statement: str, schema: pa.Schema, options: TableReadOptions = READ_ALL
    ) -> AsyncIterator[AsyncIterator[pa.RecordBatch]]:
        line = MySQLConnection(self._info)

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                line.connect()
                _begin_query(line, self._query_seconds)
                if _result_schema(line, statement) != schema:
                    raise SourceError("the columns of the query changed since it was asked for; ask again")
                row = 0
                for rows in line.stream(statement, min(options.batch_rows, _FETCH)):
                    yield _cells(rows, schema, row)
                    row += len(rows)
            finally:
                line.close()

        async with stepping(batches, line.interrupt) as stream:
            yield stream

    @asynccontextmanager
    async def write(
        self, place: DataLocation, schema: pa.Schema, options: TableWriteOptions = WRITE_PLAIN
    ) -> AsyncIterator[TableSink]:
        _no_raw(options.raw)
        name, keys = table_name(place.uri, _LONGEST), partition_of(place.partition)
        whole = pa.schema([*schema, *(pa.field(key, pa.string()) for key in keys if key not in schema.names)])
        staging = STAGING + secrets.token_hex(8)
        line, lane = MySQLConnection(self._info), WorkerThread("mysql")
        done = False
        try:
            await lane.run(lambda: _begin(line, staging, whole))
            yield _InsertSink(lane, line, staging, schema, whole, keys)
            await lane.run(lambda: _take_place(line, staging, name, whole, keys))
            done = True
        finally:
            if not done:
                line.interrupt()
            await lane.finish(lambda: _end(self._info, line, "" if done else staging))

    async def delete(self, place: DataLocation) -> None:
        name, keys = table_name(place.uri, _LONGEST), partition_of(place.partition)
        async with self._lane() as (lane, line):
            table = mysql_text.name(name)
            statement = f"DELETE FROM {table}{mysql_text.where(keys)}" if keys else f"DROP TABLE {table}"
            await lane.run(lambda: line.execute(statement))


class _InsertSink:
    def __init__(
        self,
        lane: WorkerThread,
        line: MySQLConnection,
        table: str,
        schema: pa.Schema,
        whole: pa.Schema,
        keys: Mapping[str, str],
    ) -> None:
        self._lane, self._line, self._schema, self._whole, self._keys = lane, line, schema, whole, keys
        names = ", ".join(mysql_text.name(each) for each in whole.names)
        self._head = f"INSERT INTO {mysql_text.name(table)} ({names}) VALUES ".encode()

    async def put(self, batch: pa.RecordBatch) -> None:
        await self._lane.run(lambda: self._put(batch))

    def _put(self, batch: pa.RecordBatch) -> None:
        batch = fit(batch, self._schema)
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns |= {key: pa.repeat(value, batch.num_rows) for key, value in self._keys.items()}
        for rows in mysql_text.inserts(columns, self._whole.names, self._line.packet // 2):
            self._line.execute(self._head + rows)
        self._line.execute("COMMIT")


Columns = list[tuple[str, str, str, bool]]


def _columns(line: MySQLConnection, place: DataLocation) -> Columns:
    """From here on the table stays as it is: a writer that replaces it waits until the connection ends."""
    name = table_name(place.uri, _LONGEST)
    try:
        line.query(f"SELECT 1 FROM {mysql_text.name(name)} LIMIT 0")
    except DataNotFound:
        raise DataNotFound(f"there is no table {place.uri}") from None
    rows = line.query(_COLUMNS.format(mysql_text.literal(name)))
    return [(each[0].decode(), each[1].decode(), each[2].decode(), each[3] == b"NO") for each in rows]


def _schema(columns: Columns) -> pa.Schema:
    return pa.schema([pa.field(name, of_mysql(kind, whole), not required) for name, kind, whole, required in columns])


def _lines(line: MySQLConnection, place: DataLocation, declared: pa.Schema, columns: Columns) -> Any:
    """A function that gives some lines of CSV, the header first, at last nothing."""
    kinds = {name: kind for name, kind, _, _ in columns}
    missing = [name for name in declared.names if name not in kinds]
    if missing:
        raise SourceError(f"there is no column {', '.join(missing)}; there are {', '.join(kinds)}")
    shown = ", ".join(mysql_text.cell(field, kinds[field.name]) for field in declared)
    keys = partition_of(place.partition)
    rows = line.stream(
        f"SELECT CONCAT_WS(',', {shown}) FROM {mysql_text.name(place.uri)}{mysql_text.where(keys)}", _FETCH
    )
    waiting: Iterator[bytes] = iter([mysql_text.header(declared)])

    def pull() -> bytes:
        piece = next(waiting, None)
        if piece is not None:
            return piece
        part = next(rows, None)
        if part is None:
            return b""
        cells = [each[0] for each in part if each[0] is not None]
        if len(cells) < len(part):
            raise SourceError("a row is larger than the server's max_allowed_packet; raise that setting")
        return b"\n".join([*cells, b""])

    return pull


def _sql_table(line: MySQLConnection, database: str, name: str) -> SqlTable:
    found = _columns(line, DataLocation(name))
    # A FLOAT is shown with six digits.
    return SqlTable(
        (database, name), tuple(each[0] for each in found), frozenset(each[0] for each in found if each[1] == "float")
    )


def _begin_query(line: MySQLConnection, seconds: int) -> None:
    """A transaction that writes nothing, in which each statement ends in time."""
    mariadb = b"mariadb" in line.query("SELECT VERSION()")[0][0].lower()
    line.execute(
        f"SET SESSION max_statement_time = {seconds}"
        if mariadb
        else f"SET SESSION max_execution_time = {seconds * 1000}"
    )
    line.execute("START TRANSACTION READ ONLY")


def _result_schema(line: MySQLConnection, statement: str) -> pa.Schema:
    fields = []
    for each in line.described(f"SELECT * FROM ({statement}) AS coterie_query LIMIT 0"):
        kind = of_mysql_result(
            each.type_code, each.length, each.scale, each.charsetnr, unsigned=bool(each.flags & _UNSIGNED)
        )
        fields.append(pa.field(each.name.decode() if isinstance(each.name, bytes) else each.name, kind))
    return result_schema(fields)


def _cells(rows: Sequence[tuple[bytes | None, ...]], schema: pa.Schema, first_row: int) -> pa.RecordBatch:
    columns = []
    for field, cells in zip(schema, zip(*rows, strict=True), strict=True):
        found = pa.array(cells, pa.large_binary())
        columns.append(
            convert(found if is_bytes(field.type) else found.cast(pa.large_string()), field.type, field.name, first_row)
        )
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _begin(line: MySQLConnection, staging: str, whole: pa.Schema) -> None:
    line.connect()
    _sweep(line)
    line.query(f"SELECT GET_LOCK({mysql_text.literal(staging)}, 0)")
    columns = ", ".join(
        f"{mysql_text.name(field.name)} {mysql_type(field.type)} {'NULL' if field.nullable else 'NOT NULL'}"
        for field in whole
    )
    line.execute(f"CREATE TABLE {mysql_text.name(staging)} ({columns}) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")


def _sweep(line: MySQLConnection) -> None:
    """What killed writers left: a living one holds a lock by its table's name."""
    like = mysql_text.literal(STAGING.replace("_", "|_") + "%")
    found = line.query(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() "
        f"AND table_name LIKE {like} ESCAPE '|'"
    )
    for (raw,) in found:
        table = raw.decode()
        if line.query(f"SELECT IS_FREE_LOCK({mysql_text.literal(table)})")[0][0] == b"1":
            line.execute(f"DROP TABLE IF EXISTS {mysql_text.name(table)}")


def _take_place(line: MySQLConnection, staging: str, name: str, whole: pa.Schema, keys: Mapping[str, str]) -> None:
    new, table = mysql_text.name(staging), mysql_text.name(name)
    there = line.query(
        "SELECT 1 FROM information_schema.tables "
        f"WHERE table_schema = DATABASE() AND table_name = {mysql_text.literal(name)}"
    )
    if not there:
        line.execute(f"RENAME TABLE {new} TO {table}")
    elif keys:
        names = ", ".join(mysql_text.name(each) for each in whole.names)
        line.execute(f"DELETE FROM {table}{mysql_text.where(keys)}")
        line.execute(f"INSERT INTO {table} ({names}) SELECT {names} FROM {new}")
        line.execute("COMMIT")
        line.execute(f"DROP TABLE {new}")
    else:
        old = mysql_text.name(f"{staging}_old")
        line.execute(f"RENAME TABLE {table} TO {old}, {new} TO {table}")
        line.execute(f"DROP TABLE {old}")


def _end(info: SourceInfo, line: MySQLConnection, staging: str) -> None:
    """The interrupted line cannot clean up any more; a fresh one does, if the server is still there."""
    line.close()
    if staging:
        fresh = MySQLConnection(info)
        try:
            with suppress(SourceError):
                fresh.connect()
                fresh.execute(f"DROP TABLE IF EXISTS {mysql_text.name(staging)}")
        finally:
            fresh.close()


def _no_raw(raw: bool) -> None:
    if raw:
        raise SourceError("a table of a database has no raw bytes; ask for it as a table")
