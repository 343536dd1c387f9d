"""What must happen before a write: a product's hook that may refuse it. Unlike admission it may wait, and it sees the request, not the object."""

from __future__ import annotations

from typing import Protocol

from coterie.http.messages import UserInfo
from coterie.kube.apiserver.audit import CONNECTIONS
from coterie.kube.apiserver.paths import RequestInfo

_WRITE_VERBS = frozenset(("create", "update", "patch", "delete", "deletecollection"))


def is_write(target: RequestInfo) -> bool:
    """Also connections into pods: they may change anything."""
    return target.verb in _WRITE_VERBS or target.subresource in CONNECTIONS


class WriteGate(Protocol):
    def wants(self, user: UserInfo, target: RequestInfo) -> bool:
        """Whether `before` is to be called; of authorized writes that are no dry runs. Asked for every one: it must be quick."""

    async def before(self, user: UserInfo, target: RequestInfo, body: bytes) -> None:
        """Raises ApiError when the write must not happen. Whether it happens is open: validation follows."""
