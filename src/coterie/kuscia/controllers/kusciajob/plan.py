"""What happens to a job next. Pure: `plan(view)` says it, the controller does it.

    phase             leaves it when                                                   for
    ----------------  ---------------------------------------------------------------  ----------------
    (none)            it is seen                                                       initialized
    initialized       something is wrong with it                                       Failed
                      all is well and a partner takes part                             AwaitingApproval
                      all is well and all parties are ours                             Pending
    AwaitingApproval  every party but the initiator accepted                           Pending
                      one of them rejected                                             ApprovalReject
                      their versions of an engine do not work together                 ApprovalReject
                      (of a partner's job our parties accept or reject as its PartnerPolicy says, or wait for a person)
    Pending           every party has created it                                       Running
                      one party could not create it                                    Failed
    Running           every task that must succeed did, nothing else can run           Succeeded
                      a task cannot be created, and that lasts                         Failed
                      a task that must succeed cannot any more, and (BestEffort only)
                      nothing else can run                                             Failed
                      (a task that failed and may be retried is deleted and created again when that is due; the
                      initiator decides and records it in `taskAttempts`, partners wait for its word)
    any but the ends  command Stop / Cancel                                            Failed / Cancelled
    Running           command Suspend                                                  Suspended
    Failed, Suspended command Restart; also while Running, where unfinished tasks
                      begin anew                                                       Running

Succeeded, ApprovalReject and Cancelled are the end. Both sides of a job decide by this table from the same facts, so
they come to the same end; commands and approvals of the others reach us as fields of the status.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as _replace

import msgspec
from msgspec.structs import replace

from coterie.kube.api.meta import Condition, Object, find_condition, set_condition
from coterie.kube.api.pod_state import parse_time
from coterie.kuscia.api import labels
from coterie.kuscia.api.bandwidth_capacity import DomainBandwidth
from coterie.kuscia.api.domain_ownership import is_own
from coterie.kuscia.api.engine_versions import LocalEngine, engine_mismatch, engine_pins
from coterie.kuscia.api.job_agreement import (
    AgreementCheck,
    TaskAgreement,
    check_agreement,
    task_agreement,
    with_agreements,
)
from coterie.kuscia.api.job_statements import PartyStatement, statements_taken
from coterie.kuscia.api.jobs.conditions import (
    ADMITTED,
    RESTARTED,
    STAGE_HANDLED,
    VALIDATE_FAILED,
    VALIDATED,
    WAITING,
)
from coterie.kuscia.api.jobs.graph import JobProgress, progress
from coterie.kuscia.api.jobs.phases import JOB_FINAL, TASK_ENDED
from coterie.kuscia.api.jobs.retries import failed_attempt, most_retries
from coterie.kuscia.api.partner_policy import ALLOWED, AdmissionDecision, Verdict
from coterie.kuscia.api.types.domain import BFIA_PROTOCOL, KUSCIA_PROTOCOL, Domain
from coterie.kuscia.api.types.job import (
    ACCEPTED,
    BEST_EFFORT,
    REJECTED,
    AppImage,
    JobPhase,
    JobStage,
    KusciaJob,
    KusciaJobStatus,
    KusciaTask,
    PartyTaskStatus,
    TaskAttempt,
    TaskPhase,
    TaskTemplate,
)
from coterie.kuscia.api.waiting import Waiting, WaitReason, shown_reason, with_waiting
from coterie.kuscia.bfia.mapping import create_request
from coterie.kuscia.bfia.wire import BfiaRefused
from coterie.kuscia.controllers.kusciajob.validate import Faults, faults

MISSING_OBJECTS_GRACE = 3.0
"""Seconds a job waits for domains and engines that it names and that are not there: objects reach us in any order."""
CREATE_TASK_FAILED = "CreateTaskFailed"
UPDATE_JOB_FAILED = "UpdateJobFailed"
ENGINE_MISMATCH = "EngineMismatch"
TASKS_CREATED = "TasksCreated"
"""False while a task is refused for a reason that may end, such as a quota."""
CREATE_RETRY_SECONDS = 300.0
"""Seconds for which such a task is tried again."""
REFUSED_RETRY = 5.0
AGREEMENT_DIFFERS = "AgreementDiffers"
AGREEMENT_SECONDS = 300.0
"""Seconds for which a task waits for a party that has not said its agreement digest."""
WITNESS_RETRY = 2.0
EVIDENCE_RETRY = 2.0
"""Seconds after which what cannot be recorded is tried again."""
_CREATED = frozenset(stage.done for stage in (JobStage.CREATE, JobStage.START, JobStage.RESTART)) | {
    JobStage.RESTART.failed
}
_RESTARTED = frozenset((JobStage.RESTART.done, JobStage.RESTART.failed, JobStage.START.done))


@dataclass(frozen=True, slots=True)
class JobView:
    job: KusciaJob
    domains: Mapping[str, Domain]
    images: Mapping[str, AppImage]
    ungranted: tuple[str, ...]
    """Sentences about data of ours that the job's initiator has no grant for; only told of a new job."""
    tasks: Mapping[str, KusciaTask]
    """Those of this job, by name."""
    foreign_tasks: frozenset[str]
    """Names of tasks that exist and are not of this job."""
    age: float
    """Seconds since we first saw the job."""
    now: str
    bandwidth: Mapping[str, DomainBandwidth] = field(default_factory=dict)
    """Of our domains; only told of a new job."""
    admission: AdmissionDecision = ALLOWED
    """What the policy says to a job that a partner began, and that waits for approval."""
    statements: Mapping[str, PartyStatement] = field(default_factory=dict)
    """What our own parties say of their part when they approve."""
    engines: Mapping[tuple[str, str], Sequence[LocalEngine]] = field(default_factory=dict)
    """By party of ours and alias, the versions that it offers; until the parties have agreed."""
    tables: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By party of ours, what the commitments of its statement stand for."""
    shows: bool = True
    """Jobs are shown to partners here, and withdrawn from them before they go."""

    @property
    def parties(self) -> tuple[str, ...]:
        return self.job.spec.party_domains

    def ours(self, domain: str) -> bool:
        return is_own(self.domains.get(domain))

    @property
    def own_parties(self) -> tuple[str, ...]:
        return tuple(party for party in self.parties if self.ours(party))

    @property
    def own_domains(self) -> tuple[str, ...]:
        """Our parties, and the initiator where it is ours."""
        return tuple(name for name in dict.fromkeys((self.job.spec.initiator, *self.parties)) if self.ours(name))

    @property
    def initiates(self) -> bool:
        return self.ours(self.job.spec.initiator)

    @property
    def partners(self) -> tuple[str, ...]:
        return tuple(party for party in self.parties if not self.ours(party))

    @property
    def interconnected(self) -> bool:
        return bool(self.partners) or not self.initiates

    @property
    def bfia(self) -> bool:
        """Partners speak BFIA: they tell nothing but how their tasks are, and to a participant only the initiator."""
        named = (self.domains.get(name) for name in (self.job.spec.initiator, *self.partners))
        return any(each is not None and each.partner and each.protocol == BFIA_PROTOCOL for each in named)

    @property
    def answering_parties(self) -> tuple[str, ...]:
        """Whose approval and creation we learn of."""
        return self.own_parties if self.bfia and not self.initiates else self.parties

    @property
    def stage(self) -> JobStage | None:
        label = (self.job.metadata.labels or {}).get(labels.KUSCIA_JOB_STAGE, "")
        return JobStage(label) if label in tuple(JobStage) else None

    @property
    def command(self) -> str:
        """Names one command: the same stage again is another command when its version is."""
        return f"{self.stage or ''}/{(self.job.metadata.labels or {}).get(labels.KUSCIA_JOB_STAGE_VERSION, '')}"

    @property
    def trigger(self) -> str:
        found = (self.job.metadata.labels or {}).get(labels.KUSCIA_JOB_STAGE_TRIGGER, "")
        return found or self.job.spec.initiator

    @property
    def pending_command(self) -> JobStage | None:
        """The command that has not been carried out yet."""
        handled = find_condition(self.job.status.conditions, STAGE_HANDLED)
        return None if handled is not None and handled.message == self.command else self.stage

    def task_of(self, template: TaskTemplate) -> KusciaTask | None:
        return self.tasks.get(template.task_id) if template.task_id else None

    @property
    def phases(self) -> dict[str, str]:
        """By alias. A task that is being deleted is still in the way, whatever became of it."""
        found = ((template.alias, self.task_of(template)) for template in self.job.spec.tasks)
        return {alias: "" if task.metadata.deleting else task.status.phase for alias, task in found if task is not None}

    @property
    def host_parties(self) -> tuple[str, ...]:
        """The initiator, when it takes part and its control plane showed us the job."""
        shown = (self.job.metadata.annotations or {}).get(labels.KUSCIA_INITIATOR_MASTER_DOMAIN)
        return tuple(party for party in self.parties if party == self.job.spec.initiator) if shown else ()

    def agreement(self, template: TaskTemplate) -> TaskAgreement:
        job = self.job
        return task_agreement(job.metadata.name, job.spec, template, job.status.party_statements or {})

    def host_agreement(self, template: TaskTemplate) -> str:
        """The digest that our host wrote on its task; empty: it did not, or we are the host."""
        text = (self.job.metadata.annotations or {}).get(labels.COTERIE_HOST_AGREEMENTS, "")
        if self.initiates or not text:
            return ""
        try:
            return msgspec.json.decode(text, type=dict[str, str]).get(template.task_id, "")
        except msgspec.DecodeError:
            return ""  # somebody edited it; the statement of the initiator says it, too

    @property
    def host_statements(self) -> dict[str, PartyStatement]:
        """What others said when the job came from its host."""
        text = (self.job.metadata.annotations or {}).get(labels.COTERIE_HOST_STATEMENTS, "")
        try:
            return msgspec.json.decode(text, type=dict[str, PartyStatement]) if text else {}
        except msgspec.DecodeError:
            return {}  # somebody edited it; the interconnection brings them, too

    @property
    def unnamed(self) -> tuple[str, ...]:
        return tuple(task.alias for task in self.job.spec.tasks if not task.task_id)

    @property
    def unfinished(self) -> tuple[KusciaTask, ...]:
        return tuple(task for task in self.tasks.values() if task.status.phase not in TASK_ENDED)


@dataclass(frozen=True, slots=True)
class Plan:
    """In the order in which it is done; what stands before the status is done first, so that a crash repeats it."""

    status: KusciaJobStatus
    mark: Object | None = None
    """Metadata to merge, before anything else: what follows is planned anew."""
    name_tasks: tuple[str, ...] = ()
    """Aliases that need a task id. As above, and together with it."""
    stop: tuple[KusciaTask, ...] = ()
    delete: tuple[KusciaTask, ...] = ()
    create: tuple[TaskTemplate, ...] = ()
    start_again: bool = False
    """Every party restarted: the command becomes Start."""
    after: float | None = None
    waiting: Waiting | None = None
    """Written into message and conditions of the status by `plan`."""

    @property
    def only_status(self) -> bool:
        return _replace(self, waiting=None) == Plan(self.status)


def plan(view: JobView) -> Plan:
    status = view.job.status
    if status.phase in JOB_FINAL and status.completion_time:
        return Plan(status)
    if view.job.metadata.deleting:
        return Plan(status)
    if not status.phase:
        status = replace(status, phase=JobPhase.INITIALIZED)
        view = _replace(view, job=replace(view.job, status=status))
    made = _HANDLERS[JobPhase(status.phase)](view)
    conditions, sentence = with_waiting(made.status.conditions, made.waiting, view.now)
    status = replace(made.status, conditions=conditions)
    if made.waiting is not None:
        status = replace(status, message=sentence)
    ended = status.phase in JOB_FINAL or status.phase == JobPhase.FAILED
    status = replace(status, reason=shown_reason(status.reason, made.waiting, ended=ended))
    made = _replace(made, status=status)
    return _replace(made, status=_with_tasks(view, made))


def plan_until_settled(view: JobView) -> Plan:
    """As `plan`, through all phases that need nobody else: each write is news that every party has to read."""
    made = plan(view)
    while made.only_status and made.status.phase != view.job.status.phase:
        view = _replace(view, job=replace(view.job, status=made.status))
        following = plan(view)
        if following.mark is not None or following.name_tasks:
            break  # these are written alone, and the status must not be forgotten over them
        made = following
    return made


def only_informs(before: KusciaJobStatus, after: KusciaJobStatus) -> bool:
    """Whether nobody acts on the change: how far each task is, and what it waits for, stands in the task itself."""
    if after == before:
        return False
    kept = replace(after, task_status=before.task_status, last_reconcile_time=before.last_reconcile_time)
    if before.phase == after.phase == JobPhase.RUNNING:
        kept = replace(kept, message=before.message, conditions=_without_waiting(after))
        before = replace(before, conditions=_without_waiting(before))
    return kept == before


def _without_waiting(status: KusciaJobStatus) -> tuple[Condition, ...] | None:
    return tuple(each for each in status.conditions or () if each.type != WAITING) or None


def _with_tasks(view: JobView, made: Plan) -> KusciaJobStatus:
    """`taskStatus` is always told from the tasks themselves."""
    gone = {task.metadata.name for task in made.delete}
    stopped = {task.metadata.name for task in made.stop}
    task_phases = {
        name: TaskPhase.FAILED if name in stopped else task.status.phase or TaskPhase.PENDING
        for name, task in sorted(view.tasks.items())
        if name not in gone and not task.metadata.deleting
    }
    return replace(made.status, task_status={name: str(phase) for name, phase in task_phases.items()} or None)


# Phases.


def _initialized(view: JobView) -> Plan:
    status = view.job.status
    found = faults(view.job, view.domains, view.images, view.bandwidth)
    # A grant may be given a moment after the job was begun, like everything else that the job names.
    found = Faults(found.wrong, (*found.missing, *view.ungranted))
    if not found.wrong and found.missing and view.age < MISSING_OBJECTS_GRACE:
        waiting = Waiting(
            WaitReason.MISSING_OBJECTS,
            "this control plane",
            f"objects that the job names: {found.sentence}",
            "Run `coterie domain ls` and `coterie engine ls`; the job fails soon if they stay missing",
        )
        return Plan(status, after=MISSING_OBJECTS_GRACE - view.age, waiting=waiting)
    if found.wrong or found.missing:
        sentence = f"Validate job failed, {found.sentence}"
        return Plan(
            replace(
                _condition(view, _refused(view, status, sentence), VALIDATED, "False", VALIDATE_FAILED, sentence),
                phase=JobPhase.FAILED,
                reason=VALIDATE_FAILED,
                message=sentence,
                start_time=status.start_time or view.now,
                completion_time=view.now,
            )
        )
    mark = _marks(view)
    if isinstance(mark, str):
        return _fail(view, VALIDATE_FAILED, mark)
    unnamed = view.unnamed if view.initiates else ()
    if mark is not None or unnamed:
        return Plan(status, mark=mark, name_tasks=unnamed)
    own = view.own_parties
    # What a host shows us its initiator has created and accepted: it need not be told that by a write of its own.
    began = view.own_parties if view.initiates else view.host_parties
    approved = dict.fromkeys(began, ACCEPTED)
    status = replace(
        _condition(view, status, VALIDATED, "True", "", ""),
        phase=JobPhase.AWAITING_APPROVAL if view.interconnected else JobPhase.PENDING,
        message="",
        start_time=status.start_time or view.now,
        stage_status={**(status.stage_status or {}), **dict.fromkeys((*began, *own), JobStage.CREATE.done)} or None,
        approve_status={**(status.approve_status or {}), **approved} or None,
    )
    status = _stated(view, status)
    if view.initiates and (problem := _mismatch(view, status)):
        return _fail(view, ENGINE_MISMATCH, problem)
    return Plan(status) if view.interconnected else _pinned(view, status)


def _stated(view: JobView, status: KusciaJobStatus) -> KusciaJobStatus:
    """With the statements of our parties that have accepted, and those of others that came with the job."""
    known = statements_taken(
        status.party_statements,
        view.host_statements,
        [party for party in view.host_statements if not view.ours(party)],
        {task.alias for task in view.job.spec.tasks},
    )
    approvals = status.approve_status or {}
    own = {
        party: statement
        for party, statement in view.statements.items()
        if party not in (known or {})
        and (approvals.get(party) == ACCEPTED or (view.initiates and party == view.job.spec.initiator))
    }
    statements = {**(known or {}), **own}
    if all(approvals.get(party) == ACCEPTED for party in view.parties if party != view.job.spec.initiator):
        job = view.job
        statements = with_agreements(job.metadata.name, job.spec, statements, view.own_domains) or {}
    return replace(status, party_statements=statements or None)


def _refused(view: JobView, status: KusciaJobStatus, sentence: str) -> KusciaJobStatus:
    """The others wait for us: they are told that we cannot, and why."""
    if view.initiates:
        return status
    party_statuses = tuple(
        PartyTaskStatus(domain_id=party, phase=str(TaskPhase.FAILED), message=sentence) for party in view.own_parties
    )
    stages = {**(status.stage_status or {}), **dict.fromkeys(view.own_parties, JobStage.CREATE.failed)}
    return replace(
        status,
        stage_status=stages or None,
        party_task_create_status={**(status.party_task_create_status or {}), view.job.metadata.name: party_statuses},
    )


def _not_created(view: JobView) -> Plan | None:
    """A party could not create the job: nobody can run it."""
    status = view.job.status
    failed = [party for party in view.parties if (status.stage_status or {}).get(party) == JobStage.CREATE.failed]
    if not failed:
        return None
    words = {
        party_status.domain_id: party_status.message
        for each in (status.party_task_create_status or {}).values()
        for party_status in each
        if party_status.message
    }
    sentence = "; ".join(f"{party} could not create the job{_colon(words.get(party))}" for party in failed)
    return _fail(view, "JobCreateFailed", sentence)


def _colon(message: str | None) -> str:
    return f": {message}" if message else ""


def _marks(view: JobView) -> Object | str | None:
    """Annotations that a new job gets; None when it has them, a sentence when the parties do not go together."""
    meta = view.job.metadata
    wanted = {labels.KUSCIA_SELF_AS_INITIATOR: "true" if view.initiates else "false"}
    if view.own_parties:
        wanted[labels.KUSCIA_INTERCONN_SELF_PARTIES] = "_".join(view.own_parties)
    if view.initiates:
        wanted[labels.KUSCIA_INITIATOR] = view.job.spec.initiator
        foreign = [party for party in view.partners if view.domains[party].protocol == BFIA_PROTOCOL]
        if foreign and len(foreign) < len(view.partners):
            others = ", ".join(party for party in view.partners if party not in foreign)
            return f"tasks: {', '.join(foreign)} speaks the protocol {BFIA_PROTOCOL} and {others} does not; one job has partners of one protocol"
        if foreign:
            try:
                create_request(view.job)
            except BfiaRefused as problem:
                return f"tasks: {problem}"
            wanted[labels.KUSCIA_INTERCONN_BFIA_PARTIES] = "_".join(foreign)
        elif view.partners:
            wanted[labels.KUSCIA_INTERCONN_KUSCIA_PARTIES] = "_".join(view.partners)
    there = meta.annotations or {}
    lacking = {key: value for key, value in wanted.items() if there.get(key) != value}
    mark: Object = {"annotations": lacking} if lacking else {}
    if view.bfia != ((meta.labels or {}).get(labels.KUSCIA_INTERCONN_PROTOCOL_TYPE) == BFIA_PROTOCOL):
        protocol = BFIA_PROTOCOL if view.bfia else KUSCIA_PROTOCOL
        mark["labels"] = {labels.KUSCIA_INTERCONN_PROTOCOL_TYPE: protocol}
    if view.shows and view.initiates and view.partners and not meta.has_finalizer(labels.FINALIZER_INTERCONN):
        # A job that was shown to partners is withdrawn from them before it goes.
        mark["finalizers"] = [*(meta.finalizers or ()), labels.FINALIZER_INTERCONN]
    return mark or None


def _awaiting_approval(view: JobView) -> Plan:
    if (ordered := _carry_out(view)) is not None:
        return ordered
    if (refused := _not_created(view)) is not None:
        return refused
    status = view.job.status
    if not view.initiates and view.own_parties:
        status = _answered(view, status)
    status = _stated(view, status)
    approvals = status.approve_status or {}
    others = [party for party in view.answering_parties if party != view.job.spec.initiator]
    rejected = [party for party in others if approvals.get(party) == REJECTED]
    if rejected:
        reason = f"Party: {', '.join(rejected)} approval reject."
        return Plan(
            replace(
                status,
                phase=JobPhase.APPROVAL_REJECT,
                reason=reason,
                message=f"{reason}{_explanations(status, rejected, ' ')}",
                completion_time=view.now,
            )
        )
    if problem := _mismatch(view, status):
        return Plan(_engines_rejected(view, status, problem))
    waiting = [party for party in others if approvals.get(party) != ACCEPTED]
    if waiting:
        asked = Waiting(
            WaitReason.APPROVAL,
            ", ".join(waiting),
            f"the approval of {', '.join(waiting)}{_explanations(status, waiting, ': ')}",
            _approval_step(view, waiting),
        )
        return Plan(status, after=view.admission.recheck_after, waiting=asked)
    return _pinned(view, replace(status, phase=JobPhase.PENDING, message=""))


def _mismatch(view: JobView, status: KusciaJobStatus) -> str:
    """Why the parties have no versions of an engine that work together, as far as we know their statements. Ours count before we approve: nobody
    need be asked about a job that cannot run."""
    return engine_mismatch(view.job.spec, {**view.statements, **(status.party_statements or {})})


def _pinned(view: JobView, status: KusciaJobStatus) -> Plan:
    """From here on the job runs with these versions, whatever is installed meanwhile."""
    pins = engine_pins(view.job.spec, status.party_statements or {}, view.engines)
    for alias, parties in pins.items():
        for party in view.own_parties:
            pin = parties.get(party)
            if pin is not None and pin.version and not pin.app_image:
                words = f"task {alias}: {party} offered version {pin.version} of the engine and has removed it since"
                return _fail(view, ENGINE_MISMATCH, f"{words}; submit the job again")
    return Plan(replace(status, engine_pins=pins or None))


def _engines_rejected(view: JobView, status: KusciaJobStatus, problem: str) -> KusciaJobStatus:
    """A member says no, with the sentence for its host. A host, and who finds it out later, ends the job by itself."""
    approvals, created = dict(status.approve_status or {}), dict(status.party_task_create_status or {})
    if not view.initiates:
        approvals |= dict.fromkeys(view.own_parties, REJECTED)
        key = view.job.metadata.name
        known = {party.domain_id: party for party in created.get(key, ())}
        known |= {party: PartyTaskStatus(domain_id=party, message=problem) for party in view.own_parties}
        created[key] = tuple(known.values())
    return replace(
        status,
        approve_status=approvals or None,
        party_task_create_status=created or None,
        phase=JobPhase.APPROVAL_REJECT,
        reason=ENGINE_MISMATCH,
        message=problem,
        completion_time=view.now,
    )


def _approval_step(view: JobView, waiting: Sequence[str]) -> str:
    name = view.job.metadata.name
    if any(view.ours(party) for party in waiting):
        return f"Run `coterie job approve {name}`, or with --reject"
    return f"Ask {', '.join(waiting)} to run `coterie job approve {name}`"


def _answered(view: JobView, status: KusciaJobStatus) -> KusciaJobStatus:
    """With the answers of our own parties, as far as they need no person, and the reason for both sides."""
    approvals = dict(status.approve_status or {})
    decision = view.admission
    open_ = [party for party in view.own_parties if party not in approvals]
    if open_ and decision.verdict is not Verdict.ASK:
        approvals |= dict.fromkeys(open_, ACCEPTED if decision.verdict is Verdict.ALLOW else REJECTED)
    if open_:
        value = {Verdict.ALLOW: "True", Verdict.REFUSE: "False", Verdict.ASK: "Unknown"}[decision.verdict]
        status = _condition(view, status, ADMITTED, value, str(decision.verdict), decision.sentence)
    prefix = "refused: " if decision.verdict is Verdict.REFUSE else ""
    key = view.job.metadata.name
    known = {party.domain_id: party for party in (status.party_task_create_status or {}).get(key, ())}
    for party in view.own_parties:
        words = f"{prefix}{decision.sentence}" if party in open_ and decision.reasons else ""
        if approvals.get(party) == REJECTED and party not in open_:
            continue  # a person said no, or we did, and said why
        if words or party in known:
            known[party] = PartyTaskStatus(domain_id=party, message=words)
    created = {**(status.party_task_create_status or {}), **({key: tuple(known.values())} if known else {})}
    return replace(status, approve_status=approvals or None, party_task_create_status=created or None)


def _explanations(status: KusciaJobStatus, parties: Iterable[str], before: str) -> str:
    """What these parties say of their answers, one sentence for each that is said."""
    named = set(parties)
    sentences = {
        entry.message: None
        for each in (status.party_task_create_status or {}).values()
        for entry in each
        if entry.message and entry.domain_id in named
    }
    return f"{before}{'; '.join(sentences)}" if sentences else ""


def _pending(view: JobView) -> Plan:
    if (ordered := _carry_out(view)) is not None:
        return ordered
    if (refused := _not_created(view)) is not None:
        return refused
    status = view.job.status
    stages = status.stage_status or {}
    waiting = [party for party in view.answering_parties if stages.get(party) not in _CREATED]
    if waiting:
        missing = Waiting(
            WaitReason.PARTNER,
            ", ".join(waiting),
            f"{', '.join(waiting)} to create the job",
            "Run `coterie route ls`: the partner must reach this control plane",
        )
        return Plan(status, waiting=missing)
    return Plan(replace(status, phase=JobPhase.RUNNING, message=""))


def _running(view: JobView) -> Plan:
    if (ordered := _carry_out(view)) is not None:
        return ordered
    status = view.job.status
    stages = status.stage_status or {}
    if view.bfia and (unstarted := [party for party in view.partners if stages.get(party) == JobStage.START.failed]):
        words = f"{', '.join(unstarted)} did not start the job{_explanations(status, unstarted, ': ')}"
        return _fail(view, "JobStartFailed", words)
    restarting = view.stage is JobStage.RESTART
    if restarting:
        waiting = [party for party in view.parties if stages.get(party) not in _RESTARTED]
        if waiting:
            missing = Waiting(
                WaitReason.PARTNER,
                ", ".join(waiting),
                f"{', '.join(waiting)} to restart",
                "Run `coterie route ls`: the partner must reach this control plane",
            )
            return Plan(status, waiting=missing)
        if view.initiates:
            return Plan(status, start_again=True)
    if view.unnamed and view.initiates:
        return Plan(status, name_tasks=view.unnamed)
    again = _retries(view, status)
    if again.recorded:
        return Plan(replace(status, task_attempts=again.attempts))  # its own event brings us back to begin them
    at = progress(view.job.spec.tasks, {**view.phases, **dict.fromkeys(again.waiting, "")})
    taken = [task for task in at.ready if task.task_id in view.foreign_tasks]
    if taken:
        names = ", ".join(f"{task.alias} ({task.task_id})" for task in taken)
        return _fail(view, CREATE_TASK_FAILED, f"Tasks of another job have the ids that this one chose: {names}")
    best_effort = view.job.spec.schedule_mode == BEST_EFFORT
    if at.lost and (not best_effort or at.resting):
        return _fail(view, "TaskFailed", _why(view, at))
    if at.resting:
        return Plan(replace(status, phase=JobPhase.SUCCEEDED, reason="", message="", completion_time=view.now))
    room = max(1, view.job.spec.max_parallelism) - len(at.active)
    # A participant learns the ids from the initiator, who also says when.
    nameable = [task for task in at.ready if task.task_id]
    agreed = _agreed(view, nameable)
    if differs := _stated_difference(view) or agreed.differs:
        return _fail(view, AGREEMENT_DIFFERS, differs)
    if agreed.awaited:
        return _await_agreement(view, agreed.awaited)
    return Plan(
        replace(status, message=""),
        create=tuple(nameable[: max(0, room)]),
        delete=again.due,
        after=again.after,
        waiting=_running_waiting(view, again, at, has_room=bool(nameable[: max(0, room)])),
    )


def _agreed(view: JobView, templates: Iterable[TaskTemplate]) -> AgreementCheck:
    """Whether the parties say the same about these tasks: the first that differs, or all that have not said anything yet. A member waits
    for the word of its host, which waits for that of everybody."""
    if view.bfia:
        return AgreementCheck()  # BFIA has no word for it
    statements = view.job.status.party_statements or {}
    initiator = view.job.spec.initiator
    awaited = view.parties if view.initiates else (initiator, *view.own_parties)
    late: dict[str, None] = {}
    for template in templates:
        if not any(party.domain_id in statements for party in template.parties):
            continue
        host_digest = view.host_agreement(template)
        found = check_agreement(
            view.agreement(template), template, statements, awaited=awaited, host=initiator, host_digest=host_digest
        )
        if found.differs:
            return found
        late |= dict.fromkeys(found.awaited)
    return AgreementCheck(awaited=tuple(late))


def _stated_difference(view: JobView) -> str:
    """A difference between what we and others stated, also of tasks that are not due yet: then none of them begins."""
    statements = view.job.status.party_statements or {}
    for template in view.job.spec.tasks:
        own = [
            task
            for party in view.own_parties
            if party in statements and (task := (statements[party].tasks or {}).get(template.alias)) and task.agreement
        ]
        if own and view.task_of(template) is None:
            ours = TaskAgreement(own[0].agreement, own[0].parts or {}, {})
            if differs := check_agreement(ours, template, statements, awaited=()).differs:
                return differs
    return ""


def _await_agreement(view: JobView, late: Sequence[str]) -> Plan:
    known = find_condition(view.job.status.conditions, WAITING)
    since = known.last_transition_time if known is not None and known.reason == WaitReason.AGREEMENT else None
    began, now = parse_time(since), parse_time(view.now)
    waited = (now - began).total_seconds() if began is not None and now is not None else 0.0
    names = ", ".join(late)
    if waited >= AGREEMENT_SECONDS:
        return _fail(
            view, AGREEMENT_DIFFERS, f"{names} did not say within {AGREEMENT_SECONDS:g} seconds what it agrees to"
        )
    waiting = Waiting(
        WaitReason.AGREEMENT,
        names,
        f"{names} to say what it agrees to; no task begins before",
        f"Run `coterie route ls`, or ask {names}",
    )
    return Plan(view.job.status, after=AGREEMENT_SECONDS - waited, waiting=waiting)


def evidence_missing(view_now: str, status: KusciaJobStatus, why: str) -> KusciaJobStatus:
    """The status of a job that cannot go on, because what it does next cannot be recorded."""
    waiting = Waiting(
        WaitReason.EVIDENCE,
        "this control plane",
        f"the evidence log, which cannot be written: {why}",
        "Run `df` and `coterie audit ls`; the job goes on by itself when the log can be written",
    )
    conditions, sentence = with_waiting(status.conditions, waiting, view_now)
    return replace(status, conditions=conditions, message=sentence)


def witness_missing(view: JobView, status: KusciaJobStatus, alias: str, why: str) -> KusciaJobStatus:
    """The status of a job whose task does not begin before a partner has cosigned our log."""
    waiting = Waiting(
        WaitReason.WITNESS,
        "its partners",
        f"partners to confirm the evidence log before task {alias} begins: {why}",
        "Run `coterie route ls`; the policy `Record` lets tasks begin without",
    )
    conditions, sentence = with_waiting(status.conditions, waiting, view.now)
    return replace(status, conditions=conditions, message=sentence)


def _running_waiting(view: JobView, again: _Retries, at: JobProgress, *, has_room: bool) -> Waiting | None:
    """What a job that runs waits for: a retry, what one of its tasks waits for, or the initiator."""
    name, initiator = view.job.metadata.name, view.job.spec.initiator
    aliases = {task.alias: task for task in view.job.spec.tasks}
    for alias in again.waiting:
        attempts = again.attempts.get(aliases[alias].task_id, ())
        last = attempts[-1] if attempts else None
        if last is None or not last.retry_time:
            what = f"{initiator} to begin task {alias} again, which failed, or to end the job"
            return Waiting(WaitReason.INITIATOR, initiator, what, f"Ask {initiator}, or run `coterie job stop {name}`")
        what = f"attempt {last.attempt + 1} of task {alias} at {last.retry_time}; attempt {last.attempt} failed"
        detail = f": {last.message or last.reason}" if last.message or last.reason else ""
        return Waiting(WaitReason.RETRY, initiator, f"{what}{detail}", f"Run `coterie job stop {name}` to end it")
    for template in at.active:
        task = view.task_of(template)
        found = find_condition(task.status.conditions, WAITING) if task is not None else None
        if task is None or found is None or found.reason not in tuple(WaitReason):
            continue
        sentence = task.status.message.removeprefix("Waiting for ")
        what, _, step = sentence.partition(f" (since {found.last_transition_time}). ")
        return Waiting(
            WaitReason(found.reason),
            found.message,
            f"task {template.alias}: {what}",
            step.rstrip(".") or f"Run `coterie job show {name}`",
            found.last_transition_time or "",
        )
    if not at.active and not has_room and at.ready and not view.initiates:
        aliases_ready = ", ".join(task.alias for task in at.ready)
        what = f"{initiator} to begin task {aliases_ready}"
        return Waiting(WaitReason.INITIATOR, initiator, what, f"Run `coterie route ls`, or ask {initiator}")
    return None


@dataclass(frozen=True, slots=True)
class _Retries:
    """What becomes of tasks that failed and may be begun again."""

    attempts: dict[str, tuple[TaskAttempt, ...]]
    recorded: bool = False
    """A failure was added to the attempts."""
    waiting: tuple[str, ...] = ()
    """Aliases of tasks that will be begun again, or may be: at a partner the initiator decides that."""
    due: tuple[KusciaTask, ...] = ()
    """Those that are begun again now: they are deleted, and created like any task that is ready."""
    after: float | None = None


def _retries(view: JobView, status: KusciaJobStatus) -> _Retries:
    attempts = dict(status.task_attempts or {})
    now = parse_time(view.now)
    recorded = False
    waiting: list[str] = []
    due: list[KusciaTask] = []
    pauses: list[float] = []
    for template in view.job.spec.tasks:
        task, config = view.task_of(template), template.schedule_config
        if task is None or task.metadata.deleting or task.status.phase != TaskPhase.FAILED or not most_retries(config):
            continue
        known = attempts.get(template.task_id, ())
        last = known[-1] if known else None
        if view.initiates and now is not None and (last is None or last.task_uid != task.metadata.uid):
            last = failed_attempt(task, config, known, now)
            attempts[template.task_id] = (*known, last)
            recorded = True
        if last is not None and last.retry_time is None:
            continue
        waiting.append(template.alias)
        begins = parse_time(last.retry_time) if last is not None else None
        if not view.initiates or begins is None or now is None:
            continue
        left = (begins - now).total_seconds()
        due += [task] if left <= 0 else []
        pauses += [left] if left > 0 else []
    return _Retries(attempts, recorded, tuple(waiting), tuple(due), min(pauses) if pauses else None)


def task_refused(
    view: JobView, status: KusciaJobStatus, message: str, *, lasting: bool
) -> tuple[KusciaJobStatus, float | None]:
    """The status of a job whose task the API did not take, and when to try again; None when the job failed over it."""
    known = find_condition(status.conditions, TASKS_CREATED)
    since = parse_time(known.last_transition_time) if known is not None and known.status == "False" else None
    now = parse_time(view.now)
    waited = (now - since).total_seconds() if since is not None and now is not None else 0.0
    status = _condition(view, status, TASKS_CREATED, "False", CREATE_TASK_FAILED, message)
    if lasting or waited >= CREATE_RETRY_SECONDS:
        words = message if lasting else f"waited {CREATE_RETRY_SECONDS:g} seconds in vain: {message}"
        return replace(status, phase=JobPhase.FAILED, reason=CREATE_TASK_FAILED, message=words), None
    waiting = Waiting(
        WaitReason.QUOTA,
        "this control plane",
        f"a task to be accepted: {message}",
        "Free what is used up, or raise the quota; `coterie get resourcequota -A` shows them",
    )
    conditions, sentence = with_waiting(status.conditions, waiting, view.now)
    status = replace(status, conditions=conditions, message=sentence)
    return status, min(REFUSED_RETRY, CREATE_RETRY_SECONDS - waited)


def tasks_taken(view: JobView, status: KusciaJobStatus) -> KusciaJobStatus:
    """All tasks that are due were created: what was told of refusals is over."""
    if find_condition(status.conditions, TASKS_CREATED) is None:
        return status
    return _condition(view, status, TASKS_CREATED, "True", "", "")


def update_refused(view: JobView, message: str) -> KusciaJobStatus:
    """The job itself could not be changed, for a reason that lasts."""
    return _fail(view, UPDATE_JOB_FAILED, message).status


def _failed(view: JobView) -> Plan:
    if (ordered := _carry_out(view)) is not None:
        return ordered
    status = view.job.status
    return Plan(replace(status, completion_time=status.completion_time or view.now), stop=view.unfinished)


def _suspended(view: JobView) -> Plan:
    ordered = _carry_out(view)
    if ordered is not None:
        return ordered
    waiting = Waiting(
        WaitReason.RESTART,
        view.trigger,
        f"a restart; {view.trigger} suspended the job",
        f"Run `coterie job restart {view.job.metadata.name}`",
    )
    return Plan(view.job.status, stop=view.unfinished, waiting=waiting)


def _ended(view: JobView) -> Plan:
    """An end without its time, as somebody who edits a status by hand may leave it."""
    status = view.job.status
    return Plan(replace(status, completion_time=status.completion_time or view.now), stop=view.unfinished)


_HANDLERS: dict[JobPhase, Callable[[JobView], Plan]] = {
    JobPhase.INITIALIZED: _initialized,
    JobPhase.AWAITING_APPROVAL: _awaiting_approval,
    JobPhase.PENDING: _pending,
    JobPhase.RUNNING: _running,
    JobPhase.SUSPENDED: _suspended,
    JobPhase.FAILED: _failed,
    JobPhase.SUCCEEDED: _ended,
    JobPhase.APPROVAL_REJECT: _ended,
    JobPhase.CANCELLED: _ended,
}


# Commands.


def _carry_out(view: JobView) -> Plan | None:
    """The effect of a command that is new; None when there is none for a job in this phase."""
    stage, phase = view.pending_command, JobPhase(view.job.status.phase)
    if stage is JobStage.START:
        return Plan(_command_handled(view, view.job.status, stage.done))
    if stage is JobStage.STOP and phase is not JobPhase.FAILED:
        return _end_by_command(view, stage, JobPhase.FAILED)
    if stage is JobStage.CANCEL:
        return _end_by_command(view, stage, JobPhase.CANCELLED)
    if view.bfia and stage in (JobStage.SUSPEND, JobStage.RESTART):
        words = f"BFIA knows no {stage}: the partners cannot be told"
        return Plan(replace(_command_handled(view, view.job.status, stage.failed), message=words))
    if stage is JobStage.SUSPEND and phase is JobPhase.RUNNING:
        status = replace(_command_handled(view, view.job.status, stage.done), phase=JobPhase.SUSPENDED, message="")
        return Plan(status, stop=view.unfinished)
    if stage is JobStage.RESTART and phase in (JobPhase.AWAITING_APPROVAL, JobPhase.PENDING):
        return Plan(_command_handled(view, view.job.status, stage.done))  # there is nothing yet to begin anew
    if stage is JobStage.RESTART:
        # Also while it runs here: the command that ended it elsewhere may have been overtaken by this one.
        return _restart(view)
    return None


def _end_by_command(view: JobView, stage: JobStage, phase: JobPhase) -> Plan:
    words = f"Party: {view.trigger} execute the cmd: {stage}."
    status = replace(
        _command_handled(view, view.job.status, stage.done),
        phase=phase,
        reason=words,
        message=words,
        completion_time=view.now,
    )
    return Plan(status, stop=view.unfinished)


def _restart(view: JobView) -> Plan:
    status = view.job.status
    if status.reason == VALIDATE_FAILED:
        refused = replace(
            _command_handled(view, status, JobStage.RESTART.failed),
            message=f"A job that was never valid cannot be restarted; submit it anew. {status.message}",
        )
        return Plan(refused)
    unsuccessful = tuple(task for task in view.tasks.values() if task.status.phase != TaskPhase.SUCCEEDED)
    version = (view.job.metadata.labels or {}).get(labels.KUSCIA_JOB_STAGE_VERSION, "")
    begun = replace(
        _condition(view, _command_handled(view, status, JobStage.RESTART.done), RESTARTED, "True", "", version),
        phase=JobPhase.RUNNING,
        reason="",
        message=f"This job is restarted by {view.trigger}",
        completion_time=None,
        task_attempts=None,
    )
    return Plan(begun, delete=unsuccessful)


def _command_handled(view: JobView, status: KusciaJobStatus, stage_status: str) -> KusciaJobStatus:
    stage_statuses = {**(status.stage_status or {}), **dict.fromkeys(view.own_parties, stage_status)}
    status = replace(status, stage_status=stage_statuses or None)
    return _condition(view, status, STAGE_HANDLED, "True", str(view.stage), view.command)


# Words.


def _condition(
    view: JobView, status: KusciaJobStatus, type_: str, value: str, reason: str, message: str
) -> KusciaJobStatus:
    new = Condition(type=type_, status=value, reason=reason, message=message)
    return replace(status, conditions=set_condition(status.conditions, new, view.now))


def _fail(view: JobView, reason: str, message: str) -> Plan:
    status = replace(
        view.job.status,
        phase=JobPhase.FAILED,
        reason=reason,
        message=message,
        start_time=view.job.status.start_time or view.now,
        completion_time=view.now,
    )
    return Plan(status, stop=view.unfinished)


def _why(view: JobView, at: JobProgress) -> str:
    failed = [_failure(view, task) for task in at.failed if not task.tolerable]
    blocked = [task.alias for task in at.blocked if not task.tolerable]
    return " ".join((*failed, *_blocked_message(blocked, at.failed)))


def _failure(view: JobView, template: TaskTemplate) -> str:
    task = view.task_of(template)
    reason_text = (task.status.message or task.status.reason) if task is not None else ""
    return f"Task {template.alias} failed{f': {reason_text}' if reason_text else ''}.".replace("..", ".")


def _blocked_message(blocked: list[str], failed: Iterable[TaskTemplate]) -> Iterable[str]:
    if blocked:
        by = ", ".join(task.alias for task in failed)
        yield f"Not run, because they wait for {by}: {', '.join(blocked)}."
