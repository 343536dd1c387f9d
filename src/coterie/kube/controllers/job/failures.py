"""What the failures of a job's pods mean: the failure policy, the limits, the pauses. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from coterie.kube.api.pod_state import container_statuses, finished_at, restarts
from coterie.kube.api.types.batch import Job, PodFailureRule
from coterie.kube.api.types.pods import Pod

FIRST_PAUSE = 10.0
LONGEST_PAUSE = 600.0
UNLIMITED = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the policy says about one failed pod: Count, Ignore, FailIndex or FailJob."""

    action: str = "Count"
    message: str = ""


def rule(job: Job, pod: Pod) -> Ruling:
    """The first rule that matches decides; without one the failure counts."""
    policy = job.spec.pod_failure_policy
    if policy is None or pod.status.phase != "Failed":
        return Ruling()
    for index, one in enumerate(policy.rules):
        why = _matches(one, pod)
        if why:
            return Ruling(one.action, f"{why} matching {one.action} rule at index {index}")
    return Ruling()


def _matches(one: PodFailureRule, pod: Pod) -> str:
    where = f"{pod.metadata.namespace}/{pod.metadata.name}"
    codes = one.on_exit_codes
    if codes is not None:
        for status in container_statuses(pod):
            code = ((status.state or {}).get("terminated") or {}).get("exitCode")
            if not code or (codes.container_name and codes.container_name != status.name):
                continue
            if (code in codes.values) == (codes.operator == "In"):
                return f"Container {status.name} for pod {where} failed with exit code {code}"
        return ""
    for wanted in one.on_pod_conditions or ():
        for found in pod.status.conditions or ():
            if found.type == wanted.type and found.status == wanted.status:
                return f"Pod {where} has condition {found.type}"
    return ""


def counts_as_failed(job: Job, pod: Pod) -> bool:
    """A deleted pod counts at once, it may never say how it ended; unless replacements have to wait for that."""
    if pod.status.phase == "Failed":
        return True
    return pod.metadata.deleting and pod.status.phase != "Succeeded" and not waits_for_the_end(job)


def waits_for_the_end(job: Job) -> bool:
    return job.spec.pod_replacement_policy == "Failed" or job.spec.pod_failure_policy is not None


def over_the_limit(job: Job, failed: int, pods: Iterable[Pod]) -> bool:
    limit = 6 if job.spec.backoff_limit is None else job.spec.backoff_limit
    if failed > limit:
        return True
    spec = (job.spec.template or {}).get("spec") or {}
    if spec.get("restartPolicy") != "OnFailure":
        return False
    # Such pods do not fail, they start their containers again; that counts as well.
    again = sum(restarts(pod) for pod in pods if pod.status.phase in ("Running", "Pending"))
    return again > 0 if limit == 0 else again >= limit


def pause(pods: Sequence[Pod], now: datetime) -> float:
    """Seconds to wait before the next pod: 10, 20, 40, ... 600 after each failure since the last success."""
    last_success: datetime | None = None
    ends: list[datetime] = []
    for pod in pods:
        if pod.status.phase == "Succeeded":
            at = finished_at(pod, now)
            last_success = at if last_success is None else max(last_success, at)
        elif pod.status.phase == "Failed":
            ends.append(finished_at(pod, now))
    recent = [at for at in ends if last_success is None or at > last_success]
    if not recent:
        return 0.0
    length = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(len(recent) - 1, 10))
    return max(0.0, (max(recent) + timedelta(seconds=length) - now).total_seconds())
