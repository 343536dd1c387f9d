"""What may be asked in a dry run, what is taken of a partner's answer, and what all answers mean together. Pure.

A plan is a statement about this moment, made from objects that are only read: nothing is reserved or counted, so a job that is sent a
moment later may still meet something else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec
from msgspec.structs import replace

from coterie.base.clock import parse_rfc3339
from coterie.kube.api.meta import Object
from coterie.kube.api.names import dns_label_faults
from coterie.kuscia.api.domain_ownership import is_partner, master_of
from coterie.kuscia.api.engine_versions import MOST_OFFERS, EngineChoice, agreed_engines
from coterie.kuscia.api.job_statements import OfferedEngine, PartyStatement, TaskStatement
from coterie.kuscia.api.jobs.validation import job_problems
from coterie.kuscia.api.log_query import printable
from coterie.kuscia.api.types.domain import Domain
from coterie.kuscia.api.types.job import KusciaJobSpec
from coterie.kuscia.api.types.job_plan import (
    JobOutlook,
    JobPlanRequest,
    JobPlanRequestSpec,
    JobPlanRequestStatus,
    PartyPlan,
    PlanAnswer,
    PlanDetail,
    PlannedApproval,
    PlannedEngine,
    PlannedLink,
    PlannedPlacement,
    PlannedTable,
    PlanPhase,
)
from coterie.kuscia.api.types.partner_policy import PartnerPolicySpec

MOST_BYTES: Final = 256 << 10
"""Of the job that is asked about, as JSON."""
DEFAULT_WAIT: Final = 10
LONGEST_WAIT: Final = 60
KEPT_SECONDS: Final = 600
"""After which every request is removed, answered or not, wherever it is."""
MOST_PER_HOUR: Final = 60
"""Requests of one partner's control plane that are answered."""
MOST_REFUSALS_PER_HOUR: Final = 60
"""Further ones that are refused with a sentence; those after them get no answer."""
MOST_ROWS: Final = 512
"""Tables, engines, placements or links of one party's answer."""
_LONGEST_TEXT: Final = 500
FROM: Final = "coterie.io/plan-request-from"
"""Annotation of an incoming request: control plane of the asker, and uid of what it was made from."""


# What may be asked.


def plan_request_fault(spec: JobPlanRequestSpec) -> str:
    """Why nobody can answer it, as a sentence; empty when somebody can."""
    if dns_label_faults(spec.initiator):
        return f"initiator: {printable(spec.initiator[:64])!r} is no name"
    if not 0 <= spec.wait_seconds <= LONGEST_WAIT:
        return f"waitSeconds: {spec.wait_seconds} is not between 0 and {LONGEST_WAIT}"
    try:
        size = len(msgspec.json.encode(spec.job))
    except (RecursionError, TypeError, ValueError):
        return "job: it cannot be read"
    if size > MOST_BYTES:
        return f"job: it has {size} bytes, and a dry run is answered for at most {MOST_BYTES}"
    try:
        job = msgspec.convert(spec.job, KusciaJobSpec)
    except (msgspec.ValidationError, RecursionError) as problem:
        return f"job: it cannot be read: {printable(str(problem))[:_LONGEST_TEXT]}"
    if job.initiator != spec.initiator:
        return f"job: its initiator is not {spec.initiator}"
    wrong = job_problems(spec.job_name, job)
    return f"job: {printable(str(wrong[0]))[:_LONGEST_TEXT]}" if wrong else ""


def wait_of(spec: JobPlanRequestSpec) -> int:
    return min(spec.wait_seconds or DEFAULT_WAIT, LONGEST_WAIT)


def seconds_since(request: JobPlanRequest, now: datetime) -> float:
    """How old it is."""
    try:
        made = parse_rfc3339(request.metadata.creation_timestamp or "")
    except ValueError:
        return 0.0
    return (now - made) / timedelta(seconds=1)


def by_control_plane(parties: Iterable[str], domains: Mapping[str, Domain]) -> dict[str, tuple[str, ...]]:
    """Partners among the parties, by the domain of the control plane that hosts them."""
    out: dict[str, tuple[str, ...]] = {}
    for party in parties:
        if is_partner(domain := domains.get(party)):
            master = master_of(party, domain)
            out[master] = (*out.get(master, ()), party)
    return out


