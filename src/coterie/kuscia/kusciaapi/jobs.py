"""The service of jobs. What a job looks like is in `job_messages`, how many watch at once in `job_watch`, how many query in `known_jobs`.

A domain that asks through the gateway may touch jobs that it initiates or takes part in, and begin such as it initiates.
Commands are labels on the job (`coterie.kuscia.api.jobs.commands`); the controllers of all parties carry them out.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from coterie.base.clock import now_rfc3339
from coterie.base.log import logger
from coterie.kube.api.errors import AlreadyExists, Conflict, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.client.client import retry_on_conflict
from coterie.kuscia.api.jobs.commands import (
    approval_patch,
    approvers,
    command_error,
    command_patch,
    initiates,
    own_parties,
)
from coterie.kuscia.api.jobs.conditions import VALIDATE_FAILED
from coterie.kuscia.api.jobs.phases import JOB_NEW
from coterie.kuscia.api.types.job import (
    ACCEPTED,
    CROSS_DOMAIN,
    KUSCIA_JOBS,
    REJECTED,
    ApprovalRecord,
    JobPhase,
    JobStage,
    KusciaJob,
)
from coterie.kuscia.kusciaapi import bandwidth, job_messages
from coterie.kuscia.kusciaapi.authorization import ApiCaller
from coterie.kuscia.kusciaapi.codes import ApiErrorCode, CallRefused, invalid
from coterie.kuscia.kusciaapi.job_messages import named
from coterie.kuscia.kusciaapi.job_watch import LONGEST
from coterie.kuscia.kusciaapi.known_jobs import batch_answer
from coterie.kuscia.kusciaapi.messages import Shared
from coterie.kuscia.kusciaapi.operations import ApiOperation, Mode, OnLite, OperationContext, Work

log = logger("kusciaapi.jobs")

_ACCEPT, _REJECT = 1, 2


async def create(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    job = job_messages.job_object(request)
    if not caller.is_one_of(request.initiator):
        raise CallRefused(ApiErrorCode.PERMISSION, f"domain {caller.domain} may only create jobs that it initiates")
    if here.mode is Mode.AUTONOMY and request.initiator != here.domain:
        raise invalid("initiator", f"must be {here.domain}, the domain of this node")
    await bandwidth.refuse_unmet(here, job)
    try:
        made = await here.client.create(KUSCIA_JOBS.as_dynamic, job)
    except AlreadyExists as problem:
        raise CallRefused(
            ApiErrorCode.CREATE_JOB, f"there is a job {request.job_id} already; choose another job_id"
        ) from problem
    here.known_jobs.wrote(request.job_id, made["metadata"]["resourceVersion"])
    return {"data": {"job_id": request.job_id}}


async def query(here: OperationContext, caller: ApiCaller, request: Any) -> Shared:
    name = named("job_id", request.job_id)
    known = await here.known_jobs.get(here.client, here.clock, name)
    if known is None or not caller.is_one_of(*known.domains):
        raise _none(name, ApiErrorCode.QUERY_JOB)
    return known.answer


async def batch_query(here: OperationContext, caller: ApiCaller, request: Any) -> Shared:
    """Which jobs cannot be told of is said of each of them."""
    if not request.job_ids:
        raise invalid("job_ids", "name at least one")
    for place, name in enumerate(request.job_ids):
        named(f"job_ids[{place}]", name)
    wanted = list(dict.fromkeys(request.job_ids))
    known = await here.known_jobs.get_all(here.client, here.clock, wanted)
    seen = {name: job for name, job in known.items() if caller.is_one_of(*job.domains)}
    if missing := [name for name in wanted if name not in seen]:
        why = f"there is no job {missing[0]}" if len(missing) == 1 else f"there are no jobs {', '.join(missing)}"
        each = [(ApiErrorCode.QUERY_JOB_STATUS, f"there is no job {name}") for name in missing]
        raise CallRefused(ApiErrorCode.QUERY_JOB_STATUS, why, each)
    return batch_answer([seen[name] for name in request.job_ids])


async def delete(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    name = named("job_id", request.job_id)
    job = await _touchable(here, caller, name, ApiErrorCode.DELETE_JOB, "delete")
    try:
        await here.client.delete(KUSCIA_JOBS, name, CROSS_DOMAIN, uid=job.metadata.uid, propagation="Background")
    except (NotFound, Conflict) as problem:
        raise _none(name, ApiErrorCode.DELETE_JOB) from problem
    await here.known_jobs.removed(here.client, name)
    return {"data": {"job_id": name}}


def _command(stage: JobStage, failure: ApiErrorCode, not_now: ApiErrorCode) -> Work:
    """`not_now`: when the job is in a phase in which the command does nothing."""

    async def give(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
        name = named("job_id", request.job_id)

        async def attempt() -> None:
            job = await _touchable(here, caller, name, failure, stage.lower())
            if job_messages.needs_no(job, stage):
                return
            if why := command_error(job, stage):
                never = job.status.reason == VALIDATE_FAILED
                raise CallRefused(failure if never else not_now, why)
            patch, _ = command_patch(job, stage, _trigger(here, caller, job))
            written = await here.client.patch(KUSCIA_JOBS, name, CROSS_DOMAIN, patch)
            here.known_jobs.wrote(name, written.metadata.resource_version)

        await _write_with_retry(attempt, name, failure)
        log.info("Command", job=name, stage=str(stage), caller=caller.domain or "operator", reason=request.reason)
        return {"data": {"job_id": name}}

    return give


async def approve(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    name = named("job_id", request.job_id)
    if request.result not in (_ACCEPT, _REJECT):
        raise invalid("result", "must be APPROVE_RESULT_ACCEPT or APPROVE_RESULT_REJECT")
    reject = request.result == _REJECT

    async def attempt() -> None:
        job = await _touchable(here, caller, name, ApiErrorCode.APPROVE_JOB, "approve")
        if job.status.phase in JOB_NEW:
            raise CallRefused(
                ApiErrorCode.APPROVE_JOB, f"job {name} is new; wait until it is {JobPhase.AWAITING_APPROVAL}"
            )
        parties = _voters(caller, job)
        approvals = job.status.approve_status or {}
        if all(approvals.get(party) == (REJECTED if reject else ACCEPTED) for party in parties):
            return
        if job.status.phase != JobPhase.AWAITING_APPROVAL:
            why = f"job {name} is {job.status.phase}; it waits for nobody's approval"
            raise CallRefused(ApiErrorCode.APPROVE_JOB, why)
        record = ApprovalRecord(by=f"{caller.domain or 'operator'}, by KusciaAPI", at=now_rfc3339(here.clock))
        patch = approval_patch(job, parties, reject=reject, reason=request.reason, record=record)
        written = await here.client.patch_status(KUSCIA_JOBS, name, CROSS_DOMAIN, patch)
        here.known_jobs.wrote(name, written.metadata.resource_version)

    await _write_with_retry(attempt, name, ApiErrorCode.APPROVE_JOB)
    log.info("Answer", job=name, reject=reject, caller=caller.domain or "operator", reason=request.reason)
    return {"data": {"job_id": name}}


async def watch(here: OperationContext, caller: ApiCaller, request: Any) -> AsyncGenerator[Any, None]:
    if not 0 <= request.timeout_seconds <= LONGEST:
        raise invalid("timeout_seconds", f"must be between 0 and {LONGEST}")
    events = here.jobs.watch(here.client, here.clock, caller.domain, request.timeout_seconds)
    try:
        async for event in events:
            yield event
    finally:
        await events.aclose()


# What they share.


async def _get_job(here: OperationContext, name: str, code: ApiErrorCode) -> KusciaJob:
    try:
        return await here.client.get(KUSCIA_JOBS, name, CROSS_DOMAIN)
    except NotFound as problem:
        raise _none(name, code) from problem


async def _touchable(here: OperationContext, caller: ApiCaller, name: str, code: ApiErrorCode, verb: str) -> KusciaJob:
    job = await _get_job(here, name, code)
    caller.must_be_one_of(*job_messages.domains_of(job), to=f"{verb} job {name}: it takes no part in it")
    return job


def _none(name: str, code: ApiErrorCode) -> CallRefused:
    return CallRefused(code, f"there is no job {name}")


async def _write_with_retry(attempt: Callable[[], Awaitable[None]], name: str, code: ApiErrorCode) -> None:
    try:
        await retry_on_conflict(attempt)
    except Conflict as problem:
        raise CallRefused(code, f"job {name} changes too quickly; try again") from problem
    except NotFound as problem:
        raise _none(name, code) from problem


def _trigger(here: OperationContext, caller: ApiCaller, job: KusciaJob) -> str:
    """In whose name a command is given."""
    if not caller.everything:
        return caller.domain
    own = own_parties(job)
    return here.domain if here.domain in own else next(iter(own), job.spec.initiator)


def _voters(caller: ApiCaller, job: KusciaJob) -> tuple[str, ...]:
    """The parties for which this caller may answer."""
    name, parties = job.metadata.name, approvers(job)
    if initiates(job) or not parties:
        why = f"job {name} was started here, by {job.spec.initiator}; the others approve it at theirs"
        raise CallRefused(ApiErrorCode.APPROVE_JOB, why)
    if caller.everything:
        return parties
    caller.must_be_one_of(*parties, to=f"approve job {name}: it is not asked")
    return (caller.domain,)


def _operation(method: str, path: str, failure: ApiErrorCode, work: Work | None = None, **more: Any) -> ApiOperation:
    where = f"/api/v1/job/{path}"
    return ApiOperation("JobService", method, where, failure, work, for_domains=True, on_lite=OnLite.FORWARD, **more)


def _stage(stage: JobStage, failure: ApiErrorCode, not_now: ApiErrorCode) -> ApiOperation:
    return _operation(f"{stage}Job", stage.lower(), failure, _command(stage, failure, not_now))


OPERATIONS = (
    _operation("CreateJob", "create", ApiErrorCode.CREATE_JOB, create),
    _operation("QueryJob", "query", ApiErrorCode.QUERY_JOB, query),
    _operation("BatchQueryJobStatus", "status/batchQuery", ApiErrorCode.QUERY_JOB_STATUS, batch_query),
    _stage(JobStage.STOP, ApiErrorCode.STOP_JOB, ApiErrorCode.STOP_JOB),
    _stage(JobStage.RESTART, ApiErrorCode.RESTART_JOB, ApiErrorCode.RESTART_NOT_ENDED),
    _stage(JobStage.SUSPEND, ApiErrorCode.SUSPEND_JOB, ApiErrorCode.SUSPEND_NOT_RUNNING),
    _stage(JobStage.CANCEL, ApiErrorCode.CANCEL_JOB, ApiErrorCode.CANCEL_JOB),
    _operation("DeleteJob", "delete", ApiErrorCode.DELETE_JOB, delete),
    _operation("ApproveJob", "approve", ApiErrorCode.APPROVE_JOB, approve),
    _operation("WatchJob", "watch", ApiErrorCode.QUERY_JOB, stream=watch, response_name="WatchJobEventResponse"),
)
