"""Asks all parties of a job what would become of it: for the command line, KusciaAPI and the console."""

from __future__ import annotations

import contextlib

import msgspec

from coterie.base.clock import Clock
from coterie.base.ids import suffix
from coterie.kube.api.errors import ApiError, Forbidden, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.client.client import Client
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api.domain_ownership import is_own
from coterie.kuscia.api.job_plans import LONGEST_WAIT, plan_request, plan_request_fault, wait_of
from coterie.kuscia.api.types.domain import DOMAINS
from coterie.kuscia.api.types.job_plan import (
    JOB_PLAN_REQUESTS,
    JobPlanRequestSpec,
    JobPlanRequestStatus,
    PlanPhase,
)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.5
_MARGIN = 5.0
"""Seconds for our own control plane, besides those for the parties."""


class PlanNotAsked(Exception):
    """Nobody could be asked; the message is a sentence."""


async def ask_plan(client: Client, job: Object, *, wait_seconds: int = 0, clock: Clock) -> JobPlanRequestStatus:
    """`job`: a KusciaJob as it would be created. Raises PlanNotAsked. Nothing of it is left afterwards."""
    if not 0 <= wait_seconds <= LONGEST_WAIT:
        raise PlanNotAsked(f"a dry run waits for at most {LONGEST_WAIT} seconds")
    meta = job["metadata"]
    name = str(meta.get("name") or f"{meta.get('generateName', '')}xxxxx")
    body = plan_request(f"plan-{suffix(10)}", name, job.get("spec") or {}, wait_seconds=wait_seconds)
    try:
        spec = msgspec.convert(body["spec"], JobPlanRequestSpec)
    except msgspec.ValidationError as problem:
        raise PlanNotAsked(f"the job cannot be read: {problem}") from problem
    if fault := plan_request_fault(spec) or await _initiator_fault(client, spec.initiator):
        raise PlanNotAsked(fault)
    namespace = spec.initiator
    made = await client.create(JOB_PLAN_REQUESTS.as_dynamic, body, namespace)
    try:
        return await _answered(client, made["metadata"]["name"], namespace, wait_of(spec) + _MARGIN, clock)
    finally:
        # Who cannot remove it leaves it to the controller, which does so after ten minutes.
        with contextlib.suppress(ApiError, TransportError):
            await client.delete(JOB_PLAN_REQUESTS, made["metadata"]["name"], namespace)


async def _initiator_fault(client: Client, initiator: str) -> str:
    """Only the control plane where a job would begin can ask."""
    try:
        known = await client.get(DOMAINS, initiator)
    except NotFound:
        return f'there is no domain "{initiator}"'
    except Forbidden:
        return ""  # whether it may ask there is for the server to say
    return "" if is_own(known) else f"{initiator} is a partner; ask at its own control plane"


async def _answered(client: Client, name: str, namespace: str, seconds: float, clock: Clock) -> JobPlanRequestStatus:
    until, pause = clock.monotonic() + seconds, _FIRST_PAUSE
    while clock.monotonic() < until:
        await clock.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE)
        try:
            found = await client.get(JOB_PLAN_REQUESTS, name, namespace)
        except NotFound as problem:
            raise PlanNotAsked("the request was removed before it was answered") from problem
        if found.status.phase == PlanPhase.COMPLETE:
            if not found.status.answers:
                raise PlanNotAsked(found.status.message)
            return found.status
    raise PlanNotAsked(f"the control plane did not answer within {seconds:g} s; is its controller running?")
