"""Jobs in the forms of KusciaAPI. Pure: from a request to the object, from the object and its tasks to an answer.

CreateJobRequest ──> KusciaJob            KusciaJob, its KusciaTasks ──> QueryJobResponseData, JobStatus
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from coterie.kube.api.meta import Object, is_true
from coterie.kube.api.names import Faults, dns_label_faults, label_value_faults, qualified_name_faults
from coterie.kube.api.types.pods import ResourceRequirements
from coterie.kuscia.api import labels
from coterie.kuscia.api.bandwidth import bandwidth_problem, mbit_up, parse_bits
from coterie.kuscia.api.jobs.commands import carried_out, stage_version
from coterie.kuscia.api.jobs.conditions import STALLED
from coterie.kuscia.api.jobs.phases import JOB_ENDED, JOB_FINAL
from coterie.kuscia.api.jobs.validation import job_problems, quantity_problem
from coterie.kuscia.api.types.job import (
    BEST_EFFORT,
    CROSS_DOMAIN,
    KUSCIA_JOBS,
    JobParty,
    JobPhase,
    JobStage,
    KusciaJob,
    KusciaJobSpec,
    KusciaTask,
    ScheduleConfig,
    ServiceOfTask,
    TaskAttempt,
    TaskPhase,
    TaskTemplate,
)
from coterie.kuscia.api.waiting import waiting_since
from coterie.kuscia.kusciaapi.codes import invalid

_UNKNOWN = "Unknown"
_STATES = {str(phase): str(phase) for phase in JobPhase if phase is not JobPhase.INITIALIZED}
_DONE = {
    JobStage.STOP: JOB_ENDED,
    JobStage.CANCEL: JOB_FINAL,
}
_RESOURCES = (("cpu", "cpu"), ("memory", "memory"), ("bandwidth", labels.KUSCIA_BANDWIDTH))
"""(field of JobResource, resource)"""
_TIMES = (
    ("task_timeout_seconds", "lifecycleSeconds", 300),
    ("resource_reserved_seconds", "resourceReservedSeconds", 30),
    ("resource_reallocation_interval_seconds", "retryIntervalSeconds", 30),
    ("active_deadline_seconds", "activeDeadlineSeconds", 0),
    ("min_reserved_members", "minReservedMembers", 0),
    ("stall_seconds", "stallSeconds", 0),
)
"""(field of ScheduleConfig, field of the object, what is written when none is given; 0: nothing)"""
_REQUEST_FIELDS = {
    "appImage": "app_image",
    "bandwidthLimits": "bandwidth_limits",
    "bandwidthRequest": "bandwidth_request",
    "destinationID": "destination_id",
    "domainID": "domain_id",
    "limitKBps": "limit_kbps",
    "maxParallelism": "max_parallelism",
    "scheduleConfig": "schedule_config",
    "stallAction": "stall_action",
    "taskID": "task_id",
    **{name: field for field, name, _ in _TIMES},
}
"""By field of the object. Amounts of resources and the job's name are checked before the object is made."""


# From a request to a job.


def job_object(request: Any) -> Object:
    """Refused (11100) with the field that cannot be taken."""
    named("job_id", request.job_id)
    metadata: Object = {"name": request.job_id, "namespace": CROSS_DOMAIN}
    if request.custom_fields:
        metadata["labels"] = dict(_custom_labels(request.custom_fields))
    spec = {
        "initiator": request.initiator,
        "scheduleMode": BEST_EFFORT,
        "maxParallelism": max(1, request.max_parallelism),
        "tasks": [_task(f"tasks[{place}]", task) for place, task in enumerate(request.tasks)],
    }
    if request.bandwidth_request:
        spec["bandwidthRequest"] = request.bandwidth_request
    for problem in job_problems(request.job_id, msgspec.convert(spec, KusciaJobSpec)):
        raise invalid(request_field(problem.field), problem.text)
    resource = KUSCIA_JOBS.resource
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec}


def spec_of(job: Object) -> KusciaJobSpec:
    return msgspec.convert(job["spec"], KusciaJobSpec)


def named(field: str, value: str) -> str:
    """The value of a field that must hold a name."""
    if not value:
        raise invalid(field, "must be given")
    _check(field, dns_label_faults(value))
    return value


def _check(field: str, faults: Faults) -> None:
    if faults:
        raise invalid(field, faults[0])


def _task(path: str, task: Any) -> Object:
    out: Object = {
        "alias": task.alias,
        "appImage": task.app_image,
        "taskInputConfig": task.task_input_config,
        "parties": [_party(f"{path}.parties[{place}]", party) for place, party in enumerate(task.parties)],
        "scheduleConfig": _schedule(task.schedule_config),
    }
    if task.task_id:
        out["taskID"] = task.task_id
    if task.bandwidth_request:
        out["bandwidthRequest"] = task.bandwidth_request
    if task.dependencies:
        out["dependencies"] = list(task.dependencies)
    if task.tolerable:
        out["tolerable"] = True
    if task.priority:
        out["priority"] = task.priority
    return out


