"""Engine pods come and go: what Envoy knows of them and when, in a real gateway and across its restart."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from gateway_kit import HOSTS, call, echo, free_port
from mesh_kit import Plane, control_plane, until

from coterie.kuscia.gateway.addresses import PodNetwork, SocketAddress
from coterie.kuscia.gateway.callers import PodCallers
from coterie.kuscia.gateway.model import PodCaller, SnapshotInputs
from coterie.kuscia.gateway.pod_access import callers_in, pod_rules
from coterie.kuscia.gateway.settings import GatewaySettings

ENGINE, OTHER, ORDINARY = "127.64.128.7", "127.64.128.8", "127.64.0.9"


def network() -> PodNetwork:
    """Loopback addresses: source addresses can be chosen there without any rights."""
    return PodNetwork("127.64.0.0/16", "127.64.128.0/17", SocketAddress("127.64.0.1", free_port("127.64.0.1")))


async def status(plane: Plane, source: str, host: str) -> int:
    assert plane.settings.pods is not None
    connector = aiohttp.TCPConnector(local_addr=(source, 0))
    async with aiohttp.ClientSession(connector=connector) as http:
        return (await call(http, f"http://{plane.settings.pods.gateway}/", host))[0]


async def served(plane: Plane, where: SocketAddress) -> None:
    await plane.serve("psi", where)

    async def answers() -> bool:
        return await status(plane, ORDINARY, "psi.alice.svc") == 200

    await until(answers)


async def test_an_engine_is_known_when_loaded_returns(tmp_path: Path) -> None:
    async with echo(HOSTS["alice"]) as where, control_plane("alice", tmp_path, pods=network()) as alice:
        await served(alice, where)
        assert await status(alice, ENGINE, "psi.alice.svc") == 403
        alice.callers.set(ENGINE, {"PSI.alice.svc"})
        await alice.callers.loaded(ENGINE, 30)
        assert await status(alice, ENGINE, "psi.alice.svc") == 200
        assert await status(alice, OTHER, "psi.alice.svc") == 403
        alice.callers.set(ENGINE, {"other.alice.svc"})
        await alice.callers.loaded(ENGINE, 30)
        assert await status(alice, ENGINE, "psi.alice.svc") == 403
        alice.callers.remove(ENGINE)
        await alice.callers.loaded(ENGINE, 30)
        assert await status(alice, ENGINE, "other.alice.svc") == 403


async def test_pods_of_other_nodes_are_known_by_their_ranges(tmp_path: Path) -> None:
    async with echo(HOSTS["alice"]) as where, control_plane("alice", tmp_path, pods=network()) as alice:
        await served(alice, where)
        assert await status(alice, "127.80.0.9", "psi.alice.svc") == 403
        alice.callers.set("127.80.0.0/21", {"*"})
        await alice.callers.loaded("127.80.0.0/21", 30)
        assert await status(alice, "127.80.0.9", "psi.alice.svc") == 200
        assert await status(alice, "127.80.8.9", "psi.alice.svc") == 403
        assert await status(alice, ORDINARY, "psi.alice.svc") == 200


async def test_pods_of_one_moment_cost_one_change(tmp_path: Path) -> None:
    async with control_plane("alice", tmp_path, pods=network()) as alice:
        feed = alice.part("gateway-feed")
        alice.callers.set(ENGINE, ())
        await alice.callers.loaded(ENGINE, 30)
        before = feed.status.changes
        addresses = [f"127.64.200.{number}" for number in range(50)]
        for address in addresses:
            alice.callers.set(address, {f"{address}.alice.svc"})
        await asyncio.gather(*(alice.callers.loaded(address, 30) for address in addresses))
        assert feed.status.changes == before + 1


async def test_engines_that_go_on_are_not_refused_after_a_restart(tmp_path: Path) -> None:
    pods = network()
    async with echo(HOSTS["alice"]) as where:
        async with control_plane("alice", tmp_path, pods=pods) as alice:
            await served(alice, where)
            for address in (ENGINE, OTHER):
                alice.callers.set(address, {"psi.alice.svc"})
            await alice.callers.loaded(OTHER, 30)
        async with control_plane("alice", tmp_path, pods=pods) as alice:
            await served(alice, where)
            assert await status(alice, ENGINE, "psi.alice.svc") == 200
            # The agent finds one of them again.
            alice.callers.set(ENGINE, {"psi.alice.svc"})
            alice.callers.drop_stale()
            await alice.callers.loaded(OTHER, 30)
            assert await status(alice, ENGINE, "psi.alice.svc") == 200
            assert await status(alice, OTHER, "psi.alice.svc") == 403


async def test_another_network_while_it_runs(tmp_path: Path) -> None:
    first, second = network(), network()
    async with echo(HOSTS["alice"]) as where, control_plane("alice", tmp_path, pods=first) as alice:
        await served(alice, where)
        alice.part("gateway-feed").set_pods(second)
        alice.settings = GatewaySettings("alice", "gw", pods=second)

        async def answers() -> bool:
            with contextlib.suppress(aiohttp.ClientError):
                return await status(alice, ORDINARY, "psi.alice.svc") == 200
            return False

        await until(answers)


# ---- without Envoy ----


async def test_waiting_ends_only_with_what_was_set_last() -> None:
    changes: list[int] = []
    callers = PodCallers(lambda: changes.append(1))
    await callers.loaded(ENGINE, 0.01)  # neither known nor wanted
    callers.set(ENGINE, {"a"})
    callers.set(ENGINE, {"a"})
    assert len(changes) == 1
    early = callers.snapshot()
    callers.set(ENGINE, {"a", "b"})
    waiting = asyncio.ensure_future(callers.loaded(ENGINE, 30))
    await asyncio.sleep(0)
    callers.accepted(early)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    callers.accepted(callers.snapshot())
    await waiting
    callers.remove(ENGINE)
    with pytest.raises(TimeoutError):
        await callers.loaded(ENGINE, 0.01)


def test_what_an_earlier_life_left() -> None:
    callers = PodCallers()
    callers.set(ENGINE, {"new"})
    callers.restore([PodCaller(ENGINE, frozenset({"old"})), PodCaller(OTHER, frozenset({"old"}))])
    assert callers.snapshot() == (PodCaller(ENGINE, frozenset({"new"})), PodCaller(OTHER, frozenset({"old"})))
    callers.drop_stale()
    assert callers.snapshot() == (PodCaller(ENGINE, frozenset({"new"})),)
    callers.drop_stale()
    assert len(callers.snapshot()) == 1


@pytest.mark.parametrize(
    "known",
    [
        (),
        (PodCaller(ENGINE),),
        (PodCaller(ENGINE, frozenset({"a.alice.svc", "b.alice.svc"})), PodCaller(OTHER, frozenset({"a.alice.svc"}))),
        tuple(PodCaller(f"127.64.200.{n}", frozenset({"a"})) for n in range(3)),
        (PodCaller("127.80.0.0/21", frozenset({"*"})), PodCaller("127.80.8.7", frozenset({"a"}))),
    ],
    ids=["none", "no-hosts", "two", "alike", "another-node"],
)
def test_the_rules_tell_whom_they_are_for(known: tuple[PodCaller, ...]) -> None:
    given: dict[str, Any] = {"pods": network(), "callers": known}
    where = SocketAddress("/x", 0)
    rules = pod_rules(SnapshotInputs("alice", None, None, where, where, Path("/x"), Path("/l"), **given))
    assert sorted(callers_in(rules)) == sorted(known)
    assert callers_in({}) == callers_in({"matcher": {"on_no_match": []}}) == ()
