"""What the scheduler reads beside pods and nodes: reservations of gangs, and budgets that victims are spared for."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Self

from msgspec.structs import replace

from coterie.kube.api.meta import ApiObject, Condition, Model, set_condition
from coterie.kube.api.resources import Resource
from coterie.kube.api.types.apps import IntOrPercent
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.api.types.pods import ResourceRequirements
from coterie.kuscia.api.definitions.crds import GROUP, VERSION


class ReservationPhase(StrEnum):
    """How far one domain's reservation is."""

    PENDING = "Pending"
    RESERVING = "Reserving"
    RESERVED = "Reserved"
    SCHEDULABLE = "Schedulable"
    FAILED = "Failed"


class TaskResourcePod(Model, frozen=True, kw_only=True):
    name: str = ""
    resources: ResourceRequirements | None = None


class TaskResourceSpec(Model, frozen=True, kw_only=True):
    min_reserved_pods: int = 1
    role: str = ""
    resource_reserved_seconds: int | None = None
    initiator: str = ""
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


class PodDisruptionBudgetSpec(Model, frozen=True, kw_only=True):
    selector: dict[str, Any] | None = None
    min_available: IntOrPercent | None = None
    max_unavailable: IntOrPercent | None = None


class PodDisruptionBudgetStatus(Model, frozen=True, kw_only=True):
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0
    observed_generation: int = 0
    disrupted_pods: dict[str, str | None] | None = None
    """Pods whose eviction was admitted but whose deletion was not seen yet, with the time of the eviction."""
    conditions: tuple[Condition, ...] | None = None


class PodDisruptionBudget(ApiObject, frozen=True, kw_only=True):
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


TASK_RESOURCES = Kind(
    Resource(GROUP, VERSION, "taskresources", "TaskResource", True, singular="taskresource", custom=True), TaskResource
)
POD_DISRUPTION_BUDGETS = Kind(builtin("poddisruptionbudgets", "policy"), PodDisruptionBudget)
