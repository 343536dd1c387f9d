"""A node registers at a real API server with its own rights: which pod addresses its Node has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from coterie.base.clock import VirtualClock
from coterie.base.paths import DomainPaths
from coterie.http.messages import UserInfo
from coterie.kube.agent.node.facts import MachineFacts, MachineUsage
from coterie.kube.agent.node.registration import NodeRegistration
from coterie.kube.agent.plugin import AnnotatedCapacity, NodeAdditions, PodNetworkPlugin
from coterie.kube.agent.settings import AgentSettings, NodeObjectSettings
from coterie.kube.api.meta import Object
from coterie.kube.api.types.nodes import NODES
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.store.memory import MemoryStore

NODE = NODES.as_dynamic
ADMIN = UserInfo("system:admin", ("system:masters",))
FACTS = MachineFacts(4, 0, 1 << 33, 0, 1 << 36, 0, "m", "s", "b", "6.1", "Linux", "amd64")
USAGE = MachineUsage(1, 1 << 33, 1 << 36, 1 << 35, 1000, 900, 100, 4_000_000)


@dataclass(slots=True)
class Plane:
    server: ApiServer
    clock: VirtualClock
    admin: Client

    async def register(self, name: str, cidr: str, *addresses: str) -> Object:
        """The Node after its agent has registered it."""
        client = Client(InProcessTransport(self.server.handle, UserInfo(f"system:node:{name}", ("system:nodes",))))
        settings = AgentSettings(
            name, DomainPaths(Path("/nowhere")), node=NodeObjectSettings(pod_cidr=cidr, addresses=addresses)
        )
        registration = NodeRegistration(client, settings, "runp", self.clock, measure=lambda: USAGE, facts=FACTS)
        running = asyncio.create_task(registration.run())
        await registration.ready.wait()
        registration.stop()
        await running
        return await self.admin.get(NODE, name)


@asynccontextmanager
async def _serving() -> AsyncIterator[Plane]:
    clock = VirtualClock()
    store = MemoryStore(clock=clock)
    await store.open()
    server = ApiServer(store, Settings(), clock)
    await server.start()
    try:
        yield Plane(server, clock, Client(InProcessTransport(server.handle, ADMIN)))
    finally:
        await server.stop()
        await store.close()


@pytest.fixture
async def plane() -> AsyncIterator[Plane]:
    async with _serving() as made:
        yield made


async def test_a_new_node_brings_its_range_and_addresses(plane: Plane) -> None:
    node = await plane.register("n1", "10.0.0.0/24", "10.9.0.1")
    assert node["spec"]["podCIDRs"] == ["10.0.0.0/24"]
    internal = [each["address"] for each in node["status"]["addresses"] if each["type"] == "InternalIP"]
    assert internal == ["127.0.0.1", "10.9.0.1"]


async def test_a_node_of_an_earlier_version_announces_its_range(plane: Plane) -> None:
    await plane.admin.create(NODE, {"metadata": {"name": "n1"}})
    assert (await plane.register("n1", "10.0.0.0/24"))["spec"]["podCIDR"] == "10.0.0.0/24"


async def test_a_node_without_a_range_leaves_the_one_it_was_given(plane: Plane) -> None:
    await plane.admin.create(NODE, {"metadata": {"name": "n1"}, "spec": {"podCIDR": "10.0.0.0/24"}})
    assert (await plane.register("n1", ""))["spec"]["podCIDR"] == "10.0.0.0/24"


async def test_a_node_whose_range_another_has_registers_without_one(plane: Plane) -> None:
    await plane.register("n1", "10.0.0.0/24")
    assert "podCIDR" not in (await plane.register("n2", "10.0.0.0/24"))["spec"]
    await plane.admin.create(NODE, {"metadata": {"name": "n3"}, "spec": {"podCIDR": "10.0.3.0/24"}})
    assert (await plane.register("n3", "10.0.0.0/24"))["spec"]["podCIDR"] == "10.0.3.0/24", "it cannot be changed"


class _Network(PodNetworkPlugin):
    """A resource of which an operator may state another capacity."""

    name = "network"

    def node(self, facts: MachineFacts, runtime: str) -> NodeAdditions:
        stated = AnnotatedCapacity("example.com/mbit", lambda text: int(text) if text.isdigit() else None)
        return NodeAdditions(
            capacity={"example.com/net": 1000},
            reserved={"example.com/net": 10},
            annotated_capacity={"example.com/net": stated},
        )


async def test_a_capacity_that_an_operator_wrote_on_the_node_wins(plane: Plane) -> None:
    user = UserInfo("system:node:n1", ("system:nodes",))
    client = Client(InProcessTransport(plane.server.handle, user))
    settings = AgentSettings("n1", DomainPaths(Path("/nowhere")))
    registration = NodeRegistration(
        client, settings, "runp", plane.clock, measure=lambda: USAGE, facts=FACTS, plugins=[_Network()]
    )
    running = asyncio.create_task(registration.run())
    await registration.ready.wait()

    async def shown(text: str | None) -> tuple[str, str]:
        patch = {"metadata": {"annotations": {"example.com/mbit": text}}}
        await plane.admin.patch(NODE, "n1", "", patch)
        await registration._measure_once()
        status = (await plane.admin.get(NODE, "n1"))["status"]
        return status["capacity"]["example.com/net"], status["allocatable"]["example.com/net"]

    assert await shown("250") == ("250", "240")
    assert await shown("junk") == ("1k", "990")
    assert await shown("300") == ("300", "290")
    assert await shown(None) == ("1k", "990")
    registration.stop()
    await running
