"""Deployments: the arithmetic as rows, rollouts on a real API server."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workload_world import DEPLOYMENT, POD, QUOTA, RS, World, template, workload, world

from coterie.base.clock import rfc3339
from coterie.kube.api.labels import DEPLOYMENT_REVISION, DESIRED_REPLICAS, MAX_REPLICAS, POD_TEMPLATE_HASH
from coterie.kube.api.meta import Object
from coterie.kube.api.types.apps import DEPLOYMENTS, REPLICA_SETS, Deployment, ReplicaSet
from coterie.kube.controllers.deployment import controller, numbers, revisions
from coterie.kube.controllers.deployment import plan as planning
from coterie.kube.controllers.deployment import status as says
from coterie.kube.controllers.deployment.drafts import Draft
from coterie.kube.controllers.replicaset import controller as replicasets

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
MAKES = (("replicaset-controller", replicasets.make), ("deployment-controller", controller.make))
WEB = {"app": "web"}


def deployment(
    replicas: int = 10, *, surge: Any = "25%", gone: Any = "25%", status: Any = None, **more: Any
) -> Deployment:
    spec: Object = {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": gone}}}
    spec |= {"replicas": replicas, "progressDeadlineSeconds": 600, "revisionHistoryLimit": 2, **more}
    body = workload("web", **spec)
    body["metadata"] |= {"uid": "d", "generation": 3}
    body["status"] = status or {}
    return DEPLOYMENTS.decode(DEPLOYMENTS.as_dynamic.encode(body))


def replica_set(
    name: str, replicas: int, *, available: int | None = None, image: str = "old", age: int = 0, revision: int = 1,
    desired: int | None = None, most: int | None = None,
) -> ReplicaSet:  # fmt: skip
    body = workload(name, replicas=replicas)
    body["spec"]["template"] = template({**WEB, POD_TEMPLATE_HASH: name}, image="i:1" if image == "new" else image)
    annotations = {DEPLOYMENT_REVISION: str(revision)}
    if desired is not None:
        annotations[DESIRED_REPLICAS] = str(desired)
    if most is not None:
        annotations[MAX_REPLICAS] = str(most)
    made = rfc3339(NOW - timedelta(seconds=1000 + age))
    body["metadata"] |= {"uid": name, "creationTimestamp": made, "annotations": annotations, "generation": 1}
    up = replicas if available is None else available
    body["status"] = {"replicas": replicas, "readyReplicas": up, "availableReplicas": up, "observedGeneration": 1}
    return REPLICA_SETS.decode(REPLICA_SETS.as_dynamic.encode(body))


@pytest.mark.parametrize(
    ("replicas", "surge", "gone", "wanted"),
    [
        (10, "25%", "25%", (3, 2)),
        (5, "25%", "25%", (2, 1)),
        (1, "25%", "25%", (1, 0)),
        (1, 0, "25%", (0, 1)),
        (3, "1%", "0%", (1, 0)),
        (10, 0, "5%", (0, 1)),
        (4, 2, 10, (2, 4)),
        (0, "25%", 1, (0, 0)),
        (10, "150%", "100%", (15, 10)),
        (8, None, None, (0, 1)),
    ],
)
def test_fence_posts(replicas: int, surge: Any, gone: Any, wanted: tuple[int, int]) -> None:
    found = numbers.bounds(deployment(replicas, surge=surge, gone=gone))
    assert (found.surge, found.unavailable) == wanted


@pytest.mark.parametrize(
    ("replicas", "total", "current", "size"),
    [(10, 10, 0, 3), (10, 13, 3, 3), (10, 11, 3, 5), (10, 20, 2, 2), (10, 5, 0, 8), (10, 9, 9, 10), (0, 4, 0, 0)],
    ids=["begin", "full", "room-for-two", "over", "few-old", "last", "zero"],
)
def test_size_of_the_newest(replicas: int, total: int, current: int, size: int) -> None:
    assert numbers.new_size(deployment(replicas), total, current) == size


def test_recreate_makes_all_at_once() -> None:
    assert numbers.new_size(deployment(7, strategy={"type": "Recreate"}), 0, 0) == 7


@pytest.mark.parametrize(
    ("newest", "old", "wanted"),
    [
        ((3, 0), [(10, 10)], {"o0": 8}),
        ((3, 3), [(8, 8)], {"o0": 5}),
        ((5, 3), [(8, 8)], {"o0": 5}),
        ((3, 0), [(8, 8)], {}),
        ((3, 0), [(10, 4)], {"o0": 8}),
        ((10, 10), [(3, 0)], {"o0": 0}),
        ((3, 0), [(5, 0), (5, 5)], {"o0": 3}),
        ((10, 10), [(2, 2), (1, 1)], {"o0": 0, "o1": 0}),
        ((5, 5), [(0, 0)], {}),
        ((0, 0), [(4, 4), (6, 6)], {"o0": 2}),
    ],
    ids=[
        "first-step", "next", "new-not-up", "at-the-limit", "broken-first", "broken-at-the-end", "broken-of-the-oldest",
        "all-done", "nothing-old", "oldest-first",
    ],
)  # fmt: skip
def test_what_old_sets_may_lose(newest: tuple[int, int], old: list[tuple[int, int]], wanted: dict[str, int]) -> None:
    drafts = [Draft.of(replica_set(f"o{i}", n, available=up, age=-i)) for i, (n, up) in enumerate(old)]
    new = Draft.of(replica_set("new", newest[0], available=newest[1], image="new"))
    assert numbers.shrink_old(deployment(10), new, drafts) == wanted


@pytest.mark.parametrize(
    ("replicas", "sets", "wanted"),
    [
        (20, {"a": 8, "b": 5}, {"a": 15, "b": 10}),
        (5, {"a": 8, "b": 5}, {"a": 4, "b": 3}),
        (0, {"a": 8, "b": 5}, {"a": 0, "b": 0}),
        (10, {"a": 8, "b": 5}, {"a": 8, "b": 5}),
        (12, {"a": 1, "b": 12}, {"a": 1, "b": 14}),
    ],
    ids=["double", "half", "none", "same", "leftover-to-the-largest"],
)
def test_scaling_in_the_middle_of_a_rollout_keeps_proportions(
    replicas: int, sets: dict[str, int], wanted: dict[str, int]
) -> None:
    drafts = [Draft.of(replica_set(name, n, desired=10, most=13)) for name, n in sets.items()]
    assert numbers.share(deployment(replicas), drafts) == wanted


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 60), st.lists(st.integers(0, 40), min_size=1, max_size=5), st.integers(0, 10), st.integers(1, 10))
def test_sharing_gives_out_exactly_what_is_allowed(replicas: int, sizes: list[int], surge: int, before: int) -> None:
    wanted = deployment(replicas, surge=surge, gone=1)
    drafts = [Draft.of(replica_set(f"r{i}", n, most=before + sum(sizes))) for i, n in enumerate(sizes)]
    shared = numbers.share(wanted, drafts)
    assert all(size >= 0 for size in shared.values())
    if shared:
        assert sum(shared.values()) == (numbers.most(wanted) if replicas else 0)


def test_hash_is_stable_and_blind_to_the_order_of_keys() -> None:
    one = {"metadata": {"labels": {"a": "1", "b": "2"}}, "spec": {"containers": [{"name": "m", "image": "x"}]}}
    other = {"spec": {"containers": [{"image": "x", "name": "m"}]}, "metadata": {"labels": {"b": "2", "a": "1"}}}
    assert revisions.template_hash(one, None) == revisions.template_hash(other, 0) == "f8qr9mw9wx"
    assert revisions.template_hash(one, 1) != revisions.template_hash(one, None)
    changed = copy.deepcopy(one)
    changed["spec"]["containers"][0]["image"] = "y"  # type: ignore[index]
    assert revisions.template_hash(changed, None) != revisions.template_hash(one, None)
    assert revisions.same_template({**one, "metadata": {"labels": {"a": "1", "b": "2", POD_TEMPLATE_HASH: "x"}}}, one)


def test_the_newest_gets_the_next_revision_and_remembers_the_last() -> None:
    draft = Draft.of(replica_set("a", 1, revision=1))
    revisions.annotate(deployment(), draft, 4)
    assert draft.annotations[DEPLOYMENT_REVISION] == "4" and draft.annotations[revisions.REVISION_HISTORY] == "1"
    revisions.annotate(deployment(), draft, 3)
    assert draft.annotations[DEPLOYMENT_REVISION] == "4"


def step(d: Deployment, *sets: ReplicaSet, old_pods: bool = False) -> dict[str, Any]:
    made = planning.plan(d, sets, old_pods, NOW)
    return {
        "create": made.create["spec"]["replicas"] if made.create else None,
        "sizes": {draft.name: draft.replicas for draft in made.resize if draft.replicas != draft.before.replicas},
        "forget": [found.metadata.name for found in made.forget],
        "progress": (found := says.find(tuple(made.status.conditions or ()), "Progressing")) and found.reason,
    }


NEW = replica_set("new", 10, image="new", revision=4, desired=10, most=13)
PROGRESSING = {"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated"}
STUCK = {"conditions": [{**PROGRESSING, "lastUpdateTime": rfc3339(NOW - timedelta(seconds=700))}]}
BUSY = {"conditions": [{**PROGRESSING, "lastUpdateTime": rfc3339(NOW - timedelta(seconds=500))}]}


@pytest.mark.parametrize(
    ("d", "sets", "wanted"),
    [
        (deployment(10), [], {"create": 10, "progress": "NewReplicaSetCreated"}),
        (
            deployment(10, status={"replicas": 10, "updatedReplicas": 10, "readyReplicas": 10, "availableReplicas": 10}),
            [replica_set("o", 10, desired=10)],
            {"create": 3, "progress": "NewReplicaSetCreated"},
        ),
        (deployment(10, paused=True), [], {"progress": "DeploymentPaused"}),
        (deployment(10), [NEW], {"progress": "NewReplicaSetAvailable"}),
        (
            deployment(10),
            [NEW, *(replica_set(f"o{i}", 0, revision=i) for i in (3, 1, 2))],
            {"forget": ["o1"], "progress": "NewReplicaSetAvailable"},
        ),
        (deployment(4), [replica_set("new", 10, image="new", desired=10)], {"sizes": {"new": 4}}),
        (deployment(4, paused=True), [replica_set("o", 10, desired=10)], {"sizes": {"o": 4}}),
        (
            deployment(10, strategy={"type": "Recreate"}),
            [replica_set("o", 10, desired=10)],
            {"sizes": {"o": 0}},
        ),
        (deployment(10, strategy={"type": "Recreate"}), [replica_set("o", 0)], {"create": 10}),
        (
            deployment(10, status=STUCK),
            [replica_set("new", 10, image="new", available=3, desired=10)],
            {"progress": "ReplicaSetUpdated"},
        ),
    ],
    ids=[
        "first", "new-template", "born-paused", "complete", "history", "scaled", "scaled-while-paused", "recreate-down",
        "recreate-up", "moved-again",
    ],
)  # fmt: skip
def test_steps(d: Deployment, sets: list[ReplicaSet], wanted: dict[str, Any]) -> None:
    found = step(d, *sets)
    assert {key: found[key] for key in ("create", "sizes", "forget")} == {
        "create": wanted.get("create"),
        "sizes": wanted.get("sizes", {}),
        "forget": wanted.get("forget", []),
    }
    if "progress" in wanted:
        assert found["progress"] == wanted["progress"]


def test_recreate_waits_for_the_last_pod() -> None:
    d = deployment(10, strategy={"type": "Recreate"})
    assert step(d, replica_set("o", 0), old_pods=True)["create"] is None


@pytest.mark.parametrize(("status", "reason"), [(STUCK, "ProgressDeadlineExceeded"), (BUSY, "ReplicaSetUpdated")])
def test_deadline(status: Object, reason: str) -> None:
    stalled = {**status, "replicas": 10, "updatedReplicas": 10, "readyReplicas": 3, "availableReplicas": 3}
    found = replica_set("new", 10, image="new", available=3, desired=10)
    made = planning.plan(deployment(10, status=stalled), [found], False, NOW)
    condition = says.find(tuple(made.status.conditions or ()), "Progressing")
    assert condition is not None and condition.reason == reason
    assert (made.after is None) == (reason == "ProgressDeadlineExceeded")


# ---- on the server ----


def image(pod: Object) -> str:
    return str(pod["spec"]["containers"][0]["image"])


async def rolled_out(w: World, name: str = "web") -> bool:
    """What `kubectl rollout status` asks."""
    found = await w.get(DEPLOYMENT, name)
    status, wanted = found.get("status") or {}, found["spec"]["replicas"]
    if found["metadata"]["generation"] > status.get("observedGeneration", 0):
        return False
    updated = status.get("updatedReplicas", 0)
    return updated >= wanted and status.get("replicas", 0) <= updated and status.get("availableReplicas", 0) >= updated


def condition(status: Object, type_: str) -> Object:
    return next((c for c in status.get("conditions") or () if c["type"] == type_), {})


async def set_image(w: World, text: str) -> None:
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": text}]}}}}
    await w.client.patch(DEPLOYMENT, "web", "default", patch, type="strategic")


async def watched_rollout(w: World, check: Callable[[list[Object]], None]) -> None:
    for _ in range(300):
        check(await w.pods())
        if await rolled_out(w):
            return
        await w.settle(0.2)
    raise AssertionError(await w.picture())


async def sets_by_revision(w: World) -> dict[str, str]:
    return {s["metadata"]["annotations"][DEPLOYMENT_REVISION]: image(s["spec"]["template"]) for s in await w.list(RS)}


async def test_rolled_scaled_undone_paused() -> None:
    async with world(*MAKES) as w:
        await w.client.create(DEPLOYMENT, workload("web", replicas=5))
        await w.until(lambda: rolled_out(w))
        status = await w.status(DEPLOYMENT, "web")
        assert condition(status, "Available")["reason"] == "MinimumReplicasAvailable"
        assert condition(status, "Progressing")["reason"] == "NewReplicaSetAvailable"
        assert (await w.get(DEPLOYMENT, "web"))["metadata"]["annotations"][DEPLOYMENT_REVISION] == "1"

        def gently(pods: list[Object]) -> None:
            ready = [
                p for p in pods
                if not p["metadata"].get("deletionTimestamp")
                and condition(p.get("status") or {}, "Ready").get("status") == "True"
            ]  # fmt: skip
            assert len(ready) >= 4, "25 % of five is one that may be missing"
            assert len([p for p in pods if not p["metadata"].get("deletionTimestamp")]) <= 7, "and two too many"

        await set_image(w, "i:2")
        await w.settle(0.2)
        await watched_rollout(w, gently)
        assert {image(p) for p in await w.pods(alive=True)} == {"i:2"}
        assert await sets_by_revision(w) == {"1": "i:1", "2": "i:2"}

        # kubectl rollout undo: the template of the old set is put back.
        old = next(s for s in await w.list(RS) if image(s["spec"]["template"]) == "i:1")
        back = old["spec"]["template"]
        del back["metadata"]["labels"][POD_TEMPLATE_HASH]
        operations = [{"op": "replace", "path": "/spec/template", "value": back}]
        await w.client.patch(DEPLOYMENT, "web", "default", operations, type="json")
        await w.settle(0.2)
        await watched_rollout(w, gently)
        assert {image(p) for p in await w.pods(alive=True)} == {"i:1"}
        assert await sets_by_revision(w) == {"3": "i:1", "2": "i:2"}

        await w.client.scale(DEPLOYMENT, "web", "default", 8)
        await w.until(lambda: rolled_out(w))
        assert len(await w.pods(alive=True)) == 8

        await w.client.patch(DEPLOYMENT, "web", "default", {"spec": {"paused": True}})
        await set_image(w, "i:3")
        await w.settle(5)
        assert {image(p) for p in await w.pods()} == {"i:1"} and len(await w.list(RS)) == 2
        paused = condition(await w.status(DEPLOYMENT, "web"), "Progressing")
        assert (paused["status"], paused["reason"]) == ("Unknown", "DeploymentPaused")
        await w.client.scale(DEPLOYMENT, "web", "default", 3)
        await w.settle(5)
        assert len(await w.pods()) == 3
        await w.client.patch(DEPLOYMENT, "web", "default", {"spec": {"paused": False}})
        await w.settle(0.2)
        await w.until(lambda: rolled_out(w))
        assert {image(p) for p in await w.pods(alive=True)} == {"i:3"}
        told = [message for reason, message in await w.events() if reason == "ScalingReplicaSet"]
        assert any(message.startswith("Scaled up replica set web-") for message in told)
        assert any("Scaled down replica set web-" in message for message in told)


async def test_restart_replaces_all_pods_and_history_is_cut() -> None:
    async with world(*MAKES) as w:
        await w.client.create(DEPLOYMENT, workload("web", replicas=2, revisionHistoryLimit=1))
        await w.until(lambda: rolled_out(w))
        before = {p["metadata"]["uid"] for p in await w.pods()}
        for turn in range(3):
            stamp = {"kubectl.kubernetes.io/restartedAt": f"2026-01-02T03:04:0{turn}Z"}
            patch = {"spec": {"template": {"metadata": {"annotations": stamp}}}}
            await w.client.patch(DEPLOYMENT, "web", "default", patch, type="strategic")
            await w.settle(0.2)
            await w.until(lambda: rolled_out(w))
        await w.settle(2)
        assert not before & {p["metadata"]["uid"] for p in await w.pods(alive=True)}
        assert sorted(await sets_by_revision(w)) == ["3", "4"]


async def test_a_bad_version_stops_is_called_stuck_and_is_taken_back() -> None:
    async with world(*MAKES) as w:
        await w.client.create(DEPLOYMENT, workload("web", replicas=4, progressDeadlineSeconds=30))
        await w.until(lambda: rolled_out(w))
        w.outcome = lambda pod: "NotReady" if image(pod) == "bad" else "Running"
        await set_image(w, "bad")
        await w.settle(10)
        good = [p for p in await w.pods(alive=True) if image(p) == "i:1"]
        assert len(good) == 3, "no more than 25 % may be missing"
        assert condition(await w.status(DEPLOYMENT, "web"), "Available")["status"] == "True"
        await w.settle(30)
        progress = condition(await w.status(DEPLOYMENT, "web"), "Progressing")
        assert (progress["status"], progress["reason"]) == ("False", "ProgressDeadlineExceeded")
        await set_image(w, "i:1")
        await w.settle(0.2)
        await w.until(lambda: rolled_out(w))
        assert condition(await w.status(DEPLOYMENT, "web"), "Progressing")["reason"] == "NewReplicaSetAvailable"
        assert {image(p) for p in await w.pods(alive=True)} == {"i:1"}


async def test_recreate_never_runs_two_versions() -> None:
    async with world(*MAKES) as w:
        await w.client.create(DEPLOYMENT, workload("web", replicas=3, strategy={"type": "Recreate"}))
        await w.until(lambda: rolled_out(w))
        await set_image(w, "i:2")

        def one_version(pods: list[Object]) -> None:
            assert len({image(p) for p in pods}) <= 1

        await watched_rollout(w, one_version)
        await w.settle(2)
        assert {image(p) for p in await w.pods()} == {"i:2"}


async def test_scaled_in_the_middle_of_a_rollout() -> None:
    async with world(*MAKES) as w:
        await w.client.create(DEPLOYMENT, workload("web", replicas=10))
        await w.until(lambda: rolled_out(w))
        w.outcome = lambda pod: "NotReady" if image(pod) == "i:2" else "Running"
        await set_image(w, "i:2")
        await w.settle(5)
        await w.client.scale(DEPLOYMENT, "web", "default", 20)
        await w.settle(5)
        sizes = {image(s["spec"]["template"]): s["spec"]["replicas"] for s in await w.list(RS)}
        assert sum(sizes.values()) == 25 and sizes["i:1"] >= 15 and sizes["i:2"] > 5
        w.outcome = lambda pod: "Running"
        await w.until(lambda: rolled_out(w))
        assert {image(p) for p in await w.pods(alive=True)} == {"i:2"}


async def test_adopts_a_replica_set_and_steps_aside_for_a_taken_name() -> None:
    async with world(*MAKES) as w:
        loose = workload("loose", replicas=2)
        await w.client.create(RS, loose)
        await w.client.create(DEPLOYMENT, workload("web", replicas=2))
        await w.until(lambda: rolled_out(w))
        adopted = await w.get(RS, "loose")
        assert adopted["metadata"]["ownerReferences"][0]["name"] == "web"
        assert adopted["metadata"]["annotations"][DEPLOYMENT_REVISION] == "1" and len(await w.list(RS)) == 1
        stored = (await w.get(DEPLOYMENT, "web"))["spec"]["template"]
        stored["spec"]["containers"][0]["image"] = "i:2"
        taken = f"web-{revisions.template_hash(stored, None)}"
        await w.client.create(RS, workload(taken, {"app": "other"}, replicas=0))
        await set_image(w, "i:2")
        await w.settle(0.2)
        await w.until(lambda: rolled_out(w))
        assert (await w.status(DEPLOYMENT, "web"))["collisionCount"] == 1
        assert {image(p) for p in await w.pods(alive=True)} == {"i:2"}


async def test_failures_of_pods_are_passed_on() -> None:
    async with world(*MAKES) as w:
        quota = {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": {"pods": "1"}}}
        await w.client.create(QUOTA, quota)
        await w.client.create(DEPLOYMENT, workload("web", replicas=3))
        await w.settle(5)
        status = await w.status(DEPLOYMENT, "web")
        assert condition(status, "ReplicaFailure")["reason"] == "FailedCreate"
        assert condition(status, "Available")["status"] == "False"
        assert status["unavailableReplicas"] == 2


async def test_rest_is_quiet() -> None:
    async with world(*MAKES) as w:
        await w.client.create(DEPLOYMENT, workload("web", replicas=3))
        await w.until(lambda: rolled_out(w))
        await w.settle(2)
        before = [
            (o["metadata"]["name"], o["metadata"]["resourceVersion"])
            for k in (DEPLOYMENT, RS, POD)
            for o in await w.list(k)
        ]
        await w.settle(60)
        after = [
            (o["metadata"]["name"], o["metadata"]["resourceVersion"])
            for k in (DEPLOYMENT, RS, POD)
            for o in await w.list(k)
        ]
        assert before == after
