"""Encode objects as `application/vnd.kubernetes.protobuf`, by the same table that the decoder uses.

A message becomes a dictionary from JSON names to functions `value -> bytes`, made when it is first met. Fields that
the table does not know are left out, as Kubernetes prunes them. Zeros that Go would write are left out as well: a
reader takes an absent plain field for its zero, and a pointer is only absent where the JSON has no such field.
"""

from __future__ import annotations

import struct
from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from typing import Any

import orjson

from coterie.kube.api.wire.protobuf import MAGIC
from coterie.kube.api.wire.table import Field, Message, Op, field_rows, message, message_of_kind

FieldEncoder = Callable[[Any], bytes]
MessageEncoder = Callable[[Any], bytes]
Object = dict[str, Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_double = struct.Struct("<d").pack
_MASK = (1 << 64) - 1


def _varint(number: int) -> bytes:
    number &= _MASK
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


_SMALL_COUNT = 256
_SMALL = [_varint(number) for number in range(_SMALL_COUNT)]


def varint(number: int) -> bytes:
    return _SMALL[number] if 0 <= number < _SMALL_COUNT else _varint(number)


def encode(obj: Object) -> bytes | None:
    """An object with its envelope; None where its kind has no protobuf form."""
    api_version, kind = obj.get("apiVersion", ""), obj.get("kind", "")
    found = message_of_kind(api_version, kind)
    if found is None:
        return None
    return envelope(api_version, kind, encoder_of(found)(obj))


def encode_plain(obj: Object, encoder: MessageEncoder) -> bytes:
    """As `encode`, where the caller knows the encoder of the object's kind."""
    return envelope(obj["apiVersion"], obj["kind"], encoder(obj))


def envelope(api_version: str, kind: str, raw: bytes) -> bytes:
    return b"%b%b%b" % (envelope_head(api_version, kind), varint(len(raw)), raw)


@lru_cache(maxsize=512)
def envelope_head(api_version: str, kind: str) -> bytes:
    """What stands before the length of the object's own bytes."""
    version, name = api_version.encode(), kind.encode()
    meta = b"\x0a%b%b\x12%b%b" % (varint(len(version)), version, varint(len(name)), name)
    return b"%b\x0a%b%b\x12" % (MAGIC, varint(len(meta)), meta)


def watch_event(kind: str, obj: bytes) -> bytes:
    """One frame of a watch: a length of four bytes, then a WatchEvent around an object with its envelope."""
    name = kind.encode()
    raw = b"\x0a%b%b" % (varint(len(obj)), obj)
    event = b"\x0a%b%b\x12%b%b" % (varint(len(name)), name, varint(len(raw)), raw)
    return b"%b%b" % (len(event).to_bytes(4, "big"), event)


def kind_encoder(api_version: str, kind: str) -> MessageEncoder | None:
    found = message_of_kind(api_version, kind)
    return encoder_of(found) if found is not None else None


def message_encoder(name: str) -> MessageEncoder:
    return encoder_of(message(name))


@cache
def encoder_of(of: Message) -> MessageEncoder:
    special = _SPECIAL.get(of.name)
    if special is not None:
        return special
    if of.name.endswith(_BARE_LISTS):
        return _strings
    return _plain_message(of)


def _plain_message(of: Message) -> MessageEncoder:
    fields: dict[str, FieldEncoder] = {}
    inlined: list[tuple[bytes, MessageEncoder]] = []
    ready = False

    def compile_fields() -> None:
        for number, field in field_rows(of):
            if field.op == Op.INLINE:
                assert field.message is not None
                inlined.append((varint(number << 3 | 2), encoder_of(field.message)))
            else:
                fields[field.name] = _field(number, field)

    def encode_fields(obj: Object) -> bytes:
        nonlocal ready
        if not ready:
            compile_fields()  # not before: messages refer to themselves
            ready = True
        find = fields.get
        parts = [
            encode_field(value)
            for name, value in obj.items()
            if value is not None and (encode_field := find(name)) is not None
        ]
        for tag, inner in inlined:
            body = inner(obj)
            if body:
                parts.append(b"%b%b%b" % (tag, varint(len(body)), body))
        return b"".join(parts)

    return encode_fields


def _field(number: int, field: Field) -> FieldEncoder:
    if field.op == Op.MAP:
        return _map(number, field)
    one = _single(number, field)
    if field.many:
        return lambda values: b"".join([one(value) for value in values])
    return one


def _single(number: int, field: Field) -> FieldEncoder:
    small = _SMALL
    match field.op:
        case Op.STRING:
            tag = varint(number << 3 | 2)

            def text(value: Any) -> bytes:
                data: bytes = value.encode()
                size = len(data)
                return tag + (small[size] if size < _SMALL_COUNT else _varint(size)) + data  # faster than formatting

            return text
        case Op.INT:
            tag = varint(number << 3)
            return lambda value: tag + varint(int(value))
        case Op.BOOL:
            tag = varint(number << 3)
            return lambda value: tag + (b"\x01" if value else b"\x00")
        case Op.DOUBLE:
            tag = varint(number << 3 | 1)
            return lambda value: tag + _double(value)
        case Op.BASE64 | Op.RAW:
            tag = varint(number << 3 | 2)

            def data(value: Any) -> bytes:
                raw = b64decode(value)
                return b"%b%b%b" % (tag, varint(len(raw)), raw)

            return data
    assert field.message is not None
    tag, inner = varint(number << 3 | 2), encoder_of(field.message)

    def nested(value: Any) -> bytes:
        body = inner(value)
        size = len(body)
        return tag + (small[size] if size < _SMALL_COUNT else _varint(size)) + body

    return nested


def _map(number: int, field: Field) -> FieldEncoder:
    entry = field.message
    assert entry is not None and entry.fields is not None
    tag = varint(number << 3 | 2)
    value_field = next(each for each in entry.fields.values() if each.name == "value")
    key_of, value_of = _single(1, Field(Op.STRING, "key", False, True)), _single(2, value_field)

    def entries(values: Any) -> bytes:
        parts = []
        for key, value in values.items():
            body = key_of(key) + (value_of(value) if value is not None else b"")
            size = len(body)
            parts.append(tag + (_SMALL[size] if size < _SMALL_COUNT else _varint(size)) + body)
        return b"".join(parts)

    return entries


# -- messages whose JSON is not an object, the reverse of values.py ------------------------------------------------------


@lru_cache(maxsize=1024)
def _time(text: str) -> bytes:
    """Whole seconds: what a `Time` holds."""
    return b"\x08" + varint((_moment(text) - _EPOCH) // _SECOND) + b"\x10\x00"


def _micro_time(text: str) -> bytes:
    since = _moment(text) - _EPOCH
    return b"\x08" + varint(since // _SECOND) + b"\x10" + varint(since.microseconds * 1000)


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


@lru_cache(maxsize=1024)
def _quantity(value: str | float) -> bytes:
    text = str(value).encode()
    return b"\x0a%b%b" % (varint(len(text)), text)


def _int_or_string(value: int | str) -> bytes:
    if isinstance(value, str):
        text = value.encode()
        return b"\x08\x01\x10\x00\x1a%b%b" % (varint(len(text)), text)
    return b"\x08\x00\x10%b\x1a\x00" % varint(int(value))


def _raw_json(value: Any) -> bytes:
    raw = orjson.dumps(value)
    return b"\x0a%b%b" % (varint(len(raw)), raw)


def _strings(values: list[str]) -> bytes:
    texts = [value.encode() for value in values]
    return b"".join([b"\x0a%b%b" % (varint(len(text)), text) for text in texts])


def _schema(number: int, value: Any) -> bytes:
    body = encoder_of(message("apiextensions.v1.JSONSchemaProps"))(value)
    return b"%b%b%b" % (varint(number << 3 | 2), varint(len(body)), body)


def _schema_or_array(value: Any) -> bytes:
    return b"".join([_schema(2, each) for each in value]) if isinstance(value, list) else _schema(1, value)


def _schema_or_bool(value: Any) -> bytes:
    if isinstance(value, dict):
        return b"\x08\x01" + _schema(2, value)
    return b"\x08\x01" if value else b"\x08\x00"


def _schema_or_strings(value: Any) -> bytes:
    if isinstance(value, dict):
        return _schema(1, value)
    return b"".join([b"\x12%b%b" % (varint(len(text)), text) for text in (each.encode() for each in value)])


_BARE_LISTS = (".ExtraValue", ".Verbs")
_SPECIAL: dict[str, MessageEncoder] = {
    "api.resource.Quantity": _quantity,
    "apiextensions.v1.JSON": _raw_json,
    "apiextensions.v1.JSONSchemaPropsOrArray": _schema_or_array,
    "apiextensions.v1.JSONSchemaPropsOrBool": _schema_or_bool,
    "apiextensions.v1.JSONSchemaPropsOrStringArray": _schema_or_strings,
    "meta.v1.FieldsV1": _raw_json,
    "meta.v1.MicroTime": _micro_time,
    "meta.v1.Time": _time,
    "runtime.RawExtension": _raw_json,
    "util.intstr.IntOrString": _int_or_string,
}
