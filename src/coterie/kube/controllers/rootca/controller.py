"""Puts the cluster's CA bundle into each active namespace."""

from __future__ import annotations

from typing import Any

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.kube.api.errors import AlreadyExists, Forbidden, NotFound
from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.types.core import CONFIG_MAPS, NAMESPACES, ConfigMap
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches, own_key
from coterie.kube.controllers.rootca.plan import NAME, Create, Patch, plan

_ONLY_OURS = f"metadata.name={NAME}"


class RootCaReconciler:
    def __init__(self, client: Client, informers: Informers, ca: str) -> None:
        self._client = client
        self._ca = ca
        self.namespaces = informers.get(NAMESPACES)
        self.config_maps = informers.get(CONFIG_MAPS, fields=_ONLY_OURS)

    async def reconcile(self, key: ObjectKey) -> Result:
        namespace = self.namespaces.cache.get(key.name)
        action = plan(namespace, self.config_maps.cache.get(NAME, key.name), self._ca)
        try:
            if isinstance(action, Create):
                await self._client.create(CONFIG_MAPS, action.config_map)
            elif isinstance(action, Patch):
                await self._client.patch(CONFIG_MAPS, NAME, key.name, action.patch)
        except AlreadyExists:
            return DONE
        except (Forbidden, NotFound):
            # The namespace began to go, or the map went, after we looked; if not, we see it again in a while.
            return Result(after=5)
        return DONE


def make(
    client: Client, informers: Informers, ca: str, *, workers: int = 1, clock: Clock = SYSTEM_CLOCK
) -> Controller[ObjectKey]:
    reconciler = RootCaReconciler(client, informers, ca)

    def of_map(config_map: ConfigMap) -> list[ObjectKey]:
        return [ObjectKey("", config_map.metadata.namespace)]

    watches: list[Watches[Any, ObjectKey]] = [
        Watches(reconciler.namespaces, own_key),
        Watches(reconciler.config_maps, of_map),
    ]
    return Controller("rootca", reconciler.reconcile, watches, workers=workers, clock=clock)
