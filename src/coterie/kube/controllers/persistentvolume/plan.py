"""What becomes of a claim or a volume now. Pure; the controller reads, asks and writes.

claim, not bound       it names a volume             bound to it when that is free and fits, else it waits
                       a volume is reserved for it   bound
                       its class waits for a pod     waits until the scheduler has chosen a node
                       a free volume fits            bound to the smallest
                       its class is `local-path`     a volume is made on the chosen node
claim, bound           its volume is gone            Lost
volume                 not claimed                   Available
                       its claim is bound to it      Bound
                       its claim is gone             Released, then kept (Retain) or deleted (Delete)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from coterie.kube.api.labels import (
    BIND_COMPLETED,
    BOUND_BY_CONTROLLER,
    COTERIE_LOCAL_PATH,
    FINALIZER_PV_PROTECTION,
    HOSTNAME,
    LOCAL_PATH_PROVISIONER,
    PROVISIONED_BY,
    SELECTED_NODE,
)
from coterie.kube.api.meta import Object
from coterie.kube.api.types.nodes import Node
from coterie.kube.api.types.pods import Pod
from coterie.kube.api.types.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from coterie.kube.api.volume_matching import available_volumes, default_class, is_for, mismatch, reserved_volume

NO_PROVISIONER = "kubernetes.io/no-provisioner"
_LOCAL_MODES = frozenset(("ReadWriteOnce", "ReadWriteOncePod"))
_EXTERNAL = (
    "Waiting for a volume to be created either by the external provisioner '{0}' or manually by the system "
    "administrator. If volume creation is delayed, please verify that the provisioner is running and correctly "
    "registered."
)


@dataclass(frozen=True, slots=True)
class ClaimEvent:
    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be done now."""

    event: ClaimEvent | None = None


@dataclass(frozen=True, slots=True)
class BindTo:
    volume: PersistentVolume


@dataclass(frozen=True, slots=True)
class Provision:
    storage_class: StorageClass
    node: Node


@dataclass(frozen=True, slots=True)
class SetClass:
    """A default class arrived after the claim."""

    name: str


@dataclass(frozen=True, slots=True)
class ForgetNode:
    """The node that the scheduler chose is gone: it chooses again."""


@dataclass(frozen=True, slots=True)
class Lose:
    event: ClaimEvent


ClaimAction = Wait | BindTo | Provision | SetClass | ForgetNode | Lose


def annotation(obj: PersistentVolume | PersistentVolumeClaim, name: str) -> str:
    return (obj.metadata.annotations or {}).get(name) or ""


def plan_claim(
    claim: PersistentVolumeClaim,
    volumes: Mapping[str, PersistentVolume],
    classes: Mapping[str, StorageClass],
    nodes: Mapping[str, Node],
) -> ClaimAction:
    if annotation(claim, BIND_COMPLETED):
        return _plan_bound(claim, volumes)
    if claim.metadata.deleting:
        return Wait()
    if claim.spec.volume_name:
        return _plan_named(claim, volumes.get(claim.spec.volume_name))
    if claim.spec.storage_class_name is None:
        chosen = default_class(classes.values())
        if chosen is not None:
            return SetClass(chosen.metadata.name)
    reserved = reserved_volume(claim, volumes.values())
    if reserved is not None:
        return BindTo(reserved)
    name = claim.spec.storage_class_name or ""
    storage_class = classes.get(name)
    node = annotation(claim, SELECTED_NODE)
    if storage_class is not None and storage_class.waits_for_consumer:
        if not node:
            text = "waiting for first consumer to be created before binding"
            return Wait(ClaimEvent("Normal", "WaitForFirstConsumer", text))
        if node not in nodes:
            return ForgetNode()
    else:
        free = available_volumes(claim, volumes.values())
        if free:
            return BindTo(free[0])
    if not name:
        text = "no persistent volumes available for this claim and no storage class is set"
        return Wait(ClaimEvent("Normal", "FailedBinding", text))
    if storage_class is None:
        text = f'storageclass.storage.k8s.io "{name}" not found'
        return Wait(ClaimEvent("Warning", "ProvisioningFailed", text))
    if storage_class.provisioner != LOCAL_PATH_PROVISIONER:
        return Wait(_no_provisioner(storage_class.provisioner))
    problem = _not_provisionable(claim, node)
    if problem:
        text = f'failed to provision volume with StorageClass "{name}": {problem}'
        return Wait(ClaimEvent("Warning", "ProvisioningFailed", text))
    return Provision(storage_class, nodes[node])


def _plan_bound(claim: PersistentVolumeClaim, volumes: Mapping[str, PersistentVolume]) -> ClaimAction:
    name = claim.spec.volume_name
    if not name:
        text = "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!"
        return Lose(ClaimEvent("Warning", "ClaimLost", text))
    volume = volumes.get(name)
    if volume is None:
        text = "Bound claim has lost its PersistentVolume. Data on the volume is lost!"
        return Lose(ClaimEvent("Warning", "ClaimLost", text))
    if volume.spec.claim_ref is None or is_for(volume, claim):
        return BindTo(volume)
    text = "Two claims are bound to the same volume, this one is bound incorrectly"
    return Lose(ClaimEvent("Warning", "ClaimMisbound", text))


