"""Writes that meet the state that was decided on, or nothing: each patch names the version it was computed from.

When somebody else was faster the server answers Conflict, which a controller takes as: look again.
"""

from __future__ import annotations

from typing import Any, TypeVar

from coterie.kube.api.errors import NotFound
from coterie.kube.api.meta import ApiObject, Model, Object
from coterie.kube.api.types.kind import Kind
from coterie.kube.api.types.merge import changes
from coterie.kube.client.client import Client

T = TypeVar("T", bound=ApiObject)


def preconditions(obj: ApiObject) -> dict[str, str]:
    """The metadata of such a patch."""
    return {"uid": obj.metadata.uid, "resourceVersion": obj.metadata.resource_version}


async def write_status(client: Client, kind: Kind[T], obj: T, before: Model, after: Model) -> T | None:
    """Of kinds with a status sub-resource; the object as written. None when there was nothing to write, or the object is gone."""
    change = changes(before, after)
    if change is None:
        return None
    meta = obj.metadata
    patch = {"metadata": preconditions(obj), "status": change}
    try:
        return await client.patch_status(kind, meta.name, meta.namespace, patch)
    except NotFound:
        return None


async def write(client: Client, kind: Kind[T], obj: T, patch: Object) -> None:
    """A patch of anything but status sub-resources; nothing is sent when it is empty."""
    if not patch:
        return
    meta = obj.metadata
    body: dict[str, Any] = {**patch, "metadata": {**patch.get("metadata", {}), **preconditions(obj)}}
    try:
        await client.patch(kind, meta.name, meta.namespace, body)
    except NotFound:
        return
