"""The destination's part: answers probes, and notes with which token a source was last heard.

The answer tells the source whether to keep its token, so it is right also when our cache is behind. Who asks is only
claimed; `proven` is a probe that came with the token itself, or over a connection with the source's certificate.
"""

from __future__ import annotations

from msgspec.structs import replace

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.rate_limited_log import TokenBucket
from coterie.kube.api.errors import ApiError, NotFound
from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.names import dns_label_faults
from coterie.kube.client.client import Client
from coterie.kube.client.informer import Informer
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api.domainroutes import route_name
from coterie.kuscia.api.types.domain import DOMAIN_ROUTES, DomainRoute, DomainRouteStatus
from coterie.kuscia.gateway.handshake import responder_rules
from coterie.kuscia.gateway.handshake.effective_tokens import tokens_of
from coterie.kuscia.gateway.handshake.limits import LIVE_READS
from coterie.kuscia.gateway.handshake.messages import ProbeAnswer, TokenState
from coterie.kuscia.gateway.handshake.pinned_certificates import PinMatch, Pins
from coterie.kuscia.gateway.handshake.route_status_writer import with_tokens, write_status
from coterie.kuscia.gateway.model import NOOP_TOKEN
from coterie.kuscia.identity.domain_identity import DomainIdentity


class ProbeResponder:
    def __init__(
        self,
        client: Client,
        routes: Informer[DomainRoute],
        identity: DomainIdentity,
        clock: Clock,
        pins: Pins,
    ) -> None:
        self._client = client
        self._routes = routes
        self._identity = identity
        self._domain = identity.domain
        self._clock = clock
        self._pins = pins
        self._live_reads = {proven: TokenBucket(LIVE_READS, clock) for proven in (True, False)}
        """Apart, so that strangers who ask in a source's name cannot keep it from learning that its token is lost."""
        self._log = logger("gateway.handshake")

    async def probe(self, source: str, revision: str, token: str, shown: str) -> ProbeAnswer:
        """`token`: the header that came along; the source's own gateway sends it, Kuscia's does not."""
        state = TokenState.DOMAIN_INVALID
        if source and not dns_label_faults(source):
            state = await self._probe(
                ObjectKey(self._domain, route_name(source, self._domain)), source, revision, token, shown
            )
        return ProbeAnswer(namespace=self._domain, state=state)

    async def _probe(self, key: ObjectKey, source: str, revision: str, token: str, shown: str) -> TokenState:
        route = self._routes.cache.by_key(key)
        state = self._state(route, source, revision, token)
        if state in (TokenState.TOKEN_NOT_FOUND, TokenState.NO_AUTHENTICATION):
            # The source drops its tokens at such an answer: not on the word of a cache that may be behind.
            proven = route is not None and self._pins.fits(route, shown) is PinMatch.SOURCE
            if not self._live_reads[proven].take():
                return TokenState.TOKEN_NOT_READY
            try:
                route = await self._client.get(DOMAIN_ROUTES, key.name, key.namespace)
            except NotFound:
                return TokenState.NO_AUTHENTICATION
            except (ApiError, TransportError) as error:
                self._log.warning("Cannot look up a probed route", error=error, route=str(key))
                return TokenState.INTERNAL_ERROR
            state = self._state(route, source, revision, token)
        if route is not None and self._pins.fits(route, shown) is PinMatch.OUT_OF_DATE:
            # Our gateway lets it in with no token, and the handshake that follows this answer is told why.
            return TokenState.NO_AUTHENTICATION
        if state is TokenState.TOKEN_READY and route is not None:
            await self._record_probe(route, revision, self._proves(route, token, shown))
        return state

    def _state(self, route: DomainRoute | None, source: str, revision: str, token: str) -> TokenState:
        if route is None or route.metadata.deleting:
            return TokenState.NO_AUTHENTICATION
        if (route.spec.source, route.spec.destination) != (source, self._domain):
            return TokenState.NO_AUTHENTICATION
        return responder_rules.probed(route, revision, self._known(route, token))

    def _known(self, route: DomainRoute, token: str) -> bool | None:
        """Through a third domain comes that domain's token, which says nothing here."""
        if not token or token == NOOP_TOKEN or route.spec.transit is not None:
            return None
        return any([known.matches(token.encode()) for known in tokens_of(route, self._identity)])

    def _proves(self, route: DomainRoute, token: str, shown: str) -> bool:
        return bool(self._known(route, token)) or self._pins.fits(route, shown) is PinMatch.SOURCE

    async def _record_probe(self, route: DomainRoute, revision: str, proven: bool) -> None:
        now = self._clock.now()

        def change(current: DomainRoute) -> DomainRouteStatus | None:
            if not responder_rules.stamps(current, revision, proven, now):
                return None
            return replace(with_tokens(current), token_status=responder_rules.stamped(current, revision, now))

        try:
            await write_status(self._client, route, change)
        except (ApiError, TransportError) as error:
            # The next probe comes in a few seconds, and the answer to this one is right all the same.
            self._log.info("A heartbeat was not written", why=str(error), route=str(route.key))
