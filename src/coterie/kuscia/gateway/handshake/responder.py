"""The destination's part: answers handshakes about routes that end at this domain.

    POST   known route ─> certificate fits ─> not too often ─> time and key hash fit ─> not a replay ─> decrypt
           ─> our turn ─> write revisionToken (revision + 1, not ready) ─> all gateways have it ─> answer

Who asks is only claimed. In MTLS a certificate that is shown must be the claimed source's. Beyond that nothing is proved
by the request: the proof is that only the source can read the half that we answer with. So a forged or replayed request
must not do harm. It adds a token that nobody has; the one in use stays, because the controller keeps what the source was
last heard with and `accept.stamps` lets nobody else say what that is.

An unanswered request comes again unchanged (Kuscia does so five times). It then gets the answer to the first, and makes no
further token. Later than that it is a replay.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field

from msgspec.structs import replace

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.rate_limited_log import RateLimitedLog
from coterie.kube.api.errors import ApiError
from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.names import dns_label_faults
from coterie.kube.api.pod_state import parse_time
from coterie.kube.client.client import Client
from coterie.kube.client.informer import Informer
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api.domainroutes import KeyFault, parse_public_key, route_name
from coterie.kuscia.api.types.domain import (
    RSA_GEN,
    UID_RSA_GEN,
    DomainRoute,
    DomainRouteStatus,
    RouteToken,
    TokenConfig,
)
from coterie.kuscia.gateway.handshake import crypto, responder_rules
from coterie.kuscia.gateway.handshake.limits import CLOCK_TOLERANCE, HandshakeRateLimiter, ReplayCache, RequestNovelty
from coterie.kuscia.gateway.handshake.messages import (
    RSA,
    UID,
    HandshakeRefused,
    HandshakeRequest,
    HandshakeResponse,
    HandshakeStatus,
    HandshakeToken,
    nanoseconds,
    readable,
)
from coterie.kuscia.gateway.handshake.pinned_certificates import PinMatch, Pins
from coterie.kuscia.gateway.handshake.route_status_writer import with_tokens, write_status
from coterie.kuscia.gateway.handshake.route_waiter import RouteWaiter
from coterie.kuscia.identity.domain_identity import DomainIdentity

READY_WAIT = 30.0
"""Seconds until all gateways must have taken a new token."""
_TURN_WAIT = 10.0
"""Seconds for which a handshake waits for another one with the same source."""
_RECHECK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """The token that was made for a request, without the token."""

    sealed: str
    answer: str = field(repr=False)
    revision: int
    expires: int


@dataclass(slots=True)
class _Round:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    made: IssuedToken | None = None


class HandshakeResponder:
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
        self._route_waiter = RouteWaiter(routes, clock)
        self._turnstile = HandshakeRateLimiter(clock)
        self._rounds: ReplayCache[_Round] = ReplayCache(clock)
        self._log = logger("gateway.handshake")
        self._rate_limited_log = RateLimitedLog(self._log, clock)

    # Handshakes.

    async def handshake(self, request: HandshakeRequest, shown: str) -> HandshakeResponse:
        """`shown`: the fingerprint of the caller's certificate, or nothing. Raises Refused."""
        try:
            return await self._handshake(request, shown)
        except HandshakeRefused as refused:
            self._rate_limited_log.warn("Refused a handshake", source=readable(request.domain_id), why=str(refused))
            raise
        except (ApiError, TransportError) as error:
            self._log.warning("A handshake failed", error=error, source=readable(request.domain_id))
            raise HandshakeRefused(f"{self._domain} cannot store the token at present; try again") from error

    async def _handshake(self, request: HandshakeRequest, shown: str) -> HandshakeResponse:
        route, config = self._route(request)
        proven = self._check_certificate(route, shown)
        if not self._turnstile.admits(route.spec.source, proven):
            raise HandshakeRefused(f"too many handshakes from {route.spec.source}; try again later")
        self._check_time(request)
        mark = self._check_key(request, route, config)
        sight, round_ = self._rounds.check(mark, _Round())
        if sight is RequestNovelty.REPLAY:
            raise HandshakeRefused("this handshake was here before; a new one is needed")
        async with round_.lock:
            if round_.made is None:
                round_.made = await self._make(request, route)
        made = round_.made
        key = route.key
        if not await self._route_waiter.until(key, lambda now: _settled(now, made), READY_WAIT):
            raise HandshakeRefused(
                f"token revision {made.revision} is not loaded by all gateways of {self._domain} after "
                f"{READY_WAIT:.0f} s"
            )
        if (
            responder_rules.progress(self._routes.cache.by_key(key), made.revision, made.sealed)
            is responder_rules.HandshakeProgress.GONE
        ):
            raise HandshakeRefused(f"token revision {made.revision} was replaced before it was ready")
        self._log.info("Answered a handshake", source=route.spec.source, revision=made.revision, proven=proven)
        answer = HandshakeToken(token=made.answer, expiration_time=made.expires, revision=made.revision)
        return HandshakeResponse(status=HandshakeStatus(), token=answer)

    def _route(self, request: HandshakeRequest) -> tuple[DomainRoute, TokenConfig]:
        source = request.domain_id
        if dns_label_faults(source):
            raise HandshakeRefused("domain_id is no name of a domain")
        name = route_name(source, self._domain)
        route = self._routes.cache.get(name, self._domain)
        if route is None or route.metadata.deleting or not self._ours(route, source):
            raise HandshakeRefused(f"DomainRoute {name} not found in destination domain {self._domain}")
        config = route.spec.token_config
        if config is None or not route.spec.needs_token:
            raise HandshakeRefused(f"DomainRoute {name} of {self._domain} uses no token")
        if request.type not in (UID, RSA):
            raise HandshakeRefused(f"invalid handshake type; {self._domain} knows {RSA} and {UID}")
        if config.token_gen_method != (UID_RSA_GEN if request.type == UID else RSA_GEN):
            self._log.debug("A handshake of another type than the route's", source=source, type=request.type)
        return route, config

    def _ours(self, route: DomainRoute, source: str) -> bool:
        return (route.spec.source, route.spec.destination) == (source, self._domain)

    def _check_certificate(self, route: DomainRoute, shown: str) -> bool:
        """Whether the certificate proves that the source itself calls."""
        fits = self._pins.fits(route, shown)
        if fits is PinMatch.UNKNOWN:
            raise HandshakeRefused(f"the certificate shown is none that {self._domain} knows of {route.spec.source}")
        if fits is PinMatch.OUT_OF_DATE:
            raise HandshakeRefused(
                f"the certificate of {route.spec.source} is not valid today; give {self._domain} a new one, by a way it trusts"
            )
        return fits is PinMatch.SOURCE

    def _check_time(self, request: HandshakeRequest) -> None:
        off = (request.request_time - nanoseconds(self._clock.now())) / 1e9
        if abs(off) > CLOCK_TOLERANCE:
            message = (
                "is missing" if request.request_time == 0 else f"differs by {off:.0f} s from {self._domain}'s clock"
            )
            raise HandshakeRefused(f"request_time {message}; set the clocks, or send a new request")

    def _check_key(self, request: HandshakeRequest, route: DomainRoute, config: TokenConfig) -> bytes:
        """What marks this very request."""
        source = route.spec.source
        try:
            key = parse_public_key(config.source_public_key)
        except KeyFault as fault:
            raise HandshakeRefused(f"{self._domain} has no usable public key of {source}: {fault}") from fault
        offered = request.token_config
        if request.type == RSA:
            if offered is None or not offered.token:
                raise HandshakeRefused("token_config is missing")
            if not crypto.same_hash(offered.pubhash, key):
                raise HandshakeRefused(f"the public key hash of {source} is not that of the key {self._domain} knows")
        half = offered.token if offered is not None else ""
        return hashlib.sha256(f"{source} {request.type} {request.request_time} {half}".encode()).digest()

    async def _make(self, request: HandshakeRequest, route: DomainRoute) -> IssuedToken:
        assert route.spec.token_config is not None
        source_key = parse_public_key(route.spec.token_config.source_public_key)
        if request.type == UID:
            kept = responder_rules.given_again(route, self._clock.now())
            raw = self._opened(kept) if kept is not None else None
            if kept is not None and raw is not None:
                return _issued_token(kept, crypto.encrypt(source_key, raw))
            own = whole = crypto.whole()
        else:
            assert request.token_config is not None
            try:
                theirs = crypto.decrypt(self._identity.key, request.token_config.token, crypto.HALF)
            except crypto.NotDecrypted:
                # In these words Kuscia's people know it.
                message = (
                    f"dest domain [{self._domain}] publickey in source domain [{route.spec.source}] may be not correct"
                )
                raise HandshakeRefused(message) from None
            own = crypto.half()
            whole = theirs + own
        token = await self._store(route.key, crypto.seal(whole, self._identity))
        return _issued_token(token, crypto.encrypt(source_key, own))

    def _opened(self, token: RouteToken) -> bytes | None:
        try:
            return crypto.opened_bytes(token.token, self._identity)
        except crypto.NotDecrypted:
            return None

    async def _store(self, key: ObjectKey, sealed: str) -> RouteToken:
        """One handshake of a source after the other, also when they come to several gateways of ours."""
        made: RouteToken | None = None
        deadline = self._clock.monotonic() + _TURN_WAIT
        impatient = False

        def change(current: DomainRoute) -> DomainRouteStatus | None:
            nonlocal made
            if responder_rules.unfinished(current) and not impatient:
                return None
            made = responder_rules.next_token(current, sealed, self._clock.now())
            return replace(with_tokens(current), token_status=replace(current.token_status, revision_token=made))

        while True:
            left = deadline - self._clock.monotonic()
            # One that never ends (its gateway is dead, its token unreadable) must not keep all others out.
            impatient = not await self._route_waiter.until(
                key, lambda route: not responder_rules.unfinished(route), max(0.0, left)
            )
            route = self._routes.cache.by_key(key)
            if route is None:
                raise HandshakeRefused(f"DomainRoute {key.name} was removed from {self._domain} meanwhile")
            made = None
            if await write_status(self._client, route, change) is not None and made is not None:
                return made
            if impatient:
                raise HandshakeRefused(f"DomainRoute {key.name} was replaced in {self._domain} meanwhile")
            # Another handshake got in between; its round is not in our cache yet.
            await self._clock.sleep(_RECHECK_SECONDS)


def _settled(route: DomainRoute | None, made: IssuedToken) -> bool:
    return responder_rules.progress(route, made.revision, made.sealed) is not responder_rules.HandshakeProgress.WAITING


def _issued_token(token: RouteToken, answer: str) -> IssuedToken:
    expires = parse_time(token.expiration_time)
    return IssuedToken(token.token, answer, token.revision, nanoseconds(expires) if expires is not None else 0)
