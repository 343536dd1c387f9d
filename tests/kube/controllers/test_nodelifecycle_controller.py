"""Nodes that die, come back, lie about the time; their pods. Rows of the plan, then a real API server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from workload_world import LEASE, NODE, POD, RS, World, workload, world

from coterie.base.clock import rfc3339, rfc3339_micro
from coterie.kube.api.meta import Object
from coterie.kube.api.types.coordination import LEASES, Lease
from coterie.kube.api.types.nodes import NODES, Node, Taint
from coterie.kube.api.types.pods import PODS, Pod, Toleration
from coterie.kube.controllers.nodelifecycle import controller, plan
from coterie.kube.controllers.podgc import controller as podgc
from coterie.kube.controllers.podgc import plan as collecting
from coterie.kube.controllers.replicaset import controller as replicasets
from coterie.kuscia.api.labels import KUSCIA_AGENT_TAINT

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
SETTINGS = plan.Settings()
UNREACHABLE, NOT_READY = "node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"


def node(
    ready: str | None = "True", *, taints: Any = (), unschedulable: bool = False, beat: str = "a", **conditions: str
) -> Node:
    told = [{"type": type_, "status": word, "lastHeartbeatTime": beat} for type_, word in conditions.items()]
    if ready is not None:
        told.append({"type": "Ready", "status": ready, "lastHeartbeatTime": beat})
    body = {
        "metadata": {"name": "n", "uid": "n"},
        "spec": {"taints": list(taints), "unschedulable": unschedulable},
        "status": {"conditions": told},
    }
    return NODES.decode(NODES.as_dynamic.encode(body))


def lease(renewed: str) -> Lease:
    return LEASES.decode(LEASES.as_dynamic.encode({"metadata": {"name": "n"}, "spec": {"renewTime": renewed}}))


@pytest.mark.parametrize(
    ("changed", "alive"),
    [
        ((node(), lease("1")), False),
        ((node(), lease("0")), True),
        ((node(), lease("2")), True),
        ((node(beat="b"), lease("1")), True),
        ((node("Unknown"), lease("1")), False),
        ((node(), None), True),
    ],
    ids=["same", "clock-went-back", "renewed", "status-posted", "our-own-write", "lease-gone"],
)
def test_signs_of_life(changed: tuple[Node, Lease | None], alive: bool) -> None:
    first = plan.observe(None, node(), lease("1"), 0.0)
    later = plan.observe(first, *changed, 39.0)
    assert (later.at == 39.0) is alive
    assert (plan.silence_left(later, changed[0], SETTINGS, 40.0) <= 0) is not alive


def test_a_node_that_never_spoke_has_longer() -> None:
    sight = plan.observe(None, node(None), None, 0.0)
    assert plan.silence_left(sight, node(None), SETTINGS, 40.0) == 20.0


def test_conditions_of_a_silent_node() -> None:
    made = plan.unknown_conditions(node("True", MemoryPressure="False", DiskPressure="Unknown"), NOW)
    assert [(c.type, c.status, c.reason) for c in made] == [
        ("Ready", "Unknown", "NodeStatusUnknown"),
        ("MemoryPressure", "Unknown", "NodeStatusUnknown"),
        ("PIDPressure", "Unknown", "NodeStatusNeverUpdated"),
    ]
    assert made[0].last_heartbeat_time == "a"


def taint(key: str, effect: str = "NoExecute", added: float | None = None) -> Object:
    out = {"key": key, "effect": effect}
    if added is not None:
        out["timeAdded"] = rfc3339(NOW - timedelta(seconds=added))
    return out


MINE = taint("mine", "NoSchedule")
KUSCIA = {**taint(KUSCIA_AGENT_TAINT, "NoSchedule"), "value": "v1"}


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (node(), None),
        (node(taints=[MINE, KUSCIA]), None),
        (node("False", taints=[KUSCIA]), [(KUSCIA_AGENT_TAINT, "NoSchedule"), (NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")]),
        (node("Unknown"), [(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")]),
        (node("True", taints=[MINE, taint(UNREACHABLE), taint(UNREACHABLE, "NoSchedule")]), [("mine", "NoSchedule")]),
        (node("Unknown", taints=[taint(NOT_READY)]), [(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")]),
        (node("Unknown", taints=[taint(UNREACHABLE), taint(UNREACHABLE, "NoSchedule")]), None),
        (node(MemoryPressure="True", DiskPressure="False", PIDPressure="Unknown"), [("node.kubernetes.io/memory-pressure", "NoSchedule")]),
        (node(unschedulable=True), [("node.kubernetes.io/unschedulable", "NoSchedule")]),
        (node(taints=[taint("node.kubernetes.io/unschedulable", "NoSchedule")]), []),
        (node(None), None),
    ],
    ids=[
        "fine", "others", "not-ready", "gone", "back", "not-ready-then-gone", "gone-already", "pressure", "cordoned",
        "uncordoned", "never-spoke",
    ],
)  # fmt: skip
def test_taints(found: Node, wanted: list[tuple[str, str]] | None) -> None:
    made = plan.taints(found, NOW)
    assert (None if made is None else [(t.key, t.effect) for t in made]) == wanted
    assert made is None or all(
        t.time_added for t in made if (t.key, t.effect) not in {(m["key"], m["effect"]) for m in (MINE, KUSCIA)}
    )


def pod(*tolerations: Object, name: str = "p", phase: str = "Running") -> Pod:
    body = {
        "metadata": {"name": name, "uid": name, "namespace": "default"},
        "spec": {"nodeName": "n", "tolerations": list(tolerations)},
        "status": {"phase": phase},
    }
    return PODS.decode(PODS.as_dynamic.encode(body))


def tolerating(key: str = "", seconds: int | None = None, **more: Any) -> Object:
    out = {"key": key, "operator": "Exists", "effect": "NoExecute", **more}
    return out if seconds is None else {**out, "tolerationSeconds": seconds}


@pytest.mark.parametrize(
    ("tolerations", "key", "stays"),
    [
        ([], UNREACHABLE, 300.0),
        ([], NOT_READY, 300.0),
        ([], "mine", 0.0),
        ([tolerating(UNREACHABLE, 10)], UNREACHABLE, 10.0),
        ([tolerating(UNREACHABLE, 10)], NOT_READY, 300.0),
        ([tolerating(UNREACHABLE)], UNREACHABLE, None),
        ([tolerating()], "mine", None),
        ([tolerating(UNREACHABLE, 30), tolerating(UNREACHABLE, 5)], UNREACHABLE, 5.0),
        ([tolerating(UNREACHABLE, -4)], UNREACHABLE, 0.0),
        ([tolerating(UNREACHABLE, 10, effect="NoSchedule")], UNREACHABLE, 300.0),
        ([{"key": "mine", "operator": "Equal", "value": "x", "effect": ""}], "mine", 0.0),
        ([{"key": "mine", "operator": "Equal", "value": "", "effect": ""}], "mine", None),
        ([{"operator": "Equal", "effect": "NoExecute"}], "mine", 0.0),
    ],
)
def test_how_long_a_pod_stays(tolerations: list[Object], key: str, stays: float | None) -> None:
    assert plan.stays(pod(*tolerations), Taint(key=key, effect="NoExecute"), SETTINGS) == stays


def test_toleration_without_key_matches_only_exists() -> None:
    assert not plan.tolerates(Toleration(), Taint(key="a", effect="NoExecute"))
    assert plan.tolerates(Toleration(operator="Exists"), Taint(key="a", effect="NoExecute"))


def test_time_under_a_taint_is_counted_by_our_own_clock() -> None:
    tainted = node("Unknown", taints=[taint(UNREACHABLE, added=100), taint("mine", added=-50), KUSCIA])
    assert plan.clocks(tainted, None, 1000.0, NOW) == {UNREACHABLE: 900.0, "mine": 1000.0}
    # Seen to appear: what the text says does not matter, nor does a jump of the time of day.
    assert plan.clocks(tainted, {}, 1000.0, NOW + timedelta(days=1)) == {UNREACHABLE: 1000.0, "mine": 1000.0}
    assert plan.clocks(tainted, {UNREACHABLE: 7.0, "other": 1.0}, 1000.0, NOW) == {UNREACHABLE: 7.0, "mine": 1000.0}


def test_evictions() -> None:
    tainted = node("Unknown", taints=[taint(UNREACHABLE)])
    pods = [
        pod(name="plain"), pod(tolerating(UNREACHABLE, 20), name="soon"), pod(tolerating(UNREACHABLE), name="ever"),
        pod(tolerating(UNREACHABLE, 5), name="ended", phase="Succeeded"),
    ]  # fmt: skip
    since = {UNREACHABLE: 100.0}
    assert plan.evictions(tainted, pods, since, SETTINGS, 110.0) == plan.Evictions([], 10.0)
    assert [p.metadata.name for p in plan.evictions(tainted, pods, since, SETTINGS, 120.0).now] == ["soon"]
    assert plan.evictions(tainted, pods, since, SETTINGS, 120.0).next == 280.0
    assert plan.evictions(node(), pods, {}, SETTINGS, 120.0) == plan.Evictions()


# ---- podgc ----


def gc_pod(name: str, *, on: str = "n", phase: str = "Running", deleting: bool = False, made: str = "") -> Pod:
    meta: Object = {"name": name, "uid": name, "namespace": "default", "creationTimestamp": made or rfc3339(NOW)}
    if deleting:
        meta["deletionTimestamp"] = rfc3339(NOW)
    spec = {"nodeName": on} if on else {}
    return PODS.decode(PODS.as_dynamic.encode({"metadata": meta, "spec": spec, "status": {"phase": phase}}))


def test_garbage() -> None:
    lost = node("Unknown", taints=[taint(collecting.OUT_OF_SERVICE)])
    pods = [
        gc_pod("fine"), gc_pod("orphan", on="gone"), gc_pod("quarantined", on="missing"), gc_pod("waiting", on=""),
        gc_pod("never-placed", on="", deleting=True), gc_pod("lost", on="lost", deleting=True), gc_pod("lost-alive", on="lost"),
        gc_pod("going", deleting=True), gc_pod("old", phase="Failed", made="2020-01-01T00:00:00Z"), gc_pod("new", phase="Succeeded"),
    ]  # fmt: skip
    found = collecting.garbage(pods, {"n": node(), "lost": lost}, {"gone"}, collecting.Settings(threshold=1))
    assert {one.pod.metadata.name: one.reason for one in found} == {
        "orphan": "orphaned", "never-placed": "unscheduled", "lost": "out-of-service", "old": "terminated",
    }  # fmt: skip
    assert collecting.missing_nodes(pods, {"n", "lost"}) == {"gone", "missing"}


# ---- on the server ----

MAKES = (
    ("replicaset-controller", replicasets.make),
    (
        "node-controller",
        lambda *a, **k: controller.make(*a, settings=plan.Settings(grace=40, startup_grace=60, eviction=30), **k),
    ),
    lambda *a, **k: podgc.make(*a, settings=collecting.Settings(period=5, quarantine=20), **k),
)


async def add_node(w: World, name: str) -> None:
    now = rfc3339(w.clock.now())
    ready = {
        "type": "Ready",
        "status": "True",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
        "reason": "KubeletReady",
    }
    taints = [{"key": KUSCIA_AGENT_TAINT, "value": "v1", "effect": "NoSchedule"}]
    await w.client.create(
        NODE, {"metadata": {"name": name}, "spec": {"taints": taints}, "status": {"conditions": [ready]}}
    )
    body = {"metadata": {"name": name, "namespace": "kube-node-lease"}}
    renewed = rfc3339_micro(w.clock.now())
    await w.client.create(LEASE, {**body, "spec": {"holderIdentity": name, "renewTime": renewed}})


async def ready_word(w: World, name: str) -> str:
    conditions = (await w.client.get(NODE, name))["status"]["conditions"]
    return str(next(c for c in conditions if c["type"] == "Ready")["status"])


async def taint_keys(w: World, name: str) -> set[tuple[str, str]]:
    return {(t["key"], t["effect"]) for t in (await w.client.get(NODE, name))["spec"].get("taints") or ()}


async def on_node(w: World, name: str) -> list[Object]:
    return [p for p in await w.pods() if p["spec"].get("nodeName") == name]


async def test_c58_a_node_that_is_silent_is_lost_and_returns() -> None:
    async with world(*MAKES) as w:
        for name in w.nodes:
            await add_node(w, name)
        await w.client.create(RS, workload("web", replicas=4))
        await w.settle(2)
        lost = {p["metadata"]["uid"] for p in await on_node(w, "node-b")}
        assert len(lost) == 2 and len(w.started) == 4
        w.down.add("node-b")
        await w.beat("node-a", seconds=38)
        assert await ready_word(w, "node-b") == "True"
        await w.beat("node-a", seconds=10)
        assert (await ready_word(w, "node-a"), await ready_word(w, "node-b")) == ("True", "Unknown")
        assert await taint_keys(w, "node-b") == {
            (KUSCIA_AGENT_TAINT, "NoSchedule"), (UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute"),
        }  # fmt: skip
        assert await taint_keys(w, "node-a") == {(KUSCIA_AGENT_TAINT, "NoSchedule")}
        for found in await on_node(w, "node-b"):
            ready = next(c for c in found["status"]["conditions"] if c["type"] == "Ready")
            assert (ready["status"], ready["reason"]) == ("False", "NodeLost")
            assert not found["metadata"].get("deletionTimestamp")
        assert (await w.status(RS, "web"))["readyReplicas"] == 2

        await w.beat("node-a", seconds=40)
        for found in await on_node(w, "node-b"):
            assert found["metadata"]["uid"] in lost and found["metadata"]["deletionTimestamp"]
            assert found["status"]["reason"] == "NodeLost"
            assert any(c["type"] == "DisruptionTarget" for c in found["status"]["conditions"])
        assert len([p for p in await on_node(w, "node-a") if not p["metadata"].get("deletionTimestamp")]) == 4
        assert (await w.status(RS, "web"))["readyReplicas"] == 4 and len(w.started) == 6

        w.down.clear()
        now = rfc3339(w.clock.now())
        back = {"type": "Ready", "status": "True", "lastHeartbeatTime": now, "lastTransitionTime": now}
        patch = {"status": {"conditions": [back]}}
        await w.client.patch(NODE, "node-b", "", patch, type="strategic", subresource="status")
        await w.beat("node-a", "node-b", seconds=10)
        assert await taint_keys(w, "node-b") == {(KUSCIA_AGENT_TAINT, "NoSchedule")}
        assert not lost & {p["metadata"]["uid"] for p in await w.pods()} and len(w.started) == 6
        reasons = {reason for reason, _ in await w.events()}
        assert {"TaintManagerEviction", "NodeNotReady"} <= reasons


async def test_a_short_silence_moves_nobody() -> None:
    async with world(*MAKES) as w:
        for name in w.nodes:
            await add_node(w, name)
        await w.client.create(RS, workload("web", replicas=2))
        await w.settle(2)
        before = {p["metadata"]["uid"] for p in await w.pods()}
        await w.beat("node-a", seconds=50)  # node-b is Unknown now
        assert await ready_word(w, "node-b") == "Unknown"
        now = rfc3339(w.clock.now())
        back = {"type": "Ready", "status": "True", "lastHeartbeatTime": now}
        await w.client.patch(
            NODE, "node-b", "", {"status": {"conditions": [back]}}, type="strategic", subresource="status"
        )
        await w.beat("node-a", "node-b", seconds=60)
        assert {p["metadata"]["uid"] for p in await w.pods(alive=True)} == before


async def test_when_all_are_silent_nobody_is_moved() -> None:
    async with world(*MAKES) as w:
        for name in w.nodes:
            await add_node(w, name)
        await w.client.create(RS, workload("web", replicas=2))
        await w.settle(2)
        before = {p["metadata"]["uid"] for p in await w.pods()}
        w.down |= set(w.nodes)
        await w.settle(200)
        assert {p["metadata"]["uid"] for p in await w.pods(alive=True)} == before


async def test_a_deleted_node_takes_its_pods_with_it() -> None:
    async with world(*MAKES) as w:
        for name in w.nodes:
            await add_node(w, name)
        await w.client.create(RS, workload("web", replicas=4))
        await w.settle(2)
        w.down.add("node-b")
        w.nodes.remove("node-b")
        await w.client.delete(NODE, "node-b")
        await w.beat("node-a", seconds=15)
        assert len(await on_node(w, "node-b")) == 2
        await w.beat("node-a", seconds=20)
        assert await on_node(w, "node-b") == []
        assert len(await on_node(w, "node-a")) == 4


async def test_an_untolerated_taint_drives_pods_away_at_once() -> None:
    async with world(*MAKES) as w:
        for name in w.nodes:
            await add_node(w, name)
        await w.client.create(RS, workload("web", replicas=4))
        await w.settle(2)
        mark = {"key": "maintenance", "effect": "NoExecute"}
        await w.client.patch(NODE, "node-b", "", {"spec": {"taints": [mark]}})
        w.nodes.remove("node-b")
        await w.settle(3)
        assert await on_node(w, "node-b") == [] and len(await w.pods()) == 4
        assert await w.exists(POD, (await on_node(w, "node-a"))[0]["metadata"]["name"])
