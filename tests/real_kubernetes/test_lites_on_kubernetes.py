"""A master whose API server is a real Kubernetes, with two lites that register through its gateway and run a job."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import kubectl_runner
import pytest
from cluster_kit import RealCluster, wait_until
from jobs_kit import Net, job, task

from coterie.cli import network as layout
from coterie.node.kubernetes_install import ACCOUNT, NAMESPACE

pytestmark = [
    pytest.mark.skipif(not os.environ.get("COTERIE_REAL_KUBERNETES"), reason="only `make kubernetes` runs this"),
    pytest.mark.timeout(900),
    pytest.mark.slow,
]
_ROOMY: dict[str, Any] = {"capacity": {"cpu": 4, "memory": "8Gi"}, "reservedResources": {"cpu": 0, "memory": 0}}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    made = RealCluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.start()
        command = [sys.executable, "-m", "coterie", "install", "kubernetes", "--apply"]
        subprocess.run([*command, "--kubeconfig", str(made.kubeconfig)], check=True, timeout=120)
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def net(cluster: RealCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    account = cluster.account_kubeconfig(NAMESPACE, ACCOUNT, cluster.root / "coterie.kubeconfig")
    net = Net(tmp_path_factory.mktemp("net") / "net", "center", ("alice", "bob"), kubectl_runner.chosen()[-1])
    # The addresses of a control plane are that of its API server unless it has none.
    own = net.domains[layout.MASTER].settings.api.host
    real = {
        "apiServer": {"kubeconfig": str(account), "host": None, "port": None},
        "gateway": {"external": {"host": own}},
        "dns": {"host": own},
    }
    try:
        for name, more in ((layout.MASTER, real), ("alice", _ROOMY), ("bob", _ROOMY)):
            net.configure(name, more)
        net.up()
        yield net
        print("\n".join(net.domains[layout.MASTER].said().splitlines()[-60:]))
    finally:
        net.down()


def test_lites_are_nodes_of_the_cluster_and_run_a_job(cluster: RealCluster, net: Net) -> None:
    owners = {
        each["metadata"]["name"]: each["metadata"]["labels"]["kuscia.secretflow/namespace"]
        for each in cluster.get("nodes")["items"]
    }
    assert sorted(owners.values()) == ["alice", "bob"]
    container = {"name": "main", "workingDir": "/tmp", "command": ["sh", "-c", "echo done"]}
    template = {"name": "short", "replicas": 1, "spec": {"restartPolicy": "Never", "containers": [container]}}
    image = {
        "apiVersion": "kuscia.secretflow/v1alpha1",
        "kind": "AppImage",
        "metadata": {"name": "short"},
        "spec": {"image": {"name": "coterie/host", "tag": "latest"}, "deployTemplates": [template]},
    }
    master = net.domains[layout.MASTER]
    master.apply(image, job("lites", "alice", task("a", "alice", "bob", image="short")))

    def phase() -> str:
        return cluster.kubectl("get", "kj", "lites", "-n", "cross-domain", "-o", "jsonpath={.status.phase}")

    wait_until(lambda: phase() in ("Succeeded", "Failed"), "the job ended")
    assert phase() == "Succeeded", cluster.kubectl("describe", "kj", "lites", "-n", "cross-domain")
    for lite in ("alice", "bob"):
        refused = [
            event["requestURI"]
            for event in cluster.audited(f"system:serviceaccount:{lite}:{lite}")
            if event.get("responseStatus", {}).get("code") == 403
        ]
        assert not [each for each in refused if "/persistentvolumes" not in each], refused
