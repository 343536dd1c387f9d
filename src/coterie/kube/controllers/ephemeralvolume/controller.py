"""Makes the PersistentVolumeClaims of generic ephemeral volumes."""

from __future__ import annotations

from typing import Any

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.kube.api.errors import AlreadyExists, Forbidden, Invalid
from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.api.types.storage import CLAIMS, PersistentVolumeClaim
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches
from coterie.kube.control.events import EventRecorder
from coterie.kube.controllers.ephemeralvolume.plan import plan

_FAILED = "FailedBinding"
_RETRY = 10.0
_PLAIN_CLAIMS = CLAIMS.as_dynamic


class EphemeralVolumeReconciler:
    def __init__(self, client: Client, informers: Informers, events: EventRecorder | None) -> None:
        self._client = client
        self._events = events
        self.pods = informers.get(PODS)
        self.claims = informers.get(CLAIMS)

    async def reconcile(self, key: ObjectKey) -> Result:
        pod = self.pods.cache.get(key.name, key.namespace)
        if pod is None:
            return DONE
        names = [pod.ephemeral_claim_name(volume.name) for volume in pod.spec.volumes or ()]
        known = {name: claim for name in names if (claim := self.claims.cache.get(name, key.namespace)) is not None}
        wanted = plan(pod, known)
        for volume, message in wanted.refused:
            self._warn(pod, f"ephemeral volume {volume}: {message}")
        for body in wanted.create:
            try:
                await self._client.create(_PLAIN_CLAIMS, body)
            except AlreadyExists:
                continue  # the cache is a moment behind; the claim wakes us
            except (Forbidden, Invalid) as problem:
                # A quota may have room later, a namespace that is going has none.
                self._warn(pod, f"ephemeral volume: {problem}")
                return Result(after=_RETRY)
        return DONE

    def _warn(self, pod: Pod, message: str) -> None:
        if self._events is not None:
            self._events.warning(pod, _FAILED, message)

    def keys_of_pod(self, pod: Pod) -> list[ObjectKey]:
        volumes = pod.spec.volumes or ()
        return [pod.key] if any(volume.ephemeral is not None for volume in volumes) and not pod.ended else []

    def keys_of_claim(self, claim: PersistentVolumeClaim) -> list[ObjectKey]:
        """A claim that somebody deletes while its pod lives is made again, as in Kubernetes."""
        owners = claim.metadata.owner_references or ()
        return [ObjectKey(claim.metadata.namespace, owner.name) for owner in owners if owner.kind == "Pod"]


def make(
    client: Client, informers: Informers, *, events: EventRecorder | None = None, clock: Clock = SYSTEM_CLOCK
) -> Controller[ObjectKey]:
    """`events` is a recorder of the component `ephemeral_volume`; the caller runs it."""
    reconciler = EphemeralVolumeReconciler(client, informers, events)
    watches: list[Watches[Any, ObjectKey]] = [
        Watches(reconciler.pods, reconciler.keys_of_pod),
        Watches(reconciler.claims, reconciler.keys_of_claim),
    ]
    return Controller("ephemeralvolume", reconciler.reconcile, watches, workers=1, clock=clock)
