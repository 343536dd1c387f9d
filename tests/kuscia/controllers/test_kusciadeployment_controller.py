"""Deployments of engines in one control plane: what is made, how it is told, how it changes and goes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from job_world import IMAGE, JobWorld, an_image, job_world
from serving_world import (
    CONFIG_MAP,
    KD,
    SERVING_PLANE,
    a_party,
    a_serving,
    change_party,
    left_of,
    pods_of,
    serving,
    serving_status,
    until_serving,
)
from workload_world import DEPLOYMENT, ENDPOINTS, EVENT, POD, SERVICE

from coterie.kube.api import errors
from coterie.kube.api import labels as kube_labels
from coterie.kube.api.errors import InternalError
from coterie.kube.api.meta import Object
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.job import CROSS_DOMAIN

AUTOSCALER = Kind.dynamic(builtin("horizontalpodautoscalers", "autoscaling", "v2"))


@pytest.fixture
async def plane() -> AsyncIterator[JobWorld]:
    async with job_world(makes=SERVING_PLANE) as made:
        made.outcome = lambda pod: "Running"
        yield made


def variables(pod: Object) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in pod["spec"]["containers"][0]["env"]}


def numbers(pod: Object) -> dict[str, int]:
    return {each["name"]: each["containerPort"] for each in pod["spec"]["containers"][0]["ports"]}


async def test_each_party_gets_a_deployment_services_and_templates(plane: JobWorld) -> None:
    body = a_serving("alice", a_party("bob", "guest", serviceNamePrefix="front"), inputConfig='{"cost": "$(HOME) $5"}')
    body["metadata"]["labels"] = {labels.KUSCIA_APP_TYPE: "serving"}
    await plane.client.create(KD, body)
    status = await until_serving(plane, "Available")
    assert (status["totalParties"], status["availableParties"]) == (2, 2) and "reason" not in status
    assert status["partyDeploymentStatuses"]["alice"]["s"]["phase"] == "Available"
    assert status["partyDeploymentStatuses"]["bob"]["s-guest"]["role"] == "guest"

    made = await serving(plane)
    uid, marks = made["metadata"]["uid"], made["metadata"]["annotations"]
    assert marks[labels.KUSCIA_INITIATOR] == "alice" and marks[labels.KUSCIA_SELF_AS_INITIATOR] == "true"
    assert marks[labels.KUSCIA_INTERCONN_SELF_PARTIES] == "alice_bob"
    allotted = {each["domainID"]: each["namedPort"] for each in json.loads(marks[labels.KUSCIA_ALLOCATED_PORTS])}
    assert allotted["alice"].keys() == {"talk", "inner", "own"}

    found = await plane.get(DEPLOYMENT, "s-guest", "bob")
    known = {
        labels.KUSCIA_CONTROLLER: "KusciaDeployment",
        labels.KUSCIA_KD_UID: uid,
        labels.KUSCIA_KD_NAME: "s",
        labels.KUSCIA_OWNER_NAMESPACE: CROSS_DOMAIN,
        labels.KUSCIA_DEPLOYMENT_NAME: "s-guest",
    }
    assert known.items() <= found["metadata"]["labels"].items()
    assert found["metadata"]["labels"][labels.KUSCIA_APP_TYPE] == "serving"
    assert found["spec"]["selector"]["matchLabels"] == known
    assert found["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": "25%", "maxUnavailable": "25%"}
    pod_spec = found["spec"]["template"]["spec"]
    assert pod_spec["schedulerName"] == labels.KUSCIA_SCHEDULER and pod_spec["restartPolicy"] == "Always"
    assert pod_spec["nodeSelector"] == {labels.KUSCIA_NODE_NAMESPACE: "bob"}
    (spread,) = pod_spec["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert spread["weight"] == 100 and spread["podAffinityTerm"]["topologyKey"] == kube_labels.HOSTNAME

    (pod,) = await pods_of(plane, "bob")
    told = variables(pod)
    assert told["KUSCIA_DOMAIN_ID"] == "bob" and told["SERVING_ID"] == "s"
    assert told["INPUT_CONFIG"] == '{"cost": "$$(HOME) $$5"}', "a container's variables are not put into it"
    define = json.loads(told["CLUSTER_DEFINE"])
    assert (define["selfPartyIdx"], define["selfEndpointIdx"]) == (1, 0)
    services = {each["name"]: {s["portName"]: s["endpoints"] for s in each["services"]} for each in define["parties"]}
    assert services == {
        "alice": {"talk": ["s-talk.alice.svc"]},
        "bob": {"talk": ["front-talk.bob.svc"], "inner": ["front-inner.bob.svc"]},
    }
    assert numbers(pod) == allotted["bob"], "who is alone has the numbers of the deployment"

    service = await plane.get(SERVICE, "front-talk", "bob")
    notes = service["metadata"]["annotations"]
    assert notes[labels.KUSCIA_ACCESS_DOMAIN] == "alice,bob" and notes[labels.KUSCIA_PROTOCOL] == "HTTP"
    assert notes[labels.KUSCIA_STICKY_SESSION_COOKIE] == "KUSCIA_SESSION"
    assert notes[labels.KUSCIA_STICKY_SESSION_TTL] == "86400s"
    assert service["metadata"]["labels"][labels.KUSCIA_PORT_SCOPE] == "Cluster"
    assert service["spec"]["clusterIP"] == "None" and not service["spec"].get("publishNotReadyAddresses")
    templates = await plane.get(CONFIG_MAP, "s-guest-configtemplate", "bob")
    assert templates["data"].keys() == {"task-config.conf"}


async def test_replicas_have_ports_of_their_own_and_all_are_endpoints(plane: JobWorld) -> None:
    await plane.client.create(KD, a_serving(a_party("alice", template={"replicas": 3})))
    await until_serving(plane, "Available")
    pods = await pods_of(plane, "alice")
    every = [number for pod in pods for number in numbers(pod).values()]
    assert len(pods) == 3 and len(set(every)) == 9, "no number twice in a domain"
    for pod in pods:
        marks = pod["metadata"]["annotations"]
        assert {name: marks[f"port.coterie.io/{name}"] for name in ("talk", "inner", "own")} == {
            name: str(number) for name, number in numbers(pod).items()
        }
        told = variables(pod)
        assert (
            told["KUSCIA_PORT_TALK_NUMBER"]["fieldRef"]["fieldPath"] == "metadata.annotations['port.coterie.io/talk']"
        )
        assert '"name":"talk","port":$(KUSCIA_PORT_TALK_NUMBER),' in told["ALLOCATED_PORTS"]

    async def listed() -> bool:
        found = await plane.get(ENDPOINTS, "s-talk", "alice")
        ports = {port["port"] for subset in found.get("subsets") or () for port in subset["ports"]}
        return ports == {numbers(pod)["talk"] for pod in pods}

    await plane.until(listed)


async def test_scaling_takes_effect(plane: JobWorld) -> None:
    await plane.client.create(KD, a_serving("alice"))
    await until_serving(plane, "Available")
    before = (await pods_of(plane, "alice"))[0]["metadata"]["uid"]
    for wanted in (3, 1):
        await change_party(plane, template={"replicas": wanted})

        async def scaled(wanted: int = wanted) -> bool:
            entry = (await serving_status(plane))["partyDeploymentStatuses"]["alice"]["s"]
            there = len(await pods_of(plane, "alice"))
            return entry["availableReplicas"] == there == wanted and entry["phase"] == "Available"

        await plane.until(scaled)
        if wanted == 3:
            uids = {pod["metadata"]["uid"] for pod in await pods_of(plane, "alice")}
            assert before in uids, "scaling is no new template"
    await plane.client.patch(DEPLOYMENT, "s", "alice", {"spec": {"replicas": 2}})

    async def put_right() -> bool:
        return (await plane.get(DEPLOYMENT, "s", "alice"))["spec"]["replicas"] == 1

    await plane.until(put_right)


def an_autoscaler(namespace: str = "alice", target: str = "s") -> Object:
    aim = {"type": "Utilization", "averageUtilization": 50}
    return {
        "metadata": {"name": "grow", "namespace": namespace},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": target},
            "minReplicas": 1,
            "maxReplicas": 5,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": aim}}],
        },
    }


async def test_replicas_belong_to_the_autoscaler_while_there_is_one(plane: JobWorld) -> None:
    await plane.client.create(KD, a_serving(a_party("alice", template={"replicas": 2})))
    await until_serving(plane, "Available")
    await plane.client.create(AUTOSCALER, an_autoscaler())
    await plane.settle(2)
    await plane.client.scale(DEPLOYMENT, "s", "alice", 4)

    async def at(wanted: int) -> bool:
        entry = (await serving_status(plane))["partyDeploymentStatuses"]["alice"]["s"]
        there = len(await pods_of(plane, "alice"))
        return entry["availableReplicas"] == there == wanted and entry["phase"] == "Available"

    await plane.until(lambda: at(4))
    await plane.settle(10)
    assert await at(4), "the controller does not set it back"

    found = await serving(plane)
    await plane.client.patch(KD, "s", CROSS_DOMAIN, {"spec": {**found["spec"], "inputConfig": '{"n": 2}'}})

    async def rolled() -> bool:
        told = {variables(pod)["INPUT_CONFIG"] for pod in await pods_of(plane, "alice")}
        return told == {'{"n": 2}'} and await at(4)

    await plane.until(rolled)

    await change_party(plane, template={"replicas": 0})
    await plane.until(lambda: _replicas_are(plane, 0))
    await change_party(plane, template={"replicas": 3})
    await plane.until(lambda: at(3))
    await plane.client.scale(DEPLOYMENT, "s", "alice", 5)
    await plane.until(lambda: at(5))
    await plane.client.delete(AUTOSCALER, "grow", "alice")
    await plane.until(lambda: at(3))


async def _replicas_are(plane: JobWorld, wanted: int) -> bool:
    return ((await plane.get(DEPLOYMENT, "s", "alice"))["spec"].get("replicas") or 0) == wanted


@pytest.mark.parametrize("what", ["input", "image", "templates", "resources", "ports", "strategy"])
async def test_changes_are_rolled_out(plane: JobWorld, what: str) -> None:
    await plane.client.create(KD, a_serving("alice"))
    await until_serving(plane, "Available")
    old = {pod["metadata"]["uid"] for pod in await pods_of(plane, "alice")}
    image = an_image()
    container = image["spec"]["deployTemplates"][0]["spec"]["containers"][0]
    if what == "input":
        await plane.client.patch(KD, "s", CROSS_DOMAIN, {"spec": {"inputConfig": "other"}})
    elif what == "resources":
        wished = {"containers": [{"name": "main", "workingDir": "/x", "resources": {"limits": {"memory": "1Gi"}}}]}
        await change_party(plane, template={"spec": wished})
    elif what == "strategy":
        await change_party(plane, template={"strategy": {"type": "Recreate"}})
    else:
        if what == "image":
            image["spec"]["image"]["tag"] = "2"
        elif what == "templates":
            image["spec"]["configTemplates"]["task-config.conf"] = "{{.INPUT_CONFIG}}"
        else:
            container["ports"] = [{"name": "talk", "scope": "Cluster"}, {"name": "more", "scope": "Cluster"}]
        await plane.client.patch(IMAGE, "engine", "", {"spec": image["spec"]})

    async def rolled() -> bool:
        pods = await pods_of(plane, "alice")
        ready = (await serving_status(plane)).get("phase") == "Available"
        return ready and len(pods) == 1 and pods[0]["metadata"]["uid"] not in old

    async def rewritten() -> bool:
        return (await plane.get(DEPLOYMENT, "s", "alice"))["spec"]["strategy"] == {"type": "Recreate"}

    await plane.until(rewritten if what == "strategy" else rolled)
    pods = await pods_of(plane, "alice")
    if what == "input":
        assert variables(pods[0])["INPUT_CONFIG"] == "other"
    elif what == "image":
        assert pods[0]["spec"]["containers"][0]["image"] == "coterie/host:2"
    elif what == "templates":
        held = await plane.get(CONFIG_MAP, "s-configtemplate", "alice")
        assert held["data"] == {"task-config.conf": "{{.INPUT_CONFIG}}"}
    elif what == "resources":
        assert pods[0]["spec"]["containers"][0]["resources"]["limits"] == {"memory": "1Gi"}
    elif what == "ports":
        names = {each["metadata"]["name"] for each in await plane.list(SERVICE, "alice")}
        assert {"s-talk", "s-more"} <= names and "s-inner" not in names, "what nobody needs any more is gone"


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        (a_serving(), "ValidateFailed", "at least one party"),
        (a_serving("bob"), "ValidateFailed", "alice must be one of the parties"),
        (a_serving(a_party("alice", serviceNamePrefix="9lives")), "ValidateFailed", "parties[0].serviceNamePrefix"),
        (a_serving("alice", "alice"), "ValidateFailed", "twice"),
        (a_serving(a_party("alice", "Über")), "ValidateFailed", "parties[0]"),
        (a_serving(a_party("alice", image="nothing")), "BuildPartyKitInfoFailed", 'no AppImage "nothing"'),
        (
            a_serving(a_party("alice", template={"strategy": {"type": "Sideways"}})),
            "CreateDeploymentFailed",
            "strategy",
        ),
    ],
    ids=["no party", "initiator", "prefix", "twice", "role", "image", "strategy"],
)
async def test_what_cannot_be_carried_out_fails_and_says_why(
    plane: JobWorld, spec: Object, reason: str, words: str
) -> None:
    if not spec["spec"]["parties"]:
        spec["spec"]["initiator"] = "alice"
    await plane.client.create(KD, spec)
    status = await until_serving(plane, "Failed")
    assert status["reason"] == reason and words in status["message"]
    assert not [each for each in await left_of(plane) if "pods" in each]
    told = [each["message"] for each in (await plane.client.list(EVENT)).items if each["reason"] == "Failed"]
    assert any(reason in each for each in told)


async def test_a_failure_heals_when_its_cause_goes(plane: JobWorld) -> None:
    await plane.client.create(KD, a_serving(a_party("alice", image="late")))
    await until_serving(plane, "Failed")
    await plane.client.create(IMAGE, an_image("late"))
    status = await until_serving(plane, "Available")
    assert "reason" not in status and "message" not in status


@pytest.mark.parametrize(
    ("kind", "name", "reason"),
    [
        (DEPLOYMENT, "s", "CreateDeploymentFailed"),
        (SERVICE, "s-talk", "CreateServiceFailed"),
        (CONFIG_MAP, "s-configtemplate", "CreateConfigMapFailed"),
    ],
    ids=["Deployment", "Service", "ConfigMap"],
)
async def test_objects_of_others_are_left_alone(plane: JobWorld, kind: Any, name: str, reason: str) -> None:
    body: Object = {"metadata": {"name": name, "namespace": "alice"}}
    if kind is DEPLOYMENT:
        inner = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        body["spec"] = {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": inner}
    if kind is SERVICE:
        body["spec"] = {"clusterIP": "None", "ports": [{"port": 1}]}
    theirs = await plane.client.create(kind, body)
    await plane.client.create(KD, a_serving("alice"))
    status = await until_serving(plane, "Failed")
    assert status["reason"] == reason and name in status["message"]
    now = await plane.get(kind, name, "alice")
    assert now["metadata"]["uid"] == theirs["metadata"]["uid"]
    assert "labels" not in now["metadata"]
    await plane.client.delete(KD, "s", CROSS_DOMAIN)

    async def gone() -> bool:
        return not await left_of(plane)

    await plane.until(gone)
    assert await plane.exists(kind, name, "alice")


async def test_pods_that_do_not_come_up_are_told_of(plane: JobWorld) -> None:
    plane.outcome = lambda pod: "Running" if pod["metadata"]["namespace"] == "alice" else "Pending"
    await plane.client.create(KD, a_serving("alice", "bob"))
    status = await until_serving(plane, "Progressing")

    async def alice_is_there() -> bool:
        return (await serving_status(plane))["availableParties"] == 1

    await plane.until(alice_is_there)
    (pod,) = await pods_of(plane, "bob")
    state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    ended = {"terminated": {"exitCode": 3, "reason": "Error", "message": "secret words"}}
    container = {"name": "main", "ready": False, "restartCount": 2, "image": "i", "imageID": "", "state": state, "lastState": ended}  # fmt: skip
    status = {"status": {"phase": "Running", "containerStatuses": [container]}}
    await plane.client.patch_status(POD, pod["metadata"]["name"], "bob", status)

    async def told() -> bool:
        return "CrashLoopBackOff" in (await serving_status(plane)).get("reason", "")

    await plane.until(told)
    found = await serving_status(plane)
    assert found["reason"] == "domainID: bob, reason: CrashLoopBackOff"
    assert "container main: CrashLoopBackOff: back-off 10s" in found["message"] and "secret words" in found["message"]
    assert "secret words" not in str(found["partyDeploymentStatuses"]), "that is what partners see"


async def test_some_replicas_are_partial(plane: JobWorld) -> None:
    slow: set[str] = set()

    def outcome(pod: Object) -> str:
        if not slow:
            slow.add(pod["metadata"]["uid"])
        return "NotReady" if pod["metadata"]["uid"] in slow else "Running"

    plane.outcome = outcome
    await plane.client.create(KD, a_serving(a_party("alice", template={"replicas": 2})))
    status = await until_serving(plane, "PartialAvailable")
    entry = status["partyDeploymentStatuses"]["alice"]["s"]
    assert (entry["replicas"], entry["availableReplicas"], entry["unavailableReplicas"]) == (2, 1, 1)
    slow.clear()
    slow.add("")
    await until_serving(plane, "Available")


@pytest.mark.parametrize("restart", [False, True], ids=["", "with another leader"])
async def test_deleting_leaves_nothing(plane: JobWorld, restart: bool) -> None:
    await plane.client.create(KD, a_serving("alice", a_party("bob", "guest", template={"replicas": 2})))
    await until_serving(plane, "Available")
    if restart:
        await plane.stop()
    await plane.client.delete(KD, "s", CROSS_DOMAIN)
    if restart:
        await plane.start()

    async def gone() -> bool:
        return not await left_of(plane)

    await plane.until(gone)


async def test_another_leader_keeps_numbers_and_pods(plane: JobWorld) -> None:
    await plane.client.create(KD, a_serving(a_party("alice", template={"replicas": 2})))
    await until_serving(plane, "Available")
    before = {pod["metadata"]["uid"]: numbers(pod) for pod in await pods_of(plane, "alice")}
    await plane.stop()
    await plane.start()
    await change_party(plane, template={"replicas": 3})
    await plane.settle(5)
    after = {pod["metadata"]["uid"]: numbers(pod) for pod in await pods_of(plane, "alice")}
    assert before.items() <= after.items() and len(after) == 3
    every = [number for pod in after.values() for number in pod.values()]
    assert len(set(every)) == len(every)


async def test_a_party_with_affinity_of_its_own(plane: JobWorld) -> None:
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"x": "y"}}}
    rules = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    body = a_serving(a_party("alice", template={"spec": {"affinity": rules}}), "bob")
    body["metadata"]["annotations"] = {labels.KUSCIA_AFFINITY_MODE: "none"}
    await plane.client.create(KD, body)
    await until_serving(plane, "Available")
    found = (await plane.get(DEPLOYMENT, "s", "alice"))["spec"]["template"]["spec"]["affinity"]
    assert found["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] == [
        {"topologyKey": "zone", "labelSelector": {"matchLabels": {labels.KUSCIA_DEPLOYMENT_NAME: "s"}}}
    ]
    assert "affinity" not in (await plane.get(DEPLOYMENT, "s", "bob"))["spec"]["template"]["spec"]


async def test_a_network_policy_opens_ports_to_roles(plane: JobWorld) -> None:
    image = an_image(
        "closed", networkPolicy={"ingresses": [{"from": {"roles": ["guest"]}, "ports": [{"port": "talk"}]}]}
    )
    await plane.client.create(IMAGE, image)
    await plane.client.create(KD, a_serving(a_party("alice", "host", "closed"), a_party("bob", "guest", "closed")))
    await until_serving(plane, "Available")
    access = [
        (await plane.get(SERVICE, name, domain))["metadata"]["annotations"][labels.KUSCIA_ACCESS_DOMAIN]
        for name, domain in (("s-host-talk", "alice"), ("s-guest-talk", "bob"))
    ]
    assert access == ["alice,bob", "bob"]


async def test_a_lasting_trouble_is_tried_fifteen_times_and_told(plane: JobWorld, monkeypatch: Any) -> None:
    asked = 0
    create = type(plane.client).create

    async def refuse(self: Any, kind: Any, obj: Any, *more: Any, **named: Any) -> Any:
        nonlocal asked
        if kind.resource.kind == "Deployment":
            asked += 1
            raise InternalError("the disk is full")
        return await create(self, kind, obj, *more, **named)

    monkeypatch.setattr(type(plane.client), "create", refuse)
    await plane.client.create(KD, a_serving("alice"))

    async def failed() -> bool:
        return (await serving_status(plane)).get("reason") == "RetryProcessingFailed"

    for _ in range(40):
        if await failed():
            break
        await plane.settle(60, step=20)
    status = await serving_status(plane)
    assert status["reason"] == "RetryProcessingFailed" and "the disk is full" in status["message"]
    tried = asked
    assert 16 <= tried <= 18, "fifteen times after the first, and once for each piece of news"
    await plane.settle(600, step=60)
    assert asked <= tried + 3, "from then on seldom"


@pytest.mark.parametrize("seed", range(4))
async def test_lost_requests_and_answers_change_nothing_in_the_end(plane: JobWorld, seed: int) -> None:
    plane.faults._random.seed(seed)
    plane.faults.share = 0.25
    await plane.client.create(KD, a_serving("alice", a_party("bob", template={"replicas": 2})))
    await until_serving(plane, "Available", seconds=600)
    await change_party(plane, 1, template={"replicas": 3})
    await plane.client.patch(KD, "s", CROSS_DOMAIN, {"spec": {"inputConfig": "other"}})

    async def renewed() -> bool:
        pods = [*await pods_of(plane, "alice"), *await pods_of(plane, "bob")]
        right = [variables(pod)["INPUT_CONFIG"] for pod in pods] == ["other"] * 4
        return right and (await serving_status(plane))["availableParties"] == 2

    await plane.until(renewed, 600)
    every = [(pod["metadata"]["namespace"], number) for domain in ("alice", "bob") for pod in await pods_of(plane, domain) for number in numbers(pod).values()]  # fmt: skip
    assert len(set(every)) == len(every) == 12
    await plane.client.delete(KD, "s", CROSS_DOMAIN)

    async def gone() -> bool:
        return not await left_of(plane)

    await plane.until(gone, 600)


@pytest.mark.parametrize(("method", "part"), [("PATCH", "/kusciadeployments/s"), ("POST", "/bob/services")])
async def test_a_lasting_refusal_is_told_at_once(plane: JobWorld, method: str, part: str) -> None:
    refusal = errors.Forbidden("no such luck")
    plane.faults.refuse = lambda call: refusal if call.method == method and call.path.endswith(part) else None
    await plane.client.create(KD, a_serving("alice", "bob"))

    async def failed() -> bool:
        status = (await serving(plane)).get("status") or {}
        return status.get("phase") == "Failed" and "no such luck" in status.get("message", "")

    await plane.until(failed, 5)
