"""Deletes the objects of a CustomResourceDefinition that is being deleted, then lets it go."""

from __future__ import annotations

from coterie.base.clock import SYSTEM_CLOCK, Clock, rfc3339
from coterie.base.log import logger
from coterie.kube.api.errors import NotFound
from coterie.kube.api.meta import Object, ObjectKey, PartialObjectMetadata
from coterie.kube.api.resources import BUILTIN
from coterie.kube.api.types.kind import Kind
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches
from coterie.kube.control.finalizers import remove_finalizer
from coterie.kube.controllers.crd.plan import CLEANUP, needs_cleanup, stored_resource, terminating

DEFINITIONS = Kind.dynamic(next(r for r in BUILTIN if r.plural == "customresourcedefinitions"))
_METADATA = Kind.metadata(DEFINITIONS.resource)
_PAUSE = 0.2


class DefinitionReconciler:
    def __init__(self, client: Client, clock: Clock = SYSTEM_CLOCK) -> None:
        self._client = client
        self._clock = clock
        self._log = logger("controllers.crd")

    async def reconcile(self, key: ObjectKey) -> Result:
        try:
            crd = await self._client.get(DEFINITIONS, key.name)
        except NotFound:
            return DONE
        if not needs_cleanup(crd):
            return DONE
        remaining = await self._delete_objects(crd)
        if remaining:
            await self._write_status(crd, remaining)
            return Result(after=_PAUSE)
        await remove_finalizer(self._client, DEFINITIONS, key.name, "", CLEANUP, uid=crd["metadata"]["uid"])
        self._log.info("Custom resource definition has no objects left; finalizer removed", name=key.name)
        return DONE

    async def _delete_objects(self, crd: Object) -> int:
        resource = stored_resource(crd)
        if resource is None:
            return 0
        kind = Kind.metadata(resource)
        try:
            before = (await self._client.list(kind)).items
            for namespace in sorted({obj.metadata.namespace for obj in before if not obj.metadata.deleting}):
                await self._client.delete_collection(kind, namespace, propagation="Background")
            return len((await self._client.list(kind)).items) if before else 0
        except NotFound:
            return 0

    async def _write_status(self, crd: Object, remaining: int) -> None:
        conditions = terminating(crd, remaining, rfc3339(self._clock.now()))
        try:
            await self._client.patch_status(
                DEFINITIONS, crd["metadata"]["name"], "", {"status": {"conditions": conditions}}
            )
        except NotFound:
            return


def make(
    client: Client, informers: Informers, *, workers: int = 1, clock: Clock = SYSTEM_CLOCK
) -> Controller[ObjectKey]:
    def going(definition: PartialObjectMetadata) -> list[ObjectKey]:
        return [ObjectKey("", definition.metadata.name)] if definition.metadata.deleting else []

    reconciler = DefinitionReconciler(client, clock)
    watches = [Watches(informers.get(_METADATA), going)]
    return Controller("crd", reconciler.reconcile, watches, workers=workers, clock=clock)
