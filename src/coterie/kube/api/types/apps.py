"""Workloads that keep pods running, as their controllers read them.

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


class ReplicationController(ReplicaSet, frozen=True, kw_only=True):
    """The same data; only `spec.selector` is a plain map of labels."""


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


class DaemonSetUpdateStrategy(Model, frozen=True, kw_only=True):
    type: str = "RollingUpdate"
    rolling_update: RollingUpdate | None = None


class DaemonSetSpec(Model, frozen=True, kw_only=True):
    selector: dict[str, Any] | None = None
    template: dict[str, Any] | None = None
    update_strategy: DaemonSetUpdateStrategy = DaemonSetUpdateStrategy()
    min_ready_seconds: int = 0
    revision_history_limit: int | None = None


class DaemonSetStatus(Model, frozen=True, kw_only=True):
    current_number_scheduled: int = 0
    number_misscheduled: int = 0
    desired_number_scheduled: int = 0
    number_ready: int = 0
    observed_generation: int = 0
    updated_number_scheduled: int = 0
    number_available: int = 0
    number_unavailable: int = 0
    collision_count: int | None = None
    conditions: tuple[Condition, ...] | None = None


class DaemonSet(ApiObject, frozen=True, kw_only=True):
    spec: DaemonSetSpec = DaemonSetSpec()
    status: DaemonSetStatus = DaemonSetStatus()


class StatefulSetRollingUpdate(Model, frozen=True, kw_only=True):
    partition: int | None = None
    max_unavailable: IntOrPercent | None = None


class StatefulSetUpdateStrategy(Model, frozen=True, kw_only=True):
    type: str = "RollingUpdate"
    rolling_update: StatefulSetRollingUpdate | None = None


class StatefulSetOrdinals(Model, frozen=True, kw_only=True):
    start: int = 0


class ClaimRetentionPolicy(Model, frozen=True, kw_only=True):
    when_deleted: str = "Retain"
    when_scaled: str = "Retain"


class StatefulSetSpec(Model, frozen=True, kw_only=True):
    replicas: int | None = None
    selector: dict[str, Any] | None = None
    template: dict[str, Any] | None = None
    volume_claim_templates: tuple[dict[str, Any], ...] | None = None
    service_name: str = ""
    pod_management_policy: str = "OrderedReady"
    update_strategy: StatefulSetUpdateStrategy = StatefulSetUpdateStrategy()
    revision_history_limit: int | None = None
    min_ready_seconds: int = 0
    persistent_volume_claim_retention_policy: ClaimRetentionPolicy | None = None
    ordinals: StatefulSetOrdinals | None = None


class StatefulSetStatus(Model, frozen=True, kw_only=True):
    observed_generation: int = 0
    replicas: int = 0
    ready_replicas: int = 0
    current_replicas: int = 0
    updated_replicas: int = 0
    available_replicas: int = 0
    current_revision: str = ""
    update_revision: str = ""
    collision_count: int | None = None
    conditions: tuple[Condition, ...] | None = None


class StatefulSet(ApiObject, frozen=True, kw_only=True):
    spec: StatefulSetSpec = StatefulSetSpec()
    status: StatefulSetStatus = StatefulSetStatus()

    @property
    def replicas(self) -> int:
        return 1 if self.spec.replicas is None else self.spec.replicas

    @property
    def start(self) -> int:
        """The first ordinal."""
        return self.spec.ordinals.start if self.spec.ordinals is not None else 0


class ControllerRevision(ApiObject, frozen=True, kw_only=True):
    """One state of a DaemonSet's or StatefulSet's template: `data` is a patch that restores it."""

    data: dict[str, Any] | None = None
    revision: int = 0


REPLICA_SETS = Kind(builtin("replicasets", "apps"), ReplicaSet)
DEPLOYMENTS = Kind(builtin("deployments", "apps"), Deployment)
REPLICATION_CONTROLLERS = Kind(builtin("replicationcontrollers"), ReplicationController)
DAEMON_SETS = Kind(builtin("daemonsets", "apps"), DaemonSet)
STATEFUL_SETS = Kind(builtin("statefulsets", "apps"), StatefulSet)
CONTROLLER_REVISIONS = Kind(builtin("controllerrevisions", "apps"), ControllerRevision)
