"""HorizontalPodAutoscalers, `autoscaling/v2`, and PodMetrics of `metrics.k8s.io/v1beta1`."""

from __future__ import annotations

from typing import Any

import msgspec

from coterie.kube.api.meta import ApiObject, Condition, Model
from coterie.kube.api.resources import USAGE
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.api.types.pods import QuantityText


class ScaleTargetReference(Model, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""


class MetricTarget(Model, frozen=True, kw_only=True):
    type: str = ""
    """Utilization, Value or AverageValue."""
    value: QuantityText | None = None
    average_value: QuantityText | None = None
    average_utilization: int | None = None


class MetricIdentifier(Model, frozen=True, kw_only=True):
    name: str = ""
    selector: dict[str, Any] | None = None


class ResourceMetricSource(Model, frozen=True, kw_only=True):
    """Also of one container: then `container` is set."""

    name: str = ""
    container: str = ""
    target: MetricTarget = MetricTarget()


class CustomMetricSource(Model, frozen=True, kw_only=True):
    """Of the types Pods, Object (with `described_object`) and External."""

    metric: MetricIdentifier = MetricIdentifier()
    target: MetricTarget = MetricTarget()
    described_object: ScaleTargetReference | None = None


class MetricSpec(Model, frozen=True, kw_only=True):
    type: str = ""
    resource: ResourceMetricSource | None = None
    container_resource: ResourceMetricSource | None = None
    pods: CustomMetricSource | None = None
    object: CustomMetricSource | None = None
    external: CustomMetricSource | None = None


class ScalingPolicy(Model, frozen=True, kw_only=True):
    type: str
    """Pods or Percent."""
    value: int
    period_seconds: int


class ScalingRules(Model, frozen=True, kw_only=True):
    stabilization_window_seconds: int | None = None
    select_policy: str = "Max"
    """Max, Min or Disabled."""
    policies: tuple[ScalingPolicy, ...] | None = None
    tolerance: str | None = None
    """A quantity: 100m is a tenth."""


class ScalingBehavior(Model, frozen=True, kw_only=True):
    scale_up: ScalingRules | None = None
    scale_down: ScalingRules | None = None


class HorizontalPodAutoscalerSpec(Model, frozen=True, kw_only=True):
    scale_target_ref: ScaleTargetReference = ScaleTargetReference()
    min_replicas: int | None = None
    max_replicas: int = 0
    metrics: tuple[MetricSpec, ...] | None = None
    behavior: ScalingBehavior | None = None


class HorizontalPodAutoscalerStatus(Model, frozen=True, kw_only=True):
    observed_generation: int | None = None
    last_scale_time: str | None = None
    current_replicas: int = 0
    desired_replicas: int = 0
    current_metrics: tuple[dict[str, Any], ...] | None = None
    conditions: tuple[Condition, ...] | None = None


class HorizontalPodAutoscaler(ApiObject, frozen=True, kw_only=True):
    spec: HorizontalPodAutoscalerSpec = HorizontalPodAutoscalerSpec()
    status: HorizontalPodAutoscalerStatus = HorizontalPodAutoscalerStatus()


class ContainerMetrics(Model, frozen=True, kw_only=True):
    name: str = ""
    usage: dict[str, str] = msgspec.field(default_factory=dict)


class PodMetrics(ApiObject, frozen=True, kw_only=True):
    timestamp: str = ""
    window: str = ""
    containers: tuple[ContainerMetrics, ...] = ()


HORIZONTAL_POD_AUTOSCALERS = Kind(builtin("horizontalpodautoscalers", "autoscaling", "v2"), HorizontalPodAutoscaler)
POD_METRICS = Kind(next(each for each in USAGE if each.kind == "PodMetrics"), PodMetrics)
