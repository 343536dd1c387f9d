"""What becomes of an autoscaler's target now. Pure: `plan(view)` says it, `finish` completes the status after the write.

    the target                                   replicas
    -------------------------------------------  ----------------------------------------------------------------------
    has 0 replicas                               0: scaling is disabled by hand
    has more than maxReplicas                    maxReplicas
    has fewer than minReplicas                   minReplicas
    otherwise                                    the greatest that one of the metrics asks for (`replicas.py`), as fast as
                                                 `behavior` allows (`behavior.py`); unchanged when no metric can be read, or when
                                                 some cannot and the others ask for fewer

Reasons and messages of conditions and events are those of kube-controller-manager: people and dashboards search for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

import msgspec

from coterie.base.clock import rfc3339
from coterie.kube.api import quantity
from coterie.kube.api.meta import Condition, Object, ObjectKey, find_condition, set_condition
from coterie.kube.api.pod_state import parse_time
from coterie.kube.api.selectors import selector_of
from coterie.kube.api.types.autoscaling import (
    CustomMetricSource,
    HorizontalPodAutoscaler,
    HorizontalPodAutoscalerStatus,
    MetricSpec,
    PodMetrics,
    ResourceMetricSource,
    ScaleTargetReference,
)
from coterie.kube.api.types.merge import difference
from coterie.kube.api.types.pods import Pod
from coterie.kube.controllers.horizontalpodautoscaler.behavior import History, normalize
from coterie.kube.controllers.horizontalpodautoscaler.replicas import (
    TUNING,
    AutoscalerTuning,
    MetricUnavailable,
    PodSample,
    Proposal,
    Samples,
    average_replicas,
    total_replicas,
    utilization_replicas,
    value_replicas,
)

ABLE, ACTIVE, LIMITED = "AbleToScale", "ScalingActive", "ScalingLimited"
_ONE_DAY = timedelta(days=1)

PodsMetric = tuple[str, str, str]
"""(namespace, name of the metric, its label selector)"""


class ObjectMetric(NamedTuple):
    """A metric of one object."""

    namespace: str
    api_version: str
    kind: str
    name: str
    metric: str
    selector: str


@dataclass(frozen=True, slots=True)
class TargetScale:
    replicas: int
    status_replicas: int
    selector: str


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """What one round of the controller has read."""

    pods: Mapping[ObjectKey, PodMetrics] = field(default_factory=dict)
    problem: str = ""
    """Why the resource metrics could not be read."""
    custom: Mapping[PodsMetric, Samples | str] = field(default_factory=dict)
    """Metrics of the type Pods, or why they could not be read."""
    objects: Mapping[ObjectMetric, int | str] = field(default_factory=dict)
    """Of the type Object, in thousandths."""
    external: Mapping[PodsMetric, int | str] = field(default_factory=dict)
    """Of the type External, in thousandths."""


@dataclass(frozen=True, slots=True)
class AutoscalerView:
    autoscaler: HorizontalPodAutoscaler
    scale: TargetScale | None
    scale_problem: str
    """Why there is no scale."""
    selector_problem: str
    """Why the scale's selector cannot be used."""
    pods: Sequence[Pod]
    """What the selector matches."""
    same_pods: tuple[str, ...]
    """Autoscalers that select some of these pods, this one included, when there are others."""
    metrics: MetricsSnapshot
    history: History
    now: datetime
    monotonic: float
    tuning: AutoscalerTuning = TUNING


@dataclass(frozen=True, slots=True)
class EventNote:
    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ScalePlan:
    replicas: int | None
    """To write to the scale; None: it stays as it is."""
    reason: str
    """Why it changes."""
    status: HorizontalPodAutoscalerStatus
    events: tuple[EventNote, ...]
    history: History


@dataclass(slots=True)
class _Draft:
    """The status while it is made."""

    view: AutoscalerView
    conditions: tuple[Condition, ...]
    events: list[EventNote]

    def set(self, type_: str, status: bool, reason: str, message: str) -> None:
        """Transition times have no smaller unit than seconds, and only move with the status."""
        new = Condition(type=type_, status=str(status), reason=reason, message=message)
        self.conditions = set_condition(self.conditions, new, rfc3339(self.view.now))

    def fail(self, type_: str, reason: str, message: str, *notes: EventNote) -> None:
        """The condition is false. The events are recorded once, not in each round in which it stays so."""
        known = find_condition(self.view.autoscaler.status.conditions, type_)
        if known is None or (known.reason, known.message) != (reason, message):
            self.events += notes
        self.set(type_, False, reason, message)


