"""HorizontalPodAutoscalers: the arithmetic of the public algorithm as rows. No clock, no API."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from coterie.base.clock import rfc3339
from coterie.kube.api.meta import ObjectKey, find_condition
from coterie.kube.api.types.autoscaling import (
    HORIZONTAL_POD_AUTOSCALERS,
    POD_METRICS,
    HorizontalPodAutoscaler,
    PodMetrics,
    ScalingBehavior,
)
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.controllers.horizontalpodautoscaler.behavior import (
    History,
    Recommendation,
    ScaleEvent,
    normalize,
)
from coterie.kube.controllers.horizontalpodautoscaler.plan import (
    AutoscalerView,
    MetricsSnapshot,
    TargetScale,
    external_metrics,
    finish,
    object_metrics,
    plan,
    status_patch,
    window_of,
)
from coterie.kube.controllers.horizontalpodautoscaler.replicas import (
    MetricUnavailable,
    PodSample,
    average_replicas,
    total_replicas,
    utilization_replicas,
    value_replicas,
)

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
LONG_AGO = NOW - timedelta(hours=1)
WINDOW = timedelta(seconds=15)


def pod(
    name: str,
    *,
    cpu: str | None = "100m",
    phase: str = "Running",
    ready: str | None = "True",
    started: datetime = LONG_AGO,
    changed: datetime | None = None,
    deleting: bool = False,
    **spec: Any,
) -> Pod:
    requests = {"requests": {"cpu": cpu, "memory": "100Mi"}} if cpu else {}
    meta: dict[str, Any] = {"name": name, "namespace": "default", "uid": f"uid-{name}", "labels": {"app": "web"}}
    if deleting:
        meta["deletionTimestamp"] = rfc3339(NOW)
    conditions = (
        [{"type": "Ready", "status": ready, "lastTransitionTime": rfc3339(changed or started)}] if ready else []
    )
    body = {
        "metadata": meta,
        "spec": {"containers": [{"name": "main", "image": "i", "resources": requests}], **spec},
        "status": {"phase": phase, "startTime": rfc3339(started), "conditions": conditions},
    }
    return PODS.decode(msgspec.json.encode(body))


def pods(count: int, **more: Any) -> list[Pod]:
    return [pod(f"p{i}", **more) for i in range(count)]


def samples(*values: int, at: datetime = NOW) -> dict[str, PodSample]:
    return {f"p{i}": PodSample(value, at, WINDOW) for i, value in enumerate(values) if value >= 0}


# "if the current metric value is 200m, and the desired value is 100m, the number of replicas will be doubled, since
# 200.0 / 100.0 == 2.0. If the current value is instead 50m, you'll halve the number of replicas, since 50.0 / 100.0 == 0.5."


@pytest.mark.parametrize(
    ("values", "target", "wanted"),
    [
        pytest.param([200, 200], 100, 4, id="documented-doubles"),
        pytest.param([50, 50], 100, 1, id="documented-halves"),
        pytest.param([105, 105], 100, 2, id="within-tolerance-above"),
        pytest.param([110, 110], 100, 2, id="exactly-ten-percent-above"),
        pytest.param([90, 90], 100, 2, id="exactly-ten-percent-below"),
        pytest.param([111, 111], 100, 3, id="just-beyond-tolerance"),
        pytest.param([101, 301], 100, 5, id="average-of-unequal-pods-rounded-up"),
        pytest.param([0, 0], 100, 0, id="idle"),
    ],
)
def test_replicas_from_an_average_value(values: list[int], target: int, wanted: int) -> None:
    got = average_replicas(len(values), target, samples(*values), pods(len(values)), "cpu", NOW)
    assert got.replicas == wanted
    assert got.average == sum(values) // len(values)


@pytest.mark.parametrize(
    ("values", "request_", "target", "wanted", "percent"),
    [
        # The walkthrough of the documentation: request 200m, 305 % of it used, target 50 %: 7 replicas.
        pytest.param([610], "200m", 50, 7, 305, id="walkthrough-php-apache"),
        pytest.param([200, 200, 200, 200, 200, 200, 200], "200m", 100, 7, 100, id="on-target"),
        pytest.param([0], "200m", 50, 0, 0, id="walkthrough-load-stopped"),
        pytest.param([60, 60, 60], "100m", 80, 3, 60, id="rounded-up-to-the-same"),
        pytest.param([30, 30, 30], "100m", 80, 2, 30, id="down"),
    ],
)
def test_replicas_from_utilization(values: list[int], request_: str, target: int, wanted: int, percent: int) -> None:
    found = utilization_replicas(len(values), target, samples(*values), pods(len(values), cpu=request_), "cpu", "", NOW)
    assert (found.replicas, found.utilization) == (wanted, percent)


FRESH = NOW - timedelta(seconds=20)


@pytest.mark.parametrize(
    ("members", "values", "current", "wanted"),
    [
        # Missing metrics: 100 % (at least the target) when it would shrink, 0 when it would grow.
        pytest.param(pods(3), [20, 20, -1], 3, 2, id="missing-counts-as-full-when-shrinking"),
        pytest.param(pods(3), [200, 200, -1], 3, 4, id="missing-counts-as-idle-when-growing"),
        pytest.param(pods(3), [120, 120, -1], 3, 3, id="missing-turns-growth-around"),
        pytest.param(pods(2), [99, -1], 2, 2, id="missing-within-tolerance"),
        # Pods that are not ready: idle when it would grow, not counted when it would shrink.
        pytest.param([*pods(2), pod("p2", ready="False", started=FRESH)], [300, 300, 900], 3, 6, id="unready-is-idle"),
        pytest.param([*pods(2), pod("p2", phase="Pending")], [300, 300, -1], 3, 6, id="pending-is-idle"),
        pytest.param([*pods(2), pod("p2", phase="Pending")], [30, 30, -1], 3, 1, id="pending-not-counted-down"),
        # Pods that leave or have failed are not counted at all.
        pytest.param([*pods(2), pod("p2", deleting=True)], [200, 200, 0], 3, 4, id="deleting"),
        pytest.param([*pods(2), pod("p2", phase="Failed")], [200, 200, -1], 2, 4, id="failed"),
    ],
)
def test_missing_and_unready_pods_only_dampen(members: list[Pod], values: list[int], current: int, wanted: int) -> None:
    assert utilization_replicas(current, 100, samples(*values), members, "cpu", "", NOW).replicas == wanted


def _readiness(ready: str | None, started: int, changed: int, sampled: int = 0) -> tuple[Pod, datetime]:
    """Seconds ago."""
    when = NOW - timedelta(seconds=changed)
    return pod("p1", ready=ready, started=NOW - timedelta(seconds=started), changed=when), NOW - timedelta(
        seconds=sampled
    )


@pytest.mark.parametrize(
    ("member", "counts"),
    [
        pytest.param(_readiness("True", 60, 30), True, id="young-ready-sample-after-readiness"),
        pytest.param(_readiness("True", 60, 10), False, id="young-window-began-before-readiness"),
        pytest.param(_readiness("False", 60, 60), False, id="young-unready"),
        pytest.param(_readiness("False", 3600, 3595), False, id="old-never-ready"),
        pytest.param(_readiness("False", 3600, 600), True, id="old-was-ready-before"),
        pytest.param(_readiness(None, 3600, 600), False, id="no-condition"),
    ],
)
def test_cpu_of_starting_pods_does_not_count(member: tuple[Pod, datetime], counts: bool) -> None:
    one, at = member
    both = {"p0": PodSample(100, NOW, WINDOW), "p1": PodSample(500, at, WINDOW)}
    found = average_replicas(2, 100, both, [pod("p0"), one], "cpu", NOW)
    assert found.average == (300 if counts else 100)
    assert average_replicas(2, 100, both, [pod("p0"), one], "memory", NOW).average == 300, (
        "only CPU is unsteady at start"
    )


def test_what_cannot_be_computed_says_why() -> None:
    with pytest.raises(MetricUnavailable, match="no pods returned by selector"):
        utilization_replicas(1, 50, {}, [], "cpu", "", NOW)
    with pytest.raises(MetricUnavailable, match="missing request for cpu in container main of Pod p0"):
        utilization_replicas(1, 50, samples(5), pods(1, cpu=None), "cpu", "", NOW)
    with pytest.raises(MetricUnavailable, match="did not receive metrics for targeted pods"):
        utilization_replicas(1, 50, samples(5), pods(1, phase="Pending"), "cpu", "", NOW)


def test_sidecars_and_pod_requests_count() -> None:
    sidecar = {"name": "s", "image": "i", "restartPolicy": "Always", "resources": {"requests": {"cpu": "300m"}}}
    once = {"name": "o", "image": "i", "resources": {"requests": {"cpu": "9"}}}
    found = utilization_replicas(1, 50, samples(200), pods(1, initContainers=[sidecar, once]), "cpu", "", NOW)
    assert found.utilization == 50
    whole = pods(1, resources={"requests": {"cpu": "1"}})
    assert utilization_replicas(1, 50, samples(200), whole, "cpu", "", NOW).utilization == 20
    assert utilization_replicas(1, 50, samples(200), whole, "cpu", "main", NOW).utilization == 200


def test_values_of_objects() -> None:
    assert value_replicas(3, 100, 200, pods(3)) == 6
    assert value_replicas(3, 100, 105, pods(3)) == 3
    assert value_replicas(0, 100, 250, []) == 3
    assert total_replicas(2, 2, 100, 450) == 5
    assert total_replicas(5, 5, 100, 480) == 5


# Behavior.


def behavior(**rules: Any) -> ScalingBehavior:
    """Written as in YAML, with the API's defaults."""
    up = {"stabilizationWindowSeconds": 0, "policies": DEFAULT_UP, **(rules.get("scaleUp") or {})}
    down = {"policies": DEFAULT_DOWN, **(rules.get("scaleDown") or {})}
    return msgspec.convert({"scaleUp": up, "scaleDown": down}, ScalingBehavior)


