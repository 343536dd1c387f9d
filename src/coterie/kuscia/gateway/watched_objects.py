"""The objects a gateway looks at, and which of their changes are news to it.

A control plane shares the informers that its controllers have anyway; a lite may read its own namespace only, and no
Domains. Heartbeats come every fifteen seconds on every route and gateway: they must not cost a snapshot each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from coterie.base.clock import Clock
from coterie.kube.api.types import network
from coterie.kube.api.types.network import ENDPOINTS, SERVICES
from coterie.kube.client.informer import Informer, ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kuscia.api.types.domain import DOMAIN_ROUTES, DOMAINS, GATEWAYS, Domain, DomainRoute, Gateway
from coterie.kuscia.control.last_seen import LiveGateways
from coterie.kuscia.gateway.settings import GatewaySettings
from coterie.kuscia.gateway.snapshot_inputs import GatewayObjects

PEER_GATEWAY_LIFE = 30.0
"""Seconds after its last heartbeat for which another gateway of our domain is sent anything."""


class WatchedObjects:
    """`on_change` is called for each change that may matter, and told whether it is urgent. `due`: whether it must be called
    though no object changed."""

    def __init__(
        self,
        informers: Informers,
        settings: GatewaySettings,
        on_change: Callable[[bool], None],
        clock: Clock,
        due: Callable[[], bool] = lambda: False,
    ) -> None:
        self._domain = settings.domain
        self._instance = settings.instance
        self._notify = on_change
        self._due = due
        where = "" if settings.control_plane else settings.domain
        self._routes: Informer[DomainRoute] = informers.get(DOMAIN_ROUTES, where)
        self._services: Informer[network.Service] = informers.get(SERVICES, where)
        self._endpoints: Informer[network.Endpoints] = informers.get(ENDPOINTS, where)
        self._gateways: Informer[Gateway] = informers.get(GATEWAYS, where)
        self._domains: Informer[Domain] | None = informers.get(DOMAINS) if settings.control_plane else None
        self._live = LiveGateways(self._gateways, clock, PEER_GATEWAY_LIFE)
        self._undo = [
            self._routes.add_handler(lambda change: self._on_change(change, route_matters)),
            self._services.add_handler(self._service_changed),
            self._endpoints.add_handler(lambda change: self._on_change(change, endpoints_matter)),
            self._gateways.add_handler(self._gateway_changed),
        ]
        if self._domains is not None:
            self._undo.append(self._domains.add_handler(self._domain_changed))

    @property
    def _all(self) -> list[Informer[Any]]:
        found: list[Informer[Any]] = [self._routes, self._services, self._endpoints, self._gateways]
        return found if self._domains is None else [*found, self._domains]

    @property
    def ready(self) -> bool:
        return all(each.ready.is_set() for each in self._all)

    async def synced(self) -> None:
        """Until everything that is there was seen once."""
        await asyncio.gather(*(each.ready.wait() for each in self._all))

    def close(self) -> None:
        for undo in self._undo:
            undo()

    def world(self) -> GatewayObjects:
        """Without tokens and credentials, which are others' to add."""
        domain = self._domain
        live = self._live.of(domain)
        return GatewayObjects(
            routes=self._routes.cache.list(domain),
            services=self._services.cache.list(domain),
            endpoints={each.metadata.name: each for each in self._endpoints.cache.list(domain)},
            domains={each.metadata.name: each for each in self._domains.cache.list()} if self._domains else {},
            peer_gateways=[
                each
                for each in self._gateways.cache.list(domain)
                if each.metadata.name in live and each.metadata.name != self._instance
            ],
        )

    def route(self, name: str) -> DomainRoute | None:
        return self._routes.cache.get(name, self._domain)

    def service(self, name: str) -> network.Service | None:
        return self._services.cache.get(name, self._domain)

    def _on_change(self, change: ObjectChange[Any], matters: Callable[[Any, Any], bool], urgent: bool = True) -> None:
        if change.object.metadata.namespace != self._domain:
            return
        if change.old is None or matters(change.old, change.object):
            self._notify(urgent)

    def _service_changed(self, change: ObjectChange[network.Service]) -> None:
        endpoints = self._endpoints.cache.get(change.object.metadata.name, self._domain)
        self._on_change(change, service_matters, change.old is not None or can_be_called(change.object, endpoints))

    def _gateway_changed(self, change: ObjectChange[Gateway]) -> None:
        # Our own heartbeat is the clock by which a sister that fell silent is noticed, and a certificate that ended.
        if change.object.metadata.namespace == self._domain and (self._live.has_changed(self._domain) or self._due()):
            self._notify(True)

    def _domain_changed(self, change: ObjectChange[Domain]) -> None:
        if change.old is None or domain_matters(change.old, change.object):
            self._notify(True)


def route_matters(old: DomainRoute, new: DomainRoute) -> bool:
    return (
        old.spec != new.spec
        or old.metadata.deleting != new.metadata.deleting
        or old.metadata.annotations != new.metadata.annotations
        or _tokens(old) != _tokens(new)
    )


def _tokens(route: DomainRoute) -> list[tuple[str, int, bool, tuple[str, ...] | None]]:
    """All of a token but its heartbeat."""
    return [
        (each.token, each.revision, each.is_ready, each.effective_instances) for each in route.token_status.tokens or ()
    ]


def service_matters(old: network.Service, new: network.Service) -> bool:
    one, other = old.metadata, new.metadata
    return (
        old.spec != new.spec
        or one.deleting != other.deleting
        or one.annotations != other.annotations
        or one.labels != other.labels
    )


def can_be_called(service: network.Service, endpoints: network.Endpoints | None) -> bool:
    """One without endpoints only answers differently that it cannot be called."""
    return service.spec.type == "ExternalName" or (endpoints is not None and bool(endpoints.subsets))


def endpoints_matter(old: network.Endpoints, new: network.Endpoints) -> bool:
    return old.subsets != new.subsets


def domain_matters(old: Domain, new: Domain) -> bool:
    return old.spec != new.spec or old.metadata.deleting != new.metadata.deleting
