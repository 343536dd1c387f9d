"""Tables in files: CSV, Parquet, ORC, Arrow IPC and plain bytes. Blocking; over any file that Arrow can read or write.

Each format is read batch by batch and written batch by batch. Formats that know fewer types than Arrow keep the nearest
that loses nothing; whoever reads says the type it should be.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.dataset as dataset
import pyarrow.ipc as ipc
import pyarrow.orc as orc
import pyarrow.parquet as parquet

from coterie.kuscia.sources.convert import convert, fit
from coterie.kuscia.sources.csv_text import Dialect, csv_header, csv_rows, read_csv
from coterie.kuscia.sources.protocol import FileFormat, SourceError

RAW_SCHEMA = pa.schema([pa.field("data", pa.binary())])
RAW_CHUNK = 64 * 1024
_ENDINGS = {
    ".csv": FileFormat.CSV,
    ".tsv": FileFormat.CSV,
    ".parquet": FileFormat.PARQUET,
    ".orc": FileFormat.ORC,
    ".arrow": FileFormat.IPC,
    ".ipc": FileFormat.IPC,
    ".feather": FileFormat.IPC,
}
_MAGIC = {b"PAR1": FileFormat.PARQUET, b"ORC": FileFormat.ORC, b"ARROW1": FileFormat.IPC}
ENDING = {FileFormat.CSV: "csv", FileFormat.PARQUET: "parquet", FileFormat.ORC: "orc", FileFormat.IPC: "arrow"}
GROUP_ROWS = 512 * 1024
GROUP_BYTES = 32 * 1024 * 1024
BATCH_BYTES = 1024 * 1024
"""Enough for a batch of Arrow's own format, which is read a column at a time only within one."""


def by_content(declared: FileFormat, start: bytes) -> FileFormat:
    """What a file is: engines call a file `.csv` and write ORC, so its first bytes are heard before its name."""
    if declared is FileFormat.BINARY or not any(byte < 9 or 13 < byte < 32 for byte in start[:64]):
        return declared  # plain text, even where it begins like a mark
    return next((found for magic, found in _MAGIC.items() if start.startswith(magic)), declared)


def by_name(declared: FileFormat, name: str) -> FileFormat:
    if declared is not FileFormat.UNKNOWN:
        return declared
    return next((found for ending, found in _ENDINGS.items() if name.lower().endswith(ending)), FileFormat.CSV)


def own_schema(file: pa.NativeFile, found: FileFormat) -> pa.Schema:
    """Of formats that say it themselves."""
    with _content_errors():
        if found is FileFormat.PARQUET:
            return parquet.ParquetFile(file).schema_arrow.remove_metadata()
        if found is FileFormat.ORC:
            return orc.ORCFile(file).schema.remove_metadata()
        return ipc.open_file(file).schema.remove_metadata()


def read_raw(file: Any) -> Iterator[pa.RecordBatch]:
    while chunk := file.read(RAW_CHUNK * 16):
        pieces = [chunk[start : start + RAW_CHUNK] for start in range(0, len(chunk), RAW_CHUNK)]
        yield pa.RecordBatch.from_arrays([pa.array(pieces, pa.binary())], schema=RAW_SCHEMA)


def read_table(
    file: Any, found: FileFormat, schema: pa.Schema, dialect: Dialect, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Batches of exactly the schema."""
    if found is FileFormat.CSV:
        yield from read_csv(file, schema, dialect, batch_rows)
        return
    row = 0
    with _content_errors():
        for batch in _typed(file, found, schema.names, batch_rows):
            for start in range(0, batch.num_rows, batch_rows):
                yield fit(batch.slice(start, batch_rows), schema, row + start)
            row += batch.num_rows


def _typed(file: Any, found: FileFormat, names: list[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
    if found is FileFormat.PARQUET:
        # Buffered reading keeps a row group of any size from being loaded whole.
        opened = parquet.ParquetFile(file, buffer_size=1024 * 1024, pre_buffer=False)
        _all_there(names, opened.schema_arrow.names)
        yield from opened.iter_batches(batch_size=batch_rows, columns=names, use_threads=False)
    elif found is FileFormat.ORC:
        _all_there(names, orc.ORCFile(file).schema.names)
        # A stripe holds millions of rows; only as a dataset is it read in batches.
        table = dataset.OrcFileFormat().make_fragment(file)
        yield from table.to_batches(columns=names, batch_size=batch_rows, use_threads=False, batch_readahead=1)
    else:
        there = ipc.open_file(file).schema.names
        _all_there(names, there)
        wanted = sorted(there.index(name) for name in dict.fromkeys(names))
        reader = ipc.open_file(file, options=ipc.IpcReadOptions(included_fields=wanted))
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


def _all_there(names: list[str], there: list[str]) -> None:
    missing = [name for name in names if name not in there]
    if missing:
        raise SourceError(f"there is no column {', '.join(missing)}; there are {', '.join(there)}")


class TableWriter(Protocol):
    def write(self, batch: pa.RecordBatch) -> bytes | memoryview:
        """What is to be written to the file; empty where that is done."""
        ...

    def close(self) -> None:
        """The format's end is written; the file itself stays open."""
        ...

    def abandon(self) -> None:
        """Nothing more is written."""
        ...


def writer(file: Any, found: FileFormat, schema: pa.Schema, dialect: Dialect) -> TableWriter:
    if found is FileFormat.CSV:
        return _CsvWriter(file, schema, dialect.delimiter)
    if found is FileFormat.BINARY:
        return _RawWriter(file)
    return _GroupWriter(file, found, schema)


class _CsvWriter:
    def __init__(self, file: Any, schema: pa.Schema, delimiter: str) -> None:
        self._schema, self._delimiter = schema, delimiter
        file.write(csv_header(schema, delimiter))

    def write(self, batch: pa.RecordBatch) -> bytes | memoryview:
        return csv_rows(fit(batch, self._schema), self._delimiter)

    def close(self) -> None:
        pass

    def abandon(self) -> None:
        pass


class _RawWriter:
    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, batch: pa.RecordBatch) -> bytes | memoryview:
        if batch.schema.names != RAW_SCHEMA.names:
            raise SourceError("plain bytes come in one column, data")
        for piece in batch.column(0):
            if piece.is_valid:
                self._file.write(piece.as_buffer())
        return b""

    def close(self) -> None:
        pass

    def abandon(self) -> None:
        pass


