"""Which refusals of the API a retry can mend."""

from __future__ import annotations

import pytest

from coterie.kube.api import errors
from coterie.kube.api.errors import ApiError, from_status
from coterie.kube.api.retries import MESSAGE_LIMIT, Outlook, outlook, public_reason, status_message

QUOTA = 'pods "t-0" is forbidden: exceeded quota: small, requested: pods=1, used: pods=2, limited: pods=2'
ROWS: list[tuple[ApiError, Outlook]] = [
    (errors.Conflict("changed meanwhile"), Outlook.TRANSIENT),
    (errors.AlreadyExists("there"), Outlook.TRANSIENT),
    (errors.TooManyRequests("slow down"), Outlook.TRANSIENT),
    (errors.InternalError("database is locked"), Outlook.TRANSIENT),
    (errors.ServiceUnavailable("starting"), Outlook.TRANSIENT),
    (errors.Timeout("too slow"), Outlook.TRANSIENT),
    (errors.Unauthorized("token expired"), Outlook.TRANSIENT),
    (errors.Expired("old"), Outlook.TRANSIENT),
    (from_status({}, 502), Outlook.TRANSIENT),
    (errors.Forbidden("pods is forbidden: not yet ready to handle request"), Outlook.TRANSIENT),
    (errors.Forbidden('RBAC: clusterrole.rbac.authorization.k8s.io "x" not found'), Outlook.TRANSIENT),
    (errors.Forbidden(QUOTA), Outlook.WAITING),
    (errors.Forbidden("status unknown for quota: small, resources: pods"), Outlook.WAITING),
    (errors.Forbidden("error looking up service account alice/default: not found"), Outlook.WAITING),
    (errors.NotFound('namespaces "alice" not found'), Outlook.WAITING),
    (errors.Forbidden("failed quota: small: must specify cpu for: main"), Outlook.LASTING),
    (errors.Forbidden('User "x" cannot create resource "pods"'), Outlook.LASTING),
    (errors.Forbidden("unable to create new content in namespace a because it is being terminated"), Outlook.LASTING),
    (errors.Invalid("spec.containers: Required value"), Outlook.LASTING),
    (errors.BadRequest("unknown field"), Outlook.LASTING),
    (errors.RequestEntityTooLarge("limit is 3145728"), Outlook.LASTING),
    (errors.InternalError("etcdserver: request is too large"), Outlook.LASTING),
]


@pytest.mark.parametrize(("error", "expected"), ROWS, ids=lambda value: str(value)[:40])
def test_outlook(error: ApiError, expected: Outlook) -> None:
    assert outlook(error) is expected


def test_partners_learn_no_amounts() -> None:
    assert public_reason(errors.Forbidden(QUOTA)) == "exceeded quota"
    assert public_reason(errors.Invalid("a secret path")) == "Invalid"


def test_a_long_message_is_cut() -> None:
    assert len(status_message(errors.Invalid("x" * 100_000))) == MESSAGE_LIMIT + 3
    assert status_message(errors.Invalid("short")) == "short"