DEFAULT_UP = [{"type": "Pods", "value": 4, "periodSeconds": 15}, {"type": "Percent", "value": 100, "periodSeconds": 15}]
DEFAULT_DOWN = [{"type": "Percent", "value": 100, "periodSeconds": 15}]
# The documentation's example "Limit scale down rate": 10 % or 5 pods, whichever is more (or less).
DOCUMENTED = [{"type": "Pods", "value": 4, "periodSeconds": 60}, {"type": "Percent", "value": 10, "periodSeconds": 60}]
AT_ONCE = {"stabilizationWindowSeconds": 0}


@pytest.mark.parametrize(
    ("rules", "current", "desired", "wanted", "reason"),
    [
        pytest.param(None, 1, 100, 4, "ScaleUpLimit", id="default-up-to-four"),
        pytest.param(None, 5, 100, 10, "ScaleUpLimit", id="default-doubles"),
        pytest.param(None, 60, 500, 100, "TooManyReplicas", id="maximum"),
        pytest.param(None, 60, 0, 1, "TooFewReplicas", id="default-down-to-minimum-at-once"),
        pytest.param({}, 1, 100, 5, "ScaleUpLimit", id="policies-four-pods-a-period"),
        pytest.param({}, 10, 100, 20, "ScaleUpLimit", id="policies-doubling-a-period"),
        # "10 % of 80 is 8, 72 remain": the policy that changes the most wins; below 40 replicas that is four pods.
        pytest.param({"scaleDown": {**AT_ONCE, "policies": DOCUMENTED}}, 80, 10, 72, "ScaleDownLimit", id="documented-80"),
        pytest.param({"scaleDown": {**AT_ONCE, "policies": DOCUMENTED}}, 40, 10, 36, "ScaleDownLimit", id="documented-40"),
        pytest.param({"scaleDown": {**AT_ONCE, "policies": DOCUMENTED}}, 12, 10, 10, "DesiredWithinRange", id="documented-end"),
        pytest.param(
            {"scaleDown": {**AT_ONCE, "policies": DOCUMENTED, "selectPolicy": "Min"}}, 80, 10, 76, "ScaleDownLimit",
            id="select-min-down",
        ),
        pytest.param({"scaleUp": {"selectPolicy": "Min"}}, 10, 100, 14, "ScaleUpLimit", id="select-min-up"),
        pytest.param({"scaleUp": {"selectPolicy": "Disabled"}}, 10, 100, 10, "ScaleUpLimit", id="disabled-up"),
        pytest.param({"scaleDown": {**AT_ONCE, "selectPolicy": "Disabled"}}, 10, 1, 10, "ScaleDownLimit", id="disabled-down"),
        pytest.param(
            {"scaleUp": {"policies": [{"type": "Percent", "value": 50, "periodSeconds": 60}]}}, 3, 100, 5, "ScaleUpLimit",
            id="percent-is-rounded-up",
        ),
        pytest.param(
            {"scaleDown": {**AT_ONCE, "policies": [{"type": "Percent", "value": 10, "periodSeconds": 60}]}}, 5, 1, 4,
            "ScaleDownLimit", id="percent-down-changes-at-least-one",
        ),
    ],
)  # fmt: skip
def test_rates(rules: dict[str, Any] | None, current: int, desired: int, wanted: int, reason: str) -> None:
    chosen = None if rules is None else behavior(**rules)
    found = normalize(chosen, History(), current, desired, 1, 100, 1000.0, 300)
    assert (found.replicas, found.limit_reason, found.limited) == (wanted, reason, reason != "DesiredWithinRange")


