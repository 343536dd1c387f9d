"""What the destination makes of handshakes and probes, without doing it. Pure. The other side is `initializer_rules.py`.

A handshake is answered with `next_token`, once `progress` says that every gateway takes it. A probe about a revision:

    revision told   token with it       that revision here      state
    no              -                   -                       REVISION_INVALID
    yes             unknown here        -                       TOKEN_NOT_FOUND
    yes             known, or none      no                      TOKEN_NOT_FOUND
    yes             known, or none      not loaded everywhere   TOKEN_NOT_READY
    yes             known, or none      yes                     TOKEN_READY, and maybe a heartbeat: `stamps`
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import Enum, auto

from msgspec.structs import replace as with_fields

from coterie.base.clock import rfc3339
from coterie.kube.api.pod_state import parse_time
from coterie.kuscia.api.types.domain import DomainRoute, DomainRouteTokens, RouteToken
from coterie.kuscia.gateway.handshake.messages import TokenState

_FOR_EVER = timedelta(days=36525)
STAMP_PAUSE = timedelta(seconds=10)
"""A heartbeat is written at most this often, to spare the store."""
RECENT_PROBE_AGE = timedelta(seconds=20)
"""More than the time between two probes."""


class HandshakeProgress(Enum):
    WAITING = auto()
    READY = auto()
    GONE = auto()


def period(route: DomainRoute) -> int:
    """Seconds after which a token is replaced; 0: never."""
    return route.spec.token_config.rolling_update_period if route.spec.token_config is not None else 0


def life(route: DomainRoute) -> timedelta:
    return timedelta(seconds=2 * period(route)) if period(route) > 0 else _FOR_EVER


def next_token(route: DomainRoute, sealed: str, now: datetime) -> RouteToken:
    tokens = route.token_status
    known = [token.revision for token in (tokens.revision_token, *(tokens.tokens or ())) if token is not None]
    return RouteToken(
        is_ready=False,
        token=sealed,
        revision=max(known, default=0) + 1,
        revision_time=rfc3339(now),
        expiration_time=rfc3339(now + life(route)),
    )


def unfinished(route: DomainRoute | None) -> bool:
    """A handshake is under way here. Another one now would keep its token from ever being the newest, and so ready."""
    begun = route.token_status.revision_token if route is not None else None
    return begun is not None and bool(begun.token) and not begun.is_ready


def progress(route: DomainRoute | None, revision: int, sealed: str) -> HandshakeProgress:
    """Whether every gateway of ours takes the token that was made for an answer."""
    if route is None:
        return HandshakeProgress.GONE
    tokens = route.token_status
    listed = tokens.tokens or ()
    for index, token in enumerate(listed):
        if token.revision == revision and token.token == sealed:
            return HandshakeProgress.READY if _ready(listed, index) else HandshakeProgress.WAITING
    begun = tokens.revision_token
    coming = begun is not None and begun.revision == revision and begun.token == sealed
    known = [token.revision for token in listed] + ([begun.revision] if begun is not None else [])
    # What we know may be older than what we wrote: an API server that is not our own answers before its watch tells.
    behind = max(known, default=0) < revision
    return HandshakeProgress.WAITING if coming or behind else HandshakeProgress.GONE


def entry_of(route: DomainRoute, revision: str) -> tuple[RouteToken | None, bool]:
    """The token of this revision, and whether it is ready."""
    listed = route.token_status.tokens or ()
    for index, token in enumerate(listed):
        if str(token.revision) == revision:
            return token, _ready(listed, index)
    return None, False


def _ready(listed: Sequence[RouteToken], index: int) -> bool:
    """Gateways load all tokens of the list at once: when a later one is everywhere, so is an earlier one."""
    return any(token.is_ready for token in listed[index:])


def probed(route: DomainRoute, revision: str, known_token: bool | None) -> TokenState:
    """`known_token`: whether the token that came with the probe is one of ours; None when none came."""
    if not revision:
        return TokenState.REVISION_INVALID
    token, ready = entry_of(route, revision)
    if token is None or known_token is False:
        # A revision alone is no proof: after a loss on our side another token may have got the same number.
        return TokenState.TOKEN_NOT_FOUND
    return TokenState.TOKEN_READY if ready else TokenState.TOKEN_NOT_READY


def stamps(route: DomainRoute, revision: str, proven: bool, now: datetime) -> bool:
    """Whether a probe counts as a heartbeat of that token.

    The token with the latest heartbeat is never dropped. Anybody can send a probe, so one that proves nothing does not
    move this protection to another token as long as the source is heard with the one it has.
    """
    token, ready = entry_of(route, revision)
    if token is None or not ready or _within(token, now, STAMP_PAUSE):
        return False
    others = [other for other in route.token_status.tokens or () if other is not token]
    return proven or not any(_within(other, now, RECENT_PROBE_AGE) for other in others)


def _within(token: RouteToken, now: datetime, span: timedelta) -> bool:
    last_probe = parse_time(token.heart_beat_time)
    return last_probe is not None and abs(now - last_probe) < span


def stamped(route: DomainRoute, revision: str, now: datetime) -> DomainRouteTokens:
    tokens = route.token_status
    listed = tuple(
        with_fields(token, heart_beat_time=rfc3339(now)) if str(token.revision) == revision else token
        for token in tokens.tokens or ()
    )
    return with_fields(tokens, tokens=listed)


def given_again(route: DomainRoute, now: datetime) -> RouteToken | None:
    """For type UID: the token that a source which asks once more gets again, instead of a new one.

    Only in the first half of its period, so that it lives until the source comes for the next one.
    """
    listed = route.token_status.tokens or ()
    if not listed or not listed[-1].is_ready:
        return None
    made = parse_time(listed[-1].revision_time)
    rolls = period(route)
    young = rolls == 0 or (made is not None and now - made < timedelta(seconds=rolls / 2))
    return listed[-1] if young else None


def effective(route: DomainRoute, revision: int, instance: str) -> DomainRouteTokens:
    """The tokens with this gateway's name on the loaded one and on those before it, which it loaded along with it."""
    tokens = route.token_status
    listed = list(tokens.tokens or ())
    last = max((index for index, token in enumerate(listed) if token.revision == revision), default=-1)
    for index in range(last + 1):
        names = listed[index].effective_instances or ()
        if instance not in names:
            listed[index] = with_fields(listed[index], effective_instances=(*names, instance))
    return with_fields(tokens, tokens=tuple(listed)) if last >= 0 else tokens
