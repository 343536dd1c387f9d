"""Rare but real: broken runtimes, failed starts, tokens, evictions, finalizers, two agents on one machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from agent_kit import NODES, PODS, World, container, is_ready, phase, pod, status_named, world

from coterie.base.paths import DomainPaths
from coterie.kube.agent.runtimes.fake import FakeMachine
from coterie.kube.agent.runtimes.protocol import PodSandbox, RuntimeFailure
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kuscia.engine.engine_plugin import EnginePlugin

SERVICE_ACCOUNTS = Kind.dynamic(builtin("serviceaccounts"))


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path) as made:
        await made.start_agent()
        yield made


async def test_a_start_that_fails_counts_as_a_run(here: World) -> None:
    here.machine.problems["main"] = RuntimeFailure("StartError", "exec: no such file")
    await here.create(pod("task", policy="Never"))
    found = await here.pod_until("task", phase("Failed"))
    ended = status_named(found)["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (128, "StartError", "exec: no such file")
    await here.create(pod("service"))
    found = await here.pod_until(
        "service", lambda p: status_named(p).get("state", {}).get("waiting", {}).get("reason") == "CrashLoopBackOff"
    )
    assert status_named(found)["lastState"]["terminated"]["reason"] == "StartError"
    del here.machine.problems["main"]
    found = await here.pod_until("service", is_ready)
    assert status_named(found)["restartCount"] == 2


async def test_a_problem_of_the_runtime_is_waited_out(here: World) -> None:
    here.machine.problems["main"] = RuntimeFailure("CreateContainerError", "no memory for a cgroup")
    await here.create(pod("web"))
    found = await here.pod_until("web", lambda p: "waiting" in status_named(p).get("state", {}))
    await here.settle(2)
    found = await here.pod("web")
    assert status_named(found)["state"]["waiting"] == {
        "reason": "CreateContainerError",
        "message": "no memory for a cgroup",
    }
    del here.machine.problems["main"]
    found = await here.pod_until("web", is_ready, 20)
    assert status_named(found)["restartCount"] == 0


async def test_a_runtime_that_breaks_its_word_does_not_make_the_agent_spin(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [0]

    async def broken(*_: object) -> None:
        calls[0] += 1
        raise KeyError("nobody foresaw this")

    monkeypatch.setattr(here.runtime, "start_container", broken)
    await here.create(pod("web"))
    await here.settle(11)
    assert 2 <= calls[0] <= 4
    monkeypatch.undo()
    await here.pod_until("web", is_ready, 20)
    monkeypatch.setattr(here.runtime, "stop_container", broken)
    await here.user.delete(PODS, "web", "alice")
    await here.settle(12)
    monkeypatch.undo()
    await here.gone("web", 20)


async def test_projected_tokens_are_bound_and_renewed(here: World) -> None:
    try:
        await here.user.create(SERVICE_ACCOUNTS, {"metadata": {"name": "robot", "namespace": "alice"}})
    except Exception as error:  # noqa: BLE001 - it may be there already
        assert "exists" in str(error)
    source = {"serviceAccountToken": {"path": "token", "expirationSeconds": 600, "audience": "vault"}}
    made = await here.create(
        pod(
            "robot",
            container(volumeMounts=[{"name": "t", "mountPath": "/t"}]),
            serviceAccountName="robot",
            volumes=[{"name": "t", "projected": {"sources": [source]}}],
        )
    )
    await here.pod_until("robot", is_ready)
    file = here.root / "alice/var/pods" / made["metadata"]["uid"] / "volumes/t/token"
    first = file.read_text()
    assert first.count(".") == 2 and file.stat().st_mode & 0o077 == 0
    await here.settle(500)
    assert file.read_text() != first


async def test_an_evicted_pod_fails_and_says_why(here: World) -> None:
    made = await here.create(pod("victim"))
    await here.pod_until("victim", is_ready)
    assert here.agent is not None
    assert here.agent.pods.evict(made["metadata"]["uid"], "the node was low on memory")
    found = await here.pod_until("victim", phase("Failed"))
    assert (found["status"]["reason"], found["status"]["message"]) == ("Evicted", "the node was low on memory")
    assert any(c["type"] == "DisruptionTarget" for c in found["status"]["conditions"])


async def test_a_finalizer_does_not_bring_a_pod_back(here: World) -> None:
    held = pod("held")
    held["metadata"]["finalizers"] = ["example.com/wait"]
    await here.create(held)
    await here.pod_until("held", is_ready)
    await here.user.delete(PODS, "held", "alice")
    await here.until(lambda: here.machine.pods == {}, 10)
    await here.settle(30)
    here.transport.calls.clear()
    await here.user.patch(PODS, "held", "alice", {"metadata": {"labels": {"touched": "yes"}}})
    await here.settle(5)
    assert here.machine.pods == {} and len(here.machine.started) == 1
    await here.user.patch(PODS, "held", "alice", {"metadata": {"finalizers": None}})
    await here.gone("held", 5)


async def test_a_pod_deleted_before_it_could_be_set_up(here: World) -> None:
    await here.create(pod("stuck", volumes=[{"name": "v", "configMap": {"name": "absent"}}]))
    await here.settle(3)
    await here.user.delete(PODS, "stuck", "alice")
    await here.gone("stuck", 5)
    assert here.machine.pods == {}


async def test_two_agents_share_a_machine(here: World) -> None:
    other = World(here.root)
    other.clock, other.api, other.user = here.clock, here.api, here.user
    other.machine = FakeMachine(here.clock)
    other.settings = replace(
        here.settings, node_name="node-2", paths=DomainPaths(here.root / "second"), address="127.0.0.2", port=10251
    )
    await other.start_agent()
    try:
        await here.create(pod("one"))
        await here.create(pod("two", node="node-2"))
        await here.pod_until("one", is_ready)
        found = await here.pod_until("two", is_ready)
        assert found["status"]["hostIP"] == "127.0.0.2"
        assert [name for name, _, _ in here.machine.started] == ["one"]
        assert [name for name, _, _ in other.machine.started] == ["two"]
        nodes = {node["metadata"]["name"] for node in (await here.user.list(NODES)).items}
        assert nodes == {"node-1", "node-2"}
    finally:
        await other.stop_agent()
        await other.machine.close()


async def test_a_foreign_end_is_respected(here: World) -> None:
    """A pod that somebody else declared failed is stopped and never told to be alive again."""
    await here.create(pod("lost"))
    await here.pod_until("lost", is_ready)
    await here.user.patch(
        PODS, "lost", "alice", {"status": {"phase": "Failed", "reason": "NodeLost"}}, subresource="status"
    )
    await here.until(lambda: not any(run.state.running for p in here.machine.pods.values() for run in p.runs), 10)
    await here.settle(5)
    assert (await here.pod("lost"))["status"]["phase"] == "Failed"


async def test_a_status_that_others_overwrote_is_set_right(here: World) -> None:
    await here.create(pod("web"))
    await here.pod_until("web", is_ready)
    unready = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    await here.user.patch(PODS, "web", "alice", unready, type="strategic", subresource="status")
    await here.settle(1)
    assert is_ready(await here.pod("web"))


async def test_memory_volumes_and_pre_stop_share_the_grace(here: World) -> None:
    hook = {"preStop": {"sleep": {"seconds": 20}}}
    await here.create(
        pod(
            "slow",
            container("trap '' TERM; sleep inf", lifecycle=hook, volumeMounts=[{"name": "m", "mountPath": "/m"}]),
            volumes=[{"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}],
            terminationGracePeriodSeconds=25,
        )
    )
    await here.pod_until("slow", is_ready)
    await here.user.delete(PODS, "slow", "alice")
    await here.settle(23)
    await here.pod("slow")
    await here.gone("slow", 4)
    assert not list((here.root / "alice/var/pods").iterdir())


async def test_a_pod_is_made_while_others_learn_its_address(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway takes a moment for it, which is not added to the pod's start; but no container runs before."""
    prepared, known = asyncio.Event(), asyncio.Event()
    prepare = here.runtime.prepare_pod

    async def learn(*_: object) -> None:
        await prepared.wait()
        await known.wait()

    async def prepare_and_tell(sandbox: PodSandbox) -> None:
        await prepare(sandbox)
        prepared.set()

    monkeypatch.setattr(EnginePlugin, "network_ready", learn)
    monkeypatch.setattr(here.runtime, "prepare_pod", prepare_and_tell)
    await here.create(pod("web"))
    await here.until(prepared.is_set)
    await here.settle(1)
    assert [each.runs for each in here.machine.pods.values()] == [[]]
    known.set()
    await here.pod_until("web", is_ready)
