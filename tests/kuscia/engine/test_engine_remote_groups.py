"""What the pod network of a node learns of engines on other machines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from coterie.base.clock import SYSTEM_CLOCK
from coterie.http.messages import UserInfo
from coterie.kube.agent.runtimes.protocol import PodKind, PodNetworkClass, RemotePod, RuntimeFailure
from coterie.kube.api.meta import Object, ObjectKey
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.api.types.pods import PODS
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.informers import Informers
from coterie.kube.store.memory import MemoryStore
from coterie.kuscia.engine.remote_groups import AppliedRemotePods, RemoteGroups, remote_pod

ADMIN = UserInfo("system:admin", ("system:masters", "system:authenticated"))
POD, NODE, NAMESPACE = PODS.as_dynamic, Kind.dynamic(builtin("nodes")), Kind.dynamic(builtin("namespaces"))
RANGE, ADDRESS = "100.96.16.0/20", "100.96.24.7"


def classify(pod: Object) -> PodNetworkClass | None:
    """By labels, in place of the engine plug-in."""
    known = pod["metadata"].get("labels") or {}
    return PodNetworkClass(PodKind(known["kind"]), known["group"]) if "kind" in known else None


def pod(address: str = ADDRESS, kind: str = "engine", node: str = "node-2", name: str = "a-1", **more: Any) -> Object:
    return {
        "metadata": {"name": name, "labels": {"kind": kind, "group": "a"} if kind else {}},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i:1"}]},
        "status": {"podIP": address, "phase": "Running", **more},
    }


@pytest.mark.parametrize("kind", ["engine", "guest"])
def test_engines_are_known_by_kind_and_group(kind: str) -> None:
    assert remote_pod(pod(kind=kind), classify, RANGE) == RemotePod(ADDRESS, PodKind(kind), "a")


@pytest.mark.parametrize(
    "other",
    [
        pod(""),
        pod(kind=""),
        pod(kind="ordinary"),
        pod(phase="Failed"),
        pod(phase="Succeeded"),
        pod("100.96.16.7"),  # of an ordinary pod
        pod("100.96.40.7"),  # of another node
        pod("10.0.0.2"),
        pod("nonsense"),
        {**pod(), "spec": {"nodeName": "node-2", "hostNetwork": True}},
    ],
)
def test_everything_else_is_not(other: Object) -> None:
    assert remote_pod(other, classify, RANGE) is None


def test_an_engine_of_a_node_without_a_range_is_not_known() -> None:
    assert remote_pod(pod(), classify, "") is None


class Network:
    def __init__(self, informers: Informers) -> None:
        self.informers = informers
        self.given: list[list[str]] = []
        self.failures = 0
        self.applied = AppliedRemotePods()

    async def apply(self, pods: Sequence[RemotePod]) -> None:
        if self.failures:
            self.failures -= 1
            raise RuntimeFailure("RuntimeNotReady", "not now")
        self.given.append([each.address for each in pods])


@asynccontextmanager
async def running(nodes: int = 2) -> AsyncIterator[tuple[Client, Network]]:
    store = MemoryStore()
    await store.open()
    server = ApiServer(store, Settings(), SYSTEM_CLOCK)
    await server.start()
    client = Client(InProcessTransport(server.handle, ADMIN))
    await client.create(NAMESPACE, {"metadata": {"name": "alice"}})
    for number, cidr in ((1, "100.96.0.0/20"), (2, RANGE))[:nodes]:
        meta = {"name": f"node-{number}", "labels": {"domain": "alice"}}
        await client.create(NODE, {"metadata": meta, "spec": {"podCIDR": cidr}})
    informers = Informers(client)
    network = Network(informers)
    groups = RemoteGroups(
        informers,
        classify,
        network.apply,
        SYSTEM_CLOCK,
        domain="alice",
        node="node-1",
        selector="domain=alice",
        applied=network.applied,
    )
    tasks = [asyncio.create_task(each.run()) for each in (informers, groups)]
    try:
        await asyncio.wait_for(groups.ready.wait(), 10)
        yield client, network
        groups.stop()
        await asyncio.wait_for(tasks[1], 10)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.close()
        await server.stop()
        await store.close()


async def make(client: Client, body: Object) -> None:
    await client.create(POD, {key: body[key] for key in ("metadata", "spec")}, "alice")
    await client.patch(POD, body["metadata"]["name"], "alice", {"status": body["status"]}, subresource="status")


async def until(question: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not question():
            await asyncio.sleep(0.005)


async def test_engines_come_and_go() -> None:
    async with running() as (client, network):
        await make(client, pod())
        await until(lambda: network.given[-1] == [ADDRESS])
        await make(client, pod("100.96.24.8", name="a-2"))
        await until(lambda: network.given[-1] == [ADDRESS, "100.96.24.8"])
        ended = {"status": {"phase": "Failed"}}
        await client.patch(POD, "a-1", "alice", ended, subresource="status")
        await until(lambda: network.given[-1] == ["100.96.24.8"])
        await client.delete(NODE, "node-2")
        await until(lambda: network.given[-1] == [])


async def test_pods_of_this_node_and_ordinary_ones_change_nothing() -> None:
    async with running() as (client, network):
        await make(client, pod("100.96.8.7", node="node-1", name="own"))
        await make(client, pod("100.96.16.9", kind="", name="ordinary"))
        await make(client, pod())
        await until(lambda: network.given[-1] == [ADDRESS])
        assert network.given == [[], [ADDRESS]]


async def test_a_range_that_comes_later_counts() -> None:
    async with running() as (client, network):
        await client.create(NODE, {"metadata": {"name": "node-3", "labels": {"domain": "alice"}}})
        await make(client, pod("100.96.40.7", node="node-3"))
        await client.patch(NODE, "node-3", "", {"spec": {"podCIDR": "100.96.32.0/20"}})
        await until(lambda: network.given[-1] == ["100.96.40.7"])


async def test_a_node_that_is_alone_follows_no_pods() -> None:
    async with running(nodes=1) as (client, network):
        assert len(network.informers) == 1, "that of Nodes"
        await make(client, pod())
        await client.create(NODE, {"metadata": {"name": "node-2", "labels": {"domain": "alice"}}})
        await client.patch(NODE, "node-2", "", {"spec": {"podCIDR": RANGE}})
        await until(lambda: network.given[-1] == [ADDRESS])


async def test_what_failed_is_tried_again() -> None:
    async with running() as (client, network):
        network.failures = 1
        await make(client, pod())
        await asyncio.wait_for(network.applied.wait(ObjectKey("alice", "a-1"), ADDRESS), 10)
        assert network.given[-1] == [ADDRESS], "who waits goes on when the rules are in force"
        assert not network.failures
