"""Daemon sets: which nodes, which pods and the status as rows; the rest on a real API server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from workload_world import DS, NODE, POD, REVISION, World, named_node, template, workload, world

from coterie.base.clock import rfc3339
from coterie.kube.api.meta import Object
from coterie.kube.api.types.apps import DAEMON_SETS, DaemonSet
from coterie.kube.api.types.nodes import NODES, Node
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.controllers.daemonset import controller, nodes, plan

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
MAKE = ("daemonset-controller", controller.make)
NEW, OLD = "new", "old"


def ago(seconds: float) -> str:
    return rfc3339(NOW - timedelta(seconds=seconds))


def node(name: str, *, labels: dict[str, str] | None = None, taints: Any = (), **spec: Any) -> Node:
    body = {"metadata": {"name": name, "labels": labels or {}}, "spec": {"taints": list(taints), **spec}}
    return NODES.decode(NODES.as_dynamic.encode(body))


def taint(key: str, effect: str = "NoSchedule") -> Object:
    return {"key": key, "effect": effect}


def daemon_set(*, strategy: Any = None, pod_spec: Any = None, status: Any = None, **spec: Any) -> DaemonSet:
    body = workload("ds", **spec)
    body["spec"]["template"]["spec"] |= pod_spec or {}
    body["spec"]["updateStrategy"] = strategy or {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}
    body["metadata"] |= {"uid": "ds", "generation": 3}
    body["status"] = status or {}
    return DAEMON_SETS.decode(DAEMON_SETS.as_dynamic.encode(body))


def pod(
    name: str, on: str = "", *, meant: str = "", revision: str = NEW, phase: str = "Running", ready: float | None = 100,
    deleting: bool = False, age: float = 1000,
) -> Pod:  # fmt: skip
    meta: Object = {"name": name, "uid": name, "namespace": "default", "creationTimestamp": ago(age)}
    meta["labels"] = {"app": "web", "controller-revision-hash": revision}
    if deleting:
        meta["deletionTimestamp"] = ago(1)
    spec = nodes.pod_for(daemon_set(), meant, NEW)["spec"] if meant else {"nodeName": on}
    word = "True" if ready is not None else "False"
    condition = {"type": "Ready", "status": word, "lastTransitionTime": ago(ready or 0)}
    body = {"metadata": meta, "spec": spec, "status": {"phase": phase, "conditions": [condition]}}
    return PODS.decode(PODS.as_dynamic.encode(body))


def planned(given: DaemonSet, on: list[Node], pods: list[Pod], pause: float = 0.0) -> tuple[list[str], list[str]]:
    wanted = plan.plan(plan.survey(given, on, pods, NEW, NOW), lambda name: pause)
    return sorted(wanted.create), sorted(each.metadata.name for each in wanted.delete)


AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}]
        }
    }
}


@pytest.mark.parametrize(
    ("given", "there", "run", "keep"),
    [
        ({}, node("a"), True, True),
        ({"nodeSelector": {"disk": "ssd"}}, node("a"), False, False),
        ({"nodeSelector": {"disk": "ssd"}}, node("a", labels={"disk": "ssd"}), True, True),
        ({"affinity": AFFINITY}, node("a"), False, False),
        ({"affinity": AFFINITY}, node("a", labels={"disk": "ssd"}), True, True),
        ({"nodeName": "b"}, node("a"), False, False),
        ({"nodeName": "a"}, node("a"), True, True),
        ({}, node("a", taints=[taint("k")]), False, True),
        ({}, node("a", taints=[taint("k", "NoExecute")]), False, False),
        ({}, node("a", taints=[taint("k", "PreferNoSchedule")]), True, True),
        ({"tolerations": [{"key": "k", "operator": "Exists"}]}, node("a", taints=[taint("k")]), True, True),
        ({}, node("a", taints=[taint("node.kubernetes.io/unschedulable")], unschedulable=True), True, True),
        ({}, node("a", taints=[taint("node.kubernetes.io/disk-pressure")]), True, True),
        ({}, node("a", taints=[taint("node.kubernetes.io/memory-pressure")]), True, True),
        ({}, node("a", taints=[taint("node.kubernetes.io/pid-pressure")]), True, True),
        ({}, node("a", taints=[taint("node.kubernetes.io/not-ready", "NoExecute")]), True, True),
        ({}, node("a", taints=[taint("node.kubernetes.io/unreachable", "NoExecute")]), True, True),
        # As in Kubernetes: no new pod on a node that is not ready, and the one that is there stays.
        ({}, node("a", taints=[taint("node.kubernetes.io/not-ready")]), False, True),
        ({}, node("a", taints=[taint("node.kubernetes.io/network-unavailable")]), False, True),
        ({"hostNetwork": True}, node("a", taints=[taint("node.kubernetes.io/network-unavailable")]), True, True),
        ({}, node("a", labels={"coterie.io/pod-namespace": "alice"}), False, False),
        ({}, node("a", labels={"coterie.io/pod-namespace": "default"}), True, True),
    ],
)
def test_which_nodes(given: Object, there: Node, run: bool, keep: bool) -> None:
    assert nodes.NodeMatcher(daemon_set(pod_spec=given)).fit(there) == nodes.NodeFit(run, keep)


def test_a_pod_names_its_node_and_keeps_other_wishes() -> None:
    preferred = [{"weight": 1, "preference": {"matchExpressions": [{"key": "x", "operator": "Exists"}]}}]
    affinity = {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": preferred,
            "requiredDuringSchedulingIgnoredDuringExecution": AFFINITY["nodeAffinity"][
                "requiredDuringSchedulingIgnoredDuringExecution"
            ],
        },
        "podAffinity": {},
    }
    own = {"key": "mine", "operator": "Exists"}
    made = nodes.pod_for(daemon_set(pod_spec={"affinity": affinity, "tolerations": [own]}), "n1", "h")
    assert made["metadata"]["labels"] == {"app": "web", "controller-revision-hash": "h"}
    assert made["metadata"]["ownerReferences"][0]["kind"] == "DaemonSet"
    placed = made["spec"]["affinity"]
    assert named_node(made["spec"]) == "n1"
    assert len(placed["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]) == 1
    assert placed["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] == preferred
    assert "podAffinity" in placed
    assert made["spec"]["tolerations"][0] == own
    assert len(made["spec"]["tolerations"]) == 7
    assert nodes.node_of(pod("p", meant="n1")) == "n1"
    assert nodes.node_of(pod("p", "n2")) == "n2"


A, B, C = node("a"), node("b"), node("c")
CLOSED = node("a", taints=[taint("k", "NoExecute")])
SURGE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}


@pytest.mark.parametrize(
    ("given", "on", "pods", "create", "delete"),
    [
        (daemon_set(), [A, B], [], ["a", "b"], []),
        (daemon_set(), [A, B], [pod("p", "a")], ["b"], []),
        (daemon_set(), [A], [pod("p", meant="a")], [], []),
        # One that is being deleted is still there: no second one beside it.
        (daemon_set(), [A], [pod("p", "a", deleting=True)], [], []),
        (daemon_set(), [A], [pod("p", "a", deleting=True, phase="Failed")], ["a"], []),
        (daemon_set(), [A], [pod("p", "a", age=5), pod("q", "a", age=9)], [], ["p"]),
        (daemon_set(), [A], [pod("p", "a", age=5), pod("q", meant="a", age=9)], [], ["q"]),
        (daemon_set(), [A], [pod("p", "a", phase="Failed")], [], ["p"]),
        (daemon_set(), [A], [pod("p", "a", phase="Succeeded")], [], ["p"]),
        (daemon_set(), [CLOSED], [pod("p", "a")], [], ["p"]),
        (daemon_set(), [CLOSED], [pod("p", "a", deleting=True)], [], []),
        # The node is gone: what was not bound goes now, the rest is the pod collector's.
        (daemon_set(), [], [pod("p", meant="a"), pod("q", "a")], [], ["p"]),
        # Rolling update.
        (daemon_set(), [A, B], [pod("p", "a", revision=OLD), pod("q", "b", revision=OLD)], [], ["p"]),
        (daemon_set(), [A, B], [pod("p", "a"), pod("q", "b", revision=OLD)], [], ["q"]),
        (daemon_set(), [A, B], [pod("p", "a", ready=None), pod("q", "b", revision=OLD)], [], []),
        (daemon_set(), [A, B], [pod("p", "a", revision=OLD, ready=None), pod("q", "b", revision=OLD)], [], ["p"]),
        (daemon_set(), [A, B], [pod("p", "a", revision=OLD, deleting=True), pod("q", "b", revision=OLD)], [], []),
        (
            daemon_set(strategy={"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "67%"}}),
            [A, B, C],
            [pod("p", "a", revision=OLD), pod("q", "b", revision=OLD), pod("r", "c", revision=OLD)],
            [],
            ["p", "q", "r"],
        ),
        (daemon_set(strategy={"type": "OnDelete"}), [A], [pod("p", "a", revision=OLD)], [], []),
        (
            daemon_set(minReadySeconds=60),
            [A, B],
            [pod("p", "a", ready=5), pod("q", "b", revision=OLD)],
            [],
            [],
        ),
        # Surge: the new one first.
        (daemon_set(strategy=SURGE), [A, B], [pod("p", "a", revision=OLD), pod("q", "b", revision=OLD)], ["a"], []),
        (
            daemon_set(strategy=SURGE),
            [A, B],
            [pod("p", "a", revision=OLD), pod("n", "a", ready=None), pod("q", "b", revision=OLD)],
            [],
            [],
        ),
        (
            daemon_set(strategy=SURGE),
            [A, B],
            [pod("p", "a", revision=OLD), pod("n", "a"), pod("q", "b", revision=OLD)],
            [],
            ["p"],
        ),
        (daemon_set(strategy=SURGE), [A], [pod("p", "a", revision=OLD, ready=None), pod("n", "a", ready=None)], [], ["p"]),
        (daemon_set(strategy=SURGE), [A, B], [pod("p", "a", revision=OLD, ready=None), pod("q", "b")], ["a"], []),
    ],
)  # fmt: skip
def test_plan(given: DaemonSet, on: list[Node], pods: list[Pod], create: list[str], delete: list[str]) -> None:
    assert planned(given, on, pods) == (create, delete)


def test_a_pod_that_failed_again_waits() -> None:
    known = plan.survey(daemon_set(), [A], [pod("p", "a", phase="Failed")], NEW, NOW)
    wanted = plan.plan(known, lambda name: 4.0)
    assert (wanted.delete, wanted.after) == ([], 4.0)


def test_status() -> None:
    pods = [
        pod("p", "a"),
        pod("q", "b", revision=OLD, ready=3),
        pod("r", "c", ready=None),
        pod("s", "d"),
    ]
    on = [A, B, C, node("d", taints=[taint("k")]), node("e")]
    known = plan.survey(daemon_set(minReadySeconds=10), on, pods, NEW, NOW)
    new, wait = plan.status(known)
    assert msgspec.to_builtins(new) == {
        "desiredNumberScheduled": 4,
        "currentNumberScheduled": 3,
        "numberMisscheduled": 1,
        "numberReady": 2,
        "updatedNumberScheduled": 2,
        "numberAvailable": 1,
        "numberUnavailable": 3,
        "observedGeneration": 3,
    }
    assert wait == 7.0


async def add_node(w: World, name: str, **spec: Any) -> None:
    await w.client.create(NODE, {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}, "spec": spec})
    if name not in w.nodes:
        w.nodes.append(name)


async def where(w: World, *, alive: bool = True) -> list[str]:
    return sorted(named_node(p["spec"]) for p in await w.pods(alive=alive))


async def images(w: World) -> list[str]:
    return sorted(p["spec"]["containers"][0]["image"] for p in await w.pods(alive=True))


async def rolled_out(w: World, count: int) -> None:
    async def done() -> bool:
        found = await w.get(DS, "ds")
        status = found.get("status") or {}
        return (
            status.get("observedGeneration") == found["metadata"]["generation"]
            and status.get("numberAvailable", 0) == status.get("updatedNumberScheduled", 0) == count
            and status.get("desiredNumberScheduled") == count
        )

    await w.until(done)


async def test_nodes_come_and_go() -> None:
    async with world(MAKE) as w:
        w.nodes = []
        await add_node(w, "n1")
        await add_node(w, "n2", unschedulable=True)
        await w.client.create(DS, workload("ds"))
        await rolled_out(w, 2)
        assert await where(w) == ["n1", "n2"]
        assert all(p["spec"]["nodeName"] == named_node(p["spec"]) for p in await w.pods())
        await add_node(w, "n3")
        await rolled_out(w, 3)
        # A pod that is deleted comes again; one that fails is replaced.
        first = (await w.pods())[0]["metadata"]["name"]
        await w.client.delete(POD, first, "default")
        await rolled_out(w, 3)
        assert first not in [p["metadata"]["name"] for p in await w.pods(alive=True)]
        # A taint that evicts takes the pod away, and the node is not wanted any more.
        await w.client.patch(NODE, "n1", "", {"spec": {"taints": [taint("gone", "NoExecute")]}})
        await rolled_out(w, 2)
        await w.until(lambda: _equals(where(w, alive=False), ["n2", "n3"]))
        await w.client.delete(NODE, "n2")
        await rolled_out(w, 1)
        assert ("SuccessfulCreate", f"Created pod: {first}") in await w.events()


async def _equals(question: Any, wanted: Any) -> bool:
    return bool(await question == wanted)


async def test_a_failed_pod_is_told_and_replaced_ever_more_slowly() -> None:
    async with world(MAKE) as w:
        w.nodes = []
        await add_node(w, "n1")
        w.outcome = lambda p: "Failed"
        await w.client.create(DS, workload("ds"))
        await w.settle(40)
        assert 4 <= len(w.started) <= 8
        reasons = {reason for reason, _ in await w.events()}
        assert "FailedDaemonPod" in reasons
        w.outcome = lambda p: "Running"
        await rolled_out(w, 1)


async def test_rolling_update_and_history_and_going_back() -> None:
    async with world(MAKE) as w:
        w.nodes = []
        for name in ("n1", "n2", "n3"):
            await add_node(w, name)
        await w.client.create(DS, workload("ds", revisionHistoryLimit=1))
        await rolled_out(w, 3)
        for image in ("i:2", "i:3", "i:4"):
            await w.client.patch(DS, "ds", "default", {"spec": {"template": template(image=image)}})
            least = 3
            async for _ in _steps(w, 400):
                ready = [p for p in await w.pods(alive=True) if _is_ready(p)]
                least = min(least, len(ready))
                if await images(w) == [image] * 3 and len(ready) == 3:
                    break
            assert least >= 2  # never more than one is missing
            await rolled_out(w, 3)
        revisions = sorted(await w.list(REVISION), key=lambda r: r["revision"])
        assert [r["revision"] for r in revisions] == [3, 4]
        # As kubectl rollout undo does: the patch of an old revision.
        await w.client.patch(DS, "ds", "default", revisions[0]["data"], type="strategic")
        await rolled_out(w, 3)
        assert await images(w) == ["i:3"] * 3
        again = {r["metadata"]["name"]: r["revision"] for r in await w.list(REVISION)}
        assert again[revisions[0]["metadata"]["name"]] == 5
        assert len(again) == 2


async def _steps(w: World, count: int) -> Any:
    for _ in range(count):
        await w.settle(0.2)
        yield


def _is_ready(found: Object) -> bool:
    conditions = (found.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


async def test_surge_never_leaves_a_node_without_a_pod() -> None:
    async with world(MAKE) as w:
        w.nodes = []
        for name in ("n1", "n2"):
            await add_node(w, name)
        await w.client.create(DS, workload("ds", updateStrategy=SURGE))
        await rolled_out(w, 2)
        await w.client.patch(DS, "ds", "default", {"spec": {"template": template(image="i:2")}})
        most = 0
        async for _ in _steps(w, 400):
            live = await w.pods(alive=True)
            most = max(most, len(live))
            assert {p["spec"].get("nodeName") for p in live if _is_ready(p)} == {"n1", "n2"}
            if await images(w) == ["i:2"] * 2:
                break
        assert most == 3
        await rolled_out(w, 2)


async def test_on_delete_waits() -> None:
    async with world(MAKE) as w:
        w.nodes = []
        await add_node(w, "n1")
        await w.client.create(DS, workload("ds", updateStrategy={"type": "OnDelete"}))
        await rolled_out(w, 1)
        await w.client.patch(DS, "ds", "default", {"spec": {"template": template(image="i:2")}})
        await w.settle(5)
        assert await images(w) == ["i:1"]
        assert (await w.status(DS, "ds")).get("updatedNumberScheduled", 0) == 0
        await w.client.delete(POD, (await w.pods())[0]["metadata"]["name"], "default")
        await rolled_out(w, 1)
        assert await images(w) == ["i:2"]


async def test_restarted_controllers_make_no_second_pod() -> None:
    async with world(MAKE) as w:
        w.nodes = []
        for name in ("n1", "n2", "n3"):
            await add_node(w, name)
        w.faults.share = 0.3
        await w.client.create(DS, workload("ds"))
        for _ in range(5):
            await w.settle(1)
            await w.stop()
            await w.start()
            assert len(set(await where(w))) == len(await where(w))
        w.faults.share = 0.0
        await rolled_out(w, 3)
        assert await where(w) == ["n1", "n2", "n3"]
