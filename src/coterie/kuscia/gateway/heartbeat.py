"""The gateway's sign of life: a Gateway object in our namespace, named after this instance, renewed every 15 seconds.

It tells where the gateway is, since when, and of each route, service and endpoint that Envoy knows how many addresses
there are and how many of them answer. Controllers count a gateway as live for three minutes after its last sign.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
from collections.abc import Callable, Collection, Iterable

from coterie.base.clock import SYSTEM_CLOCK, Clock, rfc3339
from coterie.base.log import logger
from coterie.kube.api.errors import AlreadyExists, ApiError, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.types import network
from coterie.kube.client.client import Client
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api.domainroutes import network_status_name
from coterie.kuscia.api.types.domain import GATEWAYS, DomainRoute
from coterie.kuscia.gateway.admin import Admin, AdminError
from coterie.kuscia.gateway.clusters import DIRECT
from coterie.kuscia.gateway.settings import GatewaySettings
from coterie.kuscia.gateway.snapshot_inputs import GatewayObjects
from coterie.kuscia.identity.domain_identity import DomainIdentity

_PLAIN = GATEWAYS.as_dynamic
EVERY = 15.0
_RETRY = 1.0
_MEMBERS = r"^cluster\..*\.membership_(total|healthy)$"
_LINE = re.compile(r"^cluster\.(?P<cluster>.+)\.membership_(?P<what>total|healthy): (?P<count>\d+)$", re.MULTILINE)

Members = dict[str, dict[str, int]]


def members_of(stats: str) -> Members:
    """Envoy's own count, by cluster: `total` and `healthy`."""
    found: Members = {}
    for match in _LINE.finditer(stats):
        found.setdefault(match["cluster"], {})[match["what"]] = int(match["count"])
    return found


def network_status(
    members: Members,
    routes: Iterable[DomainRoute],
    services: Collection[network.Service],
    endpoints: Iterable[network.Endpoints],
    domain: str,
) -> list[Object]:
    """Routes that we dial by port, ExternalName services, and all other services by their endpoints, as Kuscia tells it."""
    out: list[Object] = []
    known = {service.metadata.name for service in services}

    def tell(name: str, kind: str, cluster: str, *, addressed: bool = False) -> None:
        count = members.get(cluster)
        if count is None and addressed and DIRECT in members and name in known:
            # It shares a cluster with others. Envoy calls an endpoint healthy because it is there, in any cluster.
            count = {"total": 1, "healthy": 1}
        if count is not None and len(count) == 2:
            entry = {"totalEndpointsCount": count["total"], "healthyEndpointsCount": count["healthy"]}
            out.append({"name": name, "type": kind, **entry})

    for service in services:
        if service.spec.type == "ExternalName":
            tell(service.metadata.name, "Service", f"service-{service.metadata.name}", addressed=True)
    for each in endpoints:
        addressed = any(subset.addresses for subset in each.subsets or ())
        tell(each.metadata.name, "Endpoints", f"service-{each.metadata.name}", addressed=addressed)
    for route in routes:
        spec = route.spec
        if spec.source != domain or (spec.transit is not None and spec.transit.through):
            continue
        for port in (spec.endpoint.ports or ()) if spec.endpoint is not None else ():
            name = network_status_name(spec.source, spec.destination, port.name)
            tell(name, "DomainRoute", name)
    return sorted(out, key=lambda entry: (entry["type"], entry["name"]))


class Heartbeat:
    """A Runnable; ready at once: a control plane that is away for a while does not make a gateway useless."""

    name = "gateway-heartbeat"

    def __init__(
        self,
        client: Client,
        settings: GatewaySettings,
        identity: DomainIdentity,
        admin: Admin,
        world: Callable[[], GatewayObjects],
        *,
        address: str,
        version: str,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.ready = asyncio.Event()
        self._client = client
        self._settings = settings
        self._admin = admin
        self._world = world
        self._clock = clock
        self._lasting = {
            "address": address,
            "uptime": rfc3339(clock.now()),
            "publicKey": base64.b64encode(identity.public_key_pem).decode(),
            "version": version,
        }
        self._failing = False
        self._log = logger("gateway.heartbeat").bind(domain=settings.domain, gateway=settings.instance)

    async def run(self) -> None:
        self.ready.set()
        while True:
            # Soon again after a failure: routes wait for gateways.
            await self._clock.sleep(EVERY if await self._heartbeat_once() else _RETRY)

    async def _heartbeat_once(self) -> bool:
        try:
            await self._write(await self._status())
        except (ApiError, TransportError) as error:
            if not self._failing:
                self._log.warning("Gateway heartbeat cannot be written; trying again", error=error)
            self._failing = True
            return False
        self._failing = False
        return True

    async def _status(self) -> Object:
        try:
            members = members_of(await self._admin.ask(f"/stats?filter={_MEMBERS}"))
        except AdminError:
            members = {}  # Envoy restarts: we are alive, and nothing is known to be reachable
        world = self._world()
        network_state = network_status(
            members, world.routes, world.services, world.endpoints.values(), self._settings.domain
        )
        return {**self._lasting, "heartbeatTime": rfc3339(self._clock.now()), "networkStatus": network_state}

    async def _write(self, status: Object) -> None:
        name, namespace = self._settings.instance, self._settings.domain
        try:
            await self._client.patch_status(_PLAIN, name, namespace, {"status": status})
        except NotFound:
            with contextlib.suppress(AlreadyExists):
                await self._client.create(_PLAIN, {"metadata": {"name": name, "namespace": namespace}})
            await self._client.patch_status(_PLAIN, name, namespace, {"status": status})
