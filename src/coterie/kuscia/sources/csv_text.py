"""Tables as comma-separated text: reading with declared types, writing so that reading gives the same again.

Cells are read as text, then converted by their column's declared type (convert.py). What is NULL: `NULL` and `null`
without quotes in any column, an empty cell in every column but those of text. In quotes nothing is NULL. What we write
follows the same rules, so that NULL, the empty text and the text "NULL" stay three different things.
"""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from coterie.kuscia.sources.convert import fit, fits, is_bytes, is_text
from coterie.kuscia.sources.protocol import SourceError

BLOCK = 2 * 1024 * 1024
NULLS = ("NULL", "null")
SAMPLE = 1024 * 1024
SAMPLE_ROWS = 10_000
_MARK = "\ufeff".encode()
_BLANKS = b" \t\n\v\f\r"
_GUESSES = (
    pa.int64(),
    pa.uint64(),
    pa.float64(),
    pa.bool_(),
    pa.date32(),
    pa.timestamp("s"),
    pa.date64(),
    pa.time64("us"),
)


@dataclass(frozen=True, slots=True)
class Dialect:
    delimiter: str = ","
    nulls: tuple[str, ...] = NULLS
    blank_lines_count: bool = False
    """A blank line is a row of one empty cell, as a database sends it."""

    @classmethod
    def of(cls, attributes: Mapping[str, str], delimiter: str = ",") -> Dialect:
        """`delimiter`: what the caller asks for; the plain comma leaves the word to the attributes."""
        chosen = delimiter if delimiter != "," else attributes.get("delimiter") or ","
        chosen = "\t" if chosen == "\\t" else chosen
        if len(chosen) != 1 or chosen in '"\r\n' or ord(chosen) > 127:
            raise SourceError(
                f"the delimiter {chosen!r} is not usable; it is one ASCII character, not a quote or line end"
            )
        return cls(chosen, _null_strings(attributes.get("NullStrs")))


def _null_strings(given: str | None) -> tuple[str, ...]:
    if not given:
        return NULLS
    try:
        listed = json.loads(given)
    except ValueError:
        return (given,)
    return tuple(str(each) for each in listed) if isinstance(listed, list) else (given,)


