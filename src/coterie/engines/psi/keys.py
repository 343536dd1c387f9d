"""Keys as text that can be compared, and that no tool on the way understands as anything else.

The library compares text in a CSV file, which it sorts by lines and commas. So what separates is written as `%2C` and
the like, several columns become one, and every key begins with a letter: nothing is empty, and nothing looks like a
number. A key with a NULL equals no other key, not even its like, so it becomes a text that nobody else has.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

_ESCAPED = (("%", "%25"), (",", "%2C"), ('"', "%22"), ("|", "%7C"), ("\n", "%0A"), ("\r", "%0D"), ("\0", "%00"))
_SEPARATOR = "|"


def family(kind: pa.DataType) -> str:
    """Types with the same name here can be compared; empty: these cannot be keys."""
    if pa.types.is_integer(kind):
        return "integer"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    if pa.types.is_date(kind):
        return "date"
    if pa.types.is_boolean(kind):
        return "boolean"
    return "time" if pa.types.is_timestamp(kind) or pa.types.is_time(kind) else ""


def texts(batch: pa.RecordBatch, columns: tuple[str, ...], party: int, first_row: int) -> pa.Array:
    """One text for each row. `party` and `first_row` make what must not be equal to anything different."""
    parts = [_escaped(batch.column(name)) for name in columns]
    whole = parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, _SEPARATOR, null_handling="emit_null")
    keys = pc.binary_join_element_wise("k", whole, "")
    if not keys.null_count:
        return keys
    alone = pa.array([f"n%{party}.{first_row + at}" for at in range(len(keys))], pa.string())
    return pc.if_else(pc.is_valid(keys), keys, alone)


def _escaped(column: pa.Array) -> pa.Array:
    if pa.types.is_date(column.type):
        column = column.cast(pa.date32())
    plain = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    text = column.cast(pa.string())
    if plain:
        content = (text.buffers()[2] or pa.py_buffer(b"")).to_pybytes()
        for special, written in _ESCAPED:
            # Few tables have any, and looking for one byte is quick.
            if special.encode() in content:
                text = pc.replace_substring(text, special, written)
    return text
