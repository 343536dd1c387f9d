"""What the columns of a DomainData mean in Arrow. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from coterie.kuscia.api.types.data import DataColumn
from coterie.kuscia.datamesh.errors import GrpcStatusName, MeshError, MeshErrorCode
from coterie.kuscia.sources.types import arrow_of

RAW_SCHEMA = pa.schema([pa.field("data", pa.binary())])


def schema_of(columns: Sequence[DataColumn], kind: str = "") -> pa.Schema:
    """FailedPrecondition when a type is unknown."""
    fields = []
    for column in columns:
        found = arrow_of(column.type)
        if found is None:
            raise MeshError(
                MeshErrorCode.INVALID,
                f'column "{column.name}" is of the unknown type "{column.type}"',
                GrpcStatusName.FAILED_PRECONDITION,
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
        raise MeshError(MeshErrorCode.INVALID, f"there is no column {', '.join(missing)}; there are {', '.join(known)}")
    return tuple(known[name] for name in dict.fromkeys(asked))
