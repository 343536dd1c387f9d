"""Values become what their column declares, or the error says which column and row does not fit. Pure.

Text (of a CSV file, of a database) and typed values (of Parquet and the like) go the same way: one vectorised cast, and
only when that fails a slower look: first with blanks removed and empty cells as NULL, then for the row to name.
Messages never quote the value: who asks for one column must not see another's.
"""

from __future__ import annotations

import base64
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from coterie.kuscia.sources.protocol import SourceError

_NO_FIT = (ValueError, NotImplementedError, TypeError)
_TRUE_THEN_FALSE = pa.array(["true", "t", "1", "yes", "false", "f", "0", "no"], pa.large_string())


def fit(batch: pa.RecordBatch, schema: pa.Schema, first_row: int = 0) -> pa.RecordBatch:
    """The schema's columns, by name, in its order and its types."""
    columns = []
    for field in schema:
        if field.name not in batch.schema.names:
            raise SourceError(f'there is no column "{field.name}"; there are {", ".join(batch.schema.names)}')
        column = batch.column(batch.schema.get_field_index(field.name))
        columns.append(convert(column, field.type, field.name, first_row))
        if not field.nullable and columns[-1].null_count:
            row = first_row + pc.index(columns[-1].is_null(), True).as_py() + 1
            raise SourceError(f'column "{field.name}", row {row}: is NULL, which the column does not allow')
    return pa.RecordBatch.from_arrays(columns, schema=schema) if columns else batch.select([])


def convert(values: pa.Array, target: pa.DataType, name: str, first_row: int = 0) -> pa.Array:
    if values.type == target:
        return values
    try:
        return _cast(values, target)
    except _NO_FIT:
        row = first_row + _first_bad(values, lambda part: _cast(part, target)) + 1
    raise SourceError(f'column "{name}", row {row}: the value is not of the declared type {target}') from None


def fits(values: pa.Array, target: pa.DataType) -> bool:
    try:
        _cast(values, target)
    except _NO_FIT:
        return False
    return True


def _first_bad(values: pa.Array, cast: Callable[[pa.Array], object]) -> int:
    """Where casting fails first: by halves, as a cast tells only that it failed."""
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            cast(values.slice(low, middle - low))
        except _NO_FIT:
            high = middle
        else:
            low = middle
    return low


def is_text(found: pa.DataType) -> bool:
    return bool(pa.types.is_string(found) or pa.types.is_large_string(found))


def is_bytes(found: pa.DataType) -> bool:
    return bool(pa.types.is_binary(found) or pa.types.is_large_binary(found))


def _cast(values: pa.Array, target: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if not is_text(values.type):
        return _from_typed(values, target)
    if is_text(target):
        return values.cast(target)
    if is_bytes(target):
        return pa.array([None if each is None else base64.b64decode(each) for each in values.to_pylist()], target)
    try:
        return _from_text(values, target)
    except _NO_FIT:
        trimmed = pc.utf8_trim_whitespace(values)
        return _from_text(pc.if_else(pc.equal(trimmed, ""), pa.scalar(None, values.type), trimmed), target)


def _from_text(values: pa.Array, target: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(target):
        found = pc.index_in(pc.utf8_lower(values).cast(pa.large_string()), _TRUE_THEN_FALSE)
        if found.null_count > values.null_count:
            raise ValueError("neither true nor false")
        return pc.less(found, len(_TRUE_THEN_FALSE) // 2)
    if pa.types.is_date64(target):
        return _timestamp(values, "ms", None).view(target)
    if pa.types.is_timestamp(target):
        return _timestamp(values, target.unit, target.tz)
    if pa.types.is_time(target):
        # Arrow reads no times of day from text; the first day's moments are the same numbers.
        moments = pc.binary_join_element_wise("1970-01-01", values.cast(pa.string()), " ")
        return _timestamp(moments, target.unit, None).cast(target)
    if pa.types.is_duration(target):
        return values.cast(pa.int64()).view(target)
    return values.cast(target)


def _timestamp(values: pa.Array, unit: str, zone: str | None) -> pa.Array:
    """With and without a fraction, with and without a zone. Without one it is UTC."""
    target = pa.timestamp(unit, zone)
    fine = "us" if unit in ("s", "ms") else unit
    for first in (pa.timestamp(unit), pa.timestamp(fine), pa.timestamp(fine, "UTC")):
        try:
            return values.cast(first).cast(target)
        except _NO_FIT:
            continue
    raise ValueError("no timestamp")


def _from_typed(values: pa.Array, target: pa.DataType) -> pa.Array:
    found = values.type
    if pa.types.is_date64(target) and pa.types.is_timestamp(found):
        return values.cast(pa.timestamp("ms", found.tz)).view(target)  # a plain cast would cut off the time of day
    if pa.types.is_integer(found) and (pa.types.is_time(target) or pa.types.is_duration(target)):
        return values.cast(pa.int32() if pa.types.is_time32(target) else pa.int64()).view(target)
    if is_bytes(found) and is_text(target):
        return values.cast(target)
    if pa.types.is_boolean(target) and pa.types.is_integer(found):
        return pc.not_equal(values, 0)
    return values.cast(target)
