"""Rules of ValidatingAdmissionPolicies, MutatingAdmissionPolicies and their bindings.

Expressions are compiled here as well, so that a policy with a fault is refused when it is written, at the field that has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from coterie.base.lazy_import import lazy_import
from coterie.kube.api.errors import duplicate, forbidden_field, invalid, not_supported, required, too_many
from coterie.kube.api.names import (
    dns1035_label_faults,
    dns_subdomain_faults,
    path_segment_faults,
    qualified_name_faults,
)
from coterie.kube.api.rules.base import Errors, KindRules, Obj, make_rules, section, setdefaults
from coterie.kube.api.rules.common import one_of
from coterie.kube.api.rules.webhooks import check_rule
from coterie.kube.api.selectors import validate_selector

if TYPE_CHECKING:
    from coterie.kube.api.cel import policies
else:
    policies = lazy_import("coterie.kube.api.cel.policies")

GROUP: Final = "admissionregistration.k8s.io"
_MUTABLE: Final = ("*", "CONNECT", "CREATE", "UPDATE")
_REASONS: Final = ("Forbidden", "Invalid", "RequestEntityTooLarge")
_ACTIONS: Final = ("Audit", "Deny", "Warn")
_MOST_CONDITIONS: Final = 64
_MOST_ANNOTATIONS: Final = 20
_LONGEST_VALUE_EXPRESSION: Final = 5 * 1024
_NOTHING: Final = "validations or auditAnnotations must contain at least one item"


# -- defaults ---------------------------------------------------------------------------------------------------------


def _default_match(match: Obj | None) -> None:
    if match is None:
        return
    setdefaults(match, matchPolicy="Equivalent")
    for key in ("namespaceSelector", "objectSelector"):
        if match.get(key) is None:
            match[key] = {}
    for key in ("resourceRules", "excludeResourceRules"):
        for rule in match.get(key) or ():
            setdefaults(rule, scope="*")


def _default_policy(obj: Obj) -> None:
    spec = section(obj, "spec")
    setdefaults(spec, failurePolicy="Fail")
    _default_match(spec.get("matchConstraints"))


def _default_mutating(obj: Obj) -> None:
    _default_policy(obj)
    setdefaults(obj["spec"], reinvocationPolicy="Never")


def _default_binding(obj: Obj) -> None:
    _default_match(section(obj, "spec").get("matchResources"))


# -- policies ---------------------------------------------------------------------------------------------------------


def _validate_policy(obj: Obj) -> Errors:
    spec = obj.get("spec") or {}
    errors = _check_common(spec)
    if not spec.get("validations") and not spec.get("auditAnnotations"):
        errors += [required("spec.validations", _NOTHING), required("spec.auditAnnotations", _NOTHING)]
    for index, validation in enumerate(spec.get("validations") or ()):
        errors += _check_validation(validation, f"spec.validations[{index}]")
    errors += _check_annotations(spec.get("auditAnnotations") or [], (obj.get("metadata") or {}).get("name") or "")
    return errors + policies.compile_policy(spec)[1]


def _validate_mutating(obj: Obj) -> Errors:
    spec = obj.get("spec") or {}
    errors = _check_common(spec)
    rules = (spec.get("matchConstraints") or {}).get("resourceRules") or ()
    for index, rule in enumerate(rules):
        for place, operation in enumerate(rule.get("operations") or ()):
            if operation == "DELETE":
                at = f"spec.matchConstraints.resourceRules[{index}].operations[{place}]"
                errors.append(not_supported(at, operation, _MUTABLE))
    errors += one_of(spec.get("reinvocationPolicy"), ("IfNeeded", "Never"), "spec.reinvocationPolicy")
    if not spec.get("mutations"):
        errors.append(required("spec.mutations", "mutations must contain at least one item"))
    for index, mutation in enumerate(spec.get("mutations") or ()):
        errors += _check_mutation(mutation, f"spec.mutations[{index}]")
    return errors + policies.compile_policy(spec)[1]


def _check_common(spec: Obj) -> Errors:
    errors = one_of(spec.get("failurePolicy"), ("Fail", "Ignore"), "spec.failurePolicy")
    if spec.get("paramKind") is not None:
        errors += _check_param_kind(spec["paramKind"], "spec.paramKind")
    match = spec.get("matchConstraints")
    if match is None:
        errors.append(required("spec.matchConstraints"))
    else:
        errors += _check_match(match, "spec.matchConstraints")
        if not match.get("resourceRules"):
            errors.append(required("spec.matchConstraints.resourceRules"))
    return errors + _check_conditions(spec.get("matchConditions") or [], "spec.matchConditions")


def _check_param_kind(kind: Obj, path: str) -> Errors:
    errors: Errors = []
    version = kind.get("apiVersion") or ""
    if not version:
        errors.append(required(f"{path}.apiVersion"))
    elif version.count("/") > 1:
        errors.append(invalid(f"{path}.apiVersion", version, f"unexpected GroupVersion string: {version}"))
    else:
        group, _, name = version.rpartition("/")
        errors += [invalid(f"{path}.apiVersion", group, fault) for fault in dns_subdomain_faults(group) if group]
        errors += [invalid(f"{path}.apiVersion", name, fault) for fault in dns1035_label_faults(name)]
    name = kind.get("kind") or ""
    if not name:
        errors.append(required(f"{path}.kind"))
    for fault in dns1035_label_faults(name.lower()) if name else ():
        errors.append(invalid(f"{path}.kind", name, f"may have mixed case, but should otherwise match: {fault}"))
    return errors


def _check_match(match: Obj, path: str) -> Errors:
    errors = one_of(match.get("matchPolicy"), ("Equivalent", "Exact"), f"{path}.matchPolicy")
    for key in ("namespaceSelector", "objectSelector"):
        errors += validate_selector(match.get(key) or {}, f"{path}.{key}")
    for key in ("resourceRules", "excludeResourceRules"):
        for index, rule in enumerate(match.get(key) or ()):
            errors += _check_named_rule(rule, f"{path}.{key}[{index}]")
    return errors


def _check_named_rule(rule: Obj, path: str) -> Errors:
    errors: Errors = []
    seen: set[str] = set()
    for index, name in enumerate(rule.get("resourceNames") or ()):
        at = f"{path}.resourceNames[{index}]"
        errors += [invalid(at, name, fault) for fault in path_segment_faults(name)]
        if name in seen:
            errors.append(duplicate(at, name))
        seen.add(name)
    return errors + check_rule(rule, path)


def _check_conditions(conditions: list[Obj], path: str) -> Errors:
    errors: Errors = []
    if len(conditions) > _MOST_CONDITIONS:
        errors.append(too_many(path, len(conditions), _MOST_CONDITIONS))
    seen: set[str] = set()
    for index, condition in enumerate(conditions):
        at, name = f"{path}[{index}]", condition.get("name") or ""
        if not (condition.get("expression") or "").strip():
            errors.append(required(f"{at}.expression"))
        if not name:
            errors.append(required(f"{at}.name"))
            continue
        errors += [invalid(f"{at}.name", name, fault) for fault in qualified_name_faults(name)]
        if name in seen:
            errors.append(duplicate(f"{at}.name", name))
        seen.add(name)
    return errors


def _check_validation(validation: Obj, path: str) -> Errors:
    errors: Errors = []
    worded, message = validation.get("messageExpression") or "", validation.get("message") or ""
    if worded and not worded.strip():
        errors.append(invalid(f"{path}.messageExpression", worded, "must be non-empty if specified"))
    if message and not message.strip():
        errors.append(invalid(f"{path}.message", message, "message must be non-empty if specified"))
    elif "\n" in message.strip() or "\r" in message.strip():
        errors.append(invalid(f"{path}.message", message, "message must not contain line breaks"))
    if validation.get("reason") not in (None, *_REASONS):
        errors.append(not_supported(f"{path}.reason", validation["reason"], _REASONS))
    return errors


def _check_annotations(annotations: list[Obj], policy: str) -> Errors:
    path = "spec.auditAnnotations"
    errors: Errors = []
    if len(annotations) > _MOST_ANNOTATIONS:
        errors.append(invalid(path, annotations, f"must not have more than {_MOST_ANNOTATIONS} auditAnnotations"))
    seen: set[str] = set()
    for index, annotation in enumerate(annotations):
        at, key = f"{path}[{index}]", annotation.get("key") or ""
        errors += [invalid(f"{at}.key", f"{policy}/{key}", fault) for fault in qualified_name_faults(f"{policy}/{key}")]
        if key in seen:
            errors.append(duplicate(f"{at}.key", key))
        seen.add(key)
        text = (annotation.get("valueExpression") or "").strip()
        if not text:
            errors.append(required(f"{at}.valueExpression", "valueExpression is not specified"))
        elif len(text) > _LONGEST_VALUE_EXPRESSION:
            why = f"must not exceed {_LONGEST_VALUE_EXPRESSION} bytes in length"
            errors.append(required(f"{at}.valueExpression", why))
    return errors


def _check_mutation(mutation: Obj, path: str) -> Errors:
    kind = mutation.get("patchType") or ""
    keys = {"ApplyConfiguration": "applyConfiguration", "JSONPatch": "jsonPatch"}
    if kind not in keys:
        return one_of(kind, tuple(keys), f"{path}.patchType")
    errors: Errors = []
    for each, key in keys.items():
        if each != kind and mutation.get(key) is not None:
            errors.append(invalid(f"{path}.{key}", "{}", f"not allowed when patchType is {kind}"))
    if not ((mutation.get(keys[kind]) or {}).get("expression") or "").strip():
        errors.append(required(f"{path}.{keys[kind]}.expression", "expression is not specified"))
    return errors


# -- bindings ---------------------------------------------------------------------------------------------------------


def _validate_mutating_binding(obj: Obj) -> Errors:
    spec = obj.get("spec") or {}
    name = spec.get("policyName") or ""
    errors = [invalid("spec.policyName", name, fault) for fault in dns_subdomain_faults(name)] if name else []
    if not name:
        errors.append(required("spec.policyName"))
    if spec.get("paramRef") is not None:
        errors += _check_param_ref(spec["paramRef"], "spec.paramRef")
    if spec.get("matchResources") is not None:
        errors += _check_match(spec["matchResources"], "spec.matchResources")
    return errors


def _validate_binding(obj: Obj) -> Errors:
    actions = (obj.get("spec") or {}).get("validationActions") or []
    path = "spec.validationActions"
    errors = _validate_mutating_binding(obj)
    for index, action in enumerate(actions):
        if action not in _ACTIONS:
            errors.append(not_supported(f"{path}[{index}]", action, _ACTIONS))
        if action in actions[:index]:
            errors.append(duplicate(f"{path}[{index}]", action))
    if "Deny" in actions and "Warn" in actions:
        why = (
            "must not contain both Deny and Warn (repeating the same validation failure information in the API response "
            "and headers serves no purpose)"
        )
        errors.append(invalid(path, actions, why))
    if not actions:
        errors.append(required(path, "at least one validation action is required"))
    return errors


def _check_param_ref(ref: Obj, path: str) -> Errors:
    name, selector = ref.get("name") or "", ref.get("selector")
    errors = [invalid(f"{path}.name", name, fault) for fault in path_segment_faults(name)] if name else []
    if name and selector is not None:
        why = "name and selector are mutually exclusive"
        errors += [forbidden_field(f"{path}.name", why), forbidden_field(f"{path}.selector", why)]
    if selector is not None:
        errors += validate_selector(selector, f"{path}.selector")
    if not name and selector is None:
        errors.append(required(path, "one of name or selector must be specified"))
    action = ref.get("parameterNotFoundAction")
    return errors + one_of(action, ("Deny", "Allow"), f"{path}.parameterNotFoundAction")


# -- status -----------------------------------------------------------------------------------------------------------


def _validate_status(new: Obj, old: Obj) -> Errors:
    warnings = ((new.get("status") or {}).get("typeChecking") or {}).get("expressionWarnings") or ()
    errors: Errors = []
    for index, warning in enumerate(warnings):
        at = f"status.typeChecking.expressionWarnings[{index}]"
        errors += [required(f"{at}.{key}") for key in ("fieldRef", "warning") if not warning.get(key)]
    return errors


def _rules(default: Callable[[Obj], None], validate: Callable[[Obj], Errors], status: bool = False) -> KindRules:
    return make_rules(
        default=default, validate=validate, status=status, generation=("spec",), validate_status=_validate_status
    )


RULES: dict[tuple[str, str], KindRules] = {
    (GROUP, "MutatingAdmissionPolicy"): _rules(_default_mutating, _validate_mutating),
    (GROUP, "MutatingAdmissionPolicyBinding"): _rules(_default_binding, _validate_mutating_binding),
    (GROUP, "ValidatingAdmissionPolicy"): _rules(_default_policy, _validate_policy, status=True),
    (GROUP, "ValidatingAdmissionPolicyBinding"): _rules(_default_binding, _validate_binding),
}
