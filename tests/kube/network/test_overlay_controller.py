"""The controller of the overlay: follows Nodes, tries again, makes everything anew in a new namespace, and rests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from coterie.base.clock import SYSTEM_CLOCK
from coterie.http.messages import UserInfo
from coterie.kube.api.meta import Object
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.api.types.network import SERVICES
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.informers import Informers
from coterie.kube.network.overlay import controller as module
from coterie.kube.network.overlay.controller import OverlayController
from coterie.kube.network.overlay.plan import OverlaySettings
from coterie.kube.store.memory import MemoryStore

ADMIN = UserInfo("system:admin", ("system:masters", "system:authenticated"))
NODE = Kind.dynamic(builtin("nodes"))
SETTINGS = OverlaySettings("node-1", "10.0.0.1", "100.96.0.0/20", "100.96.0.0/16", "100.112.0.0/16", 7)


class Kernel:
    """In place of NodeOverlay: notes what it is asked for."""

    def __init__(self, settings: OverlaySettings, directory: Path, **callbacks: Any) -> None:
        self.settings = settings
        self.seen: list[list[str]] = []
        self.answering: list[frozenset[str]] = []
        self.rechecked: list[bool] = []
        self.failures = 0
        self.renewed = 0
        self.services: frozenset[str] = frozenset()
        self.closed = False
        self.unsettled = False
        self.link: tuple[int, dict[str, str]] = (0, {})
        self.called = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def reconcile(
        self, nodes: list[Any], answering: frozenset[str], *, recheck: bool, services: frozenset[str]
    ) -> list[str]:
        try:
            self.services = services
            if self.failures:
                self.failures -= 1
                raise OSError(16, "busy")
            self.seen.append(sorted(node.metadata.name for node in nodes))
            self.answering.append(answering)
            self.rechecked.append(recheck)
            self.unsettled = self.unsettled and not recheck
            return []
        finally:
            self._loop.call_soon_threadsafe(self.called.set)

    def namespace_changed(self) -> None:
        self.renewed += 1

    def close(self) -> None:
        self.closed = True

    async def next(self) -> None:
        await asyncio.wait_for(self.called.wait(), 10)
        self.called.clear()
        await asyncio.sleep(0)


class Link:
    """In place of LinkProbe."""

    def __init__(self, open_socket: Any, clock: Any, changed: Any) -> None:
        self.answering: frozenset[str] = frozenset()
        self.changed = changed
        self.followed: list[tuple[int, dict[str, str]]] = []
        self.renewed = 0
        self.closed = False

    def follow(self, index: int, peers: dict[str, str]) -> None:
        self.followed.append((index, peers))

    def namespace_changed(self) -> None:
        self.renewed += 1

    def close(self) -> None:
        self.closed = True


class Waits:
    """A clock that notes pauses and takes none."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def now(self) -> Any:
        return SYSTEM_CLOCK.now()

    def monotonic(self) -> float:
        return SYSTEM_CLOCK.monotonic()

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


def node(name: str, domain: str = "alice") -> Object:
    return {"metadata": {"name": name, "labels": {"domain": domain}}}


@asynccontextmanager
async def running(monkeypatch: pytest.MonkeyPatch, failures: int = 0) -> AsyncIterator[tuple[Client, Any, Any, Waits]]:
    kernels: list[Kernel] = []

    def made(*words: Any, **callbacks: Any) -> Kernel:
        kernels.append(Kernel(*words, **callbacks))
        kernels[-1].failures = failures
        return kernels[-1]

    monkeypatch.setattr(module, "NodeOverlay", made)

    async def settings() -> OverlaySettings:
        return SETTINGS

    store = MemoryStore()
    await store.open()
    server = ApiServer(store, Settings(), SYSTEM_CLOCK)
    await server.start()
    client = Client(InProcessTransport(server.handle, ADMIN))
    informers, waits = Informers(client), Waits()
    controller = OverlayController(
        settings,
        informers,
        "domain=alice",
        Path("/nowhere"),
        namespace=lambda: Path("/nowhere"),
        domain_netlink=lambda _: pytest.fail("not asked for"),
        probe_socket=lambda: pytest.fail("not asked for"),
        clock=waits,
        services=informers.get(SERVICES, "default"),
    )
    tasks = [asyncio.create_task(each.run()) for each in (informers, controller)]
    try:
        await asyncio.wait_for(controller.ready.wait(), 10)
        yield client, controller, kernels[0], waits
        controller.stop()
        await asyncio.wait_for(tasks[1], 10)
        assert kernels[0].closed
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.close()
        await server.stop()
        await store.close()


