"""Pods whose copies run in a backing cluster, on two real API servers."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from agent_kit import CONFIG_MAPS, NODES, PODS, SECRETS, container, is_ready, phase, pod, status_named
from runk_kit import BACKING, POLICIES, MirrorWorld, mirror_world, owned, reader

from coterie.kube.agent.runk.settings import OWNER_LABEL
from coterie.kube.api.errors import NotFound
from coterie.kube.api.meta import Object


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[MirrorWorld]:
    async with mirror_world(tmp_path) as made:
        await made.start_agent()
        yield made


async def test_a_pod_runs_there_and_is_told_here(both: MirrorWorld) -> None:
    await both.here.create(pod("web"))
    found = await both.pod_until("web", is_ready)
    copy = await both.copy("web")
    assert copy is not None and copy["metadata"]["uid"] != found["metadata"]["uid"]
    assert copy["metadata"]["labels"]["coterie.io/mirrored-uid"] == found["metadata"]["uid"]
    assert both.there.machine.started == [("web", "main", 0)] and not both.here.machine.started
    status = found["status"]
    assert (status["phase"], status["podIP"]) == ("Running", copy["status"]["podIP"])
    assert status_named(found)["containerID"] == status_named(copy)["containerID"]
    scheduled = [each for each in status["conditions"] if each["type"] == "PodScheduled"]
    assert len(scheduled) <= 1 and all(each["status"] == "True" for each in scheduled)
    node = await both.here.user.get(NODES, "node-1")
    assert node["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("runk")


@pytest.mark.parametrize(
    ("script", "wanted", "code"),
    [pytest.param("exit 0", "Succeeded", 0, id="ok"), pytest.param("exit 3", "Failed", 3, id="bad")],
)
async def test_a_task_ends_as_its_copy_does(both: MirrorWorld, script: str, wanted: str, code: int) -> None:
    await both.here.create(pod("task", container(script), policy="Never"))
    found = await both.pod_until("task", phase(wanted))
    assert status_named(found)["state"]["terminated"]["exitCode"] == code
    assert await both.copy("task") is not None, "its log can still be read"


async def test_a_copy_gets_no_token_no_root_and_limits(both: MirrorWorld) -> None:
    own = {"privileged": True, "capabilities": {"add": ["SYS_ADMIN"]}, "readOnlyRootFilesystem": True}
    await both.here.create(
        pod("bounded", container(securityContext=own, ports=[{"containerPort": 80, "hostPort": 80}]))
    )
    spec = (await both.copy_until("bounded", bool))["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] == 10001
    inside = spec["containers"][0]
    assert inside["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert "hostPort" not in inside["ports"][0]
    assert set(inside["resources"]["limits"]) == {"cpu", "memory", "ephemeral-storage"}
    assert inside["resources"]["requests"] == {"cpu": "0", "memory": "0", "ephemeral-storage": "0"}


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        pytest.param({"hostNetwork": True}, "hostNetwork", id="host-network"),
        pytest.param({"volumes": [{"name": "x", "hostPath": {"path": "/etc"}}]}, "hostPath", id="host-path"),
        pytest.param({"securityContext": {"runAsUser": 0}}, "root", id="root"),
    ],
)
async def test_what_cannot_be_had_there_is_refused_with_the_reason(both: MirrorWorld, spec: Object, word: str) -> None:
    await both.here.create(pod("refused", policy="Never", **spec))
    found = await both.pod_until("refused", phase("Failed"))
    assert found["status"]["reason"] == "NotAdmitted" and word in found["status"]["message"]
    assert status_named(found)["state"]["terminated"]["exitCode"] == 125
    assert await both.copy("refused") is None


async def test_configuration_travels_with_the_copy_and_goes_with_it(both: MirrorWorld) -> None:
    await both.here.user.create(
        CONFIG_MAPS, {"metadata": {"name": "settings", "namespace": "alice"}, "data": {"k": "v1"}}
    )
    encoded = base64.b64encode(b"s3cret").decode()
    secret = {"metadata": {"name": "key", "namespace": "alice"}, "data": {"password": encoded}}
    await both.here.user.create(SECRETS, secret)
    env = [
        {"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        {"name": "UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "key", "key": "password"}}},
    ]
    mount = [{"name": "conf", "mountPath": "/conf"}, {"name": "about", "mountPath": "/about"}]
    about = {"items": [{"path": "uid", "fieldRef": {"fieldPath": "metadata.uid"}}]}
    volumes = [{"name": "conf", "configMap": {"name": "settings"}}, {"name": "about", "downwardAPI": about}]
    made = await both.here.create(pod("app", container(env=env, volumeMounts=mount), volumes=volumes))
    await both.pod_until("app", is_ready)
    copy = await both.copy("app")
    assert copy is not None
    uid = made["metadata"]["uid"]
    variables = {each["name"]: each for each in copy["spec"]["containers"][0]["env"]}
    assert (variables["NAMESPACE"]["value"], variables["UID"]["value"]) == ("alice", uid)
    assert variables["IP"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    assert variables["PASSWORD"]["valueFrom"]["secretKeyRef"]["name"] == "app-key", "its value stands in no pod"
    there = both.there.user
    copied = await there.get(CONFIG_MAPS, "app-settings", BACKING)
    assert copied["data"] == {"k": "v1"} and (await there.get(SECRETS, "app-key", BACKING))["data"] == {
        "password": encoded
    }
    assert copied["metadata"]["ownerReferences"][0]["uid"] == copy["metadata"]["uid"]
    files = await there.get(SECRETS, "app-coterie-files", BACKING)
    assert base64.b64decode(next(iter(files["data"].values()))).decode() == uid

    await both.here.user.patch(CONFIG_MAPS, "settings", "alice", {"data": {"k": "v2"}})
    for _ in range(200):
        if (await there.get(CONFIG_MAPS, "app-settings", BACKING))["data"] == {"k": "v2"}:
            break
        await both.here.clock.advance(0.1)
    assert (await there.get(CONFIG_MAPS, "app-settings", BACKING))["data"] == {"k": "v2"}


async def test_what_is_missing_is_told_and_waited_for(both: MirrorWorld) -> None:
    await both.here.create(pod("waits", container(envFrom=[{"configMapRef": {"name": "later"}}])))
    found = await both.pod_until("waits", lambda p: bool(p["status"].get("reason")))
    assert found["status"]["reason"] == "CreateContainerConfigError" and "later" in found["status"]["message"]
    assert await both.copy("waits") is None
    await both.here.user.create(CONFIG_MAPS, {"metadata": {"name": "later", "namespace": "alice"}, "data": {"A": "b"}})
    found = await both.pod_until("waits", is_ready)
    assert "reason" not in found["status"]


async def test_labels_and_images_of_the_original_reach_the_copy(both: MirrorWorld) -> None:
    await both.here.create(pod("web"))
    await both.pod_until("web", is_ready)
    await both.here.user.patch(PODS, "web", "alice", {"metadata": {"labels": {"version": "2"}}})
    await both.copy_until("web", lambda copy: bool(copy) and copy["metadata"]["labels"].get("version") == "2")


async def test_deleting_a_pod_ends_its_copy_first(both: MirrorWorld) -> None:
    await both.here.create(pod("web"))
    await both.pod_until("web", is_ready)
    await both.here.user.delete(PODS, "web", "alice", grace=1)
    await both.here.gone("web")
    assert await both.copy("web") is None


async def test_a_copy_that_is_deleted_there_fails_its_pod(both: MirrorWorld) -> None:
    await both.here.create(pod("web"))
    await both.pod_until("web", is_ready)
    await both.there.user.delete(PODS, "web", BACKING, grace=0)
    found = await both.pod_until("web", phase("Failed"))
    assert found["status"]["reason"] == "BackingPodLost"


async def test_a_pod_of_another_with_this_name_is_left_alone(both: MirrorWorld) -> None:
    await both.there.create(pod("web", labels=None) | {"metadata": {"name": "web", "namespace": BACKING}})
    await both.here.create(pod("web"))
    found = await both.pod_until("web", lambda p: bool(p["status"].get("reason")))
    assert "another pod of this name" in found["status"]["message"]
    await both.here.user.delete(PODS, "web", "alice", grace=0)
    await both.here.gone("web")
    copy = await both.copy("web")
    assert copy is not None and not owned(copy) and "deletionTimestamp" not in copy["metadata"]


async def test_an_agent_that_starts_again_finds_its_copies_and_removes_orphans(both: MirrorWorld) -> None:
    for name in ("stays", "goes"):
        await both.here.create(pod(name))
        await both.pod_until(name, is_ready)
    before = await both.copy("stays")
    await both.stop_agent()
    await both.here.user.delete(PODS, "goes", "alice", grace=0)
    await both.start_agent()
    await both.copy_until("goes", lambda copy: copy is None)
    after = await both.copy("stays")
    assert before is not None and after is not None and before["metadata"]["uid"] == after["metadata"]["uid"]
    assert both.there.machine.started.count(("stays", "main", 0)) == 1


async def test_a_copy_that_was_half_made_is_finished_by_the_next_agent(both: MirrorWorld) -> None:
    await both.here.user.create(
        CONFIG_MAPS, {"metadata": {"name": "settings", "namespace": "alice"}, "data": {"k": "v"}}
    )
    await both.here.create(pod("app", container(envFrom=[{"configMapRef": {"name": "settings"}}])))
    copy = await both.pod_until("app", is_ready) and await both.copy("app")
    assert copy is not None
    await both.stop_agent()
    spec = {key: value for key, value in copy["spec"].items() if key != "nodeName"}
    meta = {key: copy["metadata"][key] for key in ("name", "namespace", "labels")}
    await both.there.user.delete(PODS, "app", BACKING, grace=0)
    await both.copy_until("app", lambda found: found is None)
    await both.there.user.create(
        PODS, {"metadata": meta, "spec": {**spec, "schedulingGates": [{"name": "coterie.io/objects"}]}}, BACKING
    )
    await both.start_agent()
    made = await both.copy_until("app", lambda found: bool(found) and not found["spec"].get("schedulingGates"))
    owner = (await both.there.user.get(CONFIG_MAPS, "app-settings", BACKING))["metadata"]["ownerReferences"][0]
    assert owner["uid"] == made["metadata"]["uid"]


async def test_an_image_that_cannot_be_had_fails_a_task(both: MirrorWorld) -> None:
    await both.here.create(pod("task", container(image="nowhere:1"), policy="Never"))
    found = await both.pod_until("task", phase("Failed"), seconds=200)
    assert found["status"]["message"]


async def test_rights_that_are_missing_are_listed_and_the_node_is_not_ready(tmp_path: Path) -> None:
    async with mirror_world(tmp_path) as made:
        made.user = reader()
        await made.start_agent()
        assert made.agent is not None
        agent = made.agent
        await made.here.until(lambda: "pods" in agent.pods.problem)
        assert "create" in agent.pods.problem and "networkpolicies" in agent.pods.problem
        await made.here.settle(2)
        node = await made.here.user.get(NODES, "node-1")
        ready = next(each for each in node["status"]["conditions"] if each["type"] == "Ready")
        assert ready["status"] == "False" and "rights are missing" in ready["message"]


async def test_engines_get_a_network_policy_their_dns_and_their_certificates(tmp_path: Path) -> None:
    async with mirror_world(tmp_path) as made:
        made.settings = replace(made.settings, dns_servers=("10.0.0.2",), dns_search=("alice.svc",))
        await made.start_agent()
        labels = {"kuscia.secretflow/communication-role-client": "true"}
        marks = {"kuscia.secretflow/task-id": "task-1", "kuscia.secretflow/initiator": "alice"}
        engine = pod("engine")
        engine["metadata"] |= {"labels": labels, "annotations": marks}
        await made.here.create(engine)
        copy = await made.copy_until("engine", lambda found: bool(found) and not found["spec"].get("schedulingGates"))
        assert copy["spec"]["dnsPolicy"] == "None" and copy["spec"]["dnsConfig"]["nameservers"] == ["10.0.0.2"]
        policy = await made.there.user.get(POLICIES, "engine", BACKING)
        assert policy["metadata"]["ownerReferences"][0]["uid"] == copy["metadata"]["uid"]
        selected = policy["spec"]["podSelector"]["matchLabels"]
        assert selected.items() <= copy["metadata"]["labels"].items()
        group = policy["spec"]["egress"][0]["to"][0]["podSelector"]["matchLabels"]
        assert group[OWNER_LABEL] == "test" and group.items() <= copy["metadata"]["labels"].items()
        with pytest.raises(NotFound):
            await made.there.user.get(POLICIES, "other", BACKING)
