"""The protobuf wire format: varints, tags and fields, for messages that are too few or too hot for the library.

    for number, wire_type, value in fields(message): ...      message = bytes_field(1, b"name") + varint_field(2, 7)

Strict and bounded: a varint has at most ten bytes, and no field reaches beyond its message. Reading copies nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

VARINT: Final = 0
FIXED64: Final = 1
LENGTH: Final = 2
FIXED32: Final = 5
_MAX_UINT64: Final = 0xFFFF_FFFF_FFFF_FFFF
_MAX_SHIFT: Final = 63
_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(0x80))

Bytes = bytes | memoryview


class ProtobufError(ValueError):
    """The bytes are not a protobuf message."""


class Truncated(ProtobufError):
    """The message ends inside a field."""


# Reading.


def decode_varint(data: Bytes, at: int) -> tuple[int, int]:
    """The unsigned number at `at` (bits beyond 64 are dropped, as everywhere), and where it ends."""
    try:
        byte = data[at]
        if byte < 0x80:
            return byte, at + 1
        value, shift = byte & 0x7F, 7
        while shift <= _MAX_SHIFT:
            at += 1
            byte = data[at]
            if byte < 0x80:
                return (value | byte << shift) & _MAX_UINT64, at + 1
            value |= (byte & 0x7F) << shift
            shift += 7
    except IndexError:
        raise Truncated("the message ends inside a number") from None
    raise ProtobufError("a number has more than 64 bits")


def fields(view: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """Number, wire type and value of each field: an int for VARINT, a view of the bytes for all others."""
    at, size = 0, len(view)
    while at < size:
        tag = view[at]
        if tag < 0x80:
            at += 1
        else:
            tag, at = decode_varint(view, at)
        wire_type = tag & 7
        if wire_type == LENGTH:
            length, at = decode_varint(view, at)
        elif wire_type == VARINT:
            number, at = decode_varint(view, at)
            yield tag >> 3, VARINT, number
            continue
        else:
            length = fixed_size(wire_type)
        end = at + length
        if end > size:
            raise Truncated("a field is longer than its message")
        yield tag >> 3, wire_type, view[at:end]
        at = end


def fixed_size(wire_type: int) -> int:
    """Bytes of a value whose size is known from its type. Groups, which proto3 does not have, are refused."""
    if wire_type == FIXED64:
        return 8
    if wire_type == FIXED32:
        return 4
    raise ProtobufError(f"the wire type {wire_type} is unknown")


# Writing.


def encode_varint(number: int) -> bytes:
    if 0 <= number < 0x80:
        return _ONE_BYTE[number]
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def tag(number: int, wire_type: int) -> bytes:
    return encode_varint(number << 3 | wire_type)


def bytes_field(number: int, content: bytes) -> bytes:
    """A string, bytes or a message; written even when it is empty."""
    head, length = number << 3 | LENGTH, len(content)
    if head < 0x80 and length < 0x80:
        return _ONE_BYTE[head] + _ONE_BYTE[length] + content
    return encode_varint(head) + encode_varint(length) + content


def varint_field(number: int, value: int) -> bytes:
    return encode_varint(number << 3) + encode_varint(value & _MAX_UINT64)
