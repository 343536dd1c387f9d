"""Binding the claims of a pod whose node was just chosen, before the pod itself is bound.

A claim gets a free volume that the node reaches, or the annotation that asks the provisioner for one on this node. Then
the binder (`controllers/persistentvolume`) works, and the pod is bound when all its claims are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from coterie.base.clock import Clock
from coterie.kube.api.errors import NotFound
from coterie.kube.api.labels import BOUND_BY_CONTROLLER, SELECTED_NODE
from coterie.kube.api.meta import Object, ObjectKey
from coterie.kube.api.types.nodes import Node
from coterie.kube.api.types.storage import CLAIMS, VOLUMES, PersistentVolumeClaim
from coterie.kube.api.volume_matching import claim_reference, reachable
from coterie.kube.client.cache import Cache
from coterie.kube.client.client import Client
from coterie.kube.client.informer import Informer, ObjectChange
from coterie.kube.scheduler.facts import PodFacts
from coterie.kube.scheduler.volumes import VolumeState

BIND_TIMEOUT = 600.0


class VolumesNotBound(Exception):
    """The pod is tried again; the message says why."""


class SchedulerStops(VolumesNotBound):
    """Nothing went wrong."""


class VolumeBinder:
    def __init__(
        self,
        client: Client,
        state: VolumeState,
        claims: Informer[PersistentVolumeClaim],
        nodes: Cache[Node],
        clock: Clock,
    ) -> None:
        self._client = client
        self._state = state
        self._claims = claims
        self._nodes = nodes
        self._clock = clock
        self._waiting: dict[ObjectKey, set[asyncio.Event]] = {}
        self._stopping = False
        claims.add_handler(self._changed)

    def stop(self) -> None:
        """Nobody waits any longer: the next scheduler goes on where the claims are then."""
        self._stopping = True
        for events in self._waiting.values():
            for event in events:
                event.set()

    def _changed(self, change: ObjectChange[PersistentVolumeClaim]) -> None:
        for event in self._waiting.get(change.object.key, ()):
            event.set()

    async def bind(self, pod: PodFacts, node: str, still_wanted: Callable[[], bool]) -> None:
        """Returns when all claims of the pod are bound. Raises VolumesNotBound."""
        keys = [ObjectKey(pod.namespace, name) for name in pod.unbound_claims]
        changed = asyncio.Event()
        for key in keys:
            self._waiting.setdefault(key, set()).add(changed)
        try:
            taken: set[str] = set()
            for key in keys:
                await self._prepare(key, node, taken)
            await self._wait(keys, node, changed, still_wanted)
        finally:
            for key in keys:
                self._waiting[key].discard(changed)
                if not self._waiting[key]:
                    del self._waiting[key]

    async def _prepare(self, key: ObjectKey, node: str, taken: set[str]) -> None:
        claim = self._claims.cache.by_key(key)
        if claim is None:
            raise VolumesNotBound(f'persistentvolumeclaim "{key.name}" not found')
        if claim.bound:
            return
        there = self._nodes.get(node)
        labels = (there.metadata.labels if there is not None else None) or {}
        for volume in self._state.free_volumes(claim):
            if volume.metadata.name in taken or not reachable(volume, node, labels):
                continue
            taken.add(volume.metadata.name)
            if volume.spec.claim_ref is None:
                meta: Object = {
                    "uid": volume.metadata.uid,
                    "resourceVersion": volume.metadata.resource_version,
                    "annotations": {BOUND_BY_CONTROLLER: "yes"},
                }
                body: Object = {"metadata": meta, "spec": {"claimRef": msgspec.to_builtins(claim_reference(claim))}}
                await self._client.patch(VOLUMES, volume.metadata.name, "", body)
            return
        annotation: Object = {"metadata": {"uid": claim.metadata.uid, "annotations": {SELECTED_NODE: node}}}
        try:
            await self._client.patch(CLAIMS, key.name, key.namespace, annotation)
        except NotFound as error:
            raise VolumesNotBound(f'persistentvolumeclaim "{key.name}" not found') from error

    async def _wait(
        self, keys: list[ObjectKey], node: str, changed: asyncio.Event, still_wanted: Callable[[], bool]
    ) -> None:
        deadline = self._clock.monotonic() + BIND_TIMEOUT
        asked: set[ObjectKey] = set()
        while True:
            changed.clear()
            if self._stopping:
                raise SchedulerStops("the scheduler stops")
            if not still_wanted():
                raise VolumesNotBound("the pod is gone or has changed")
            found = [self._claims.cache.by_key(key) for key in keys]
            if all(claim is not None and claim.bound for claim in found):
                return
            for key, claim in zip(keys, found, strict=True):
                if claim is None:
                    raise VolumesNotBound(f'persistentvolumeclaim "{key.name}" not found')
                selected = (claim.metadata.annotations or {}).get(SELECTED_NODE)
                if selected == node:
                    asked.add(key)
                elif key in asked and not claim.bound:
                    raise VolumesNotBound(f'provisioning failed for PVC "{key.name}"')
            left = deadline - self._clock.monotonic()
            if left <= 0:
                raise VolumesNotBound("binding volumes: timed out waiting for the condition")
            await self._sleep(changed, min(left, 5.0))

    async def _sleep(self, changed: asyncio.Event, seconds: float) -> None:
        """Until a claim changes; now and then the pod itself is looked at as well."""
        waits = {asyncio.ensure_future(changed.wait()), asyncio.ensure_future(self._clock.sleep(seconds))}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
