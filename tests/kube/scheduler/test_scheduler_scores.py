"""Which of several nodes is chosen."""

from __future__ import annotations

from typing import Any

import pytest
from scheduling_kit import BANDWIDTH, facts, node, snapshot

from coterie.kube.scheduler.facts import PodFacts
from coterie.kube.scheduler.plan import Placement, Sampling, plan
from coterie.kube.scheduler.scores import fewer_is_better, more_is_better, room
from coterie.kube.scheduler.snapshot import Snapshot


def chosen(cluster: Snapshot, pod: PodFacts, cursor: int = 0, **sampling: Any) -> str:
    found = plan(cluster, pod, cursor, Sampling(**sampling))
    assert isinstance(found, Placement)
    return found.node


def prefers(weight: int, key: str, value: str) -> dict[str, Any]:
    preference = {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}
    wish = {"weight": weight, "preference": preference}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}}


SOFT = [{"key": "slow", "value": "disk", "effect": "PreferNoSchedule"}]


@pytest.mark.parametrize(
    ("nodes", "placed", "pod", "expected"),
    [
        pytest.param([node("a"), node("b")], {"a": [facts("q", "1")]}, facts("p", "1"), "b", id="least-requested"),
        pytest.param([node("a", "4"), node("b", "16", "32Gi")], {}, facts("p", "2"), "b", id="greatest-remains"),
        pytest.param(
            [node("a", "4", "4Gi"), node("b", "4", "4Gi")],
            {"a": [facts("q", "2", "1Mi")], "b": [facts("r", "1m", "2Gi")]},
            facts("p", "1", "1Mi"),
            "b",
            id="balanced",
        ),
        pytest.param([node("a"), node("b")], {"a": [facts("q")]}, facts("p"), "b", id="best-effort-pods-spread-too"),
        pytest.param(
            [node("a"), node("b")],
            {"a": [facts("q", "100m", owner="rs")], "b": [facts("r", "500m")]},
            facts("p", "100m", owner="rs"),
            "b",
            id="away-from-pods-of-its-owner",
        ),
        pytest.param(
            [node("a"), node("b", labels={"disk": "ssd"})],
            {"b": [facts("q", "1")]},
            facts("p", "1", affinity=prefers(10, "disk", "ssd")),
            "b",
            id="preferred-node",
        ),
        pytest.param(
            [node("a", taints=SOFT), node("b")], {"b": [facts("q", "2")]}, facts("p", "1"), "b", id="discouraging-taint"
        ),
        pytest.param(
            [node("a", taints=SOFT), node("b")],
            {"b": [facts("q", "2")]},
            facts("p", "1", tolerations=[{"key": "slow", "operator": "Exists"}]),
            "a",
            id="tolerated-taint",
        ),
        pytest.param(
            [node("a", bandwidth=1000), node("b", bandwidth=1000)],
            {"a": [facts("q", requests={BANDWIDTH: 500})], "b": [facts("r", "100m")]},
            facts("p", requests={BANDWIDTH: 100}),
            "b",
            id="bandwidth-balance",
        ),
    ],
)
def test_the_better_node_is_chosen(
    nodes: list[Any], placed: dict[str, list[PodFacts]], pod: PodFacts, expected: str
) -> None:
    for cursor in range(len(nodes)):
        assert chosen(snapshot(*nodes, placed=placed), pod, cursor) == expected


def test_equal_nodes_take_turns() -> None:
    cluster = snapshot(*(node(f"n{i}") for i in range(3)))
    cursor, names = 0, []
    for i in range(6):
        pod = facts(f"p{i}", "100m")
        found = plan(cluster, pod, cursor, Sampling(share=0, least=1))
        assert isinstance(found, Placement)
        cursor = found.next_cursor
        names.append(found.node)
        cluster.place(pod, found.node)
    assert names == ["n0", "n1", "n2", "n0", "n1", "n2"]


def test_the_same_question_has_the_same_answer() -> None:
    cluster = snapshot(*(node(f"n{i}") for i in range(5)))
    assert [chosen(cluster, facts("p"), cursor) for cursor in range(5)] == ["n0", "n1", "n2", "n3", "n4"]
    assert len({chosen(cluster, facts("p"), 3) for _ in range(5)}) == 1


def test_not_all_nodes_are_looked_at_but_any_that_fits_is_found() -> None:
    cluster = snapshot(*(node(f"n{i}", "1") for i in range(200)), node("large", "8"))
    found = plan(cluster, facts("p", "1"), 0, Sampling(0.0, 10))
    assert isinstance(found, Placement) and found.compared == 10 and found.next_cursor == 10
    assert chosen(cluster, facts("p", "4"), share=0.0, least=1) == "large"
    assert Sampling().sample_size(10_000) == 500 and Sampling().sample_size(50) == 100


def test_views_are_stretched_over_0_to_100() -> None:
    assert more_is_better([-5, 0, 5]) == [0.0, 50.0, 100.0]
    assert more_is_better([3, 3]) == [0.0, 0.0]
    assert fewer_is_better([0, 1, 4]) == [100.0, 75.0, 0.0]
    assert fewer_is_better([0, 0]) == [100.0, 100.0]


def test_a_node_without_numbers_is_the_last_choice() -> None:
    cluster = snapshot(node("none", "0", "0"), node("some"))
    assert room(facts("p"), cluster.nodes)[0] == 100.0
    assert chosen(cluster, facts("p")) == "some"