def detail_of(policy: PartnerPolicySpec | None) -> PlanDetail:
    """How much a partner is told; of a word that nobody knows, nothing."""
    try:
        return PlanDetail((policy.dry_run if policy is not None else "") or PlanDetail.SUMMARY)
    except ValueError:
        return PlanDetail.NONE


# Objects.


def plan_request(name: str, job_name: str, job: Object, *, wait_seconds: int = 0) -> Object:
    """What somebody makes who asks. `job`: the spec of a KusciaJob."""
    initiator = str(job.get("initiator", ""))
    spec: Object = {"initiator": initiator, "jobName": job_name, "job": job}
    if wait_seconds:
        spec["waitSeconds"] = wait_seconds
    return {"metadata": {"name": name, "namespace": initiator}, "spec": spec}


def mirror_of(request: JobPlanRequest, control_plane: str) -> Object:
    """What a partner reads."""
    return {
        "metadata": {"name": request.metadata.name, "namespace": control_plane},
        "spec": msgspec.to_builtins(request.spec),
    }


def incoming_plan_request(
    name: str, namespace: str, spec: JobPlanRequestSpec, control_plane: str, origin_uid: str
) -> Object:
    """The partner's own object, which its controller answers."""
    return {
        "metadata": {"name": name, "namespace": namespace, "annotations": {FROM: f"{control_plane}/{origin_uid}"}},
        "spec": msgspec.to_builtins(spec),
    }


def origin_of_plan(request: JobPlanRequest) -> tuple[str, str]:
    """Control plane and uid; empty texts for what was made here."""
    control_plane, _, uid = (request.metadata.annotations or {}).get(FROM, "").partition("/")
    return control_plane, uid


# Answers.


def refusal(domains: Iterable[str], sentence: str) -> JobPlanRequestStatus:
    answers = tuple(PlanAnswer(domain=each, phase=str(PlanPhase.REFUSED), message=sentence) for each in domains)
    return JobPlanRequestStatus(phase=str(PlanPhase.COMPLETE), message=sentence, answers=answers or None)


def completed(answers: Iterable[PlanAnswer], job: KusciaJobSpec | None = None) -> JobPlanRequestStatus:
    """`job`: all its parties are there, so that it can be seen which versions of engines they would agree on."""
    every = tuple(answers)
    if job is not None:
        every = with_agreed_engines(job, every)
    outlook = overall(every)
    return JobPlanRequestStatus(
        phase=str(PlanPhase.COMPLETE), outlook=str(outlook), message=summary(outlook, every), answers=every or None
    )


def with_agreed_engines(job: KusciaJobSpec, answers: Sequence[PlanAnswer]) -> tuple[PlanAnswer, ...]:
    """As the job's parties would choose; where they find nothing in common the job fails for all that take part in the task."""
    statements = {
        each.domain: PartyStatement(
            tasks={row.task: TaskStatement(engines=row.offers) for row in each.plan.engines or () if row.offers}
        )
        for each in answers
        if each.plan is not None
    }
    choices = agreed_engines(job, statements)
    return tuple(_with_engines(each, choices) for each in answers)


def _with_engines(answer: PlanAnswer, choices: Mapping[str, EngineChoice]) -> PlanAnswer:
    plan = answer.plan
    if plan is None or not plan.engines:
        return answer
    rows = []
    for row in plan.engines:
        choice = choices.get(row.task, EngineChoice())
        if choice.problem and row.offers:
            rows.append(replace(row, problem=row.problem or choice.problem))
        elif (pin := choice.pins.get(answer.domain)) is not None and pin.version:
            rows.append(replace(row, version=pin.version, digest=pin.digest))
        else:
            rows.append(row)
    fails = any(row.problem for row in rows)
    outlook = str(JobOutlook.FAILS) if fails else plan.outlook
    return replace(answer, plan=replace(plan, engines=tuple(rows), outlook=outlook))


def overall(answers: Iterable[PlanAnswer]) -> JobOutlook:
    """The worst of all; somebody who fails outweighs somebody who says nothing."""
    order = (JobOutlook.FAILS, JobOutlook.UNKNOWN, JobOutlook.WAITS, JobOutlook.RUNS)
    found = {outlook_of(each) for each in answers}
    return next((each for each in order if each in found), JobOutlook.UNKNOWN)


def outlook_of(answer: PlanAnswer) -> JobOutlook:
    if answer.plan is None:
        return JobOutlook.UNKNOWN
    try:
        return JobOutlook(answer.plan.outlook)
    except ValueError:
        return JobOutlook.UNKNOWN


