"""Replica sets and deployments as their controllers read them.

Templates stay plain data: they are copied into pods and compared, never interpreted here.
"""

from __future__ import annotations

from typing import Any

from coterie.kube.api.meta import ApiObject, Condition, Model
from coterie.kube.api.types.kind import Kind, builtin

IntOrPercent = int | str


class ReplicaSetSpec(Model, frozen=True, kw_only=True):
    replicas: int | None = None
    min_ready_seconds: int = 0
    selector: dict[str, Any] | None = None
    template: dict[str, Any] | None = None


class ReplicaSetStatus(Model, frozen=True, kw_only=True):
    replicas: int = 0
    fully_labeled_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    observed_generation: int = 0
    conditions: tuple[Condition, ...] | None = None


class ReplicaSet(ApiObject, frozen=True, kw_only=True):
    spec: ReplicaSetSpec = ReplicaSetSpec()
    status: ReplicaSetStatus = ReplicaSetStatus()

    @property
    def replicas(self) -> int:
        """How many pods are wanted; the server's default is one."""
        return 1 if self.spec.replicas is None else self.spec.replicas


class RollingUpdate(Model, frozen=True, kw_only=True):
    max_surge: IntOrPercent | None = None
    max_unavailable: IntOrPercent | None = None


class DeploymentStrategy(Model, frozen=True, kw_only=True):
    type: str = "RollingUpdate"
    rolling_update: RollingUpdate | None = None


class DeploymentSpec(Model, frozen=True, kw_only=True):
    replicas: int | None = None
    min_ready_seconds: int = 0
    selector: dict[str, Any] | None = None
    template: dict[str, Any] | None = None
    strategy: DeploymentStrategy = DeploymentStrategy()
    revision_history_limit: int | None = None
    progress_deadline_seconds: int | None = None
    paused: bool = False


class DeploymentCondition(Condition, frozen=True, kw_only=True):
    last_update_time: str | None = None


class DeploymentStatus(Model, frozen=True, kw_only=True):
    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    unavailable_replicas: int = 0
    collision_count: int | None = None
    conditions: tuple[DeploymentCondition, ...] | None = None


class Deployment(ApiObject, frozen=True, kw_only=True):
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()

    @property
    def replicas(self) -> int:
        return 1 if self.spec.replicas is None else self.spec.replicas


REPLICA_SETS = Kind(builtin("replicasets", "apps"), ReplicaSet)
DEPLOYMENTS = Kind(builtin("deployments", "apps"), Deployment)
