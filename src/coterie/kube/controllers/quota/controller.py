"""Keeps the status of resource quotas true.

Which objects have to be counted is known only from the quotas, so informers are added as quotas ask for them. A change
of any counted object brings up the quotas of its namespace; the queue melts a burst of changes into one count.
"""

from __future__ import annotations

from typing import Any

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.kube.api.errors import NotFound
from coterie.kube.api.meta import Object, ObjectKey, PartialObjectMetadata
from coterie.kube.api.resources import Resource
from coterie.kube.api.types.core import RESOURCE_QUOTAS
from coterie.kube.api.types.kind import Kind
from coterie.kube.client.client import Client
from coterie.kube.client.discovery import RestMapper, discover
from coterie.kube.client.informer import Informer, ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches, own_key
from coterie.kube.controllers.quota.plan import FULL_OBJECTS, needed_resources, status_patch

_UNKNOWN_PAUSE = 30.0
_SETTLE = 0.1
"""Seconds to wait after a change of counted objects: deployments come as crowds."""


class QuotaReconciler:
    def __init__(self, client: Client, informers: Informers) -> None:
        self._client = client
        self._informers = informers
        self._catalogue = RestMapper(())
        self._counted: dict[str, Informer[Any]] = {}
        self.quotas = informers.get(RESOURCE_QUOTAS)
        self.controller: Controller[ObjectKey] | None = None

    async def reconcile(self, key: ObjectKey) -> Result:
        quota = self.quotas.cache.by_key(key)
        if quota is None or quota.metadata.deleting:
            return DONE
        objects: dict[str, list[Object]] = {}
        unknown = False
        for name in needed_resources(quota):
            informer = await self._informer(name)
            if informer is None:
                unknown = True  # counts as none until a definition brings it
                continue
            await informer.ready.wait()
            objects[name] = [_plain(obj) for obj in informer.cache.list(key.namespace)]
        patch = status_patch(quota, objects)
        if patch is not None:
            # The version guards against overwriting what admission has just counted; a conflict counts again.
            patch["metadata"] = {"resourceVersion": quota.metadata.resource_version}
            try:
                await self._client.patch_status(RESOURCE_QUOTAS, key.name, key.namespace, patch)
            except NotFound:
                return DONE
        return Result(after=_UNKNOWN_PAUSE) if unknown else DONE

    async def _informer(self, group_resource: str) -> Informer[Any] | None:
        informer = self._counted.get(group_resource)
        if informer is None:
            resource = self._find(group_resource)
            if resource is None:
                self._catalogue = await discover(self._client)
                resource = self._find(group_resource)
            if resource is None:
                return None
            informer = self._counted.get(group_resource)  # another worker may have been faster
            if informer is None:
                kind: Kind[Any] = Kind.dynamic(resource) if group_resource in FULL_OBJECTS else Kind.metadata(resource)
                informer = self._informers.get(kind)
                self._counted[group_resource] = informer
                informer.add_handler(self._object_changed)
        return informer

    def _find(self, group_resource: str) -> Resource | None:
        for resource in self._catalogue.preferred("list", "watch"):
            if resource.group_resource == group_resource and resource.namespaced:
                return resource
        return None

    def _object_changed(self, change: ObjectChange[Any]) -> None:
        obj = change.object
        namespace = obj["metadata"].get("namespace", "") if isinstance(obj, dict) else obj.metadata.namespace
        for quota in self.quotas.cache.list(namespace):
            if self.controller is not None:
                self.controller.enqueue(quota.key, after=_SETTLE)


def _plain(obj: Object | PartialObjectMetadata) -> Object:
    """Of objects that are only counted, nothing is looked at."""
    return obj if isinstance(obj, dict) else {}


def make(
    client: Client, informers: Informers, *, workers: int = 2, clock: Clock = SYSTEM_CLOCK
) -> Controller[ObjectKey]:
    reconciler = QuotaReconciler(client, informers)
    watches = [Watches(reconciler.quotas, own_key)]
    reconciler.controller = Controller("quota", reconciler.reconcile, watches, workers=workers, clock=clock)
    return reconciler.controller
