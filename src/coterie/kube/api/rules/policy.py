"""Rules of limits on others: resource quotas, limit ranges, disruption budgets."""

from __future__ import annotations

from typing import Any

from coterie.kube.api.errors import duplicate, forbidden_field, invalid, not_supported, required
from coterie.kube.api.names import IMMUTABLE, qualified_name_faults
from coterie.kube.api.rules.base import Errors, KindRules, Obj, make_rules, section
from coterie.kube.api.rules.common import (
    canonicalize,
    check_int_or_percent,
    check_quantity,
    optional_one_of,
    parse_quantity,
    percent_of,
)
from coterie.kube.api.selectors import validate_selector

# ---- quotas -------------------------------------------------------------------------------------------------------

_QUOTA_NAMES = frozenset(
    {
        "cpu",
        "memory",
        "ephemeral-storage",
        "requests.cpu",
        "requests.memory",
        "requests.storage",
        "requests.ephemeral-storage",
        "limits.cpu",
        "limits.memory",
        "limits.ephemeral-storage",
        "pods",
        "resourcequotas",
        "services",
        "replicationcontrollers",
        "secrets",
        "persistentvolumeclaims",
        "configmaps",
        "services.nodeports",
        "services.loadbalancers",
    }
)
_WHOLE = frozenset(
    {
        "pods",
        "resourcequotas",
        "services",
        "replicationcontrollers",
        "secrets",
        "persistentvolumeclaims",
        "configmaps",
        "services.nodeports",
        "services.loadbalancers",
    }
)
_SCOPES = ("BestEffort", "CrossNamespacePodAffinity", "NotBestEffort", "NotTerminating", "PriorityClass", "Terminating")


def _default_quota(obj: Obj) -> None:
    canonicalize((obj.get("spec") or {}).get("hard"))
    canonicalize((obj.get("status") or {}).get("hard"))
    canonicalize((obj.get("status") or {}).get("used"))


def _quota_name_faults(name: str) -> tuple[str, ...]:
    if faults := qualified_name_faults(name):
        return faults
    if "/" in name or name in _QUOTA_NAMES or name.startswith(("hugepages-", "requests.hugepages-")):
        return ()
    return ("must be a standard resource type or fully qualified", "must be a standard resource for quota")


def _check_amounts(values: Obj | None, path: str) -> Errors:
    errors: Errors = []
    for name, value in (values or {}).items():
        errors += [invalid(f"{path}[{name}]", name, fault) for fault in _quota_name_faults(name)]
        faults = check_quantity(value, f"{path}[{name}]")
        errors += faults
        parsed = parse_quantity(value)
        if not faults and parsed and (name in _WHOLE or name.startswith("count/")) and parsed.nanos % 10**9:
            errors.append(invalid(f"{path}[{name}]", str(parsed), "must be an integer"))
    return errors


def _validate_quota(obj: Obj) -> Errors:
    spec = obj.get("spec") or {}
    errors = _check_amounts(spec.get("hard"), "spec.hard")
    scopes = spec.get("scopes") or []
    for scope in scopes:
        if scope not in _SCOPES:
            errors.append(invalid("spec.scopes", scopes, "unsupported scope"))
    if {"BestEffort", "NotBestEffort"} <= set(scopes) or {"Terminating", "NotTerminating"} <= set(scopes):
        errors.append(invalid("spec.scopes", scopes, "conflicting scopes"))
    for index, term in enumerate((spec.get("scopeSelector") or {}).get("matchExpressions") or ()):
        at = f"spec.scopeSelector.matchExpressions[{index}]"
        if term.get("scopeName") not in _SCOPES:
            errors.append(invalid(f"{at}.scopeName", term.get("scopeName") or "", "unsupported scope"))
        operator, values = term.get("operator"), term.get("values") or []
        if operator in ("In", "NotIn"):
            if not values:
                why = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
                errors.append(required(f"{at}.values", why))
        elif operator in ("Exists", "DoesNotExist"):
            if values:
                why = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"
                errors.append(invalid(f"{at}.values", values, why))
        else:
            errors.append(invalid(f"{at}.operator", operator or "", "not a valid selector operator"))
    return errors


def _check_quota_change(new: Obj, old: Obj) -> Errors:
    scopes, before = (new.get("spec") or {}).get("scopes") or [], (old.get("spec") or {}).get("scopes") or []
    return [] if set(scopes) == set(before) else [invalid("spec.scopes", scopes, IMMUTABLE)]


