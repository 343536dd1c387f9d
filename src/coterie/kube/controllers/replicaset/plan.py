"""How many pods a replica set is short of or has too many, which of them go first, and what its status says. Pure.

Of two pods the one goes first that is                      in this order:
    not assigned to a node                                  before one that is
    pending, then in an unknown phase                       before a running one
    not ready                                               before a ready one
    cheaper (annotation pod-deletion-cost)                  before a dearer one
    on a node with more pods of the same workload           before one that stands more alone
    ready for a shorter time (on a logarithmic scale)       before one ready for longer
    restarted more often                                    before a calmer one
    newer (on a logarithmic scale)                          before an older one
Equals are told apart by uid, so that the choice is the same whoever makes it. The scale keeps a crowd that started
together from being taken down in exactly the order it came up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from coterie.base.clock import rfc3339
from coterie.kube.api.meta import Condition, find_condition
from coterie.kube.api.pod_state import is_active, is_ready, parse_time, ready_since, restarts, until_available
from coterie.kube.api.selectors import selector_of_map
from coterie.kube.api.types.apps import ReplicaSet, ReplicaSetStatus
from coterie.kube.api.types.pods import Pod

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
REPLICA_FAILURE = "ReplicaFailure"

_PHASES = {"Pending": 0, "Unknown": 1, "Running": 2}


@dataclass(frozen=True, slots=True)
class Plan:
    create: int = 0
    delete: Sequence[Pod] = ()


@dataclass(frozen=True, slots=True)
class ReplicaFailure:
    """Why the last round of creating or deleting was cut short."""

    reason: str
    message: str


def plan(replica_set: ReplicaSet, pods: Sequence[Pod], related: Iterable[Pod], now: datetime, burst: int) -> Plan:
    """`pods` are the set's own; `related` all pods of the workload it belongs to, for spreading deletions."""
    active = [pod for pod in pods if is_active(pod)]
    missing = replica_set.replicas - len(active)
    if missing > 0:
        return Plan(create=min(missing, burst))
    if missing < 0:
        return Plan(delete=first_to_go(active, related, now)[: min(-missing, burst)])
    return Plan()


def first_to_go(pods: Sequence[Pod], related: Iterable[Pod], now: datetime) -> list[Pod]:
    neighbours = Counter(pod.spec.node_name for pod in related if is_active(pod) and pod.spec.node_name)
    return sorted(pods, key=lambda pod: _rank(pod, neighbours, now))


def _rank(pod: Pod, neighbours: Mapping[str, int], now: datetime) -> tuple[Any, ...]:
    return (
        bool(pod.spec.node_name),
        _PHASES.get(pod.status.phase, 1),
        is_ready(pod),
        deletion_cost(pod),
        -neighbours.get(pod.spec.node_name, 0),
        _age_class(ready_since(pod), now),
        -restarts(pod),
        _age_class(parse_time(pod.metadata.creation_timestamp), now),
        pod.metadata.uid,
    )


def _age_class(since: datetime | None, now: datetime) -> int:
    """Ages of a similar size are one class; what has no age yet is the youngest."""
    if since is None:
        return -1
    return int(math.log2(max(1.0, (now - since).total_seconds())))


def deletion_cost(pod: Pod) -> int:
    text = (pod.metadata.annotations or {}).get(DELETION_COST, "0")
    try:
        return int(text)
    except ValueError:
        return 0  # as if it were not there; a pod is not worth more for being mislabelled


def status(
    replica_set: ReplicaSet, pods: Iterable[Pod], failure: ReplicaFailure | None, now: datetime
) -> tuple[ReplicaSetStatus, float | None]:
    """The status, and the seconds after which it changes by itself because a ready pod becomes available."""
    template = replica_set.spec.template or {}
    labelled = selector_of_map((template.get("metadata") or {}).get("labels"))
    counted = full = ready = available = 0
    soonest: float | None = None
    for pod in pods:
        if not is_active(pod):
            continue
        counted += 1
        full += labelled.matches(pod.metadata.labels)
        wait = until_available(pod, replica_set.spec.min_ready_seconds, now)
        if is_ready(pod):
            ready += 1
        if wait == 0:
            available += 1
        elif wait is not None:
            soonest = wait if soonest is None else min(soonest, wait)
    new = msgspec.structs.replace(
        replica_set.status,
        replicas=counted,
        fully_labeled_replicas=full,
        ready_replicas=ready,
        available_replicas=available,
        observed_generation=replica_set.metadata.generation,
        conditions=_conditions(replica_set.status.conditions, failure, now),
    )
    return new, soonest


def _conditions(
    old: Sequence[Condition] | None, failure: ReplicaFailure | None, now: datetime
) -> tuple[Condition, ...] | None:
    kept = tuple(condition for condition in old or () if condition.type != REPLICA_FAILURE)
    if failure is None:
        return kept or None
    known = find_condition(old, REPLICA_FAILURE)
    if known is not None and known.status == "True" and known.reason == failure.reason:
        return tuple(old or ())  # the message may name the pod of one attempt: no write for each of them
    wanted = Condition(
        type=REPLICA_FAILURE,
        status="True",
        reason=failure.reason,
        message=failure.message,
        last_transition_time=rfc3339(now),
    )
    return (*kept, wanted)
