"""Keeps a zone true: each change of an object changes its names at once, and nothing else is looked at.

The zone that is handed out stays the same object in content until something changes; then there is a new one, with a
higher serial, and whoever remembers answers is told to forget them.

Where the whole cluster is watched (`namespace` empty), the zone has names in all of its namespaces except those that belong to
other domains (`is_foreign`, `set_foreign`): their names lead to the gateway. Where only the own domain's namespace is watched,
there are no others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from coterie.kube.api.labels import ENDPOINTSLICE_MANAGED_BY, SERVICE_NAME
from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.pod_state import addresses
from coterie.kube.api.types.core import NAMESPACES, Namespace
from coterie.kube.api.types.network import ENDPOINT_SLICES, ENDPOINTS, SERVICES, Endpoints, EndpointSlice, Service
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.client.informer import ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kube.network.dns.model import Name
from coterie.kube.network.dns.zone import ServiceNames, Zone, current_addresses, pod_name, service_names

_Key = TypeVar("_Key")
_CONTROLLERS = "-controller.k8s.io"
"""How the names of those end who make slices of what Endpoints objects hold too."""


class ZoneUpdater:
    def __init__(
        self,
        zone: Zone,
        informers: Informers,
        namespace: str = "",
        *,
        is_foreign: Callable[[Namespace], bool] = lambda _: False,
        wait_for: Iterable[asyncio.Event] = (),
    ) -> None:
        """`namespace`: where the informers look; empty where the whole cluster is watched anyway. `is_foreign`: whether a
        namespace is another domain's. `wait_for`: what else must be known before names are."""
        self._domain = zone.domain
        self._services: dict[str, ServiceNames] = {}
        self._others: dict[tuple[str, str], ServiceNames] = {}
        self._reverse: dict[str, dict[tuple[str, str], str]] = {}
        self._pods: dict[tuple[str, str], tuple[str, ...]] = {}
        self._names: dict[ObjectKey, tuple[str, str]] = {}
        self._pods_behind: dict[tuple[str, str], dict[ObjectKey, tuple[str, ...]]] = {}
        self._addresses: dict[ObjectKey, tuple[str, ...]] = {}
        self._pods_at: dict[tuple[str, str], set[ObjectKey]] = {}
        self._slices: dict[tuple[str, str], dict[str, EndpointSlice]] = {}
        """By Service: slices that no controller made."""
        self._namespaces: set[str] = set()
        self._foreign: frozenset[str] = frozenset()
        self._listeners: list[Callable[[], None]] = []
        self._is_foreign = is_foreign
        self.zone = replace(
            zone,
            services=MappingProxyType(self._services),
            pods=MappingProxyType(self._pods),
            others=MappingProxyType(self._others),
            reverse=MappingProxyType(self._reverse),
            pod_addresses=self._pods_at.keys(),
        )
        self._service_informer = informers.get(SERVICES, namespace)
        self._endpoints_informer = informers.get(ENDPOINTS, namespace)
        pod_informer = informers.get(PODS, namespace)
        self._arrivals = [
            self._service_informer.ready,
            self._endpoints_informer.ready,
            pod_informer.ready,
            *wait_for,
        ]
        self._service_informer.add_handler(self._service_changed)
        self._endpoints_informer.add_handler(self._service_changed)
        pod_informer.add_handler(self._pod_changed)
        slices = informers.get(ENDPOINT_SLICES, namespace)
        slices.add_handler(self._slice_changed)
        if not namespace:
            # A lite's control plane of an earlier version does not let it read slices.
            self._arrivals.append(slices.ready)
            namespaces = informers.get(NAMESPACES)
            self._arrivals.append(namespaces.ready)
            namespaces.add_handler(self._namespace_changed)

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    @property
    def synced(self) -> bool:
        """Before this nobody knows which names exist."""
        return all(event.is_set() for event in self._arrivals)

    async def wait_synced(self) -> None:
        for event in self._arrivals:
            await event.wait()

    def set_foreign(self, names: Iterable[str]) -> None:
        """The namespaces that are other domains', besides those that say so themselves (`is_foreign`)."""
        self._foreign = frozenset(names)
        self._set_namespaces()

    def set_hosts(self, hosts: Mapping[Name, tuple[str, ...]]) -> None:
        """Names that stand for themselves, with their addresses."""
        if dict(hosts) != self.zone.hosts:
            self.zone = replace(self.zone, hosts=dict(hosts))
            self._notify()

    def _namespace_changed(self, change: ObjectChange[Namespace]) -> None:
        namespace = change.object
        if change.type == "deleted" or self._is_foreign(namespace):
            self._namespaces.discard(namespace.metadata.name)
        else:
            self._namespaces.add(namespace.metadata.name)
        self._set_namespaces()

    def _set_namespaces(self) -> None:
        local = frozenset(self._namespaces - self._foreign - {self._domain})
        if local != self.zone.namespaces:
            self.zone = replace(self.zone, namespaces=local)
            self._notify()

    def _service_changed(self, change: ObjectChange[Service] | ObjectChange[Endpoints]) -> None:
        self._set_service(change.object.metadata.namespace, change.object.metadata.name)

    def _slice_changed(self, change: ObjectChange[EndpointSlice]) -> None:
        meta = change.object.metadata
        labels = meta.labels or {}
        name = labels.get(SERVICE_NAME, "")
        if not name or labels.get(ENDPOINTSLICE_MANAGED_BY, "").endswith(_CONTROLLERS):
            return
        key = meta.namespace, name
        found = self._slices.setdefault(key, {})
        if change.type == "deleted":
            found.pop(meta.name, None)
        else:
            found[meta.name] = change.object
        if not found:
            del self._slices[key]
        self._set_service(*key)

    def _set_service(self, namespace: str, name: str) -> None:
        own = namespace == self._domain
        key = namespace, name
        service = self._service_informer.cache.get(name, namespace)
        before = self._services.get(name) if own else self._others.get(key)
        after = None
        if service is not None:
            behind = self._endpoints_informer.cache.get(name, namespace)
            label = self.zone.gateway_label if own else None
            slices = [each for _, each in sorted(self._slices.get(key, {}).items())]
            after = service_names(service, behind, label, self.zone.virtual, slices)
        if before == after:
            return
        if own:
            _set(self._services, name, after)
        else:
            _set(self._others, key, after)
        self._set_reverse(key, before, after)
        self._notify()

    def _set_reverse(self, key: tuple[str, str], before: ServiceNames | None, after: ServiceNames | None) -> None:
        for address in before.reverse() if before is not None else ():
            named = self._reverse[address]
            del named[key]
            if not named:
                del self._reverse[address]
        for address, label in after.reverse().items() if after is not None else ():
            self._reverse.setdefault(address, {})[key] = label

    def _pod_changed(self, change: ObjectChange[Pod]) -> None:
        pod = change.object
        gone = change.type == "deleted"
        self._set_addresses(pod.key, () if gone else current_addresses(pod))
        if pod.metadata.namespace != self._domain:
            return
        # What the pod's name was is remembered: the last state of a deleted pod need not be one we saw.
        before, after = self._names.get(pod.key), None if gone else pod_name(pod)
        if before is not None and before != after:
            del self._names[pod.key]
            self._set_pod(before, pod.key, ())
        if after is not None:
            self._names[pod.key] = after
            self._set_pod(after, pod.key, addresses(pod))

    def _set_addresses(self, key: ObjectKey, found: tuple[str, ...]) -> None:
        before = self._addresses.get(key, ())
        if before == found:
            return
        for address in before:
            pods = self._pods_at[key.namespace, address]
            pods.discard(key)
            if not pods:
                del self._pods_at[key.namespace, address]
        for address in found:
            self._pods_at.setdefault((key.namespace, address), set()).add(key)
        if found:
            self._addresses[key] = found
        else:
            del self._addresses[key]
        self._notify()

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


def _set(services: dict[_Key, ServiceNames], key: _Key, names: ServiceNames | None) -> None:
    if names is None:
        services.pop(key, None)
    else:
        services[key] = names
