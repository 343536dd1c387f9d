"""What ODPS and Hive have in common: names without case, and tables whose partitions are columns. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

from coterie.kuscia.sources.convert import fit
from coterie.kuscia.sources.protocol import SourceError, SourceForbidden
from coterie.kuscia.sources.sql_types import STAGING

_NAME = re.compile(r"[A-Za-z0-9_]{1,128}")


def warehouse_table(uri: str) -> str:
    """One table of the source's own project or database: a dot would lead to another."""
    if not _NAME.fullmatch(uri):
        raise SourceForbidden(f"{uri[:80]!r} cannot be the name of a table; it has letters, digits and _ only")
    if uri.lower().startswith(STAGING):
        raise SourceForbidden(f"{uri!r} is a table that is being written; choose another name")
    return uri


def stored_names(asked: Sequence[str], stored: Sequence[str]) -> list[str]:
    """How the columns that are asked for are spelt where they lie: case does not matter there."""
    found = {each.lower(): each for each in stored}
    missing = [each for each in asked if each.lower() not in found]
    if missing:
        raise SourceError(f"there is no column {', '.join(missing)}; there are {', '.join(stored)}")
    return [found[each.lower()] for each in asked]


def fitted(columns: Sequence[pa.Array], wanted: pa.Schema, first_row: int) -> pa.RecordBatch:
    """Columns in the order of the schema, whatever they are called where they lie."""
    return fit(pa.RecordBatch.from_arrays(list(columns), names=wanted.names), wanted, first_row)
