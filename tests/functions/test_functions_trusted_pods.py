"""Tokens and calls go to pods that functions made, not to those that only look so: labels and owners can be written by whoever creates pods."""

from __future__ import annotations

from collections.abc import AsyncIterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import pytest
from functions_world import NAMESPACE, SCRIPT, FunctionsWorld, functions_world, until

from coterie.base.paths import DomainPaths
from coterie.engines.actor import exit_codes
from coterie.functions.actor_monitor import TEMPLATE_ANNOTATION, end_for_callers, end_of
from coterie.functions.actor_pods import actor_pod
from coterie.functions.gateway_objects import GATEWAY_LABELS, gateway_objects
from coterie.functions.gateway_pods import is_gateway
from coterie.functions.messages import Invoke
from coterie.functions.pod_seal import SEAL_ANNOTATION, is_sealed, seal_of
from coterie.functions.settings import FunctionsSettings
from coterie.kube.api.meta import Object, ObjectMeta
from coterie.kube.api.types.core import SECRETS
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kuscia.api.functions.types import Action, ActionSpec


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FunctionsWorld]:
    async with functions_world(tmp_path, monkeypatch) as made:
        yield made


def sealed(token: str = "t") -> Object:
    action = Action(metadata=ObjectMeta(name="a", namespace="alice", uid="u"), spec=ActionSpec(script=SCRIPT))
    pod = actor_pod(action, "v1", "a-1")
    pod["metadata"]["annotations"] = {SEAL_ANNOTATION: seal_of(token, "a-1", pod["spec"])}
    return pod


def test_a_seal_holds_for_one_pod_and_all_that_runs_in_it() -> None:
    assert is_sealed(sealed(), "t")
    assert not is_sealed(sealed("of another action"), "t")
    plain = sealed()
    del plain["metadata"]["annotations"]
    assert not is_sealed(plain, "t")

    def changed(change: Any) -> bool:
        pod = deepcopy(sealed())
        change(pod, pod["spec"], pod["spec"]["containers"][0])
        return is_sealed(pod, "t")

    other: list[Any] = [
        lambda pod, spec, main: pod["metadata"].update(name="a-2"),
        lambda pod, spec, main: main.update(image="mine"),
        lambda pod, spec, main: main.update(command=["sh"]),
        lambda pod, spec, main: main.update(args=["-c", "x"]),
        lambda pod, spec, main: main["env"].append({"name": "PYTHONPATH", "value": "/tmp"}),
        lambda pod, spec, main: main.update(envFrom=[{"secretRef": {"name": "s"}}]),
        lambda pod, spec, main: main.update(lifecycle={"postStart": {"exec": {"command": ["sh"]}}}),
        lambda pod, spec, main: main["readinessProbe"].update(exec={"command": ["sh"]}),
        lambda pod, spec, main: spec["containers"].append({"name": "b", "image": "mine"}),
        lambda pod, spec, main: spec.update(initContainers=[{"name": "b", "image": "mine"}]),
        lambda pod, spec, main: spec.update(shareProcessNamespace=True),
        lambda pod, spec, main: spec["volumes"].append({"name": "h", "hostPath": {"path": "/"}}),
        lambda pod, spec, main: next(each for each in spec["volumes"] if "configMap" in each)["configMap"].update(name="o"),
    ]  # fmt: skip
    assert [changed(each) for each in other] == [False] * len(other)
    # What the API server and the agent fill in is not sealed.
    filled: list[Any] = [
        lambda pod, spec, main: spec.update(nodeName="n", schedulerName="default", priority=0, hostNetwork=False),
        lambda pod, spec, main: main.update(terminationMessagePath="/dev/termination-log", args=[]),
        lambda pod, spec, main: next(each for each in spec["volumes"] if "configMap" in each)["configMap"].update(defaultMode=420),
        lambda pod, spec, main: pod["metadata"]["labels"].update(version="2"),
    ]  # fmt: skip
    assert [changed(each) for each in filled] == [True] * len(filled)


async def served(world: FunctionsWorld, name: str) -> list[str]:
    return [each.name for each in world.server.dispatcher._addresses.get(name, ())]


