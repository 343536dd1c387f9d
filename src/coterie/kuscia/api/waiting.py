"""What objects wait for, as one sentence: for whom or what, since when, and what to do. Pure.

    Waiting(who="bob", what="the approval of bob", next_step="At bob, run `coterie job approve psi`")
    -> Waiting for the approval of bob (since 2026-11-16T18:00:00Z). At bob, run `coterie job approve psi`.

The sentence is written into `status.message` of jobs and tasks, and into the conditions of the others. The time in it is
that of the beginning, so nothing is written while only time passes: whoever shows the age computes it from the condition
`Waiting`. What partners are told of a wait is only its class (`public_reason`): no names of nodes, no numbers.

    object              waits in                              sentence from
    ------------------  ------------------------------------  ----------------------------------------------
    KusciaJob           initialized, AwaitingApproval,        controllers/kusciajob/plan.py
                        Pending, Running, Suspended
    KusciaTask          Pending, Running                      controllers/kusciatask/plan.py
    TaskResource        Pending, Reserving, Reserved, Failed  reservation_waiting
    TaskResourceGroup   Pending, Creating, Reserving,         group_waiting
                        ReserveFailed
    KusciaDeployment    Progressing, PartialAvailable         controllers/kusciadeployment/status.py
    engine pods         Pending, Running and idle             pod_waiting
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from coterie.kube.api.labels import COTERIE_IDLE
from coterie.kube.api.meta import Condition, find_condition
from coterie.kube.api.pod_state import container_statuses, reason_and_message
from coterie.kube.api.types.pods import Pod
from coterie.kuscia.api.bandwidth import INSUFFICIENT
from coterie.kuscia.api.jobs.conditions import WAITING
from coterie.kuscia.api.types.job import GroupPhase, TaskResourceGroup
from coterie.kuscia.api.types.task_resource import ReservationPhase, TaskResource


class WaitReason(StrEnum):
    """What is waited for, in one word."""

    MISSING_OBJECTS = "MissingObjects"
    APPROVAL = "Approval"
    PARTNER = "Partner"
    INITIATOR = "Initiator"
    QUOTA = "Quota"
    AGREEMENT = "Agreement"
    EVIDENCE = "Evidence"
    WITNESS = "Witness"
    TASKS = "Tasks"
    RETRY = "Retry"
    RESTART = "Restart"
    ROUTES = "Routes"
    OBJECTS_REFUSED = "ObjectsRefused"
    EARLIER_OBJECTS = "EarlierObjects"
    RESOURCES = "Resources"
    BANDWIDTH = INSUFFICIENT
    POD_START = "PodStart"
    STALLED = "Stalled"


@dataclass(frozen=True, slots=True)
class Waiting:
    reason: WaitReason
    who: str
    """A domain, several, or a part of this node."""
    what: str
    """Completes the sentence "Waiting for …"."""
    next_step: str
    """What a person can do, with the command; without a full stop."""
    since: str = ""
    """RFC 3339; empty: it begins now."""

    @property
    def sentence(self) -> str:
        since = f" (since {self.since})" if self.since else ""
        return f"Waiting for {self.what.rstrip('.')}{since}. {self.next_step}."


def waiting_since(conditions: Iterable[Condition] | None) -> str | None:
    """Since when the object waits for what it waits for now; None when it waits for nothing."""
    found = find_condition(conditions, WAITING)
    return found.last_transition_time if found is not None else None


def with_waiting(
    conditions: Sequence[Condition] | None, waiting: Waiting | None, now: str
) -> tuple[tuple[Condition, ...] | None, str]:
    """The conditions with what is waited for, and the sentence. The time stays as long as the reason does."""
    others = tuple(each for each in conditions or () if each.type != WAITING)
    if waiting is None:
        return others or None, ""
    before = find_condition(conditions, WAITING)
    same = before is not None and before.reason == waiting.reason
    since = waiting.since or (before.last_transition_time if before is not None and same else None) or now
    new = Condition(
        type=WAITING, status="True", reason=str(waiting.reason), message=waiting.who, last_transition_time=since
    )
    return (*others, new), replace(waiting, since=since).sentence


# What a partner is told.

_CLASSES: Final = (
    (re.compile(r"bandwidth", re.IGNORECASE), "not enough free bandwidth"),
    (re.compile(r"(nvidia|amd)\.com/|\bgpus?\b", re.IGNORECASE), "no free GPU"),
    (re.compile(r"Insufficient cpu", re.IGNORECASE), "no free CPU"),
    (re.compile(r"Insufficient memory", re.IGNORECASE), "no free memory"),
    (re.compile(r"ephemeral-storage|disk", re.IGNORECASE), "no free disk space"),
    (re.compile(r"image", re.IGNORECASE), "the engine's image is not there yet"),
    (re.compile(r"no nodes|not ready|unreachable|taint", re.IGNORECASE), "no node is ready"),
    (re.compile(r"quota", re.IGNORECASE), "its quota is used up"),
    (re.compile(r"reserve|task resource", re.IGNORECASE), "other parties have not reserved their resources"),
)
PLACING: Final = "its pods are being placed"
STARTING: Final = "its pods are being started"


def public_reason(detail: str) -> str:
    """The class of a wait of our own pods, which is all that partners are told."""
    for pattern, words in _CLASSES:
        if pattern.search(detail):
            return words
    return PLACING


def shown_reason(reason: str, waiting: Waiting | None, *, ended: bool) -> str:
    """`status.reason` of a job or task: it names a shortage of bandwidth while it waits for some."""
    if waiting is not None and waiting.reason is WaitReason.BANDWIDTH:
        return INSUFFICIENT
    return "" if reason == INSUFFICIENT and not ended else reason


# Sentences of single objects.


def reservation_waiting(resource: TaskResource) -> Waiting | None:
    """Of a TaskResource."""
    domain, status = resource.metadata.namespace, resource.status
    about = f"Run `coterie describe taskresource {resource.metadata.name} -n {domain}`"
    since = status.last_transition_time or resource.metadata.creation_timestamp or ""
    match status.phase:
        case "" | ReservationPhase.PENDING | ReservationPhase.RESERVING:
            what = f"the scheduler of {domain} to find room for the pods"
            return Waiting(WaitReason.RESOURCES, domain, what, RESOURCES_STEP.format(domain=domain), since)
        case ReservationPhase.RESERVED:
            what = f"the other parties; {domain} holds its resources meanwhile"
            return Waiting(WaitReason.PARTNER, resource.spec.initiator or "the other parties", what, about, since)
        case ReservationPhase.FAILED:
            what = "the next attempt to reserve, which the initiator begins"
            return Waiting(WaitReason.RETRY, resource.spec.initiator or "the initiator", what, about, since)
    return None


RESOURCES_STEP: Final = "Run `coterie top node`, and free resources of {domain} or ask for less"


def group_waiting(group: TaskResourceGroup, reservations: Iterable[TaskResource] = ()) -> Waiting | None:
    """Of a TaskResourceGroup."""
    status, name = group.status, group.metadata.name
    parties = (*(group.spec.parties or ()), *(group.spec.out_of_controlled_parties or ()))
    held = {
        each.metadata.namespace
        for each in reservations
        if each.status.phase in (ReservationPhase.RESERVED, ReservationPhase.SCHEDULABLE)
    }
    late = (
        ", ".join(dict.fromkeys(party.domain_id for party in parties if party.domain_id not in held)) or "all parties"
    )
    since = status.last_transition_time or group.metadata.creation_timestamp or ""
    about = f"Run `coterie describe taskresourcegroup {name}`"
    match status.phase:
        case "" | GroupPhase.PENDING | GroupPhase.CREATING:
            what = "the TaskResources and pods of the task to be created"
            return Waiting(WaitReason.RESOURCES, "the task controller", what, about, since)
        case GroupPhase.RESERVING:
            what = f"{late} to reserve resources"
            return Waiting(WaitReason.RESOURCES, late, what, RESOURCES_STEP.format(domain=late), since)
        case GroupPhase.RESERVE_FAILED:
            seconds = group.spec.retry_interval_seconds or 30
            what = f"the pause of {seconds} seconds before the parties try to reserve again"
            return Waiting(WaitReason.RETRY, late, what, RESOURCES_STEP.format(domain=late), since)
    return None


def pod_waiting(pod: Pod) -> Waiting | None:
    """Of an engine's pod that does not run yet, or does nothing."""
    meta, status = pod.metadata, pod.status
    where = f"{meta.name} -n {meta.namespace}"
    describe = f"Run `coterie describe pod {where}`"
    begun = status.start_time or meta.creation_timestamp or ""
    if status.phase in ("", "Pending"):
        scheduled = find_condition(status.conditions, "PodScheduled")
        if scheduled is None or scheduled.status != "True":
            detail = scheduled.message if scheduled is not None else ""
            what = f"the scheduler to place pod {meta.name}{f': {detail}' if detail else ''}"
            since = (scheduled.last_transition_time if scheduled is not None else None) or meta.creation_timestamp or ""
            return Waiting(WaitReason.RESOURCES, "the scheduler", what, describe, since)
        node = pod.spec.node_name or "its node"
        for container in container_statuses(pod):
            waiting = (container.state or {}).get("waiting") or {}
            if reason := str(waiting.get("reason") or ""):
                detail = reason_and_message(reason, waiting.get("message"))
                what = f"node {node} to start container {container.name} of pod {meta.name}: {detail}"
                return Waiting(WaitReason.POD_START, node, what, describe, begun)
        return Waiting(WaitReason.POD_START, node, f"node {node} to start pod {meta.name}", describe, begun)
    idle = find_condition(status.conditions, COTERIE_IDLE)
    if status.phase == "Running" and idle is not None and idle.status == "True":
        what = f"the engine in pod {meta.name}, which uses neither CPU nor network"
        since = idle.last_transition_time or begun
        return Waiting(WaitReason.STALLED, meta.name, what, f"Run `coterie logs {where}`", since)
    return None
