"""The errors of the API, one class for each Kubernetes `Status` reason, usable on both sides of the wire.

    ApiError
    ├── BadRequest            400
    ├── Unauthorized          401
    ├── Forbidden             403
    ├── NotFound              404
    ├── MethodNotAllowed      405
    ├── NotAcceptable         406
    ├── Conflict              409
    │   ├── AlreadyExists     409
    │   └── ApplyConflict     409 (causes: FieldManagerConflict)
    ├── Gone                  410
    │   └── Expired           410
    ├── RequestEntityTooLarge 413
    ├── UnsupportedMediaType  415
    ├── Invalid               422
    ├── TooManyRequests       429
    ├── InternalError         500
    ├── ServiceUnavailable    503
    └── Timeout               504

The server raises them and writes `error.status()`; the client reads a `Status` and raises `from_status(...)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

Status = dict[str, Any]
MAX_SHOWN = 100
"""Faults of one object that are told one by one: nobody reads more, and a small object can have very many."""


@dataclass(frozen=True, slots=True)
class StatusCause:
    """One reason inside `Status.details.causes`; `field` is a path such as `spec.containers[0].image`."""

    reason: str
    message: str
    field: str = ""

    def as_json(self) -> dict[str, str]:
        out = {"reason": self.reason} if self.reason else {}
        out["message"] = self.message
        if self.field:
            out["field"] = self.field
        return out


class ApiError(Exception):
    """A refusal that is told to the client as a `Status` object."""

    code: ClassVar[int] = 500
    reason: ClassVar[str] = "InternalError"

    def __init__(
        self,
        message: str,
        *,
        name: str = "",
        group: str = "",
        kind: str = "",
        uid: str = "",
        causes: Sequence[StatusCause] = (),
        retry_after: int = 0,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.name = name
        self.group = group
        self.kind = kind
        self.uid = uid
        self.causes = tuple(causes)
        self.retry_after = retry_after

    def status(self) -> Status:
        """The `Status` object, keys in the order in which Go prints them (some clients compare the text)."""
        details: dict[str, Any] = {}
        if self.name:
            details["name"] = self.name
        if self.group:
            details["group"] = self.group
        if self.kind:
            details["kind"] = self.kind
        if self.uid:
            details["uid"] = self.uid
        if self.causes:
            details["causes"] = [cause.as_json() for cause in self.causes]
        if self.retry_after:
            details["retryAfterSeconds"] = self.retry_after
        out: Status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
        }
        if details:
            out["details"] = details
        out["code"] = self.code
        return out


class BadRequest(ApiError):
    code, reason = 400, "BadRequest"


class Unauthorized(ApiError):
    code, reason = 401, "Unauthorized"


class Forbidden(ApiError):
    code, reason = 403, "Forbidden"


class NotFound(ApiError):
    code, reason = 404, "NotFound"


class MethodNotAllowed(ApiError):
    code, reason = 405, "MethodNotAllowed"


class NotAcceptable(ApiError):
    code, reason = 406, "NotAcceptable"


class Conflict(ApiError):
    code, reason = 409, "Conflict"


class AlreadyExists(Conflict):
    code, reason = 409, "AlreadyExists"


class ApplyConflict(Conflict):
    """Server-side apply met fields that other managers own; every cause names one of them."""


class Gone(ApiError):
    code, reason = 410, "Gone"


class Expired(Gone):
    code, reason = 410, "Expired"


class RequestEntityTooLarge(ApiError):
    code, reason = 413, "RequestEntityTooLarge"


class UnsupportedMediaType(ApiError):
    code, reason = 415, "UnsupportedMediaType"


class Invalid(ApiError):
    code, reason = 422, "Invalid"


class TooManyRequests(ApiError):
    code, reason = 429, "TooManyRequests"


class InternalError(ApiError):
    code, reason = 500, "InternalError"


class ServiceUnavailable(ApiError):
    code, reason = 503, "ServiceUnavailable"


class Timeout(ApiError):
    code, reason = 504, "Timeout"


_LEAVES: tuple[type[ApiError], ...] = (
    BadRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    NotAcceptable,
    Conflict,
    AlreadyExists,
    Gone,
    Expired,
    RequestEntityTooLarge,
    UnsupportedMediaType,
    Invalid,
    TooManyRequests,
    InternalError,
    ServiceUnavailable,
    Timeout,
)
_BY_REASON = {leaf.reason: leaf for leaf in _LEAVES}
_BY_CODE = {leaf.code: leaf for leaf in reversed(_LEAVES)}


def from_status(status: Status, code: int = 0) -> ApiError:
    """The error that a server's `Status` (or a bare HTTP code) stands for. Fields of another type count as absent."""
    code = _number(status.get("code")) or code or 500
    cls = _BY_REASON.get(_text(status.get("reason"))) or _BY_CODE.get(code, InternalError)
    found = status.get("details")
    details: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    listed = details.get("causes")
    causes = [
        StatusCause(_text(c.get("reason")), _text(c.get("message")), _text(c.get("field")))
        for c in (listed[:MAX_SHOWN] if isinstance(listed, list) else ())
        if isinstance(c, Mapping)
    ]
    if cls is Conflict and any(cause.reason == "FieldManagerConflict" for cause in causes):
        cls = ApplyConflict
    return cls(
        _text(status.get("message")) or f"the server answered {code}",
        name=_text(details.get("name")),
        group=_text(details.get("group")),
        kind=_text(details.get("kind")),
        uid=_text(details.get("uid")),
        causes=causes,
        retry_after=_number(details.get("retryAfterSeconds")),
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else 0


@dataclass(frozen=True, slots=True)
class FieldError:
    """One fault in an object, as validation reports it; `cause()` is how `Status.details.causes` shows it."""

    field: str
    reason: str  # FieldValueRequired, FieldValueInvalid, FieldValueNotSupported, FieldValueForbidden, ...
    detail: str  # the whole text behind "<field>: ", e.g. 'Invalid value: "x": must be ...' or 'Required value'

    def __str__(self) -> str:
        return f"{self.field}: {self.detail}"

    def cause(self) -> StatusCause:
        return StatusCause(self.reason, self.detail, self.field)


def required(field: str, why: str = "") -> FieldError:
    return FieldError(field, "FieldValueRequired", f"Required value: {why}" if why else "Required value")


def invalid(field: str, value: object, why: str) -> FieldError:
    return FieldError(field, "FieldValueInvalid", f"Invalid value: {show_value(value)}: {why}")


def not_supported(field: str, value: object, allowed: Sequence[str]) -> FieldError:
    listed = ", ".join(f'"{item}"' for item in allowed)
    return FieldError(
        field, "FieldValueNotSupported", f"Unsupported value: {show_value(value)}: supported values: {listed}"
    )


def duplicate(field: str, value: object) -> FieldError:
    return FieldError(field, "FieldValueDuplicate", f"Duplicate value: {show_value(value)}")


def forbidden_field(field: str, why: str) -> FieldError:
    return FieldError(field, "FieldValueForbidden", f"Forbidden: {why}")


def too_long(field: str, limit: int) -> FieldError:
    return FieldError(field, "FieldValueTooLong", f"Too long: may not be more than {limit} bytes")


def too_many(field: str, count: int, limit: int) -> FieldError:
    return FieldError(field, "FieldValueTooMany", f"Too many: {count}: must have at most {limit} items")


def not_found_field(field: str, value: object) -> FieldError:
    return FieldError(field, "FieldValueNotFound", f"Not found: {show_value(value)}")


def type_invalid(field: str, value: object, why: str) -> FieldError:
    return FieldError(field, "FieldValueTypeInvalid", f"Invalid value: {show_value(value)}: {why}")


def show_value(value: object) -> str:
    """A bad value as Kubernetes prints it in messages: strings quoted, objects by type only."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, str):
        return '"' + value[:256].replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, (int, float)):
        return str(value)
    return '"object"' if isinstance(value, dict) else '"array"'


def invalid_object(kind: str, group: str, name: str, errors: Sequence[FieldError]) -> Invalid:
    """The 422 that carries the field errors of one object, worded as Kubernetes words it."""
    causes = [error.cause() for error in errors[:MAX_SHOWN]]
    texts = [str(error) for error in errors[:MAX_SHOWN]]
    if len(errors) > MAX_SHOWN:
        texts.append(f"and {len(errors) - MAX_SHOWN} more")
    message = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    shown = f"{kind}.{group}" if group else kind
    return Invalid(f'{shown} "{name}" is invalid: {message}', name=name, group=group, kind=kind, causes=causes)
