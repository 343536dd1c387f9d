"""Jobs, their tasks, and the summaries in which two control planes tell each other how far they are.

`kuscia.secretflow/v1alpha1`. Fields that the schema requires have no default here, because defaults are not written.
Task input stays text: only the engine knows what it means.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from coterie.kube.api.meta import ApiObject, Condition, Model
from coterie.kube.api.types.kind import Kind
from coterie.kube.api.types.pods import ResourceRequirements
from coterie.kuscia.api.job_statements import PartyStatement
from coterie.kuscia.api.types.domain import kuscia_resource
from coterie.kuscia.api.types.task_resource import TaskResourceStatus

CROSS_DOMAIN = "cross-domain"
"""The namespace of jobs and tasks."""
STRICT, BEST_EFFORT = "Strict", "BestEffort"


class JobPhase(StrEnum):
    INITIALIZED = "initialized"
    AWAITING_APPROVAL = "AwaitingApproval"
    PENDING = "Pending"
    RUNNING = "Running"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    APPROVAL_REJECT = "ApprovalReject"
    CANCELLED = "Cancelled"


class TaskPhase(StrEnum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class JobStage(StrEnum):
    """A user's command to a job, carried in the label `job-stage`."""

    CREATE = "Create"
    START = "Start"
    STOP = "Stop"
    CANCEL = "Cancel"
    RESTART = "Restart"
    SUSPEND = "Suspend"

    @property
    def done(self) -> str:
        return f"Job{self}StageSucceeded"

    @property
    def failed(self) -> str:
        return f"Job{self}StageFailed"


ACCEPTED, REJECTED = "JobAccepted", "JobRejected"


STALL_FAIL, STALL_RESTART = "Fail", "Restart"


class TaskRetry(Model, frozen=True, kw_only=True):
    """A task that failed is begun again at all parties; ours, Kuscia has no such setting."""

    count: int
    """How many times at most."""
    backoff_seconds: int = 0
    """The pause before the first retry; each further one is twice as long."""


class ScheduleConfig(Model, frozen=True, kw_only=True):
    min_reserved_members: int | None = None
    resource_reserved_seconds: int | None = None
    lifecycle_seconds: int | None = None
    retry_interval_seconds: int | None = None
    active_deadline_seconds: int | None = None
    """How long the task may run; ours, Kuscia has no such limit."""
    stall_seconds: int | None = None
    """A task whose engines are idle for so long at all parties is ended. Ours, as are the next two."""
    stall_action: str = ""
    """STALL_FAIL or STALL_RESTART; empty: the first."""
    retry: TaskRetry | None = None


class BandwidthLimit(Model, frozen=True, kw_only=True):
    destination_id: str = msgspec.field(name="destinationID")
    limit_kbps: int = msgspec.field(name="limitKBps")


class JobParty(Model, frozen=True, kw_only=True):
    domain_id: str = msgspec.field(name="domainID")
    role: str = ""
    resources: ResourceRequirements | None = None
    bandwidth_limits: tuple[BandwidthLimit, ...] | None = None


class TaskTemplate(Model, frozen=True, kw_only=True):
    alias: str
    app_image: str
    task_input_config: str
    parties: tuple[JobParty, ...]
    task_id: str = msgspec.field(name="taskID", default="")
    dependencies: tuple[str, ...] | None = None
    tolerable: bool = False
    schedule_config: ScheduleConfig | None = None
    priority: int = 0
    bandwidth_request: str = ""
    """What each party needs on its nodes and on the link to each other party: `100Mbps`. `kuscia.api.bandwidth` reads it."""


class KusciaJobSpec(Model, frozen=True, kw_only=True):
    initiator: str
    tasks: tuple[TaskTemplate, ...]
    flow_id: str = msgspec.field(name="flowID", default="")
    schedule_mode: str = ""
    max_parallelism: int = 0
    bandwidth_request: str = ""
    """For tasks that do not say their own."""

    @property
    def party_domains(self) -> tuple[str, ...]:
        """Domains that take part in a task, each once, in the order in which they are named."""
        return tuple(dict.fromkeys(party.domain_id for task in self.tasks for party in task.parties))


class PartyTaskStatus(Model, frozen=True, kw_only=True):
    domain_id: str = msgspec.field(name="domainID")
    role: str = ""
    phase: str = ""
    message: str = ""
    idle_since: str | None = None
    """When the party's engines did something last; told only when that is longer ago than the task allows."""
    ended_at: str | None = None
    """When its engines ended by themselves, by the party's own clock; None: they were stopped, or it did not say."""


