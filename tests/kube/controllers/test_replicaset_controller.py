"""Replica sets: the ranking and the status as rows, the rest on a real API server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from workload_world import POD, QUOTA, RS, World, workload, world

from coterie.base.clock import rfc3339
from coterie.kube.api.meta import Object
from coterie.kube.api.types.apps import REPLICA_SETS, ReplicaSet
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.controllers.replicaset import controller, plan

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
MAKE = ("replicaset-controller", controller.make)


def ago(seconds: float) -> str:
    return rfc3339(NOW - timedelta(seconds=seconds))


def pod(
    name: str, *, node: str = "n", phase: str = "Running", ready: float | None = 1000, age: float = 5000,
    cost: str = "", restarts: int = 0, deleting: bool = False, labels: dict[str, str] | None = None,
) -> Pod:  # fmt: skip
    meta: Object = {"name": name, "uid": name, "namespace": "default", "creationTimestamp": ago(age)}
    meta["labels"] = {"app": "web"} if labels is None else labels
    if cost:
        meta["annotations"] = {plan.DELETION_COST: cost}
    if deleting:
        meta["deletionTimestamp"] = ago(1)
    ready_now = ready is not None
    condition = {"type": "Ready", "status": "True" if ready_now else "False", "lastTransitionTime": ago(ready or 0)}
    status = {"phase": phase, "conditions": [condition], "containerStatuses": [{"name": "m", "restartCount": restarts}]}
    body = {"metadata": meta, "spec": {"nodeName": node} if node else {}, "status": status}
    return PODS.decode(PODS.as_dynamic.encode(body))


def replica_set(replicas: int = 1, *, generation: int = 1, status: Any = None, **spec: Any) -> ReplicaSet:
    body = workload("web", replicas=replicas, **spec)
    body["metadata"] |= {"uid": "rs", "generation": generation}
    body["status"] = status or {"replicas": 0}
    return REPLICA_SETS.decode(REPLICA_SETS.as_dynamic.encode(body))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pod("b", node=""), pod("a")),
        (pod("b", phase="Pending", ready=None), pod("a", phase="Unknown", ready=None)),
        (pod("b", phase="Unknown", ready=None), pod("a", ready=None)),
        (pod("b", ready=None), pod("a")),
        (pod("b", ready=None, cost="100"), pod("a", cost="-100")),
        (pod("b", cost="-5"), pod("a")),
        (pod("b", cost="1"), pod("a", cost="10")),
        (pod("b", cost="0"), pod("a", cost="10")),
        (pod("b", cost="x"), pod("a", cost="1")),
        (pod("b", ready=10), pod("a", ready=1000)),
        (pod("b", restarts=3), pod("a", restarts=1)),
        (pod("b", age=100), pod("a", age=5000)),
        (pod("a", age=4500), pod("b", age=4600)),
    ],
    ids=[
        "unassigned", "pending", "unknown", "not-ready", "ready-before-cost", "cheaper", "cost-is-a-number",
        "no-cost-is-zero", "bad-cost-is-zero", "ready-shorter", "restarted", "newer", "same-age-class-by-uid",
    ],
)  # fmt: skip
def test_who_goes_first(first: Pod, second: Pod) -> None:
    for order in ([first, second], [second, first]):
        assert plan.first_to_go(order, [], NOW)[0] is first


def test_crowded_nodes_lose_pods_first() -> None:
    pods = [pod("a1", node="a"), pod("b1", node="b"), pod("b2", node="b"), pod("c1", node="c")]
    related = [*pods, pod("other", node="c"), pod("other2", node="c"), pod("going", node="a", deleting=True)]
    assert [p.metadata.name for p in plan.first_to_go(pods, related, NOW)] == ["c1", "b1", "b2", "a1"]


@pytest.mark.parametrize(
    ("replicas", "pods", "create", "delete"),
    [
        (3, [], 3, 0),
        (3, [pod("a"), pod("b")], 1, 0),
        (2, [pod("a"), pod("b", phase="Failed")], 1, 0),
        (2, [pod("a"), pod("b", phase="Succeeded")], 1, 0),
        (2, [pod("a"), pod("b", deleting=True)], 1, 0),
        (1, [pod("a"), pod("b"), pod("c")], 0, 2),
        (0, [pod("a")], 0, 1),
        (2, [pod("a"), pod("b")], 0, 0),
        (900, [], 500, 0),
    ],
    ids=["none", "one-short", "failed", "succeeded", "going", "too-many", "zero", "right", "burst"],
)
def test_plan(replicas: int, pods: list[Pod], create: int, delete: int) -> None:
    wanted = plan.plan(replica_set(replicas), pods, pods, NOW, 500)
    assert (wanted.create, len(wanted.delete)) == (create, delete)


def test_status_counts() -> None:
    pods = [
        pod("new", ready=10), pod("old", ready=100), pod("not", ready=None), pod("ended", phase="Failed"),
        pod("going", deleting=True), pod("odd", labels={"other": "x"}),
    ]  # fmt: skip
    new, wait = plan.status(replica_set(6, generation=7, minReadySeconds=30), pods, None, NOW)
    assert (new.replicas, new.fully_labeled_replicas, new.ready_replicas, new.available_replicas) == (4, 3, 3, 2)
    assert new.observed_generation == 7 and wait == 20.0
    again, wait = plan.status(replica_set(6, status=msgspec.to_builtins(new)), [pods[0]], None, NOW)
    assert again.available_replicas == 1 and wait is None


def test_failure_condition_comes_stays_and_goes() -> None:
    failure = plan.ReplicaFailure("FailedCreate", "no")
    first, _ = plan.status(replica_set(), [], failure, NOW)
    assert first.conditions and first.conditions[0].last_transition_time == rfc3339(NOW)
    known = replica_set(status=msgspec.to_builtins(first))
    later = NOW + timedelta(seconds=60)
    assert (
        plan.status(known, [], plan.ReplicaFailure("FailedCreate", "no, again"), later)[0].conditions
        == first.conditions
    )
    assert plan.status(known, [], None, later)[0].conditions is None


# ---- on the server ----


async def counts(w: World, name: str = "web") -> tuple[int, int, int]:
    status = await w.status(RS, name)
    return status["replicas"], status.get("readyReplicas", 0), status.get("availableReplicas", 0)


async def test_scales_up_and_down_and_replaces() -> None:
    async with world(MAKE) as w:
        await w.client.create(RS, workload("web", replicas=5))
        await w.until(lambda: answers(counts(w), (5, 5, 5)))
        assert len(w.started) == 5
        pods = await w.pods()
        owner = pods[0]["metadata"]["ownerReferences"][0]
        assert owner["controller"] and owner["blockOwnerDeletion"] and owner["apiVersion"] == "apps/v1"
        assert pods[0]["metadata"]["generateName"] == "web-"
        await w.client.delete(POD, pods[0]["metadata"]["name"], "default")
        await w.until(lambda: answers(counts(w), (5, 5, 5)))
        await w.settle(2)
        assert len(w.started) == 6 and len(await w.pods()) == 5
        await w.client.scale(RS, "web", "default", 2)
        await w.until(lambda: answers(counts(w), (2, 2, 2)))
        await w.client.scale(RS, "web", "default", 0)
        await w.until(lambda: answers(counts(w), (0, 0, 0)))
        reasons = {reason for reason, _ in await w.events()}
        assert {"SuccessfulCreate", "SuccessfulDelete"} <= reasons
        assert (await w.status(RS, "web"))["observedGeneration"] == 3


async def answers(question: Any, wanted: Any) -> bool:
    return bool(await question == wanted)


async def test_adopts_orphans_and_releases_strangers() -> None:
    async with world(MAKE) as w:
        body = {"metadata": {"name": "loose", "namespace": "default", "labels": {"app": "web"}}}
        await w.client.create(POD, {**body, "spec": workload("x")["spec"]["template"]["spec"]})
        await w.client.create(RS, workload("web", replicas=2))
        await w.until(lambda: answers(counts(w), (2, 2, 2)))
        loose = await w.get(POD, "loose")
        assert loose["metadata"]["ownerReferences"][0]["name"] == "web" and len(w.started) == 2
        await w.client.patch(POD, "loose", "default", {"metadata": {"labels": {"app": "debug"}}})
        await w.until(lambda: released(w))
        await w.until(lambda: answers(counts(w), (2, 2, 2)))
        assert len(await w.pods()) == 3


async def released(w: World) -> bool:
    return not (await w.get(POD, "loose"))["metadata"].get("ownerReferences")


async def test_a_quota_stops_it_and_a_bigger_one_lets_it_go_on() -> None:
    async with world(MAKE) as w:
        quota = {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": {"pods": "2"}}}
        await w.client.create(QUOTA, quota)
        await w.client.create(RS, workload("web", replicas=10))
        await w.settle(30)
        status = await w.status(RS, "web")
        assert status["replicas"] == 2
        failure = next(c for c in status["conditions"] if c["type"] == "ReplicaFailure")
        assert failure["reason"] == "FailedCreate" and "exceeded quota" in failure["message"]
        refused = [message for reason, message in await w.events() if reason == "FailedCreate"]
        # Many alike are combined into one event, whose message then has a prefix.
        assert refused and all("Error creating: pods " in message for message in refused)
        await w.client.patch(QUOTA, "q", "default", {"spec": {"hard": {"pods": "20"}}})
        await w.until(lambda: answers(counts(w), (10, 10, 10)), 600)
        assert not (await w.status(RS, "web")).get("conditions")


async def test_min_ready_seconds_and_unready_pods() -> None:
    async with world(MAKE) as w:
        await w.client.create(RS, workload("web", replicas=2, minReadySeconds=20))
        await w.until(lambda: answers(counts(w), (2, 2, 0)))
        await w.settle(15)
        assert await counts(w) == (2, 2, 0)
        await w.settle(7)
        assert await counts(w) == (2, 2, 2)
        w.outcome = lambda pod: "NotReady"
        await w.until(lambda: answers(counts(w), (2, 0, 0)))


async def test_nothing_is_written_while_nothing_changes() -> None:
    async with world(MAKE) as w:
        await w.client.create(RS, workload("web", replicas=3))
        await w.until(lambda: answers(counts(w), (3, 3, 3)))
        await w.settle(2)
        before = (await w.get(RS, "web"))["metadata"]["resourceVersion"]
        await w.settle(60)
        assert (await w.get(RS, "web"))["metadata"]["resourceVersion"] == before


async def test_none_is_made_twice_while_the_cache_fills() -> None:
    async with world(MAKE) as w:
        await w.client.create(RS, workload("web", replicas=40))
        await w.settle(0.2)
        assert len(await w.pods()) <= 40
        await w.until(lambda: answers(counts(w), (40, 40, 40)))
        assert len(w.started) == 40
