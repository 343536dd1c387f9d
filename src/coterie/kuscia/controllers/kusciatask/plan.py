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
from dataclasses import dataclass
from datetime import datetime

from msgspec.structs import replace

from coterie.base.clock import rfc3339
from coterie.kube.api.meta import Condition, ObjectKey, find_condition, is_true, set_condition
from coterie.kube.api.pod_state import parse_time
from coterie.kube.api.types.pods import Pod
from coterie.kuscia.api.jobs.conditions import PORTS_ALLOCATED, RESOURCE_CREATED, RUNNING, SUCCESS
from coterie.kuscia.api.jobs.phases import TASK_ENDED
from coterie.kuscia.api.types.job import (
    GroupPhase,
    KusciaTask,
    KusciaTaskStatus,
    PartyTaskStatus,
    TaskPhase,
    TaskResourceGroup,
)
from coterie.kuscia.control.partner_quotas import QuotaRefusal
from coterie.kuscia.controllers.kusciatask.party_workloads import PartyWorkload
from coterie.kuscia.controllers.kusciatask.status import (
    members_wanted,
    outcome,
    party_status,
    pod_status,
    task_phase,
    why_failed,
)

MISSING_ENGINE_GRACE = 3.0
"""Seconds a task waits for an engine that it names and that is not there: objects reach us in any order."""
LIFE_SECONDS = 300
CREATE_FAILED = "CreateResourceFailed"
START = "the start"
REFUSED_RETRY = 5.0
"""Seconds between attempts to create what was refused for a reason that may end, such as a quota."""


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
    over_quota: QuotaRefusal | None = None
    """Why a task that a partner began has no room in the partner's quota."""

    @property
    def at(self) -> str:
        return rfc3339(self.now)

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


def plan(view: TaskView) -> Plan:
    status = view.task.status
    if status.phase in TASK_ENDED:
        return _ended(view)
    if not status.phase:
        status = replace(
            status, phase=str(TaskPhase.PENDING), start_time=view.at, party_task_status=_parties(view, status)
        )
    if view.fault:
        if view.age < MISSING_ENGINE_GRACE:
            return Plan(replace(status, message=f"Waiting: {view.fault}"), after=MISSING_ENGINE_GRACE - view.age)
        return Plan(_failed(view, status, "TaskInvalid", view.fault))
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
            _with_condition(view, replace(status, message=f"Waiting: {words}"), RESOURCE_CREATED, "False", words),
            after=view.life_left,
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
    status = _with_condition(view, replace(status, message=f"Waiting: {words}"), RESOURCE_CREATED, "False", words)
    return Plan(status, after=min(REFUSED_RETRY, view.life_left))


def _refused_party(party: PartyTaskStatus, refusals: Sequence[Refusal]) -> PartyTaskStatus:
    about = [each for each in refusals if (each.domain, each.role) == (party.domain_id, party.role)]
    if not about or party.phase in (TaskPhase.SUCCEEDED, TaskPhase.FAILED):
        return party
    return replace(party, message="; ".join(f"{each.what} was refused: {each.brief}" for each in about))


def _from_pods(view: TaskView, status: KusciaTaskStatus) -> Plan:
    pod_statuses = dict(status.pod_statuses or {})
    parties = {(party.domain_id, party.role): party for party in _parties(view, status)}
    looks: list[float] = []
    for party in view.own:
        for which in party.pods:
            pod = view.pods.get(ObjectKey(party.domain, which.name))
            name = f"{party.domain}/{which.name}"
            pod_statuses[name] = pod_status(pod, which, party, pod_statuses.get(name), view.now)
            look = outcome(pod, view.now).recheck_after
            looks += [look] if look is not None else []
        mine = {which.name: pod_statuses[f"{party.domain}/{which.name}"] for which in party.pods}
        parties[party.domain, party.role] = party_status(party, mine, parties[party.domain, party.role])
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
    # While it runs only the way to the partners is worth a word: engines hang on it without saying so.
    waiting = "; ".join(view.routes) if phase is TaskPhase.RUNNING else _waiting_message(tuple(parties.values()))
    looks += [left] if left is not None else []
    return Plan(replace(status, message=waiting), after=min(looks) if looks else None)


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
    reasons = [found.reason for found in view.group.status.conditions or () if found.reason]
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
