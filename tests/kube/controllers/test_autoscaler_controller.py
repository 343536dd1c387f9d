"""Autoscalers on a real API server with Deployments, ReplicaSets and a small kubelet. Time is virtual."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import orjson
import pytest
from workload_world import DEPLOYMENT, POD, RS, World, template, workload, world

from coterie.base.clock import rfc3339
from coterie.kube.api.meta import Object
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.client.transport import TransportRequest
from coterie.kube.control.scale_hooks import ScaleAllowance, ScaleRequest
from coterie.kube.controllers.deployment import controller as deployments
from coterie.kube.controllers.horizontalpodautoscaler import controller
from coterie.kube.controllers.replicaset import controller as replica_sets

HPA = Kind.dynamic(builtin("horizontalpodautoscalers", "autoscaling", "v2"))
CRD = Kind.dynamic(builtin("customresourcedefinitions", "apiextensions.k8s.io"))
MAKES: tuple[Any, ...] = (
    ("horizontal-pod-autoscaler", controller.make),
    ("deployment-controller", deployments.make),
    ("replicaset-controller", replica_sets.make),
)
REQUESTS = {"requests": {"cpu": "100m", "memory": "64Mi"}}


def deployment(name: str = "web", replicas: int = 2) -> Object:
    labels = {"app": name}
    pod = template(labels)
    pod["spec"]["containers"][0]["resources"] = REQUESTS
    made = workload(name, labels, replicas=replicas)
    made["spec"]["template"] = pod
    return made


def scaler(
    name: str = "web", kind: str = "Deployment", api: str = "apps/v1", percent: int = 50, target: str = "", **spec: Any
) -> Object:
    aim = {"type": "Utilization", "averageUtilization": percent}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "scaleTargetRef": {"apiVersion": api, "kind": kind, "name": target or name},
            "minReplicas": 1,
            "maxReplicas": 6,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": aim}}],
            **spec,
        },
    }


class Load:
    """The metrics API: what each pod of an app uses; counts how often it is asked."""

    def __init__(self, on: World, **cpu: str) -> None:
        self.cpu = cpu
        self.memory = "64Mi"
        self.queue: str | None = None
        """What pods serve themselves as the metric `queue`."""
        self.asked: list[str] = []
        self._world = on
        self.pods: list[Object] = []
        on.faults.answer = self._answer

    async def look(self) -> None:
        self.pods = await self._world.pods()

    def _answer(self, call: TransportRequest) -> Object | None:
        if self.queue is not None and "/custom.metrics.k8s.io/" in call.path:
            self.asked.append(call.path)
            return {"kind": "MetricValueList", "items": [self._value(pod, self.queue) for pod in self.pods]}
        if "/metrics.k8s.io/" not in call.path:
            return None
        self.asked.append(call.path)
        now = rfc3339(self._world.clock.now())
        items = []
        for pod in self.pods:
            app = (pod["metadata"].get("labels") or {}).get("app")
            if app in self.cpu and (pod.get("status") or {}).get("phase") == "Running":
                usage = {"cpu": self.cpu[app], "memory": self.memory}
                meta = {"name": pod["metadata"]["name"], "namespace": "default"}
                containers = [{"name": "main", "usage": usage}]
                items.append({"metadata": meta, "timestamp": now, "window": "1s", "containers": containers})
        return {"kind": "PodMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": {}, "items": items}

    def _value(self, pod: Object, value: str) -> Object:
        described = {"kind": "Pod", "namespace": "default", "name": pod["metadata"]["name"], "apiVersion": "/v1"}
        now = rfc3339(self._world.clock.now())
        return {"describedObject": described, "metric": {"name": "queue"}, "timestamp": now, "value": value}


async def pass_time(on: World, load: Load, seconds: float) -> None:
    for _ in range(round(seconds / 5)):
        await on.settle(5.0, step=1.0)
        await load.look()


async def replicas(on: World, name: str = "web", kind: Kind[Object] = DEPLOYMENT) -> int:
    return int((await on.get(kind, name))["spec"].get("replicas") or 0)


def reason(status: Object, type_: str) -> tuple[str, str]:
    found = next(each for each in status["conditions"] if each["type"] == type_)
    return found["status"], found["reason"]


async def started(on: World, *names: str, count: int = 2) -> None:
    for name in names or ("web",):
        await on.client.create(DEPLOYMENT, deployment(name, count))
    await on.settle(3.0)


async def test_grows_with_the_load_and_shrinks_after_the_window() -> None:
    async with world(*MAKES) as w:
        load = Load(w, web="90m")
        await started(w)
        await w.client.create(HPA, scaler())
        await pass_time(w, load, 60)
        assert await replicas(w) == 6, "90 % of a target of 50 %: 4, then 6, the maximum"
        status = await w.status(HPA, "web")
        assert (status["currentReplicas"], status["desiredReplicas"]) == (6, 6)
        assert reason(status, "ScalingLimited") == ("True", "TooManyReplicas")
        assert status["currentMetrics"][0]["resource"]["current"] == {"averageValue": "90m", "averageUtilization": 90}
        assert (
            "SuccessfulRescale",
            "New size: 4; reason: cpu resource utilization (percentage of request) above target",
        ) in await w.events()

        load.cpu["web"] = "10m"
        await pass_time(w, load, 240)
        assert await replicas(w) == 6, "the highest recommendation of five minutes holds"
        assert reason(await w.status(HPA, "web"), "AbleToScale") == ("True", "ScaleDownStabilized")
        await pass_time(w, load, 120)
        assert await replicas(w) == 2, "6 pods at 10 % need 2 at 50 %"


async def test_a_round_asks_for_metrics_once_and_idle_autoscalers_write_nothing() -> None:
    async with world(*MAKES) as w:
        names = [f"web{i}" for i in range(5)]
        load = Load(w, **dict.fromkeys(names, "50m"))
        await started(w, *names)
        for name in names:
            await w.client.create(HPA, scaler(name))
        await pass_time(w, load, 60)
        versions = [each["metadata"]["resourceVersion"] for each in await w.list(HPA)]
        load.asked.clear()
        await pass_time(w, load, 60)
        assert len(load.asked) == 4, "one list in 15 s, for all"
        assert [each["metadata"]["resourceVersion"] for each in await w.list(HPA)] == versions


async def test_no_autoscaler_no_work() -> None:
    async with world(*MAKES) as w:
        load = Load(w, web="90m")
        await started(w)
        await w.client.create(HPA, scaler())
        await pass_time(w, load, 20)
        await w.client.delete(HPA, "web", "default")
        await w.settle(2.0)
        load.asked.clear()
        await pass_time(w, load, 60)
        assert load.asked == []


async def test_g11_cpu_and_memory_each_work_alone_and_stay_within_bounds() -> None:
    quick = {"scaleDown": {"stabilizationWindowSeconds": 15}}
    memory = {
        "type": "Resource",
        "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "50Mi"}},
    }
    async with world(*MAKES) as w:
        load = Load(w, bycpu="90m", bymem="1m")
        load.memory = "100Mi"
        await started(w, "bycpu", "bymem", count=1)
        await w.client.create(HPA, scaler("bycpu", maxReplicas=3, behavior=quick))
        await w.client.create(HPA, scaler("bymem", maxReplicas=4, metrics=[memory], behavior=quick))
        await pass_time(w, load, 60)
        assert [await replicas(w, name) for name in ("bycpu", "bymem")] == [3, 4]
        load.cpu, load.memory = {"bycpu": "1m", "bymem": "400m"}, "5Mi"
        await pass_time(w, load, 90)
        assert [await replicas(w, name) for name in ("bycpu", "bymem")] == [1, 1]


async def test_c75_a_deleted_pod_is_replaced_and_a_deleted_child_made_again_at_the_scaled_size() -> None:
    """C-75: controllers keep ReplicaSet and autoscaler at their definition."""
    async with world(*MAKES) as w:
        load = Load(w, web="60m")
        await started(w, count=3)
        await w.client.create(HPA, scaler(percent=60))
        await pass_time(w, load, 20)
        victim = (await w.pods(alive=True))[0]["metadata"]["name"]
        await w.client.delete(POD, victim, "default")
        await w.until(lambda: _count(w, 3, without=victim), 45)
        child = (await w.list(RS))[0]["metadata"]["name"]
        await w.client.delete(RS, child, "default", propagation="Orphan")
        await w.until(lambda: _has_child(w), 45)
        await pass_time(w, load, 30)
        assert await replicas(w) == 3
        # A size set by hand is corrected at the next sync, since the metrics ask for another.
        await w.client.scale(DEPLOYMENT, "web", "default", 1)
        load.cpu["web"] = "180m"
        await pass_time(w, load, 45)
        assert await replicas(w) > 1


async def _count(w: World, wanted: int, without: str) -> bool:
    alive = await w.pods(alive=True)
    return len(alive) == wanted and all(pod["metadata"]["name"] != without for pod in alive)


async def _has_child(w: World) -> bool:
    return bool(await w.list(RS)) and len(await w.pods(alive=True)) == 3


async def test_any_kind_with_a_scale_is_scaled() -> None:
    """ReplicaSets, ReplicationControllers (no controller needed for the number) and custom resources."""
    async with world(*MAKES) as w:
        load = Load(w, rs="100m", mine="100m")
        await w.client.create(RS, {**deployment("rs"), "kind": "ReplicaSet", "apiVersion": "apps/v1"})
        await w.client.create(CRD, widget_definition())
        await w.settle(1.0)
        body = {"apiVersion": "toys.example/v1", "kind": "Widget", "metadata": {"name": "mine", "namespace": "default"},
                "spec": {"size": 1}}  # fmt: skip
        path = "/apis/toys.example/v1/namespaces/default/widgets"
        await w.client.raw("POST", path, body=orjson.dumps(body), headers={"Content-Type": "application/json"})
        status = orjson.dumps({"status": {"size": 1, "selector": "app=mine"}})
        await w.client.raw(
            "PATCH", f"{path}/mine/status", body=status, headers={"Content-Type": "application/merge-patch+json"}
        )
        pod = {
            "metadata": {"name": "mine-0", "namespace": "default", "labels": {"app": "mine"}},
            **{"spec": deployment("mine")["spec"]["template"]["spec"]},
        }
        await w.client.create(POD, pod)
        await w.settle(2.0)
        await load.look()
        await w.client.create(HPA, scaler("rs", kind="ReplicaSet"))
        await w.client.create(HPA, scaler("mine", kind="Widget", api="toys.example/v1", maxReplicas=2))
        await pass_time(w, load, 45)
        assert await replicas(w, "rs", RS) > 2
        found = orjson.loads((await w.client.raw("GET", f"{path}/mine")).body)
        assert found["spec"]["size"] == 2


def widget_definition() -> Object:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    scale = {
        "specReplicasPath": ".spec.size",
        "statusReplicasPath": ".status.size",
        "labelSelectorPath": ".status.selector",
    }
    version = {
        "name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}, "scale": scale},
    }  # fmt: skip
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget"}
    return {
        "metadata": {"name": "widgets.toys.example"},
        "spec": {"group": "toys.example", "scope": "Namespaced", "names": names, "versions": [version]},
    }


async def test_conditions_of_targets_that_cannot_be_scaled() -> None:
    async with world(*MAKES) as w:
        load = Load(w, web="50m", two="50m")
        await started(w, "web")
        await w.client.create(HPA, scaler("gone"))
        await w.client.create(HPA, scaler("strange", kind="Gizmo", api="none.example/v1"))
        await w.client.create(HPA, scaler("noscale", kind="DaemonSet"))
        await w.client.create(HPA, scaler("one", target="web"))
        await w.client.create(HPA, scaler("two", target="web"))
        await pass_time(w, load, 20)
        for name in ("gone", "strange", "noscale"):
            assert reason(await w.status(HPA, name), "AbleToScale") == ("False", "FailedGetScale"), name
        for name in ("one", "two"):
            assert reason(await w.status(HPA, name), "ScalingActive") == ("False", "AmbiguousSelector"), name
        assert {each for each, _ in await w.events()} >= {"FailedGetScale", "AmbiguousSelector"}


async def test_a_lost_metrics_api_changes_nothing() -> None:
    async with world(*MAKES) as w:
        load = Load(w, web="50m")
        await started(w)
        await w.client.create(HPA, scaler())
        await pass_time(w, load, 20)
        load.cpu.clear()
        await pass_time(w, load, 400)
        assert await replicas(w) == 2
        assert reason(await w.status(HPA, "web"), "ScalingActive") == ("False", "FailedGetResourceMetric")


async def test_c49_c50_interval_policy_spaces_last_scale_times() -> None:
    """The seed's `minScaleInterval`: gaps between `lastScaleTime` values of a saturated autoscaler."""
    policy = [{"type": "Pods", "value": 1, "periodSeconds": 80}]
    async with world(*MAKES) as w:
        load = Load(w, web="100m")
        await started(w, count=1)
        await w.client.create(HPA, scaler(behavior={"scaleUp": {"policies": policy}}))
        seen: list[float] = []
        before = ""
        for _ in range(60):
            await pass_time(w, load, 5)
            now = (await w.status(HPA, "web")).get("lastScaleTime") or ""
            if now and now != before:
                before = now
                seen.append(w.clock.monotonic())
        gaps = [later - earlier for earlier, later in pairwise(seen)]
        assert len(gaps) >= 2 and all(80 <= gap < 100 for gap in gaps), gaps