async def test_a_pod_with_the_label_gets_no_calls(world: FunctionsWorld) -> None:
    await world.apply("hello", script=SCRIPT, scaling={"minReplicas": 1})
    await world.until_ready("hello", 1)
    (ours,) = await world.pods("hello")
    found = await world.client.get(PODS.as_dynamic, ours.metadata.name, NAMESPACE)
    assert is_sealed(found, await token(world)), "as it is after the API server stored it"
    labels, notes = found["metadata"]["labels"], found["metadata"]["annotations"]
    container = {"name": "actor", "image": "mine"}
    # Labels alone; with the marks of a real one too; and with its owner.
    for name, more in (
        ("hello-00000001", {"labels": labels}),
        ("hello-00000002", {"labels": labels, "annotations": notes}),
        ("hello-00000003", {"labels": labels, "annotations": notes, "ownerReferences": found["metadata"]["ownerReferences"]}),
    ):  # fmt: skip
        body = {"metadata": {"name": name, "namespace": NAMESPACE, **more}, "spec": {"containers": [container]}}
        await world.client.create(PODS.as_dynamic, body)
    monitor = world.server.actions.monitor

    async def looked_at() -> bool:
        there = {each.metadata.name for each in await world.pods("hello")}
        return len(monitor._foreign) >= 2 and "hello-00000003" not in there

    await until(looked_at)
    assert await served(world, "hello") == [ours.metadata.name]
    for number in range(3):
        await world.server.dispatcher.submit(Invoke(request_uid=f"r{number}", action="hello", return_topic=""))
        assert (await world.server.dispatcher.wait_result(f"r{number}")).status_code == 200
    there = {each.metadata.name for each in await world.pods("hello")}
    assert there == {ours.metadata.name, "hello-00000001", "hello-00000002"}, "what is not ours is left alone"
    status = (await world.action("hello")).status
    assert (status.replicas, status.ready_replicas) == (1, 1)


async def token(world: FunctionsWorld) -> str:
    secret = await world.client.get(SECRETS, "action-hello-token", NAMESPACE)
    assert secret.data is not None
    return msgspec.json.decode(f'"{secret.data["token"]}"'.encode(), type=bytes).decode()


async def test_a_pod_in_the_place_of_an_actor_is_looked_at_anew(world: FunctionsWorld) -> None:
    await world.apply("hello", script=SCRIPT, scaling={"minReplicas": 1})
    await world.until_ready("hello", 1)
    (ours,) = await world.pods("hello")
    found = await world.client.get(PODS.as_dynamic, ours.metadata.name, NAMESPACE)
    kept = {name: found["metadata"][name] for name in ("name", "namespace", "labels", "annotations")}
    await world.client.delete(PODS, ours.metadata.name, NAMESPACE, grace=0)
    await world.client.create(
        PODS.as_dynamic, {"metadata": kept, "spec": {"containers": [{"name": "actor", "image": "mine"}]}}
    )

    async def replaced() -> bool:
        names = await served(world, "hello")
        return len(names) == 1 and names != [ours.metadata.name]

    await until(replaced)
    assert TEMPLATE_ANNOTATION in kept["annotations"]


def gateway(**more: Any) -> tuple[Object, Object]:
    """A pod as a ReplicaSet of the Deployment makes it, and the ReplicaSet."""
    deployment = {each.kind.resource.kind: each.body for each in gateway_objects(FunctionsSettings("alice", DomainPaths(Path("/r"))), "t")}["Deployment"]  # fmt: skip
    template = deployment["spec"]["template"]
    owner = {"kind": "Deployment", "name": "serverless-gateway", "uid": "d", "controller": True}
    replica_set = {"metadata": {"name": "serverless-gateway-1", "uid": "r", "ownerReferences": [owner]}, "spec": {"template": template}}  # fmt: skip
    made = {"kind": "ReplicaSet", "name": "serverless-gateway-1", "uid": "r", "controller": True}
    meta = {"name": "serverless-gateway-1-x", "labels": dict(GATEWAY_LABELS), "ownerReferences": [made]}
    return {"metadata": {**meta, **more}, "spec": deepcopy(template["spec"])}, replica_set


