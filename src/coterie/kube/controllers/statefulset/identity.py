"""What a pod of a StatefulSet is called, which claims it has, and the bodies of both. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from coterie.kube.api.labels import CONTROLLER_REVISION_HASH, POD_INDEX, STATEFULSET_POD_NAME
from coterie.kube.api.meta import Object, ObjectMeta, OwnerReference
from coterie.kube.api.types.apps import STATEFUL_SETS, ClaimRetentionPolicy, StatefulSet
from coterie.kube.api.types.pods import Pod
from coterie.kube.control.pod_control import pod_from_template

_NAME = re.compile(r"(.+)-(0|[1-9][0-9]*)")
_RETAIN = ClaimRetentionPolicy()


def pod_name(stateful_set: StatefulSet, ordinal: int) -> str:
    return f"{stateful_set.metadata.name}-{ordinal}"


def parent_and_ordinal(name: str) -> tuple[str, int]:
    """(name of the set, ordinal) of a pod's name; ordinal -1: it is no such name."""
    match = _NAME.fullmatch(name)
    return (match.group(1), int(match.group(2))) if match is not None else ("", -1)


def ordinal_of(pod: Pod) -> int:
    return parent_and_ordinal(pod.metadata.name)[1]


def is_member(stateful_set: StatefulSet, pod: Pod) -> bool:
    return parent_and_ordinal(pod.metadata.name)[0] == stateful_set.metadata.name


def revision_of(pod: Pod) -> str:
    return (pod.metadata.labels or {}).get(CONTROLLER_REVISION_HASH) or ""


def identity_labels(name: str, ordinal: int) -> dict[str, str]:
    return {STATEFULSET_POD_NAME: name, POD_INDEX: str(ordinal)}


def missing_labels(pod: Pod) -> dict[str, str]:
    """Labels of its identity that a pod lacks, for instance one that was adopted."""
    labels = pod.metadata.labels or {}
    wanted = identity_labels(pod.metadata.name, ordinal_of(pod))
    return {key: value for key, value in wanted.items() if labels.get(key) != value}


def pod_body(stateful_set: StatefulSet, template: Mapping[str, Any], ordinal: int, revision: str) -> Object:
    """`template` is that of the revision, which need not be the present one."""
    pod = pod_from_template(STATEFUL_SETS, stateful_set.metadata, template)
    meta, spec = pod["metadata"], dict(pod["spec"])
    name = pod_name(stateful_set, ordinal)
    del meta["generateName"]
    meta["name"] = name
    meta["labels"] = {
        **(meta.get("labels") or {}),
        **identity_labels(name, ordinal),
        CONTROLLER_REVISION_HASH: revision,
    }
    spec["hostname"] = name
    if stateful_set.spec.service_name:
        spec["subdomain"] = stateful_set.spec.service_name
    claims = [
        {"name": claim, "persistentVolumeClaim": {"claimName": claim_name(stateful_set, claim, ordinal)}}
        for claim in claim_templates(stateful_set)
    ]
    if claims:
        taken = {claim["name"] for claim in claims}
        spec["volumes"] = [v for v in spec.get("volumes") or () if v.get("name") not in taken] + claims
    return {**pod, "spec": spec}


# ---- claims


def claim_templates(stateful_set: StatefulSet) -> dict[str, Mapping[str, Any]]:
    found = stateful_set.spec.volume_claim_templates or ()
    return {str((claim.get("metadata") or {}).get("name") or ""): claim for claim in found}


def claim_name(stateful_set: StatefulSet, template: str, ordinal: int) -> str:
    return f"{template}-{stateful_set.metadata.name}-{ordinal}"


def claim_bodies(stateful_set: StatefulSet, ordinal: int) -> list[Object]:
    selector = (stateful_set.spec.selector or {}).get("matchLabels") or {}
    out: list[Object] = []
    for template, claim in claim_templates(stateful_set).items():
        meta = claim.get("metadata") or {}
        made: Object = {
            "name": claim_name(stateful_set, template, ordinal),
            "namespace": stateful_set.metadata.namespace,
            "labels": {**(meta.get("labels") or {}), **selector},
        }
        if meta.get("annotations"):
            made["annotations"] = dict(meta["annotations"])
        body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": made, "spec": claim.get("spec") or {}}
        out.append(body)
    return out


def claim_owners(
    stateful_set: StatefulSet, claim: ObjectMeta, pod: ObjectMeta | None, *, condemned: bool
) -> list[OwnerReference] | None:
    """The owner references that the retention policy asks for; None when the claim has just these.

    whenDeleted: Delete makes the set an owner, whenScaled: Delete the pod that is scaled away; the garbage collector does
    the rest.
    """
    policy = stateful_set.spec.persistent_volume_claim_retention_policy or _RETAIN
    meta = stateful_set.metadata
    wanted: list[OwnerReference] = []
    if condemned and policy.when_scaled == "Delete":
        if pod is not None:
            wanted.append(OwnerReference(api_version="v1", kind="Pod", name=pod.name, uid=pod.uid))
    elif policy.when_deleted == "Delete":
        resource = STATEFUL_SETS.resource
        wanted.append(
            OwnerReference(api_version=resource.api_version, kind=resource.kind, name=meta.name, uid=meta.uid)
        )
    others = [owner for owner in claim.owners if not _is_ours(owner, meta, pod)]
    have = {owner.uid for owner in claim.owners if _is_ours(owner, meta, pod)}
    if have == {owner.uid for owner in wanted}:
        return None
    return [*others, *wanted]


def _is_ours(owner: OwnerReference, meta: ObjectMeta, pod: ObjectMeta | None) -> bool:
    return owner.uid == meta.uid or (pod is not None and owner.uid == pod.uid)


def is_stale(claim: ObjectMeta, pod: str, uids: Iterable[str]) -> bool:
    """The claim belongs to an earlier pod of this name and goes with it: it is not for the next one."""
    known = set(uids)
    return any(owner.kind == "Pod" and owner.name == pod and owner.uid not in known for owner in claim.owners)


def by_ordinal(pods: Sequence[Pod]) -> dict[int, Pod]:
    return {ordinal_of(pod): pod for pod in sorted(pods, key=ordinal_of)}