async def test_the_sync_period_is_a_setting() -> None:
    async with world(("horizontal-pod-autoscaler", partial(controller.make, period=60.0)), *MAKES[1:]) as w:
        load = Load(w, web="50m")
        await started(w)
        await w.client.create(HPA, scaler())
        await pass_time(w, load, 10)
        load.asked.clear()
        await pass_time(w, load, 120)
        assert len(load.asked) == 2


async def test_metrics_that_pods_serve_themselves() -> None:
    aim = {"type": "AverageValue", "averageValue": "10"}
    metric = {"type": "Pods", "pods": {"metric": {"name": "queue"}, "target": aim}}
    async with world(*MAKES) as w:
        load = Load(w, web="50m")
        await started(w)
        await w.client.create(HPA, scaler(metrics=[metric]))
        await pass_time(w, load, 20)
        assert reason(await w.status(HPA, "web"), "ScalingActive") == ("False", "FailedGetPodsMetric")
        load.queue = "15"
        await pass_time(w, load, 20)
        assert await replicas(w) >= 3
        assert load.asked[-1] == "/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/pods/*/queue"
        assert ("SuccessfulRescale", "New size: 3; reason: pods metric queue above target") in await w.events()


@pytest.mark.parametrize("garbage", [None, {"items": [{"value": "x"}]}, {"items": 3}, {}])
async def test_metrics_of_adapters(garbage: Object | None) -> None:
    """An adapter that answers nonsense is a problem of its metric, and nothing else."""
    aim = {"type": "Value", "value": "10"}
    described = {"apiVersion": "v1", "kind": "Service", "name": "front"}
    external = {"type": "External", "external": {"metric": {"name": "backlog"}, "target": aim}}
    of_object = {"type": "Object", "object": {"metric": {"name": "rps"}, "describedObject": described, "target": aim}}
    async with world(*MAKES) as w:
        load = Load(w, web="50m")
        asked: list[str] = []
        answers: dict[str, Object | None] = {}

        def answer(call: TransportRequest) -> Object | None:
            if "metrics.k8s.io" not in call.path or "/metrics.k8s.io/" in call.path:
                return None
            asked.append(call.path)
            if call.path == "/apis/custom.metrics.k8s.io":
                return {"kind": "APIGroup", "preferredVersion": {"groupVersion": "x", "version": "v1beta1"}}
            return answers.get(call.path.rpartition("/")[2])

        w.faults.answer = answer
        await started(w)
        await w.client.create(HPA, scaler(metrics=[external, of_object]))
        if garbage is not None:
            answers |= {"backlog": garbage, "rps": garbage}
        await pass_time(w, load, 20)
        assert reason(await w.status(HPA, "web"), "ScalingActive") == ("False", "FailedGetExternalMetric")
        answers["backlog"] = {
            "items": [{"metricName": "backlog", "value": "12"}, {"metricName": "backlog", "value": "3"}]
        }
        answers["rps"] = {"items": [{"describedObject": {"name": "front"}, "value": "9500m"}]}
        await pass_time(w, load, 20)
        assert await replicas(w) >= 3
        assert "/apis/custom.metrics.k8s.io/v1beta1/namespaces/default/services/front/rps" in asked
        assert "/apis/external.metrics.k8s.io/v1beta1/namespaces/default/backlog" in asked