def _schedule(config: Any) -> Object:
    given = {name: getattr(config, field) or default for field, name, default in _TIMES}
    out: Object = {name: value for name, value in given.items() if value}
    if config.stall_action:
        out["stallAction"] = config.stall_action
    if config.retry_count or config.retry_backoff_seconds:
        out["retry"] = {"count": config.retry_count}
        if config.retry_backoff_seconds:
            out["retry"]["backoffSeconds"] = config.retry_backoff_seconds
    return out


def _party(path: str, party: Any) -> Object:
    out: Object = {"domainID": party.domain_id}
    if party.role:
        out["role"] = party.role
    amounts = {
        resource: (bandwidth if field == "bandwidth" else amount)(f"{path}.resources.{field}", text)
        for field, resource in _RESOURCES
        if (text := getattr(party.resources, field))
    }
    if amounts:
        out["resources"] = {"requests": amounts, "limits": dict(amounts)}
    limits = [{"destinationID": each.destination_id, "limitKBps": each.limit_kbps} for each in party.bandwidth_limits]
    if limits:
        out["bandwidthLimits"] = limits
    return out


def amount(field: str, text: str) -> str:
    """The text of a field that must hold a quantity."""
    if problem := quantity_problem(text, zero=False):
        raise invalid(field, problem)
    return text


def bandwidth(field: str, text: str) -> str:
    """The text of a field that must hold a bandwidth, as the whole Mbit/s of `kuscia.io/bandwidth`."""
    if problem := bandwidth_problem(text):
        raise invalid(field, problem)
    return str(mbit_up(parse_bits(text)))


def request_field(path: str) -> str:
    """The field of CreateJobRequest from which a field of the object was made."""
    path = path.replace("retry.count", "retry_count").replace("retry.backoffSeconds", "retry_backoff_seconds")
    return ".".join(map(_request_part, path.split(".")))


def _request_part(part: str) -> str:
    name, bracket, index = part.partition("[")
    return _REQUEST_FIELDS.get(name, name) + bracket + index


