"""What the source's initializer does next, without doing it. Pure. The other side is `responder_rules.py`.

By what its call brought (`misses`: calls in a row without an answer):

    call        answer                          status                                                 next
    handshake   token                           revisionToken ready; authorised, reachable             probe
    handshake   refused, no token in force      not authorised, reachable                              again, slower and slower
    handshake   refused, a token in force       reachable                                              likewise
    handshake   unusable, or our own key is     as when refused; the event says whose fault it is      likewise
    handshake   none                            from the third miss: unreachable                       likewise
    probe       ready                           authorised, reachable                                  in 15 s
    probe       not ready                       reachable                                              in 15 s
    probe       token not found, once           reachable                                              in 1 s
    probe       token not found, twice          no tokens, a new round                                 handshake
    probe       no authentication, once         reachable                                              in 1 s
    probe       no authentication, twice        no tokens, a new round, not authorised                 handshake
    probe       anything else                   reachable                                              in 15 s
    probe       none                            from the third miss: unreachable                       in 15 s

Asked twice, because one gateway of several may be behind and tokens that are dropped are missed at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from msgspec.structs import replace as with_fields

from coterie.base.clock import rfc3339
from coterie.kuscia.api.types.domain import DomainRoute, DomainRouteStatus, DomainRouteTokens, RouteToken
from coterie.kuscia.gateway.handshake.messages import TokenState
from coterie.kuscia.gateway.handshake.responder_rules import life, period

PROBE_PERIOD = 15.0
CONFIRM_PAUSE = 1.0
MISSES = 3
CONFIRMATIONS = 2
_QUICK_PAUSES = (0.15, 0.5, 1.0, 1.0)
"""The first is for our own gateway: a route and its round are new at the same moment, and Envoy learns it a little later."""
_QUICK_ATTEMPTS = len(_QUICK_PAUSES) + 1
_SLOW_PAUSES = (5.0, 10.0, 20.0, 30.0)


@dataclass(frozen=True, slots=True)
class HandshakeCounters:
    """What the initializer remembers of a route beside its object."""

    misses: int = 0
    lost: int = 0
    """Probes in a row that said the token, or the route, is not there."""
    failures: int = 0
    """Handshakes in a row that brought no token."""


@dataclass(frozen=True, slots=True)
class HandshakeAgreed:
    sealed: str
    revision: int
    expires: datetime | None
    """By the destination's clock."""


@dataclass(frozen=True, slots=True)
class HandshakeDenied:
    """The partner said no."""

    why: str


@dataclass(frozen=True, slots=True)
class HandshakeImpossible:
    """What we hold, or what came, cannot make a token; the partner has not said no."""

    why: str
    answered: bool


@dataclass(frozen=True, slots=True)
class HandshakeUnanswered:
    why: str


Outcome = HandshakeAgreed | HandshakeDenied | HandshakeImpossible | HandshakeUnanswered


@dataclass(frozen=True, slots=True)
class HandshakeEvent:
    """For people: an event."""

    warning: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class HandshakeDecision:
    course: HandshakeCounters
    status: DomainRouteStatus
    after: float
    """Seconds until the same is to be asked again."""
    note: HandshakeEvent | None = None


def must_negotiate(route: DomainRoute, instance: str) -> bool:
    """Whether this gateway has to negotiate a token now."""
    tokens = route.token_status
    begun = tokens.revision_token
    return tokens.revision_initializer == instance and begun is not None and not begun.token and not begun.is_ready


def token_to_probe(route: DomainRoute, instance: str) -> RouteToken | None:
    """The token to ask about, when that is this gateway's work."""
    tokens = route.token_status
    return tokens.newest if tokens.revision_initializer == instance else None


def after_handshake(
    route: DomainRoute, course: HandshakeCounters, outcome: Outcome, now: datetime
) -> HandshakeDecision:
    before = _status(route)
    tokens = route.token_status
    partner = route.spec.destination
    if isinstance(outcome, HandshakeAgreed):
        ready = RouteToken(
            is_ready=True,
            token=outcome.sealed,
            revision=outcome.revision,
            revision_time=rfc3339(now),
            expiration_time=rfc3339(_expiry(route, outcome.expires, now)),
        )
        status = DomainRouteStatus(
            is_destination_authorized=True,
            is_destination_unreachable=False,
            token_status=with_fields(tokens, revision_token=ready),
        )
        note = HandshakeEvent(False, "TokenNegotiated", f"Agreed with {partner} on token revision {outcome.revision}")
        return HandshakeDecision(HandshakeCounters(), status, PROBE_PERIOD, note)
    failures = course.failures + 1
    pause = _pause(failures)
    if not isinstance(outcome, HandshakeUnanswered):
        answered = isinstance(outcome, HandshakeDenied) or outcome.answered
        status = with_fields(
            before,
            is_destination_unreachable=before.is_destination_unreachable and not answered,
            is_destination_authorized=before.is_destination_authorized and tokens.newest is not None,
        )
        if isinstance(outcome, HandshakeDenied):
            note = HandshakeEvent(True, "HandshakeRefused", f"{partner} refuses the handshake: {outcome.why}")
        else:
            note = HandshakeEvent(
                True, "HandshakeImpossible", f"No token can be agreed on with {partner}: {outcome.why}"
            )
        misses = 0 if answered else course.misses
        return HandshakeDecision(HandshakeCounters(misses=misses, failures=failures), status, pause, note)
    missed = _missed(before, course, partner, outcome.why, _worth_an_event(failures))
    return HandshakeDecision(replace(missed.course, failures=failures), missed.status, pause, missed.note)