class TaskAttempt(Model, frozen=True, kw_only=True):
    """One attempt at a task that failed."""

    attempt: int
    """From 1 on."""
    task_uid: str = msgspec.field(name="taskUID", default="")
    """Of the initiator's KusciaTask."""
    start_time: str | None = None
    end_time: str | None = None
    reason: str = ""
    message: str = ""
    retry_time: str | None = None
    """When the next attempt begins; none: it was the last."""


class ApprovalRecord(Model, frozen=True, kw_only=True):
    by: str = ""
    at: str = ""


class EnginePin(Model, frozen=True, kw_only=True):
    """The version of an engine that one party runs a task of a job with; ours, Kuscia has no versions."""

    version: str = ""
    digest: str = ""
    app_image: str = ""
    """Of this control plane, for its own domains."""


class KusciaJobStatus(Model, frozen=True, kw_only=True):
    phase: str = ""
    approve_status: dict[str, str] | None = None
    approval_records: dict[str, ApprovalRecord] | None = None
    """By party, who answered here for it. Written by the API server; partners do not get it."""
    engine_pins: dict[str, dict[str, EnginePin]] | None = None
    """By alias and party, which version of the engine this job runs with. Each control plane computes it; it does not travel."""
    party_statements: dict[str, PartyStatement] | None = None
    """By party, what it says about its part when it approves; see `job_statements.py`."""
    stage_status: dict[str, str] | None = None
    conditions: tuple[Condition, ...] | None = None
    reason: str = ""
    message: str = ""
    party_task_create_status: dict[str, tuple[PartyTaskStatus, ...]] | None = None
    task_status: dict[str, str] | None = None
    task_attempts: dict[str, tuple[TaskAttempt, ...]] | None = None
    """By task id, the attempts that failed, of tasks that may be retried. The initiator writes it, partners copy it."""
    start_time: str | None = None
    completion_time: str | None = None
    last_reconcile_time: str | None = None


class KusciaJob(ApiObject, frozen=True, kw_only=True):
    spec: KusciaJobSpec
    status: KusciaJobStatus = KusciaJobStatus()


class JobSummarySpec(Model, frozen=True, kw_only=True):
    stage: str = ""
    stage_trigger: str = ""


class KusciaJobSummary(ApiObject, frozen=True, kw_only=True):
    spec: JobSummarySpec = JobSummarySpec()
    status: KusciaJobStatus = KusciaJobStatus()


# Tasks.


class PartyTemplate(Model, frozen=True, kw_only=True):
    """`spec` stays plain data: it is laid over the AppImage's template field by field."""

    replicas: int | None = None
    spec: dict[str, Any] | None = None


class TaskParty(Model, frozen=True, kw_only=True):
    domain_id: str = msgspec.field(name="domainID")
    app_image_ref: str
    image_digest: str = ""
    """What the party's image must have; empty: what the AppImage requires."""
    role: str = ""
    min_reserved_pods: int | None = None
    template: PartyTemplate | None = None
    bandwidth_limits: tuple[BandwidthLimit, ...] | None = None


class KusciaTaskSpec(Model, frozen=True, kw_only=True):
    initiator: str
    task_input_config: str
    parties: tuple[TaskParty, ...]
    schedule_config: ScheduleConfig | None = None
    bandwidth_request: str = ""


class PodOfTask(Model, frozen=True, kw_only=True):
    pod_name: str
    pod_phase: str
    namespace: str
    node_name: str = ""
    message: str = ""
    termination_log: str = ""
    reason: str = ""
    create_time: str | None = None
    schedule_time: str | None = None
    start_time: str | None = None
    ready_time: str | None = None


class ServiceOfTask(Model, frozen=True, kw_only=True):
    namespace: str
    service_name: str
    port_name: str = ""
    port_number: int = 0
    scope: str = ""
    reason: str = ""
    message: str = ""
    create_time: str | None = None
    ready_time: str | None = None


class PartyAllocatedPorts(Model, frozen=True, kw_only=True):
    domain_id: str = msgspec.field(name="domainID")
    role: str = ""
    named_port: dict[str, int] | None = None
    """`<pod>/<port>` -> number."""


