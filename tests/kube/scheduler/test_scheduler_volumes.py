"""Pods with claims: where they may go, what they wait for, and how claims are bound before the pod."""

from __future__ import annotations

from typing import Any

import pytest
from scheduling_kit import node_object, pod_object
from test_scheduler_on_apiserver import add_node, add_pod, cluster, condition, events, is_bound, until

from coterie.kube.api.meta import Object
from coterie.kube.api.types.nodes import NODES
from coterie.kube.api.types.pods import PODS
from coterie.kube.api.types.storage import CLAIMS, STORAGE_CLASSES, VOLUMES
from coterie.kube.client.client import Client
from coterie.kube.client.wait import wait_for
from coterie.kube.control.events import EventRecorder
from coterie.kube.controllers.persistentvolume import controller as persistentvolume
from coterie.kube.scheduler.effects import Bind, Report
from coterie.kube.scheduler.engine import SchedulingEngine

PV, PVC, SC = VOLUMES.as_dynamic, CLAIMS.as_dynamic, STORAGE_CLASSES.as_dynamic


def user(name: str, *claims: str, **fields: Any) -> Object:
    body = pod_object(name, **fields)
    body["spec"]["volumes"] = [{"name": c, "persistentVolumeClaim": {"claimName": c}} for c in claims]
    return body


def claim(name: str, volume: str = "", *, phase: str = "", storage_class: str = "wait", **meta: Any) -> Object:
    spec: Object = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    spec["storageClassName"] = storage_class
    if volume:
        spec["volumeName"] = volume
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"u-{name}", **meta},
        "spec": spec,
        "status": {"phase": phase or ("Bound" if volume else "Pending")},
    }


def volume(name: str, *hosts: str, phase: str = "Available", storage_class: str = "static", **spec: Any) -> Object:
    if hosts:
        values = [{"key": "kubernetes.io/hostname", "operator": "In", "values": list(hosts)}]
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": values}]}}
    spec |= {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": storage_class}
    spec.setdefault("local", {"path": "/data"})
    return {"metadata": {"name": name, "uid": f"u-{name}"}, "spec": spec, "status": {"phase": phase}}


def storage_class(name: str, provisioner: str = "coterie.io/local-path", mode: str = "WaitForFirstConsumer") -> Object:
    return {"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode}


class Engine:
    def __init__(self, nodes: int = 3) -> None:
        self.engine = SchedulingEngine(lambda: 0.0)
        for i in range(nodes):
            self.engine.node_seen(NODES.decode(NODES.as_dynamic.encode(node_object(f"n{i}"))))
        classes = [
            storage_class("wait"),
            storage_class("static", "kubernetes.io/no-provisioner"),
            storage_class("now", mode="Immediate"),
        ]
        for each in classes:
            self.engine.class_seen(STORAGE_CLASSES.decode(SC.encode(each)))

    def claim(self, body: Object) -> None:
        self.engine.claim_seen(CLAIMS.decode(PVC.encode(body)))

    def volume(self, body: Object) -> None:
        self.engine.volume_seen(VOLUMES.decode(PV.encode(body)))

    def pod(self, body: Object) -> None:
        self.engine.pod_seen(PODS.decode(PODS.as_dynamic.encode(body)))

    def decided(self) -> Any:
        (effect,) = self.engine.run()
        if isinstance(effect, Bind):
            return effect.node, effect.pod.unbound_claims
        assert isinstance(effect, Report)
        return effect.message.split(" preemption")[0]


@pytest.mark.parametrize(
    ("claims", "volumes", "wanted"),
    [
        ([], [], '0/3 nodes are available: persistentvolumeclaim "c" not found.'),
        (
            [claim("c", deletionTimestamp="2026-01-01T00:00:00Z")],
            [],
            '0/3 nodes are available: persistentvolumeclaim "c" is being deleted.',
        ),
        (
            [claim("c", storage_class="now")],
            [],
            "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
        ),
        (
            [claim("c", storage_class="absent")],
            [],
            "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
        ),
        (
            [claim("c", "v")],
            [],
            '0/3 nodes are available: persistentvolumeclaim "c" bound to non-existent persistentvolume "v".',
        ),
        ([claim("c", "v")], [volume("v", "n2", phase="Bound")], ("n2", ())),
        (
            [claim("c", "v")],
            [volume("v", "far", phase="Bound")],
            "0/3 nodes are available: 3 node(s) didn't match PersistentVolume's node affinity.",
        ),
        (
            [claim("c", storage_class="static")],
            [],
            "0/3 nodes are available: 3 node(s) didn't find available persistent volumes to bind.",
        ),
        ([claim("c", storage_class="static")], [volume("v", "n1"), volume("w", "far")], ("n1", ("c",))),
        # A volume that was made for it already decides.
        (
            [claim("c")],
            [volume("pvc-u-c", "n1", storage_class="wait", claimRef={"namespace": "default", "name": "c", "uid": "u-c"})],
            ("n1", ("c",)),
        ),
    ],
)  # fmt: skip
def test_where_a_pod_may_go(claims: list[Object], volumes: list[Object], wanted: Any) -> None:
    known = Engine()
    for each in claims:
        known.claim(each)
    for each in volumes:
        known.volume(each)
    known.pod(user("p", "c"))
    assert known.decided() == wanted


def test_a_claim_of_a_class_that_waits_goes_with_the_pod_anywhere() -> None:
    known = Engine()
    known.claim(claim("c"))
    known.claim(claim("d", "v"))
    known.volume(volume("v", "n1", phase="Bound"))
    known.pod(user("p", "c", "d"))
    assert known.decided() == ("n1", ("c",))


def test_a_pod_waits_for_its_claim_and_is_tried_when_it_is_bound() -> None:
    known = Engine()
    known.pod(user("p", "c"))
    assert "not found" in known.decided()
    known.claim(claim("c", storage_class="now"))
    assert "unbound immediate" in known.decided()
    known.volume(volume("v", "n2", phase="Bound"))
    assert known.engine.run() == []  # nothing that concerns it
    known.claim(claim("c", "v", storage_class="now"))
    assert known.decided() == ("n2", ())


def test_a_claim_for_one_pod_has_one_pod() -> None:
    known = Engine()
    only = claim("c", "v")
    only["spec"]["accessModes"] = ["ReadWriteOncePod"]
    known.claim(only)
    known.volume(volume("v", "n2", phase="Bound"))
    known.pod(user("p", "c"))
    assert known.decided() == ("n2", ())
    known.pod(user("q", "c"))
    assert "ReadWriteOncePod access mode" in known.decided()
    ended = user("p", "c", node="n2", phase="Succeeded")
    known.pod(ended)
    assert known.decided() == ("n2", ())


# ---- on the API server


async def make_class(client: Client, name: str, **fields: Any) -> None:
    await client.create(SC, storage_class(name, **fields))


async def bound(client: Client, name: str) -> Object:
    found = await wait_for(
        client, PVC, name, "default", lambda c: c is not None and c["status"].get("phase") == "Bound", 5
    )
    assert found is not None
    return found


def new_claim(name: str, **spec: Any) -> Object:
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}, **spec}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": wanted}


