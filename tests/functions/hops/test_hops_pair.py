"""Two domains call each other; sides go away, die and come back. Each call is answered once."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hops_kit import FunctionsDomain, action_grant, settle, two_domains

from coterie.base.clock import VirtualClock
from coterie.functions.bus.protocol import Entry
from coterie.functions.hops.outbox import GROUP
from coterie.functions.messages import RESULTS_TOPIC, FunctionResponse, outbox_topic
from coterie.kuscia.gateway.names import FUNCTION_CALLS_PATH, FUNCTION_REPLIES_PATH


def in_seconds(clock: VirtualClock, seconds: float) -> int:
    return int((clock.now().timestamp() + seconds) * 1000)


async def answered(bob: FunctionsDomain, text: str = "42") -> None:
    for call in bob.bus.calls("score"):
        await bob.answer(call, text)
    await settle()


async def test_a_call_goes_there_and_its_answer_comes_back() -> None:
    async with two_domains() as (alice, bob, gateways, clock):
        deadline = in_seconds(clock, 20)
        await alice.invoke("bob/score", "r1", params={"id": 7}, payload="body", key="k", deadline=deadline)
        await settle()
        (call,) = bob.bus.calls("score")
        assert (call.params, call.payload, call.origin, call.hop) == ({"id": 7}, "body", "alice", 1)
        assert call.request_uid.startswith("hop-")
        assert call.return_topic == outbox_topic("alice")
        assert call.key == "alice/k"
        assert call.deadline == deadline
        assert gateways.posts == [("alice", "bob", FUNCTION_CALLS_PATH, 202)]
        assert not alice.answers()
        await answered(bob)
        assert alice.answers() == [("r1", 200, "42")]
        assert [each.request_uid for each in alice.bus.answers(RESULTS_TOPIC)] == ["r1"]
        assert alice.objects.results == [("r1", RESULTS_TOPIC)]
        assert gateways.posts[1:] == [("bob", "alice", FUNCTION_REPLIES_PATH, 202)]
        # Nothing is left to send, on either side.
        for domain, partner in ((alice, "bob"), (bob, "alice")):
            assert await domain.senders[partner].drained()
            assert sum((await domain.bus.committed(GROUP, outbox_topic(partner))).values()) == 1


async def test_the_first_call_wants_actors_before_it_is_on_the_bus() -> None:
    async with two_domains() as (alice, bob, _, _):
        bob.bus.fail = 1
        await alice.invoke("bob/score", "r1")
        await settle()
        assert bob.objects.demands[0] == ("score", 1)
        assert not bob.bus.calls("score")


async def test_the_first_call_says_how_many_may_follow() -> None:
    async with two_domains() as (alice, bob, _, _):
        alice.objects.expected = 120
        await alice.invoke("bob/score", "r1")
        await settle()
        assert bob.objects.demands == [("score", 120)]


async def test_a_hint_counts_for_no_more_than_the_grant() -> None:
    async with two_domains() as (alice, bob, _, _):
        bob.objects.granted = [action_grant("score", "alice", limit={"callsPerMinute": 50})]
        for number in range(60):
            await alice.invoke("bob/score", f"r{number}")
        await settle(400)
        assert max(rate for _, rate in bob.objects.demands) == 50
        assert len(bob.bus.calls("score")) == 50
        statuses = [status for _, status, _ in alice.answers()]
        assert statuses == [429] * 10


async def test_a_partner_with_tables_has_actors_of_its_own() -> None:
    async with two_domains() as (alice, bob, _, _):
        bob.objects.granted = [action_grant("score", "alice", tables=["customers"])]
        await bob.bus.create_topic("score.alice_TOPIC")
        await alice.invoke("bob/score", "r1")
        await settle()
        assert not bob.bus.calls("score")
        assert [each.action for each in bob.bus.calls("score.alice")] == ["score.alice"]
        assert bob.objects.demands == [("score.alice", 1)]


async def test_a_partner_that_is_away_for_a_minute() -> None:
    async with two_domains() as (alice, bob, gateways, clock):
        gateways.cut.add("bob")
        await alice.invoke("bob/score", "r1", deadline=in_seconds(clock, 300))
        for _ in range(60):
            await clock.advance(1)
        tries = len(gateways.posts)
        assert 6 < tries < 30, "with pauses that grow"
        gateways.cut.clear()
        for _ in range(14):
            await clock.advance(1)
        await answered(bob)
        assert alice.answers() == [("r1", 200, "42")]


async def test_a_partner_that_stays_away_until_the_deadline() -> None:
    async with two_domains() as (alice, _, gateways, clock):
        gateways.cut.add("bob")
        await alice.invoke("bob/score", "r1", deadline=in_seconds(clock, 5))
        for _ in range(8):
            await clock.advance(1)
        ((request, status, sentence),) = alice.answers()
        assert (request, status) == ("r1", 504)
        assert "bob" in sentence
        assert not await alice.bus.read(outbox_topic("bob"), 0, 99, 1)
        assert await alice.senders["bob"].drained()


async def test_a_partner_that_takes_a_call_and_never_answers() -> None:
    async with two_domains() as (alice, bob, _, clock):
        await alice.invoke("bob/score", "r1", deadline=in_seconds(clock, 5))
        await settle()
        for _ in range(7):
            await clock.advance(1)
        assert [(request, status) for request, status, _ in alice.answers()] == [("r1", 504)]
        await answered(bob)
        assert len(alice.answers()) == 1, "the late answer is taken and dropped"


async def test_what_arrived_and_is_sent_again_runs_once() -> None:
    async with two_domains() as (alice, bob, gateways, clock):
        gateways.lose_answers = 2
        await alice.invoke("bob/score", "r1", deadline=in_seconds(clock, 60))
        for _ in range(5):
            await clock.advance(1)
        assert len(gateways.posts) == 3
        assert len(bob.bus.calls("score")) == 1
        assert bob.ledger.uses("uid-g", 0).total == 1
        gateways.lose_answers = 2
        await answered(bob)
        for _ in range(5):
            await clock.advance(1)
        assert alice.answers() == [("r1", 200, "42")]


@pytest.mark.parametrize("moment", ["before it is sent", "after it was sent", "after the answer"])
async def test_kill_of_either_side(moment: str) -> None:
    async with two_domains() as (alice, bob, gateways, clock):
        if moment == "before it is sent":
            gateways.cut.add("bob")
        await alice.invoke("bob/score", "r1", deadline=in_seconds(clock, 600))
        await settle()
        if moment == "after the answer":
            gateways.cut.add("alice")
            await answered(bob)
        for domain in (alice, bob):
            await domain.kill()
            # As if nothing had been committed: everything is read and sent again.
            domain.bus.offsets.clear()
            await clock.advance(5)
            await domain.start()
        gateways.cut.clear()
        for _ in range(15):
            await clock.advance(1)
        if moment != "after the answer":
            assert len(bob.bus.calls("score")) == 1
            await answered(bob)
        for _ in range(15):
            await clock.advance(1)
        assert alice.answers() == [("r1", 200, "42")]
        assert bob.ledger.uses("uid-g", 0).total == 1
        assert len([each for each in alice.bus.answers(RESULTS_TOPIC)]) == 1


@pytest.mark.parametrize("kept", [False, True])
async def test_a_bus_that_fails_loses_and_doubles_nothing(kept: bool) -> None:
    async with two_domains() as (alice, bob, _, clock):
        alice.bus.kept = bob.bus.kept = kept
        await alice.invoke("bob/score", "r1", deadline=in_seconds(clock, 600))
        alice.bus.fail, bob.bus.fail = 1, 1
        for _ in range(10):
            await clock.advance(1)
        assert len(bob.bus.calls("score")) == 1
        assert bob.ledger.uses("uid-g", 0).total == 1
        alice.bus.fail, bob.bus.fail = 1, 0
        await answered(bob)
        for _ in range(10):
            await clock.advance(1)
        assert alice.answers() == [("r1", 200, "42")]


async def test_calls_with_a_key_arrive_in_order() -> None:
    async with two_domains() as (alice, bob, gateways, clock):
        gateways.lose_answers = 3
        for number in range(30):
            await alice.invoke(
                "bob/score", f"r{number}", key="same", payload=str(number), deadline=in_seconds(clock, 99)
            )
        for _ in range(10):
            await clock.advance(1)
        assert [each.payload for each in bob.bus.calls("score")] == [str(number) for number in range(30)]


async def test_refusals_go_to_the_caller_with_the_partners_sentence() -> None:
    async with two_domains() as (alice, bob, _, _clock):
        bob.objects.granted = [action_grant("score", "alice", limit={"calls": 1})]
        for request in ("r1", "r2"):
            await alice.invoke("bob/score", request, key="k")
            await settle()
        await alice.invoke("bob/secret", "r3")
        await settle()
        assert sorted(alice.answers()) == [
            ("r2", 403, "bob: the grant was for 1 calls, and all were used\n"),
            ("r3", 403, 'bob: "alice" has no grant for this action\n'),
        ]
        bob.objects.granted = []
        await alice.invoke("bob/score", "r4")
        await settle()
        assert ("r4", 403, 'bob: "alice" has no grant for this action\n') in alice.answers()


async def test_a_chain_that_comes_back_needs_grants_of_both_and_ends() -> None:
    async with two_domains() as (alice, bob, _, clock):
        alice.objects.granted = [action_grant("prepare", "bob")]
        bob.objects.granted = [action_grant("score", "alice")]
        await alice.invoke("bob/score", "r1", deadline=in_seconds(clock, 100))
        await settle()
        hops = 0
        for _ in range(40):
            # Each side calls the other again, as tail calls do: the answer is to go where the call came from.
            for domain, action, target in ((bob, "score", "alice/prepare"), (alice, "prepare", "bob/score")):
                last = max(domain.bus.calls(action), key=lambda each: each.hop, default=None)
                if last is None or last.hop < hops:
                    continue
                hops = last.hop + 1
                onward = msgspec.structs.replace(last, action=target, hop=hops)
                topic = outbox_topic(target.partition("/")[0])
                await domain.bus.publish([Entry(topic, "x", msgspec.json.encode(onward))])
                await settle()
            await clock.advance(0.1)
        assert hops == 17
        ((request, status, sentence),) = alice.answers()
        assert (request, status) == ("r1", 508)
        assert "16 steps" in sentence


async def test_an_answer_to_whom_nobody_waits_for_any_more_is_kept_as_a_result() -> None:
    async with two_domains() as (alice, bob, _, _):
        await alice.invoke("bob/score", "r1")
        await settle()
        await alice.bus.delete_topic("ReturnGateway-1")
        await answered(bob)
        assert [each.payload for each in alice.bus.answers(RESULTS_TOPIC)] == ["42"]
        assert await alice.senders["bob"].drained()


async def test_an_answer_that_belongs_to_no_call_of_the_partner_is_not_sent() -> None:
    async with two_domains() as (_, bob, gateways, _):
        stray = FunctionResponse(request_uid="ours", payload="secret")
        await bob.bus.publish([Entry(outbox_topic("alice"), "x", msgspec.json.encode(stray))])
        await settle()
        assert not gateways.posts
        assert await bob.senders["alice"].drained()


@pytest.mark.parametrize("seed", range(2))
async def test_each_call_is_answered_once_whatever_happens(seed: int) -> None:
    """Sides are killed, messages and their answers are lost, buses fail with and without having written; effects and uses are counted."""
    random = Random(seed)
    async with two_domains() as (alice, bob, gateways, clock):
        wanted = [f"r{number}" for number in range(60)]
        waiting, ran = list(wanted), dict[str, str]()
        for _ in range(400):
            if waiting and random.random() < 0.4:
                request = waiting.pop()
                await alice.publish_surely("bob/score", request, deadline=in_seconds(clock, 100_000))
            match random.randrange(12):
                case 0:
                    gateways.lose_answers += random.randrange(3)
                case 1:
                    domain = random.choice((alice, bob))
                    domain.bus.kept = random.random() < 0.5
                    domain.bus.fail += random.randrange(1, 3)
                case 2:
                    domain = random.choice((alice, bob))
                    await domain.kill()
                    domain.bus.fail = 0
                    if random.random() < 0.5:
                        domain.bus.offsets.clear()
                    await domain.start()
                case 3:
                    gateways.cut ^= {random.choice(("alice", "bob"))}
            for call in bob.bus.calls("score"):
                if call.request_uid not in ran and random.random() < 0.3:
                    bob_fails, bob.bus.fail = bob.bus.fail, 0
                    await bob.answer(call, f"answer of {call.payload}")
                    bob.bus.fail = bob_fails
                    ran[call.request_uid] = call.payload
            await clock.advance(random.random() * 3)
        gateways.cut.clear()
        gateways.lose_answers = alice.bus.fail = bob.bus.fail = 0
        for _ in range(60):
            for call in bob.bus.calls("score"):
                if call.request_uid not in ran:
                    await bob.answer(call, f"answer of {call.payload}")
                    ran[call.request_uid] = call.payload
            await clock.advance(5)
        assert not waiting
        assert sorted(ran.values()) == sorted(wanted), "each ran once"
        assert sorted(alice.answers()) == sorted((each, 200, f"answer of {each}") for each in wanted)
        assert sorted(each.request_uid for each in alice.bus.answers(RESULTS_TOPIC)) == sorted(wanted)
        assert bob.ledger.uses("uid-g", 0).total == len(wanted)
