"""Events between the core form, in which they are stored, and `events.k8s.io/v1`: the same facts under other names."""

from __future__ import annotations

from typing import Any

Obj = dict[str, Any]

_CORE_TO_EVENTS = {
    "involvedObject": "regarding",
    "message": "note",
    "reportingComponent": "reportingController",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
}
_EVENTS_TO_CORE = {new: old for old, new in _CORE_TO_EVENTS.items()}


def _renamed(obj: Obj, names: dict[str, str], api_version: str) -> Obj:
    out = {names.get(key, key): value for key, value in obj.items() if value is not None}
    out["apiVersion"], out["kind"] = api_version, "Event"
    return out


def event_core_to_events(obj: Obj) -> Obj:
    out = _renamed(obj, _CORE_TO_EVENTS, "events.k8s.io/v1")
    out.setdefault("eventTime", None)  # the new form always shows it
    return out


def event_events_to_core(obj: Obj) -> Obj:
    out = _renamed(obj, _EVENTS_TO_CORE, "v1")
    # Core events always show these, even empty.
    out.setdefault("reportingComponent", "")
    out.setdefault("reportingInstance", "")
    out.setdefault("involvedObject", {})
    out.setdefault("source", {})
    return out
