"""Is a node there, which taints does it carry for it, and which of its pods have to go? Pure.

Whether a node is there is judged by changes seen on our own clock, never by the times it writes: its clock may be wrong.
A node that renews its lease or posts its status is there; one that does neither for `grace` seconds is not:

    nothing changed for   the node's conditions    taints (NoSchedule and NoExecute)   its pods
    less than grace       as the agent says        not-ready while Ready is False      leave when their time is over
    grace and more        Unknown                  unreachable                         not ready; leave likewise

A pod's time under a taint is its `tolerationSeconds`; under these two taints a pod that says nothing has `eviction`
seconds, under any other NoExecute taint none. While no node at all is ready nobody has to leave: there is nowhere to go,
and probably it is us who are cut off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from coterie.base.clock import rfc3339
from coterie.kube.api.labels import (
    COTERIE_LEASE_DURATION,
    TAINT_DISK_PRESSURE,
    TAINT_MEMORY_PRESSURE,
    TAINT_NETWORK_UNAVAILABLE,
    TAINT_NOT_READY,
    TAINT_PID_PRESSURE,
    TAINT_UNREACHABLE,
    TAINT_UNSCHEDULABLE,
)
from coterie.kube.api.pod_state import is_active, parse_time
from coterie.kube.api.types.coordination import Lease
from coterie.kube.api.types.nodes import Node, NodeCondition, Taint
from coterie.kube.api.types.pods import Pod, Toleration

NO_SCHEDULE, NO_EXECUTE = "NoSchedule", "NoExecute"
READY = "Ready"
_REPORTED = (READY, "MemoryPressure", "DiskPressure", "PIDPressure")
_PRESSURES = {
    "MemoryPressure": TAINT_MEMORY_PRESSURE,
    "DiskPressure": TAINT_DISK_PRESSURE,
    "PIDPressure": TAINT_PID_PRESSURE,
    "NetworkUnavailable": TAINT_NETWORK_UNAVAILABLE,
}
_OURS = frozenset(
    [(key, NO_SCHEDULE) for key in (*_PRESSURES.values(), TAINT_UNSCHEDULABLE)]
    + [(key, effect) for key in (TAINT_NOT_READY, TAINT_UNREACHABLE) for effect in (NO_SCHEDULE, NO_EXECUTE)]
)
_USUAL_LEASE = 40.0
"""Seconds for which a sign of life is good unless an agent is asked for another time."""
_HEALTH = (TAINT_NOT_READY, TAINT_UNREACHABLE)


@dataclass(frozen=True, slots=True)
class Settings:
    grace: float = 40.0
    """Seconds without a sign of life after which a node is not there."""
    startup_grace: float = 60.0
    """The same for a node that has never posted a status."""
    eviction: float = 300.0
    """Seconds that pods without an own toleration stay on a node that is not ready or not there."""


@dataclass(frozen=True, slots=True)
class NodeObservation:
    """What we last saw of a node, and when by our clock it was something new."""

    uid: str
    lease: str
    heartbeat: str
    at: float


def condition(node: Node, type_: str) -> NodeCondition | None:
    for found in node.status.conditions or ():
        if found.type == type_:
            return found
    return None


def observe(before: NodeObservation | None, node: Node, lease: Lease | None, now: float) -> NodeObservation:
    renewed = lease.spec.renew_time or "" if lease is not None else ""
    ready = condition(node, READY)
    heartbeat = ready.last_heartbeat_time or "" if ready is not None else ""
    seen = (node.metadata.uid, renewed, heartbeat)
    if before is not None and seen == (before.uid, before.lease, before.heartbeat):
        return before
    return NodeObservation(*seen, now)


def silence_left(observation: NodeObservation, node: Node, settings: Settings, now: float) -> float:
    """Seconds until the node counts as gone; 0 or less when it does."""
    grace = settings.grace if condition(node, READY) is not None else settings.startup_grace
    return observation.at + grace - now


def lease_duration(lease: Lease, settings: Settings) -> str | None:
    """The annotation that the lease should have; None: it is as it should be. An agent whose signs of life are good for
    longer than the grace would be taken for lost again and again."""
    known = (lease.metadata.annotations or {}).get(COTERIE_LEASE_DURATION, "")
    wanted = str(int(settings.grace)) if settings.grace < _USUAL_LEASE else ""
    return None if known == wanted else wanted


def unknown_conditions(node: Node, now: datetime) -> list[NodeCondition]:
    """The conditions to write for a node that is not there; none when they say so already."""
    out = []
    for type_ in _REPORTED:
        found = condition(node, type_)
        if found is not None and found.status == "Unknown":
            continue
        if found is None:
            why = ("NodeStatusNeverUpdated", "Kubelet never posted node status.")
        else:
            why = ("NodeStatusUnknown", "Kubelet stopped posting node status.")
        out.append(
            NodeCondition(
                type=type_,
                status="Unknown",
                reason=why[0],
                message=why[1],
                last_transition_time=rfc3339(now),
                last_heartbeat_time=found.last_heartbeat_time if found is not None else None,
            )
        )
    return out


def taints(node: Node, now: datetime) -> tuple[Taint, ...] | None:
    """The taints the node should carry, others' among them; None when it carries just these."""
    wanted = _desired_taints(node)
    kept: list[Taint] = []
    for taint in node.spec.taints or ():
        name = (taint.key, taint.effect)
        if name not in _OURS:
            kept.append(taint)
        elif name in wanted:
            kept.append(taint)
            wanted.remove(name)
    if len(kept) == len(node.spec.taints or ()) and not wanted:
        return None
    return (*kept, *(Taint(key=key, effect=effect, time_added=rfc3339(now)) for key, effect in wanted))


