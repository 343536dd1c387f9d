"""Gangs: the pods of one TaskResource, which are placed together or not at all. Pure rules and plain data.

    TaskResource    Pending    Reserving                  Reserved              Schedulable        Failed
    scheduler       refuses    plans all pods at once,    holds the room,       binds, all         gives the room
                               takes room, marks it       at most N seconds                        back; refuses
                               Reserved

Room is given back only when the TaskResource says Failed: that write is refused once it says Schedulable, so it can
never happen that one domain binds while another has just let go.
Inside a domain `minReservedPods` pods must fit at once. Across domains nobody binds before enough TaskResources of the
group are Reserved; that is decided by the group's controller, and seen here as the phase Schedulable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from coterie.kube.api.meta import ObjectKey
from coterie.kube.scheduler.facts import PodFacts
from coterie.kube.scheduler.plan import SAMPLING, Placement, Sampling, Unschedulable, plan
from coterie.kube.scheduler.queue import QueueOrder
from coterie.kube.scheduler.snapshot import Snapshot
from coterie.kuscia.api import labels
from coterie.kuscia.api.bandwidth import MBIT, BandwidthError, parse_bits
from coterie.kuscia.api.types.task_resource import TaskResource

RESERVING, RESERVED, SCHEDULABLE, FAILED = "Reserving", "Reserved", "Schedulable", "Failed"
_ADMITTED = frozenset((RESERVING, RESERVED, SCHEDULABLE))
WAITING_FOR_TASK_RESOURCE = "waiting for task resource"


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """A TaskResource, as far as it matters here."""

    key: ObjectKey
    phase: str
    min_reserved: int
    hold_seconds: float | None
    created: str
    group: str
    failure: str = ""
    task: str = ""
    """Id of the task."""
    peers: tuple[str, ...] = ()
    link_bits: int = 0
    """What is reserved on the link to each peer; 0: what the pods request."""
    version: int = 0
    """Of the object, to tell news from echoes; 0 when the server does not number."""


@dataclass(slots=True)
class GangMember:
    pod: PodFacts
    node: str = ""
    """Where it is bound; empty while it waits."""


@dataclass(slots=True)
class GangHold:
    """Room taken for pods that may not be bound yet."""

    placed: dict[str, str]
    since: float
    deadline: float
    why_over: str = ""
    """Set when the room is to be given back, and that is being written."""
    claimant: ObjectKey | None = None
    """The gang it is given back for."""


@dataclass(slots=True)
class Gang:
    key: ObjectKey
    members: dict[str, GangMember] = field(default_factory=dict)
    task: TaskFacts | None = None
    hold: GangHold | None = None
    giving_up: bool = False
    """The room was given back, and the TaskResource does not say so yet."""
    waiting_message: str = ""
    """What its TaskResource was last marked with."""

    @property
    def id(self) -> str:
        """Its key in the queue; no uid of a pod has a colon in front."""
        return f":{self.key}"

    @property
    def namespace(self) -> str:
        return self.key.namespace

    @property
    def pods(self) -> list[PodFacts]:
        return [member.pod for member in self.members.values()]

    @property
    def group(self) -> str:
        """The same text in every domain that takes part in the task."""
        for member in self.members.values():
            if member.pod.group:
                return member.pod.group
        return self.task.group if self.task is not None else ""

    @property
    def queue_order(self) -> QueueOrder:
        priority = max((m.pod.priority for m in self.members.values()), default=0)
        if self.task is None:
            created = min((m.pod.created for m in self.members.values()), default="")
        else:
            # Whoever is promised room already, and lost it (to a restart, to a node), goes before all of its priority.
            # "!" sorts before every digit.
            created = "!" * (self.task.phase in (RESERVED, SCHEDULABLE)) + self.task.created
        return (-priority, created, str(self.key))


@dataclass(frozen=True, slots=True)
class GangPlan:
    placed: dict[str, str]
    failures: tuple[tuple[PodFacts, Unschedulable], ...]
    next_cursor: int
    enough: bool
    """When not, nothing was placed."""


def task_facts(task: TaskResource) -> TaskFacts:
    meta, spec = task.metadata, task.spec
    failed = next((c.reason for c in task.status.conditions or () if c.type == FAILED and c.status == "True"), "")
    return TaskFacts(
        key=task.key,
        phase=task.status.phase,
        min_reserved=spec.min_reserved_pods,
        hold_seconds=float(spec.resource_reserved_seconds) if spec.resource_reserved_seconds else None,
        created=meta.creation_timestamp or "",
        group=(meta.annotations or {}).get(labels.KUSCIA_TASK_RESOURCE_GROUP)
        or (meta.labels or {}).get(labels.KUSCIA_TASK_RESOURCE_GROUP_UID, ""),
        failure=failed,
        task=(meta.annotations or {}).get(labels.KUSCIA_TASK_ID, ""),
        peers=spec.peers or (),
        link_bits=_bits(spec.bandwidth_request),
        version=int(meta.resource_version) if meta.resource_version.isdecimal() else 0,
    )


def _bits(request: str) -> int:
    try:
        return parse_bits(request) if request else 0
    except BandwidthError:
        return 0  # the schema refuses it; an older object has nothing to reserve


def link_bits(gang: Gang) -> int:
    """What the gang wants on each of its links."""
    if gang.task is None or not gang.task.peers:
        return 0
    return gang.task.link_bits or sum(bandwidth_of(pod) for pod in gang.pods) * MBIT


def bandwidth_of(pod: PodFacts) -> int:
    """Mbit/s that the pod requests."""
    return next((amount for name, amount in pod.others if name == labels.KUSCIA_BANDWIDTH), 0)


def refusal(gang: Gang) -> str | None:
    """Why the gang is not even planned for; None when it is."""
    task = gang.task
    if task is None:
        return f'{WAITING_FOR_TASK_RESOURCE} "{gang.key}"'
    if gang.giving_up:
        return f'task resource "{gang.key}" is giving back what it reserved'
    if task.phase == FAILED:
        return f'task resource "{gang.key}" failed: {task.failure or "no reason was given"}'
    if task.phase not in _ADMITTED:
        return f'task resource "{gang.key}" is in phase "{task.phase}" and cannot be scheduled'
    siblings = sum(1 for member in gang.members.values() if member.pod.gang_uid)
    if siblings < len(gang.members) and siblings < task.min_reserved:
        return f'pods of task resource "{gang.key}" have no label {labels.KUSCIA_TASK_RESOURCE_UID}'
    if siblings < task.min_reserved:
        return f'task resource "{gang.key}" needs {task.min_reserved} pods and only {siblings} exist'
    return None


def plan_gang(
    snapshot: Snapshot, pods: Iterable[PodFacts], needed: int, cursor: int = 0, sampling: Sampling = SAMPLING
) -> GangPlan:
    """Places pods one after the other into the snapshot. When fewer than `needed` fit, all are taken out again."""
    placed: dict[str, str] = {}
    failures: list[tuple[PodFacts, Unschedulable]] = []
    version = snapshot.release_version
    # The greatest first: small ones find a place later, great ones do not.
    for pod in sorted(pods, key=_size, reverse=True):
        found = plan(snapshot, pod, cursor, sampling)
        if isinstance(found, Placement):
            snapshot.place(pod, found.node)
            placed[pod.uid] = found.node
            cursor = found.next_cursor
        else:
            failures.append((pod, found))
    if len(placed) >= needed:
        return GangPlan(placed, tuple(failures), cursor, True)
    for uid in placed:
        snapshot.remove(uid)
    snapshot.release_version = version  # nothing was there before, nothing is gone now
    return GangPlan({}, tuple(failures), cursor, False)


def not_reserved_message(domains: Sequence[str]) -> str:
    return f"domain [{','.join(sorted(domains))}] can not reserve resources for pods"


def goes_first(one: Gang, other: Gang) -> bool:
    """Whom a conflict over room is decided for. Every domain must decide alike, and all they share is the group's name.

    Times of creation differ from domain to domain and would let two gangs block each other for ever: each elder in one.
    """
    return bool(one.group) and bool(other.group) and one.group < other.group


def _size(pod: PodFacts) -> tuple[int, int, int]:
    return (pod.cpu, pod.memory, sum(amount for _, amount in pod.others))