def _check_quota_status(new: Obj, old: Obj) -> Errors:
    status = new.get("status") or {}
    return _check_amounts(status.get("hard"), "status.hard") + _check_amounts(status.get("used"), "status.used")


# ---- limit ranges -------------------------------------------------------------------------------------------------

_AMOUNTS = ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio")


def _default_limit_range(obj: Obj) -> None:
    for item in (obj.get("spec") or {}).get("limits") or ():
        for key in _AMOUNTS:
            canonicalize(item.get(key))
        if item.get("type") != "Container":
            continue
        # What is not said follows from its neighbour: max -> default -> default request <- min.
        for source, target in (("max", "default"), ("default", "defaultRequest"), ("min", "defaultRequest")):
            for name, value in (item.get(source) or {}).items():
                section(item, target).setdefault(name, value)


def _validate_limit_range(obj: Obj) -> Errors:
    errors: Errors = []
    seen: set[str] = set()
    for index, item in enumerate((obj.get("spec") or {}).get("limits") or ()):
        at, kind = f"spec.limits[{index}]", item.get("type") or ""
        if not kind:
            errors.append(required(f"{at}.type"))
        elif kind not in ("Container", "PersistentVolumeClaim", "Pod") and "/" not in kind:
            allowed = ("Container", "PersistentVolumeClaim", "Pod")
            errors.append(not_supported(f"{at}.type", kind, allowed))
        if kind in seen:
            errors.append(duplicate(f"{at}.type", kind))
        seen.add(kind)
        errors += _check_limits(item, at, kind)
    return errors


def _check_limits(item: Obj, path: str, kind: str) -> Errors:
    errors: Errors = []
    amounts: dict[str, dict[str, Any]] = {}
    for key in _AMOUNTS:
        amounts[key] = {}
        for name, value in (item.get(key) or {}).items():
            errors += check_quantity(value, f"{path}.{key}[{name}]")
            amounts[key][name] = parse_quantity(value)
    if kind == "Pod":
        errors += [
            forbidden_field(f"{path}.{key}", "may not be specified when `type` is 'Pod'")
            for key in ("default", "defaultRequest")
            if item.get(key)
        ]
    if kind == "PersistentVolumeClaim" and not amounts["min"].get("storage") and not amounts["max"].get("storage"):
        why = "either minimum or maximum storage value is required, but neither was provided"
        errors.append(required(f"{path}.limits", why))
    if errors:
        return errors
    for low, high, words in (
        ("min", "max", "min value {0} is greater than max value {1}"),
        ("min", "defaultRequest", "min value {0} is greater than default request value {1}"),
        ("defaultRequest", "max", "default request value {0} is greater than max value {1}"),
        ("defaultRequest", "default", "default request value {0} is greater than default limit value {1}"),
        ("min", "default", "min value {0} is greater than default value {1}"),
        ("default", "max", "default value {0} is greater than max value {1}"),
    ):
        for name in sorted(amounts[low].keys() & amounts[high].keys()):
            less, more = amounts[low][name], amounts[high][name]
            if less > more:
                errors.append(invalid(f"{path}.{low}[{name}]", str(less), words.format(less, more)))
    return errors


# ---- disruption budgets -------------------------------------------------------------------------------------------


def _validate_budget(obj: Obj) -> Errors:
    spec = obj.get("spec") or {}
    errors: Errors = []
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        errors.append(invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set"))
    for key in ("minAvailable", "maxUnavailable"):
        if (value := spec.get(key)) is not None:
            errors += check_int_or_percent(value, f"spec.{key}")
            if (percent_of(value) or 0) > 100:
                errors.append(invalid(f"spec.{key}", value, "must not be greater than 100%"))
    if selector := spec.get("selector"):
        errors += validate_selector(selector, "spec.selector")
    allowed = ("AlwaysAllow", "IfHealthyBudget")
    return errors + optional_one_of(spec.get("unhealthyPodEvictionPolicy"), allowed, "spec.unhealthyPodEvictionPolicy")


def _budget_status(obj: Obj) -> Obj:
    return dict.fromkeys(("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"), 0)


RULES: dict[tuple[str, str], KindRules] = {
    ("", "ResourceQuota"): make_rules(
        default=_default_quota,
        validate=_validate_quota,
        changed=_check_quota_change,
        status=True,
        validate_status=_check_quota_status,
    ),
    ("", "LimitRange"): make_rules(default=_default_limit_range, validate=_validate_limit_range),
    ("policy", "PodDisruptionBudget"): make_rules(
        validate=_validate_budget, status=True, generation=("spec",), initial_status=_budget_status
    ),
}
