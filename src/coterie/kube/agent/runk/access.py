"""What the agent needs to be allowed in the backing namespace, asked for at the start with SelfSubjectAccessReviews."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.client.client import Client

_REVIEWS = Kind.dynamic(builtin("selfsubjectaccessreviews", "authorization.k8s.io"))


@dataclass(frozen=True, slots=True)
class BackingRight:
    verbs: tuple[str, ...]
    resource: str
    group: str = ""
    subresource: str = ""
    needed: bool = True
    """Otherwise only `for_what` is missing without it."""
    for_what: str = ""

    @property
    def shown(self) -> str:
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


_OBJECTS = ("get", "create", "update", "delete")
RIGHTS = (
    BackingRight(("get", "list", "watch", "create", "patch", "delete"), "pods"),
    BackingRight(_OBJECTS, "configmaps"),
    BackingRight(_OBJECTS, "secrets"),
)
POLICY_RIGHT = BackingRight(
    _OBJECTS, "networkpolicies", "networking.k8s.io", needed=True, for_what="the isolation of engines"
)
LOG_RIGHT = BackingRight(("get",), "pods", subresource="log", needed=False, for_what="logs of pods")
EXEC_RIGHT = BackingRight(("create",), "pods", subresource="exec", needed=False, for_what="coterie exec")
"""The API of a cluster asks for `create`, and for `get` where the request is a WebSocket's."""


def rights(*, network_policies: bool) -> tuple[BackingRight, ...]:
    return (*RIGHTS, *((POLICY_RIGHT,) if network_policies else ()), LOG_RIGHT, EXEC_RIGHT)


@dataclass(frozen=True, slots=True)
class MissingRight:
    right: BackingRight
    verbs: tuple[str, ...]

    def __str__(self) -> str:
        return f"{', '.join(self.verbs)} {self.right.shown}"


async def missing_rights(client: Client, namespace: str, wanted: Sequence[BackingRight]) -> list[MissingRight]:
    """Raises ApiError and TransportError."""
    asked = [(right, verb) for right in wanted for verb in right.verbs]
    allowed = await asyncio.gather(*(_allowed(client, namespace, right, verb) for right, verb in asked))
    refused: dict[BackingRight, list[str]] = {}
    for (right, verb), well in zip(asked, allowed, strict=True):
        if not well:
            refused.setdefault(right, []).append(verb)
    return [MissingRight(right, tuple(verbs)) for right, verbs in refused.items()]


async def _allowed(client: Client, namespace: str, right: BackingRight, verb: str) -> bool:
    about = {
        "namespace": namespace,
        "verb": verb,
        "group": right.group,
        "resource": right.resource,
        **({"subresource": right.subresource} if right.subresource else {}),
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": about},
    }
    answer = await client.create(_REVIEWS, review)
    return bool((answer.get("status") or {}).get("allowed"))
