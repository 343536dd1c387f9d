"""Which PersistentVolume is for which claim: the rules that the binder and the scheduler share. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coterie.kube.api import quantity
from coterie.kube.api.node_selection import NodeTerm, node_terms
from coterie.kube.api.selectors import selector_of
from coterie.kube.api.types.core import ObjectReference
from coterie.kube.api.types.storage import PersistentVolume, PersistentVolumeClaim, StorageClass


def default_class(classes: Iterable[StorageClass]) -> StorageClass | None:
    """The default class; of several the newest, then the first by name."""
    found = sorted((each for each in classes if each.is_default), key=lambda each: each.metadata.name)
    found.sort(key=lambda each: each.metadata.creation_timestamp or "", reverse=True)
    return found[0] if found else None


def is_for(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Whether the volume is reserved for, or bound to, this claim."""
    reference = volume.spec.claim_ref
    if reference is None or (reference.namespace, reference.name) != (claim.metadata.namespace, claim.metadata.name):
        return False
    return not reference.uid or reference.uid == claim.metadata.uid


def claim_reference(claim: PersistentVolumeClaim) -> ObjectReference:
    meta = claim.metadata
    return ObjectReference(
        api_version="v1",
        kind="PersistentVolumeClaim",
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
    )


def mismatch(volume: PersistentVolume, claim: PersistentVolumeClaim) -> str:
    """Why a volume does not do for a claim that names it; empty: it does."""
    if _size(volume) < _requested(claim):
        return "requested PV is too small"
    if volume.spec.storage_class_name != (claim.spec.storage_class_name or ""):
        return "storageClassName does not match"
    if volume.block != claim.block:
        return "incompatible volumeMode"
    if not set(claim.spec.access_modes or ()) <= set(volume.spec.access_modes or ()):
        return "incompatible accessMode"
    return ""


def reserved_volume(claim: PersistentVolumeClaim, volumes: Iterable[PersistentVolume]) -> PersistentVolume | None:
    """A volume whose claimRef names the claim already."""
    for volume in volumes:
        if is_for(volume, claim) and not volume.metadata.deleting and not mismatch(volume, claim):
            return volume
    return None


def available_volumes(
    claim: PersistentVolumeClaim, volumes: Iterable[PersistentVolume], taken: Iterable[str] = ()
) -> list[PersistentVolume]:
    """Free volumes that do for the claim, the smallest first. `taken`: names of those that are given away already."""
    selector = selector_of(claim.spec.selector) if claim.spec.selector is not None else None
    without = set(taken)
    found = [
        volume
        for volume in volumes
        if volume.spec.claim_ref is None
        and volume.status.phase == "Available"
        and not volume.metadata.deleting
        and volume.metadata.name not in without
        and (selector is None or selector.matches(volume.metadata.labels))
        and not mismatch(volume, claim)
    ]
    return sorted(found, key=lambda volume: (_size(volume), volume.metadata.name))


def volume_terms(volume: PersistentVolume) -> tuple[NodeTerm, ...] | None:
    """Where the volume can be reached; None: everywhere."""
    return node_terms(volume.spec.node_affinity.required) if volume.spec.node_affinity is not None else None


def reachable(volume: PersistentVolume, node: str, labels: Mapping[str, str]) -> bool:
    terms = volume_terms(volume)
    return terms is None or any(term.matches(node, labels) for term in terms)


def _size(volume: PersistentVolume) -> int:
    return quantity.parse((volume.spec.capacity or {}).get("storage", "0")).value()


def _requested(claim: PersistentVolumeClaim) -> int:
    return quantity.parse(claim.requested).value()
