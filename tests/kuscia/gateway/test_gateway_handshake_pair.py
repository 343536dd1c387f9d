"""Two organisations agree on tokens, and keep agreeing whatever is lost, repeated, forged or set wrong between them."""

from __future__ import annotations

import asyncio

import pytest
from handshake_kit import DR, STEP, Network, alice_and_bob, identity

from coterie.http.messages import Request, Response
from coterie.kuscia.api.types.domain import DomainRouteStatus
from coterie.kuscia.gateway.handshake import crypto
from coterie.kuscia.gateway.handshake.effective_tokens import tokens_of
from coterie.kuscia.gateway.handshake.messages import HandshakeRequest, HandshakeTokenConfig, encode, nanoseconds


async def status(network: Network, domain: str = "alice") -> DomainRouteStatus:
    found = (await network.sides[domain].route()).status
    assert found is not None
    return found


async def test_a_first_handshake_gives_both_the_same_token() -> None:
    async with alice_and_bob() as network:
        assert await network.until_talking() == 1
        sides = network.sides.values()
        sent, taken = [tokens_of(await side.route(), side.identity) for side in sides]
        assert sent == taken
        stored = [(await side.route()).token_status.tokens for side in sides]
        assert stored[0] is not None and stored[1] is not None
        assert stored[0][0].token != stored[1][0].token, "each side keeps it under its own key"
        assert stored[1][0].effective_instances == ("gw-bob-0",)
        told = await status(network)
        assert (told.is_destination_authorized, told.is_destination_unreachable) == (True, False)
        assert network.outages == []


async def test_the_destination_hears_the_source() -> None:
    async with alice_and_bob() as network:
        await network.until_talking()

        async def beats() -> str | None:
            newest = (await network.sides["bob"].route()).token_status.newest
            return newest.heart_beat_time if newest is not None else None

        async def heard() -> bool:
            return await beats() is not None

        await network.until(heard)
        first = await beats()
        await network.settle(40)
        later = await beats()
        assert first is not None and later is not None and later > first


@pytest.mark.parametrize("gates", [1, 2], ids=["one gateway each", "two gateways each"])
@pytest.mark.parametrize("skew", [0.0, 300.0, -300.0], ids=["same time", "bob 5 min ahead", "bob 5 min behind"])
async def test_tokens_roll_and_no_call_would_have_failed(gates: int, skew: float) -> None:
    async with alice_and_bob(gates=gates, bob_clock=skew, rollingUpdatePeriod=10) as network:
        await network.until_talking()
        await network.settle(120)
        newest = (await network.sides["alice"].route()).token_status.newest
        assert newest is not None and newest.revision >= 8
        assert network.outages == []
        told = await status(network)
        assert (told.is_destination_authorized, told.is_destination_unreachable) == (True, False)


@pytest.mark.parametrize("kind", ["RSA-GEN", "UID-RSA-GEN"])
async def test_both_ways_of_making_a_token_roll(kind: str) -> None:
    async with alice_and_bob(tokenGenMethod=kind, rollingUpdatePeriod=20) as network:
        first = await network.until_talking()
        second = await network.until_talking(beyond=first)
        assert await network.until_talking(beyond=second) > second
        assert network.outages == []


async def test_a_lost_answer_costs_nothing_but_time() -> None:
    async with alice_and_bob(rollingUpdatePeriod=30) as network:
        await network.until_talking()
        lost = 0

        def fault(target: object, body: bytes | None) -> str:
            nonlocal lost
            if body is None or lost == 3:
                return ""
            lost += 1
            return "lose answer"

        network.fault = fault
        # The same request came four times, and made one token.
        assert await network.until_talking(beyond=1) == 2
        assert lost == 3
        assert network.outages == []


async def test_answers_that_are_lost_for_long_leave_the_old_token_in_force() -> None:
    async with alice_and_bob(gates=2, rollingUpdatePeriod=600) as network:
        # The gateway that does not negotiate is slow: it sends the old token while the other has proved the new one.
        for gate in network.sides["alice"].gates.values():
            gate.load_seconds = 3.0
        await network.until_talking()
        initializer = (await network.sides["alice"].route()).token_status.revision_initializer
        network.sides["alice"].gates[initializer].load_seconds = 0.1
        await network.settle(20)
        network.fault = lambda target, body: "lose answer" if body is not None else ""
        await network.settle(900)
        held = (await network.sides["bob"].route()).token_status.tokens
        assert held is not None and held[-1].revision > 3 and held[0].revision == 1
        network.fault = lambda target, body: ""
        await network.until_talking(beyond=1, seconds=200)
        assert network.outages == []


