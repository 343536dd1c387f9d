"""TaskResource: one domain's reservation of nodes for one task. `kuscia.secretflow/v1alpha1`."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Self

from msgspec.structs import replace

from coterie.kube.api.meta import ApiObject, Condition, Model, set_condition
from coterie.kube.api.types.kind import Kind
from coterie.kube.api.types.pods import ResourceRequirements
from coterie.kuscia.api.types.domain import kuscia_resource


class ReservationPhase(StrEnum):
    """How far one domain's reservation is."""

    PENDING = "Pending"
    RESERVING = "Reserving"
    RESERVED = "Reserved"
    SCHEDULABLE = "Schedulable"
    FAILED = "Failed"


RESERVATION_SENTENCES: Final = {
    ReservationPhase.RESERVING: "waiting for the scheduler to find room for the pods; `coterie job show` says more",
    ReservationPhase.RESERVED: "resources are held; waiting for the other parties of the task",
}
"""The reason of the condition of a phase in which something is waited for, when no other is given."""


class TaskResourcePod(Model, frozen=True, kw_only=True):
    name: str = ""
    resources: ResourceRequirements | None = None


class TaskResourceSpec(Model, frozen=True, kw_only=True):
    min_reserved_pods: int = 1
    role: str = ""
    resource_reserved_seconds: int | None = None
    initiator: str = ""
    bandwidth_request: str = ""
    peers: tuple[str, ...] | None = None
    """The other domains of the task."""
    pods: tuple[TaskResourcePod, ...] | None = None


class TaskResourceStatus(Model, frozen=True, kw_only=True):
    phase: str = ""
    conditions: tuple[Condition, ...] | None = None
    start_time: str | None = None
    completion_time: str | None = None
    last_transition_time: str | None = None

    def moved(self, phase: ReservationPhase, why: str, now: str) -> Self:
        """In another phase, whose condition is the one that is true."""
        left = tuple(
            replace(each, status="False", last_transition_time=now)
            if each.type != phase and each.status == "True"
            else each
            for each in self.conditions or ()
        )
        why = why or RESERVATION_SENTENCES.get(phase, "")
        over = phase in (ReservationPhase.SCHEDULABLE, ReservationPhase.FAILED)
        return replace(
            self,
            phase=str(phase),
            conditions=set_condition(left, Condition(type=str(phase), status="True", reason=why), now),
            last_transition_time=now,
            completion_time=now if over else None,
        )


class TaskResource(ApiObject, frozen=True, kw_only=True):
    """One domain's reservation for one task. It has no status sub-resource: status is written with the object."""

    spec: TaskResourceSpec = TaskResourceSpec()
    status: TaskResourceStatus = TaskResourceStatus()


TASK_RESOURCES = Kind(kuscia_resource("taskresources", "TaskResource", namespaced=True), TaskResource)
