"""Removes Gateway objects whose gateways are gone for good, so that lists show what is there."""

from __future__ import annotations

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.kube.api.errors import Conflict, NotFound
from coterie.kube.api.meta import ObjectKey
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches, own_key
from coterie.kuscia.api.types.domain import GATEWAYS
from coterie.kuscia.control.last_seen import GATEWAY_LIFE, LastSeen
from coterie.kuscia.controllers.gateway.plan import Settings, until_forgotten

_ALARM_SLACK = 0.05


class GatewayReconciler:
    def __init__(self, client: Client, informers: Informers, settings: Settings, clock: Clock) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock
        self.gateways = informers.get(GATEWAYS)
        self._last_seen = LastSeen(clock)
        self._log = logger("controllers.gateway")

    async def reconcile(self, key: ObjectKey) -> Result:
        gateway = self.gateways.cache.by_key(key)
        if gateway is None or gateway.metadata.deleting:
            self._last_seen.forget(key)
            return DONE
        beat = gateway.status.heartbeat_time if gateway.status is not None else ""
        watched = self._last_seen.age(key, (gateway.metadata.uid, beat), None)
        left = until_forgotten(gateway, watched, GATEWAY_LIFE, self._settings, self._clock.now())
        if left is None:
            return DONE
        if left > 0:
            return Result(after=left + _ALARM_SLACK)
        meta = gateway.metadata
        self._log.info(
            "Gateway heartbeat expired; its object is deleted", gateway=str(key), last_heartbeat=beat or "never"
        )
        try:
            # With the version: a heartbeat that arrives this very moment wins.
            await self._client.delete(
                GATEWAYS, meta.name, meta.namespace, uid=meta.uid, resource_version=meta.resource_version
            )
        except (NotFound, Conflict):
            return Result(after=GATEWAY_LIFE)
        return DONE


def make(
    client: Client,
    informers: Informers,
    *,
    settings: Settings | None = None,
    workers: int = 1,
    clock: Clock = SYSTEM_CLOCK,
) -> Controller[ObjectKey]:
    reconciler = GatewayReconciler(client, informers, settings or Settings(), clock)
    watches = [Watches(reconciler.gateways, own_key)]
    return Controller("gateway", reconciler.reconcile, watches, workers=workers, clock=clock)