class KusciaTaskStatus(Model, frozen=True, kw_only=True):
    phase: str = ""
    progress: float = 0.0
    party_task_status: tuple[PartyTaskStatus, ...] | None = None
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] | None = None
    pod_statuses: dict[str, PodOfTask] | None = None
    service_statuses: dict[str, ServiceOfTask] | None = None
    allocated_ports: tuple[PartyAllocatedPorts, ...] | None = None
    start_time: str | None = None
    completion_time: str | None = None
    last_reconcile_time: str | None = None


class KusciaTask(ApiObject, frozen=True, kw_only=True):
    spec: KusciaTaskSpec
    status: KusciaTaskStatus = KusciaTaskStatus()


class ReservationOfParty(TaskResourceStatus, frozen=True, kw_only=True):
    """One party's TaskResource as both control planes see it."""

    role: str = ""
    host_task_resource_name: str = ""
    host_task_resource_version: str = ""
    member_task_resource_name: str = ""
    member_task_resource_version: str = ""


class TaskSummarySpec(Model, frozen=True, kw_only=True):
    alias: str
    job_id: str = msgspec.field(name="jobID")


class TaskSummaryStatus(KusciaTaskStatus, frozen=True, kw_only=True):
    resource_status: dict[str, tuple[ReservationOfParty, ...]] | None = None


class KusciaTaskSummary(ApiObject, frozen=True, kw_only=True):
    spec: TaskSummarySpec
    status: TaskSummaryStatus = TaskSummaryStatus()


# Reservations of all parties of a task.


class GroupPhase(StrEnum):
    PENDING = "Pending"
    CREATING = "Creating"
    RESERVING = "Reserving"
    RESERVED = "Reserved"
    RESERVE_FAILED = "ReserveFailed"
    FAILED = "Failed"


class GroupPod(Model, frozen=True, kw_only=True):
    name: str = ""


class GroupParty(Model, frozen=True, kw_only=True):
    domain_id: str = msgspec.field(name="domainID")
    role: str = ""
    min_reserved_pods: int = 0
    pods: tuple[GroupPod, ...] | None = None
    task_resource_name: str = ""


class TaskResourceGroupSpec(Model, frozen=True, kw_only=True):
    min_reserved_members: int
    initiator: str
    resource_reserved_seconds: int | None = None
    retry_interval_seconds: int | None = None
    lifecycle_seconds: int | None = None
    bandwidth_request: str = ""
    parties: tuple[GroupParty, ...] | None = None
    out_of_controlled_parties: tuple[GroupParty, ...] | None = None


class TaskResourceGroupStatus(Model, frozen=True, kw_only=True):
    phase: str = ""
    retry_count: int = 0
    conditions: tuple[Condition, ...] | None = None
    start_time: str | None = None
    completion_time: str | None = None
    last_transition_time: str | None = None


class TaskResourceGroup(ApiObject, frozen=True, kw_only=True):
    spec: TaskResourceGroupSpec
    status: TaskResourceGroupStatus = TaskResourceGroupStatus()


# Engines.


class AppImageName(Model, frozen=True, kw_only=True):
    name: str
    tag: str
    id: str = ""
    sign: str = ""


class DeployTemplate(Model, frozen=True, kw_only=True):
    """`spec` (Kuscia's pod spec) and `networkPolicy` stay plain data."""

    name: str
    spec: dict[str, Any]
    role: str = ""
    replicas: int | None = None
    network_policy: dict[str, Any] | None = None


class AppImageSpec(Model, frozen=True, kw_only=True):
    image: AppImageName
    deploy_templates: tuple[DeployTemplate, ...]
    config_templates: dict[str, str] | None = None


class AppImage(ApiObject, frozen=True, kw_only=True):
    spec: AppImageSpec


KUSCIA_JOBS = Kind(kuscia_resource("kusciajobs", "KusciaJob", namespaced=True), KusciaJob)
KUSCIA_JOB_SUMMARIES = Kind(
    kuscia_resource("kusciajobsummaries", "KusciaJobSummary", namespaced=True), KusciaJobSummary
)
KUSCIA_TASKS = Kind(kuscia_resource("kusciatasks", "KusciaTask", namespaced=True), KusciaTask)
KUSCIA_TASK_SUMMARIES = Kind(
    kuscia_resource("kusciatasksummaries", "KusciaTaskSummary", namespaced=True), KusciaTaskSummary
)
TASK_RESOURCE_GROUPS = Kind(
    kuscia_resource("taskresourcegroups", "TaskResourceGroup", namespaced=False), TaskResourceGroup
)
APP_IMAGES = Kind(kuscia_resource("appimages", "AppImage", namespaced=False), AppImage)
