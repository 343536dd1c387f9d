"""Tables of a PostgreSQL database, through COPY.

Rows travel as CSV, which the server writes and reads fast and Arrow parses a block at a time. Every text is in quotes
and NULL is the empty cell without, so nothing depends on what texts say. A table that is written is filled in one
transaction under a name of its own, and takes the old one's place in the same.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import asyncpg
import pyarrow as pa
import pyarrow.compute as pc

from coterie.kuscia.sources.convert import convert, fit, is_bytes, is_text
from coterie.kuscia.sources.csv_text import Dialect, csv_rows, read_csv
from coterie.kuscia.sources.endpoints import address_of, endpoint_of, without
from coterie.kuscia.sources.files import selected
from coterie.kuscia.sources.paths import partition_of
from coterie.kuscia.sources.protocol import (
    READ_ALL,
    WRITE_PLAIN,
    DataLocation,
    DataNotFound,
    DataSource,
    SourceError,
    SourceInfo,
    SourceUnreachable,
    SqlTable,
    TableReadOptions,
    TableSink,
    TableWriteOptions,
)
from coterie.kuscia.sources.sql_types import (
    STAGING,
    of_postgresql,
    postgresql_type,
    query_seconds,
    result_schema,
    table_name,
)
from coterie.kuscia.sources.worker_thread import LoopFile, WorkerThread, stepping

_LONGEST = 63
_PORT = 5432
_SETTINGS = {"DateStyle": "ISO", "IntervalStyle": "postgres", "TimeZone": "UTC", "lock_timeout": "60s"}
_DIALECT = Dialect(nulls=("",), blank_lines_count=True)
_COLUMNS = """
    SELECT a.attname, t.typname, format_type(a.atttypid, a.atttypmod), a.attnotnull
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_TABLE = """
    SELECT n.nspname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = to_regclass($1) AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
"""
_QUEUE = 8


def postgresql(info: SourceInfo) -> DataSource:
    return PostgreSQL(info)


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    type_name: str
    shown: str
    required: bool


