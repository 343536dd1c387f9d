"""What is sent to BFIA partners next, and what their answers mean. Pure.

initiator      job is              to each BFIA partner of any task        answer 200                    400
-------------  ------------------  --------------------------------------  ----------------------------  -------------------
               waits for parties   job/create                              created and accepted          the job fails
               Running             job/start, where it is created          started                       the job fails
               ended badly, goes   job/stop, where it was created          stopped                       it has none: done
               task: reserving     task/start, where the job is started    its reservation is Reserved   its part failed
               task: runs          task/poll each role, every 5 s          the party's phase             lost, after a minute
               task: failed        task/stop, where its part still runs    its part failed               the same

participant    our reservation is Reserved: it becomes Schedulable, because the initiator starts a task only when it is ready itself
               after job/start: job/status_all of the initiator, every 15 s: how its part of our tasks is

No answer, or 500, is tried again. After `LOST_SECONDS` of silence the partner is lost: its part of the task has failed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from coterie.kube.api.meta import find_condition
from coterie.kuscia.api import labels
from coterie.kuscia.api.jobs.phases import JOB_UNSUCCESSFUL, TASK_ENDED
from coterie.kuscia.api.types.job import (
    ACCEPTED,
    JobPhase,
    JobStage,
    KusciaJob,
    KusciaJobStatus,
    KusciaTask,
    PartyTaskStatus,
    TaskPhase,
)
from coterie.kuscia.api.types.task_resource import ReservationPhase
from coterie.kuscia.bfia import mapping, wire
from coterie.kuscia.bfia.answers import JOB_EXISTS
from coterie.kuscia.bfia.client import BfiaAnswer
from coterie.kuscia.bfia.wire import JobRequest, PollTaskRequest, StartTaskRequest, StopTaskRequest

POLL_SECONDS, STATUS_SECONDS = 5.0, 15.0
AGAIN_SECONDS = 5.0
LOST_SECONDS = 300.0
"""Of silence, after which a partner's part has failed, and a job that it never confirmed."""
UNKNOWN_SECONDS = 60.0
"""For which a partner may say that it does not know a task that it started."""
CREATE_BEGUN = "JobCreateInitialized"
_CREATED, _STARTED = JobStage.CREATE.done, JobStage.START.done
_PHASES = {
    wire.PENDING: TaskPhase.PENDING,
    wire.RUNNING: TaskPhase.RUNNING,
    wire.SUCCESS: TaskPhase.SUCCEEDED,
    wire.FAILURE: TaskPhase.FAILED,
}
_RESERVING = ("", ReservationPhase.PENDING, ReservationPhase.RESERVING)
_HELD = (ReservationPhase.RESERVED, ReservationPhase.SCHEDULABLE)


@dataclass(frozen=True, slots=True)
class BfiaCall:
    partner: str
    path: str
    message: object
    role: str = ""


# The initiator's jobs.


def job_calls(job: KusciaJob, partners: Iterable[str]) -> tuple[BfiaCall, ...]:
    """`partners`: those that speak BFIA, of all tasks. Raises BfiaRefused when the job cannot be told in BFIA's terms."""
    stages, phase, name = job.status.stage_status or {}, job.status.phase, job.metadata.name
    ending = phase in JOB_UNSUCCESSFUL or (job.metadata.deleting and phase != JobPhase.SUCCEEDED)
    calls: list[BfiaCall] = []
    for partner in partners:
        stage = stages.get(partner)
        if ending:
            if stage in (_CREATED, _STARTED, JobStage.START.failed):
                calls.append(BfiaCall(partner, wire.JOB_STOP, JobRequest(job_id=name)))
        elif phase in (JobPhase.AWAITING_APPROVAL, JobPhase.PENDING) and stage is None:
            calls.append(BfiaCall(partner, wire.JOB_CREATE, mapping.create_request(job)))
        elif phase == JobPhase.RUNNING and stage == _CREATED:
            calls.append(BfiaCall(partner, wire.JOB_START, JobRequest(job_id=name)))
    return tuple(calls)


def create_begun(job: KusciaJob) -> bool:
    """Something was perhaps sent: from then on a partner that has the job has it from us."""
    return find_condition(job.status.conditions, CREATE_BEGUN) is not None


def job_answered(
    job: KusciaJob, status: KusciaJobStatus, call: BfiaCall, answer: BfiaAnswer, waited: float, *, tried: bool
) -> KusciaJobStatus | None:
    """The status afterwards; None: try again. `waited`: seconds since the first attempt. `tried`: it was perhaps sent before."""
    stage = {wire.JOB_CREATE: JobStage.CREATE, wire.JOB_START: JobStage.START}.get(call.path, JobStage.STOP)
    exists = answer.refused and stage is JobStage.CREATE and answer.message.strip() == JOB_EXISTS
    done = answer.ok or (exists and (tried or answer.repeated))
    if not done and not answer.refused and waited < LOST_SECONDS:
        return None
    stages = {**(status.stage_status or {}), call.partner: stage.done if done else stage.failed}
    status = replace(status, stage_status=stages)
    if done and stage is JobStage.CREATE:
        return replace(status, approve_status={**(status.approve_status or {}), call.partner: ACCEPTED})
    if done or stage is JobStage.STOP:
        return status
    key, words = job.metadata.name, answer.message or f"code {answer.code}"
    known = {each.domain_id: each for each in (status.party_task_create_status or {}).get(key, ())}
    known[call.partner] = PartyTaskStatus(domain_id=call.partner, phase=str(TaskPhase.FAILED), message=words)
    return replace(
        status, party_task_create_status={**(status.party_task_create_status or {}), key: tuple(known.values())}
    )


