"""What an engine finds in its container: rendered files, certificates, variables, data; and who does not get them."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from agent_kit import CONFIG_MAPS, NAMESPACES, World, container, phase, pod, status_named, world

from coterie.base import pki, trace
from coterie.base.clock import VirtualClock
from coterie.base.secret import SecretValue
from coterie.kube.agent.images.model import ANY_IMAGE, ImageError, RequiredImage, StoredImage
from coterie.kube.agent.images.node_images import NodeImages
from coterie.kube.agent.images.puller import PullOutcome
from coterie.kube.agent.images.sources import PullSettings
from coterie.kube.agent.images.store import HOST_IMAGE, ImageStore
from coterie.kube.agent.pods.downward import DownwardNodeInfo
from coterie.kube.agent.runtimes.protocol import ContainerSpec
from coterie.kube.api.meta import Object
from coterie.kuscia.api import labels
from coterie.kuscia.engine import peers
from coterie.kuscia.engine.engine_plugin import EngineSettings, limits
from coterie.kuscia.identity import domain_identity
from coterie.kuscia.identity.engine_certificates import EngineIdentity, engine_of, issue_client_pair, issue_server_pair

KEY = SecretValue(pki.key_pem(pki.new_key("rsa"), pkcs1=True))
TEMPLATE = '{"task_id": "{{.TASK_ID}}", "input": "{{.TASK_INPUT_CONFIG}}", "threads": "{{.THREADS}}"}'
ROLES = {labels.KUSCIA_COMMUNICATION_ROLE_SERVER: "true", labels.KUSCIA_COMMUNICATION_ROLE_CLIENT: "true"}


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path) as made:
        paths = made.settings.paths.prepare()
        own = domain_identity.ensure(paths, "alice", KEY, made.clock.now())
        domain_identity.ensure_api_token(paths, own)
        made.engines = EngineSettings("alice", paths.data, "MTLS", paths.api_token)
        await made.user.create(NAMESPACES, {"metadata": {"name": "elsewhere"}})
        yield made


async def prepared(scene: World, template: str = TEMPLATE, namespace: str = "alice") -> None:
    packed = base64.b64encode(zlib.compress(b'{"a": "b"}')).decode()
    await scene.user.create(
        CONFIG_MAPS, {"metadata": {"name": "t-configtemplate", "namespace": namespace}, "data": {"task.conf": template}}
    )
    await scene.user.create(
        CONFIG_MAPS,
        {
            "metadata": {
                "name": "t-0-kuscia-gen-conf",
                "namespace": namespace,
                "annotations": {labels.KUSCIA_CONFIG_VALUE_COMPRESS_FIELDS: "TASK_INPUT_CONFIG"},
            },
            "data": {"TASK_ID": "t"},
            "binaryData": {"TASK_INPUT_CONFIG": packed},
        },
    )


DATA = "/home/kuscia/var/storage/data"


def engine_pod(namespace: str = "alice", policy: str = "Never", **mount: Any) -> Object:
    mounts = [{"name": "config-template", "mountPath": "/work/kuscia/task.conf", "subPath": "task.conf", **mount}]
    made = pod(
        "t-0",
        container(workingDir="/work", env=[{"name": "Threads", "value": "4"}], volumeMounts=mounts),
        policy=policy,
        volumes=[{"name": "config-template", "configMap": {"name": "t-configtemplate"}}],
    )
    made["metadata"] |= {
        "namespace": namespace,
        "labels": {"app": "t-0", **ROLES},
        "annotations": {
            labels.KUSCIA_CONFIG_TEMPLATE_VOLUMES: "config-template",
            labels.KUSCIA_CONFIG_TEMPLATE_VALUE_CM: "t-0-kuscia-gen-conf",
            labels.KUSCIA_TASK_ID: "t",
            labels.KUSCIA_JOB_ID: "j",
        },
    }
    return made


async def in_time(scene: World, look: Callable[[], Awaitable[Any]], seconds: float = 30.0) -> Any:
    """Certificates are made in a thread, which the virtual clock knows nothing of: real time must pass too."""
    deadline = time.monotonic() + seconds
    while not (found := await look()):
        assert time.monotonic() < deadline, f"it never came to this: {[await scene.events('t-0')]}"
        await asyncio.sleep(0.01)
        await scene.clock.advance(0.02)
    return found


async def pod_in_time(scene: World, check: Callable[[Object], bool]) -> Object:
    async def look() -> Object | None:
        found = await scene.pod("t-0")
        return found if check(found) else None

    return dict(await in_time(scene, look))


async def started(scene: World, made: Object) -> ContainerSpec:
    uid = (await scene.create(made))["metadata"]["uid"]

    async def look() -> ContainerSpec | None:
        runs = scene.machine.pods[uid].runs if uid in scene.machine.pods else []
        return runs[-1].spec if runs else None

    found: ContainerSpec = await in_time(scene, look)
    return found


def mounted(spec: ContainerSpec, target: str) -> Path:
    return next(mount.source for mount in spec.mounts if mount.target == target)


async def test_a_container_gets_the_rendered_file(scene: World) -> None:
    await scene.start_agent()
    await prepared(scene)
    spec = await started(scene, engine_pod())
    found = json.loads(mounted(spec, "/work/kuscia/task.conf").read_text())
    assert found == {"task_id": "t", "input": '{"a": "b"}', "threads": "4"}


async def test_the_operators_token_is_for_own_tasks(scene: World) -> None:
    await scene.start_agent()
    await prepared(scene, "{{.KUSCIA_API_TOKEN}}")
    pod = engine_pod()
    pod["metadata"]["annotations"][labels.KUSCIA_INITIATOR] = "alice"
    spec = await started(scene, pod)
    assert mounted(spec, "/work/kuscia/task.conf").read_text() == scene.settings.paths.api_token.read_text()


@pytest.mark.parametrize("initiator", ["bob", ""])
async def test_the_operators_token_is_not_for_partners_tasks(scene: World, initiator: str) -> None:
    await scene.start_agent()
    await prepared(scene, "{{.KUSCIA_API_TOKEN}}")
    pod = engine_pod()
    pod["metadata"]["annotations"][labels.KUSCIA_INITIATOR] = initiator
    await scene.create(pod)
    found = await pod_in_time(scene, phase("Failed"))
    assert "asks for KUSCIA_API_TOKEN, which nothing that another domain began is given" in found["status"]["message"]


async def test_the_operators_token_is_not_on_nodes_that_joined(scene: World) -> None:
    scene.engines = EngineSettings("alice", joined=True)
    await scene.start_agent()
    await prepared(scene, "{{.KUSCIA_API_TOKEN}}")
    pod = engine_pod()
    pod["metadata"]["annotations"][labels.KUSCIA_INITIATOR] = "alice"
    await scene.create(pod)
    found = await pod_in_time(scene, phase("Failed"))
    assert "asks for KUSCIA_API_TOKEN, which the control plane's node has" in found["status"]["message"]


async def test_a_mount_without_sub_path_has_all_files(scene: World) -> None:
    await scene.start_agent()
    await prepared(scene, "{{.TASK_ID}}")
    spec = await started(scene, engine_pod(subPath="", mountPath="/conf"))
    assert (mounted(spec, "/conf") / "task.conf").read_text() == "t"


async def test_a_start_waits_for_the_values(scene: World) -> None:
    await scene.start_agent()
    await scene.create(engine_pod())
    await scene.settle(2)
    assert not scene.machine.started
    await prepared(scene)
    await pod_in_time(scene, phase("Running"))


async def test_a_template_that_cannot_be_rendered_fails_the_pod_at_once(scene: World) -> None:
    await scene.start_agent()
    await prepared(scene, "line\n{{if .X}}{{end}}")
    await scene.create(engine_pod())
    found = await pod_in_time(scene, phase("Failed"))
    told = 'config template task.conf: line 2: "if" is not supported in config templates; only {{.NAME}} is'
    assert found["status"]["reason"] == "CreateContainerConfigError"
    assert told in found["status"]["message"]
    assert "within 60 s" not in found["status"]["message"]

    async def look() -> bool:
        return any(told in message for _, message in await scene.events("t-0"))

    await in_time(scene, look)


async def test_a_pod_that_is_restarted_waits_for_a_better_template(scene: World) -> None:
    await scene.start_agent()
    await prepared(scene, "{{.KUSCIA_DOMAIN_KEY_DATA}}")
    await scene.create(engine_pod(policy="Always"))
    found = await pod_in_time(
        scene, lambda found: bool(status_named(found).get("state", {}).get("waiting", {}).get("message"))
    )
    waiting = status_named(found)["state"]["waiting"]
    assert waiting["reason"] == "CreateContainerConfigError"
    assert "private key is not given to engines" in waiting["message"]
    await scene.user.patch(CONFIG_MAPS, "t-configtemplate", "alice", {"data": {"task.conf": "fine"}})
    await pod_in_time(scene, phase("Running"))


async def test_a_template_that_is_not_there_is_told(scene: World) -> None:
    await scene.start_agent()
    await prepared(scene)
    await scene.create(engine_pod(subPath="other.conf"))
    found = await pod_in_time(scene, phase("Failed"))
    assert 'there is no config template "other.conf"' in found["status"]["message"]


@pytest.mark.parametrize("given", ["", "00-11111111111111111111111111111111-2222222222222222-00"])
async def test_an_engine_gets_the_span_of_its_pod_unless_its_author_set_another(scene: World, given: str) -> None:
    await scene.start_agent()
    await prepared(scene)
    made = engine_pod()
    made["metadata"]["labels"] |= {"kuscia.secretflow/controller": "kusciatask", "kuscia.secretflow/task-uid": "u-t"}
    made["metadata"]["annotations"][labels.KUSCIA_INITIATOR] = "bob"
    if given:
        made["spec"]["containers"][0]["env"].append({"name": "TRACEPARENT", "value": given})
    env = dict((await started(scene, made)).env)
    derived = trace.traceparent(trace.trace_id("bob", "j"), trace.span_id("pod", "u-t", "t-0"))
    assert env["TRACEPARENT"] == (given or derived)


class _OneFailure(NodeImages):
    """Images of a registry that fails the first time."""

    def __init__(self, store: ImageStore) -> None:
        super().__init__(store, PullSettings())
        self._found = store.find(HOST_IMAGE)
        self.pulls = 0

    def needed(self, image: str, policy: str, required: RequiredImage = ANY_IMAGE) -> bool:
        return self.pulls < 2

    async def pull(self, image: str, credentials: object) -> PullOutcome:
        self.pulls += 1
        if self.pulls == 1:
            raise ImageError("the registry is away")
        assert self._found is not None
        return PullOutcome(self._found, 0.1)

    async def verified(self, name: str, required: RequiredImage = ANY_IMAGE) -> StoredImage | None:
        return self._found


@pytest.mark.parametrize("on", [True, False])
async def test_pulls_of_an_engines_image_are_spans_below_its_pod(
    scene: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on: bool
) -> None:
    monkeypatch.setattr(trace.RING, "on", on)
    before = trace.RING.recorded
    scene.images = _OneFailure(ImageStore(tmp_path / "images"))
    await scene.start_agent()
    await prepared(scene)
    made = engine_pod(policy="Always")
    made["metadata"]["labels"] |= {"kuscia.secretflow/controller": "kusciatask", "kuscia.secretflow/task-uid": "u-t"}
    made["metadata"]["annotations"][labels.KUSCIA_INITIATOR] = "bob"
    await scene.create(made)
    await pod_in_time(scene, phase("Running"))
    found = trace.RING.after(before)[0]
    assert [(each.name, each.trace, each.parent) for each in found] == [
        ("image pull", trace.trace_id("bob", "j"), trace.span_id("pod", "u-t", "t-0"))
    ] * (2 if on else 0)
    assert [each.error for each in found] == (["the registry is away", ""] if on else [])


async def test_certificates_variables_and_data(scene: World) -> None:
    await scene.start_agent()
    await prepared(scene)
    spec = await started(scene, engine_pod())
    env = dict(spec.env)
    assert {name: env[name] for name in env if name.endswith("_FILE")} == {
        "SERVER_CERT_FILE": "kuscia/certs/server.crt",
        "SERVER_PRIVATE_KEY_FILE": "kuscia/certs/server.key",
        "CLIENT_CERT_FILE": "kuscia/certs/client.crt",
        "CLIENT_PRIVATE_KEY_FILE": "kuscia/certs/client.key",
        "TRUSTED_CA_FILE": "kuscia/certs/ca.crt",
    }
    assert float(env["CONTAINER_CPU_LIMIT"]) > 0
    assert env["CONTAINER_MEM_LIMIT"].endswith("Mi")
    place = mounted(spec, "kuscia/certs")
    authority, engines = (
        pki.load_certificate(path.read_bytes())
        for path in (scene.settings.paths.ca_certificate, scene.settings.paths.engine_ca_certificate)
    )
    assert (place / "ca.crt").read_bytes() == pki.certificate_pem(authority, engines), "of servers and of engines"
    for name in ("server", "client"):
        certificate = pki.load_certificate((place / f"{name}.crt").read_bytes())
        assert pki.signed_by(certificate, engines) and not pki.signed_by(certificate, authority)
        assert certificate.not_valid_after_utc - scene.clock.now() <= timedelta(days=30)
        found = engine_of(certificate)
        assert found is not None
        assert (found.domain, found.pod, found.task, found.job) == ("alice", "t-0", "t", "j")
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(place / f"{name}.crt", place / f"{name}.key")
    assert pki.names_of(pki.load_certificate((place / "server.crt").read_bytes())) == ("*.svc", "127.0.0.1")
    assert not [mount for mount in spec.mounts if mount.target == DATA], "nobody of ours began the task"


@pytest.mark.parametrize("initiator", ["alice", "bob"])
async def test_files_of_the_domain_are_for_its_own_tasks(scene: World, initiator: str) -> None:
    """A partner's task must not get past the grants that the data mesh looks for."""
    await scene.start_agent()
    await prepared(scene)
    pod = engine_pod()
    pod["metadata"]["annotations"][labels.KUSCIA_INITIATOR] = initiator
    spec = await started(scene, pod)
    data = scene.settings.paths.data
    found = [mount for mount in spec.mounts if mount.source == data]
    assert [(m.target, m.optional, m.read_only) for m in found] == (
        [(DATA, True, False), (str(data), True, False)] if initiator == "alice" else []
    )


