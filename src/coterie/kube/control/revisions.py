"""ControllerRevisions: the history of the templates of DaemonSets and StatefulSets.

`data` of a revision is a strategic merge patch that restores the template, as Kubernetes and `kubectl rollout undo` have
it. The revision of the present template has the highest number; going back to an old template gives its revision a new
number instead of making another one. `plan_revision` and `surplus` decide, `RevisionHistory` reads and writes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from coterie.kube.api.errors import AlreadyExists, NotFound
from coterie.kube.api.labels import CONTROLLER_REVISION_HASH, LAST_APPLIED
from coterie.kube.api.meta import ApiObject, Object, ObjectMeta, controller_of
from coterie.kube.api.selectors import LabelSelector
from coterie.kube.api.types.apps import CONTROLLER_REVISIONS, ControllerRevision
from coterie.kube.api.types.kind import Kind
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.content_hash import content_hash, without_nulls
from coterie.kube.control.controller_refs import CONTROLLER_INDEX, Claimer, by_controller, candidates, reference

_PLAIN = CONTROLLER_REVISIONS.as_dynamic


class RevisionNameTaken(Exception):
    """Another content has the name: the owner counts a collision and tries again with another name."""


def revision_data(template: Mapping[str, Any]) -> Object:
    return {"spec": {"template": {**without_nulls(dict(template)), "$patch": "replace"}}}


def template_of(revision: ControllerRevision) -> Object:
    template = ((revision.data or {}).get("spec") or {}).get("template") or {}
    return {key: value for key, value in template.items() if key != "$patch"}


def revision_hash(revision: ControllerRevision) -> str:
    return (revision.metadata.labels or {}).get(CONTROLLER_REVISION_HASH) or ""


def oldest_first(revisions: Iterable[ControllerRevision]) -> list[ControllerRevision]:
    return sorted(revisions, key=lambda r: (r.revision, r.metadata.creation_timestamp or "", r.metadata.name))


@dataclass(frozen=True, slots=True)
class RevisionPlan:
    current: ControllerRevision | None
    """The revision of the present template, if there is one."""
    number: int
    """What its number should be."""
    duplicates: Sequence[ControllerRevision] = ()
    """Others with the same content."""


def plan_revision(template: Mapping[str, Any], revisions: Sequence[ControllerRevision]) -> RevisionPlan:
    data = revision_data(template)
    ordered = oldest_first(revisions)
    equal = [revision for revision in ordered if without_nulls(revision.data) == data]
    highest = ordered[-1].revision if ordered else 0
    if not equal:
        return RevisionPlan(None, highest + 1)
    current = equal[-1]
    number = current.revision if ordered[-1] is current else highest + 1
    return RevisionPlan(current, number, tuple(equal[:-1]))


def surplus(
    revisions: Sequence[ControllerRevision], live: Collection[str], limit: int | None
) -> list[ControllerRevision]:
    """The oldest revisions beyond the limit; `live` are names of those that pods or the status still need."""
    old = [revision for revision in oldest_first(revisions) if revision.metadata.name not in live]
    return old[: max(0, len(old) - (10 if limit is None else limit))]


def revision_body(
    kind: Kind[Any], owner: ObjectMeta, template: Mapping[str, Any], number: int, collisions: int | None
) -> Object:
    data = revision_data(template)
    hashed = content_hash(data, collisions)
    labels = ((template.get("metadata") or {}).get("labels")) or {}
    annotations = {key: value for key, value in (owner.annotations or {}).items() if key != LAST_APPLIED}
    return {
        "apiVersion": CONTROLLER_REVISIONS.resource.api_version,
        "kind": CONTROLLER_REVISIONS.resource.kind,
        "metadata": {
            "name": f"{owner.name}-{hashed}",
            "namespace": owner.namespace,
            "labels": {**labels, CONTROLLER_REVISION_HASH: hashed},
            "annotations": annotations,
            "ownerReferences": [msgspec.to_builtins(reference(kind, owner))],
        },
        "data": data,
        "revision": number,
    }


class RevisionHistory:
    """The revisions of owners of one kind."""

    def __init__(self, client: Client, informers: Informers, kind: Kind[Any]) -> None:
        self._client = client
        self._kind = kind
        self.informer = informers.get(CONTROLLER_REVISIONS)
        self.informer.cache.add_index(CONTROLLER_INDEX, by_controller)
        self._claimer = Claimer(client, kind, CONTROLLER_REVISIONS)

    async def of(self, owner: ObjectMeta, selector: LabelSelector) -> list[ControllerRevision]:
        """All revisions of the owner, oldest first."""
        found = candidates(self.informer.cache, owner.namespace, owner.uid)
        return oldest_first(await self._claimer.claim(owner, selector, found))

    async def present(
        self,
        owner: ApiObject,
        template: Mapping[str, Any],
        revisions: Sequence[ControllerRevision],
        collisions: int | None,
    ) -> ControllerRevision:
        """The revision of the present template, made or renumbered when it has to be. Raises RevisionNameTaken."""
        wanted = plan_revision(template, revisions)
        for duplicate in wanted.duplicates:
            await self.delete(duplicate)
        if wanted.current is None:
            return await self._create(owner.metadata, template, wanted.number, collisions)
        if wanted.current.revision == wanted.number:
            return wanted.current
        meta = wanted.current.metadata
        patch = {"metadata": {"uid": meta.uid}, "revision": wanted.number}
        return await self._client.patch(CONTROLLER_REVISIONS, meta.name, meta.namespace, patch)

    async def _create(
        self, owner: ObjectMeta, template: Mapping[str, Any], number: int, collisions: int | None
    ) -> ControllerRevision:
        body = revision_body(self._kind, owner, template, number, collisions)
        name = body["metadata"]["name"]
        try:
            await self._client.create(_PLAIN, body)
        except AlreadyExists:
            there = await self._client.get(CONTROLLER_REVISIONS, name, owner.namespace)
            holder = controller_of(there.metadata)
            if holder is None or holder.uid != owner.uid or without_nulls(there.data) != body["data"]:
                raise RevisionNameTaken(name) from None
            return there  # our cache is behind
        return await self._client.get(CONTROLLER_REVISIONS, name, owner.namespace)

    async def delete(self, revision: ControllerRevision) -> None:
        meta = revision.metadata
        try:
            await self._client.delete(CONTROLLER_REVISIONS, meta.name, meta.namespace, uid=meta.uid)
        except NotFound:
            return