class _GroupWriter:
    """Gathers batches: groups of a few rows make files that are slow to read."""

    def __init__(self, file: Any, found: FileFormat, schema: pa.Schema) -> None:
        self._schema, self._stored = schema, pa.schema([_stored(field, found) for field in schema])
        self._waiting: list[pa.RecordBatch] = []
        self._enough = BATCH_BYTES if found is FileFormat.IPC else GROUP_BYTES
        self._writer: Any
        self._valve = file = _Valve(file)
        with _content_errors():
            if found is FileFormat.PARQUET:
                self._writer = parquet.ParquetWriter(file, self._stored, compression="zstd")
            elif found is FileFormat.ORC:
                self._writer = orc.ORCWriter(file, compression="zstd", stripe_size=GROUP_BYTES)
                self._waiting.append(self._empty())
            else:
                self._writer = ipc.new_file(file, self._stored)

    def _empty(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array([], each.type) for each in self._stored], schema=self._stored)

    def write(self, batch: pa.RecordBatch) -> bytes | memoryview:
        columns = [
            convert(column, field.type, field.name)
            for column, field in zip(fit(batch, self._schema).columns, self._stored, strict=True)
        ]
        self._waiting.append(pa.RecordBatch.from_arrays(columns, schema=self._stored))
        rows = sum(each.num_rows for each in self._waiting)
        if rows >= GROUP_ROWS or sum(each.nbytes for each in self._waiting) >= self._enough:
            self._flush()
        return b""

    def _flush(self) -> None:
        if self._waiting:
            table, self._waiting = pa.Table.from_batches(self._waiting, self._stored), []
            with _content_errors():
                if isinstance(self._writer, orc.ORCWriter):
                    self._writer.write(table)
                else:
                    self._writer.write_table(table)
            self._valve.check()

    def close(self) -> None:
        self._flush()
        with _content_errors():
            self._writer.close()
        self._valve.check()

    def abandon(self) -> None:
        self._valve.shut = True
        self._writer.close()


class _Valve:
    """Keeps a file's errors from Arrow: its ORC writer ends the process over one, and all insist on writing their end,
    even of what is given up. After an error, or when shut, nothing more passes; `check` raises it."""

    closed = False

    def __init__(self, file: Any) -> None:
        self._file = file
        self._failure: SourceError | None = None
        self.shut = False

    def write(self, data: Any) -> int:
        if not self.shut:
            try:
                self._file.write(data)
            except SourceError as error:
                self._failure, self.shut = error, True
        return len(data)

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


def _stored(field: pa.Field, found: FileFormat) -> pa.Field:
    if found is not FileFormat.IPC and pa.types.is_date64(field.type):
        return field.with_type(pa.timestamp("ms"))  # both would keep the day only
    if found is not FileFormat.ORC:
        return field
    kind = field.type
    signed = {
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0),
    }
    if kind in signed:
        return field.with_type(signed[kind])
    if pa.types.is_time32(kind):
        return field.with_type(pa.int32())
    if pa.types.is_time64(kind) or pa.types.is_duration(kind):
        return field.with_type(pa.int64())
    return field


class _content_errors:
    """Arrow's errors about the content of a file, as one of ours."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        # Arrow also has plain OSErrors about content; those of the machine have a number.
        content = isinstance(error, OSError) and error.errno is None
        if content or isinstance(error, (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)):
            raise SourceError(f"the file is not what it should be: {str(error).splitlines()[0][:160]}") from error
