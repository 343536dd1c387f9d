"""The file of keys that the library reads, each with the number of its row.

Keys are in memory while they are few enough to be put in order here: the library then need not run a program for it,
and where no key comes twice it is told so and does less. What it would find out by reading all of them once more it
finds in a note beside the file, as it leaves one there itself for the next time.
"""

from __future__ import annotations

import array
import base64
import hashlib
import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

_WRITTEN_ROWS = 1 << 16
ORDERED_BYTES = 1 << 28
"""Keys of at most so many bytes are put in order here."""
KEY, ROW = "k", "row"
KEY_SCHEMA = pa.schema([(KEY, pa.string()), (ROW, pa.int64())])


class KeyFile:
    def __init__(self, path: Path, ordered_bytes: int) -> None:
        self._file = path.open("wb")
        # By hand: Arrow would quote the names, and a part of the library does not know quotes.
        self._file.write(f"{KEY},{ROW}\n".encode())
        options = csv.WriteOptions(include_header=False, quoting_style="none")
        self._writer = csv.CSVWriter(self._file, KEY_SCHEMA, write_options=options)
        self._left = ordered_bytes
        self._kept: list[pa.Array] = []
        self._rows = 0

    def __enter__(self) -> KeyFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
        self._file.close()

    def add(self, texts: pa.Array) -> None:
        self._kept.append(texts)
        self._left -= texts.nbytes
        if self._left < 0:
            self._write_kept()

    def finish(self) -> bytes:
        """The digest of all keys, if they are in order and different."""
        if self._rows or not self._kept:
            self._write_kept()
            return b""
        texts = pa.concat_arrays(self._kept)
        self._kept.clear()
        order = order_of(texts)
        texts = texts.take(order)
        digest = hashlib.sha256()
        for start in range(0, len(texts), _WRITTEN_ROWS):
            part = texts.slice(start, _WRITTEN_ROWS)
            digest.update(_bytes_of(part))
            self._write(part, order.slice(start, _WRITTEN_ROWS).cast(pa.int64()))
        return b"" if any_again(texts) else digest.digest()

    def _write_kept(self) -> None:
        for texts in self._kept:
            self._write(texts, pa.array(range(self._rows, self._rows + len(texts)), pa.int64()))
        self._kept.clear()

    def _write(self, texts: pa.Array, numbers: pa.Array) -> None:
        self._writer.write_batch(pa.record_batch([texts, numbers], schema=KEY_SCHEMA))
        self._rows += len(texts)


def note(keys: Path, rows: int, digest: bytes) -> None:
    """What the library wants to know of a file; it reads it all where the size is another."""
    summary = {
        "keysHash": base64.b64encode(digest).decode(),
        "uniqueKeyCnt": rows,
        "originalCnt": rows,
        "sourceFileSize": str(keys.stat().st_size),
    }
    keys.with_name(f"{keys.name}.meta").write_text(json.dumps(summary, separators=(",", ":")))


def order_of(texts: pa.Array) -> pa.Array:
    """As `sort_indices` has it, by bytes. Most texts differ in their first sixteen, and numbers are compared much
    faster."""
    whole = texts.cast(pa.binary())
    if (pc.min(pc.binary_length(whole)).as_py() or 0) < 16:
        # What is missing is zero, which no key has.
        whole = pc.binary_join_element_wise(whole, pa.scalar(bytes(16)), pa.scalar(b""))
    heads = pa.table({"high": _word(whole, 0), "low": _word(whole, 8)})
    order = pc.sort_indices(heads, sort_keys=[("high", "ascending"), ("low", "ascending")])
    high, low = (each.combine_chunks().take(order) for each in heads.columns)
    again = pc.and_(pc.equal(high[1:], high[:-1]), pc.equal(low[1:], low[:-1]))
    return pc.sort_indices(texts) if len(again) and pc.any(again).as_py() else order


def _word(texts: pa.Array, start: int) -> pa.Array:
    """Eight bytes of each as a number."""
    words = array.array("Q", _bytes_of(pc.binary_slice(texts, start, start + 8)))
    if sys.byteorder == "little":
        words.byteswap()
    return pa.Array.from_buffers(pa.uint64(), len(texts), [None, pa.py_buffer(words)])


def _bytes_of(texts: pa.Array) -> bytes:
    """All of them, one behind the other."""
    _, offsets, content = texts.buffers()
    if not len(texts):
        return b""
    places = memoryview(offsets).cast("i")
    first, last = places[texts.offset], places[texts.offset + len(texts)]
    return bytes(memoryview(content)[first:last])


def any_again(texts: pa.Array) -> bool:
    """Whether two neighbours are equal."""
    return len(texts) > 1 and bool(pc.any(pc.equal(texts.slice(1), texts.slice(0, len(texts) - 1))).as_py())
