"""The control plane's part of token rolling: who negotiates, which tokens live, what is due when. Pure.

Source's copy (the object lies in the source's namespace):

    state of the round                         what is done                                          look again
    no initializer, or no revisionToken        begin a round                                         round times out, initializer dies
    not ready, initializer dead                begin a round with another gateway                    likewise
    not ready for ROUND_LIMIT                  begin a round, with another gateway if there is one   likewise
    not ready                                  wait for the gateway                                  likewise
    ready, not among tokens                    append, keep the latest two                           rolling, initializer dies
    ready, as old as rollingUpdatePeriod       begin a round; tokens stay                            round times out ...
    ready, past expirationTime                 begin a round; tokens stay                            round times out ...
    ready, initializer dead                    hand the round to a live gateway, token untouched     rolling, initializer dies

To begin a round is to name a `revisionInitializer` and to leave a `revisionToken` without a token: that gateway then
shakes hands with the destination and writes the token, ready.

Destination's copy:

    revisionToken with a new token             append it, not ready
    newest not ready, all live gateways in its effectiveInstances    ready: it and revisionToken
    newest not ready, some live gateway missing                      wait; a gateway that dies is not waited for
    token past expirationTime + EXPIRY_GRACE   drop it
    more than two tokens                       keep the latest two, and the one the source was last heard with, and for
                                               HANDOVER also the one it was heard with before

The last line is more than the two of the reference: when the answer to a handshake is lost the source goes on with the
token it has, and two lost answers in a row must not shut it out. When it then goes over to another token, its gateways
do not all do so at the same moment.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec.structs import replace

from coterie.base.clock import rfc3339
from coterie.kube.api.pod_state import parse_time
from coterie.kuscia.api.types.domain import DomainRoute, DomainRouteTokens, RouteToken

ROUND_LIMIT = 120.0
"""Seconds a gateway has for a handshake before the round begins anew."""
EXPIRY_GRACE = timedelta(minutes=2)
"""How long past its expiry a token is still accepted, for requests on their way and clocks that differ."""
HANDOVER = timedelta(seconds=30)
"""How long the gateways of a source may differ about which token is the newest."""
_KEPT = 2


@dataclass(frozen=True, slots=True)
class Plan:
    tokens: DomainRouteTokens
    """What the token status should be; equal to what it is when nothing is to be done."""
    after: float | None = None
    """Seconds until something is due by itself."""
    waiting_for: str = ""
    """What keeps the round from going on, for people; empty when nothing does."""


def plan(route: DomainRoute, live: Mapping[str, float], age: float, now: datetime) -> Plan | None:
    """`live`: the domain's gateways and the seconds each has left; `age`: seconds since the revision token was news.

    None when this route has no tokens to keep, or not yet the keys to negotiate one.
    """
    spec = route.spec
    config = spec.token_config
    if not spec.needs_token or config is None or not config.source_public_key or not config.destination_public_key:
        return None
    if route.metadata.namespace == spec.source:
        return _source(route, live, age, now)
    if route.metadata.namespace == spec.destination:
        return _destination(route.token_status, live, now)
    return None


def _source(route: DomainRoute, live: Mapping[str, float], age: float, now: datetime) -> Plan:
    tokens = route.token_status
    current = tokens.revision_token
    if current is not None and current.is_ready and current.token:
        tokens = replace(tokens, tokens=tuple(_with(tokens.tokens or (), current)[-_KEPT:]))
    if not live:
        return Plan(tokens, waiting_for=f"no gateway of {route.spec.source} is live")
    initializer = tokens.revision_initializer
    alive = initializer in live
    assert route.spec.token_config is not None
    period = float(route.spec.token_config.rolling_update_period)
    if current is None or not initializer:
        return _begin(route, tokens, live, now, avoid="")
    if not current.is_ready:
        if not alive or age >= ROUND_LIMIT:
            return _begin(route, tokens, live, now, avoid=initializer)
        left = min(ROUND_LIMIT - age, live[initializer])
        return Plan(tokens, left, f"gateway {initializer} has not finished the handshake")
    due = _until_due(current, period, age, now)
    if due is not None and due <= 0:
        return _begin(route, tokens, live, now, avoid="" if alive else initializer)
    if not alive:
        # The initializer also sends the heartbeats: without one a good token would look dead.
        initializer = _choose(route, live, "")
        tokens = replace(tokens, revision_initializer=initializer)
    return Plan(tokens, _soonest(due, live[initializer]))


def _until_due(current: RouteToken, period: float, age: float, now: datetime) -> float | None:
    """Seconds until a new token is needed; None: never.

    With a period the expiry need not be asked: it is twice the period away, and by the destination's clock.
    """
    if period > 0:
        return period - age
    expires = parse_time(current.expiration_time)
    if expires is None:
        return None
    # Not before a round could have ended, or two clocks that differ would make us negotiate without end.
    return max((expires - now).total_seconds(), ROUND_LIMIT - age)


def _begin(route: DomainRoute, tokens: DomainRouteTokens, live: Mapping[str, float], now: datetime, avoid: str) -> Plan:
    old = tokens.revision_token
    initializer = tokens.revision_initializer
    if initializer not in live or initializer == avoid:
        initializer = _choose(route, live, avoid)
    fresh = RouteToken(is_ready=False, revision=old.revision if old else 0, revision_time=rfc3339(now))
    begun = replace(tokens, revision_initializer=initializer, revision_token=fresh)
    return Plan(begun, min(ROUND_LIMIT, live[initializer]), f"gateway {initializer} begins a handshake")


def _choose(route: DomainRoute, live: Iterable[str], avoid: str) -> str:
    """One of the live gateways. Routes spread over them evenly, and the same route comes to the same one again."""
    names = sorted(live)
    others = [name for name in names if name != avoid] or names
    key = route.metadata.uid or route.metadata.name
    return max(others, key=lambda name: hashlib.blake2b(f"{key} {name}".encode(), digest_size=8).digest())


def _destination(tokens: DomainRouteTokens, live: Mapping[str, float], now: datetime) -> Plan:
    current = tokens.revision_token
    listed = _with(tokens.tokens or (), current) if current is not None and current.token else list(tokens.tokens or ())
    kept = _latest([token for token in listed if not _over(token, now)])
    waits = [left for token in kept if (left := _until_over(token, now)) is not None]
    waiting = ""
    if kept and not kept[-1].is_ready:
        missing = sorted(set(live) - set(kept[-1].effective_instances or ()))
        if not live:
            waiting = "no gateway of this domain is live"
        elif missing:
            waiting = f"token revision {kept[-1].revision} is not yet loaded by {', '.join(missing)}"
            waits.append(min(live[name] for name in missing))
        else:
            kept[-1] = replace(kept[-1], is_ready=True)
    if kept and current is not None and kept[-1].is_ready and _same(kept[-1], current):
        current = replace(current, is_ready=True)
    listed_or_none = tuple(kept) if kept or tokens.tokens is not None else None
    return Plan(replace(tokens, tokens=listed_or_none, revision_token=current), _soonest(*waits), waiting)


def _with(tokens: Iterable[RouteToken], new: RouteToken) -> list[RouteToken]:
    """The list with a newly negotiated token at its end. Probes ask by revision, so no revision stands there twice."""
    known = list(tokens)
    if any(_same(token, new) for token in known):
        return known
    return [*(token for token in known if token.revision != new.revision), new]


def _same(one: RouteToken, other: RouteToken) -> bool:
    return one.revision == other.revision and one.token == other.token


def _latest(tokens: list[RouteToken]) -> list[RouteToken]:
    latest = tokens[-_KEPT:]
    heartbeats = [
        (at, index) for index, token in enumerate(tokens) if (at := parse_time(token.heart_beat_time)) is not None
    ]
    last = sorted(heartbeats)[-_KEPT:]
    in_use = [tokens[index] for at, index in last if last[-1][0] - at < HANDOVER]
    return [token for token in tokens if token in latest or token in in_use]


def _until_over(token: RouteToken, now: datetime) -> float | None:
    expires = parse_time(token.expiration_time)
    return None if expires is None else (expires + EXPIRY_GRACE - now).total_seconds()


def _over(token: RouteToken, now: datetime) -> bool:
    left = _until_over(token, now)
    return left is not None and left <= 0


def _soonest(*seconds: float | None) -> float | None:
    known = [value for value in seconds if value is not None]
    return min(known) if known else None
