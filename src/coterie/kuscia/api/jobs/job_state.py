"""A job as people follow it. Pure: from API objects to plain data.

Everything that shows a job (the command line, the console) reads a `JobState`; everything that changes one sends what
`coterie.kuscia.api.jobs.commands` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from coterie.kube.api.meta import Object, find_condition, is_true
from coterie.kube.api.pod_state import parse_time
from coterie.kuscia.api import labels
from coterie.kuscia.api.engine_versions import engine_named
from coterie.kuscia.api.jobs.commands import NEW
from coterie.kuscia.api.jobs.conditions import STALLED, SUCCESS
from coterie.kuscia.api.jobs.graph import in_order, progress
from coterie.kuscia.api.jobs.phases import JOB_ENDED, TASK_ENDED
from coterie.kuscia.api.types.job import (
    CROSS_DOMAIN,
    KUSCIA_JOBS,
    JobPhase,
    KusciaJob,
    KusciaTask,
    TaskPhase,
    TaskTemplate,
)
from coterie.kuscia.api.waiting import waiting_since

WAITING, NOT_RUN = "Waiting", "Not run"
"""Phases of tasks that do not exist: not yet, and never."""
TIMED_OUT = 124
_COUNTED = frozenset((TaskPhase.RUNNING, TaskPhase.SUCCEEDED))
_EXIT = {JobPhase.SUCCEEDED: 0, JobPhase.FAILED: 1, JobPhase.APPROVAL_REJECT: 3, JobPhase.CANCELLED: 3}


@dataclass(frozen=True, slots=True)
class PartyState:
    domain: str
    role: str = ""
    phase: str = WAITING
    message: str = ""

    @property
    def name(self) -> str:
        return f"{self.domain}({self.role})" if self.role else self.domain


@dataclass(frozen=True, slots=True)
class TaskState:
    alias: str
    phase: str
    parties: tuple[PartyState, ...]
    id: str = ""
    after: tuple[str, ...] = ()
    progress: float = 0.0
    message: str = ""
    tolerable: bool = False
    began: float | None = None
    ended: float | None = None
    waiting_since: str = ""
    """RFC 3339; stands in the message too."""
    stalled: bool = False
    failed_attempts: int = 0
    layer: int = 0
    """The longest way to it from a task that waits for nothing."""

    @property
    def over(self) -> bool:
        return self.phase in TASK_ENDED or self.phase == NOT_RUN


@dataclass(frozen=True, slots=True)
class JobState:
    name: str
    phase: str
    initiator: str
    tasks: tuple[TaskState, ...]
    """Each after those it waits for."""
    message: str = ""
    waiting_since: str = ""
    approvals: tuple[tuple[str, str], ...] = ()
    created: float | None = None
    ended: float | None = None

    @property
    def over(self) -> bool:
        return self.phase in JOB_ENDED

    @property
    def exit_code(self) -> int:
        return _EXIT[JobPhase(self.phase)]

    @property
    def done(self) -> int:
        return sum(task.phase == TaskPhase.SUCCEEDED for task in self.tasks)

    @property
    def progress(self) -> float:
        """As everything that shows a job shows it: the mean of its tasks, all of it when it succeeded."""
        return job_progress(self.phase, ((task.phase, task.progress) for task in self.tasks))

    @property
    def parties(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(party.domain for task in self.tasks for party in task.parties))


def job_progress(phase: str, tasks: Iterable[tuple[str, float]]) -> float:
    """From the phase of a job, and the phases of its tasks with what they report. What a failed task did counts for nothing."""
    if phase == JobPhase.SUCCEEDED:
        return 1.0  # also one whose tolerable tasks failed
    shares = [task_progress(each, reported) if each in _COUNTED else 0.0 for each, reported in tasks]
    return sum(shares) / len(shares) if shares else 0.0


def task_progress(phase: str, reported: float) -> float:
    return 1.0 if phase == TaskPhase.SUCCEEDED else min(1.0, max(0.0, reported))


def progress_text(share: float) -> str:
    """Whole per cent; what is not all done is never shown as 100."""
    return f"{int(share * 100 + 1e-9)}%"


def job_state(job: KusciaJob, tasks: Iterable[KusciaTask]) -> JobState:
    """`tasks`: of any job; those that are not of this one are left out."""
    found = {
        task.metadata.name: task
        for task in tasks
        if (task.metadata.labels or {}).get(labels.KUSCIA_JOB_UID) == job.metadata.uid and not task.metadata.deleting
    }
    phases = {
        template.alias: found[template.task_id].status.phase for template in job.spec.tasks if template.task_id in found
    }
    phase = job.status.phase or NEW
    blocked = {task.alias for task in progress(job.spec.tasks, phases).blocked}
    layers = _layers(job.spec.tasks)
    states = []
    for template in sorted(job.spec.tasks, key=lambda each: layers.get(each.alias, len(layers))):
        task = found.get(template.task_id)
        absent = NOT_RUN if template.alias in blocked or phase in JOB_ENDED else WAITING
        state = _task_state(template, task, absent, layers.get(template.alias, 0))
        failed = len((job.status.task_attempts or {}).get(template.task_id, ()))
        states.append(replace(state, failed_attempts=failed) if failed else state)
    return JobState(
        name=job.metadata.name,
        phase=phase,
        initiator=job.spec.initiator,
        tasks=tuple(states),
        message=job.status.message or job.status.reason,
        waiting_since=waiting_since(job.status.conditions) or "",
        approvals=tuple(sorted((job.status.approve_status or {}).items())),
        created=_seconds(job.metadata.creation_timestamp),
        ended=_seconds(job.status.completion_time),
    )


def _task_state(template: TaskTemplate, task: KusciaTask | None, absent: str, layer: int) -> TaskState:
    after = template.dependencies or ()
    if task is None:
        idle = tuple(PartyState(party.domain_id, party.role, absent) for party in template.parties)
        return TaskState(
            template.alias, absent, idle, template.task_id, after, tolerable=template.tolerable, layer=layer
        )
    status = task.status
    party_statuses = {(party.domain_id, party.role): party for party in status.party_task_status or ()}
    parties = tuple(
        PartyState(each.domain_id, each.role, known.phase or str(TaskPhase.PENDING), known.message)
        if (known := party_statuses.get((each.domain_id, each.role))) is not None
        else PartyState(each.domain_id, each.role, str(TaskPhase.PENDING))
        for each in template.parties
    )
    return TaskState(
        alias=template.alias,
        phase=status.phase or str(TaskPhase.PENDING),
        parties=parties,
        id=template.task_id,
        after=after,
        progress=task_progress(status.phase, status.progress),
        message=status.message or status.reason,
        waiting_since=waiting_since(status.conditions) or "",
        stalled=is_true(status.conditions, STALLED) and status.phase == TaskPhase.RUNNING,
        tolerable=template.tolerable,
        began=_seconds(status.start_time) or _seconds(task.metadata.creation_timestamp),
        ended=_ended(task),
        layer=layer,
    )


def _ended(task: KusciaTask) -> float | None:
    """The outcome's time; `completionTime` is later, when everything is cleaned up."""
    outcome = find_condition(task.status.conditions, SUCCESS)
    if task.status.phase not in TASK_ENDED:
        return None
    return _seconds(outcome.last_transition_time if outcome is not None else task.status.completion_time)


