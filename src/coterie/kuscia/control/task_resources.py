"""How the phase of a TaskResource is written, for every controller that moves one."""

from __future__ import annotations

from coterie.kube.api.types.merge import changes
from coterie.kube.client.client import Client
from coterie.kube.control.preconditions import write
from coterie.kuscia.api.types.task_resource import TASK_RESOURCES, ReservationPhase, TaskResource


async def move_reservation(
    client: Client, reservation: TaskResource, phase: ReservationPhase, why: str, now: str
) -> None:
    """The object itself is patched: TaskResources have no status sub-resource."""
    change = changes(reservation.status, reservation.status.moved(phase, why, now))
    if change is not None:
        await write(client, TASK_RESOURCES, reservation, {"status": change})
