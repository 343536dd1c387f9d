"""How the parties of a task come to hold their resources together. Pure.

    group          leaves it when                                                for
    -------------  ------------------------------------------------------------  -------------
    (none)         it is seen                                                    Pending
    Pending        it makes no sense                                             Failed
                   every party's reservation has a name                          Creating
    Creating       every reservation exists and our pods know theirs             Reserving
                   (a task that made both together has seen to that)
    Reserving      we initiate: enough parties hold their resources              Reserved
                   we initiate: too many parties failed to                       ReserveFailed
                   another initiates: all ours were let go ahead                 Reserved
    ReserveFailed  the pause is over                                             Reserving
    all but the    its life is over (another initiates: it says when)            Failed
    last two       an object was refused for a reason that lasts                 Failed

    reservation    set by
    -------------  ------------------------------------------------------------------------------------
    Reserving      this table, when it is made and at each new attempt
    Reserved       the scheduler of its domain; for a partner's, what its control plane tells
    Schedulable    this table, once enough are Reserved; for ours of another's task, what the initiator tells
    Failed         the scheduler that had to let go; this table when the attempt or the group is over

Nobody starts a pod before its reservation is Schedulable, and nobody holds resources longer than
`resourceReservedSeconds` without being.

The decision that a group is Reserved becomes durable with the first reservation that is Schedulable: whoever sees one
goes on from there. So the phase itself only informs, and a task that is over before it is written never had one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as _replace

from msgspec.structs import replace

from coterie.kube.api.meta import Condition, Object, ObjectKey, ObjectMeta, is_true, set_condition
from coterie.kuscia.api import labels
from coterie.kuscia.api.jobs.conditions import WAITING
from coterie.kuscia.api.types.job import GroupParty, GroupPhase, TaskResourceGroup, TaskResourceGroupStatus
from coterie.kuscia.api.types.task_resource import ReservationPhase, TaskResource
from coterie.kuscia.api.waiting import group_waiting

RETRY_SECONDS, LIFE_SECONDS = 30, 300
REFUSED_RETRY = 5.0
"""Seconds between attempts to write what was refused for a reason that may end, such as a quota."""
EXPIRED, GROUP_FAILED = "TaskResourceGroupExpired", "TaskResourceGroupFailed"
_HELD = (ReservationPhase.RESERVED, ReservationPhase.SCHEDULABLE)


@dataclass(frozen=True, slots=True)
class GroupView:
    group: TaskResourceGroup
    reservations: Mapping[str, TaskResource]
    """By `taskResourceName`, those that exist."""
    pods: Mapping[ObjectKey, ObjectMeta]
    """Our pods of this task that exist."""
    waits: Mapping[str, str]
    """Why pods of a domain of ours are not placed, in the scheduler's words."""
    initiates: bool
    """The domain that began the task is hosted here."""
    age: float
    """Seconds since the group began."""
    resting: float
    """Seconds since its phase changed."""
    now: str

    @property
    def own(self) -> tuple[GroupParty, ...]:
        return self.group.spec.parties or ()

    @property
    def everyone(self) -> tuple[GroupParty, ...]:
        return (*self.own, *(self.group.spec.out_of_controlled_parties or ()))

    @property
    def kept(self) -> tuple[GroupParty, ...]:
        """The parties whose reservations are objects of ours: only an initiator keeps its partners' too."""
        return self.everyone if self.initiates else self.own

    def of(self, phase: ReservationPhase) -> list[TaskResource]:
        return [found for found in self.reservations.values() if found.status.phase == phase]


@dataclass(frozen=True, slots=True)
class Plan:
    """In the order in which it is done."""

    status: TaskResourceGroupStatus
    name_parties: bool = False
    """Parties need names for their reservations. Nothing else is done with it; its own event brings us back."""
    create: tuple[GroupParty, ...] = ()
    mark_pods: Mapping[ObjectKey, Object] = field(default_factory=dict)
    """Metadata to merge into our pods."""
    move: tuple[tuple[TaskResource, ReservationPhase, str], ...] = ()
    """Reservations, the phase each gets, and why."""
    after: float | None = None

    @property
    def only_status(self) -> bool:
        return not (self.name_parties or self.create or self.mark_pods or self.move)


def settle(view: GroupView) -> tuple[GroupView, Plan]:
    """As `plan`, through all phases that need nobody else: each write is news for every watcher. With the group as it is
    in the last of them."""
    made = plan(view)
    while made.only_status and made.status.phase != view.group.status.phase:
        view = _replace(view, group=replace(view.group, status=made.status), resting=0.0)
        made = plan(view)
    return view, made


def only_informs(before: TaskResourceGroupStatus, after: TaskResourceGroupStatus) -> bool:
    """Whether the change may be written later: up to Reserved all follows from the reservations themselves."""
    begins = ("", GroupPhase.PENDING, GroupPhase.CREATING, GroupPhase.RESERVING, GroupPhase.RESERVED)
    return before.phase in begins and after.phase in begins and before.retry_count == after.retry_count


