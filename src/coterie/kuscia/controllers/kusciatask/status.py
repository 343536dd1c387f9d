"""How far a task is, from its pods and from what partners tell. Pure.

    pod       failed when it is gone, ended badly, or waits for something that will not come (`_HOPELESS`, and images
              that cannot be had for `IMAGE_PULL_TIMEOUT` seconds)
    party     Failed when too few of its pods are left, Succeeded when enough ended well, Running when one runs;
              once ended it stays so. Partners' parties are as they tell.
    task      Failed when too few parties are left, Succeeded when enough ended well, Running when one has begun;
              Stalled while all parties that run are idle and none is to begin

A party's message is told to the partners, so it says which container ended how, and never what it printed; while its pods
wait, only the class of the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from msgspec.structs import replace

from coterie.base.clock import rfc3339
from coterie.kube.api.labels import COTERIE_IDLE
from coterie.kube.api.meta import find_condition
from coterie.kube.api.pod_state import (
    container_statuses,
    finished_at,
    parse_time,
    reason_and_message,
    termination_message,
)
from coterie.kube.api.types.pods import Pod
from coterie.kuscia.api.jobs.phases import TASK_ENDED
from coterie.kuscia.api.types.job import KusciaTask, PartyTaskStatus, PodOfTask, TaskPhase
from coterie.kuscia.api.waiting import public_reason
from coterie.kuscia.controllers.kusciatask.party_workloads import PartyWorkload, PodWorkload

IMAGE_PULL_TIMEOUT = 60.0
"""Seconds for which an image may be missing before the task is given up."""
_HOPELESS = frozenset(
    (
        "CrashLoopBackOff", "ImageInspectError", "ErrImageNeverPull", "RegistryUnavailable", "InvalidImageName",
        "CreateContainerConfigError", "CreateContainerError", "PreStartHookError", "PostStartHookError",
        "ImageIDMismatch", "SignatureValidationFailed",
    )
)  # fmt: skip
LOST_CONNECTION = "its last words tell of a lost connection"
_LOST = re.compile(
    r"connection (was )?(refused|reset|aborted|closed|lost)|broken pipe|remote end closed|socket closed|unexpected eof|connect fail"
    r"|connection(Refused|Reset|Aborted)Error|BrokenPipeError|RemoteDisconnected|StatusCode\.UNAVAILABLE|no healthy upstream"
    r"|upstream connect error|cannot be reached|has gone away|EHOSTDOWN|ECONNREFUSED|ECONNRESET",
    re.IGNORECASE,
)
_LAST_LINES = 20
_IMAGE_TROUBLE = frozenset(("ErrImagePull", "ImagePullBackOff", "ErrImagePullBackOff"))


@dataclass(frozen=True, slots=True)
class PodOutcome:
    """What one pod comes to."""

    phase: TaskPhase
    brief: str = ""
    """For everybody."""
    log: str = ""
    """Its last words, for our own side only."""
    recheck_after: float | None = None
    """Seconds after which it will be judged otherwise although nothing changed."""


def outcome(pod: Pod | None, now: datetime) -> PodOutcome:
    if pod is None:
        return PodOutcome(TaskPhase.FAILED, "the pod is gone")
    if pod.status.phase == "Succeeded":
        return PodOutcome(TaskPhase.SUCCEEDED)
    if pod.status.phase not in ("Pending", "Running", ""):
        brief, log = termination_message(pod)
        return PodOutcome(TaskPhase.FAILED, f"{brief}; {LOST_CONNECTION}" if lost_connection(log) else brief, log)
    for status in container_statuses(pod):
        waiting = (status.state or {}).get("waiting") or {}
        reason = str(waiting.get("reason") or "")
        words = f"container {status.name}: {reason_and_message(reason, waiting.get('message'))}"
        if reason in _HOPELESS:
            _, log = termination_message(pod)
            return PodOutcome(TaskPhase.FAILED, words, log)
        if reason in _IMAGE_TROUBLE:
            began = parse_time(pod.status.start_time) or parse_time(pod.metadata.creation_timestamp) or now
            left = IMAGE_PULL_TIMEOUT - (now - began).total_seconds()
            if left <= 0:
                return PodOutcome(TaskPhase.FAILED, words)
            return PodOutcome(TaskPhase.PENDING, words, recheck_after=left)
    if pod.status.phase == "Running":
        return PodOutcome(TaskPhase.RUNNING)
    scheduled = find_condition(pod.status.conditions, "PodScheduled")
    if scheduled is not None and scheduled.status == "False":
        return PodOutcome(TaskPhase.PENDING, scheduled.message)
    return PodOutcome(TaskPhase.PENDING)


def pod_status(
    pod: Pod | None, which: PodWorkload, party: PartyWorkload, before: PodOfTask | None, now: datetime
) -> PodOfTask:
    """What the task remembers of a pod, also when it is gone."""
    seen = outcome(pod, now)
    if pod is None:
        gone = before or PodOfTask(pod_name=which.name, pod_phase="", namespace=party.domain)
        return (
            gone if gone.pod_phase in ("Succeeded", "Failed") else replace(gone, pod_phase="Failed", reason=seen.brief)
        )
    ready = find_condition(pod.status.conditions, "Ready")
    scheduled = find_condition(pod.status.conditions, "PodScheduled")
    return PodOfTask(
        pod_name=which.name,
        pod_phase=str(TaskPhase.FAILED if seen.phase is TaskPhase.FAILED else pod.status.phase or "Pending"),
        namespace=party.domain,
        node_name=pod.spec.node_name,
        message=seen.brief or pod.status.message,
        termination_log=seen.log,
        reason=pod.status.reason,
        create_time=pod.metadata.creation_timestamp,
        schedule_time=scheduled.last_transition_time if scheduled is not None and scheduled.status == "True" else None,
        start_time=pod.status.start_time,
        ready_time=(ready.last_transition_time if ready is not None and ready.status == "True" else None)
        or (before.ready_time if before is not None else None),
    )


def party_status(
    party: PartyWorkload, pod_statuses: Mapping[str, PodOfTask], before: PartyTaskStatus
) -> PartyTaskStatus:
    """`reason_and_message`tatuses`: the pods of this party by name."""
    if before.phase in TASK_ENDED:
        return before
    pods = [pod_statuses[which.name] for which in party.pods]
    failed = [pod for pod in pods if pod.pod_phase == "Failed"]
    if party.min_reserved_pods > len(pods) - len(failed):
        words = "; ".join(f"pod {pod.pod_name}: {pod.message or pod.reason}" for pod in failed)
        return replace(before, phase=str(TaskPhase.FAILED), message=words)
    succeeded = sum(pod.pod_phase == "Succeeded" for pod in pods)
    if succeeded >= party.min_reserved_pods:
        return replace(before, phase=str(TaskPhase.SUCCEEDED), message="")
    begun = any(pod.pod_phase in ("Running", "Succeeded") for pod in pods)
    waits = next((public_reason(pod.message) for pod in pods if pod.message), "")
    return replace(before, phase=str(TaskPhase.RUNNING if begun else TaskPhase.PENDING), message="" if begun else waits)


def pods_detail(party: PartyWorkload, pod_statuses: Mapping[str, PodOfTask]) -> str:
    """Why our own party's pods do not run yet, in full: for our own side only."""
    pods = [pod_statuses[which.name] for which in party.pods]
    return next((f"pod {pod.pod_name}: {pod.message}" for pod in pods if pod.message), "")


def idle_since(pods: Iterable[Pod]) -> str | None:
    """When the pods of one party did something last, if the agents report all that run as idle."""
    times: list[str] = []
    for pod in pods:
        if pod.status.phase != "Running":
            continue
        idle = find_condition(pod.status.conditions, COTERIE_IDLE)
        if idle is None or idle.status != "True" or not idle.last_transition_time:
            return None
        times.append(idle.last_transition_time)
    return max(times, default=None)


def stalled_since(parties: Sequence[PartyTaskStatus]) -> str | None:
    """When any engine of the task did something last, if all parties that have not ended are idle."""
    going = [party for party in parties if party.phase not in TASK_ENDED]
    times = [party.idle_since for party in going if party.phase == TaskPhase.RUNNING and party.idle_since]
    return max(times) if times and len(times) == len(going) else None


def task_phase(parties: Sequence[PartyTaskStatus], wanted: int) -> TaskPhase:
    """`wanted`: parties that must end well."""
    failed = sum(party.phase == TaskPhase.FAILED for party in parties)
    if len(parties) - failed < wanted:
        return TaskPhase.FAILED
    if sum(party.phase == TaskPhase.SUCCEEDED for party in parties) >= wanted:
        return TaskPhase.SUCCEEDED
    begun = any(party.phase not in ("", TaskPhase.PENDING) for party in parties)
    return TaskPhase.RUNNING if begun else TaskPhase.PENDING


def members_wanted(task: KusciaTask) -> int:
    total = len(task.spec.parties)
    chosen = task.spec.schedule_config
    wanted = (chosen.min_reserved_members if chosen is not None else None) or total
    return min(wanted, total)


def ended_at(pods: Iterable[Pod], now: datetime) -> str | None:
    """When the engines of a party had all ended; None while one runs, or where one was stopped."""
    ends = []
    for pod in pods:
        if pod.status.phase not in ("Succeeded", "Failed") or pod.metadata.deletion_timestamp:
            return None
        ends.append(finished_at(pod, now))
    return rfc3339(max(ends)) if ends else None


def lost_connection(log: str) -> bool:
    """Whether the last words of an engine are about a partner that it could not reach any more."""
    return _LOST.search("\n".join(log.splitlines()[-_LAST_LINES:])) is not None


def who_ended_first(parties: Sequence[PartyTaskStatus]) -> str:
    """Of engines that fail one after the other only the first is worth a look; one that ends well too early makes the others
    fail and does not look like it. A sentence, or nothing where the times do not tell."""
    times = [(at, party) for party in parties if party.phase in TASK_ENDED and (at := parse_time(party.ended_at))]
    if len(times) < 2:
        return ""
    began, first = min(times, key=lambda each: each[0])
    later = [(at, party.domain_id) for at, party in times if party.phase == TaskPhase.FAILED and party is not first]
    if not later:
        return ""
    gap = min(at for at, _ in later) - began
    names = ", ".join(name for _, name in later)
    if gap.total_seconds() < 1:
        return ""
    if first.phase == TaskPhase.FAILED:
        return f"{first.domain_id} failed first, {gap.total_seconds():.0f} s before {names}: look there first"
    return (
        f"{first.domain_id} had ended {gap.total_seconds():.0f} s before {names} failed, with exit code 0: an engine that exits "
        "while others still need it makes them fail"
    )


def why_failed(parties: Sequence[PartyTaskStatus], logs: Mapping[str, str]) -> str:
    """One sentence for each party that failed, who ended first, then the last words of our own pods."""
    reasons = [
        f"party {party.domain_id}{f' ({party.role})' if party.role else ''}: {party.message or 'failed'}"
        for party in parties
        if party.phase == TaskPhase.FAILED
    ]
    first = who_ended_first(parties)
    reasons += [first] if first else []
    printed = [f"{pod} printed at the end:\n{log.strip()}" for pod, log in logs.items() if log.strip()]
    return "\n".join(("; ".join(reasons), *printed))
