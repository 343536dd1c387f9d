"""The messages of Envoy's external processing (`envoy.service.ext_proc.v3`), as many as are needed. Pure.

Written by hand instead of with a protobuf library: there are few, and a library would copy each body twice more. Field
numbers stand beside their names. What is unknown is passed over, as protobuf wants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

_OVERWRITE = b"\x18\x02"  # append_action (3) = OVERWRITE_IF_EXISTS_OR_ADD
Value = int | memoryview


class MessageError(ValueError):
    """Not a message of external processing."""


class Part(IntEnum):
    """What a message is about: field numbers of ProcessingRequest. Those of ProcessingResponse are one less."""

    REQUEST_HEADERS = 2
    RESPONSE_HEADERS = 3
    REQUEST_BODY = 4
    RESPONSE_BODY = 5
    REQUEST_TRAILERS = 6
    RESPONSE_TRAILERS = 7


HEADERS = frozenset({Part.REQUEST_HEADERS, Part.RESPONSE_HEADERS})
BODIES = frozenset({Part.REQUEST_BODY, Part.RESPONSE_BODY})
_PARTS = {int(each): each for each in Part}


@dataclass(frozen=True, slots=True)
class Event:
    part: Part
    end: bool = False
    """Nothing follows in this direction."""
    body: bytes | memoryview = b""
    headers: Mapping[str, tuple[str, ...]] | None = None
    route: str = ""
    """The name of Envoy's route; only in the first message of a request."""


# ---- reading ----


def parse(message: bytes | memoryview) -> Event:
    part: Part | None = None
    content: memoryview | None = None
    route = ""
    for number, value in _fields(memoryview(message)):
        if number in _PARTS:
            part, content = _PARTS[number], _bytes(value)
        elif number == 9:  # attributes
            route = _route_name(_bytes(value)) or route
    if part is None or content is None:
        raise MessageError("a message about nothing we know")
    if part in BODIES:
        body, end = memoryview(b""), False
        for number, value in _fields(content):
            if number == 1:
                body = _bytes(value)
            elif number == 2:
                end = bool(value)
        return Event(part, end, body)
    if part in HEADERS:
        inside = dict(_fields(content))
        return Event(part, bool(inside.get(3, 0)), headers=_header_map(inside.get(1)), route=route)
    return Event(part, end=True)


def _header_map(value: Value | None) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for number, entry in _fields(_bytes(value)) if value is not None else ():
        if number != 1:
            continue
        inside = dict(_fields(_bytes(entry)))
        key = _text(inside.get(1))
        found[key] = (*found.get(key, ()), _text(inside.get(3, inside.get(2))))
    return found


def _route_name(entry: memoryview) -> str:
    """attributes is a map from a name to google.protobuf.Struct, in which `xds.route_name` is a string."""
    struct = dict(_fields(entry)).get(2)
    for number, field in _fields(_bytes(struct)) if struct is not None else ():
        inside = dict(_fields(_bytes(field)))
        if number == 1 and _text(inside.get(1)) == "xds.route_name" and 2 in inside:
            return _text(dict(_fields(_bytes(inside[2]))).get(3))
    return ""


def _text(value: Value | None) -> str:
    return "" if value is None else bytes(_bytes(value)).decode("utf-8", "surrogateescape")


def _bytes(value: Value) -> memoryview:
    if isinstance(value, int):
        raise MessageError("a number where a message is expected")
    return value


def _fields(view: memoryview) -> Iterator[tuple[int, Value]]:
    at, size = 0, len(view)
    while at < size:
        tag, at = _varint(view, at)
        kind = tag & 7
        if kind == 0:
            number, at = _varint(view, at)
            yield tag >> 3, number
            continue
        if kind == 2:
            length, at = _varint(view, at)
        elif kind == 1:
            length = 8
        elif kind == 5:
            length = 4
        else:
            raise MessageError(f"wire type {kind}")
        if at + length > size:
            raise MessageError("a field longer than its message")
        yield tag >> 3, view[at : at + length]
        at += length


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """The number and where it ends."""
    if at < len(view) and (byte := view[at]) < 0x80:
        return byte, at + 1
    value = shift = 0
    while at < len(view) and shift < 64:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise MessageError("a number without end")


# ---- writing ----


_SMALL = tuple(bytes([value]) for value in range(0x80))


def _number(value: int) -> bytes:
    if value < 0x80:
        return _SMALL[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, content: bytes) -> bytes:
    return _number(number << 3 | 2) + _number(len(content)) + content


def _reply(part: Part, content: bytes) -> bytes:
    return _field(part - 1, content)


def _mutation(headers: Mapping[str, str], removed: Sequence[str]) -> bytes:
    """HeaderMutation."""
    return b"".join(
        [_field(1, _option(key, value)) for key, value in headers.items()]
        + [_field(2, each.encode()) for each in removed]
    )


def _option(key: str, value: str) -> bytes:
    """HeaderValueOption: the header's value as raw_value (3)."""
    return _field(1, _field(1, key.encode()) + _field(3, value.encode("utf-8", "surrogateescape"))) + _OVERWRITE


def headers_reply(part: Part, headers: Mapping[str, str] | None = None, removed: Sequence[str] = ()) -> bytes:
    """HeadersResponse{response (1): CommonResponse{header_mutation (2)}}."""
    return _reply(part, _field(1, _field(2, _mutation(headers or {}, removed))))


def body_reply(part: Part, body: bytes, *, end: bool) -> bytes:
    """BodyResponse{1: CommonResponse{body_mutation (3): BodyMutation{streamed_response (3): {body (1), end (2)}}}}."""
    tail = b"\x10\x01" if end else b""
    opening = b"\x0a" + _number(len(body)) if body else b""
    size = len(opening) + len(body) + len(tail)
    # From the inside out; the body itself is copied once.
    prefixes = [opening]
    for tag in (b"\x1a", b"\x1a", b"\x0a", _number(part - 1 << 3 | 2)):
        prefix = tag + _number(size)
        size += len(prefix)
        prefixes.append(prefix)
    return b"".join((*reversed(prefixes), body, tail))


def trailers_reply(part: Part) -> bytes:
    return _reply(part, b"")


def immediate_reply(status: int, headers: Mapping[str, str], body: str, details: str) -> bytes:
    """ImmediateResponse (7): status (1), headers (2), body (3), details (5)."""
    content = _field(1, b"\x08" + _number(status)) + _field(2, _mutation(headers, ()))
    return _field(7, content + _field(3, body.encode()) + _field(5, details.encode()))
