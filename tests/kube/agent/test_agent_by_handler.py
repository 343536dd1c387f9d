"""`RuntimesByHandler`: each pod lives in the runtime that has its handler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from runtime_suite import RuntimeSuite, container, ended, sandbox
from test_agent_fake_runtime import FakeHarness

from coterie.kube.agent.runtimes.by_handler import RuntimesByHandler
from coterie.kube.agent.runtimes.fake import FakeMachine, FakeRuntime
from coterie.kube.agent.runtimes.protocol import PodKind, PodNetworkClass, RuntimeFailure, RuntimeHandler


class TwoRuntimes(FakeHarness):
    """`runp` on one machine, `runc` on the other; both know `kata`, which neither has."""

    handler = "runc"

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.other = FakeMachine(self.clock)
        self.other.address = "127.0.0.2"
        self.machine.handlers = (
            RuntimeHandler("runp", True, version="1"),
            RuntimeHandler("runc", False, why="runc is not installed"),
        )
        self.other.handlers = (
            RuntimeHandler("runc", True, version="1.1.5"),
            RuntimeHandler("kata", False, why="there is no /dev/kvm"),
        )
        self.runtime = self.both()  # type: ignore[assignment]

    def both(self) -> RuntimesByHandler:
        return RuntimesByHandler([FakeRuntime(self.machine), FakeRuntime(self.other)])

    async def restart(self) -> None:
        await self.runtime.close()
        self.runtime = self.both()  # type: ignore[assignment]
        await self.runtime.open()


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[TwoRuntimes]:
    harness = TwoRuntimes(tmp_path)
    await harness.runtime.open()
    yield harness
    await harness.runtime.close()
    await harness.machine.close()
    await harness.other.close()


class TestRuntimesByHandler(RuntimeSuite):
    @pytest.fixture
    async def harness(self, harness: TwoRuntimes) -> TwoRuntimes:
        return harness


async def test_pods_go_to_the_runtime_of_their_handler(harness: TwoRuntimes) -> None:
    runtime = harness.runtime
    await runtime.prepare_pod(replace(sandbox(harness, "a"), handler="runp"))
    await runtime.prepare_pod(replace(sandbox(harness, "b"), handler="runc"))
    assert set(harness.machine.pods) == {"a"} and set(harness.other.pods) == {"b"}
    await runtime.start_container("b", container(harness, "sleep inf", uid="b"))
    assert [pod.uid for pod in runtime.pods()] == ["a", "b"]
    assert set(await runtime.usage("b")) == {"main"} and await runtime.usage("a") == {}
    await harness.restart()
    await harness.runtime.prepare_pod(replace(sandbox(harness, "b"), handler="runp"))
    assert set(harness.machine.pods) == {"a"}, "a pod stays where it is, whatever its handler is called now"
    await harness.finish(harness.runtime.remove_pod("b"))
    assert not harness.other.pods and harness.runtime.pod("b") is None


async def test_a_handler_that_is_missing_is_named(harness: TwoRuntimes) -> None:
    for handler, why in (("kata", "there is no /dev/kvm"), ("wasm", "no runtime of this node knows it")):
        with pytest.raises(RuntimeFailure, match=f'"{handler}" is not available on this node: {why}'):
            await harness.runtime.prepare_pod(replace(sandbox(harness, "a"), handler=handler))
    assert not harness.runtime.pods()


def test_handlers_and_limitations_are_those_of_all(harness: TwoRuntimes) -> None:
    found = {each.name: each for each in harness.runtime.handlers()}
    assert list(found) == ["runp", "runc", "kata"]
    assert found["runc"].available and found["runc"].version == "1.1.5"
    assert found["kata"].why == "there is no /dev/kvm"
    assert len(harness.runtime.limitations()) == 1
    assert len(harness.runtime.images()) == 3


async def test_events_of_both_arrive(harness: TwoRuntimes) -> None:
    runtime = harness.runtime
    events = runtime.events()
    for uid, handler in (("a", "runp"), ("b", "runc")):
        await runtime.prepare_pod(replace(sandbox(harness, uid), handler=handler))
        await runtime.start_container(uid, container(harness, "exit 0", uid=uid))
        await harness.until(ended(runtime, uid=uid))
    assert {await anext(events), await anext(events)} == {"a", "b"}
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_the_first_runtime_owns_the_pod_network(harness: TwoRuntimes) -> None:
    assert harness.runtime.assign_address("b", PodNetworkClass()) == "127.0.0.1" == harness.runtime.pod_ip("b")


async def test_a_preferred_runtime_has_the_handler_but_not_for_guests(harness: TwoRuntimes) -> None:
    harness.machine.handlers = (RuntimeHandler("runp", True), RuntimeHandler("runc", True, version="own"))
    network, other = FakeRuntime(harness.machine), FakeRuntime(harness.other)
    both = RuntimesByHandler([network, other], {"runc": other}, guests_too=False)
    await both.open()
    assert {each.name: each.version for each in both.handlers()}["runc"] == "1.1.5"
    await both.prepare_pod(sandbox(harness, "own"))
    await both.prepare_pod(replace(sandbox(harness, "guest"), kind=PodKind.GUEST))
    assert set(harness.other.pods) == {"own"} and set(harness.machine.pods) == {"guest"}
    await both.close()


async def test_handlers_that_nothing_here_could_have_say_why(harness: TwoRuntimes) -> None:
    both = RuntimesByHandler([FakeRuntime(harness.machine)], missing=[RuntimeHandler("kata", False, "no containerd")])
    await both.open()
    assert {each.name: each.why for each in both.handlers()}["kata"] == "no containerd"
    with pytest.raises(RuntimeFailure, match="no containerd"):
        await both.prepare_pod(replace(sandbox(harness), handler="kata"))
    await both.close()
