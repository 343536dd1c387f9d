"""A GpuJob as a pod of a real node: files in, output, artifacts with checksums. Without a GPU: it asks for none."""

from __future__ import annotations

import hashlib

import pytest
from e2e_kit import HOST_IMAGE, Cluster, until

pytestmark = pytest.mark.xdist_group("e2e-autonomy")

PROGRAM = 'read -r a b < "in/numbers of today"; echo "$A $a+$b"; echo $((a + b)) > sum.txt; exit "$1"\n'


def test_c78_a_gpu_job_runs_as_a_pod(autonomy: Cluster) -> None:
    files = [{"configMap": {"name": "program"}}, {"configMap": {"name": "numbers"}, "path": "in"}]
    autonomy.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "program"}, "data": {"add.sh": PROGRAM}}
    )
    numbers = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "numbers"}}
    autonomy.apply({**numbers, "data": {"numbers": "unused"}})
    spec = {
        "image": HOST_IMAGE,
        "gpus": 0,
        "files": files,
        "command": [
            "sh",
            "-c",
            'mv in/numbers "in/numbers of today"; echo 2 3 > "in/numbers of today"; exec sh add.sh "$0"',
        ],
        "env": [{"name": "A", "value": "it's"}],
        "artifacts": ["*.txt"],
    }
    for name, code in (("adds", "0"), ("fails", "3")):
        body = {"apiVersion": "coterie.io/v1alpha1", "kind": "GpuJob", "metadata": {"name": name}}
        autonomy.apply({**body, "spec": {**spec, "args": [code]}})

    def ended(name: str) -> bool:
        return autonomy.json(f"get gpujob {name}").get("status", {}).get("phase") in ("Succeeded", "Failed")

    until("both have ended", lambda: ended("adds") and ended("fails"))
    done = autonomy.json("get gpujob adds")["status"]
    assert (done["phase"], done["exitCode"], done["outputTail"]) == ("Succeeded", 0, "it's 2+3\n")
    artifact = {"path": "sum.txt", "size": 2, "sha256": hashlib.sha256(b"5\n").hexdigest()}
    assert done["artifacts"] == [artifact]
    failed = autonomy.json("get gpujob fails")["status"]
    assert (failed["phase"], failed["exitCode"], failed["artifacts"]) == ("Failed", 3, [artifact])
    table = autonomy.do("get gpujobs")
    assert "Succeeded" in table and "GPU-SECONDS" in table
    autonomy.do("delete gpujob adds fails")
    until("their pods and files are gone", lambda: "gpujob-" not in autonomy.do("get configmaps,secrets,pods -o name"))
