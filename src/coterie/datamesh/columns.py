"""What the columns of a DomainData mean in Arrow. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from coterie.api.types.kuscia_data import DataColumn
from coterie.datamesh.problems import Code, Kind, MeshProblem

_TYPES: dict[str, pa.DataType] = {
    **{
        name: getattr(pa, name)() for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    },
    "int": pa.int64(),
    "uint": pa.uint64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "float": pa.float64(),
    "date32": pa.date32(),
    "date": pa.date32(),
    "date64": pa.date64(),
    "datetime": pa.date64(),
    "time32": pa.time32("s"),
    "time64": pa.time64("us"),
    "timestamp": pa.timestamp("s"),
    "duration": pa.duration("s"),
    "bool": pa.bool_(),
    "string": pa.string(),
    "str": pa.string(),
    "large_string": pa.large_string(),
    "large_str": pa.large_string(),
    "large_utf8": pa.large_string(),
    "binary": pa.binary(),
}
RAW_SCHEMA = pa.schema([pa.field("data", pa.binary())])


def arrow_type(name: str) -> pa.DataType | None:
    return _TYPES.get(name.lower())


def schema_of(columns: Sequence[DataColumn], kind: str = "") -> pa.Schema:
    """FailedPrecondition when a type is unknown."""
    fields = []
    for column in columns:
        found = arrow_type(column.type)
        if found is None:
            raise MeshProblem(
                Code.INVALID, f'column "{column.name}" is of the unknown type "{column.type}"', Kind.FAILED_PRECONDITION
            )
        fields.append(pa.field(column.name, found, nullable=not column.not_nullable))
    return pa.schema(fields, metadata={"type": kind} if kind else None)


def selected(columns: Sequence[DataColumn], asked: Sequence[str]) -> tuple[DataColumn, ...]:
    """Those asked for, in the order in which they are asked for; all when none is."""
    if not asked:
        return tuple(columns)
    known = {each.name: each for each in columns}
    missing = [name for name in asked if name not in known]
    if missing:
        raise MeshProblem(Code.INVALID, f"there is no column {', '.join(missing)}; there are {', '.join(known)}")
    return tuple(known[name] for name in dict.fromkeys(asked))
