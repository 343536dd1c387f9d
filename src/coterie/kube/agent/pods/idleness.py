"""Whether a pod does anything, from how much CPU time and network traffic it used between two measurements. Pure.

A pod is idle in an interval when it used less than `busy_cpu` of one core and its own network carried less than `busy_bytes`
per second. Runtimes of engines that wait (heartbeats, garbage collection) stay below that; work does not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from coterie.kube.api.labels import COTERIE_IDLE, COTERIE_IDLE_SECONDS
from coterie.kube.api.meta import Object
from coterie.kube.api.pod_state import parse_time

_LONGEST = 7 * 86400


@dataclass(frozen=True, slots=True)
class IdleRules:
    busy_cpu: float = 0.05
    """Share of one core."""
    busy_bytes: float = 1024.0
    """Bytes per second, both ways together."""
    longest_period: float = 15.0
    shortest_period: float = 1.0
    checks: int = 4
    """Measurements within the shortest time that a pod names, as far as the periods allow."""


@dataclass(frozen=True, slots=True)
class PodActivity:
    """The last measurement of a pod, and when it did something last (wall-clock seconds)."""

    at: float
    cpu_nanoseconds: int
    network_bytes: int
    active_at: float
    idle: bool = False
    """What was reported to the API."""


def idle_seconds(pod: Object) -> float | None:
    """The seconds that the pod names; None when it is not to be watched."""
    text = (pod["metadata"].get("annotations") or {}).get(COTERIE_IDLE_SECONDS, "")
    return float(min(int(text), _LONGEST)) if text.isdecimal() and int(text) > 0 else None


def first(pod: Object, now: float, cpu_nanoseconds: int, network_bytes: int) -> PodActivity:
    """The first measurement. After a restart of the agent a pod that was idle is still taken for it."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    known = next((each for each in conditions if each.get("type") == COTERIE_IDLE), None)
    since = parse_time(known.get("lastTransitionTime")) if known is not None and known.get("status") == "True" else None
    active_at = since.timestamp() if since is not None else now
    return PodActivity(now, cpu_nanoseconds, network_bytes, active_at, since is not None)


def measured(
    before: PodActivity, now: float, cpu_nanoseconds: int, network_bytes: int, limit: float, rules: IdleRules
) -> PodActivity:
    """After another measurement. `idle` changes when that is to be reported."""
    seconds = now - before.at
    if seconds <= 0:
        return before
    used = cpu_nanoseconds - before.cpu_nanoseconds
    carried = network_bytes - before.network_bytes
    # A counter that went back belongs to a container that was started again.
    busy = used < 0 or carried < 0 or used / 1e9 > rules.busy_cpu * seconds or carried > rules.busy_bytes * seconds
    active_at = now if busy else before.active_at
    return replace(
        before,
        at=now,
        cpu_nanoseconds=cpu_nanoseconds,
        network_bytes=network_bytes,
        active_at=active_at,
        idle=not busy and (before.idle or now - active_at >= limit),
    )


def period(limits: list[float], rules: IdleRules) -> float:
    """Seconds between two measurements. `limits`: of the pods that are watched."""
    wanted = min(limits, default=rules.longest_period * rules.checks) / rules.checks
    return min(max(wanted, rules.shortest_period), rules.longest_period)
