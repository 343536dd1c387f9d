"""Flight's messages with rows in them, read and written by hand.

A `FlightData` is a protobuf message whose body may be megabytes. Built by the protobuf library it would be copied
several times; here the pieces are joined once. The pieces themselves come from Arrow's own IPC format:

    continuation (4) | length of metadata (4) | metadata | body      <──>      data_header = metadata, data_body = body

Messages stay below 4 MiB where rows allow: that is what many gRPC clients take at most unless told otherwise.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from coterie.base.protobuf_wire import LENGTH, ProtobufError, encode_varint, fields

TARGET = 3 << 20
"""Bytes of rows in one message."""
_DESCRIPTOR, _HEADER, _BODY = 1, 2, 1000
_DESCRIPTOR_TAG = b"\x0a"
_HEADER_TAG = b"\x12"
_BODY_TAG = b"\xc2\x3e"
_CONTINUATION = 0xFFFFFFFF
_prefix = struct.Struct("<Ii")
_ALIGNED = 8


class MalformedFlightData(ValueError):
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
    parts: list[bytes | memoryview] = [_HEADER_TAG, encode_varint(len(header)), header]
    if len(body):
        parts += [_BODY_TAG, encode_varint(len(body)), body]
    return b"".join(parts)


def described(message: bytes, descriptor: bytes) -> bytes:
    """The first message of DoPut, which says what the rows are for."""
    return b"".join((_DESCRIPTOR_TAG, encode_varint(len(descriptor)), descriptor, message))


def pieces(batch: pa.RecordBatch, target: int = TARGET) -> Iterator[pa.RecordBatch]:
    """The batch in equal slices of at most about `target` bytes."""
    size = batch.nbytes
    if size <= target or batch.num_rows <= 1:
        yield batch
        return
    rows = -(-batch.num_rows // -(-size // target))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


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
    """Raises Malformed."""
    view = memoryview(data)
    descriptor = header = body = view[:0]
    try:
        for number, wire_type, value in fields(view):
            if wire_type != LENGTH or isinstance(value, int):
                continue
            if number == _HEADER:
                header = value
            elif number == _BODY:
                body = value
            elif number == _DESCRIPTOR:
                descriptor = value
    except ProtobufError as problem:
        raise MalformedFlightData(str(problem)) from problem
    return Parts(descriptor, header, body)


def ipc_message(parts: Parts) -> pa.ipc.Message:
    """Raises Malformed."""
    padding = -(len(parts.header) + 8) % _ALIGNED
    prefix = _prefix.pack(_CONTINUATION, len(parts.header) + padding)
    start = b"".join((prefix, parts.header, bytes(padding)))
    try:
        return pa.ipc.read_message(pa.PythonFile(_Pieces(memoryview(start), parts.body), mode="r"))
    except (pa.ArrowInvalid, OSError) as problem:
        raise MalformedFlightData(f"not a message of Arrow: {problem}") from problem


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
        raise MalformedFlightData(f"not a schema: {problem}") from problem


def batch_in(message: pa.ipc.Message, schema: pa.Schema) -> pa.RecordBatch:
    """Checked wholly: the bytes come from outside."""
    try:
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as problem:
        raise MalformedFlightData(f"not rows of the announced schema: {problem}") from problem
    return batch
