"""Persistent volumes, claims on them and their classes, as the binder, the scheduler and agents read them."""

from __future__ import annotations

from typing import Any

import msgspec

from coterie.kube.api.labels import DEFAULT_STORAGE_CLASS
from coterie.kube.api.meta import ApiObject, Condition, Model
from coterie.kube.api.types.core import ObjectReference
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.api.types.pods import QuantityText, ResourceRequirements

WAIT_FOR_FIRST_CONSUMER = "WaitForFirstConsumer"


class VolumePath(Model, frozen=True, kw_only=True):
    path: str = ""
    type: str | None = None


class VolumeNodeAffinity(Model, frozen=True, kw_only=True):
    required: dict[str, Any] | None = None


class PersistentVolumeSpec(Model, frozen=True, kw_only=True):
    capacity: dict[str, QuantityText] | None = None
    access_modes: tuple[str, ...] | None = None
    claim_ref: ObjectReference | None = None
    persistent_volume_reclaim_policy: str = "Retain"
    storage_class_name: str = ""
    volume_mode: str | None = None
    node_affinity: VolumeNodeAffinity | None = None
    local: VolumePath | None = None
    host_path: VolumePath | None = None


class PersistentVolumeStatus(Model, frozen=True, kw_only=True):
    phase: str = ""
    message: str = ""
    reason: str = ""
    last_phase_transition_time: str | None = None


class PersistentVolume(ApiObject, frozen=True, kw_only=True):
    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PersistentVolumeStatus = PersistentVolumeStatus()

    @property
    def block(self) -> bool:
        return self.spec.volume_mode == "Block"


class PersistentVolumeClaimSpec(Model, frozen=True, kw_only=True):
    access_modes: tuple[str, ...] | None = None
    selector: dict[str, Any] | None = None
    resources: ResourceRequirements | None = None
    volume_name: str = ""
    storage_class_name: str | None = None
    """None: the default class; empty: none, only volumes without a class."""
    volume_mode: str | None = None


class PersistentVolumeClaimStatus(Model, frozen=True, kw_only=True):
    phase: str = ""
    access_modes: tuple[str, ...] | None = None
    capacity: dict[str, QuantityText] | None = None
    conditions: tuple[Condition, ...] | None = None


class PersistentVolumeClaim(ApiObject, frozen=True, kw_only=True):
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()

    @property
    def bound(self) -> bool:
        """To a volume that is its own, as the binder has said."""
        return bool(self.spec.volume_name) and self.status.phase == "Bound"

    @property
    def block(self) -> bool:
        return self.spec.volume_mode == "Block"

    @property
    def requested(self) -> QuantityText:
        requests = self.spec.resources.requests if self.spec.resources is not None else None
        return (requests or {}).get("storage", "0")


class StorageClass(ApiObject, frozen=True, kw_only=True):
    provisioner: str = ""
    reclaim_policy: str = "Delete"
    volume_binding_mode: str = "Immediate"
    allow_volume_expansion: bool = False
    allowed_topologies: tuple[dict[str, Any], ...] | None = None
    mount_options: tuple[str, ...] | None = msgspec.field(default=None)

    @property
    def waits_for_consumer(self) -> bool:
        return self.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER

    @property
    def is_default(self) -> bool:
        return (self.metadata.annotations or {}).get(DEFAULT_STORAGE_CLASS) == "true"


VOLUMES = Kind(builtin("persistentvolumes"), PersistentVolume)
CLAIMS = Kind(builtin("persistentvolumeclaims"), PersistentVolumeClaim)
STORAGE_CLASSES = Kind(builtin("storageclasses", "storage.k8s.io"), StorageClass)