def plan(view: GroupView) -> Plan:
    status = view.group.status
    if not status.phase:
        return Plan(_moved(view, GroupPhase.PENDING, start_time=view.now))
    phase = GroupPhase(status.phase)
    life = float(view.group.spec.lifecycle_seconds or LIFE_SECONDS)
    patient = phase is GroupPhase.RESERVING and not view.initiates
    # Pods of a reservation that is Schedulable may run: from then on the time for reserving is over.
    settled = phase is GroupPhase.FAILED or bool(view.of(ReservationPhase.SCHEDULABLE))
    if not settled and not patient and view.age >= life:
        words = f"not scheduled within {life:g} seconds"
        return Plan(_moved(view, GroupPhase.FAILED, (EXPIRED, "True", words)))
    made = _HANDLERS[phase](view)
    if made.after is None and not settled and not patient:
        return Plan(made.status, made.name_parties, made.create, made.mark_pods, made.move, max(0.0, life - view.age))
    return made


def refused(view: GroupView, words: str, *, lasting: bool) -> Plan:
    """A reservation or a pod could not be written: the group fails, or says what it waits for."""
    condition = ("TaskResourcesCreated", "False", words)
    if lasting:
        return Plan(_moved(view, GroupPhase.FAILED, condition))
    left = float(view.group.spec.lifecycle_seconds or LIFE_SECONDS) - view.age
    return Plan(_condition(view, view.group.status, *condition), after=min(REFUSED_RETRY, max(0.0, left)))


def _pending(view: GroupView) -> Plan:
    spec = view.group.spec
    total = len(view.everyone)
    wrong = (
        "no party is named" if not total
        else "initiator is empty" if not spec.initiator
        else f"minReservedMembers is {spec.min_reserved_members}, but there are {total} parties"
        if spec.min_reserved_members > total
        else ""
    )  # fmt: skip
    if wrong:
        return Plan(_moved(view, GroupPhase.FAILED, ("TaskResourceGroupValidated", "False", wrong)))
    if any(not party.task_resource_name for party in view.kept):
        return Plan(view.group.status, name_parties=True)
    return Plan(_moved(view, GroupPhase.CREATING, ("TaskResourceNameGenerated", "True", "")))


def _creating(view: GroupView) -> Plan:
    missing = tuple(party for party in view.kept if party.task_resource_name not in view.reservations)
    by_task = (view.group.metadata.annotations or {}).get(labels.COTERIE_RESERVATIONS) == labels.COTERIE_MADE_BY_TASK
    if missing:
        return Plan(view.group.status, create=() if by_task else missing)
    marks = {key: mark for key, mark in _marks(view).items() if mark is not None}
    absent = [name for party in view.own for name in _pod_keys(party) if name not in view.pods]
    if marks or (absent and not by_task):
        return Plan(view.group.status, mark_pods=marks)
    return Plan(_moved(view, GroupPhase.RESERVING, ("TaskResourcesCreated", "True", "")))


def _marks(view: GroupView) -> dict[ObjectKey, Object | None]:
    """What each of our pods has to know of its reservation; None when it knows."""
    out: dict[ObjectKey, Object | None] = {}
    for party in view.own:
        reservation = view.reservations[party.task_resource_name]
        named = {
            labels.KUSCIA_TASK_RESOURCE_GROUP_UID: view.group.metadata.uid,
            labels.KUSCIA_TASK_RESOURCE_UID: reservation.metadata.uid,
        }
        noted = {labels.KUSCIA_TASK_RESOURCE: reservation.metadata.name}
        for key in _pod_keys(party):
            pod = view.pods.get(key)
            if pod is None:
                continue
            known = named.items() <= (pod.labels or {}).items() and noted.items() <= (pod.annotations or {}).items()
            out[key] = None if known else {"labels": named, "annotations": noted}
    return out


def _pod_keys(party: GroupParty) -> list[ObjectKey]:
    return [ObjectKey(party.domain_id, pod.name) for pod in party.pods or ()]


def _reserving(view: GroupView) -> Plan:
    if not view.initiates:
        if all(found.status.phase == ReservationPhase.SCHEDULABLE for found in view.reservations.values()):
            return Plan(
                _moved(view, GroupPhase.RESERVED, ("TaskResourcesReserved", "True", ""), completion_time=view.now)
            )
        return Plan(view.group.status)
    wanted, total = view.group.spec.min_reserved_members, len(view.everyone)
    held = [found for found in view.reservations.values() if found.status.phase in _HELD]
    if len(held) >= wanted or view.of(ReservationPhase.SCHEDULABLE):
        return Plan(_moved(view, GroupPhase.RESERVED, ("TaskResourcesReserved", "True", "")))
    failed = view.of(ReservationPhase.FAILED)
    if wanted > total - len(failed):
        words = _culprits(view)
        others = tuple(
            (found, ReservationPhase.FAILED, words)
            for found in view.reservations.values()
            if found.status.phase != ReservationPhase.FAILED
        )
        return Plan(_moved(view, GroupPhase.RESERVE_FAILED, ("TaskResourcesReserved", "False", words)), move=others)
    return Plan(view.group.status)


