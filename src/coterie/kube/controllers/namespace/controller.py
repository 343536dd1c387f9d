"""Empties namespaces that are being deleted, then lets them go."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec

from coterie.base.clock import SYSTEM_CLOCK, Clock, rfc3339
from coterie.base.log import logger
from coterie.kube.api.errors import ApiError, MethodNotAllowed, NotFound
from coterie.kube.api.labels import FINALIZER_KUBERNETES
from coterie.kube.api.meta import ObjectKey, PartialObjectMetadata
from coterie.kube.api.resources import Resource
from coterie.kube.api.types.core import NAMESPACES, Namespace
from coterie.kube.api.types.kind import Kind
from coterie.kube.client.client import Client
from coterie.kube.client.discovery import discover
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches
from coterie.kube.controllers.namespace.plan import Findings, conditions, pause

_PARALLEL = 8


class NamespaceReconciler:
    def __init__(self, client: Client, clock: Clock = SYSTEM_CLOCK) -> None:
        self._client = client
        self._clock = clock
        self._log = logger("controllers.namespace")

    async def reconcile(self, key: ObjectKey) -> Result:
        try:
            namespace = await self._client.get(NAMESPACES, key.name)
        except NotFound:
            return DONE
        if not namespace.metadata.deleting or FINALIZER_KUBERNETES not in (namespace.spec.finalizers or ()):
            return DONE
        found = await self._empty(key.name)
        await self._write_status(key.name, found)
        if not found.empty:
            return Result(after=pause(found))
        await self._finalize(key.name, namespace.metadata.uid)
        self._log.info("Namespace is empty; finalizer removed", name=key.name)
        return DONE

    async def _empty(self, namespace: str) -> Findings:
        catalogue = await discover(self._client)
        resources = [r for r in catalogue.preferred("delete", "list") if r.namespaced]
        limit = asyncio.Semaphore(_PARALLEL)
        failures: list[str] = []

        async def one(resource: Resource) -> tuple[str, list[PartialObjectMetadata]]:
            async with limit:
                try:
                    return resource.group_resource, await self._empty_one(resource, namespace)
                except (NotFound, MethodNotAllowed):
                    return resource.group_resource, []  # the resource went away, or does not do this after all
                except ApiError as error:
                    failures.append(f"{resource.group_resource}: {error.message}")
                    return resource.group_resource, []

        listed = await asyncio.gather(*(one(resource) for resource in resources))
        remaining = {name: len(objects) for name, objects in listed if objects}
        finalizers = Counter(f for _, objects in listed for obj in objects for f in obj.metadata.finalizers or ())
        return Findings(catalogue.failed, sorted(failures), remaining, finalizers)

    async def _empty_one(self, resource: Resource, namespace: str) -> list[PartialObjectMetadata]:
        """Delete all objects of one resource; returns those that are still there."""
        kind = Kind.metadata(resource)
        before = (await self._client.list(kind, namespace)).items
        alive = [obj for obj in before if not obj.metadata.deleting]
        if not alive:
            return before
        if "deletecollection" in resource.verbs:
            await self._client.delete_collection(kind, namespace, propagation="Background")
        else:
            for obj in alive:
                await self._delete(kind, obj)
        return (await self._client.list(kind, namespace)).items

    async def _delete(self, kind: Kind[PartialObjectMetadata], obj: PartialObjectMetadata) -> None:
        meta = obj.metadata
        try:
            await self._client.delete(kind, meta.name, meta.namespace, propagation="Background", uid=meta.uid)
        except NotFound:
            return

    async def _write_status(self, name: str, found: Findings) -> None:
        now = rfc3339(self._clock.now())

        def change(namespace: Namespace) -> Namespace:
            wanted = conditions(namespace.status.conditions, found, now)
            return msgspec.structs.replace(
                namespace, status=msgspec.structs.replace(namespace.status, conditions=wanted)
            )

        try:
            await self._client.modify_status(NAMESPACES, name, "", change)
        except NotFound:
            return

    async def _finalize(self, name: str, uid: str) -> None:
        plain = NAMESPACES.as_dynamic
        try:
            namespace = await self._client.get(plain, name)
            if namespace["metadata"]["uid"] != uid:
                return
            spec = namespace.get("spec") or {}
            kept = [f for f in spec.get("finalizers") or () if f != FINALIZER_KUBERNETES]
            await self._client.update(
                plain, {**namespace, "spec": {**spec, "finalizers": kept}}, subresource="finalize"
            )
        except NotFound:
            return


def make(
    client: Client, informers: Informers, *, workers: int = 4, clock: Clock = SYSTEM_CLOCK
) -> Controller[ObjectKey]:
    def terminating(namespace: Namespace) -> list[ObjectKey]:
        return [namespace.key] if namespace.metadata.deleting else []

    reconciler = NamespaceReconciler(client, clock)
    watches = [Watches(informers.get(NAMESPACES), terminating)]
    return Controller("namespace", reconciler.reconcile, watches, workers=workers, clock=clock)
