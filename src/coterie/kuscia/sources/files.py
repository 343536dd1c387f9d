"""Tables that are files, wherever the files are: what localfs and S3 have in common.

A `FileStore` finds, opens, creates and removes files; everything about formats, columns and partitions is here. A place
that is a folder is the table of all files in it, in the order of their names; folders named `key=value` are columns.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from coterie.base.tasks import retrieve_exception
from coterie.kuscia.sources import formats
from coterie.kuscia.sources.convert import convert
from coterie.kuscia.sources.csv_text import SAMPLE, Dialect, guess_csv
from coterie.kuscia.sources.paths import partition_in, partition_of, parts_of
from coterie.kuscia.sources.protocol import (
    READ_ALL,
    WRITE_PLAIN,
    DataLocation,
    DataNotFound,
    DataSource,
    FileFormat,
    SourceError,
    TableReadOptions,
    TableSink,
    TableWriteOptions,
)
from coterie.kuscia.sources.worker_thread import WorkerThread, stepping

Parts = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FoundFiles:
    parts: Parts
    size: int
    tag: str = ""
    """Which version it is, where the store tells."""


class FileReader(Protocol):
    """Opens files for one stream. Its methods block and are called in the stream's thread, but for `interrupt`."""

    def start(self, found: FoundFiles, size: int) -> bytes: ...

    def open(self, found: FoundFiles, random: bool) -> Any:
        """A file that Arrow reads; in order only, unless `random`."""
        ...

    def interrupt(self) -> None: ...

    def close(self) -> None: ...


class FileOutput(Protocol):
    """A file that is not there yet."""

    file: Any
    """For blocking writes, in the stream's thread."""

    async def flush(self) -> None: ...

    async def commit(self) -> None: ...

    async def abort(self) -> None: ...


class FileStore(Protocol):
    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def find(self, parts: Parts) -> list[FoundFiles]:
        """The file, or all files of the folder, by name; empty when there is neither."""
        ...

    def reading(self) -> FileReader: ...

    async def create(self, parts: Parts) -> FileOutput: ...

    async def remove(self, parts: Parts) -> None: ...


class FileSource:
    def __init__(self, store: FileStore) -> None:
        self._store = store

    async def __aenter__(self) -> DataSource:
        await self._store.open()
        return self

    async def __aexit__(self, *problem: object) -> None:
        await self._store.close()

    async def schema(self, place: DataLocation) -> pa.Schema:
        reading, lane = self._store.reading(), WorkerThread("schema")
        try:
            found = await self._find(place)
            return await lane.run(lambda: _schema(reading, found, place))
        finally:
            reading.interrupt()
            await lane.finish(reading.close)

    async def _find(self, place: DataLocation) -> list[FoundFiles]:
        """Not where it is, but that it is not there, is all a caller learns of other places."""
        found = await self._store.find(_parts(place))
        if not found:
            raise DataNotFound(f"there is no file {place.uri}{f' with {place.partition}' if place.partition else ''}")
        return found

    @asynccontextmanager
    async def read(
        self, place: DataLocation, schema: pa.Schema | None, options: TableReadOptions = READ_ALL
    ) -> AsyncIterator[AsyncIterator[pa.RecordBatch]]:
        raw = options.raw or place.format is FileFormat.BINARY
        declared = schema if schema is not None or raw else await self.schema(place)
        found, reading = await self._find(place), self._store.reading()

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                for each in found:
                    if raw:
                        yield from formats.read_raw(reading.open(each, False))
                    else:
                        yield from _rows(reading, each, place, selected(declared, options.columns), options.batch_rows)
            finally:
                reading.close()

        async with stepping(batches, reading.interrupt) as stream:
            yield stream

    @asynccontextmanager
    async def write(
        self, place: DataLocation, schema: pa.Schema, options: TableWriteOptions = WRITE_PLAIN
    ) -> AsyncIterator[TableSink]:
        found = FileFormat.BINARY if options.raw else formats.by_name(place.format, place.uri)
        dialect = Dialect.of(place.attributes, options.delimiter)
        keys = partition_of(place.partition)
        inside = pa.schema([field for field in schema if field.name not in keys])
        parts, others = _parts(place), []
        if keys:
            others = await self._store.find(parts)
            parts = (*parts, f"data.{formats.ENDING.get(found, 'bin')}")
        lane, output = WorkerThread("sink"), await self._store.create(parts)
        finished, table, sink = False, None, None
        try:
            table = await lane.run(lambda: formats.writer(output.file, found, inside, dialect))
            sink = _FileSink(lane, table, output)
            yield sink
            await sink.settle()
            await lane.run(table.close)
            await output.commit()
            finished = True
        finally:
            if sink is not None:
                await sink.close()
            if finished:
                await lane.finish()
            else:
                await lane.finish(table.abandon if table else lambda: None)
                await output.abort()
        for other in others:
            if other.parts != parts:
                await self._store.remove(other.parts)

    async def delete(self, place: DataLocation) -> None:
        for each in await self._find(place):
            await self._store.remove(each.parts)