def after_probe(
    route: DomainRoute, course: HandshakeCounters, outcome: int | HandshakeUnanswered, now: datetime
) -> HandshakeDecision:
    """`outcome`: the state that the destination told."""
    before = _status(route)
    partner = route.spec.destination
    if isinstance(outcome, HandshakeUnanswered):
        return _missed(before, course, partner, outcome.why, False)
    reachable = with_fields(before, is_destination_unreachable=False)
    back = (
        HandshakeEvent(False, "DestinationReachable", f"{partner} answers again")
        if before.is_destination_unreachable
        else None
    )
    kept = replace(course, misses=0, lost=0)
    if outcome == TokenState.TOKEN_READY:
        return HandshakeDecision(kept, with_fields(reachable, is_destination_authorized=True), PROBE_PERIOD, back)
    if outcome in (TokenState.TOKEN_NOT_FOUND, TokenState.NO_AUTHENTICATION):
        if course.lost + 1 < CONFIRMATIONS:
            return HandshakeDecision(replace(kept, lost=course.lost + 1), reachable, CONFIRM_PAUSE, back)
        return _begun_anew(route, reachable, outcome, now)
    if outcome == TokenState.TOKEN_NOT_READY:
        return HandshakeDecision(kept, reachable, PROBE_PERIOD, back)
    odd = HandshakeEvent(
        True, "ProbeNotUnderstood", f"{partner} answers a probe with state {outcome}: {_name(outcome)}"
    )
    return HandshakeDecision(kept, reachable, PROBE_PERIOD, odd)


def _begun_anew(route: DomainRoute, reachable: DomainRouteStatus, state: int, now: datetime) -> HandshakeDecision:
    """The tokens are of no use any more. The revision is kept, so that the numbers go on."""
    tokens = route.token_status
    partner = route.spec.destination
    last = tokens.newest.revision if tokens.newest is not None else 0
    round_ = RouteToken(is_ready=False, revision=last, revision_time=rfc3339(now))
    dropped = DomainRouteTokens(revision_initializer=tokens.revision_initializer, revision_token=round_)
    if state == TokenState.NO_AUTHENTICATION:
        note = HandshakeEvent(True, "RouteNotKnown", f"{partner} does not know a route from {route.spec.source}")
    else:
        note = HandshakeEvent(
            True, "TokenLost", f"{partner} no longer has token revision {last}; a new one is negotiated"
        )
    authorized = reachable.is_destination_authorized and state != TokenState.NO_AUTHENTICATION
    status = with_fields(reachable, is_destination_authorized=authorized, token_status=dropped)
    return HandshakeDecision(HandshakeCounters(), status, PROBE_PERIOD, note)


def _missed(
    before: DomainRouteStatus, course: HandshakeCounters, partner: str, why: str, tell: bool
) -> HandshakeDecision:
    misses = course.misses + 1
    gone = misses >= MISSES
    status = with_fields(before, is_destination_unreachable=True) if gone else before
    note = None
    if tell or (gone and not before.is_destination_unreachable):
        note = HandshakeEvent(True, "DestinationUnreachable", f"{partner} does not answer: {why}")
    return HandshakeDecision(replace(course, misses=misses, lost=0), status, PROBE_PERIOD, note)


def _status(route: DomainRoute) -> DomainRouteStatus:
    return route.status or DomainRouteStatus(is_destination_authorized=False, is_destination_unreachable=False)


def _expiry(route: DomainRoute, received: datetime | None, now: datetime) -> datetime:
    """By our own clock, as the destination reckons; its own number counts where it leaves the token a longer life."""
    own = now + life(route)
    return max(own, received) if received is not None and period(route) else own


def _pause(failures: int) -> float:
    if failures < _QUICK_ATTEMPTS:
        return _QUICK_PAUSES[failures - 1]
    return _SLOW_PAUSES[min(failures - _QUICK_ATTEMPTS, len(_SLOW_PAUSES) - 1)]


def _worth_an_event(failures: int) -> bool:
    """When the quick attempts are over, and then at each doubling."""
    return failures == _QUICK_ATTEMPTS or (failures > _QUICK_ATTEMPTS and failures.bit_count() == 1)


def _name(state: int) -> str:
    return TokenState(state).name if state in TokenState.__members__.values() else "unknown"
