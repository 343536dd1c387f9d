"""Rules of runtime classes."""

from __future__ import annotations

from coterie.kube.api.errors import duplicate
from coterie.kube.api.names import dns_label_faults, validate_labels
from coterie.kube.api.rules.base import Errors, KindRules, Obj, make_rules
from coterie.kube.api.rules.common import canonicalize, check_resource_list, immutable, named
from coterie.kube.api.rules.scheduling import check_tolerations


def _default(obj: Obj) -> None:
    canonicalize((obj.get("overhead") or {}).get("podFixed"))


def _validate(obj: Obj) -> Errors:
    errors = named(obj.get("handler"), "handler", dns_label_faults)
    errors += check_resource_list((obj.get("overhead") or {}).get("podFixed"), "overhead.limits")
    scheduling = obj.get("scheduling") or {}
    errors += validate_labels(scheduling.get("nodeSelector") or {}, "scheduling.nodeSelector")
    tolerations = scheduling.get("tolerations") or []
    errors += check_tolerations(tolerations, "scheduling.tolerations")
    seen: set[tuple[str, ...]] = set()
    for index, toleration in enumerate(tolerations):
        key = tuple(str(toleration.get(field) or "") for field in ("key", "operator", "value", "effect"))
        if key in seen:
            errors.append(duplicate(f"scheduling.tolerations[{index}]", toleration))
        seen.add(key)
    return errors


def _check_change(new: Obj, old: Obj) -> Errors:
    return immutable(new, old, "", "handler")


RULES: dict[tuple[str, str], KindRules] = {
    ("node.k8s.io", "RuntimeClass"): make_rules(default=_default, validate=_validate, changed=_check_change),
}
