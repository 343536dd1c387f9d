"""A domain whose pods run in a backing cluster: two API servers, our mirroring agent, and an agent that stands for its kubelets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_kit import ADMIN, PODS, World

from coterie.http.messages import UserInfo
from coterie.kube.agent.plugin import AgentPlugin
from coterie.kube.agent.runk import mirror_agent
from coterie.kube.agent.runk.settings import OWNER_LABEL, RunkSettings
from coterie.kube.agent.runtimes.fake import FakeMachine
from coterie.kube.api.meta import Object
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.informers import Informers
from coterie.kube.control.manager import Manager
from coterie.kuscia.engine.certificates import DomainAuthority, EngineCertificateIssuer
from coterie.kuscia.engine.engine_plugin import EnginePlugin
from coterie.kuscia.engine.templates.config_store import NoConfigStore

BACKING = "alice"
"""The namespace of the copies: the kit's worlds have this one."""
POLICIES = Kind.dynamic(builtin("networkpolicies", "networking.k8s.io"))


class MirrorWorld:
    def __init__(self, root: Path) -> None:
        self.here = World(root / "here")
        self.there = World(root / "there")
        self.there.clock = self.here.clock
        self.there.machine = FakeMachine(self.here.clock)
        self.settings = RunkSettings(namespace=BACKING, owner="test", keep_logs=False)
        self.user = ADMIN
        """As whom the mirroring agent is known to the backing cluster."""
        self.plugins: list[AgentPlugin] | None = None
        self.agent: mirror_agent.MirrorAgent | None = None

    async def start_agent(self) -> None:
        here, there = self.here, self.there
        self.client = Client(InProcessTransport(here.api.handle, ADMIN), clock=here.clock)
        self.backing = Client(InProcessTransport(there.api.handle, self.user), clock=here.clock)
        informers = Informers(self.client)
        issuer = EngineCertificateIssuer(DomainAuthority(here.settings.paths), "alice", here.clock)
        plugins = self.plugins
        if plugins is None:
            plugins = [EnginePlugin(here.engines, issuer, NoConfigStore())]
        settings = replace(here.settings, machine_id="machine-here")
        self.agent = mirror_agent.make(
            self.client, informers, self.backing, settings, self.settings, here.clock, plugins=plugins
        )
        self.manager = Manager([[informers], *self.agent.groups], clock=here.clock)
        self._task = asyncio.create_task(self.manager.run())
        await here.until(lambda: self.manager.ready.is_set() or self._task.done())
        if self._task.done():
            self._task.result()

    async def stop_agent(self) -> None:
        self.manager.stop()
        await self.here.until(self._task.done)
        self._task.result()
        self.agent = None
        await self.client.close()
        await self.backing.close()

    async def schedule(self) -> None:
        """What the backing cluster's scheduler does."""
        for pod in (await self.there.user.list(PODS, BACKING)).items:
            if not pod["spec"].get("nodeName") and not pod["spec"].get("schedulingGates"):
                target = {"target": {"apiVersion": "v1", "kind": "Node", "name": "node-1"}}
                meta = {"name": pod["metadata"]["name"], "namespace": BACKING}
                await self.there.user.create(BINDINGS, {"metadata": meta, **target}, BACKING)

    async def _steps(self, seconds: float) -> AsyncIterator[None]:
        """Seconds of the clock, and then some of the real time that threads need on a busy machine."""
        for _ in range(int(seconds / 0.1)):
            yield
            await self.schedule()
            await self.here.clock.advance(0.1)
        for _ in range(300):
            yield
            await self.schedule()
            await asyncio.sleep(0.1)

    async def copy(self, name: str) -> Object | None:
        found = (await self.there.user.list(PODS, BACKING, fields=f"metadata.name={name}")).items
        return found[0] if found else None

    async def copy_until(self, name: str, check: Callable[[Object | None], bool], seconds: float = 60.0) -> Object:
        found: Object | None = None
        async for _ in self._steps(seconds):
            found = await self.copy(name)
            if check(found):
                return found or {}
        raise AssertionError(f"the copy of {name} never came to this: {found}")

    async def pod_until(self, name: str, check: Callable[[Object], bool], seconds: float = 90.0) -> Object:
        found: Object = {}
        async for _ in self._steps(seconds):
            found = await self.here.pod(name)
            if check(found):
                return found
        raise AssertionError(f"pod {name} never came to this: {found.get('status')}")


BINDINGS: Kind[Any] = Kind.dynamic(builtin("bindings"))


def reader() -> UserInfo:
    """Somebody whom the backing cluster lets do nothing."""
    return UserInfo("somebody", ("system:authenticated",))


@asynccontextmanager
async def mirror_world(root: Path) -> AsyncIterator[MirrorWorld]:
    made = MirrorWorld(root)
    await made.here.open()
    await made.there.open()
    await made.there.start_agent()
    try:
        yield made
    finally:
        if made.agent is not None:
            await made.stop_agent()
        await made.there.close()
        await made.here.close()


def owned(obj: Object) -> bool:
    return bool((obj["metadata"].get("labels") or {}).get(OWNER_LABEL))
