"""The scheduler on the real API server in-process: what a user sees."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from scheduling_kit import gang_pod_object, node_object, pod_object, task_object

from coterie.base.clock import SYSTEM_CLOCK
from coterie.http.messages import UserInfo
from coterie.kube.api.meta import Object
from coterie.kube.api.types.core import EVENTS, NAMESPACES
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.api.types.nodes import NODES
from coterie.kube.api.types.pods import PODS
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.informers import Informers
from coterie.kube.client.wait import wait_for
from coterie.kube.control.manager import Manager
from coterie.kube.scheduler import scheduler
from coterie.kube.store.memory import MemoryStore
from coterie.kuscia.api.types.task_resource import TASK_RESOURCES
from coterie.kuscia.extensions.apiserver import KUSCIA
from coterie.kuscia.gangs.plugin import GangPlugin

ADMIN = UserInfo("system:admin", ("system:masters",))
POD, NODE, TASK, NS = (kind.as_dynamic for kind in (PODS, NODES, TASK_RESOURCES, NAMESPACES))
PRIORITY_CLASSES = Kind.dynamic(builtin("priorityclasses", "scheduling.k8s.io"))


@asynccontextmanager
async def cluster(
    *, elected: bool = False, others: Callable[..., list[Any]] | None = None, **settings: Any
) -> AsyncIterator[Client]:
    store = MemoryStore()
    await store.open()
    api = ApiServer(store, Settings(extensions=[KUSCIA]))
    await api.start()
    client = Client(InProcessTransport(api.handle, ADMIN))
    informers = Informers(client)
    settings = {"plugins": [GangPlugin(hold_seconds=settings.pop("hold_seconds", 30.0))], **settings}
    part = (
        scheduler.elected(client, informers, "me", **settings)
        if elected
        else scheduler.make(client, informers, **settings)
    )
    more = others(client, informers, SYSTEM_CLOCK) if others is not None else []
    manager = Manager([[informers], [part, *more]])
    task = asyncio.create_task(manager.run())
    await asyncio.wait_for(manager.ready.wait(), 10)
    try:
        yield client
    finally:
        manager.stop()
        await asyncio.wait_for(task, 10)
        await client.close()
        await api.stop()
        await store.close()


async def add_node(client: Client, *args: Any, **kwargs: Any) -> None:
    wanted = node_object(*args, **kwargs)
    created = await client.create(NODE, wanted)
    await client.update(NODE, {**created, "status": wanted["status"]}, subresource="status")


async def add_pod(client: Client, wanted: Object) -> Object:
    wanted["metadata"].pop("uid")
    wanted["metadata"].pop("creationTimestamp")
    wanted["spec"].pop("priority", None)
    return await client.create(POD, wanted)


async def until(client: Client, name: str, test: Callable[[Object], Any], namespace: str = "default") -> Object:
    found = await wait_for(client, POD, name, namespace, lambda pod: pod is not None and bool(test(pod)), 5)
    assert found is not None
    return found


def is_bound(pod: Object) -> bool:
    return bool(pod["spec"].get("nodeName"))


def condition(pod: Object, kind: str = "PodScheduled") -> Object:
    return next((c for c in pod["status"].get("conditions") or () if c["type"] == kind), {})


async def events(client: Client, pod: str, reason: str, namespace: str = "default") -> list[Object]:
    for _ in range(100):
        fields = f"involvedObject.name={pod},reason={reason}"
        found = (await client.list(EVENTS.as_dynamic, namespace, fields=fields)).items
        if found:
            return found
        await asyncio.sleep(0.01)
    return []


async def test_pods_are_bound_and_spread() -> None:
    async with cluster() as client:
        for i in range(3):
            await add_node(client, f"n{i}")
        for i in range(6):
            await add_pod(client, pod_object(f"p{i}", "500m"))
        pods = [await until(client, f"p{i}", is_bound) for i in range(6)]
        assert sorted(p["spec"]["nodeName"] for p in pods) == ["n0", "n0", "n1", "n1", "n2", "n2"]
        assert condition(pods[0])["status"] == "True"
        (event,) = await events(client, "p0", "Scheduled")
        assert event["message"] == f"Successfully assigned default/p0 to {pods[0]['spec']['nodeName']}"


async def test_a_pod_that_fits_nowhere_says_why_and_goes_at_once_when_a_node_comes() -> None:
    async with cluster() as client:
        await add_node(client, "small", "1")
        await add_node(client, "tainted", taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}])
        await add_pod(client, pod_object("p", "2"))
        pod = await until(client, "p", lambda p: condition(p).get("status") == "False")
        said = condition(pod)
        assert said["reason"] == "Unschedulable"
        assert said["message"].startswith(
            "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint {gpu: yes}. preemption: "
        )
        (event,) = await events(client, "p", "FailedScheduling")
        assert event["type"] == "Warning" and event["message"] == said["message"]
        await add_node(client, "large", "4")
        pod = await until(client, "p", is_bound)
        assert pod["spec"]["nodeName"] == "large"
        assert condition(pod)["status"] == "True"


async def test_bandwidth_is_named_as_the_cause() -> None:
    async with cluster() as client:
        await add_node(client, "n", bandwidth=100)
        await add_pod(client, pod_object("p", "1", requests={"kuscia.io/bandwidth": "200"}))
        pod = await until(client, "p", lambda p: condition(p).get("status") == "False")
        assert condition(pod)["reason"] == "BandwidthInsufficient"
        assert "1 Insufficient kuscia.io/bandwidth" in condition(pod)["message"]


async def test_the_room_of_a_deleted_pod_is_used_at_once() -> None:
    async with cluster() as client:
        await add_node(client, "n", "1")
        await add_pod(client, pod_object("first", "1"))
        await until(client, "first", is_bound)
        await add_pod(client, pod_object("second", "1"))
        await until(client, "second", lambda p: condition(p).get("status") == "False")
        await client.delete(POD, "first", "default", grace=0)
        await until(client, "second", is_bound)


async def test_a_more_important_pod_takes_the_place_of_another() -> None:
    async with cluster() as client:
        await client.create(PRIORITY_CLASSES, {"metadata": {"name": "high"}, "value": 1000})
        await add_node(client, "n", "1")
        await add_pod(client, pod_object("low", "1"))
        await until(client, "low", is_bound)
        await add_pod(client, pod_object("high", "1", priorityClassName="high"))
        pod = await until(client, "high", lambda p: p["status"].get("nominatedNodeName"))
        assert pod["status"]["nominatedNodeName"] == "n"
        (event,) = await events(client, "low", "Preempted")
        assert event["message"].endswith("on node n")
        victim = await client.get(POD, "low", "default")
        assert victim["metadata"]["deletionTimestamp"]
        assert condition(victim, "DisruptionTarget")["reason"] == "PreemptionByScheduler"
        await client.delete(POD, "low", "default", grace=0)
        await until(client, "high", is_bound)


async def gang(client: Client, task: str, pods: int, cpu: str, namespace: str = "alice", seconds: int = 30) -> None:
    wanted = task_object(task, namespace=namespace, least=pods, seconds=seconds)
    wanted["metadata"].pop("uid")
    wanted["metadata"].pop("creationTimestamp")
    await client.create(TASK, wanted)
    for i in range(pods):
        await add_pod(client, gang_pod_object(f"{task}-{i}", task, namespace, cpu=cpu))


async def phase(client: Client, task: str, wanted: str, namespace: str = "alice") -> Object:
    found = await wait_for(client, TASK, task, namespace, lambda t: t is not None and t["status"]["phase"] == wanted, 5)
    assert found is not None
    return found


async def test_a_gang_reserves_waits_and_is_bound_together() -> None:
    async with cluster() as client:
        await client.create(NS, {"metadata": {"name": "alice"}})
        await add_node(client, "n", "4")
        await gang(client, "t", 3, "1")
        reserved = await phase(client, "t", "Reserved")
        assert [c["type"] for c in reserved["status"]["conditions"]] == ["Reserved"]
        # The room is taken although nothing is bound: another pod of two CPUs does not fit.
        await add_pod(client, pod_object("other", "2"))
        await until(client, "other", lambda p: condition(p).get("status") == "False")
        assert not any(is_bound(p) for p in (await client.list(POD, "alice")).items)
        await client.patch(TASK, "t", "alice", {"status": {"phase": "Schedulable"}})
        for i in range(3):
            await until(client, f"t-{i}", is_bound, "alice")


async def test_a_gang_that_does_not_fit_holds_nothing() -> None:
    async with cluster() as client:
        await client.create(NS, {"metadata": {"name": "alice"}})
        await add_node(client, "n", "2")
        await gang(client, "t", 3, "1")
        pod = await until(client, "t-0", lambda p: condition(p).get("status") == "False", "alice")
        await add_pod(client, pod_object("other", "2"))
        await until(client, "other", is_bound)
        assert (await client.get(TASK, "t", "alice"))["status"]["phase"] == "Reserving"
        assert condition(pod)["reason"] == "Unschedulable"
        await add_node(client, "m", "4")
        await phase(client, "t", "Reserved")


async def test_a_failed_reservation_gives_its_room_back() -> None:
    async with cluster() as client:
        await client.create(NS, {"metadata": {"name": "alice"}})
        await add_node(client, "n", "2")
        await gang(client, "t", 2, "1")
        await phase(client, "t", "Reserved")
        await add_pod(client, pod_object("other", "2"))
        await until(client, "other", lambda p: condition(p).get("status") == "False")
        await client.patch(TASK, "t", "alice", {"status": {"phase": "Failed"}})
        await until(client, "other", is_bound)
        pod = await until(client, "t-0", lambda p: condition(p).get("status") == "False", "alice")
        assert not is_bound(pod)


async def test_a_reservation_that_is_not_confirmed_in_time_is_marked_failed() -> None:
    async with cluster() as client:
        await client.create(NS, {"metadata": {"name": "alice"}})
        await add_node(client, "n", "1")
        await gang(client, "t", 1, "1", seconds=1)
        await phase(client, "t", "Reserved")
        failed = await phase(client, "t", "Failed")
        reason = "other domains can not reserve resources for pods"
        assert failed["status"]["conditions"][-1]["reason"] == reason
        await until(client, "t-0", lambda p: condition(p).get("message", "").endswith(reason), "alice")
        await client.patch(TASK, "t", "alice", {"status": {"phase": "Reserving"}})
        await phase(client, "t", "Reserved")


async def test_a_pod_that_somebody_else_bound_is_left_where_it_is() -> None:
    async with cluster() as client:
        await add_node(client, "n", "1")
        await add_pod(client, pod_object("p", "2"))
        await until(client, "p", lambda p: condition(p).get("status") == "False")
        binding = {"apiVersion": "v1", "kind": "Binding", "target": {"name": "elsewhere"}}
        await client.create(POD, binding, "default", name="p", subresource="binding")
        await add_node(client, "m", "4")
        await add_pod(client, pod_object("q", "4"))
        await until(client, "q", is_bound)
        assert (await client.get(POD, "p", "default"))["spec"]["nodeName"] == "elsewhere"


async def test_an_elected_scheduler_works() -> None:
    async with cluster(elected=True) as client:
        await add_node(client, "n")
        await add_pod(client, pod_object("p"))
        await until(client, "p", is_bound)