def summary(outlook: JobOutlook, answers: Sequence[PlanAnswer]) -> str:
    those = [each.domain for each in answers if outlook_of(each) is outlook]
    match outlook:
        case JobOutlook.RUNS:
            return "the job would run"
        case JobOutlook.WAITS:
            return f"the job would wait for {', '.join(those)}"
        case JobOutlook.FAILS:
            return f"the job would not run: see {', '.join(those)}"
    silent = [each.domain for each in answers if outlook_of(each) is outlook and each.plan is None]
    if silent:
        return f"nobody knows whether the job would run: no plan of {', '.join(silent)}"
    return f"nobody knows whether the job would run: {', '.join(those)} {'tells' if len(those) == 1 else 'tell'} too little"


def answers_from(status: JobPlanRequestStatus, domains: Collection[str]) -> tuple[PlanAnswer, ...]:
    """What a partner's control plane wrote, as far as it is about its own domains; made harmless and cut to size."""
    out: dict[str, PlanAnswer] = {}
    for each in (status.answers or ())[:MOST_ROWS]:
        if each.domain not in domains or each.domain in out:
            continue
        plan = bounded(each.plan, each.domain) if each.plan is not None else None
        phase = PlanPhase.ANSWERED if plan is not None else PlanPhase.REFUSED
        out[each.domain] = PlanAnswer(domain=each.domain, phase=str(phase), message=_text(each.message), plan=plan)
    message = _text(status.message) or "its control plane gave no answer for this domain"
    missing = (PlanAnswer(domain=each, phase=str(PlanPhase.REFUSED), message=message) for each in domains)
    return tuple(out.get(each.domain, each) for each in missing)


def bounded(plan: PartyPlan, domain: str, *, with_nodes: bool = False) -> PartyPlan:
    """Harmless on a terminal, and of a size that the schema takes. `with_nodes`: it is for the domain itself."""
    outlook = plan.outlook if plan.outlook in tuple(JobOutlook) else str(JobOutlook.UNKNOWN)
    approval = plan.approval
    if approval is not None:
        approval = PlannedApproval(
            verdict=_text(approval.verdict),
            by=_text(approval.by),
            rules=_texts(approval.rules),
            message=_text(approval.message),
        )
    tables = tuple(
        PlannedTable(
            task=_text(each.task),
            table=_text(each.table),
            columns=_texts(each.columns),
            all_columns=each.all_columns,
            grant=_text(each.grant),
            uses=each.uses,
            uses_left=each.uses_left,
            problem=_text(each.problem),
        )
        for each in (plan.tables or ())[:MOST_ROWS]
    )
    engines = tuple(
        PlannedEngine(
            task=_text(each.task),
            app_image=_text(each.app_image),
            version=_text(each.version),
            digest=_text(each.digest),
            offers=tuple(
                OfferedEngine(
                    version=_text(offer.version),
                    digest=_text(offer.digest),
                    speaks=_text(offer.speaks),
                    protocols=_texts((offer.protocols or ())[:MOST_OFFERS]),
                )
                for offer in (each.offers or ())[:MOST_OFFERS]
            )
            or None,
            problem=_text(each.problem),
        )
        for each in (plan.engines or ())[:MOST_ROWS]
    )
    placements = tuple(
        PlannedPlacement(
            task=_text(each.task),
            role=_text(each.role),
            pods=each.pods,
            fits=each.fits,
            nodes=_texts(each.nodes) if with_nodes else None,
            problem=_text(each.problem),
        )
        for each in (plan.placements or ())[:MOST_ROWS]
    )
    links = tuple(
        PlannedLink(
            peer=_text(each.peer),
            ready=each.ready,
            requested=_text(each.requested),
            capacity=_text(each.capacity),
            problem=_text(each.problem),
        )
        for each in (plan.links or ())[:MOST_ROWS]
    )
    return PartyPlan(
        domain=domain,
        outlook=outlook,
        detail=_text(plan.detail),
        approval=approval,
        tables=tables or None,
        engines=engines or None,
        placements=placements or None,
        links=links or None,
        notes=_texts(plan.notes),
    )


def _text(text: str) -> str:
    return printable(text[:_LONGEST_TEXT])


def _texts(texts: Collection[str] | None) -> tuple[str, ...] | None:
    return tuple(_text(each) for each in tuple(texts or ())[:MOST_ROWS]) or None