def _desired_taints(node: Node) -> list[tuple[str, str]]:
    out: list[tuple[str, str]] = []
    if node.spec.unschedulable:
        out.append((TAINT_UNSCHEDULABLE, NO_SCHEDULE))
    ready = condition(node, READY)
    if ready is not None and ready.status != "True":
        key = TAINT_UNREACHABLE if ready.status == "Unknown" else TAINT_NOT_READY
        out += [(key, NO_SCHEDULE), (key, NO_EXECUTE)]
    for type_, key in _PRESSURES.items():
        found = condition(node, type_)
        if found is not None and found.status == "True":
            out.append((key, NO_SCHEDULE))
    return out


def is_ready(node: Node) -> bool:
    ready = condition(node, READY)
    return ready is not None and ready.status == "True"


# Eviction.


def evicting(node: Node) -> list[Taint]:
    """Taints that drive pods away."""
    return [taint for taint in node.spec.taints or () if taint.effect == NO_EXECUTE]


def clocks(node: Node, before: Mapping[str, float] | None, now: float, today: datetime) -> dict[str, float]:
    """Since when (by our clock) each of these taints is there, by key.

    One that appeared while we watched began when we saw it. One that was there before us began when its writer, one of
    us, noted it.
    """
    out: dict[str, float] = {}
    for taint in evicting(node):
        if before is not None:
            out[taint.key] = before.get(taint.key, now)
        else:
            added = parse_time(taint.time_added)
            out[taint.key] = now - (max(0.0, (today - added).total_seconds()) if added is not None else 0.0)
    return out


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.value == taint.value


def stays(pod: Pod, taint: Taint, settings: Settings) -> float | None:
    """Seconds a pod stays under a taint; None: for ever."""
    matching = [toleration for toleration in pod.spec.tolerations or () if tolerates(toleration, taint)]
    if not matching:
        return settings.eviction if taint.key in _HEALTH else 0.0
    limits = [t.toleration_seconds for t in matching if t.toleration_seconds is not None]
    return float(max(0, min(limits))) if limits else None


@dataclass(frozen=True, slots=True)
class Evictions:
    now: Sequence[Pod] = ()
    next: float | None = None
    """Seconds until the next pod has to go."""


def evictions(node: Node, pods: Iterable[Pod], since: Mapping[str, float], settings: Settings, now: float) -> Evictions:
    due: list[Pod] = []
    soonest: float | None = None
    driving = evicting(node)
    if not driving:
        return Evictions()
    for pod in pods:
        if not is_active(pod):
            continue
        waits = [
            since[taint.key] + limit - now for taint in driving if (limit := stays(pod, taint, settings)) is not None
        ]
        if not waits:
            continue
        wait = min(waits)
        if wait <= 0:
            due.append(pod)
        else:
            soonest = wait if soonest is None else min(soonest, wait)
    return Evictions(due, soonest)


def conditions_patch(conditions: Sequence[NodeCondition]) -> list[dict[str, object]]:
    return [msgspec.to_builtins(found) for found in conditions]
