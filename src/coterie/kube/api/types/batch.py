"""Jobs and cron jobs as their controllers read them."""

from __future__ import annotations

from typing import Any

from coterie.kube.api.meta import ApiObject, Condition, Model
from coterie.kube.api.types.core import ObjectReference
from coterie.kube.api.types.kind import Kind, builtin


class FailureOnExitCodes(Model, frozen=True, kw_only=True):
    container_name: str | None = None
    operator: str = "In"
    values: tuple[int, ...] = ()


class FailureOnPodCondition(Model, frozen=True, kw_only=True):
    type: str = ""
    status: str = "True"


class PodFailureRule(Model, frozen=True, kw_only=True):
    action: str = "Count"
    on_exit_codes: FailureOnExitCodes | None = None
    on_pod_conditions: tuple[FailureOnPodCondition, ...] | None = None


class PodFailurePolicy(Model, frozen=True, kw_only=True):
    rules: tuple[PodFailureRule, ...] = ()


class JobSpec(Model, frozen=True, kw_only=True):
    parallelism: int | None = None
    completions: int | None = None
    active_deadline_seconds: int | None = None
    backoff_limit: int | None = None
    backoff_limit_per_index: int | None = None
    max_failed_indexes: int | None = None
    ttl_seconds_after_finished: int | None = None
    completion_mode: str = "NonIndexed"
    suspend: bool = False
    pod_failure_policy: PodFailurePolicy | None = None
    pod_replacement_policy: str = ""
    managed_by: str | None = None
    selector: dict[str, Any] | None = None
    template: dict[str, Any] | None = None


class UncountedPods(Model, frozen=True, kw_only=True):
    """Pods that have ended and are on their way into the counters; see the job controller."""

    succeeded: tuple[str, ...] | None = None
    failed: tuple[str, ...] | None = None


class JobCondition(Condition, frozen=True, kw_only=True):
    last_probe_time: str | None = None


class JobStatus(Model, frozen=True, kw_only=True):
    active: int = 0
    ready: int | None = None
    terminating: int | None = None
    succeeded: int = 0
    failed: int = 0
    start_time: str | None = None
    completion_time: str | None = None
    completed_indexes: str = ""
    failed_indexes: str | None = None
    uncounted_terminated_pods: UncountedPods | None = None
    conditions: tuple[JobCondition, ...] | None = None


class Job(ApiObject, frozen=True, kw_only=True):
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()

    @property
    def indexed(self) -> bool:
        return self.spec.completion_mode == "Indexed"

    @property
    def finished(self) -> str:
        """`Complete` or `Failed` when it is over, else empty."""
        for condition in self.status.conditions or ():
            if condition.type in ("Complete", "Failed") and condition.status == "True":
                return condition.type
        return ""


class JobTemplate(Model, frozen=True, kw_only=True):
    metadata: dict[str, Any] | None = None
    spec: dict[str, Any] | None = None


class CronJobSpec(Model, frozen=True, kw_only=True):
    schedule: str = ""
    time_zone: str | None = None
    starting_deadline_seconds: int | None = None
    concurrency_policy: str = "Allow"
    suspend: bool = False
    job_template: JobTemplate = JobTemplate()
    successful_jobs_history_limit: int | None = None
    failed_jobs_history_limit: int | None = None


class CronJobStatus(Model, frozen=True, kw_only=True):
    active: tuple[ObjectReference, ...] | None = None
    last_schedule_time: str | None = None
    last_successful_time: str | None = None


class CronJob(ApiObject, frozen=True, kw_only=True):
    spec: CronJobSpec = CronJobSpec()
    status: CronJobStatus = CronJobStatus()


JOBS = Kind(builtin("jobs", "batch"), Job)
CRON_JOBS = Kind(builtin("cronjobs", "batch"), CronJob)
