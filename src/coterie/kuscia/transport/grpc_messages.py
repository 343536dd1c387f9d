"""Messages of BFIA's own form of the message queue: gRPC, and HTTP with `application/x-protobuf`. Pure.

From "隐私计算互联互通传输层 API" of the alliance, v1.2.0, section 5.1 (package `org.ppc.ptp`):

    service PrivateTransferTransport    peek(PeekInbound), pop(PopInbound), push(PushInbound), release(ReleaseInbound); each returns TransportOutbound
    PeekInbound          1 topic
    PopInbound           1 topic, 2 timeout (int32, seconds)
    PushInbound          1 topic, 2 payload, 3 metadata (map)
    ReleaseInbound       1 topic, 2 timeout
    TransportOutbound    1 metadata (map), 2 payload, 3 code, 4 message: not the numbers of Kuscia's HTTP form (`outbound.py`)

Session and nodes are headers (of gRPC: metadata), as in Kuscia's form. Envoy takes the frames of gRPC off and puts them on.
"""

from __future__ import annotations

import msgspec

from coterie.base.protobuf_wire import LENGTH, VARINT, ProtobufError, bytes_field, fields
from coterie.kuscia.transport import outbound
from coterie.kuscia.transport.outbound import Framing, Outbound, TransportCode, TransportRefused

GRPC_SERVICE = "/org.ppc.ptp.PrivateTransferTransport/"
CONTENT_TYPE = "application/x-protobuf"
SIZE = "x-coterie-size"
"""Says how long an answer is, so that Envoy need not keep all of it to know."""
_TOPIC, _SECOND = 1, 2
_INT32_SIGN = 1 << 31


class GrpcInbound(msgspec.Struct, frozen=True):
    topic: str = ""
    payload: bytes = b""
    timeout: int = 0
    """Seconds; 0: it is not said."""


def decode(body: bytes) -> GrpcInbound:
    """Any of the four: their numbers mean the same, but 2, which is the payload or the time. Raises TransportRefused."""
    topic, payload, timeout = "", b"", 0
    try:
        for number, wire_type, value in fields(memoryview(body)):
            if number == _TOPIC and wire_type == LENGTH and not isinstance(value, int):
                topic = bytes(value).decode()
            elif number == _SECOND and wire_type == LENGTH and not isinstance(value, int):
                payload = bytes(value)
            elif number == _SECOND and wire_type == VARINT and isinstance(value, int):
                timeout = value & 0xFFFF_FFFF
            elif number in (_TOPIC, _SECOND):
                raise ProtobufError(f"field {number} has another type")
    except (ProtobufError, UnicodeDecodeError) as problem:
        raise TransportRefused(TransportCode.BAD_REQUEST, f"the message cannot be read: {problem}") from problem
    return GrpcInbound(topic, payload, 0 if timeout & _INT32_SIGN else timeout)


def framing(size: int) -> Framing:
    """Of an answer that carries a message."""
    return outbound.framing(size, payload=2, code=3)


def encode(answer: Outbound) -> bytes:
    parts = [bytes_field(2, answer.payload)] if answer.payload else []
    parts.append(bytes_field(3, answer.code.encode()))
    if answer.message:
        parts.append(bytes_field(4, answer.message.encode()))
    return b"".join(parts)
