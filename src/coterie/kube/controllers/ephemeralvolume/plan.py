"""Which claims the generic ephemeral volumes of a pod need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from coterie.kube.api.meta import Object
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.api.types.storage import PersistentVolumeClaim
from coterie.kube.control.controller_refs import reference


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    create: tuple[Object, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    """(volume, message) of volumes whose claim belongs to somebody else."""


def plan(pod: Pod, claims: Mapping[str, PersistentVolumeClaim]) -> ClaimPlan:
    """`claims`: those of the namespace by name, as far as they are the pod's names."""
    if pod.metadata.deleting or pod.ended:
        return ClaimPlan()
    create: list[Object] = []
    refused: list[tuple[str, str]] = []
    for volume in pod.spec.volumes or ():
        if volume.ephemeral is None:
            continue
        name = pod.ephemeral_claim_name(volume.name)
        claim = claims.get(name)
        if claim is None:
            create.append(claim_body(pod, name, volume.ephemeral.volume_claim_template or {}))
        elif not owns(pod, claim):
            key, owner = f"{claim.metadata.namespace}/{name}", f"{pod.metadata.namespace}/{pod.metadata.name}"
            refused.append((volume.name, f"PVC {key} was not created for pod {owner} (pod is not owner)"))
    return ClaimPlan(tuple(create), tuple(refused))


def owns(pod: Pod, claim: PersistentVolumeClaim) -> bool:
    return any(owner.uid == pod.metadata.uid and owner.controller for owner in claim.metadata.owner_references or ())


def claim_body(pod: Pod, name: str, template: Object) -> Object:
    given = template.get("metadata") or {}
    metadata: Object = {
        "name": name,
        "namespace": pod.metadata.namespace,
        "ownerReferences": [msgspec.to_builtins(reference(PODS, pod.metadata))],
    }
    metadata.update({key: given[key] for key in ("labels", "annotations") if given.get(key)})
    return {"metadata": metadata, "spec": template.get("spec") or {}}
