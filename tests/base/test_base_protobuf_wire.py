"""The protobuf wire format, both ways, and what is refused."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.base.protobuf_wire import (
    FIXED32,
    FIXED64,
    LENGTH,
    VARINT,
    ProtobufError,
    Truncated,
    bytes_field,
    decode_varint,
    encode_varint,
    fields,
    tag,
    varint_field,
)


@pytest.mark.parametrize(
    ("number", "encoded"),
    [(0, b"\0"), (127, b"\x7f"), (128, b"\x80\x01"), (300, b"\xac\x02"), (2**64 - 1, b"\xff" * 9 + b"\x01")],
)
def test_known_varints(number: int, encoded: bytes) -> None:
    assert encode_varint(number) == encoded
    assert decode_varint(b"x" + encoded + b"y", 1) == (number, 1 + len(encoded))


@given(st.integers(0, 2**64 - 1))
def test_varints_survive(number: int) -> None:
    data = encode_varint(number)
    assert decode_varint(data, 0) == (number, len(data)) == decode_varint(memoryview(data), 0)
    with pytest.raises(Truncated):
        decode_varint(data[:-1], 0)


def test_a_varint_has_ten_bytes_at_most() -> None:
    assert decode_varint(b"\xff" * 9 + b"\x7f", 0) == (2**64 - 1, 10), "bits beyond 64 are dropped"
    with pytest.raises(ProtobufError, match="more than 64 bits"):
        decode_varint(b"\x80" * 10 + b"\x01", 0)
    with pytest.raises(ValueError):
        encode_varint(-1)


def test_negative_numbers_have_ten_bytes() -> None:
    assert varint_field(1, -1) == b"\x08" + b"\xff" * 9 + b"\x01"


def test_fields_of_every_type() -> None:
    message = (
        varint_field(1, 150)
        + bytes_field(2, b"text")
        + tag(3, FIXED32)
        + struct.pack("<f", 0.5)
        + tag(4, FIXED64)
        + struct.pack("<d", 0.25)
        + bytes_field(1000, b"")
    )
    found = [
        (number, kind, value if isinstance(value, int) else bytes(value))
        for number, kind, value in fields(memoryview(message))
    ]
    assert found == [
        (1, VARINT, 150),
        (2, LENGTH, b"text"),
        (3, FIXED32, struct.pack("<f", 0.5)),
        (4, FIXED64, struct.pack("<d", 0.25)),
        (1000, LENGTH, b""),
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",
        b"\x0a\x05abcd",
        b"\x08",
        b"\x08\x80",
        b"\x80",
        b"\x0d\0\0\0",
        b"\x09\0\0\0\0\0\0\0",
        b"\x0a\xff\xff\xff\xff\x0f",
    ],
)
def test_a_message_that_ends_early_is_refused(data: bytes) -> None:
    with pytest.raises(Truncated):
        list(fields(memoryview(data)))


@pytest.mark.parametrize("kind", [3, 4, 6, 7])
def test_groups_and_unknown_types_are_refused(kind: int) -> None:
    with pytest.raises(ProtobufError, match="wire type"):
        list(fields(memoryview(tag(1, kind) + b"\0\0\0\0\0\0\0\0")))


@given(st.binary(max_size=200))
def test_garbage_is_fields_or_an_error(data: bytes) -> None:
    with contextlib.suppress(ProtobufError):
        assert sum(1 for _ in fields(memoryview(data))) <= len(data)