def test_policies_remember_what_was_done_in_their_period() -> None:
    rules = behavior(scaleUp={"policies": [{"type": "Pods", "value": 3, "periodSeconds": 60}]})
    history = History(ups=(ScaleEvent(970.0, 2),), downs=(ScaleEvent(990.0, 1),))
    # A minute ago there were 5 - 2 + 1 = 4.
    assert normalize(rules, history, 5, 100, 1, 100, 1000.0, 300).replicas == 7
    assert normalize(rules, history, 5, 100, 1, 100, 1035.0, 300).replicas == 5 + 1 + 3, "the addition is forgotten"
    assert normalize(rules, history, 5, 100, 1, 100, 1060.0, 300).replicas == 8, "all is forgotten"


@pytest.mark.parametrize(
    ("rules", "past", "current", "desired", "wanted", "reason"),
    [
        pytest.param(None, [(900, 7), (600, 9)], 10, 3, 7, "ScaleDownStabilized", id="default-five-minutes-down"),
        pytest.param(None, [(600, 9)], 10, 3, 3, "ReadyForNewScale", id="older-ones-are-forgotten"),
        pytest.param(None, [(900, 2)], 2, 4, 4, "ReadyForNewScale", id="no-window-up"),
        pytest.param({}, [(900, 7)], 10, 3, 7, "ScaleDownStabilized", id="behavior-defaults"),
        pytest.param({"scaleDown": AT_ONCE}, [(999, 7)], 10, 3, 3, "ReadyForNewScale", id="no-window-down"),
        pytest.param(
            {"scaleUp": {"stabilizationWindowSeconds": 60}},
            [(950, 6), (900, 5)],
            5,
            9,
            6,
            "ScaleUpStabilized",
            id="window-up",
        ),
        pytest.param(
            {"scaleUp": {"stabilizationWindowSeconds": 60}},
            [(950, 3)],
            5,
            9,
            5,
            "ScaleUpStabilized",
            id="up-never-shrinks",
        ),
    ],
)
def test_stabilization(
    rules: dict[str, Any] | None, past: list[tuple[float, int]], current: int, desired: int, wanted: int, reason: str
) -> None:
    chosen = None if rules is None else behavior(**rules)
    history = History(tuple(Recommendation(float(at), replicas) for at, replicas in past))
    found = normalize(chosen, history, current, desired, 1, 100, 1000.0, 300)
    assert (found.replicas, found.able_reason) == (wanted, reason)
    assert found.history.recommendations[-1] == Recommendation(1000.0, desired)