def read_csv(file: object, schema: pa.Schema, dialect: Dialect, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Only the schema's columns are converted; the file may have more, in any order."""
    row = 0
    for block in _blocks(file, schema.names, dialect):
        for start in range(0, block.num_rows, batch_rows):
            part = block.slice(start, batch_rows)
            yield fit(part, schema, row)
            row += part.num_rows


def guess_csv(start: bytes, whole: bool, dialect: Dialect) -> pa.Schema:
    """From the first rows. Numbers with leading zeros are names, not numbers."""
    if not whole:
        start = start[: start.rfind(b"\n") + 1]
    try:
        names = next(csv.reader(io.StringIO(start.decode("utf-8-sig"), newline=""), delimiter=dialect.delimiter), [])
    except (UnicodeError, csv.Error) as error:
        raise SourceError("this is not well-formed CSV in UTF-8: its header cannot be read") from error
    if not names or "" in names or len(set(names)) < len(names):
        raise SourceError("the header is missing, has an unnamed column, or names a column twice")
    batches = list(_blocks(pa.BufferReader(start), names, dialect))
    table = pa.Table.from_batches(batches).slice(0, SAMPLE_ROWS) if batches else None
    return pa.schema([pa.field(name, _guess(table[name]) if table else pa.string()) for name in names])


def _guess(column: pa.ChunkedArray) -> pa.DataType:
    values = column.combine_chunks().drop_null()
    values = values.filter(pc.not_equal(values, ""))
    if not len(values) or pc.any(pc.match_substring_regex(values, r"^-?0[0-9]+$|^0x")).as_py():
        return pa.string()
    return next((guess for guess in _GUESSES if fits(values, guess)), pa.string())


def _blocks(file: object, names: Sequence[str], dialect: Dialect) -> Iterator[pa.RecordBatch]:
    """All cells as text. One thread: rows keep their numbers, and memory its bound."""
    columns = list(dict.fromkeys(names))
    try:
        reader = pacsv.open_csv(
            file,
            read_options=pacsv.ReadOptions(block_size=BLOCK, use_threads=False),
            parse_options=pacsv.ParseOptions(
                delimiter=dialect.delimiter, newlines_in_values=True, ignore_empty_lines=not dialect.blank_lines_count
            ),
            convert_options=pacsv.ConvertOptions(
                column_types={name: pa.string() for name in columns},
                include_columns=columns,
                null_values=list(dialect.nulls),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        yield from reader
    except KeyError as error:
        raise SourceError(f"the header lacks a column: {error.args[0]}") from error
    except (pa.ArrowInvalid, UnicodeError) as error:
        raise SourceError(f"this is not well-formed CSV in UTF-8: {_first_sentence(error)}") from error


def _first_sentence(error: Exception) -> str:
    """Arrow's reason without what it quotes of the line."""
    return str(error).split("\n")[0].split(": '")[0][:120]


def csv_header(schema: pa.Schema, delimiter: str) -> bytes:
    names = pa.RecordBatch.from_pydict({str(i): [name] for i, name in enumerate(schema.names)})
    return bytes(csv_rows(names, delimiter))


def csv_rows(
    batch: pa.RecordBatch, delimiter: str = ",", null: str = "NULL", quote_all: bool = False
) -> bytes | memoryview:
    """`quote_all`: every text in quotes, so that nothing depends on which texts mean NULL."""
    if not batch.num_rows or not batch.num_columns:
        return b""
    if not quote_all and not any(_any_needs_quotes(each, delimiter, null) for each in batch.columns):
        return _plain_rows(batch, delimiter, null)
    cells = [_cells(column, delimiter, null, quote_all) for column in batch.columns]
    return end_to_end(joined(delimiter, *cells), "\n") + b"\n"


def _plain_rows(batch: pa.RecordBatch, delimiter: str, null: str) -> memoryview:
    """Where nothing is to be quoted Arrow's own writer does it, several times faster. It has no word for NULL."""
    columns = [
        pc.fill_null(text_of(each).cast(pa.large_string()), null)
        if each.null_count or _written_otherwise(each)
        else each
        for each in batch.columns
    ]
    options = pacsv.WriteOptions(
        include_header=False, delimiter=delimiter, quoting_style="none", batch_size=batch.num_rows
    )
    sink = pa.BufferOutputStream()
    pacsv.write_csv(pa.RecordBatch.from_arrays(columns, batch.schema.names), sink, options)
    return memoryview(sink.getvalue()).cast("B")


def _written_otherwise(column: pa.Array) -> bool:
    kind = column.type
    return not (is_text(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _any_needs_quotes(column: pa.Array, delimiter: str, null: str) -> bool:
    """As `_needs_quotes`, by looks at all bytes at once; may say yes where the answer is no."""
    if not is_text(column.type):
        return False
    sizes = pc.binary_length(column)
    if pc.min(sizes).as_py() == 0:
        return True
    content = _content(column)
    # Looking for one byte is much faster than for three.
    if any(each.encode() in content for each in (delimiter, '"', "\n", "\r")) or (
        _MARK[:1] in content and _MARK in content
    ):
        return True
    plain = column.cast(pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary())
    ends = _content(pc.binary_slice(plain, 0, 1)) + _content(pc.binary_slice(plain, -1))
    if len(ends.translate(None, _BLANKS)) < len(ends):
        return True
    return bool(
        pc.any(pc.equal(sizes, len(null.encode()))).as_py()
        and pc.any(pc.equal(pc.utf8_lower(column), null.lower())).as_py()
    )


def _content(text: pa.Array) -> bytes:
    """All of a column of text or bytes, end to end."""
    _, offsets, data = text.buffers()
    if data is None:
        return b""
    large = pa.types.is_large_string(text.type) or pa.types.is_large_binary(text.type)
    ends = memoryview(offsets).cast("q" if large else "i")
    start = ends[text.offset]
    found: bytes = data.slice(start, ends[text.offset + len(text)] - start).to_pybytes()
    return found


def joined(between: str, *columns: pa.Array | str) -> pa.Array:
    """Row by row, of columns of large_string and constants."""
    typed = [pa.scalar(each, pa.large_string()) if isinstance(each, str) else each for each in (*columns, between)]
    return pc.binary_join_element_wise(*typed)


def end_to_end(rows: pa.Array, between: str) -> bytes:
    whole = pa.LargeListArray.from_arrays(pa.array([0, len(rows)], pa.int64()), rows)
    text: bytes = pc.binary_join(whole, pa.scalar(between, pa.large_string()))[0].as_buffer().to_pybytes()
    return text


def _cells(column: pa.Array, delimiter: str, null: str, quote_all: bool) -> pa.Array:
    text = text_of(column).cast(pa.large_string())
    if is_text(column.type):
        quoted = joined("", '"', pc.replace_substring(text, '"', '""'), '"')
        text = quoted if quote_all else pc.if_else(_needs_quotes(text, delimiter, null), quoted, text)
    return pc.fill_null(text, null)


def _needs_quotes(text: pa.Array, delimiter: str, null: str) -> pa.Array:
    needs = pc.or_(pc.equal(text, ""), pc.equal(pc.utf8_lower(text), null.lower()))
    for special in (delimiter, '"', "\n", "\r"):
        needs = pc.or_(needs, pc.match_substring(text, special))
    return pc.or_(needs, pc.match_substring_regex(text, r"^\s|\s$|^\x{FEFF}"))


def text_of(column: pa.Array) -> pa.Array:
    """Each value as text that `convert` reads back: times as ISO 8601, bytes as base64, durations as whole numbers."""
    found = column.type
    if is_text(found):
        return column
    if is_bytes(found):
        return pa.array(
            [None if each is None else base64.b64encode(each).decode() for each in column.to_pylist()], "str"
        )
    if pa.types.is_date64(found):
        return column.cast(pa.timestamp("ms")).cast(pa.string())
    if pa.types.is_duration(found):
        return column.view(pa.int64()).cast(pa.string())
    if pa.types.is_nested(found):
        raise SourceError(f"the type {found} has no form as text; choose Parquet or Arrow IPC")
    if pa.types.is_dictionary(found):
        return text_of(column.dictionary_decode())
    return column.cast(pa.string())
