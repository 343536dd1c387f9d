"""Iceberg tables in a directory, read-only, through the Python library `pyiceberg` (the extra `iceberg`).

One read is of one snapshot: that of the newest metadata file when it begins. Metadata is written by others. Every file that it names (manifests, data,
deletes) must lie in the table's own directory, and the settings in it, with which the library would load other code or call other stores, are
not used.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

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

iceberg_table = lazy_import("pyiceberg.table")
iceberg_serializers = lazy_import("pyiceberg.serializers")
iceberg_catalog = lazy_import("pyiceberg.catalog.noop")
iceberg_arrow = lazy_import("pyiceberg.io.pyarrow")
iceberg_expressions = lazy_import("pyiceberg.expressions")

_METADATA = "metadata"
_HINT = "version-hint.text"
_LARGEST_HINT = 200
_LARGEST_METADATA = 256 << 20
_NUMBERED = re.compile(r"(?:v(\d{1,9})|(\d{1,9})-[0-9A-Za-z-]{1,80})\.metadata\.json")
_READ_ONLY = "Iceberg tables are only read here; write to another source"
_OUTSIDE = "the Iceberg table names files outside of its directory, or has links that lead out"


def iceberg(info: SourceInfo) -> DataSource:
    if not os.path.isabs(info.path):
        raise SourceError("the source needs `path`, the absolute path of a directory with Iceberg tables")
    if info.extra or info.endpoint or info.bucket:
        raise SourceError("a source of kind iceberg has the setting `path` only")
    return IcebergSource(Path(info.path))


class IcebergSource:
    def __init__(self, root: Path) -> None:
        self._root = root

    async def __aenter__(self) -> DataSource:
        await asyncio.to_thread(self._check)
        return self

    def _check(self) -> None:
        try:
            _ = iceberg_table.StaticTable
        except ImportError as problem:
            raise SourceUnreachable(
                "Iceberg tables need the package pyiceberg: pip install coterie[iceberg]"
            ) from problem
        if not self._root.is_dir():
            raise SourceUnreachable("the directory of the source is not there")

    async def __aexit__(self, *problem: object) -> None:
        """Nothing stays open."""

    async def schema(self, place: DataLocation) -> pa.Schema:
        lane = WorkerThread("iceberg")
        try:
            return await lane.run(lambda: self._opened(place)[1])
        finally:
            await lane.finish()

    @asynccontextmanager
    async def read(
        self, place: DataLocation, schema: pa.Schema | None, options: TableReadOptions = READ_ALL
    ) -> AsyncIterator[AsyncIterator[pa.RecordBatch]]:
        if options.raw:
            raise SourceError("an Iceberg table has no bytes to be read as they are; read its rows")
        keys = partition_of(place.partition)

        def batches() -> Iterator[pa.RecordBatch]:
            with _iceberg_errors():
                table, there = self._opened(place)
                wanted = selected(schema if schema is not None else there, options.columns)
                stored = selected(there, tuple(wanted.names))
                row = 0
                for batch in _rows(table, tuple(stored.names), _condition(there, keys)):
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

    def _opened(self, place: DataLocation) -> tuple[Any, pa.Schema]:
        """Blocks."""
        folder = _confined(self._root, self._root.joinpath(*parts_of(place.uri)))
        named = _confined(folder, newest(_confined(self._root, folder / _METADATA), place.uri))
        with _iceberg_errors():
            if named.stat().st_size > _LARGEST_METADATA:
                raise SourceError("the metadata of the Iceberg table is too large")
            files = _confined_files(folder)
            table = iceberg_table.StaticTable(
                identifier=("static-table", place.uri),
                metadata=iceberg_serializers.FromInputFile.table_metadata(files.new_input(str(named))),
                metadata_location=str(named),
                # Not what the metadata's own properties ask for.
                io=files,
                catalog=iceberg_catalog.NoopCatalog("static-table"),
            )
            return table, iceberg_arrow.schema_to_pyarrow(table.schema(), include_field_ids=False)


def _rows(table: Any, names: tuple[str, ...], condition: Any) -> Iterator[pa.RecordBatch]:
    """One data file after the other: the library holds all batches of those that it reads at a time."""
    scan = table.scan(row_filter=condition, selected_fields=names) if names else table.scan(row_filter=condition)
    reader = iceberg_arrow.ArrowScan(table.metadata, table.io, scan.projection(), condition)
    for task in scan.plan_files():
        yield from reader.to_record_batches([task])


def newest(folder: Path, uri: str) -> Path:
    """The metadata file of the last version."""
    if not folder.is_dir():
        raise DataNotFound(f"there is no Iceberg table {uri}")
    hint = folder / _HINT
    if hint.is_file():
        text = hint.read_bytes()[:_LARGEST_HINT].decode("utf-8", "replace").strip()
        name = f"v{text}.metadata.json" if text.isdecimal() else text.removesuffix(".metadata.json") + ".metadata.json"
        if "/" in name or not (folder / name).is_file():
            raise SourceError(f"the version hint of the Iceberg table {uri} names no metadata file of it")
        return folder / name
    found: dict[int, list[Path]] = {}
    for each in folder.iterdir():
        if match := _NUMBERED.fullmatch(each.name):
            found.setdefault(int(match[1] or match[2]), []).append(each)
    if not found:
        raise DataNotFound(f"there is no Iceberg table {uri}")
    last = found[max(found)]
    if len(last) > 1:
        raise SourceError(
            f"the Iceberg table {uri} has two last versions, of which only its catalogue knows the right one"
        )
    return last[0]


def _confined(folder: Path, path: Path) -> Path:
    """The path itself, if it is below the folder and no link leads elsewhere."""
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise SourceForbidden(_OUTSIDE)
    return path


def _confined_files(folder: Path) -> Any:
    """The library's files, of this folder only."""
    files = iceberg_arrow.PyArrowFileIO({})
    opened = files.new_input

    def confined(location: str) -> Any:
        path = location.removeprefix("file://") if location.startswith("file:///") else location.removeprefix("file:")
        if not path.startswith("/") or path.startswith("//"):
            raise SourceForbidden(_OUTSIDE)
        return opened(str(_confined(folder, Path(path))))

    files.new_input = confined
    return files


def _condition(schema: pa.Schema, keys: Any) -> Any:
    found = iceberg_expressions.AlwaysTrue()
    for key, value in keys.items():
        if key not in schema.names:
            raise SourceError(f"there is no column {key}; there are {', '.join(schema.names)}")
        typed = convert(pa.array([value]), schema.field(key).type, key)[0].as_py()
        found = iceberg_expressions.And(found, iceberg_expressions.EqualTo(key, typed))
    return found


class _iceberg_errors:
    """Errors of the library and of Arrow, as ours. Their texts name paths of the machine, so they are not repeated."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None or isinstance(error, (SourceError, GeneratorExit)) or not isinstance(error, Exception):
            return
        if isinstance(error, NotImplementedError):
            raise SourceError("the Iceberg table uses features that cannot be read here") from error
        raise SourceError(f"the Iceberg table cannot be read: {type(error).__name__}") from error
