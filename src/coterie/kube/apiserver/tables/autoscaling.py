"""Rows of autoscalers, whose targets are told in one short text."""

from __future__ import annotations

from typing import Any

from coterie.kube.apiserver.tables.ages import UNKNOWN, age
from coterie.kube.apiserver.tables.columns import AGE, NAME, NONE, UNSET, Cells, Object, TableLayout, text
from coterie.kube.apiserver.tables.formats import created, items, name_of, part, truncated


def autoscaler(obj: Object, now: float) -> Cells:
    spec, status = part(obj, "spec"), part(obj, "status")
    target = part(spec, "scaleTargetRef")
    least = spec.get("minReplicas")
    return [
        name_of(obj),
        f"{target.get('kind') or ''}/{target.get('name') or ''}",
        metrics(spec, status),
        UNSET if least is None else str(least),
        spec.get("maxReplicas") or 0,
        status.get("currentReplicas") or 0,
        age(created(obj), now),
    ]


def metrics(spec: Object, status: Object) -> str:
    """Current and wanted value of each metric of an autoscaler, the first two of them."""
    wanted = items(spec, "metrics")
    current = items(status, "currentMetrics")
    percent = spec.get("targetCPUUtilizationPercentage")
    if not wanted and percent is not None:  # autoscaling/v1 knows only this one metric
        now = status.get("currentCPUUtilizationPercentage")
        return f"cpu: {UNKNOWN if now is None else f'{now}%'}/{percent}%"
    if not wanted:
        return NONE
    texts = [_metric(each, current[i] if i < len(current) else {}) for i, each in enumerate(wanted)]
    return truncated(texts, len(texts), 2, ", ")


_METRIC_FIELDS = {
    "External": "external",
    "Pods": "pods",
    "Object": "object",
    "Resource": "resource",
    "ContainerResource": "containerResource",
}


def _metric(spec: Object, status: Object) -> str:
    kind = spec.get("type") or ""
    field = _METRIC_FIELDS.get(kind)
    if field is None:
        return "<unknown type>"
    source = part(spec, field)
    target = part(source, "target")
    now = part(part(status, field), "current")
    of_resource = kind in ("Resource", "ContainerResource")
    prefix = f"{source.get('name') or ''}: " if of_resource else ""
    average = target.get("averageValue")
    if average is not None or kind == "Pods":
        suffix = "" if of_resource or kind == "Pods" else " (avg)"
        return f"{prefix}{_known(now, 'averageValue')}/{average or 0}{suffix}"
    if of_resource:
        used, aim = now.get("averageUtilization"), target.get("averageUtilization")
        return f"{prefix}{UNKNOWN if used is None else f'{used}%'}/{'<auto>' if aim is None else f'{aim}%'}"
    return f"{_known(now, 'value')}/{target.get('value') or 0}"


def _known(now: Object, key: str) -> Any:
    value = now.get(key)
    return UNKNOWN if value is None else value


AUTOSCALING: dict[tuple[str, str], TableLayout] = {
    ("autoscaling", "horizontalpodautoscalers"): TableLayout(
        (
            NAME,
            text("Reference", "What is scaled."),
            text("Targets", "Current and wanted value of the metrics."),
            text("MinPods", "Fewest pods."),
            text("MaxPods", "Most pods."),
            text("Replicas", "Pods that exist."),
            AGE,
        ),
        autoscaler,
    ),
}
