"""What a Kubernetes user does first after `coterie up`: a Deployment without tolerations or node selectors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import kubectl_runner
import pytest
from e2e_kit import HOST_IMAGE, until
from kubectl_runner import Kubectl

pytestmark = pytest.mark.xdist_group("e2e-network")
_VERSIONS = kubectl_runner.chosen()
Coterie = Callable[..., str]


@pytest.fixture
def coterie(tmp_path: Path) -> Iterator[Coterie]:
    """`coterie("up", ...)` under a root of the test's own; the network is removed whatever happens."""
    root = tmp_path / "net"

    def call(*words: str) -> str:
        command = [sys.executable, "-m", "coterie", "--root", str(root), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    yield call
    call("down", "--purge", "--grace", "1")


def _kubectl(tmp_path: Path, control_plane: str) -> Callable[[str], str]:
    work, home = tmp_path / "work", tmp_path / "home"
    for path in (work, home):
        path.mkdir()
    tool = Kubectl(_VERSIONS[-1], tmp_path / "net" / control_plane / "kubeconfig", work, home)

    def do(line: str) -> str:
        done = tool.run(*line.split())
        assert done.rc == 0, done.out + done.err
        return done.out

    return do


def test_a_plain_deployment_runs_on_a_network_of_equals(coterie: Coterie, tmp_path: Path) -> None:
    coterie("up", "--topology", "p2p", "--domains", "alice", "--wait", "150")
    kubectl = _kubectl(tmp_path, "alice")
    kubectl(f"create deployment web --image={HOST_IMAGE} --replicas=2 -- sleep 1000")
    assert "successfully rolled out" in kubectl("rollout status deployment/web --timeout=60s")
    assert kubectl("get nodes -o jsonpath={.items[*].spec.taints}") == ""
    _check_c46_each_process_has_a_log(tmp_path / "net" / "alice" / "var" / "logs")


def _check_c46_each_process_has_a_log(logs: Path) -> None:
    written = {str(path.relative_to(logs)) for path in logs.rglob("*.*") if path.stat().st_size}
    assert {"coterie.log", "audit.jsonl", "envoy/envoy.log"} <= written, sorted(written)


def test_under_a_common_control_plane_it_runs_in_the_domains_namespace(coterie: Coterie, tmp_path: Path) -> None:
    """A lite sees the pods of its domain's namespace only, so nothing else may be placed there."""
    coterie("up", "--topology", "center", "--domains", "alice,bob", "--wait", "150")
    kubectl = _kubectl(tmp_path, "kuscia-system")
    kubectl(f"-n alice create deployment web --image={HOST_IMAGE} --replicas=3 -- sleep 1000")
    kubectl(f"create deployment lost --image={HOST_IMAGE} -- sleep 1000")
    assert "successfully rolled out" in kubectl("-n alice rollout status deployment/web --timeout=60s")
    nodes = kubectl("-n alice get pods -o jsonpath={.items[*].spec.nodeName}").split()
    assert nodes == ["alice-node"] * 3
    why = "2 node(s) run only pods of their domain's namespace"
    until("the user is told why nothing runs", lambda: why in kubectl("describe pods -l app=lost"))
