"""The source's part: the gateway that a route names as initializer shakes hands and then asks every 15 s how things are.

    reconcile   probe, if one is due ──┐
                handshake, if asked ───┴──> decide ──> one patch, and an event where people should know

What is remembered here (when the last call was, how many were missed) may be lost: a new process begins with a probe.
A handshake that got no answer is sent again as it was, so that the destination need not make another token for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.kube.api.meta import ObjectKey
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches, own_key
from coterie.kube.control.events import EventRecorder, reference_to
from coterie.kuscia.api.domainroutes import KeyFault, parse_public_key
from coterie.kuscia.api.types.domain import DOMAIN_ROUTES, UID_RSA_GEN, DomainRoute, DomainRouteStatus
from coterie.kuscia.gateway.handshake import crypto, initializer_rules
from coterie.kuscia.gateway.handshake.handshake_client import HandshakeTarget, HandshakeTransport, PartnerUnreachable
from coterie.kuscia.gateway.handshake.initializer_rules import (
    HandshakeAgreed,
    HandshakeCounters,
    HandshakeDecision,
    HandshakeDenied,
    HandshakeEvent,
    HandshakeImpossible,
    HandshakeUnanswered,
    Outcome,
)
from coterie.kuscia.gateway.handshake.messages import (
    RSA,
    UID,
    HandshakeRequest,
    HandshakeResponse,
    HandshakeTokenConfig,
    MessageFault,
    ProbeAnswer,
    decode,
    encode,
    moment_of,
    nanoseconds,
    readable,
)
from coterie.kuscia.gateway.handshake.route_status_writer import write_status
from coterie.kuscia.gateway.handshake.server import REVISION
from coterie.kuscia.identity.domain_identity import DomainIdentity

_OFFER_LIFE = 45.0
"""Seconds for which an unanswered handshake is sent again as it was; the destination takes it for a replay after sixty."""
_WORKERS = 64
"""They mostly wait, ten seconds each where a partner is down."""
_SLACK = 0.01


_Round = tuple[str, str | None, int]
"""Which round of negotiation: the object's uid, when the round began, and after which revision."""


@dataclass(frozen=True, slots=True)
class _Offer:
    """A handshake on its way: our half in clear never leaves this process."""

    round: _Round
    half: bytes
    body: bytes
    made: float

    def __repr__(self) -> str:
        return f"Offer({self.round})"


@dataclass(slots=True)
class _Memory:
    course: HandshakeCounters = field(default_factory=HandshakeCounters)
    offer: _Offer | None = None
    round: _Round = ("", None, 0)
    shake_at: float = 0.0
    probe_at: float = 0.0
    probed: tuple[str, int] = ("", 0)


