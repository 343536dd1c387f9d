"""What is next for a JobPlanRequest. Pure.

outgoing   Pending ──every party answered, or time is up──> Complete ──10 minutes──> removed (whoever asked removes it before)
incoming   answered at once ──its control plane takes the answer over, or 10 minutes──> removed
mirror     ──its request is complete or gone──> removed
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from coterie.kuscia.api.job_plans import KEPT_SECONDS, answers_from, completed, seconds_since, wait_of
from coterie.kuscia.api.types.domain import ClusterDomainRoute
from coterie.kuscia.api.types.job import KusciaJobSpec
from coterie.kuscia.api.types.job_plan import (
    JobPlanRequest,
    JobPlanRequestStatus,
    PlanAnswer,
    PlanPhase,
)


@dataclass(frozen=True, slots=True)
class PlanStep:
    status: JobPlanRequestStatus
    send: tuple[str, ...] = ()
    """Control planes of partners that are to be asked."""
    after: float | None = None
    delete: bool = False
    withdraw: bool = False
    """The mirrors are not needed any more."""


def is_complete(request: JobPlanRequest | None) -> bool:
    return request is not None and request.status.phase == PlanPhase.COMPLETE


def outgoing(
    request: JobPlanRequest,
    parties: Sequence[str],
    job: KusciaJobSpec | None,
    own: Mapping[str, PlanAnswer],
    partners: Mapping[str, tuple[str, ...]],
    mirrors: Mapping[str, JobPlanRequest],
    unready: Mapping[str, str],
    now: datetime,
) -> PlanStep:
    """`own`: answers of our own domains; `partners`: domains by control plane; `mirrors`: by control plane; `unready`: by partner,
    sentences about routes."""
    age = seconds_since(request, now)
    if request.status.phase == PlanPhase.COMPLETE:
        left = KEPT_SECONDS - age
        return PlanStep(request.status, withdraw=True, delete=left <= 0, after=max(left, 0.0) + 0.1)
    answers: dict[str, PlanAnswer] = dict(own)
    open_: list[str] = []
    for master, domains in partners.items():
        mirror = mirrors.get(master)
        if mirror is not None and mirror.status.phase == PlanPhase.COMPLETE:
            answers.update({each.domain: each for each in answers_from(mirror.status, domains)})
        else:
            open_.append(master)
    wait = wait_of(request.spec)
    if open_ and age < wait:
        pending = (
            answers.get(each) or PlanAnswer(domain=each, phase=str(PlanPhase.PENDING), message="asked")
            for each in parties
        )
        status = JobPlanRequestStatus(phase=str(PlanPhase.PENDING), answers=tuple(pending) or None)
        missing = tuple(each for each in open_ if each not in mirrors)
        return PlanStep(status, send=missing, after=wait - age + 0.05)
    for master in open_:
        for domain in partners[master]:
            answers[domain] = _silent(domain, master, unready, wait)
    unknown = (each for each in parties if each not in answers)
    answers.update(
        {
            each: PlanAnswer(domain=each, phase=str(PlanPhase.NO_ANSWER), message="no answer: there is no such domain")
            for each in unknown
        }
    )
    return PlanStep(completed((answers[each] for each in parties), job), withdraw=True, after=KEPT_SECONDS)


def _silent(domain: str, master: str, unready: Mapping[str, str], wait: int) -> PlanAnswer:
    why = unready.get(domain) or unready.get(master)
    if not why:
        why = "its control plane is down, does not follow ours, or does not know dry runs"
    return PlanAnswer(domain=domain, phase=str(PlanPhase.NO_ANSWER), message=f"no answer within {wait} s: {why}")


def unready_routes(routes: Iterable[ClusterDomainRoute], ours: str) -> dict[str, str]:
    """By partner, one sentence."""
    out: dict[str, str] = {}
    for route in routes:
        ends = (route.spec.source, route.spec.destination)
        if ours not in ends or (route.ready is not None and route.ready.status == "True"):
            continue
        peer = ends[1] if ends[0] == ours else ends[0]
        out.setdefault(peer, f"the route from {ends[0]} to {ends[1]} is not ready")
    return out


def incoming(request: JobPlanRequest, now: datetime) -> PlanStep:
    left = KEPT_SECONDS - seconds_since(request, now)
    return PlanStep(request.status, delete=left <= 0, after=max(left, 0.0) + 0.1)


def mirror(request: JobPlanRequest, original: JobPlanRequest | None, now: datetime) -> PlanStep:
    left = KEPT_SECONDS - seconds_since(request, now)
    gone = original is None or original.metadata.deleting or is_complete(original)
    return PlanStep(request.status, delete=gone or left <= 0, after=max(left, 0.0) + 0.1)
