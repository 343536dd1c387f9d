"""How pods are spread over nodes and zones: rows C-39 to C-42, what is done by default, and topology spread constraints."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from scheduling_kit import GangEngine, bound, facts, node, pod, snapshot

from coterie.kube.api.types.network import SERVICES, Service
from coterie.kube.api.types.pods import Pod
from coterie.kube.scheduler.effects import Bind, Report
from coterie.kube.scheduler.plan import Placement, Unschedulable, plan

ZONE = "topology.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"


class Cluster:
    """An engine whose bindings are carried out at once."""

    def __init__(self, *nodes: Any) -> None:
        self.now = 0.0
        self.engine = GangEngine(lambda: self.now)
        for one in nodes:
            self.engine.node_seen(one)
        self.reports: list[Report] = []

    def place(self, *pods: Pod) -> list[str]:
        """Where they go, one after the other; empty for those that wait."""
        out = []
        for one in pods:
            self.engine.pod_seen(one)
            out.append(self.run({one.metadata.uid: one}).get(one.metadata.name, ""))
        return out

    def run(self, pods: dict[str, Pod]) -> dict[str, str]:
        placed = {}
        for effect in self.engine.run():
            if isinstance(effect, Bind):
                self.engine.pod_seen(bound(pods[effect.pod.uid], effect.node))
                placed[effect.pod.key.name] = effect.node
            elif isinstance(effect, Report):
                self.reports.append(effect)
        return placed


def pods(count: int, **more: Any) -> list[Pod]:
    return [pod(f"p{i}", **more) for i in range(count)]


OWNERS = [pytest.param({"owner": "rs"}, id="replicaset"), pytest.param({}, id="bare")]


@pytest.mark.parametrize("more", OWNERS)
def test_c39_a_pod_goes_only_to_nodes_with_all_its_labels(more: dict[str, Any]) -> None:
    both = {"disk": "ssd", "site": "north"}
    cluster = Cluster(node("a", labels={"disk": "ssd"}), node("b", labels=both), node("c", labels={"site": "north"}))
    assert cluster.place(*pods(10, nodeSelector=both, **more)) == ["b"] * 10


@pytest.mark.parametrize("more", OWNERS)
def test_c40_matching_nodes_take_turns(more: dict[str, Any]) -> None:
    cluster = Cluster(node("a", labels={"disk": "ssd"}), node("b"), node("c", labels={"disk": "ssd"}))
    where = cluster.place(*pods(10, nodeSelector={"disk": "ssd"}, **more))
    assert where in (["a", "c"] * 5, ["c", "a"] * 5), "alternating"


@pytest.mark.parametrize("more", OWNERS)
def test_c41_without_a_selector_all_ready_nodes_take_turns(more: dict[str, Any]) -> None:
    cluster = Cluster(*(node(name) for name in "abc"), node("down", ready="False"))
    where = cluster.place(*pods(9, **more))
    assert Counter(where) == {"a": 3, "b": 3, "c": 3}
    assert all(len(set(where[at : at + 3])) == 3 for at in range(0, 9, 3)), "in turns"


def test_c42_a_pod_waits_without_retries_and_runs_when_a_matching_node_joins() -> None:
    cluster = Cluster(node("a"), node("b"))
    waiting = pod("p", nodeSelector={"gpu": "yes"})
    assert cluster.place(waiting) == [""]
    assert "didn't match Pod's node affinity/selector" in cluster.reports[0].message
    attempts = _attempts(cluster)
    for _ in range(100):
        cluster.now += 1.0
        assert cluster.run({}) == {}
        cluster.engine.node_seen(node("a"))  # a heartbeat
        cluster.place(pod(f"other{cluster.now}"))
    cluster.run({})
    assert attempts.count("p") == 0 and len(attempts) == 100, "the others were tried, this one was not"
    assert cluster.engine.next_due() == 300.0, "it is woken by changes; the timer is only insurance"
    cluster.engine.node_seen(node("c", labels={"gpu": "no"}))
    assert cluster.run({waiting.metadata.uid: waiting}) == {}
    cluster.engine.node_seen(node("d", labels={"gpu": "yes"}))
    assert cluster.run({waiting.metadata.uid: waiting}) == {"p": "d"}


def _attempts(cluster: Cluster) -> list[str]:
    """Names of the pods that are tried from now on."""
    tried: list[str] = []
    attempt = cluster.engine._attempt

    def counted(one: Any) -> None:
        tried.append(one.key.name)
        attempt(one)

    cluster.engine._attempt = counted  # type: ignore[method-assign]
    return tried


# By default.


def service(name: str, **selector: str) -> Service:
    body = {"metadata": {"name": name, "namespace": "default"}, "spec": {"selector": selector}}
    return SERVICES.decode(msgspec.json.encode(body))


def test_pods_of_a_service_are_spread_although_nobody_owns_them() -> None:
    """Node b is nearly full, so that without the Service all would go to a."""

    def filled() -> Cluster:
        cluster = Cluster(node("a"), node("b"))
        cluster.engine.pod_seen(pod("filler", "2", node="b", phase="Running"))
        return cluster

    web = pods(4, labels={"app": "web"})
    assert Counter(filled().place(*web))["a"] == 4
    spread = filled()
    spread.engine.service_seen(service("web", app="web"))
    assert Counter(spread.place(*web)) == {"a": 2, "b": 2}
    spread.engine.service_gone(service("web", app="web").key)
    assert spread.engine.snapshot.services_of(facts("x", labels={"app": "web"})) == []


def test_services_that_change_or_share_a_selector() -> None:
    cluster = snapshot(node("a"))
    one, two = service("one", app="web"), service("two", app="web")
    cluster.set_service(one.key, one.spec.selector)
    cluster.set_service(two.key, two.spec.selector)
    web, db = facts("w", labels={"app": "web"}), facts("d", labels={"app": "db"})
    cluster.set_service(one.key, {"app": "db"})
    assert len(cluster.services_of(web)) == 1 and len(cluster.services_of(db)) == 1
    cluster.set_service(one.key, None)
    cluster.set_service(two.key, None)
    assert cluster.services_of(web) == [] == cluster.services_of(db)


def test_replicas_are_spread_over_zones_as_well() -> None:
    zones = {"a1": "a", "a2": "a", "b1": "b"}
    cluster = Cluster(*(node(name, labels={ZONE: zone}) for name, zone in zones.items()))
    where = cluster.place(*pods(2, owner="rs"))
    assert {zones[name] for name in where} == {"a", "b"}


# Constraints.


def spread(skew: int = 1, key: str = ZONE, when: str = "DoNotSchedule", **more: Any) -> list[dict[str, Any]]:
    selector = {"matchLabels": {"app": "web"}}
    return [{"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": when, "labelSelector": selector, **more}]


def web(name: str, **more: Any) -> Pod:
    return pod(name, labels={"app": "web", **more.pop("labels", {})}, **more)


def zoned(**zones: str) -> list[Any]:
    return [node(name, labels={ZONE: zone}) for name, zone in zones.items()]


def test_zones_stay_within_the_skew() -> None:
    cluster = Cluster(*zoned(a1="a", a2="a", a3="a", b1="b"))
    where = cluster.place(*(web(f"p{i}", topologySpreadConstraints=spread()) for i in range(8)))
    assert Counter(name[0] for name in where) == {"a": 4, "b": 4}
    loose = Cluster(*zoned(a1="a", a2="a", a3="a", b1="b"))
    where = loose.place(*(web(f"p{i}", topologySpreadConstraints=spread(2, HOST)) for i in range(8)))
    assert max(Counter(where).values()) - min(Counter(where).values()) <= 2


def test_a_constraint_that_cannot_be_met_waits_and_a_new_domain_helps() -> None:
    cluster = Cluster(*zoned(a1="a"))
    first, second = (web(f"p{i}", topologySpreadConstraints=spread(minDomains=2)) for i in range(2))
    assert cluster.place(first, second) == ["a1", ""]
    assert "didn't match pod topology spread constraints" in cluster.reports[0].message
    cluster.engine.node_seen(zoned(b1="b")[0])
    assert cluster.run({second.metadata.uid: second}) == {"p1": "b1"}


def test_schedule_anyway_prefers_but_does_not_insist() -> None:
    cluster = Cluster(*zoned(a1="a", b1="b"))
    soft = spread(when="ScheduleAnyway")
    assert Counter(cluster.place(*(web(f"p{i}", topologySpreadConstraints=soft) for i in range(6)))) == {
        "a1": 3,
        "b1": 3,
    }
    alone = Cluster(*zoned(a1="a"), node("full", "0", labels={ZONE: "b"}))
    assert alone.place(*(web(f"p{i}", cpu="100m", topologySpreadConstraints=soft) for i in range(3))) == ["a1"] * 3


def test_match_label_keys_count_one_revision_only() -> None:
    """A rolling update is spread by itself: pods of the old revision do not push the new ones together."""
    old = {"a": [facts(f"o{i}", labels={"app": "web", "rev": "1"}) for i in range(2)]}
    nodes = [node("a", labels={ZONE: "a"}), node("b", labels={ZONE: "b"})]
    new = {"app": "web", "rev": "2"}
    placed = {**old, "b": [facts("n0", labels=new)]}
    by_revision = facts("n1", labels=new, topologySpreadConstraints=spread(matchLabelKeys=["rev"]))
    found = plan(snapshot(*nodes, placed=placed), by_revision)
    assert isinstance(found, Placement) and found.node == "a"
    together = facts("n1", labels=new, topologySpreadConstraints=spread())
    found = plan(snapshot(*nodes, placed=placed), together)
    assert isinstance(found, Placement) and found.node == "b"


@pytest.mark.parametrize(
    ("policy", "fits"),
    [
        pytest.param({}, False, id="ignore-is-the-default"),
        pytest.param({"nodeTaintsPolicy": "Ignore"}, False, id="ignore"),
        pytest.param({"nodeTaintsPolicy": "Honor"}, True, id="honor"),
    ],
)
def test_node_taints_policy(policy: dict[str, str], fits: bool) -> None:
    taint = [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]
    nodes = [node("a", labels={ZONE: "a"}), node("b", labels={ZONE: "b"}, taints=taint)]
    cluster = snapshot(*nodes, placed={"a": [facts("o", labels={"app": "web"})]})
    asked = facts("p", labels={"app": "web"}, topologySpreadConstraints=spread(**policy))
    assert isinstance(plan(cluster, asked), Placement) == fits


def test_pods_that_are_being_deleted_do_not_count() -> None:
    """As in Kubernetes: otherwise the replacements of a rolling update go where nobody leaves."""
    leaving = msgspec.structs.replace(
        web("old"), metadata=msgspec.structs.replace(web("old").metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    )
    cluster = Cluster(*zoned(a1="a", b1="b"))
    cluster.engine.pod_seen(bound(web("old"), "a1"))
    probe = facts("p", labels={"app": "web"}, topologySpreadConstraints=spread())
    found = plan(cluster.engine.snapshot, probe)
    assert isinstance(found, Placement) and found.node == "b1"
    cluster.engine.pod_seen(bound(leaving, "a1"), bound(web("old"), "a1"))
    cluster.engine.pod_seen(bound(web("new"), "b1"))
    found = plan(cluster.engine.snapshot, probe)
    assert isinstance(found, Placement) and found.node == "a1"


def test_two_constraints_hold_together() -> None:
    both = [*spread(), *spread(key=HOST)]
    cluster = Cluster(*zoned(a1="a", a2="a", b1="b"))
    where = cluster.place(*(web(f"p{i}", topologySpreadConstraints=both) for i in range(4)))
    assert Counter(where[:2])["b1"] == 1
    full = plan(
        cluster.engine.snapshot,
        facts("q", labels={"app": "web"}, topologySpreadConstraints=[*both, *spread(key="rack")]),
    )
    assert isinstance(full, Unschedulable) and "missing required label" in full.message