def interval_policy(seconds: int) -> ScalingBehavior:
    """The seed's `minScaleInterval`, as the guide documents it: one step for each interval, in both directions."""
    policy = [{"type": "Pods", "value": 1, "periodSeconds": seconds}]
    return behavior(scaleUp={"policies": policy}, scaleDown={**AT_ONCE, "policies": policy})


@pytest.mark.parametrize("desired", [10, 1], ids=["saturated", "idle"])
@pytest.mark.parametrize("seconds", [20, 80], ids=["default", "slow"])
def test_c49_c50_gaps_between_scalings_are_at_least_the_minimum_interval(seconds: int, desired: int) -> None:
    """C-49: gaps >= 20 s and < 40 s by default; C-50: `minScaleInterval: 80`, gaps >= 80 s."""
    rules, history, replicas, scaled = interval_policy(seconds), History(), 5, []
    for now in range(0, 600, 15):
        found = normalize(rules, history, replicas, desired, 1, 10, float(now), 300)
        history = found.history.scaled(float(now), replicas, found.replicas)
        if found.replicas != replicas:
            scaled.append(now)
            assert abs(found.replicas - replicas) == 1
            replicas = found.replicas
    gaps = {later - earlier for earlier, later in pairwise(scaled)}
    assert replicas == desired
    assert gaps and min(gaps) >= seconds and max(gaps) < seconds + 20


