"""Generic ephemeral volumes: each decision as a row, then the life of a claim on a real API server."""

from __future__ import annotations

from typing import Any

import pytest
from workload_world import POD, PVC, World, world

from coterie.kube.agent.pods.downward import ConfigProblem
from coterie.kube.agent.volumes import claims
from coterie.kube.api.errors import NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.api.types.storage import CLAIMS, PersistentVolumeClaim
from coterie.kube.apiserver.auth.nodes import named_by
from coterie.kube.controllers.ephemeralvolume import controller
from coterie.kube.controllers.ephemeralvolume.plan import plan
from coterie.kube.controllers.gc import controller as gc
from coterie.kube.scheduler.facts import pod_facts

MAKE = ("ephemeral_volume", controller.make)
TEMPLATE: Object = {
    "metadata": {"labels": {"a": "b"}},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}


def pod_body(name: str = "p", **spec: Any) -> Object:
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": TEMPLATE}}],
            **spec,
        },
    }


def typed(body: Object, **status: Any) -> Pod:
    body["metadata"]["uid"] = "u1"
    return PODS.decode(PODS.as_dynamic.encode({**body, "status": status}))


def claim(owner: str) -> PersistentVolumeClaim:
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner, "controller": True}
    metadata = {"name": "p-scratch", "namespace": "default", "ownerReferences": [reference]}
    return CLAIMS.decode(CLAIMS.as_dynamic.encode({"metadata": metadata}))


def test_a_missing_claim_is_made_from_the_template() -> None:
    (body,) = plan(typed(pod_body()), {}).create
    assert body["metadata"]["name"] == "p-scratch" and body["metadata"]["labels"] == {"a": "b"}
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"], owner["controller"]) == ("Pod", "p", "u1", True)
    assert body["spec"] == TEMPLATE["spec"]


def test_a_claim_of_somebody_else_is_left_alone() -> None:
    assert plan(typed(pod_body()), {"p-scratch": claim("u1")}) == plan(typed(pod_body(volumes=[])), {})
    found = plan(typed(pod_body()), {"p-scratch": claim("other")})
    assert not found.create
    assert found.refused == (("scratch", "PVC default/p-scratch was not created for pod default/p (pod is not owner)"),)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_needs_no_claim(phase: str) -> None:
    assert not plan(typed(pod_body(), phase=phase), {}).create


def test_scheduler_agent_and_authorizer_know_the_name() -> None:
    body = pod_body()
    assert pod_facts(typed(body)).claims == ("p-scratch",)
    assert claims.claim_names(body) == ["p-scratch"]
    assert ("persistentvolumeclaims", "p-scratch") in set(named_by(body["spec"], "p"))


def test_the_agent_mounts_only_the_pods_own_claim() -> None:
    body = pod_body()
    body["metadata"]["uid"] = "u1"
    stored = CLAIMS.as_dynamic.decode(CLAIMS.encode(claim("u1")))
    claims.check_owner(body, "p-scratch", lambda kind, name: stored)
    stored["metadata"]["ownerReferences"][0]["uid"] = "other"
    with pytest.raises(ConfigProblem, match="pod is not owner"):
        claims.check_owner(body, "p-scratch", lambda kind, name: stored)


async def _exists(w: World, name: str) -> bool:
    try:
        await w.get(PVC, name)
    except NotFound:
        return False
    return True


async def test_the_claim_lives_as_long_as_the_pod() -> None:
    async with world(MAKE, gc.make) as w:
        w.nodes = []
        made = await w.client.create(POD, pod_body())
        await w.settle(2)
        found = await w.get(PVC, "p-scratch")
        assert found["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
        assert found["spec"]["resources"] == {"requests": {"storage": "1Gi"}}
        await w.client.delete(POD, "p", "default", grace=0)
        await w.settle(5)
        gone = not await _exists(w, "p-scratch")
        assert gone or (await w.get(PVC, "p-scratch"))["metadata"].get("deletionTimestamp")


async def test_a_claim_in_the_way_is_told() -> None:
    async with world(MAKE) as w:
        await w.client.create(
            PVC, {"metadata": {"name": "p-scratch", "namespace": "default"}, "spec": TEMPLATE["spec"]}
        )
        await w.client.create(POD, pod_body())
        await w.settle(2)
        message = "ephemeral volume scratch: PVC default/p-scratch was not created for pod default/p (pod is not owner)"
        assert ("FailedBinding", message) in await w.events()
