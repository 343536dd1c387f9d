"""A dry run as people read it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from coterie.kuscia.api.job_plans import outlook_of
from coterie.kuscia.api.types.job_plan import (
    JobOutlook,
    JobPlanRequestStatus,
    PartyPlan,
    PlanAnswer,
    PlannedApproval,
    PlannedEngine,
    PlannedLink,
    PlannedPlacement,
    PlannedTable,
)

EXIT_CODES = {JobOutlook.RUNS: 0, JobOutlook.FAILS: 1, JobOutlook.WAITS: 3, JobOutlook.UNKNOWN: 3}
_WORDS = {
    JobOutlook.RUNS: "would run",
    JobOutlook.WAITS: "would wait",
    JobOutlook.FAILS: "would not run",
    JobOutlook.UNKNOWN: "unknown",
}
_WIDTH = 11


def plan_lines(status: JobPlanRequestStatus) -> list[str]:
    out: list[str] = []
    for answer in status.answers or ():
        out.append(f"{answer.domain}: {_WORDS[outlook_of(answer)]}{_mark(answer)}")
        out += [f"  {name:<{_WIDTH}} {text}".rstrip() for name, text in _rows(answer)]
        out.append("")
    message = status.message
    return [*out, message[:1].upper() + message[1:]]


def _mark(answer: PlanAnswer) -> str:
    return " (a summary, as its policy says)" if answer.plan is not None and answer.plan.detail == "summary" else ""


def _rows(answer: PlanAnswer) -> Iterator[tuple[str, str]]:
    plan = answer.plan
    if plan is None:
        yield "answer", answer.message or "none"
        return
    if plan.approval is not None:
        yield "approval", _approval(plan.approval)
    yield from (("table", _table(each)) for each in plan.tables or ())
    yield from (("engine", _engine(each)) for each in plan.engines or ())
    yield from (("placement", _placement(each, plan)) for each in plan.placements or ())
    yield from (("link", _link(each)) for each in plan.links or ())
    yield from (("note", each) for each in plan.notes or ())


def _approval(given: PlannedApproval) -> str:
    rules = f" ({', '.join(given.rules)})" if given.rules else ""
    why = f": {given.message}" if given.message else ""
    match given.verdict:
        case "":
            return "not needed"
        case "Allow":
            return f"approved by {'its policy' if given.by == 'policy' else 'its settings'}"
        case "Ask":
            return f"a person must approve it{rules}{why}"
    return f"refused by its policy{rules}{why}"


def _table(given: PlannedTable) -> str:
    columns = f" ({', '.join(given.columns)})" if given.columns else " (all columns)" if given.all_columns else ""
    text = f"{given.table}{columns}"
    if given.grant:
        left = f", {given.uses_left} left" if given.uses_left is not None else ""
        uses = "1 use" if given.uses == 1 else f"{given.uses} uses"
        text += f", grant {given.grant}: {uses}{left}"
    return f"{_of(given.task)}{text}{_problem(given.problem)}"


def _engine(given: PlannedEngine) -> str:
    name = f"{given.app_image} {given.version}".rstrip()
    return f"{_of(given.task)}{name}{_problem(given.problem)}"


def _placement(given: PlannedPlacement, plan: PartyPlan) -> str:
    role = f" as {given.role}" if given.role else ""
    pods = "1 pod" if given.pods == 1 else f"{given.pods} pods"
    if not given.fits:
        return f"{_of(given.task)}{pods}{role} would not fit{_problem(given.problem)}"
    where = f" on {_listed(given.nodes)}" if given.nodes else " would fit"
    return f"{_of(given.task)}{pods}{role}{where}"


def _link(given: PlannedLink) -> str:
    state = "ready" if given.ready else "not ready"
    asked = f", {given.requested} requested" if given.requested else ""
    capacity = f" of {given.capacity}" if given.capacity else ""
    return f"to {given.peer}: {state}{asked}{capacity}{_problem(given.problem)}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _of(task: str) -> str:
    return f"{task}: "


def _problem(text: str) -> str:
    return f": {text}" if text else ""
