"""Questions about access, asked as objects: `kubectl auth can-i`, `whoami`, and what other servers delegate to us.

Each function takes the object that was posted and answers it with a `status`. Nothing is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.base.jwt import TokenError
from coterie.http.messages import UserInfo
from coterie.kube.api.errors import BadRequest, FieldError, forbidden_field, invalid, invalid_object, required
from coterie.kube.apiserver.auth.authn import Authenticator
from coterie.kube.apiserver.auth.rbac import RbacAuthorizer
from coterie.kube.apiserver.auth.rules import Attributes

Object = Mapping[str, Any]
_AUTHZ = "authorization.k8s.io"
_AUTHN = "authentication.k8s.io"


def user_json(user: UserInfo) -> dict[str, Any]:
    out: dict[str, Any] = {"username": user.name}
    if user.uid:
        out["uid"] = user.uid
    if user.groups:
        out["groups"] = list(user.groups)
    if user.extra:
        out["extra"] = {key: list(values) for key, values in user.extra}
    return out


def subject_access_review(review: Object, authorizer: RbacAuthorizer) -> dict[str, Any]:
    return _about_subject("SubjectAccessReview", review, authorizer, [])


def local_subject_access_review(review: Object, authorizer: RbacAuthorizer, namespace: str) -> dict[str, Any]:
    """As SubjectAccessReview, but only about the namespace it is posted to."""
    spec = _spec(review)
    faults: list[FieldError] = []
    resource = spec.get("resourceAttributes")
    if resource is not None and resource.get("namespace") != namespace:
        why = "must match metadata.namespace"
        faults.append(invalid("spec.resourceAttributes.namespace", resource.get("namespace") or "", why))
    if spec.get("nonResourceAttributes") is not None:
        faults.append(forbidden_field("spec.nonResourceAttributes", "disallowed on this kind of request"))
    return _about_subject("LocalSubjectAccessReview", review, authorizer, faults)


def self_subject_access_review(review: Object, authorizer: RbacAuthorizer, user: UserInfo) -> dict[str, Any]:
    spec = _spec(review)
    faults = _attribute_faults(spec)
    if faults:
        raise invalid_object("SelfSubjectAccessReview", _AUTHZ, "", faults)
    return _answer("SelfSubjectAccessReview", review, _decided(authorizer, user, spec))


def self_subject_rules_review(review: Object, authorizer: RbacAuthorizer, user: UserInfo) -> dict[str, Any]:
    namespace = _spec(review).get("namespace")
    if not namespace:
        raise BadRequest("no namespace on request")
    resource_rules, url_rules = authorizer.rules_json(user, namespace)
    status = {"resourceRules": resource_rules, "nonResourceRules": url_rules, "incomplete": False}
    return _answer("SelfSubjectRulesReview", review, status)


def self_subject_review(review: Object, user: UserInfo) -> dict[str, Any]:
    out = _answer("SelfSubjectReview", review, {"userInfo": user_json(user)}, group=_AUTHN)
    out.pop("spec", None)
    return out


def token_review(review: Object, authenticator: Authenticator) -> dict[str, Any]:
    spec = _spec(review)
    token = spec.get("token")
    if not isinstance(token, str) or not token:
        raise BadRequest("token is required for TokenReview in authentication")
    status: dict[str, Any]
    try:
        found = authenticator.verify_token(token, tuple(spec.get("audiences") or ()))
    except TokenError as error:
        status = {"user": {}, "error": str(error)}
    else:
        status = {"authenticated": True, "user": user_json(found.user), "audiences": list(found.audiences)}
    return _answer("TokenReview", review, status, group=_AUTHN)


def _about_subject(kind: str, review: Object, authorizer: RbacAuthorizer, faults: list[FieldError]) -> dict[str, Any]:
    spec = _spec(review)
    faults = [*faults, *_attribute_faults(spec)]
    groups = spec.get("groups") or ()
    if not spec.get("user") and not groups:
        faults.append(required("spec.user", "at least one of user or group must be specified"))
    if faults:
        raise invalid_object(kind, _AUTHZ, "", faults)
    extra = tuple((key, tuple(values or ())) for key, values in sorted((spec.get("extra") or {}).items()))
    user = UserInfo(spec.get("user") or "", tuple(groups), spec.get("uid") or "", extra)
    return _answer(kind, review, _decided(authorizer, user, spec))


def _attribute_faults(spec: Object) -> list[FieldError]:
    resource, url = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if resource is not None and url is not None:
        why = "cannot be specified in combination with resourceAttributes"
        return [invalid("spec.nonResourceAttributes", url, why)]
    if resource is None and url is None:
        why = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        return [invalid("spec.resourceAttributes", None, why)]
    return []


def attributes_of(spec: Object) -> Attributes:
    url = spec.get("nonResourceAttributes")
    if url is not None:
        return Attributes(verb=url.get("verb") or "", path=url.get("path") or "")
    asked: Object = spec.get("resourceAttributes") or {}
    return Attributes(
        verb=asked.get("verb") or "",
        group=asked.get("group") or "",
        resource=asked.get("resource") or "",
        subresource=asked.get("subresource") or "",
        namespace=asked.get("namespace") or "",
        name=asked.get("name") or "",
    )


def _decided(authorizer: RbacAuthorizer, user: UserInfo, spec: Object) -> dict[str, Any]:
    decision = authorizer.allowed(user, attributes_of(spec))
    status: dict[str, Any] = {"allowed": decision.allowed}
    if decision.reason:
        status["reason"] = decision.reason
    return status


def _spec(review: Object) -> Object:
    spec = review.get("spec")
    if spec is None:
        return {}
    if not isinstance(spec, Mapping):
        raise BadRequest("spec must be an object")
    return spec


def _answer(kind: str, review: Object, status: Object, group: str = _AUTHZ) -> dict[str, Any]:
    out: dict[str, Any] = {
        "kind": kind,
        "apiVersion": review.get("apiVersion") or f"{group}/v1",
        "metadata": dict(review.get("metadata") or {}),
        "spec": dict(_spec(review)),
        "status": dict(status),
    }
    return out
