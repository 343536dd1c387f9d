"""Binds PersistentVolumeClaims to PersistentVolumes, makes volumes of class `local-path`, and gives back what is free.

One worker: two claims never race for one volume, and every write that gives a volume away names the version it was
decided on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from coterie.base.clock import SYSTEM_CLOCK, Clock, rfc3339
from coterie.base.log import logger
from coterie.kube.api.errors import AlreadyExists, ApiError, NotFound
from coterie.kube.api.labels import (
    BIND_COMPLETED,
    BOUND_BY_CONTROLLER,
    FINALIZER_PV_PROTECTION,
    FINALIZER_PVC_PROTECTION,
    SELECTED_NODE,
    STORAGE_PROVISIONER,
)
from coterie.kube.api.meta import ApiObject, Object
from coterie.kube.api.types.kind import Kind
from coterie.kube.api.types.nodes import NODES, Node
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.api.types.storage import (
    CLAIMS,
    STORAGE_CLASSES,
    VOLUMES,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from coterie.kube.api.volume_matching import claim_reference, is_for
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches
from coterie.kube.control.events import EventRecorder, reference_to
from coterie.kube.control.finalizers import remove_finalizer
from coterie.kube.control.preconditions import preconditions
from coterie.kube.controllers.persistentvolume.plan import (
    BindTo,
    ClaimEvent,
    DeleteVolume,
    ForgetNode,
    Lose,
    Provision,
    SetClass,
    SetPhase,
    TryClaim,
    Unbind,
    Wait,
    annotation,
    claim_in_use,
    holds_claims,
    plan_claim,
    plan_volume,
    volume_body,
)

_PLAIN_VOLUMES = VOLUMES.as_dynamic
CLAIMS_OF_PODS = "persistentvolume/claims"


class VolumeKey(NamedTuple):
    """A claim, or with an empty namespace a volume."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def by_claim(pod: Pod) -> list[str]:
    """Index of pods that hold claims, by these claims."""
    if not holds_claims(pod):
        return []
    return [f"{pod.metadata.namespace}/{name}" for name in pod.claim_names]


