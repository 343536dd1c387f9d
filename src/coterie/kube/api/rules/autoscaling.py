"""Rules of horizontal pod autoscalers, in their stored version `autoscaling/v2`."""

from __future__ import annotations

from typing import Any

from coterie.kube.api.errors import forbidden_field, invalid, not_supported, required
from coterie.kube.api.names import path_segment_faults
from coterie.kube.api.rules.base import Errors, KindRules, Obj, make_rules, section, setdefaults
from coterie.kube.api.rules.common import NOT_NEGATIVE, named, optional_one_of, parse_quantity
from coterie.kube.api.selectors import validate_selector

_SOURCES = {
    "Object": "object",
    "Pods": "pods",
    "Resource": "resource",
    "ContainerResource": "containerResource",
    "External": "external",
}
_TYPES = tuple(sorted(_SOURCES))
_HOUR, _HALF_HOUR = 3600, 1800


def _default_autoscaler(obj: Obj) -> None:
    spec = section(obj, "spec")
    setdefaults(spec, minReplicas=1)
    if not spec.get("metrics"):
        target = {"type": "Utilization", "averageUtilization": 80}
        spec["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
    if (behavior := spec.get("behavior")) is not None:
        up, down = section(behavior, "scaleUp"), section(behavior, "scaleDown")
        setdefaults(up, stabilizationWindowSeconds=0, selectPolicy="Max")
        if not up.get("policies"):
            up["policies"] = [
                {"type": "Pods", "value": 4, "periodSeconds": 15},
                {"type": "Percent", "value": 100, "periodSeconds": 15},
            ]
        setdefaults(down, selectPolicy="Max")
        if not down.get("policies"):
            down["policies"] = [{"type": "Percent", "value": 100, "periodSeconds": 15}]


def _validate_autoscaler(obj: Obj) -> Errors:
    spec = obj.get("spec") or {}
    least, most = spec.get("minReplicas"), spec.get("maxReplicas") or 0
    errors: Errors = []
    if least is not None and least < 1:
        errors.append(invalid("spec.minReplicas", least, "must be greater than or equal to 1"))
    if most < 1:
        errors.append(invalid("spec.maxReplicas", most, "must be greater than 0"))
    if least is not None and most < least:
        errors.append(invalid("spec.maxReplicas", most, "must be greater than or equal to `minReplicas`"))
    errors += _check_reference(spec.get("scaleTargetRef") or {}, "spec.scaleTargetRef")
    for index, metric in enumerate(spec.get("metrics") or ()):
        errors += _check_metric(metric, f"spec.metrics[{index}]")
    if behavior := spec.get("behavior"):
        for key in ("scaleUp", "scaleDown"):
            if rules := behavior.get(key):
                errors += _check_scaling(rules, f"spec.behavior.{key}")
    return errors


def _check_reference(reference: Obj, path: str) -> Errors:
    errors = named(reference.get("kind"), f"{path}.kind", path_segment_faults)
    return errors + named(reference.get("name"), f"{path}.name", path_segment_faults)


def _check_metric(metric: Obj, path: str) -> Errors:
    kind = metric.get("type") or ""
    if not kind:
        return [required(f"{path}.type", "must specify a metric source type")]
    if kind not in _SOURCES:
        return [not_supported(f"{path}.type", kind, _TYPES)]
    errors = [
        forbidden_field(f"{path}.{key}", "must populate the given metric source only")
        for name, key in _SOURCES.items()
        if name != kind and metric.get(key) is not None
    ]
    key = _SOURCES[kind]
    source = metric.get(key)
    if source is None:
        return [*errors, required(f"{path}.{key}", "must populate information for the given metric source")]
    at = f"{path}.{key}"
    if kind in ("Resource", "ContainerResource"):
        errors += _check_target(source.get("target"), f"{at}.target", utilization=True)
        if not source.get("name"):
            errors.append(required(f"{at}.name", "must specify a resource name"))
        if kind == "ContainerResource" and not source.get("container"):
            errors.append(required(f"{at}.container", "must specify a container"))
        return errors
    if kind == "Object":
        errors += _check_reference(source.get("describedObject") or {}, f"{at}.describedObject")
    errors += _check_identifier(source.get("metric") or {}, f"{at}.metric")
    return errors + _check_target(source.get("target"), f"{at}.target", utilization=False)


def _check_identifier(identifier: Obj, path: str) -> Errors:
    errors = named(identifier.get("name"), f"{path}.name", path_segment_faults)
    if selector := identifier.get("selector"):
        errors += validate_selector(selector, f"{path}.selector")
    return errors


def _positive(value: Any) -> bool:
    parsed = parse_quantity(value)
    return parsed is not None and parsed.nanos > 0


def _check_target(target: Obj | None, path: str, *, utilization: bool) -> Errors:
    target = target or {}
    kind = target.get("type") or ""
    errors: Errors = []
    if not kind:
        errors.append(required(f"{path}.type", "must specify a metric target type"))
    elif kind not in ("Utilization", "Value", "AverageValue"):
        errors.append(invalid(f"{path}.type", kind, "must be either Utilization, Value, or AverageValue"))
    for key in ("value", "averageValue"):
        if target.get(key) is not None and not _positive(target[key]):
            errors.append(invalid(f"{path}.{key}", target[key], "must be positive"))
    percent = target.get("averageUtilization")
    if percent is not None and percent < 1:
        errors.append(invalid(f"{path}.averageUtilization", percent, "must be greater than 0"))
    if utilization:
        if percent is None and target.get("averageValue") is None:
            why = "must set either a target raw value or a target utilization"
            errors.append(required(f"{path}.averageUtilization", why))
        elif percent is not None and target.get("averageValue") is not None:
            why = "may not set both a target raw value and a target utilization"
            errors.append(forbidden_field(f"{path}.averageValue", why))
    elif target.get("value") is None and target.get("averageValue") is None:
        why = "must set either a target value for metric or a per-pod target"
        errors.append(required(f"{path}.averageValue", why))
    return errors


def _check_scaling(rules: Obj, path: str) -> Errors:
    errors: Errors = []
    window = rules.get("stabilizationWindowSeconds")
    if window is not None and window < 0:
        errors.append(invalid(f"{path}.stabilizationWindowSeconds", window, NOT_NEGATIVE))
    elif window is not None and window > _HOUR:
        errors.append(invalid(f"{path}.stabilizationWindowSeconds", window, f"must be less than or equal to {_HOUR}"))
    tolerance = parse_quantity(rules["tolerance"]) if rules.get("tolerance") is not None else None
    if tolerance is not None and tolerance.nanos < 0:
        errors.append(invalid(f"{path}.tolerance", rules["tolerance"], NOT_NEGATIVE))
    errors += optional_one_of(rules.get("selectPolicy"), ("Disabled", "Max", "Min"), f"{path}.selectPolicy")
    if not rules.get("policies"):
        errors.append(required(f"{path}.policies", "must specify at least one Policy"))
    for index, policy in enumerate(rules.get("policies") or ()):
        at = f"{path}.policies[{index}]"
        if policy.get("type") not in ("Pods", "Percent"):
            errors.append(not_supported(f"{at}.type", policy.get("type") or "", ("Percent", "Pods")))
        value, period = policy.get("value") or 0, policy.get("periodSeconds") or 0
        if value <= 0:
            errors.append(invalid(f"{at}.value", value, "must be greater than zero"))
        if period <= 0:
            errors.append(invalid(f"{at}.periodSeconds", period, "must be greater than zero"))
        elif period > _HALF_HOUR:
            errors.append(invalid(f"{at}.periodSeconds", period, f"must be less than or equal to {_HALF_HOUR}"))
    return errors


def _initial_status(obj: Obj) -> Obj:
    return {"desiredReplicas": 0}


def _validate_scale(obj: Obj) -> Errors:
    replicas = (obj.get("spec") or {}).get("replicas") or 0
    return [invalid("spec.replicas", replicas, NOT_NEGATIVE)] if replicas < 0 else []


RULES: dict[tuple[str, str], KindRules] = {
    ("autoscaling", "HorizontalPodAutoscaler"): make_rules(
        default=_default_autoscaler, validate=_validate_autoscaler, status=True, initial_status=_initial_status
    ),
    ("autoscaling", "Scale"): KindRules(
        validate_create=_validate_scale, validate_update=lambda new, old: _validate_scale(new)
    ),
}
