"""A partner's control plane that misbehaves: what is wrong is written where `coterie status` and `route check` find it, a
follower that ends is started again, and the other partners are followed all the while."""

from __future__ import annotations

from typing import Any

import pytest
from interconn_kit import INTEROP, Network, network
from job_world import JOB, a_job, a_task

from coterie.base.clock import VirtualClock
from coterie.kube.api.meta import ObjectKey
from coterie.kube.client.client import Client
from coterie.kube.client.limits import ResponseLimits
from coterie.kube.client.transport import TransportRequest, TransportResponse
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.job import KUSCIA_JOBS
from coterie.kuscia.interconn import member
from coterie.kuscia.interconn.follower_status import (
    FollowerReport,
    FollowerStatus,
    decode_reports,
    encode_reports,
    left_out_sentences,
    problem_sentences,
)
from coterie.kuscia.routes.check import diagnose
from coterie.kuscia.routes.facts import CheckOutcome, RouteCheckFacts

MIRRORS = "/apis/kuscia.secretflow/v1alpha1/namespaces/{}/kusciajobs"


async def reports(net: Network, plane: str, host: str) -> dict[str, FollowerReport]:
    config = await net[plane].client.get(INTEROP, host)
    return decode_reports((config["metadata"].get("annotations") or {}).get(labels.COTERIE_FOLLOWERS, ""))


async def test_a_partner_that_cannot_be_reached_is_shown_until_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Network.connect

    def connect(self: Network, me: str, host: str) -> Client:
        client = real(self, me, host)
        if (me, host) == ("bob", "alice"):
            self.cut(me, host)
        return client

    monkeypatch.setattr(Network, "connect", connect)
    async with network("alice", "bob", "carol") as net:
        await net.settle(20)
        shown = (await reports(net, "bob", "alice"))["bob"]
        assert "cannot be reached" in shown.problem and shown.since
        assert not (await reports(net, "bob", "carol")), "the other one is followed"
        net.cut("bob", "alice", down=False)
        await net.settle(30)
        assert not await reports(net, "bob", "alice")


async def test_a_follower_that_ends_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ended it, also a mistake of our own."""
    real, broken = member.make, {"alice"}

    class Ends:
        name = "ends"

        async def run(self) -> None:
            raise RuntimeError("a mistake of our own")

    def make(host: str, *rest: Any, **more: Any) -> list[Any]:
        return [*real(host, *rest, **more), *([Ends()] if host in broken else [])]

    monkeypatch.setattr(member, "make", make)
    async with network("alice", "bob", "carol") as net:
        await net.settle(20)
        shown = (await reports(net, "bob", "alice"))["bob"]
        assert "a mistake of our own" in shown.problem
        await net["carol"].client.create(JOB, a_job(a_task("t", parties=("carol", "bob")), initiator="carol"))
        await net.until_phase("Succeeded", "carol", "bob")
        tries = len(net.links["bob", "alice"])
        await net.settle(60)
        assert len(net.links["bob", "alice"]) - tries < 8, "with pauses that grow"
        broken.clear()
        await net.settle(90)
        assert not await reports(net, "bob", "alice")


class Lies:
    """A transport whose lists of mirrored jobs hold what no API would let in."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def send(self, call: TransportRequest) -> TransportResponse:
        if call.method == "GET" and call.path == MIRRORS.format("bob"):
            if call.stream:
                return TransportResponse(400, {}, b'{"kind":"Status","code":400,"reason":"BadRequest"}')
            body = b"""{"metadata": {"resourceVersion": "1"}, "items": [
                {"metadata": {"name": "no-spec", "namespace": "bob"}},
                {"metadata": {"name": "text", "namespace": "bob"}, "spec": {"initiator": "alice", "tasks": "x"}},
                {"metadata": {"name": "bare", "namespace": "bob"}, "spec": {"initiator": "alice", "tasks": []}}
            ]}"""
            return TransportResponse(200, {}, body)
        return await self._inner.send(call)

    async def close(self) -> None:
        await self._inner.close()


async def test_mirrors_of_a_wrong_shape_are_left_out_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Network.connect

    def connect(self: Network, me: str, host: str) -> Client:
        client = real(self, me, host)
        lying = Lies(client.transport) if (me, host) == ("bob", "alice") else client.transport
        return Client(lying, clock=self.clock, limits=ResponseLimits())

    monkeypatch.setattr(Network, "connect", connect)
    async with network("alice", "bob", "carol") as net:
        await net.settle(20)
        shown = (await reports(net, "bob", "alice"))["bob"]
        assert [each.object.split()[-1] for each in shown.left_out] == ["no-spec", "text"]
        events = (await net["bob"].client.raw("GET", "/api/v1/events")).body
        assert b"ObjectLeftOut" in events and b"no-spec" in events
        await net["carol"].client.create(JOB, a_job(a_task("t", parties=("carol", "bob")), initiator="carol"))
        await net.until_phase("Succeeded", "carol", "bob")


def test_what_is_written_stays_small() -> None:
    told: list[str] = []
    clock = VirtualClock()
    status = FollowerStatus(clock, lambda: None, lambda name, why: told.append(name))
    for number in range(1000):
        status.left_out(KUSCIA_JOBS, ObjectKey("bob", f"o-{number}"), "why " * 1000)
        status.failed(KUSCIA_JOBS, "long " * 1000)
    text = encode_reports({"bob": status.report()})
    assert len(text) < 8000
    shown = decode_reports(text)["bob"]
    assert shown.left_out_count == len(told) == 1000 and len(shown.left_out) == 10
    status.recovered(KUSCIA_JOBS)
    assert not status.report().problem and not status.report().since
    assert decode_reports("garbage") == {} == decode_reports("")
    clean = FollowerStatus(clock, lambda: None, lambda name, why: None)
    assert encode_reports({"bob": clean.report()}) == ""


def test_route_check_shows_it() -> None:
    clock = VirtualClock()
    status = FollowerStatus(clock, lambda: None, lambda name, why: None)
    status.failed(KUSCIA_JOBS, "a line has more than 1 byte")
    status.left_out(KUSCIA_JOBS, ObjectKey("alice", "bad"), "too deep")
    shown = {"alice": status.report()}
    facts = RouteCheckFacts(
        "alice",
        "bob",
        clock.now(),
        follower_problems=tuple(problem_sentences("bob", shown)),
        follower_left_out=tuple(left_out_sentences("bob", shown)),
    )
    found = [each for each in diagnose(facts) if each.step == "follower"]
    assert [each.verdict for each in found] == [CheckOutcome.WRONG, CheckOutcome.WARNING]
    assert "a line has more than 1 byte" in found[0].message and "bad: too deep" in found[1].message