async def test_certificates_stay_when_the_agent_comes_again(scene: World) -> None:
    await scene.start_agent()
    await prepared(scene)
    spec = await started(scene, engine_pod())
    before = (mounted(spec, "kuscia/certs") / "client.crt").read_bytes()
    await scene.stop_agent()
    await scene.start_agent()
    await scene.settle(2)
    assert (mounted(spec, "kuscia/certs") / "client.crt").read_bytes() == before


async def test_pods_of_other_namespaces_get_nothing_of_the_domain(scene: World) -> None:
    await scene.start_agent()
    await prepared(scene, "[{{.KUSCIA_API_TOKEN}}]", namespace="elsewhere")
    spec = await started(scene, engine_pod("elsewhere"))
    assert mounted(spec, "/work/kuscia/task.conf").read_text() == "[]"
    assert [mount.target for mount in spec.mounts] == ["/work/kuscia/task.conf", "/dev/termination-log"]
    assert not {"CLIENT_CERT_FILE", "CONTAINER_CPU_LIMIT"} & dict(spec.env).keys()


async def test_plain_pods_get_nothing_either(scene: World) -> None:
    await scene.start_agent()
    spec = await started(scene, pod("plain"))
    assert [mount.target for mount in spec.mounts] == ["/dev/termination-log"]


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({"cpu": "2", "memory": "1Gi"}, ("2", "1024Mi")),
        ({"cpu": "1500m", "memory": "1000"}, ("2", "0Mi")),
        ({}, ("3.20", "6553Mi")),
    ],
)
def test_limits(resources: dict[str, str], expected: tuple[str, str]) -> None:
    found = limits({"resources": {"limits": resources}}, DownwardNodeInfo("", "", {"cpu": "4", "memory": "8Gi"}))
    assert tuple(found.values()) == expected


