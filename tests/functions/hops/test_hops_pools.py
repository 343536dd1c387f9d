"""A partner whose grants name tables has actors of its own."""

from __future__ import annotations

from hops_kit import action_grant, settle, two_domains

from coterie.functions.pools import ActorPool, action_config, pools_of
from coterie.kube.api.meta import ObjectMeta
from coterie.kuscia.api.functions.types import Action, ActionSpec


def test_tables_of_all_grants_to_a_partner_are_one_pool() -> None:
    grants = [
        action_grant("score", "alice", "a", tables=["people"]),
        action_grant("score", "alice", "b", tables=["orders", "people"]),
        action_grant("score", "carol", "c"),
        action_grant("other", "dave", "d", tables=["people"]),
    ]
    assert pools_of("score", grants) == [
        ActorPool("score", "score"),
        ActorPool("score.alice", "score", "alice", ("orders", "people")),
    ]


def test_partners_have_actors_of_their_own_where_ours_read_tables() -> None:
    grants = [action_grant("score", "alice", "a", tables=["people"]), action_grant("score", "carol", "c")]
    assert pools_of("score", grants, ["orders"]) == [
        ActorPool("score", "score", tables=("orders",)),
        ActorPool("score.alice", "score", "alice", ("people",)),
        ActorPool("score.carol", "score", "carol"),
    ]
    action = Action(metadata=ObjectMeta(name="score"), spec=ActionSpec(script="x", tables=("orders",)))
    configs = [action_config(each, action, {}, "") for each in pools_of("score", grants, ["orders"])]
    assert [each.own_tables for each in configs] == [True, False, False]


async def test_a_partners_call_does_not_run_where_ours_read_tables() -> None:
    async with two_domains() as (alice, bob, _, _):
        bob.objects.own_tables = ("score",)
        await bob.bus.create_topic("score.alice_TOPIC")
        await alice.invoke("bob/score", "r1")
        await settle()
        assert not bob.bus.calls("score") and len(bob.bus.calls("score.alice")) == 1
