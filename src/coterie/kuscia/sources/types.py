"""Names of column types, as DomainData spells them, and Arrow's types. Pure."""

from __future__ import annotations

import pyarrow as pa

_NAMES: dict[str, pa.DataType] = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "int": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
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
    "str": pa.string(),  # before "string": SecretFlow knows no other
    "string": pa.string(),
    "large_string": pa.large_string(),
    "large_str": pa.large_string(),
    "large_utf8": pa.large_string(),
    "binary": pa.binary(),
}
# The first name of a type is the one that is written; a schema that was read may hold more than the names can say.
_OF_TYPE = {str(found): name for name, found in reversed(_NAMES.items())}


def arrow_of(name: str) -> pa.DataType | None:
    """None when there is no such name; case does not matter."""
    return _NAMES.get(name.lower())


def kuscia_of(found: pa.DataType) -> str:
    """The name that holds every value of the type, or the nearest: finer times lose what seconds do not hold."""
    exact = _OF_TYPE.get(str(found))
    if exact:
        return exact
    if pa.types.is_dictionary(found):
        return kuscia_of(found.value_type)
    if pa.types.is_timestamp(found):
        return "timestamp" if found.unit == "s" else "datetime"
    for belongs, name in _NEAREST:
        if belongs(found):
            return name
    return "str"


_NEAREST = (
    (pa.types.is_time, "time64"),
    (pa.types.is_duration, "duration"),
    (pa.types.is_float16, "float32"),
    (pa.types.is_large_binary, "binary"),
    (pa.types.is_fixed_size_binary, "binary"),
    (pa.types.is_null, "str"),
)