# The whole plan.


def autoscaler(
    metrics: list[dict[str, Any]] | None = None, status: dict[str, Any] | None = None, **spec: Any
) -> HorizontalPodAutoscaler:
    body = {
        "metadata": {"name": "web", "namespace": "default", "uid": "u", "generation": 3},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "minReplicas": 1,
            "maxReplicas": 10,
            "metrics": metrics or [CPU_50],
            **spec,
        },
        "status": status or {},
    }
    return HORIZONTAL_POD_AUTOSCALERS.decode(msgspec.json.encode(body))


def resource(name: str, **target: Any) -> dict[str, Any]:
    kind = "Utilization" if "averageUtilization" in target else "AverageValue"
    return {"type": "Resource", "resource": {"name": name, "target": {"type": kind, **target}}}


CPU_50 = resource("cpu", averageUtilization=50)
MEMORY = resource("memory", averageValue="50Mi")


def used(count: int, cpu: str = "50m", memory: str = "50Mi", **more: dict[str, str]) -> dict[ObjectKey, PodMetrics]:
    out = {}
    for i in range(count):
        containers = [{"name": "main", "usage": {"cpu": cpu, "memory": memory}}]
        containers += [{"name": name, "usage": usage} for name, usage in more.items()]
        meta = {"name": f"p{i}", "namespace": "default"}
        body = {"metadata": meta, "timestamp": rfc3339(NOW), "window": "15s", "containers": containers}
        one = POD_METRICS.decode(msgspec.json.encode(body))
        out[one.key] = one
    return out


def view(
    scaler: HorizontalPodAutoscaler | None = None,
    *,
    replicas: int = 2,
    metrics: MetricsSnapshot | None = None,
    members: list[Pod] | None = None,
    **more: Any,
) -> AutoscalerView:
    return AutoscalerView(
        autoscaler=scaler or autoscaler(),
        scale=more.pop("scale", TargetScale(replicas, replicas, "app=web")),
        scale_problem=more.pop("scale_problem", ""),
        selector_problem=more.pop("selector_problem", ""),
        pods=pods(replicas) if members is None else members,
        same_pods=more.pop("same_pods", ()),
        metrics=metrics or MetricsSnapshot(used(replicas)),
        history=more.pop("history", History()),
        now=NOW,
        monotonic=1000.0,
    )


