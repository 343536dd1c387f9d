"""Rules of flow schemas and priority levels, and the objects of them that Kubernetes begins with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from coterie.kube.api.errors import duplicate, forbidden_field, invalid, not_supported, required
from coterie.kube.api.names import dns_label_faults, dns_subdomain_faults
from coterie.kube.api.rules.base import Errors, KindRules, Obj, make_rules, section
from coterie.kube.api.rules.common import named

GROUP = "flowcontrol.apiserver.k8s.io"
_DEFAULT_PRECEDENCE, _HIGHEST_PRECEDENCE = 1000, 10_000
_DEFAULT_SHARES, _DEFAULT_QUEUES, _DEFAULT_HAND, _DEFAULT_QUEUE_LENGTH = 30, 64, 8, 50
_MOST_QUEUES, _HASH_BITS = 10_000_000, 60
_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch")
_SUBJECTS = {"ServiceAccount": "serviceAccount", "User": "user", "Group": "group"}
_ZERO_SHARES = "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares"
_EVERYBODY = ("system:unauthenticated", "system:authenticated")


# ---- what Kubernetes begins with --------------------------------------------------------------------------------


def _limited(shares: int, lendable: int, queues: int = 0, hand: int = 0) -> Obj:
    response: Obj = {"type": "Reject"}
    if queues:
        queuing = {"queues": queues, "handSize": hand, "queueLengthLimit": _DEFAULT_QUEUE_LENGTH}
        response = {"type": "Queue", "queuing": queuing}
    limits = {"nominalConcurrencyShares": shares, "lendablePercent": lendable, "limitResponse": response}
    return {"type": "Limited", "limited": limits}


def _groups(*names: str) -> list[Obj]:
    return [{"kind": "Group", "group": {"name": name}} for name in names]


def _users(*names: str) -> list[Obj]:
    return [{"kind": "User", "user": {"name": name}} for name in names]


def _accounts(name: str) -> list[Obj]:
    return [{"kind": "ServiceAccount", "serviceAccount": {"name": name, "namespace": "kube-system"}}]


def _resources(verbs: Sequence[str], group: str, resources: Sequence[str], *, cluster: bool) -> Obj:
    rule: Obj = {"verbs": list(verbs), "apiGroups": [group], "resources": list(resources), "namespaces": ["*"]}
    return {**rule, "clusterScope": True} if cluster else rule


_ALL_RESOURCES = [_resources("*", "*", "*", cluster=True)]
_ALL_URLS: list[Obj] = [{"verbs": ["*"], "nonResourceURLs": ["*"]}]


def _schema(
    level: str, precedence: int, distinguisher: str, subjects: list[Obj], resources: list[Obj], urls: list[Obj]
) -> Obj:
    rule: Obj = {"subjects": subjects}
    if resources:
        rule["resourceRules"] = resources
    if urls:
        rule["nonResourceRules"] = urls
    spec: Obj = {"priorityLevelConfiguration": {"name": level}, "matchingPrecedence": precedence}
    if distinguisher:
        spec["distinguisherMethod"] = {"type": distinguisher}
    return {**spec, "rules": [rule]}


MANDATORY_LEVELS: dict[str, Obj] = {
    "exempt": {"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}},
    "catch-all": _limited(5, 0),
}
SUGGESTED_LEVELS: dict[str, Obj] = {
    "system": _limited(30, 33, 64, 6),
    "node-high": _limited(40, 25, 64, 6),
    "leader-election": _limited(10, 0, 16, 4),
    "workload-high": _limited(40, 50, 128, 6),
    "workload-low": _limited(100, 90, 128, 6),
    "global-default": _limited(20, 50, 128, 6),
}
MANDATORY_SCHEMAS: dict[str, Obj] = {
    "exempt": _schema("exempt", 1, "", _groups("system:masters"), _ALL_RESOURCES, _ALL_URLS),
    "catch-all": _schema("catch-all", 10_000, "ByUser", _groups(*_EVERYBODY), _ALL_RESOURCES, _ALL_URLS),
}
_MANAGER, _SCHEDULER = "system:kube-controller-manager", "system:kube-scheduler"
SUGGESTED_SCHEMAS: dict[str, Obj] = {
    "probes": _schema(
        "exempt",
        2,
        "",
        _groups(*_EVERYBODY),
        [],
        [{"verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"]}],
    ),
    "system-leader-election": _schema(
        "leader-election",
        100,
        "ByUser",
        [*_users(_MANAGER, _SCHEDULER), *_accounts("*")],
        [_resources(("get", "create", "update"), "coordination.k8s.io", ["leases"], cluster=False)],
        [],
    ),
    "system-node-high": _schema(
        "node-high",
        400,
        "ByUser",
        _groups("system:nodes"),
        [
            _resources("*", "", ["nodes", "nodes/status"], cluster=True),
            _resources("*", "coordination.k8s.io", ["leases"], cluster=False),
        ],
        [],
    ),
    "system-nodes": _schema("system", 500, "ByUser", _groups("system:nodes"), _ALL_RESOURCES, _ALL_URLS),
    "kube-controller-manager": _schema(
        "workload-high", 800, "ByNamespace", _users(_MANAGER), _ALL_RESOURCES, _ALL_URLS
    ),
    "kube-scheduler": _schema("workload-high", 800, "ByNamespace", _users(_SCHEDULER), _ALL_RESOURCES, _ALL_URLS),
    "kube-system-service-accounts": _schema(
        "workload-high", 900, "ByNamespace", _accounts("*"), _ALL_RESOURCES, _ALL_URLS
    ),
    "service-accounts": _schema(
        "workload-low", 9000, "ByUser", _groups("system:serviceaccounts"), _ALL_RESOURCES, _ALL_URLS
    ),
    "global-default": _schema("global-default", 9900, "ByUser", _groups(*_EVERYBODY), _ALL_RESOURCES, _ALL_URLS),
}


# ---- flow schemas -----------------------------------------------------------------------------------------------


def _default_schema(obj: Obj) -> None:
    spec = section(obj, "spec")
    if not spec.get("matchingPrecedence"):
        spec["matchingPrecedence"] = _DEFAULT_PRECEDENCE


def _validate_schema(obj: Obj) -> Errors:
    name = (obj.get("metadata") or {}).get("name") or ""
    spec = obj.get("spec") or {}
    errors = _check_precedence(spec.get("matchingPrecedence") or 0, name)
    method = spec.get("distinguisherMethod")
    if method is not None and method.get("type") not in ("ByNamespace", "ByUser"):
        errors.append(not_supported("spec.distinguisherMethod.type", method, ("ByNamespace", "ByUser")))
    level = (spec.get("priorityLevelConfiguration") or {}).get("name") or ""
    path = "spec.priorityLevelConfiguration.name"
    if not level:
        errors.append(required(path, "must reference a priority level"))
    errors += [invalid(path, level, fault) for fault in (dns_subdomain_faults(level) if level else ())]
    for index, rule in enumerate(spec.get("rules") or ()):
        errors += _check_rule(rule, f"spec.rules[{index}]")
    if name in MANDATORY_SCHEMAS and spec != MANDATORY_SCHEMAS[name]:
        errors.append(invalid("spec", spec, f"spec of '{name}' must equal the fixed value"))
    return errors + _check_conditions(obj.get("status") or {})


def _check_precedence(precedence: int, name: str) -> Errors:
    path = "spec.matchingPrecedence"
    errors: Errors = []
    if precedence <= 0:
        errors.append(invalid(path, precedence, "must be a positive value"))
    if precedence > _HIGHEST_PRECEDENCE:
        errors.append(invalid(path, precedence, f"must not be greater than {_HIGHEST_PRECEDENCE}"))
    if precedence == 1 and name != "exempt":
        errors.append(invalid(path, precedence, "only the schema named 'exempt' may have matchingPrecedence 1"))
    return errors


def _check_rule(rule: Obj, path: str) -> Errors:
    subjects, resources = rule.get("subjects") or [], rule.get("resourceRules") or []
    urls = rule.get("nonResourceRules") or []
    errors: Errors = [] if subjects else [required(f"{path}.subjects", "subjects must contain at least one value")]
    for index, subject in enumerate(subjects):
        errors += _check_subject(subject, f"{path}.subjects[{index}]")
    if not resources and not urls:
        errors.append(required(path, "at least one of resourceRules and nonResourceRules has to be non-empty"))
    for index, each in enumerate(resources):
        errors += _check_resource_rule(each, f"{path}.resourceRules[{index}]")
    for index, each in enumerate(urls):
        errors += _check_url_rule(each, f"{path}.nonResourceRules[{index}]")
    return errors


def _check_subject(subject: Obj, path: str) -> Errors:
    kind = subject.get("kind") or ""
    if kind not in _SUBJECTS:
        return [not_supported(f"{path}.kind", kind, sorted(_SUBJECTS))]
    key = _SUBJECTS[kind]
    at, value = f"{path}.{key}", subject.get(key)
    errors: Errors = []
    if value is None:
        errors.append(required(at, f"{key} is required when subject kind is '{kind}'"))
    elif not value.get("name"):
        errors.append(required(f"{at}.name"))
    elif kind == "ServiceAccount" and value["name"] != "*":
        errors += [invalid(f"{at}.name", value["name"], fault) for fault in dns_subdomain_faults(value["name"])]
    if kind == "ServiceAccount" and value is not None:
        namespace = value.get("namespace") or ""
        if not namespace:
            errors.append(required(f"{at}.namespace", "must specify namespace for service account"))
        errors += [
            invalid(f"{at}.namespace", namespace, fault) for fault in (dns_label_faults(namespace) if namespace else ())
        ]
    for other_kind, other in _SUBJECTS.items():
        if other != key and subject.get(other) is not None:
            errors.append(
                forbidden_field(f"{path}.{other}", f"{other} is forbidden when subject kind is not '{other_kind}'")
            )
    return errors


def _check_verbs(rule: Obj, path: str) -> Errors:
    verbs = rule.get("verbs") or []
    if not verbs:
        return [required(f"{path}.verbs", "verbs must contain at least one value")]
    if "*" in verbs:
        return _check_wildcard(verbs, f"{path}.verbs", "verbs")
    return [] if set(verbs) <= set(_VERBS) else [not_supported(f"{path}.verbs", verbs, _VERBS)]


def _check_wildcard(values: list[str], path: str, what: str) -> Errors:
    if "*" in values and len(values) > 1:
        return [invalid(path, values, f"if '*' is present, must not specify other {what}")]
    return []


def _check_resource_rule(rule: Obj, path: str) -> Errors:
    errors = _check_verbs(rule, path)
    for key, one, several in (("apiGroups", "api group", "api groups"), ("resources", "resource", "resources")):
        values = rule.get(key) or []
        if not values:
            errors.append(required(f"{path}.{key}", f"resource rules must supply at least one {one}"))
        errors += _check_wildcard(values, f"{path}.{key}", several)
    namespaces = rule.get("namespaces") or []
    if not namespaces and not rule.get("clusterScope"):
        why = "resource rules that are not cluster scoped must supply at least one namespace"
        errors.append(required(f"{path}.namespaces", why))
    elif "*" in namespaces:
        errors += _check_wildcard(namespaces, f"{path}.namespaces", "namespaces")
    else:
        for index, namespace in enumerate(namespaces):
            why = "each member of this list must be '*' or a DNS-1123 label; "
            at = f"{path}.namespaces[{index}]"
            errors += [invalid(at, namespace, why + fault) for fault in dns_label_faults(namespace)]
    return errors


def _check_url_rule(rule: Obj, path: str) -> Errors:
    errors = _check_verbs(rule, path)
    urls = rule.get("nonResourceURLs") or []
    at = f"{path}.nonResourceURLs"
    if not urls:
        errors.append(required(at, "nonResourceURLs must contain at least one value"))
    elif "*" in urls:
        errors += _check_wildcard(urls, at, "non-resource URLs")
    else:
        for index, url in enumerate(urls):
            if why := _url_fault(url):
                errors.append(invalid(f"{at}[{index}]", url, why))
    return errors


def _url_fault(url: str) -> str:
    if not url:
        return "must not be empty"
    if url == "/":
        return ""
    if not url.startswith("/"):
        return "must start with slash"
    if " " in url:
        return "must not contain white-space"
    if "//" in url:
        return "must not contain double slash"
    if "*" in url and (url.count("*") > 1 or not url.endswith("/*")):
        return "wildcard can only do suffix matching"
    return ""


# ---- priority levels --------------------------------------------------------------------------------------------


def _default_level(obj: Obj) -> None:
    spec = section(obj, "spec")
    if (exempt := spec.get("exempt")) is not None:
        _fill(exempt, nominalConcurrencyShares=0, lendablePercent=0)
    if (limited := spec.get("limited")) is not None:
        _fill(limited, nominalConcurrencyShares=_DEFAULT_SHARES, lendablePercent=0)
        queuing = (limited.get("limitResponse") or {}).get("queuing")
        for key, value in (
            ("handSize", _DEFAULT_HAND),
            ("queues", _DEFAULT_QUEUES),
            ("queueLengthLimit", _DEFAULT_QUEUE_LENGTH),
        ):
            if queuing is not None and not queuing.get(key):
                queuing[key] = value


def _fill(obj: Obj, **values: Any) -> None:
    for key, value in values.items():
        if obj.get(key) is None:
            obj[key] = value


def _validate_level(obj: Obj) -> Errors:
    meta, spec = obj.get("metadata") or {}, obj.get("spec") or {}
    name, kind = meta.get("name") or "", spec.get("type") or ""
    errors: Errors = []
    if _ZERO_SHARES in (meta.get("annotations") or {}):
        errors.append(forbidden_field("metadata.annotations", f"annotation '{_ZERO_SHARES}' is forbidden"))
    if (name == "exempt") != (kind == "Exempt"):
        errors.append(invalid("spec.type", kind, "must be 'Exempt' if and only if `name` is 'exempt'"))
    limited, exempt = spec.get("limited"), spec.get("exempt")
    if kind == "Exempt":
        if limited is not None:
            errors.append(forbidden_field("spec.limited", "must be nil if the type is not Limited"))
        errors += _check_shares(exempt or {}, "spec.exempt")
    elif kind == "Limited":
        if exempt is not None:
            errors.append(forbidden_field("spec.exempt", "must be nil if the type is Limited"))
        if limited is None:
            errors.append(required("spec.limited", "must not be empty when type is Limited"))
        else:
            errors += _check_limited(limited, "spec.limited")
    elif not kind:
        errors.append(required("spec.type"))
    else:
        errors.append(not_supported("spec.type", kind, ("Exempt", "Limited")))
    return errors + _check_fixed_level(name, spec) + _check_conditions(obj.get("status") or {})


def _check_fixed_level(name: str, spec: Obj) -> Errors:
    wanted = MANDATORY_LEVELS.get(name)
    if wanted is None:
        return []
    if name == "exempt":
        if {**spec, "exempt": None} == {**wanted, "exempt": None}:
            return []
        why = f"spec of '{name}' except the 'spec.exempt' field must equal the fixed value"
        return [invalid("spec", spec, why)]
    return [] if spec == wanted else [invalid("spec", spec, f"spec of '{name}' must equal the fixed value")]


def _check_shares(limits: Obj, path: str) -> Errors:
    errors: Errors = []
    shares, lendable = limits.get("nominalConcurrencyShares"), limits.get("lendablePercent")
    if shares is not None and shares < 0:
        errors.append(invalid(f"{path}.nominalConcurrencyShares", shares, "must be a non-negative integer"))
    if lendable is not None and not 0 <= lendable <= 100:
        errors.append(invalid(f"{path}.lendablePercent", lendable, "must be between 0 and 100, inclusive"))
    return errors


def _check_limited(limited: Obj, path: str) -> Errors:
    errors = _check_shares(limited, path)
    borrowing = limited.get("borrowingLimitPercent")
    if borrowing is not None and borrowing < 0:
        why = "if specified, must be a non-negative integer"
        errors.append(invalid(f"{path}.borrowingLimitPercent", borrowing, why))
    response = limited.get("limitResponse") or {}
    at, kind, queuing = f"{path}.limitResponse", response.get("type") or "", response.get("queuing")
    if kind == "Reject":
        if queuing is not None:
            why = "must be nil if limited.limitResponse.type is not Limited"
            errors.append(forbidden_field(f"{at}.queuing", why))
    elif kind == "Queue":
        if queuing is None:
            why = "must not be empty if limited.limitResponse.type is Limited"
            errors.append(required(f"{at}.queuing", why))
        else:
            errors += _check_queuing(queuing, f"{at}.queuing")
    elif not kind:
        errors.append(required(f"{at}.type"))
    else:
        errors.append(not_supported(f"{at}.type", kind, ("Queue", "Reject")))
    return errors


def _check_queuing(queuing: Obj, path: str) -> Errors:
    errors: Errors = []
    length, queues, hand = (queuing.get(key) or 0 for key in ("queueLengthLimit", "queues", "handSize"))
    if length <= 0:
        errors.append(invalid(f"{path}.queueLengthLimit", length, "must be positive"))
    if queues <= 0:
        errors.append(invalid(f"{path}.queues", queues, "must be positive"))
    elif queues > _MOST_QUEUES:
        errors.append(invalid(f"{path}.queues", queues, f"must not be greater than {_MOST_QUEUES}"))
    if hand <= 0:
        errors.append(invalid(f"{path}.handSize", hand, "must be positive"))
    elif hand > queues:
        errors.append(invalid(f"{path}.handSize", hand, f"should not be greater than queues ({queues})"))
    elif not _dealable(queues, hand):
        why = f"required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {_HASH_BITS}"
        errors.append(invalid(f"{path}.handSize", hand, why))
    return errors


def _dealable(queues: int, hand: int) -> bool:
    """Whether a hash of 60 bits can choose a hand of distinct queues."""
    bits = 0.0
    for dealt in range(min(hand, _HASH_BITS + 1)):
        bits += math.log2(max(queues - dealt, 1))
        if math.ceil(bits) > _HASH_BITS:
            return False
    return hand <= _HASH_BITS or queues == hand == 1


def _check_conditions(status: Obj) -> Errors:
    errors: Errors = []
    seen: set[str] = set()
    for index, condition in enumerate(status.get("conditions") or ()):
        path, kind = f"status.conditions[{index}].type", condition.get("type") or ""
        if kind in seen:
            errors.append(duplicate(path, kind))
        seen.add(kind)
        errors += named(kind, path, lambda _: ())
    return errors


def _validate_status(new: Obj, old: Obj) -> Errors:
    return _check_conditions(new.get("status") or {})


RULES: dict[tuple[str, str], KindRules] = {
    (GROUP, "FlowSchema"): make_rules(
        default=_default_schema,
        validate=_validate_schema,
        status=True,
        generation=("spec",),
        validate_status=_validate_status,
    ),
    (GROUP, "PriorityLevelConfiguration"): make_rules(
        default=_default_level,
        validate=_validate_level,
        status=True,
        generation=("spec",),
        validate_status=_validate_status,
    ),
}
