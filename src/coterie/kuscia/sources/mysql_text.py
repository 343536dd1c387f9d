"""What is said to MySQL and how its answers read: names, literals, cells. Pure.

Sessions run with NO_BACKSLASH_ESCAPES and utf8mb4 (mysql_connection.py), so that a text ends only at a quote, and a doubled
quote is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from coterie.kuscia.sources.convert import convert, is_bytes, is_text
from coterie.kuscia.sources.csv_text import csv_header, end_to_end, joined, text_of
from coterie.kuscia.sources.protocol import SourceError

_TARGET = 1024 * 1024
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "bit")
_NUMBERS = ("tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "year")
_TEXT = pa.large_string()


def name(text: str) -> str:
    if "\0" in text:
        raise SourceError("a name cannot hold a NUL")
    doubled = text.replace("`", "``")
    return f"`{doubled}`"


def literal(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


def where(keys: Mapping[str, str]) -> str:
    conditions = " AND ".join(f"{name(key)} = {literal(value)}" for key, value in keys.items())
    return f" WHERE {conditions}" if conditions else ""


def header(schema: pa.Schema) -> bytes:
    return csv_header(schema, ",")


def wire(declared: pa.Schema) -> pa.Schema:
    """NULLs are judged once, at the end."""
    return pa.schema([field.with_nullable(True) for field in declared])


def cell(field: pa.Field, kind: str) -> str:
    """SQL for one cell of CSV: NULL is empty, a text is in quotes."""
    column = name(field.name)
    if kind in _NUMBERS:
        return f"IFNULL({column}, '')"
    if kind in ("float", "double"):
        return f"IFNULL({column} + 0e0, '')"  # as it is, a FLOAT is shown with six digits
    if kind in _BYTES and not is_text(field.type):
        text = f"TO_BASE64({column})"
    elif is_bytes(field.type):
        text = f"TO_BASE64(CONVERT({column} USING utf8mb4))"
    else:
        text = f"REPLACE(CONVERT({column} USING utf8mb4), '\"', '\"\"')"
    return f"IFNULL(CONCAT('\"', {text}, '\"'), '')"


def inserts(columns: Mapping[str, pa.Array], names: list[str], most: int) -> Iterator[bytes]:
    """The rows as lists of values, a few MB at a time and never more than the server takes."""
    literals = [_literals(columns[each], each) for each in names]
    rows = joined("", "(", joined(",", *literals), ")")
    if len(rows):
        yield from _chunks(rows, min(_TARGET, most), most)


def _chunks(rows: pa.Array, target: int, most: int) -> Iterator[bytes]:
    size = pc.sum(pc.binary_length(rows)).as_py() + len(rows)
    if size > target and len(rows) > 1:
        middle = len(rows) // 2
        yield from _chunks(rows.slice(0, middle), target, most)
        yield from _chunks(rows.slice(middle), target, most)
        return
    if size > most:
        raise SourceError("a row is larger than half of the server's max_allowed_packet; raise that setting")
    yield end_to_end(rows, ",")


def _literals(column: pa.Array, column_name: str) -> pa.Array:
    kind = column.type
    if is_bytes(kind):
        text = pa.array([None if each is None else f"x'{each.hex()}'" for each in column.to_pylist()], _TEXT)
    elif is_text(kind):
        text = _in_quotes(pc.replace_substring(column.cast(_TEXT), "'", "''"))
    elif pa.types.is_boolean(kind):
        text = column.cast(pa.int8()).cast(_TEXT)
    elif pa.types.is_floating(kind):
        bad = pc.invert(pc.fill_null(pc.is_finite(column), True))
        if pc.any(bad).as_py():
            raise SourceError(
                f'column "{column_name}", row {pc.index(bad, True).as_py() + 1}: MySQL holds no NaN or infinity'
            )
        text = column.cast(pa.float64()).cast(_TEXT)  # the short text of the largest float32 is a little more
    elif pa.types.is_timestamp(kind):
        # The session's zone is UTC; the text says none.
        unit = "us" if kind.unit == "ns" else kind.unit
        text = _in_quotes(
            convert(column, pa.timestamp(unit, kind.tz), column_name).cast(pa.timestamp(unit)).cast(_TEXT)
        )
    elif pa.types.is_time(kind):
        text = _in_quotes((convert(column, pa.time64("us"), column_name) if kind.unit == "ns" else column).cast(_TEXT))
    elif pa.types.is_date(kind):
        text = _in_quotes(text_of(column).cast(_TEXT))
    else:
        text = text_of(column).cast(_TEXT)
    return pc.fill_null(text, "NULL")


def _in_quotes(text: pa.Array) -> pa.Array:
    return joined("", "'", text, "'")
