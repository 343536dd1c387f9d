"""What every data source can do.

    source = open_source(SourceInfo(kind="localfs", path="/data"))
    async with source:
        async with source.read(Place("tables/people.csv"), schema, ReadOptions(columns=("id",))) as batches:
            async for batch in batches: ...
        async with source.write(Place("out.csv"), schema) as sink:      # nothing is visible before the block ends well
            await sink.put(batch)

Reading and writing stream: what is in memory at a time is bounded by a few batches, whatever the size of the table.
Blocking libraries run in threads; the event loop is never held.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from coterie.base.secret import SecretValue

if TYPE_CHECKING:
    import pyarrow as pa  # not loaded by those who only make sources

DEFAULT_ROWS = 65536


class FileFormat(IntEnum):
    """As on the wire; what is UNKNOWN goes by the file's name, then by its first bytes. Ours beyond Kuscia's: 100 and
    up."""

    UNKNOWN = 0
    CSV = 1
    BINARY = 2
    PARQUET = 100
    ORC = 101
    IPC = 102


class SourceError(Exception):
    """Something is wrong with the source or what lies there; the message is a sentence for the caller without
    secrets."""


class DataNotFound(SourceError):
    """There is no such table or file."""


class SourceForbidden(SourceError):
    """The place lies outside of what the source opens: `..`, links that lead out, other schemas."""


class SourceReadOnly(SourceError):
    """Nothing is written to, or deleted from, a source of this kind."""


class SourceUnreachable(SourceError):
    """The server behind the source does not answer, or does not let us in."""


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """A DomainDataSource with its information decrypted."""

    kind: str
    """localfs, oss, mysql, postgresql, or the name of a plug-in."""
    path: str = ""
    endpoint: str = ""
    bucket: str = ""
    prefix: str = ""
    access_key_id: str = ""
    access_key_secret: SecretValue | None = None
    virtual_host: bool = False
    signature: str = "s3v4"
    user: str = ""
    password: SecretValue | None = None
    database: str = ""
    extra: Mapping[str, str] = field(default_factory=dict, repr=False)
    """All other settings, as text. Not printed, as people may write a secret under any name."""
    secrets: Mapping[str, SecretValue] = field(default_factory=dict)
    """The settings below `secrets`: further tokens and keys, by name."""


@dataclass(frozen=True, slots=True)
class DataLocation:
    """Where in the source something lies: a relative path, an object's key, a table's name."""

    uri: str
    format: FileFormat = FileFormat.UNKNOWN
    partition: str = ""
    """`ds=2024-01-01,region=x`: only this partition is read, or replaced."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Of the DomainData, e.g. `NullStrs`, `delimiter`."""


@dataclass(frozen=True, slots=True)
class TableReadOptions:
    columns: tuple[str, ...] = ()
    """In this order; empty: all of the schema."""
    batch_rows: int = DEFAULT_ROWS
    raw: bool = False
    """The bytes as they are, in a column `data`."""


@dataclass(frozen=True, slots=True)
class TableWriteOptions:
    delimiter: str = ","
    raw: bool = False


READ_ALL = TableReadOptions()
WRITE_PLAIN = TableWriteOptions()


class TableSink(Protocol):
    async def put(self, batch: pa.RecordBatch) -> None: ...


class DataSource(Protocol):
    """One place for data. Used as `async with source:`; afterwards its connections are closed."""

    async def __aenter__(self) -> DataSource: ...

    async def __aexit__(self, *problem: object) -> None: ...

    async def schema(self, place: DataLocation) -> pa.Schema:
        """What lies there, guessed where the format does not say (CSV: from its first rows)."""
        ...

    def read(
        self, place: DataLocation, schema: pa.Schema | None, options: TableReadOptions = ...
    ) -> AbstractAsyncContextManager[AsyncIterator[pa.RecordBatch]]:
        """Batches in the declared schema's types, NULLs kept. Columns that are not asked for are not read where the
        format allows. SourceError when a value does not fit its type, with the column and the row."""
        ...

    def write(
        self, place: DataLocation, schema: pa.Schema, options: TableWriteOptions = ...
    ) -> AbstractAsyncContextManager[TableSink]:
        """Replaces what is there, at the end and at once: readers see the old or the new, never half; a failure leaves
        nothing."""
        ...

    async def delete(self, place: DataLocation) -> None: ...


@dataclass(frozen=True, slots=True)
class SqlTable:
    """A table as SQL names it."""

    path: tuple[str, ...]
    """Schema and name, so that nothing depends on a search path."""
    columns: tuple[str, ...]
    widened: frozenset[str] = frozenset()
    """Columns that the server would show with fewer digits than they have unless they are made wider."""


class SqlSource(DataSource, Protocol):
    """A source that also answers SQL. The statements are made by `sql_queries.py`: one SELECT, names in full."""

    @property
    def sql_dialect(self) -> str:
        """One of `sql_queries.DIALECTS`."""
        ...

    async def sql_tables(self, names: Sequence[str]) -> Mapping[str, SqlTable]:
        """DataNotFound where one is not a table of the source."""
        ...

    async def query_schema(self, statement: str) -> pa.Schema:
        """Of the result. Nothing is run."""
        ...

    def query(
        self, statement: str, schema: pa.Schema, options: TableReadOptions = ...
    ) -> AbstractAsyncContextManager[AsyncIterator[pa.RecordBatch]]:
        """In a transaction that cannot write, ended by the source's time limit. `schema`: as `query_schema` gave it."""
        ...
