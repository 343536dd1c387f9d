"""What Transport answers: always HTTP 200 and one message, `TransportOutbound{1 payload, 2 code, 3 message}`. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

from coterie.base.protobuf_wire import LENGTH, ProtobufError, bytes_field, encode_varint, fields, tag

CONTENT_TYPE = "application/proto"


class TransportCode(StrEnum):
    """The codes of the standard that this server gives."""

    SUCCESS = "E0000000000"
    BAD_REQUEST = "E0000000400"
    NOT_AUTHORIZED = "E0000000403"
    TOO_LARGE = "E0000000413"
    SERVER_ERROR = "E0000000500"
    UNAVAILABLE = "E0000000503"
    SESSION_RELEASED = "E0000000608"
    BUFFER_FULL = "E0000000700"


class TransportRefused(Exception):
    """A call that is answered with a code. The message is for the caller."""

    def __init__(self, code: TransportCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Outbound(msgspec.Struct, frozen=True):
    payload: bytes = b""
    code: str = TransportCode.SUCCESS
    message: str = ""


_SUCCESS = bytes_field(2, TransportCode.SUCCESS.encode())


def encode(answer: Outbound) -> bytes:
    code = _SUCCESS if answer.code == TransportCode.SUCCESS else bytes_field(2, answer.code.encode())
    if not answer.payload and not answer.message:
        return code
    parts = [bytes_field(1, answer.payload)] if answer.payload else []
    parts.append(code)
    if answer.message:
        parts.append(bytes_field(3, answer.message.encode()))
    return b"".join(parts)


class Framing(NamedTuple):
    """What stands before and behind the payload of an answer that carries a message."""

    head: bytes
    tail: bytes


def framing(size: int, *, payload: int = 1, code: int = 2) -> Framing:
    """`payload`, `code`: the numbers of these fields."""
    head = tag(payload, LENGTH) + encode_varint(size) if size else b""
    return Framing(head, bytes_field(code, TransportCode.SUCCESS.encode()))


def decode(body: bytes) -> Outbound:
    """Raises ProtobufError."""
    found = {1: b"", 2: b"", 3: b""}
    for number, wire_type, value in fields(memoryview(body)):
        if number in found:
            if wire_type != LENGTH or isinstance(value, int):
                raise ProtobufError(f"field {number} is not a text")
            found[number] = bytes(value)
    try:
        return Outbound(found[1], found[2].decode(), found[3].decode())
    except UnicodeDecodeError as problem:
        raise ProtobufError("the code or message is not UTF-8") from problem


def refused(problem: TransportRefused) -> Outbound:
    return Outbound(b"", problem.code, str(problem))
