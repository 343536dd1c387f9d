"""Arrow's types in MySQL and PostgreSQL, both ways, and names in SQL. Pure.

To SQL the maps are Kuscia's, but for bytes: PostgreSQL's TEXT does not hold them (BYTEA does), and Kuscia has none for
MySQL.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

from coterie.kuscia.sources.protocol import SourceError, SourceForbidden, SourceInfo

STAGING = "coterie_staging_"
_QUERY_SECONDS = 600
_MOST_SECONDS = 86_400
_DIGITS = {"s": "", "ms": "(3)", "us": "(6)", "ns": "(6)"}

_MYSQL = {
    pa.uint8(): "TINYINT UNSIGNED",
    pa.int8(): "TINYINT",
    pa.uint16(): "SMALLINT UNSIGNED",
    pa.int16(): "SMALLINT",
    pa.uint32(): "INT UNSIGNED",
    pa.int32(): "INT",
    pa.uint64(): "BIGINT UNSIGNED",
    pa.int64(): "BIGINT",
    pa.bool_(): "TINYINT(1)",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "TEXT",
    pa.large_string(): "LONGTEXT",
    pa.binary(): "LONGBLOB",
    pa.large_binary(): "LONGBLOB",
    pa.date32(): "DATE",
    pa.date64(): "DATETIME(3)",
    pa.null(): "TEXT",
}
_POSTGRESQL = {
    pa.uint8(): "SMALLINT",
    pa.int8(): "SMALLINT",
    pa.uint16(): "INTEGER",
    pa.int16(): "SMALLINT",
    pa.uint32(): "BIGINT",
    pa.int32(): "INTEGER",
    pa.uint64(): "DECIMAL(20,0)",
    pa.int64(): "BIGINT",
    pa.bool_(): "BOOLEAN",
    pa.float32(): "REAL",
    pa.float64(): "DOUBLE PRECISION",
    pa.string(): "TEXT",
    pa.large_string(): "TEXT",
    pa.binary(): "BYTEA",
    pa.large_binary(): "BYTEA",
    pa.date32(): "DATE",
    pa.date64(): "TIMESTAMP",
    pa.null(): "TEXT",
}


def mysql_type(kind: pa.DataType) -> str:
    if kind in _MYSQL:
        return _MYSQL[kind]
    if pa.types.is_time(kind):
        return f"TIME{_DIGITS[kind.unit]}"
    if pa.types.is_timestamp(kind):
        return f"TIMESTAMP{_DIGITS[kind.unit]}"
    if pa.types.is_duration(kind):
        return "BIGINT"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    raise SourceError(f"MySQL has no type for {kind}; choose another column type")


def postgresql_type(kind: pa.DataType) -> str:
    if kind in _POSTGRESQL:
        return _POSTGRESQL[kind]
    if pa.types.is_time(kind):
        return "TIME WITHOUT TIME ZONE"
    if pa.types.is_timestamp(kind):
        return "TIMESTAMPTZ"
    if pa.types.is_duration(kind):
        return "INTERVAL"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    raise SourceError(f"PostgreSQL has no type for {kind}; choose another column type")


_FROM_MYSQL = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "mediumint": pa.int32(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "datetime": pa.date64(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "year": pa.int16(),
    "longtext": pa.large_string(),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "bit"), pa.binary()),
}
_UNSIGNED = {pa.int8(): pa.uint8(), pa.int16(): pa.uint16(), pa.int32(): pa.uint32(), pa.int64(): pa.uint64()}
_FROM_POSTGRESQL = {
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "bool": pa.bool_(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.date64(),
    "time": pa.time64("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "interval": pa.duration("us"),
}


def of_mysql(data_type: str, column_type: str) -> pa.DataType:
    """`data_type`: bare; `column_type`: with its size and sign, as information_schema tells them."""
    if column_type.startswith("tinyint(1)"):
        return pa.bool_()
    if data_type == "decimal":
        return _decimal(column_type)
    found = _FROM_MYSQL.get(data_type, pa.string())
    if data_type == "timestamp" and "(" not in column_type:
        return pa.timestamp("s")
    return _UNSIGNED.get(found, found) if "unsigned" in column_type else found


_TINY, _SHORT, _LONG, _FLOAT, _DOUBLE, _TIMESTAMP, _LONGLONG, _INT24 = 1, 2, 3, 4, 5, 7, 8, 9
_DATE, _TIME, _DATETIME, _YEAR, _BIT, _NEWDECIMAL = 10, 11, 12, 13, 16, 246
_TEXTS = frozenset({249, 250, 251, 252, 253, 254})
_OF_CODE = {
    _TINY: pa.int8(), _SHORT: pa.int16(), _LONG: pa.int32(), _INT24: pa.int32(), _LONGLONG: pa.int64(), _FLOAT: pa.float32(), _DOUBLE: pa.float64(),
    _DATE: pa.date32(), _TIME: pa.time64("us"), _DATETIME: pa.date64(), _YEAR: pa.int16(), _BIT: pa.binary(),
}  # fmt: skip
_BINARY_CHARSET = 63


def of_mysql_result(code: int, length: int, scale: int, charset: int, *, unsigned: bool) -> pa.DataType:
    """Of a column of a result, as the server describes it on the wire."""
    if code == _TINY and length == 1:
        return pa.bool_()
    if code == _TIMESTAMP:
        return pa.timestamp("us" if scale else "s")
    if code == _NEWDECIMAL:
        precision = length - (scale > 0) - (not unsigned)
        return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(min(precision, 76), min(scale, 76))
    if code in _TEXTS:
        return pa.binary() if charset == _BINARY_CHARSET else pa.large_string()
    found = _OF_CODE.get(code, pa.string())
    return _UNSIGNED.get(found, found) if unsigned else found


def of_postgresql(type_name: str, shown: str) -> pa.DataType:
    """`type_name`: typname; `shown`: as format_type shows it."""
    return _decimal(shown) if type_name == "numeric" else _FROM_POSTGRESQL.get(type_name, pa.string())


def _decimal(shown: str) -> pa.DataType:
    found = re.search(r"\((\d+)(?:,\s*(\d+))?\)", shown)
    if not found:
        return pa.string()  # of any size: only text holds it
    precision, scale = int(found.group(1)), int(found.group(2) or 0)
    if (precision, scale) == (20, 0):
        return pa.uint64()
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(min(precision, 76), min(scale, 76))


def table_name(uri: str, longest: int) -> str:
    """The whole text is one table's name, whatever it contains; what the server would cut off or change is refused."""
    if not uri or "\0" in uri or len(uri.encode()) > longest or uri != uri.strip():
        raise SourceForbidden(f"{uri[:80]!r} cannot be the name of a table")
    if uri.startswith(STAGING):
        raise SourceForbidden(f"{uri!r} is a table that is being written; choose another name")
    return uri


def query_seconds(info: SourceInfo) -> int:
    """How long a query of an engine may run, by the source's setting."""
    text = info.extra.get("query_seconds") or str(_QUERY_SECONDS)
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:7]) <= _MOST_SECONDS):
        raise SourceError(f"`query_seconds` of the source is a whole number between 1 and {_MOST_SECONDS}")
    return int(text)


def result_schema(fields: Sequence[pa.Field]) -> pa.Schema:
    names = [each.name for each in fields]
    double = sorted({each for each in names if names.count(each) > 1})
    if double:
        raise SourceError(f"the query has several columns {', '.join(double)}; give them different names with AS")
    return pa.schema(fields)
