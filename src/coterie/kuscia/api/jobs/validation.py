"""What makes a job invalid, as far as the job itself shows it. Pure.

The job controller, KusciaAPI and `coterie job run` all ask `job_problems`. What depends on other objects is in
`references.py`. Limits are those of the KusciaJob definition; what Kuscia leaves unchecked and fails on later is checked
too.

    metadata.name        letters, digits and dashes: task ids, pods and services are named after it
    initiator, domainID  names of namespaces
    tasks                1 to 128; the dependencies have no cycle
    maxParallelism       up to 128
    alias                given, unique in the job
    taskID               as metadata.name, unique in the job
    dependencies         aliases of other tasks of the job
    appImage             given
    parties              at least one; no domain twice with the same role
    role                 a label value
    resources            quantities, not negative, no request above its limit
    bandwidthLimits      a domain and a positive limit
    bandwidthRequest     more than 0, as `kuscia/api/bandwidth.py` reads it
    scheduleConfig       not negative; minReservedMembers from 1 to the number of parties; stallSeconds from 5 on;
                         stallAction Fail or Restart, with stallSeconds; retry.count up to 10
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from coterie.kube.api import quantity
from coterie.kube.api.names import dns_label_faults, label_value_faults
from coterie.kuscia.api.bandwidth import bandwidth_problem
from coterie.kuscia.api.engine_versions import reference_fault
from coterie.kuscia.api.jobs.graph import circle
from coterie.kuscia.api.jobs.retries import LEAST_STALL_SECONDS, LONGEST_BACKOFF, MOST_RETRIES
from coterie.kuscia.api.types.job import (
    BEST_EFFORT,
    STALL_FAIL,
    STALL_RESTART,
    STRICT,
    BandwidthLimit,
    JobParty,
    KusciaJobSpec,
    ScheduleConfig,
    TaskTemplate,
)

MOST_TASKS = 128
MOST_PARALLEL = 128
LONGEST_NAME = 253
LONGEST_TASK_ID = 213
"""An initiator makes ids of up to 200 characters of the job's name and 13 more."""
_LARGEST_INTEGER = (1 << 63) - 1
_REQUIRED = "must be given"
_SHOWN = 64


class Problem(NamedTuple):
    field: str
    """Path in the job's spec, as `tasks[0].alias`; `metadata.name` for the name."""
    text: str

    def __str__(self) -> str:
        return f"{self.field}: {self.text}"


def job_problems(name: str, spec: KusciaJobSpec) -> list[Problem]:
    """Empty when the job is valid."""
    return [*_job(name, spec), *_graph(spec.tasks)]


def quantity_problem(amount: str | int | float, *, zero: bool = True) -> str:
    """What is wrong with an amount of a resource; empty when nothing is. `zero`: whether none at all may be asked for."""
    try:
        nanos = quantity.parse(amount).nanos
    except quantity.QuantityError:
        return f'"{str(amount)[:_SHOWN]}" is no quantity; write e.g. 2, 500m or 4Gi'
    if zero:
        return "must not be negative" if nanos < 0 else ""
    return "must be more than 0" if nanos <= 0 else ""


def _job(name: str, spec: KusciaJobSpec) -> Iterator[Problem]:
    yield from _name("metadata.name", name, LONGEST_NAME)
    yield from _name("initiator", spec.initiator)
    if not spec.tasks:
        yield Problem("tasks", "name at least one")
    if len(spec.tasks) > MOST_TASKS:
        yield Problem("tasks", f"are {len(spec.tasks)}, and a job has at most {MOST_TASKS}")
    if spec.max_parallelism > MOST_PARALLEL:
        yield Problem("maxParallelism", f"must be at most {MOST_PARALLEL}")
    if spec.max_parallelism < 0:
        yield Problem("maxParallelism", "must not be negative")
    if spec.schedule_mode not in ("", STRICT, BEST_EFFORT):
        yield Problem("scheduleMode", f"must be {STRICT} or {BEST_EFFORT}")
    yield from _bandwidth_request("bandwidthRequest", spec.bandwidth_request)
    for index, task in enumerate(spec.tasks):
        yield from _task(f"tasks[{index}]", task)


def _name(field: str, value: str, longest: int = 63) -> Iterator[Problem]:
    if not value:
        yield Problem(field, _REQUIRED)
        return
    for fault in dns_label_faults(value, longest):
        yield Problem(field, fault)


def _task(path: str, task: TaskTemplate) -> Iterator[Problem]:
    if not task.alias:
        yield Problem(f"{path}.alias", _REQUIRED)
    if not task.app_image:
        yield Problem(f"{path}.appImage", _REQUIRED)
    elif fault := reference_fault(task.app_image):
        yield Problem(f"{path}.appImage", fault)
    if task.task_id:
        yield from _name(f"{path}.taskID", task.task_id, LONGEST_TASK_ID)
    if not task.parties:
        yield Problem(f"{path}.parties", "name at least one")
    seen: set[tuple[str, str]] = set()
    for index, party in enumerate(task.parties):
        yield from _party(f"{path}.parties[{index}]", party)
        if (party.domain_id, party.role) in seen:
            role = f' with the role "{party.role}"' if party.role else ""
            yield Problem(f"{path}.parties[{index}]", f"{party.domain_id}{role} is named twice")
        seen.add((party.domain_id, party.role))
    yield from _bandwidth_request(f"{path}.bandwidthRequest", task.bandwidth_request)
    if task.schedule_config is not None:
        yield from _schedule(f"{path}.scheduleConfig", task.schedule_config, len(task.parties))


