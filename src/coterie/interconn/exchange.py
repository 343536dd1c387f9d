"""Writes that both sides of a job make, each guarded by the version that was read."""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec.structs import replace

from coterie.api.errors import NotFound
from coterie.api.meta import ApiObject, Condition, Model, Object, set_condition
from coterie.api.types.kind import Kind
from coterie.api.types.merge import changes
from coterie.api.types.scheduling import TASK_RESOURCES, ReservationPhase, TaskResource
from coterie.client.client import Client

T = TypeVar("T", bound=ApiObject)


def exactly(obj: ApiObject) -> dict[str, str]:
    """What a patch says so that it meets the state we decided on, or nothing."""
    return {"uid": obj.metadata.uid, "resourceVersion": obj.metadata.resource_version}


async def write_status(client: Client, kind: Kind[T], obj: T, before: Model, after: Model) -> None:
    """Of kinds with a status sub-resource."""
    change = changes(before, after)
    if change is None:
        return
    meta = obj.metadata
    try:
        await client.patch_status(kind, meta.name, meta.namespace, {"metadata": exactly(obj), "status": change})
    except NotFound:
        return


async def write(client: Client, kind: Kind[T], obj: T, patch: Object) -> None:
    """A patch of anything but status sub-resources; nothing is sent when it is empty."""
    if not patch:
        return
    meta = obj.metadata
    body: dict[str, Any] = {**patch, "metadata": {**patch.get("metadata", {}), **exactly(obj)}}
    try:
        await client.patch(kind, meta.name, meta.namespace, body)
    except NotFound:
        return


async def move_reservation(client: Client, own: TaskResource, phase: ReservationPhase, why: str, now: str) -> None:
    """TaskResources have no status sub-resource."""
    told = tuple(
        replace(each, status="False", last_transition_time=now)
        if each.type != phase and each.status == "True"
        else each
        for each in own.status.conditions or ()
    )
    over = phase in (ReservationPhase.SCHEDULABLE, ReservationPhase.FAILED)
    after = replace(
        own.status,
        phase=str(phase),
        conditions=set_condition(told, Condition(type=str(phase), status="True", reason=why), now),
        last_transition_time=now,
        completion_time=now if over else None,
    )
    change = changes(own.status, after)
    if change is not None:
        await write(client, TASK_RESOURCES, own, {"status": change})
