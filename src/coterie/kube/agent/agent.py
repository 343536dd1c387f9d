"""The agent put together: the Node object, its pods, and what both need.

    runtime open ──> node registered ──> pods of the node by watch ──> workers

`make` gives the runnables in the order in which they start. Stopping them leaves all containers running: the next agent
finds them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.kube.agent.images.node_images import NodeImages
from coterie.kube.agent.node.conditions import PodNetworkState
from coterie.kube.agent.node.registration import NodeRegistration
from coterie.kube.agent.plugin import AgentPlugin
from coterie.kube.agent.pods.garbage import NodeGarbageCollector
from coterie.kube.agent.pods.manager import PodManager
from coterie.kube.agent.pods.storage_monitor import StorageMonitor
from coterie.kube.agent.runtimes.protocol import PodRuntime
from coterie.kube.agent.settings import AgentSettings
from coterie.kube.agent.volumes.local_path import LocalVolumes
from coterie.kube.api.meta import Object
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.events import EventRecorder
from coterie.kube.control.manager import Runnable

log = logger("agent")
_LISTED_IMAGES = 50
"""A Node lists no more images than this, as Kubernetes' nodes do."""


class RuntimeService:
    """A Runnable: the runtime is open while it runs."""

    name = "runtime"

    def __init__(self, runtime: PodRuntime) -> None:
        self.ready = asyncio.Event()
        self._runtime = runtime
        self._stop = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        await self._runtime.open()
        try:
            for sentence in self._runtime.limitations():
                log.info("The runtime is limited here", runtime=self._runtime.name, what=sentence)
            self.ready.set()
            await self._stop.wait()
        finally:
            await self._runtime.close()


@dataclass(frozen=True, slots=True)
class Agent:
    """The parts of one agent; `groups` is what a Manager runs."""

    runtime: RuntimeService
    events: EventRecorder
    node: NodeRegistration
    pods: PodManager
    volumes: LocalVolumes
    garbage: NodeGarbageCollector
    storage: StorageMonitor

    @property
    def groups(self) -> list[list[Runnable]]:
        return [[self.runtime, self.events], [self.node], [self.volumes], [self.pods], [self.garbage, self.storage]]


def make(
    client: Client,
    informers: Informers,
    runtime: PodRuntime,
    settings: AgentSettings,
    clock: Clock = SYSTEM_CLOCK,
    *,
    plugins: Sequence[AgentPlugin] = (),
    network: Callable[[], PodNetworkState] = PodNetworkState,
    images: NodeImages | None = None,
) -> Agent:
    """`informers` must be running (or be started before the agent's groups). `network`: how that of the pods is now."""
    events = EventRecorder(client, "agent", instance=settings.node_name, clock=clock)
    node = NodeRegistration(
        client,
        settings,
        runtime.name,
        clock,
        images=lambda: node_images(runtime),
        plugins=plugins,
        network=network,
        handlers=runtime.handlers,
        limitations=runtime.limitations,
    )
    volumes = LocalVolumes(client, settings.volumes_directory, settings.node_name)
    pods = PodManager(
        client, informers, runtime, settings, events, clock, tuple(plugins), volumes, node.allocatable, images
    )
    node.pressures = lambda: pods.pressures
    garbage = NodeGarbageCollector(settings, pods.known_uids, clock)
    storage = StorageMonitor(pods, runtime, settings, clock, node.allocatable, pressure_changed=node.update_conditions)
    return Agent(RuntimeService(runtime), events, node, pods, volumes, garbage, storage)


def node_images(runtime: PodRuntime) -> list[Object]:
    images = sorted(runtime.images(), key=lambda image: -image.size)[:_LISTED_IMAGES]
    return [{"names": [image.name], "sizeBytes": image.size} for image in images]
