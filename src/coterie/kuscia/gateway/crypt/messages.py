"""The messages of Envoy's external processing (`envoy.service.ext_proc.v3`), as many as are needed. Pure.

Written by hand instead of with a protobuf library: there are few, and a library would copy each body twice more. Field
numbers stand beside their names. What is unknown is passed over, as protobuf wants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from coterie.base.protobuf_wire import ProtobufError, bytes_field, encode_varint, fields

_OVERWRITE = b"\x18\x02"  # append_action (3) = OVERWRITE_IF_EXISTS_OR_ADD
Value = int | memoryview


class MessagePart(IntEnum):
    """What a message is about: field numbers of ProcessingRequest. Those of ProcessingResponse are one less."""

    REQUEST_HEADERS = 2
    RESPONSE_HEADERS = 3
    REQUEST_BODY = 4
    RESPONSE_BODY = 5
    REQUEST_TRAILERS = 6
    RESPONSE_TRAILERS = 7


HEADERS = frozenset({MessagePart.REQUEST_HEADERS, MessagePart.RESPONSE_HEADERS})
BODIES = frozenset({MessagePart.REQUEST_BODY, MessagePart.RESPONSE_BODY})
_PARTS = {int(each): each for each in MessagePart}


@dataclass(frozen=True, slots=True)
class ProcessingEvent:
    part: MessagePart
    end: bool = False
    """Nothing follows in this direction."""
    body: bytes | memoryview = b""
    headers: Mapping[str, tuple[str, ...]] | None = None
    route: str = ""
    """The name of Envoy's route; only in the first message of a request."""


# ---- reading ----


def parse(message: bytes | memoryview) -> ProcessingEvent:
    """Raises WireError."""
    part: MessagePart | None = None
    content: memoryview | None = None
    route = ""
    for number, _, value in fields(memoryview(message)):
        if number in _PARTS:
            part, content = _PARTS[number], _bytes(value)
        elif number == 9:  # attributes
            route = _route_name(_bytes(value)) or route
    if part is None or content is None:
        raise ProtobufError("a message about nothing we know")
    if part in BODIES:
        body, end = memoryview(b""), False
        for number, _, value in fields(content):
            if number == 1:
                body = _bytes(value)
            elif number == 2:
                end = bool(value)
        return ProcessingEvent(part, end, body)
    if part in HEADERS:
        inside = _by_number(content)
        return ProcessingEvent(part, bool(inside.get(3, 0)), headers=_header_map(inside.get(1)), route=route)
    return ProcessingEvent(part, end=True)


def _header_map(value: Value | None) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for number, _, entry in fields(_bytes(value)) if value is not None else ():
        if number != 1:
            continue
        inside = _by_number(entry)
        key = _text(inside.get(1))
        found[key] = (*found.get(key, ()), _text(inside.get(3, inside.get(2))))
    return found


def _route_name(entry: memoryview) -> str:
    """attributes is a map from a name to google.protobuf.Struct, in which `xds.route_name` is a string."""
    struct = _by_number(entry).get(2)
    for number, _, field in fields(_bytes(struct)) if struct is not None else ():
        inside = _by_number(field)
        if number == 1 and _text(inside.get(1)) == "xds.route_name" and 2 in inside:
            return _text(_by_number(inside[2]).get(3))
    return ""


def _by_number(value: Value) -> dict[int, Value]:
    return {number: content for number, _, content in fields(_bytes(value))}


def _text(value: Value | None) -> str:
    return "" if value is None else bytes(_bytes(value)).decode("utf-8", "surrogateescape")


def _bytes(value: Value) -> memoryview:
    if isinstance(value, int):
        raise ProtobufError("a number where a message is expected")
    return value


# ---- writing ----


def _reply(part: MessagePart, content: bytes) -> bytes:
    return bytes_field(part - 1, content)


def _mutation(headers: Mapping[str, str], removed: Sequence[str]) -> bytes:
    """HeaderMutation."""
    return b"".join(
        [bytes_field(1, _option(key, value)) for key, value in headers.items()]
        + [bytes_field(2, each.encode()) for each in removed]
    )


def _option(key: str, value: str) -> bytes:
    """HeaderValueOption: the header's value as raw_value (3)."""
    return (
        bytes_field(1, bytes_field(1, key.encode()) + bytes_field(3, value.encode("utf-8", "surrogateescape")))
        + _OVERWRITE
    )


def headers_reply(part: MessagePart, headers: Mapping[str, str] | None = None, removed: Sequence[str] = ()) -> bytes:
    """HeadersResponse{response (1): CommonResponse{header_mutation (2)}}."""
    return _reply(part, bytes_field(1, bytes_field(2, _mutation(headers or {}, removed))))


def body_reply(part: MessagePart, body: bytes, *, end: bool) -> bytes:
    """BodyResponse{1: CommonResponse{body_mutation (3): BodyMutation{streamed_response (3): {body (1), end (2)}}}}."""
    tail = b"\x10\x01" if end else b""
    opening = b"\x0a" + encode_varint(len(body)) if body else b""
    size = len(opening) + len(body) + len(tail)
    # From the inside out; the body itself is copied once.
    prefixes = [opening]
    for tag in (b"\x1a", b"\x1a", b"\x0a", encode_varint(part - 1 << 3 | 2)):
        prefix = tag + encode_varint(size)
        size += len(prefix)
        prefixes.append(prefix)
    return b"".join((*reversed(prefixes), body, tail))


def trailers_reply(part: MessagePart) -> bytes:
    return _reply(part, b"")


def immediate_reply(status: int, headers: Mapping[str, str], body: str, details: str) -> bytes:
    """ImmediateResponse (7): status (1), headers (2), body (3), details (5)."""
    content = bytes_field(1, b"\x08" + encode_varint(status)) + bytes_field(2, _mutation(headers, ()))
    return bytes_field(7, content + bytes_field(3, body.encode()) + bytes_field(5, details.encode()))
