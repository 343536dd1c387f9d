"""What all pod workers of an agent share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from coterie.base.clock import Clock
from coterie.base.tasks import TaskOwner
from coterie.kube.agent.devices.manager import DeviceManager
from coterie.kube.agent.images.node_images import NodeImages
from coterie.kube.agent.plugin import AgentPlugin
from coterie.kube.agent.pods import pod_model
from coterie.kube.agent.pods.downward import DownwardNodeInfo
from coterie.kube.agent.pods.limits import LimitDefaults, resolve
from coterie.kube.agent.pods.writer import StatusWriter
from coterie.kube.agent.probes.checks import Checker
from coterie.kube.agent.runtimes.protocol import PodRuntime
from coterie.kube.agent.settings import AgentSettings
from coterie.kube.agent.volumes.local_path import LocalVolumes
from coterie.kube.agent.volumes.objects import ObjectSource
from coterie.kube.api.meta import Object
from coterie.kube.api.types.core import ObjectReference
from coterie.kube.client.client import Client
from coterie.kube.control.events import BRIEF, EventRecorder, EventType


class SteadyTime:
    """Seconds since 1970 that pass evenly: moving the machine's clock neither skips nor stretches a pause."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._base = clock.now().timestamp() - clock.monotonic()

    def now(self) -> float:
        return self._base + self._clock.monotonic()


@dataclass(slots=True)
class WorkerContext:
    client: Client
    runtime: PodRuntime
    settings: AgentSettings
    clock: Clock
    time: SteadyTime
    checker: Checker
    objects: ObjectSource
    local_volumes: LocalVolumes
    plugins: tuple[AgentPlugin, ...]
    events: EventRecorder
    writer: StatusWriter
    owner: TaskOwner
    wake: Callable[[str, float], None]
    """(uid, seconds): look at the pod again."""
    forget: Callable[[str], None]
    """The pod is gone from here."""
    allocatable: Callable[[], Mapping[str, str]]
    devices: DeviceManager
    requests_of_others: Callable[[str], tuple[int, int]] = lambda _: (0, 0)
    """(uid): CPU in thousandths and memory that all other pods of the node were given."""
    images: NodeImages | None = None
    """None: only images that are here already are used."""

    def plugin_references(self, pod: Object) -> set[tuple[str, str]]:
        """(kind, name) of ConfigMaps and Secrets that plug-ins need for the pod."""
        return {reference for plugin in self.plugins for reference in plugin.pod_references(pod)}

    def record_event(self, pod: Object, type: EventType, reason: str, message: str, container: str = "") -> None:
        meta = pod["metadata"]
        about = ObjectReference(
            api_version="v1",
            kind="Pod",
            namespace=meta.get("namespace") or "",
            name=meta["name"],
            uid=meta.get("uid") or "",
            resource_version=meta.get("resourceVersion") or "",
            field_path=pod_model.field_path(pod, container) if container else "",
        )
        # Of a pod that runs once its status says the same, for as long as there is one.
        brief = type == "Normal" and (pod.get("spec") or {}).get("restartPolicy") == "Never"
        self.events.record(about, type, reason, message, after=BRIEF if brief else 0.0)

    def default_limits(self) -> LimitDefaults:
        return resolve(self.settings.pods.defaults, self.allocatable())

    def directory(self, uid: str) -> Path:
        return self.settings.pods_directory / uid

    def facts(self, uid: str) -> DownwardNodeInfo:
        address = self.settings.address
        return DownwardNodeInfo(address, self.runtime.pod_ip(uid) or address, self.allocatable())
