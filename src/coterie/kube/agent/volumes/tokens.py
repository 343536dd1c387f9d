"""Service-account tokens for projected volumes: bound to the pod, and replaced before they expire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coterie.base.clock import Clock
from coterie.base.secret import SecretValue
from coterie.kube.agent.pods import pod_model
from coterie.kube.agent.pods.downward import ConfigProblem
from coterie.kube.api.errors import ApiError
from coterie.kube.api.meta import Object
from coterie.kube.api.types.core import SERVICE_ACCOUNTS
from coterie.kube.client.client import Client

_ACCOUNTS = SERVICE_ACCOUNTS.as_dynamic
_DEFAULT_SECONDS = 3600
_RENEW_AT = 0.8
"""Share of a token's life after which it is replaced."""
_LONGEST_USE = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class _Held:
    token: SecretValue
    renew_at: float
    """On the clock's monotonic scale."""


class PodTokens:
    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._held: dict[tuple[str, int], _Held] = {}

    @property
    def renew_in(self) -> float | None:
        """Seconds until the first token must be replaced; None: there are none."""
        if not self._held:
            return None
        return max(0.0, min(held.renew_at for held in self._held.values()) - self._clock.monotonic())

    async def ensure(self, pod: Object) -> None:
        """Fetch what the pod's volumes need and we do not have fresh."""
        for wanted in projections(pod):
            identity = _identity(wanted)
            held = self._held.get(identity)
            if held is None or held.renew_at <= self._clock.monotonic():
                self._held[identity] = await self._request(pod, *identity)

    def token(self, wanted: Mapping[str, Any]) -> str:
        return self._held[_identity(wanted)].token.reveal()

    async def _request(self, pod: Object, audience: str, seconds: int) -> _Held:
        key = pod_model.key_of(pod)
        account = pod_model.spec_of(pod).get("serviceAccountName") or "default"
        spec: Object = {
            "expirationSeconds": seconds,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": key.name, "uid": pod_model.uid_of(pod)},
        }
        if audience:
            spec["audiences"] = [audience]
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        try:
            answer = await self._client.create(_ACCOUNTS, body, key.namespace, name=account, subresource="token")
        except ApiError as error:
            raise ConfigProblem(f"no token for service account {account}: {error}") from error
        status = answer.get("status") or {}
        life = float((answer.get("spec") or {}).get("expirationSeconds") or seconds)
        renew = min(life * _RENEW_AT, _LONGEST_USE)
        return _Held(SecretValue(status["token"]), self._clock.monotonic() + renew)


def projections(pod: Object) -> list[Object]:
    return [
        part["serviceAccountToken"]
        for volume in pod_model.spec_of(pod).get("volumes") or ()
        for part in (volume.get("projected") or {}).get("sources") or ()
        if part.get("serviceAccountToken")
    ]


def _identity(wanted: Mapping[str, Any]) -> tuple[str, int]:
    return (wanted.get("audience") or "", int(wanted.get("expirationSeconds") or _DEFAULT_SECONDS))
