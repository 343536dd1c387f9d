"""PodDisruptionBudgets, which preemption and eviction respect: `policy/v1`."""

from __future__ import annotations

from typing import Any

from coterie.kube.api.meta import ApiObject, Model
from coterie.kube.api.types.kind import Kind, builtin


class PodDisruptionBudgetSpec(Model, frozen=True, kw_only=True):
    selector: dict[str, Any] | None = None


class PodDisruptionBudgetStatus(Model, frozen=True, kw_only=True):
    disruptions_allowed: int = 0


class PodDisruptionBudget(ApiObject, frozen=True, kw_only=True):
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


POD_DISRUPTION_BUDGETS = Kind(builtin("poddisruptionbudgets", "policy"), PodDisruptionBudget)