def test_what_a_gateway_is() -> None:
    pod, replica_set = gateway()
    assert is_gateway(pod, replica_set)
    assert not is_gateway(gateway(ownerReferences=[])[0], replica_set), "labels alone"
    for change in (
        lambda main: main.update(image="mine"),
        lambda main: main.update(command=["sh"]),
        lambda main: main["env"].append({"name": "PYTHONSTARTUP", "value": "/tmp/x"}),
    ):
        pod, _ = gateway()
        change(pod["spec"]["containers"][0])
        assert not is_gateway(pod, replica_set), "owners can be written by whoever creates pods"
    pod, _ = gateway()
    pod["spec"]["containers"].append({"name": "other", "image": "mine"})
    assert not is_gateway(pod, replica_set)
    pod, replica_set = gateway()
    replica_set["metadata"]["ownerReferences"][0]["name"] = "another"
    assert not is_gateway(pod, replica_set)


async def test_a_pod_with_the_label_of_gateways_gets_no_token(world: FunctionsWorld) -> None:
    await world.apply("hello", script=SCRIPT)

    async def linked() -> bool:
        return bool(world.server.gateways.token)

    await until(linked)
    meta = {"name": "mine", "namespace": NAMESPACE, "labels": dict(GATEWAY_LABELS)}
    await world.client.create(
        PODS.as_dynamic, {"metadata": meta, "spec": {"containers": [{"name": "gateway", "image": "mine"}]}}
    )
    await world.client.patch_status(PODS.as_dynamic, "mine", NAMESPACE, {"status": {"phase": "Running", "podIP": "127.0.0.1"}})  # fmt: skip

    async def seen() -> bool:
        return bool(world.server._gateway_pods._known)

    await until(seen)
    assert not world.server._gateway_pods.pods() and not world.server.links._addresses


def ended(reason: str, status: dict[str, Any], **terminated: Any) -> tuple[int | None, str]:
    states = [{"name": "actor", "state": {"terminated": {"reason": reason, **terminated}}}] if terminated else []
    return end_of(msgspec.convert({"status": {"phase": "Failed", "containerStatuses": states, **status}}, Pod))


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (3, "exit code 3"),
        (139, "exit code 139 (SIGSEGV)"),
        (255, "exit code 255"),
        (exit_codes.BAD_CODE, "its code cannot be loaded"),
        (exit_codes.CALL_STUCK, "a call did not end after its deadline"),
    ],
)
def test_callers_are_not_told_what_is_in_the_log(code: int, told: str) -> None:
    """Lines that other calls printed: the last ones are the termination message of a container that wrote none."""
    last = {"exitCode": code, "reason": "Error", "message": "call=1 card number of ann"}
    states = [{"name": "actor", "state": {"terminated": last}}]
    pod = msgspec.convert({"status": {"phase": "Failed", "containerStatuses": states}}, Pod)
    assert end_for_callers(pod, code) == told
    assert end_of(pod) == (code, "call=1 card number of ann"), "those who may read the Action may read logs"


def test_why_an_actor_ended() -> None:
    killed = {
        "phase": "Failed",
        "containerStatuses": [{"name": "actor", "state": {"terminated": {"reason": "OOMKilled"}}}],
    }
    assert end_for_callers(msgspec.convert({"status": killed}, Pod), 137).startswith("OOMKilled: ")
    assert ended("OOMKilled", {}, exitCode=137, message="last lines of its log") == (
        137, "OOMKilled: it used more memory than its limit",
    )  # fmt: skip
    evicted = {"reason": "Evicted", "message": "its disk is full"}
    assert ended("", evicted) == (None, "Evicted: its disk is full")
    assert ended("Error", evicted, exitCode=137, message="log") == (137, "Evicted: its disk is full")
    assert ended("Error", {}, exitCode=65, message="SyntaxError") == (65, "SyntaxError")
    assert ended("Error", {}, exitCode=3) == (3, "Error")
