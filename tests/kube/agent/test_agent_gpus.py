"""GPUs as users see them: on the Node, in pods, while agents come and go."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from agent_kit import NODES, PODS, World, container, phase, pod, world
from nvml_kit import FakeNvml, gpu, kind

from coterie.kube.agent.devices.manager import DeviceManager
from coterie.kube.agent.devices.protocol import DeviceFault
from coterie.kube.api.meta import Object

GPU = "nvidia.com/gpu"


async def inline(call: Callable[..., Any], *arguments: Any) -> Any:
    return call(*arguments)


@pytest.fixture
async def one_gpu(tmp_path: Path) -> AsyncIterator[World]:
    library = FakeNvml([gpu(0)])
    async with world(tmp_path) as made:
        made.devices = lambda: DeviceManager(
            made.settings.devices,
            made.settings.devices_directory,
            made.settings.node_name,
            made.clock,
            kinds=lambda: {"nvidia": lambda: kind(tmp_path / "machine", library)},
            shared=tmp_path / "shared",
            in_thread=inline,
        )
        await made.start_agent()
        yield made


def wants(name: str, script: str = "sleep inf", **spec: Any) -> Object:
    return pod(name, container(script, resources={"limits": {GPU: "1"}}), **spec)


def started_with(found: World, name: str) -> tuple[tuple[str, ...], str]:
    """(device nodes, CUDA_VISIBLE_DEVICES) of a pod's newest run."""
    (fake,) = (each for each in found.machine.pods.values() if each.sandbox.name == name)
    spec = fake.runs[-1].spec
    return spec.devices, dict(spec.env)["CUDA_VISIBLE_DEVICES"]


