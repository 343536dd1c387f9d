"""JobPlanService: what would become of a job, asked of all its parties (`docs/guide/jobs.md`). Ours."""

from __future__ import annotations

from typing import Any

from coterie.kube.api.meta import Object
from coterie.kuscia.api.job_plans import LONGEST_WAIT, outlook_of
from coterie.kuscia.api.types.job_plan import PartyPlan, PlanAnswer, PlannedEngine, PlannedTable
from coterie.kuscia.control.job_planning import PlanNotAsked, ask_plan
from coterie.kuscia.kusciaapi import job_messages
from coterie.kuscia.kusciaapi.authorization import ApiCaller
from coterie.kuscia.kusciaapi.codes import ApiErrorCode, CallRefused, invalid
from coterie.kuscia.kusciaapi.operations import ApiOperation, Mode, OnLite, OperationContext

_LONGEST_FORWARDED = 20
"""Seconds; a lite does not wait longer than 30 for its master."""


async def plan(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    job = job_messages.job_object(request)
    if not caller.is_one_of(request.initiator):
        raise CallRefused(ApiErrorCode.PERMISSION, f"domain {caller.domain} may only plan jobs that it initiates")
    if here.mode is Mode.AUTONOMY and request.initiator != here.domain:
        raise invalid("initiator", f"must be {here.domain}, the domain of this node")
    longest = LONGEST_WAIT if caller.everything else _LONGEST_FORWARDED
    if not 0 <= request.wait_seconds <= longest:
        raise invalid("wait_seconds", f"must be between 0 and {longest}")
    try:
        found = await ask_plan(here.client, job, wait_seconds=request.wait_seconds, clock=here.clock)
    except PlanNotAsked as problem:
        raise CallRefused(ApiErrorCode.PLAN_JOB, str(problem)) from problem
    parties = [_party(each) for each in found.answers or ()]
    return {"data": {"outlook": found.outlook, "message": found.message, "parties": parties}}


def _party(answer: PlanAnswer) -> Object:
    plan = answer.plan or PartyPlan(domain=answer.domain)
    out: Object = {
        "domain_id": answer.domain,
        "phase": answer.phase,
        "message": answer.message,
        "outlook": str(outlook_of(answer)),
        "detail": plan.detail,
        "tables": [_table(each) for each in plan.tables or ()],
        "engines": [_engine(each) for each in plan.engines or ()],
        "placements": [
            {
                "task": each.task,
                "role": each.role,
                "pods": each.pods,
                "fits": each.fits,
                "nodes": list(each.nodes or ()),
                "problem": each.problem,
            }
            for each in plan.placements or ()
        ],
        "links": [
            {
                "peer": each.peer,
                "ready": each.ready,
                "requested": each.requested,
                "capacity": each.capacity,
                "problem": each.problem,
            }
            for each in plan.links or ()
        ],
        "notes": list(plan.notes or ()),
    }
    if (given := plan.approval) is not None:
        out["approval"] = {
            "verdict": given.verdict,
            "by": given.by,
            "rules": list(given.rules or ()),
            "message": given.message,
        }
    return out


def _table(given: PlannedTable) -> Object:
    return {
        "task": given.task,
        "table": given.table,
        "columns": list(given.columns or ()),
        "all_columns": given.all_columns,
        "grant": given.grant,
        "uses": given.uses,
        "counted": given.uses_left is not None,
        "uses_left": given.uses_left or 0,
        "problem": given.problem,
    }


def _engine(given: PlannedEngine) -> Object:
    return {
        "task": given.task,
        "app_image": given.app_image,
        "version": given.version,
        "digest": given.digest,
        "offered_versions": [each.version for each in given.offers or () if each.version],
        "problem": given.problem,
    }


OPERATIONS = (
    ApiOperation(
        "JobPlanService",
        "PlanJob",
        "/api/v1/job/plan",
        ApiErrorCode.PLAN_JOB,
        plan,
        for_domains=True,
        on_lite=OnLite.FORWARD,
    ),
)
