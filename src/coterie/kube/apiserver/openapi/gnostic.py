"""The OpenAPI v2 document as protobuf (gnostic's `openapi.v2.Document`): the form in which kubectl asks for it.

A writer for the parts that our document uses. Numbers are those of gnostic's OpenAPIv2.proto; extensions (`x-...`)
and defaults are YAML text there, and JSON is YAML.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson

from coterie.base.protobuf_wire import FIXED64, tag, varint_field
from coterie.base.protobuf_wire import bytes_field as _message

MEDIA_TYPE = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
"""What clients ask for."""
SENT_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
"""What the answer is called: Go refuses to parse a media type with an `@`, even the one it asked for."""

Json = Mapping[str, Any]


def encode(document: Json) -> bytes:
    security = document.get("securityDefinitions", {})
    return b"".join(
        (
            _text(1, document["swagger"]),
            _message(2, _text(1, document["info"]["title"]) + _text(2, document["info"]["version"])),
            _message(8, _named(2, document["paths"], _path_item)),
            _message(9, _named(1, document["definitions"], _schema)),
            *(_message(12, _named(1, needed, _strings)) for needed in document.get("security", ())),
            _message(13, _named(1, security, lambda scheme: _message(2, _api_key(scheme)))),
        )
    )


# ---- the wire ------------------------------------------------------------------------------------------------------


def _text(number: int, value: str) -> bytes:
    return _message(number, value.encode()) if value else b""


def _texts(number: int, values: Iterable[str]) -> bytes:
    return b"".join(_message(number, value.encode()) for value in values)


def _flag(number: int, value: bool) -> bytes:
    return varint_field(number, 1) if value else b""


def _integer(number: int, value: float) -> bytes:
    return varint_field(number, int(value)) if value else b""


def _double(number: int, value: float) -> bytes:
    return tag(number, FIXED64) + struct.pack("<d", value) if value else b""


def _any(number: int, value: Any) -> bytes:
    return _message(number, _message(2, orjson.dumps(value) + b"\n"))


def _anys(number: int, values: Iterable[Any]) -> bytes:
    return b"".join(_any(number, value) for value in values)


def _named(number: int, items: Json, write: Callable[[Any], bytes]) -> bytes:
    """A map, which travels as a list of (name, value)."""
    return b"".join(_message(number, _text(1, name) + _message(2, write(value))) for name, value in items.items())


def _extensions(number: int, holder: Json) -> bytes:
    return b"".join(
        _message(number, _text(1, name) + _any(2, value)) for name, value in holder.items() if name.startswith("x-")
    )


def _strings(values: Iterable[str]) -> bytes:
    return _texts(1, values)


# ---- schemas -------------------------------------------------------------------------------------------------------


def _schema(schema: Json) -> bytes:
    out = [_SCHEMA[key](value) for key, value in schema.items() if key in _SCHEMA]
    out.append(_extensions(31, schema))
    return b"".join(out)


def _additional(value: Any) -> bytes:
    if isinstance(value, bool):
        # Inside a oneof a false has to be written out.
        return _message(21, varint_field(2, value))
    return _message(21, _message(1, _schema(value)))


_SCHEMA: dict[str, Callable[[Any], bytes]] = {
    "$ref": lambda value: _text(1, value),
    "format": lambda value: _text(2, value),
    "title": lambda value: _text(3, value),
    "description": lambda value: _text(4, value),
    "multipleOf": lambda value: _double(6, value),
    "maximum": lambda value: _double(7, value),
    "exclusiveMaximum": lambda value: _flag(8, value),
    "minimum": lambda value: _double(9, value),
    "exclusiveMinimum": lambda value: _flag(10, value),
    "maxLength": lambda value: _integer(11, value),
    "minLength": lambda value: _integer(12, value),
    "pattern": lambda value: _text(13, value),
    "maxItems": lambda value: _integer(14, value),
    "minItems": lambda value: _integer(15, value),
    "uniqueItems": lambda value: _flag(16, value),
    "maxProperties": lambda value: _integer(17, value),
    "minProperties": lambda value: _integer(18, value),
    "required": lambda value: _texts(19, value),
    "enum": lambda value: _anys(20, value),
    "additionalProperties": _additional,
    "type": lambda value: _message(22, _text(1, value)),
    "items": lambda value: _message(23, _message(1, _schema(value))),
    "properties": lambda value: _message(25, _named(1, value, _schema)),
}


# ---- paths ---------------------------------------------------------------------------------------------------------

_METHODS = {"get": 2, "put": 3, "post": 4, "delete": 5, "options": 6, "head": 7, "patch": 8}


def _path_item(item: Json) -> bytes:
    doings = [_message(number, _operation(item[method])) for method, number in _METHODS.items() if method in item]
    return b"".join(doings) + b"".join(_message(9, _parameter(value)) for value in item.get("parameters", ()))


def _operation(operation: Json) -> bytes:
    responses = _named(1, operation["responses"], lambda response: _message(1, _response(response)))
    return b"".join(
        (
            _texts(1, operation.get("tags", ())),
            _text(3, operation.get("description", "")),
            _text(5, operation["operationId"]),
            _texts(6, operation.get("produces", ())),
            _texts(7, operation.get("consumes", ())),
            *(_message(8, _parameter(value)) for value in operation.get("parameters", ())),
            _message(9, responses),
            _texts(10, operation.get("schemes", ())),
            _extensions(13, operation),
        )
    )


def _parameter(parameter: Json) -> bytes:
    """A `ParametersItem` that holds a `Parameter`."""
    described = _text(3, parameter.get("description", "")) + _text(4, parameter["name"])
    required = _flag(1, parameter.get("required", False))
    match parameter["in"]:
        case "body":
            body = (
                _text(1, parameter.get("description", ""))
                + _text(2, parameter["name"])
                + _text(3, "body")
                + _flag(4, parameter.get("required", False))
                + _message(5, _schema(parameter["schema"]))
            )
            return _message(1, _message(1, body))
        case "path":
            path = required + _text(2, "path") + described + _text(5, parameter["type"])
            return _message(1, _message(2, _message(4, path + _flag(19, parameter.get("uniqueItems", False)))))
        case _:
            query = required + _text(2, "query") + described + _text(6, parameter["type"])
            return _message(1, _message(2, _message(3, query + _flag(20, parameter.get("uniqueItems", False)))))


def _response(response: Json) -> bytes:
    out = _text(1, response["description"])
    if "schema" in response:
        out += _message(2, _message(1, _schema(response["schema"])))
    return out


def _api_key(scheme: Json) -> bytes:
    return (
        _text(1, scheme["type"])
        + _text(2, scheme["name"])
        + _text(3, scheme["in"])
        + _text(4, scheme.get("description", ""))
    )
