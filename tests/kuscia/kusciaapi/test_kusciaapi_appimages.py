"""AppImageService: every code, each mode; containers in full, there and back."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from kusciaapi_kit import World, domain_caller, here

from coterie.kuscia.api.appimages import replicas_of
from coterie.kuscia.api.types.job import APP_IMAGES
from coterie.kuscia.kusciaapi import messages
from coterie.kuscia.kusciaapi.appimages import OPERATIONS
from coterie.kuscia.kusciaapi.operations import Mode

IMAGE = {"name": "registry/engine", "tag": "1.0"}
PROBE = {
    "http_get": {
        "path": "/health", "port": "8080", "host": "h", "scheme": "HTTPS",
        "http_headers": [{"name": "x", "value": "y"}],
    },
    "initial_delay_seconds": 1, "timeout_seconds": 2, "period_seconds": 3, "success_threshold": 1,
    "failure_threshold": 5, "termination_grace_period_seconds": 60,
}  # fmt: skip
CONTAINER = {
    "name": "engine",
    "command": ["sh"],
    "args": ["-c", "run"],
    "working_dir": "/work",
    "config_volume_mounts": [{"mount_path": "/work/task.conf", "sub_path": "task.conf"}],
    "ports": [{"name": "spu", "protocol": "GRPC", "scope": "Cluster"}, {"name": "web"}],
    "env_from": [{"prefix": "P_", "config_map_ref": {"name": "m"}}, {"secret_ref": {"name": "s"}}],
    "env": [{"name": "A", "value": "1"}, {"name": "B"}],
    "resources": {"limits": {"cpu": "2", "memory": "4Gi"}, "requests": {"cpu": "500m"}},
    "liveness_probe": PROBE,
    "readiness_probe": {"tcp_socket": {"port": "web"}},
    "startup_probe": {"grpc": {"port": 9000, "service": "s"}},
    "image_pull_policy": "IfNotPresent",
}
TEMPLATE = {
    "name": "main",
    "role": "client,server",
    "replicas": 2,
    "restart_policy": "Never",
    "containers": [CONTAINER],
}
WHOLE = {
    "name": "engine",
    "image": {**IMAGE, "id": "sha256:1", "sign": "s"},
    "config_templates": {"task.conf": "{{.TASK_INPUT_CONFIG}}"},
    "deploy_templates": [TEMPLATE],
}
SMALL = {"image": IMAGE, "deploy_templates": [{"name": "t", "containers": [{"name": "c"}]}]}


@pytest.fixture
async def alice(tmp_path: Path) -> AsyncIterator[World]:
    async with here(tmp_path) as world:
        yield world


async def call(world: World, method: str, **request: Any) -> Any:
    return await world.call(OPERATIONS, method, **request)


async def made(world: World, name: str, **request: Any) -> None:
    answer = await call(world, "CreateAppImage", **{**SMALL, "name": name, **request})
    assert answer.status.code == 0, answer.status.message


def plain(message: Any) -> dict[str, Any]:
    found: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return found


# Creating.


async def test_all_that_a_request_can_say_comes_back(alice: World) -> None:
    await made(alice, **WHOLE)  # type: ignore[arg-type]
    told = plain((await call(alice, "QueryAppImage", name="engine")).data)
    wanted: dict[str, Any] = copy.deepcopy(WHOLE)
    container = wanted["deploy_templates"][0]["containers"][0]
    container["ports"][1] |= {"protocol": "HTTP", "scope": "Local"}  # what the API fills in
    container["liveness_probe"]["termination_grace_period_seconds"] = "60"  # 64 bits in JSON
    told["deploy_templates"][0]["containers"][0]["env"][1].pop("value", None)
    assert told == wanted


async def test_what_is_kept_is_an_app_image_as_manifests_have_it(alice: World) -> None:
    await made(alice, **WHOLE)  # type: ignore[arg-type]
    spec = (await alice.client.get(APP_IMAGES.as_dynamic, "engine"))["spec"]
    [template] = spec["deployTemplates"]
    [container] = template["spec"]["containers"]
    assert spec["configTemplates"] == {"task.conf": "{{.TASK_INPUT_CONFIG}}"}
    assert (template["name"], template["role"], template["replicas"]) == ("main", "client,server", 2)
    assert template["spec"]["restartPolicy"] == "Never"
    assert container["workingDir"] == "/work"
    assert container["configVolumeMounts"] == [{"mountPath": "/work/task.conf", "subPath": "task.conf"}]
    assert container["livenessProbe"]["httpGet"]["port"] == 8080
    assert container["livenessProbe"]["terminationGracePeriodSeconds"] == 60
    assert container["readinessProbe"]["tcpSocket"]["port"] == "web"
    assert container["startupProbe"]["grpc"] == {"port": 9000, "service": "s"}
    assert container["envFrom"] == [{"prefix": "P_", "configMapRef": {"name": "m"}}, {"secretRef": {"name": "s"}}]


async def test_no_replicas_are_one_pod_not_none(alice: World) -> None:
    await made(alice, "engine")
    [template] = (await alice.client.get(APP_IMAGES, "engine")).spec.deploy_templates
    assert (template.replicas, replicas_of(template)) == (None, 1)
    told = (await call(alice, "QueryAppImage", name="engine")).data
    assert told.deploy_templates[0].replicas == 1


async def test_a_name_that_is_taken(alice: World) -> None:
    await made(alice, "engine")
    answer = await call(alice, "CreateAppImage", **{**SMALL, "name": "engine", "image": {"name": "x", "tag": "y"}})
    assert answer.status.code == 13106
    assert (await alice.client.get(APP_IMAGES, "engine")).spec.image.name == "registry/engine"


def container(**change: Any) -> dict[str, Any]:
    return {"deploy_templates": [{"name": "t", "containers": [{"name": "c", **change}]}]}


FIRST = "deploy_templates[0].containers[0]"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        pytest.param({"name": ""}, "name", id="no name"),
        pytest.param({"name": "A_b"}, "name", id="a bad name"),
        pytest.param({"image": None}, "image.name", id="no image"),
        pytest.param({"image": {"name": "x"}}, "image.tag", id="no tag"),
        pytest.param({"config_templates": {"../x": ""}}, "config_templates", id="a path as file name"),
        pytest.param({"deploy_templates": []}, "deploy_templates", id="no template"),
        pytest.param({"deploy_templates": [{"name": "t"}]}, "deploy_templates[0].containers", id="no container"),
        pytest.param({"deploy_templates": [{**TEMPLATE, "name": ""}]}, "deploy_templates[0].name", id="a nameless template"),
        pytest.param({"deploy_templates": [TEMPLATE, TEMPLATE]}, "deploy_templates", id="templates alike"),
        pytest.param({"deploy_templates": [{**TEMPLATE, "replicas": -1}]}, "deploy_templates[0].replicas", id="replicas"),
        pytest.param(
            {"deploy_templates": [{**TEMPLATE, "restart_policy": "Maybe"}]},
            "deploy_templates[0].restart_policy", id="restart policy",
        ),
        pytest.param(
            {"deploy_templates": [{**TEMPLATE, "containers": [CONTAINER, CONTAINER]}]},
            "deploy_templates[0].containers", id="containers alike",
        ),
        pytest.param(container(name=""), f"{FIRST}.name", id="a nameless container"),
        pytest.param(container(name="A"), f"{FIRST}.name", id="a badly named container"),
        pytest.param(container(image_pull_policy="Never!"), f"{FIRST}.image_pull_policy", id="pull policy"),
        pytest.param(container(config_volume_mounts=[{"mount_path": "/x"}]), f"{FIRST}.config_volume_mounts[0].sub_path", id="mount"),
        pytest.param(container(ports=[{"name": ""}]), f"{FIRST}.ports[0].name", id="a nameless port"),
        pytest.param(container(ports=[{"name": "a"}, {"name": "a"}]), f"{FIRST}.ports", id="ports alike"),
        pytest.param(container(ports=[{"name": "a", "protocol": "UDP"}]), f"{FIRST}.ports[0].protocol", id="protocol"),
        pytest.param(container(ports=[{"name": "a", "scope": "World"}]), f"{FIRST}.ports[0].scope", id="scope"),
        pytest.param(container(env=[{"value": "x"}]), f"{FIRST}.env[0].name", id="a nameless variable"),
        pytest.param(container(env=[{"name": "a=b"}]), f"{FIRST}.env[0].name", id="a bad variable"),
        pytest.param(container(env_from=[{"prefix": "x"}]), f"{FIRST}.env_from[0]", id="from nothing"),
        pytest.param(container(env_from=[{"secret_ref": {}}]), f"{FIRST}.env_from[0]", id="from no name"),
        pytest.param(
            container(resources={"limits": {"cpu": "many"}}), f"{FIRST}.resources.limits.cpu", id="no amount"
        ),
        pytest.param(
            container(resources={"requests": {"memory": "-1Gi"}}), f"{FIRST}.resources.requests.memory", id="below zero"
        ),
        pytest.param(container(liveness_probe={"period_seconds": 1}), f"{FIRST}.liveness_probe", id="a probe of nothing"),
        pytest.param(
            container(startup_probe={"grpc": {"port": 1}, "exec": {"command": ["x"]}}), f"{FIRST}.startup_probe",
            id="a probe of two things",
        ),
        pytest.param(container(readiness_probe={"exec": {}}), f"{FIRST}.readiness_probe.exec.command", id="no command"),
        pytest.param(container(readiness_probe={"grpc": {}}), f"{FIRST}.readiness_probe.grpc.port", id="no port"),
        pytest.param(
            container(readiness_probe={"http_get": {"port": "70000"}}), f"{FIRST}.readiness_probe.http_get.port",
            id="port out of range",
        ),
        pytest.param(
            container(readiness_probe={"tcp_socket": {"port": "a b"}}), f"{FIRST}.readiness_probe.tcp_socket.port",
            id="bad name of a port",
        ),
        pytest.param(
            container(readiness_probe={"http_get": {"port": "1", "scheme": "ftp"}}),
            f"{FIRST}.readiness_probe.http_get.scheme", id="scheme",
        ),
        pytest.param(
            container(readiness_probe={"grpc": {"port": 1}, "period_seconds": -1}),
            f"{FIRST}.readiness_probe.period_seconds", id="negative period",
        ),
    ],
)  # fmt: skip
async def test_refused(alice: World, change: dict[str, Any], field: str) -> None:
    answer = await call(alice, "CreateAppImage", **{**SMALL, "name": "engine", **change})
    assert answer.status.code == 11100, answer.status.message
    assert answer.status.message.startswith(f"{field}: ")
    assert (await alice.client.list(APP_IMAGES)).items == []


# Changing.


async def test_an_update_replaces_the_image_and_templates_only_if_given(alice: World) -> None:
    await made(alice, **WHOLE)  # type: ignore[arg-type]
    before = plain((await call(alice, "QueryAppImage", name="engine")).data)
    answer = await call(alice, "UpdateAppImage", name="engine", image={"name": "n", "tag": "2"})
    assert answer.status.code == 0
    after = plain((await call(alice, "QueryAppImage", name="engine")).data)
    assert after == {**before, "image": {"name": "n", "tag": "2"}}
    answer = await call(alice, "UpdateAppImage", name="engine", image=IMAGE, config_templates={"other.conf": "x"})
    assert answer.status.code == 0
    after = (await call(alice, "QueryAppImage", name="engine")).data
    assert (dict(after.config_templates), len(after.deploy_templates)) == ({"other.conf": "x"}, 1)


async def test_what_requests_cannot_say_is_kept(alice: World) -> None:
    """Else a network policy would be gone after a change of something else."""
    policy = {"ingresses": [{"from": {"roles": ["client"]}, "ports": [{"port": "spu"}]}]}
    locked = {"name": "c", "workingDir": "/", "securityContext": {"privileged": False}, "metricProbe": {"path": "/m"}}
    template = {"name": "t", "networkPolicy": policy, "spec": {"containers": [locked]}}
    obj = {"metadata": {"name": "engine"}, "spec": {"image": IMAGE, "deployTemplates": [template]}}
    await alice.client.create(APP_IMAGES.as_dynamic, obj)
    told = (await call(alice, "QueryAppImage", name="engine")).data
    told.deploy_templates[0].containers[0].args.append("more")
    answer = await call(alice, "UpdateAppImage", name="engine", image=IMAGE, deploy_templates=told.deploy_templates)
    assert answer.status.code == 0, answer.status.message
    [kept] = (await alice.client.get(APP_IMAGES.as_dynamic, "engine"))["spec"]["deployTemplates"]
    [inside] = kept["spec"]["containers"]
    assert (kept["networkPolicy"], inside["args"]) == (policy, ["more"])
    assert (inside["securityContext"], inside["metricProbe"]) == (locked["securityContext"], locked["metricProbe"])


async def test_what_is_not_there(alice: World) -> None:
    assert (await call(alice, "UpdateAppImage", name="none", image=IMAGE)).status.code == 13105
    assert (await call(alice, "QueryAppImage", name="none")).status.code == 13105
    assert (await call(alice, "DeleteAppImage", name="none")).status.code == 13105


async def test_a_bad_update_changes_nothing(alice: World) -> None:
    await made(alice, "engine")
    answer = await call(alice, "UpdateAppImage", name="engine", deploy_templates=[TEMPLATE])
    assert (answer.status.code, answer.status.message) == (11100, "image.name: must be given")
    assert (await alice.client.get(APP_IMAGES, "engine")).spec.deploy_templates[0].name == "t"


async def test_deleted_is_gone(alice: World) -> None:
    await made(alice, "engine")
    assert (await call(alice, "DeleteAppImage", name="engine")).status.code == 0
    assert (await alice.client.list(APP_IMAGES)).items == []


# Several.


async def test_a_batch_is_whole_or_fails(alice: World) -> None:
    for name in ("a", "b"):
        await made(alice, name)
    answer = await call(alice, "BatchQueryAppImage", names=["b", "a"])
    assert (answer.status.code, [each.name for each in answer.data]) == (0, ["b", "a"])
    part = await call(alice, "BatchQueryAppImage", names=["a", "none"])
    assert (part.status.code, list(part.data)) == (13105, [])
    assert (await call(alice, "BatchQueryAppImage")).status.code == 11100
    bad = await call(alice, "BatchQueryAppImage", names=["a", ""])
    assert (bad.status.code, bad.status.message) == (11100, "names[1]: must be given")


async def test_pages_are_of_one_moment_and_of_ten_if_nothing_is_said(alice: World) -> None:
    names = [f"engine-{index:02}" for index in range(12)]
    for name in names:
        await made(alice, name)
    first = (await call(alice, "ListAppImage")).data
    assert [each.name for each in first.appimage_list] == names[:10]
    await made(alice, "engine-00a")
    await call(alice, "DeleteAppImage", name="engine-11")
    rest = (await call(alice, "ListAppImage", page_token=first.next_page_token)).data
    assert ([each.name for each in rest.appimage_list], rest.next_page_token) == (names[10:], "")
    some = (await call(alice, "ListAppImage", page_size=3)).data
    assert [each.name for each in some.appimage_list] == ["engine-00", "engine-00a", "engine-01"]
    for request, field in (({"page_size": -1}, "page_size"), ({"page_token": "x"}, "page_token")):
        bad = await call(alice, "ListAppImage", **request)
        assert (bad.status.code, bad.status.message.startswith(f"{field}: ")) == (11100, True)


async def test_app_images_of_manifests_are_told_as_far_as_answers_can(alice: World) -> None:
    odd = {
        "name": "c", "workingDir": "/", "resources": {"limits": {"cpu": 1, "nvidia.com/gpu": "1"}},
        "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "envFrom": [{"configMapRef": {"name": "m", "optional": True}}],
        "ports": [{"name": "a", "port": 80}],
        "livenessProbe": {"httpGet": {"port": 80}},
    }  # fmt: skip
    template = {"name": "t", "replicas": 0, "spec": {"containers": [odd], "affinity": {"nodeAffinity": {}}}}
    obj = {"metadata": {"name": "engine"}, "spec": {"image": IMAGE, "deployTemplates": [template]}}
    await alice.client.create(APP_IMAGES.as_dynamic, obj)
    answer = await call(alice, "QueryAppImage", name="engine")
    assert answer.status.code == 0
    [told] = answer.data.deploy_templates
    [inside] = told.containers
    assert (told.replicas, inside.resources.limits.cpu, inside.liveness_probe.http_get.port) == (0, "1", "80")
    assert (inside.env[0].name, inside.env_from[0].config_map_ref.name) == ("A", "m")


# Where, and who.


@pytest.mark.parametrize("method", [each.method for each in OPERATIONS])
async def test_a_lite_has_none_and_domains_may_not(alice: World, tmp_path: Path, method: str) -> None:
    async with here(tmp_path / "lite", mode=Mode.LITE, client=alice.client) as lite:
        assert (await call(lite, method)).status.code == 11104
    assert (await call(alice, method, caller=domain_caller("alice"))).status.code == 11102


async def test_a_master_has_them(tmp_path: Path) -> None:
    async with here(tmp_path, mode=Mode.MASTER, domain="master") as master:
        await made(master, "engine")
        assert (await call(master, "QueryAppImage", name="engine")).data.image.tag == "1.0"


def test_every_field_of_a_container_has_its_number() -> None:
    """From the specification: the stubs of the package do not have this service."""
    fields = {
        "Container": "name command args working_dir config_volume_mounts ports env_from env resources liveness_probe "
        "readiness_probe startup_probe image_pull_policy",
        "Probe": "exec http_get tcp_socket grpc initial_delay_seconds timeout_seconds period_seconds success_threshold "
        "failure_threshold termination_grace_period_seconds",
        "HTTPGetAction": "path port host scheme http_headers",
        "DeployTemplate": "name role replicas restart_policy containers",
        "AppImageInfo": "name tag id sign",
        "CreateAppImageRequest": "header name image config_templates deploy_templates",
        "ListAppImageRequest": "header page_size page_token",
        "ListAppImageResponseData": "appimage_list next_page_token",
    }
    for name, words in fields.items():
        found = {field.number: field.name for field in messages.message(name).DESCRIPTOR.fields}
        assert found == dict(enumerate(words.split(), 1)), name
