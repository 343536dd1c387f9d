"""Rows of volumes, claims on them, and classes of them."""

from __future__ import annotations

from coterie.kube.apiserver.tables.ages import age
from coterie.kube.apiserver.tables.columns import AGE, NAME, UNSET, Cells, Object, TableLayout, text
from coterie.kube.apiserver.tables.formats import access_modes, created, name_of, part

_STORAGE_CLASS = "volume.beta.kubernetes.io/storage-class"
_DEFAULT_CLASS = ("storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class")


def persistent_volume(obj: Object, now: float) -> Cells:
    spec, status = part(obj, "spec"), part(obj, "status")
    claim = spec.get("claimRef")
    return [
        name_of(obj),
        str(part(spec, "capacity").get("storage", 0)),
        access_modes(spec.get("accessModes")),
        spec.get("persistentVolumeReclaimPolicy") or "",
        _volume_phase(obj),
        f"{claim.get('namespace') or ''}/{claim.get('name') or ''}" if claim else "",
        _storage_class(obj),
        _or_unset(spec.get("volumeAttributesClassName")),
        status.get("reason") or "",
        age(created(obj), now),
        _or_unset(spec.get("volumeMode")),
    ]


def persistent_volume_claim(obj: Object, now: float) -> Cells:
    spec, status = part(obj, "spec"), part(obj, "status")
    volume = spec.get("volumeName") or ""
    return [
        name_of(obj),
        _volume_phase(obj),
        volume,
        str(part(status, "capacity").get("storage", 0)) if volume else "",
        access_modes(status.get("accessModes")) if volume else "",
        _storage_class(obj),
        _or_unset(spec.get("volumeAttributesClassName")),
        age(created(obj), now),
        _or_unset(spec.get("volumeMode")),
    ]


def _volume_phase(obj: Object) -> str:
    return "Terminating" if obj["metadata"].get("deletionTimestamp") else part(obj, "status").get("phase") or ""


def _storage_class(obj: Object) -> str:
    old = part(obj["metadata"], "annotations").get(_STORAGE_CLASS)
    return old if old is not None else part(obj, "spec").get("storageClassName") or ""


def _or_unset(value: str | None) -> str:
    return UNSET if value is None else value


def storage_class(obj: Object, now: float) -> Cells:
    annotations = part(obj["metadata"], "annotations")
    is_default = any(annotations.get(key) == "true" for key in _DEFAULT_CLASS)
    return [
        name_of(obj) + " (default)" if is_default else name_of(obj),
        obj.get("provisioner") or "",
        obj.get("reclaimPolicy") or "Delete",
        obj.get("volumeBindingMode") or "Immediate",
        bool(obj.get("allowVolumeExpansion")),
        age(created(obj), now),
    ]


STORAGE: dict[tuple[str, str], TableLayout] = {
    ("", "persistentvolumeclaims"): TableLayout(
        (
            NAME,
            text("Status", "Phase of the claim."),
            text("Volume", "Volume the claim is bound to."),
            text("Capacity", "Size of the volume."),
            text("Access Modes", "Ways in which the volume may be mounted."),
            text("StorageClass", "Class of the claim."),
            text("VolumeAttributesClass", "Attributes class of the claim."),
            AGE,
            text("VolumeMode", "Filesystem or Block.", 1),
        ),
        persistent_volume_claim,
    ),
    ("", "persistentvolumes"): TableLayout(
        (
            NAME,
            text("Capacity", "Size of the volume."),
            text("Access Modes", "Ways in which the volume may be mounted."),
            text("Reclaim Policy", "What happens to the volume when its claim is gone."),
            text("Status", "Phase of the volume."),
            text("Claim", "Claim the volume is bound to."),
            text("StorageClass", "Class of the volume."),
            text("VolumeAttributesClass", "Attributes class of the volume."),
            text("Reason", "Why the volume is in its phase."),
            AGE,
            text("VolumeMode", "Filesystem or Block.", 1),
        ),
        persistent_volume,
    ),
    ("storage.k8s.io", "storageclasses"): TableLayout(
        (
            NAME,
            text("Provisioner", "Who makes the volumes."),
            text("ReclaimPolicy", "What happens to a volume when its claim is gone."),
            text("VolumeBindingMode", "When a volume is bound."),
            text("AllowVolumeExpansion", "Whether volumes may grow."),
            AGE,
        ),
        storage_class,
    ),
}
