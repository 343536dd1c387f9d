"""Tables and views of a Hive database, read-only, through HiveServer2 and impyla (the extra `hive`).

A SELECT of just the columns that are asked for; rows come by columns, some hundred at a time or as many as make some megabytes.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

import pyarrow as pa

from coterie.base.lazy_import import lazy_import
from coterie.kuscia.sources.convert import convert
from coterie.kuscia.sources.endpoints import address_of, endpoint_of
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
    SourceReadOnly,
    SourceUnreachable,
    TableReadOptions,
    TableSink,
    TableWriteOptions,
)
from coterie.kuscia.sources.sql_types import query_seconds
from coterie.kuscia.sources.warehouse_tables import fitted, stored_names, warehouse_table
from coterie.kuscia.sources.worker_thread import WorkerThread, stepping

hive_client = lazy_import("coterie.kuscia.sources.hive_client")

T = TypeVar("T")
_PORT = 10000
_OPTIONS = {"tls": ("true", "false", "skip-verify"), "auth": ("plain", "nosasl")}
_SETTINGS = frozenset({"ca", "query_seconds"})
_DATABASE = re.compile(r"[A-Za-z0-9_]{1,128}")
_FIRST_ROWS, _MOST_ROWS, _BATCH_BYTES = 64, 10_000, 8 << 20
_UNKNOWN_TABLE = re.compile(r"Error 10001\b|Table not found|NoSuchTableException")
_UNKNOWN_DATABASE = re.compile(r"Error 10072\b|Database does not exist|NoSuchDatabaseException")
_DENIED = re.compile(r"AccessControlException|Permission denied|does not have .*privileges?|Bad status: [34]\b", re.I)
_NUMBER = re.compile(r"Error (\d+)\b")

_OF_HIVE = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "varchar": pa.string(),
    "char": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("ns"),
}
_ON_THE_WIRE = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float64(),
    "DOUBLE": pa.float64(),
}
_TYPE = re.compile(r"(\w+)(?:\((\d+)(?:,\s*(\d+))?\))?")


def hive(info: SourceInfo) -> DataSource:
    return HiveSource(info)


def of_hive(shown: str) -> pa.DataType | None:
    """None for lists, maps, structures and moments with a zone of the server: they are left out."""
    found = _TYPE.fullmatch(shown.strip().lower())
    if not found:
        return None
    if found[1] == "decimal":
        precision, scale = int(found[2] or 10), int(found[3] or 0)
        return pa.uint64() if (precision, scale) == (20, 0) else pa.decimal128(precision, scale)
    return _OF_HIVE.get(found[1])


class HiveSource:
    def __init__(self, info: SourceInfo) -> None:
        self._place = endpoint_of(info.endpoint, _PORT)
        self._database = info.database or "default"
        if not _DATABASE.fullmatch(self._database):
            raise SourceError("`database` of the source cannot be the name of a database of Hive")
        for name, value in self._place.options.items():
            if value not in _OPTIONS.get(name, ()):
                raise SourceError(
                    "the endpoint of Hive is host:port?tls=true|false|skip-verify&auth=plain|nosasl; set it anew"
                )
        if self._place.host.startswith("/"):
            raise SourceError("the endpoint of Hive is a host and a port")
        if unknown := sorted(info.extra.keys() - _SETTINGS):
            raise SourceError(f"a source of kind hive has no setting {unknown[0][:40]}")
        self._context = _tls(self._place.options.get("tls", "true"), info.extra.get("ca", ""))
        self._seconds = query_seconds(info)
        self._info = info
        self._label = f"Hive at {address_of(info.endpoint)}"

    async def __aenter__(self) -> DataSource:
        try:
            _ = hive_client.HiveLine
        except ImportError as problem:
            raise SourceUnreachable(
                "Hive tables need the package impyla: pip install coterie[hive], or list a data proxy for the type hive"
            ) from problem
        return self

    async def __aexit__(self, *problem: object) -> None:
        del problem  # nothing stays open

    async def schema(self, place: DataLocation) -> pa.Schema:
        return await self._alone(lambda line: _schema(self._described(line, warehouse_table(place.uri))))

    def _line(self) -> Any:
        password = self._info.password
        return hive_client.HiveLine(self._place, self._info.user, password.reveal() if password else "", self._context)

    async def _alone(self, work: Callable[[Any], T]) -> T:
        line, lane = self._line(), WorkerThread("hive")

        def done() -> T:
            with _HiveErrors(self._label):
                line.connect()
                return work(line)

        try:
            return await lane.run(done)
        finally:
            await lane.finish(line.close)

    @asynccontextmanager
    async def read(
        self, place: DataLocation, schema: pa.Schema | None, options: TableReadOptions = READ_ALL
    ) -> AsyncIterator[AsyncIterator[pa.RecordBatch]]:
        if options.raw:
            raise SourceError("a table of Hive has no raw bytes; ask for it as a table")
        name, keys = warehouse_table(place.uri), _keys(place)
        line = self._line()

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                with _HiveErrors(self._label):
                    line.connect()
                    columns = self._described(line, name)
                    wanted = selected(schema if schema is not None else _schema(columns), options.columns)
                    stored = stored_names(wanted.names, _schema(columns).names)
                    stored_names(list(keys), [each for each, _ in columns])
                    statement = f"SELECT {', '.join(map(_quoted, stored))} FROM {self._table(name)}{_where(keys)}"
                    yield from self._rows(line, statement, wanted, options.batch_rows)
            finally:
                line.close()

        async with stepping(batches, line.interrupt) as stream:
            yield stream

    def _rows(self, line: Any, statement: str, wanted: pa.Schema, most: int) -> Iterator[pa.RecordBatch]:
        row, size = 0, hive_client.FetchSize(min(most, _FIRST_ROWS))
        for kinds, values in line.query(statement, self._seconds, size):
            columns = [
                _column(each, kind, field.name, row) for each, kind, field in zip(values, kinds, wanted, strict=True)
            ]
            one = max(1, sum(each.nbytes for each in columns) // len(columns[0]))
            size.rows = max(1, min(most, _MOST_ROWS, _BATCH_BYTES // one))
            whole = fitted(columns, wanted, row)
            for start in range(0, whole.num_rows, most):  # a server may give more than it was asked for
                yield whole.slice(start, most)
            row += whole.num_rows

    def _table(self, name: str) -> str:
        return f"{_quoted(self._database)}.{_quoted(name)}"

    def _described(self, line: Any, name: str) -> list[tuple[str, str]]:
        """Columns with their types, those of partitions at last."""
        found: list[tuple[str, str]] = []
        whole = hive_client.FetchSize(_MOST_ROWS)
        for _, (names, kinds, *_) in line.query(f"DESCRIBE {self._table(name)}", self._seconds, whole):
            for raw, shown in zip(names, kinds, strict=True):
                column = (raw or b"").decode().strip()
                if not column or column.startswith("#"):
                    return found
                found.append((column, (shown or b"").decode()))
        return found

    def write(
        self, place: DataLocation, schema: pa.Schema, options: TableWriteOptions = WRITE_PLAIN
    ) -> AbstractAsyncContextManager[TableSink]:
        raise SourceReadOnly("Hive tables are only read here; write to another source")

    async def delete(self, place: DataLocation) -> None:
        raise SourceReadOnly("Hive tables are only read here; write to another source")


def _schema(columns: Sequence[tuple[str, str]]) -> pa.Schema:
    kinds = ((name, of_hive(shown)) for name, shown in columns)
    return pa.schema([pa.field(name, kind) for name, kind in kinds if kind is not None])


def _column(values: list[Any], kind: str, name: str, row: int) -> pa.Array:
    if kind in _ON_THE_WIRE:
        return pa.array(values, _ON_THE_WIRE[kind])
    found = pa.array(values, pa.large_binary())
    return found if kind == "BINARY" else convert(found, pa.large_string(), name, row)


def _keys(place: DataLocation) -> Mapping[str, str]:
    keys = partition_of(place.partition)
    if any("${" in each or any(ord(letter) < 32 for letter in each) for each in keys.values()):
        raise SourceForbidden("a value of the partition has characters that Hive would replace")
    return keys


def _where(keys: Mapping[str, str]) -> str:
    conditions = (f"{_quoted(key)} = {_text(value)}" for key, value in keys.items())
    return f" WHERE {' AND '.join(conditions)}" if keys else ""


def _text(value: str) -> str:
    """As Hive reads it: a backslash begins an escape, and nothing else does."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _quoted(name: str) -> str:
    doubled = name.replace("`", "``")
    return f"`{doubled}`"


