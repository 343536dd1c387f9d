"""Rules of events, which are stored in the core form whichever API they came through.

Those that come through `events.k8s.io` must be complete; core events may be as sketchy as old clients write them. The
complaint names fields as the client's API names them.
"""

from __future__ import annotations

from coterie.kube.api.errors import FieldError, invalid, required
from coterie.kube.api.names import qualified_name_faults
from coterie.kube.api.rules.base import Errors, KindRules, Obj, make_rules
from coterie.kube.api.rules.common import immutable

EVENTS_GROUP = "events.k8s.io"
_MAX_SHORT, _MAX_NOTE = 128, 1024
_FIXED = ("involvedObject", "related", "reason", "action", "reportingComponent", "reportingInstance", "message", "type")


def _check_namespace(obj: Obj, field: str) -> Errors:
    involved = (obj.get("involvedObject") or {}).get("namespace") or ""
    namespace = (obj.get("metadata") or {}).get("namespace") or ""
    if involved:
        if namespace != involved:
            return [invalid(field, involved, "does not match event.namespace")]
    elif namespace not in ("", "default", "kube-system"):
        return [invalid(field, involved, "does not match event.namespace")]
    return []


def _validate_core_event(obj: Obj) -> Errors:
    errors = _check_namespace(obj, "involvedObject.namespace")
    if obj.get("eventTime"):
        # Only clients of the new recorder set it, so the new demands apply.
        errors += _check_new(obj)
    return errors


def _validate_new_event(obj: Obj) -> Errors:
    errors = _check_namespace(obj, "regarding.namespace")
    if not obj.get("eventTime"):
        errors.append(required("eventTime"))
    errors += _check_new(obj)
    kind = obj.get("type")
    if kind not in ("Normal", "Warning"):
        errors.append(invalid("type", kind or "", f"has invalid value: {kind or ''}"))
    for field, name in (("firstTimestamp", "deprecatedFirstTimestamp"), ("lastTimestamp", "deprecatedLastTimestamp")):
        if obj.get(field):
            errors.append(invalid(name, obj[field], "needs to be unset"))
    if obj.get("count"):
        errors.append(invalid("deprecatedCount", obj["count"], "needs to be unset"))
    return errors


def _check_new(obj: Obj) -> Errors:
    errors: Errors = []
    controller = obj.get("reportingComponent") or ""
    if not controller:
        errors.append(required("reportingController"))
    else:
        errors += [invalid("reportingController", controller, fault) for fault in qualified_name_faults(controller)]
    for key in ("reportingInstance", "action", "reason"):
        errors += _check_short(key, obj.get(key) or "")
    if len(obj.get("message") or "") > _MAX_NOTE:
        errors.append(invalid("message", "", f"can have at most {_MAX_NOTE} characters"))
    return errors


def _check_short(key: str, value: str) -> list[FieldError]:
    if not value:
        return [required(key)]
    return [invalid(key, "", f"can have at most {_MAX_SHORT} characters")] if len(value) > _MAX_SHORT else []


def _new_event_change(new: Obj, old: Obj) -> Errors:
    return immutable(new, old, "", *_FIXED)


RULES: dict[tuple[str, str], KindRules] = {
    ("", "Event"): make_rules(validate=_validate_core_event),
    # An update through the new API must not fail because an old client left the event incomplete.
    (EVENTS_GROUP, "Event"): make_rules(
        validate=_validate_core_event, validate_create=_validate_new_event, changed=_new_event_change
    ),
}