def reasons(found: Any) -> dict[str, tuple[str, str]]:
    return {each.type: (each.status, each.reason) for each in found.status.conditions or ()}


def test_a_scale_up_is_written_and_recorded() -> None:
    asked = view(metrics=MetricsSnapshot(used(2, cpu="90m")))
    planned = plan(asked)
    assert planned.replicas == 4
    done = finish(asked, planned)
    assert reasons(done) == {
        "AbleToScale": ("True", "SucceededRescale"),
        "ScalingActive": ("True", "ValidMetricFound"),
        "ScalingLimited": ("False", "DesiredWithinRange"),
    }
    assert [(n.type, n.reason, n.message) for n in done.events] == [
        (
            "Normal",
            "SuccessfulRescale",
            "New size: 4; reason: cpu resource utilization (percentage of request) above target",
        )
    ]
    status = done.status
    assert (status.current_replicas, status.desired_replicas, status.observed_generation) == (2, 4, 3)
    assert status.last_scale_time == rfc3339(NOW)
    assert status.current_metrics == (
        {"type": "Resource", "resource": {"name": "cpu", "current": {"averageValue": "90m", "averageUtilization": 90}}},
    )
    assert done.history.ups == (ScaleEvent(1000.0, 2),)


def test_nothing_changes_on_target_and_the_same_status_is_not_written_again() -> None:
    first = plan(view())
    assert first.replicas is None and first.events == ()
    again = plan(view(msgspec.structs.replace(autoscaler(), status=first.status)))
    assert status_patch(first.status, again.status) is None


@pytest.mark.parametrize(
    ("behavior", "cpu", "wanted"),
    [
        ({}, "54m", None),
        ({"scaleUp": {"tolerance": "50m"}}, "54m", 3),
        ({"scaleUp": {"tolerance": "0"}}, "51m", 3),
        ({"scaleUp": {"tolerance": "500m"}}, "74m", None),
        ({"scaleDown": {"tolerance": "0.5"}}, "20m", 1),
        ({"scaleDown": {"tolerance": "0.5"}}, "26m", None),
        ({"scaleDown": {"tolerance": "0"}}, "54m", None),
    ],
)
def test_tolerances_of_the_autoscaler_itself(behavior: dict[str, Any], cpu: str, wanted: int | None) -> None:
    quick = {"scaleDown": {"stabilizationWindowSeconds": 0, **behavior.get("scaleDown", {})}}
    scaler = autoscaler(minReplicas=1, behavior={**behavior, **quick})
    assert plan(view(scaler, metrics=MetricsSnapshot(used(2, cpu=cpu)))).replicas == wanted


@pytest.mark.parametrize(
    ("replicas", "wanted", "reason"),
    [
        pytest.param(15, 10, "Current number of replicas above Spec.MaxReplicas", id="above-maximum"),
        pytest.param(1, 3, "Current number of replicas below Spec.MinReplicas", id="below-minimum"),
    ],
)
def test_limits_hold_even_without_metrics(replicas: int, wanted: int, reason: str) -> None:
    planned = plan(view(autoscaler(minReplicas=3), replicas=replicas, metrics=MetricsSnapshot(problem="no agents")))
    assert (planned.replicas, planned.reason) == (wanted, reason)


def test_a_target_with_zero_replicas_is_left_alone() -> None:
    planned = plan(view(replicas=0, members=[]))
    assert planned.replicas is None
    assert reasons(planned)["ScalingActive"] == ("False", "ScalingDisabled")


