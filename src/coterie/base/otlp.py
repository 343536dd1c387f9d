"""Spans as the OpenTelemetry protocol writes them in JSON (OTLP 1.x, `ExportTraceServiceRequest`). Pure.

Ids are hexadecimal, times are decimal texts of nanoseconds, integers of 64 bits are texts: as the protocol's JSON mapping
says. The same request, one per line, is what a file of spans has (OTLP's file format).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from coterie.base.trace import Span, Value, bounded

_INTERNAL = 1
_OK, _ERROR = 0, 2
_SCOPE = "coterie"


def export_request(spans: Iterable[Span], resource: Mapping[str, Value], version: str) -> dict[str, Any]:
    """`resource`: who recorded them."""
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeSpans": [
                    {"scope": {"name": _SCOPE, "version": version}, "spans": [_span(bounded(each)) for each in spans]}
                ],
            }
        ]
    }


def encode(request: Mapping[str, Any]) -> bytes:
    """On one line."""
    return json.dumps(request, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def _span(span: Span) -> dict[str, Any]:
    out: dict[str, Any] = {
        "traceId": span.trace,
        "spanId": span.span,
        **({"parentSpanId": span.parent} if span.parent else {}),
        "name": span.name,
        "kind": _INTERNAL,
        "startTimeUnixNano": str(span.begin),
        "endTimeUnixNano": str(span.end),
        "attributes": _attributes(span.attributes),
        "status": {"code": _ERROR, "message": span.error} if span.error else {"code": _OK},
    }
    if span.links:
        out["links"] = [{"traceId": each.trace, "spanId": each.span} for each in span.links]
    return out


def _attributes(values: Mapping[str, Value]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Value) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": value}
