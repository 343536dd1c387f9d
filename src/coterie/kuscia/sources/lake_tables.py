"""Tables of a lake format (Delta, Iceberg) in a directory, read-only: what their sources have in common.

One read is of one version of the table. What its metadata names must lie in the table's own directory: metadata is written by others, and a path in it, or
a link, must not lead to other files of the machine.
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, Self

import pyarrow as pa

from coterie.kuscia.sources.convert import convert, fit
from coterie.kuscia.sources.files import selected
from coterie.kuscia.sources.paths import partition_of
from coterie.kuscia.sources.protocol import (
    READ_ALL,
    WRITE_PLAIN,
    DataLocation,
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
from coterie.kuscia.sources.worker_thread import WorkerThread, stepping


class LakeTable(Protocol):
    """One version of a table, opened by its library."""

    @property
    def schema(self) -> pa.Schema: ...

    def rows(self, columns: tuple[str, ...], partition: Mapping[str, str], batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Of the stored types. Blocks."""


class LakeSource(ABC):
    label: str
    """Of the format, for people; in small letters it is the kind of the source and the extra that installs the library."""
    package: str

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def of(cls, info: SourceInfo) -> Self:
        if not os.path.isabs(info.path):
            raise SourceError(f"the source needs `path`, the absolute path of a directory with {cls.label} tables")
        if info.extra or info.endpoint or info.bucket:
            raise SourceError(f"a source of kind {cls.label.lower()} has the setting `path` only")
        return cls(Path(info.path))

    @abstractmethod
    def load_library(self) -> None:
        """ImportError when it is not installed."""

    @abstractmethod
    def opened(self, place: DataLocation) -> LakeTable:
        """Blocks."""

    @abstractmethod
    def errors(self) -> AbstractContextManager[None]:
        """Errors of the library and of Arrow, as ours. Their texts name paths of the machine, so they are not repeated."""

    def confined(self, folder: Path, path: Path) -> Path:
        """The path itself, if it is below the folder and no link leads elsewhere."""
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
            raise SourceForbidden(
                f"the {self.label} table names files outside of its directory, or has links that lead out"
            )
        return path

    async def __aenter__(self) -> DataSource:
        await asyncio.to_thread(self._check)
        return self

    def _check(self) -> None:
        try:
            self.load_library()
        except ImportError as problem:
            raise SourceUnreachable(
                f"{self.label} tables need the package {self.package}: pip install coterie[{self.label.lower()}]"
            ) from problem
        if not self.root.is_dir():
            raise SourceUnreachable("the directory of the source is not there")

    async def __aexit__(self, *problem: object) -> None:
        del problem  # nothing stays open

    async def schema(self, place: DataLocation) -> pa.Schema:
        lane = WorkerThread(self.label.lower())
        try:
            return await lane.run(lambda: self.opened(place).schema)
        finally:
            await lane.finish()

    @asynccontextmanager
    async def read(
        self, place: DataLocation, schema: pa.Schema | None, options: TableReadOptions = READ_ALL
    ) -> AsyncIterator[AsyncIterator[pa.RecordBatch]]:
        if options.raw:
            raise SourceError(f"a table of {self.label} has no bytes to be read as they are; read its rows")
        keys = partition_of(place.partition)

        def batches() -> Iterator[pa.RecordBatch]:
            with self.errors():
                table = self.opened(place)
                wanted = selected(schema if schema is not None else table.schema, options.columns)
                stored = selected(table.schema, tuple(wanted.names))
                row = 0
                for batch in table.rows(tuple(stored.names), keys, options.batch_rows):
                    for start in range(0, batch.num_rows, options.batch_rows):
                        yield fit(batch.slice(start, options.batch_rows), wanted, row + start)
                    row += batch.num_rows

        async with stepping(batches) as stream:
            yield stream

    def write(
        self, place: DataLocation, schema: pa.Schema, options: TableWriteOptions = WRITE_PLAIN
    ) -> AbstractAsyncContextManager[TableSink]:
        raise SourceReadOnly(f"{self.label} tables are only read here; write to another source")

    async def delete(self, place: DataLocation) -> None:
        raise SourceReadOnly(f"{self.label} tables are only read here; write to another source")


def partition_values(schema: pa.Schema, partition: Mapping[str, str]) -> dict[str, Any]:
    """The keys of a partition as Arrow values of their columns."""
    for key in partition:
        if key not in schema.names:
            raise SourceError(f"there is no column {key}; there are {', '.join(schema.names)}")
    return {key: convert(pa.array([value]), schema.field(key).type, key)[0] for key, value in partition.items()}
