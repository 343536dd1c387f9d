"""The tables of both sides, row by row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from handshake_kit import a_route
from msgspec.structs import replace

from coterie.base.clock import rfc3339
from coterie.kuscia.api.types.domain import DomainRoute, DomainRouteStatus, DomainRouteTokens, RouteToken
from coterie.kuscia.gateway.handshake import initializer_rules, responder_rules
from coterie.kuscia.gateway.handshake.initializer_rules import (
    HandshakeAgreed,
    HandshakeCounters,
    HandshakeDenied,
    HandshakeImpossible,
    HandshakeUnanswered,
    Outcome,
)
from coterie.kuscia.gateway.handshake.messages import TokenState
from coterie.kuscia.gateway.handshake.responder_rules import HandshakeProgress

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)


def at(seconds: float) -> str:
    return rfc3339(NOW + timedelta(seconds=seconds))


def token(
    revision: int, *, ready: bool = True, heard: float | None = None, text: str = "", made: float = -60
) -> RouteToken:
    return RouteToken(
        is_ready=ready,
        token=text or f"sealed-{revision}",
        revision=revision,
        revision_time=at(made),
        heart_beat_time=at(heard) if heard is not None else None,
    )


def route(
    *tokens: RouteToken,
    begun: RouteToken | None = None,
    authorised: bool = True,
    unreachable: bool = False,
    initializer: str = "gw",
    **config: Any,
) -> DomainRoute:
    made = msgspec.convert(a_route(namespace="alice", **config), DomainRoute)
    status = DomainRouteStatus(
        is_destination_authorized=authorised,
        is_destination_unreachable=unreachable,
        token_status=DomainRouteTokens(
            revision_initializer=initializer,
            revision_token=begun or (tokens[-1] if tokens else None),
            tokens=tokens or None,
        ),
    )
    return replace(made, status=status)


OPEN = RouteToken(is_ready=False, revision=3, revision_time=at(0))


@pytest.mark.parametrize(
    ("found", "shakes", "probed"),
    [
        (route(), False, None),
        (route(begun=OPEN), True, None),
        (route(token(3), begun=OPEN), True, 3),
        (route(token(2), token(3)), False, 3),
        (route(token(3), begun=OPEN, initializer="other"), False, None),
        (route(begun=replace(OPEN, token="x")), False, None),
    ],
    ids=["no round", "first round", "rolling", "at rest", "another's work", "token not ready"],
)
def test_whose_work_it_is(found: DomainRoute, shakes: bool, probed: int | None) -> None:
    assert initializer_rules.must_negotiate(found, "gw") is shakes
    asked = initializer_rules.token_to_probe(found, "gw")
    assert (asked.revision if asked else None) == probed


def test_a_route_without_status_is_nobodys_work_yet() -> None:
    fresh = msgspec.convert(a_route(namespace="alice"), DomainRoute)
    assert not initializer_rules.must_negotiate(fresh, "gw") and initializer_rules.token_to_probe(fresh, "gw") is None
    assert (
        initializer_rules.after_probe(
            fresh, HandshakeCounters(), HandshakeUnanswered("x"), NOW
        ).status.is_destination_unreachable
        is False
    )


LOST, ANOTHER = TokenState.TOKEN_NOT_FOUND, TokenState.NO_AUTHENTICATION
GONE = HandshakeUnanswered("refused")


@pytest.mark.parametrize(
    ("found", "course", "outcome", "authorised", "unreachable", "kept", "after", "reason"),
    [
        (route(token(3)), HandshakeCounters(misses=2), TokenState.TOKEN_READY, True, False, True, 15, ""),
        (route(token(3), unreachable=True), HandshakeCounters(misses=9), TokenState.TOKEN_READY, True, False, True, 15, "DestinationReachable"),
        (route(token(3), authorised=False), HandshakeCounters(), TokenState.TOKEN_READY, True, False, True, 15, ""),
        (route(token(3)), HandshakeCounters(), TokenState.TOKEN_NOT_READY, True, False, True, 15, ""),
        (route(token(3)), HandshakeCounters(), LOST, True, False, True, 1, ""),
        (route(token(3)), HandshakeCounters(lost=1), LOST, True, False, False, 15, "TokenLost"),
        (route(token(3)), HandshakeCounters(), ANOTHER, True, False, True, 1, ""),
        (route(token(3)), HandshakeCounters(lost=1), ANOTHER, False, False, False, 15, "RouteNotKnown"),
        (route(token(3)), HandshakeCounters(), TokenState.DOMAIN_INVALID, True, False, True, 15, "ProbeNotUnderstood"),
        (route(token(3)), HandshakeCounters(), TokenState.REVISION_INVALID, True, False, True, 15, "ProbeNotUnderstood"),
        (route(token(3)), HandshakeCounters(), TokenState.INTERNAL_ERROR, True, False, True, 15, "ProbeNotUnderstood"),
        (route(token(3)), HandshakeCounters(), 99, True, False, True, 15, "ProbeNotUnderstood"),
        (route(token(3)), HandshakeCounters(), GONE, True, False, True, 15, ""),
        (route(token(3)), HandshakeCounters(misses=1), GONE, True, False, True, 15, ""),
        (route(token(3)), HandshakeCounters(misses=2), GONE, True, True, True, 15, "DestinationUnreachable"),
        (route(token(3), unreachable=True), HandshakeCounters(misses=3), GONE, True, True, True, 15, ""),
    ],
    ids=[
        "ready", "ready again", "authorised again", "not ready", "lost once", "lost twice", "unknown once", "unknown twice",
        "state 1", "state 2", "state 6", "state 99", "first miss", "second miss", "third miss", "fourth miss",
    ],
)  # fmt: skip
def test_after_a_probe(
    found: DomainRoute, course: HandshakeCounters, outcome: int | HandshakeUnanswered, authorised: bool, unreachable: bool, kept: bool, after: float,
    reason: str,
) -> None:  # fmt: skip
    made = initializer_rules.after_probe(found, course, outcome, NOW)
    assert made.status.is_destination_authorized is authorised
    assert made.status.is_destination_unreachable is unreachable
    assert made.after == after
    assert (made.note.reason if made.note else "") == reason
    tokens = made.status.token_status
    assert tokens is not None
    if kept:
        assert tokens == found.token_status
    else:
        # At once a new round of our own, which goes on counting.
        assert tokens.tokens is None
        assert tokens.revision_token == RouteToken(is_ready=False, revision=3, revision_time=at(0))
        assert initializer_rules.must_negotiate(replace(found, status=made.status), "gw")


def test_an_answer_ends_the_misses_and_a_miss_ends_the_doubt() -> None:
    found = route(token(3))
    assert (
        initializer_rules.after_probe(
            found, HandshakeCounters(misses=2, lost=1), TokenState.TOKEN_NOT_READY, NOW
        ).course
        == HandshakeCounters()
    )
    assert initializer_rules.after_probe(found, HandshakeCounters(misses=2), LOST, NOW).course == HandshakeCounters(
        lost=1
    )
    assert initializer_rules.after_probe(found, HandshakeCounters(lost=1), GONE, NOW).course == HandshakeCounters(
        misses=1
    )


@pytest.mark.parametrize(
    ("found", "course", "outcome", "authorised", "unreachable", "reason"),
    [
        (route(begun=OPEN, authorised=False), HandshakeCounters(), HandshakeDenied("no"), False, False, "HandshakeRefused"),
        (route(begun=OPEN, unreachable=True), HandshakeCounters(misses=5), HandshakeDenied("no"), False, False, "HandshakeRefused"),
        (route(token(3), begun=OPEN), HandshakeCounters(), HandshakeDenied("no"), True, False, "HandshakeRefused"),
        (route(begun=OPEN, unreachable=True), HandshakeCounters(), HandshakeImpossible("key", False), False, True, "HandshakeImpossible"),
        (route(begun=OPEN, unreachable=True), HandshakeCounters(), HandshakeImpossible("junk", True), False, False, "HandshakeImpossible"),
        (route(token(3), begun=OPEN), HandshakeCounters(), HandshakeImpossible("junk", True), True, False, "HandshakeImpossible"),
        (route(begun=OPEN, authorised=False), HandshakeCounters(), GONE, False, False, ""),
        (route(begun=OPEN, authorised=False), HandshakeCounters(misses=2), GONE, False, True, "DestinationUnreachable"),
        (route(token(3), begun=OPEN), HandshakeCounters(misses=2), GONE, True, True, "DestinationUnreachable"),
        (route(begun=OPEN, unreachable=True), HandshakeCounters(misses=3, failures=3), GONE, True, True, ""),
        (route(begun=OPEN, unreachable=True), HandshakeCounters(misses=4, failures=4), GONE, True, True, "DestinationUnreachable"),
    ],
    ids=[
        "refused", "refused, and so reachable", "refused while rolling", "own fault", "answered with junk", "junk while rolling", "missed", "third miss", "third miss while rolling",
        "missed again", "worth telling again",
    ],
)  # fmt: skip
def test_after_a_handshake_without_token(
    found: DomainRoute, course: HandshakeCounters, outcome: Outcome, authorised: bool, unreachable: bool, reason: str
) -> None:
    made = initializer_rules.after_handshake(found, course, outcome, NOW)
    assert made.status.is_destination_authorized is authorised
    assert made.status.is_destination_unreachable is unreachable
    assert made.status.token_status == found.token_status
    assert made.course.failures == course.failures + 1
    assert (made.note.reason if made.note else "") == reason


def test_attempts_become_slower() -> None:
    pauses, course = [], HandshakeCounters()
    for _ in range(9):
        made = initializer_rules.after_handshake(route(begun=OPEN), course, GONE, NOW)
        course = made.course
        pauses.append(made.after)
    assert pauses == [0.15, 0.5, 1, 1, 5, 10, 20, 30, 30]


@pytest.mark.parametrize(
    ("period", "told", "expires"),
    [
        (600, 1200, 1200),
        (600, 1500, 1500),
        (600, 900, 1200),
        (600, None, 1200),
        (0, 1200, 36525 * 86400),
    ],
    ids=["same clocks", "their clock is ahead", "their clock is behind", "nothing told", "for ever"],
)
def test_after_an_agreement(period: int, told: float | None, expires: float) -> None:
    found = route(token(3), begun=OPEN, authorised=False, unreachable=True, rollingUpdatePeriod=period)
    outcome = HandshakeAgreed("sealed", 4, NOW + timedelta(seconds=told) if told is not None else None)
    made = initializer_rules.after_handshake(found, HandshakeCounters(2, 1, 3), outcome, NOW)
    assert made.course == HandshakeCounters()
    assert (made.status.is_destination_authorized, made.status.is_destination_unreachable) == (True, False)
    tokens = made.status.token_status
    assert tokens is not None and tokens.tokens == found.token_status.tokens
    assert tokens.revision_token == RouteToken(
        is_ready=True, token="sealed", revision=4, revision_time=at(0), expiration_time=at(expires)
    )


# The destination.


@pytest.mark.parametrize(
    ("found", "revision"),
    [(route(), 1), (route(token(3)), 4), (route(token(2), token(3), begun=token(7)), 8), (route(token(9), begun=token(4)), 10)],
    ids=["first", "next", "not yet listed", "never one that is there"],
)  # fmt: skip
def test_revisions_go_up(found: DomainRoute, revision: int) -> None:
    made = responder_rules.next_token(found, "sealed", NOW)
    assert (made.revision, made.is_ready, made.token, made.revision_time) == (revision, False, "sealed", at(0))


@pytest.mark.parametrize(
    ("period", "life"), [(300, 600), (0, 36525 * 86400)], ids=["twice the period", "a hundred years"]
)
def test_how_long_a_token_lives(period: int, life: float) -> None:
    assert responder_rules.next_token(route(rollingUpdatePeriod=period), "s", NOW).expiration_time == at(life)


@pytest.mark.parametrize(
    ("found", "progress"),
    [
        (None, HandshakeProgress.GONE),
        (route(token(3), begun=token(4, ready=False)), HandshakeProgress.WAITING),
        (route(token(3), token(4, ready=False)), HandshakeProgress.WAITING),
        (route(token(3), token(4)), HandshakeProgress.READY),
        (route(token(4, ready=False), token(5)), HandshakeProgress.READY),
        (route(token(4, ready=False), token(5, ready=False)), HandshakeProgress.WAITING),
        (route(token(3), token(4, text="another")), HandshakeProgress.GONE),
        (route(token(3), begun=token(5)), HandshakeProgress.GONE),
        (route(token(3)), HandshakeProgress.WAITING),
        (route(), HandshakeProgress.WAITING),
    ],
    ids=["no route", "not listed", "not loaded", "loaded", "a later one is loaded", "nor a later one", "another token", "replaced", "not seen yet", "first, not seen yet"],
)  # fmt: skip
def test_how_far_a_token_is(found: DomainRoute | None, progress: HandshakeProgress) -> None:
    assert responder_rules.progress(found, 4, "sealed-4") is progress


@pytest.mark.parametrize(
    ("found", "revision", "known", "state"),
    [
        (route(token(3)), "", None, TokenState.REVISION_INVALID),
        (route(token(3)), "x", None, TokenState.TOKEN_NOT_FOUND),
        (route(), "3", None, TokenState.TOKEN_NOT_FOUND),
        (route(token(3)), "3", None, TokenState.TOKEN_READY),
        (route(token(3)), "3", True, TokenState.TOKEN_READY),
        (route(token(3)), "3", False, TokenState.TOKEN_NOT_FOUND),
        (route(token(3), token(4, ready=False)), "4", None, TokenState.TOKEN_NOT_READY),
        (route(token(3, ready=False), token(4)), "3", None, TokenState.TOKEN_READY),
        (route(token(3)), "03", None, TokenState.TOKEN_NOT_FOUND),
    ],
    ids=["none asked", "no number", "no tokens", "ready", "proved", "other token", "not ready", "older than a ready one", "other spelling"],
)  # fmt: skip
def test_what_a_probe_is_told(found: DomainRoute, revision: str, known: bool | None, state: TokenState) -> None:
    assert responder_rules.probed(found, revision, known) is state


@pytest.mark.parametrize(
    ("found", "proven", "stamps"),
    [
        (route(token(3)), False, True),
        (route(token(3, heard=-15)), False, True),
        (route(token(3, heard=-9)), True, False),
        (route(token(3, ready=False)), True, False),
        (route(token(2, heard=-15), token(3)), False, False),
        (route(token(2, heard=-15), token(3)), True, True),
        (route(token(2, heard=-21), token(3)), False, True),
        (route(token(2, heard=-15), token(3, heard=-12)), False, False),
        (route(token(2)), True, False),
    ],
    ids=[
        "first beat", "next beat", "too soon", "not ready", "unproven, while another is in use", "proven, whatever was in use",
        "the other is no longer heard", "two are heard, and neither is proven", "no such token",
    ],
)  # fmt: skip
def test_which_probes_are_heartbeats(found: DomainRoute, proven: bool, stamps: bool) -> None:
    assert responder_rules.stamps(found, "3", proven, NOW) is stamps


def test_a_stamp_changes_one_entry() -> None:
    made = responder_rules.stamped(route(token(2, heard=-15), token(3)), "3", NOW)
    assert made.tokens == (token(2, heard=-15), replace(token(3), heart_beat_time=at(0)))


@pytest.mark.parametrize(
    ("found", "revision"),
    [
        (route(rollingUpdatePeriod=600), None),
        (route(token(3, made=-299), rollingUpdatePeriod=600), 3),
        (route(token(3, made=-301), rollingUpdatePeriod=600), None),
        (route(token(3, made=-1e6)), 3),
        (route(token(3, ready=False), rollingUpdatePeriod=600), None),
    ],
    ids=["none", "young", "old", "never rolls", "not ready"],
)
def test_which_token_is_given_again(found: DomainRoute, revision: int | None) -> None:
    kept = responder_rules.given_again(found, NOW)
    assert (kept.revision if kept else None) == revision


@pytest.mark.parametrize(
    ("revision", "names"),
    [(3, [("a", "gw"), ("gw",)]), (2, [("a", "gw"), None]), (9, [("a",), None])],
    ids=["the newest and those before", "an older one", "one that is gone"],
)
def test_loaded_tokens_bear_the_gateways_name(revision: int, names: list[Any]) -> None:
    found = route(replace(token(2), effective_instances=("a",)), token(3))
    made = responder_rules.effective(found, revision, "gw")
    assert [each.effective_instances for each in made.tokens or ()] == names
    again = responder_rules.effective(replace(found, status=replace(found.status, token_status=made)), revision, "gw")
    assert again == made
