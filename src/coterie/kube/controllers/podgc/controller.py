"""Removes pods that nobody else will: their node is gone, they were never placed, or they ended long ago."""

from __future__ import annotations

import asyncio

from coterie.base.clock import SYSTEM_CLOCK, Clock, rfc3339
from coterie.base.log import logger
from coterie.kube.api.errors import ApiError, Conflict, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.pod_state import DISRUPTION_TARGET
from coterie.kube.api.types.nodes import NODES
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.client.transport import TransportError
from coterie.kube.controllers.podgc.plan import Garbage, Settings, garbage, missing_nodes

_PARALLEL = 16


class PodGarbageCollector:
    """A Runnable: looks at all pods every `period` seconds."""

    name = "podgc"

    def __init__(self, client: Client, informers: Informers, settings: Settings, clock: Clock) -> None:
        self.ready = asyncio.Event()
        self._client = client
        self._settings = settings
        self._clock = clock
        self._pods = informers.get(PODS)
        self._nodes = informers.get(NODES)
        self._missing_since: dict[str, float] = {}
        self._log = logger("controllers.podgc")

    async def run(self) -> None:
        await self._pods.ready.wait()
        await self._nodes.ready.wait()
        self.ready.set()
        while True:
            await self.collect()
            await self._clock.sleep(self._settings.period)

    async def collect(self) -> None:
        pods = self._pods.cache.list()
        nodes = {node.metadata.name: node for node in self._nodes.cache}
        gone = await self._gone(missing_nodes(pods, nodes))
        found = garbage(pods, nodes, gone, self._settings)
        limit = asyncio.Semaphore(_PARALLEL)
        await asyncio.gather(*(self._remove(one, limit) for one in found))

    async def _gone(self, missing: set[str]) -> set[str]:
        """Of the nodes that are missing now those that are missing long enough, by the server's word."""
        now = self._clock.monotonic()
        self._missing_since = {name: self._missing_since.get(name, now) for name in missing}
        return {
            name
            for name, since in self._missing_since.items()
            if now - since >= self._settings.quarantine and await self._does_not_exist(name)
        }

    async def _does_not_exist(self, node: str) -> bool:
        try:
            await self._client.get(NODES, node)
        except NotFound:
            return True
        except (ApiError, TransportError):
            return False  # not known is not gone
        return False

    async def _remove(self, found: Garbage, limit: asyncio.Semaphore) -> None:
        meta = found.pod.metadata
        async with limit:
            try:
                if not found.pod.ended:
                    await self._fail(found.pod)
                # Nobody is there to end it gracefully.
                await self._client.delete(PODS, meta.name, meta.namespace, uid=meta.uid, grace=0)
            except (NotFound, Conflict):
                return
            except (ApiError, TransportError) as error:
                self._log.warning("Pod could not be removed; trying again later", error=error, pod=str(meta.key))
                return
        self._log.info("Pod is removed", pod=str(meta.key), why=found.reason)

    async def _fail(self, pod: Pod) -> None:
        """A last word for whoever holds the pod by a finalizer and counts how it ended."""
        message = "PodGC: node no longer exists" if pod.spec.node_name else "PodGC: pod was never scheduled"
        condition = {
            "type": DISRUPTION_TARGET,
            "status": "True",
            "reason": "DeletionByPodGC",
            "message": message,
            "lastTransitionTime": rfc3339(self._clock.now()),
        }
        status: Object = {"phase": "Failed", "conditions": [condition]}
        meta = pod.metadata
        patch = {"metadata": {"uid": meta.uid}, "status": status}
        await self._client.patch(PODS, meta.name, meta.namespace, patch, type="strategic", subresource="status")


def make(
    client: Client, informers: Informers, *, settings: Settings | None = None, clock: Clock = SYSTEM_CLOCK
) -> PodGarbageCollector:
    return PodGarbageCollector(client, informers, settings or Settings(), clock)
