"""AdmissionReviews: what is sent to a webhook, and what its answer may say. Pure."""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from coterie.http.messages import UserInfo
from coterie.kube.api import errors
from coterie.kube.api.patch.jsonpatch import json_patch
from coterie.kube.api.resources import Resource

Object = dict[str, Any]
GROUP = "admission.k8s.io"
_IDENTITY = ("name", "namespace", "uid")
_SERVER_OWNED = (
    "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "managedFields",
    "resourceVersion", "selfLink",
)  # fmt: skip
"""Of metadata: what a webhook does to them has no effect."""
_MOST_ANNOTATIONS, _LONGEST_ANNOTATION = 64, 10 << 10
_MAX_DEPTH = 200


class BadAnswer(Exception):
    """The webhook did not answer as it must."""


@dataclass(frozen=True, slots=True)
class ReviewedKind:
    group: str
    version: str
    kind: str

    @staticmethod
    def of(resource: Resource) -> ReviewedKind:
        return ReviewedKind(resource.group, resource.version, resource.kind)

    def as_json(self) -> Object:
        return {"group": self.group, "version": self.version, "kind": self.kind}


@dataclass(frozen=True, slots=True)
class AdmissionVerdict:
    allowed: bool
    status: Object
    patch: list[Object] | None
    warnings: tuple[str, ...]
    annotations: Mapping[str, str]


class AdmissionDenied(errors.ApiError):
    """The webhook's own status is the answer to the client."""

    def __init__(self, webhook: str, given: Object) -> None:
        denied = f'admission webhook "{webhook}" denied the request'
        message, reason = given.get("message"), given.get("reason")
        if isinstance(message, str) and message:
            text = f"{denied}: {message}"
        elif isinstance(reason, str) and reason:
            text = f"{denied}: {reason}"
        else:
            text = f"{denied} without explanation"
        super().__init__(text)
        code = given.get("code")
        self.rejection_code: int = code if isinstance(code, int) and 400 <= code < 600 else 400
        self._reason = reason if isinstance(reason, str) else ""
        self._details = given.get("details") if isinstance(given.get("details"), dict) else None

    def status(self) -> errors.Status:
        out: errors.Status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self._reason:
            out["reason"] = self._reason
        if self._details is not None:
            out["details"] = self._details
        out["code"] = self.rejection_code
        return out


def user_json(user: UserInfo) -> Object:
    out: Object = {"username": user.name}
    if user.uid:
        out["uid"] = user.uid
    out["groups"] = list(user.groups)
    if user.extra:
        out["extra"] = {key: list(values) for key, values in user.extra}
    return out


def admission_request(
    uid: str,
    *,
    operation: str,
    kind: ReviewedKind,
    resource: Resource,
    request_kind: ReviewedKind,
    request_resource: Resource,
    subresource: str,
    namespace: str,
    name: str,
    user: UserInfo,
    dry_run: bool,
    options: Object | None,
) -> Object:
    """`kind` and `resource` are in the version that the webhook asked for. Without the objects."""
    out: Object = {"uid": uid, "kind": kind.as_json(), "resource": _resource(resource)}
    if subresource:
        out["subResource"] = subresource
    out["requestKind"], out["requestResource"] = request_kind.as_json(), _resource(request_resource)
    if subresource:
        out["requestSubResource"] = subresource
    if name:
        out["name"] = name
    if namespace:
        out["namespace"] = namespace
    out |= {"operation": operation, "userInfo": user_json(user), "dryRun": dry_run, "options": options}
    return out


def _resource(resource: Resource) -> Object:
    return {"group": resource.group, "version": resource.version, "resource": resource.plural}


