"""How CEL sees a schema: the static type of each node, and the conversion of data that JSON spells as strings.

Most nodes need no conversion, and then rules run on the stored data itself. Fields keep their names unless they are
no CEL identifier; those are escaped as Kubernetes does (`foo.bar` is `self.foo__dot__bar`).
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from coterie.kube.api.cel.errors import CelError
from coterie.kube.api.cel.lexer import RESERVED
from coterie.kube.api.cel.lib_time import parse_date, parse_duration, parse_timestamp
from coterie.kube.api.cel.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    STRING,
    TIMESTAMP,
    CelType,
    list_of,
    map_of,
)
from coterie.kube.api.cel.values import MapList, SetList
from coterie.kube.api.schema.node import Schema

Convert = Callable[[Any], Any]
_ACCESSIBLE: Final = re.compile(r"[a-zA-Z_.\-/][a-zA-Z0-9_.\-/]*")
_ESCAPES: Final = (("__", "__underscores__"), (".", "__dot__"), ("-", "__dash__"), ("/", "__slash__"))
_WORDS: Final = RESERVED | {"true", "false", "null", "in"}


@dataclass(frozen=True, slots=True)
class Decl:
    type: CelType
    convert: Convert | None = None
    """None: the data is used as it is."""


def escape(name: str) -> str:
    """The field as rules write it; empty when rules cannot reach it."""
    if not _ACCESSIBLE.fullmatch(name):
        return ""
    if name in _WORDS:
        return f"__{name}__"
    for plain, escaped in _ESCAPES:
        name = name.replace(plain, escaped)
    return name


def declare(schema: Schema, is_resource: bool = False) -> Decl | None:
    """The node's declaration, made once; None where CEL cannot look (no type: anything may stand there)."""
    known: Decl | None = schema.cel_type
    if known is None:
        known = schema.cel_type = _declare(schema, is_resource or schema.embedded_resource)
    return known


def _declare(schema: Schema, is_resource: bool) -> Decl | None:
    if schema.int_or_string:
        return Decl(DYN)
    match schema.type:
        case "object":
            return _declare_map(schema) if schema.additional is not None else _declare_object(schema, is_resource)
        case "array":
            return _declare_list(schema)
        case "string":
            return _STRINGS.get(schema.format, Decl(STRING))
        case "integer":
            # A whole float (`3.0`) stays one: int and float agree in every operator, and a copy of each object with
            # a number in it would cost more than all rules.
            return Decl(INT)
        case "number":
            return Decl(DOUBLE)
        case "boolean":
            return Decl(BOOL)
    return None


def _bytes(text: Any) -> Any:
    try:
        return binascii.a2b_base64(text)
    except ValueError as fault:
        raise CelError("illegal base64 data") from fault


def _text(parse: Callable[[str], Any]) -> Convert:
    return lambda value: parse(value) if type(value) is str else value


_STRINGS: Final = {
    "byte": Decl(BYTES, _text(_bytes)),
    "date": Decl(TIMESTAMP, _text(parse_date)),
    "date-time": Decl(TIMESTAMP, _text(parse_timestamp)),
    "duration": Decl(DURATION, _text(parse_duration)),
}
_META: Final = CelType("object", fields={"name": ("name", STRING), "generateName": ("generateName", STRING)})
"""Of a resource's metadata rules see only this."""


def _declare_object(schema: Schema, is_resource: bool) -> Decl:
    fields: dict[str, tuple[str, CelType]] = {}
    converted: dict[str, Convert] = {}
    for name, child in schema.properties.items():
        word = escape(name)
        declared = Decl(_META) if is_resource and name == "metadata" else declare(child)
        if not word or declared is None:
            continue
        fields[word] = (name, declared.type)
        if declared.convert is not None:
            converted[name] = declared.convert
    type_ = CelType("object", fields=fields)
    if not converted:
        return Decl(type_)

    def convert(value: Any) -> Any:
        if type(value) is not dict:
            return value
        out = dict(value)
        for name, change in converted.items():
            if out.get(name) is not None:
                out[name] = change(out[name])
        return out

    return Decl(type_, convert)


def _declare_map(schema: Schema) -> Decl | None:
    inner = declare(schema.additional) if schema.additional is not None else None
    if inner is None:
        return None
    type_ = map_of(STRING, inner.type)
    change = inner.convert
    if change is None:
        return Decl(type_)

    def convert(value: Any) -> Any:
        if type(value) is not dict:
            return value
        return {key: item if item is None else change(item) for key, item in value.items()}

    return Decl(type_, convert)


def _declare_list(schema: Schema) -> Decl | None:
    inner = declare(schema.items) if schema.items is not None else None
    if inner is None:
        return None
    type_ = list_of(inner.type)
    change, keys, kind = inner.convert, schema.list_keys, schema.list_type
    if change is None and kind == "atomic":
        return Decl(type_)

    def convert(value: Any) -> Any:
        if type(value) is not list:
            return value
        items = value if change is None else [item if item is None else change(item) for item in value]
        if kind == "set":
            return SetList(items)
        return MapList(items, keys) if kind == "map" else items

    return Decl(type_, convert)
