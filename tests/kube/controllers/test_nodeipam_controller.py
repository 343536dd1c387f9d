"""Ranges of pod addresses for nodes: rows of the plan, then a real API server."""

from __future__ import annotations

import random
from typing import Any

import pytest
from workload_world import EVENT, NODE, World, world

from coterie.base.clock import VirtualClock
from coterie.kube.api.errors import ApiError
from coterie.kube.api.labels import COTERIE_POD_NAMESPACE
from coterie.kube.api.meta import Object, ObjectKey
from coterie.kube.api.types.nodes import NODES, Node
from coterie.kube.client.cache import Cache
from coterie.kube.controllers.nodeipam import controller, plan
from coterie.kube.controllers.nodeipam.plan import ClusterRange, RangePool, Settings

FOUR = Settings(ranges=(ClusterRange.of("10.0.0.0/22", 24),))
"""Room for four nodes."""


def _used(*indexes: int) -> list[str]:
    return [f"10.0.{index}.0/24" for index in indexes]


@pytest.mark.parametrize(
    ("used", "released", "chosen"),
    [
        ([], [], "10.0.0.0/24"),
        (_used(0, 1), [], "10.0.2.0/24"),
        (_used(0, 3), [], "10.0.1.0/24"),
        (_used(0), _used(1), "10.0.2.0/24"),
        (_used(0, 3), _used(1), "10.0.2.0/24"),
        (_used(0, 3), _used(2, 1), "10.0.2.0/24"),
        (["10.0.0.0/23"], [], "10.0.2.0/24"),
        (["192.168.0.0/16", "fd00::/64"], [], "10.0.0.0/24"),
        (_used(0, 1, 2, 3), [], None),
        (["10.0.0.0/8"], [], None),
    ],
    ids=[
        "first", "next", "gap", "freed-last", "gap-before-freed", "longest-free", "wider", "others", "full", "all",
    ],
)  # fmt: skip
def test_which_range(used: list[str], released: list[str], chosen: str | None) -> None:
    pool = RangePool(FOUR)
    for cidr in [*used, *released]:
        pool.hold(cidr, (cidr,))
    for cidr in released:
        pool.release(cidr)
    assert pool.choose("n") == ((chosen,) if chosen else None)
    assert pool.full == (chosen is None)


class _PlainPool:
    """What a pool must know, by walking all nodes."""

    def __init__(self) -> None:
        self.held: dict[str, str] = {}

    def near(self, name: str) -> set[str]:
        return {each for each, cidr in self.held.items() if each != name and plan.overlaps(cidr, self.held[name])}


@pytest.mark.parametrize("seed", range(20))
def test_a_pool_knows_what_a_walk_over_all_nodes_finds(seed: int) -> None:
    rng, settings = random.Random(seed), Settings((ClusterRange.of("10.0.0.0/20", 24),))
    pool, plain = RangePool(settings), _PlainPool()
    strange = ["10.0.4.0/23", "10.0.0.0/19", "10.0.3.128/25", "10.1.0.0/24", "10.0.0.0/8", "fd00::/64"]
    for step in range(200):
        name = f"n{rng.randrange(16)}"
        kind = rng.random()
        if kind < 0.45:
            (chosen,) = pool.choose(name) or ("",)
            free = [f"10.0.{k}.0/24" for k in range(16)]
            free = [cidr for cidr in free if not any(plan.overlaps(cidr, each) for each in plain.held.values())]
            assert (chosen in free) if free else not chosen, (step, chosen)
            if chosen:
                pool.hold(name, (chosen,))
                plain.held[name] = chosen
        elif kind < 0.6:
            plain.held[name] = rng.choice(strange)
            pool.hold(name, (plain.held[name],))
        else:
            assert pool.release(name) == (plain.held.pop(name, None) is not None)
        for each in plain.held:
            assert plain.near(each) <= set(pool.neighbours(each))


def test_many_nodes_of_one_pool_are_not_walked_for_each() -> None:
    """5,000 nodes: 25 million steps if each looked at all."""
    settings = Settings((ClusterRange.of("10.0.0.0/8", 24),))
    pool = RangePool(settings)
    for number in range(5000):
        chosen = pool.choose(f"n{number}")
        assert chosen is not None
        pool.hold(f"n{number}", chosen)
        assert set(pool.neighbours(f"n{number}")) == {f"n{number}"}


