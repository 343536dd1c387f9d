"""Decode `application/vnd.kubernetes.protobuf`: four magic bytes, then an envelope that names the kind.

One loop over the bytes, with the table beside it. Work is bounded by the size of the body: every length is checked
against the message around it, nesting is limited, and what a body can make us build is a small multiple of its size.
Unknown fields are skipped, as protobuf demands; a known field of the wrong wire type is refused.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from math import isfinite
from typing import Any, NoReturn

from coterie.base.protobuf_wire import FIXED32, FIXED64, LENGTH, VARINT, ProtobufError, Truncated, decode_varint
from coterie.kube.api.wire import DecodeError
from coterie.kube.api.wire.table import Message, Op, message, message_of_kind

MAGIC = b"k8s\x00"
MAX_DEPTH = 128
"""Messages inside messages. A schema of a custom resource takes up to two for each level of its own."""

_STRING, _MESSAGE, _INLINE, _MAP, _INT, _BOOL, _BASE64, _RAW, _DOUBLE = (
    int(op) for op in (Op.STRING, Op.MESSAGE, Op.INLINE, Op.MAP, Op.INT, Op.BOOL, Op.BASE64, Op.RAW, Op.DOUBLE)
)
_double = struct.Struct("<d").unpack_from


def decode(body: bytes) -> dict[str, Any]:
    """The object in a protobuf body, shaped as its JSON would be, `apiVersion` and `kind` first."""
    if not body.startswith(MAGIC):
        raise DecodeError("the body does not begin as a protobuf message of Kubernetes does (k8s\\0)")
    try:
        return _open(body)
    except (IndexError, struct.error, Truncated):
        raise DecodeError("the protobuf body ends too early") from None
    except ProtobufError:
        raise DecodeError("the protobuf body holds a number of more than 64 bits") from None
    except UnicodeDecodeError:
        raise DecodeError("the protobuf body holds a string that is not UTF-8") from None
    except OverflowError:
        raise DecodeError("the protobuf body holds a time beyond the year 9999") from None
    except ValueError:
        raise DecodeError("the protobuf body holds raw JSON that cannot be read") from None


def _open(body: bytes) -> dict[str, Any]:
    envelope: dict[str, Any] = {}
    _read(message("runtime.Unknown"), body, len(MAGIC), len(body), envelope, 0)
    if envelope.get("contentEncoding"):
        raise DecodeError(f"content encoding {envelope['contentEncoding'][:64]!r} inside protobuf is not supported")
    type_meta = envelope.get("typeMeta", {})
    api_version, kind = type_meta.get("apiVersion", ""), type_meta.get("kind", "")
    found = message_of_kind(api_version, kind) if len(api_version) + len(kind) < 512 else None
    if found is None:
        raise DecodeError(f'no kind "{kind[:128]}" of version "{api_version[:128]}" is known in protobuf')
    out: dict[str, Any] = {"apiVersion": api_version, "kind": kind}
    raw = envelope.get("raw", b"")
    _read(found, raw, 0, len(raw), out, 0)
    return out


def _read(reading: Message, data: bytes, pos: int, end: int, out: dict[str, Any], depth: int) -> None:
    """Read `data[pos:end]` as a message into `out`. Reading beyond `data` is an IndexError, beyond `end` is checked."""
    if depth > MAX_DEPTH:
        raise DecodeError(f"the protobuf body is nested deeper than {MAX_DEPTH} levels")
    fields = reading.fields
    if fields is None:
        fields = reading.compiled()
    while pos < end:
        tag = data[pos]
        pos += 1
        if tag > 127:
            tag, pos = decode_varint(data, pos - 1)
        field = fields.get(tag)
        if field is None:
            pos = _skip(reading, tag, data, pos, end)
            continue
        op, name, many, keep, inner, bits = field
        value: Any
        wire = tag & 7
        if wire == LENGTH:
            size = data[pos]
            pos += 1
            if size > 127:
                size, pos = decode_varint(data, pos - 1)
            stop = pos + size
            if stop > end:
                _too_long(reading)
            if op == _STRING:
                value = str(data[pos:stop], "utf-8")
            elif op == _MESSAGE:
                assert inner is not None
                finish = inner.finish
                # A message that comes in several parts is one message; a value is replaced.
                value = {} if many or finish is not None else out.get(name, {})
                _read(inner, data, pos, stop, value, depth + 1)
                if finish is not None:
                    value = finish(value)
            elif op == _MAP:
                assert inner is not None
                entry: dict[str, Any] = {}
                _read(inner, data, pos, stop, entry, depth + 1)
                key = entry.get("key", "")
                out.setdefault(name, {})[key] = entry["value"] if "value" in entry else _zero(inner)
                pos = stop
                continue
            elif op == _INLINE:
                assert inner is not None
                _read(inner, data, pos, stop, out, depth + 1)
                pos = stop
                continue
            elif op == _BASE64:
                value = b64encode(data[pos:stop]).decode("ascii")
            elif op == _RAW:
                value = data[pos:stop]
            else:
                out.setdefault(name, []).extend(_packed(reading, data, pos, stop, bits))
                pos = stop
                continue
            pos = stop
        elif wire == VARINT:
            number = data[pos]
            pos += 1
            if number > 127:
                number, pos = decode_varint(data, pos - 1)
            if pos > end:
                _too_long(reading)
            value = number != 0 if op == _BOOL else _signed(number, bits)
        else:
            value = _finite(_double(data, pos)[0])
            pos += 8
            if pos > end:
                _too_long(reading)
        if many:
            out.setdefault(name, []).append(value)
        elif keep or value:
            out[name] = value
        else:
            out.pop(name, None)


def _signed(number: int, bits: int) -> int:
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number


def _finite(number: float) -> int | float:
    """JSON has no infinities, and Go prints whole floats without a point."""
    if not isfinite(number):
        raise DecodeError("the protobuf body holds a number that is not finite")
    return int(number) if number.is_integer() and abs(number) < 1e15 else number


def _packed(reading: Message, data: bytes, pos: int, stop: int, bits: int) -> list[int | bool]:
    values: list[int | bool] = []
    while pos < stop:
        number, pos = decode_varint(data, pos)
        values.append(number != 0 if bits == 1 else _signed(number, bits))
    if pos > stop:
        _too_long(reading)
    return values


def _zero(entry: Message) -> Any:
    """The value of a map entry that has none."""
    assert entry.fields is not None
    for field in entry.fields.values():
        if field.name == "value" and field.message is not None:
            return field.message.finish({}) if field.message.finish else {}
    return ""


def _skip(reading: Message, tag: int, data: bytes, pos: int, end: int) -> int:
    number, wire = tag >> 3, tag & 7
    if number in reading.numbers or number == 0:
        raise DecodeError(f"field {number} of {reading.name} has wire type {wire}, which it cannot have")
    if wire == VARINT:
        _, pos = decode_varint(data, pos)
    elif wire == LENGTH:
        size, pos = decode_varint(data, pos)
        pos += size
    elif wire == FIXED64:
        pos += 8
    elif wire == FIXED32:
        pos += 4
    else:
        raise DecodeError(f"field {number} of {reading.name} has the unknown wire type {wire}")
    if pos > end:
        _too_long(reading)
    return pos


def _too_long(reading: Message) -> NoReturn:
    raise DecodeError(f"a field of {reading.name} is longer than the message around it")
