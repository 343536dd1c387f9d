"""Opens and closes the machine's ports as Services and pods say.

A port that cannot be opened is told by an event of its object, and tried again while the object asks for it. Host ports of
a pod that starts are opened before its containers do (`open_for_pod`), so that it does not run without them.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Any

import msgspec

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner
from coterie.kube.api.meta import Object, ObjectKey
from coterie.kube.api.pod_state import addresses
from coterie.kube.api.types.core import ObjectReference
from coterie.kube.api.types.network import ENDPOINT_SLICES, SERVICES, EndpointSlice, Service
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.client.informer import ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kube.control.events import EventRecorder
from coterie.kube.network.ports.listeners import PortListeners
from coterie.kube.network.ports.plan import (
    Destination,
    Listening,
    MachineView,
    PublishedPorts,
    pod_ports,
    service_ports,
)
from coterie.kube.network.services.node_scope import NodeScope
from coterie.kube.network.services.plan import service_of_slice
from coterie.kube.network.services.proxy import SLICES_BY_SERVICE, slices_by_service

log = logger("network.ports")

_RETRY_SECONDS = 10.0
_SERVICE, _POD = "Service", "Pod"
FAILED = "FailedToOpenPort"


class PortPublisher:
    """A Runnable. `view` is asked at each change."""

    name = "published-ports"

    def __init__(
        self,
        informers: Informers,
        listeners: PortListeners,
        view: Callable[[], MachineView],
        scope: NodeScope,
        events: EventRecorder,
        *,
        namespace: str = "",
        node_name: str,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.ready = asyncio.Event()
        self._listeners = listeners
        self._view = view
        self._scope = scope
        self._events = events
        self._clock = clock
        self._services = informers.get(SERVICES, namespace)
        self._slices = informers.get(ENDPOINT_SLICES, namespace)
        self._slices.cache.add_index(SLICES_BY_SERVICE, slices_by_service)
        # The same that the agent follows.
        self._pods = informers.get(PODS.as_dynamic, namespace, fields=f"spec.nodeName={node_name}")
        self._ports = PublishedPorts()
        self._failed: dict[Listening, str] = {}
        self._destinations: dict[Listening, Destination] = {}
        self._changed: set[tuple[str, ObjectKey]] = set()
        self._wake = asyncio.Event()
        self._wake_retry = asyncio.Event()
        self._lock = asyncio.Lock()
        self._services.add_handler(self._service_changed)
        self._slices.add_handler(self._slice_changed)
        self._pods.add_handler(self._pod_changed)
        scope.on_change(self._enqueue_services)

    # What changes.

    def _service_changed(self, change: ObjectChange[Service]) -> None:
        self._enqueue(_SERVICE, change.object.key)

    def _slice_changed(self, change: ObjectChange[EndpointSlice]) -> None:
        for found in (change.object, change.old):
            key = service_of_slice(found) if found is not None else None
            if key is not None:
                self._enqueue(_SERVICE, key)

    def _pod_changed(self, change: ObjectChange[Object]) -> None:
        if _has_host_ports(change.object):
            meta = change.object["metadata"]
            self._enqueue(_POD, ObjectKey(meta.get("namespace", ""), meta["name"]))

    def _enqueue_services(self) -> None:
        for service in self._services.cache.list():
            self._enqueue(_SERVICE, service.key)

    def _enqueue(self, kind: str, key: ObjectKey) -> None:
        self._changed.add((kind, key))
        self._wake.set()

    # What is done about it.

    async def run(self) -> None:
        self.ready.set()
        for informer in (self._services, self._slices, self._pods):
            await informer.ready.wait()
        await self._scope.wait_ready()
        try:
            async with TaskOwner(self.name) as owner:
                owner.start("changes", self._follow(), endless=True)
                owner.start("retries", self._retry(), endless=True)
                await owner.wait()
        finally:
            await self._listeners.close()

    async def _follow(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._changed:
                kind, key = self._changed.pop()
                async with self._lock:
                    wanted = self._wanted(kind, key)
                    if wanted is not None:
                        await self._update(kind, key, wanted)

    def _wanted(self, kind: str, key: ObjectKey) -> dict[Listening, Destination] | None:
        """None: not known yet, leave it as it is."""
        if kind == _SERVICE:
            slices = self._slices.cache.by_index(SLICES_BY_SERVICE, str(key))
            return service_ports(self._services.cache.by_key(key), slices, self._view())
        found = self._pods.cache.by_key(key)
        if found is None:
            return {}
        pod = msgspec.convert(found, Pod)
        if not addresses(pod) and not pod.ended:
            return None  # `open_for_pod` knows its address
        return pod_ports(pod, self._view())

    async def _update(self, kind: str, key: ObjectKey, wanted: dict[Listening, Destination]) -> None:
        changed, conflicts = self._ports.update(kind, key, wanted)
        for each in conflicts:
            self._tell(each.owner, f"port {each.listening} is published by {each.holder}")
        for listening, destination in changed.items():
            await self._set(listening, destination)

    async def _set(self, listening: Listening, destination: Destination | None) -> None:
        if destination is None:
            self._destinations.pop(listening, None)
            self._failed.pop(listening, None)
            await self._listeners.set(listening, None)
            return
        self._destinations[listening] = destination
        try:
            await self._listeners.set(listening, destination)
        except OSError as problem:
            if self._failed.get(listening) != str(problem):
                self._failed[listening] = str(problem)
                self._tell(destination.owner, f"port {listening} cannot be opened: {problem.strerror or problem}")
            self._wake_retry.set()
        else:
            self._failed.pop(listening, None)

    async def _retry(self) -> None:
        while True:
            await self._wake_retry.wait()
            self._wake_retry.clear()
            await self._clock.sleep(_RETRY_SECONDS)
            async with self._lock:
                for listening in list(self._failed):
                    await self._set(listening, self._destinations.get(listening))

    async def open_for_pod(self, pod: Object, address: str) -> None:
        """Before its containers start. Raises OSError when one of its host ports cannot be had."""
        if not address or not _has_host_ports(pod):
            return
        shown = {**pod, "status": {**(pod.get("status") or {}), "podIP": address, "podIPs": [{"ip": address}]}}
        wanted = pod_ports(msgspec.convert(shown, Pod), self._view())
        meta = pod["metadata"]
        async with self._lock:
            changed, conflicts = self._ports.update(_POD, ObjectKey(meta.get("namespace", ""), meta["name"]), wanted)
            for listening, destination in changed.items():
                await self._set(listening, destination)
            for each in conflicts:
                message = f"host port {each.listening} is published by {each.holder}"
                raise OSError(errno.EADDRINUSE, message)
            for listening in wanted:
                if listening in self._failed:
                    raise OSError(
                        errno.EADDRINUSE, f"host port {listening} cannot be opened: {self._failed[listening]}"
                    )

    def _tell(self, owner: str, message: str) -> None:
        kind, _, name = owner.partition(" ")
        namespace, _, name = name.partition("/")
        log.warning("Port not published", owner=owner, why=message)
        reference = ObjectReference(
            api_version="v1", kind=kind, namespace=namespace, name=name, uid=self._uid(kind, ObjectKey(namespace, name))
        )
        self._events.record(reference, "Warning", FAILED, message)

    def _uid(self, kind: str, key: ObjectKey) -> str:
        if kind == _SERVICE:
            service = self._services.cache.by_key(key)
            return service.metadata.uid if service is not None else ""
        pod: Any = self._pods.cache.by_key(key)
        return str(pod["metadata"].get("uid") or "") if pod is not None else ""


def _has_host_ports(pod: Object) -> bool:
    spec = pod.get("spec") or {}
    return any(
        port.get("hostPort")
        for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))
        for port in container.get("ports") or ()
    )


def is_own_address(address: str) -> bool:
    """Whether this machine has it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as trial:
        try:
            trial.bind((address, 0))
        except OSError:
            return False
    return True
