"""PodDisruptionBudgets, which preemption and eviction respect: `policy/v1`."""

from __future__ import annotations

from typing import Any

from coterie.kube.api.meta import ApiObject, Condition, Model
from coterie.kube.api.types.apps import IntOrPercent
from coterie.kube.api.types.kind import Kind, builtin


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


POD_DISRUPTION_BUDGETS = Kind(builtin("poddisruptionbudgets", "policy"), PodDisruptionBudget)
