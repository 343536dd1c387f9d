"""The objects a gateway looks at, and which of their changes are news to it.

A control plane shares the informers that its controllers have anyway; a lite may read its own namespace only, and no
Domains. Heartbeats come every fifteen seconds on every route and gateway: they must not cost a snapshot each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coterie.base.clock import Clock
from coterie.kube.api.types import network
from coterie.kube.api.types.core import SECRETS, Secret
from coterie.kube.api.types.ingress import DNSES, INGRESS_CLASSES, INGRESSES, Dns, Ingress, IngressClass
from coterie.kube.api.types.network import ENDPOINTS, SERVICES
from coterie.kube.client.informer import Informer, ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kube.network.ingress.plan import NO_OBJECTS, TLS_SECRET, IngressObjects
from coterie.kuscia.api.functions.partners import ACTION_TARGETS, ActionTargets, inbox_callers
from coterie.kuscia.api.functions.types import ACTION_GRANTS, ActionGrant
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
        self._actions: Informer[ActionTargets] | None = None
        self._action_grants: Informer[ActionGrant] | None = None
        if settings.control_plane and settings.functions:
            self._actions = informers.get(ACTION_TARGETS, settings.domain)
            self._action_grants = informers.get(ACTION_GRANTS, settings.domain)
            self._undo.append(self._actions.add_handler(lambda change: self._on_change(change, action_matters)))
            self._undo.append(self._action_grants.add_handler(lambda change: self._on_change(change, grant_matters)))
        self._cluster_domain = settings.cluster_domain
        self._ingresses: Informer[Ingress] | None = None
        self._classes: Informer[IngressClass] | None = None
        self._secrets: Informer[Secret] | None = None
        self._dnses: Informer[Dns] | None = None
        if settings.pods is not None and settings.ingress is not None:
            self._ingresses = informers.get(INGRESSES, where)
            self._secrets = informers.get(SECRETS, settings.domain, fields=f"type={TLS_SECRET}")
            self._undo.append(self._ingresses.add_handler(lambda change: self._on_change(change, ingress_matters)))
            self._undo.append(self._secrets.add_handler(lambda change: self._on_change(change, secret_matters)))
            if settings.control_plane:
                self._classes = informers.get(INGRESS_CLASSES)
                self._undo.append(self._classes.add_handler(lambda _: self._notify(True)))
        if settings.pods is not None and (settings.control_plane or settings.ingress is not None):
            self._dnses = informers.get(DNSES, where)
            self._undo.append(self._dnses.add_handler(lambda change: self._on_change(change, dns_matters)))

    @property
    def _all(self) -> list[Informer[Any]]:
        found: list[Informer[Any]] = [self._routes, self._services, self._endpoints, self._gateways]
        optional = (self._domains, self._ingresses, self._classes, self._secrets, self._dnses, self._actions)
        return [*found, *(each for each in (*optional, self._action_grants) if each is not None)]

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
        services = self._services.cache.list(domain)
        endpoints = {each.metadata.name: each for each in self._endpoints.cache.list(domain)}
        return GatewayObjects(
            routes=self._routes.cache.list(domain),
            services=services,
            endpoints=endpoints,
            ingress=self._ingress_objects(services, endpoints),
            domains={each.metadata.name: each for each in self._domains.cache.list()} if self._domains else {},
            function_callers=self._function_callers(),
            peer_gateways=[
                each
                for each in self._gateways.cache.list(domain)
                if each.metadata.name in live and each.metadata.name != self._instance
            ],
        )

    def _function_callers(self) -> frozenset[str]:
        if self._actions is None or self._action_grants is None:
            return frozenset()
        return inbox_callers(self._actions.cache.list(self._domain), self._action_grants.cache.list(self._domain))

    def _ingress_objects(
        self, services: Sequence[network.Service], endpoints: Mapping[str, network.Endpoints]
    ) -> IngressObjects:
        domain = self._domain
        ingresses = self._ingresses.cache.list(domain) if self._ingresses is not None else ()
        dnses = self._dnses.cache.list(domain) if self._dnses is not None else ()
        if not ingresses and not dnses:
            return NO_OBJECTS
        return IngressObjects(
            ingresses,
            dnses,
            {each.metadata.name: each for each in services if not each.metadata.deleting},
            endpoints,
            {each.metadata.name: each for each in self._secrets.cache.list(domain)} if self._secrets else {},
            self._classes.cache.list() if self._classes is not None else None,
            self._cluster_domain,
        )

    def ingress(self, name: str) -> Ingress | None:
        return self._ingresses.cache.get(name, self._domain) if self._ingresses is not None else None

    def dns(self, name: str) -> Dns | None:
        return self._dnses.cache.get(name, self._domain) if self._dnses is not None else None

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


def ingress_matters(old: Ingress, new: Ingress) -> bool:
    one, other = old.metadata, new.metadata
    # Whoever changes the status gets ours back, hence that too.
    return (
        old.spec != new.spec
        or old.status != new.status
        or one.deleting != other.deleting
        or one.annotations != other.annotations
    )


def secret_matters(old: Secret, new: Secret) -> bool:
    return old.data != new.data


def action_matters(old: ActionTargets, new: ActionTargets) -> bool:
    return old.spec.next != new.spec.next


def grant_matters(old: ActionGrant, new: ActionGrant) -> bool:
    return old.spec.grant_domain != new.spec.grant_domain or old.metadata.deleting != new.metadata.deleting


def dns_matters(old: Dns, new: Dns) -> bool:
    return old.spec != new.spec or old.metadata.deleting != new.metadata.deleting


def can_be_called(service: network.Service, endpoints: network.Endpoints | None) -> bool:
    """One without endpoints only answers differently that it cannot be called."""
    return service.spec.type == "ExternalName" or (endpoints is not None and bool(endpoints.subsets))


def endpoints_matter(old: network.Endpoints, new: network.Endpoints) -> bool:
    return old.subsets != new.subsets


def domain_matters(old: Domain, new: Domain) -> bool:
    return old.spec != new.spec or old.metadata.deleting != new.metadata.deleting