class PostgreSQL:
    sql_dialect = "postgres"

    def __init__(self, info: SourceInfo) -> None:
        self._info = info
        self._database_label = f"the database {info.database} at {address_of(info.endpoint)}"
        self._query_seconds = query_seconds(info)

    async def __aenter__(self) -> DataSource:
        return self

    async def __aexit__(self, *problem: object) -> None:
        pass

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        place, password = endpoint_of(self._info.endpoint, _PORT), self._info.password
        with self._errors():
            connection = await asyncpg.connect(
                host=place.host,
                port=place.port,
                user=self._info.user,
                password=password.reveal() if password else None,
                database=self._info.database,
                ssl=place.options.get("sslmode", "prefer"),
                timeout=10,
                server_settings=_SETTINGS,
            )
        try:
            with self._errors():
                yield connection
        finally:
            # Politely it would wait for what is under way; a stream that was left is not worth that.
            connection.terminate()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """The server's own words, but not the rows it quotes in details."""
        try:
            yield
        except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as error:
            raise SourceUnreachable(
                f"{self._database_label} denied access to its user; check user, password and name"
            ) from error
        except (asyncpg.CannotConnectNowError, asyncpg.TooManyConnectionsError) as error:
            raise SourceUnreachable(f"{self._database_label} does not answer: {self._error_message(error)}") from error
        except asyncpg.InsufficientPrivilegeError as error:
            raise SourceUnreachable(
                f"{self._database_label} does not allow its user this: {self._error_message(error)}"
            ) from error
        except asyncpg.UndefinedTableError as error:
            raise DataNotFound("there is no such table") from error
        except asyncpg.QueryCanceledError as error:
            raise SourceError(f"{self._database_label} ended the read: it took too long") from error
        except asyncpg.DataError as error:
            raise SourceError("a value does not fit its column in PostgreSQL: " + type(error).__name__) from error
        except asyncpg.PostgresError as error:
            raise SourceError(f"{self._database_label}: {self._error_message(error)}") from error
        except (OSError, TimeoutError, asyncpg.InterfaceError) as error:
            raise SourceUnreachable(f"{self._database_label} does not answer: {type(error).__name__}") from error

    def _error_message(self, error: asyncpg.PostgresError) -> str:
        return without(str(error.args[0])[:200], self._info.user)

    async def schema(self, place: DataLocation) -> pa.Schema:
        async with self._connected() as connection:
            return _schema(await self._columns(connection, place))

    async def _columns(self, connection: Any, place: DataLocation) -> list[_Column]:
        """From here on the table stays as it is: a writer that replaces it waits until the connection ends."""
        name = _name(table_name(place.uri, _LONGEST))
        await connection.execute("BEGIN READ ONLY")
        try:
            await connection.execute(f"LOCK TABLE {name} IN ACCESS SHARE MODE")
        except asyncpg.UndefinedTableError:
            raise DataNotFound(f"there is no table {place.uri}") from None
        rows = await connection.fetch(_COLUMNS, name)
        return [_Column(*row) for row in rows]

    @asynccontextmanager
    async def read(
        self, place: DataLocation, schema: pa.Schema | None, options: TableReadOptions = READ_ALL
    ) -> AsyncIterator[AsyncIterator[pa.RecordBatch]]:
        _no_raw(options.raw)
        async with self._connected() as connection:
            columns = {each.name: each for each in await self._columns(connection, place)}
            declared = selected(schema if schema is not None else _schema(list(columns.values())), options.columns)
            missing = [name for name in declared.names if name not in columns]
            if missing:
                raise SourceError(f"there is no column {', '.join(missing)}; there are {', '.join(columns)}")
            wire = pa.schema([_wire(field, columns[field.name]) for field in declared])
            shown = ", ".join(
                f"{_select_expression(field, columns[field.name])} AS {_name(field.name)}" for field in declared
            )
            query = f"SELECT {shown} FROM {_name(place.uri)}{_where(partition_of(place.partition))}"
            async with self._copied(connection, query, wire, declared, options) as stream:
                yield stream

    # SQL.

    async def sql_tables(self, names: Sequence[str]) -> Mapping[str, SqlTable]:
        found = {}
        async with self._connected() as connection:
            for name in names:
                quoted = _name(table_name(name, _LONGEST))
                space = await connection.fetchval(_TABLE, quoted)
                if space is None:
                    raise DataNotFound(f"there is no table {name}")
                columns = await connection.fetch(_COLUMNS, quoted)
                found[name] = SqlTable((space, name), tuple(each[0] for each in columns))
        return found

    async def query_schema(self, statement: str) -> pa.Schema:
        async with self._querying() as connection:
            return result_schema(_result_fields(await _described(connection, statement)))

    @asynccontextmanager
    async def _querying(self) -> AsyncIterator[Any]:
        """A transaction that writes nothing, finds nothing but what is named in full, and ends."""
        async with self._connected() as connection:
            await connection.execute(
                "BEGIN READ ONLY; SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL standard_conforming_strings = on; "
                f"SET LOCAL statement_timeout = '{self._query_seconds}s'"
            )
            yield connection

    @asynccontextmanager
    async def query(
        self, statement: str, schema: pa.Schema, options: TableReadOptions = READ_ALL
    ) -> AsyncIterator[AsyncIterator[pa.RecordBatch]]:
        async with self._querying() as connection:
            columns = await _described(connection, statement)
            if result_schema(_result_fields(columns)) != schema:
                raise SourceError("the columns of the query changed since it was asked for; ask again")
            wire = pa.schema([_wire(field, column) for field, column in zip(schema, columns, strict=True)])
            shown = ", ".join(
                f"{_select_expression(field, column)} AS {_name(field.name)}"
                for field, column in zip(schema, columns, strict=True)
            )
            async with self._copied(
                connection, f"SELECT {shown} FROM ({statement}) AS coterie_query", wire, schema, options
            ) as stream:
                yield stream

    @asynccontextmanager
    async def _copied(
        self, connection: Any, query: str, wire: pa.Schema, declared: pa.Schema, options: TableReadOptions
    ) -> AsyncIterator[AsyncIterator[pa.RecordBatch]]:
        async with _copied_out(connection, query) as file:

            def batches() -> Iterator[pa.RecordBatch]:
                row = 0
                for batch in read_csv(pa.PythonFile(file, mode="r"), wire, _DIALECT, options.batch_rows):
                    yield fit(batch, declared, row)
                    row += batch.num_rows

            async with stepping(batches, file.interrupt) as stream:
                yield self._telling(stream)

    async def _telling(self, stream: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
        with self._errors():
            async for batch in stream:
                yield batch

    @asynccontextmanager
    async def write(
        self, place: DataLocation, schema: pa.Schema, options: TableWriteOptions = WRITE_PLAIN
    ) -> AsyncIterator[TableSink]:
        _no_raw(options.raw)
        name, keys = table_name(place.uri, _LONGEST), partition_of(place.partition)
        whole = pa.schema([*schema, *(pa.field(key, pa.string()) for key in keys if key not in schema.names)])
        async with self._connected() as connection, connection.transaction():
            old = await connection.fetchval("SELECT to_regclass($1)::oid", _name(name))
            target = name if keys and old else STAGING + secrets.token_hex(8)
            if target == name:
                await connection.execute(f"DELETE FROM {_name(name)}{_where(keys)}")
            else:
                columns = ", ".join(
                    f"{_name(field.name)} {postgresql_type(field.type)}{'' if field.nullable else ' NOT NULL'}"
                    for field in whole
                )
                await connection.execute(f"CREATE TABLE {_name(target)} ({columns})")
            sink = _CopySink(connection, target, schema, whole, keys)
            try:
                yield sink
                await sink.finish()
            finally:
                await sink.stop()
            if target != name:
                await connection.execute(f"DROP TABLE IF EXISTS {_name(name)}")
                await connection.execute(f"ALTER TABLE {_name(target)} RENAME TO {_name(name)}")

    async def delete(self, place: DataLocation) -> None:
        name, keys = table_name(place.uri, _LONGEST), partition_of(place.partition)
        async with self._connected() as connection:
            table = _name(name)
            await connection.execute(f"DELETE FROM {table}{_where(keys)}" if keys else f"DROP TABLE {table}")


@asynccontextmanager
async def _copied_out(connection: Any, query: str) -> AsyncIterator[LoopFile]:
    """What the server sends, as a file for the parsing thread; the server waits while nobody reads."""
    queue: asyncio.Queue[bytes | BaseException] = asyncio.Queue(_QUEUE)

    async def pump() -> None:
        try:
            await connection.copy_from_query(
                query, output=queue.put, format="csv", header=True, force_quote=True, encoding="utf-8"
            )
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            await queue.put(error)
        else:
            await queue.put(b"")

    async def pull() -> bytes:
        piece = await queue.get()
        if isinstance(piece, BaseException):
            raise piece
        return piece

    file, task = LoopFile(pull), asyncio.ensure_future(pump())
    try:
        yield file
    finally:
        file.interrupt()
        if not task.done():
            connection.terminate()
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class _CopySink:
    def __init__(
        self, connection: Any, table: str, schema: pa.Schema, whole: pa.Schema, keys: Mapping[str, str]
    ) -> None:
        self._schema, self._whole, self._keys = schema, whole, keys
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(2)
        self._lane = WorkerThread("copy")
        self._task = asyncio.ensure_future(
            connection.copy_to_table(
                table, source=self._pieces(), columns=whole.names, format="csv", null="", encoding="utf-8"
            )
        )

    async def _pieces(self) -> AsyncIterator[bytes]:
        while (piece := await self._queue.get()) is not None:
            yield piece

    async def put(self, batch: pa.RecordBatch) -> None:
        await self._give(await self._lane.run(lambda: self._text(batch)))

    def _text(self, batch: pa.RecordBatch) -> bytes:
        batch = fit(batch, self._schema)
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns |= {key: pa.repeat(value, batch.num_rows) for key, value in self._keys.items()}
        written = [_copy_value(columns[name], name) for name in self._whole.names]
        return bytes(csv_rows(pa.RecordBatch.from_arrays(written, self._whole.names), null="", quote_all=True))

    async def _give(self, piece: bytes | None) -> None:
        """To the server; its refusal ends the waiting."""
        giving = asyncio.ensure_future(self._queue.put(piece))
        try:
            await asyncio.wait({giving, self._task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            giving.cancel()
        if self._task.done():
            self._task.result()

    async def finish(self) -> None:
        await self._give(None)
        await self._task

    async def stop(self) -> None:
        await self._lane.finish()
        if not self._task.done():
            self._task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(self._task, return_exceptions=True)


def _copy_value(column: pa.Array, name: str) -> pa.Array:
    """As PostgreSQL reads it."""
    kind = column.type
    if is_bytes(kind):
        return pa.array(
            [None if each is None else "\\x" + each.hex() for each in column.to_pylist()], pa.large_string()
        )
    if pa.types.is_duration(kind):
        micros = convert(column, pa.duration("us"), name).view(pa.int64()).cast(pa.string())
        return pc.binary_join_element_wise(micros, "microseconds", " ")
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return convert(column, pa.timestamp("us", kind.tz), name)
    if pa.types.is_time64(kind) and kind.unit == "ns":
        return convert(column, pa.time64("us"), name)
    return column


async def _described(connection: Any, statement: str) -> list[_Column]:
    """The columns of the result; the statement is parsed by the server and not run."""
    prepared = await connection.prepare(statement)
    return [_Column(each.name, each.type.name, "", False) for each in prepared.get_attributes()]


def _result_fields(columns: list[_Column]) -> list[pa.Field]:
    return [pa.field(each.name, of_postgresql(each.type_name, "")) for each in columns]


def _wire(field: pa.Field, column: _Column) -> pa.Field:
    """The type of what the server sends, before it becomes the declared one."""
    field = field.with_nullable(True)
    return field.with_type(pa.duration("us")) if column.type_name == "interval" else field


def _select_expression(field: pa.Field, column: _Column) -> str:
    """The column as text that `convert` understands."""
    name, kind = _name(column.name), column.type_name
    if kind == "timestamptz":
        return f"({name} AT TIME ZONE 'UTC')"
    if kind == "interval":
        return f"(extract(epoch FROM {name}) * 1000000)::bigint"
    if kind == "bytea":
        return f"convert_from({name}, 'UTF8')" if is_text(field.type) else f"encode({name}, 'base64')"
    if is_bytes(field.type):
        return f"encode(convert_to({name}::text, 'UTF8'), 'base64')"
    return name


def _schema(columns: list[_Column]) -> pa.Schema:
    return pa.schema(
        [pa.field(each.name, of_postgresql(each.type_name, each.shown), not each.required) for each in columns]
    )


def _where(keys: Mapping[str, str]) -> str:
    conditions = " AND ".join(f"{_name(key)} = {_literal(value)}" for key, value in keys.items())
    return f" WHERE {conditions}" if conditions else ""


def _name(text: str) -> str:
    if "\0" in text:
        raise SourceError("a name cannot hold a NUL")
    doubled = text.replace('"', '""')
    return f'"{doubled}"'


def _literal(text: str) -> str:
    """Backslashes mean themselves in both modes of the server, as partitions hold none (paths.py)."""
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


def _no_raw(raw: bool) -> None:
    if raw:
        raise SourceError("a table of a database has no raw bytes; ask for it as a table")
