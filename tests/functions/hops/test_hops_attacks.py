"""What a partner may try at the inbox, and what it gets."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hops_kit import FunctionsDomain, action_grant, settle, two_domains

from coterie.functions.hops import wire
from coterie.functions.hops.ledger import TOPIC
from coterie.functions.hops.wire import CALLER_HEADER, BadMessage
from coterie.functions.messages import RESULTS_TOPIC, call_id, outbox_topic
from coterie.http.messages import Request, Response
from coterie.kuscia.gateway.names import FUNCTION_CALLS_PATH, FUNCTION_REPLIES_PATH


async def send(
    bob: FunctionsDomain, body: Any, partner: str = "alice", path: str = FUNCTION_CALLS_PATH, **more: Any
) -> Response:
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    headers = {CALLER_HEADER: partner} if partner else {}
    return await bob.inbox.handle(Request(more.get("method", "POST"), path, headers=headers, body=data))


def call(**more: Any) -> dict[str, Any]:
    return {"requestUID": "u1", "hop": 1, "action": "score", **more}


def sentence(response: Response) -> str:
    return wire.refusal_sentence(response.body)


async def test_a_partner_without_a_grant_learns_nothing() -> None:
    async with two_domains() as (_, bob, _, _):
        for action in ("score", "secret", "nothing"):
            response = await send(bob, call(action=action), "carol")
            assert (response.status, sentence(response)) == (403, '"carol" has no grant for this action')
        response = await send(bob, call(action="secret"))
        other = await send(bob, call(action="nothing"))
        assert (response.status, response.body) == (other.status, other.body)
        assert response.status == 403
        assert not bob.bus.values(TOPIC)
        assert not bob.objects.demands


@pytest.mark.parametrize("partner", ["", "bob"])
async def test_nobody_but_partners_calls(partner: str) -> None:
    """Our own pods do not come here; and without our gateway's word there is no caller, whatever a message says of itself."""
    async with two_domains() as (_, bob, _, _):
        response = await send(bob, call(origin="alice", source="alice"), partner)
        assert response.status == 403
        assert not bob.bus.calls("score")


async def test_what_a_message_says_of_its_sender_is_not_believed() -> None:
    async with two_domains() as (_, bob, _, _):
        body = call(origin="carol", returnTopic="ReturnGateway-1", partner="carol", version="v0", attempt=-5)
        assert (await send(bob, body)).status == 202
        (found,) = bob.bus.calls("score")
        assert (found.origin, found.return_topic, found.version, found.attempt) == (
            "alice",
            outbox_topic("alice"),
            "",
            0,
        )


async def test_other_paths_and_methods() -> None:
    async with two_domains() as (_, bob, _, _):
        for path in ("/", "/functions/v1", "/functions/v1/hops/", "/functions/v1/results/u1", "/metrics"):
            assert (await send(bob, call(), path=path)).status == 404
        assert (await send(bob, call(), method="GET")).status == 405


async def test_a_replayed_call_runs_and_counts_once() -> None:
    async with two_domains() as (_, bob, _, _clock):
        for _ in range(5):
            assert (await send(bob, call(payload="x"))).status == 202
        await bob.kill()
        await bob.start()
        assert (await send(bob, call(payload="x"))).status == 202
        assert len(bob.bus.calls("score")) == 1
        assert bob.ledger.uses("uid-g", 0).total == 1
        response = await send(bob, call(payload="y"))
        assert (response.status, sentence(response)) == (409, "another call had this requestUID and hop")


async def test_the_same_number_of_two_partners_is_not_the_same_call() -> None:
    async with two_domains() as (_, bob, _, _):
        bob.objects.granted.append(action_grant("score", "carol", "c"))
        assert (await send(bob, call())).status == 202
        assert (await send(bob, call(), "carol")).status == 202
        first, second = bob.bus.calls("score")
        assert first.request_uid != second.request_uid
        assert {first.origin, second.origin} == {"alice", "carol"}


async def test_a_partner_does_not_meet_requests_of_ours() -> None:
    """A requestUID that is the name of a request or a result of bob is only a number of alice's."""
    async with two_domains() as (_, bob, _, _):
        assert (await send(bob, call(requestUID="bobs-own-request"))).status == 202
        (found,) = bob.bus.calls("score")
        assert "bobs-own-request" not in found.request_uid
        assert found.key == ""


