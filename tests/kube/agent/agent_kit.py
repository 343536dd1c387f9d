"""An API server, a fake machine and an agent in one process, for tests that look at what users see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.base import pki
from coterie.base.clock import VirtualClock
from coterie.base.paths import DomainPaths
from coterie.http.messages import UserInfo
from coterie.kube.agent.agent import Agent, make
from coterie.kube.agent.devices.manager import DeviceManager
from coterie.kube.agent.images.node_images import NodeImages
from coterie.kube.agent.runtimes.fake import HOST_IMAGE, FakeMachine, FakeRuntime
from coterie.kube.agent.settings import AgentSettings, NodeObjectSettings, PodSettings
from coterie.kube.api.errors import NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.apiserver.auth.tokens import TokenSigner
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.informers import Informers
from coterie.kube.client.transport import Disconnected, TransportRequest, TransportResponse
from coterie.kube.control.manager import Manager
from coterie.kube.store.memory import MemoryStore
from coterie.kuscia.engine.certificates import DomainAuthority, EngineCertificateIssuer
from coterie.kuscia.engine.engine_plugin import EnginePlugin, EngineSettings
from coterie.kuscia.engine.templates.config_store import NoConfigStore
from coterie.kuscia.extensions.apiserver import KUSCIA

ADMIN = UserInfo("system:admin", ("system:masters",))
PODS = Kind.dynamic(builtin("pods"))
NODES = Kind.dynamic(builtin("nodes"))
EVENTS = Kind.dynamic(builtin("events"))
CONFIG_MAPS = Kind.dynamic(builtin("configmaps"))
SECRETS = Kind.dynamic(builtin("secrets"))
NAMESPACES = Kind.dynamic(builtin("namespaces"))
LEASES = Kind.dynamic(builtin("leases", "coordination.k8s.io"))


class CountingTransport:
    """Counts the requests of the agent, and lets a test cut the line."""

    def __init__(self, inner: InProcessTransport) -> None:
        self._inner = inner
        self.calls: list[str] = []
        self.cut = False

    async def send(self, call: TransportRequest) -> TransportResponse:
        self.calls.append(f"{call.method} {call.path}")
        if self.cut:
            raise Disconnected("cut by the test")
        return await self._inner.send(call)

    async def close(self) -> None:
        await self._inner.close()


class World:
    """What a test looks at and moves."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = VirtualClock()
        self.machine = FakeMachine(self.clock)
        self.store = MemoryStore()
        self.agent: Agent | None = None
        self.engines = EngineSettings("alice")
        self.images: NodeImages | None = None
        self.devices: Callable[[], DeviceManager] | None = None
        """Makes the devices of each agent; None: the machine's, of which there are none."""
        self.settings = AgentSettings(
            node_name="node-1",
            paths=DomainPaths(root / "alice"),
            machine_id="machine-1",
            node=NodeObjectSettings(measure_seconds=30),
            pods=PodSettings(host_paths=(str(root / "host"),)),
        )

    async def open(self) -> None:
        await self.store.open()
        self.api = ApiServer(self.store, Settings(extensions=[KUSCIA], signer=TokenSigner(pki.new_key())), self.clock)
        await self.api.start()
        self.user = Client(InProcessTransport(self.api.handle, ADMIN))
        for name in ("alice", "kube-node-lease"):
            try:
                await self.user.create(NAMESPACES, {"metadata": {"name": name}})
            except Exception as error:  # noqa: BLE001 - the server makes some namespaces itself
                assert "exists" in str(error)

    async def close(self) -> None:
        if self.agent is not None:
            await self.stop_agent()
        await self.machine.close()
        await self.user.close()
        await self.api.stop()
        await self.store.close()

    async def start_agent(self) -> None:
        self._begin()
        await self.until(lambda: self.manager.ready.is_set() or self._task.done())
        if self._task.done():
            self.agent = None
            self._task.result()

    def _begin(self) -> None:
        self.transport = CountingTransport(InProcessTransport(self.api.handle, ADMIN))
        self.client = Client(self.transport, clock=self.clock)
        self.informers = Informers(self.client)
        self.runtime = FakeRuntime(self.machine)
        issuer = EngineCertificateIssuer(DomainAuthority(self.settings.paths), "alice", self.clock)
        plugin = EnginePlugin(self.engines, issuer, NoConfigStore())
        self.agent = make(
            self.client,
            self.informers,
            self.runtime,
            self.settings,
            self.clock,
            plugins=[plugin],
            devices=self.devices() if self.devices is not None else None,
            images=self.images,
        )
        self.manager = Manager([[self.informers], *self.agent.groups], clock=self.clock)
        self._task = asyncio.create_task(self.manager.run())

    async def stop_agent(self) -> None:
        """An orderly end: containers go on."""
        self.manager.stop()
        await self.until(self._task.done)
        self._task.result()
        self.agent = None
        await self.transport.close()

    async def kill_agent(self) -> None:
        """As by SIGKILL: nothing is finished, nothing is said."""
        self._task.cancel()
        await asyncio.wait([self._task])
        self.agent = None
        await self.transport.close()

    async def until(self, check: Callable[[], bool], seconds: float = 60.0, step: float = 0.1) -> None:
        for _ in range(int(seconds / step)):
            if check():
                return
            await self.clock.advance(step)
            await asyncio.sleep(0)
        assert check(), "it never came to this"

    async def create(self, pod: Object) -> Object:
        return await self.user.create(PODS, pod)

    async def pod(self, name: str) -> Object:
        return await self.user.get(PODS, name, "alice")

    async def pod_until(self, name: str, check: Callable[[Object], bool], seconds: float = 60.0) -> Object:
        found: Object = {}
        for _ in range(int(seconds / 0.1)):
            found = await self.pod(name)
            if check(found):
                return found
            await self.clock.advance(0.1)
        raise AssertionError(f"pod {name} never came to this: {found.get('status')}")

    async def gone(self, name: str, seconds: float = 60.0) -> None:
        for _ in range(int(seconds / 0.1)):
            try:
                await self.pod(name)
            except NotFound:
                return
            await self.clock.advance(0.1)
        raise AssertionError(f"pod {name} is still there: {await self.pod(name)}")

    async def settle(self, seconds: float = 1.0) -> None:
        steps = max(1, int(seconds / 0.1))
        for _ in range(steps):
            await self.clock.advance(seconds / steps)

    async def events(self, name: str) -> list[tuple[str, str]]:
        page = await self.user.list(EVENTS, "alice")
        return [(event["reason"], event["message"]) for event in page.items if event["involvedObject"]["name"] == name]

    def with_pods(self, **changes: Any) -> None:
        self.settings = replace(self.settings, pods=replace(self.settings.pods, **changes))


@asynccontextmanager
async def world(root: Path) -> AsyncIterator[World]:
    made = World(root)
    await made.open()
    try:
        yield made
    finally:
        await made.close()


def container(script: str = "sleep inf", name: str = "main", **fields: Any) -> Object:
    return {"name": name, "image": HOST_IMAGE, "command": ["sh", "-c", script], **fields}


def pod(name: str, *containers: Object, node: str = "node-1", policy: str = "Always", **spec: Any) -> Object:
    return {
        "metadata": {"name": name, "namespace": "alice", "labels": {"app": name}},
        "spec": {
            "nodeName": node,
            "restartPolicy": policy,
            "containers": list(containers) or [container()],
            **spec,
        },
    }


def phase(wanted: str) -> Callable[[Object], bool]:
    return lambda found: (found.get("status") or {}).get("phase") == wanted


def status_named(found: Object, name: str = "main") -> Object:
    status = found.get("status") or {}
    for group in ("initContainerStatuses", "containerStatuses"):
        for told in status.get(group) or ():
            if told["name"] == name:
                return dict(told)
    return {}


def is_ready(found: Object) -> bool:
    conditions = (found.get("status") or {}).get("conditions") or ()
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
