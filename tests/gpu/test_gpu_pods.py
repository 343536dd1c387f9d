"""Pods on a machine with a GPU. `tests/gpu/run` runs this there; elsewhere all of it is skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpu_kit import GPU, HOST_IMAGE, GpuNode, have_gpu, pod, probe, until

from coterie.kube.agent.devices import libraries

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not have_gpu(), reason="needs a machine with a GPU: tests/gpu/run"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuNode]:
    made = GpuNode(tmp_path_factory.mktemp("gpu"))
    try:
        yield made.start()
    finally:
        made.destroy()


@pytest.fixture(scope="module")
def uuid(node: GpuNode) -> str:
    """Of the machine's first GPU, as its own tool says."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        labels, _ = node.metrics()["DCGM_FI_DEV_GPU_UTIL"]
        return labels["UUID"]
    found = subprocess.run(
        [tool, "--query-gpu=uuid", "--format=csv,noheader"], capture_output=True, text=True, check=True
    )
    return found.stdout.split()[0]


def count(node: GpuNode) -> int:
    return int(node.node()["status"]["capacity"][GPU])


def test_the_node_offers_its_gpus(node: GpuNode) -> None:
    status = node.node()["status"]
    assert int(status["capacity"][GPU]) >= 1
    assert status["allocatable"][GPU] == status["capacity"][GPU]
    assert node.condition("DevicesHealthy") == "True"
    labels = node.node()["metadata"]["labels"]
    print(
        f"node: {status['capacity'][GPU]} x {labels['nvidia.com/gpu.product']}, {labels['nvidia.com/gpu.memory']} MiB"
    )


def test_a_gpu_pod_computes_and_sees_its_own_gpu_only(node: GpuNode, uuid: str) -> None:
    node.create(probe("own", gpus=1))
    report = node.report("own")
    assert report["added"] is True, report
    assert len(report["gpus"]) == 1
    assert report["variables"]["CUDA_VISIBLE_DEVICES"] == report["variables"]["NVIDIA_VISIBLE_DEVICES"]
    if count(node) == 1:
        assert report["gpus"] == [uuid] and report["variables"]["CUDA_VISIBLE_DEVICES"] == uuid
    numbered = [name for name in report["dev"] if name.removeprefix("nvidia").isdigit()]
    assert len(numbered) == 1
    assert {"nvidiactl", "nvidia-uvm"} <= set(report["dev"])
    node.delete("own")


@pytest.mark.parametrize("given", ["0", "all", "uuid"])
def test_a_pod_without_a_gpu_finds_none_whatever_it_sets(node: GpuNode, uuid: str, given: str) -> None:
    value = uuid if given == "uuid" else given
    name = f"none-{given}"
    # Also by hand, after the agent's variables.
    script = f'export CUDA_VISIBLE_DEVICES={value} NVIDIA_VISIBLE_DEVICES={value}; exec python -c "$PROBE"'
    made = probe(name)
    program = made["spec"]["containers"][0]["command"][2]
    made["spec"]["containers"][0] |= {"command": ["sh", "-c", script], "env": [{"name": "PROBE", "value": program}]}
    node.create(made)
    report = node.report(name)
    assert report["variables"]["CUDA_VISIBLE_DEVICES"] == value
    assert report["dev"] == [] and report["gpus"] == []
    assert "error" in report, "CUDA says why: no device"
    print(f"CUDA_VISIBLE_DEVICES={given}: {report['error']}")
    node.delete(name)


