"""Reading a built-in object as Go's decoder would: types, unknown fields, nulls and number forms in one walk.

Nearly all objects are clean, so there are two walks. The first only answers "is anything to be done?": closures made
once for each schema node, no paths, no changes. When it says yes, the second walk repairs the object in place and
gathers what to tell: nulls are dropped ("not given"), `3.0` becomes `3`, quantities get their canonical spelling,
unknown fields are removed and named.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from coterie.kube.api.quantity import QuantityError, canonical
from coterie.kube.api.schema.node import Schema

Check = Callable[[Any], bool]
_INT32: Final = 2**31
_INT64: Final = 2**63
_DATE_TIME: Final = re.compile(
    r"\d{4}-(?:0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])[Tt](?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?"
    r"(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)
_ZERO: Final[dict[str, Callable[[], Any]]] = {
    "string": str,
    "integer": int,
    "number": int,
    "boolean": bool,
    "object": dict,
    "array": list,
}
_JSON_NAME: Final = {str: "string", bool: "bool", int: "number", float: "number", list: "array", dict: "object"}
TOO_DEEP: Final = "json: exceeded max depth"
_GO_KIND: Final = {str: "string", bool: "bool", int: "int64", float: "float64", list: "slice", dict: "map"}


class TypeFault(str):
    """What is wrong, in the words of Go's JSON decoder; `conversion` says it as Kubernetes does after a strategic merge."""

    conversion: str

    def __new__(cls, text: str, conversion: str = "") -> TypeFault:
        made = super().__new__(cls, text)
        made.conversion = conversion or text
        return made


def _conversion(value: Any, go_name: str, is_map: bool) -> str:
    given = _GO_KIND.get(type(value), "invalid")
    if go_name == "object":
        return f"cannot restore map from {given}" if is_map else f"cannot restore struct from: {given}"
    if go_name == "array":
        return f"cannot restore slice from {given}"
    if (given, go_name) == ("int64", "string") or (given == "float64" and go_name.startswith("int")):
        return f"cannot convert {given} to {go_name}"
    return f"unrecognized type: {go_name}" if go_name.islower() else ""


def decode_check(obj: dict[str, Any], schema: Schema) -> tuple[list[str], list[str]]:
    """Repair `obj` in place; answer (type errors, paths of unknown fields, which are removed).

    A type error is a whole sentence for a 400; the object must then not be used.
    """
    try:
        if (schema.fast_check or _checker(schema))(obj):
            return [], []
        walk = _Repair(obj.get("kind") if isinstance(obj, dict) else None)
        walk.value(obj, schema, "")
    except RecursionError:
        return [TOO_DEEP], []
    return walk.errors, walk.unknown


def check_types(obj: dict[str, Any], schema: Schema) -> list[str]:
    """Only the type errors of `decode_check`."""
    return decode_check(obj, schema)[0]


def is_date_time(text: str) -> bool:
    """RFC 3339, the calendar included: there is no 30th of February."""
    found = _DATE_TIME.fullmatch(text)
    if found is None:
        return False
    if found[1] > "28":
        try:
            datetime.fromisoformat(text[:10])
        except ValueError:
            return False
    return True


def is_base64(text: str) -> bool:
    """The standard alphabet with padding."""
    try:
        binascii.a2b_base64(text, strict_mode=True)
    except ValueError:  # binascii.Error and non-ASCII text
        return False
    return True


# -- the first walk ---------------------------------------------------------------------------------------------------


def _checker(schema: Schema) -> Check:
    if schema.fast_check is None:
        # The node answers through itself until its closure is made: definitions may contain themselves.
        schema.fast_check = lambda value: _checker(schema)(value)
        schema.fast_check = _make_checker(schema)
    made: Check = schema.fast_check
    return made


def _make_checker(schema: Schema) -> Check:
    plain = _plain_type(schema)
    if plain is not None:
        return lambda value: type(value) is plain
    if schema.quantity:
        return _clean_quantity
    if schema.int_or_string:
        return lambda value: type(value) is str or (type(value) is int and -_INT32 <= value < _INT32)
    if schema.type == "object":
        return _object_checker(schema)
    if schema.type == "array":
        return _array_checker(schema)
    if schema.type == "integer":
        bound = _INT32 if schema.format == "int32" else _INT64
        return lambda value: type(value) is int and -bound <= value < bound
    if schema.type == "number":
        return lambda value: type(value) is float or type(value) is int
    if schema.type == "string":
        known = is_base64 if schema.format == "byte" else is_date_time
        return lambda value: type(value) is str and known(value)
    return lambda value: value is not None


def _plain_type(schema: Schema) -> type | None:
    """The Python type that is the whole check, where that is so."""
    if schema.type == "string" and schema.format not in ("byte", "date-time"):
        return str
    if schema.type == "boolean":
        return bool
    if schema.type == "object" and schema.preserve_unknown and not schema.properties:
        return dict
    return None


def _object_checker(schema: Schema) -> Check:
    additional = schema.additional
    if additional is not None:
        plain = _plain_type(additional)
        if plain is not None:
            only = {plain}
            return lambda value: type(value) is dict and set(map(type, value.values())) <= only
        inner = _checker(additional)
        return lambda value: type(value) is dict and all(map(inner, value.values()))
    plain_fields = {key: plain for key, node in schema.properties.items() if (plain := _plain_type(node))}
    lazy = {key: node for key, node in schema.properties.items() if key not in plain_fields}
    deep: dict[str, Check] = {}
    preserve = schema.preserve_unknown

    def check(value: Any) -> bool:
        if type(value) is not dict:
            return False
        for key, item in value.items():
            if type(item) is plain_fields.get(key):
                continue
            inner = deep.get(key)
            if inner is None:
                node = lazy.get(key)
                if node is None:
                    if preserve and key not in plain_fields:
                        continue
                    return False
                inner = deep[key] = _checker(node)
            if not inner(item):
                return False
        return True

    return check


