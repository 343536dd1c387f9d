"""Where a pod may run: tolerations, affinities, spreading over topologies. Shared by pods and all templates."""

from __future__ import annotations

from typing import Any

from coterie.kube.api.errors import duplicate, forbidden_field, invalid, not_supported, required
from coterie.kube.api.names import dns_label_faults, dns_subdomain_faults, label_value_faults, qualified_name_faults
from coterie.kube.api.rules.base import Errors, Obj
from coterie.kube.api.rules.common import named, valid_ip
from coterie.kube.api.selectors import validate_selector

_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_UNSATISFIABLE = ("DoNotSchedule", "ScheduleAnyway")


def check_tolerations(tolerations: list[Obj], path: str) -> Errors:
    errors: Errors = []
    for index, toleration in enumerate(tolerations):
        at = f"{path}[{index}]"
        key, operator = toleration.get("key") or "", toleration.get("operator") or ""
        value, effect = toleration.get("value") or "", toleration.get("effect") or ""
        if key:
            errors += [invalid(f"{at}.key", key, fault) for fault in qualified_name_faults(key)]
        elif operator != "Exists":
            why = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
            errors.append(invalid(f"{at}.operator", operator, why))
        if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
            why = "effect must be 'NoExecute' when `tolerationSeconds` is set"
            errors.append(invalid(f"{at}.effect", effect, why))
        if operator in ("", "Equal"):
            errors += [invalid(f"{at}.operator", value, fault) for fault in label_value_faults(value)]
        elif operator == "Exists":
            if value:
                errors.append(invalid(f"{at}.operator", toleration, "value must be empty when `operator` is 'Exists'"))
        else:
            errors.append(not_supported(f"{at}.operator", operator, ("Equal", "Exists")))
        if effect and effect not in _EFFECTS:
            errors.append(not_supported(f"{at}.effect", effect, _EFFECTS))
    return errors


def check_affinity(affinity: Obj, path: str) -> Errors:
    errors: Errors = []
    if node := affinity.get("nodeAffinity"):
        at = f"{path}.nodeAffinity"
        if (hard := node.get("requiredDuringSchedulingIgnoredDuringExecution")) is not None:
            errors += check_node_selector(hard, f"{at}.requiredDuringSchedulingIgnoredDuringExecution")
        for index, term in enumerate(node.get("preferredDuringSchedulingIgnoredDuringExecution") or ()):
            here = f"{at}.preferredDuringSchedulingIgnoredDuringExecution[{index}]"
            errors += _check_weight(term, here)
            errors += _check_node_term(term.get("preference") or {}, f"{here}.preference")
    for key in ("podAffinity", "podAntiAffinity"):
        if pods := affinity.get(key):
            errors += _check_pod_affinity(pods, f"{path}.{key}")
    return errors


def check_node_selector(selector: Obj, path: str) -> Errors:
    terms = selector.get("nodeSelectorTerms") or []
    if not terms:
        return [required(f"{path}.nodeSelectorTerms", "must have at least one node selector term")]
    errors: Errors = []
    for index, term in enumerate(terms):
        errors += _check_node_term(term, f"{path}.nodeSelectorTerms[{index}]")
    return errors


def _check_node_term(term: Obj, path: str) -> Errors:
    errors: Errors = []
    for index, demand in enumerate(term.get("matchExpressions") or ()):
        at = f"{path}.matchExpressions[{index}]"
        errors += _check_values(demand, at)
        key = demand.get("key") or ""
        errors += [invalid(f"{at}.key", key, fault) for fault in qualified_name_faults(key)]
    for index, demand in enumerate(term.get("matchFields") or ()):
        at = f"{path}.matchFields[{index}]"
        if demand.get("operator") not in ("In", "NotIn"):
            errors.append(invalid(f"{at}.operator", demand.get("operator") or "", "not a valid selector operator"))
        elif len(demand.get("values") or ()) != 1:
            why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
            errors.append(required(f"{at}.values", why))
        if demand.get("key") != "metadata.name":
            errors.append(invalid(f"{at}.key", demand.get("key") or "", "not a valid field selector key"))
    return errors


