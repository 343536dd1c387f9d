"""What the volumes of a pod ask of its node: claims, volumes and classes as the scheduler knows them. Pure.

claim bound                              the node affinity of its volume
claim not bound, class waits for a pod   a free volume that the node reaches, or a class that can make one there
claim not bound otherwise, or missing    the pod waits
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.node_selection import NodeTerm
from coterie.kube.api.types.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from coterie.kube.api.volume_matching import available_volumes, default_class, is_for, reserved_volume, volume_terms
from coterie.kube.scheduler.facts import PodFacts
from coterie.kube.scheduler.terms import VolumeTerms

VOLUME_CONFLICT = "node(s) didn't match PersistentVolume's node affinity"
NO_VOLUME = "node(s) didn't find available persistent volumes to bind"
UNBOUND = "pod has unbound immediate PersistentVolumeClaims"
IN_USE = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
NO_PROVISIONER = "kubernetes.io/no-provisioner"


@dataclass(frozen=True, slots=True)
class VolumeDemand:
    blocked: str = ""
    """Why the pod waits, whatever the nodes are like."""
    terms: tuple[VolumeTerms, ...] = ()
    unbound: tuple[str, ...] = ()
    """Claims that are bound when the node is known."""


class VolumeState:
    def __init__(self) -> None:
        self.claims: dict[ObjectKey, PersistentVolumeClaim] = {}
        self.volumes: dict[str, PersistentVolume] = {}
        self.classes: dict[str, StorageClass] = {}
        self._users: dict[ObjectKey, set[str]] = {}
        """Uids of the pods that have a place, by their claims."""

    def use(self, pod: PodFacts) -> None:
        """The pod has a place now."""
        for name in pod.claims:
            self._users.setdefault(ObjectKey(pod.namespace, name), set()).add(pod.uid)

    def release(self, pod: PodFacts) -> bool:
        """The pod has no place any more; says whether it had one."""
        found = False
        for name in pod.claims:
            key = ObjectKey(pod.namespace, name)
            users = self._users.get(key, set())
            found = found or pod.uid in users
            users.discard(pod.uid)
            if not users:
                self._users.pop(key, None)
        return found

    def apply(self, pod: PodFacts) -> PodFacts:
        """The pod with what its volumes ask for now."""
        wanted = self.demand(pod.namespace, pod.claims, pod.uid)
        static = replace(pod.static, volumes=wanted.terms, blocked=wanted.blocked)
        if static == pod.static and wanted.unbound == pod.unbound_claims:
            return pod
        return replace(pod, static=static, unbound_claims=wanted.unbound)

    def demand(self, namespace: str, claims: Sequence[str], uid: str = "") -> VolumeDemand:
        """`uid`: of the pod, which may be the one user of a claim itself."""
        terms: list[VolumeTerms] = []
        unbound: list[str] = []
        for name in dict.fromkeys(claims):
            claim = self.claims.get(ObjectKey(namespace, name))
            if claim is None:
                return VolumeDemand(f'persistentvolumeclaim "{name}" not found')
            if "ReadWriteOncePod" in (claim.spec.access_modes or ()) and self._users.get(claim.key, set()) - {uid}:
                return VolumeDemand(IN_USE)
            if claim.metadata.deleting:
                return VolumeDemand(f'persistentvolumeclaim "{name}" is being deleted')
            if claim.status.phase == "Lost":
                return VolumeDemand(
                    f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{claim.spec.volume_name}"'
                )
            if claim.bound:
                volume = self.volumes.get(claim.spec.volume_name)
                if volume is None:
                    return VolumeDemand(
                        f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume '
                        f'"{claim.spec.volume_name}"'
                    )
                found = volume_terms(volume)
                if found is not None:
                    terms.append(VolumeTerms(found, VOLUME_CONFLICT))
                continue
            storage_class = self._class_of(claim)
            if storage_class is None or not storage_class.waits_for_consumer or claim.spec.volume_name:
                return VolumeDemand(UNBOUND)
            unbound.append(name)
            places = self._places(claim, storage_class)
            if places is not None:
                terms.append(VolumeTerms(places, NO_VOLUME))
        return VolumeDemand("", tuple(terms), tuple(unbound))

    def free_volumes(self, claim: PersistentVolumeClaim) -> list[PersistentVolume]:
        """Volumes that a claim may be bound to, the best first."""
        reserved = reserved_volume(claim, self.volumes.values())
        return [reserved] if reserved is not None else available_volumes(claim, self.volumes.values())

    def _class_of(self, claim: PersistentVolumeClaim) -> StorageClass | None:
        if claim.spec.storage_class_name is None:
            return default_class(self.classes.values())
        return self.classes.get(claim.spec.storage_class_name)

    def _places(self, claim: PersistentVolumeClaim, storage_class: StorageClass) -> tuple[NodeTerm, ...] | None:
        """Where the claim could be bound; None: anywhere, because a volume can be made."""
        made_for = f"pvc-{claim.metadata.uid}"
        being_made = self.volumes.get(made_for)
        if being_made is not None and is_for(being_made, claim):
            return volume_terms(being_made)
        if storage_class.provisioner != NO_PROVISIONER:
            return None
        out: list[NodeTerm] = []
        for volume in self.free_volumes(claim):
            terms = volume_terms(volume)
            if terms is None:
                return None
            out += terms
        return tuple(dict.fromkeys(out))
