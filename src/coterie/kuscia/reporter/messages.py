"""What engines send and are answered, in JSON or in protobuf, as plain data. Pure.

ReportProgressRequest { 1 header, 2 float progress, 3 map custom_fields }      ...Response { 1 Status { 1 code, 2 message } }
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import orjson

from coterie.base.protobuf_wire import FIXED32, ProtobufError, bytes_field, fields, varint_field

JSON, PROTOBUF = "application/json", "application/x-protobuf"
OK, INVALID, NOT_WRITTEN = 0, 3000, 3001
_PROGRESS = 2


class InvalidReport(Exception):
    """The body cannot be used; the sentence goes back to the engine."""


@dataclass(frozen=True, slots=True)
class ReportStatus:
    code: int
    message: str


def progress_in(body: bytes, content_type: str) -> float:
    kind = content_type.partition(";")[0].strip().lower()
    value = _from_protobuf(body) if kind == PROTOBUF else _from_json(body)
    if not math.isfinite(value) or not 0.0 <= value <= 1.0:
        raise InvalidReport(f"progress must be between 0 and 1, not {value:g}")
    return value


def encoded(verdict: ReportStatus, content_type: str) -> tuple[bytes, str]:
    """The answer in the form in which was asked."""
    if content_type.partition(";")[0].strip().lower() == PROTOBUF:
        status = _field(2, verdict.message.encode())
        if verdict.code:
            status = varint_field(1, verdict.code) + status
        return _field(1, status), PROTOBUF
    return orjson.dumps({"status": {"code": verdict.code, "message": verdict.message, "details": []}}), JSON


def _from_json(body: bytes) -> float:
    try:
        found: Any = orjson.loads(body)
    except orjson.JSONDecodeError as problem:
        raise InvalidReport("the body is not JSON") from problem
    value = found.get("progress", 0.0) if isinstance(found, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidReport('the body must look like {"progress": 0.4}')
    return float(value)


def _from_protobuf(body: bytes) -> float:
    progress = 0.0
    try:
        for number, wire_type, value in fields(memoryview(body)):
            if number == _PROGRESS and wire_type == FIXED32 and not isinstance(value, int):
                (progress,) = struct.unpack("<f", value)
    except ProtobufError as problem:
        raise InvalidReport("the body is not a protobuf message") from problem
    return progress


def _field(number: int, data: bytes) -> bytes:
    return bytes_field(number, data) if data else b""
