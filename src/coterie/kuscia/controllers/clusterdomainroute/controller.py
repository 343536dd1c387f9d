"""Turns each ClusterDomainRoute into DomainRoutes for the domains we host, and says whether the way is usable.

One pass does all there is to do: labels and keys, copies, InteropConfig, status. It is woken by the route and its
copies, by domains whose spec changed, by gateways that come, go or report something new about this route, and by the
clock when a heartbeat would be too old.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from coterie.base.clock import SYSTEM_CLOCK, Clock, rfc3339
from coterie.base.log import logger
from coterie.kube.api.errors import AlreadyExists, Forbidden, NotFound
from coterie.kube.api.meta import Object, ObjectKey, controller_of
from coterie.kube.api.pod_state import parse_time
from coterie.kube.api.types.merge import changes
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches
from coterie.kube.control.events import EventRecorder, reference_to
from coterie.kuscia.api.domainroutes import network_status_name, route_faults, route_name
from coterie.kuscia.api.kuscia_wire import wire_faults
from coterie.kuscia.api.types.domain import (
    CLUSTER_DOMAIN_ROUTES,
    DOMAIN_ROUTES,
    DOMAINS,
    GATEWAYS,
    INTEROP_CONFIGS,
    ClusterDomainRoute,
    ClusterDomainRouteStatus,
    Domain,
    DomainRoute,
    DomainSpec,
    Gateway,
    NetworkStatus,
)
from coterie.kuscia.control.last_seen import LastSeen, LiveGateways
from coterie.kuscia.controllers.clusterdomainroute import plan, status
from coterie.kuscia.controllers.clusterdomainroute.plan import RouteEndDomain
from coterie.kuscia.controllers.clusterdomainroute.status import RouteView

BY_DOMAIN = "clusterdomainroute/domain"
BY_PAIR = "clusterdomainroute/pair"
BY_NEED = "clusterdomainroute/need"
BY_OWNER = "clusterdomainroute/owner"
_NOT_YET = 2.0
"""Seconds after which a namespace that was missing is asked for again."""
_ALARM_SLACK = 0.05


def by_domain(route: ClusterDomainRoute) -> tuple[str, ...]:
    return (route.spec.source, route.spec.destination)


def by_pair(route: ClusterDomainRoute) -> tuple[str, ...]:
    return (_pair(route.spec.source, route.spec.destination),)


def by_need(route: ClusterDomainRoute) -> tuple[str, ...]:
    return tuple(_pair(*ends) for ends in plan.needed_routes(route.spec, True, True))


def by_owner(copy: DomainRoute) -> tuple[str, ...]:
    owner = controller_of(copy.metadata)
    return (owner.uid,) if owner is not None and owner.kind == CLUSTER_DOMAIN_ROUTES.resource.kind else ()


def _pair(source: str, destination: str) -> str:
    return f"{source}>{destination}"


class ClusterDomainRouteReconciler:
    def __init__(
        self, client: Client, informers: Informers, control_plane: str, events: EventRecorder | None, clock: Clock
    ) -> None:
        self._client = client
        self._control_plane = control_plane
        self._events = events
        self._clock = clock
        self.routes = informers.get(CLUSTER_DOMAIN_ROUTES)
        self.copies = informers.get(DOMAIN_ROUTES)
        self.domains = informers.get(DOMAINS)
        self.gateways = informers.get(GATEWAYS)
        self.interops = informers.get(INTEROP_CONFIGS)
        for name, function in ((BY_DOMAIN, by_domain), (BY_PAIR, by_pair), (BY_NEED, by_need)):
            self.routes.cache.add_index(name, function)
        self.copies.cache.add_index(BY_OWNER, by_owner)
        self._live = LiveGateways(self.gateways, clock)
        self._last_seen = LastSeen(clock)
        self._known_specs: dict[str, DomainSpec] = {}
        self._known_reports: dict[ObjectKey, frozenset[NetworkStatus]] = {}
        self._log = logger("controllers.clusterdomainroute")

    async def reconcile(self, key: ObjectKey) -> Result:
        route = self.routes.cache.get(key.name)
        if route is None or route.metadata.deleting:
            self._last_seen.forget(key)
            return DONE  # the copies have an owner, and go with it
        source, destination = self._end(route.spec.source), self._end(route.spec.destination)
        route = await self._write_labels_and_keys(route, source, destination)
        faults = [
            *route_faults(route.spec, dials=plan.dials(route.spec, source, self._control_plane)),
            *wire_faults(route.metadata.annotations, route.spec),
        ]
        copies, conflicts = await self._copies(route, source, destination, change=not faults)
        view = RouteView(
            route=route,
            source=source,
            destination=destination,
            source_copy=copies.get(source.name),
            destination_copy=copies.get(destination.name),
            source_gateways=self._gateways(source),
            destination_gateways=self._gateways(destination),
            faults=faults,
            conflicts=conflicts,
            needed=self._needed(route, source, destination),
            heartbeat_age=self._heartbeat_age(key, copies.get(destination.name)),
        )
        await self._interop(view)
        await self._status(view)
        return self._next_check(view)

    def _end(self, name: str) -> RouteEndDomain:
        return plan.end(name, self.domains.cache.get(name), self._control_plane)

    async def _write_labels_and_keys(
        self, route: ClusterDomainRoute, source: RouteEndDomain, destination: RouteEndDomain
    ) -> ClusterDomainRoute:
        patch = plan.labels_and_keys_patch(route, source, destination)
        if patch is None:
            return route
        meta = route.metadata
        patch["metadata"] = {
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            **(patch.get("metadata") or {}),
        }
        return await self._client.patch(CLUSTER_DOMAIN_ROUTES, meta.name, "", patch)

    # Copies.

    async def _copies(
        self, route: ClusterDomainRoute, source: RouteEndDomain, destination: RouteEndDomain, *, change: bool
    ) -> tuple[dict[str, DomainRoute], Any]:
        """The copies by namespace as they are afterwards. A route that is wrong leaves the copies of its last good state."""
        name = route_name(route.spec.source, route.spec.destination)
        found = {
            side.name: copy
            for side in (source, destination)
            if side.hosted and (copy := self.copies.cache.get(name, side.name)) is not None
        }
        owned = self.copies.cache.by_index(BY_OWNER, route.metadata.uid)
        if not change and not source.missing and not destination.missing:
            return {copy.metadata.namespace: copy for copy in owned if copy.metadata.name == name}, {}
        wanted = plan.copies(route, source, destination, found, owned)
        out = {copy.metadata.namespace: copy for copy in wanted.good}
        for copy in wanted.delete:
            await self._delete(copy)
        for there, patch in wanted.change:
            out[there.metadata.namespace] = await self._change(there, patch)
        fresh = list(wanted.create)
        for there, copy in wanted.renew:
            self._log.info(
                "Keys changed; tokens are negotiated again",
                route=route.metadata.name,
                namespace=copy.metadata.namespace,
            )
            await self._delete(there)
            fresh.append(copy)
        for copy in fresh:
            made = await self._create(copy)
            if made is not None:
                out[copy.metadata.namespace] = made
        return out, wanted.conflicts

    async def _create(self, copy: DomainRoute) -> DomainRoute | None:
        try:
            return await self._client.create(DOMAIN_ROUTES, copy)
        except (NotFound, Forbidden):
            return None  # the namespace is not there yet, or on its way out
        except AlreadyExists:
            return None  # the cache is behind; the watch brings it, and us, up again

    async def _change(self, there: DomainRoute, patch: Object) -> DomainRoute:
        meta = there.metadata
        patch = {**patch, "metadata": {"uid": meta.uid, **(patch.get("metadata") or {})}}
        return await self._client.patch(DOMAIN_ROUTES, meta.name, meta.namespace, patch)

    async def _delete(self, copy: DomainRoute) -> None:
        meta = copy.metadata
        try:
            await self._client.delete(DOMAIN_ROUTES, meta.name, meta.namespace, uid=meta.uid)
        except NotFound:
            return

    # What readiness is judged by.

    def _gateways(self, side: RouteEndDomain) -> list[Gateway]:
        live = self._live.of(side.name) if side.hosted else {}
        return [gateway for gateway in self.gateways.cache.list(side.name) if gateway.metadata.name in live]

    def _needed(
        self, route: ClusterDomainRoute, source: RouteEndDomain, destination: RouteEndDomain
    ) -> list[tuple[tuple[str, str], ClusterDomainRoute | None]]:
        pairs = plan.needed_routes(route.spec, source.hosted, destination.hosted)
        return [(pair, next(iter(self.routes.cache.by_index(BY_PAIR, _pair(*pair))), None)) for pair in pairs]

    def _heartbeat_age(self, key: ObjectKey, copy: DomainRoute | None) -> float | None:
        beats = (
            [token.heart_beat_time for token in copy.token_status.tokens or () if token.heart_beat_time] if copy else []
        )
        if not beats:
            self._last_seen.forget(key)
            return None
        return self._last_seen.age(key, tuple(beats), parse_time(max(beats)))

    def _next_check(self, view: RouteView) -> Result:
        waits = [
            left
            for side in (view.source, view.destination)
            if side.hosted
            for left in self._live.of(side.name).values()
        ]
        if view.heartbeat_age is not None and view.heartbeat_age <= status.HEARTBEAT_LIMIT:
            waits.append(status.HEARTBEAT_LIMIT - view.heartbeat_age)
        ends = ((view.source, view.source_copy), (view.destination, view.destination_copy))
        if not view.faults and any(side.hosted and copy is None for side, copy in ends):
            waits.append(_NOT_YET)
        return Result(after=max(0.0, min(waits)) + _ALARM_SLACK) if waits else DONE

    # Writing.

    async def _interop(self, view: RouteView) -> None:
        source_copy = view.source_copy
        token = source_copy is not None and source_copy.token_status.newest is not None
        ends = (view.source, view.destination)
        wanted = None if view.faults else plan.interop(view.route, *ends, self._control_plane, token)
        there = self.interops.cache.get(plan.interop_name(view.route.spec))
        owner = controller_of(there.metadata) if there is not None else None
        ours = owner is not None and owner.uid == view.route.metadata.uid
        try:
            if wanted is None:
                if there is not None and ours:
                    await self._client.delete(INTEROP_CONFIGS, there.metadata.name, uid=there.metadata.uid)
            elif there is None:
                await self._client.create(INTEROP_CONFIGS, wanted)
            elif ours and (patch := changes(there.spec, wanted.spec)):
                await self._client.patch(INTEROP_CONFIGS, there.metadata.name, "", {"spec": patch})
        except (AlreadyExists, NotFound):
            return  # the cache is behind; the watch brings us up again

    async def _status(self, view: RouteView) -> None:
        route = view.route
        now = self._clock.now()
        wanted = status.status(view, now, rfc3339(now))
        change = changes(route.status, wanted)
        if change is None:
            return
        meta = route.metadata
        patch = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "status": change}
        try:
            await self._client.patch_status(CLUSTER_DOMAIN_ROUTES, meta.name, "", patch)
        except NotFound:
            return
        self._write_status(route, wanted)

    def _write_status(self, route: ClusterDomainRoute, wanted: ClusterDomainRouteStatus) -> None:
        before = route.ready
        after = next(found for found in wanted.conditions or () if found.type == "Ready")
        if before is not None and (before.status, before.reason) == (after.status, after.reason):
            return
        log = self._log.bind(route=route.metadata.name, ready=after.status, reason=after.reason)
        log.info("Readiness changed", why=after.message)
        if self._events is not None and (before is None or before.status != after.status):
            resource = CLUSTER_DOMAIN_ROUTES.resource
            reference = reference_to(route, api_version=resource.api_version, kind=resource.kind)
            if after.status == "True":
                self._events.normal(reference, "Ready", "The route is usable")
            elif before is not None:
                self._events.warning(reference, after.reason, after.message)

    # Whom a change concerns.

    def keys_of_route(self, route: ClusterDomainRoute) -> list[ObjectKey]:
        dependents = self.routes.cache.by_index(BY_NEED, by_pair(route)[0])
        return [route.key, *(other.key for other in dependents)]

    def keys_of_copy(self, copy: DomainRoute) -> list[ObjectKey]:
        """Its owner, and any other route that would like to have its place."""
        out = {
            route.key for route in self.routes.cache.by_index(BY_PAIR, _pair(copy.spec.source, copy.spec.destination))
        }
        owner = controller_of(copy.metadata)
        if owner is not None and owner.kind == CLUSTER_DOMAIN_ROUTES.resource.kind:
            out.add(ObjectKey("", owner.name))
        return sorted(out)

    def keys_of_domain(self, domain: Domain) -> list[ObjectKey]:
        """Only what a domain is matters, not how its nodes are."""
        name = domain.metadata.name
        current = self.domains.cache.get(name)
        if current is None:
            self._known_specs.pop(name, None)
        elif self._known_specs.get(name) == current.spec:
            return []
        else:
            self._known_specs[name] = current.spec
        return [route.key for route in self.routes.cache.by_index(BY_DOMAIN, name)]

    def keys_of_gateway(self, gateway: Gateway) -> list[ObjectKey]:
        namespace = gateway.metadata.namespace
        routes: Iterable[ClusterDomainRoute] = self.routes.cache.by_index(BY_DOMAIN, namespace)
        changed = self._changed_reports(gateway.key)
        if self._live.has_changed(namespace):
            return [route.key for route in routes]
        return [route.key for route in routes if changed & _report_names(route)] if changed else []

    def _changed_reports(self, key: ObjectKey) -> set[str]:
        current = self.gateways.cache.by_key(key)
        if current is None or current.status is None:
            reports: frozenset[NetworkStatus] = frozenset()
        else:
            reports = frozenset(current.status.network_status or ())
        before = self._known_reports.get(key, frozenset())
        if current is None:
            self._known_reports.pop(key, None)
        else:
            self._known_reports[key] = reports
        return {entry.name for entry in before ^ reports}

    def keys_of_interop(self, config: Any) -> list[ObjectKey]:
        owner = controller_of(config.metadata)
        return [ObjectKey("", owner.name)] if owner is not None else []


def _report_names(route: ClusterDomainRoute) -> set[str]:
    spec = route.spec
    ports = (spec.endpoint.ports or ()) if spec.endpoint is not None else ()
    return {network_status_name(spec.source, spec.destination, port.name) for port in ports}


def make(
    client: Client,
    informers: Informers,
    *,
    control_plane: str,
    events: EventRecorder | None = None,
    workers: int = 4,
    clock: Clock = SYSTEM_CLOCK,
) -> Controller[ObjectKey]:
    """`control_plane` is the domain of this control plane itself."""
    reconciler = ClusterDomainRouteReconciler(client, informers, control_plane, events, clock)
    watches: list[Watches[Any, ObjectKey]] = [
        Watches(reconciler.routes, reconciler.keys_of_route),
        Watches(reconciler.copies, reconciler.keys_of_copy),
        Watches(reconciler.domains, reconciler.keys_of_domain),
        Watches(reconciler.gateways, reconciler.keys_of_gateway),
        Watches(reconciler.interops, reconciler.keys_of_interop),
    ]
    return Controller("clusterdomainroute", reconciler.reconcile, watches, workers=workers, clock=clock)