async def test_forged_replies() -> None:
    async with two_domains() as (alice, _bob, _, _clock):
        await alice.invoke("bob/score", "r1", payload="x")
        await settle()
        uid = call_id("r1", 1, "bob/score")
        forged = {"requestUID": uid, "hop": 1, "payload": "forged"}

        async def reply(partner: str, **more: Any) -> int:
            return (await send(alice, {**forged, **more}, partner, FUNCTION_REPLIES_PATH)).status

        assert await reply("carol") == 404, "another partner than the one that was called"
        assert await reply("bob", requestUID="r1") == 404, "our own requestUID is not the name of a hop"
        assert await reply("bob", requestUID=call_id("r2", 1, "bob/score")) == 404, "never sent"
        assert await reply("bob", hop=2) == 404
        assert not alice.answers()
        assert await reply("bob", payload="true") == 202
        assert await reply("bob", payload="a second one") == 202
        assert alice.answers() == [("r1", 200, "true")]
        assert len(alice.bus.answers(RESULTS_TOPIC)) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b"{" * 100_000,
        b'{"params":' * 5_000,
        b'{"requestUID": 1, "hop": 1, "action": "score"}',
        b'{"requestUID": "u", "hop": "1", "action": "score"}',
        b'{"requestUID": "u", "hop": 1}',
        msgspec.json.encode(call(requestUID="")),
        msgspec.json.encode(call(requestUID="../../etc")),
        msgspec.json.encode(call(requestUID="x" * 65)),
        msgspec.json.encode(call(hop=-1)),
        msgspec.json.encode(call(hop=10**12)),
        msgspec.json.encode(call(action="../secret")),
        msgspec.json.encode(call(action="secret.carol")),
        msgspec.json.encode(call(action="Score")),
        msgspec.json.encode(call(key="k" * 300)),
        msgspec.json.encode(call(triggerPath="/a\r\nX: y")),
        msgspec.json.encode(call(contentType="text/plain\r\nX: y")),
        msgspec.json.encode(call(headers={"a b": "c"})),
        msgspec.json.encode(call(headers={"a": "c\r\nd: e"})),
        msgspec.json.encode(call(payload="a", payloadBase64="YQ==")),
        msgspec.json.encode(call(payloadBase64="***")),
    ],
)
async def test_messages_of_a_wrong_shape(body: bytes) -> None:
    async with two_domains() as (_, bob, _, _):
        response = await send(bob, body)
        assert response.status == 400
        assert len(sentence(response)) < 120
        assert not bob.bus.values(TOPIC)
        assert (await send(bob, body, path=FUNCTION_REPLIES_PATH)).status in (400, 404)


async def test_sizes() -> None:
    async with two_domains() as (_, bob, _, _):
        bob.objects.granted = [action_grant("score", "alice", maxBodyBytes=100)]
        assert (await send(bob, call(payload="x" * 100))).status == 202
        assert (await send(bob, call(requestUID="u2", payload="x" * 101))).status == 413
        assert (await send(bob, call(requestUID="u2", payload="x" * 10_000_000))).status == 413
        assert (await send(bob, call(requestUID="u3", action="a" * 10_000_000))).status == 413
        assert (await send(bob, call(requestUID="u3", action="a" * 100_000))).status == 400
        assert (await send(bob, call(requestUID="u4", params={str(i): 1 for i in range(300)}))).status == 413
        assert (await send(bob, call(requestUID="u5", headers={f"h{i}": "1" for i in range(100)}))).status == 413
        assert len(bob.bus.calls("score")) == 1


async def test_more_steps_than_a_chain_may_have() -> None:
    async with two_domains() as (_, bob, _, _):
        assert (await send(bob, call(hop=16))).status == 202
        response = await send(bob, call(hop=17))
        assert (response.status, sentence(response)) == (409, "the chain has more than 16 steps")


async def test_an_expired_and_an_exhausted_grant() -> None:
    async with two_domains() as (_, bob, _, clock):
        until = "2026-01-02T03:04:15Z"
        bob.objects.granted = [action_grant("score", "alice", limit={"expirationTime": until})]
        assert (await send(bob, call())).status == 202
        await clock.advance(10)
        response = await send(bob, call(requestUID="u2"))
        assert (response.status, sentence(response)) == (403, f"the grant ended at {until}")
        bob.objects.granted = [action_grant("score", "alice", "n", limit={"calls": 3})]
        statuses = [(await send(bob, call(requestUID=f"n{i}"))).status for i in range(5)]
        assert statuses == [202, 202, 202, 403, 403]
        await bob.kill()
        await bob.start()
        assert (await send(bob, call(requestUID="n9"))).status == 403, "a restart forgets no use"
        # A bus that was lost knows less than the object does.
        bob.objects.granted = [action_grant("score", "alice", "m", uses=3, limit={"calls": 3})]
        assert (await send(bob, call(requestUID="m1"))).status == 403