@dataclass(frozen=True, slots=True)
class _Computed:
    replicas: int
    metric: str
    """Name of the metric that asks for the most; empty: no number follows."""
    statuses: tuple[Object, ...]


def _tuned(view: AutoscalerView) -> AutoscalerTuning:
    """With the tolerances that the autoscaler sets itself."""
    behavior, tuning = view.autoscaler.spec.behavior, view.tuning
    if behavior is not None and behavior.scale_up is not None and behavior.scale_up.tolerance is not None:
        tuning = replace(tuning, tolerance_up=quantity.parse(behavior.scale_up.tolerance).milli_value() / 1000)
    if behavior is not None and behavior.scale_down is not None and behavior.scale_down.tolerance is not None:
        tuning = replace(tuning, tolerance_down=quantity.parse(behavior.scale_down.tolerance).milli_value() / 1000)
    return tuning


def plan(view: AutoscalerView) -> ScalePlan:
    view = replace(view, tuning=_tuned(view))
    autoscaler, scale = view.autoscaler, view.scale
    spec, before = autoscaler.spec, autoscaler.status
    draft = _Draft(view, before.conditions or (), [])
    if scale is None:
        message = f"the HPA controller was unable to get the target's current scale: {view.scale_problem}"
        draft.fail(ABLE, "FailedGetScale", message, EventNote("Warning", "FailedGetScale", view.scale_problem))
        return _done(draft, before.current_replicas, before.desired_replicas, before.current_metrics)
    draft.set(ABLE, True, "SucceededGetScale", "the HPA controller was able to get the target's current scale")
    current = scale.replicas
    least = 1 if spec.min_replicas is None else spec.min_replicas
    history = view.history.started(view.monotonic, current)
    if not current and least:
        words = "scaling is disabled since the replica count of the target is zero"
        draft.set(ACTIVE, False, "ScalingDisabled", words)
        return _done(draft, current, 0, None, history=history)
    if current > spec.max_replicas:
        reason = "Current number of replicas above Spec.MaxReplicas"
        return _done(draft, current, spec.max_replicas, None, reason, history)
    if current < least:
        reason = "Current number of replicas below Spec.MinReplicas"
        return _done(draft, current, least, None, reason, history)
    computed = _compute(draft, scale)
    if not computed.metric:
        return _done(draft, current, current, computed.statuses, history=history)
    limited = normalize(
        spec.behavior,
        history,
        current,
        computed.replicas,
        least,
        spec.max_replicas,
        view.monotonic,
        view.tuning.downscale_stabilization,
    )
    draft.set(ABLE, True, limited.able_reason, limited.able_message)
    draft.set(LIMITED, limited.limited, limited.limit_reason, limited.limit_message)
    reason = ""
    if limited.replicas != current:
        above = limited.replicas > current
        reason = f"{computed.metric} above target" if above else "All metrics below target"
    return _done(draft, current, limited.replicas, computed.statuses, reason, limited.history)


def limit(view: AutoscalerView, planned: ScalePlan, allowed: int, why: str) -> ScalePlan:
    """When fewer replicas are allowed than were planned, by something else than the autoscaler."""
    draft = _Draft(view, planned.status.conditions or (), list(planned.events))
    draft.set(LIMITED, True, "QuotaExceeded", why)
    current = view.scale.replicas if view.scale is not None else 0
    status = msgspec.structs.replace(_with(planned.status, draft), desired_replicas=allowed)
    wanted = allowed if allowed != current else None
    return ScalePlan(wanted, planned.reason, status, planned.events, planned.history)


def finish(view: AutoscalerView, planned: ScalePlan, problem: str = "") -> ScalePlan:
    """After the scale was written; `problem`: why it was not."""
    draft = _Draft(view, planned.status.conditions or (), list(planned.events))
    wanted, current = planned.replicas, view.scale.replicas if view.scale is not None else 0
    if wanted is None:
        return planned
    if problem:
        message = f"the HPA controller was unable to update the target scale: {problem}"
        words = f"New size: {wanted}; reason: {planned.reason}; error: {problem}"
        draft.fail(ABLE, "FailedUpdateScale", message, EventNote("Warning", "FailedRescale", words))
        return ScalePlan(None, planned.reason, _with(planned.status, draft), tuple(draft.events), planned.history)
    message = f"the HPA controller was able to update the target scale to {wanted}"
    draft.set(ABLE, True, "SucceededRescale", message)
    draft.events.append(EventNote("Normal", "SuccessfulRescale", f"New size: {wanted}; reason: {planned.reason}"))
    status = msgspec.structs.replace(_with(planned.status, draft), last_scale_time=rfc3339(view.now))
    history = planned.history.scaled(view.monotonic, current, wanted)
    return ScalePlan(wanted, planned.reason, status, tuple(draft.events), history)


