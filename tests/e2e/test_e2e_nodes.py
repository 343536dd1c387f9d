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


_STAYS = [{"key": f"node.kubernetes.io/{key}", "operator": "Exists"} for key in ("not-ready", "unreachable")]
"""Tolerations of a pod that nobody moves, however long its node is silent."""


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


def test_a_volume_stays_on_its_node_and_daemons_run_on_all(joined: Cluster) -> None:
    """Joined nodes read the volumes of their pods with their own rights only."""
    claim = {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
    }
    main = container(script="date >> /data/starts; sleep 1000", volumeMounts=[{"name": "data", "mountPath": "/data"}])
    stateful = deployment("db", 2, main, serviceName="db", volumeClaimTemplates=[claim], podManagementPolicy="Parallel")
    daemons = deployment("ds", 0)
    del daemons["spec"]["replicas"]
    joined.apply({**stateful, "kind": "StatefulSet"}, {**daemons, "kind": "DaemonSet"})
    joined.do("rollout status ds/ds --timeout=60s")
    assert _on(joined, "ds") == {"node-1", "node-2"}
    until("both have their volume", lambda: joined.json("get sts db")["status"].get("readyReplicas") == 2)
    where = joined.pod("db-0")["spec"]["nodeName"]
    volume = joined.json("get pvc data-db-0")["spec"]["volumeName"]
    files = joined.nodes[where].home / "var" / "volumes" / volume
    assert (files / "starts").exists()
    # The volume's node is drained: the pod waits for it, and has its files again. Daemons stay.
    daemon = {p["metadata"]["uid"] for p in _live(joined, "ds")}
    joined.do(f"drain {where} --timeout=60s --ignore-daemonsets")
    try:
        why = "1 node(s) didn't match PersistentVolume's node affinity"
        until("it waits for its node", lambda: why in joined.do("describe pod db-0"))
        assert {p["metadata"]["uid"] for p in _live(joined, "ds")} == daemon
    finally:
        joined.do(f"uncordon {where}")
    assert joined.ready("db-0")["spec"]["nodeName"] == where
    assert len(joined.do("exec db-0 -- cat /data/starts").splitlines()) == 2
    joined.do("delete sts db --timeout=30s")
    joined.do("delete pvc data-db-0 --timeout=30s")
    until("the files are gone", lambda: not files.exists())


def test_drain_waits_for_a_disruption_budget_and_works_through(joined: Cluster) -> None:
    """The budget lets one pod go at a time; kubectl tries again until the replacements are ready."""
    joined.apply(deployment("guarded", 3), _budget("guarded", maxUnavailable=1))
    joined.do("rollout status deployment/guarded --timeout=60s")
    until("the budget allows one", lambda: joined.json("get pdb guarded")["status"]["disruptionsAllowed"] == 1)
    try:
        before = {p["metadata"]["name"] for p in _live(joined, "guarded") if p["spec"]["nodeName"] == "node-1"}
        assert len(before) >= 1
        drained = joined.do("drain node-1 --timeout=90s --ignore-daemonsets")
        assert "node/node-1 drained" in drained
        until("all run on the other", lambda: _on(joined, "guarded") == {"node-2"})
        assert not before & {p["metadata"]["name"] for p in _live(joined, "guarded")}
        until("it is whole again", lambda: joined.json("get pdb guarded")["status"]["disruptionsAllowed"] == 1)
        status = joined.json("get pdb guarded")["status"]
        assert (status["expectedPods"], status["currentHealthy"], status["desiredHealthy"]) == (3, 3, 2)
        # Nobody may go now: a drain of the only node left does not get through.
        joined.do('patch pdb guarded --type=merge -p \'{"spec": {"maxUnavailable": 0}}\'')
        refused = joined.fail("drain node-2 --timeout=2s --ignore-daemonsets --pod-selector=app=guarded")
        assert "violate the pod's disruption budget" in refused
        assert len(_live(joined, "guarded")) == 3
    finally:
        joined.do("uncordon node-1 node-2")


def _budget(app: str, **spec: Any) -> dict[str, Any]:
    selector = {"matchLabels": {"app": app}}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": app},
        "spec": {"selector": selector, **spec},
    }


def test_pods_outlive_a_killed_agent(joined: Cluster) -> None:
    """20 times kill -9 under 30 pods: nobody notices but the agent."""
    joined.apply(
        *(
            pod(
                f"steady-{n}",
                container(script="echo begun; sleep 1000"),
                labels={"app": "steady"},
                tolerations=_STAYS,
            )
            for n in range(_PODS)
        ),
        pod(
            "ends",
            container(script="sleep 4; exit 6"),
            restartPolicy="Never",
            labels={"app": "other"},
            tolerations=_STAYS,
        ),
    )
    until("all run", lambda: all(condition(p, "Ready") == "True" for p in joined.pods("app=steady")), 90)
    before = {p["metadata"]["name"]: starts(p) for p in joined.pods("app=steady")}
    assert len(before) == _PODS
    for round_ in range(_KILLS):
        node = joined.nodes[("node-1", "node-2")[round_ % 2]]
        node.kill()
        node.start()
        time.sleep(_PAUSES[round_ // 2 % len(_PAUSES)])
    # What the API says may be from before the last kill, so the agents themselves are asked.
    one_of = {p["spec"]["nodeName"]: p["metadata"]["name"] for p in joined.pods("app=steady")}
    assert one_of.keys() == {"node-1", "node-2"}
    for name in one_of.values():
        until("its agent is back", lambda name=name: joined.try_("exec", name, "--", "true").rc == 0)
        assert joined.logs(name) == "begun\n"
    ended = state(joined.phase("ends", "Failed"))["state"]["terminated"]
    assert ended["exitCode"] == 6, "how it ended while nobody looked is known"
    time.sleep(1)
    # A busy machine may have started an agent so slowly that its node was taken for lost.
    until("all are ready", lambda: all(condition(p, "Ready") == "True" for p in joined.pods("app=steady")))
    after = {p["metadata"]["name"]: starts(p) for p in joined.pods("app=steady")}
    assert after == before, "none was restarted"
    assert len(_sleepers(joined.nodes["node-1"])) + len(_sleepers(joined.nodes["node-2"])) == _PODS


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


def test_a_node_that_was_cut_off_ends_what_was_replaced_and_nothing_else(joined: Cluster) -> None:
    """The agent is away, its containers are not: they are ended when it comes back."""
    here = {"kubernetes.io/hostname": "node-1"}
    joined.apply(
        deployment("cut", 4, container(script="sleep 1000 & wait")),
        pod("stays", container(script="sleep 1001"), nodeSelector=here, tolerations=_STAYS),
    )
    joined.do("rollout status deployment/cut --timeout=60s")
    before = starts(joined.ready("stays"))
    away = joined.nodes["node-1"]
    assert _sleepers(away)
    away.kill()
    try:
        until("all are replaced", lambda: _on(joined, "cut") == {"node-2"} and len(_live(joined, "cut")) == 4)
        assert _sleepers(away), "its containers went on"
        assert condition(joined.pod("stays"), "Ready") == "False", "nobody may rely on what nobody sees"
    finally:
        away.start()
    until("the old pods are gone", lambda: len(joined.pods("app=cut")) == 4)
    assert _sleepers(away) == []
    assert starts(joined.ready("stays")) == before, "who was not replaced goes on"


def _sleepers(node: Any) -> list[int]:
    family = [process for keeper in node.shepherds() for process in keeper.children(recursive=True)]
    return [process.pid for process in family if process.cmdline()[:2] == ["sleep", "1000"]]
