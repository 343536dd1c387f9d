"""What a person can do to a job from the page: commands and approvals, by the same rules as on the command line."""

from __future__ import annotations

from coterie.http.errors import HttpProblem
from coterie.kube.api.errors import ApiError, Conflict
from coterie.kube.api.meta import Object
from coterie.kube.client.client import Client, retry_on_conflict
from coterie.kuscia.api.jobs.commands import (
    approval_patch,
    approvers,
    command_error,
    command_patch,
    initiates,
    own_parties,
)
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS, JobPhase, JobStage, KusciaJob

_STAGES = {stage.lower(): stage for stage in (JobStage.STOP, JobStage.SUSPEND, JobStage.RESTART, JobStage.CANCEL)}
ACTIONS = (*_STAGES, "approve", "reject")


async def act(client: Client, name: str, action: str, reason: str = "") -> Object:
    """What was done. HttpProblem: it makes no sense now, or the person may not. `reason`: of a rejection; the initiator sees it."""
    if action not in ACTIONS:
        raise HttpProblem(404, "NotFound", f"a job can be asked to {', '.join(ACTIONS)}")

    async def attempt() -> None:
        if action in _STAGES:
            await _command(client, name, _STAGES[action])
        else:
            await _answer(client, name, reject=action == "reject", reason=reason)

    try:
        await retry_on_conflict(attempt)
    except Conflict as problem:
        raise HttpProblem(409, "Conflict", f"job {name} changes too quickly; try again") from problem
    except ApiError as problem:
        raise HttpProblem(problem.code, problem.reason, problem.message) from problem
    return {"job": name, "action": action}


async def _command(client: Client, name: str, stage: JobStage) -> None:
    job = await _find(client, name)
    if why := command_error(job, stage):
        raise HttpProblem(409, "Conflict", why)
    patch, _ = command_patch(job, stage, next(iter(own_parties(job)), job.spec.initiator))
    await client.patch(KUSCIA_JOBS.as_dynamic, name, CROSS_DOMAIN, patch)


async def _answer(client: Client, name: str, *, reject: bool, reason: str) -> None:
    job = await _find(client, name)
    if job.status.phase != JobPhase.AWAITING_APPROVAL:
        raise HttpProblem(409, "Conflict", f"job {name} is {job.status.phase}; it waits for nobody's approval")
    parties = approvers(job)
    if initiates(job) or not parties:
        raise HttpProblem(409, "Conflict", f"job {name} was started here; it waits for the approval of its partners")
    patch = approval_patch(job, parties, reject=reject, reason=reason)
    await client.patch_status(KUSCIA_JOBS.as_dynamic, name, CROSS_DOMAIN, patch)


async def _find(client: Client, name: str) -> KusciaJob:
    return await client.get(KUSCIA_JOBS, name, CROSS_DOMAIN)
