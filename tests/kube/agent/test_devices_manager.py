"""Devices given to pods: never twice, also over crashes, also between agents of one machine."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nvml_kit import FakeEvent, FakeGpu, FakeMig, FakeNvml, gpu, kind

from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.exposition import render
from coterie.kube.agent.devices import libraries, records, registry
from coterie.kube.agent.devices.allocation import DevicesUnavailable
from coterie.kube.agent.devices.amd import AmdDevices
from coterie.kube.agent.devices.claims import machine_directory
from coterie.kube.agent.devices.manager import DeviceManager
from coterie.kube.agent.devices.protocol import DeviceError, DriverLibraries
from coterie.kube.agent.settings import DeviceSettings

GPU = "nvidia.com/gpu"


async def inline(call: Callable[..., Any], *arguments: Any) -> Any:
    return call(*arguments)


class Machine:
    """GPUs that outlive the agents."""

    def __init__(self, root: Path, *gpus: FakeGpu) -> None:
        self.root = root
        self.library = FakeNvml(list(gpus) or [gpu(0), gpu(1)])

    async def agent(self, name: str = "alice", *, only: tuple[str, ...] = (), enabled: bool = True) -> DeviceManager:
        made = DeviceManager(
            DeviceSettings(enabled, only),
            self.root / name,
            name,
            SYSTEM_CLOCK,
            kinds=lambda: {"nvidia": lambda: kind(self.root / "machine", self.library)},
            shared=self.root / "shared",
            in_thread=inline,
        )
        await made.open()
        return made


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def pod(name: str, count: int = 1, resource: str = GPU) -> dict[str, Any]:
    limits = {"limits": {resource: str(count)}} if count else {}
    return {
        "metadata": {"namespace": "ns", "name": name, "uid": f"uid-{name}"},
        "spec": {"containers": [{"name": "main", "image": "x", "resources": limits}]},
    }


def variables(agent: DeviceManager, which: dict[str, Any]) -> str:
    given = agent.container(which, which["spec"]["containers"][0], own_root=False, given={})
    return given.variables["CUDA_VISIBLE_DEVICES"]


async def test_each_pod_has_a_device_of_its_own(machine: Machine) -> None:
    agent = await machine.agent()
    for name in ("a", "b"):
        await agent.allocate(pod(name))
    assert {variables(agent, pod(name)) for name in ("a", "b")} == {"GPU-0", "GPU-1"}
    with pytest.raises(DevicesUnavailable, match="held by ns/a, ns/b"):
        await agent.allocate(pod("c"))
    await agent.free("uid-a")
    await agent.allocate(pod("c"))
    assert variables(agent, pod("c")) == "GPU-0"


async def test_a_pod_without_a_device_is_kept_from_all_of_them(machine: Machine) -> None:
    agent = await machine.agent()
    plain = pod("plain", 0)
    await agent.allocate(plain)
    given = agent.container(plain, plain["spec"]["containers"][0], own_root=True, given={})
    assert given.nodes == () and given.mounts == ()
    assert given.variables == {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}


async def test_an_agent_that_was_killed_gives_no_device_a_second_time(machine: Machine) -> None:
    first = await machine.agent()
    await first.allocate(pod("a"))
    second = await machine.agent()
    await second.adopt({"uid-a"}, [pod("a")])
    await second.allocate(pod("b"))
    assert variables(second, pod("a")) == "GPU-0"
    assert variables(second, pod("b")) == "GPU-1"
    await second.allocate(pod("a"), running=True)
    assert variables(second, pod("a")) == "GPU-0", "a pod keeps what it has"


async def test_the_record_is_on_disk_before_a_pod_may_start(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = await machine.agent()

    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(records, "save", full)
        with pytest.raises(OSError, match="no space"):
            await agent.allocate(pod("a"))
    assert variables(agent, pod("a")) == "", "what is not recorded is not given"
    await agent.allocate(pod("b"))
    known = records.load(machine.root / "alice")
    assert known is not None and known.pods["uid-b"].ids() == {variables(agent, pod("b"))}


async def test_a_crash_between_claim_and_record_holds_nothing(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await machine.agent()

    class Killed(BaseException):
        pass

    def die(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as broken:
        broken.setattr(records, "save", die)
        with pytest.raises(Killed):
            await agent.allocate(pod("a", 2))
    again, other = await machine.agent(), await machine.agent("bob")
    await other.allocate(pod("x"))
    await again.allocate(pod("y"))
    assert variables(again, pod("y")) != variables(other, pod("x"))


async def test_records_of_pods_that_are_gone_are_dropped(machine: Machine) -> None:
    first = await machine.agent()
    await first.allocate(pod("a", 2))
    second = await machine.agent()
    await second.adopt(set(), [])
    await second.allocate(pod("b", 2))
    known = records.load(machine.root / "alice")
    assert known is not None and list(known.pods) == ["uid-b"]


async def test_without_a_readable_record_nothing_is_given_until_the_pods_have_ended(machine: Machine) -> None:
    first = await machine.agent()
    await first.allocate(pod("a"))
    (machine.root / "alice" / records.FILE).write_text("{")
    second = await machine.agent()
    await second.adopt({"uid-a", "uid-c"}, [pod("a"), pod("c", 0)])
    with pytest.raises(DevicesUnavailable, match="no record"):
        await second.allocate(pod("b"))
    freed: list[Any] = []
    second.on_free = freed.append
    await second.free("uid-a")
    assert freed == [{"uid-b"}], "who waited is told"
    await second.allocate(pod("b"))


async def test_agents_of_one_machine_do_not_give_the_same_device(machine: Machine) -> None:
    alice, bob = await machine.agent("alice"), await machine.agent("bob")
    await alice.allocate(pod("a"))
    await bob.allocate(pod("b"))
    assert variables(alice, pod("a")) != variables(bob, pod("b"))
    with pytest.raises(DevicesUnavailable, match="another agent of this machine"):
        await bob.allocate(pod("c"))
    await alice.free("uid-a")
    await bob.allocate(pod("c"))
    await bob.free("uid-b")
    await bob.free("uid-c")
    assert [file.name for file in (machine.root / "shared").iterdir()] == [".lock"], "nothing is left behind"


async def test_who_waits_for_another_agent_tries_again(machine: Machine) -> None:
    alice, bob = await machine.agent("alice"), await machine.agent("bob")
    await alice.allocate(pod("a", 2))
    with pytest.raises(DevicesUnavailable):
        await bob.allocate(pod("b"))
    told = asyncio.Event()
    bob.on_free = lambda uids: told.set() if uids == {"uid-b"} else None

    class Fast:
        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(0)

    bob._clock = Fast()  # type: ignore[assignment]
    task = asyncio.create_task(bob._retry_waiting())
    await asyncio.wait_for(told.wait(), 5)
    task.cancel()


async def test_after_a_restart_of_the_machine_a_pod_may_find_its_device_taken(machine: Machine) -> None:
    """Claims are gone with /run; records are not."""
    machine.library.gpus.pop()
    alice = await machine.agent("alice")
    await alice.allocate(pod("a"))
    for file in (machine.root / "shared").iterdir():
        file.unlink()
    bob = await machine.agent("bob")
    await bob.allocate(pod("b"))
    alice = await machine.agent("alice")
    with pytest.raises(DevicesUnavailable, match="another agent"):
        await alice.allocate(pod("a"))


async def test_only_chosen_devices_are_offered(machine: Machine) -> None:
    assert (await machine.agent(only=("GPU-1",))).node().capacity == {GPU: 1}
    assert (await machine.agent("b", only=("0",))).devices[0].id == "GPU-0"
    assert (await machine.agent("c", enabled=False)).node().capacity == {}


async def test_mig_instances_are_resources_of_their_own(tmp_path: Path) -> None:
    mig = FakeGpu("GPU-m", 1, mig=[FakeMig("MIG-a", 7), FakeMig("MIG-b", 8)])
    agent = await Machine(tmp_path, gpu(0), mig).agent()
    assert agent.node().capacity == {GPU: 1, "nvidia.com/mig-1g.18gb": 2}
    for name in ("a", "b"):
        await agent.allocate(pod(name, resource="nvidia.com/mig-1g.18gb"))
    assert {variables(agent, pod(name)) for name in ("a", "b")} == {"MIG-a", "MIG-b"}
    given = agent.container(pod("a"), pod("a")["spec"]["containers"][0], own_root=False, given={})
    assert "/dev/nvidia-caps/nvidia-cap20" in given.nodes and "/dev/nvidia-caps/nvidia-cap22" not in given.nodes


async def test_a_broken_device_is_not_given_and_the_node_says_so(machine: Machine) -> None:
    agent = await machine.agent()
    found: list[Any] = []
    changes: list[bool] = []
    agent.on_fault = lambda fault, user: found.append((fault.id, user.pod if user else ""))
    agent.on_change = lambda: changes.append(True)
    await agent.allocate(pod("a"))
    machine.library.events.put(FakeEvent(machine.library.gpus[0], 79))
    (nvidia,) = agent._kinds
    agent.report(nvidia.faults(0.1))
    node = agent.node()
    assert (node.capacity, node.allocatable) == ({GPU: 2}, {GPU: 1})
    assert node.condition is not None
    assert (node.condition.type, node.condition.status, node.condition.reason) == (
        "DevicesHealthy",
        "False",
        "XidError",
    )
    assert "Xid 79" in node.condition.message
    assert found == [("GPU-0", "a")] and changes
    await agent.free("uid-a")
    await agent.allocate(pod("b"))
    assert variables(agent, pod("b")) == "GPU-1"
    with pytest.raises(DevicesUnavailable, match="1 unhealthy"):
        await agent.allocate(pod("c"))


async def test_faults_are_waited_for_in_a_thread(machine: Machine) -> None:
    agent = await machine.agent()
    agent._kinds.clear()  # `run` opens it again
    running = asyncio.create_task(agent.run())
    seen = asyncio.Event()
    agent.on_change = seen.set
    await agent.ready.wait()
    machine.library.events.put(FakeEvent(machine.library.gpus[1], 48))
    await asyncio.wait_for(seen.wait(), 20)
    assert agent.node().allocatable == {GPU: 1}
    agent.stop()
    await running


async def test_a_resource_that_was_offered_before_is_zero_afterwards(machine: Machine) -> None:
    await machine.agent()
    machine.library.gpus.clear()
    node = (await machine.agent()).node()
    assert node.capacity == node.allocatable == {GPU: 0}


async def test_a_driver_that_cannot_be_used_is_said(machine: Machine) -> None:
    machine.library.broken = True
    agent = await machine.agent()
    condition = agent.node().condition
    assert condition is not None and (condition.status, condition.reason) == ("False", "DriverError")
    assert agent.node().capacity == {}


async def test_measurements_name_the_pod_and_are_made_when_asked(machine: Machine) -> None:
    agent = await machine.agent()
    await agent.allocate(pod("train"))
    machine.library.calls.clear()
    assert "nvmlDeviceGetUtilizationRates" not in machine.library.calls
    text = render(await agent.families())
    assert machine.library.calls.count("nvmlDeviceGetUtilizationRates") == 2
    lines = [line for line in text.splitlines() if line.startswith("DCGM_FI_DEV_GPU_UTIL{")]
    assert lines[0] == (
        'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-0",device="nvidia0",modelName="NVIDIA H200",Hostname="alice",'
        'namespace="ns",pod="train"} 87'
    )
    assert 'namespace="",pod=""' in lines[1]
    assert "# TYPE DCGM_FI_DEV_GPU_UTIL gauge" in text


def test_without_a_driver_nothing_is_loaded(tmp_path: Path) -> None:
    assert registry.found(tmp_path) == {}
    script = (
        "import sys, coterie.kube.agent.agent, coterie.node.parts.agent\n"
        "from pathlib import Path\n"
        "from coterie.kube.agent.devices import registry\n"
        f"registry.found(Path({str(tmp_path)!r}))\n"
        "print([name for name in ('pynvml', 'coterie.kube.agent.devices.nvidia', 'coterie.kube.agent.devices.amd')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_driver_is_known_by_its_files(tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("NVRM version: 580\n")
    assert list(registry.found(tmp_path)) == ["nvidia"]


def test_the_library_of_nvml_is_found_missing() -> None:
    """This machine has the package and no driver."""
    if registry.found():
        pytest.skip("this machine has a driver")
    with pytest.raises(DeviceError, match="NVML Shared Library Not Found"):
        registry._KINDS[0][2]().discover()


def test_driver_libraries_are_put_where_loaders_look(tmp_path: Path) -> None:
    real = tmp_path / "lib" / "libcuda.so.580.1"
    real.parent.mkdir()
    real.touch()
    (tmp_path / "lib" / "libcuda.so.1").symlink_to(real.name)
    files = libraries.driver(["libcuda.so.1", "libmissing.so.1"], ["no-such-program"], [str(real.parent)])
    assert [path.name for path in files.files] == ["libcuda.so.1"]
    assert files.search == (str(real.parent),) and files.programs == ()
    mounts = libraries.image_mounts(files)
    assert {(mount.source, mount.read_only) for mount in mounts} == {(real, True)}
    assert [mount.target for mount in mounts if mount.target.startswith("/usr/lib64/")] == ["/usr/lib64/libcuda.so.1"]
    assert libraries.search_path(files, "/opt/x") == f"/opt/x:{real.parent}"
    assert [mount.target for mount in libraries.host_mounts(files)] == [str(real.parent)]


def test_libraries_that_the_loader_finds_need_no_variable() -> None:
    assert libraries.search_path(DriverLibraries(), "") == ""


def test_amd_gpus_by_the_files_of_the_kernel(tmp_path: Path) -> None:
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    for number, text in enumerate(
        ["simd_count 0\ncpu_cores_count 8\n", "simd_count 304\nunique_id 4660\ndrm_render_minor 128\n"]
    ):
        (nodes / str(number)).mkdir(parents=True)
        (nodes / str(number) / "properties").write_text(text)
        (nodes / str(number) / "name").write_text("gfx942\n" if number else "\n")
    (tmp_path / "dev/dri").mkdir(parents=True)
    for name in ("kfd", "dri/renderD128"):
        (tmp_path / "dev" / name).touch()
    kind_of_amd = AmdDevices(tmp_path, sleep=lambda _: None)
    (device,) = kind_of_amd.discover()
    assert (device.id, device.resource, device.model) == ("GPU-0000000000001234", "amd.com/gpu", "gfx942")
    assert device.nodes == ("/dev/kfd", "/dev/dri/renderD128")
    assert kind_of_amd.environment([device]) == {"ROCR_VISIBLE_DEVICES": "GPU-0000000000001234"}
    assert kind_of_amd.faults(1) == []
    (tmp_path / "dev/dri/renderD128").unlink()
    assert [fault.reason for fault in kind_of_amd.faults(1)] == ["DeviceLost"]


def test_claims_of_an_ordinary_user_lie_where_nobody_else_makes_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert machine_directory() == Path("/home/somebody/.cache/coterie-devices")
