"""Who belongs to whom: all objects by uid, and the dependents of each owner.

The graph changes only by what watches deliver. Each change returns the uids that should be looked at because of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from coterie.kube.api.labels import FINALIZER_FOREGROUND, FINALIZER_ORPHAN
from coterie.kube.api.meta import ObjectMeta, OwnerReference
from coterie.kube.api.resources import Resource


@dataclass(frozen=True, slots=True)
class GraphNode:
    resource: Resource
    meta: ObjectMeta

    @property
    def deleting_dependents(self) -> bool:
        """Deleted in the foreground: it waits for its dependents to go first."""
        return self.meta.deleting and self.meta.has_finalizer(FINALIZER_FOREGROUND)

    @property
    def orphaning(self) -> bool:
        return self.meta.deleting and self.meta.has_finalizer(FINALIZER_ORPHAN)

    def __str__(self) -> str:
        return f"{self.resource.group_resource} {self.meta.key}"


class Graph:
    def __init__(self) -> None:
        self._nodes: dict[str, GraphNode] = {}
        self._dependents: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def get(self, uid: str) -> GraphNode | None:
        return self._nodes.get(uid)

    def dependents(self, uid: str) -> Iterator[GraphNode]:
        for dependent in tuple(self._dependents.get(uid, ())):
            node = self._nodes.get(dependent)
            if node is not None:
                yield node

    def owner(self, dependent: GraphNode, reference: OwnerReference) -> GraphNode | None:
        """The object that the reference names, if it is known and may be named from where the dependent lives."""
        known = self._nodes.get(reference.uid)
        if known is None or known.meta.name != reference.name or known.resource.kind != reference.kind:
            return None
        if known.resource.group != reference.api_version.rpartition("/")[0]:
            return None
        return known if known.meta.namespace in ("", dependent.meta.namespace) else None

    def blocking(self, uid: str) -> list[GraphNode]:
        """Dependents that the owner's foreground deletion waits for.

        One that is itself deleted in the foreground and waits for the owner does not count: a circle would never end.
        """
        return [
            node
            for node in self._blocking(uid)
            if not (node.deleting_dependents and self._waits_for(node.meta.uid, uid))
        ]

    def _blocking(self, uid: str) -> Iterator[GraphNode]:
        for node in self.dependents(uid):
            if any(owner.uid == uid and owner.block_owner_deletion for owner in node.meta.owners):
                yield node

    def _waits_for(self, start: str, target: str) -> bool:
        seen, left = {start}, [start]
        while left:
            for node in self._blocking(left.pop()):
                uid = node.meta.uid
                if uid == target:
                    return True
                if node.deleting_dependents and uid not in seen:
                    seen.add(uid)
                    left.append(uid)
        return False

    def put(self, node: GraphNode) -> set[str]:
        uid = node.meta.uid
        old = self._nodes.get(uid)
        self._nodes[uid] = node
        before = {owner.uid for owner in old.meta.owners} if old else set()
        after = {owner.uid for owner in node.meta.owners}
        for owner in before - after:
            self._unlink(owner, uid)
        for owner in after - before:
            self._dependents.setdefault(owner, set()).add(uid)
        return set(self._touched(node, before | after))

    def _touched(self, node: GraphNode, owners: Iterable[str]) -> Iterator[str]:
        uid = node.meta.uid
        if node.deleting_dependents or node.orphaning:
            yield uid
        if node.deleting_dependents:
            yield from self._dependents.get(uid, ())
        for owner in owners:
            known = self._nodes.get(owner)
            if known is not None and known.deleting_dependents:
                yield uid
                yield owner
        if any(self.owner(node, reference) is None for reference in node.meta.owners):
            yield uid

    def remove(self, uid: str) -> set[str]:
        node = self._nodes.pop(uid, None)
        if node is None:
            return set()
        touched = set(self._dependents.get(uid, ()))
        for owner in node.meta.owners:
            self._unlink(owner.uid, uid)
            known = self._nodes.get(owner.uid)
            if known is not None and known.deleting_dependents:
                touched.add(owner.uid)
        return touched

    def _unlink(self, owner: str, dependent: str) -> None:
        known = self._dependents.get(owner)
        if known is not None:
            known.discard(dependent)
            if not known:
                del self._dependents[owner]