def status_patch(before: HorizontalPodAutoscalerStatus, after: HorizontalPodAutoscalerStatus) -> Object | None:
    """The merge patch; None when nothing differs."""
    return difference(_wire(before), _wire(after)) or None


def pods_metrics(autoscaler: HorizontalPodAutoscaler) -> list[PodsMetric]:
    """The metrics of the type Pods that the autoscaler needs."""
    return [
        pods_metric(autoscaler.metadata.namespace, metric.pods)
        for metric in autoscaler.spec.metrics or ()
        if metric.type == "Pods" and metric.pods is not None
    ]


def pods_metric(namespace: str, source: CustomMetricSource) -> PodsMetric:
    selector = source.metric.selector
    return namespace, source.metric.name, str(selector_of(selector)) if selector else ""


def object_metrics(autoscaler: HorizontalPodAutoscaler) -> list[ObjectMetric]:
    """The metrics of the type Object that the autoscaler needs."""
    return [
        object_metric(autoscaler.metadata.namespace, metric.object)
        for metric in autoscaler.spec.metrics or ()
        if metric.type == "Object" and metric.object is not None
    ]


def object_metric(namespace: str, source: CustomMetricSource) -> ObjectMetric:
    described = source.described_object or ScaleTargetReference()
    _, name, selector = pods_metric(namespace, source)
    return ObjectMetric(namespace, described.api_version, described.kind, described.name, name, selector)


def external_metrics(autoscaler: HorizontalPodAutoscaler) -> list[PodsMetric]:
    """The metrics of the type External that the autoscaler needs."""
    return [
        pods_metric(autoscaler.metadata.namespace, metric.external)
        for metric in autoscaler.spec.metrics or ()
        if metric.type == "External" and metric.external is not None
    ]


def needs_resource_metrics(autoscaler: HorizontalPodAutoscaler) -> bool:
    return any(metric.type in ("Resource", "ContainerResource") for metric in autoscaler.spec.metrics or ())


# Metrics.


def _compute(draft: _Draft, scale: TargetScale) -> _Computed:
    view = draft.view
    if view.selector_problem:
        note = EventNote("Warning", "InvalidSelector", view.selector_problem)
        draft.fail(ACTIVE, "InvalidSelector", view.selector_problem, note)
        return _Computed(-1, "", ())
    if view.same_pods:
        names = ", ".join(view.same_pods)
        message = f"pods by selector {scale.selector} are controlled by multiple HPAs: [{names}]"
        draft.fail(ACTIVE, "AmbiguousSelector", message, EventNote("Warning", "AmbiguousSelector", message))
        return _Computed(-1, "", ())
    best, best_name, valid = -1, "", 0
    statuses: list[Object] = []
    failures: list[tuple[str, str]] = []
    metrics = view.autoscaler.spec.metrics or ()
    for metric in metrics:
        try:
            replicas, name, status = _metric(view, scale, metric)
        except MetricUnavailable as problem:
            failures.append((_failure_reason(metric), str(problem)))
            continue
        valid += 1
        statuses.append(status)
        if replicas > best:
            best, best_name = replicas, name
    if failures and (not valid or best < scale.replicas):
        # Fewer replicas are not known to be enough while one of the metrics is not known.
        reason, problem_text = failures[0]
        message = f"the HPA was unable to compute the replica count: {problem_text}"
        summary = f"invalid metrics ({len(failures)} invalid out of {len(metrics)}), first error is: {problem_text}"
        notes = (
            EventNote("Warning", reason, problem_text),
            EventNote("Warning", "FailedComputeMetricsReplicas", summary),
        )
        draft.fail(ACTIVE, reason, message, *notes)
        return _Computed(-1, "", tuple(statuses))
    words = f"the HPA was able to successfully calculate a replica count from {best_name}"
    draft.set(ACTIVE, True, "ValidMetricFound", words)
    return _Computed(best, best_name, tuple(statuses))


