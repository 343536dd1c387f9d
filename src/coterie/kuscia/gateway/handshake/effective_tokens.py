"""The destination's gateways: which tokens are in force, and telling that this one has loaded them.

A new token is answered to its source only when every live gateway takes it, so each says so, by its own name, in the
`effectiveInstances` of the token.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from msgspec.structs import replace

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.base.secret import SecretValue
from coterie.kube.api.meta import ObjectKey
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches
from coterie.kuscia.api.types.domain import DOMAIN_ROUTES, DomainRoute, DomainRouteStatus, RouteToken
from coterie.kuscia.gateway.handshake import crypto, responder_rules
from coterie.kuscia.gateway.handshake.route_status_writer import with_tokens, write_status
from coterie.kuscia.identity.domain_identity import DomainIdentity

_log = logger("gateway.handshake")


def tokens_of(route: DomainRoute, identity: DomainIdentity) -> tuple[SecretValue, ...]:
    """As `opened_of`, without the revisions."""
    return tuple(token for _, token in opened_of(route, identity))


def opened_of(route: DomainRoute, identity: DomainIdentity) -> tuple[tuple[int, SecretValue], ...]:
    """Each with its revision, newest last. The source sends only what is ready everywhere; the destination takes all, or
    none became ready."""
    listed: Iterable[RouteToken] = route.token_status.tokens or ()
    if route.spec.source == identity.domain:
        listed = [token for token in listed if token.is_ready]
    found = []
    for token in listed:
        try:
            found.append((token.revision, crypto.open_sealed(token.token, identity)))
        except crypto.NotDecrypted:
            _warn_undecryptable(str(route.key), token.revision, token.token)
    return tuple(found)


@lru_cache(1024)
def _warn_undecryptable(route: str, revision: int, text: str) -> None:
    """Once per token: its route is read again at every change."""
    _log.warning("Token is not encrypted with this domain's key; ignored", route=route, revision=revision)


class EffectiveTokens:
    """A Runnable (its `controller`). `loaded` may be called from the event loop at any time; writing follows."""

    def __init__(
        self, client: Client, informers: Informers, domain: str, instance: str, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._client = client
        self._domain = domain
        self._instance = instance
        self._routes = informers.get(DOMAIN_ROUTES, domain)
        self._loaded: dict[ObjectKey, tuple[str, int]] = {}
        watches: list[Watches[DomainRoute, ObjectKey]] = [Watches(self._routes, self._gone)]
        self.controller: Controller[ObjectKey] = Controller("effectivetokens", self._reconcile, watches, clock=clock)

    def loaded(self, route_name: str, revision: int, uid: str = "") -> None:
        """This gateway now accepts all tokens of the route up to `revision`, of the object with that uid if it is told."""
        key = ObjectKey(self._domain, route_name)
        self._loaded[key] = (uid, revision)
        self.controller.enqueue(key)

    def _gone(self, route: DomainRoute) -> list[ObjectKey]:
        """A route of the same name that comes later begins with the same revisions, and other tokens."""
        key = route.key
        current = self._routes.cache.by_key(key)
        if current is None or current.metadata.uid != route.metadata.uid:
            self._loaded.pop(key, None)
        return []

    async def _reconcile(self, key: ObjectKey) -> Result:
        uid, revision = self._loaded.get(key, ("", 0))
        route = self._routes.cache.by_key(key)
        if (
            revision
            and route is not None
            and uid in ("", route.metadata.uid)
            and route.spec.destination == self._domain
        ):
            await write_status(self._client, route, lambda current: self._desired_status(current, revision))
        return DONE

    def _desired_status(self, route: DomainRoute, revision: int) -> DomainRouteStatus:
        return replace(with_tokens(route), token_status=responder_rules.effective(route, revision, self._instance))
