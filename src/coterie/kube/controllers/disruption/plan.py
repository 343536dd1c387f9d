"""How many pods of a budget may be disrupted now. Pure.

    minAvailable: 2        desiredHealthy = 2                            expectedPods = number of matching pods
    minAvailable: 50%      desiredHealthy = ceil(expectedPods / 2)       expectedPods = sum of the controllers' scales
    maxUnavailable: 1      desiredHealthy = expectedPods - 1             expectedPods = sum of the controllers' scales
    maxUnavailable: 50%    desiredHealthy = expectedPods - ceil(e. / 2)  expectedPods = sum of the controllers' scales

`disruptionsAllowed` is `currentHealthy - desiredHealthy`, never negative, and 0 while no pod is expected. Pods without a controller
add nothing to a sum of scales, so only an integer `minAvailable` is useful for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from coterie.base.clock import rfc3339
from coterie.kube.api.meta import Condition, Object, controller_of, find_condition, set_condition
from coterie.kube.api.pod_state import is_ready, parse_time
from coterie.kube.api.types.apps import IntOrPercent
from coterie.kube.api.types.merge import difference
from coterie.kube.api.types.pods import Pod
from coterie.kube.api.types.policy import PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus

DISRUPTION_ALLOWED = "DisruptionAllowed"
SUFFICIENT_PODS = "SufficientPods"
INSUFFICIENT_PODS = "InsufficientPods"
SYNC_FAILED = "SyncFailed"
DELETION_TIMEOUT = timedelta(minutes=2)
"""A pod that is not deleted this long after its eviction is taken to stay."""


class ExpectedPodsUnknown(Exception):
    """The number of expected pods cannot be computed; the message becomes the condition's message."""


@dataclass(frozen=True, slots=True)
class ControllerScale:
    """The object that decides how many pods there are: for pods of a Deployment the Deployment, not its ReplicaSet."""

    uid: str
    replicas: int


@dataclass(frozen=True, slots=True)
class Outcome:
    status: PodDisruptionBudgetStatus
    recheck: float | None
    """Seconds after which the next entry of `disruptedPods` times out."""
    not_deleted: tuple[Pod, ...]
    """Pods whose entry has timed out."""


def needs_scale(spec: PodDisruptionBudgetSpec) -> bool:
    """Whether the expected number of pods is read from their controllers; otherwise the matching pods are counted."""
    return spec.max_unavailable is not None or isinstance(spec.min_available, str)


def sync(
    budget: PodDisruptionBudget, pods: Sequence[Pod], scales: Mapping[str, ControllerScale | None], now: datetime
) -> Outcome:
    """The status that follows from the matching pods. `scales` is keyed by the UID of a pod's controller.

    Raises ExpectedPodsUnknown.
    """
    expected = expected_pods(pods, scales) if needs_scale(budget.spec) else len(pods)
    desired = desired_healthy(budget.spec, expected)
    disrupted, recheck, not_deleted = disrupted_pods(budget.status, pods, now)
    healthy = sum(
        1 for pod in pods if not pod.metadata.deleting and pod.metadata.name not in disrupted and is_ready(pod)
    )
    allowed = max(0, healthy - desired) if expected > 0 else 0
    generation = budget.metadata.generation
    status = msgspec.structs.replace(
        budget.status,
        disruptions_allowed=allowed,
        current_healthy=healthy,
        desired_healthy=desired,
        expected_pods=expected,
        observed_generation=generation,
        disrupted_pods=disrupted or None,
        conditions=set_condition(budget.status.conditions, _allowed_condition(allowed, generation), rfc3339(now)),
    )
    return Outcome(status, recheck, not_deleted)


def failed(budget: PodDisruptionBudget, message: str, now: datetime) -> PodDisruptionBudgetStatus:
    """Nothing may be disrupted while the budget cannot be computed. The other figures stay as last computed."""
    condition = Condition(
        type=DISRUPTION_ALLOWED,
        status="False",
        reason=SYNC_FAILED,
        message=message,
        observed_generation=budget.status.observed_generation,
    )
    return msgspec.structs.replace(
        budget.status,
        disruptions_allowed=0,
        conditions=set_condition(budget.status.conditions, condition, rfc3339(now)),
    )


def has_failed(status: PodDisruptionBudgetStatus) -> bool:
    condition = find_condition(status.conditions, DISRUPTION_ALLOWED)
    return condition is not None and condition.reason == SYNC_FAILED


def expected_pods(pods: Sequence[Pod], scales: Mapping[str, ControllerScale | None]) -> int:
    """The sum of the scales of all controllers of these pods, each counted once."""
    counted: dict[str, int] = {}
    for pod in pods:
        owner = controller_of(pod.metadata)
        if owner is None:
            continue
        scale = scales.get(owner.uid)
        if scale is None:
            raise ExpectedPodsUnknown(f'found no controllers for pod "{pod.metadata.name}"')
        counted[scale.uid] = scale.replicas
    return sum(counted.values())


def desired_healthy(spec: PodDisruptionBudgetSpec, expected: int) -> int:
    if spec.max_unavailable is not None:
        return max(0, expected - _scaled(spec.max_unavailable, expected))
    if spec.min_available is not None:
        return _scaled(spec.min_available, expected)
    return 0


def disrupted_pods(
    status: PodDisruptionBudgetStatus, pods: Sequence[Pod], now: datetime
) -> tuple[dict[str, str | None], float | None, tuple[Pod, ...]]:
    """The entries that still count, seconds until the next of them times out, and the pods that were not deleted."""
    kept: dict[str, str | None] = {}
    recheck: float | None = None
    not_deleted: list[Pod] = []
    known = status.disrupted_pods or {}
    for pod in pods:
        name = pod.metadata.name
        if pod.metadata.deleting or name not in known:
            continue
        evicted = parse_time(known[name])
        left = (evicted + DELETION_TIMEOUT - now).total_seconds() if evicted is not None else 0.0
        if left <= 0:
            not_deleted.append(pod)
            continue
        kept[name] = known[name]
        recheck = left if recheck is None else min(recheck, left)
    return kept, recheck, tuple(not_deleted)


def status_patch(before: PodDisruptionBudgetStatus, after: PodDisruptionBudgetStatus) -> Object | None:
    """The merge patch from one status to the other; None when they are the same."""
    return difference(_wire(before), _wire(after)) or None


def _wire(status: PodDisruptionBudgetStatus) -> Object:
    """As JSON, with the four counts written even when they are 0: the API requires them."""
    counts = {
        "disruptionsAllowed": status.disruptions_allowed,
        "currentHealthy": status.current_healthy,
        "desiredHealthy": status.desired_healthy,
        "expectedPods": status.expected_pods,
    }
    out: dict[str, Any] = {**msgspec.to_builtins(status), **counts}
    # `reason` and `message` are required of a condition too.
    out["conditions"] = [
        {**msgspec.to_builtins(condition), "reason": condition.reason, "message": condition.message}
        for condition in status.conditions or ()
    ]
    return out


def _allowed_condition(allowed: int, generation: int) -> Condition:
    return Condition(
        type=DISRUPTION_ALLOWED,
        status="True" if allowed > 0 else "False",
        reason=SUFFICIENT_PODS if allowed > 0 else INSUFFICIENT_PODS,
        observed_generation=generation,
    )


def _scaled(value: IntOrPercent, total: int) -> int:
    """A number, or a percentage of the total rounded up, as Kubernetes rounds both fields."""
    if isinstance(value, int):
        return value
    return -(-int(value.removesuffix("%")) * total // 100)
