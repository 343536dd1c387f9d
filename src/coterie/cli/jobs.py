"""A job as people follow it, and the commands they give to it. Pure: from API objects to plain data and to patches.

Everything that shows a job (`jobview`, `jobgraph`, `jobtime`) reads a `JobState`; everything that changes one sends what
`order` and `answer` say. Whether a command makes sense now is said before it is sent: the server would take it in silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coterie.api import labels
from coterie.api.meta import Object, find_condition
from coterie.api.podstate import moment
from coterie.api.types.kuscia_job import (
    ACCEPTED,
    CROSS_DOMAIN,
    KUSCIA_JOBS,
    REJECTED,
    JobPhase,
    KusciaJob,
    KusciaTask,
    Stage,
    TaskPhase,
    TaskTemplate,
)
from coterie.controllers.kusciajob.graph import in_order, progress
from coterie.controllers.kusciajob.plan import STAGE_HANDLED, VALIDATE_FAILED

WAITING, NOT_RUN = "Waiting", "Not run"
"""Phases of tasks that do not exist: not yet, and never."""
NEW = "New"
"""The phase of a job that no controller has looked at."""
TIMED_OUT = 124
_EXIT = {JobPhase.SUCCEEDED: 0, JobPhase.FAILED: 1, JobPhase.APPROVAL_REJECT: 3, JobPhase.CANCELLED: 3}
_FINAL = (JobPhase.SUCCEEDED, JobPhase.APPROVAL_REJECT, JobPhase.CANCELLED)


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
    layer: int = 0
    """The longest way to it from a task that waits for nothing."""

    @property
    def over(self) -> bool:
        return self.phase in (TaskPhase.SUCCEEDED, TaskPhase.FAILED, NOT_RUN)


@dataclass(frozen=True, slots=True)
class JobState:
    name: str
    phase: str
    initiator: str
    tasks: tuple[TaskState, ...]
    """Each after those it waits for."""
    message: str = ""
    approvals: tuple[tuple[str, str], ...] = ()
    created: float | None = None
    ended: float | None = None

    @property
    def over(self) -> bool:
        return self.phase in _EXIT

    @property
    def exit_code(self) -> int:
        return _EXIT[JobPhase(self.phase)]

    @property
    def done(self) -> int:
        return sum(task.phase == TaskPhase.SUCCEEDED for task in self.tasks)

    @property
    def progress(self) -> float:
        told = [1.0 if task.phase == TaskPhase.SUCCEEDED else task.progress for task in self.tasks]
        return sum(told) / len(told) if told else 0.0

    @property
    def parties(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(party.domain for task in self.tasks for party in task.parties))


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
        absent = NOT_RUN if template.alias in blocked or phase in _EXIT else WAITING
        states.append(_task_state(template, task, absent, layers.get(template.alias, 0)))
    return JobState(
        name=job.metadata.name,
        phase=phase,
        initiator=job.spec.initiator,
        tasks=tuple(states),
        message=job.status.message or job.status.reason,
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
    told = {(party.domain_id, party.role): party for party in status.party_task_status or ()}
    parties = tuple(
        PartyState(each.domain_id, each.role, known.phase or str(TaskPhase.PENDING), known.message)
        if (known := told.get((each.domain_id, each.role))) is not None
        else PartyState(each.domain_id, each.role, str(TaskPhase.PENDING))
        for each in template.parties
    )
    done = status.phase == TaskPhase.SUCCEEDED
    return TaskState(
        alias=template.alias,
        phase=status.phase or str(TaskPhase.PENDING),
        parties=parties,
        id=template.task_id,
        after=after,
        progress=1.0 if done else min(1.0, max(0.0, status.progress)),
        message=status.message or status.reason,
        tolerable=template.tolerable,
        began=_seconds(status.start_time) or _seconds(task.metadata.creation_timestamp),
        ended=_ended(task),
        layer=layer,
    )


def _ended(task: KusciaTask) -> float | None:
    """The outcome's time; `completionTime` is later, when everything is cleaned up."""
    outcome = find_condition(task.status.conditions, "Success")
    if task.status.phase not in (TaskPhase.SUCCEEDED, TaskPhase.FAILED):
        return None
    return _seconds(outcome.last_transition_time if outcome is not None else task.status.completion_time)


def _layers(tasks: Iterable[TaskTemplate]) -> dict[str, int]:
    layers: dict[str, int] = {}
    for task in in_order(tuple(tasks)):
        layers[task.alias] = max((layers[other] + 1 for other in task.dependencies or ()), default=0)
    return layers


