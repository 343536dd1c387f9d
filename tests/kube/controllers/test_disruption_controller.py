"""Disruption budgets: the arithmetic as rows, the rest on a real API server."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from workload_world import DEPLOYMENT, POD, RS, World, template, workload, world

from coterie.base.clock import rfc3339
from coterie.kube.api.errors import ApiError, TooManyRequests
from coterie.kube.api.meta import Object
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.api.types.scheduling import POD_DISRUPTION_BUDGETS, PodDisruptionBudget
from coterie.kube.controllers.deployment import controller as deployments
from coterie.kube.controllers.disruption import controller, plan
from coterie.kube.controllers.disruption.plan import ControllerScale
from coterie.kube.controllers.replicaset import controller as replica_sets

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
BUDGET = Kind.dynamic(builtin("poddisruptionbudgets", "policy"))
STATEFUL_SET = Kind.dynamic(builtin("statefulsets", "apps"))
REPLICATION_CONTROLLER = Kind.dynamic(builtin("replicationcontrollers"))
EVENT = Kind.dynamic(builtin("events"))
MAKE = ("disruption-controller", controller.make)
ALL = (("deployment-controller", deployments.make), ("replicaset-controller", replica_sets.make), MAKE)


def pod(name: str, *, owner: str = "rs", ready: bool = True, deleting: bool = False) -> Pod:
    meta: Object = {"name": name, "namespace": "default"}
    if owner:
        reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": owner, "controller": True}
        meta["ownerReferences"] = [reference]
    if deleting:
        meta["deletionTimestamp"] = rfc3339(NOW)
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
    return PODS.decode(PODS.as_dynamic.encode({"metadata": meta, "spec": {}, "status": status}))


def pods(ready: int, unready: int = 0, owner: str = "rs") -> list[Pod]:
    return [pod(f"p{n}", owner=owner, ready=n < ready) for n in range(ready + unready)]


def budget(status: Object | None = None, **spec: Any) -> PodDisruptionBudget:
    body = {"metadata": {"name": "b", "generation": 3}, "spec": spec, "status": status or {}}
    return POD_DISRUPTION_BUDGETS.decode(BUDGET.encode(body))


def ago(seconds: float) -> str:
    return rfc3339(NOW - timedelta(seconds=seconds))


# ---- the plan ----


@pytest.mark.parametrize(
    ("spec", "found", "scale", "expected", "desired", "allowed"),
    [
        # An integer minAvailable counts pods and asks nobody for a scale.
        ({"minAvailable": 2}, pods(3), None, 3, 2, 1),
        ({"minAvailable": 2}, pods(2), None, 2, 2, 0),
        ({"minAvailable": 2}, pods(1), None, 1, 2, 0),
        ({"minAvailable": 0}, pods(2), None, 2, 0, 2),
        ({"minAvailable": 1}, pods(2, owner=""), None, 2, 1, 1),
        ({"minAvailable": 1}, pods(1, 2), None, 3, 1, 0),
        # A percentage is of the scale, and rounds up.
        ({"minAvailable": "50%"}, pods(3), 3, 3, 2, 1),
        ({"minAvailable": "100%"}, pods(3), 3, 3, 3, 0),
        ({"minAvailable": "0%"}, pods(3), 3, 3, 0, 3),
        ({"minAvailable": "1%"}, pods(3), 3, 3, 1, 2),
        ({"minAvailable": "34%"}, pods(3), 3, 3, 2, 1),
        ({"minAvailable": "50%"}, pods(2), 4, 4, 2, 0),
        ({"maxUnavailable": 1}, pods(3), 3, 3, 2, 1),
        ({"maxUnavailable": 0}, pods(3), 3, 3, 3, 0),
        ({"maxUnavailable": 5}, pods(3), 3, 3, 0, 3),
        ({"maxUnavailable": 1}, pods(2), 3, 3, 2, 0),
        ({"maxUnavailable": 1}, pods(2, 1), 3, 3, 2, 0),
        ({"maxUnavailable": "50%"}, pods(3), 3, 3, 1, 2),
        ({"maxUnavailable": "30%"}, pods(3), 3, 3, 2, 1),
        ({"maxUnavailable": "0%"}, pods(3), 3, 3, 3, 0),
        ({"maxUnavailable": "100%"}, pods(3), 3, 3, 0, 3),
        # More pods than the scale says: a rollout's surge may go.
        ({"maxUnavailable": 1}, pods(4), 3, 3, 2, 2),
        # Scaled to none: nothing is expected, so nothing is allowed.
        ({"maxUnavailable": 1}, pods(1), 0, 0, 0, 0),
        # Pods without a controller add nothing to a scale.
        ({"maxUnavailable": 1}, pods(2, owner=""), None, 0, 0, 0),
        ({"minAvailable": "50%"}, pods(2, owner=""), None, 0, 0, 0),
        ({"minAvailable": 1}, [], None, 0, 1, 0),
        ({}, pods(2), None, 2, 0, 2),
    ],
)  # fmt: skip
def test_how_many_may_be_disrupted(
    spec: Object, found: list[Pod], scale: int | None, expected: int, desired: int, allowed: int
) -> None:
    scales = {"rs": ControllerScale("rs", scale)} if scale is not None else {}
    status = plan.sync(budget(**spec), found, scales, NOW).status
    assert (status.expected_pods, status.desired_healthy, status.disruptions_allowed) == (expected, desired, allowed)
    assert status.observed_generation == 3
    (condition,) = status.conditions or ()
    reason = "SufficientPods" if allowed else "InsufficientPods"
    assert (condition.type, condition.status, condition.reason, condition.observed_generation) == (
        "DisruptionAllowed", "True" if allowed else "False", reason, 3,
    )  # fmt: skip


def test_scales_of_several_controllers_are_added_and_each_counts_once() -> None:
    old, new, other = pod("a", owner="old"), pod("b", owner="new"), pod("c", owner="other")
    deployment = ControllerScale("deployment", 4)
    scales = {"old": deployment, "new": deployment, "other": ControllerScale("other", 2)}
    assert plan.expected_pods([old, new, other, pod("d", owner="new"), pod("e", owner="")], scales) == 6


def test_a_controller_that_is_gone_cannot_be_counted() -> None:
    with pytest.raises(plan.ExpectedPodsUnknown, match='found no controllers for pod "p0"'):
        plan.sync(budget(maxUnavailable=1), pods(1), {"rs": None}, NOW)


def test_disrupted_pods_count_as_gone_until_they_time_out() -> None:
    known = {"p0": ago(10), "p1": ago(119), "p2": ago(120), "deleted": ago(5), "going": ago(5), "odd": None}
    found = [*pods(4), pod("going", deleting=True), pod("odd")]
    outcome = plan.sync(budget({"disruptedPods": known}, minAvailable=1), found, {}, NOW)
    assert outcome.status.disrupted_pods == {"p0": ago(10), "p1": ago(119)}
    assert outcome.status.current_healthy == 3, "p2, p3 and odd"
    assert outcome.recheck == 1.0
    assert [each.metadata.name for each in outcome.not_deleted] == ["p2", "odd"]


def test_pods_that_are_deleted_are_not_healthy() -> None:
    found = [*pods(2), pod("going", deleting=True)]
    assert plan.sync(budget(minAvailable=1), found, {}, NOW).status.current_healthy == 2


def test_a_failure_allows_nothing_and_keeps_what_was_recorded() -> None:
    before = budget({"disruptionsAllowed": 2, "currentHealthy": 3, "disruptedPods": {"a": ago(1)}}, maxUnavailable=1)
    status = plan.failed(before, "no scale", NOW)
    assert status.disruptions_allowed == 0 and status.disrupted_pods == {"a": ago(1)} and status.current_healthy == 3
    (condition,) = status.conditions or ()
    assert (condition.status, condition.reason, condition.message) == ("False", "SyncFailed", "no scale")
    assert plan.has_failed(status) and not plan.has_failed(before.status)


def test_the_patch_writes_zeros_and_removes_entries() -> None:
    before = budget({"disruptionsAllowed": 1, "disruptedPods": {"a": ago(1), "b": ago(1)}}, minAvailable=1)
    after = plan.sync(before, [pod("b")], {}, NOW).status
    patch = plan.status_patch(before.status, after)
    assert patch is not None
    assert patch["disruptionsAllowed"] == 0 and patch["disruptedPods"] == {"a": None}
    assert plan.status_patch(after, after) is None


# ---- on a server ----


def body(name: str = "b", labels: dict[str, str] | None = None, **spec: Any) -> Object:
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"matchLabels": labels or {"app": "web"}}, **spec},
    }


async def figures(w: World, name: str = "b") -> tuple[int, int, int, int]:
    """Allowed, healthy, desired and expected."""
    status = await w.status(BUDGET, name)
    return (
        status["disruptionsAllowed"], status["currentHealthy"], status["desiredHealthy"], status["expectedPods"],
    )  # fmt: skip


async def until_figures(w: World, *wanted: int) -> None:
    async def reached() -> bool:
        return await figures(w) == wanted

    await w.until(reached)


async def condition(w: World) -> tuple[str, str, str]:
    (found,) = (await w.status(BUDGET, "b")).get("conditions") or ({"status": "", "reason": "", "message": ""},)
    return found["status"], found["reason"], found["message"]


async def evict(w: World, name: str) -> None:
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}}
    await w.client.create(POD, eviction, "default", name=name, subresource="eviction")


def owned(name: str, kind: str, api_version: str, owner: Object) -> Object:
    meta = owner["metadata"]
    reference = {"apiVersion": api_version, "kind": kind, "name": meta["name"], "uid": meta["uid"], "controller": True}
    return {
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}, "ownerReferences": [reference]},
        "spec": template()["spec"],
    }


async def test_a_deployment_under_a_budget_survives_evicting_everything() -> None:
    async with world(*ALL) as w:
        await w.client.create(DEPLOYMENT, workload("web", replicas=3))
        await w.client.create(BUDGET, body(maxUnavailable=1))
        await until_figures(w, 1, 3, 2, 3)
        assert await condition(w) == ("True", "SufficientPods", "")
        first = {each["metadata"]["name"] for each in await w.pods()}
        left = set(first)
        least = 3
        while left:
            name = min(left)
            try:
                await evict(w, name)
            except TooManyRequests:
                await w.settle(0.2)
            else:
                left.discard(name)
                if left:
                    with pytest.raises(TooManyRequests):
                        await evict(w, min(left))
            alive = await w.pods(alive=True)
            least = min(least, sum(1 for each in alive if is_ready(each)))
        await until_figures(w, 1, 3, 2, 3)
        assert least == 2
        assert not first & {each["metadata"]["name"] for each in await w.pods()}
        assert not (await w.status(BUDGET, "b")).get("disruptedPods"), "the controller has seen the deletions"


def is_ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


async def test_evictions_at_the_same_time_never_exceed_the_budget() -> None:
    async with world(*ALL) as w:
        await w.client.create(RS, workload("web", replicas=6))
        await w.client.create(BUDGET, body(minAvailable=4))
        await until_figures(w, 2, 6, 4, 6)
        names = [each["metadata"]["name"] for each in await w.pods()]
        answers = await asyncio.gather(*(evict(w, name) for name in names), return_exceptions=True)
        assert sum(answer is None for answer in answers) == 2
        assert all(isinstance(answer, TooManyRequests) for answer in answers if answer is not None)


async def test_a_rollout_counts_the_deployment_once() -> None:
    async with world(*ALL) as w:
        await w.client.create(DEPLOYMENT, workload("web", replicas=4))
        await w.client.create(BUDGET, body(maxUnavailable="25%"))
        await until_figures(w, 1, 4, 3, 4)
        w.outcome = lambda each: "Running" if each["spec"]["containers"][0]["image"] == "i:1" else "NotReady"
        await w.client.patch(DEPLOYMENT, "web", "default", {"spec": {"template": template(image="i:2")}})
        await w.settle(5)
        assert len(await w.list(RS)) == 2
        assert (await figures(w))[2:] == (3, 4), "two replica sets, one deployment"


async def test_a_new_scale_counts_before_its_pods_exist() -> None:
    async with world(MAKE) as w:
        made = await w.client.create(RS, workload("web", replicas=1))
        await w.client.create(POD, owned("a", "ReplicaSet", "apps/v1", made))
        await w.client.create(BUDGET, body(maxUnavailable=1))
        await until_figures(w, 1, 1, 0, 1)
        await w.client.patch(RS, "web", "default", {"spec": {"replicas": 3}})
        await until_figures(w, 0, 1, 2, 3)


@pytest.mark.parametrize(
    ("kind", "api_version"),
    [(STATEFUL_SET, "apps/v1"), (REPLICATION_CONTROLLER, "v1")],
    ids=["stateful-set", "replication-controller"],
)
async def test_other_controllers_are_asked_for_their_scale(kind: Kind[Object], api_version: str) -> None:
    async with world(MAKE) as w:
        owner = workload("web", replicas=2)
        if kind is REPLICATION_CONTROLLER:
            owner["spec"]["selector"] = {"app": "web"}
        else:
            owner["spec"]["serviceName"] = "web"
        made = await w.client.create(kind, owner)
        for name in ("a", "b"):
            await w.client.create(POD, owned(name, kind.resource.kind, api_version, made))
        await w.client.create(BUDGET, body(minAvailable="50%"))
        await until_figures(w, 1, 2, 1, 2)


async def test_pods_without_a_controller_need_an_integer_minimum() -> None:
    async with world(MAKE) as w:
        for name in ("a", "b"):
            await w.client.create(POD, {"metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}}, "spec": template()["spec"]})  # fmt: skip
        await w.client.create(BUDGET, body(minAvailable=1))
        await until_figures(w, 1, 2, 1, 2)
        await w.client.patch(BUDGET, "b", "default", {"spec": {"minAvailable": "50%"}})
        await until_figures(w, 0, 2, 0, 0)
        assert await condition(w) == ("False", "InsufficientPods", "")
        assert (await w.status(BUDGET, "b"))["observedGeneration"] == 2


async def test_a_controller_without_a_scale_fails_the_sync_until_it_is_helped() -> None:
    async with world(MAKE) as w:
        job = {"metadata": {"name": "web", "uid": "job"}}
        made = await w.client.create(POD, owned("a", "Job", "batch/v1", job))
        await w.client.create(BUDGET, body(maxUnavailable=1))

        async def failed() -> bool:
            return (await condition(w))[1] == "SyncFailed"

        await w.until(failed)
        assert await condition(w) == ("False", "SyncFailed", "jobs.batch does not implement the scale subresource")
        version = (await w.get(BUDGET, "b"))["metadata"]["resourceVersion"]
        await w.settle(100, step=5)
        assert (await w.get(BUDGET, "b"))["metadata"]["resourceVersion"] == version, "a lasting failure is written once"
        assert sum(reason.startswith("Calculate") for reason, _ in await w.events()) == 1
        await w.client.patch(BUDGET, "b", "default", {"spec": {"maxUnavailable": None, "minAvailable": 0}})
        await until_figures(w, 1, 1, 0, 1)
        assert made["metadata"]["name"] == "a" and await condition(w) == ("True", "SufficientPods", "")


async def test_a_pod_that_was_not_deleted_counts_again_after_two_minutes() -> None:
    async with world(
        MAKE,
    ) as w:
        for name in ("a", "b"):
            await w.client.create(POD, {"metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}}, "spec": template()["spec"]})  # fmt: skip
        await w.client.create(BUDGET, body(minAvailable=1))
        await until_figures(w, 1, 2, 1, 2)
        evicted = {"disruptionsAllowed": 0, "disruptedPods": {"a": rfc3339(w.clock.now())}}
        await w.client.patch_status(BUDGET, "b", "default", {"status": evicted})
        await until_figures(w, 0, 1, 1, 2)
        await w.settle(110, step=5)
        assert await figures(w) == (0, 1, 1, 2)
        await w.settle(15)
        assert await figures(w) == (1, 2, 1, 2)
        assert not (await w.status(BUDGET, "b")).get("disruptedPods")
        assert ("NotDeleted", "Pod was expected by PDB default/b to be deleted but it wasn't") in await w.events()


async def test_two_budgets_over_one_pod_stop_its_eviction() -> None:
    async with world(*ALL) as w:
        await w.client.create(RS, workload("web", replicas=2))
        await w.client.create(BUDGET, body(minAvailable=1))
        await w.client.create(BUDGET, body("other", minAvailable=1))
        await until_figures(w, 1, 2, 1, 2)
        name = (await w.pods())[0]["metadata"]["name"]
        with pytest.raises(ApiError, match="more than one PodDisruptionBudget") as caught:
            await evict(w, name)
        assert caught.value.code == 500


async def test_lost_writes_heal() -> None:
    async with world(*ALL, seed=5) as w:
        w.faults.share = 0.4
        await w.client.create(DEPLOYMENT, workload("web", replicas=3))
        await w.client.create(BUDGET, body(minAvailable="60%"))
        await until_figures(w, 1, 3, 2, 3)
