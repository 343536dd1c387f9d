"""Autoscalers between `autoscaling/v1` and the stored `autoscaling/v2`.

v1 knows only a CPU target. Everything else of v2 (other metrics, behavior, conditions) travels in annotations, in the
shapes Kubernetes uses there, so a v1 client can read and write back any autoscaler without loss.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from coterie.kube.api import labels
from coterie.kube.api.errors import BadRequest

Obj = dict[str, Any]


def _drop_empty(obj: Obj) -> Obj:
    return {key: value for key, value in obj.items() if value is not None}


# ---- one metric, wanted or measured --------------------------------------------------------------------------------


def _target(value: Any = None, average: Any = None, utilization: Any = None) -> Obj:
    kind = (
        "Utilization"
        if utilization is not None
        else "Value"
        if value is not None and average is None
        else "AverageValue"
    )
    return _drop_empty({"type": kind, "value": value, "averageValue": average, "averageUtilization": utilization})


def _identifier(name: Any, selector: Any) -> Obj:
    return _drop_empty({"name": name or "", "selector": selector})


def _resource_to_v2(old: Obj, prefix: str) -> Obj:
    average, percent = old.get(f"{prefix}AverageValue"), old.get(f"{prefix}AverageUtilization")
    amount = _amount(prefix, average=average, utilization=percent)
    return _drop_empty({"name": old.get("name"), "container": old.get("container"), **amount})


def _pods_to_v2(old: Obj, prefix: str) -> Obj:
    amount = _amount(prefix, average=old.get(f"{prefix}AverageValue"))
    return {"metric": _identifier(old.get("metricName"), old.get("selector")), **amount}


def _object_to_v2(old: Obj, prefix: str) -> Obj:
    # An average wins: v1 always writes targetValue, too.
    average = old.get("averageValue")
    amount = _amount(
        prefix, value=None if average is not None and prefix == "target" else old.get(f"{prefix}Value"), average=average
    )
    return {
        "describedObject": old.get("target") or {},
        "metric": _identifier(old.get("metricName"), old.get("selector")),
        **amount,
    }


def _external_to_v2(old: Obj, prefix: str) -> Obj:
    amount = _amount(prefix, value=old.get(f"{prefix}Value"), average=old.get(f"{prefix}AverageValue"))
    return {"metric": _identifier(old.get("metricName"), old.get("metricSelector")), **amount}


def _amount(prefix: str, value: Any = None, average: Any = None, utilization: Any = None) -> Obj:
    """What is wanted stands under `target` with a type; what is measured under `current` without one."""
    if prefix == "target":
        return {"target": _target(value, average, utilization)}
    return {"current": _drop_empty({"value": value, "averageValue": average, "averageUtilization": utilization})}


def _resource_to_v1(new: Obj, prefix: str) -> Obj:
    amount = new.get(prefix) or {}
    return _drop_empty(
        {
            "name": new.get("name"),
            "container": new.get("container"),
            f"{prefix}AverageUtilization": amount.get("averageUtilization"),
            f"{prefix}AverageValue": amount.get("averageValue"),
        }
    )


def _pods_to_v1(new: Obj, prefix: str) -> Obj:
    metric, amount = new.get("metric") or {}, new.get(prefix) or {}
    return _drop_empty(
        {
            "metricName": metric.get("name"),
            "selector": metric.get("selector"),
            f"{prefix}AverageValue": amount.get("averageValue"),
        }
    )


def _object_to_v1(new: Obj, prefix: str) -> Obj:
    metric, amount = new.get("metric") or {}, new.get(prefix) or {}
    return _drop_empty(
        {
            "target": new.get("describedObject"),
            "metricName": metric.get("name"),
            "selector": metric.get("selector"),
            f"{prefix}Value": amount.get("value"),
            "averageValue": amount.get("averageValue"),
        }
    )


def _external_to_v1(new: Obj, prefix: str) -> Obj:
    metric, amount = new.get("metric") or {}, new.get(prefix) or {}
    return _drop_empty(
        {
            "metricName": metric.get("name"),
            "metricSelector": metric.get("selector"),
            f"{prefix}Value": amount.get("value"),
            f"{prefix}AverageValue": amount.get("averageValue"),
        }
    )


_Turn = Callable[[Obj, str], Obj]
_SOURCES: dict[str, tuple[str, _Turn, _Turn]] = {
    "Object": ("object", _object_to_v2, _object_to_v1),
    "Pods": ("pods", _pods_to_v2, _pods_to_v1),
    "Resource": ("resource", _resource_to_v2, _resource_to_v1),
    "ContainerResource": ("containerResource", _resource_to_v2, _resource_to_v1),
    "External": ("external", _external_to_v2, _external_to_v1),
}


def _metric(metric: Obj, prefix: str, to_v2: bool) -> Obj:
    kind = metric.get("type") or ""
    if kind not in _SOURCES:
        return dict(metric)
    key, forth, back = _SOURCES[kind]
    source = metric.get(key)
    if source is None:
        return {"type": kind}
    return {"type": kind, key: (forth if to_v2 else back)(source, prefix)}


def _is_cpu(metric: Obj, prefix: str) -> bool:
    source = metric.get("resource") or {}
    percent = (source.get(prefix) or {}).get("averageUtilization")
    return metric.get("type") == "Resource" and source.get("name") == "cpu" and percent is not None


# ---- whole objects --------------------------------------------------------------------------------------------------


def _read_annotation(annotations: Obj, key: str, shape: type) -> Any:
    text = annotations.pop(key, None)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadRequest(f"metadata.annotations[{key}]: {error}") from error
    entries = value if isinstance(value, list) else []
    if not isinstance(value, shape) or not all(isinstance(entry, dict) for entry in entries):
        raise BadRequest(f"metadata.annotations[{key}]: has the wrong shape")
    return value


def _write_annotation(annotations: Obj, key: str, value: Any) -> None:
    if value:
        annotations[key] = json.dumps(value, separators=(",", ":"))


def _with_annotations(obj: Obj, annotations: Obj) -> Obj:
    meta = {key: value for key, value in (obj.get("metadata") or {}).items() if key != "annotations"}
    return {**meta, "annotations": annotations} if annotations else meta


def hpa_v1_to_v2(obj: Obj) -> Obj:
    """The stored form of an `autoscaling/v1` autoscaler."""
    annotations = dict((obj.get("metadata") or {}).get("annotations") or {})
    metrics = _read_annotation(annotations, labels.HPA_METRICS, list)
    current = _read_annotation(annotations, labels.HPA_CURRENT_METRICS, list)
    conditions = _read_annotation(annotations, labels.HPA_CONDITIONS, list)
    behavior = _read_annotation(annotations, labels.HPA_BEHAVIOR, dict)
    out = {**obj, "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler"}
    out["metadata"] = _with_annotations(obj, annotations)
    if (spec := obj.get("spec")) is not None:
        spec = dict(spec)
        percent = spec.pop("targetCPUUtilizationPercentage", None)
        wanted = [_metric(metric, "target", True) for metric in metrics or ()]
        if percent is not None:
            wanted.append({"type": "Resource", "resource": {"name": "cpu", "target": _target(utilization=percent)}})
        if wanted:
            spec["metrics"] = wanted
        if behavior:
            spec["behavior"] = behavior
        out["spec"] = spec
    if (status := obj.get("status")) is not None:
        out["status"] = _status_to_v2(status, current, conditions)
    return out


def _status_to_v2(status: Obj, current: list[Obj] | None, conditions: list[Obj] | None) -> Obj:
    status = dict(status)
    percent = status.pop("currentCPUUtilizationPercentage", None)
    measured = [_metric(metric, "current", True) for metric in current or ()]
    if percent is not None and not any(_is_cpu(metric, "current") for metric in measured):
        measured.append({"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": percent}}})
    if measured:
        status["currentMetrics"] = measured
    if conditions:
        status["conditions"] = conditions
    # Both are required in v1 and always shown.
    status.setdefault("currentReplicas", 0)
    status.setdefault("desiredReplicas", 0)
    return status


def hpa_v2_to_v1(obj: Obj) -> Obj:
    """A stored autoscaler as a client of `autoscaling/v1` sees it."""
    annotations = dict((obj.get("metadata") or {}).get("annotations") or {})
    out = {**obj, "apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler"}
    if (spec := obj.get("spec")) is not None:
        spec = dict(spec)
        rest: list[Obj] = []
        for metric in spec.pop("metrics", None) or ():
            if _is_cpu(metric, "target") and "targetCPUUtilizationPercentage" not in spec:
                spec["targetCPUUtilizationPercentage"] = metric["resource"]["target"]["averageUtilization"]
            else:
                rest.append(_metric(metric, "target", False))
        _write_annotation(annotations, labels.HPA_METRICS, rest)
        _write_annotation(annotations, labels.HPA_BEHAVIOR, spec.pop("behavior", None))
        out["spec"] = spec
    if (status := obj.get("status")) is not None:
        status = dict(status)
        measured = status.pop("currentMetrics", None) or []
        for metric in measured:
            if _is_cpu(metric, "current"):
                status["currentCPUUtilizationPercentage"] = metric["resource"]["current"]["averageUtilization"]
        _write_annotation(annotations, labels.HPA_CURRENT_METRICS, [_metric(m, "current", False) for m in measured])
        _write_annotation(annotations, labels.HPA_CONDITIONS, status.pop("conditions", None))
        status.setdefault("currentReplicas", 0)
        status.setdefault("desiredReplicas", 0)
        out["status"] = status
    out["metadata"] = _with_annotations(obj, annotations)
    return out
