"""Pod affinity, anti-affinity and topology spread."""

from __future__ import annotations

from typing import Any

import pytest
from scheduling_kit import facts, node, snapshot

from coterie.kube.scheduler import filters
from coterie.kube.scheduler.facts import PodFacts
from coterie.kube.scheduler.plan import Placement, Unschedulable, plan
from coterie.kube.scheduler.snapshot import Snapshot

HOST = "kubernetes.io/hostname"
WEB = {"matchLabels": {"app": "web"}}


def term(selector: dict[str, Any] = WEB, key: str = HOST, **more: Any) -> dict[str, Any]:
    return {"labelSelector": selector, "topologyKey": key, **more}


def near(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


def away(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


def rather(kind: str, weight: int, one: dict[str, Any]) -> dict[str, Any]:
    return {kind: {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": weight, "podAffinityTerm": one}]}}


def web(name: str, **more: Any) -> PodFacts:
    return facts(name, labels={"app": "web"}, **more)


def zones(**placed: list[PodFacts]) -> Snapshot:
    """Two nodes in zone a, one in zone b, one without a zone."""
    return snapshot(
        node("a1", labels={"zone": "a"}),
        node("a2", labels={"zone": "a"}),
        node("b1", labels={"zone": "b"}),
        node("none"),
        placed=placed,
    )


def possible(cluster: Snapshot, pod: PodFacts) -> list[str]:
    """All nodes the pod can go to."""
    return sorted(s.name for s in cluster.nodes if isinstance(plan(only(cluster, s.name), pod), Placement))


def only(cluster: Snapshot, name: str) -> Snapshot:
    """The same cluster where all other nodes are full."""
    copy = Snapshot()
    for namespace, labels in cluster.namespaces.items():
        copy.set_namespace(namespace, labels)
    for state in cluster.nodes:
        assert state.facts is not None
        copy.set_node(state.facts)
        for pod in state.pods.values():
            copy.place(pod, state.name)
    for state in copy.nodes:
        if state.name != name:
            state.room_pods = 0
    return copy


@pytest.mark.parametrize(
    ("placed", "pod", "expected"),
    [
        pytest.param({"a1": [web("w")]}, facts("p", affinity=near(term())), ["a1"], id="near-on-host"),
        pytest.param({"a1": [web("w")]}, facts("p", affinity=near(term(key="zone"))), ["a1", "a2"], id="near-in-zone"),
        pytest.param({}, facts("p", affinity=near(term(key="zone"))), [], id="near-nobody"),
        pytest.param({}, web("p", affinity=near(term(key="zone"))), ["a1", "a2", "b1"], id="first-of-its-kind"),
        pytest.param(
            {"a1": [web("w", namespace="other")]}, facts("p", affinity=near(term())), [], id="other-namespace"
        ),
        pytest.param(
            {"a1": [web("w", namespace="other")]},
            facts("p", affinity=near(term(namespaces=["other"]))),
            ["a1"],
            id="named-namespace",
        ),
        pytest.param(
            {"a1": [web("w", namespace="other")]},
            facts("p", affinity=near(term(namespaceSelector={"matchLabels": {"team": "x"}}))),
            ["a1"],
            id="selected-namespace",
        ),
        pytest.param(
            {"a1": [web("w", namespace="third")]},
            facts("p", affinity=near(term(namespaceSelector={"matchLabels": {"team": "x"}}))),
            [],
            id="namespace-not-selected",
        ),
        pytest.param({"a1": [web("w")]}, facts("p", affinity=away(term())), ["a2", "b1", "none"], id="away-host"),
        pytest.param({"a1": [web("w")]}, facts("p", affinity=away(term(key="zone"))), ["b1", "none"], id="away-zone"),
        pytest.param({"a1": [facts("q", affinity=away(term()))]}, web("p"), ["a2", "b1", "none"], id="kept-away"),
        pytest.param(
            {"a1": [facts("q", affinity=away(term(key="zone")))]}, web("p"), ["b1", "none"], id="kept-out-of-the-zone"
        ),
        pytest.param(
            {"a1": [facts("q", affinity=away(term()))]}, facts("p"), ["a1", "a2", "b1", "none"], id="not-concerned"
        ),
        pytest.param(
            {"a1": [web("w")], "b1": [facts("x", labels={"app": "web", "v": "1"})]},
            facts("p", labels={"v": "1"}, affinity=near(term(matchLabelKeys=["v"]))),
            ["b1"],
            id="match-label-keys",
        ),
        pytest.param({"a1": [web("w")]}, facts("p", affinity=near({"topologyKey": HOST})), [], id="no-selector-none"),
        pytest.param({"a1": [facts("q")]}, facts("p", affinity=near(term({}))), ["a1"], id="empty-selector-all"),
    ],
)  # fmt: skip
def test_affinity(placed: dict[str, list[PodFacts]], pod: PodFacts, expected: list[str]) -> None:
    cluster = zones(**placed)
    cluster.set_namespace("other", {"team": "x"})
    assert possible(cluster, pod) == expected


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (facts("p", affinity=near(term({"matchLabels": {"app": "db"}}))), filters.NO_AFFINITY),
        (facts("p", affinity=away(term())), filters.ANTI_AFFINITY),
        (facts("p", labels={"lonely": "no"}), filters.ANTI_AFFINITY_OF_OTHERS),
    ],
)
def test_affinity_messages(pod: PodFacts, reason: str) -> None:
    lonely = {"matchLabels": {"lonely": "no"}}
    cluster = snapshot(node("n"), placed={"n": [web("w"), facts("q", affinity=away(term(lonely)))]})
    found = plan(cluster, pod)
    assert isinstance(found, Unschedulable)
    assert found.message == f"0/1 nodes are available: 1 {reason}."


def spread(skew: int, key: str = "zone", action: str = "DoNotSchedule", **more: Any) -> list[dict[str, Any]]:
    return [{"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": action, "labelSelector": WEB, **more}]


@pytest.mark.parametrize(
    ("placed", "pod", "expected"),
    [
        pytest.param({}, web("p", topologySpreadConstraints=spread(1)), ["a1", "a2", "b1"], id="no-label-no-place"),
        pytest.param({"a1": [web("1")]}, web("p", topologySpreadConstraints=spread(1)), ["b1"], id="the-emptier-zone"),
        pytest.param(
            {"a1": [web("1")]}, web("p", topologySpreadConstraints=spread(2)), ["a1", "a2", "b1"], id="within-the-skew"
        ),
        pytest.param(
            {"a1": [web("1")], "b1": [web("2")]},
            web("p", topologySpreadConstraints=spread(1)),
            ["a1", "a2", "b1"],
            id="even",
        ),
        pytest.param(
            {"a1": [web("1")]},
            web("p", nodeSelector={"zone": "a"}, topologySpreadConstraints=spread(1)),
            ["a1", "a2"],
            id="only-zones-it-may-use-count",
        ),
        pytest.param(
            {"a1": [web("1")]},
            web("p", nodeSelector={"zone": "a"}, topologySpreadConstraints=spread(1, nodeAffinityPolicy="Ignore")),
            [],
            id="unless-told-otherwise",
        ),
        pytest.param(
            {"a1": [web("1")], "b1": [web("2")]},
            web("p", topologySpreadConstraints=spread(1, minDomains=3)),
            [],
            id="too-few-domains",
        ),
        pytest.param(
            {"a1": [web("1")]},
            facts("p", topologySpreadConstraints=spread(1)),
            ["a1", "a2", "b1"],
            id="does-not-count-itself",
        ),
        pytest.param(
            {"a1": [web("1", namespace="other")]},
            web("p", topologySpreadConstraints=spread(1)),
            ["a1", "a2", "b1"],
            id="other-namespaces-do-not-count",
        ),
        pytest.param(
            {"a1": [web("1")]},
            web("p", topologySpreadConstraints=spread(1, action="ScheduleAnyway")),
            ["a1", "a2", "b1", "none"],
            id="a-wish-only",
        ),
    ],
)
def test_topology_spread(placed: dict[str, list[PodFacts]], pod: PodFacts, expected: list[str]) -> None:
    cluster = zones(**placed)
    assert possible(cluster, pod) == expected
    found = plan(cluster, pod)
    assert isinstance(found, Placement) == bool(expected)


def test_wishes_decide_between_nodes_that_would_do() -> None:
    placed = {"a1": [web("w")]}
    drawn = plan(zones(**placed), facts("p", affinity=rather("podAffinity", 50, term())))
    assert isinstance(drawn, Placement) and drawn.node == "a1"
    pushed = plan(zones(**placed), facts("p", affinity=rather("podAntiAffinity", 50, term(key="zone"))))
    assert isinstance(pushed, Placement) and pushed.node in ("b1", "none")
    # Wishes of pods that are there count as well.
    placed = {"b1": [facts("q", affinity=rather("podAffinity", 100, term()))]}
    drawn = plan(zones(**placed), web("p"))
    assert isinstance(drawn, Placement) and drawn.node == "b1"
    soft = plan(zones(a1=[web("1")]), web("p", topologySpreadConstraints=spread(1, action="ScheduleAnyway")))
    assert isinstance(soft, Placement) and soft.node == "b1"


def test_counts_follow_pods_and_namespaces() -> None:
    cluster = zones(a1=[web("w")])
    pod = facts("p", affinity=near(term(key="zone", namespaceSelector={"matchLabels": {"team": "x"}})))
    assert isinstance(plan(cluster, pod), Unschedulable)
    cluster.set_namespace("default", {"team": "x"})
    assert isinstance(plan(cluster, pod), Placement)
    cluster.remove("uid-default-w")
    assert isinstance(plan(cluster, pod), Unschedulable)
    cluster.place(web("w"), "b1")
    found = plan(cluster, pod)
    assert isinstance(found, Placement) and found.node == "b1"
    assert not cluster.preferred_terms
