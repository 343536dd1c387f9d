"""`coterie describe`: one object, told for people.

Every description has the same frame: who the object is, what it says, what happened to it. Kinds that people look at
often say it in their own words (describe_core, describe_kuscia); of all others the fields are shown, nested. Values of
secrets are never shown, only how long they are.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from coterie.cli import describe_core, describe_kuscia
from coterie.cli.describe_sheet import NONE, Sheet, annotation_lines, pairs, write_fields
from coterie.kube.api.resources import Resource
from coterie.kube.apiserver.tables.ages import age, parse_time
from coterie.kube.apiserver.tables.cluster import event_source

Body = Callable[[Sheet, dict[str, Any], float], None]

_BODIES: dict[tuple[str, str], Body] = {
    ("", "ConfigMap"): describe_core.config_map,
    ("", "Namespace"): describe_core.namespace,
    ("", "Node"): describe_core.node,
    ("", "Pod"): describe_core.pod,
    ("", "Secret"): describe_core.secret,
    ("", "Service"): describe_core.service,
    ("apps", "Deployment"): describe_core.deployment,
    ("kuscia.secretflow", "Domain"): describe_kuscia.domain,
    ("kuscia.secretflow", "KusciaJob"): describe_kuscia.job,
    ("kuscia.secretflow", "KusciaTask"): describe_kuscia.task,
}
_FRAME = frozenset({"apiVersion", "kind", "metadata"})
_FRAME_META = frozenset({"name", "namespace", "labels", "annotations", "managedFields"})


def describe(obj: dict[str, Any], events: list[dict[str, Any]], resource: Resource, now: datetime) -> str:
    """The description of an object and of the events about it."""
    moment = now.timestamp()
    sheet = Sheet()
    meta = obj.get("metadata") or {}
    sheet.field("Name", meta.get("name") or "")
    if resource.namespaced:
        sheet.field("Namespace", meta.get("namespace") or "")
    sheet.fields("Labels", pairs(meta.get("labels")))
    sheet.fields("Annotations", annotation_lines(meta))
    if sentence := describe_kuscia.waiting(obj, resource):
        sheet.field("Waiting", sentence)
    body = _BODIES.get((resource.group, resource.kind))
    if body is not None:
        body(sheet, obj, moment)
    else:
        _generic(sheet, obj, resource)
    _events(sheet, events, moment)
    return sheet.text()


def _generic(sheet: Sheet, obj: dict[str, Any], resource: Resource) -> None:
    sheet.field("API Version", obj.get("apiVersion") or resource.api_version)
    sheet.field("Kind", obj.get("kind") or resource.kind)
    with sheet.section("Metadata"):
        write_fields(sheet, obj.get("metadata") or {}, _FRAME_META)
    write_fields(sheet, obj, _FRAME)


def _events(sheet: Sheet, events: list[dict[str, Any]], now: float) -> None:
    if not events:
        sheet.field("Events", NONE)
        return
    with sheet.section("Events"):
        rows = ((e.get("type"), e.get("reason"), _when(e, now), event_source(e), _message(e)) for e in _sorted(events))
        sheet.table(("Type", "Reason", "Age", "From", "Message"), rows)


def _message(event: dict[str, Any]) -> str:
    return (event.get("message") or event.get("note") or "").strip()


def _first_and_last(event: dict[str, Any]) -> tuple[Any, Any]:
    series = event.get("series") or {}
    first = event.get("firstTimestamp") or event.get("deprecatedFirstTimestamp") or event.get("eventTime")
    last = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("deprecatedLastTimestamp")
    return first, last or first


def _sorted(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(events, key=lambda event: parse_time(_first_and_last(event)[1]) or 0.0)


def _when(event: dict[str, Any], now: float) -> str:
    first, last = _first_and_last(event)
    count = (event.get("series") or {}).get("count") or event.get("count") or event.get("deprecatedCount") or 1
    return f"{age(last, now)} (x{count} over {age(first, now)})" if count > 1 else age(last, now)