async def test_nodes_of_the_domain_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as (client, _, kernel, _waits):
        await kernel.next()
        await client.create(NODE, node("node-2"))
        await kernel.next()
        await client.create(NODE, node("node-3"))
        await kernel.next()
        await client.delete(NODE, "node-2")
        await kernel.next()
        assert kernel.seen == [[], ["node-2"], ["node-2", "node-3"], ["node-3"]]


async def test_services_of_the_namespace_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as (client, _, kernel, _waits):

        async def until(addresses: set[str]) -> None:
            while kernel.services != addresses:
                await kernel.next()

        for name, address in (("a", "100.112.0.9"), ("b", "100.112.0.10"), ("headless", "None")):
            spec = {"clusterIP": address, "ports": [{"port": 80}]}
            await client.create(SERVICES.as_dynamic, {"metadata": {"name": name}, "spec": spec}, "default")
        await until({"100.112.0.9", "100.112.0.10"})
        await client.patch(SERVICES.as_dynamic, "a", "default", {"metadata": {"labels": {"x": "y"}}})
        await client.delete(SERVICES.as_dynamic, "a", "default")
        await until({"100.112.0.10"})


async def test_nodes_of_other_domains_wake_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as (client, _, kernel, waits):
        await kernel.next()
        await client.create(NODE, node("node-9", "bob"))
        await client.create(NODE, node("node-2"))
        await kernel.next()
        assert kernel.seen == [[], ["node-2"]]
        assert waits.pauses == []


async def test_what_failed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch, failures=3) as (_, _controller, kernel, waits):
        while not kernel.seen:
            await kernel.next()
        assert kernel.seen == [[]]
        assert len(waits.pauses) == 3
        assert waits.pauses[2] > waits.pauses[0]


async def test_a_new_namespace_gets_everything_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as (_, controller, kernel, _waits):
        await kernel.next()
        controller.namespace_changed()
        await kernel.next()
        assert kernel.renewed == 1
        assert kernel.seen == [[], []]


async def test_who_answers_on_the_link_is_reached_there(monkeypatch: pytest.MonkeyPatch) -> None:
    links: list[Link] = []

    def made(*words: Any) -> Link:
        links.append(Link(*words))
        return links[-1]

    monkeypatch.setattr(module, "LinkProbe", made)
    async with running(monkeypatch) as (client, controller, kernel, waits):
        await kernel.next()
        (link,) = links
        kernel.link = (5, {"100.96.16.0/20": "100.96.16.1"})
        await client.create(NODE, node("node-2"))
        await kernel.next()
        for answering in ({"100.96.16.0/20"}, set()):
            link.answering = frozenset(answering)
            link.changed()
            await kernel.next()
        controller.namespace_changed()
        await kernel.next()
        assert kernel.answering == [frozenset(), frozenset(), {"100.96.16.0/20"}, frozenset(), frozenset()]
        assert link.followed[:2] == [(0, {}), kernel.link]
        assert link.renewed == 1
        assert waits.pauses == []
    assert link.closed


async def test_a_link_that_does_not_answer_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as (client, _, kernel, waits):
        await kernel.next()
        kernel.unsettled = True
        await client.create(NODE, node("node-2"))
        while len(kernel.rechecked) < 3:
            await kernel.next()
        assert kernel.rechecked == [False, False, True]
        assert waits.pauses == [30.0]
