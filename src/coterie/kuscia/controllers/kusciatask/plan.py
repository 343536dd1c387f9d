"""What happens to a task next. Pure: `plan(view)` says it, the controller does it.

    phase      step, in this order
    ---------  ----------------------------------------------------------------------------------------------
    Pending    ports are allotted and written down         (condition PortsAllocated)
               routes between the parties are waited for
               the group, its TaskResources, then pods, services and config maps are made (condition ResourceCreated);
               a refusal that lasts fails the task, one that may end is retried; all of it for no longer than
               `lifecycleSeconds`
    Pending,   the parties' phases give the task's; a group that failed, or a limit that is over, fails it
    Running
    Succeeded, what is left is removed (pods that failed stay for people to look at), then the time is noted, unless
    Failed     all pods had ended with the task and it was noted at once

The phases of parties and task follow the tables in `status.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as _replace
from datetime import datetime

from msgspec.structs import replace

from coterie.base.clock import rfc3339
from coterie.kube.api.meta import Condition, ObjectKey, find_condition, is_true, set_condition
from coterie.kube.api.pod_state import parse_time
from coterie.kube.api.types.pods import Pod
from coterie.kuscia.api import labels
from coterie.kuscia.api.bandwidth import INSUFFICIENT
from coterie.kuscia.api.jobs.conditions import PORTS_ALLOCATED, RESOURCE_CREATED, RUNNING, STALLED, SUCCESS, WAITING
from coterie.kuscia.api.jobs.phases import TASK_ENDED
from coterie.kuscia.api.jobs.retries import TASK_INVALID, TASK_STALLED
from coterie.kuscia.api.types.job import (
    GroupPhase,
    KusciaTask,
    KusciaTaskStatus,
    PartyTaskStatus,
    TaskPhase,
    TaskResourceGroup,
)
from coterie.kuscia.api.waiting import PLACING, RESOURCES_STEP, Waiting, WaitReason, shown_reason, with_waiting
from coterie.kuscia.control.partner_quotas import QuotaRefusal
from coterie.kuscia.controllers.kusciatask.party_workloads import PartyWorkload
from coterie.kuscia.controllers.kusciatask.status import (
    ended_at,
    idle_since,
    members_wanted,
    outcome,
    party_status,
    pod_status,
    pods_detail,
    stalled_since,
    task_phase,
    why_failed,
)

MISSING_ENGINE_GRACE = 3.0
"""Seconds a task waits for an engine that it names and that is not there: objects reach us in any order."""
LIFE_SECONDS = 300
CREATE_FAILED = "CreateResourceFailed"
START = "the start"
LINKS_RECHECK = 10.0
"""Seconds after which the links of a task are looked at again whose engines are idle."""
REFUSED_RETRY = 5.0
"""Seconds between attempts to create what was refused for a reason that may end, such as a quota."""


@dataclass(frozen=True, slots=True)
class LinkActivity:
    last: str
    """RFC 3339."""
    busy: bool
    """It goes on."""


@dataclass(frozen=True, slots=True)
class TaskView:
    task: KusciaTask
    parties: tuple[PartyWorkload, ...]
    fault: str
    """Why there are no workloads; empty when there are."""
    own: tuple[PartyWorkload, ...]
    """The parties that are hosted here."""
    initiates: bool
    """The domain that began the task is hosted here."""
    pods: Mapping[ObjectKey, Pod]
    """Those of this task that exist."""
    group: TaskResourceGroup | None
    routes: tuple[str, ...]
    """Sentences about routes between the parties that are not usable."""
    age: float
    """Seconds since we first saw the task."""
    left_behind: bool
    """Something of the task is still there that goes when it ends."""
    now: datetime
    trouble: str = ""
    """Why the last attempt to create the task's objects failed; empty when it did not."""
    unmet: str = ""
    """Why the bandwidth that the task requests can never be had here."""
    over_quota: QuotaRefusal | None = None
    """Why a task that a partner began has no room in the partner's quota."""
    link_activity: Mapping[str, LinkActivity] = field(default_factory=dict)
    """By domain of ours, when the gateways last carried something of the task; where they measure it."""
    default_stall_seconds: int = 0
    """After how long without activity a task is shown as Stalled that does not say it; 0: never."""

    @property
    def at(self) -> str:
        return rfc3339(self.now)

    @property
    def job(self) -> str:
        return (self.task.metadata.annotations or {}).get(labels.KUSCIA_JOB_ID, "")

    @property
    def alias(self) -> str:
        return (self.task.metadata.annotations or {}).get(labels.KUSCIA_TASK_ALIAS, "") or self.task.metadata.name

    @property
    def stall_seconds(self) -> float:
        chosen = self.task.spec.schedule_config
        return float((chosen.stall_seconds if chosen is not None else None) or self.default_stall_seconds)

    @property
    def life(self) -> float:
        chosen = self.task.spec.schedule_config
        return float((chosen.lifecycle_seconds if chosen is not None else None) or LIFE_SECONDS)

    @property
    def life_left(self) -> float:
        """Seconds until scheduling is given up. Counted from the status, so that a restart does not begin it anew."""
        began = parse_time(self.task.status.start_time)
        return self.life - (max(self.age, (self.now - began).total_seconds()) if began is not None else self.age)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An object of the task that the API did not take."""

    domain: str
    """Whose party it belongs to; empty for what belongs to all."""
    role: str
    what: str
    """Kind and name."""
    brief: str
    """Why, for everybody."""
    message: str
    """Why, for our own side."""
    lasting: bool
    """No retry can mend it."""


@dataclass(frozen=True, slots=True)
class Plan:
    status: KusciaTaskStatus
    allot: bool = False
    """Ports are needed; the status is written with them."""
    make: bool = False
    """Pods and the rest are made, then the status is written."""
    clean: bool = False
    after: float | None = None
    waiting: Waiting | None = None
    """Written into message and conditions of the status by `plan`."""


def plan(view: TaskView) -> Plan:
    return _with_sentence(view, _plan(view))


def _with_sentence(view: TaskView, made: Plan) -> Plan:
    conditions, sentence = with_waiting(made.status.conditions, made.waiting, view.at)
    reason = shown_reason(made.status.reason, made.waiting, ended=made.status.phase in TASK_ENDED)
    status = replace(made.status, conditions=conditions, reason=reason)
    return _replace(made, status=replace(status, message=sentence) if made.waiting is not None else status)


def _plan(view: TaskView) -> Plan:
    status = view.task.status
    if status.phase in TASK_ENDED:
        return _ended(view)
    if not status.phase:
        status = replace(
            status, phase=str(TaskPhase.PENDING), start_time=view.at, party_task_status=_parties(view, status)
        )
    if view.fault:
        if view.age < MISSING_ENGINE_GRACE:
            return Plan(
                status,
                after=MISSING_ENGINE_GRACE - view.age,
                waiting=Waiting(
                    WaitReason.MISSING_OBJECTS,
                    "this control plane",
                    f"an object that the task names: {view.fault}",
                    "Run `coterie engine ls`; the task fails soon if it stays missing",
                ),
            )
        return Plan(_failed(view, status, TASK_INVALID, view.fault))
    if view.unmet and not is_true(status.conditions, RESOURCE_CREATED):
        return Plan(_failed(view, status, INSUFFICIENT, view.unmet))
    if view.own and not is_true(status.conditions, PORTS_ALLOCATED):
        return Plan(_with_condition(view, replace(status, message=""), PORTS_ALLOCATED, "True"), allot=True)
    if not is_true(status.conditions, RESOURCE_CREATED):
        return _making(view, status)
    return _from_pods(view, status)


def only_informs(before: KusciaTaskStatus, after: KusciaTaskStatus) -> bool:
    """Whether nobody acts on the change: where pods are, and that everything was made. Phases come with other fields."""
    kept = replace(
        after,
        pod_statuses=before.pod_statuses,
        service_statuses=before.service_statuses,
        conditions=before.conditions,
        message=before.message if before.phase == after.phase else after.message,
        last_reconcile_time=before.last_reconcile_time,
    )
    return after != before and kept == before


def _parties(view: TaskView, status: KusciaTaskStatus) -> tuple[PartyTaskStatus, ...]:
    """One entry for each party of the task, in its order; what is known of them is kept."""
    known = {(party.domain_id, party.role): party for party in status.party_task_status or ()}
    return tuple(
        known.get((party.domain_id, party.role))
        or PartyTaskStatus(domain_id=party.domain_id, role=party.role, phase=str(TaskPhase.PENDING))
        for party in view.task.spec.parties
    )


def _making(view: TaskView, status: KusciaTaskStatus) -> Plan:
    phase = task_phase(_parties(view, status), members_wanted(view.task))
    if phase is TaskPhase.FAILED:
        waited = find_condition(status.conditions, RESOURCE_CREATED)
        words = why_failed(_parties(view, status), {})
        words = f"{words}; waited for: {waited.reason}" if waited is not None and waited.reason else words
        return Plan(_failed(view, status, "TaskFailed", words))
    if phase is TaskPhase.SUCCEEDED:
        return Plan(_succeeded(view, status))
    expired = f"waited {view.life:g} seconds in vain"
    if view.own and view.routes:
        words = "; ".join(view.routes)
        if view.life_left <= 0:
            return Plan(_failed(view, status, "RouteNotReady", f"{expired}: {words}"))
        return Plan(
            _with_condition(view, status, RESOURCE_CREATED, "False", words),
            after=view.life_left,
            waiting=_routes_waiting(view),
        )
    if view.over_quota is not None:
        why = view.over_quota
        first = view.own[0]
        return refused(
            view, status, [Refusal(first.domain, first.role, START, why.sentence, why.sentence, why.lasting)]
        )
    if view.trouble and view.life_left <= 0:
        return Plan(_failed(view, status, CREATE_FAILED, f"{expired}: {view.trouble}"))
    made = _with_condition(
        view, replace(status, message="", party_task_status=_unrefused(view, status)), RESOURCE_CREATED, "True"
    )
    return Plan(made, make=bool(view.own) or view.initiates)


def _unrefused(view: TaskView, status: KusciaTaskStatus) -> tuple[PartyTaskStatus, ...] | None:
    """Our parties without the message of a refusal, which is the only one before their pods exist."""
    own = {(workload.domain, workload.role) for workload in view.own}
    return (
        tuple(
            replace(party, message="") if (party.domain_id, party.role) in own and party.message else party
            for party in status.party_task_status or ()
        )
        or None
    )


def refused(view: TaskView, status: KusciaTaskStatus, refusals: Sequence[Refusal]) -> Plan:
    """Objects of the task were refused: it fails when one refusal lasts or its time is over, else it says what it waits
    for. `status`: what would have been written."""
    lasting = [each for each in refusals if each.lasting]
    counted = lasting or list(refusals)
    parties = tuple(_refused_party(party, counted) for party in status.party_task_status or ())
    status = replace(status, party_task_status=parties or None)
    words = "; ".join(f"{each.what}: {each.message}" for each in counted)
    if lasting or view.life_left <= 0:
        waited = "" if lasting else f"waited {view.life:g} seconds in vain: "
        status = _with_condition(view, status, RESOURCE_CREATED, "False", CREATE_FAILED)
        return Plan(_failed(view, status, CREATE_FAILED, f"{waited}{words}"))
    status = _with_condition(view, status, RESOURCE_CREATED, "False", words)
    domains = ", ".join(dict.fromkeys(each.domain for each in counted if each.domain)) or "this control plane"
    quota = all(each.what == START for each in counted)
    waiting = Waiting(
        WaitReason.QUOTA if quota else WaitReason.OBJECTS_REFUSED,
        domains,
        f"{domains} to accept objects of the task: {words}",
        f"Free what is used up, or raise the quota: `coterie policy ls`, `coterie get resourcequota -n {domains}`",
    )
    return _with_sentence(view, Plan(status, after=min(REFUSED_RETRY, view.life_left), waiting=waiting))


def earlier_object(view: TaskView, what: str) -> Plan:
    """An object of an earlier task has a name that this one needs, and is on its way out."""
    waiting = Waiting(
        WaitReason.EARLIER_OBJECTS,
        "this control plane",
        f"{what} of an earlier attempt to be removed",
        f"If that lasts, run `coterie describe pod -n {view.own[0].domain}`"
        if view.own
        else "It is removed without you",
    )
    return _with_sentence(view, Plan(view.task.status, waiting=waiting))


def unschedulable(task: KusciaTask, at: str) -> KusciaTaskStatus:
    """Somebody set the label that keeps a task from being scheduled."""
    waiting = Waiting(
        WaitReason.OBJECTS_REFUSED,
        "whoever set it",
        f"the label {labels.KUSCIA_TASK_UNSCHEDULABLE} to be removed",
        f"Run `coterie kubectl label kusciatask {task.metadata.name} -n {task.metadata.namespace} "
        f"{labels.KUSCIA_TASK_UNSCHEDULABLE}-`",
    )
    conditions, sentence = with_waiting(task.status.conditions, waiting, at)
    return replace(task.status, conditions=conditions, message=sentence)


def _routes_waiting(view: TaskView) -> Waiting:
    who = ", ".join(dict.fromkeys(party.domain_id for party in view.task.spec.parties))
    return Waiting(
        WaitReason.ROUTES,
        who,
        f"routes between the parties: {'; '.join(view.routes)}",
        "Run `coterie route ls` at both ends of the route",
    )


def _refused_party(party: PartyTaskStatus, refusals: Sequence[Refusal]) -> PartyTaskStatus:
    about = [each for each in refusals if (each.domain, each.role) == (party.domain_id, party.role)]
    if not about or party.phase in (TaskPhase.SUCCEEDED, TaskPhase.FAILED):
        return party
    return replace(party, message="; ".join(f"{each.what} was refused: {each.brief}" for each in about))


def _from_pods(view: TaskView, status: KusciaTaskStatus) -> Plan:
    pod_statuses = dict(status.pod_statuses or {})
    parties = {(party.domain_id, party.role): party for party in _parties(view, status)}
    looks: list[float] = []
    details: dict[tuple[str, str], str] = {}
    for party in view.own:
        for which in party.pods:
            pod = view.pods.get(ObjectKey(party.domain, which.name))
            name = f"{party.domain}/{which.name}"
            pod_statuses[name] = pod_status(pod, which, party, pod_statuses.get(name), view.now)
            look = outcome(pod, view.now).recheck_after
            looks += [look] if look is not None else []
        mine = {which.name: pod_statuses[f"{party.domain}/{which.name}"] for which in party.pods}
        known = party_status(party, mine, parties[party.domain, party.role])
        idle = idle_since(pod for which in party.pods if (pod := view.pods.get(ObjectKey(party.domain, which.name))))
        if idle is not None and (links := view.link_activity.get(party.domain)) is not None:
            looks += [LINKS_RECHECK] if links.busy else []
            idle = None if links.busy else max(idle, links.last)
        known = replace(known, idle_since=idle if known.phase == TaskPhase.RUNNING else None)
        if known.phase in TASK_ENDED and known.ended_at is None:
            there = [view.pods.get(ObjectKey(party.domain, which.name)) for which in party.pods]
            known = replace(known, ended_at=ended_at((pod for pod in there if pod is not None), view.now))
        parties[party.domain, party.role] = known
        if known.phase == TaskPhase.PENDING:
            details[party.domain, party.role] = pods_detail(party, mine)
    status = replace(status, pod_statuses=pod_statuses or None, party_task_status=tuple(parties.values()))
    phase = task_phase(tuple(parties.values()), members_wanted(view.task))
    if phase is TaskPhase.FAILED:
        logs = {pod.pod_name: pod.termination_log for pod in pod_statuses.values() if pod.pod_phase == "Failed"}
        return Plan(_failed(view, status, "TaskFailed", why_failed(tuple(parties.values()), logs)))
    if phase is TaskPhase.SUCCEEDED:
        return Plan(_succeeded(view, status))
    if view.group is not None and view.group.status.phase == GroupPhase.FAILED:
        return Plan(_failed(view, status, "TaskResourceGroupPhaseFailed", _group_message(view, status)))
    ungrouped = _ungrouped_left(view, status) if phase is TaskPhase.PENDING else None
    if ungrouped is not None and ungrouped <= 0:
        return Plan(_failed(view, status, "TaskResourceGroupGone", "its TaskResourceGroup is gone; nothing reserves"))
    looks += [ungrouped] if ungrouped is not None else []
    if phase is TaskPhase.RUNNING and status.phase != phase:
        status = _with_condition(view, replace(status, phase=str(phase)), RUNNING, "True")
    left = _time_left(view, status)
    if left is not None and left <= 0:
        limit = view.task.spec.schedule_config and view.task.spec.schedule_config.active_deadline_seconds
        return Plan(_failed(view, status, "DeadlineExceeded", f"the task ran longer than its limit of {limit} seconds"))
    looks += [left] if left is not None else []
    status, stalled, look = _stalled(view, status)
    looks += [look] if look is not None else []
    chosen = view.task.spec.schedule_config
    if stalled is not None and view.initiates and chosen is not None and chosen.stall_seconds:
        seconds = f"stallSeconds is {chosen.stall_seconds}"
        return Plan(_failed(view, status, TASK_STALLED, f"no engine did anything since {stalled.since}; {seconds}"))
    # While it runs, the way to the partners is worth a word: engines hang on it without saying so.
    waiting = _pending_waiting(view, tuple(parties.values()), details)
    if waiting is not None and _lacks_bandwidth(view):
        step = "Run `coterie bandwidth`, and lower the limits of other tasks or wait"
        waiting = _replace(waiting, reason=WaitReason.BANDWIDTH, next_step=step)
    if waiting is None and view.routes:
        waiting = _routes_waiting(view)
    return Plan(replace(status, message=""), after=min(looks) if looks else None, waiting=waiting or stalled)


def _lacks_bandwidth(view: TaskView) -> bool:
    scheduled = (find_condition(pod.status.conditions, "PodScheduled") for pod in view.pods.values())
    return any(each is not None and (each.status, each.reason) == ("False", INSUFFICIENT) for each in scheduled)


def _stalled(view: TaskView, status: KusciaTaskStatus) -> tuple[KusciaTaskStatus, Waiting | None, float | None]:
    """The status with the condition, what is waited for when the task is stalled, and the seconds until it may be."""
    since = stalled_since(status.party_task_status or ())
    began = parse_time(since)
    known = find_condition(status.conditions, STALLED)
    limit = view.stall_seconds
    left = limit - (view.now - began).total_seconds() if began is not None and limit else None
    if since is None or left is None or left > 0:
        if known is not None and known.status == "True":
            status = _with_condition(view, status, STALLED, "False")
        return status, None, left
    others = tuple(each for each in status.conditions or () if each.type != STALLED)
    new = Condition(type=STALLED, status="True", reason="NoActivity", last_transition_time=since)
    who = ", ".join(dict.fromkeys(party.domain_id for party in view.task.spec.parties))
    waiting = Waiting(
        WaitReason.STALLED,
        who,
        f"the engines of {who}, which have used neither CPU nor network",
        f"Run `coterie job logs {view.job}`; set scheduleConfig.stallSeconds to have such tasks ended or begun again",
        since,
    )
    return replace(status, conditions=(*others, new)), waiting, None


def _pending_waiting(
    view: TaskView, parties: tuple[PartyTaskStatus, ...], details: Mapping[tuple[str, str], str]
) -> Waiting | None:
    """Which parties have not begun, and why: of our own in full, of partners what they tell."""
    pending = [party for party in parties if party.phase in ("", TaskPhase.PENDING)]
    if not pending:
        return None
    reasons = {
        (party.domain_id, party.role): details.get((party.domain_id, party.role)) or party.message for party in pending
    }
    # Parties without a reason of their own hold their resources and wait for those that have one.
    late = [party for party in pending if reasons[party.domain_id, party.role]] or pending
    own = [party for party in late if (party.domain_id, party.role) in details]
    phrases = [f"party {party.domain_id}: {reasons[party.domain_id, party.role] or PLACING}" for party in late]
    who = ", ".join(dict.fromkeys(party.domain_id for party in late))
    step = (
        RESOURCES_STEP.format(domain=", ".join(dict.fromkeys(party.domain_id for party in own)))
        if own
        else f"Ask {who}; there, `coterie job show {view.job}` says more"
    )
    return Waiting(WaitReason.RESOURCES if own else WaitReason.PARTNER, who, "; ".join(phrases), step)


def _succeeded(view: TaskView, status: KusciaTaskStatus) -> KusciaTaskStatus:
    # Its ports are free again when it is over, so pods that are not needed any more must have ended for that.
    over = view.at if all(pod.ended for pod in view.pods.values()) else None
    done = replace(status, phase=str(TaskPhase.SUCCEEDED), reason="", message="", progress=1.0, completion_time=over)
    return _with_condition(view, done, SUCCESS, "True")


def _time_left(view: TaskView, status: KusciaTaskStatus) -> float | None:
    chosen = view.task.spec.schedule_config
    running = find_condition(status.conditions, RUNNING)
    began = parse_time(running.last_transition_time) if running is not None and running.status == "True" else None
    if chosen is None or chosen.active_deadline_seconds is None or began is None:
        return None
    return chosen.active_deadline_seconds - (view.now - began).total_seconds()


def _ungrouped_left(view: TaskView, status: KusciaTaskStatus) -> float | None:
    """Seconds until a task without its group fails: it is the group that otherwise ends the waiting for resources."""
    made = find_condition(status.conditions, RESOURCE_CREATED)
    began = parse_time(made.last_transition_time) if made is not None else None
    if view.group is not None or began is None or not (view.own or view.initiates):
        return None
    return view.life - (view.now - began).total_seconds()


def _group_message(view: TaskView, status: KusciaTaskStatus) -> str:
    assert view.group is not None
    reasons = [found.reason for found in view.group.status.conditions or () if found.reason and found.type != WAITING]
    waiting = _waiting_message(status.party_task_status or ())
    reasons += [waiting] if waiting else []
    return "; ".join(reasons) or "the resources could not be reserved"


def _waiting_message(parties: tuple[PartyTaskStatus, ...]) -> str:
    return "; ".join(
        f"party {party.domain_id}: {party.message}"
        for party in parties
        if party.message and party.phase == TaskPhase.PENDING
    )


def _failed(view: TaskView, status: KusciaTaskStatus, reason: str, message: str) -> KusciaTaskStatus:
    """Our own unfinished parts end with it; partners decide by the same rules on what we tell."""
    own = {(party.domain, party.role) for party in view.own}
    parties = tuple(
        replace(party, phase=str(TaskPhase.FAILED), message=party.message or "ended because the task failed")
        if (party.domain_id, party.role) in own and party.phase not in TASK_ENDED
        else party
        for party in status.party_task_status or ()
    )
    status = replace(
        status, phase=str(TaskPhase.FAILED), reason=reason, message=message, party_task_status=parties or None
    )
    return _with_condition(view, status, SUCCESS, "False", reason)


def _ended(view: TaskView) -> Plan:
    status = view.task.status
    if view.left_behind:
        return Plan(status, clean=True)
    if status.completion_time:
        return Plan(status)
    outcome_ = "True" if status.phase == TaskPhase.SUCCEEDED else "False"
    return Plan(_with_condition(view, replace(status, completion_time=view.at), SUCCESS, outcome_, status.reason))


def _with_condition(
    view: TaskView, status: KusciaTaskStatus, type_: str, value: str, reason: str = ""
) -> KusciaTaskStatus:
    new = Condition(type=type_, status=value, reason=reason)
    return replace(status, conditions=set_condition(status.conditions, new, view.at))
