"""The party's own table while the partners are asked: rows in a file, keys in another, and rows again by their numbers.

    rows of the data mesh ──> rows.arrow (all of it)                                  ┌──> rows of the result
                          └─> keys.csv   (key, number) ──library──> found.csv (numbers) ┘

Neither file is ever in memory as a whole; of the keys see `keyfile.py`.
"""

from __future__ import annotations

import bisect
import ctypes
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from coterie.engines.psi import keys
from coterie.engines.psi.keyfile import KEY, KEY_SCHEMA, ORDERED_BYTES, ROW, KeyFile, any_again, note

_STORED_ROWS = 1 << 16
_RESULT_ROWS = 1 << 16
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 1 << 28


class Store:
    def __init__(self, directory: Path, schema: pa.Schema, ordered_bytes: int = ORDERED_BYTES) -> None:
        self.schema = schema
        self.rows = 0
        self.unique = False
        """No key comes twice, and they are in order; False also where nobody looked."""
        self.keys = directory / "keys.csv"
        self._path = directory / "rows.arrow"
        self._ordered_bytes = ordered_bytes
        self._starts: list[int] = []

    def fill(self, batches: Iterable[pa.RecordBatch], columns: tuple[str, ...], party: int) -> None:
        with KeyFile(self.keys, self._ordered_bytes) as found, pa.ipc.new_file(self._path, self.schema) as rows:
            for batch in _gathered(batches, self.schema):
                found.add(keys.texts(batch, columns, party, self.rows))
                rows.write_batch(batch)
                self._starts.append(self.rows)
                self.rows += batch.num_rows
            digest = found.finish()
        self.unique = bool(digest)
        if digest:
            note(self.keys, self.rows, digest)

    def taken(self, numbers: Iterable[pa.Array]) -> Iterator[pa.RecordBatch]:
        """The rows of these numbers in this order; where there is no number, a row of NULLs."""
        with pa.memory_map(str(self._path)) as source:
            reader = pa.ipc.open_file(source)
            for wanted in numbers:
                yield from self._rows(reader, wanted).to_batches()

    def _rows(self, reader: pa.ipc.RecordBatchFileReader, wanted: pa.Array) -> pa.Table:
        """Sorted first, NULLs last, so that each stored batch is read once; then put in the order that was asked
        for."""
        order = pc.sort_indices(wanted)
        ordered = wanted.take(order)
        last = len(ordered) - ordered.null_count
        parts = []
        for number, start in enumerate(self._starts):
            end = self._starts[number + 1] if number + 1 < len(self._starts) else self.rows
            low = bisect.bisect_left(ordered, start, 0, last, key=lambda each: each.as_py())
            high = bisect.bisect_left(ordered, end, low, last, key=lambda each: each.as_py())
            if high > low:
                here = pc.subtract(ordered.slice(low, high - low), start)
                parts.append(reader.get_batch(number).take(here))
        if last < len(ordered):
            parts.append(nothing(self.schema, len(ordered) - last))
        return pa.Table.from_batches(parts, self.schema).combine_chunks().take(pc.sort_indices(order))


def nothing(schema: pa.Schema, rows: int) -> pa.RecordBatch:
    return pa.record_batch([pa.nulls(rows, each.type) for each in schema], schema=schema)


def nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([each.with_nullable(True) for each in schema])


def found_numbers(path: Path, *, second: bool) -> Iterator[pa.Array]:
    """What the library wrote, in its order. `second`: this party is not the first.

    The library repeats each row as often as the partner has its key, at both sides alike (1 1 2 2, and 7 7 9 9), so
    that the n-th rows of the two do not make all pairs. At one side, equal keys are therefore turned: 7 9 7 9.
    """
    options = csv.ConvertOptions(column_types=KEY_SCHEMA, null_values=["NULL", ""], strings_can_be_null=True)
    kept: list[pa.RecordBatch] = []
    count = 0
    with csv.open_csv(path, convert_options=options) as reader:
        for batch in reader:
            kept.append(batch)
            count += batch.num_rows
            if count >= _RESULT_ROWS:
                whole = pa.Table.from_batches(kept).combine_chunks()
                # The rows of one key stay together.
                end = _start_of_last_key(whole.column(KEY).chunk(0)) if second else count
                yield _numbers(whole.slice(0, end), second)
                kept = whole.slice(end).to_batches()
                count -= end
    if count:
        yield _numbers(pa.Table.from_batches(kept), second)


def _start_of_last_key(found: pa.Array) -> int:
    last, at = found[-1], len(found) - 1
    while at > 0 and last.is_valid and found[at - 1] == last:
        at -= 1
    return at


def _numbers(found: pa.Table, second: bool) -> pa.Array:
    texts, numbers = (found.column(name).combine_chunks() for name in (KEY, ROW))
    if not second or not any_again(texts):
        return numbers
    return pa.array(turned(texts.to_pylist(), numbers.to_pylist()), pa.int64())


def turned(texts: list[str | None], numbers: list[int | None]) -> list[int | None]:
    """For each key: 7 7 9 9 becomes 7 9 7 9. Pure."""
    out: list[int | None] = []
    for _, group in itertools.groupby(zip(texts, numbers, strict=True), key=lambda each: each[0]):
        rows = [number for _, number in group]
        times = next((at for at, number in enumerate(rows) if number != rows[0]), len(rows))
        out += rows[::times] * times
    return out


def in_table_order(numbers: Iterable[pa.Array]) -> Iterator[pa.Array]:
    """Eight bytes for each row of the result are in memory for this."""
    whole = pa.concat_arrays([pa.array([], pa.int64()), *numbers])
    ordered = whole.take(pc.sort_indices(whole))
    for start in range(0, len(ordered), _RESULT_ROWS):
        yield ordered.slice(start, _RESULT_ROWS)


def trim_memory() -> None:
    """What is free goes back to the machine: Arrow and the library, which take turns, keep much of what they used."""
    pa.default_memory_pool().release_unused()
    # Of the C library; there are some without it.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def keep_memory() -> None:
    """Until it is given back: the library frees and takes large pieces all the time, and the kernel clears each
    anew."""
    choose = getattr(ctypes.CDLL(None), "mallopt", None)
    if choose is not None:
        choose(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        choose(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def _gathered(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """In larger pieces: some sources send a thousand rows at a time."""
    kept: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        kept.append(batch)
        count += batch.num_rows
        if count >= _STORED_ROWS:
            yield from pa.Table.from_batches(kept, schema).combine_chunks().to_batches()
            kept, count = [], 0
    if count:
        yield from pa.Table.from_batches(kept, schema).combine_chunks().to_batches()