class _FileSink:
    """Makes the text of one batch while that of the last is being written."""

    def __init__(self, lane: WorkerThread, table: formats.TableWriter, output: FileOutput) -> None:
        self._lane, self._table, self._output = lane, table, output
        self._behind = WorkerThread("behind")
        self._writing: asyncio.Future[Any] | None = None

    async def put(self, batch: pa.RecordBatch) -> None:
        text = await self._lane.run(lambda: self._table.write(batch))
        await self.settle()
        if text:
            self._writing = self._behind.start(lambda: self._output.file.write(text))
            # Whoever gives up does not ask how it went.
            self._writing.add_done_callback(retrieve_exception)

    async def settle(self) -> None:
        """Until what was begun is written. Raises what went wrong with it."""
        writing, self._writing = self._writing, None
        if writing is not None:
            await writing
        await self._output.flush()

    async def close(self) -> None:
        """Nothing is written any more when this returns."""
        await self._behind.finish()


def selected(schema: pa.Schema, columns: tuple[str, ...]) -> pa.Schema:
    """Those asked for, in the order asked for; all when none is."""
    missing = [name for name in columns if name not in schema.names]
    if missing:
        raise SourceError(f"there is no column {', '.join(missing)}; there are {', '.join(schema.names)}")
    return pa.schema([schema.field(name) for name in columns]) if columns else schema


def _parts(place: DataLocation) -> Parts:
    return (*parts_of(place.uri), *(f"{key}={value}" for key, value in partition_of(place.partition).items()))


def _keys(place: DataLocation, found: FoundFiles) -> Mapping[str, str]:
    return partition_in(found.parts[len(parts_of(place.uri)) : -1])


def _format(reading: FileReader, found: FoundFiles, place: DataLocation) -> FileFormat:
    return formats.by_content(formats.by_name(place.format, found.parts[-1]), reading.start(found, 64))


def _schema(reading: FileReader, found: list[FoundFiles], place: DataLocation) -> pa.Schema:
    first = next((each for each in found if each.size), found[0])
    kind = _format(reading, first, place)
    if kind is FileFormat.BINARY:
        return formats.RAW_SCHEMA
    if kind is FileFormat.CSV:
        start = reading.start(first, SAMPLE)
        schema = guess_csv(start, len(start) < SAMPLE, Dialect.of(place.attributes))
    else:
        schema = formats.own_schema(reading.open(first, True), kind)
    for key in _keys(place, first):
        schema = schema if key in schema.names else schema.append(pa.field(key, pa.string()))
    return schema


def _rows(
    reading: FileReader, found: FoundFiles, place: DataLocation, schema: pa.Schema, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    kind = _format(reading, found, place)
    keys = _keys(place, found)
    inside = pa.schema([field for field in schema if field.name not in keys])
    file = reading.open(found, kind is not FileFormat.CSV)
    for batch in formats.read_table(file, kind, inside, Dialect.of(place.attributes), batch_rows):
        yield _with_keys(batch, schema, keys) if len(inside) < len(schema) else batch


def _with_keys(batch: pa.RecordBatch, schema: pa.Schema, keys: Mapping[str, str]) -> pa.RecordBatch:
    columns = [
        pa.repeat(convert(pa.array([keys[field.name]]), field.type, field.name)[0], batch.num_rows)
        if field.name in keys
        else batch.column(batch.schema.get_field_index(field.name))
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
