"""Keeps the tokens of routes rolling, as far as that is the control plane's work; see the plan for what that is.

Times that gateways wrote are not compared with our clock: ages count from when we saw something change.
"""

from __future__ import annotations

from typing import Any

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.kube.api.errors import NotFound
from coterie.kube.api.meta import Object, ObjectKey
from coterie.kube.api.pod_state import parse_time
from coterie.kube.api.types.merge import changes
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches, own_key
from coterie.kube.control.events import EventRecorder, reference_to
from coterie.kuscia.api.domainroutes import route_faults
from coterie.kuscia.api.types.domain import DOMAIN_ROUTES, GATEWAYS, DomainRoute, DomainRouteTokens, Gateway
from coterie.kuscia.control.last_seen import LastSeen, LiveGateways
from coterie.kuscia.controllers.domainroute.plan import Plan, plan

_ALARM_SLACK = 0.05
"""Seconds after an alarm's moment, so that the moment is past when it rings."""


class DomainRouteReconciler:
    def __init__(self, client: Client, informers: Informers, events: EventRecorder | None, clock: Clock) -> None:
        self._client = client
        self._events = events
        self._clock = clock
        self.routes = informers.get(DOMAIN_ROUTES)
        self.gateways = informers.get(GATEWAYS)
        self._live = LiveGateways(self.gateways, clock)
        self._last_seen = LastSeen(clock)
        self._log = logger("controllers.domainroute")

    async def reconcile(self, key: ObjectKey) -> Result:
        route = self.routes.cache.by_key(key)
        if route is None or route.metadata.deleting:
            self._last_seen.forget(key)
            return DONE
        live = self._live.of(key.namespace)
        if faults := route_faults(route.spec, dials=False):
            self._note(route, "Warning", "RouteInvalid", "; ".join(faults))
            return DONE
        decided = plan(route, live, self._age(key, route), self._clock.now())
        if decided is None:
            return DONE
        if await self._write(route, decided):
            self._record_events(route, decided)
        return DONE if decided.after is None else Result(after=max(0.0, decided.after) + _ALARM_SLACK)

    def _age(self, key: ObjectKey, route: DomainRoute) -> float:
        token = route.token_status.revision_token
        if token is None:
            self._last_seen.forget(key)
            return 0.0
        mark = (route.metadata.uid, token.revision_time, token.revision, token.is_ready)
        return self._last_seen.age(key, mark, parse_time(token.revision_time))

    async def _write(self, route: DomainRoute, decided: Plan) -> bool:
        change = changes(route.token_status, decided.tokens)
        if change is None:
            return False
        meta = route.metadata
        status: Object = {"tokenStatus": change}
        if route.status is None:
            status |= {"isDestinationAuthorized": False, "isDestinationUnreachable": False}
        # Gateways write the same status: the version makes whoever is late look again.
        patch = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "status": status}
        try:
            await self._client.patch_status(DOMAIN_ROUTES, meta.name, meta.namespace, patch)
        except NotFound:
            return False
        return True

    def _record_events(self, route: DomainRoute, decided: Plan) -> None:
        before, after = route.token_status, decided.tokens
        log = self._log.bind(route=str(route.key), initializer=after.revision_initializer)
        newest = after.newest
        if newest is not None and newest.is_ready and _ready_revision(before) != newest.revision:
            log.info("A token is in use", revision=newest.revision)
            self._note(route, "Normal", "TokenReady", f"Token revision {newest.revision} is in use")
        begun = after.revision_token
        if begun is not None and not begun.is_ready and begun != before.revision_token:
            gave_up = before.revision_token is not None and not before.revision_token.is_ready
            log.info("A token is being negotiated", again=gave_up)
            if gave_up:
                self._note(
                    route, "Warning", "HandshakeNotFinished",
                    f"Gateway {before.revision_initializer} did not finish the handshake with {route.spec.destination}; "
                    f"{after.revision_initializer} tries again",
                )  # fmt: skip

    def _note(self, route: DomainRoute, type_: Any, reason: str, message: str) -> None:
        if self._events is not None:
            resource = DOMAIN_ROUTES.resource
            reference = reference_to(route, api_version=resource.api_version, kind=resource.kind)
            self._events.record(reference, type_, reason, message)

    def keys_of_gateway(self, gateway: Gateway) -> list[ObjectKey]:
        """All routes of a domain when other gateways are live than before; a heartbeat concerns none."""
        namespace = gateway.metadata.namespace
        if not self._live.has_changed(namespace):
            return []
        return [route.key for route in self.routes.cache.list(namespace)]


def _ready_revision(tokens: DomainRouteTokens) -> int | None:
    newest = tokens.newest
    return newest.revision if newest is not None and newest.is_ready else None


def make(
    client: Client,
    informers: Informers,
    *,
    events: EventRecorder | None = None,
    workers: int = 4,
    clock: Clock = SYSTEM_CLOCK,
) -> Controller[ObjectKey]:
    reconciler = DomainRouteReconciler(client, informers, events, clock)
    watches: list[Watches[Any, ObjectKey]] = [
        Watches(reconciler.routes, own_key),
        Watches(reconciler.gateways, reconciler.keys_of_gateway),
    ]
    return Controller("domainroute", reconciler.reconcile, watches, workers=workers, clock=clock)