def _check_values(demand: Obj, path: str) -> Errors:
    operator, values = demand.get("operator") or "", demand.get("values") or []
    if operator in ("In", "NotIn"):
        return [] if values else [required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'")]
    if operator in ("Exists", "DoesNotExist"):
        why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
        return [forbidden_field(f"{path}.values", why)] if values else []
    if operator in ("Gt", "Lt"):
        why = "must be specified single value when `operator` is 'Lt' or 'Gt'"
        return [] if len(values) == 1 else [required(f"{path}.values", why)]
    return [invalid(f"{path}.operator", operator, "not a valid selector operator")]


def _check_weight(term: Obj, path: str) -> Errors:
    weight = term.get("weight") or 0
    return [] if 1 <= weight <= 100 else [invalid(f"{path}.weight", weight, "must be in the range 1-100")]


def _check_pod_affinity(affinity: Obj, path: str) -> Errors:
    errors: Errors = []
    for index, term in enumerate(affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or ()):
        errors += _check_pod_term(term, f"{path}.requiredDuringSchedulingIgnoredDuringExecution[{index}]")
    for index, weighted in enumerate(affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()):
        at = f"{path}.preferredDuringSchedulingIgnoredDuringExecution[{index}]"
        errors += _check_weight(weighted, at)
        errors += _check_pod_term(weighted.get("podAffinityTerm") or {}, f"{at}.podAffinityTerm")
    return errors


def _check_pod_term(term: Obj, path: str) -> Errors:
    errors: Errors = []
    for key in ("labelSelector", "namespaceSelector"):
        if selector := term.get(key):
            errors += validate_selector(selector, f"{path}.{key}")
    for index, name in enumerate(term.get("namespaces") or ()):
        errors += [invalid(f"{path}.namespace[{index}]", name, fault) for fault in dns_label_faults(name)]
    errors += _check_topology_key(term.get("topologyKey"), f"{path}.topologyKey")
    return errors


def _check_topology_key(key: Any, path: str) -> Errors:
    if not key:
        return [required(path, "can not be empty")]
    return [invalid(path, key, fault) for fault in qualified_name_faults(key)]


def check_topology_spread(constraints: list[Obj], path: str) -> Errors:
    errors: Errors = []
    seen: set[tuple[str, str]] = set()
    for index, constraint in enumerate(constraints):
        at = f"{path}[{index}]"
        skew = constraint.get("maxSkew") or 0
        if skew <= 0:
            errors.append(invalid(f"{at}.maxSkew", skew, "must be greater than zero"))
        key, action = constraint.get("topologyKey") or "", constraint.get("whenUnsatisfiable") or ""
        errors += _check_topology_key(key, f"{at}.topologyKey")
        if action not in _UNSATISFIABLE:
            errors.append(not_supported(f"{at}.whenUnsatisfiable", action, _UNSATISFIABLE))
        if (key, action) in seen:
            errors.append(duplicate(f"{at}.{{topologyKey, whenUnsatisfiable}}", f"{{{key}, {action}}}"))
        seen.add((key, action))
        domains = constraint.get("minDomains")
        if domains is not None:
            if domains <= 0:
                errors.append(invalid(f"{at}.minDomains", domains, "must be greater than zero"))
            if action == "ScheduleAnyway":
                why = "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not ScheduleAnyway"
                errors.append(invalid(f"{at}.minDomains", domains, why))
        for policy in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
            if constraint.get(policy) not in (None, "Honor", "Ignore"):
                errors.append(not_supported(f"{at}.{policy}", constraint[policy], ("Honor", "Ignore")))
        if selector := constraint.get("labelSelector"):
            errors += validate_selector(selector, f"{at}.labelSelector")
    return errors


def check_taints(taints: list[Obj], path: str) -> Errors:
    """Taints of a node."""
    errors: Errors = []
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(taints):
        at = f"{path}[{index}]"
        key, effect, value = taint.get("key") or "", taint.get("effect") or "", taint.get("value") or ""
        errors += [invalid(f"{at}.key", key, fault) for fault in qualified_name_faults(key)]
        errors += [invalid(f"{at}.value", value, fault) for fault in label_value_faults(value)]
        if not effect:
            errors.append(required(f"{at}.effect"))
        elif effect not in _EFFECTS:
            errors.append(not_supported(f"{at}.effect", effect, _EFFECTS))
        if (key, effect) in seen:
            errors.append(duplicate(at, f"{key}:{effect}"))
        seen.add((key, effect))
    return errors


def check_host_aliases(aliases: list[Obj], path: str) -> Errors:
    errors: Errors = []
    for index, alias in enumerate(aliases):
        address = alias.get("ip") or ""
        if not valid_ip(address):
            why = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
            errors.append(invalid(f"{path}[{index}].ip", address, why))
        for place, host in enumerate(alias.get("hostnames") or ()):
            errors += named(host, f"{path}[{index}].hostnames[{place}]", dns_subdomain_faults)
    return errors