async def test_the_node_offers_the_gpu(one_gpu: World) -> None:
    node = await one_gpu.user.get(NODES, "node-1")
    assert node["status"]["capacity"][GPU] == node["status"]["allocatable"][GPU] == "1"
    assert node["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-H200"
    assert {each["type"]: each["status"] for each in node["status"]["conditions"]}["DevicesHealthy"] == "True"


async def test_a_pod_has_the_nodes_of_its_gpu_and_another_none(one_gpu: World) -> None:
    await one_gpu.create(wants("with"))
    await one_gpu.create(pod("without", container(env=[{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}])))
    for name in ("with", "without"):
        await one_gpu.pod_until(name, phase("Running"))
    assert started_with(one_gpu, "with") == (
        ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"),
        "GPU-0",
    )
    assert started_with(one_gpu, "without") == ((), "")


async def test_the_second_pod_waits_until_the_first_has_ended(one_gpu: World) -> None:
    await one_gpu.create(wants("first", "sleep 20", policy="Never"))
    await one_gpu.pod_until("first", phase("Running"))
    await one_gpu.create(wants("second"))
    await one_gpu.settle(10)
    waiting = await one_gpu.pod("second")
    assert waiting["status"]["phase"] == "Pending"
    assert ("DevicesUnavailable", "the pod needs 1 nvidia.com/gpu, 0 of 1 are free: held by alice/first") in (
        await one_gpu.events("second")
    )
    await one_gpu.pod_until("first", phase("Succeeded"))
    await one_gpu.pod_until("second", phase("Running"))
    assert started_with(one_gpu, "second")[1] == "GPU-0"


async def test_a_pod_that_is_being_stopped_still_has_its_gpu(one_gpu: World) -> None:
    """Deleted without grace, the API forgets it before its processes are gone."""
    await one_gpu.create(wants("stubborn", "trap '' TERM; sleep inf", terminationGracePeriodSeconds=20))
    await one_gpu.pod_until("stubborn", phase("Running"))
    stubborn = await one_gpu.pod("stubborn")
    await one_gpu.user.delete(PODS, "stubborn", "alice", grace=0)
    await one_gpu.create(wants("next"))
    uid = stubborn["metadata"]["uid"]
    order: list[str] = []
    for _ in range(600):
        fake = one_gpu.machine.pods.get(uid)
        stopped = fake is None or not any(run.state.running for run in fake.runs)
        began = any(name == "next" for name, _, _ in one_gpu.machine.started)
        for name, true in (("stopped", stopped), ("next began", began)):
            if true and name not in order:
                order.append(name)
        if len(order) == 2:
            break
        await one_gpu.clock.advance(0.05)
    assert order == ["stopped", "next began"]
    await one_gpu.pod_until("next", phase("Running"))


async def test_an_agent_that_is_killed_does_not_give_the_gpu_again(one_gpu: World) -> None:
    await one_gpu.create(wants("first"))
    await one_gpu.pod_until("first", phase("Running"))
    await one_gpu.kill_agent()
    await one_gpu.create(wants("second"))
    await one_gpu.start_agent()
    await one_gpu.settle(20)
    assert (await one_gpu.pod("first"))["status"]["phase"] == "Running"
    assert (await one_gpu.pod("second"))["status"]["phase"] == "Pending"
    assert [name for name, _, _ in one_gpu.machine.started] == ["first"]


async def test_a_pod_that_was_deleted_while_no_agent_ran_keeps_its_gpu_until_it_is_gone(one_gpu: World) -> None:
    await one_gpu.create(wants("first"))
    await one_gpu.pod_until("first", phase("Running"))
    await one_gpu.kill_agent()
    await one_gpu.user.delete(PODS, "first", "alice", grace=0)
    await one_gpu.create(wants("second"))
    await one_gpu.start_agent()
    await one_gpu.pod_until("second", phase("Running"))
    first, second = one_gpu.machine.started[0], one_gpu.machine.started[-1]
    assert (first[0], second[0]) == ("first", "second")
    assert [each.sandbox.name for each in one_gpu.machine.pods.values()] == ["second"]


async def test_a_restarted_container_has_the_same_gpu(one_gpu: World) -> None:
    await one_gpu.create(wants("again", "sleep 1; exit 1"))
    await one_gpu.until(lambda: len(one_gpu.machine.started) >= 2)
    assert started_with(one_gpu, "again")[1] == "GPU-0"


async def test_more_gpus_than_the_node_has_fail_the_pod(one_gpu: World) -> None:
    await one_gpu.create(pod("greedy", container(resources={"limits": {GPU: "2"}})))
    failed = await one_gpu.pod_until("greedy", phase("Failed"))
    assert failed["status"]["reason"] == "OutOfnvidia.com/gpu"


async def test_a_broken_gpu_is_on_the_node_and_in_the_events_of_the_pod(one_gpu: World) -> None:
    await one_gpu.create(wants("first"))
    await one_gpu.pod_until("first", phase("Running"))
    assert one_gpu.agent is not None
    one_gpu.agent.devices.report([DeviceFault("GPU-0", "XidError", "Xid 79: a critical error of the GPU")])
    await one_gpu.settle(2)
    node = await one_gpu.user.get(NODES, "node-1")
    assert (node["status"]["capacity"][GPU], node["status"]["allocatable"][GPU]) == ("1", "0")
    (condition,) = (each for each in node["status"]["conditions"] if each["type"] == "DevicesHealthy")
    assert (condition["status"], condition["reason"]) == ("False", "XidError")
    assert ("DeviceUnhealthy", "GPU-0: Xid 79: a critical error of the GPU") in await one_gpu.events("first")
    assert (await one_gpu.pod("first"))["status"]["phase"] == "Running", "what runs goes on, as with a kubelet"


async def test_a_driver_that_is_gone_leaves_no_gpu_on_the_node(one_gpu: World) -> None:
    await one_gpu.stop_agent()
    settings = one_gpu.settings
    one_gpu.devices = lambda: DeviceManager(
        settings.devices,
        settings.devices_directory,
        settings.node_name,
        one_gpu.clock,
        kinds=dict,
        shared=one_gpu.root / "shared",
        in_thread=inline,
    )
    await one_gpu.start_agent()
    node = await one_gpu.user.get(NODES, "node-1")
    assert (node["status"]["capacity"][GPU], node["status"]["allocatable"][GPU]) == ("0", "0")
