"""Stateful sets: the next step and the status as rows; order, names, claims and rollouts on a real API server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from workload_world import POD, PVC, REVISION, STS, World, template, workload, world

from coterie.base.clock import rfc3339
from coterie.kube.api.meta import Object, ObjectMeta
from coterie.kube.api.types.apps import STATEFUL_SETS, StatefulSet
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.controllers.gc.controller import GarbageCollector
from coterie.kube.controllers.persistentvolume import controller as persistentvolume
from coterie.kube.controllers.statefulset import controller, identity, plan

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
MAKE = ("statefulset-controller", controller.make)
OLD, NEW = "web-old", "web-new"


def ago(seconds: float) -> str:
    return rfc3339(NOW - timedelta(seconds=seconds))


def stateful_set(replicas: int = 3, **spec: Any) -> StatefulSet:
    spec.setdefault("updateStrategy", {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}})
    body = workload("web", replicas=replicas, serviceName="svc", **spec)
    body["metadata"] |= {"uid": "sts", "generation": 2}
    return STATEFUL_SETS.decode(STATEFUL_SETS.as_dynamic.encode(body))


def pod(
    ordinal: int, *, revision: str = NEW, phase: str = "Running", ready: float | None = 100, deleting: bool = False,
    labelled: bool = True,
) -> Pod:  # fmt: skip
    name = f"web-{ordinal}"
    meta: Object = {"name": name, "uid": name, "namespace": "default", "creationTimestamp": ago(500)}
    meta["labels"] = {"app": "web", "controller-revision-hash": revision}
    if labelled:
        meta["labels"] |= identity.identity_labels(name, ordinal)
    if deleting:
        meta["deletionTimestamp"] = ago(1)
    word = "True" if ready is not None else "False"
    condition = {"type": "Ready", "status": word, "lastTransitionTime": ago(ready or 0)}
    body = {"metadata": meta, "spec": {}, "status": {"phase": phase, "conditions": [condition]}}
    return PODS.decode(PODS.as_dynamic.encode(body))


def step(given: StatefulSet, *pods: Pod, current: str = NEW) -> tuple[list[tuple[int, str]], list[int]]:
    wanted = plan.plan(plan.StatefulPods(given, pods, current, NEW, NOW))
    return [(new.ordinal, new.revision) for new in wanted.create], [identity.ordinal_of(p) for p in wanted.delete]


PARALLEL = {"podManagementPolicy": "Parallel"}


def rolling(**fields: Any) -> Object:
    return {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": fields}}


@pytest.mark.parametrize(
    ("given", "pods", "create", "delete"),
    [
        # Up, in order.
        (stateful_set(), [], [(0, NEW)], []),
        (stateful_set(), [pod(0)], [(1, NEW)], []),
        (stateful_set(), [pod(0, ready=None)], [], []),
        (stateful_set(), [pod(0, phase="Pending", ready=None)], [], []),
        (stateful_set(), [pod(0), pod(2)], [(1, NEW)], []),
        (stateful_set(minReadySeconds=10), [pod(0, ready=4)], [], []),
        (stateful_set(minReadySeconds=10), [pod(0, ready=11)], [(1, NEW)], []),
        (stateful_set(), [pod(0), pod(1, deleting=True)], [], []),
        (stateful_set(), [pod(0), pod(1, phase="Failed", ready=None)], [], [1]),
        (stateful_set(), [pod(0), pod(1, phase="Succeeded", ready=None), pod(2)], [], [1]),
        (stateful_set(2, ordinals={"start": 5}), [pod(5)], [(6, NEW)], []),
        # All at once.
        (stateful_set(**PARALLEL), [], [(0, NEW), (1, NEW), (2, NEW)], []),
        (stateful_set(**PARALLEL), [pod(1, ready=None)], [(0, NEW), (2, NEW)], []),
        # Down, from the highest, one after the other.
        (stateful_set(1), [pod(0), pod(1), pod(2)], [], [2]),
        (stateful_set(1), [pod(0), pod(1), pod(2, deleting=True)], [], []),
        (stateful_set(1), [pod(0), pod(1), pod(2, ready=None)], [], [2]),
        (stateful_set(1), [pod(0), pod(1, ready=None), pod(2, ready=None)], [], []),
        (stateful_set(1), [pod(0, ready=None), pod(1)], [], []),
        (stateful_set(1, **PARALLEL), [pod(0), pod(1), pod(2)], [], [2, 1]),
        (stateful_set(1, ordinals={"start": 1}), [pod(0), pod(1)], [], [0]),
        (stateful_set(0), [pod(0)], [], [0]),
        # Rolling update, from the highest.
        (stateful_set(), [pod(i, revision=OLD) for i in range(3)], [], [2]),
        (stateful_set(), [pod(0, revision=OLD), pod(1, revision=OLD), pod(2)], [], [1]),
        (stateful_set(**PARALLEL), [pod(0, revision=OLD), pod(1, revision=OLD), pod(2, ready=None)], [], []),
        (stateful_set(**PARALLEL), [pod(0, revision=OLD, ready=None), pod(1, revision=OLD), pod(2)], [], [1]),
        (stateful_set(minReadySeconds=10), [pod(0, revision=OLD), pod(1, revision=OLD), pod(2, ready=5)], [], []),
        (stateful_set(**rolling(partition=2)), [pod(i, revision=OLD) for i in range(3)], [], [2]),
        (stateful_set(**rolling(partition=2)), [pod(0, revision=OLD), pod(1, revision=OLD), pod(2)], [], []),
        (stateful_set(**rolling(partition=9)), [pod(i, revision=OLD) for i in range(3)], [], []),
        (stateful_set(**rolling(maxUnavailable=2)), [pod(i, revision=OLD) for i in range(3)], [], [2, 1]),
        (stateful_set(**rolling(maxUnavailable="34%")), [pod(i, revision=OLD) for i in range(3)], [], [2, 1]),
        (
            stateful_set(**rolling(maxUnavailable=2), **PARALLEL),
            [pod(0, revision=OLD), pod(1, revision=OLD), pod(2, ready=None)],
            [],
            [1],
        ),
        (stateful_set(updateStrategy={"type": "OnDelete"}), [pod(i, revision=OLD) for i in range(3)], [], []),
        (stateful_set(3, ordinals={"start": 2}, **rolling(partition=2)), [pod(i, revision=OLD) for i in (2, 3, 4)], [], [4]),
    ],
)  # fmt: skip
def test_next_step(given: StatefulSet, pods: list[Pod], create: Any, delete: list[int]) -> None:
    assert step(given, *pods) == (create, delete)


@pytest.mark.parametrize(
    ("given", "ordinal", "revision"),
    [
        (stateful_set(**rolling(partition=2)), 1, OLD),
        (stateful_set(**rolling(partition=2)), 2, NEW),
        (stateful_set(**rolling(partition=0)), 0, NEW),
        (stateful_set(updateStrategy={"type": "OnDelete"}), 0, NEW),
    ],
)
def test_a_new_pod_below_the_partition_has_the_current_revision(
    given: StatefulSet, ordinal: int, revision: str
) -> None:
    assert plan.StatefulPods(given, (), OLD, NEW, NOW).revision_for(ordinal) == revision


def test_status_during_and_after_an_update() -> None:
    pods = [pod(0, revision=OLD), pod(1, revision=OLD, ready=None), pod(2)]
    found = plan.status(plan.StatefulPods(stateful_set(), pods, OLD, NEW, NOW))
    assert msgspec.to_builtins(found) == {
        "observedGeneration": 2, "replicas": 3, "readyReplicas": 2, "currentReplicas": 2, "updatedReplicas": 1,
        "availableReplicas": 2, "currentRevision": OLD, "updateRevision": NEW,
    }  # fmt: skip
    done = plan.status(plan.StatefulPods(stateful_set(), [pod(i) for i in range(3)], OLD, NEW, NOW))
    assert (done.current_revision, done.current_replicas, done.updated_replicas) == (NEW, 3, 3)


def test_adopted_pods_get_the_labels_of_their_identity() -> None:
    wanted = plan.plan(plan.StatefulPods(stateful_set(1), [pod(0, labelled=False)], NEW, NEW, NOW))
    assert [identity.missing_labels(p) for p in wanted.relabel] == [
        {"statefulset.kubernetes.io/pod-name": "web-0", "apps.kubernetes.io/pod-index": "0"}
    ]


@pytest.mark.parametrize(
    ("name", "found"),
    [("web-0", ("web", 0)), ("web-1-12", ("web-1", 12)), ("web", ("", -1)), ("web-01", ("", -1)), ("-1", ("", -1))],
)
def test_names(name: str, found: tuple[str, int]) -> None:
    assert identity.parent_and_ordinal(name) == found


def retention(deleted: str, scaled: str) -> StatefulSet:
    return stateful_set(persistentVolumeClaimRetentionPolicy={"whenDeleted": deleted, "whenScaled": scaled})


@pytest.mark.parametrize(
    ("deleted", "scaled", "condemned", "owners"),
    [
        ("Retain", "Retain", False, []),
        ("Retain", "Retain", True, []),
        ("Delete", "Retain", False, ["StatefulSet"]),
        ("Delete", "Retain", True, ["StatefulSet"]),
        ("Retain", "Delete", False, []),
        ("Retain", "Delete", True, ["Pod"]),
        ("Delete", "Delete", False, ["StatefulSet"]),
        ("Delete", "Delete", True, ["Pod"]),
    ],
)
def test_owners_of_claims(deleted: str, scaled: str, condemned: bool, owners: list[str]) -> None:
    given, own = retention(deleted, scaled), ObjectMeta(name="web-0", uid="p")
    found = identity.claim_owners(given, ObjectMeta(name="data-web-0"), own, condemned=condemned)
    assert [owner.kind for owner in found or ()] == owners
    if found:
        with_them = ObjectMeta(name="data-web-0", owner_references=tuple(found))
        assert identity.claim_owners(given, with_them, own, condemned=condemned) is None
        assert identity.claim_owners(retention("Retain", "Retain"), with_them, own, condemned=condemned) == []


# ---- on the API server


def web(replicas: int = 3, **spec: Any) -> Object:
    return workload("web", replicas=replicas, serviceName="svc", **spec)


def claim(name: str = "data") -> Object:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
    return {"metadata": {"name": name, "labels": {"own": "yes"}}, "spec": spec}


async def names(w: World) -> list[str]:
    return sorted(p["metadata"]["name"] for p in await w.pods())


async def ready(w: World, count: int) -> None:
    async def done() -> bool:
        found = await w.get(STS, "web")
        status = found.get("status") or {}
        return (
            status.get("observedGeneration") == found["metadata"]["generation"]
            and status.get("replicas", 0) == status.get("availableReplicas", 0) == count
            and len(await w.pods()) == count
        )

    await w.until(done)


async def updated(w: World) -> None:
    async def done() -> bool:
        status = await w.status(STS, "web")
        return (
            status["currentRevision"] == status["updateRevision"]
            and status["observedGeneration"] == (await w.get(STS, "web"))["metadata"]["generation"]
        )

    await w.until(done)


async def true(w: World, question: Callable[[], Awaitable[bool]]) -> None:
    await w.until(question)


async def image_of(w: World, name: str) -> str:
    return str((await w.get(POD, name))["spec"]["containers"][0]["image"])


async def test_pods_come_in_order_with_names_labels_and_claims() -> None:
    async with world(MAKE) as w:
        await w.client.create(STS, web(volumeClaimTemplates=[claim()]))
        await ready(w, 3)
        assert w.started == ["web-0", "web-1", "web-2"]
        first = await w.get(POD, "web-1")
        assert (first["spec"]["hostname"], first["spec"]["subdomain"]) == ("web-1", "svc")
        labels = first["metadata"]["labels"]
        assert labels["statefulset.kubernetes.io/pod-name"] == "web-1"
        assert labels["apps.kubernetes.io/pod-index"] == "1"
        assert labels["controller-revision-hash"] == (await w.status(STS, "web"))["currentRevision"]
        assert {"name": "data", "persistentVolumeClaim": {"claimName": "data-web-1"}} in first["spec"]["volumes"]
        claims = {c["metadata"]["name"]: c for c in await w.list(PVC)}
        assert sorted(claims) == ["data-web-0", "data-web-1", "data-web-2"]
        assert claims["data-web-1"]["metadata"]["labels"] == {"app": "web", "own": "yes"}
        events = await w.events()
        assert ("SuccessfulCreate", "create Pod web-1 in StatefulSet web successful") in events
        assert ("SuccessfulCreate", "create Claim data-web-1 Pod web-1 in StatefulSet web success") in events
        # A deleted pod comes back under its name, with its claim.
        uid = first["metadata"]["uid"]
        await w.client.delete(POD, "web-1", "default")

        async def replaced() -> bool:
            return await w.exists(POD, "web-1") and (await w.get(POD, "web-1"))["metadata"]["uid"] != uid

        await w.until(replaced)
        await ready(w, 3)
        assert len(await w.list(PVC)) == 3
        # Scaled down: the highest first; claims stay.
        await w.client.scale(STS, "web", "default", 1)
        await ready(w, 1)
        assert await names(w) == ["web-0"]
        assert len(await w.list(PVC)) == 3
        gone = [message for reason, message in await w.events() if reason == "SuccessfulDelete"]
        assert sorted(gone) == [f"delete Pod web-{i} in StatefulSet web successful" for i in (1, 2)]


async def test_a_pod_that_does_not_get_ready_holds_up_the_next_unless_parallel() -> None:
    async with world(MAKE) as w:
        w.outcome = lambda p: "NotReady" if p["metadata"]["name"] == "web-1" else "Running"
        await w.client.create(STS, web())
        await w.settle(10)
        assert await names(w) == ["web-0", "web-1"]
        w.outcome = lambda p: "Running"
        await ready(w, 3)
    async with world(MAKE) as w:
        w.outcome = lambda p: "NotReady"
        await w.client.create(STS, web(podManagementPolicy="Parallel"))
        await w.settle(3)
        assert await names(w) == ["web-0", "web-1", "web-2"]


async def test_rolling_update_with_a_partition_then_whole_and_back() -> None:
    async with world(MAKE) as w:
        await w.client.create(STS, web(revisionHistoryLimit=1))
        await ready(w, 3)
        first = (await w.status(STS, "web"))["currentRevision"]
        spec = {"template": template(image="i:2"), "updateStrategy": {"rollingUpdate": {"partition": 2}}}
        await w.client.patch(STS, "web", "default", {"spec": spec})
        await true(w, lambda: _images(w, ["i:1", "i:1", "i:2"]))
        await ready(w, 3)
        status = await w.status(STS, "web")
        assert status["currentRevision"] == first != status["updateRevision"]
        assert (status["currentReplicas"], status["updatedReplicas"]) == (2, 1)
        # Below the partition even a new pod is made from the old revision.
        await w.client.delete(POD, "web-0", "default")
        await w.settle(3)
        await ready(w, 3)
        assert await image_of(w, "web-0") == "i:1"
        await w.client.patch(STS, "web", "default", {"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}})
        await updated(w)
        assert await _images(w, ["i:2"] * 3)
        # Back, as kubectl rollout undo does it: with the data of the revision.
        old = await w.get(REVISION, first)
        await w.client.patch(STS, "web", "default", old["data"], type="strategic")
        await w.settle(1)
        await updated(w)
        assert await _images(w, ["i:1"] * 3)
        assert (await w.status(STS, "web"))["currentRevision"] == first
        assert sorted(r["revision"] for r in await w.list(REVISION)) == [2, 3]


async def _images(w: World, wanted: list[str]) -> bool:
    found = {p["metadata"]["name"]: p["spec"]["containers"][0]["image"] for p in await w.pods()}
    return [found.get(f"web-{i}") for i in range(3)] == wanted


async def test_on_delete() -> None:
    async with world(MAKE) as w:
        await w.client.create(STS, web(updateStrategy={"type": "OnDelete"}))
        await ready(w, 3)
        await w.client.patch(STS, "web", "default", {"spec": {"template": template(image="i:2")}})
        await w.settle(5)
        assert await _images(w, ["i:1"] * 3)
        await w.client.delete(POD, "web-1", "default")
        await true(w, lambda: _images(w, ["i:1", "i:2", "i:1"]))


async def test_failed_pods_are_made_anew() -> None:
    async with world(MAKE) as w:
        failing = {"web-0"}
        w.outcome = lambda p: "Failed" if p["metadata"]["name"] in failing else "Running"
        await w.client.create(STS, web(1))
        await w.settle(5)
        failing.clear()
        await ready(w, 1)
        assert ("RecreatingFailedPod", "StatefulSet default/web is recreating failed Pod web-0") in await w.events()


async def test_a_foreign_pod_of_the_name_is_not_touched() -> None:
    async with world(MAKE) as w:
        foreign = {"metadata": {"name": "web-0", "namespace": "default"}, "spec": template()["spec"]}
        made = await w.client.create(POD, foreign)
        await w.client.create(STS, web(1))
        await w.settle(3)
        assert (await w.get(POD, "web-0"))["metadata"]["uid"] == made["metadata"]["uid"]
        assert any(
            reason == "FailedCreate" and 'pods "web-0" already exists' in message
            for reason, message in await w.events()
        )
        await w.client.delete(POD, "web-0", "default", grace=0)
        await ready(w, 1)


def collector(client: Any, informers: Any, clock: Any) -> GarbageCollector:
    return GarbageCollector(client, clock=clock)


async def test_a_pod_that_waits_gets_a_claim_that_was_deleted_again() -> None:
    async with world(MAKE, ("persistentvolume-controller", persistentvolume.make)) as w:
        w.outcome = lambda p: "Pending"
        await w.client.create(STS, web(1, volumeClaimTemplates=[claim()]))
        await w.settle(2)
        first = await w.get(PVC, "data-web-0")
        await w.client.patch(PVC, "data-web-0", "default", {"metadata": {"finalizers": None}})
        await w.client.delete(PVC, "data-web-0", "default")
        await true(w, lambda: _claims(w, ["data-web-0"]))
        assert (await w.get(PVC, "data-web-0"))["metadata"]["uid"] != first["metadata"]["uid"]


async def test_claims_go_with_scaled_pods_and_with_the_set_when_asked_for() -> None:
    async with world(MAKE, ("persistentvolume-controller", persistentvolume.make), collector) as w:
        policy = {"whenScaled": "Delete", "whenDeleted": "Delete"}
        body = web(volumeClaimTemplates=[claim()], persistentVolumeClaimRetentionPolicy=policy)
        await w.client.create(STS, body)
        await ready(w, 3)
        await w.client.scale(STS, "web", "default", 1)
        await ready(w, 1)
        await true(w, lambda: _claims(w, ["data-web-0"]))
        await w.client.scale(STS, "web", "default", 2)
        await ready(w, 2)
        await true(w, lambda: _claims(w, ["data-web-0", "data-web-1"]))
        await w.client.delete(STS, "web", "default", propagation="Background")
        await true(w, lambda: _claims(w, []))
        assert await w.list(REVISION) == []


async def _claims(w: World, wanted: list[str]) -> bool:
    return sorted(c["metadata"]["name"] for c in await w.list(PVC)) == wanted


async def test_controllers_that_die_never_break_the_order() -> None:
    async with world(MAKE) as w:
        w.faults.share = 0.3
        await w.client.create(STS, web(4))
        for _ in range(6):
            await w.settle(2)
            await w.stop()
            found = await names(w)
            assert found == [f"web-{i}" for i in range(len(found))]
            await w.start()
        w.faults.share = 0.0
        await ready(w, 4)
        assert w.started == [f"web-{i}" for i in range(4)]
