"""The party's own table while the partners are asked: rows in a file, keys in another, and rows again by their numbers.

    rows of the data mesh ──> rows.arrow (all of it)                                  ┌──> rows of the result
                          └─> keys.csv   (key, number) ──library──> found.csv (numbers) ┘

Neither file is ever in memory as a whole. Keys are, while they are few enough to be put in order here: the library then need not
run a program for it, and where no key comes twice it is told so and does less.
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

_STORED_ROWS = 1 << 16
_RESULT_ROWS = 1 << 16
ORDERED_BYTES = 1 << 28
"""Keys of at most so many bytes are put in order here."""
KEY, ROW = "k", "row"
_KEY_SCHEMA = pa.schema([(KEY, pa.string()), (ROW, pa.int64())])


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
        with _KeyFile(self.keys, self._ordered_bytes) as found, pa.ipc.new_file(self._path, self.schema) as rows:
            for batch in _gathered(batches, self.schema):
                found.add(keys.texts(batch, columns, party, self.rows))
                rows.write_batch(batch)
                self._starts.append(self.rows)
                self.rows += batch.num_rows
            self.unique = found.finish()

    def taken(self, numbers: Iterable[pa.Array]) -> Iterator[pa.RecordBatch]:
        """The rows of these numbers in this order; where there is no number, a row of NULLs."""
        with pa.memory_map(str(self._path)) as source:
            reader = pa.ipc.open_file(source)
            for wanted in numbers:
                yield from self._rows(reader, wanted).to_batches()

    def _rows(self, reader: pa.ipc.RecordBatchFileReader, wanted: pa.Array) -> pa.Table:
        """Sorted first, NULLs last, so that each stored batch is read once; then put in the order that was asked for."""
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


class _KeyFile:
    """Keys with the numbers of their rows, for the library."""

    def __init__(self, path: Path, ordered_bytes: int) -> None:
        self._file = path.open("wb")
        # By hand: Arrow would quote the names, and a part of the library does not know quotes.
        self._file.write(f"{KEY},{ROW}\n".encode())
        options = csv.WriteOptions(include_header=False, quoting_style="none")
        self._writer = csv.CSVWriter(self._file, _KEY_SCHEMA, write_options=options)
        self._left = ordered_bytes
        self._kept: list[pa.Array] = []
        self._rows = 0

    def __enter__(self) -> _KeyFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
        self._file.close()

    def add(self, texts: pa.Array) -> None:
        self._kept.append(texts)
        self._left -= texts.nbytes
        if self._left < 0:
            self._write_kept()

    def finish(self) -> bool:
        """Whether all keys are in order and different."""
        if self._rows or not self._kept:
            self._write_kept()
            return False
        texts = pa.concat_arrays(self._kept)
        self._kept.clear()
        order = pc.sort_indices(texts)
        texts = texts.take(order)
        for start in range(0, len(texts), _STORED_ROWS):
            self._write(texts.slice(start, _STORED_ROWS), order.slice(start, _STORED_ROWS).cast(pa.int64()))
        return not _any_again(texts)

    def _write_kept(self) -> None:
        for texts in self._kept:
            self._write(texts, pa.array(range(self._rows, self._rows + len(texts)), pa.int64()))
        self._kept.clear()

    def _write(self, texts: pa.Array, numbers: pa.Array) -> None:
        self._writer.write_batch(pa.record_batch([texts, numbers], schema=_KEY_SCHEMA))
        self._rows += len(texts)


def _any_again(texts: pa.Array) -> bool:
    """Whether two neighbours are equal."""
    return len(texts) > 1 and bool(pc.any(pc.equal(texts.slice(1), texts.slice(0, len(texts) - 1))).as_py())


def nothing(schema: pa.Schema, rows: int) -> pa.RecordBatch:
    return pa.record_batch([pa.nulls(rows, each.type) for each in schema], schema=schema)


def nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([each.with_nullable(True) for each in schema])


def found_numbers(path: Path, *, second: bool) -> Iterator[pa.Array]:
    """What the library wrote, in its order. `second`: this party is not the first.

    The library repeats each row as often as the partner has its key, at both sides alike (1 1 2 2, and 7 7 9 9), so that
    the n-th rows of the two do not make all pairs. At one side, equal keys are therefore turned: 7 9 7 9.
    """
    options = csv.ConvertOptions(column_types=_KEY_SCHEMA, null_values=["NULL", ""], strings_can_be_null=True)
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
    if not second or not _any_again(texts):
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


def give_memory_back() -> None:
    """What is free goes back to the machine: Arrow and the library, which take turns, keep much of what they used."""
    pa.default_memory_pool().release_unused()
    # Of the C library; there are some without it.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


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
