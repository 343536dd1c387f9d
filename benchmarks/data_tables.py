"""The table that is moved, and how Arrow alone reads and writes it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.ipc as ipc
import pyarrow.parquet as parquet

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("score", pa.float64()), ("height", pa.float64())])
COLUMNS = [{"name": each.name, "type": {"double": "float64"}.get(str(each.type), str(each.type))} for each in SCHEMA]
FORMATS = ("csv", "parquet", "arrow")
ROWS = 65536
_DIFFERENT = 16


def batches(size: int) -> Iterator[pa.RecordBatch]:
    """About so many bytes; some batches again and again, so that making them takes no time of what is measured."""
    made = [_batch(number * ROWS) for number in range(min(_DIFFERENT, max(1, size // _batch(0).nbytes)))]
    for number in range(max(1, round(size / made[0].nbytes))):
        yield made[number % len(made)]


def _batch(first: int) -> pa.RecordBatch:
    ids = pa.array(range(first, first + ROWS), pa.int64())
    scores = pc.divide(ids.cast(pa.float64()), 7.0)
    names = pc.binary_join_element_wise("person", ids.cast(pa.string()), "of somewhere", "-")
    return pa.RecordBatch.from_arrays([ids, names, scores, pc.sqrt(scores)], schema=SCHEMA)


def read(path: Path) -> Iterator[pa.RecordBatch]:
    if path.suffix == ".csv":
        kinds = csv.ConvertOptions(column_types=SCHEMA)
        with csv.open_csv(path, csv.ReadOptions(block_size=2 << 20), convert_options=kinds) as reader:
            yield from reader
    elif path.suffix == ".parquet":
        with parquet.ParquetFile(path) as file:
            yield from file.iter_batches(ROWS)
    else:
        with pa.memory_map(str(path)) as file:
            reader = ipc.open_file(file)
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)


def write(path: Path, rows: Iterable[pa.RecordBatch]) -> None:
    """To the disk, as the data mesh does."""
    with path.open("wb") as file:
        with _writer(path, file) as writer:
            for each in rows:
                writer.write_batch(each)
        file.flush()
        os.fsync(file.fileno())


def _writer(path: Path, file: Any) -> Any:
    if path.suffix == ".csv":
        return csv.CSVWriter(file, SCHEMA)
    if path.suffix == ".parquet":
        # As the data mesh does it.
        return parquet.ParquetWriter(file, SCHEMA, compression="zstd")
    return ipc.new_file(file, SCHEMA)
