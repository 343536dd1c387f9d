"""Which replica set stands for a template: hashes, equality, revision numbers, the body of a new one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from coterie.kube.api.labels import DEPLOYMENT_REVISION, DESIRED_REPLICAS, LAST_APPLIED, MAX_REPLICAS, POD_TEMPLATE_HASH
from coterie.kube.api.meta import Object
from coterie.kube.api.types.apps import DEPLOYMENTS, REPLICA_SETS, Deployment, ReplicaSet
from coterie.kube.control.content_hash import content_hash, without_nulls
from coterie.kube.control.controller_refs import reference
from coterie.kube.controllers.deployment.drafts import Draft

REVISION_HISTORY = "deployment.kubernetes.io/revision-history"
_NOT_COPIED = frozenset(
    (
        LAST_APPLIED,
        DEPLOYMENT_REVISION,
        REVISION_HISTORY,
        DESIRED_REPLICAS,
        MAX_REPLICAS,
        "deprecated.deployment.rollback.to",
    )
)
_HISTORY_LENGTH = 2000


def template_hash(template: Object, collisions: int | None) -> str:
    """Ten letters that are the same for the same template, whoever computes them and in whichever order its keys are."""
    return content_hash(_bare(template), collisions)


def same_template(one: Object | None, other: Object | None) -> bool:
    """Equal but for the hash label."""
    return bool(_bare(one or {}) == _bare(other or {}))


def _bare(template: Object) -> Any:
    meta = dict(template.get("metadata") or {})
    labels = {key: value for key, value in (meta.get("labels") or {}).items() if key != POD_TEMPLATE_HASH}
    meta["labels"] = labels or None
    return without_nulls({**template, "metadata": meta})


def oldest_first(sets: Iterable[ReplicaSet]) -> list[ReplicaSet]:
    return sorted(sets, key=lambda found: (found.metadata.creation_timestamp or "", found.metadata.name))


def newest_of(deployment: Deployment, sets: Sequence[ReplicaSet]) -> ReplicaSet | None:
    """The set of the present template. Of several (hashes changed once) the oldest, so that everybody picks the same."""
    for found in oldest_first(sets):
        if same_template(found.spec.template, deployment.spec.template):
            return found
    return None


def next_revision(old: Iterable[Draft]) -> int:
    return max((draft.revision for draft in old), default=0) + 1


def annotate(deployment: Deployment, newest: Draft, revision: int) -> None:
    """Give the newest set its revision and the deployment's annotations (`change-cause` among them)."""
    _copy_annotations(deployment, newest.annotations)
    before = newest.revision
    if before >= revision:
        return
    newest.annotations[DEPLOYMENT_REVISION] = str(revision)
    if before:
        # It was the newest before and is again: kubectl shows only its latest number.
        history = [part for part in newest.annotations.get(REVISION_HISTORY, "").split(",") if part]
        text = ",".join([*history, str(before)])
        while len(text) > _HISTORY_LENGTH:
            text = text.partition(",")[2]
        newest.annotations[REVISION_HISTORY] = text


def _copy_annotations(deployment: Deployment, into: dict[str, str]) -> None:
    for key, value in (deployment.metadata.annotations or {}).items():
        if key not in _NOT_COPIED:
            into[key] = value


def body_of_new(deployment: Deployment, revision: int, replicas: int, most: int) -> Object:
    meta, spec = deployment.metadata, deployment.spec
    template = spec.template or {}
    hashed = template_hash(template, deployment.status.collision_count)
    template_meta = dict(template.get("metadata") or {})
    labels = {**(template_meta.get("labels") or {}), POD_TEMPLATE_HASH: hashed}
    selector = spec.selector or {}
    annotations: dict[str, str] = {}
    _copy_annotations(deployment, annotations)
    annotations |= {
        DEPLOYMENT_REVISION: str(revision),
        DESIRED_REPLICAS: str(deployment.replicas),
        MAX_REPLICAS: str(most),
    }
    owner = reference(DEPLOYMENTS, meta)
    body: Object = {
        "apiVersion": REPLICA_SETS.resource.api_version,
        "kind": REPLICA_SETS.resource.kind,
        "metadata": {
            "name": f"{meta.name}-{hashed}",
            "namespace": meta.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [
                {
                    "apiVersion": owner.api_version,
                    "kind": owner.kind,
                    "name": owner.name,
                    "uid": owner.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            "replicas": replicas,
            "selector": {**selector, "matchLabels": {**(selector.get("matchLabels") or {}), POD_TEMPLATE_HASH: hashed}},
            "template": {**template, "metadata": {**template_meta, "labels": labels}},
        },
    }
    if spec.min_ready_seconds:
        body["spec"]["minReadySeconds"] = spec.min_ready_seconds
    return body