def _failure_reason(metric: MetricSpec) -> str:
    if metric.type in ("Resource", "ContainerResource", "Pods", "Object", "External"):
        return f"FailedGet{metric.type}Metric"
    return "InvalidMetricSourceType"


def _metric(view: AutoscalerView, scale: TargetScale, metric: MetricSpec) -> tuple[int, str, Object]:
    """Replicas, the name of the metric for people, and its entry in the status."""
    match metric.type:
        case "Resource" if metric.resource is not None:
            return _resource(view, scale, metric.resource, "")
        case "ContainerResource" if metric.container_resource is not None:
            return _resource(view, scale, metric.container_resource, metric.container_resource.container)
        case "Pods" if metric.pods is not None:
            return _of_pods(view, scale, metric.pods)
        case "Object" if metric.object is not None:
            return _of_object(view, scale, metric.object)
        case "External" if metric.external is not None:
            return _external(view, scale, metric.external)
    raise MetricUnavailable(f'unknown metric source type "{metric.type}"')


def _resource(
    view: AutoscalerView, scale: TargetScale, source: ResourceMetricSource, container: str
) -> tuple[int, str, Object]:
    target = source.target
    samples = _resource_samples(view, source.name, container)
    field_name = "containerResource" if container else "resource"
    kind = "ContainerResource" if container else "Resource"
    what = f"{source.name} {'container ' if container else ''}resource"
    if target.average_value is not None:
        aim = quantity.parse(target.average_value).milli_value()
        proposal = average_replicas(scale.replicas, aim, samples, view.pods, source.name, view.now, view.tuning)
        name = what
    elif target.average_utilization is not None:
        proposal = utilization_replicas(
            scale.replicas,
            target.average_utilization,
            samples,
            view.pods,
            source.name,
            container,
            view.now,
            view.tuning,
        )
        name = f"{what} utilization (percentage of request)"
    else:
        raise MetricUnavailable(
            "invalid resource metric source: neither an average utilization nor an average value target"
        )
    identity = {"name": source.name, **({"container": container} if container else {})}
    return proposal.replicas, name, {"type": kind, field_name: {**identity, "current": _current(proposal)}}


def _of_pods(view: AutoscalerView, scale: TargetScale, source: CustomMetricSource) -> tuple[int, str, Object]:
    found = view.metrics.custom.get(pods_metric(view.autoscaler.metadata.namespace, source), "it was not read")
    if isinstance(found, str):
        raise MetricUnavailable(f"unable to get metric {source.metric.name}: {found}")
    if source.target.average_value is None:
        raise MetricUnavailable("invalid pods metric source: no average value target")
    own = {pod.metadata.name for pod in view.pods}
    samples = {name: sample for name, sample in found.items() if name in own}
    if not samples:
        raise MetricUnavailable(f"unable to get metric {source.metric.name}: no pod of the target reports it")
    aim = quantity.parse(source.target.average_value).milli_value()
    proposal = average_replicas(scale.replicas, aim, samples, view.pods, "", view.now, view.tuning)
    identity = msgspec.to_builtins(source.metric)
    status = {"type": "Pods", "pods": {"metric": identity, "current": _current(proposal)}}
    return proposal.replicas, f"pods metric {source.metric.name}", status


def _of_object(view: AutoscalerView, scale: TargetScale, source: CustomMetricSource) -> tuple[int, str, Object]:
    described = source.described_object or ScaleTargetReference()
    found = view.metrics.objects.get(object_metric(view.autoscaler.metadata.namespace, source), "it was not read")
    if isinstance(found, str):
        where = f"{described.kind} on {view.autoscaler.metadata.namespace} {described.name}"
        raise MetricUnavailable(
            f"failed to get object metric value: unable to get metric {source.metric.name}: {where}/{found}"
        )
    replicas, current = _of_value(view, scale, source, found, "object")
    status = {
        "type": "Object",
        "object": {
            "metric": msgspec.to_builtins(source.metric),
            "current": current,
            "describedObject": msgspec.to_builtins(described),
        },
    }
    return replicas, f"{described.kind} metric {source.metric.name}", status