def _plan_named(claim: PersistentVolumeClaim, volume: PersistentVolume | None) -> ClaimAction:
    if volume is None:
        return Wait()  # it may come
    if volume.spec.claim_ref is not None and not is_for(volume, claim):
        text = f'volume "{volume.metadata.name}" already bound to a different claim.'
        return Wait(ClaimEvent("Warning", "FailedBinding", text))
    why = mismatch(volume, claim)
    if why:
        text = f'Cannot bind to requested volume "{volume.metadata.name}": {why}'
        return Wait(ClaimEvent("Warning", "VolumeMismatch", text))
    return BindTo(volume)


def _no_provisioner(provisioner: str) -> ClaimEvent:
    if provisioner == NO_PROVISIONER:
        text = "no persistent volumes available for this claim, and its class has no provisioner"
        return ClaimEvent("Normal", "FailedBinding", text)
    return ClaimEvent("Normal", "ExternalProvisioning", _EXTERNAL.format(provisioner))


def _not_provisionable(claim: PersistentVolumeClaim, node: str) -> str:
    if claim.block:
        return f"{LOCAL_PATH_PROVISIONER} does not support block volume provisioning"
    if claim.spec.selector is not None:
        return "claim.spec.selector is not supported"
    others = set(claim.spec.access_modes or ()) - _LOCAL_MODES
    if others:
        return f"volumes on one node cannot be {', '.join(sorted(others))}; use ReadWriteOnce or ReadWriteOncePod"
    if not node:
        return "a volume on one node needs a class with volumeBindingMode WaitForFirstConsumer"
    return ""


def volume_body(claim: PersistentVolumeClaim, storage_class: StorageClass, node: Node) -> Object:
    """A volume on one node. The directory is made by the node's agent when the first pod needs it."""
    meta = claim.metadata
    name = f"pvc-{meta.uid}"
    hostname = (node.metadata.labels or {}).get(HOSTNAME) or node.metadata.name
    directory = (node.metadata.annotations or {}).get(COTERIE_LOCAL_PATH) or "/var/lib/coterie/volumes"
    term = {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": [hostname]}]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": name,
            "annotations": {PROVISIONED_BY: LOCAL_PATH_PROVISIONER, SELECTED_NODE: node.metadata.name},
            "finalizers": [FINALIZER_PV_PROTECTION],
        },
        "spec": {
            "capacity": {"storage": str(claim.requested)},
            "accessModes": list(claim.spec.access_modes or ()),
            "persistentVolumeReclaimPolicy": storage_class.reclaim_policy or "Delete",
            "storageClassName": storage_class.metadata.name,
            "volumeMode": "Filesystem",
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": meta.namespace,
                "name": meta.name,
                "uid": meta.uid,
            },
            "local": {"path": f"{directory}/{name}"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        },
    }


# ---- volumes


@dataclass(frozen=True, slots=True)
class SetPhase:
    phase: str
    message: str = ""
    event: ClaimEvent | None = None


@dataclass(frozen=True, slots=True)
class Unbind:
    """The claim was bound to another volume; this one is free again."""


@dataclass(frozen=True, slots=True)
class DeleteVolume:
    """Its claim is gone, and it was made for it."""


@dataclass(frozen=True, slots=True)
class TryClaim:
    """The claim it is reserved for decides."""


VolumeAction = SetPhase | Unbind | DeleteVolume | TryClaim


def plan_volume(volume: PersistentVolume, claim: PersistentVolumeClaim | None) -> VolumeAction:
    """`claim` is the one that claimRef names, if there is one of this name."""
    reference = volume.spec.claim_ref
    if reference is None or not reference.uid:
        return SetPhase("Available")
    if claim is None or claim.metadata.uid != reference.uid:
        return _reclaim(volume)
    if not claim.spec.volume_name:
        return TryClaim()
    if claim.spec.volume_name == volume.metadata.name:
        # The claim's side comes last; until it says so itself, the volume is bound already.
        return SetPhase("Bound")
    if annotation(volume, PROVISIONED_BY) and volume.spec.persistent_volume_reclaim_policy == "Delete":
        return DeleteVolume()
    if annotation(volume, BOUND_BY_CONTROLLER):
        return Unbind()
    return SetPhase("Available")


def _reclaim(volume: PersistentVolume) -> VolumeAction:
    policy, name = volume.spec.persistent_volume_reclaim_policy, volume.metadata.name
    if policy == "Delete":
        if annotation(volume, PROVISIONED_BY) == LOCAL_PATH_PROVISIONER:
            return DeleteVolume()
        text = f'error getting deleter volume plugin for volume "{name}": no deletable volume plugin matched'
        return SetPhase("Failed", text, ClaimEvent("Warning", "VolumeFailedDelete", text))
    if policy == "Recycle":
        text = "No recycler plugin found for the volume!"
        return SetPhase("Failed", text, ClaimEvent("Warning", "VolumeFailedRecycle", text))
    return SetPhase("Released")


# ---- protection


def holds_claims(pod: Pod) -> bool:
    """A pod that has a node and has not ended. One without a node is not given one while its claim is being deleted."""
    return bool(pod.spec.node_name) and not pod.ended


def claim_in_use(claim: PersistentVolumeClaim, used: Iterable[Sequence[str]]) -> bool:
    """`used`: the claims of each pod of the namespace that holds some."""
    return any(claim.metadata.name in names for names in used)