def test_a_reserved_range_is_for_one_node() -> None:
    settings = Settings(FOUR.ranges, reserved={"own": "10.0.0.0/24"})
    assert plan.choose("n", [], settings) == ("10.0.1.0/24",)
    assert plan.choose("own", _used(1), settings) == ("10.0.0.0/24",)
    assert plan.choose("own", _used(0), settings) == ("10.0.1.0/24",), "somebody had it before us"


def test_two_address_families() -> None:
    settings = Settings((*FOUR.ranges, ClusterRange.of("fd00:1::/62", 64)))
    assert plan.choose("n", ["10.0.0.0/24", "fd00:1::/64"], settings) == ("10.0.1.0/24", "fd00:1:0:1::/64")
    used = [f"fd00:1:0:{index}::/64" for index in range(4)]
    assert plan.choose("n", used, settings) is None


def _node(name: str, cidr: str, made: str = "", pool: str = "") -> Node:
    labels = {COTERIE_POD_NAMESPACE: pool} if pool else {}
    meta = {"name": name, "uid": name, "creationTimestamp": made or "2026-01-01T00:00:00Z", "labels": labels}
    return NODES.decode(NODES.as_dynamic.encode({"metadata": meta, "spec": {"podCIDR": cidr}}))


def test_the_older_of_two_nodes_keeps_its_range() -> None:
    old, young = _node("z", "10.0.0.0/24", "2025-01-01T00:00:00Z"), _node("a", "10.0.0.0/23")
    assert plan.conflicting(old, [old, young]) is None
    assert plan.conflicting(young, [old, young]) is old
    assert plan.conflicting(young, [_node("b", "10.0.0.0/24", "2025-01-01T00:00:00Z", "bob"), young]) is None


# On the server.


async def _add(w: World, name: str, cidr: str = "", pool: str = "") -> None:
    meta: Object = {"name": name, "labels": {COTERIE_POD_NAMESPACE: pool} if pool else {}}
    await w.client.create(NODE, {"metadata": meta, "spec": {"podCIDR": cidr} if cidr else {}})
    await w.settle(0.4)


async def _ranges(w: World) -> dict[str, str]:
    nodes = await w.list(NODE, "")
    return {node["metadata"]["name"]: node["spec"].get("podCIDR", "") for node in nodes}


async def _problem(w: World, name: str) -> tuple[str, str]:
    status = (await w.get(NODE, name, "")).get("status") or {}
    for each in status.get("conditions") or ():
        if each["type"] == "NetworkUnavailable":
            return each["status"], each["reason"]
    return "", ""


def _make(*words: Any, **more: Any) -> Any:
    return controller.make(*words, settings=FOUR, **more)


MAKE = ("node-ipam-controller", _make)


async def test_nodes_get_ranges_that_survive_a_restart_and_a_node_may_bring_its_own() -> None:
    async with world(MAKE) as w:
        await _add(w, "brings", "10.0.1.0/24")
        await _add(w, "a")
        await _add(w, "elsewhere", pool="bob")
        first = {"brings": "10.0.1.0/24", "a": "10.0.2.0/24", "elsewhere": "10.0.0.0/24"}
        assert await _ranges(w) == first
        assert (await w.get(NODE, "a", ""))["spec"]["podCIDRs"] == ["10.0.2.0/24"]
        await w.stop()
        await w.start()
        await _add(w, "b")
        assert await _ranges(w) == {**first, "b": "10.0.3.0/24"}


async def test_when_all_are_taken_a_node_waits_with_a_reason_until_another_goes() -> None:
    async with world(MAKE) as w:
        for name in ("a", "b", "c", "d", "late"):
            await _add(w, name)
        assert (await _ranges(w))["late"] == ""
        assert await _problem(w, "late") == ("True", "PodCIDRsExhausted")
        await w.settle(2)
        events = [(e["reason"], e["involvedObject"]["name"]) for e in await w.list(EVENT)]
        assert ("PodCIDRsExhausted", "late") in events
        assert any("4 ranges /24 of 10.0.0.0/22 are in use" in e["message"] for e in await w.list(EVENT))
        await w.client.delete(NODE, "b")
        await w.settle(1)
        assert (await _ranges(w))["late"] == "10.0.1.0/24"
        assert await _problem(w, "late") == ("False", "PodCIDRAssigned")


