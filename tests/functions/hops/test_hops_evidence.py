"""Uses of ActionGrants in the evidence log: none without its event, none more than the grant has, and not an event for each of many calls at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hops_kit import FunctionsDomain, action_grant, settle, two_domains
from test_hops_attacks import call, send, sentence

from coterie.base.clock import VirtualClock
from coterie.functions.hops.use_evidence import BETWEEN_SECONDS
from coterie.kuscia.api.evidence import GRANT_REFUSED, GRANT_USED, EventRequest, EvidenceError, encode


class PlayedLog:
    def __init__(self) -> None:
        self.requests: list[EventRequest] = []
        self.away = False
        self.turn = asyncio.Event()
        self.turn.set()

    async def record(self, *requests: EventRequest) -> None:
        await self.turn.wait()
        if self.away:
            raise EvidenceError("the disk is full")
        for each in requests:
            encode(each.event)
        self.requests += requests

    def kinds(self) -> list[str]:
        return [each.event.kind for each in self.requests]


@asynccontextmanager
async def recorded() -> AsyncIterator[tuple[FunctionsDomain, PlayedLog, VirtualClock]]:
    async with two_domains() as (_, bob, _, clock):
        log = PlayedLog()
        await bob.kill()
        bob.evidence = log
        await bob.start()
        yield bob, log, clock


async def test_a_use_is_recorded_with_its_grant_before_the_call_is_accepted() -> None:
    async with recorded() as (bob, log, _):
        log.turn.clear()
        sending = asyncio.ensure_future(send(bob, call()))
        await settle()
        assert not sending.done() and not bob.bus.calls("score"), "not before its event"
        log.turn.set()
        assert (await sending).status == 202 and len(bob.bus.calls("score")) == 1
        (request,) = log.requests
        event = request.event
        assert (event.kind, event.partner, event.count, event.more) == (GRANT_USED, "alice", 1, {})
        assert event.grant[0] == bob.objects.granted[0].metadata.name and len(event.grant[1]) == 64
        assert (event.object, request.object_name) == (("Action",), "score"), "the name is committed to, not written"
        assert (await send(bob, call())).status == 202, "the same call again"
        assert len(log.requests) == 1


async def test_what_cannot_be_recorded_does_not_happen() -> None:
    async with recorded() as (bob, log, clock):
        log.away = True
        refused = await send(bob, call())
        assert (refused.status, dict(refused.headers)["Retry-After"]) == (503, "1")
        assert "cannot be recorded" in sentence(refused) and not bob.bus.calls("score")
        assert bob.ledger.uses(bob.objects.granted[0].metadata.uid, 0).total == 0
        log.away = False
        await clock.advance(1)
        assert (await send(bob, call())).status == 202
        assert [each.event.count for each in log.requests] == [1]


async def test_many_calls_at_once_are_few_events_and_no_use_too_many() -> None:
    async with recorded() as (bob, log, clock):
        bob.objects.granted = [action_grant("score", "alice", limit={"calls": 50})]
        log.turn.clear()
        sending = [asyncio.ensure_future(send(bob, call(requestUID=f"u{number}"))) for number in range(100)]
        await settle(300)
        assert not any(each.done() and each.result().status == 202 for each in sending)
        log.turn.set()
        await settle(300)
        await clock.advance(BETWEEN_SECONDS)
        await settle(300)
        assert sorted([(await each).status for each in sending]) == [202] * 50 + [403] * 50
        assert len(bob.bus.calls("score")) == 50
        uses = [each.event for each in log.requests if each.event.kind == GRANT_USED]
        assert [(each.count, each.more) for each in uses] == [(1, {}), (50, {"uses": "49"})]


async def test_one_that_gives_up_takes_nobody_along_for_long() -> None:
    async with recorded() as (bob, log, clock):
        log.turn.clear()
        first = asyncio.ensure_future(send(bob, call(requestUID="u1")))
        await settle()
        second = asyncio.ensure_future(send(bob, call(requestUID="u2")))
        third = asyncio.ensure_future(send(bob, call(requestUID="u3")))
        await settle()
        second.cancel()
        await settle()
        log.turn.set()
        assert (await first).status == 202
        assert (await third).status == 503
        await clock.advance(1)
        assert (await send(bob, call(requestUID="u3"))).status == 202
        assert len(bob.bus.calls("score")) == 2 == bob.ledger.uses(bob.objects.granted[0].metadata.uid, 0).total


async def test_refusals_are_recorded_not_more_of_them_than_a_log_can_bear() -> None:
    async with recorded() as (bob, log, _):
        bob.objects.granted = [action_grant("score", "alice", limit={"calls": 1})]
        for number in range(100):
            await send(bob, call(requestUID=f"u{number}"))
        await send(bob, call(), "carol")
        refused = [each.event for each in log.requests if each.event.kind == GRANT_REFUSED]
        assert log.kinds().count(GRANT_USED) == 1 and len(refused) == 30
        assert {(each.partner, each.reason, each.object) for each in refused} == {("alice", "calls", ("Action",))}
        log.away = True
        assert (await send(bob, call(requestUID="v"))).status == 403, "refused in any case"