def _schedule(path: str, config: ScheduleConfig, parties: int) -> Iterator[Problem]:
    members = config.min_reserved_members
    for field, value, least in (
        ("lifecycleSeconds", config.lifecycle_seconds, 0),
        ("resourceReservedSeconds", config.resource_reserved_seconds, 0),
        ("retryIntervalSeconds", config.retry_interval_seconds, 0),
        ("activeDeadlineSeconds", config.active_deadline_seconds, 1),
        ("minReservedMembers", members, 1),
    ):
        if value is not None and value < 0:
            yield Problem(f"{path}.{field}", "must not be negative")
        elif value is not None and value < least:
            yield Problem(f"{path}.{field}", f"must be at least {least}")
    stall = config.stall_seconds
    if stall is not None and stall < LEAST_STALL_SECONDS:
        yield Problem(f"{path}.stallSeconds", f"must be at least {LEAST_STALL_SECONDS}")
    if config.stall_action not in ("", STALL_FAIL, STALL_RESTART):
        yield Problem(f"{path}.stallAction", f"must be {STALL_FAIL} or {STALL_RESTART}")
    elif config.stall_action and stall is None:
        yield Problem(f"{path}.stallAction", "needs stallSeconds")
    if config.retry is not None:
        if not 0 <= config.retry.count <= MOST_RETRIES:
            yield Problem(f"{path}.retry.count", f"must be between 0 and {MOST_RETRIES}")
        if not 0 <= config.retry.backoff_seconds <= LONGEST_BACKOFF:
            yield Problem(f"{path}.retry.backoffSeconds", f"must be between 0 and {LONGEST_BACKOFF}")
    if members is not None and members > parties:
        yield Problem(f"{path}.minReservedMembers", f"is {members}, but there are {parties} parties")


def _party(path: str, party: JobParty) -> Iterator[Problem]:
    yield from _name(f"{path}.domainID", party.domain_id)
    if party.role:
        for fault in label_value_faults(party.role):
            yield Problem(f"{path}.role", fault)
    yield from _resources(f"{path}.resources", party)
    for index, limit in enumerate(party.bandwidth_limits or ()):
        yield from _bandwidth(f"{path}.bandwidthLimits[{index}]", limit)


def _resources(path: str, party: JobParty) -> Iterator[Problem]:
    if party.resources is None:
        return
    requests, limits = party.resources.requests or {}, party.resources.limits or {}
    wrong: set[tuple[str, str]] = set()
    for kind, amounts in (("requests", requests), ("limits", limits)):
        for name, amount in amounts.items():
            if problem := quantity_problem(amount):
                wrong.add((kind, name))
                yield Problem(f"{path}.{kind}.{name}", problem)
    for name, amount in requests.items():
        if name not in limits or not wrong.isdisjoint((("requests", name), ("limits", name))):
            continue
        asked, most = quantity.parse(amount), quantity.parse(limits[name])
        if asked > most:
            yield Problem(f"{path}.requests.{name}", f"{asked} is more than its limit {most}")


def _bandwidth_request(path: str, request: str) -> Iterator[Problem]:
    if request and (problem := bandwidth_problem(request)):
        yield Problem(path, problem)


def _bandwidth(path: str, limit: BandwidthLimit) -> Iterator[Problem]:
    yield from _name(f"{path}.destinationID", limit.destination_id)
    if not 0 < limit.limit_kbps <= _LARGEST_INTEGER:
        yield Problem(f"{path}.limitKBps", f"must be between 1 and {_LARGEST_INTEGER}")


def _graph(tasks: Sequence[TaskTemplate]) -> Iterator[Problem]:
    yield from _duplicates("alias", "alias", [task.alias for task in tasks])
    yield from _duplicates("taskID", "task id", [task.task_id for task in tasks])
    known = {task.alias for task in tasks}
    for index, task in enumerate(tasks):
        for other in task.dependencies or ():
            if other not in known:
                yield Problem(f"tasks[{index}].dependencies", f'there is no task with the alias "{other}"')
            elif other == task.alias:
                yield Problem(f"tasks[{index}].dependencies", f'"{other}" waits for itself')
    found = circle(tasks)
    if len(found) > 2:
        yield Problem("tasks", f"wait for each other in a circle: {' -> '.join(found)}")


def _duplicates(field: str, what: str, values: Sequence[str]) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for index, value in enumerate(values):
        if value and first.setdefault(value, index) != index:
            yield Problem(f"tasks[{index}].{field}", f'"{value}" is the {what} of tasks[{first[value]}] too')
