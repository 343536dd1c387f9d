"""Controllers that die in the middle, lose requests and answers, and miss events: the world still comes right."""

from __future__ import annotations

from typing import Any

import pytest
from workload_world import DEPLOYMENT, JOB, POD, RS, SERVICE, SLICE, World, template, workload, world

from coterie.kube.api.meta import Object
from coterie.kube.controllers.deployment import controller as deployments
from coterie.kube.controllers.endpointslice import controller as slices
from coterie.kube.controllers.gc.controller import GarbageCollector
from coterie.kube.controllers.job import controller as jobs
from coterie.kube.controllers.replicaset import controller as replicasets

MAKES = (
    ("replicaset-controller", replicasets.make),
    ("deployment-controller", deployments.make),
    ("job-controller", jobs.make),
    slices.make,
    lambda c, i, clock: GarbageCollector(c, clock=clock),
)


def image(pod: Object) -> str:
    return str(pod["spec"]["containers"][0]["image"])


async def rolled_out(w: World, text: str, replicas: int) -> bool:
    found = await w.get(DEPLOYMENT, "web")
    status = found.get("status") or {}
    pods = await w.pods()
    return (
        status.get("observedGeneration") == found["metadata"]["generation"]
        and status.get("updatedReplicas") == status.get("availableReplicas") == status.get("replicas") == replicas
        and len(pods) == replicas
        and {image(pod) for pod in pods} == {text}
    )


async def set_image(w: World, text: str) -> None:
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": text}]}}}}
    await w.client.patch(DEPLOYMENT, "web", "default", patch, type="strategic")


@pytest.mark.parametrize("seed", range(3))
async def test_a_rollout_survives_lost_requests_and_answers(seed: int) -> None:
    async with world(*MAKES, seed=seed) as w:
        w.faults.share = 0.25
        await w.client.create(DEPLOYMENT, workload("web", replicas=5))
        await w.until(lambda: rolled_out(w, "i:1", 5), 600)
        await set_image(w, "i:2")
        await w.until(lambda: rolled_out(w, "i:2", 5), 600)
        await w.client.scale(DEPLOYMENT, "web", "default", 9)
        await w.until(lambda: rolled_out(w, "i:2", 9), 600)
        assert len(await w.list(RS)) == 2


@pytest.mark.parametrize("seed", range(3))
async def test_a_job_counts_right_over_faults(seed: int) -> None:
    async with world(*MAKES, seed=seed) as w:
        w.faults.share = 0.25
        verdicts: dict[str, str] = {}

        def outcome(pod: Object) -> str:
            return verdicts.setdefault(pod["metadata"]["name"], "Failed" if len(verdicts) % 4 == 3 else "Succeeded")

        w.outcome = outcome
        never = template({"app": "job"}, restartPolicy="Never")
        body: Object = {"metadata": {"name": "work", "namespace": "default"}}
        await w.client.create(
            JOB, {**body, "spec": {"completions": 12, "parallelism": 4, "backoffLimit": 20, "template": never}}
        )
        await w.until(lambda: complete(w), 1200)
        status = await w.status(JOB, "work")
        ended = [pod["status"]["phase"] for pod in await w.pods()]
        assert status["succeeded"] == ended.count("Succeeded") >= 12
        assert status["failed"] == ended.count("Failed")
        w.faults.share = 0.0
        await w.settle(5)
        assert not [p for p in await w.pods() if p["metadata"].get("finalizers")]


async def complete(w: World) -> bool:
    return any(c["type"] == "Complete" for c in (await w.status(JOB, "work")).get("conditions") or ())


async def test_controllers_killed_again_and_again() -> None:
    async with world(*MAKES) as w:
        await w.client.create(DEPLOYMENT, workload("web", replicas=6))
        await w.settle(1)
        for turn in range(2, 6):
            await set_image(w, f"i:{turn}")
            await w.settle(0.2 * turn)
            await w.stop()
            for pod in (await w.pods())[:2]:  # nobody hears of these
                await w.client.delete(POD, pod["metadata"]["name"], "default")
            await w.settle(1)
            await w.start()
        await w.until(lambda: rolled_out(w, "i:5", 6))
        before = await versions(w)
        await w.stop()
        await w.start()
        await w.settle(5)
        assert await versions(w) == before, "a restart alone changes nothing"


async def versions(w: World) -> list[Any]:
    await w.settle(2)
    kinds = (DEPLOYMENT, RS, POD, SERVICE, SLICE)
    return [(o["metadata"]["name"], o["metadata"]["resourceVersion"]) for kind in kinds for o in await w.list(kind)]


async def test_slices_come_right_over_faults_and_restarts() -> None:
    async with world(*MAKES) as w:
        w.faults.share = 0.3
        spec = {"selector": {"app": "web"}, "ports": [{"port": 80}]}
        await w.client.create(SERVICE, {"metadata": {"name": "svc", "namespace": "default"}, "spec": spec})
        for size in (130, 20, 60):
            if not await w.exists(RS, "web"):
                await w.client.create(RS, workload("web", replicas=size))
            await w.client.scale(RS, "web", "default", size)
            await w.settle(1)
            await w.stop()
            await w.start()
            await w.until(lambda size=size: listed(w, size), 600)


async def listed(w: World, size: int) -> bool:
    addresses = [
        e["addresses"][0] for one in await w.list(SLICE) for e in one.get("endpoints") or () if e["conditions"]["ready"]
    ]
    alive = sorted(pod["status"].get("podIP", "") for pod in await w.pods())
    return len(alive) == size and sorted(addresses) == alive
