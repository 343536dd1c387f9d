"""The CUDA examples: compiled where nvcc is, run where a GPU is, by themselves and as GpuJobs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from gpu_kit import HOST_IMAGE, NAMESPACE, GpuNode, have_gpu, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
EXAMPLES = Path(__file__).parents[2] / "examples" / "gpu"
_NO_NVCC = 77
_JOBS = f"/apis/coterie.io/v1alpha1/namespaces/{NAMESPACE}/gpujobs"


def test_c85_c86_the_examples_are_right() -> None:
    """`examples/gpu/check`: every result is compared with the CPU's; sizes that are no multiples of the tile too."""
    done = subprocess.run([str(EXAMPLES / "check")], capture_output=True, text=True)
    if done.returncode == _NO_NVCC:
        pytest.skip("needs nvcc")
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuNode]:
    if not have_gpu() or os.geteuid() != 0:
        pytest.skip("needs root on a machine with a GPU: tests/gpu/run")
    made = GpuNode(tmp_path_factory.mktemp("gpujobs"))
    try:
        yield made.start()
    finally:
        made.destroy()


@pytest.mark.parametrize("name", ["matrix-add", "matrix-multiply"])
def test_the_examples_as_gpu_jobs_in_pods(node: GpuNode, name: str) -> None:
    """Compiled in the pod with the machine's nvcc."""
    nvcc = shutil.which("nvcc", path=f"{os.environ['PATH']}:/usr/local/cuda/bin")
    if nvcc is None:
        pytest.skip("needs nvcc")
    job: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    source = f"{name.replace('-', '_')}.cu"
    sources = {"metadata": {"name": name}, "data": {source: (EXAMPLES / source).read_text()}}
    node.raw(f"/api/v1/namespaces/{NAMESPACE}/configmaps", "POST", sources)
    job["spec"] |= {"image": HOST_IMAGE, "files": [{"configMap": {"name": name}}]}
    job["spec"]["compile"]["compiler"] = nvcc
    path = f"{os.path.dirname(nvcc)}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    job["spec"]["env"] = [{"name": "PATH", "value": path}]
    node.raw(_JOBS, "POST", job)

    def ended() -> dict[str, Any] | None:
        status = (node.get(f"{_JOBS}/{name}") or {}).get("status") or {}
        return status if status.get("phase") in ("Succeeded", "Failed") else None

    status = until(f"{name} has ended", ended, 180)
    print(status["outputTail"], f"{status['gpuSeconds']} GPU seconds")
    assert status["phase"] == "Succeeded", status
    assert " 0 elements differ from the CPU's result" in status["outputTail"]
    if name == "matrix-multiply":
        assert [each["path"] for each in status["artifacts"]] == ["result.txt"]