def test_a_variable_of_the_pod_does_not_replace_the_agents(node: GpuNode) -> None:
    node.create(probe("hidden", env=[{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]))
    assert node.report("hidden")["variables"]["CUDA_VISIBLE_DEVICES"] == ""
    node.delete("hidden")


def test_the_second_pod_waits_for_the_gpu(node: GpuNode) -> None:
    all_of_them = count(node)
    node.create(probe("first", "--work", "12", gpus=all_of_them))
    node.phase("first", "Running")
    node.create(probe("second", gpus=all_of_them))

    def waiting() -> str:
        conditions = node.pod("second").get("status", {}).get("conditions") or ()
        return next((each["message"] for each in conditions if each.get("reason") == "Unschedulable"), "")

    reason = until("the second pod cannot be scheduled", waiting)
    assert f"Insufficient {GPU}" in reason
    assert node.pod("second")["status"]["phase"] == "Pending"
    first, second = node.report("first"), node.report("second")
    assert first["added"] and second["added"]
    ended = node.pod("first")["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"]
    began = node.pod("second")["status"]["containerStatuses"][0]["state"]["terminated"]["startedAt"]
    assert ended <= began
    for name in ("first", "second"):
        node.delete(name)


def test_metrics_of_the_gpu_while_a_pod_works(node: GpuNode) -> None:
    node.create(probe("busy", "--work", "15", gpus=count(node)))
    node.phase("busy", "Running")
    seen = until(
        "the GPU works", lambda: (found := node.metrics()) and found["DCGM_FI_DEV_GPU_UTIL"][1] > 20 and found, 30
    )
    labels, _ = seen["DCGM_FI_DEV_GPU_UTIL"]
    assert (labels["pod"], labels["namespace"], labels["gpu"]) == ("busy", "default", "0")
    assert seen["DCGM_FI_DEV_FB_USED"][1] >= 1024, "the pod holds a GiB"
    assert seen["DCGM_FI_DEV_POWER_USAGE"][1] > 10 and 10 < seen["DCGM_FI_DEV_GPU_TEMP"][1] < 110
    assert seen["DCGM_FI_DEV_XID_ERRORS"][1] == 0
    began = time.monotonic()
    node.metrics()
    print(
        f"metrics while busy ({(time.monotonic() - began) * 1000:.0f} ms): { {name: value for name, (_, value) in seen.items()} }"
    )
    node.report("busy")
    node.delete("busy")
    assert node.metrics()["DCGM_FI_DEV_GPU_UTIL"][0]["pod"] == ""


def test_a_crash_of_the_node_gives_no_gpu_twice(node: GpuNode) -> None:
    all_of_them = count(node)
    node.create(probe("survivor", "--work", "25", gpus=all_of_them))
    node.phase("survivor", "Running")
    node.kill()
    node.start()
    # Without the scheduler: straight to the agent, which must know by itself that nothing is free.
    node.create(probe("intruder", gpus=all_of_them, nodeName=node.name))
    until("the agent says why it waits", lambda: any("DevicesUnavailable" in each for each in node.events("intruder")))
    assert node.pod("survivor")["status"]["phase"] == "Running"
    survivor, intruder = node.report("survivor"), node.report("intruder")
    assert survivor["added"] and intruder["added"]
    for name in ("survivor", "intruder"):
        node.delete(name)


def _compiled(tmp_path: Path) -> Path:
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if nvcc is None:
        pytest.skip("needs nvcc")
    program = tmp_path / "vector_add"
    done = subprocess.run(
        [nvcc, "-O2", "-o", str(program), str(HERE / "vector_add.cu")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return program


def test_a_compiled_program_in_a_pod_with_the_machines_files(node: GpuNode) -> None:
    program = _compiled(node.shared)
    volume = {"name": "work", "hostPath": {"path": str(node.shared)}}
    mounts = [{"name": "work", "mountPath": "/work", "readOnly": True}]
    for name, gpus in (("native", 1), ("native-none", 0)):
        made = pod(name, [f"/work/{program.name}"], gpus=gpus, image=HOST_IMAGE, mounts=mounts, volumes=[volume])
        node.create(made)
    node.phase("native", "Succeeded")
    assert node.logs("native").strip() == "gpus 1 ok"
    node.phase("native-none", "Failed")
    assert node.logs("native-none").startswith("gpus 0")
    for name in ("native", "native-none"):
        node.delete(name)


def test_a_compiled_program_in_an_image_without_a_driver(node: GpuNode, tmp_path: Path) -> None:
    """The image has the program and the C library; what belongs to the driver is brought by the node."""
    program = _compiled(tmp_path)
    root = tmp_path / "image"
    (root / "bin").mkdir(parents=True)
    shutil.copy(program, root / "bin/vector_add")
    # The driver's own library needs parts of the C library that the program does not.
    for file in (str(program), *(str(path) for path in libraries.find(["libcuda.so.1"], ["/usr/local/nvidia/lib64"]))):
        for line in subprocess.run(["ldd", file], capture_output=True, text=True, check=True).stdout.splitlines():
            path = next((word for word in line.split() if word.startswith("/")), "")
            if path:
                target = root / path.lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)
    command = ["image", "add", "vector-add:1", "--rootfs", str(root), "--root", str(node.root), "--domain", node.domain]
    done = subprocess.run([sys.executable, "-m", "coterie", *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    node.create(pod("layered", ["/bin/vector_add"], gpus=1, image="vector-add:1"))
    node.phase("layered", "Succeeded")
    assert node.logs("layered").strip() == "gpus 1 ok"
    node.delete("layered")


def test_two_domains_of_one_machine_do_not_use_the_same_gpu(
    node: GpuNode, tmp_path_factory: pytest.TempPathFactory
) -> None:
    bob = GpuNode(tmp_path_factory.mktemp("bob"), "bob")
    try:
        bob.start()
        node.create(probe("hers", "--work", "15", gpus=count(node)))
        node.phase("hers", "Running")
        bob.create(probe("his", gpus=1))
        until("bob waits", lambda: any("another agent of this machine" in each for each in bob.events("his")))
        assert node.report("hers")["added"]
        assert bob.report("his")["added"]
    finally:
        bob.destroy()
        node.delete("hers")