def _custom_labels(fields: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for key, value in fields.items():
        label = f"{labels.KUSCIA_JOB_CUSTOM_FIELDS_PREFIX}{key}"
        _check(f"custom_fields[{key}]", qualified_name_faults(label) or label_value_faults(value))
        yield label, value


# From a job to an answer.


def domains_of(job: KusciaJob) -> frozenset[str]:
    """Who takes part, the initiator included."""
    return frozenset((job.spec.initiator, *job.spec.party_domains))


def job_data(job: KusciaJob, tasks: Iterable[KusciaTask]) -> Object:
    """QueryJobResponseData. `tasks`: those of this job."""
    prefix = labels.KUSCIA_JOB_CUSTOM_FIELDS_PREFIX
    return {
        "job_id": job.metadata.name,
        "initiator": job.spec.initiator,
        "max_parallelism": job.spec.max_parallelism,
        "bandwidth_request": job.spec.bandwidth_request,
        "tasks": [_task_config(template) for template in job.spec.tasks],
        "status": _detail(job, tasks),
        "custom_fields": {
            key.removeprefix(prefix): value
            for key, value in (job.metadata.labels or {}).items()
            if key.startswith(prefix)
        },
    }


def job_status(job: KusciaJob, tasks: Iterable[KusciaTask]) -> Object:
    """JobStatus. `tasks`: those of this job."""
    return {"job_id": job.metadata.name, "status": _detail(job, tasks)}


def _task_config(template: TaskTemplate) -> Object:
    out: Object = {
        "app_image": template.app_image,
        "parties": [_shown_party(party) for party in template.parties],
        "alias": template.alias,
        "task_id": template.task_id,
        "dependencies": list(template.dependencies or ()),
        "task_input_config": template.task_input_config,
        "priority": template.priority,
        "tolerable": template.tolerable,
        "bandwidth_request": template.bandwidth_request,
    }
    if template.schedule_config is not None:
        out["schedule_config"] = _shown_schedule(template.schedule_config)
    return out


def _shown_schedule(config: ScheduleConfig) -> Object:
    return {
        "task_timeout_seconds": config.lifecycle_seconds or 0,
        "resource_reserved_seconds": config.resource_reserved_seconds or 0,
        "resource_reallocation_interval_seconds": config.retry_interval_seconds or 0,
        "active_deadline_seconds": config.active_deadline_seconds or 0,
        "min_reserved_members": config.min_reserved_members or 0,
        "stall_seconds": config.stall_seconds or 0,
        "stall_action": config.stall_action,
        "retry_count": config.retry.count if config.retry is not None else 0,
        "retry_backoff_seconds": config.retry.backoff_seconds if config.retry is not None else 0,
    }


def _shown_party(party: JobParty) -> Object:
    out: Object = {"domain_id": party.domain_id, "role": party.role}
    if party.resources is not None and (amounts := _amounts(party.resources)):
        out["resources"] = amounts
    if party.bandwidth_limits:
        out["bandwidth_limits"] = [
            {"destination_id": each.destination_id, "limit_kbps": each.limit_kbps} for each in party.bandwidth_limits
        ]
    return out


def _amounts(resources: ResourceRequirements) -> Object:
    quantities = {**(resources.requests or {}), **(resources.limits or {})}
    return {field: str(quantities[resource]) for field, resource in _RESOURCES if resource in quantities}


def _detail(job: KusciaJob, tasks: Iterable[KusciaTask]) -> Object:
    found = {task.metadata.name: task for task in tasks if not task.metadata.deleting}
    status = job.status
    attempts = status.task_attempts or {}
    shown = [
        _with_attempts(_task_status(template, found.get(template.task_id)), attempts.get(template.task_id, ()))
        for template in job.spec.tasks
    ]
    return {
        "state": _STATES.get(status.phase, _UNKNOWN),
        "err_msg": status.message or "; ".join(_error_messages(shown)),
        "create_time": job.metadata.creation_timestamp or "",
        "start_time": status.start_time or "",
        "end_time": status.completion_time or "",
        "tasks": shown,
        "stage_status_list": _by_domain(status.stage_status),
        "approve_status_list": _by_domain(status.approve_status),
        "waiting_since": waiting_since(status.conditions) or "",
    }


def _error_messages(tasks: Iterable[Object]) -> Iterator[str]:
    for task in tasks:
        for party in task["parties"]:
            if party["err_msg"]:
                yield f"Task[{task['alias']}]-Party[{party['domain_id']}]: {party['err_msg']}"


def _by_domain(statuses: Mapping[str, str] | None) -> list[Object]:
    return [{"domain_id": domain, "state": state} for domain, state in sorted((statuses or {}).items())]


def _task_status(template: TaskTemplate, task: KusciaTask | None) -> Object:
    out: Object = {"task_id": template.task_id, "alias": template.alias, "state": str(TaskPhase.PENDING)}
    if task is None:
        return {**out, "parties": [_party_status(party, "", "") for party in template.parties]}
    status = task.status
    party_statuses = {(party.domain_id, party.role): party for party in status.party_task_status or ()}
    parties = []
    for party in template.parties:
        known = party_statuses.get((party.domain_id, party.role))
        shown = _party_status(party, known.phase if known else "", known.message if known else "")
        if endpoints := [_endpoint(service) for service in _services_of(template, party, task)]:
            shown["endpoints"] = endpoints
        parties.append(shown)
    return {
        **out,
        "state": status.phase or str(TaskPhase.PENDING),
        "err_msg": status.message,
        "create_time": task.metadata.creation_timestamp or "",
        "start_time": status.start_time or "",
        "end_time": status.completion_time or "",
        "parties": parties,
        "progress": 1.0 if status.phase == TaskPhase.SUCCEEDED else min(1.0, max(0.0, status.progress)),
        "waiting_since": waiting_since(status.conditions) or "",
        "stalled": is_true(status.conditions, STALLED) and status.phase == TaskPhase.RUNNING,
    }


def _with_attempts(task: Object, attempts: Iterable[TaskAttempt]) -> Object:
    listed = [
        {
            "attempt": each.attempt,
            "start_time": each.start_time or "",
            "end_time": each.end_time or "",
            "reason": each.reason,
            "err_msg": each.message,
            "retry_time": each.retry_time or "",
        }
        for each in attempts
    ]
    return {**task, "attempts": listed} if listed else task


def _party_status(party: JobParty, phase: str, message: str) -> Object:
    return {
        "domain_id": party.domain_id,
        "role": party.role,
        "state": phase or str(TaskPhase.PENDING),
        "err_msg": message,
    }


def _services_of(template: TaskTemplate, party: JobParty, task: KusciaTask) -> list[ServiceOfTask]:
    """Those of one party. Of a domain with several roles, the numbers of ports tell them apart."""
    found = [
        service
        for _, service in sorted((task.status.service_statuses or {}).items())
        if service.namespace == party.domain_id
    ]
    if sum(each.domain_id == party.domain_id for each in template.parties) <= 1:
        return found
    numbers = {
        number
        for each in task.status.allocated_ports or ()
        if (each.domain_id, each.role) == (party.domain_id, party.role)
        for number in (each.named_port or {}).values()
    }
    return [service for service in found if service.port_number in numbers]


def _endpoint(service: ServiceOfTask) -> Object:
    host = f"{service.service_name}.{service.namespace}.svc"
    address = f"{host}:{service.port_number}" if service.scope == "Domain" else host
    return {"port_name": service.port_name, "scope": service.scope, "endpoint": address}


# Commands.


def needs_no(job: KusciaJob, stage: JobStage) -> bool:
    """Whether a command is answered with success and not given: it has been, or what it asks for is so already."""
    given = (job.metadata.labels or {}).get(labels.KUSCIA_JOB_STAGE) == stage
    phase = job.status.phase
    deaf = phase in JOB_FINAL or (phase == JobPhase.FAILED and stage is not JobStage.RESTART)
    if given and not deaf and not carried_out(job, stage_version(job)):
        return True
    return phase in _DONE.get(stage, ())