async def test_a_range_is_given_out_again_as_late_as_possible() -> None:
    async with world(MAKE) as w:
        for name in ("a", "b"):
            await _add(w, name)
        await w.client.delete(NODE, "a")
        await w.settle(0.4)
        await _add(w, "a")
        await _add(w, "c")
        assert await _ranges(w) == {"a": "10.0.2.0/24", "b": "10.0.1.0/24", "c": "10.0.3.0/24"}
        await _add(w, "d")
        assert (await _ranges(w))["d"] == "10.0.0.0/24"


async def test_two_nodes_that_bring_the_same_range() -> None:
    async with world(MAKE) as w:
        await _add(w, "a", "10.0.0.0/24")
        await w.clock.advance(2)
        await _add(w, "b", "10.0.0.0/24")
        assert await _problem(w, "a") == ("", "")
        assert await _problem(w, "b") == ("True", "PodCIDRConflict")
        await w.client.delete(NODE, "a")
        await w.settle(1)
        assert await _problem(w, "b") == ("False", "PodCIDRAssigned")


async def test_many_nodes_at_once_under_lost_answers() -> None:
    settings = Settings((ClusterRange.of("10.0.0.0/16", 24),))
    make = ("node-ipam-controller", lambda *a, **k: controller.make(*a, settings=settings, **k))
    async with world(make) as w:
        w.faults.share = 0.3
        for number in range(60):
            await w.client.create(NODE, {"metadata": {"name": f"n{number}"}})

        async def all_have_one() -> bool:
            return all((await _ranges(w)).values())

        await w.until(all_have_one, 120)
        assert len(set((await _ranges(w)).values())) == 60


class _LateNews:
    """Writes take place, but their answers are lost while `losing`, and their events have not come."""

    def __init__(self) -> None:
        self.nodes = Cache[Node](NODES)
        self.losing = False
        self.written: list[tuple[str, str]] = []

    def get(self, _: object) -> _LateNews:
        return self

    @property
    def cache(self) -> Cache[Node]:
        return self.nodes

    async def patch(self, kind: object, name: str, namespace: str, patch: Object, **more: object) -> Node:
        self.written.append((name, patch["spec"]["podCIDR"]))
        if self.losing:
            raise ConnectionResetError("the answer is lost")
        return _node(name, patch["spec"]["podCIDR"])


async def test_a_range_whose_write_had_no_answer_is_given_to_nobody_else() -> None:
    news: Any = _LateNews()
    ipam = controller.NodeIpam(news, news, None, FOUR, VirtualClock())
    for name in ("a", "b"):
        news.nodes.put(ObjectKey("", name), _node(name, ""))
        assert ipam.keys_of_node(_node(name, "")) == [ObjectKey("", name)]
    news.losing = True
    with pytest.raises(ConnectionResetError):
        await ipam.reconcile(ObjectKey("", "a"))
    news.losing = False
    await ipam.reconcile(ObjectKey("", "b"))
    await ipam.reconcile(ObjectKey("", "a"))  # the same again
    assert news.written == [("a", "10.0.0.0/24"), ("b", "10.0.1.0/24"), ("a", "10.0.0.0/24")]
    await ipam.reconcile(ObjectKey("", "a"))
    assert len(news.written) == 3, "it was written, the cache is behind"


async def test_the_range_of_a_node_cannot_be_changed() -> None:
    async with world(MAKE) as w:
        await _add(w, "a")
        for spec in ({"podCIDR": "10.0.3.0/24"}, {"podCIDR": None, "podCIDRs": None}):
            with pytest.raises(ApiError, match="may not change podCIDR"):
                await w.client.patch(NODE, "a", "", {"spec": spec})
        await w.client.patch(NODE, "a", "", {"spec": {"podCIDRs": ["10.0.3.0/24"]}})
        assert (await w.get(NODE, "a", ""))["spec"]["podCIDRs"] == ["10.0.0.0/24"], "podCIDR wins, as in Kubernetes"
        for ranges in (["10.0.0.0/24", "10.0.1.0/24"], ["fd00::/64", "fd01::/64"]):
            with pytest.raises(ApiError, match="no more than one CIDR for each IP family"):
                await w.client.create(NODE, {"metadata": {"name": "two"}, "spec": {"podCIDRs": ranges}})
        await w.client.create(NODE, {"metadata": {"name": "two"}, "spec": {"podCIDRs": ["10.9.0.0/24", "fd00::/64"]}})
        assert (await _ranges(w))["two"] == "10.9.0.0/24"