@pytest.mark.parametrize(
    ("metrics", "snapshot", "wanted"),
    [
        pytest.param([CPU_50, MEMORY], MetricsSnapshot(used(2, "50m", "120Mi")), 5, id="greatest-wins"),
        pytest.param([CPU_50, MEMORY], MetricsSnapshot(used(2, "100m", "50Mi")), 4, id="greatest-wins-whichever"),
        pytest.param([MEMORY], MetricsSnapshot(used(2, "900m", "10Mi")), 1, id="g11-memory-alone"),
        pytest.param([CPU_50], MetricsSnapshot(used(2, "100m", "900Mi")), 4, id="g11-cpu-alone"),
    ],
)
def test_several_metrics(metrics: list[dict[str, Any]], snapshot: MetricsSnapshot, wanted: int) -> None:
    assert (
        plan(
            view(
                autoscaler(
                    metrics,
                    behavior={"scaleUp": {"policies": DEFAULT_UP}, "scaleDown": {"policies": DEFAULT_DOWN, **AT_ONCE}},
                ),
                metrics=snapshot,
                history=History((Recommendation(0.0, 1),)),
            )
        ).replicas
        == wanted
    )


UNSERVED = {"type": "External", "external": {"metric": {"name": "queue"}, "target": {"type": "Value", "value": "5"}}}


def test_an_unknown_metric_prevents_shrinking_but_not_growth() -> None:
    both = autoscaler([UNSERVED, CPU_50])
    down = plan(view(both, metrics=MetricsSnapshot(used(2, "5m"))))
    assert down.replicas is None
    assert reasons(down)["ScalingActive"] == ("False", "FailedGetExternalMetric")
    assert [note.reason for note in down.events] == ["FailedGetExternalMetric", "FailedComputeMetricsReplicas"]
    assert "invalid metrics (1 invalid out of 2)" in down.events[1].message
    repeated = plan(view(msgspec.structs.replace(both, status=down.status), metrics=MetricsSnapshot(used(2, "5m"))))
    assert repeated.events == (), "once, not in each round"
    assert plan(view(both, metrics=MetricsSnapshot(used(2, "100m")))).replicas == 4


def of_object(**target: Any) -> dict[str, Any]:
    described = {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "name": "main"}
    return {"type": "Object", "object": {"metric": {"name": "rps"}, "describedObject": described, "target": target}}


def of_outside(**target: Any) -> dict[str, Any]:
    metric = {"name": "queue", "selector": {"matchLabels": {"q": "a"}}}
    return {"type": "External", "external": {"metric": metric, "target": target}}


@pytest.mark.parametrize("make", [of_object, of_outside])
@pytest.mark.parametrize(
    ("target", "value", "wanted", "shown"),
    [
        ({"type": "Value", "value": "10"}, 20_000, 4, {"value": "20"}),
        ({"type": "Value", "value": "10"}, 10_900, None, {"value": "10900m"}),
        ({"type": "Value", "value": "10"}, 5_000, 1, {"value": "5"}),
        ({"type": "AverageValue", "averageValue": "10"}, 70_000, 7, {"averageValue": "35"}),
        ({"type": "AverageValue", "averageValue": "10"}, 21_000, None, {"averageValue": "10500m"}),
    ],
)
def test_metrics_of_objects_and_of_systems_outside(
    make: Callable[..., dict[str, Any]], target: dict[str, Any], value: int, wanted: int | None, shown: dict[str, str]
) -> None:
    scaler = autoscaler([make(**target)], behavior={"scaleUp": {"policies": DEFAULT_UP}, "scaleDown": AT_ONCE})
    found = MetricsSnapshot(
        objects=dict.fromkeys(object_metrics(scaler), value), external=dict.fromkeys(external_metrics(scaler), value)
    )
    planned = plan(view(scaler, metrics=found))
    assert planned.replicas == (min(wanted, 6) if wanted is not None else None)
    (status,) = planned.status.current_metrics or ()
    assert status[status["type"].lower()]["current"] == shown
    failing = MetricsSnapshot(
        objects=dict.fromkeys(object_metrics(scaler), "down"), external=dict.fromkeys(external_metrics(scaler), "down")
    )
    failed = plan(view(scaler, metrics=failing))
    kind = status["type"]
    assert reasons(failed)["ScalingActive"] == ("False", f"FailedGet{kind}Metric")
    assert failed.events[0].message.endswith("down")