async def test_a_partner_that_lost_its_state_is_found_out() -> None:
    async with alice_and_bob() as network:
        await network.until_talking()
        await network.settle(20)
        bob = network.sides["bob"]
        await bob.client.patch_status(DR, "alice-bob", "bob", {"status": {"tokenStatus": None}})
        before = tokens_of(await network.sides["alice"].route(), identity("alice"))[-1]
        await network.settle(25)
        await network.until_talking()
        after = tokens_of(await network.sides["alice"].route(), identity("alice"))[-1]
        assert after != before
        assert "revision 1" in (await network.sides["alice"].told())["TokenLost"]


async def test_another_token_with_the_same_number_is_found_out() -> None:
    """Bob lost all and somebody else's handshake got number one again: the revision alone would look right."""
    async with alice_and_bob() as network:
        await network.until_talking()
        await network.settle(20)
        forged = network.seen[0]
        bob = network.sides["bob"]
        await bob.client.delete(DR, "alice-bob", "bob")
        await network.settle(1)
        for name in list(bob.gates):
            await bob.remove_gate(name)
        bob.add_gate("gw-bob-0", network)
        await bob.add_route()
        await network.settle(1)
        await _replay(network, forged)
        await network.settle(2)
        assert [token.revision for token in (await bob.route()).token_status.tokens or ()] == [1]
        network.outages.clear()
        await network.settle(25)
        await network.until_talking()
        newest = (await network.sides["alice"].route()).token_status.newest
        assert newest is not None and newest.revision == 2


async def test_a_removed_route_is_no_longer_authorised_and_comes_back() -> None:
    async with alice_and_bob() as network:
        await network.until_talking()
        bob = network.sides["bob"]
        await bob.client.delete(DR, "alice-bob", "bob")

        async def cut() -> bool:
            told = await status(network)
            return not told.is_destination_authorized and not (told.token_status and told.token_status.tokens)

        await network.until(cut)
        assert not (await status(network)).is_destination_unreachable
        await network.settle(5)
        told = await network.sides["alice"].told()
        assert "does not know a route from alice" in told["RouteNotKnown"]
        assert "DomainRoute alice-bob not found in destination domain bob" in told["HandshakeRefused"]
        await bob.add_route()
        await network.until_talking(seconds=120)
        assert (await status(network)).is_destination_authorized


async def test_a_silent_partner_is_unreachable_after_three_misses_and_not_before() -> None:
    async with alice_and_bob() as network:
        await network.until_talking()
        await network.settle(20)
        calls = 0

        def fault(target: object, body: bytes | None) -> str:
            nonlocal calls
            calls += 1
            return "lose"

        network.fault = fault

        async def gone() -> bool:
            return (await status(network)).is_destination_unreachable

        await network.until(gone, seconds=90)
        assert calls == 3
        held = await status(network)
        assert held.is_destination_authorized and held.token_status and held.token_status.tokens
        network.fault = lambda target, body: ""

        async def back() -> bool:
            return not (await status(network)).is_destination_unreachable

        await network.until(back, seconds=30)
        assert network.outages == []


async def test_nobody_answers_from_the_beginning() -> None:
    async with alice_and_bob() as network:
        network.fault = lambda target, body: "hang"
        await network.settle(60)
        told = await status(network)
        assert (told.is_destination_authorized, told.is_destination_unreachable) == (False, True)
        assert (
            "bob does not answer: no answer within 10 s"
            in (await network.sides["alice"].told())["DestinationUnreachable"]
        )
        network.fault = lambda target, body: ""
        await network.until_talking(seconds=120)


@pytest.mark.parametrize(
    ("alice", "bob", "reason", "told"),
    [
        ("alice#2", "bob", "HandshakeImpossible", "sourcePublicKey is not the key of alice"),
        ("alice", "bob#2", "HandshakeRefused", "may be not correct"),
    ],
    ids=["the route holds another key of alice", "the route holds another key of bob"],
)
async def test_a_wrong_key_makes_no_token(alice: str, bob: str, reason: str, told: str) -> None:
    async with alice_and_bob(alice=alice, bob=bob) as network:
        await network.settle(20)
        found = await status(network)
        assert not found.is_destination_authorized and not found.is_destination_unreachable
        assert found.token_status is not None and not found.token_status.tokens
        assert told in (await network.sides["alice"].told())[reason]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"<html>", "not a message of the handshake"),
        (b'{"token":{}}', "not a message of the handshake"),
        (b'{"status":{}}', "holds no token"),
        (b'{"status":{},"token":{"token":"eA==","revision":1}}', "its answer is not for the key of alice"),
    ],
    ids=["no JSON", "no status", "no token", "no half for us"],
)
async def test_an_answer_of_no_use_makes_no_token(body: bytes, told: str) -> None:
    async with alice_and_bob() as network:

        async def deliver(request: Request, domain: str) -> Response:
            return Response(200, body)

        network.deliver = deliver  # type: ignore[method-assign]
        await network.settle(5)
        assert told in (await network.sides["alice"].told())["HandshakeImpossible"]
        assert (await network.sides["alice"].route()).token_status.tokens is None


