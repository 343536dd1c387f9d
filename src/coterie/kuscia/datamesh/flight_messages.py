"""Flight's messages with rows in them, read and written by hand.

A `FlightData` is a protobuf message whose body may be megabytes. Built by the protobuf library it would be copied several
times; here the pieces are joined once. The pieces themselves come from Arrow's own IPC format:

    continuation (4) | length of metadata (4) | metadata | body      <──>      data_header = metadata, data_body = body

Messages stay below 4 MiB where rows allow: that is what many gRPC clients take at most unless told otherwise.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

TARGET = 3 << 20
"""Bytes of rows in one message."""
_DESCRIPTOR, _HEADER, _METADATA, _BODY = 1, 2, 3, 1000
_HEADER_TAG = b"\x12"
_BODY_TAG = b"\xc2\x3e"
_CONTINUATION = 0xFFFFFFFF
_prefix = struct.Struct("<Ii")
_ALIGNED = 8


class Malformed(ValueError):
    """The bytes are no FlightData."""


# Writing.


def of_schema(schema: pa.Schema) -> bytes:
    return _of_ipc(schema.serialize())


def of_batch(batch: pa.RecordBatch) -> bytes:
    return _of_ipc(batch.serialize())


def _of_ipc(buffer: pa.Buffer) -> bytes:
    view = memoryview(buffer)
    _, length = _prefix.unpack_from(view)
    header, body = view[8 : 8 + length], view[8 + length :]
    parts: list[bytes | memoryview] = [_HEADER_TAG, _varint(len(header)), header]
    if len(body):
        parts += [_BODY_TAG, _varint(len(body)), body]
    return b"".join(parts)


def pieces(batch: pa.RecordBatch, target: int = TARGET) -> Iterator[pa.RecordBatch]:
    """The batch in equal slices of at most about `target` bytes."""
    size = batch.nbytes
    if size <= target or batch.num_rows <= 1:
        yield batch
        return
    rows = -(-batch.num_rows // -(-size // target))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


# Reading.


@dataclass(frozen=True, slots=True)
class Parts:
    descriptor: memoryview
    header: memoryview
    body: memoryview

    @property
    def is_rows(self) -> bool:
        return len(self.header) > 0


def parse(data: bytes) -> Parts:
    view, at, end = memoryview(data), 0, len(data)
    empty = view[:0]
    found = {_DESCRIPTOR: empty, _HEADER: empty, _METADATA: empty, _BODY: empty}
    while at < end:
        tag, at = _read_varint(view, at)
        field, wire = tag >> 3, tag & 7
        if wire == 2:
            length, at = _read_varint(view, at)
            if at + length > end:
                raise Malformed("a field ends behind the message")
            if field in found:
                found[field] = view[at : at + length]
            at += length
        elif wire == 0:
            _, at = _read_varint(view, at)
        else:
            at += {1: 8, 5: 4}.get(wire, end + 1)
    if at != end:
        raise Malformed("the message ends too early")
    return Parts(found[_DESCRIPTOR], found[_HEADER], found[_BODY])


def _read_varint(view: memoryview, at: int) -> tuple[int, int]:
    number = shift = 0
    while shift < 64:
        if at >= len(view):
            break
        byte = view[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return number, at
        shift += 7
    raise Malformed("a number has no end")


def ipc_message(parts: Parts) -> pa.ipc.Message:
    """Raises Malformed."""
    padding = -(len(parts.header) + 8) % _ALIGNED
    prefix = _prefix.pack(_CONTINUATION, len(parts.header) + padding)
    start = b"".join((prefix, parts.header, bytes(padding)))
    try:
        return pa.ipc.read_message(pa.PythonFile(_Pieces(memoryview(start), parts.body), mode="r"))
    except (pa.ArrowInvalid, OSError) as problem:
        raise Malformed(f"not a message of Arrow: {problem}") from problem


class _Pieces:
    """A file of two parts that Arrow reads without a copy: its buffers are views of what is here."""

    closed = False

    def __init__(self, *parts: memoryview) -> None:
        self._parts = list(parts)

    def read(self, size: int) -> memoryview:
        while len(self._parts) > 1 and not self._parts[0]:
            del self._parts[0]
        first = self._parts[0]
        self._parts[0] = first[size:]
        return first[:size]

    def close(self) -> None: ...


def schema_in(message: pa.ipc.Message) -> pa.Schema:
    try:
        return pa.ipc.read_schema(message)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as problem:
        raise Malformed(f"not a schema: {problem}") from problem


def batch_in(message: pa.ipc.Message, schema: pa.Schema) -> pa.RecordBatch:
    """Checked wholly: the bytes come from outside."""
    try:
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as problem:
        raise Malformed(f"not rows of the announced schema: {problem}") from problem
    return batch
