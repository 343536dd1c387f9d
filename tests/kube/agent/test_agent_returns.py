"""Agents come and go, APIs come and go, power comes and goes: pods are neither lost nor run twice."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from agent_kit import (
    CONFIG_MAPS,
    LEASES,
    NODES,
    PODS,
    SECRETS,
    World,
    container,
    is_ready,
    phase,
    pod,
    status_named,
    world,
)

from coterie.kube.agent.node.description import NameTaken
from coterie.kube.control.manager import RunnableFailed


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path) as made:
        await made.start_agent()
        yield made


async def test_pods_outlive_twenty_killed_agents(here: World) -> None:
    names = [f"pod-{i}" for i in range(10)]
    here.machine.scripts["flaky"] = ["exit 1", "sleep inf"]
    for name in names:
        await here.create(pod(name, container(), container(name="flaky")))
    before = {name: (await here.pod_until(name, is_ready))["status"] for name in names}
    started = list(here.machine.started)
    for _ in range(20):
        await here.kill_agent()
        await here.settle(1)
        await here.start_agent()
        await here.settle(1)
    await here.settle(30)
    assert here.machine.started == started
    for name in names:
        after = (await here.pod(name))["status"]
        assert after == before[name]
        assert status_named({"status": after}, "flaky")["restartCount"] == 1
        assert status_named({"status": after}, "flaky")["lastState"]["terminated"]["exitCode"] == 1


async def test_what_ended_while_no_agent_looked_is_told_later(here: World) -> None:
    await here.create(pod("short", container("sleep 5; exit 7"), policy="Never"))
    await here.pod_until("short", is_ready)
    await here.kill_agent()
    await here.settle(20)
    await here.start_agent()
    found = await here.pod_until("short", phase("Failed"), 5)
    assert status_named(found)["state"]["terminated"]["exitCode"] == 7


async def test_pods_deleted_while_no_agent_looked_are_stopped(here: World) -> None:
    await here.create(pod("forced"))
    await here.create(pod("waiting"))
    for name in ("forced", "waiting"):
        await here.pod_until(name, is_ready)
    await here.kill_agent()
    await here.user.delete(PODS, "forced", "alice", grace=0)
    await here.user.delete(PODS, "waiting", "alice")
    await here.settle(60)
    assert len(here.machine.pods) == 2
    await here.start_agent()
    await here.gone("waiting", 10)
    await here.until(lambda: here.machine.pods == {}, 10)


async def test_after_a_power_cut_containers_start_again_and_counts_go_on(here: World) -> None:
    await here.create(pod("always"))
    await here.create(pod("never", policy="Never"))
    for name in ("always", "never"):
        await here.pod_until(name, is_ready)
    await here.kill_agent()
    here.machine.lose_memory()
    await here.start_agent()
    found = await here.pod_until("always", lambda p: is_ready(p) and status_named(p)["restartCount"] == 1, 20)
    assert status_named(found)["lastState"]["terminated"]["reason"] == "ContainerStatusUnknown"
    found = await here.pod_until("never", phase("Failed"), 5)
    assert status_named(found)["state"]["terminated"]["exitCode"] == 137


async def test_idle_pods_cost_no_requests(here: World) -> None:
    for i in range(20):
        await here.create(pod(f"pod-{i}"))
    for i in range(20):
        await here.pod_until(f"pod-{i}", is_ready)
    await here.settle(5)
    here.transport.calls.clear()
    await here.settle(120)
    lease = [call for call in here.transport.calls if "leases" in call]
    others = [call for call in here.transport.calls if "leases" not in call]
    assert len(lease) == 12
    # The node looks at itself with each measurement: an operator may have given it another capacity.
    assert [call for call in others if call != "GET /api/v1/nodes/node-1"] == [] and len(others) <= 4


async def test_containers_are_restarted_while_the_api_is_away(here: World) -> None:
    here.machine.scripts["main"] = ["sleep 5; exit 1", "sleep inf"]
    await here.create(pod("web"))
    await here.pod_until("web", is_ready)
    here.transport.cut = True
    await here.settle(20)
    assert here.machine.started == [("web", "main", 0), ("web", "main", 1)]
    here.transport.cut = False
    await here.pod_until("web", lambda p: status_named(p)["restartCount"] == 1 and is_ready(p), 400)


async def test_config_maps_and_secrets_reach_pods_and_follow_changes(here: World) -> None:
    volumes = [
        {"name": "conf", "configMap": {"name": "settings"}},
        {"name": "keys", "secret": {"secretName": "keys", "defaultMode": 0o400}},
    ]
    mounts = [{"name": "conf", "mountPath": "/conf"}, {"name": "keys", "mountPath": "/keys"}]
    env = [
        {"name": "LEVEL", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "level"}}},
        {"name": "FULL", "value": "level is $(LEVEL)"},
    ]
    made = await here.create(pod("reader", container(volumeMounts=mounts, env=env), volumes=volumes))
    await here.settle(3)
    assert any(reason == "FailedMount" for reason, _ in await here.events("reader"))
    await here.user.create(CONFIG_MAPS, _map("info"))
    secret = {"metadata": {"name": "keys", "namespace": "alice"}, "data": {"k": base64.b64encode(b"sesame").decode()}}
    await here.user.create(SECRETS, secret)
    await here.pod_until("reader", is_ready, 5)
    directory = here.root / "alice/var/pods" / made["metadata"]["uid"] / "volumes"
    assert (directory / "conf/level").read_text() == "info"
    assert (directory / "keys/k").read_bytes() == b"sesame"
    assert (directory / "keys/k").stat().st_mode & 0o777 == 0o400
    spec = here.machine.pods[made["metadata"]["uid"]].runs[0].spec
    assert dict(spec.env)["FULL"] == "level is info" and dict(spec.env)["HOSTNAME"] == "reader"
    await here.user.patch(CONFIG_MAPS, "settings", "alice", {"data": {"level": "debug", "more": "yes"}})
    await here.until(lambda: (directory / "conf/level").read_text() == "debug", 5)
    assert (directory / "conf/more").read_text() == "yes"
    await here.user.delete(PODS, "reader", "alice")
    await here.gone("reader", 5)
    assert not directory.exists()


async def test_a_task_without_its_config_fails_in_the_end(here: World) -> None:
    await here.create(pod("unset", container(envFrom=[{"configMapRef": {"name": "absent"}}]), policy="Never"))
    found = await here.pod_until(
        "unset",
        lambda p: status_named(p).get("state", {}).get("waiting", {}).get("reason") == "CreateContainerConfigError",
    )
    assert 'configmap "absent" not found' in status_named(found)["state"]["waiting"]["message"]
    await here.pod_until("unset", phase("Failed"), 90)


async def test_the_node_is_registered_and_lives(here: World) -> None:
    node = await here.user.get(NODES, "node-1")
    labels = node["metadata"]["labels"]
    assert labels["kuscia.secretflow/namespace"] == labels["domain"] == "alice"
    assert labels["kuscia.secretflow/runtime"] == "fake" and labels["kubernetes.io/hostname"] == "node-1"
    assert not node["spec"].get("taints"), "ordinary pods are welcome"
    status = node["status"]
    assert status["daemonEndpoints"]["kubeletEndpoint"]["Port"] == 10250
    assert {"type": "InternalIP", "address": "127.0.0.1"} in status["addresses"]
    assert set(status["capacity"]) == {
        "cpu", "memory", "pods", "storage", "ephemeral-storage", "kuscia.io/bandwidth"
    }  # fmt: skip
    assert status["capacity"]["pods"] == "500"
    conditions = {condition["type"]: condition for condition in status["conditions"]}
    assert conditions["Ready"]["status"] == "True" and conditions["Ready"]["reason"] == "AgentReady"
    await here.settle(1)
    lease = await here.user.get(LEASES, "node-1", "kube-node-lease")
    assert lease["spec"]["leaseDurationSeconds"] == 40 and lease["metadata"]["ownerReferences"][0]["kind"] == "Node"
    await here.settle(12)
    renewed = await here.user.get(LEASES, "node-1", "kube-node-lease")
    assert renewed["spec"]["renewTime"] > lease["spec"]["renewTime"]


async def test_a_deleted_node_comes_back(here: World) -> None:
    await here.settle(1)
    await here.user.delete(NODES, "node-1")
    await here.user.delete(LEASES, "node-1", "kube-node-lease")
    await here.settle(12)
    assert (await here.user.get(NODES, "node-1"))["status"]["conditions"]


OURS = {"key": "kuscia.secretflow/agent", "value": "v1", "effect": "NoSchedule"}
OTHERS = [
    {"key": "kuscia.secretflow/agent", "value": "v1", "effect": "PreferNoSchedule"},
    {"key": "dedicated", "value": "v1", "effect": "NoSchedule"},
]


async def test_a_node_of_an_earlier_version_loses_the_taint_and_no_other(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        earlier = {"metadata": {"name": "node-1"}, "spec": {"taints": [OTHERS[0], OURS, OTHERS[1]]}}
        await made.user.create(NODES, earlier)
        await made.start_agent()
        await made.settle(1)
        assert (await made.user.get(NODES, "node-1"))["spec"]["taints"] == OTHERS


async def _call_lost(here: World) -> None:
    """As the node's controller does when a lease was not renewed in time."""
    lost = {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]}
    await here.user.patch(NODES, "node-1", "", {"status": lost}, type="strategic", subresource="status")


async def _ready(here: World) -> str:
    status = (await here.user.get(NODES, "node-1"))["status"]
    return next(str(each["status"]) for each in status["conditions"] if each["type"] == "Ready")


async def test_a_lease_that_was_renewed_too_late_is_followed_by_the_status_at_once(here: World) -> None:
    """Nothing has changed by the node's own account, but others called it lost meanwhile."""
    await here.settle(1)
    here.transport.cut = True
    await here.settle(45)
    await _call_lost(here)
    assert await _ready(here) == "Unknown"
    here.transport.cut = False
    await here.settle(12)
    assert await _ready(here) == "True"


async def test_a_name_of_another_domain_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        taken = {"metadata": {"name": "node-1", "labels": {"kuscia.secretflow/namespace": "bob"}}}
        await made.user.create(NODES, taken)
        with pytest.raises(RunnableFailed) as failure:
            await made.start_agent()
        assert isinstance(failure.value.__cause__, NameTaken)


def _map(level: str) -> dict[str, object]:
    return {"metadata": {"name": "settings", "namespace": "alice"}, "data": {"level": level}}
