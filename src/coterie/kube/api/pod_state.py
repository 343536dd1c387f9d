"""What is true of a pod right now, worked out from its status: ready, available, active, ended, where it answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from coterie.base.clock import parse_rfc3339
from coterie.kube.api.meta import Condition, find_condition
from coterie.kube.api.types.pods import ContainerStatus, Pod

DISRUPTION_TARGET = "DisruptionTarget"
_LOG_KEPT = 1500


def parse_time(text: str | None) -> datetime | None:
    """A timestamp of an object; None when it is missing or nobody can read it."""
    if not text:
        return None
    try:
        return parse_rfc3339(text)
    except ValueError:
        return None


def ready_condition(pod: Pod) -> Condition | None:
    return find_condition(pod.status.conditions, "Ready")


def is_ready(pod: Pod) -> bool:
    condition = ready_condition(pod)
    return condition is not None and condition.status == "True"


def ready_since(pod: Pod) -> datetime | None:
    condition = ready_condition(pod)
    if condition is None or condition.status != "True":
        return None
    return parse_time(condition.last_transition_time)


def is_active(pod: Pod) -> bool:
    """It runs or will: not ended, not being deleted."""
    return not pod.ended and not pod.metadata.deleting


def until_available(pod: Pod, min_ready_seconds: int, now: datetime) -> float | None:
    """Seconds until a ready pod counts as available, 0 when it does; None when it is not ready."""
    if not is_ready(pod):
        return None
    if not min_ready_seconds:
        return 0.0
    since = ready_since(pod)
    if since is None:
        return None
    return max(0.0, (since + timedelta(seconds=min_ready_seconds) - now).total_seconds())


def container_statuses(pod: Pod) -> Iterable[ContainerStatus]:
    yield from pod.status.init_container_statuses or ()
    yield from pod.status.container_statuses or ()


def restarts(pod: Pod) -> int:
    return sum(status.restart_count for status in container_statuses(pod))


def termination_message(pod: Pod) -> tuple[str, str]:
    """Why the pod failed as a whole (evicted, too late), else which container ended badly and how, for everybody; and what
    it printed last, for its own people only."""
    whole = reason_and_message(pod.status.reason, pod.status.message) if pod.status.reason else ""
    for status in container_statuses(pod):
        ended: Mapping[str, Any] = (
            (status.state or {}).get("terminated") or (status.last_state or {}).get("terminated") or {}
        )
        code = ended.get("exitCode")
        if not code:
            continue
        signal = f", signal {ended['signal']}" if ended.get("signal") else ""
        reason = f" ({ended['reason']}{signal})" if ended.get("reason") else ""
        brief = whole or f"container {status.name} exited with {code}{reason}"
        return brief, str(ended.get("message") or "")[-_LOG_KEPT:]
    return whole or reason_and_message("Failed", pod.status.message), ""


def reason_and_message(reason: str, message: object) -> str:
    return f"{reason}: {message}" if message else reason


def finished_at(pod: Pod, now: datetime) -> datetime:
    """When an ended pod ended: the last container's end, else the best hint there is."""
    ends = [
        end
        for status in container_statuses(pod)
        if (end := parse_time(((status.state or {}).get("terminated") or {}).get("finishedAt"))) is not None
    ]
    if ends:
        return max(ends)
    condition = ready_condition(pod)
    if condition is not None and condition.status == "False" and (at := parse_time(condition.last_transition_time)):
        return at
    deleted = parse_time(pod.metadata.deletion_timestamp)
    if deleted is not None:
        return deleted - timedelta(seconds=pod.metadata.deletion_grace_period_seconds or 0)
    return now


def addresses(pod: Pod) -> tuple[str, ...]:
    """All addresses of the pod, the main one first."""
    several = tuple(found.ip for found in pod.status.pod_ips or () if found.ip)
    return several or ((pod.status.pod_ip,) if pod.status.pod_ip else ())