def read_verdict(body: bytes, uid: str, version: str, *, mutating: bool) -> AdmissionVerdict:
    """Raises BadAnswer."""
    try:
        review = orjson.loads(body)
    except orjson.JSONDecodeError as problem:
        raise BadAnswer(f"couldn't decode the response: {problem}") from problem
    if not isinstance(review, dict):
        raise BadAnswer("the response is no AdmissionReview")
    if (review.get("apiVersion"), review.get("kind")) != (f"{GROUP}/{version}", "AdmissionReview"):
        shown = f"{_short(review.get('apiVersion'))}, Kind={_short(review.get('kind'))}"
        raise BadAnswer(f"expected webhook response of {GROUP}/{version}, Kind=AdmissionReview, got {shown}")
    response = review.get("response")
    if not isinstance(response, dict):
        raise BadAnswer("webhook response was absent")
    if response.get("uid") != uid and (version == "v1" or response.get("uid")):
        raise BadAnswer(f'expected response.uid="{uid}", got "{_short(response.get("uid"))}"')
    allowed, status = response.get("allowed", False), response.get("status") or {}
    if not isinstance(allowed, bool) or not isinstance(status, dict):
        raise BadAnswer("response.allowed must be a bool and response.status an object")
    return AdmissionVerdict(
        allowed,
        status,
        _patch_of(response, version, mutating=mutating) if allowed else None,
        tuple(_texts(response.get("warnings") or [])),
        _annotations(response.get("auditAnnotations") or {}),
    )


def _patch_of(response: Object, version: str, *, mutating: bool) -> list[Object] | None:
    encoded, kind = response.get("patch"), response.get("patchType")
    if not encoded:
        if kind:
            raise BadAnswer("webhook returned response.patchType but not response.patch")
        return None
    if not mutating:
        raise BadAnswer("validating webhook may not return response.patch")
    if not kind and version == "v1":
        raise BadAnswer("webhook returned response.patch but not response.patchType")
    if kind not in ("JSONPatch", None, ""):
        raise BadAnswer(f'webhook returned invalid response.patchType of "{_short(kind)}"')
    try:
        document = orjson.loads(binascii.a2b_base64(encoded))
    except (ValueError, TypeError) as problem:
        raise BadAnswer(f"response.patch is no JSON in base64: {problem}") from problem
    if not isinstance(document, list):
        raise BadAnswer("response.patch is no list of operations")
    return document


def _texts(values: Any) -> list[str]:
    if not isinstance(values, list):
        raise BadAnswer("response.warnings must be a list")
    return [value for value in values if isinstance(value, str)]


def _annotations(values: Any) -> dict[str, str]:
    if not isinstance(values, dict):
        raise BadAnswer("response.auditAnnotations must be an object")
    kept = [(key, text) for key, text in values.items() if isinstance(text, str) and len(text) <= _LONGEST_ANNOTATION]
    return dict(kept[:_MOST_ANNOTATIONS])


def _short(value: Any) -> str:
    return str(value)[:256] if value is not None else ""


def patched(obj: Object, operations: list[Object], webhook: str) -> Object:
    """The object as the webhook wants it. Raises InternalError for what no webhook may do."""
    try:
        new = json_patch(obj, operations)
    except (errors.ApiError, RecursionError) as problem:
        why = problem.message if isinstance(problem, errors.ApiError) else "nested too deeply"
        raise internal(f'admission webhook "{webhook}" returned a patch that cannot be applied: {why}') from problem
    # Options of connections have none.
    metadata = new.get("metadata", {} if "metadata" not in obj else None)
    if not isinstance(metadata, dict) or _deeper_than(new, _MAX_DEPTH):
        raise internal(f'admission webhook "{webhook}" returned a patch whose result is no object')
    for key in ("apiVersion", "kind"):
        if new.get(key) != obj.get(key):
            raise _forbidden(webhook, key)
    before = obj.get("metadata") or {}
    for key in _IDENTITY:
        if metadata.get(key) != before.get(key):
            raise _forbidden(webhook, f"metadata.{key}")
    if "metadata" not in obj:
        return new
    kept = {key: before[key] for key in _SERVER_OWNED if key in before}
    others = {key: value for key, value in metadata.items() if key not in _SERVER_OWNED}
    return {**new, "metadata": {**others, **kept}}


def _deeper_than(value: Any, depth: int) -> bool:
    level = [value]
    for _ in range(depth):
        level = [
            child
            for each in level
            for child in (each.values() if isinstance(each, dict) else each)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return False
    return True


def _forbidden(webhook: str, what: str) -> errors.InternalError:
    return internal(f'admission webhook "{webhook}" attempted to change {what}, which is not allowed')


def internal(why: str) -> errors.InternalError:
    return errors.InternalError(f"Internal error occurred: {why}", causes=[errors.StatusCause("", why)])
