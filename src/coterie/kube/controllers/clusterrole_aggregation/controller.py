"""Keeps aggregated cluster roles equal to the sum of the roles they select."""

from __future__ import annotations

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.kube.api.errors import NotFound
from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.types.rbac import CLUSTER_ROLES, ClusterRole
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches
from coterie.kube.controllers.clusterrole_aggregation.plan import correction


class AggregationReconciler:
    def __init__(self, client: Client, informers: Informers) -> None:
        self._client = client
        self.roles = informers.get(CLUSTER_ROLES)

    async def reconcile(self, key: ObjectKey) -> Result:
        patch = correction(self.roles.cache.by_key(key), self.roles.cache)
        if patch is not None:
            try:
                await self._client.patch(CLUSTER_ROLES, key.name, "", patch)
            except NotFound:
                return DONE
        return DONE

    def concerned(self, _: ClusterRole) -> list[ObjectKey]:
        """Any role may be part of any aggregate; there are few aggregates."""
        return [role.key for role in self.roles.cache if role.aggregation_rule is not None]


def make(
    client: Client, informers: Informers, *, workers: int = 1, clock: Clock = SYSTEM_CLOCK
) -> Controller[ObjectKey]:
    reconciler = AggregationReconciler(client, informers)
    watches = [Watches(reconciler.roles, reconciler.concerned)]
    return Controller("clusterrole-aggregation", reconciler.reconcile, watches, workers=workers, clock=clock)