def _seconds(text: str | None) -> float | None:
    found = moment(text)
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
    """`resources`: by party. What is asked for is also the limit, as KusciaAPI has it."""
    named = []
    for party in parties:
        entry: Object = {"domainID": party}
        if role := (roles or {}).get(party):
            entry["role"] = role
        if amounts := (resources or {}).get(party):
            entry["resources"] = {"requests": dict(amounts), "limits": dict(amounts)}
        named.append(entry)
    task = {"alias": engine, "appImage": engine, "taskInputConfig": task_input, "parties": named}
    return {
        "apiVersion": KUSCIA_JOBS.resource.api_version,
        "kind": KUSCIA_JOBS.resource.kind,
        "metadata": {"name": name, "namespace": CROSS_DOMAIN},
        "spec": {"initiator": initiator, "tasks": [task]},
    }


# Commands.


def own_parties(job: KusciaJob) -> tuple[str, ...]:
    """The parties of this control plane, the initiator first; all of them until the controller has written it down."""
    marked = (job.metadata.annotations or {}).get(labels.KUSCIA_INTERCONN_SELF_PARTIES, "")
    named = tuple(dict.fromkeys(party.domain_id for task in job.spec.tasks for party in task.parties))
    own = tuple(party for party in named if party in marked.split("_")) if marked else named
    return tuple(sorted(own, key=lambda party: party != job.spec.initiator))


def initiates(job: KusciaJob) -> bool:
    return (job.metadata.annotations or {}).get(labels.KUSCIA_SELF_AS_INITIATOR, "true") == "true"


def objection(job: KusciaJob, stage: Stage) -> str:
    """Why a command would do nothing to this job now; empty when it would do something."""
    name, phase = job.metadata.name, job.status.phase
    if stage is Stage.RESTART:
        if phase in (JobPhase.FAILED, JobPhase.SUSPENDED):
            if job.status.reason == VALIDATE_FAILED:
                return f"job {name} was never valid ({job.status.message}); correct it and run it under a new name"
            return ""
        return f"job {name} is {phase or NEW}, and only a job that is Failed or Suspended can be restarted"
    if phase in _FINAL:
        return f"job {name} is {phase}, which is the end; there is nothing to {stage.lower()}"
    if stage is Stage.SUSPEND and phase != JobPhase.RUNNING:
        return f"job {name} is {phase or NEW}, and only a job that is Running can be suspended"
    if stage is Stage.STOP and phase == JobPhase.FAILED:
        return f"job {name} has Failed already; there is nothing to stop"
    return ""


def order(job: KusciaJob, stage: Stage, trigger: str) -> tuple[Object, int]:
    """A merge patch that gives the command, and its version. It meets the job as we saw it, or nothing."""
    version = stage_version(job) + 1
    told = {
        labels.KUSCIA_JOB_STAGE: str(stage),
        labels.KUSCIA_JOB_STAGE_TRIGGER: trigger,
        labels.KUSCIA_JOB_STAGE_VERSION: str(version),
    }
    return {"metadata": {"labels": told, "resourceVersion": job.metadata.resource_version}}, version


def stage_version(job: KusciaJob) -> int:
    text = (job.metadata.labels or {}).get(labels.KUSCIA_JOB_STAGE_VERSION, "")
    return int(text) if text.isdecimal() else 0


def carried_out(job: KusciaJob, version: int) -> bool:
    """Our controller writes the last command it carried out as `<stage>/<version>`."""
    handled = find_condition(job.status.conditions, STAGE_HANDLED)
    number = handled.message.rpartition("/")[2] if handled is not None else ""
    return number.isdecimal() and int(number) >= version


def approvers(job: KusciaJob) -> tuple[str, ...]:
    """The parties of this control plane whose word is asked for."""
    return tuple(party for party in own_parties(job) if party != job.spec.initiator)


def answer(job: KusciaJob, parties: Iterable[str], *, reject: bool) -> Object:
    """A patch of the status with the word of these parties."""
    said = dict.fromkeys(parties, REJECTED if reject else ACCEPTED)
    return {"metadata": {"resourceVersion": job.metadata.resource_version}, "status": {"approveStatus": said}}


def unanswered(job: KusciaJob) -> tuple[str, ...]:
    """Parties whose approval the job waits for."""
    told = job.status.approve_status or {}
    named = dict.fromkeys(party.domain_id for task in job.spec.tasks for party in task.parties)
    return tuple(party for party in named if party != job.spec.initiator and told.get(party) != ACCEPTED)
