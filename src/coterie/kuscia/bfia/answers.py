"""What a partner's request means for the objects here, and what it is answered. Pure.

request       who may        what it does                                  again
------------  -------------  --------------------------------------------  -------------------------------------
job/create    its initiator  a KusciaJob with the tasks of our parties     400 "Job already exists"
job/start     its initiator  command Start                                 nothing, 200
job/stop      its initiator  command Stop; 200 if it has ended already     nothing, 200
task/start    its initiator  the task gets its id, so that it is created   nothing, 200; another id: 400
task/stop     its initiator  the task fails, reason TaskIsStopped          nothing, 200
job/status_all, task/poll    parties of the job; nothing changes

A job that the caller does not take part in, or that is not a BFIA job, is answered as if it were not there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from coterie.kube.api.meta import Condition, Object, set_condition
from coterie.kuscia.api import labels
from coterie.kuscia.api.jobs.commands import command_patch
from coterie.kuscia.api.jobs.phases import JOB_FINAL, TASK_ENDED
from coterie.kuscia.api.jobs.validation import LONGEST_TASK_ID
from coterie.kuscia.api.partner_requests import PartnerRequestError, job_taken
from coterie.kuscia.api.types.domain import BFIA_PROTOCOL
from coterie.kuscia.api.types.job import (
    CROSS_DOMAIN,
    JobPhase,
    JobStage,
    KusciaJob,
    KusciaJobSpec,
    KusciaTask,
    KusciaTaskStatus,
    TaskPhase,
)
from coterie.kuscia.bfia import mapping, wire
from coterie.kuscia.bfia.wire import (
    BfiaRefused,
    CommonAnswer,
    CreateJobRequest,
    JobRequest,
    Plain,
    PollTaskRequest,
    StartTaskRequest,
    StopTaskRequest,
)

JOB_EXISTS = "Job already exists"
TASK_IS_STOPPED = "TaskIsStopped"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,251}[a-z0-9])?")
_LONGEST_JOB = 63
_ENDED = frozenset((*JOB_FINAL, JobPhase.FAILED))


@dataclass(frozen=True, slots=True)
class ServerView:
    """What is here of the job and the task that a request names."""

    caller: str
    """The domain that the gateway authenticated."""
    own: Collection[str]
    """Domains of this control plane."""
    now: str
    job: KusciaJob | None = None
    task: KusciaTask | None = None
    job_tasks: Mapping[str, KusciaTask] = field(default_factory=dict)
    """By name, those of the job."""


@dataclass(frozen=True, slots=True)
class ServerDecision:
    """At most one change, which is made before the request is answered."""

    data: Plain = field(default_factory=dict)
    create: Object | None = None
    job_patch: Object | None = None
    task_status: KusciaTaskStatus | None = None

    @property
    def answer(self) -> CommonAnswer:
        return CommonAnswer(data=self.data)


@dataclass(frozen=True, slots=True)
class NamedObjects:
    """What a request is about."""

    job: str = ""
    task: str = ""


Message = CreateJobRequest | JobRequest | StartTaskRequest | StopTaskRequest | PollTaskRequest


def parse(path: str, params: Mapping[str, list[str]], body: bytes) -> Message:
    """`path`: behind wire.SCHEDULE. Raises BfiaRefused."""
    if path == wire.JOB_STATUS:
        return JobRequest(job_id=(params.get("job_id") or [""])[0])
    kind = _KINDS.get(path)
    if kind is None:
        raise BfiaRefused(f"there is no request {path}")
    return wire.read(body, kind)


_KINDS: dict[str, type[Message]] = {
    wire.JOB_CREATE: CreateJobRequest,
    wire.JOB_START: JobRequest,
    wire.JOB_STOP: JobRequest,
    wire.TASK_START: StartTaskRequest,
    wire.TASK_STOP: StopTaskRequest,
    wire.TASK_POLL: PollTaskRequest,
}


def named_objects(message: Message) -> NamedObjects:
    """Raises BfiaRefused when a name cannot be one."""
    job = getattr(message, "job_id", "")
    task = getattr(message, "task_id", "")
    if not isinstance(message, StopTaskRequest | PollTaskRequest) and (
        len(job) > _LONGEST_JOB or not _NAME.fullmatch(job)
    ):
        raise BfiaRefused(f"job_id: at most {_LONGEST_JOB} lower-case letters, digits and '-'")
    if isinstance(message, StartTaskRequest | StopTaskRequest | PollTaskRequest) and (
        len(task) > LONGEST_TASK_ID or not _NAME.fullmatch(task)
    ):
        raise BfiaRefused(f"task_id: at most {LONGEST_TASK_ID} lower-case letters, digits and '-'")
    return NamedObjects(job, task)


def decide(path: str, message: Message, view: ServerView) -> ServerDecision:
    """Raises BfiaRefused."""
    return _DECISIONS[path](message, view)


def claimed_caller(node_id: str, caller: str) -> None:
    """X-Node-Id must name whom the gateway authenticated, where it is sent. Raises BfiaRefused."""
    if node_id and node_id != caller:
        raise BfiaRefused(f"X-Node-Id names {node_id}, but the request comes from {caller}")


# Jobs.


def _create(message: Message, view: ServerView) -> ServerDecision:
    assert isinstance(message, CreateJobRequest)
    initiator = message.config.initiator.node_id
    if initiator != view.caller:
        raise BfiaRefused(f"config.initiator names {initiator}, but the request comes from {view.caller}")
    if view.job is not None:
        raise BfiaRefused(JOB_EXISTS)
    try:
        spec = job_taken(msgspec.to_builtins(own_part(mapping.job_spec(message), view.own)))
    except PartnerRequestError as problem:
        raise BfiaRefused(str(problem)) from problem
    own = [party for party in spec.party_domains if party in view.own]
    return ServerDecision(
        data={"status": wire.PENDING},
        create={
            "metadata": {
                "name": message.job_id,
                "namespace": CROSS_DOMAIN,
                "labels": {
                    labels.KUSCIA_INTERCONN_PROTOCOL_TYPE: BFIA_PROTOCOL,
                    labels.KUSCIA_JOB_STAGE: str(JobStage.CREATE),
                    labels.KUSCIA_JOB_STAGE_TRIGGER: initiator,
                    labels.KUSCIA_JOB_STAGE_VERSION: "1",
                },
                "annotations": {
                    labels.KUSCIA_INITIATOR: initiator,
                    labels.KUSCIA_SELF_AS_INITIATOR: "false",
                    labels.KUSCIA_INTERCONN_SELF_PARTIES: "_".join(own),
                },
            },
            "spec": msgspec.to_builtins(spec),
        },
    )


def own_part(spec: KusciaJobSpec, own: Collection[str]) -> KusciaJobSpec:
    """The tasks in which we take part: the initiator says when each begins, and never speaks of others to us. Raises BfiaRefused."""
    kept = tuple(task for task in spec.tasks if any(party.domain_id in own for party in task.parties))
    if not kept:
        raise BfiaRefused("no node of this control plane takes part in the job")
    names = {task.alias for task in kept}
    tasks = tuple(
        replace(task, dependencies=tuple(name for name in task.dependencies or () if name in names) or None)
        for task in kept
    )
    return replace(spec, tasks=tasks)


def _start(message: Message, view: ServerView) -> ServerDecision:
    job = _initiated(view)
    if job.status.phase in _ENDED:
        raise BfiaRefused(f"job {job.metadata.name} is {job.status.phase} and cannot be started: {job.status.message}")
    stage = _stage(job)
    if stage == JobStage.START:
        return ServerDecision()
    if stage not in ("", JobStage.CREATE):
        raise BfiaRefused(f"job {job.metadata.name} has the command {stage} and cannot be started")
    return ServerDecision(job_patch=command_patch(job, JobStage.START, view.caller)[0])


def _stop(message: Message, view: ServerView) -> ServerDecision:
    job = _initiated(view)
    if job.status.phase in _ENDED or _stage(job) in (JobStage.STOP, JobStage.CANCEL):
        return ServerDecision()
    return ServerDecision(job_patch=command_patch(job, JobStage.STOP, view.caller)[0])


def _status_all(message: Message, view: ServerView) -> ServerDecision:
    job = _shared(view)
    return ServerDecision(data={"status": mapping.job_states(job, view.job_tasks)})


# Tasks.


def _start_task(message: Message, view: ServerView) -> ServerDecision:
    assert isinstance(message, StartTaskRequest)
    job = _initiated(view)
    name = job.metadata.name
    if job.status.phase in _ENDED or _stage(job) in (JobStage.STOP, JobStage.CANCEL):
        raise BfiaRefused(f"job {name} is {job.status.phase or 'ending'}: no task of it can be started")
    template = next((task for task in job.spec.tasks if task.alias == message.task_name), None)
    if template is None:
        raise BfiaRefused(f"job {name} has no task {message.task_name} with a party of ours")
    if template.task_id == message.task_id:
        return ServerDecision()
    if template.task_id:
        raise BfiaRefused(f"task {message.task_name} has the id {template.task_id} already")
    if view.task is not None or any(task.task_id == message.task_id for task in job.spec.tasks):
        raise BfiaRefused(f"the task id {message.task_id} is used already")
    tasks = [replace(task, task_id=message.task_id) if task is template else task for task in job.spec.tasks]
    return ServerDecision(
        job_patch={
            "metadata": {"resourceVersion": job.metadata.resource_version},
            "spec": {"tasks": msgspec.to_builtins(tasks)},
        }
    )


def _stop_task(message: Message, view: ServerView) -> ServerDecision:
    job = _initiated(view)
    task = _task_of(job, view)
    if task.status.phase in TASK_ENDED:
        return ServerDecision()
    words = f"{view.caller} stopped the task"
    stopped = Condition(type="Success", status="False", reason=TASK_IS_STOPPED, message=words)
    return ServerDecision(
        task_status=replace(
            task.status,
            phase=TaskPhase.FAILED,
            reason=TASK_IS_STOPPED,
            message=words,
            conditions=set_condition(task.status.conditions, stopped, view.now),
        )
    )


def _poll(message: Message, view: ServerView) -> ServerDecision:
    assert isinstance(message, PollTaskRequest)
    job = _shared(view)
    if view.task is None and all(task.task_id != message.task_id for task in job.spec.tasks):
        raise BfiaRefused(f"there is no task {message.task_id}")
    if view.task is None and job.status.phase in _ENDED:
        return ServerDecision(data={"status": wire.FAILURE})
    return ServerDecision(data={"status": mapping.party_state(view.task, message.role)})


def _task_of(job: KusciaJob, view: ServerView) -> KusciaTask:
    if view.task is None:
        raise BfiaRefused("there is no such task")
    return view.task


# Who may.


def is_bfia(job: KusciaJob) -> bool:
    return (job.metadata.labels or {}).get(labels.KUSCIA_INTERCONN_PROTOCOL_TYPE) == BFIA_PROTOCOL


def _shared(view: ServerView) -> KusciaJob:
    job = view.job
    if job is None or not is_bfia(job) or view.caller not in (job.spec.initiator, *job.spec.party_domains):
        raise BfiaRefused("there is no such job")
    return job


def _initiated(view: ServerView) -> KusciaJob:
    job = _shared(view)
    if job.spec.initiator != view.caller:
        raise BfiaRefused(f"only {job.spec.initiator}, which began the job, may say this")
    return job


def _stage(job: KusciaJob) -> str:
    return (job.metadata.labels or {}).get(labels.KUSCIA_JOB_STAGE, "")


_DECISIONS: dict[str, Callable[[Message, ServerView], ServerDecision]] = {
    wire.JOB_CREATE: _create,
    wire.JOB_START: _start,
    wire.JOB_STOP: _stop,
    wire.JOB_STATUS: _status_all,
    wire.TASK_START: _start_task,
    wire.TASK_STOP: _stop_task,
    wire.TASK_POLL: _poll,
}
