"""Keeps the endpoint slices of each service that selects pods."""

from __future__ import annotations

from typing import Any

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.kube.api.errors import ApiError, NotFound
from coterie.kube.api.labels import ENDPOINTSLICE_MANAGED_BY, SERVICE_NAME
from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.service_endpoints import follows_pods, is_lean
from coterie.kube.api.types.network import ENDPOINT_SLICES, SERVICES, EndpointSlice
from coterie.kube.api.types.pods import PODS
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches, own_key
from coterie.kube.control.expectations import Expectations
from coterie.kube.control.pod_control import namespace_is_going
from coterie.kube.control.service_pod_changes import SETTLE, follow_pods
from coterie.kube.controllers.endpointslice.plan import CONTROLLER, Plan, patch_of, plan

BY_SERVICE = "endpointslice/service"
_PLAIN = ENDPOINT_SLICES.as_dynamic
_CACHE_PAUSE = 1.0


def by_service(found: EndpointSlice) -> tuple[str, ...]:
    """Index: the service whose slice this is, when we keep it."""
    labels = found.metadata.labels or {}
    name = labels.get(SERVICE_NAME)
    if not name or labels.get(ENDPOINTSLICE_MANAGED_BY) != CONTROLLER:
        return ()
    return (f"{found.metadata.namespace}/{name}",)


class EndpointSliceReconciler:
    def __init__(self, client: Client, informers: Informers, clock: Clock) -> None:
        self._client = client
        self.services = informers.get(SERVICES)
        self.pods = informers.get(PODS)
        self.slices = informers.get(ENDPOINT_SLICES)
        self.slices.cache.add_index(BY_SERVICE, by_service)
        self._expected: Expectations[ObjectKey] = Expectations(self.slices, clock)

    async def reconcile(self, key: ObjectKey) -> Result:
        service = self.services.cache.by_key(key)
        if service is None or service.metadata.deleting:
            self._expected.forget(key)
            return DONE  # the garbage collector takes the slices of a service that is gone
        if not self._expected.fulfilled(key):
            return Result(after=_CACHE_PAUSE)
        slices = [one for one in self.slices.cache.by_index(BY_SERVICE, str(key)) if not one.metadata.deleting]
        if not follows_pods(service) or is_lean(service):
            # It had a selector once, or was not lean: what we made then is not true any more.
            await self._apply(key, Plan(delete=list(slices)))
            return DONE
        try:
            await self._apply(key, plan(service, self.pods.cache.list(key.namespace), slices))
        except ApiError as error:
            if not namespace_is_going(error):
                raise
        return DONE

    async def _apply(self, key: ObjectKey, wanted: Plan) -> None:
        # New and changed ones first: for a moment an endpoint may stand in two slices, but never in none.
        for body in wanted.create:
            made = await self._client.create(_PLAIN, body)
            self._expected.expect(key, made["metadata"].get("resourceVersion") or "")
        for change in wanted.change:
            patch = patch_of(change, wanted.labels)
            name = change.found.metadata.name
            changed = await self._client.patch(ENDPOINT_SLICES, name, key.namespace, patch)
            self._expected.expect(key, changed.metadata.resource_version)
        for found in wanted.delete:
            try:
                await self._client.delete(ENDPOINT_SLICES, found.metadata.name, key.namespace, uid=found.metadata.uid)
            except NotFound:
                continue

    def keys_of_slice(self, found: EndpointSlice) -> list[ObjectKey]:
        return [ObjectKey(found.metadata.namespace, name.partition("/")[2]) for name in by_service(found)]


def make(
    client: Client, informers: Informers, *, settle: float = SETTLE, workers: int = 2, clock: Clock = SYSTEM_CLOCK
) -> Controller[ObjectKey]:
    reconciler = EndpointSliceReconciler(client, informers, clock)
    watches: list[Watches[Any, ObjectKey]] = [
        Watches(reconciler.services, own_key),
        Watches(reconciler.slices, reconciler.keys_of_slice),
        Watches(reconciler.pods, lambda pod: ()),  # waited for here, followed below
    ]
    controller = Controller("endpointslice", reconciler.reconcile, watches, workers=workers, clock=clock)
    follow_pods(controller, reconciler.services, reconciler.pods, settle)
    return controller