def _layers(tasks: Iterable[TaskTemplate]) -> dict[str, int]:
    layers: dict[str, int] = {}
    for task in in_order(tuple(tasks)):
        layers[task.alias] = max((layers[other] + 1 for other in task.dependencies or ()), default=0)
    return layers


def _seconds(text: str | None) -> float | None:
    found = parse_time(text)
    return found.timestamp() if found is not None else None


# Making a job from a few words.


def engine_job(
    name: str,
    engine: str,
    parties: Iterable[str],
    initiator: str,
    *,
    task_input: str = "{}",
    roles: Mapping[str, str] | None = None,
    resources: Mapping[str, Mapping[str, str]] | None = None,
) -> Object:
    """`engine`: an AppImage, or an engine with a range of versions. `resources`: by party. What is asked for is also the limit, as KusciaAPI has it."""
    named = []
    for party in parties:
        entry: Object = {"domainID": party}
        if role := (roles or {}).get(party):
            entry["role"] = role
        if amounts := (resources or {}).get(party):
            entry["resources"] = {"requests": dict(amounts), "limits": dict(amounts)}
        named.append(entry)
    task = {"alias": engine_named(engine), "appImage": engine, "taskInputConfig": task_input, "parties": named}
    return {
        "apiVersion": KUSCIA_JOBS.resource.api_version,
        "kind": KUSCIA_JOBS.resource.kind,
        "metadata": {"name": name, "namespace": CROSS_DOMAIN},
        "spec": {"initiator": initiator, "tasks": [task]},
    }


def with_schedule(job: Object, schedule: Object) -> Object:
    """The job with these fields in the scheduleConfig of every task."""
    if not schedule:
        return job
    tasks = [
        {**task, "scheduleConfig": {**(task.get("scheduleConfig") or {}), **schedule}}
        for task in job["spec"].get("tasks") or ()
    ]
    return {**job, "spec": {**job["spec"], "tasks": tasks}}