def _array_checker(schema: Schema) -> Check:
    items = schema.items
    if items is None:
        return lambda value: type(value) is list
    plain = _plain_type(items)
    if plain is not None:
        only = {plain}
        return lambda value: type(value) is list and set(map(type, value)) <= only
    # Not `_checker(items)` now: the items may be the very node that is being made.
    return lambda value: type(value) is list and all(map(items.fast_check or _checker(items), value))


def _clean_quantity(value: Any) -> bool:
    if type(value) is not str:
        return False
    try:
        return canonical(value) == value
    except QuantityError:
        return False


# -- the second walk --------------------------------------------------------------------------------------------------


class _Repair:
    def __init__(self, kind: object) -> None:
        self.kind = kind if isinstance(kind, str) and len(kind) < 64 else "Object"
        self.errors: list[str] = []
        self.unknown: list[str] = []

    def value(self, value: Any, schema: Schema, path: str) -> Any:
        """`value` as it shall stand; the same object when it is a dict or a list."""
        kind = schema.type
        if kind == "object":
            if type(value) is not dict:
                return self._wrong(value, path, "object", is_map=schema.additional is not None)
            return self._map(value, schema.additional, path) if schema.additional else self._object(value, schema, path)
        if kind == "array":
            return self._array(value, schema, path)
        if schema.quantity:
            return self._quantity(value, path)
        if schema.int_or_string:
            return value if type(value) is str else self._integer(value, "int32", path, "intstr.IntOrString")
        if kind == "integer":
            return self._integer(value, schema.format, path)
        if kind == "boolean":
            return value if type(value) is bool else self._wrong(value, path, "bool")
        if kind == "number":
            return value if type(value) in (int, float) else self._wrong(value, path, "float64")
        if kind == "string":
            return self._string(value, schema.format, path)
        return value

    def _object(self, value: dict[str, Any], schema: Schema, path: str) -> dict[str, Any]:
        prefix = f"{path}." if path else ""
        for key in list(value):
            node = schema.properties.get(key)
            if node is None:
                if not schema.preserve_unknown:
                    self.unknown.append(prefix + str(key))
                    del value[key]
            elif value[key] is None:
                del value[key]
            else:
                value[key] = self.value(value[key], node, prefix + key)
        return value

    def _map(self, value: dict[str, Any], node: Schema, path: str) -> dict[str, Any]:
        for key, item in value.items():
            # Go keeps the entry with the zero value of its type.
            # Go does not tell the key of a map, except on the way to a field of a struct.
            inner = path if _plain_type(node) is not None else f"{path}.{key}"
            value[key] = _zero(node) if item is None else self.value(item, node, inner)
        return value

    def _array(self, value: Any, schema: Schema, path: str) -> Any:
        if type(value) is not list:
            return self._wrong(value, path, "array")
        node = schema.items
        if node is not None:
            for index, item in enumerate(value):
                value[index] = _zero(node) if item is None else self.value(item, node, f"{path}[{index}]")
        return value

    def _integer(self, value: Any, format: str, path: str, go_type: str = "") -> Any:
        go_name = go_type or ("int32" if format == "int32" else "int64")
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int:
            return self._wrong(value, path, go_name)
        bound = _INT32 if format == "int32" else _INT64
        return value if -bound <= value < bound else self._wrong(value, path, go_name)

    def _string(self, value: Any, format: str, path: str) -> Any:
        if type(value) is not str:
            return self._wrong(value, path, "time.Time" if format == "date-time" else "string")
        if format == "date-time" and not is_date_time(value):
            self.errors.append(
                f'parsing time "{value[:64]}" as "2006-01-02T15:04:05Z07:00": cannot parse field "{path}"'
            )
        elif format == "byte" and not is_base64(value):
            # Go's `[]byte` reads line breaks and writes none.
            value = value.replace("\n", "").replace("\r", "")
            if not is_base64(value):
                self.errors.append(f'illegal base64 data in field "{path}"')
        return value

    def _quantity(self, value: Any, path: str) -> Any:
        if type(value) not in (str, int, float):
            return self._wrong(value, path, "resource.Quantity")
        try:
            return canonical(value)
        except QuantityError as fault:
            self.errors.append(f'{fault} (field "{path}")')
            return value

    def _wrong(self, value: Any, path: str, go_name: str, *, is_map: bool = False) -> Any:
        given = _JSON_NAME.get(type(value), "null")
        if given == "number":
            # The number is told only where a number was wanted: out of range, or a fraction.
            given = f"number {value}" if go_name.startswith("int") else given
        where = f"{self.kind}.{path}" if path else self.kind
        text = f"json: cannot unmarshal {given} into Go struct field {where} of type {go_name}"
        self.errors.append(TypeFault(text, _conversion(value, go_name, is_map)))
        return value


def _zero(node: Schema) -> Any:
    if node.quantity:
        return "0"
    if node.int_or_string:
        return 0
    if node.format == "date-time":
        # Go writes the time that is none as null, and so can read it again.
        return None
    make = _ZERO.get(node.type)
    return make() if make else None
