"""The agent put together: the Node object, its pods, and what both need.

    runtime open ──> node registered ──> pods of the node by watch ──> workers

`make` gives the runnables in the order in which they start. Stopping them leaves all containers running: the next agent
finds them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.kube.agent.devices.manager import DeviceManager
from coterie.kube.agent.devices.metrics import DeviceUser
from coterie.kube.agent.devices.protocol import DeviceFault
from coterie.kube.agent.images.collector import ImageCollector, UsedImages
from coterie.kube.agent.images.model import split
from coterie.kube.agent.images.node_images import NodeImages
from coterie.kube.agent.node.conditions import PodNetworkState
from coterie.kube.agent.node.registration import NodeRegistration
from coterie.kube.agent.plugin import AgentPlugin
from coterie.kube.agent.pods import pod_model
from coterie.kube.agent.pods.garbage import NodeGarbageCollector
from coterie.kube.agent.pods.idle_monitor import IdleMonitor
from coterie.kube.agent.pods.manager import PodManager
from coterie.kube.agent.pods.storage_monitor import StorageMonitor
from coterie.kube.agent.runtimes.protocol import ImageInfo, PodRuntime, PodState
from coterie.kube.agent.settings import AgentSettings
from coterie.kube.agent.volumes.local_path import LocalVolumes
from coterie.kube.api.meta import Object
from coterie.kube.api.types.core import ObjectReference
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.events import EventRecorder, EventType
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
    devices: DeviceManager
    node: NodeRegistration
    pods: PodManager
    volumes: LocalVolumes
    garbage: NodeGarbageCollector
    storage: StorageMonitor
    idleness: IdleMonitor
    images: ImageCollector | None = None

    @property
    def groups(self) -> list[list[Runnable]]:
        return [
            [self.runtime, self.events],
            [self.devices],
            [self.node],
            [self.volumes],
            [self.pods],
            [self.garbage, self.storage, self.idleness, *([self.images] if self.images is not None else [])],
        ]


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
    served_images: Callable[[], Awaitable[Iterable[str]]] | None = None,
    devices: DeviceManager | None = None,
) -> Agent:
    """`informers` must be running (or be started before the agent's groups). `network`: how that of the pods is now.
    `served_images`: names of images that must stay although no pod uses them."""
    events = EventRecorder(client, "agent", instance=settings.node_name, clock=clock)
    if devices is None:
        devices = DeviceManager(settings.devices, settings.devices_directory, settings.node_name, clock)
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
        devices=devices.node,
    )
    volumes = LocalVolumes(client, settings.volumes_directory, settings.node_name)
    pods = PodManager(
        client, informers, runtime, settings, events, clock, tuple(plugins), volumes, devices, node.allocatable, images
    )
    devices.on_change = node.update_conditions
    devices.on_fault = lambda fault, user: report_fault(events, settings.node_name, fault, user)
    node.pressures = lambda: pods.pressures
    garbage = NodeGarbageCollector(settings, pods.known_uids, clock)
    collector = _collector(images, pods, runtime, events, settings, clock, served_images) if images else None
    storage = StorageMonitor(
        pods,
        runtime,
        settings,
        clock,
        node.allocatable,
        pressure_changed=node.update_conditions,
        free_images=partial(collector.collect, urgent=True) if collector is not None else None,
    )
    idleness = IdleMonitor(client, informers, runtime, settings, clock)
    return Agent(RuntimeService(runtime), events, devices, node, pods, volumes, garbage, storage, idleness, collector)


def _collector(
    images: NodeImages,
    pods: PodManager,
    runtime: PodRuntime,
    events: EventRecorder,
    settings: AgentSettings,
    clock: Clock,
    served: Callable[[], Awaitable[Iterable[str]]] | None,
) -> ImageCollector:
    about = ObjectReference(api_version="v1", kind="Node", name=settings.node_name, uid=settings.node_name)

    def report(reason: str, message: str) -> None:
        events.record(about, "Warning" if reason.endswith("Failed") else "Normal", reason, message)

    chosen = {} if served is None else {"served": served}
    return ImageCollector(
        images.store,
        images.settings.collection,
        clock,
        lambda: used_images(pods.pods(), runtime.pods()),
        report=report,
        **chosen,
    )


def used_images(pods: Sequence[Object], states: Sequence[PodState]) -> UsedImages:
    """Of pods that have not ended, and of containers that run. Pure."""
    names = {
        container.get("image") or ""
        for pod in pods
        if not pod_model.phase_is_final(pod)
        for key in ("containers", "initContainers", "ephemeralContainers")
        for container in pod["spec"].get(key) or ()
    }
    running = [run for state in states for run in state.containers if run.running]
    return UsedImages(
        frozenset(names | {run.image for run in running} - {""}), frozenset(run.image_id for run in running)
    )


def report_fault(events: EventRecorder, node: str, fault: DeviceFault, user: DeviceUser | None) -> None:
    """An event of the Node, and of the pod that has the device."""
    reason = "DeviceHealthy" if fault.healthy else "DeviceUnhealthy"
    kind: EventType = "Normal" if fault.healthy else "Warning"
    message = f"{fault.id}: {fault.message}"
    events.record(ObjectReference(api_version="v1", kind="Node", name=node, uid=node), kind, reason, message)
    if user is not None:
        about = ObjectReference(api_version="v1", kind="Pod", namespace=user.namespace, name=user.pod, uid=user.uid)
        events.record(about, kind, reason, message)


def node_images(runtime: PodRuntime) -> list[Object]:
    images = sorted(runtime.images(), key=lambda image: -image.size)[:_LISTED_IMAGES]
    return [{"names": _image_names(image), "sizeBytes": image.size} for image in images]


def _image_names(image: ImageInfo) -> list[str]:
    """Also by digest, where that says what is inside."""
    return [image.name, *([f"{split(image.name)[0]}@{image.digest}"] if image.digest else [])]
