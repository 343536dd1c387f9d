"""A job composed in the page: made as `coterie job run --engine` makes it, checked, tried by a dry run, and only then sent."""

from __future__ import annotations

import secrets
from typing import Final

import msgspec

from coterie.base.clock import Clock
from coterie.http.errors import HttpProblem
from coterie.kube.api.errors import ApiError
from coterie.kube.api.meta import Object
from coterie.kube.client.client import Client
from coterie.kuscia.api.domain_ownership import is_own
from coterie.kuscia.api.jobs.job_state import engine_job
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS
from coterie.kuscia.control import job_checks
from coterie.kuscia.control.job_planning import PlanNotAsked, ask_plan

LONGEST: Final = 256 << 10
_MOST_PARTIES: Final = 32


class ComposedParty(msgspec.Struct, frozen=True):
    domain: str
    role: str = ""
    cpu: str = ""
    memory: str = ""


class ComposedJob(msgspec.Struct, frozen=True):
    engine: str
    parties: list[ComposedParty]
    name: str = ""
    initiator: str = ""
    input: str = ""


async def composed(client: Client, asked: ComposedJob, *, create: bool) -> Object:
    """The object, and what is wrong with it; `create`: sent when nothing is."""
    job, problems = await _checked(client, asked)
    if not problems:
        problems = await _dry_run(client, job)
    if create and not problems:
        made = await client.create(KUSCIA_JOBS.as_dynamic, job, CROSS_DOMAIN)
        return {"job": made, "problems": [], "created": True}
    return {"job": job, "problems": problems, "created": False}


async def planned(client: Client, asked: ComposedJob, clock: Clock) -> Object:
    """What all parties say would become of it; they are not asked about a job that cannot run as it is."""
    job, problems = await _checked(client, asked)
    if problems:
        return {"problems": problems, "plan": None}
    try:
        found = await ask_plan(client, job, clock=clock)
    except PlanNotAsked as problem:
        return {"problems": [str(problem)], "plan": None}
    return {"problems": [], "plan": msgspec.to_builtins(found)}


async def _checked(client: Client, asked: ComposedJob) -> tuple[Object, list[str]]:
    if not asked.engine or not asked.parties:
        raise HttpProblem(400, "BadRequest", "a job has an engine and parties")
    if len(asked.parties) > _MOST_PARTIES:
        raise HttpProblem(400, "BadRequest", f"a job has at most {_MOST_PARTIES} parties")
    known = await job_checks.visible_domains(client) or {}
    names = [each.domain for each in asked.parties]
    initiator = asked.initiator or next((name for name in names if is_own(known.get(name))), names[0])
    job = job_of(asked, initiator)
    return job, [str(each) for each in (await job_checks.check_job(client, job)).problems]


async def _dry_run(client: Client, job: Object) -> list[str]:
    try:
        await client.create(KUSCIA_JOBS.as_dynamic, job, CROSS_DOMAIN, dry_run=True)
    except ApiError as problem:
        return [problem.message]
    return []


def job_of(asked: ComposedJob, initiator: str) -> Object:
    name = asked.name or f"{asked.engine}-{secrets.token_hex(3)}"
    amounts = {each.domain: {key: value for key, value in (("cpu", each.cpu), ("memory", each.memory)) if value} for each in asked.parties}  # fmt: skip
    return engine_job(
        name,
        asked.engine,
        [each.domain for each in asked.parties],
        initiator,
        task_input=asked.input.strip() or "{}",
        roles={each.domain: each.role for each in asked.parties if each.role},
        resources=amounts,
    )
