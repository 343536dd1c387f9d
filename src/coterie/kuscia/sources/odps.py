"""Tables of an ODPS (MaxCompute) project, through PyODPS (the extra `odps`).

Rows travel as Arrow through the project's tunnel. A read is of one session: one version of the table, or of each partition. A write fills a session that replaces
all rows when it is committed; a table that is new, or has other columns, is filled under a name of its own first.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa

from coterie.base.lazy_import import lazy_import
from coterie.kuscia.sources.convert import convert, fit
from coterie.kuscia.sources.files import selected
from coterie.kuscia.sources.paths import partition_of
from coterie.kuscia.sources.protocol import (
    READ_ALL,
    WRITE_PLAIN,
    DataLocation,
    DataNotFound,
    DataSource,
    SourceError,
    SourceForbidden,
    SourceInfo,
    SourceUnreachable,
    TableReadOptions,
    TableSink,
    TableWriteOptions,
)
from coterie.kuscia.sources.sql_types import STAGING
from coterie.kuscia.sources.warehouse_tables import fitted, stored_names, warehouse_table
from coterie.kuscia.sources.worker_thread import WorkerThread, stepping

odps_client = lazy_import("coterie.kuscia.sources.odps_client")
odps_errors = lazy_import("odps.errors")
odps_arrow = lazy_import("odps.tunnel.io.types")
requests_errors = lazy_import("requests.exceptions")
urllib3_errors = lazy_import("urllib3.exceptions")

T = TypeVar("T")
_SETTINGS = frozenset({"project", "tunnel_endpoint", "ca"})
_PROJECT = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_COLUMN = re.compile(r"[A-Za-z0-9_\u0080-\uffff]{1,128}")
_VALUE = re.compile(r"[^'\"\\,/=\x00-\x1f\x7f]{1,255}")
_CODE = re.compile(r"ODPS-\d+|[A-Za-z]+")
_MOST_PARTITIONS = 60_000

_OF_ARROW = {
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.uint8(): "SMALLINT",
    pa.uint16(): "INT",
    pa.uint32(): "BIGINT",
    pa.uint64(): "DECIMAL(20,0)",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.string(): "STRING",
    pa.large_string(): "STRING",
    pa.null(): "STRING",
    pa.binary(): "BINARY",
    pa.large_binary(): "BINARY",
    pa.date32(): "DATE",
    pa.date64(): "DATETIME",
}
_SHOWN = {"datetime": pa.date64(), "timestamp": pa.timestamp("ns", "UTC"), "timestamp_ntz": pa.timestamp("ns")}
_PLAIN = frozenset(
    [
        "tinyint",
        "smallint",
        "int",
        "bigint",
        "float",
        "double",
        "boolean",
        "string",
        "binary",
        "date",
        "datetime",
        "timestamp",
        "timestamp_ntz",
        "decimal",
        "char",
        "varchar",
    ]
)


def odps(info: SourceInfo) -> DataSource:
    return OdpsSource(info)


def odps_type(kind: pa.DataType) -> str:
    """ODPS has no times of day and no durations: they are whole numbers of their unit."""
    if kind in _OF_ARROW:
        return _OF_ARROW[kind]
    if pa.types.is_time(kind) or pa.types.is_duration(kind):
        return "BIGINT"
    if pa.types.is_timestamp(kind):
        return "TIMESTAMP" if kind.tz else "TIMESTAMP_NTZ"
    if pa.types.is_decimal(kind) and kind.precision <= 38 and 0 <= kind.scale <= 18:
        return f"DECIMAL({kind.precision},{kind.scale})"
    raise SourceError(f"ODPS has no type for {kind}; choose another column type")


class OdpsSource:
    def __init__(self, info: SourceInfo) -> None:
        project = info.extra.get("project", "")
        for address in (info.endpoint, info.extra.get("tunnel_endpoint", "")):
            if address and not _is_address(address):
                raise SourceError("an address of the ODPS source is not http(s)://host[:port][/path]")
        if not info.endpoint or not _PROJECT.fullmatch(project):
            raise SourceError("the source needs `endpoint` and `project` of ODPS")
        if not info.access_key_id or not info.access_key_secret:
            raise SourceError("the source needs `access_key_id` and `access_key_secret`")
        if unknown := sorted(info.extra.keys() - _SETTINGS):
            raise SourceError(f"a source of kind odps has no setting {unknown[0][:40]}")
        if "ca" in info.extra and "-----BEGIN CERTIFICATE-----" not in info.extra["ca"]:
            raise SourceError("`ca` of the source is no certificate in PEM")
        self._info = info
        self._label = f"ODPS project {project}"

    async def __aenter__(self) -> DataSource:
        try:
            _ = odps_client.OdpsClient
        except ImportError as problem:
            raise SourceUnreachable(
                "ODPS tables need the package pyodps: pip install coterie[odps], or list a data proxy for the type odps"
            ) from problem
        return self

    async def __aexit__(self, *problem: object) -> None:
        del problem  # nothing stays open

    async def schema(self, place: DataLocation) -> pa.Schema:
        name = warehouse_table(place.uri)
        return await self._alone(lambda client: _shown(self._table(client, name)))

    async def _alone(self, work: Callable[[Any], T]) -> T:
        client, lane = odps_client.OdpsClient(self._info), WorkerThread("odps")

        def done() -> T:
            with self._errors(), client.used():
                return work(client)

        try:
            return await lane.run(done)
        finally:
            client.interrupt()
            await lane.finish()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        with _OdpsErrors(self._label):
            yield

    def _table(self, client: Any, name: str) -> Any:
        found = client.table(name)
        if found.is_virtual_view:
            raise SourceError("this is a view; ODPS gives the rows of tables only")
        return found

    @asynccontextmanager
    async def read(
        self, place: DataLocation, schema: pa.Schema | None, options: TableReadOptions = READ_ALL
    ) -> AsyncIterator[AsyncIterator[pa.RecordBatch]]:
        if options.raw:
            raise SourceError("a table of ODPS has no raw bytes; ask for it as a table")
        name, keys = warehouse_table(place.uri), _keys(place)
        client = odps_client.OdpsClient(self._info)

        def batches() -> Iterator[pa.RecordBatch]:
            with self._errors(), client.used():
                table = self._table(client, name)
                wanted = selected(schema if schema is not None else _shown(table), options.columns)
                stored = stored_names(wanted.names, _shown(table).names)
                row = 0
                for partition in _partitions(table, keys):
                    for columns, count in _rows(client, name, table, partition, stored, options.batch_rows):
                        yield fitted(columns, wanted, row)
                        row += count

        async with stepping(batches, client.interrupt) as stream:
            yield stream

    @asynccontextmanager
    async def write(
        self, place: DataLocation, schema: pa.Schema, options: TableWriteOptions = WRITE_PLAIN
    ) -> AsyncIterator[TableSink]:
        if options.raw:
            raise SourceError("a table of ODPS has no raw bytes; ask for it as a table")
        name, keys = warehouse_table(place.uri), _keys(place)
        columns = pa.schema([each for each in schema if each.name.lower() not in keys])
        client, lane = odps_client.OdpsClient(self._info), WorkerThread("odps")
        upload = _Upload(client, self._label, name, schema, columns, keys)
        done = False
        try:
            await lane.run(upload.begin)
            yield _OdpsSink(lane, upload)
            await lane.run(upload.finish)
            done = True
        finally:
            if not done:
                client.interrupt()
            await lane.finish(lambda: upload.end(odps_client.OdpsClient(self._info)))

    async def delete(self, place: DataLocation) -> None:
        name, keys = warehouse_table(place.uri), _keys(place)

        def dropped(client: Any) -> None:
            self._table(client, name)
            if keys:
                client.execute(f"ALTER TABLE {_quoted(name)} DROP IF EXISTS PARTITION ({_condition(keys)})")
            else:
                client.execute(f"DROP TABLE {_quoted(name)}")

        await self._alone(dropped)


class _OdpsSink:
    def __init__(self, lane: WorkerThread, upload: _Upload) -> None:
        self._lane, self._upload = lane, upload

    async def put(self, batch: pa.RecordBatch) -> None:
        await self._lane.run(lambda: self._upload.put(batch))


class _Upload:
    """One write. All of it in one thread."""

    def __init__(
        self, client: Any, label: str, name: str, schema: pa.Schema, columns: pa.Schema, keys: Mapping[str, str]
    ) -> None:
        self._client, self._label, self._name, self._keys = client, label, name, keys
        self._schema, self._columns = schema, columns
        self._staging = ""
        self._replaced = False
        self._used: Any = None
        self._session: Any = None
        self._writer: Any = None
        self._wire: list[pa.DataType] = []

    def begin(self) -> None:
        definition = _definition(self._columns)
        with _OdpsErrors(self._label):
            self._used = self._client.used()
            self._used.__enter__()
            try:
                table = self._client.table(self._name)
            except odps_errors.NoSuchObject:
                table = None
            if table is not None and self._has_partitions(table) != bool(self._keys):
                raise SourceError(
                    "the table has partitions; write one of them"
                    if not self._keys
                    else "the table has no partitions of this name; write it as a whole"
                )
            target = self._name
            if table is None and self._keys:
                partitions = ", ".join(f"{_quoted(each)} STRING" for each in self._keys)
                self._client.execute(f"CREATE TABLE {_quoted(target)} ({definition}) PARTITIONED BY ({partitions})")
            elif table is None or (not self._keys and not self._has_columns(table)):
                target = self._staging = STAGING + secrets.token_hex(8)
                self._replaced = table is not None
                self._client.execute(f"CREATE TABLE {_quoted(target)} ({definition})")
            elif not self._has_columns(table):
                raise SourceError("the table of this partition has other columns")
            self._session, self._writer = self._client.upload(target, _spec(self._keys))
            kinds = dict(zip(*_wire(self._session.schema), strict=True))
            self._wire = [kinds[each.lower()] for each in self._columns.names]

    def _has_partitions(self, table: Any) -> bool:
        stored = [each.name for each in table.table_schema.partitions]
        return bool(stored) and (not self._keys or sorted(stored) == sorted(self._keys))

    def _has_columns(self, table: Any) -> bool:
        stored = {
            each.name: (str(each.type).upper().replace(" ", ""), each.nullable is not False) for each in _simple(table)
        }
        return stored == {each.name.lower(): (odps_type(each.type), each.nullable) for each in self._columns}

    def put(self, batch: pa.RecordBatch) -> None:
        with _OdpsErrors(self._label):
            batch = fit(batch, self._schema).select(self._columns.names)
            columns = [
                _sent(column, kind, name)
                for column, kind, name in zip(batch.columns, self._wire, self._columns.names, strict=True)
            ]
            if batch.num_rows:
                self._writer.write(pa.RecordBatch.from_arrays(columns, names=self._columns.names))

    def finish(self) -> None:
        with _OdpsErrors(self._label):
            self._writer.close()
            self._session.commit(self._writer.get_blocks_written())
            if not self._staging:
                return
            old = f"{self._staging}_old"
            if self._replaced:
                self._client.execute(f"ALTER TABLE {_quoted(self._name)} RENAME TO {_quoted(old)}")
            try:
                self._client.execute(f"ALTER TABLE {_quoted(self._staging)} RENAME TO {_quoted(self._name)}")
            except odps_errors.ODPSError:
                if self._replaced:
                    self._client.execute(f"ALTER TABLE {_quoted(old)} RENAME TO {_quoted(self._name)}")
                raise
            self._staging = ""
            if self._replaced:
                self._client.execute(f"DROP TABLE IF EXISTS {_quoted(old)}")

    def end(self, fresh: Any) -> None:
        """A session that is not committed is forgotten by the server. The client that was interrupted cannot clean up any
        more; a fresh one does, if the server is still there."""
        if self._used is not None:
            self._used.__exit__(None, None, None)
        if self._staging:
            with suppress(SourceError), _OdpsErrors(self._label), fresh.used():
                fresh.execute(f"DROP TABLE IF EXISTS {_quoted(self._staging)}")


# Names and statements.


def _is_address(text: str) -> bool:
    try:
        found = urlsplit(text)
        good = found.scheme in ("http", "https") and bool(found.hostname) and found.port != 0
    except ValueError:
        return False
    return good and not (found.username or found.password or found.query or found.fragment or text != text.strip())


def _keys(place: DataLocation) -> dict[str, str]:
    keys = {key.lower(): value for key, value in partition_of(place.partition).items()}
    if not all(_VALUE.fullmatch(each) for each in keys.values()):
        raise SourceForbidden("a value of the partition has characters that ODPS does not allow there")
    return keys


def _spec(keys: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in keys.items())


def _condition(keys: Mapping[str, str]) -> str:
    return ", ".join(f"{_quoted(key)}='{value}'" for key, value in keys.items())


def _quoted(name: str) -> str:
    return f"`{name}`"


def _definition(columns: pa.Schema) -> str:
    names = [each.lower() for each in columns.names]
    if not names or len({*names}) < len(names):
        raise SourceError("a table of ODPS has at least one column, and no two whose names differ in case only")
    if odd := [each for each in columns.names if not _COLUMN.fullmatch(each)]:
        raise SourceError(f"{odd[0][:80]!r} cannot be the name of a column in ODPS; it has letters, digits and _ only")
    return ", ".join(
        f"{_quoted(each.name)} {odps_type(each.type)}{'' if each.nullable else ' NOT NULL'}" for each in columns
    )


# Tables.


def _simple(table: Any) -> list[Any]:
    """Without the columns of its partitions."""
    return list(table.table_schema.simple_columns)


def _wire(stored: Any) -> tuple[list[str], list[pa.DataType]]:
    """Columns as they travel."""
    columns = [each for each in stored.simple_columns if str(each.type).lower().partition("(")[0] in _PLAIN]
    return [each.name.lower() for each in columns], [odps_arrow.odps_type_to_arrow_type(each.type) for each in columns]


def _shown(table: Any) -> pa.Schema:
    """Its columns, those of its partitions at last. Lists, maps and structures are left out: no column type holds them."""
    names, kinds = _wire(table.table_schema)
    types = {each.name.lower(): str(each.type).lower() for each in _simple(table)}
    required = {each.name.lower() for each in _simple(table) if each.nullable is False}
    fields = [
        pa.field(name, _shown_type(types[name], kind), name not in required)
        for name, kind in zip(names, kinds, strict=True)
    ]
    fields += [pa.field(each.name.lower(), pa.string()) for each in table.table_schema.partitions]
    return pa.schema(fields)


def _shown_type(stored: str, kind: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(kind) and (kind.precision, kind.scale) == (20, 0):
        return pa.uint64()
    return _SHOWN.get(stored, kind)


def _partitions(table: Any, keys: Mapping[str, str]) -> list[Mapping[str, str]]:
    """Those that are read; a table without any is one."""
    names = [each.name.lower() for each in table.table_schema.partitions]
    if unknown := [each for each in keys if each not in names]:
        raise SourceError(f"the table has no partitions by {unknown[0]}; it has {', '.join(names) or 'none'}")
    if not names:
        return [{}]
    found: list[Mapping[str, str]] = []
    for each in table.iterate_partitions():
        values = {key.lower(): str(value) for key, value in each.partition_spec.items()}
        if all(values.get(key) == value for key, value in keys.items()):
            found.append(values)
        if len(found) > _MOST_PARTITIONS:
            raise SourceError(f"the table has more than {_MOST_PARTITIONS} partitions; name some of them")
    if keys and not found:
        raise DataNotFound("there is no such partition")
    return found


def _rows(
    client: Any, name: str, table: Any, partition: Mapping[str, str], stored: list[str], most: int
) -> Iterator[tuple[list[pa.Array], int]]:
    """The columns of some rows at a time, in the order asked for."""
    session = client.download(name, _spec(partition))
    plain = [each for each in stored if each not in partition]
    seen = 0
    for batch in _downloaded(session, plain):
        for start in range(0, batch.num_rows, most):
            part = batch.slice(start, most)
            columns = dict(zip(part.schema.names, part.columns, strict=True))
            columns |= {key: pa.repeat(value, part.num_rows) for key, value in partition.items()}
            yield [columns[each] for each in stored], part.num_rows
        seen += batch.num_rows
    if seen != session.count:
        raise SourceUnreachable("ODPS stopped in the middle of the table")


def _downloaded(session: Any, columns: list[str]) -> Iterator[pa.RecordBatch]:
    if not session.count:
        return
    if not columns:  # those of the partition alone
        columns = [session.schema.simple_columns[0].name]
    reader = session.open_arrow_reader(0, session.count, columns=columns)
    try:
        while (batch := reader.read_next_batch()) is not None:
            yield batch
    finally:
        reader.close()


def _sent(column: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """As it travels: moments in UTC without a zone."""
    if pa.types.is_date64(column.type):
        column = column.view(pa.timestamp("ms"))
    elif pa.types.is_time32(column.type):
        column = column.view(pa.int32())
    elif pa.types.is_time64(column.type) or pa.types.is_duration(column.type):
        column = column.view(pa.int64())
    elif pa.types.is_timestamp(column.type):
        column = column.view(pa.timestamp(column.type.unit))
    return convert(column, kind, name)


class _OdpsErrors:
    """Errors of the library and of the server, as ours. Their texts are not repeated: a server's words may quote values."""

    def __init__(self, label: str) -> None:
        self._label = label

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None or isinstance(error, (SourceError, GeneratorExit)) or not isinstance(error, Exception):
            return
        if isinstance(error, odps_errors.NoSuchObject):
            raise DataNotFound("there is no such table or partition in ODPS") from error
        if isinstance(error, (odps_errors.AuthorizationRequired, odps_errors.NoPermission)):
            raise SourceUnreachable(f"{self._label} denied its user access ({_code(error)})") from error
        if isinstance(error, requests_errors.RequestException):
            raise SourceUnreachable(f"{self._label} does not answer: {type(error).__name__}") from error
        if isinstance(error, (OSError, pa.ArrowException, urllib3_errors.HTTPError)):  # wrong checksums too
            raise SourceUnreachable("ODPS stopped in the middle of the table") from error
        if isinstance(error, odps_errors.BaseODPSError):
            raise SourceError(f"{self._label} refused the request ({_code(error)})") from error
        raise SourceError(f"the answer of {self._label} is not understood: {type(error).__name__}") from error


def _code(error: Any) -> str:
    found = _CODE.match(str(error.code or ""))
    return found[0] if found else type(error).__name__