# Certificates by themselves.


@pytest.mark.parametrize(
    "engine",
    [
        EngineIdentity("alice", "p", "u"),
        EngineIdentity("alice", "p" * 200, "u", "t" * 100, "a job/with é"),
    ],
    ids=["short", "long"],
)
def test_who_an_engine_is_stands_in_its_certificate(engine: EngineIdentity) -> None:
    now = VirtualClock().now()
    authority = pki.self_signed_ca("alice", pki.new_key(), now=now)
    for pair in (issue_client_pair(authority, engine, now), issue_server_pair(authority, engine, ["::1"], now)):
        assert engine_of(pki.load_certificate(pair.certificate)) == engine
        assert "PRIVATE" not in repr(pair)
    assert engine_of(authority.certificate) is None
    plain = pki.issue_client(authority, "somebody", pki.new_key().public_key(), now=now)
    assert engine_of(plain) is None


@pytest.mark.parametrize(
    ("hosts", "env", "needed"),
    [
        ({"a.alice.svc"}, (), False),
        ({"a.alice.svc", "a.bob.svc"}, (), True),
        ({"a.alice.svc", "a.bob.svc"}, ("http_proxy",), False),
    ],
    ids=["alone", "peer", "proxy"],
)
def test_an_engine_needs_names_when_it_has_peers(hosts: set[str], env: tuple[str, ...], needed: bool) -> None:
    made = {"spec": {"containers": [{"env": [{"name": name, "value": "x"} for name in env]}]}}
    assert peers.needs_names(made, frozenset({peers.REPORTER, "reporter.alice.svc", *hosts})) == needed
