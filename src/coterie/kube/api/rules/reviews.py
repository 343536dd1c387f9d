"""Rules of requests that look like objects and are answered, not stored: access reviews, tokens, evictions."""

from __future__ import annotations

from coterie.kube.api.errors import invalid, required
from coterie.kube.api.rules.base import Errors, KindRules, Obj

_AUTHN = "authentication.k8s.io"
_AUTHZ = "authorization.k8s.io"


def _check_attributes(spec: Obj) -> Errors:
    resource, other = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if (resource is None) == (other is None):
        why = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        return [invalid("spec.resourceAttributes", other, why)]
    return []


def _validate_self_access(obj: Obj) -> Errors:
    return _check_attributes(obj.get("spec") or {})


def _validate_access(obj: Obj) -> Errors:
    spec = obj.get("spec") or {}
    errors = _check_attributes(spec)
    if not spec.get("user") and not spec.get("groups"):
        errors.append(invalid("spec.user", "", "at least one of user or group must be specified"))
    return errors


def _validate_local_access(obj: Obj) -> Errors:
    errors = _validate_access(obj)
    spec = obj.get("spec") or {}
    namespace = (obj.get("metadata") or {}).get("namespace") or ""
    resource = spec.get("resourceAttributes")
    if resource is not None and (resource.get("namespace") or "") != namespace:
        why = "must match metadata.namespace"
        errors.append(invalid("spec.resourceAttributes.namespace", resource.get("namespace") or "", why))
    if spec.get("nonResourceAttributes") is not None:
        why = "disallowed on this kind of request"
        errors.append(invalid("spec.nonResourceAttributes", spec["nonResourceAttributes"], why))
    return errors


def _validate_rules_review(obj: Obj) -> Errors:
    return [] if (obj.get("spec") or {}).get("namespace") else [required("spec.namespace")]


def _validate_token_review(obj: Obj) -> Errors:
    if (obj.get("spec") or {}).get("token"):
        return []
    return [required("spec.token", "token is required for TokenReview in authentication")]


def _default_token_request(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    if spec.get("expirationSeconds") is None:
        spec["expirationSeconds"] = 3600


def _validate_token_request(obj: Obj) -> Errors:
    seconds, path = (obj.get("spec") or {}).get("expirationSeconds") or 0, "spec.expirationSeconds"
    if seconds < 600:
        return [invalid(path, seconds, "may not specify a duration less than 10 minutes")]
    if seconds > 1 << 32:
        return [invalid(path, seconds, "may not specify a duration larger than 2^32 seconds")]
    return []


def _validate_eviction(obj: Obj) -> Errors:
    seconds = (obj.get("deleteOptions") or {}).get("gracePeriodSeconds")
    if seconds is not None and seconds < 0:
        return [invalid("deleteOptions.gracePeriodSeconds", seconds, "must be greater than or equal to 0")]
    return []


RULES: dict[tuple[str, str], KindRules] = {
    ("", "ComponentStatus"): KindRules(),
    (_AUTHN, "SelfSubjectReview"): KindRules(),
    (_AUTHN, "TokenReview"): KindRules(validate_create=_validate_token_review),
    (_AUTHN, "TokenRequest"): KindRules(default=_default_token_request, validate_create=_validate_token_request),
    (_AUTHZ, "SubjectAccessReview"): KindRules(validate_create=_validate_access),
    (_AUTHZ, "LocalSubjectAccessReview"): KindRules(validate_create=_validate_local_access),
    (_AUTHZ, "SelfSubjectAccessReview"): KindRules(validate_create=_validate_self_access),
    (_AUTHZ, "SelfSubjectRulesReview"): KindRules(validate_create=_validate_rules_review),
    ("policy", "Eviction"): KindRules(validate_create=_validate_eviction),
}
