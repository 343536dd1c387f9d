"""Keeps a zone true: each change of an object changes its names at once, and nothing else is looked at.

The zone that is handed out stays the same object in content until something changes; then there is a new one, with a
higher serial, and whoever remembers answers is told to forget them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType

from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.pod_state import addresses
from coterie.kube.api.types.network import ENDPOINTS, SERVICES, Endpoints, Service
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.client.informer import ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kube.network.dns.zone import ServiceNames, Zone, pod_name, service_names


class ZoneUpdater:
    def __init__(self, zone: Zone, informers: Informers, namespace: str = "") -> None:
        """`namespace`: where the informers look; empty where the whole cluster is watched anyway."""
        self._domain = zone.domain
        self._services: dict[str, ServiceNames] = {}
        self._pods: dict[tuple[str, str], tuple[str, ...]] = {}
        self._names: dict[ObjectKey, tuple[str, str]] = {}
        self._pods_behind: dict[tuple[str, str], dict[ObjectKey, tuple[str, ...]]] = {}
        self._listeners: list[Callable[[], None]] = []
        self.zone = replace(zone, services=MappingProxyType(self._services), pods=MappingProxyType(self._pods))
        self._service_informer = informers.get(SERVICES, namespace)
        self._endpoints_informer = informers.get(ENDPOINTS, namespace)
        self._pod_informer = informers.get(PODS, namespace)
        self._arrivals = (self._service_informer.ready, self._endpoints_informer.ready, self._pod_informer.ready)
        self._service_informer.add_handler(self._service_changed)
        self._endpoints_informer.add_handler(self._service_changed)
        self._pod_informer.add_handler(self._pod_changed)

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    @property
    def synced(self) -> bool:
        """Before this nobody knows which names exist."""
        return all(event.is_set() for event in self._arrivals)

    async def wait_synced(self) -> None:
        for event in self._arrivals:
            await event.wait()

    def _service_changed(self, change: ObjectChange[Service] | ObjectChange[Endpoints]) -> None:
        meta = change.object.metadata
        if meta.namespace != self._domain:
            return
        name = meta.name
        service = self._service_informer.cache.get(name, self._domain)
        before = self._services.get(name)
        if service is None:
            after = None
            self._services.pop(name, None)
        else:
            after = service_names(
                service, self._endpoints_informer.cache.get(name, self._domain), self.zone.gateway_label
            )
            self._services[name] = after
        if before != after:
            self._notify()

    def _pod_changed(self, change: ObjectChange[Pod]) -> None:
        pod = change.object
        if pod.metadata.namespace != self._domain:
            return
        # What the pod's name was is remembered: the last state of a deleted pod need not be one we saw.
        before, after = self._names.get(pod.key), None if change.type == "deleted" else pod_name(pod)
        if before is not None and before != after:
            del self._names[pod.key]
            self._set_pod(before, pod.key, ())
        if after is not None:
            self._names[pod.key] = after
            self._set_pod(after, pod.key, addresses(pod))

    def _set_pod(self, name: tuple[str, str], key: ObjectKey, found: tuple[str, ...]) -> None:
        behind = self._pods_behind.setdefault(name, {})
        if behind.get(key) == found:
            return
        behind.pop(key, None)
        if found:
            behind[key] = found
        if behind:
            self._pods[name] = tuple(dict.fromkeys(ip for ips in behind.values() for ip in ips))
        else:
            del self._pods_behind[name], self._pods[name]
        self._notify()

    def _notify(self) -> None:
        self.zone = replace(self.zone, serial=self.zone.serial + 1)
        for listener in self._listeners:
            listener()
