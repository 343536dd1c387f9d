"""Volumes and claims: every decision as a row, then binding, provisioning, reclaiming and protection on a real API server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from workload_world import NODE, POD, PV, PVC, STORAGE_CLASS, World, template, world

from coterie.kube.api import errors
from coterie.kube.api.meta import Object
from coterie.kube.api.types.nodes import NODES, Node
from coterie.kube.api.types.storage import (
    CLAIMS,
    STORAGE_CLASSES,
    VOLUMES,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from coterie.kube.api.volume_matching import available_volumes, default_class, reachable
from coterie.kube.controllers.persistentvolume import controller, plan

MAKE = ("persistentvolume-controller", controller.make)
SELECTED = "volume.kubernetes.io/selected-node"
COMPLETED = "pv.kubernetes.io/bind-completed"
DEFAULT = "storageclass.kubernetes.io/is-default-class"


def claim_body(name: str = "c", *, size: str = "1Gi", modes: Any = ("ReadWriteOnce",), **spec: Any) -> Object:
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"accessModes": list(modes), "resources": {"requests": {"storage": size}}, **spec},
    }


def claim(name: str = "c", *, annotations: Any = None, phase: str = "Pending", **spec: Any) -> PersistentVolumeClaim:
    body = claim_body(name, **{"storageClassName": "", **spec})
    body["metadata"] |= {"uid": f"uid-{name}", "annotations": annotations or {}}
    body["status"] = {"phase": phase}
    return CLAIMS.decode(CLAIMS.as_dynamic.encode(body))


def volume_body(name: str = "v", *, size: str = "1Gi", modes: Any = ("ReadWriteOnce",), **spec: Any) -> Object:
    source = {} if "local" in spec else {"hostPath": {"path": "/data"}}
    return {
        "metadata": {"name": name},
        "spec": {"accessModes": list(modes), "capacity": {"storage": size}, **source, **spec},
    }


def volume(
    name: str = "v", *, phase: str = "Available", labels: Any = None, annotations: Any = None, **spec: Any
) -> PersistentVolume:
    body = volume_body(name, **spec)
    body["metadata"] |= {"uid": f"uid-{name}", "labels": labels or {}, "annotations": annotations or {}}
    body["status"] = {"phase": phase}
    return VOLUMES.decode(VOLUMES.as_dynamic.encode(body))


def storage_class(name: str, provisioner: str, *, wait: bool = True, **fields: Any) -> StorageClass:
    mode = "WaitForFirstConsumer" if wait else "Immediate"
    body = {"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode, **fields}
    return STORAGE_CLASSES.decode(STORAGE_CLASSES.as_dynamic.encode(body))


def node(name: str, **annotations: str) -> Node:
    meta = {"name": name, "labels": {"kubernetes.io/hostname": f"host-{name}"}, "annotations": annotations}
    return NODES.decode(NODES.as_dynamic.encode({"metadata": meta}))


def refers(name: str = "c", uid: str = "uid-c") -> Object:
    return {"claimRef": {"namespace": "default", "name": name, "uid": uid}}


LOCAL = storage_class("local-path", "coterie.io/local-path")
STATIC = storage_class("static", "kubernetes.io/no-provisioner")
NOW_STATIC = storage_class("now", "kubernetes.io/no-provisioner", wait=False)
OTHER = storage_class("other", "example.com/x", wait=False)
HASTY = storage_class("hasty", "coterie.io/local-path", wait=False)
CLASSES = {each.metadata.name: each for each in (LOCAL, STATIC, NOW_STATIC, OTHER, HASTY)}
NODES_THERE = {"n1": node("n1")}


def decided(given: PersistentVolumeClaim, *volumes: PersistentVolume, classes: Any = None) -> plan.ClaimAction:
    known = {each.metadata.name: each for each in volumes}
    return plan.plan_claim(given, known, CLASSES if classes is None else classes, NODES_THERE)


def outcome_of(action: plan.ClaimAction) -> str:
    """The reason of the event, or what is done."""
    match action:
        case plan.Wait(event):
            return event.reason if event else "wait"
        case plan.Lose(event):
            return f"lost: {event.reason}"
        case plan.BindTo(found):
            return f"bind {found.metadata.name}"
        case plan.SetClass(name):
            return f"class {name}"
    return type(action).__name__


@pytest.mark.parametrize(
    ("given", "volumes", "wanted"),
    [
        (claim(), [], "FailedBinding"),
        (claim(), [volume()], "bind v"),
        (claim(size="2Gi"), [volume()], "FailedBinding"),
        (claim(), [volume("big", size="9Gi"), volume("small", size="2Gi"), volume("tiny", size="1Mi")], "bind small"),
        (claim(modes=["ReadWriteMany"]), [volume()], "FailedBinding"),
        (claim(modes=["ReadWriteMany"]), [volume(modes=["ReadWriteOnce", "ReadWriteMany"])], "bind v"),
        (claim(), [volume(storageClassName="static")], "FailedBinding"),
        (claim(storageClassName="now"), [volume(storageClassName="now")], "bind v"),
        (claim(storageClassName="now"), [], "FailedBinding"),
        (claim(selector={"matchLabels": {"a": "b"}}), [volume()], "FailedBinding"),
        (claim(selector={"matchLabels": {"a": "b"}}), [volume(), volume("w", labels={"a": "b"})], "bind w"),
        (claim(), [volume(phase="Released")], "FailedBinding"),
        (claim(), [volume(phase="Bound", **refers("d", "uid-d"))], "FailedBinding"),
        (claim(volumeMode="Block"), [volume()], "FailedBinding"),
        # Reserved for it, with or without its uid.
        (claim(), [volume(**refers(uid=""), phase="Available")], "bind v"),
        (claim(), [volume(**refers(), phase="Bound")], "bind v"),
        (claim(), [volume(**refers(uid="another"))], "FailedBinding"),
        (claim(storageClassName="local-path"), [volume(storageClassName="local-path", **refers())], "bind v"),
        # It names a volume.
        (claim(volumeName="v"), [], "wait"),
        (claim(volumeName="v"), [volume()], "bind v"),
        (claim(volumeName="v", size="2Gi"), [volume()], "VolumeMismatch"),
        (claim(volumeName="v"), [volume(storageClassName="static")], "VolumeMismatch"),
        (claim(volumeName="v", volumeMode="Block"), [volume()], "VolumeMismatch"),
        (claim(volumeName="v"), [volume(**refers("d", "uid-d"))], "FailedBinding"),
        # Classes.
        (claim(storageClassName="absent"), [], "ProvisioningFailed"),
        (claim(storageClassName="other"), [], "ExternalProvisioning"),
        (claim(storageClassName="local-path"), [], "WaitForFirstConsumer"),
        (claim(storageClassName="static"), [volume(storageClassName="static")], "WaitForFirstConsumer"),
        (claim(storageClassName="local-path", annotations={SELECTED: "n1"}), [], "Provision"),
        (claim(storageClassName="local-path", annotations={SELECTED: "gone"}), [], "ForgetNode"),
        (claim(storageClassName="local-path", annotations={SELECTED: "n1"}, volumeMode="Block"), [], "ProvisioningFailed"),
        (
            claim(storageClassName="local-path", annotations={SELECTED: "n1"}, modes=["ReadWriteMany"]),
            [],
            "ProvisioningFailed",
        ),
        (
            claim(storageClassName="local-path", annotations={SELECTED: "n1"}, selector={"matchLabels": {"a": "b"}}),
            [],
            "ProvisioningFailed",
        ),
        (claim(storageClassName="hasty"), [], "ProvisioningFailed"),
        # Bound.
        (claim(volumeName="v", annotations={COMPLETED: "yes"}), [volume(phase="Bound", **refers())], "bind v"),
        (claim(volumeName="v", annotations={COMPLETED: "yes"}), [], "lost: ClaimLost"),
        (claim(annotations={COMPLETED: "yes"}), [], "lost: ClaimLost"),
        (claim(volumeName="v", annotations={COMPLETED: "yes"}), [volume()], "bind v"),
        (claim(volumeName="v", annotations={COMPLETED: "yes"}), [volume(**refers("d", "x"))], "lost: ClaimMisbound"),
    ],
)  # fmt: skip
def test_claims(given: PersistentVolumeClaim, volumes: list[PersistentVolume], wanted: str) -> None:
    assert outcome_of(decided(given, *volumes)) == wanted


def test_a_default_class_that_comes_late() -> None:
    late = claim(storageClassName=None)
    assert outcome_of(decided(late)) == "FailedBinding"
    marked = {"a": storage_class("a", "x"), "b": storage_class("b", "x", wait=False)}
    body = {"metadata": {"name": "z", "annotations": {DEFAULT: "true"}}, "provisioner": "x"}
    marked["z"] = STORAGE_CLASSES.decode(STORAGE_CLASSES.as_dynamic.encode(body))
    assert outcome_of(decided(late, classes=marked)) == "class z"
    assert default_class(CLASSES.values()) is None


@pytest.mark.parametrize(
    ("given", "there", "wanted"),
    [
        (volume(), None, plan.SetPhase("Available")),
        (volume(**refers(uid="")), None, plan.SetPhase("Available")),
        (volume(**refers()), claim(), plan.TryClaim()),
        (volume(**refers()), claim(volumeName="v"), plan.SetPhase("Bound")),
        (volume(**refers()), None, plan.SetPhase("Released")),
        (volume(**refers(uid="old")), claim(), plan.SetPhase("Released")),
        (
            volume(**refers(), annotations={"pv.kubernetes.io/bound-by-controller": "yes"}),
            claim(volumeName="w"),
            plan.Unbind(),
        ),
        (volume(**refers()), claim(volumeName="w"), plan.SetPhase("Available")),
        (
            volume(
                **refers(),
                persistentVolumeReclaimPolicy="Delete",
                annotations={"pv.kubernetes.io/provisioned-by": "coterie.io/local-path"},
            ),
            None,
            plan.DeleteVolume(),
        ),
        (
            volume(
                **refers(),
                persistentVolumeReclaimPolicy="Retain",
                annotations={"pv.kubernetes.io/provisioned-by": "coterie.io/local-path"},
            ),
            None,
            plan.SetPhase("Released"),
        ),
    ],
)
def test_volumes(given: PersistentVolume, there: PersistentVolumeClaim | None, wanted: plan.VolumeAction) -> None:
    assert plan.plan_volume(given, there) == wanted


@pytest.mark.parametrize("policy", ["Delete", "Recycle"])
def test_a_volume_of_nobody_s_that_should_be_deleted_fails(policy: str) -> None:
    found = plan.plan_volume(volume(**refers(), persistentVolumeReclaimPolicy=policy), None)
    assert isinstance(found, plan.SetPhase)
    assert found.phase == "Failed"
    assert found.event is not None


def test_a_made_volume_is_on_its_node() -> None:
    given = claim(storageClassName="local-path", size="5Gi", modes=["ReadWriteOncePod"])
    body = plan.volume_body(given, LOCAL, node("n1", **{"coterie.io/local-path-directory": "/srv/volumes"}))
    made = VOLUMES.decode(VOLUMES.as_dynamic.encode(body))
    assert made.metadata.name == "pvc-uid-c"
    assert made.spec.local is not None
    assert made.spec.local.path == "/srv/volumes/pvc-uid-c"
    assert made.spec.persistent_volume_reclaim_policy == "Delete"
    assert reachable(made, "n1", {"kubernetes.io/hostname": "host-n1"})
    assert not reachable(made, "n2", {"kubernetes.io/hostname": "host-n2"})
    assert available_volumes(given, [made]) == []


# ---- on the API server


async def phase_is(w: World, kind: Any, name: str, phase: str) -> None:
    async def done() -> bool:
        found = await w.client.get(kind, name, "default" if kind is PVC else "")
        return (found.get("status") or {}).get("phase") == phase

    await w.until(done)


async def gone(w: World, kind: Any, name: str) -> None:
    async def done() -> bool:
        return not await w.exists(kind, name, "" if kind is PV else "default")

    await w.until(done)


async def true(w: World, question: Callable[[], Awaitable[bool]]) -> None:
    await w.until(question)


def user(name: str, claim_name: str) -> Object:
    spec = template()["spec"] | {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": claim_name}}]}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


async def test_a_static_volume_is_bound_released_and_kept() -> None:
    async with world(MAKE) as w:
        await w.client.create(PV, volume_body("big", size="9Gi"))
        await w.client.create(PV, volume_body("fits", size="2Gi"))
        await phase_is(w, PV, "fits", "Available")
        await w.client.create(PVC, claim_body("c", storageClassName=""))
        await phase_is(w, PVC, "c", "Bound")
        found = await w.get(PVC, "c")
        assert found["spec"]["volumeName"] == "fits"
        assert found["status"]["capacity"] == {"storage": "2Gi"}
        assert found["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] == "yes"
        bound = await w.client.get(PV, "fits")
        assert bound["status"]["phase"] == "Bound"
        assert bound["spec"]["claimRef"]["uid"] == found["metadata"]["uid"]
        # A volume that is bound is not deleted before its claim.
        await w.client.delete(PV, "fits")
        await w.settle(2)
        assert await w.exists(PV, "fits", "")
        await w.client.delete(PVC, "c", "default")
        await gone(w, PVC, "c")
        await gone(w, PV, "fits")
        # Retain: the other one is bound, and after its claim nobody gets it.
        await w.client.create(PVC, claim_body("d", storageClassName=""))
        await phase_is(w, PVC, "d", "Bound")
        await w.client.delete(PVC, "d", "default")
        await phase_is(w, PV, "big", "Released")
        await w.client.create(PVC, claim_body("e", storageClassName=""))
        await w.settle(2)
        assert (await w.get(PVC, "e"))["status"]["phase"] == "Pending"
        await w.client.patch(PV, "big", "", {"spec": {"claimRef": None}})
        await phase_is(w, PVC, "e", "Bound")


async def test_a_local_path_volume_comes_and_goes_with_its_claim() -> None:
    async with world(MAKE) as w:
        await w.client.create(NODE, {"metadata": {"name": "n1", "labels": {"kubernetes.io/hostname": "n1"}}})
        made = await w.client.create(PVC, claim_body("c"))
        assert made["spec"]["storageClassName"] == "local-path"  # the default
        await w.settle(2)
        waits = ("WaitForFirstConsumer", "waiting for first consumer to be created before binding")
        assert waits in await w.events()
        # What the scheduler does.
        await w.client.patch(PVC, "c", "default", {"metadata": {"annotations": {SELECTED: "n1"}}})
        await phase_is(w, PVC, "c", "Bound")
        name = f"pvc-{made['metadata']['uid']}"
        assert (await w.client.get(PV, name))["status"]["phase"] == "Bound"
        wanted = ("ProvisioningSucceeded", f"Successfully provisioned volume {name} using coterie.io/local-path")
        assert wanted in await w.events()
        # A claim that a pod uses stays until the pod is gone.
        w.outcome = lambda p: "Running"
        await w.client.create(POD, user("p", "c"))
        await w.settle(1)
        await w.client.delete(PVC, "c", "default")
        await w.settle(3)
        assert (await w.get(PVC, "c"))["metadata"]["deletionTimestamp"]
        assert await w.exists(PV, name, "")
        await w.client.delete(POD, "p", "default")
        await gone(w, PVC, "c")
        await gone(w, PV, name)


async def test_a_pod_without_a_node_does_not_hold_a_claim() -> None:
    async with world(MAKE) as w:
        w.nodes = []
        await w.client.create(PVC, claim_body("c"))
        await w.client.create(POD, user("p", "c"))
        await w.settle(1)
        await w.client.delete(PVC, "c", "default")
        await gone(w, PVC, "c")


async def test_a_node_that_goes_before_the_volume_is_made_is_chosen_anew() -> None:
    async with world(MAKE) as w:
        await w.client.create(PVC, claim_body("c"))
        await w.client.patch(PVC, "c", "default", {"metadata": {"annotations": {SELECTED: "absent"}}})

        async def forgotten() -> bool:
            return SELECTED not in ((await w.get(PVC, "c"))["metadata"].get("annotations") or {})

        await true(w, forgotten)


async def test_a_claim_whose_volume_is_taken_away_is_lost() -> None:
    async with world(MAKE) as w:
        await w.client.create(PV, volume_body("v"))
        await w.client.create(PVC, claim_body("c", storageClassName=""))
        await phase_is(w, PVC, "c", "Bound")
        await w.client.patch(PV, "v", "", {"metadata": {"finalizers": None}})
        await w.client.delete(PV, "v")
        await phase_is(w, PVC, "c", "Lost")
        assert any(reason == "ClaimLost" for reason, _ in await w.events())


async def test_two_claims_never_share_a_volume() -> None:
    async with world(MAKE) as w:
        w.faults.share = 0.3
        for i in range(3):
            await w.client.create(PV, volume_body(f"v{i}"))
        for i in range(5):
            await w.client.create(PVC, claim_body(f"c{i}", storageClassName=""))
        for _ in range(4):
            await w.settle(3)
            await w.stop()
            await w.start()
        w.faults.share = 0.0

        async def three() -> bool:
            found = [c["spec"].get("volumeName") for c in await w.list(PVC) if c["status"]["phase"] == "Bound"]
            assert len(set(found)) == len(found)
            return len(found) == 3

        await true(w, three)
        refs = {v["spec"]["claimRef"]["name"]: v["metadata"]["name"] for v in (await w.client.list(PV)).items}
        assert refs == {c["metadata"]["name"]: c["spec"]["volumeName"] for c in await w.list(PVC) if c["spec"].get("volumeName")}  # fmt: skip


async def test_growing_a_claim_needs_a_class_that_allows_it() -> None:
    async with world(MAKE) as w:
        await w.client.create(NODE, {"metadata": {"name": "n1"}})
        await w.client.create(PVC, claim_body("c"))
        bigger = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
        with pytest.raises(errors.ApiError):
            await w.client.patch(PVC, "c", "default", bigger)
        await w.client.patch(PVC, "c", "default", {"metadata": {"annotations": {SELECTED: "n1"}}})
        await phase_is(w, PVC, "c", "Bound")
        with pytest.raises(errors.Forbidden, match="must support resize"):
            await w.client.patch(PVC, "c", "default", bigger)


async def test_the_default_class_is_there_and_can_be_replaced() -> None:
    async with world(MAKE) as w:
        found = await w.client.get(STORAGE_CLASS, "local-path")
        assert found["provisioner"] == "coterie.io/local-path"
        assert (found["volumeBindingMode"], found["reclaimPolicy"]) == ("WaitForFirstConsumer", "Delete")
        await w.client.patch(STORAGE_CLASS, "local-path", "", {"metadata": {"annotations": {DEFAULT: "false"}}})
        made = await w.client.create(PVC, claim_body("c"))
        assert "storageClassName" not in made["spec"]
        body = {"metadata": {"name": "mine", "annotations": {DEFAULT: "true"}}, "provisioner": "example.com/x"}
        await w.client.create(STORAGE_CLASS, body)

        async def assigned() -> bool:
            return (await w.get(PVC, "c"))["spec"].get("storageClassName") == "mine"

        await true(w, assigned)
