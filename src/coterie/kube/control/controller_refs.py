"""Whose is it? Objects belong to the controller whose reference they carry; orphans are adopted by selector.

    carries our reference, matches          ours
    carries our reference, does not match   released (the reference is taken off), unless it or the owner is going away
    carries another controller's reference  not ours
    carries none, matches                   adopted, unless it or the owner is going away

`sort_claims` decides, `Claimer` writes. Before the first adoption the owner is read from the server itself: the cache may
not know yet that it is gone, and an object adopted for a ghost would be collected as garbage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from coterie.kube.api.errors import Conflict, Invalid, NotFound
from coterie.kube.api.meta import ApiObject, Object, ObjectKey, ObjectMeta, OwnerReference, controller_of
from coterie.kube.api.selectors import LabelSelector, selector_of
from coterie.kube.api.types.kind import Kind
from coterie.kube.client.cache import Cache
from coterie.kube.client.client import Client

T = TypeVar("T", bound=ApiObject)

CONTROLLER_INDEX = "controller"


def by_controller(obj: ApiObject) -> tuple[str]:
    """Index of caches: the uid of the controlling owner, or the namespace's orphans."""
    owner = controller_of(obj.metadata)
    return (owner.uid if owner is not None else _orphans(obj.metadata.namespace),)


def _orphans(namespace: str) -> str:
    return f"orphans/{namespace}"


def candidates(cache: Cache[T], namespace: str, owner_uid: str) -> list[T]:
    """What may belong to an owner: its own and the orphans beside it. Needs the index."""
    return [
        *cache.by_index(CONTROLLER_INDEX, owner_uid),
        *cache.by_index(CONTROLLER_INDEX, _orphans(namespace)),
    ]


class Selecting(Protocol):
    """An object that owns others by selector."""

    @property
    def key(self) -> ObjectKey: ...

    @property
    def spec(self) -> Any: ...


def owners_to_enqueue(
    meta: ObjectMeta,
    kind: str,
    group: str,
    owners: Iterable[Selecting],
    selector: Callable[[Any], LabelSelector] = selector_of,
) -> list[ObjectKey]:
    """Keys of the owners that must look at an object: its controller; for an orphan all that might adopt it.
    `selector` reads `spec.selector` of an owner."""
    owner = controller_of(meta)
    if owner is not None:
        same = owner.kind == kind and owner.api_version.rpartition("/")[0] == group
        return [ObjectKey(meta.namespace, owner.name)] if same else []
    if not meta.labels or meta.deleting:
        return []
    return [found.key for found in owners if selector(found.spec.selector).matches(meta.labels)]


@dataclass(frozen=True, slots=True)
class Claims(Generic[T]):
    ours: Sequence[T]
    adopt: Sequence[T]
    release: Sequence[T]


def sort_claims(owner: ObjectMeta, selector: LabelSelector, found: Iterable[T]) -> Claims[T]:
    ours: list[T] = []
    adopt: list[T] = []
    release: list[T] = []
    for obj in found:
        meta = obj.metadata
        holder = controller_of(meta)
        matches = selector.matches(meta.labels)
        if holder is not None:
            if holder.uid != owner.uid:
                continue
            if matches or owner.deleting or meta.deleting:
                if matches:
                    ours.append(obj)
            else:
                release.append(obj)
        elif matches and not owner.deleting and not meta.deleting:
            adopt.append(obj)
    return Claims(ours, adopt, release)


def reference(kind: Kind[Any], meta: ObjectMeta) -> OwnerReference:
    """What a dependent carries. Made from the kind: objects of a list come without their own."""
    return OwnerReference(
        api_version=kind.resource.api_version,
        kind=kind.resource.kind,
        name=meta.name,
        uid=meta.uid,
        controller=True,
        block_owner_deletion=True,
    )


class Claimer:
    """Writes claims of owners of one kind on dependents of another."""

    def __init__(self, client: Client, owner_kind: Kind[Any], kind: Kind[Any], finalizer: str = "") -> None:
        """`finalizer` is put on what is adopted and taken off what is released."""
        self._client = client
        self._owner_kind = owner_kind
        self._kind = kind
        self._finalizer = finalizer

    async def claim(self, owner: ObjectMeta, selector: LabelSelector, found: Iterable[T]) -> list[T]:
        """The objects that are the owner's, after adopting and releasing what has to be."""
        claims = sort_claims(owner, selector, found)
        ours = list(claims.ours)
        for obj in claims.release:
            await self._release(owner, obj)
        if claims.adopt and await self._still_there(owner):
            for obj in claims.adopt:
                adopted = await self._adopt(owner, obj)
                if adopted is not None:
                    ours.append(adopted)
        return ours

    async def _still_there(self, owner: ObjectMeta) -> bool:
        try:
            fresh: ApiObject = await self._client.get(self._owner_kind, owner.name, owner.namespace)
        except NotFound:
            return False
        return fresh.metadata.uid == owner.uid and not fresh.metadata.deleting

    async def _adopt(self, owner: ObjectMeta, obj: T) -> T | None:
        references = [*obj.metadata.owners, reference(self._owner_kind, owner)]
        return await self._write(obj, references, [*self._other_finalizers(obj), self._finalizer])

    async def _release(self, owner: ObjectMeta, obj: T) -> None:
        references = [held for held in obj.metadata.owners if held.uid != owner.uid]
        await self._write(obj, references, self._other_finalizers(obj))

    def _other_finalizers(self, obj: ApiObject) -> list[str]:
        return [name for name in obj.metadata.finalizers or () if name != self._finalizer]

    async def _write(self, obj: T, references: list[OwnerReference], finalizers: list[str]) -> T | None:
        meta = obj.metadata
        # The version makes a change that crossed ours show up as Conflict: then the key is worked on again.
        changed: Object = {
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "ownerReferences": msgspec.to_builtins(references) or None,
        }
        if self._finalizer:
            changed["finalizers"] = finalizers or None
        patch = {"metadata": changed}
        try:
            written: T = await self._client.patch(self._kind, meta.name, meta.namespace, patch)
        except (NotFound, Invalid):
            return None  # it is gone, or it has another controller by now
        except Conflict:
            if controller_of(meta) is None:
                raise
            return None  # released later, when its change has come
        return written
