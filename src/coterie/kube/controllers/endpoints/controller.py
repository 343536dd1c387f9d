"""Keeps an Endpoints object for each service that selects pods."""

from __future__ import annotations

from typing import Any

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.kube.api.errors import AlreadyExists, ApiError, NotFound
from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.service_endpoints import follows_pods, is_lean
from coterie.kube.api.types.network import ENDPOINTS, SERVICES, Service
from coterie.kube.api.types.pods import PODS
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches, own_key
from coterie.kube.control.pod_control import namespace_is_going
from coterie.kube.control.service_pod_changes import SETTLE, follow_pods
from coterie.kube.controllers.endpoints.plan import correction, desired_endpoints, new_body

_PLAIN = ENDPOINTS.as_dynamic


class EndpointsReconciler:
    def __init__(self, client: Client, informers: Informers) -> None:
        self._client = client
        self.services = informers.get(SERVICES)
        self.pods = informers.get(PODS)
        self.endpoints = informers.get(ENDPOINTS)

    async def reconcile(self, key: ObjectKey) -> Result:
        service = self.services.cache.by_key(key)
        if service is None:
            await self._forget(key)
        elif follows_pods(service) and not service.metadata.deleting:
            await self._keep(service)
        return DONE

    async def _keep(self, service: Service) -> None:
        key = service.key
        right = desired_endpoints(service, self.pods.cache.list(key.namespace))
        found = self.endpoints.cache.by_key(key)
        if found is None:
            if not right.subsets and is_lean(service):
                return  # the pod that gets an address brings the key up
            try:
                await self._client.create(_PLAIN, new_body(service, right))
            except AlreadyExists:
                return  # its event is on its way and brings the key up again
            except ApiError as error:
                if not namespace_is_going(error):
                    raise
            return
        if not right.subsets and is_lean(service):
            await self._delete(key, found.metadata.uid)
            return
        patch = correction(found, right)
        if patch is not None:
            await self._client.patch(ENDPOINTS, key.name, key.namespace, patch)

    async def _forget(self, key: ObjectKey) -> None:
        found = self.endpoints.cache.by_key(key)
        if found is None:
            return
        try:
            await self._client.get(SERVICES, key.name, key.namespace)  # the cache of services may be the later one
        except NotFound:
            await self._delete(key, found.metadata.uid)

    async def _delete(self, key: ObjectKey, uid: str) -> None:
        try:
            await self._client.delete(ENDPOINTS, key.name, key.namespace, uid=uid)
        except NotFound:
            return


def make(
    client: Client, informers: Informers, *, settle: float = SETTLE, workers: int = 2, clock: Clock = SYSTEM_CLOCK
) -> Controller[ObjectKey]:
    reconciler = EndpointsReconciler(client, informers)
    watches: list[Watches[Any, ObjectKey]] = [
        Watches(reconciler.services, own_key),
        Watches(reconciler.endpoints, own_key),
        Watches(reconciler.pods, lambda pod: ()),  # waited for here, followed below
    ]
    controller = Controller("endpoints", reconciler.reconcile, watches, workers=workers, clock=clock)
    follow_pods(controller, reconciler.services, reconciler.pods, settle)
    return controller
