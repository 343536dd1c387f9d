"""Which refusals of the API a retry can mend. Pure; the one place that decides it for all controllers.

    outlook     errors                                                               a controller
    ----------  -------------------------------------------------------------------  ------------------------------------
    TRANSIENT   Conflict, 401, 410, 429, 5xx, a server that is not ready yet         retries with back-off
    WAITING     exceeded quota, a namespace or service account that is missing       says so in the status, retries until
                                                                                     its time is over, then fails
    LASTING     Invalid, too large, BadRequest, every other Forbidden                fails, with the message as the reason

A quota may become free and a namespace may come a moment later, so these are worth waiting for, but not for ever.
"""

from __future__ import annotations

from enum import Enum

from coterie.kube.api.errors import ApiError, Conflict, Forbidden, Gone, NotFound, TooManyRequests, Unauthorized

MESSAGE_LIMIT = 1024
"""Characters of an error that go into a status: an object with many faults has a very long message."""
_TOO_LARGE = "request is too large"
"""How etcd refuses a big object; kube-apiserver passes it on as an internal error."""
_NOT_READY = ("not yet ready to handle request", "RBAC: ")
"""A server whose caches are not filled yet answers Forbidden."""
_MAY_COME = ("exceeded quota", "status unknown for quota", "error looking up service account")


class Outlook(Enum):
    TRANSIENT = "transient"
    WAITING = "waiting"
    LASTING = "lasting"


def outlook(error: ApiError) -> Outlook:
    """Of a refused create or change of an object."""
    if isinstance(error, (Conflict, Unauthorized, Gone, TooManyRequests)):
        return Outlook.TRANSIENT
    if isinstance(error, NotFound):
        return Outlook.WAITING
    if isinstance(error, Forbidden):
        if any(sign in error.message for sign in _NOT_READY):
            return Outlook.TRANSIENT
        return Outlook.WAITING if any(sign in error.message for sign in _MAY_COME) else Outlook.LASTING
    if error.code >= 500:
        return Outlook.LASTING if _TOO_LARGE in error.message else Outlook.TRANSIENT
    return Outlook.LASTING


def public_reason(error: ApiError) -> str:
    """The kind of refusal without amounts and names of ours: for partners."""
    return "exceeded quota" if "exceeded quota" in error.message else error.reason


def status_message(error: ApiError) -> str:
    """The message, short enough for a status."""
    text = error.message
    return text if len(text) <= MESSAGE_LIMIT else f"{text[:MESSAGE_LIMIT]}..."
