"""Replication controllers: the code of replica sets with a plain selector, on a real API server."""

from __future__ import annotations

from typing import Any

from workload_world import POD, RC, World, template, world

from coterie.kube.api.meta import Object
from coterie.kube.controllers.gc.controller import GarbageCollector
from coterie.kube.controllers.replicaset import replication_controller

MAKE = ("replication-controller", replication_controller.make)


def rc(name: str, replicas: int = 2, **spec: Any) -> Object:
    # The selector and the labels of the object come from the template, as in Kubernetes.
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"replicas": replicas, "template": template(), **spec}}  # fmt: skip


async def has(w: World, count: int) -> None:
    async def done() -> bool:
        status = await w.status(RC, "rc")
        return len(await w.pods(alive=True)) == status.get("readyReplicas", 0) == status.get("replicas") == count

    await w.until(done)


async def test_pods_are_kept_scaled_and_adopted() -> None:
    async with world(MAKE) as w:
        orphan = {"metadata": {"name": "orphan", "namespace": "default", "labels": {"app": "web"}}}
        await w.client.create(POD, {**orphan, "spec": template()["spec"]})
        made = await w.client.create(RC, rc("rc", 3))
        assert made["spec"]["selector"] == {"app": "web"}
        await has(w, 3)
        owner = (await w.get(POD, "orphan"))["metadata"]["ownerReferences"][0]
        assert (owner["apiVersion"], owner["kind"], owner["controller"]) == ("v1", "ReplicationController", True)
        await w.client.delete(POD, "orphan", "default")
        await has(w, 3)
        await w.client.scale(RC, "rc", "default", 1)
        await has(w, 1)
        # A pod whose labels no longer match is released and replaced.
        name = (await w.pods(alive=True))[0]["metadata"]["name"]
        await w.client.patch(POD, name, "default", {"metadata": {"labels": {"app": "other"}}})
        await w.until(lambda: _released(w, name))
        assert len(await w.pods(alive=True)) == 2
        assert ("SuccessfulCreate", f"Created pod: {name}") in await w.events()


async def _released(w: World, name: str) -> bool:
    return not (await w.get(POD, name))["metadata"].get("ownerReferences")


async def test_deletion_takes_the_pods_along() -> None:
    async with world(MAKE, lambda client, informers, clock: GarbageCollector(client, clock=clock)) as w:
        await w.client.create(RC, rc("rc", 2))
        await has(w, 2)
        await w.client.delete(RC, "rc", "default", propagation="Background")

        async def gone() -> bool:
            return not await w.pods()

        await w.until(gone)
