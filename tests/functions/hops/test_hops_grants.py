"""Grants of actions: the decision, phases, tables."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hops_kit import action_grant

from coterie.functions.hops.call_grants import (
    CallDecision,
    GrantPhase,
    GrantUses,
    PartnerCall,
    decide,
    largest_body,
    missing_tables,
    phase_of,
)
from coterie.kuscia.api.functions.partners import declared_partners, table_component
from coterie.kuscia.api.functions.types import ActionGrant
from coterie.kuscia.api.types.data import DomainDataGrant

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PAST, FUTURE = "2025-12-31T00:00:00Z", "2026-01-02T00:00:00Z"


def decided(*grants: ActionGrant, size: int = 10, action: str = "score", **facts: Any) -> CallDecision:
    return decide(
        grants,
        PartnerCall("alice", action, size),
        facts.get("actions", ("score",)),
        lambda grant: facts.get("uses", GrantUses()),
        lambda grant: facts.get("missing", ()),
        NOW,
    )


def test_a_grant_covers_its_partner_and_action() -> None:
    found = decided(action_grant("score", "alice"))
    assert found.grant is not None
    assert found.refusal is None


@pytest.mark.parametrize(
    ("grant", "facts", "status", "sentence"),
    [
        pytest.param(None, {}, 403, '"alice" has no grant for this action', id="none"),
        pytest.param(("score", "carol"), {}, 403, '"alice" has no grant for this action', id="of somebody else"),
        pytest.param(("other", "alice"), {}, 403, '"alice" has no grant for this action', id="for another action"),
        pytest.param(
            ("score", "alice", {"limit": {"expirationTime": PAST}}), {}, 403, f"the grant ended at {PAST}", id="expired"
        ),
        pytest.param(
            ("score", "alice", {"limit": {"calls": 5}}),
            {"uses": GrantUses(5)},
            403,
            "the grant was for 5 calls, and all were used",
            id="exhausted",
        ),
        pytest.param(
            ("score", "alice", {"limit": {"callsPerMinute": 2}}),
            {"uses": GrantUses(9, 2, 31.5)},
            429,
            "the grant is for 2 calls a minute",
            id="too many",
        ),
        pytest.param(
            ("score", "alice", {"maxBodyBytes": 9}),
            {},
            413,
            "the body has 10 bytes, and the grant is for 9",
            id="large",
        ),
        pytest.param(("score", "alice"), {"actions": ()}, 404, "the action is not there now", id="gone"),
        pytest.param(
            ("score", "alice", {"tables": ["t"]}),
            {"missing": ("table t: no",)},
            403,
            "a table that the action reads for this grant is not granted any more",
            id="table",
        ),
    ],
)
def test_refusals(grant: Any, facts: dict[str, Any], status: int, sentence: str) -> None:
    grants = [action_grant(grant[0], grant[1], **(grant[2] if len(grant) > 2 else {}))] if grant else []
    found = decided(*grants, **facts)
    assert found.grant is None
    assert found.refusal is not None
    assert (found.refusal.status, found.refusal.sentence) == (status, sentence)
    assert bool(found.refusal.retry_after) == (status == 429)


def test_an_action_that_is_not_there_and_one_of_others_look_alike() -> None:
    unknown = decided(action_grant("secret", "carol"), action="nothing", actions=("secret",))
    others = decided(action_grant("secret", "carol"), action="secret", actions=("secret",))
    assert unknown == others


def test_a_grant_without_a_count_is_used_first() -> None:
    counted, free = action_grant("score", "alice", "a", limit={"calls": 3}), action_grant("score", "alice", "b")
    assert decided(counted, free).grant is free


def test_of_several_refusals_the_one_that_ends_by_itself_is_said() -> None:
    ended = action_grant("score", "alice", "a", limit={"expirationTime": PAST})
    limited = action_grant("score", "alice", "b", limit={"callsPerMinute": 1})
    found = decided(ended, limited, uses=GrantUses(1, 1, 5.0))
    assert found.refusal is not None
    assert found.refusal.status == 429


def test_limits_that_are_kept() -> None:
    grant = action_grant("score", "alice", limit={"calls": 5, "callsPerMinute": 5, "expirationTime": FUTURE})
    assert decided(grant, uses=GrantUses(4, 4, 1.0)).grant is grant


def test_largest_body() -> None:
    grants = [action_grant("a", "alice", maxBodyBytes=5), action_grant("b", "alice", maxBodyBytes=9)]
    assert largest_body(grants, "alice") == 9
    assert largest_body(grants, "carol") == -1


@pytest.mark.parametrize(
    ("spec", "actions", "total", "missing", "wanted"),
    [
        ({}, ("score",), 0, (), GrantPhase("Ready")),
        ({"limit": {"expirationTime": PAST}}, (), 9, (), GrantPhase("Expired", f"it ended at {PAST}")),
        ({"limit": {"calls": 2}}, ("score",), 2, (), GrantPhase("Exhausted", "all 2 calls were used")),
        ({}, (), 0, (), GrantPhase("Unavailable", 'there is no Action "score"')),
        ({"tables": ["t"]}, ("score",), 0, ("no grant",), GrantPhase("Unavailable", "no grant")),
    ],
)
def test_phases(spec: dict[str, Any], actions: tuple[str, ...], total: int, missing: tuple[str, ...], wanted: GrantPhase) -> None:  # fmt: skip
    assert phase_of(action_grant("score", "alice", **spec), actions, total, missing, NOW) == wanted


def data_grant(partner: str, **limit: Any) -> DomainDataGrant:
    spec = {"author": "bob", "domainDataID": "customers", "grantDomain": partner, "limit": limit}
    return msgspec.convert({"metadata": {"name": "dg", "namespace": "bob"}, "spec": spec}, DomainDataGrant)


def test_tables_need_a_grant_of_data_to_the_same_partner() -> None:
    grant = action_grant("score", "alice", tables=["customers"])

    def missing(*granted: DomainDataGrant, datas: tuple[str, ...] = ("customers",)) -> tuple[str, ...]:
        return missing_tables(grant, datas, granted, "bob", NOW)

    assert not missing(data_grant("alice"))
    assert not missing(data_grant("alice", components=[table_component("score")]))
    assert missing(data_grant("alice"), datas=()) == ('table "customers" is not there',)
    for refused in (
        missing(),
        missing(data_grant("carol")),
        missing(data_grant("alice", expirationTime=PAST)),
        missing(data_grant("alice", components=["psi"])),
    ):
        (sentence,) = refused
        assert sentence.startswith('table "customers": no DomainDataGrant covers it for "alice" (')


def test_declared_partners() -> None:
    assert declared_partners(["local", "bob/score", "carol/x", "bob/y"]) == {"bob", "carol"}