def _external(view: AutoscalerView, scale: TargetScale, source: CustomMetricSource) -> tuple[int, str, Object]:
    name, selector = source.metric.name, source.metric.selector
    found = view.metrics.external.get(pods_metric(view.autoscaler.metadata.namespace, source), "it was not read")
    if isinstance(found, str):
        shown = str(selector_of(selector)) if selector else ""
        where = f"{view.autoscaler.metadata.namespace}/{name}/{shown}"
        raise MetricUnavailable(
            f"failed to get {name} external metric value: unable to get external metric {where}: {found}"
        )
    replicas, current = _of_value(view, scale, source, found, "external")
    status = {"type": "External", "external": {"metric": msgspec.to_builtins(source.metric), "current": current}}
    return replicas, f"external metric {name}({selector_of(selector) if selector else 'nil'})", status


def _of_value(
    view: AutoscalerView, scale: TargetScale, source: CustomMetricSource, found: int, kind: str
) -> tuple[int, Object]:
    """Replicas for one value that stands for all pods, and what the status shows of it."""
    target = source.target
    if target.value is not None:
        aim = quantity.parse(target.value).milli_value()
        replicas = value_replicas(scale.replicas, aim, found, view.pods, view.tuning)
        return replicas, {"value": str(quantity.from_milli(found))}
    if target.average_value is not None:
        aim = quantity.parse(target.average_value).milli_value()
        replicas = total_replicas(scale.replicas, scale.status_replicas, aim, found, view.tuning)
        average = -(-found // scale.status_replicas) if scale.status_replicas else 0
        return replicas, {"averageValue": str(quantity.from_milli(average))}
    raise MetricUnavailable(f"invalid {kind} metric source: neither a value target nor an average value target was set")


def _current(proposal: Proposal) -> Object:
    out: dict[str, Any] = {"averageValue": str(quantity.from_milli(proposal.average))}
    if proposal.utilization is not None:
        out["averageUtilization"] = proposal.utilization
    return out


def _resource_samples(view: AutoscalerView, resource: str, container: str) -> dict[str, PodSample]:
    """Of pods whose containers (or the one that is asked for) all have a figure."""
    if view.metrics.problem:
        raise MetricUnavailable(f"failed to get {resource} usage: {view.metrics.problem}")
    out: dict[str, PodSample] = {}
    for pod in view.pods:
        found = view.metrics.pods.get(pod.key)
        at = parse_time(found.timestamp) if found is not None else None
        if found is None or at is None:
            continue
        values = [each.usage.get(resource) for each in found.containers if container in ("", each.name)]
        if values and None not in values:
            total = sum(quantity.parse(value).milli_value() for value in values if value is not None)
            out[pod.metadata.name] = PodSample(total, at, window_of(found.window))
    if view.pods and not out:
        raise MetricUnavailable(
            f"failed to get {resource} usage: unable to get metrics for resource {resource}: "
            "no metrics returned from resource metrics API"
        )
    return out


def window_of(text: str) -> timedelta:
    """A duration as the metrics API writes it: `15s`, `1m0.5s`."""
    total, number = 0.0, ""
    for char in text:
        if char.isdigit() or char == ".":
            number += char
        elif number:
            total += float(number) * {"h": 3600, "m": 60, "s": 1}.get(char, 0)
            number = ""
    return min(timedelta(seconds=total), _ONE_DAY)


# Status.


def _done(
    draft: _Draft,
    current: int,
    desired: int,
    metrics: tuple[Object, ...] | None,
    reason: str = "",
    history: History | None = None,
) -> ScalePlan:
    view = draft.view
    status = HorizontalPodAutoscalerStatus(
        observed_generation=view.autoscaler.metadata.generation,
        last_scale_time=view.autoscaler.status.last_scale_time,
        current_replicas=current,
        desired_replicas=desired,
        current_metrics=metrics or None,
        conditions=draft.conditions,
    )
    changes = view.scale is not None and reason and desired != view.scale.replicas
    return ScalePlan(
        desired if changes else None,
        reason,
        status,
        tuple(draft.events),
        view.history if history is None else history,
    )


def _with(status: HorizontalPodAutoscalerStatus, draft: _Draft) -> HorizontalPodAutoscalerStatus:
    return msgspec.structs.replace(status, conditions=draft.conditions)


def _wire(status: HorizontalPodAutoscalerStatus) -> Object:
    """With the two numbers even when they are 0: clients expect them."""
    return {
        **msgspec.to_builtins(status),
        "currentReplicas": status.current_replicas,
        "desiredReplicas": status.desired_replicas,
    }
