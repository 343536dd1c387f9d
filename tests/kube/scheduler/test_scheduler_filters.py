"""Each filter, each message: one row for each rule."""

from __future__ import annotations

from typing import Any

import pytest
from scheduling_kit import BANDWIDTH, facts, node, snapshot

from coterie.kube.api.labels import COTERIE_POD_NAMESPACE
from coterie.kube.scheduler import filters
from coterie.kube.scheduler.facts import PodFacts
from coterie.kube.scheduler.filters import UnschedulableCause, cause_of, static_rejection
from coterie.kube.scheduler.node_state import NodeState
from coterie.kube.scheduler.plan import Placement, Unschedulable, could_take, plan
from coterie.kube.scheduler.terms import StaticDemand


def rejection(on: Any, pod: PodFacts, placed: list[PodFacts] | None = None) -> str | None:
    """The message of a cluster of one node; None when the pod fits."""
    found = plan(snapshot(on, placed={on.metadata.name: placed or []}), pod)
    if isinstance(found, Placement):
        return None
    (reason,) = found.reasons
    return reason


def affinity(*terms: list[dict[str, Any]], fields: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    listed = [{"matchExpressions": term} for term in terms]
    if fields is not None:
        listed.append({"matchFields": fields})
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": listed}}}


def needs(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


TAINT = {"key": "k", "value": "v", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("on", "pod", "expected"),
    [
        pytest.param(node("n"), facts("p"), None, id="nothing-asked"),
        pytest.param(node("n", unschedulable=True), facts("p"), filters.UNSCHEDULABLE, id="cordoned"),
        pytest.param(
            node("n", unschedulable=True),
            facts("p", tolerations=[{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]),
            None,
            id="cordoned-but-tolerated",
        ),
        pytest.param(node("n", ready="False"), facts("p"), filters.NOT_READY, id="not-ready"),
        pytest.param(node("n", ready="Unknown"), facts("p"), filters.NOT_READY, id="unknown"),
        pytest.param(node("n", ready=None), facts("p"), filters.NOT_READY, id="never-reported"),
        pytest.param(
            node("n", ready="False"),
            facts("p", tolerations=[{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}]),
            None,
            id="not-ready-but-tolerated",
        ),
        pytest.param(
            node("n", ready="False"),
            facts("p", tolerations=[{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute", "operator": "Exists"}]),
            filters.NOT_READY,
            id="not-ready-tolerated-for-eviction-only",
        ),
        pytest.param(node("n"), facts("p", node="m"), filters.WRONG_NAME, id="other-name"),
        pytest.param(node("n"), facts("p", nodeSelector={"disk": "ssd"}), filters.NOT_AFFINE, id="selector-missing"),
        pytest.param(
            node("n"),
            facts("p", nodeSelector={"coterie.io/runtime.kata": "true"}),
            'node(s) had no runtime handler "kata"',
            id="handler-missing",
        ),
        pytest.param(
            node("n", labels={"disk": "hdd"}), facts("p", nodeSelector={"disk": "ssd"}), filters.NOT_AFFINE, id="selector-other"
        ),
        pytest.param(node("n", labels={"disk": "ssd"}), facts("p", nodeSelector={"disk": "ssd"}), None, id="selector"),
        pytest.param(
            node("n", labels={"zone": "a"}), facts("p", affinity=affinity([needs("zone", "In", "a", "b")])), None, id="in"
        ),
        pytest.param(
            node("n", labels={"zone": "a"}),
            facts("p", affinity=affinity([needs("zone", "NotIn", "a")])),
            filters.NOT_AFFINE,
            id="not-in",
        ),
        pytest.param(
            node("n", labels={"zone": "a"}),
            facts("p", affinity=affinity([needs("zone", "In", "b")], [needs("zone", "Exists")])),
            None,
            id="second-alternative",
        ),
        pytest.param(node("n", labels={"cores": "8"}), facts("p", affinity=affinity([needs("cores", "Gt", "4")])), None, id="gt"),
        pytest.param(
            node("n", labels={"cores": "8"}),
            facts("p", affinity=affinity([needs("cores", "Lt", "4")])),
            filters.NOT_AFFINE,
            id="lt",
        ),
        pytest.param(
            node("n"), facts("p", affinity=affinity(fields=[needs("metadata.name", "In", "n")])), None, id="field"
        ),
        pytest.param(
            node("n"),
            facts("p", affinity=affinity(fields=[needs("metadata.name", "In", "m")])),
            filters.NOT_AFFINE,
            id="other-field",
        ),
        pytest.param(node("n"), facts("p", affinity=affinity([])), filters.NOT_AFFINE, id="empty-term-matches-nothing"),
        pytest.param(
            node("n", taints=[TAINT]), facts("p"), "node(s) had untolerated taint {k: v}", id="taint"
        ),
        pytest.param(
            node("n", taints=[{**TAINT, "effect": "NoExecute"}]), facts("p"), "node(s) had untolerated taint {k: v}", id="no-execute"
        ),
        pytest.param(
            node("n", taints=[{"key": "k", "effect": "NoSchedule"}]), facts("p"), "node(s) had untolerated taint {k: }", id="taint-without-value"
        ),
        pytest.param(node("n", taints=[{**TAINT, "effect": "PreferNoSchedule"}]), facts("p"), None, id="soft-taint"),
        pytest.param(
            node("n", taints=[TAINT]),
            facts("p", tolerations=[{"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}]),
            None,
            id="tolerated",
        ),
        pytest.param(
            node("n", taints=[TAINT]),
            facts("p", tolerations=[{"key": "k", "value": "w"}]),
            "node(s) had untolerated taint {k: v}",
            id="other-value",
        ),
        pytest.param(
            node("n", taints=[TAINT]),
            facts("p", tolerations=[{"key": "k", "operator": "Exists", "effect": "NoExecute"}]),
            "node(s) had untolerated taint {k: v}",
            id="other-effect",
        ),
        pytest.param(node("n", taints=[TAINT]), facts("p", tolerations=[{"operator": "Exists"}]), None, id="tolerates-all"),
        pytest.param(node("n", "1"), facts("p", "1001m"), "Insufficient cpu", id="cpu"),
        pytest.param(node("n", "1"), facts("p", "1"), None, id="cpu-exactly"),
        pytest.param(node("n", memory="1Gi"), facts("p", memory="1025Mi"), "Insufficient memory", id="memory"),
        pytest.param(node("n", pods=0), facts("p"), "Too many pods", id="pods"),
        pytest.param(
            node("n"), facts("p", requests={"nvidia.com/gpu": 1}), "Insufficient nvidia.com/gpu", id="extended-missing"
        ),
        pytest.param(
            node("n", bandwidth=100), facts("p", requests={BANDWIDTH: 101}), f"Insufficient {BANDWIDTH}", id="bandwidth"
        ),
        pytest.param(node("n", bandwidth=100), facts("p", requests={BANDWIDTH: 100}), None, id="bandwidth-exactly"),
        pytest.param(
            node("n"), facts("p", requests={"ephemeral-storage": "1Gi"}), "Insufficient ephemeral-storage", id="storage"
        ),
    ],
)  # fmt: skip
def test_a_node_is_refused_for_a_reason(on: Any, pod: PodFacts, expected: str | None) -> None:
    assert rejection(on, pod) == expected


@pytest.mark.parametrize(
    ("taken", "wanted", "clash"),
    [
        ({"hostPort": 80}, {"hostPort": 80}, True),
        ({"hostPort": 80}, {"hostPort": 81}, False),
        ({"hostPort": 80}, {"hostPort": 80, "protocol": "UDP"}, False),
        ({"hostPort": 80, "hostIP": "10.0.0.1"}, {"hostPort": 80, "hostIP": "10.0.0.2"}, False),
        ({"hostPort": 80, "hostIP": "10.0.0.1"}, {"hostPort": 80, "hostIP": "10.0.0.1"}, True),
        ({"hostPort": 80, "hostIP": "10.0.0.1"}, {"hostPort": 80}, True),
        ({"containerPort": 80}, {"containerPort": 80}, False),
    ],
)
def test_host_ports(taken: dict[str, Any], wanted: dict[str, Any], clash: bool) -> None:
    reason = rejection(node("n"), facts("p", ports=[wanted]), [facts("q", ports=[taken])])
    assert reason == (filters.NO_PORTS if clash else None)


def test_ports_of_the_hosts_network_are_host_ports() -> None:
    port = [{"containerPort": 80}]
    other = facts("q", ports=port, hostNetwork=True)
    assert rejection(node("n"), facts("p", ports=port, hostNetwork=True), [other]) == filters.NO_PORTS


def test_pods_that_are_placed_count() -> None:
    assert rejection(node("n", "2"), facts("p", "1"), [facts("q", "1500m")]) == "Insufficient cpu"
    assert rejection(node("n", pods=1), facts("p"), [facts("q")]) == "Too many pods"
    assert rejection(
        node("n", bandwidth=10), facts("p", requests={BANDWIDTH: 5}), [facts("q", requests={BANDWIDTH: 6})]
    )


def test_what_is_not_asked_for_may_be_overdrawn() -> None:
    # A node that shrank below what runs there still takes pods that want nothing of it.
    full = [facts("q", "4")]
    assert rejection(node("n", "1"), facts("p", memory="1Gi"), full) is None
    assert rejection(node("n", "1"), facts("p", "1m"), full) == "Insufficient cpu"


def test_all_shortages_of_a_node_are_told() -> None:
    found = plan(snapshot(node("n", "1", "1Gi", bandwidth=1)), facts("p", "2", "2Gi", requests={BANDWIDTH: 2}))
    assert isinstance(found, Unschedulable)
    assert found.message == (
        f"0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient {BANDWIDTH}, 1 Insufficient memory."
    )
    assert found.reason == "Unschedulable"  # bandwidth is not what keeps it from running


@pytest.mark.parametrize(
    ("nodes", "pod", "reason", "message"),
    [
        pytest.param([], facts("p"), "Unschedulable", "no nodes available to schedule pods", id="no-nodes"),
        pytest.param(
            [node("a", "1"), node("b", taints=[TAINT]), node("c", taints=[TAINT])],
            facts("p", "2"),
            "Unschedulable",
            "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint {k: v}.",
            id="counted",
        ),
        pytest.param(
            [node("a", bandwidth=10), node("b", unschedulable=True)],
            facts("p", requests={BANDWIDTH: 20}),
            "BandwidthInsufficient",
            f"0/2 nodes are available: 1 Insufficient {BANDWIDTH}, 1 node(s) were unschedulable.",
            id="bandwidth",
        ),
        pytest.param(
            [node("a", "1", bandwidth=10), node("b", bandwidth=10)],
            facts("p", "2", requests={BANDWIDTH: 20}),
            "BandwidthInsufficient",
            f"0/2 nodes are available: 1 Insufficient cpu, 2 Insufficient {BANDWIDTH}.",
            id="bandwidth-alone-somewhere",
        ),
    ],
)
def test_messages(nodes: list[Any], pod: PodFacts, reason: str, message: str) -> None:
    found = plan(snapshot(*nodes), pod)
    assert isinstance(found, Unschedulable)
    assert (found.reason, found.message) == (reason, message)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({"containers": [("1", "1Gi"), ("500m", "1Gi")]}, (1500, 2 << 30), id="containers-add-up"),
        pytest.param({"containers": [("1", "")], "init": [("3", "", "")]}, (3000, 0), id="greatest-init-counts"),
        pytest.param(
            {"containers": [("1", "")], "init": [("2", "", "Always"), ("1", "", "")]}, (3000, 0), id="sidecar"
        ),
        pytest.param({"containers": [("1", "")], "overhead": {"cpu": "250m"}}, (1250, 0), id="overhead"),
        pytest.param({"containers": [("1", "")], "pod": {"cpu": "4"}}, (4000, 0), id="pod-level"),
    ],
)
def test_requests_of_a_pod(spec: dict[str, Any], expected: tuple[int, int]) -> None:
    def container(cpu: str, memory: str, restart: str = "") -> dict[str, Any]:
        asked = {k: v for k, v in (("cpu", cpu), ("memory", memory)) if v}
        return {"name": "c", "resources": {"requests": asked}, **({"restartPolicy": restart} if restart else {})}

    made: dict[str, Any] = {"containers": [container(*c) for c in spec["containers"]]}
    if "init" in spec:
        made["initContainers"] = [container(*c) for c in spec["init"]]
    if "overhead" in spec:
        made["overhead"] = spec["overhead"]
    if "pod" in spec:
        made["resources"] = {"requests": spec["pod"]}
    pod = facts("p", **made)
    assert (pod.cpu, pod.memory) == expected


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("Insufficient cpu", UnschedulableCause.ROOM),
        (filters.TOO_MANY_PODS, UnschedulableCause.ROOM),
        (filters.NO_PORTS, UnschedulableCause.ROOM),
        (filters.NOT_AFFINE, UnschedulableCause.FACE),
        (filters.NOT_READY, UnschedulableCause.FACE),
        ("node(s) had untolerated taint {k: v}", UnschedulableCause.FACE),
        (filters.ANTI_AFFINITY, UnschedulableCause.NEIGHBOURS | UnschedulableCause.FACE),
        (filters.SKEWED, UnschedulableCause.NEIGHBOURS | UnschedulableCause.FACE),
    ],
)
def test_what_could_lift_a_reason(reason: str, cause: UnschedulableCause) -> None:
    assert cause_of(reason) == cause


def test_one_node_can_be_asked_alone() -> None:
    cluster = snapshot(node("small", "1"), node("large", "8"), node("off", "8", ready="False"))
    pod = facts("p", "2")
    assert [could_take(cluster, name, pod) for name in ("small", "large", "off", "unknown")] == [
        False,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ({}, None),
        ({COTERIE_POD_NAMESPACE: "default"}, None),
        ({COTERIE_POD_NAMESPACE: "alice"}, filters.OTHER_NAMESPACE),
    ],
)
def test_a_node_may_take_the_pods_of_one_namespace_only(label: dict[str, str], expected: str | None) -> None:
    pod = facts("p")
    assert pod.key.namespace == "default"
    assert rejection(node("n", labels=label), pod) == expected


def test_static_filters_agree_with_the_candidates() -> None:
    cluster = snapshot(node("a"), node("b", unschedulable=True), node("c", labels={"x": "1"}))
    demand = StaticDemand(selector=(("x", "1"),))
    found = cluster.candidates(demand)
    assert [state.name for state in found.nodes] == ["c"]
    assert found.rejected == {filters.NOT_AFFINE: 1, filters.UNSCHEDULABLE: 1}
    for state in cluster.nodes:
        assert state.facts is not None
        assert (static_rejection(state.facts, demand) is None) == (state in found.nodes)


def test_an_empty_state_takes_nothing() -> None:
    assert not filters.fits(NodeState("ghost"), facts("p"))
