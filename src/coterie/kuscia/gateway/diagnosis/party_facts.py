"""What a partner may know of this domain before a job: the engines it asks for by name, and whether its part would fit.

No lists and no amounts leave: of an engine that is not named nothing is said, and capacity is a yes or a no.
"""

from __future__ import annotations

from collections.abc import Iterable

from coterie.base.log import logger
from coterie.kube.api import quantity
from coterie.kube.api.errors import ApiError, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.quota import pod_resources
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.client.client import Client
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api import labels
from coterie.kuscia.api.engine_versions import is_range, versions_named
from coterie.kuscia.api.types.job import APP_IMAGES, AppImageName
from coterie.kuscia.gateway.diagnosis.messages import EngineFacts, FactsRequest, PartyFacts

_NODES = Kind.dynamic(builtin("nodes"))
_PODS = Kind.dynamic(builtin("pods"))
_ENDED = ("Succeeded", "Failed")
_log = logger("gateway.diagnosis")


class PartyFactsSource:
    def __init__(self, client: Client, domain: str, version: str) -> None:
        self._client = client
        self._domain = domain
        self._version = version

    async def facts(self, asked: FactsRequest) -> PartyFacts:
        engines = [found for name in asked.app_images if (found := await self._engine(name)) is not None]
        return PartyFacts(self._version, tuple(engines), await self._fits(asked))

    async def _engine(self, name: str) -> EngineFacts | None:
        """None: unknown, a lite may not always ask. `name`: an AppImage, or an engine with or without a range."""
        try:
            image = await self._image(name)
            if image is None:
                return EngineFacts(name)
        except (ApiError, TransportError, ValueError) as error:
            _log.debug("An AppImage could not be read", name=name, error=error)
            return None
        # Where our registry is concerns nobody else.
        return EngineFacts(name, True, f"{image.name.rpartition('/')[2]}:{image.tag}", image.id)

    async def _image(self, name: str) -> AppImageName | None:
        if not is_range(name):
            try:
                return (await self._client.get(APP_IMAGES, name)).spec.image
            except NotFound:
                pass
        found = versions_named(name, (await self._client.list(APP_IMAGES)).items)
        return found[0].image.spec.image if found else None

    async def _fits(self, asked: FactsRequest) -> bool | None:
        try:
            owned = f"{labels.KUSCIA_NODE_NAMESPACE}={self._domain}"
            nodes = (await self._client.list(_NODES, labels=owned)).items
            pods = (await self._client.list(_PODS, self._domain)).items
        except (ApiError, TransportError) as error:
            _log.debug("The free capacity is unknown", error=error)
            return None
        return fits(nodes, pods, asked.cpu_milli, asked.memory) if nodes else None


def fits(nodes: Iterable[Object], pods: Iterable[Object], cpu_milli: int, memory: int) -> bool:
    """Whether some node that is ready has so much left."""
    used: dict[str, tuple[int, int]] = {}
    for pod in pods:
        node = pod.get("spec", {}).get("nodeName", "")
        if not node or pod.get("status", {}).get("phase") in _ENDED:
            continue
        asked = pod_resources(pod, "requests")
        cpu, bytes_ = used.get(node, (0, 0))
        cpu += asked["cpu"].milli_value() if "cpu" in asked else 0
        bytes_ += asked["memory"].value() if "memory" in asked else 0
        used[node] = (cpu, bytes_)
    for node in nodes:
        status = node.get("status", {})
        ready = any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions") or ())
        if not ready or node.get("spec", {}).get("unschedulable"):
            continue
        room = status.get("allocatable") or {}
        cpu, bytes_ = used.get(node["metadata"]["name"], (0, 0))
        has_cpu = quantity.parse(room.get("cpu", "0")).milli_value() - cpu >= cpu_milli
        if has_cpu and quantity.parse(room.get("memory", "0")).value() - bytes_ >= memory:
            return True
    return False
