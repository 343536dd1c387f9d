"""ServiceCIDR and IPAddress objects: they show the addresses of Services, as the allocator has given them out.

The Services themselves say which address is whose (`admission/service_addresses.py`); here each cluster IP gets its IPAddress
object a moment later, and loses it with the Service. The ServiceCIDR `kubernetes` is the configured range. Others may be
made: one that lies in the configured range is Ready, any other is not, because nodes route that range only.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable
from typing import Any, Final

from coterie.base.clock import Clock, rfc3339
from coterie.base.log import logger
from coterie.kube.api import errors
from coterie.kube.apiserver import bootstrap
from coterie.kube.apiserver.admission.service_addresses import IP_ADDRESS_MANAGER, MANAGED_BY, Owner, ServiceAddresses
from coterie.kube.apiserver.state.collection import Collection
from coterie.kube.apiserver.state.entry import ObjectEntry
from coterie.kube.apiserver.state.state import ResourceStorage

log = logger("apiserver.serviceranges")

Object = dict[str, Any]
ADDRESSES: Final = "/registry/networking.k8s.io/ipaddresses"
RANGES: Final = "/registry/networking.k8s.io/servicecidrs"
DEFAULT_RANGE: Final = "kubernetes"
_SERVICES: Final = "/registry/core/services"
_ADDRESS_PATH: Final = "/apis/networking.k8s.io/v1/ipaddresses"
_RANGE_PATH: Final = "/apis/networking.k8s.io/v1/servicecidrs"
_NODES_ROUTE: Final = "nodes route the range of the setting network.serviceCIDR only"


def ip_address(address: str, owner: Owner) -> Object:
    """The object of an address that a Service has."""
    namespace, name = owner
    family = f"IPv{ipaddress.ip_address(address).version}"
    labels = {"ipaddress.kubernetes.io/ip-family": family, MANAGED_BY: IP_ADDRESS_MANAGER}
    parent = {"group": "", "resource": "services", "namespace": namespace, "name": name}
    return {"metadata": {"name": address, "labels": labels}, "spec": {"parentRef": parent}}


def ready_condition(cidrs: Iterable[str], routed: ipaddress.IPv4Network) -> tuple[str, str, str]:
    """(status, reason, message) of the Ready condition of a ServiceCIDR."""
    for text in cidrs:
        network = ipaddress.ip_network(text, strict=False)
        if not isinstance(network, ipaddress.IPv4Network) or not network.subnet_of(routed):
            return "False", "NotRouted", f"{text} does not lie in {routed}: {_NODES_ROUTE}"
    return "True", "", "Kubernetes Service CIDR is ready"


class ServiceRanges:
    def __init__(self, state: ResourceStorage, services: ServiceAddresses, send: bootstrap.Send, clock: Clock) -> None:
        self._addresses: Collection = state.collection(ADDRESSES)
        self._ranges: Collection = state.collection(RANGES)
        self._services = services
        self._send = send
        self._clock = clock
        self._changed = asyncio.Event()
        self._parents: dict[str, tuple[int, Owner | None]] = {}
        """Revision and owner of each IPAddress: they are read once."""
        for key in (_SERVICES, ADDRESSES, RANGES):
            state.observe(key, lambda _: self._changed.set())

    async def run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self.reconcile()
            except errors.ApiError as problem:
                log.warning(
                    "Addresses of Services could not be shown; trying again with the next change", error=problem
                )

    async def reconcile(self) -> None:
        await self._reconcile_default()
        for entry in self._ranges.entries():
            await self._reconcile_range(entry)
        await self._reconcile_addresses()

    # -- addresses ----------------------------------------------------------------------------------------------

    async def _reconcile_addresses(self) -> None:
        wanted = {str(ipaddress.IPv4Address(number)): owner for number, owner in self._services.owners().items()}
        present = {entry.name: self._owner(entry) for entry in self._addresses}
        for name, owner in present.items():
            if owner is not None and wanted.get(name) != owner:
                await bootstrap.delete(self._send, f"{_ADDRESS_PATH}/{name}")
        for name, owner in wanted.items():
            if present.get(name, ()) != owner and (name not in present or present[name] is not None):
                await bootstrap.create(self._send, _ADDRESS_PATH, ip_address(name, owner))
        for gone in self._parents.keys() - present.keys():
            del self._parents[gone]

    def _owner(self, entry: ObjectEntry) -> Owner | None:
        """The Service an address was given to; None: somebody else keeps the object."""
        known = self._parents.get(entry.name)
        if known is None or known[0] != entry.revision:
            known = self._parents[entry.name] = entry.revision, _managed_owner(entry.load())
        return known[1]

    # -- ranges -------------------------------------------------------------------------------------------------

    async def _reconcile_default(self) -> None:
        cidrs = [str(self._services.network)]
        entry = self._ranges.get("", DEFAULT_RANGE)
        if entry is not None and (entry.load().get("spec") or {}).get("cidrs") != cidrs:
            # The setting was changed. A range cannot be edited, as in Kubernetes, so it is made again.
            await bootstrap.delete(self._send, f"{_RANGE_PATH}/{DEFAULT_RANGE}")
            entry = None
        if entry is None:
            body = {"metadata": {"name": DEFAULT_RANGE}, "spec": {"cidrs": cidrs}}
            await bootstrap.create(self._send, _RANGE_PATH, body)

    async def _reconcile_range(self, entry: ObjectEntry) -> None:
        obj = entry.load()
        conditions = (obj.get("status") or {}).get("conditions") or []
        status, reason, message = ready_condition((obj.get("spec") or {}).get("cidrs") or (), self._services.network)
        present = next((each for each in conditions if each.get("type") == "Ready"), None)
        if present is not None and (present.get("status"), present.get("message")) == (status, message):
            return
        now = rfc3339(self._clock.now())
        ready = {"type": "Ready", "status": status, "reason": reason, "message": message, "lastTransitionTime": now}
        others = [each for each in conditions if each.get("type") != "Ready"]
        body = {"status": {"conditions": [*others, ready]}}
        await bootstrap.patch_status(self._send, f"{_RANGE_PATH}/{entry.name}", body)


def _managed_owner(obj: Object) -> Owner | None:
    labels = obj["metadata"].get("labels") or {}
    parent = (obj.get("spec") or {}).get("parentRef") or {}
    if labels.get(MANAGED_BY) != IP_ADDRESS_MANAGER or parent.get("resource") != "services" or parent.get("group"):
        return None
    return parent.get("namespace") or "", parent.get("name") or ""
