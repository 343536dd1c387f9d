"""Arrow's types in MySQL and PostgreSQL, both ways, and names in SQL. Pure.

To SQL the maps are Kuscia's, but for bytes: PostgreSQL's TEXT does not hold them (BYTEA does), and Kuscia has none for
MySQL.
"""

from __future__ import annotations

import re

import pyarrow as pa

from coterie.kuscia.sources.protocol import SourceError, SourceForbidden

STAGING = "coterie_staging_"
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