def binder(client: Client, informers: Any, clock: Any) -> list[Any]:
    events_of = EventRecorder(client, "persistentvolume-controller", clock=clock)
    return [events_of, persistentvolume.make(client, informers, events=events_of, clock=clock)]


async def test_a_volume_is_made_on_the_node_of_the_pod_and_keeps_it_there() -> None:
    async with cluster(others=binder) as client:
        for i in range(3):
            await add_node(client, f"n{i}")
        await client.create(PVC, new_claim("data"))
        await add_pod(client, user("p", "data"))
        first = await until(client, "p", is_bound)
        found = await bound(client, "data")
        node = first["spec"]["nodeName"]
        assert found["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] == node
        made = await client.get(PV, found["spec"]["volumeName"])
        terms = made["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        assert terms[0]["matchExpressions"][0]["values"] == [node]
        # The next pod with this claim goes to the same node.
        for i in range(3):
            await add_pod(client, user(f"next-{i}", "data"))
            assert (await until(client, f"next-{i}", is_bound))["spec"]["nodeName"] == node


async def test_static_volumes_are_chosen_with_the_node() -> None:
    async with cluster(others=binder) as client:
        await make_class(client, "static", provisioner="kubernetes.io/no-provisioner")
        for i in range(3):
            await add_node(client, f"n{i}")
        body = volume("disk", "n2")
        body["metadata"].pop("uid")
        await client.create(PV, body)
        await client.create(PVC, new_claim("data", storageClassName="static"))
        await add_pod(client, user("p", "data"))
        assert (await until(client, "p", is_bound))["spec"]["nodeName"] == "n2"
        assert (await bound(client, "data"))["spec"]["volumeName"] == "disk"


async def test_a_pod_says_what_it_waits_for() -> None:
    async with cluster(others=binder) as client:
        await make_class(client, "later", provisioner="example.com/x", mode="Immediate")
        await add_node(client, "n0")
        await client.create(PVC, new_claim("data", storageClassName="later"))
        await add_pod(client, user("p", "data"))
        waiting = await until(client, "p", lambda pod: condition(pod).get("reason") == "Unschedulable")
        assert "pod has unbound immediate PersistentVolumeClaims" in condition(waiting)["message"]
        assert await events(client, "p", "FailedScheduling")
        # Somebody makes the volume after all.
        body = volume("late", storage_class="later", claimRef={"namespace": "default", "name": "data"})
        body["spec"]["nodeAffinity"] = {
            "required": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]}]
            }
        }
        body["metadata"].pop("uid")
        await client.create(PV, body)
        await until(client, "p", is_bound)


async def test_a_scheduler_stops_while_a_volume_is_waited_for() -> None:
    async with cluster(others=binder) as client:
        await make_class(client, "later", provisioner="example.com/x")
        await add_node(client, "n0")
        await client.create(PVC, new_claim("data", storageClassName="later"))
        await add_pod(client, user("p", "data"))
        chosen = await wait_for(
            client, PVC, "data", "default",
            lambda c: c is not None and "volume.kubernetes.io/selected-node" in (c["metadata"].get("annotations") or {}),
            5,
        )  # fmt: skip
        assert chosen is not None
        assert not is_bound(await client.get(PODS.as_dynamic, "p", "default"))
        # Leaving the cluster waits for the scheduler: it ends although nobody made the volume.