@pytest.mark.parametrize("with_token", [True, False], ids=["a Coterie source", "a Kuscia source"])
async def test_replays_and_forgeries_never_destroy_the_token_in_force(with_token: bool) -> None:
    async with alice_and_bob(gates=2) as network:
        network.with_token = with_token
        await network.until_talking()
        await network.settle(20)
        bob = network.sides["bob"]
        for _ in range(8):
            # Whoever knows the public keys can write such a handshake, and then ask after its revision.
            await _forge(network)
            await network.settle(4)
            newest = (await bob.route()).token_status.newest
            assert newest is not None
            await _forged_probe(network, newest.revision)
        held = (await bob.route()).token_status.tokens
        assert held is not None and held[-1].revision >= 9 and held[0].revision == 1
        assert (await status(network)).token_status.newest.revision == 1  # type: ignore[union-attr]
        assert network.outages == []


async def test_an_old_handshake_is_refused_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with alice_and_bob() as network:
        await network.until_talking()
        first = network.seen[0]
        assert b'"revision":1}' in await _replay(network, first)  # alice might just not have got the answer
        await network.settle(90)
        assert b"was here before" in await _replay(network, first)
        await network.settle(2000)
        assert b"request_time differs" in await _replay(network, first)
        assert "Refused a handshake" in caplog.text
        newest = (await network.sides["bob"].route()).token_status.newest
        assert newest is not None and newest.revision == 1
        assert network.outages == []


async def test_certificates_are_looked_at_where_they_are_shown() -> None:
    async with alice_and_bob(rollingUpdatePeriod=20) as network:
        network.mtls = True
        first = await network.until_talking()
        await network.until_talking(beyond=first)
        assert network.outages == []


async def test_a_dead_gateway_of_the_source_is_replaced() -> None:
    async with alice_and_bob(gates=2, rollingUpdatePeriod=60) as network:
        await network.until_talking()
        alice = network.sides["alice"]
        initializer = (await alice.route()).token_status.revision_initializer
        await alice.remove_gate(initializer)
        revision = await network.until_talking(beyond=1, seconds=400)
        assert (await alice.route()).token_status.revision_initializer != initializer
        assert revision > 1
        assert network.outages == []


async def test_no_token_is_answered_before_every_gateway_takes_it() -> None:
    async with alice_and_bob(gates=2) as network:
        bob = network.sides["bob"]
        bob.gates["gw-bob-1"].stuck = True
        await network.settle(60)
        assert (await network.sides["alice"].route()).token_status.tokens is None
        await bob.remove_gate("gw-bob-1")
        # A dead gateway is waited for until its heartbeat is three minutes old.
        await network.until_talking(seconds=400)
        assert network.outages == []


async def _replay(network: Network, handshake: tuple[object, bytes]) -> bytes:
    request = Request("POST", "/handshake", "", {"kuscia-source": "alice"}, handshake[1])
    return await _answered(network, request)


async def _forge(network: Network) -> bytes:
    bob = network.sides["bob"]
    made = HandshakeRequest(
        domain_id="alice",
        type="RSA",
        token_config=HandshakeTokenConfig(
            token=crypto.encrypt(identity("bob").key.public_key(), crypto.half()),
            pubhash=crypto.pubhash(identity("alice").key.public_key()),
        ),
        request_time=nanoseconds(bob.clock.now()),
    )
    return await _answered(network, Request("POST", "/x/handshake", "", {}, encode(made)))


async def _forged_probe(network: Network, revision: int) -> None:
    headers = {"kuscia-origin-source": "alice", "kuscia-token-revision": str(revision)}
    assert b'"state":0' in await _answered(network, Request("GET", "/handshake", "", headers))


async def _answered(network: Network, request: Request) -> bytes:
    task = asyncio.ensure_future(network.deliver(request, "bob"))
    for _ in range(400):
        if task.done():
            break
        await network.settle(STEP)
    return (await task).body
