"""One question of gRPC's health protocol, spoken by hand.

A gRPC call is an HTTP/2 stream with a length-prefixed protobuf message. To ask one question and read one answer takes five
kinds of frames and no header compression on our side (all header fields are sent as literals), so no gRPC library is
needed. The answer's data frame says all: `status: SERVING` is field 1 with value 1.
"""

from __future__ import annotations

import asyncio
import struct

from coterie.base.protobuf_wire import VARINT, ProtobufError, bytes_field, encode_varint, fields

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY = 0, 1, 3, 4, 6, 7
_END_STREAM, _END_HEADERS, _ACK, _PADDED = 1, 4, 1, 8
_MAX_FRAME = 1 << 20
_STATES = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}


class HealthUnknown(Exception):
    """The server gave no answer to the question."""


async def health(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, authority: str, service: str = "") -> str:
    """SERVING, NOT_SERVING, UNKNOWN or SERVICE_UNKNOWN."""
    writer.write(_PREFACE + _frame(_SETTINGS, 0, 0, b"") + request(authority, service))
    await writer.drain()
    message = b""
    while True:
        kind, flags, stream, payload = await _read_frame(reader)
        if kind == _SETTINGS and not flags & _ACK:
            writer.write(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            writer.write(_frame(_PING, _ACK, 0, payload))
        elif kind == _GOAWAY or (kind == _RESET and stream == 1):
            raise HealthUnknown("the server ended the call")
        elif kind == _DATA and stream == 1:
            message += payload[1 : len(payload) - payload[0]] if flags & _PADDED and payload else payload
            if len(message) >= 5 and len(message) >= 5 + struct.unpack(">I", message[1:5])[0]:
                return _STATES.get(parse_answer(message[5:]), "UNKNOWN")
        elif kind == _HEADERS and stream == 1 and flags & _END_STREAM:
            # Trailers without a message: the call failed, mostly because nobody implements the service.
            raise HealthUnknown("the server does not answer health checks for this service")


def request(authority: str, service: str) -> bytes:
    headers = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/grpc.health.v1.Health/Check"),
        (":authority", authority),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("user-agent", "coterie-probe"),
    )
    block = b"".join(b"\x00" + _text(name) + _text(value) for name, value in headers)
    name = service.encode()
    body = bytes_field(1, name) if name else b""
    data = b"\x00" + struct.pack(">I", len(body)) + body
    return _frame(_HEADERS, _END_HEADERS, 1, block) + _frame(_DATA, _END_STREAM, 1, data)


def parse_answer(message: bytes) -> int:
    """The value of field 1; what is missing is 0, as in protobuf."""
    status = 0
    try:
        for number, wire_type, value in fields(memoryview(message)):
            if number == 1 and wire_type == VARINT and isinstance(value, int):
                status = value
    except ProtobufError as problem:
        raise HealthUnknown(f"the server's answer cannot be read: {problem}") from problem
    return status


async def _read_frame(reader: asyncio.StreamReader) -> tuple[int, int, int, bytes]:
    head = await reader.readexactly(9)
    length = int.from_bytes(head[:3], "big")
    if length > _MAX_FRAME:
        raise HealthUnknown("the server does not speak HTTP/2")
    return head[3], head[4], int.from_bytes(head[5:9], "big") & 0x7FFFFFFF, await reader.readexactly(length)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _text(value: str) -> bytes:
    """A header string: its length in seven bits (the rest of a longer one as a varint), then the text as it is."""
    data = value.encode()
    if len(data) < 127:
        return bytes((len(data),)) + data
    return b"\x7f" + encode_varint(len(data) - 127) + data
