"""Rules of roles and bindings. Whether the author may grant what is written is asked by the authoriser, not here."""

from __future__ import annotations

from coterie.kube.api.errors import invalid, not_supported, required
from coterie.kube.api.names import dns_subdomain_faults, path_segment_faults
from coterie.kube.api.rules.base import Errors, KindRules, Obj, make_rules, section, setdefaults
from coterie.kube.api.rules.common import named
from coterie.kube.api.selectors import validate_selector

GROUP = "rbac.authorization.k8s.io"


def _check_rules(obj: Obj, namespaced: bool) -> Errors:
    errors: Errors = []
    for index, rule in enumerate(obj.get("rules") or ()):
        errors += _check_rule(rule, f"rules[{index}]", namespaced)
    return errors


def _check_rule(rule: Obj, path: str, namespaced: bool) -> Errors:
    errors = [] if rule.get("verbs") else [required(f"{path}.verbs", "verbs must contain at least one value")]
    groups, resources, urls = rule.get("apiGroups"), rule.get("resources"), rule.get("nonResourceURLs")
    if urls:
        if namespaced:
            why = "namespaced rules cannot apply to non-resource URLs"
            errors.append(invalid(f"{path}.nonResourceURLs", urls, why))
        if groups or resources or rule.get("resourceNames"):
            why = "rules cannot apply to both regular resources and non-resource URLs"
            errors.append(invalid(f"{path}.nonResourceURLs", urls, why))
        return errors
    if not groups:
        errors.append(required(f"{path}.apiGroups", "resource rules must supply at least one api group"))
    if not resources:
        errors.append(required(f"{path}.resources", "resource rules must supply at least one resource"))
    return errors


def _validate_role(obj: Obj) -> Errors:
    return _check_rules(obj, namespaced=True)


def _validate_cluster_role(obj: Obj) -> Errors:
    errors = _check_rules(obj, namespaced=False)
    aggregation = obj.get("aggregationRule")
    if aggregation is None:
        return errors
    selectors = aggregation.get("clusterRoleSelectors") or []
    path = "aggregationRule.clusterRoleSelectors"
    if not selectors:
        why = "at least one clusterRoleSelector required if aggregationRule is non-nil"
        errors.append(required(path, why))
    for index, selector in enumerate(selectors):
        errors += validate_selector(selector, f"{path}[{index}]")
    return errors


def _default_binding(obj: Obj) -> None:
    setdefaults(section(obj, "roleRef"), apiGroup=GROUP)
    for subject in obj.get("subjects") or ():
        if subject.get("kind") in ("User", "Group"):
            setdefaults(subject, apiGroup=GROUP)


def _check_binding(obj: Obj, kinds: tuple[str, ...]) -> Errors:
    reference = obj.get("roleRef") or {}
    errors: Errors = []
    if reference.get("apiGroup") != GROUP:
        errors.append(not_supported("roleRef.apiGroup", reference.get("apiGroup") or "", (GROUP,)))
    if reference.get("kind") not in kinds:
        errors.append(not_supported("roleRef.kind", reference.get("kind") or "", kinds))
    errors += named(reference.get("name"), "roleRef.name", path_segment_faults)
    for index, subject in enumerate(obj.get("subjects") or ()):
        errors += _check_subject(subject, f"subjects[{index}]")
    return errors


def _check_subject(subject: Obj, path: str) -> Errors:
    kind, group, name = subject.get("kind") or "", subject.get("apiGroup") or "", subject.get("name") or ""
    errors = [] if name else [required(f"{path}.name")]
    if kind == "ServiceAccount":
        if name:
            errors += [invalid(f"{path}.name", name, fault) for fault in dns_subdomain_faults(name)]
        if group:
            errors.append(not_supported(f"{path}.apiGroup", group, ("",)))
        if not subject.get("namespace"):
            errors.append(required(f"{path}.namespace"))
    elif kind in ("User", "Group"):
        if group != GROUP:
            errors.append(not_supported(f"{path}.apiGroup", group, (GROUP,)))
    else:
        errors.append(not_supported(f"{path}.kind", kind, ("ServiceAccount", "User", "Group")))
    return errors


def _validate_role_binding(obj: Obj) -> Errors:
    return _check_binding(obj, ("Role", "ClusterRole"))


def _validate_cluster_role_binding(obj: Obj) -> Errors:
    return _check_binding(obj, ("ClusterRole",))


def _fixed_role(new: Obj, old: Obj) -> Errors:
    if (new.get("roleRef") or {}) == (old.get("roleRef") or {}):
        return []
    return [invalid("roleRef", new.get("roleRef"), "cannot change roleRef")]


RULES: dict[tuple[str, str], KindRules] = {
    (GROUP, "Role"): make_rules(validate=_validate_role),
    (GROUP, "ClusterRole"): make_rules(validate=_validate_cluster_role),
    (GROUP, "RoleBinding"): make_rules(default=_default_binding, validate=_validate_role_binding, changed=_fixed_role),
    (GROUP, "ClusterRoleBinding"): make_rules(
        default=_default_binding, validate=_validate_cluster_role_binding, changed=_fixed_role
    ),
}