# The initiator's tasks.


def task_calls(
    job: KusciaJob, task: KusciaTask, partners: Collection[str], reservations: Mapping[str, str]
) -> tuple[BfiaCall, ...]:
    """`reservations`: phases of the partners' TaskResources, by domain. Polls are among them, whenever they are due."""
    name, stages = task.metadata.name, job.status.stage_status or {}
    alias = (task.metadata.annotations or {}).get(labels.KUSCIA_TASK_ALIAS, "")
    ended = {(each.domain_id, each.role) for each in task.status.party_task_status or () if each.phase in TASK_ENDED}
    calls: dict[tuple[str, str, str], BfiaCall] = {}
    for party in task.spec.parties:
        partner = party.domain_id
        if partner not in partners or (partner, party.role) in ended:
            continue
        phase = reservations.get(partner)
        if task.status.phase in TASK_ENDED:
            if phase in _HELD:
                calls[partner, wire.TASK_STOP, ""] = BfiaCall(
                    partner, wire.TASK_STOP, StopTaskRequest(task_id=name), party.role
                )
        elif phase in _RESERVING and stages.get(partner) == _STARTED:
            begun = StartTaskRequest(task_id=name, job_id=job.metadata.name, task_name=alias)
            calls[partner, wire.TASK_START, ""] = BfiaCall(partner, wire.TASK_START, begun, party.role)
        elif phase in _HELD:
            asked = PollTaskRequest(task_id=name, role=party.role)
            calls[partner, wire.TASK_POLL, party.role] = BfiaCall(partner, wire.TASK_POLL, asked, party.role)
    return tuple(calls.values())


def party_after_start(call: BfiaCall, answer: BfiaAnswer) -> PartyTaskStatus | None:
    """What a refused task/start says; None: it was not refused."""
    if answer.ok or not answer.refused:
        return None
    words = f"{call.partner} does not start the task: {answer.message or answer.code}"
    return PartyTaskStatus(domain_id=call.partner, role=call.role, phase=str(TaskPhase.FAILED), message=words)


def party_after_poll(call: BfiaCall, answer: BfiaAnswer, silent: float) -> PartyTaskStatus | None:
    """`silent`: seconds since the partner last said how its part is. None: nothing new."""
    state = answer.data.get("status") if answer.ok else None
    if isinstance(state, str) and state in _PHASES:
        words = f"{call.partner} says that its part failed" if state == wire.FAILURE else ""
        return PartyTaskStatus(domain_id=call.partner, role=call.role, phase=str(_PHASES[state]), message=words)
    words = answer.message or f"code {answer.code}"
    if silent >= (UNKNOWN_SECONDS if answer.refused else LOST_SECONDS):
        words = f"{call.partner} has not said for {silent:.0f} seconds how its part is: {words}"
        return PartyTaskStatus(domain_id=call.partner, role=call.role, phase=str(TaskPhase.FAILED), message=words)
    return None


def party_after_stop(call: BfiaCall, answer: BfiaAnswer, waited: float) -> PartyTaskStatus | None:
    """None: try again."""
    if answer.ok or answer.refused or waited >= LOST_SECONDS:
        return PartyTaskStatus(
            domain_id=call.partner, role=call.role, phase=str(TaskPhase.FAILED), message="stopped by the initiator"
        )
    return None


# The participant.


def asks_status(job: KusciaJob) -> bool:
    """The initiator started the job, and it has not ended."""
    stage = (job.metadata.labels or {}).get(labels.KUSCIA_JOB_STAGE, "")
    return stage == JobStage.START and job.status.phase == JobPhase.RUNNING


def others_after_status(
    job: KusciaJob, tasks: Mapping[str, KusciaTask], own: Collection[str], answer: BfiaAnswer, silent: float
) -> dict[str, tuple[PartyTaskStatus, ...]]:
    """By task, how the parties of others are. `tasks`: of the job, by name. `silent`: seconds since the initiator last answered."""
    states = answer.data.get("status") if answer.ok else None
    found: dict[str, tuple[PartyTaskStatus, ...]] = {}
    for name, task in tasks.items():
        if isinstance(states, dict):
            state = states.get(name)
            if not isinstance(state, str) or state not in _PHASES:
                continue
            phase = _PHASES[state]
            words = f"{job.spec.initiator} says that the task failed" if state == wire.FAILURE else ""
        elif silent >= LOST_SECONDS and task.status.phase not in TASK_ENDED:
            phase = TaskPhase.FAILED
            words = f"{job.spec.initiator} has not answered for {silent:.0f} seconds: {answer.message}"
        else:
            continue
        found[name] = tuple(
            PartyTaskStatus(domain_id=party.domain_id, role=party.role, phase=str(phase), message=words)
            for party in task.spec.parties
            if party.domain_id not in own
        )
    return found


def with_parties(
    known: tuple[PartyTaskStatus, ...] | None, updates: Iterable[PartyTaskStatus]
) -> tuple[PartyTaskStatus, ...] | None:
    """Who has ended stays so."""
    new = {(each.domain_id, each.role): each for each in updates}
    out = [each if each.phase in TASK_ENDED else new.pop((each.domain_id, each.role), each) for each in known or ()]
    there = {(each.domain_id, each.role) for each in out}
    out += [each for key, each in new.items() if key not in there]
    return tuple(out) or None
