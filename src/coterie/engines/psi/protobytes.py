"""As much protobuf as the data mesh needs of an engine: strings, lists of them and messages in messages, both ways."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

_ANY = "type.googleapis.com/kuscia.proto.api.v1alpha1.datamesh."


def message(*fields: tuple[int, str | bytes | int]) -> bytes:
    """From numbers and values. What is empty is left out, as everywhere in proto3."""
    out = bytearray()
    for number, value in fields:
        if isinstance(value, int):
            if value:
                out += _varint(number << 3) + _varint(value)
            continue
        data = value.encode() if isinstance(value, str) else value
        if data:
            out += _varint(number << 3 | 2) + _varint(len(data)) + data
    return bytes(out)


def command(name: str, *fields: tuple[int, str | bytes | int]) -> bytes:
    """A command of Flight: a google.protobuf.Any."""
    return message((1, _ANY + name), (2, message(*fields)))


def each(number: int, values: Iterable[str | bytes]) -> list[tuple[int, str | bytes]]:
    """A repeated field."""
    return [(number, value) for value in values]


def fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Numbers and values of a message. Raises ValueError."""
    at = 0
    while at < len(data):
        tag, at = _read(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = _read(data, at)
            yield number, value
            continue
        if kind == 2:
            length, at = _read(data, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of kind {kind} is not understood")
        if at + length > len(data):
            raise ValueError("a message ends too early")
        yield number, data[at : at + length]
        at += length


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return number, at
        shift += 7
    raise ValueError("a number has no end")
