"""Adding and removing a finalizer, safely against others who change the same list.

Merge patches replace lists whole, so each patch carries the version it was computed from; when somebody was faster the
object is read again. Both functions return the object as it is afterwards; both may be called again without harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from coterie.kube.api.errors import NotFound
from coterie.kube.api.meta import Object, ObjectMeta
from coterie.kube.api.types.kind import Kind
from coterie.kube.client.client import Client, retry_on_conflict

T = TypeVar("T")


class BeingDeleted(Exception):
    """No finalizer can be added any more."""


def has_finalizer(obj: Object, finalizer: str) -> bool:
    return finalizer in (obj["metadata"].get("finalizers") or ())


async def add_finalizer(client: Client, kind: Kind[T], name: str, namespace: str, finalizer: str) -> T:
    async def attempt() -> T:
        obj = await client.get(kind.as_dynamic, name, namespace)
        if has_finalizer(obj, finalizer):
            return await client.get(kind, name, namespace)
        if obj["metadata"].get("deletionTimestamp"):
            raise BeingDeleted(f"{kind} {namespace}/{name} is being deleted")
        finalizers = [*(obj["metadata"].get("finalizers") or ()), finalizer]
        return await _patch(client, kind, obj, finalizers)

    return await retry_on_conflict(attempt)


async def remove_finalizer(
    client: Client, kind: Kind[T], name: str, namespace: str, finalizer: str, *, uid: str = ""
) -> T | None:
    """None when the object is gone, or is another one than `uid`."""

    async def attempt() -> T | None:
        try:
            obj = await client.get(kind.as_dynamic, name, namespace)
            if uid and obj["metadata"].get("uid") != uid:
                return None
            if not has_finalizer(obj, finalizer):
                return await client.get(kind, name, namespace)
            finalizers = [other for other in obj["metadata"]["finalizers"] if other != finalizer]
            return await _patch(client, kind, obj, finalizers)
        except NotFound:
            return None

    return await retry_on_conflict(attempt)


async def delete_with_finalizer(client: Client, kind: Kind[T], meta: ObjectMeta, finalizer: str) -> None:
    """Exactly this object, although it carries our finalizer; others' are waited for."""
    try:
        await client.delete(kind, meta.name, meta.namespace, uid=meta.uid)
    except NotFound:
        return
    await remove_finalizer(client, kind, meta.name, meta.namespace, finalizer, uid=meta.uid)


async def _patch(client: Client, kind: Kind[T], obj: Object, finalizers: Sequence[str]) -> T:
    meta = obj["metadata"]
    patch = {
        "metadata": {
            "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
            "finalizers": list(finalizers) or None,
        }
    }
    return await client.patch(kind, meta["name"], meta.get("namespace", ""), patch)
