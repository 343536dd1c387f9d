"""What engines send and are answered, in JSON or in protobuf, as plain data. Pure.

ReportProgressRequest { 1 header, 2 float progress, 3 map custom_fields }      ...Response { 1 Status { 1 code, 2 message } }
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import orjson

JSON, PROTOBUF = "application/json", "application/x-protobuf"
OK, INVALID, NOT_WRITTEN = 0, 3000, 3001
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_PROGRESS = 2


class BadReport(Exception):
    """The body cannot be used; the sentence goes back to the engine."""


@dataclass(frozen=True, slots=True)
class Verdict:
    code: int
    message: str


def progress_in(body: bytes, content_type: str) -> float:
    kind = content_type.partition(";")[0].strip().lower()
    value = _from_protobuf(body) if kind == PROTOBUF else _from_json(body)
    if not math.isfinite(value) or not 0.0 <= value <= 1.0:
        raise BadReport(f"progress must be between 0 and 1, not {value:g}")
    return value


def encoded(verdict: Verdict, content_type: str) -> tuple[bytes, str]:
    """The answer in the form in which was asked."""
    if content_type.partition(";")[0].strip().lower() == PROTOBUF:
        status = _field(2, verdict.message.encode())
        if verdict.code:
            status = b"\x08" + _varint(verdict.code) + status
        return _field(1, status), PROTOBUF
    return orjson.dumps({"status": {"code": verdict.code, "message": verdict.message, "details": []}}), JSON


def _from_json(body: bytes) -> float:
    try:
        found: Any = orjson.loads(body)
    except orjson.JSONDecodeError as problem:
        raise BadReport("the body is not JSON") from problem
    value = found.get("progress", 0.0) if isinstance(found, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadReport('the body must look like {"progress": 0.4}')
    return float(value)


def _from_protobuf(body: bytes) -> float:
    value, at = 0.0, 0
    try:
        while at < len(body):
            key, at = _read_varint(body, at)
            number, wire = key >> 3, key & 7
            if number == _PROGRESS and wire == _FIXED32:
                (value,) = struct.unpack_from("<f", body, at)
            at = _after(body, at, wire)
    except (IndexError, struct.error) as problem:
        raise BadReport("the body is not a protobuf message") from problem
    return float(value)


def _after(body: bytes, at: int, wire: int) -> int:
    if wire == _VARINT:
        return _read_varint(body, at)[1]
    if wire == _BYTES:
        length, at = _read_varint(body, at)
        end = at + length
    elif wire in (_FIXED32, _FIXED64):
        end = at + (4 if wire == _FIXED32 else 8)
    else:
        raise IndexError(wire)
    if end > len(body):
        raise IndexError(end)
    return end


def _read_varint(body: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise IndexError(at)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, data: bytes) -> bytes:
    return bytes((number << 3 | _BYTES,)) + _varint(len(data)) + data if data else b""
