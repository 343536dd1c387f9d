"""Who leaves for whom."""

from __future__ import annotations

from typing import Any

import pytest
from scheduling_kit import facts, node, snapshot

from coterie.kube.api.selectors import selector_of
from coterie.kube.scheduler.facts import PodFacts
from coterie.kube.scheduler.filters import fits
from coterie.kube.scheduler.preemption import Budget, NoPreemption, Preemption, preempt
from coterie.kube.scheduler.snapshot import Snapshot


def low(name: str, cpu: str = "1", priority: int = 0, **more: Any) -> PodFacts:
    return facts(name, cpu, priority=priority, **more)


def victims(found: Preemption | NoPreemption) -> tuple[str, list[str]]:
    assert isinstance(found, Preemption)
    return found.node, sorted(victim.key.name for victim in found.victims)


HIGH = facts("high", "2", priority=100)


@pytest.mark.parametrize(
    ("placed", "expected"),
    [
        pytest.param({"a": [low("1", "4")], "b": [low("2", "4", 50)]}, ("a", ["1"]), id="least-important"),
        pytest.param({"a": [low("1"), low("2"), low("3"), low("4")], "b": [low("5", "4")]}, ("b", ["5"]), id="fewest"),
        pytest.param({"a": [low("1", "2"), low("2", "2", 50)], "b": [low("3", "4", 100)]}, ("a", ["1"]), id="no-more-than-needed"),
        pytest.param(
            {"a": [low("1", "4", created="2026-01-01T00:00:00Z")], "b": [low("2", "4", created="2026-01-02T00:00:00Z")]},
            ("b", ["2"]),
            id="started-last",
        ),
        pytest.param({"a": [low("1", "4", 100)], "b": [low("2", "3"), low("3", "1", 99)]}, ("b", ["2"]), id="small-ones-stay"),
    ],
)  # fmt: skip
def test_the_cheapest_victims_are_chosen(placed: dict[str, list[PodFacts]], expected: tuple[str, list[str]]) -> None:
    cluster = snapshot(node("a"), node("b"), placed=placed)
    before = {state.name: set(state.pods) for state in cluster.nodes}, cluster.release_version
    assert victims(preempt(cluster, HIGH)) == expected
    assert before == ({state.name: set(state.pods) for state in cluster.nodes}, cluster.release_version)


def test_disruption_budgets_are_spared() -> None:
    web = {"app": "web"}
    cluster = snapshot(node("a"), node("b"), placed={"a": [low("1", "4", labels=web)], "b": [low("2", "4", 50)]})
    budget = Budget("default", selector_of({"matchLabels": web}), 0)
    assert victims(preempt(cluster, HIGH, [budget])) == ("b", ["2"])
    assert victims(preempt(cluster, HIGH, [Budget("default", budget.selector, 1)])) == ("a", ["1"])
    assert victims(preempt(cluster, HIGH, [Budget("other", budget.selector, 0)])) == ("a", ["1"])
    # When there is no other way, a budget does not save anybody.
    alone = snapshot(node("a"), placed={"a": [low("1", "4", labels=web)]})
    found = preempt(alone, HIGH, [budget])
    assert isinstance(found, Preemption) and found.violations == 1


@pytest.mark.parametrize(
    ("cluster", "pod", "message"),
    [
        pytest.param(
            snapshot(node("a"), placed={"a": [low("1", "4")]}),
            facts("p", "2", priority=100, preemptionPolicy="Never"),
            "not eligible due to preemptionPolicy=Never.",
            id="never",
        ),
        pytest.param(
            snapshot(node("a"), node("b", ready="False"), placed={"a": [low("1", "4", 100)]}),
            HIGH,
            "0/2 nodes are available: 1 No preemption victims found for incoming pod, "
            "1 Preemption is not helpful for scheduling.",
            id="nobody-is-less-important",
        ),
        pytest.param(
            snapshot(node("a", "1"), placed={"a": [low("1")]}),
            HIGH,
            "0/1 nodes are available: 1 No preemption victims found for incoming pod.",
            id="too-small-even-when-empty",
        ),
        pytest.param(
            snapshot(node("a", labels={"x": "1"}), placed={"a": [low("1", "4")]}),
            facts("p", "2", priority=100, nodeSelector={"x": "2"}),
            "0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
            id="wrong-node",
        ),
    ],
)
def test_nobody_leaves_in_vain(cluster: Snapshot, pod: PodFacts, message: str) -> None:
    found = preempt(cluster, pod)
    assert isinstance(found, NoPreemption) and found.message == message


def test_protected_pods_stay() -> None:
    cluster = snapshot(node("a"), placed={"a": [low("1", "4")]})
    assert isinstance(preempt(cluster, HIGH, protected={"uid-default-1"}), NoPreemption)


def test_anti_affinity_can_be_lifted_by_leaving() -> None:
    term = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "kubernetes.io/hostname"}
    away = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    cluster = snapshot(node("a"), placed={"a": [low("1", labels={"app": "web"}), low("2")]})
    assert victims(preempt(cluster, facts("p", "1", priority=1, affinity=away))) == ("a", ["1"])


def test_room_that_was_made_is_kept_for_whom_it_was_made() -> None:
    cluster = snapshot(node("a"), placed={"a": [low("leaving", "2")]})
    cluster.nominate(HIGH, "a")
    state = cluster.states["a"]
    assert fits(state, low("small", "2")) is False
    assert fits(state, facts("higher", "2", priority=200)) is True
    assert fits(state, HIGH) is True
    cluster.remove("uid-default-leaving")
    assert fits(state, low("small", "2")) is True
    cluster.place(HIGH, "a")
    assert not cluster.nominations and not state.nominated
