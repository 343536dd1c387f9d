"""Events for other programs: lines of JSON, a table (CSV), OpenTelemetry logs (OTLP as JSON). Pure."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

JSON, CSV, OTLP = "json", "csv", "otlp"
MEDIA_TYPES = {JSON: "application/x-ndjson", CSV: "text/csv", OTLP: "application/json"}
_INFO = 9


def formatted(rows: Sequence[dict[str, Any]], form: str, domain: str) -> str:
    """`rows`: as `ShownEvent.as_json` makes them."""
    if form == JSON:
        return "".join(json.dumps(each, sort_keys=True) + "\n" for each in rows)
    return as_csv(rows) if form == CSV else json.dumps(otlp_logs(rows, domain)) + "\n"


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Nothing that a table program would take for a formula."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(names)
    for row in rows:
        texts = [_cell(row.get(name, "")) for name in names]
        writer.writerow([f"'{each}" if each[:1] in "=+-@\t\r" and each else each for each in texts])
    return out.getvalue()


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def otlp_logs(rows: Iterable[dict[str, Any]], domain: str) -> dict[str, Any]:
    """An ExportLogsServiceRequest: what `POST /v1/logs` of a collector takes. 64-bit integers are strings there."""
    records = [
        {
            "timeUnixNano": str(int(row.get("t", 0)) * 1_000_000),
            "observedTimeUnixNano": str(int(row.get("t", 0)) * 1_000_000),
            "severityNumber": _INFO,
            "severityText": "INFO",
            "eventName": f"coterie.evidence.{row.get('kind', 'removed')}",
            "body": {"stringValue": str(row.get("kind", "removed"))},
            "attributes": [
                {"key": f"coterie.evidence.{name}", "value": _any_value(value)}
                for name, value in row.items()
                if name not in ("t", "kind")
            ],
        }
        for row in rows
    ]
    resource = [
        {"key": "service.name", "value": {"stringValue": "coterie"}},
        {"key": "service.namespace", "value": {"stringValue": domain}},
    ]
    scope = {"scope": {"name": "coterie.evidence"}, "logRecords": records}
    return {"resourceLogs": [{"resource": {"attributes": resource}, "scopeLogs": [scope]}]}


def _any_value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, list | tuple):
        return {"arrayValue": {"values": [_any_value(each) for each in value]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": [{"key": key, "value": _any_value(each)} for key, each in value.items()]}}
    return {"stringValue": str(value)}