async def test_a_hundred_calls_at_once_use_a_grant_for_five_just_five_times() -> None:
    async with two_domains() as (_, bob, _, _):
        bob.objects.granted = [action_grant("score", "alice", limit={"calls": 5})]
        owner = bob.owner
        assert owner is not None
        found: list[int] = []

        async def one(number: int) -> None:
            found.append((await send(bob, call(requestUID=f"u{number}"))).status)

        for number in range(100):
            owner.start(f"call {number}", one(number))
        await settle(300)
        assert sorted(found) == [202] * 5 + [403] * 95
        assert len(bob.bus.calls("score")) == 5


async def test_calls_a_minute() -> None:
    async with two_domains() as (_, bob, _, clock):
        bob.objects.granted = [action_grant("score", "alice", limit={"callsPerMinute": 2})]
        statuses = []
        for number in range(4):
            statuses.append((await send(bob, call(requestUID=f"u{number}"))).status)
            await clock.advance(10)
        assert statuses == [202, 202, 429, 429]
        response = await send(bob, call(requestUID="u4"))
        assert dict(response.headers) == {"Retry-After": "20"}
        await bob.kill()
        await bob.start()
        assert (await send(bob, call(requestUID="u4"))).status == 429, "a restart forgets no rate"
        await clock.advance(21)
        assert (await send(bob, call(requestUID="u4"))).status == 202


async def test_a_deadline_is_clipped_by_ours() -> None:
    async with two_domains() as (_, bob, _, clock):
        assert (await send(bob, call(waitMilliseconds=10**15))).status == 202
        (found,) = bob.bus.calls("score")
        assert found.deadline == int((clock.now().timestamp() + 930) * 1000)


async def test_headers_that_gateways_set_and_credentials_do_not_reach_code() -> None:
    async with two_domains() as (_, bob, _, _):
        given = {
            "Kuscia-Origin-Source": "carol",
            "X-Coterie-Peer-Key": "k",
            "Cookie": "c",
            "Authorization": "a",
            "X-A": "b",
        }
        assert (await send(bob, call(headers=given))).status == 202
        assert bob.bus.calls("score")[0].headers == {"X-A": "b"}


def test_sentences_repeat_nothing_that_was_sent() -> None:
    for body in (b'{"requestUID": {"SECRET": 1}}', b'{"hop": "SECRET", "requestUID": "a", "action": "b"}'):
        with pytest.raises(BadMessage) as caught:
            wire.decode_call(body)
        assert "SECRET" not in str(caught.value)


async def test_calls_for_which_there_is_no_room() -> None:
    async with two_domains() as (_, bob, _, _):
        assert (await send(bob, call(payload="four"))).status == 202
        assert bob.objects.sizes == [("score", 4)]
        bob.objects.room = False
        response = await send(bob, call(requestUID="u2"))
        assert response.status == 503 and dict(response.headers)["Retry-After"]
        assert (await send(bob, call(payload="four"))).status == 202, "it was accepted before"
        assert len(bob.bus.calls("score")) == 1
        assert bob.ledger.uses("uid-g", 0).total == 1, "what is refused is not a use"


async def test_calls_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.functions.hops.inbox.MAX_REMEMBERED", 2)
    async with two_domains() as (_, bob, _, clock):
        bob.objects.granted.append(action_grant("score", "carol", "c"))
        for uid in ("u1", "u2"):
            assert (await send(bob, call(requestUID=uid, waitMilliseconds=1000))).status == 202
        assert (await send(bob, call(requestUID="u3"))).status == 503
        assert (await send(bob, call(), "carol")).status == 202, "one partner does not use up what others have"
        await clock.advance(200)
        bob.ledger.expire()
        assert (await send(bob, call(requestUID="u3"))).status == 202


async def test_a_reply_that_is_too_large_for_the_bus_and_a_status_that_is_none() -> None:
    async with two_domains() as (alice, _, _, _):
        await alice.invoke("bob/score", "r1")
        await settle()
        reply = {"requestUID": call_id("r1", 1, "bob/score"), "hop": 1}
        for status in (100, 101, 199, 600):
            response = await send(alice, {**reply, "statusCode": status}, "bob", FUNCTION_REPLIES_PATH)
            assert response.status == 400
        response = await send(alice, {**reply, "payload": "x" * (17 << 20)}, "bob", FUNCTION_REPLIES_PATH)
        assert response.status == 202
        assert alice.answers() == [("r1", 502, "the answer of bob is larger than 16 MiB\n")]


async def test_params_that_are_nested_deeply() -> None:
    async with two_domains() as (_, bob, _, _):
        params: Any = {}
        for _ in range(200):
            params = {"a": params}
        response = await send(bob, call(params=params))
        assert (response.status, sentence(response)) == (400, "params is nested more than 64 times")
