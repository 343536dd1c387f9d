"""JobPlanRequest: what would become of a job, asked of all its parties without starting anything. `kuscia.secretflow/v1alpha1`.

Ours, Kuscia has no such kind, so a control plane that does not know it never takes a dry run for a job. The same request exists up to
three times, under one name:

    in the initiator's namespace, at its control plane    the request: the job, and what each party answered
    in the partner's mirror namespace, beside it          how it travels: the partner reads it and writes its answer there
    in the partner's own namespace, at its control plane  the incoming request, which its controller answers from its own objects

All of them are removed soon: after the answer, or when nobody answered. The rules are in `kuscia/api/job_plans.py`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from coterie.kube.api.meta import ApiObject, Model
from coterie.kube.api.types.kind import Kind
from coterie.kuscia.api.job_statements import OfferedEngine
from coterie.kuscia.api.types.domain import kuscia_resource


class JobOutlook(StrEnum):
    """What would become of a job, as far as one party is asked."""

    RUNS = "Runs"
    WAITS = "Waits"
    """A person must approve it, or room must become free."""
    FAILS = "Fails"
    UNKNOWN = "Unknown"
    """There is no answer, or the party's policy lets it tell too little."""


class PlanPhase(StrEnum):
    PENDING = "Pending"
    ANSWERED = "Answered"
    REFUSED = "Refused"
    """The party does not answer dry runs, or not this one."""
    NO_ANSWER = "NoAnswer"
    COMPLETE = "Complete"
    """Of the request: every party answered, or time is up."""


class PlanDetail(StrEnum):
    """How much of its plan a party tells the asker; `spec.dryRun` of the PartnerPolicy."""

    NONE = "none"
    SUMMARY = "summary"
    FULL = "full"


class PlannedApproval(Model, frozen=True, kw_only=True):
    verdict: str = ""
    """Allow, Ask or Refuse; empty: no approval is needed."""
    by: str = ""
    """policy, person, setting (`enableWorkloadApprove`), or initiator."""
    rules: tuple[str, ...] | None = None
    """Fields of the policy that stand against it."""
    message: str = ""


class PlannedTable(Model, frozen=True, kw_only=True):
    task: str
    table: str
    columns: tuple[str, ...] | None = None
    """Those that the task may read."""
    all_columns: bool = False
    grant: str = ""
    """None is needed where the owner began the job."""
    uses: int = 0
    """Uses of the grant that the task would cost: one for each time that it reads the table, at least this many."""
    uses_left: int | None = None
    """Before the job; None: the grant does not count uses."""
    problem: str = ""


class PlannedEngine(Model, frozen=True, kw_only=True):
    task: str
    app_image: str
    version: str = ""
    """That all parties would agree on; in one party's own answer, the newest that it has."""
    digest: str = ""
    offers: tuple[OfferedEngine, ...] | None = None
    """Versions that the party could use, the newest first."""
    problem: str = ""


class PlannedPlacement(Model, frozen=True, kw_only=True):
    task: str
    role: str = ""
    pods: int = 0
    fits: bool = False
    nodes: tuple[str, ...] | None = None
    """Only told to the domain itself."""
    problem: str = ""


class PlannedLink(Model, frozen=True, kw_only=True):
    peer: str
    ready: bool = False
    requested: str = ""
    capacity: str = ""
    problem: str = ""


class PartyPlan(Model, frozen=True, kw_only=True):
    domain: str
    outlook: str = str(JobOutlook.UNKNOWN)
    detail: str = ""
    """own, full or summary."""
    approval: PlannedApproval | None = None
    tables: tuple[PlannedTable, ...] | None = None
    engines: tuple[PlannedEngine, ...] | None = None
    placements: tuple[PlannedPlacement, ...] | None = None
    links: tuple[PlannedLink, ...] | None = None
    notes: tuple[str, ...] | None = None


class PlanAnswer(Model, frozen=True, kw_only=True):
    domain: str
    phase: str
    message: str = ""
    plan: PartyPlan | None = None


class JobPlanRequestSpec(Model, frozen=True, kw_only=True):
    initiator: str
    job_name: str
    job: dict[str, Any]
    """The spec of a KusciaJob."""
    wait_seconds: int = 0
    """After which a party that did not answer is not waited for."""


class JobPlanRequestStatus(Model, frozen=True, kw_only=True):
    phase: str = ""
    outlook: str = ""
    message: str = ""
    answers: tuple[PlanAnswer, ...] | None = None


class JobPlanRequest(ApiObject, frozen=True, kw_only=True):
    spec: JobPlanRequestSpec
    status: JobPlanRequestStatus = JobPlanRequestStatus()


JOB_PLAN_REQUESTS = Kind(kuscia_resource("jobplanrequests", "JobPlanRequest", namespaced=True), JobPlanRequest)