class _AtMostThree:
    def allow(self, request: ScaleRequest) -> ScaleAllowance | None:
        return ScaleAllowance(3, "only 3 are paid for") if request.wanted > 3 else None


async def test_a_product_may_allow_fewer_replicas() -> None:
    make = partial(controller.make, scale_hook=_AtMostThree())
    async with world(("horizontal-pod-autoscaler", make), *MAKES[1:]) as w:
        load = Load(w, web="90m")
        await started(w)
        await w.client.create(HPA, scaler())
        await pass_time(w, load, 45)
        assert await replicas(w) == 3
        status = await w.status(HPA, "web")
        assert reason(status, "ScalingLimited") == ("True", "QuotaExceeded") and status["desiredReplicas"] == 3


class _Broken:
    """Fails for one target."""

    def allow(self, request: ScaleRequest) -> ScaleAllowance | None:
        if request.name == "bad":
            raise RuntimeError("it is broken")
        return None


async def test_one_that_fails_does_not_stop_the_others() -> None:
    make = partial(controller.make, scale_hook=_Broken())
    async with world(("horizontal-pod-autoscaler", make), *MAKES[1:]) as w:
        load = Load(w, bad="90m", web="90m")
        await started(w, "bad", "web")
        await w.client.create(HPA, scaler("bad"))
        await w.client.create(HPA, scaler("web"))
        await pass_time(w, load, 45)
        assert [await replicas(w, name) for name in ("bad", "web")] == [2, 6]