def _culprits(view: GroupView) -> str:
    """Who never held its resources in this attempt. Others that failed only waited for these, and let go."""
    late = sorted(
        found.metadata.namespace
        for found in view.reservations.values()
        if not is_true(found.status.conditions, str(ReservationPhase.RESERVED))
    )
    domains = [f"{domain} ({view.waits[domain]})" if view.waits.get(domain) else domain for domain in late]
    return (
        f"no resources could be reserved in {', '.join(domains)}"
        if domains
        else "not all reservations were held together"
    )


def _reserved(view: GroupView) -> Plan:
    status = view.group.status
    if not view.initiates:
        return Plan(replace(status, completion_time=status.completion_time or view.now))
    held = [found for found in view.reservations.values() if found.status.phase in _HELD]
    if len(held) < view.group.spec.min_reserved_members:
        # Somebody let go between our decision and its coming true; the others may have started, so it must catch up.
        missed = "released at the last moment"
        again = tuple((found, ReservationPhase.RESERVING, missed) for found in view.of(ReservationPhase.FAILED))
        return Plan(status, move=again)
    open_ = (ReservationPhase.PENDING, ReservationPhase.RESERVING, ReservationPhase.RESERVED)
    let_go = tuple(
        (found, ReservationPhase.SCHEDULABLE, "") for found in view.reservations.values() if found.status.phase in open_
    )
    if status.completion_time:
        return Plan(status, move=let_go)
    done = replace(status, completion_time=view.now)
    return Plan(_condition(view, done, "TaskResourcesScheduled", "True", ""), move=let_go)


def _reserve_failed(view: GroupView) -> Plan:
    left = float(view.group.spec.retry_interval_seconds or RETRY_SECONDS) - view.resting
    if left > 0:
        return Plan(view.group.status, after=left)
    retry = "a new attempt begins"
    again = tuple((found, ReservationPhase.RESERVING, retry) for found in view.of(ReservationPhase.FAILED))
    status = replace(view.group.status, retry_count=view.group.status.retry_count + 1)
    return Plan(
        _moved(view, GroupPhase.RESERVING, ("TaskResourcesReserved", "Unknown", retry), base=status), move=again
    )


def _failed(view: GroupView) -> Plan:
    status = view.group.status
    words = "the group failed"
    lost = tuple(
        (found, ReservationPhase.FAILED, words)
        for found in view.reservations.values()
        if found.status.phase != ReservationPhase.FAILED
    )
    if status.completion_time and not lost:
        return Plan(status)
    ended = replace(status, completion_time=status.completion_time or view.now)
    return Plan(_condition(view, ended, GROUP_FAILED, "True", ""), move=lost)


_HANDLERS: dict[GroupPhase, Callable[[GroupView], Plan]] = {
    GroupPhase.PENDING: _pending,
    GroupPhase.CREATING: _creating,
    GroupPhase.RESERVING: _reserving,
    GroupPhase.RESERVED: _reserved,
    GroupPhase.RESERVE_FAILED: _reserve_failed,
    GroupPhase.FAILED: _failed,
}


def _moved(
    view: GroupView,
    phase: GroupPhase,
    condition: tuple[str, str, str] | None = None,
    *,
    base: TaskResourceGroupStatus | None = None,
    start_time: str | None = None,
    completion_time: str | None = None,
) -> TaskResourceGroupStatus:
    status = base or view.group.status
    status = replace(
        status,
        phase=phase,
        last_transition_time=view.now,
        start_time=start_time or status.start_time or view.now,
        completion_time=completion_time or status.completion_time,
    )
    status = _condition(view, status, *condition) if condition is not None else status
    return _with_sentence(view, status)


def _with_sentence(view: GroupView, status: TaskResourceGroupStatus) -> TaskResourceGroupStatus:
    """With a condition that says what the group waits for in this phase. It changes with the phase only."""
    others = tuple(each for each in status.conditions or () if each.type != WAITING)
    waiting = group_waiting(replace(view.group, status=status), view.reservations.values())
    if waiting is None:
        return replace(status, conditions=others or None)
    new = Condition(type=WAITING, status="True", reason=waiting.sentence, last_transition_time=view.now)
    return replace(status, conditions=(*others, new))


def _condition(
    view: GroupView, status: TaskResourceGroupStatus, type_: str, value: str, reason: str
) -> TaskResourceGroupStatus:
    new = Condition(type=type_, status=value, reason=reason)
    return replace(status, conditions=set_condition(status.conditions, new, view.now))