def _tls(wanted: str, ca: str) -> ssl.SSLContext | None:
    """`tls=true`, the default, checks the server's certificate; `skip-verify` only encrypts; `false` sends the password in clear text."""
    if wanted == "false":
        return None
    try:
        context = ssl.create_default_context(cadata=ca or None)
    except (ssl.SSLError, ValueError) as problem:
        raise SourceError("`ca` of the source is no certificate in PEM") from problem
    if wanted == "skip-verify":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class _HiveErrors:
    """Errors of the library and of the server, as ours. Their texts are not repeated: a server's words quote statements and values."""

    def __init__(self, label: str) -> None:
        self._label = label

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None or isinstance(error, (SourceError, GeneratorExit)) or not isinstance(error, Exception):
            return
        words = str(error)
        if isinstance(error, ssl.SSLCertVerificationError):
            raise SourceUnreachable(f"the certificate of {self._label} is not trusted; set `ca`") from error
        if isinstance(error, (*hive_client.LOST, *hive_client.REFUSED)) and _DENIED.search(words):
            raise SourceUnreachable(f"{self._label} denied its user access; check user and password") from error
        if isinstance(error, hive_client.LOST):
            raise SourceUnreachable(f"{self._label} does not answer: {type(error).__name__}{_hint(error)}") from error
        if isinstance(error, hive_client.REFUSED) and _UNKNOWN_TABLE.search(words):
            raise DataNotFound("there is no such table in Hive") from error
        if isinstance(error, hive_client.REFUSED) and _UNKNOWN_DATABASE.search(words):
            raise SourceUnreachable(f"{self._label} has no database of the name that the source has") from error
        if isinstance(error, hive_client.REFUSED):
            number = _NUMBER.search(words)
            raise SourceError(
                f"{self._label} refused the statement ({'error ' + number[1] if number else type(error).__name__})"
            ) from error
        raise SourceError(f"the answer of {self._label} is not understood: {type(error).__name__}") from error


def _hint(error: BaseException) -> str:
    return "; without TLS on the server, the endpoint needs ?tls=false" if isinstance(error, ssl.SSLError) else ""
