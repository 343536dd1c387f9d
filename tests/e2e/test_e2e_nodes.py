"""A master and two nodes that joined it: pods move, survive crashes of agents, and are replaced when a node is lost."""

from __future__ import annotations

import time
from typing import Any

import pytest
from e2e_kit import Cluster, condition, container, deployment, pod, starts, state, until

pytestmark = pytest.mark.xdist_group("e2e-nodes")

_KILLS = 20
_PODS = 30
_PAUSES = (0.1, 0.4, 0.8, 1.2)
"""Seconds between kills: some fall into the agent's start, some into its first look at its pods, some after both."""


def _live(cluster: Cluster, app: str) -> list[dict[str, Any]]:
    return [p for p in cluster.pods(f"app={app}") if "deletionTimestamp" not in p["metadata"]]


def _on(cluster: Cluster, app: str) -> set[str]:
    """Where the pods are, once all are ready."""
    live = _live(cluster, app)
    if not all(condition(p, "Ready") == "True" for p in live):
        return set()
    return {p["spec"]["nodeName"] for p in live}


def test_drain_moves_pods(joined: Cluster) -> None:
    joined.apply(deployment("web", 4))
    joined.do("rollout status deployment/web --timeout=60s")
    assert _on(joined, "web") == {"node-1", "node-2"}, "pods are spread"
    assert "node/node-1 drained" in joined.do("drain node-1 --timeout=60s --ignore-daemonsets")
    try:
        until("all run on the other", lambda: _on(joined, "web") == {"node-2"} and len(_live(joined, "web")) == 4)
        joined.apply(pod("wants", container(), nodeSelector={"kubernetes.io/hostname": "node-1"}))
        until("why it waits is told", lambda: "1 node(s) were unschedulable" in joined.do("describe pod wants"))
    finally:
        joined.do("uncordon node-1")
    joined.ready("wants")
    joined.do("logs wants")
    joined.do("exec wants -- true")


def test_pods_outlive_a_killed_agent(joined: Cluster) -> None:
    """20 times kill -9 under 30 pods: nobody notices but the agent."""
    joined.apply(
        *(
            pod(f"steady-{n}", container(script="echo begun; sleep 1000"), labels={"app": "steady"})
            for n in range(_PODS)
        ),
        pod("ends", container(script="sleep 4; exit 6"), restartPolicy="Never", labels={"app": "other"}),
    )
    until("all run", lambda: all(condition(p, "Ready") == "True" for p in joined.pods("app=steady")), 90)
    before = {p["metadata"]["name"]: starts(p) for p in joined.pods("app=steady")}
    assert len(before) == _PODS
    for round_ in range(_KILLS):
        node = joined.nodes[("node-1", "node-2")[round_ % 2]]
        node.kill()
        node.start()
        time.sleep(_PAUSES[round_ // 2 % len(_PAUSES)])
    until("both nodes are back", lambda: joined.ready_nodes() >= {"node-1", "node-2"})
    ended = state(joined.phase("ends", "Failed"))["state"]["terminated"]
    assert ended["exitCode"] == 6, "how it ended while nobody looked is known"
    until("all are told as ready", lambda: all(condition(p, "Ready") == "True" for p in joined.pods("app=steady")))
    after = {p["metadata"]["name"]: starts(p) for p in joined.pods("app=steady")}
    assert after == before, "none was restarted"
    name = sorted(before)[0]
    assert joined.logs(name) == "begun\n"
    assert joined.do(f"exec {name} -- echo still here") == "still here\n"


def test_a_lost_node_is_replaced_and_nothing_runs_twice(joined: Cluster) -> None:
    joined.apply(deployment("web", 4, container(script="echo $HOSTNAME; sleep 1000")))
    joined.do("rollout status deployment/web --timeout=60s")
    assert _on(joined, "web") == {"node-1", "node-2"}
    lost = joined.nodes["node-2"]
    names = {p["metadata"]["name"] for p in _live(joined, "web") if p["spec"]["nodeName"] == "node-2"}
    began = time.monotonic()
    lost.die()
    try:
        until("the node is not ready", lambda: "node-2" not in joined.ready_nodes())
        until("all are replaced", lambda: _on(joined, "web") == {"node-1"} and len(_live(joined, "web")) == 4)
        # 5 s without a sign of life, 2 s until eviction, and the time to start them.
        assert time.monotonic() - began < 30
        gone = {p["metadata"]["name"] for p in joined.pods("app=web") if "deletionTimestamp" in p["metadata"]}
        assert gone == names, "nobody can say that they ended"
        assert "NodeLost" in joined.do(f"get pod {min(names)} -o yaml")
    finally:
        lost.start()
    until("it is back", lambda: joined.ready_nodes() >= {"node-1", "node-2"})
    until("the old pods are gone", lambda: len(joined.pods("app=web")) == 4)
    assert {p["spec"]["nodeName"] for p in joined.pods("app=web")} == {"node-1"}
    assert _sleepers(lost) == []


def test_a_node_that_was_cut_off_ends_what_was_replaced(joined: Cluster) -> None:
    """The agent is away, its containers are not: they are ended when it comes back."""
    joined.apply(deployment("cut", 4, container(script="sleep 1000 & wait")))
    joined.do("rollout status deployment/cut --timeout=60s")
    away = joined.nodes["node-1"]
    assert _sleepers(away)
    away.kill()
    try:
        until("all are replaced", lambda: _on(joined, "cut") == {"node-2"} and len(_live(joined, "cut")) == 4)
        assert _sleepers(away), "its containers went on"
    finally:
        away.start()
    until("the old pods are gone", lambda: len(joined.pods("app=cut")) == 4)
    assert _sleepers(away) == []


def _sleepers(node: Any) -> list[int]:
    family = [process for keeper in node.shepherds() for process in keeper.children(recursive=True)]
    return [process.pid for process in family if process.cmdline()[:2] == ["sleep", "1000"]]
