"""The shipped manifests are run (row C-48): each is applied, gets ready, does what its first line says, and is deleted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e_kit import Cluster, until

pytestmark = pytest.mark.xdist_group("e2e-autonomy")
MANIFESTS = Path(__file__).resolve().parents[2] / "examples" / "manifests"


def _deployment(cluster: Cluster) -> None:
    cluster.do("rollout status deployment/web --timeout=60s")
    until("all servers are endpoints", lambda: len(_addresses(cluster)) == 3)


def _addresses(cluster: Cluster) -> list[str]:
    slices = json.loads(cluster.do("get endpointslices -l kubernetes.io/service-name=web -o json"))["items"]
    return [a for each in slices for one in each["endpoints"] if one["conditions"]["ready"] for a in one["addresses"]]


def _statefulset(cluster: Cluster) -> None:
    cluster.do("rollout status statefulset/ledger --timeout=60s")
    assert cluster.do("get pvc -o name").split() == [f"persistentvolumeclaim/data-ledger-{i}" for i in (0, 1)]
    cluster.do("delete pod ledger-1")
    cluster.do("rollout status statefulset/ledger --timeout=60s")
    starts = "exec ledger-1 -- wc -l /data/starts"
    until("the new pod has the files of the old one", lambda: cluster.do(starts).split()[0] == "2")


def _daemonset(cluster: Cluster) -> None:
    cluster.do("rollout status daemonset/watcher --timeout=60s")
    assert cluster.do("get pods -l app=watcher -o jsonpath={.items[*].spec.nodeName}").split() == ["node-a"]


def _job(cluster: Cluster) -> None:
    cluster.do("wait --for=condition=Complete job/pieces --timeout=60s")
    lines = cluster.do("logs -l job-name=pieces --tail=-1").splitlines()
    assert sorted(lines) == [f"piece {index} is done" for index in range(4)]


def _cronjob(cluster: Cluster) -> None:
    cluster.do("create job now --from=cronjob/report")
    cluster.do("wait --for=condition=Complete job/now --timeout=60s")
    cluster.do("delete job now")


def _autoscaler(cluster: Cluster) -> None:
    cluster.do(f"apply -f {MANIFESTS / 'deployment.yaml'}")
    cluster.do("wait --for=condition=ScalingActive hpa/web --timeout=60s")
    cluster.do(f"delete -f {MANIFESTS / 'deployment.yaml'}")


def _network_policy(cluster: Cluster) -> None:
    assert "role=front" in cluster.do("describe networkpolicy web-from-front")


CHECKS: dict[str, Callable[[Cluster], None]] = {
    "autoscaler.yaml": _autoscaler,
    "cronjob.yaml": _cronjob,
    "daemonset.yaml": _daemonset,
    "deployment.yaml": _deployment,
    "job.yaml": _job,
    "network-policy.yaml": _network_policy,
    "statefulset.yaml": _statefulset,
}


def test_c48_every_shipped_manifest_is_run_and_listed() -> None:
    shipped = {path.name for path in MANIFESTS.glob("*.yaml")}
    listed = (MANIFESTS / "README.md").read_text()
    assert shipped == CHECKS.keys() and all(f"| `{name}` |" in listed for name in shipped)


@pytest.mark.parametrize("name", CHECKS)
def test_c48_a_shipped_manifest_works_as_it_is(autonomy: Cluster, name: str) -> None:
    autonomy.do(f"apply -f {MANIFESTS / name}")
    CHECKS[name](autonomy)
    autonomy.do(f"delete -f {MANIFESTS / name} --timeout=60s")
    until("its pods are gone", lambda: autonomy.do("get pods -o name") == "")