class Negotiator:
    def __init__(
        self,
        client: Client,
        informers: Informers,
        identity: DomainIdentity,
        instance: str,
        caller: HandshakeTransport,
        clock: Clock,
        events: EventRecorder | None,
    ) -> None:
        self._client = client
        self._identity = identity
        self._instance = instance
        self._caller = caller
        self._clock = clock
        self._events = events
        self.routes = informers.get(DOMAIN_ROUTES, identity.domain)
        self._memories: dict[ObjectKey, _Memory] = {}
        self._log = logger("gateway.handshake")

    async def reconcile(self, key: ObjectKey) -> Result:
        route = self.routes.cache.by_key(key)
        if route is None or not self._concerns_us(route):
            self._memories.pop(key, None)
            return DONE
        memory = self._memories.setdefault(key, _Memory())
        waits = []
        if initializer_rules.token_to_probe(route, self._instance) is not None:
            await self._probe_if_due(route, memory)
            waits.append(memory.probe_at)
        current = self.routes.cache.by_key(key)
        if current is not None and initializer_rules.must_negotiate(current, self._instance):
            await self._shake_if_due(current, memory)
            waits.append(memory.shake_at)
        if not waits:
            return DONE
        return Result(after=max(0.0, min(waits) - self._clock.monotonic()) + _SLACK)

    def _concerns_us(self, route: DomainRoute) -> bool:
        spec = route.spec
        config = spec.token_config
        mine = spec.source == self._identity.domain and not route.metadata.deleting and spec.needs_token
        if not mine or config is None or not config.destination_public_key or not config.source_public_key:
            return False
        return route.token_status.revision_initializer == self._instance

    # Probes.

    async def _probe_if_due(self, route: DomainRoute, memory: _Memory) -> None:
        token = initializer_rules.token_to_probe(route, self._instance)
        assert token is not None
        asked = (route.metadata.uid, token.revision)
        if memory.probed == asked and self._clock.monotonic() < memory.probe_at:
            return
        if memory.probed != asked:
            # The sooner the destination hears of a new token, the sooner that one is safe from being dropped.
            memory.probed = asked
            memory.course = HandshakeCounters(misses=memory.course.misses, failures=memory.course.failures)
        outcome = await self._probe(route, token.revision)
        verdict: HandshakeDecision | None = None

        def change(current: DomainRoute) -> DomainRouteStatus | None:
            nonlocal verdict
            newest = initializer_rules.token_to_probe(current, self._instance)
            if newest is None or newest.revision != token.revision:
                return None  # what was asked about is no longer what matters
            verdict = initializer_rules.after_probe(current, memory.course, outcome, self._clock.now())
            return verdict.status

        await self._conclude(route, change, lambda: verdict, memory)
        memory.probe_at = self._clock.monotonic() + (
            verdict.after if verdict is not None else initializer_rules.PROBE_PERIOD
        )

    async def _probe(self, route: DomainRoute, revision: int) -> int | HandshakeUnanswered:
        try:
            body = await self._caller.call(_target(route), {REVISION: str(revision)}, None)
            return decode(body, ProbeAnswer).state
        except (PartnerUnreachable, MessageFault) as fault:
            return HandshakeUnanswered(str(fault))

    # Handshakes.

    async def _shake_if_due(self, route: DomainRoute, memory: _Memory) -> None:
        round_ = _round(route)
        if memory.round != round_:
            memory.round, memory.offer, memory.shake_at = round_, None, 0.0
        if self._clock.monotonic() < memory.shake_at:
            return
        outcome = await self._shake(route, memory, round_)
        verdict: HandshakeDecision | None = None

        def change(current: DomainRoute) -> DomainRouteStatus | None:
            nonlocal verdict
            if _round(current) != round_ or not initializer_rules.must_negotiate(current, self._instance):
                return None  # another gateway, or another round, has taken over
            verdict = initializer_rules.after_handshake(current, memory.course, outcome, self._clock.now())
            return verdict.status

        await self._conclude(route, change, lambda: verdict, memory)
        # Whatever it brought, this round is not tried again at once: the cache may still show it as open.
        memory.shake_at = self._clock.monotonic() + (
            verdict.after if verdict is not None else initializer_rules.PROBE_PERIOD
        )
        if isinstance(outcome, HandshakeAgreed):
            memory.probed = ("", 0)

    async def _shake(self, route: DomainRoute, memory: _Memory, round_: _Round) -> Outcome:
        try:
            offer = self._offer(route, memory.offer, round_)
        except KeyFault as fault:
            return HandshakeImpossible(f"a key in tokenConfig cannot be used: {fault}", answered=False)
        memory.offer = offer
        try:
            body = await self._caller.call(_target(route), {}, offer.body)
        except PartnerUnreachable as fault:
            return HandshakeUnanswered(str(fault))
        memory.offer = None
        try:
            return self._read(body, offer)
        except MessageFault as fault:
            return HandshakeImpossible(str(fault), answered=True)

    def _offer(self, route: DomainRoute, last: _Offer | None, round_: _Round) -> _Offer:
        now = self._clock.monotonic()
        if last is not None and last.round == round_ and now - last.made < _OFFER_LIFE:
            return last
        config = route.spec.token_config
        assert config is not None
        own = self._identity.key.public_key()
        if parse_public_key(config.source_public_key) != own:
            raise KeyFault(f"sourcePublicKey is not the key of {self._identity.domain}")
        half, offered = b"", None
        uid = config.token_gen_method == UID_RSA_GEN
        if not uid:
            half = crypto.half()
            token = crypto.encrypt(parse_public_key(config.destination_public_key), half)
            begun = route.token_status.revision_token
            offered = HandshakeTokenConfig(
                token=token, revision=begun.revision if begun else 0, pubhash=crypto.pubhash(own)
            )
        request = HandshakeRequest(
            domain_id=route.spec.source,
            type=UID if uid else RSA,
            token_config=offered,
            request_time=nanoseconds(self._clock.now()),
        )
        return _Offer(round_, half, encode(request), now)

    def _read(self, body: bytes, offer: _Offer) -> Outcome:
        answer = decode(body, HandshakeResponse)
        if answer.status.code != 0:
            return HandshakeDenied(readable(answer.status.message) or f"code {answer.status.code}")
        if answer.token is None or not answer.token.token:
            raise MessageFault("the answer holds no token")
        size = crypto.HALF if offer.half else crypto.WHOLE
        try:
            theirs = crypto.decrypt(self._identity.key, answer.token.token, size)
        except crypto.NotDecrypted:
            message = f"its answer is not for the key of {self._identity.domain}; does it know our certificate?"
            return HandshakeImpossible(message, answered=True)
        sealed = crypto.seal(offer.half + theirs, self._identity)
        return HandshakeAgreed(sealed, answer.token.revision, _expiry(answer.token.expiration_time))

    # Writing.

    async def _conclude(
        self,
        route: DomainRoute,
        change: Callable[[DomainRoute], DomainRouteStatus | None],
        verdict: Callable[[], HandshakeDecision | None],
        memory: _Memory,
    ) -> None:
        written = await write_status(self._client, route, change)
        decided = verdict()
        if decided is None:
            return
        memory.course = decided.course
        if decided.note is not None and written is not None:
            self._record_event(route, decided.note)

    def _record_event(self, route: DomainRoute, note: HandshakeEvent) -> None:
        say = self._log.warning if note.warning else self._log.info
        say("About a route to a partner", route=str(route.key), reason=note.reason, told=note.message)
        if self._events is not None:
            resource = DOMAIN_ROUTES.resource
            reference = reference_to(route, api_version=resource.api_version, kind=resource.kind)
            self._events.record(reference, "Warning" if note.warning else "Normal", note.reason, note.message)


def _target(route: DomainRoute) -> HandshakeTarget:
    return HandshakeTarget(route.spec.source, route.spec.destination)


def _round(route: DomainRoute) -> _Round:
    begun = route.token_status.revision_token
    return (
        (route.metadata.uid, begun.revision_time, begun.revision)
        if begun is not None
        else (route.metadata.uid, None, 0)
    )


def _expiry(ns: int) -> datetime | None:
    return moment_of(ns) if ns > 0 else None


def make(
    client: Client,
    informers: Informers,
    identity: DomainIdentity,
    instance: str,
    caller: HandshakeTransport,
    *,
    events: EventRecorder | None = None,
    workers: int = _WORKERS,
    clock: Clock = SYSTEM_CLOCK,
) -> Controller[ObjectKey]:
    negotiator = Negotiator(client, informers, identity, instance, caller, clock, events)
    watches: list[Watches[Any, ObjectKey]] = [Watches(negotiator.routes, own_key)]
    return Controller("negotiator", negotiator.reconcile, watches, workers=workers, clock=clock)
