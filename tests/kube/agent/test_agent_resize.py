"""pods/resize on a node: what is given, deferred or refused, in place or by a restart, and what the status says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agent_kit import NODES, PODS, World, container, is_ready, pod, status_named, world
from view_kit import make_pod

from coterie.kube.agent.pods import resize
from coterie.kube.agent.runtimes.protocol import RuntimeFailure
from coterie.kube.api.meta import Object


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path) as made:
        await made.start_agent()
        yield made


def sized(cpu: str, memory: str, limit: str = "", **fields: Any) -> Object:
    resources: Object = {"requests": {"cpu": cpu, "memory": memory}}
    if limit:
        resources["limits"] = {"memory": limit}
    return container(resources=resources, **fields)


async def change(here: World, name: str, **parts: dict[str, str]) -> None:
    patch = {"spec": {"containers": [{"name": "main", "resources": parts}]}}
    await here.user.patch(PODS, name, "alice", patch, type="strategic", subresource="resize")


def condition(found: Object, kind: str) -> Object | None:
    return next((c for c in found["status"]["conditions"] if c["type"] == kind), None)


def settled(found: Object) -> bool:
    return condition(found, resize.PENDING) is None and condition(found, resize.IN_PROGRESS) is None


def given(found: Object) -> tuple[Any, Any]:
    status = status_named(found)
    return status.get("allocatedResources"), status.get("resources")


def limits(here: World, name: str) -> tuple[int, int]:
    run = here.machine.pods[name].newest("main")
    assert run is not None
    return run.spec.limits.cpu_shares_milli, run.spec.limits.memory_bytes


async def test_a_container_gets_more_without_a_restart(here: World) -> None:
    await here.create(pod("web", sized("100m", "64Mi", "64Mi")))
    found = await here.pod_until("web", is_ready)
    had = {"cpu": "100m", "memory": "64Mi"}
    assert given(found) == (had, {"limits": {"memory": "64Mi"}, "requests": had})
    await change(here, "web", requests={"cpu": "200m"}, limits={"memory": "128Mi"})
    found = await here.pod_until("web", lambda p: given(p)[0] != had and settled(p))
    now = {"cpu": "200m", "memory": "64Mi"}
    assert given(found) == (now, {"limits": {"memory": "128Mi"}, "requests": now})
    assert (status_named(found)["restartCount"], here.machine.started) == (0, [("web", "main", 0)])
    uid = found["metadata"]["uid"]
    assert limits(here, uid) == (200, 128 << 20)
    await here.settle(5)  # events are written after a moment, each by itself
    told = [reason for reason, _ in await here.events("web") if "Resize" in reason]
    assert sorted(told) == ["ResizeCompleted", "ResizeStarted"]


async def test_a_container_is_restarted_where_its_policy_asks_for_it(here: World) -> None:
    policy = [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]
    await here.create(pod("web", sized("100m", "64Mi", "64Mi", resizePolicy=policy)))
    found = await here.pod_until("web", is_ready)
    await change(here, "web", requests={"cpu": "150m"})
    found = await here.pod_until("web", lambda p: given(p)[1]["requests"]["cpu"] == "150m" and settled(p))
    assert status_named(found)["restartCount"] == 0
    await change(here, "web", limits={"memory": "128Mi"})
    found = await here.pod_until("web", lambda p: status_named(p)["restartCount"] == 1 and is_ready(p) and settled(p))
    assert given(found)[1]["limits"] == {"memory": "128Mi"} and limits(here, found["metadata"]["uid"])[1] == 128 << 20
    assert ("Killing", "Container main resize requires restart") in await here.events("web")


async def test_more_than_the_node_has_is_infeasible(here: World) -> None:
    await here.create(pod("web", sized("100m", "64Mi")))
    await here.pod_until("web", is_ready)
    await change(here, "web", requests={"cpu": "4000"})
    found = await here.pod_until("web", lambda p: condition(p, resize.PENDING) is not None)
    pending = condition(found, resize.PENDING)
    assert pending is not None and (pending["status"], pending["reason"]) == ("True", "Infeasible")
    assert pending["message"].startswith("Node didn't have enough capacity: cpu, requested: 4000000, capacity: ")
    assert given(found)[0] == {"cpu": "100m", "memory": "64Mi"}
    await change(here, "web", requests={"cpu": "100m"})
    await here.pod_until("web", settled)


async def test_a_resize_waits_for_room(here: World) -> None:
    found = await here.user.get(NODES, "node-1", "")
    cpus = found["status"]["allocatable"]["cpu"]
    await here.create(pod("big", sized(cpus, "64Mi")))
    await here.create(pod("web", sized("0", "64Mi")))
    await here.pod_until("big", is_ready)
    await here.pod_until("web", is_ready)
    await change(here, "web", requests={"cpu": "100m"})
    found = await here.pod_until("web", lambda p: condition(p, resize.PENDING) is not None)
    pending = condition(found, resize.PENDING)
    assert pending is not None and pending["reason"] == "Deferred" and "used: " in pending["message"]
    await here.user.delete(PODS, "big", "alice")
    await here.gone("big")
    found = await here.pod_until("web", settled)
    assert given(found)[0]["cpu"] == "100m"


async def test_an_agent_that_was_killed_goes_on_with_a_resize(here: World) -> None:
    await here.create(pod("web", sized("100m", "64Mi", "64Mi")))
    await here.pod_until("web", is_ready)
    here.machine.resize_failure = RuntimeFailure("ResizeError", "Container main uses 40Mi")
    await change(here, "web", limits={"memory": "128Mi"})
    found = await here.pod_until("web", lambda p: (condition(p, resize.IN_PROGRESS) or {}).get("reason") == "Error")
    assert (condition(found, resize.IN_PROGRESS) or {})["message"] == "Container main uses 40Mi"
    assert given(found)[1]["limits"] == {"memory": "64Mi"}
    await here.kill_agent()
    here.machine.resize_failure = None
    await here.start_agent()
    found = await here.pod_until("web", settled)
    assert given(found)[1]["limits"] == {"memory": "128Mi"} and here.machine.started == [("web", "main", 0)]


async def test_a_runtime_that_cannot_says_so(here: World) -> None:
    here.machine.resize_problem = "this node has no control groups"
    await here.create(pod("web", sized("100m", "64Mi")))
    await here.pod_until("web", is_ready)
    await change(here, "web", requests={"cpu": "200m"})
    found = await here.pod_until("web", lambda p: condition(p, resize.PENDING) is not None)
    assert (condition(found, resize.PENDING) or {})["reason"] == "Infeasible"


@pytest.mark.parametrize(
    ("cpu", "used", "reason"), [(150, 0, None), (150, 900, "Deferred"), (1100, 0, "Infeasible"), (50, 5000, None)]
)
def test_admission(cpu: int, used: int, reason: str | None) -> None:
    """Less is always given, also where the node has too little for all."""
    asking = make_pod({"name": "main", "resources": {"requests": {"cpu": f"{cpu}m"}}})
    refusal = resize.admit(asking, {"main": {"requests": {"cpu": "100m"}}}, resize.Room(1000, 1 << 30, used), "")
    assert (refusal and refusal.reason) == reason
