"""The proxy of a node: what it writes and when, with a kernel that only takes notes."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from coterie.http.messages import UserInfo
from coterie.kube.api.labels import COTERIE_POD_NAMESPACE, SERVICE_NAME
from coterie.kube.api.types.network import ENDPOINT_SLICES, SERVICES
from coterie.kube.api.types.nodes import NODES
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.informers import Informers
from coterie.kube.network.services.node_scope import NodeScope
from coterie.kube.network.services.plan import Backend, TableChange
from coterie.kube.network.services.proxy import ServiceProxy, ServiceRules
from coterie.kube.store.memory import MemoryStore

ADMIN = UserInfo("admin", ("system:masters", "system:authenticated"))


class Notes(ServiceRules):
    def __init__(self) -> None:
        self.loads: list[TableChange] = []
        self.changes: list[TableChange] = []
        self.failures = 0

    def load(self, everything: TableChange) -> None:
        self.loads.append(everything)

    def apply(self, change: TableChange) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.ENOENT, "no such table")
        self.changes.append(change)

    def close(self) -> None:
        return


class World:
    def __init__(self, client: Client, rules: Notes) -> None:
        self.client = client
        self.rules = rules

    async def service(self, name: str) -> None:
        body = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"}}
        await self.client.create(SERVICES.as_dynamic, {**body, "spec": {"ports": [{"port": 80}]}})

    async def endpoints(self, name: str, *addresses: str, node: str = "there") -> None:
        listed = [{"addresses": [each], "nodeName": node, "conditions": {"ready": True}} for each in addresses]
        body: dict[str, Any] = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": name, "namespace": "default", "labels": {SERVICE_NAME: name}},
            "addressType": "IPv4",
            "ports": [{"name": "", "port": 8000, "protocol": "TCP"}],
            "endpoints": listed,
        }
        await self.client.create(ENDPOINT_SLICES.as_dynamic, body)


@asynccontextmanager
async def world(*names: str) -> AsyncIterator[World]:
    store = MemoryStore()
    await store.open()
    server = ApiServer(store, Settings())
    await server.start()
    client = Client(InProcessTransport(server.handle, ADMIN))
    made = World(client, Notes())
    for number, name in enumerate(names):
        await made.service(name)
        await made.endpoints(name, f"100.96.0.{number + 2}")
    informers = Informers(client)
    proxy = ServiceProxy(informers, NodeScope(informers, "here"), made.rules)
    tasks = [asyncio.create_task(each.run()) for each in (informers, proxy)]
    try:
        await asyncio.wait_for(proxy.synced.wait(), 10)
        yield made
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.stop()
        await store.close()


async def eventually(look: Callable[[], object]) -> None:
    for _ in range(500):
        if look():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it does not come")


async def test_all_at_once_at_the_start_then_what_changes() -> None:
    async with world("a", "b") as found:
        [loaded] = found.rules.loads
        assert sorted(loaded.added) == ["service-default/a/tcp/80", "service-default/b/tcp/80"]
        await found.service("c")
        await found.endpoints("c", "100.96.0.9")
        await eventually(lambda: found.rules.changes)
        [change] = found.rules.changes
        assert list(change.added) == ["service-default/c/tcp/80"] and not change.changed
        assert len(found.rules.loads) == 1


async def test_what_does_not_concern_the_rules_writes_nothing() -> None:
    async with world("a") as found:
        await found.client.patch(SERVICES, "a", "default", {"metadata": {"labels": {"x": "y"}}})
        await found.service("without-endpoints")
        await asyncio.sleep(0.2)
        assert found.rules.changes == [] and len(found.rules.loads) == 1


async def test_after_an_error_the_whole_table_is_written() -> None:
    async with world("a", "b") as found:
        found.rules.failures = 1
        await found.client.delete(SERVICES, "a", "default")
        await eventually(lambda: len(found.rules.loads) == 2)
        assert list(found.rules.loads[1].added) == ["service-default/b/tcp/80"]
        await found.client.delete(SERVICES, "b", "default")
        await eventually(lambda: found.rules.changes)
        assert list(found.rules.changes[0].removed) == ["service-default/b/tcp/80"]


async def test_nodes_of_other_domains_come_and_go() -> None:
    async with world("a") as found:
        labels = {COTERIE_POD_NAMESPACE: "bob"}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "there", "labels": labels}}
        await found.client.create(NODES.as_dynamic, node)
        await eventually(lambda: found.rules.changes)
        assert list(found.rules.changes[0].removed) == ["service-default/a/tcp/80"]
        await found.client.delete(NODES, "there")
        await eventually(lambda: len(found.rules.changes) == 2)
        assert found.rules.changes[1].added["service-default/a/tcp/80"].backends == (Backend("100.96.0.2", 8000),)