class VolumeReconciler:
    def __init__(self, client: Client, informers: Informers, events: EventRecorder | None, clock: Clock) -> None:
        self._client = client
        self._events = events
        self._clock = clock
        self._log = logger("controllers.persistentvolume")
        self.claims = informers.get(CLAIMS)
        self.volumes = informers.get(VOLUMES)
        self.classes = informers.get(STORAGE_CLASSES)
        self.nodes = informers.get(NODES)
        self.pods = informers.get(PODS)
        self.pods.cache.add_index(CLAIMS_OF_PODS, by_claim)

    async def reconcile(self, key: VolumeKey) -> Result:
        if key.namespace:
            claim = self.claims.cache.get(key.name, key.namespace)
            if claim is None:
                return DONE
            return await self._sync_claim(claim)
        volume = self.volumes.cache.get(key.name)
        return DONE if volume is None else await self._sync_volume(volume)

    # Claims.

    async def _sync_claim(self, claim: PersistentVolumeClaim) -> Result:
        if claim.metadata.deleting and await self._release_claim(claim):
            return DONE
        volumes = {volume.metadata.name: volume for volume in self.volumes.cache}
        classes = {each.metadata.name: each for each in self.classes.cache}
        nodes = {node.metadata.name: node for node in self.nodes.cache}
        action = plan_claim(claim, volumes, classes, nodes)
        match action:
            case BindTo(volume):
                await self._bind(claim, volume)
            case Provision(storage_class, node):
                await self._provision(claim, storage_class, node)
            case SetClass(name):
                await self._patch_claim(claim, {"spec": {"storageClassName": name}})
            case ForgetNode():
                await self._patch_claim(claim, {"metadata": {"annotations": {SELECTED_NODE: None}}})
            case Lose(event):
                await self._lose(claim, event)
            case Wait(event):
                await self._wait(claim, event)
        return DONE

    async def _release_claim(self, claim: PersistentVolumeClaim) -> bool:
        """Let a deleted claim go when no pod uses it. True: it may go."""
        if not claim.metadata.has_finalizer(FINALIZER_PVC_PROTECTION):
            return True
        key = str(claim.key)
        if claim_in_use(claim, (pod.claim_names for pod in self.pods.cache.by_index(CLAIMS_OF_PODS, key))):
            return False
        # The cache may not know the newest pods yet.
        found = await self._client.list(PODS, claim.metadata.namespace)
        if claim_in_use(claim, (pod.claim_names for pod in found.items if holds_claims(pod))):
            return False
        meta = claim.metadata
        await remove_finalizer(self._client, CLAIMS, meta.name, meta.namespace, FINALIZER_PVC_PROTECTION, uid=meta.uid)
        return True

    async def _bind(self, claim: PersistentVolumeClaim, volume: PersistentVolume) -> None:
        """The volume's side first: a claim that says Bound has a volume that is really its own."""
        reference = volume.spec.claim_ref
        if reference is None or reference.uid != claim.metadata.uid or not is_for(volume, claim):
            body: Object = {"spec": {"claimRef": msgspec.to_builtins(claim_reference(claim))}}
            if reference is None:
                body["metadata"] = {"annotations": {BOUND_BY_CONTROLLER: "yes"}}
            volume = await self._patch(VOLUMES, volume, body)
        if volume.status.phase != "Bound":
            await self._set_phase(volume, SetPhase("Bound"))
        annotations = {BIND_COMPLETED: "yes"}
        if not claim.spec.volume_name:
            annotations[BOUND_BY_CONTROLLER] = "yes"
        if claim.spec.volume_name != volume.metadata.name or not annotation(claim, BIND_COMPLETED):
            claim = await self._patch(
                CLAIMS,
                claim,
                {"metadata": {"annotations": annotations}, "spec": {"volumeName": volume.metadata.name}},
            )
        status: Object = {
            "phase": "Bound",
            "accessModes": list(volume.spec.access_modes or ()),
            "capacity": dict(volume.spec.capacity or {}),
        }
        known = claim.status
        if (known.phase, list(known.access_modes or ()), known.capacity) != tuple(status.values()):
            await self._write_status(CLAIMS, claim, status)

    async def _provision(self, claim: PersistentVolumeClaim, storage_class: StorageClass, node: Node) -> None:
        if not annotation(claim, STORAGE_PROVISIONER):
            wanted = {"metadata": {"annotations": {STORAGE_PROVISIONER: storage_class.provisioner}}}
            claim = await self._patch(CLAIMS, claim, wanted)
        body = volume_body(claim, storage_class, node)
        name = body["metadata"]["name"]
        try:
            await self._client.create(_PLAIN_VOLUMES, body)
        except AlreadyExists:
            return  # our cache is behind; the volume's own event brings the claim back
        except ApiError as error:
            text = f'failed to provision volume with StorageClass "{storage_class.metadata.name}": {error.message}'
            self._note(CLAIMS, claim, ClaimEvent("Warning", "ProvisioningFailed", text))
            raise
        text = f"Successfully provisioned volume {name} using {storage_class.provisioner}"
        self._note(CLAIMS, claim, ClaimEvent("Normal", "ProvisioningSucceeded", text))

    async def _lose(self, claim: PersistentVolumeClaim, event: ClaimEvent) -> None:
        if claim.status.phase == "Lost":
            return
        name = claim.spec.volume_name
        if name and event.reason == "ClaimLost":
            try:
                await self._client.get(VOLUMES, name)
            except NotFound:
                pass
            else:
                return  # the cache of volumes is behind
        await self._write_status(CLAIMS, claim, {"phase": "Lost", "accessModes": None, "capacity": None})
        self._note(CLAIMS, claim, event)

    async def _wait(self, claim: PersistentVolumeClaim, event: ClaimEvent | None) -> None:
        if claim.status.phase != "Pending":
            await self._write_status(CLAIMS, claim, {"phase": "Pending"})
        if event is not None:
            self._note(CLAIMS, claim, event)

    # Volumes.

    async def _sync_volume(self, volume: PersistentVolume) -> Result:
        if volume.metadata.deleting and volume.status.phase != "Bound":
            meta = volume.metadata
            await remove_finalizer(self._client, VOLUMES, meta.name, "", FINALIZER_PV_PROTECTION, uid=meta.uid)
            return DONE
        reference = volume.spec.claim_ref
        claim = self.claims.cache.get(reference.name, reference.namespace) if reference is not None else None
        if reference is not None and reference.uid and (claim is None or claim.metadata.uid != reference.uid):
            claim = await self._fresh_claim(reference.namespace, reference.name)
        match plan_volume(volume, claim):
            case SetPhase() as action:
                if volume.status.phase != action.phase:
                    await self._set_phase(volume, action)
            case DeleteVolume():
                if volume.status.phase != "Released":
                    volume = await self._set_phase(volume, SetPhase("Released"))
                await self._delete_volume(volume)
            case Unbind():
                body = {"metadata": {"annotations": {BOUND_BY_CONTROLLER: None}}, "spec": {"claimRef": None}}
                await self._patch(VOLUMES, volume, body)
            case TryClaim():
                assert claim is not None
                return await self._sync_claim(claim)
        return DONE

    async def _fresh_claim(self, namespace: str, name: str) -> PersistentVolumeClaim | None:
        """A volume is given back only when the server says that its claim is gone."""
        try:
            return await self._client.get(CLAIMS, name, namespace)
        except NotFound:
            return None

    async def _delete_volume(self, volume: PersistentVolume) -> None:
        meta = volume.metadata
        if meta.deleting:
            return
        try:
            await self._client.delete(VOLUMES, meta.name, uid=meta.uid)
        except NotFound:
            return
        self._log.info("Volume of a deleted claim is deleted", volume=meta.name)

    async def _set_phase(self, volume: PersistentVolume, action: SetPhase) -> PersistentVolume:
        status: Object = {
            "phase": action.phase,
            "message": action.message or None,
            "lastPhaseTransitionTime": rfc3339(self._clock.now()),
        }
        if action.event is not None:
            self._note(VOLUMES, volume, action.event)
        meta = volume.metadata
        body: Object = {"metadata": dict(preconditions(volume)), "status": status}
        return await self._client.patch_status(VOLUMES, meta.name, "", body)

    # Writing.

    async def _patch_claim(self, claim: PersistentVolumeClaim, body: Object) -> None:
        await self._patch(CLAIMS, claim, body)

    async def _patch(self, kind: Kind[Any], obj: ApiObject, body: Object) -> Any:
        meta = obj.metadata
        body = {**body, "metadata": {**(body.get("metadata") or {}), **preconditions(obj)}}
        return await self._client.patch(kind, meta.name, meta.namespace, body)

    async def _write_status(self, kind: Kind[Any], obj: ApiObject, status: Object) -> None:
        meta = obj.metadata
        body: Object = {"metadata": dict(preconditions(obj)), "status": status}
        try:
            await self._client.patch_status(kind, meta.name, meta.namespace, body)
        except NotFound:
            return

    def _note(self, kind: Kind[Any], obj: ApiObject, event: ClaimEvent) -> None:
        if self._events is not None:
            resource = kind.resource
            about = reference_to(obj, api_version=resource.api_version, kind=resource.kind)
            self._events.record(about, event.type, event.reason, event.message)

    # Keys.

    def keys_of_claim(self, claim: PersistentVolumeClaim) -> Iterable[VolumeKey]:
        yield VolumeKey(*claim.key)
        if claim.spec.volume_name:
            yield VolumeKey("", claim.spec.volume_name)
        else:
            yield VolumeKey("", f"pvc-{claim.metadata.uid}")

    def keys_of_volume(self, volume: PersistentVolume) -> Iterable[VolumeKey]:
        yield VolumeKey("", volume.metadata.name)
        reference = volume.spec.claim_ref
        if reference is not None:
            yield VolumeKey(reference.namespace, reference.name)
            return
        for claim in self.claims.cache:
            if not claim.bound:
                yield VolumeKey(*claim.key)

    def keys_of_class(self, storage_class: StorageClass) -> Iterable[VolumeKey]:
        return [
            VolumeKey(*claim.key)
            for claim in self.claims.cache
            if not claim.bound and claim.spec.storage_class_name in (None, storage_class.metadata.name)
        ]

    def keys_of_node(self, node: Node) -> Iterable[VolumeKey]:
        """Claims that wait for a volume on a node that is gone."""
        name = node.metadata.name
        if self.nodes.cache.get(name) is not None:
            return []
        return [
            VolumeKey(*claim.key)
            for claim in self.claims.cache
            if not claim.bound and annotation(claim, SELECTED_NODE) == name
        ]

    def keys_of_pod(self, pod: Pod) -> Iterable[VolumeKey]:
        """A pod that is gone or has ended may have been the last that held a deleted claim."""
        for name in pod.claim_names:
            claim = self.claims.cache.get(name, pod.metadata.namespace)
            if claim is not None and claim.metadata.deleting:
                yield VolumeKey(pod.metadata.namespace, name)


def make(
    client: Client,
    informers: Informers,
    *,
    events: EventRecorder | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Controller[VolumeKey]:
    """`events` is a recorder of the component `persistentvolume-controller`; the caller runs it."""
    reconciler = VolumeReconciler(client, informers, events, clock)
    watches: list[Watches[Any, VolumeKey]] = [
        Watches(reconciler.claims, reconciler.keys_of_claim),
        Watches(reconciler.volumes, reconciler.keys_of_volume),
        Watches(reconciler.classes, reconciler.keys_of_class),
        Watches(reconciler.nodes, reconciler.keys_of_node),
        Watches(reconciler.pods, reconciler.keys_of_pod),
    ]
    return Controller("persistentvolume", reconciler.reconcile, watches, workers=1, clock=clock)