def test_no_metric_at_all_changes_nothing() -> None:
    planned = plan(view(metrics=MetricsSnapshot(problem="the agent did not answer")))
    assert planned.replicas is None
    found = find_condition(planned.status.conditions, "ScalingActive")
    assert found is not None and found.reason == "FailedGetResourceMetric"
    assert "failed to get cpu usage: the agent did not answer" in found.message


def test_one_container_alone_counts() -> None:
    target = {"type": "Utilization", "averageUtilization": 50}
    metric = {"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "main", "target": target}}
    snapshot = MetricsSnapshot(used(2, "100m", side={"cpu": "3", "memory": "1Mi"}))
    planned = plan(view(autoscaler([metric]), metrics=snapshot))
    assert planned.replicas == 4
    assert planned.status.current_metrics is not None
    assert planned.status.current_metrics[0]["containerResource"]["container"] == "main"


def test_metrics_of_pods() -> None:
    metric = {
        "type": "Pods",
        "pods": {"metric": {"name": "queue"}, "target": {"type": "AverageValue", "averageValue": "10"}},
    }
    asked = ("default", "queue", "")
    values = {
        "p0": PodSample(30_000, NOW, WINDOW),
        "p1": PodSample(10_000, NOW, WINDOW),
        "x": PodSample(9, NOW, WINDOW),
    }
    planned = plan(view(autoscaler([metric]), metrics=MetricsSnapshot(custom={asked: values})))
    assert planned.replicas == 4
    assert planned.status.current_metrics == (
        {"type": "Pods", "pods": {"metric": {"name": "queue"}, "current": {"averageValue": "20"}}},
    )
    failed = plan(view(autoscaler([metric]), metrics=MetricsSnapshot(custom={asked: "nobody serves it"})))
    assert reasons(failed)["ScalingActive"] == ("False", "FailedGetPodsMetric")


@pytest.mark.parametrize(
    ("given", "condition", "reason"),
    [
        pytest.param({"scale": None, "scale_problem": "not found"}, "AbleToScale", "FailedGetScale", id="no-scale"),
        pytest.param({"selector_problem": "missing"}, "ScalingActive", "InvalidSelector", id="no-selector"),
        pytest.param(
            {"same_pods": ("default/a", "default/web")}, "ScalingActive", "AmbiguousSelector", id="two-scalers"
        ),
    ],
)
def test_targets_that_cannot_be_scaled(given: dict[str, Any], condition: str, reason: str) -> None:
    planned = plan(view(**given))
    assert planned.replicas is None
    assert reasons(planned)[condition] == ("False", reason)
    assert planned.events[0].reason == reason


def test_a_refused_write_is_a_condition_and_counts_for_nothing() -> None:
    asked = view(metrics=MetricsSnapshot(used(2, cpu="90m")))
    done = finish(asked, plan(asked), "exceeded quota")
    assert reasons(done)["AbleToScale"] == ("False", "FailedUpdateScale")
    assert done.events[0].reason == "FailedRescale" and "exceeded quota" in done.events[0].message
    assert done.status.last_scale_time is None and done.history.ups == ()


def test_a_restarted_controller_does_not_shrink_at_once() -> None:
    planned = plan(view(replicas=8, metrics=MetricsSnapshot(used(8, cpu="5m"))))
    assert planned.replicas is None
    assert reasons(planned)["AbleToScale"] == ("True", "ScaleDownStabilized")


@pytest.mark.parametrize(("text", "seconds"), [("15s", 15), ("1m0s", 60), ("14.5s", 14.5), ("", 0), ("1h0m3s", 3603)])
def test_windows(text: str, seconds: float) -> None:
    assert window_of(text).total_seconds() == seconds
