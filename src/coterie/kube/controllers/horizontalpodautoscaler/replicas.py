"""How many replicas a metric asks for. Pure; the public algorithm of Kubernetes' HorizontalPodAutoscaler.

    desired = ceil(pods * current / target)          no change while current / target is within the tolerance

Pods that are being deleted or have failed do not count. Pods without a sample count as fully used when the others ask for
fewer replicas and as idle when they ask for more; pods that are not ready yet count as idle when the others ask for more. Both only
make a change smaller: when they turn its direction, nothing changes.

All amounts are thousandths (of a CPU, of a byte, of a unit of a metric).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil

from coterie.kube.api import quantity
from coterie.kube.api.pod_state import is_ready, parse_time, ready_condition
from coterie.kube.api.types.pods import Container, Pod

CPU = "cpu"


@dataclass(frozen=True, slots=True)
class AutoscalerTuning:
    """As the flags of kube-controller-manager, with its defaults."""

    tolerance_up: float = 0.1
    """A ratio this close above 1 changes nothing; `behavior.scaleUp.tolerance` replaces it."""
    tolerance_down: float = 0.1
    """A ratio this close below 1 changes nothing; `behavior.scaleDown.tolerance` replaces it."""
    initialization: timedelta = timedelta(minutes=5)
    """How long after its start the CPU samples of a pod that is not ready do not count."""
    initial_readiness: timedelta = timedelta(seconds=30)
    """A pod that turned unready this soon after its start has never been ready."""
    downscale_stabilization: int = 300
    """Seconds; the default of `behavior.scaleDown.stabilizationWindowSeconds`."""

    def tolerates(self, ratio: float) -> bool:
        # Kubernetes compares in float64 too; a hair of rounding must not decide at exactly 10 %.
        return -self.tolerance_down - 1e-9 <= ratio - 1.0 <= self.tolerance_up + 1e-9


TUNING = AutoscalerTuning()


@dataclass(frozen=True, slots=True)
class PodSample:
    """What one pod uses, averaged over the window that ends at `at`."""

    value: int
    at: datetime
    window: timedelta


Samples = Mapping[str, PodSample]
"""By the name of the pod."""


@dataclass(frozen=True, slots=True)
class Proposal:
    replicas: int
    average: int
    """Of the pods that have samples."""
    utilization: int | None = None
    """Percent of the requests."""


class MetricUnavailable(Exception):
    """No number of replicas follows from this metric; the message goes into a condition."""


@dataclass(frozen=True, slots=True)
class PodGroups:
    ready: int
    """Pods whose sample counts."""
    unready: frozenset[str]
    missing: frozenset[str]
    """Pods without a sample."""
    ignored: frozenset[str]


def group_pods(
    pods: Iterable[Pod], samples: Samples, resource: str, now: datetime, tuning: AutoscalerTuning
) -> PodGroups:
    ready = 0
    unready, missing, ignored = set(), set(), set()
    for pod in pods:
        name = pod.metadata.name
        if pod.metadata.deleting or pod.status.phase == "Failed":
            ignored.add(name)
        elif pod.status.phase == "Pending":
            unready.add(name)
        elif name not in samples:
            missing.add(name)
        elif resource == CPU and _starting(pod, samples[name], now, tuning):
            unready.add(name)
        else:
            ready += 1
    return PodGroups(ready, frozenset(unready), frozenset(missing), frozenset(ignored))


def _starting(pod: Pod, sample: PodSample, now: datetime, tuning: AutoscalerTuning) -> bool:
    """Whether the CPU that the pod uses says nothing of its load, because it still starts."""
    condition = ready_condition(pod)
    started = parse_time(pod.status.start_time)
    changed = parse_time(condition.last_transition_time) if condition is not None else None
    if condition is None or started is None or changed is None:
        return True
    if now < started + tuning.initialization:
        # The whole window of the sample must lie after the last change of readiness.
        return condition.status == "False" or sample.at < changed + sample.window
    return condition.status == "False" and changed < started + tuning.initial_readiness


def utilization_replicas(
    current: int,
    target: int,
    samples: Samples,
    pods: Sequence[Pod],
    resource: str,
    container: str,
    now: datetime,
    tuning: AutoscalerTuning = TUNING,
) -> Proposal:
    """`target` is in percent of the requests; `container` limits both to that container. Raises MetricUnavailable."""
    groups, counted = _counted(samples, pods, resource, now, tuning)
    requests = {pod.metadata.name: pod_request(pod, resource, container) for pod in pods}

    def percent(of: Mapping[str, int]) -> int:
        requested = sum(requests[name] for name in of)
        if not requested:
            raise MetricUnavailable("no metrics returned matched known pods")
        return sum(of.values()) * 100 // requested

    utilization = percent(counted)
    average = sum(counted.values()) // len(counted)
    wanted = _replicas(
        current,
        counted,
        groups,
        ratio=lambda of: percent(of) / target,
        when_missing=lambda name: requests[name] * max(100, target) // 100,
        tuning=tuning,
    )
    return Proposal(wanted, average, utilization)


def average_replicas(
    current: int,
    target: int,
    samples: Samples,
    pods: Sequence[Pod],
    resource: str,
    now: datetime,
    tuning: AutoscalerTuning = TUNING,
) -> Proposal:
    """`target` is an amount for each pod. Raises MetricUnavailable."""
    groups, counted = _counted(samples, pods, resource, now, tuning)
    wanted = _replicas(
        current,
        counted,
        groups,
        ratio=lambda of: (sum(of.values()) // len(of)) / target,
        when_missing=lambda name: target,
        tuning=tuning,
    )
    return Proposal(wanted, sum(counted.values()) // len(counted))


def value_replicas(
    current: int, target: int, value: int, pods: Sequence[Pod], tuning: AutoscalerTuning = TUNING
) -> int:
    """For one value that describes the whole target, compared with a target of type Value."""
    ratio = value / target
    if not current:
        return _ceil(ratio)
    if tuning.tolerates(ratio):
        return current
    return _ceil(ratio * sum(1 for pod in pods if pod.status.phase == "Running" and is_ready(pod)))


def total_replicas(
    current: int, status_replicas: int, target: int, value: int, tuning: AutoscalerTuning = TUNING
) -> int:
    """For one value that is shared by all pods, compared with a target of type AverageValue."""
    ratio = value / (target * status_replicas) if status_replicas else 0.0
    return current if status_replicas and tuning.tolerates(ratio) else -(-value // target)


def pod_request(pod: Pod, resource: str, container: str) -> int:
    """What the pod, or one of its containers, requests of the resource. Raises MetricUnavailable."""
    whole = (pod.spec.resources.requests if pod.spec.resources is not None else None) or {}
    if not container and resource in whole:
        return quantity.parse(whole[resource]).milli_value()
    total = 0
    for each in _running_containers(pod):
        if container and each.name != container:
            continue
        requests = (each.resources.requests if each.resources is not None else None) or {}
        if resource not in requests:
            name = pod.metadata.name
            raise MetricUnavailable(f"missing request for {resource} in container {each.name} of Pod {name}")
        total += quantity.parse(requests[resource]).milli_value()
    return total


def _running_containers(pod: Pod) -> list[Container]:
    """Containers and sidecars; other init containers have ended while a pod is measured."""
    sidecars = [each for each in pod.spec.init_containers or () if each.restart_policy == "Always"]
    return [*pod.spec.containers, *sidecars]


def _counted(
    samples: Samples, pods: Sequence[Pod], resource: str, now: datetime, tuning: AutoscalerTuning
) -> tuple[PodGroups, dict[str, int]]:
    """The groups, and the samples of the pods that count. Raises MetricUnavailable when there are none."""
    if not pods:
        raise MetricUnavailable("no pods returned by selector while calculating replica count")
    groups = group_pods(pods, samples, resource, now, tuning)
    left_out = groups.ignored | groups.unready
    names = [pod.metadata.name for pod in pods]
    counted = {name: samples[name].value for name in names if name in samples and name not in left_out}
    if not counted:
        raise MetricUnavailable("did not receive metrics for targeted pods (pods might be unready)")
    return groups, counted


def _replicas(
    current: int,
    counted: Mapping[str, int],
    groups: PodGroups,
    *,
    ratio: Callable[[Mapping[str, int]], float],
    when_missing: Callable[[str], int],
    tuning: AutoscalerTuning,
) -> int:
    first = ratio(counted)
    unready = groups.unready if first > 1.0 else frozenset[str]()
    if not unready and not groups.missing:
        return current if tuning.tolerates(first) else _ceil(first * groups.ready)
    careful = dict(counted)
    if first < 1.0:
        careful.update((name, when_missing(name)) for name in groups.missing)
    elif first > 1.0:
        careful.update(dict.fromkeys(groups.missing, 0))
    careful.update(dict.fromkeys(unready, 0))
    second = ratio(careful)
    if tuning.tolerates(second) or (first < 1.0 < second) or (second < 1.0 < first):
        return current
    wanted = _ceil(second * len(careful))
    if (second < 1.0 and wanted > current) or (second > 1.0 and wanted < current):
        return current
    return wanted


def _ceil(value: float) -> int:
    """Rounded up, but not because of the last bit of a float: 1.1 * 10 is 11 replicas."""
    return ceil(value - 1e-9)
