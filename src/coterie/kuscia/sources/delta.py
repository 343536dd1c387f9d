"""Delta tables in a directory, read-only, through the Python library `deltalake` (the extra `delta`).

One read is of one version of the table. What the table's log names must lie in the table's own directory: a log is
written by others, and a path in it, or a link, must not lead to other files of the machine.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as arrow_dataset

from coterie.base.lazy_import import lazy_import
from coterie.kuscia.sources.convert import convert, fit
from coterie.kuscia.sources.files import selected
from coterie.kuscia.sources.paths import partition_of, parts_of
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
from coterie.kuscia.sources.worker_thread import WorkerThread, stepping

deltalake = lazy_import("deltalake")
deltalake_exceptions = lazy_import("deltalake.exceptions")

_LOG = "_delta_log"
_MOST_FILES = 1_000_000
_READ_ONLY = "Delta tables are only read here; write to another source"


def delta(info: SourceInfo) -> DataSource:
    if not os.path.isabs(info.path):
        raise SourceError("the source needs `path`, the absolute path of a directory with Delta tables")
    if info.extra or info.endpoint or info.bucket:
        raise SourceError("a source of kind delta has the setting `path` only")
    return DeltaSource(Path(info.path))


class DeltaSource:
    def __init__(self, root: Path) -> None:
        self._root = root

    async def __aenter__(self) -> DataSource:
        await asyncio.to_thread(self._check)
        return self

    def _check(self) -> None:
        try:
            _ = deltalake.DeltaTable
        except ImportError as problem:
            raise SourceUnreachable("Delta tables need the package deltalake: pip install coterie[delta]") from problem
        if not self._root.is_dir():
            raise SourceUnreachable("the directory of the source is not there")

    async def __aexit__(self, *problem: object) -> None:
        """Nothing stays open."""

    async def schema(self, place: DataLocation) -> pa.Schema:
        lane = WorkerThread("delta")
        try:
            return await lane.run(lambda: self._dataset(place).schema)
        finally:
            await lane.finish()

    @asynccontextmanager
    async def read(
        self, place: DataLocation, schema: pa.Schema | None, options: TableReadOptions = READ_ALL
    ) -> AsyncIterator[AsyncIterator[pa.RecordBatch]]:
        if options.raw:
            raise SourceError("a Delta table has no bytes to be read as they are; read its rows")
        keys = partition_of(place.partition)

        def batches() -> Iterator[pa.RecordBatch]:
            with _delta_errors():
                found = self._dataset(place)
                wanted = selected(schema if schema is not None else found.schema, options.columns)
                stored = selected(found.schema, tuple(wanted.names))
                scanner = found.scanner(
                    columns=stored.names,
                    filter=_condition(found.schema, keys),
                    batch_size=options.batch_rows,
                    batch_readahead=1,
                    fragment_readahead=1,
                    use_threads=False,
                )
                row = 0
                for batch in scanner.to_batches():
                    for start in range(0, batch.num_rows, options.batch_rows):
                        yield fit(batch.slice(start, options.batch_rows), wanted, row + start)
                    row += batch.num_rows

        async with stepping(batches) as stream:
            yield stream

    def write(
        self, place: DataLocation, schema: pa.Schema, options: TableWriteOptions = WRITE_PLAIN
    ) -> AbstractAsyncContextManager[TableSink]:
        raise SourceReadOnly(_READ_ONLY)

    async def delete(self, place: DataLocation) -> None:
        raise SourceReadOnly(_READ_ONLY)

    def _dataset(self, place: DataLocation) -> Any:
        """Blocks."""
        folder = _confined(self._root, self._root.joinpath(*parts_of(place.uri)))
        log = _confined(self._root, folder / _LOG)
        if not log.is_dir():
            raise DataNotFound(f"there is no Delta table {place.uri}")
        for each in log.iterdir():
            _confined(folder, each)
        with _delta_errors():
            table = deltalake.DeltaTable(str(folder))
            files = table.file_uris()
            if len(files) > _MOST_FILES:
                raise SourceError("the Delta table has too many files")
            for each in files:
                _confined(folder, Path(each))
            return table.to_pyarrow_dataset()


def _confined(folder: Path, path: Path) -> Path:
    """The path itself, if it is below the folder and no link leads elsewhere."""
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(os.path.realpath(folder)):
        raise SourceForbidden("the Delta table names files outside of its directory, or has links that lead out")
    return path


def _condition(schema: pa.Schema, keys: Mapping[str, str]) -> Any:
    found = None
    for key, value in keys.items():
        if key not in schema.names:
            raise SourceError(f"there is no column {key}; there are {', '.join(schema.names)}")
        typed = convert(pa.array([value]), schema.field(key).type, key)[0]
        each = arrow_dataset.field(key) == typed
        found = each if found is None else found & each
    return found


class _delta_errors:
    """Errors of the library and of Arrow, as ours. Their texts name paths of the machine, so they are not repeated."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None or isinstance(error, SourceError):
            return
        if isinstance(error, deltalake_exceptions.TableNotFoundError):
            raise DataNotFound("there is no Delta table of that name") from error
        if isinstance(error, deltalake_exceptions.DeltaProtocolError):
            raise SourceError("the Delta table uses features that cannot be read here") from error
        if isinstance(error, (deltalake_exceptions.DeltaError, pa.ArrowException, OSError, ValueError)):
            raise SourceError(f"the Delta table cannot be read: {type(error).__name__}") from error
