"""Sub-resources, and resources that are seen in two ways: scale, binding, eviction, tokens, events, autoscalers."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from server_kit import JSON_PATCH, MERGE, PODS, STRATEGIC, Api, pod, serving
from test_server_create import DEPLOYMENTS, deployment

from coterie.base import pki
from coterie.kube.apiserver.auth.tokens import TokenSigner
from coterie.kube.apiserver.server import Settings

EVENTS = "/api/v1/namespaces/default/events"
NEW_EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
SIGNER = TokenSigner(pki.new_key())


@pytest.fixture
async def signing() -> AsyncIterator[Api]:
    async with serving(Settings(signer=SIGNER)) as api:
        yield api


# ---- scale ----


@pytest.mark.parametrize(("kind", "body"), [(MERGE, {"spec": {"replicas": 4}}), (STRATEGIC, {"spec": {"replicas": 4}}), (JSON_PATCH, [{"op": "replace", "path": "/spec/replicas", "value": 4}])])  # fmt: skip
async def test_scale(api: Api, kind: str, body: object):
    await api.post(DEPLOYMENTS, deployment("d"))
    seen = await api.get(f"{DEPLOYMENTS}/d/scale")
    assert (seen["kind"], seen["spec"]["replicas"]) == ("Scale", 1)
    assert seen["status"]["selector"] == "app=d"
    changed = await api.patch(f"{DEPLOYMENTS}/d/scale?fieldManager=scaler", body, kind)
    assert changed["spec"]["replicas"] == 4
    obj = await api.get(f"{DEPLOYMENTS}/d")
    assert obj["spec"]["replicas"] == 4 and obj["metadata"]["generation"] == 2
    entry = next(e for e in obj["metadata"]["managedFields"] if e["manager"] == "scaler")
    assert (entry["subresource"], entry["fieldsV1"]) == ("scale", {"f:spec": {"f:replicas": {}}})
    await api.refused(415, "PATCH", f"{DEPLOYMENTS}/d/scale", {}, headers={"content-type": "text/plain"})
    await api.refused(404, "GET", f"{DEPLOYMENTS}/none/scale")
    await api.refused(400, "PUT", f"{DEPLOYMENTS}/d/scale", {"kind": "Deployment"})


# ---- binding ----


async def test_binding(api: Api):
    await api.post(PODS, pod("p"))
    target = {"target": {"kind": "Node", "name": "n1"}}
    answer = await api.call("POST", f"{PODS}/p/binding", {**target, "metadata": {"annotations": {"by": "me"}}})
    assert answer.status == 201 and answer.json["status"] == "Success"
    bound = await api.get(f"{PODS}/p")
    assert bound["spec"]["nodeName"] == "n1" and bound["metadata"]["annotations"] == {"by": "me"}
    condition = next(c for c in bound["status"]["conditions"] if c["type"] == "PodScheduled")
    assert condition["status"] == "True"
    again = await api.refused(409, "POST", f"{PODS}/p/binding", target)
    assert 'already assigned to node "n1"' in again.message
    await api.post(PODS, pod("q"))
    whole = {"metadata": {"name": "q"}, **target}
    assert (await api.call("POST", "/api/v1/namespaces/default/bindings", whole)).status == 201
    assert (await api.get(f"{PODS}/q"))["spec"]["nodeName"] == "n1"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, 422),
        ({"target": {}}, 422),
        ({"target": {"name": 5}}, 400),
        ({"target": {"name": "No Node"}}, 422),
        ({"target": []}, 400),
        ({"target": {"name": "n", "kind": "Pod"}}, 422),
        ({"kind": "Pod", "target": {"name": "n"}}, 400),
        ({"target": {"name": "n"}, "metadata": {"annotations": []}}, 400),
        ({"target": {"name": "n"}, "metadata": {"uid": "other"}}, 409),
        ({"target": {"name": "n"}, "metadata": {"name": "other"}}, 400),
    ],
)
async def test_bindings_that_are_refused(api: Api, body: dict, code: int):
    await api.post(PODS, pod("p"))
    assert (await api.call("POST", f"{PODS}/p/binding", body)).status == code
    assert "nodeName" not in (await api.get(f"{PODS}/p"))["spec"]


async def test_pods_that_cannot_be_bound(api: Api):
    target = {"target": {"name": "n"}}
    await api.refused(404, "POST", f"{PODS}/none/binding", target)
    await api.post(PODS, pod("gated", schedulingGates=[{"name": "example.com/wait"}]))
    await api.refused(409, "POST", f"{PODS}/gated/binding", target)
    held = pod("held")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    await api.post(PODS, held)
    await api.ok("DELETE", f"{PODS}/held")
    await api.refused(409, "POST", f"{PODS}/held/binding", target)


async def test_of_two_schedulers_one_wins(api: Api):
    await api.post(PODS, pod("p"))
    binds = [api.call("POST", f"{PODS}/p/binding", {"target": {"name": f"n{n}"}}) for n in range(5)]
    assert sorted(answer.status for answer in await asyncio.gather(*binds)) == [201] + [409] * 4


# ---- eviction ----


async def running(api: Api, name: str, ready: str = "True") -> None:
    await api.post(PODS, pod(name, labels={"app": "web"}))
    await api.post(f"{PODS}/{name}/binding", {"target": {"name": "n"}})
    conditions = [{"type": "Ready", "status": ready}]
    await api.patch(f"{PODS}/{name}/status", {"status": {"phase": "Running", "conditions": conditions}})


async def budget(api: Api, allowed: int, name: str = "b", policy: str = "", **status: object) -> None:
    spec: dict[str, object] = {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}
    if policy:
        spec["unhealthyPodEvictionPolicy"] = policy
    await api.post(BUDGETS, {"metadata": {"name": name}, "spec": spec})
    computed = {"disruptionsAllowed": allowed, "observedGeneration": 1, **status}
    await api.patch(f"{BUDGETS}/{name}/status", {"status": computed})


async def evict(api: Api, name: str, **options: object):
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    return await api.call(
        "POST", f"{PODS}/{name}/eviction", {**body, **({"deleteOptions": options} if options else {})}
    )


async def test_eviction_deletes(api: Api):
    await running(api, "p")
    answer = await evict(api, "p", gracePeriodSeconds=3)
    assert answer.status == 201 and answer.json["status"] == "Success"
    assert (await api.get(f"{PODS}/p"))["metadata"]["deletionGracePeriodSeconds"] == 3
    assert (await evict(api, "none")).status == 404


async def test_a_budget_can_hold_a_pod(api: Api):
    await running(api, "p")
    await budget(api, 0)
    answer = await evict(api, "p")
    assert answer.status == 429 and answer.reason == "TooManyRequests"
    assert "violate the pod's disruption budget" in answer.message
    assert answer.causes[0]["reason"] == "DisruptionBudget"
    assert "deletionTimestamp" not in (await api.get(f"{PODS}/p"))["metadata"]
    await api.patch(f"{PODS}/p/status", {"status": {"phase": "Succeeded"}})
    assert (await evict(api, "p")).status == 201, "what does not run is not disrupted"


async def test_a_budget_is_not_spent_twice(api: Api):
    for name in "abc":
        await running(api, name)
    await budget(api, 1)
    answers = await asyncio.gather(*(evict(api, name) for name in "abc"))
    assert sorted(answer.status for answer in answers) == [201, 429, 429]
    status = (await api.get(f"{BUDGETS}/b"))["status"]
    assert status["disruptionsAllowed"] == 0
    (disrupted,) = status["disruptedPods"]
    assert (await api.get(f"{PODS}/{disrupted}"))["metadata"]["deletionTimestamp"]


async def test_a_dry_run_spends_nothing(api: Api):
    await running(api, "p")
    await budget(api, 1)
    assert (await evict(api, "p", dryRun=["All"])).status == 201
    assert (await api.get(f"{BUDGETS}/b"))["status"]["disruptionsAllowed"] == 1
    assert "deletionTimestamp" not in (await api.get(f"{PODS}/p"))["metadata"]


async def test_two_budgets_for_one_pod_are_a_mistake(api: Api):
    await running(api, "p")
    await budget(api, 1)
    await budget(api, 1, "other")
    answer = await evict(api, "p")
    assert answer.status == 500 and "more than one PodDisruptionBudget" in answer.message


async def test_an_evicted_pod_carries_the_reason(api: Api):
    await running(api, "p")
    await evict(api, "p")
    conditions = (await api.get(f"{PODS}/p"))["status"]["conditions"]
    (target,) = [each for each in conditions if each["type"] == "DisruptionTarget"]
    assert (target["status"], target["reason"]) == ("True", "EvictionByEvictionAPI")
    assert [each["status"] for each in conditions if each["type"] == "Ready"] == ["True"], "other conditions stay"


async def test_the_last_allowed_eviction_turns_the_condition_false(api: Api):
    for name in "ab":
        await running(api, name)
    allowed = {"type": "DisruptionAllowed", "status": "True", "reason": "SufficientPods", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}  # fmt: skip
    await budget(api, 2, conditions=[allowed])
    await evict(api, "a")
    assert (await api.get(f"{BUDGETS}/b"))["status"]["conditions"] == [allowed]
    await evict(api, "b")
    (condition,) = (await api.get(f"{BUDGETS}/b"))["status"]["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "InsufficientPods")


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        ({"observedGeneration": 0}, "The disruption budget b is still being processed by the server."),
        (
            {"disruptionsAllowed": 0, "desiredHealthy": 2, "currentHealthy": 1},
            "The disruption budget b needs 2 healthy pods and has 1 currently",
        ),
        (
            {
                "disruptionsAllowed": 0,
                "conditions": [
                    {"type": "DisruptionAllowed", "status": "False", "reason": "SyncFailed", "message": "no scale",
                     "lastTransitionTime": "2026-01-01T00:00:00Z"}
                ],
            },
            "The disruption budget b does not allow evicting pods currently because it failed sync: no scale",
        ),
    ],
    ids=["not-observed", "too-few", "sync-failed"],
)  # fmt: skip
async def test_why_an_eviction_is_refused(api: Api, status: dict[str, object], cause: str):
    await running(api, "p")
    await budget(api, 1, **status)
    answer = await evict(api, "p")
    assert answer.status == 429 and answer.causes[0]["message"] == cause
    assert (await evict(api, "p", dryRun=["All"])).status == 429


@pytest.mark.parametrize(
    ("policy", "ready", "healthy", "desired", "code"),
    [
        ("AlwaysAllow", "False", 0, 2, 201),
        ("AlwaysAllow", "True", 2, 2, 429),
        ("IfHealthyBudget", "False", 2, 2, 201),
        ("IfHealthyBudget", "False", 1, 2, 429),
        ("IfHealthyBudget", "False", 0, 0, 429),
        ("", "False", 2, 2, 201),
        ("", "False", 1, 2, 429),
        ("", "True", 2, 2, 429),
    ],
)
async def test_pods_that_are_not_ready(api: Api, policy: str, ready: str, healthy: int, desired: int, code: int):
    await running(api, "p", ready)
    await budget(api, 0, policy=policy, currentHealthy=healthy, desiredHealthy=desired)
    assert (await evict(api, "p")).status == code
    assert not (await api.get(f"{BUDGETS}/b"))["status"].get("disruptedPods"), "nothing was spent"


# ---- tokens ----


async def test_a_token_is_made_and_used(signing: Api):
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    await signing.post(accounts, {"metadata": {"name": "robot"}})
    made = await signing.call("POST", f"{accounts}/robot/token", {"spec": {"expirationSeconds": 600}})
    assert made.status == 201 and made.json["kind"] == "TokenRequest"
    bearer = {"authorization": f"Bearer {made.json['status']['token']}"}
    who = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    seen = await signing.post(who, {}, headers=bearer, user=None)
    assert seen["status"]["userInfo"]["username"] == "system:serviceaccount:default:robot"
    assert "system:serviceaccounts:default" in seen["status"]["userInfo"]["groups"]
    await signing.refused(403, "GET", PODS, headers=bearer, user=None)
    review = await signing.post("/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": bearer["authorization"][7:]}})  # fmt: skip
    assert review["status"]["authenticated"]
    await signing.ok("DELETE", f"{accounts}/robot")
    await signing.refused(401, "POST", who, {}, headers=bearer, user=None)


async def test_a_token_expires(signing: Api):
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    await signing.post(accounts, {"metadata": {"name": "robot"}})
    made = await signing.post(f"{accounts}/robot/token", {"spec": {"expirationSeconds": 600}})
    assert made["status"]["expirationTimestamp"] == "2026-01-02T03:14:05Z"
    bearer = {"authorization": f"Bearer {made['status']['token']}"}
    await signing.get("/version", headers=bearer, user=None)
    await signing.clock.advance(700)
    await signing.refused(401, "GET", "/version", headers=bearer, user=None)


async def test_without_a_key_there_are_no_tokens(api: Api):
    await api.post("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "robot"}})
    await api.refused(503, "POST", "/api/v1/namespaces/default/serviceaccounts/robot/token", {"spec": {}})
    await api.refused(404, "GET", "/openid/v1/jwks")


async def test_keys_are_published(signing: Api):
    keys = await signing.get("/openid/v1/jwks")
    assert keys["keys"][0]["kty"] in ("RSA", "EC")
    found = await signing.get("/.well-known/openid-configuration")
    assert found["jwks_uri"].endswith("/openid/v1/jwks")


# ---- events ----


def event(name: str) -> dict:
    return {
        "metadata": {"name": name, "namespace": "default"},
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
        "reason": "Started", "message": "it runs", "type": "Normal", "count": 2,
        "source": {"component": "agent"}, "firstTimestamp": "2026-01-02T03:00:00Z",
    }  # fmt: skip


async def test_events_are_the_same_in_both_groups(api: Api):
    await api.post(EVENTS, event("e"))
    new = await api.get(f"{NEW_EVENTS}/e")
    assert new["apiVersion"] == "events.k8s.io/v1" and new["kind"] == "Event"
    assert new["regarding"]["name"] == "p" and new["note"] == "it runs" and "involvedObject" not in new
    assert new["deprecatedSource"] == {"component": "agent"} and new["deprecatedCount"] == 2
    body = {
        "metadata": {"name": "f"}, "regarding": {"kind": "Pod", "name": "q", "namespace": "default"}, "note": "other",
        "reason": "Moved", "type": "Warning", "reportingController": "example.com/c", "reportingInstance": "c-1",
        "action": "Move", "eventTime": "2026-01-02T03:04:05.000000Z",
    }  # fmt: skip
    await api.post(NEW_EVENTS, body)
    old = await api.get(f"{EVENTS}/f")
    assert old["involvedObject"]["name"] == "q" and old["message"] == "other"
    assert old["reportingComponent"] == "example.com/c" and old["apiVersion"] == "v1"
    assert [item["metadata"]["name"] for item in (await api.get(NEW_EVENTS))["items"]] == ["e", "f"]
    watch = await api.watch(NEW_EVENTS)
    assert {e["object"]["apiVersion"] for e in watch.take()} == {"events.k8s.io/v1"}
    changed = await api.patch(f"{NEW_EVENTS}/f", {"series": {"count": 3, "lastObservedTime": "2026-01-02T03:05:00.000000Z"}})  # fmt: skip
    assert changed["series"]["count"] == 3
    assert (await api.get(f"{EVENTS}/f"))["series"]["count"] == 3


async def test_events_end_after_a_while():
    async with serving(Settings(event_ttl=3600, compact_every=300)) as api:
        await api.post(EVENTS, event("early"))
        watch = await api.watch(f"{EVENTS}?resourceVersion={api.revision}")
        await api.clock.advance(1800)
        await api.post(EVENTS, event("late"))
        await api.clock.advance(1750)
        assert (await api.call("GET", EVENTS)).names == ["early", "late"]
        await api.clock.advance(400)
        assert (await api.call("GET", EVENTS)).names == ["late"]
        assert watch.told() == [("ADDED", "late"), ("DELETED", "early")]
        await api.patch(f"{EVENTS}/late", {"count": 3})
        await api.clock.advance(2000)
        assert (await api.call("GET", EVENTS)).names == ["late"], "a change begins its time anew"
        await api.clock.advance(2500)
        assert (await api.call("GET", EVENTS)).names == []


# ---- autoscalers ----


async def test_autoscalers_in_two_versions(api: Api):
    path = "/apis/autoscaling/{}/namespaces/default/horizontalpodautoscalers"
    v1, v2 = path.format("v1"), path.format("v2")
    spec = {"scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}, "maxReplicas": 5}
    made = await api.post(v1, {"metadata": {"name": "h"}, "spec": {**spec, "targetCPUUtilizationPercentage": 70}})
    assert made["apiVersion"] == "autoscaling/v1" and made["spec"]["targetCPUUtilizationPercentage"] == 70
    new = await api.get(f"{v2}/h")
    assert new["spec"]["metrics"][0]["resource"]["target"] == {"type": "Utilization", "averageUtilization": 70}
    new["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"] = 50
    await api.put(f"{v2}/h", new)
    old = await api.get(f"{v1}/h")
    assert old["spec"]["targetCPUUtilizationPercentage"] == 50
    unchanged = api.revision
    await api.put(f"{v1}/h", old)
    assert api.revision == unchanged, "a round trip changes nothing"
    assert [item["apiVersion"] for item in (await api.get(v1))["items"]] == ["autoscaling/v1"]
    watch = await api.watch(v1)
    assert watch.take()[0]["object"]["spec"]["targetCPUUtilizationPercentage"] == 50


# ---- ephemeral containers ----


async def test_ephemeral_containers_are_only_added(api: Api):
    await api.post(PODS, pod("p"))
    debug = {"name": "debug", "image": "tools"}
    path = f"{PODS}/p/ephemeralcontainers"
    body = {"spec": {"ephemeralContainers": [debug]}}
    changed = await api.patch(path, body, STRATEGIC)
    assert [c["name"] for c in changed["spec"]["ephemeralContainers"]] == ["debug"]
    await api.refused(422, "PATCH", path, {"spec": {"ephemeralContainers": None}}, headers={"content-type": MERGE})
    same = await api.patch(path, {"spec": {"nodeName": "n", "ephemeralContainers": [changed["spec"]["ephemeralContainers"][0], {"name": "more", "image": "t"}]}})  # fmt: skip
    assert len(same["spec"]["ephemeralContainers"]) == 2 and "nodeName" not in same["spec"]
    await api.refused(422, "PATCH", f"{PODS}/p", {"spec": {"ephemeralContainers": []}}, headers={"content-type": MERGE})


# ---- reviews ----


async def test_reviews(api: Api):
    reviews = "/apis/authorization.k8s.io/v1"
    ask = {"spec": {"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "default"}}}
    assert (await api.post(f"{reviews}/selfsubjectaccessreviews", ask))["status"]["allowed"]
    other = {"spec": {**ask["spec"], "user": "bob"}}
    assert not (await api.post(f"{reviews}/subjectaccessreviews", other))["status"]["allowed"]
    local = f"{reviews}/namespaces/default/localsubjectaccessreviews"
    assert not (await api.post(local, {**other, "metadata": {"namespace": "default"}}))["status"]["allowed"]
    rules = await api.post(f"{reviews}/selfsubjectrulesreviews", {"spec": {"namespace": "default"}})
    assert rules["status"]["resourceRules"]
    await api.refused(405, "GET", f"{reviews}/selfsubjectaccessreviews")
    await api.refused(404, "POST", f"{reviews}/namespaces/default/selfsubjectaccessreviews", ask)
    await api.refused(404, "POST", f"{reviews}/localsubjectaccessreviews", ask)
    await api.refused(400, "POST", f"{reviews}/selfsubjectaccessreviews", {"kind": "Pod"})
    for body in ({}, {"spec": []}, {"spec": None}, {"spec": {"resourceAttributes": []}}, {"metadata": []}, []):
        for path in ("selfsubjectaccessreviews", "subjectaccessreviews", "selfsubjectrulesreviews"):
            assert (await api.call("POST", f"{reviews}/{path}", body)).status < 500


# ---- resize ----


def _sized(name: str, cpu: str = "100m", memory: str = "64Mi", **limits: str) -> dict[str, Any]:
    made = pod(name)
    resources: dict[str, Any] = {"requests": {"cpu": cpu, "memory": memory}}
    if limits:
        resources["limits"] = limits
    made["spec"]["containers"][0]["resources"] = resources
    return made


def _resources(name: str, **parts: dict[str, str]) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": name, "resources": parts}]}}


async def test_resize_changes_cpu_and_memory_and_nothing_else(api: Api):
    made = await api.post(PODS, _sized("p"))
    container = made["spec"]["containers"][0]["name"]
    path = f"{PODS}/p/resize"
    assert (await api.get(path))["metadata"]["uid"] == made["metadata"]["uid"]
    body = _resources(container, requests={"cpu": "200m"})
    changed = await api.patch(path, {**body, "metadata": {"labels": {"a": "b"}}}, STRATEGIC)
    assert changed["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "200m", "memory": "64Mi"}}
    assert "labels" not in changed["metadata"]
    body["spec"]["containers"][0] |= {"image": "other"}
    changed = await api.patch(path, body, STRATEGIC)
    assert changed["spec"]["containers"][0]["image"] == made["spec"]["containers"][0]["image"]
    changed["spec"]["containers"][0]["resources"]["requests"]["memory"] = "128Mi"
    put = await api.put(path, changed)
    assert put["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "200m", "memory": "128Mi"}
    await api.refused(409, "PUT", path, changed)  # that version is an old one
    # The pod itself keeps its rule.
    body = _resources(container, requests={"cpu": "300m"})
    await api.refused(422, "PATCH", f"{PODS}/p", body, headers={"content-type": STRATEGIC})


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"requests": {"cpu": None}}, "spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed"),
        ({"requests": {"ephemeral-storage": "1Gi"}}, "spec: Forbidden: only cpu and memory resources are mutable"),
        (
            {"limits": {"cpu": "100m", "memory": "64Mi"}},
            'spec: Invalid value: "Burstable": Pod QOS Class may not change as a result of resizing',
        ),
        ({"limits": {"cpu": "50m"}}, "must be less than or equal to cpu limit"),
    ],
)  # fmt: skip
async def test_what_a_resize_may_not_change(api: Api, parts: dict[str, Any], message: str):
    made = await api.post(PODS, _sized("p"))
    body = _resources(made["spec"]["containers"][0]["name"], **parts)
    answer = await api.refused(422, "PATCH", f"{PODS}/p/resize", body, headers={"content-type": STRATEGIC})
    assert message in answer.message


async def test_containers_cannot_be_added_or_reordered_by_a_resize(api: Api):
    made = await api.post(PODS, _sized("p"))
    body = {"spec": {"containers": [{"name": "more", "image": "x"}]}}
    await api.refused(422, "PATCH", f"{PODS}/p/resize", body, headers={"content-type": STRATEGIC})
    answer = await api.refused(422, "PATCH", f"{PODS}/p/resize", body, headers={"content-type": MERGE})
    assert "may not be renamed or reordered" in answer.message
    made["spec"]["containers"][0]["resizePolicy"] = [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]
    answer = await api.refused(422, "PUT", f"{PODS}/p/resize", made)
    assert "only cpu and memory resources are mutable" in answer.message


async def test_a_resize_policy_is_checked(api: Api):
    made = _sized("p")
    made["spec"]["restartPolicy"] = "Never"
    made["spec"]["containers"][0]["resizePolicy"] = [
        {"resourceName": "disk", "restartPolicy": "Sometimes"},
        {"resourceName": "cpu", "restartPolicy": "RestartContainer"},
        {"resourceName": "cpu", "restartPolicy": "NotRequired"},
    ]
    answer = await api.refused(422, "POST", PODS, made)
    for part in ('resourceName: Unsupported value: "disk"', 'Unsupported value: "Sometimes"', "must be 'NotRequired'"):
        assert part in answer.message
    assert 'resizePolicy[2]: Duplicate value: "cpu"' in answer.message
