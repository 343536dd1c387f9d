"""The credentials with which other domains' calls reach our API: short ones, asked for in time, kept in memory only.

Each domain has a service account of its own name in its own namespace (the domain controller makes it). For every domain
that may call, a token of that account is asked for (TokenRequest) and asked for again when two thirds of its life are over.
It is written nowhere but into Envoy's private configuration. A domain whose account is not there yet is tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.base.secret import SecretValue
from coterie.kube.api.errors import ApiError
from coterie.kube.api.meta import Object
from coterie.kube.api.types.core import SERVICE_ACCOUNTS
from coterie.kube.client.client import Client
from coterie.kube.client.transport import TransportError

_ACCOUNTS = SERVICE_ACCOUNTS.as_dynamic
LIFE = 3600
"""Seconds for which a token is asked for."""
_RENEW_AT = 2 / 3
_RETRY = 2.0


@dataclass(frozen=True, slots=True)
class _Held:
    token: SecretValue
    renew_at: float


class BearerTokens:
    """A Runnable. `want` says for whom; `on_change` is called when what `current` answers has changed."""

    name = "gateway-credentials"

    def __init__(self, client: Client, on_change: Callable[[], None], *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.ready = asyncio.Event()
        self._client = client
        self._on_change = on_change
        self._clock = clock
        self._wanted: frozenset[str] = frozenset()
        self._tried: set[str] = set()
        self._held: dict[str, _Held] = {}
        self._retry_at: dict[str, float] = {}
        self._wanted_event = asyncio.Event()
        self._settled = asyncio.Event()
        self._log = logger("gateway.credentials")

    @property
    def current(self) -> Mapping[str, SecretValue]:
        return {domain: held.token for domain, held in self._held.items() if domain in self._wanted}

    def want(self, domains: Iterable[str]) -> None:
        wanted = frozenset(domains)
        if wanted == self._wanted:
            return
        self._wanted = wanted
        self._settled.clear()
        self._wanted_event.set()

    async def settled(self) -> None:
        """Until each wanted domain has its token, or could not get one now."""
        while self._wanted - self._tried:
            self._settled.clear()
            await self._settled.wait()

    async def run(self) -> None:
        self.ready.set()
        while True:
            self._wanted_event.clear()
            await self._renew()
            self._settled.set()
            await self._until(self._next_due())

    async def _until(self, moment: float | None) -> None:
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._wanted_event.wait())]
        if moment is not None:
            waits.append(asyncio.ensure_future(self._clock.sleep(max(0.0, moment - self._clock.monotonic()))))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _next_due(self) -> float | None:
        return min((self._due(domain) for domain in self._wanted), default=None)

    def _due(self, domain: str) -> float:
        held = self._held.get(domain)
        at = held.renew_at if held is not None else 0.0
        return max(at, self._retry_at.get(domain, 0.0))

    async def _renew(self) -> None:
        for gone in self._held.keys() - self._wanted:
            del self._held[gone]
        self._tried &= self._wanted
        changed = False
        for domain in sorted(self._wanted):
            if self._due(domain) <= self._clock.monotonic():
                changed |= await self._ask(domain)
        if changed:
            self._on_change()

    async def _ask(self, domain: str) -> bool:
        first = domain not in self._tried
        self._tried.add(domain)
        body: Object = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": LIFE},
        }
        try:
            answer = await self._client.create(_ACCOUNTS, body, domain, name=domain, subresource="token")
        except (ApiError, TransportError) as error:
            if first:
                self._log.warning(
                    "No credential for a domain's calls to the API; trying again", domain=domain, error=error
                )
            self._retry_at[domain] = self._clock.monotonic() + _RETRY
            return False
        life = float((answer.get("spec") or {}).get("expirationSeconds") or LIFE)
        self._held[domain] = _Held(SecretValue(answer["status"]["token"]), self._clock.monotonic() + life * _RENEW_AT)
        self._retry_at.pop(domain, None)
        return True
