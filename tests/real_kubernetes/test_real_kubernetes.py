"""kube-controller-manager and kube-scheduler of Kubernetes against our API server and our nodes; ours are switched off.

Not part of `make test`: `make kubernetes` builds the binaries (scripts/get-kubernetes) and runs this directory.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BINARIES = ROOT / ".tools/kubernetes"
KUBECTLS = sorted((ROOT / ".tools/kubectl").glob("kubectl-1.*"))
OLDEST_AND_NEWEST = [KUBECTLS[0], KUBECTLS[-1]] if KUBECTLS else []
IMAGE = "coterie/host:latest"
SECONDS = 120.0
MISSING = re.compile("could not find the requested resource")

pytestmark = [
    pytest.mark.skipif(not os.environ.get("COTERIE_REAL_KUBERNETES"), reason="only `make kubernetes` runs this"),
    pytest.mark.timeout(600),
    pytest.mark.slow,
]


class RealKubernetes:
    """The processes, their logs, and kubectl."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.kubeconfig = root / "kubeconfig"
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self._spawn("platform", sys.executable, str(Path(__file__).with_name("platform_process.py")), str(self.root))
        wait_until(self.kubeconfig.exists, "the API server is ready")
        common = (
            f"--kubeconfig={self.kubeconfig}",
            f"--authentication-kubeconfig={self.kubeconfig}",
            f"--authorization-kubeconfig={self.kubeconfig}",
            "--bind-address=127.0.0.1",
            "--v=2",
        )
        self._spawn("scheduler", str(BINARIES / "kube-scheduler"), *common, f"--cert-dir={self.root / 'scheduler'}")
        self._spawn(
            "controller-manager",
            str(BINARIES / "kube-controller-manager"),
            *common,
            f"--cert-dir={self.root / 'controller-manager'}",
            f"--root-ca-file={self.root / 'platform/var/certs/pki/ca.crt'}",
            "--node-monitor-grace-period=60s",
            "--resource-quota-sync-period=5s",  # our API server counts, but leaves the status to the controller
        )

    def _spawn(self, name: str, *command: str) -> None:
        with (self.root / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
            )

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def log(self, name: str) -> str:
        return (self.root / f"{name}.log").read_text(errors="replace")

    def kubectl(self, *words: str, given: Any = None, program: Path | None = None, check: bool = True) -> str:
        ran = subprocess.run(
            [str(program or KUBECTLS[-1]), f"--kubeconfig={self.kubeconfig}", *words],
            input=json.dumps(given) if given is not None else None,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert not check or ran.returncode == 0, f"kubectl {' '.join(words)}: {ran.stderr}"
        return ran.stdout

    def get(self, *words: str) -> Any:
        text = self.kubectl("get", *words, "-o", "json", check=False)
        return json.loads(text) if text else {}

    def apply(self, *objects: dict[str, Any], namespace: str) -> None:
        for obj in objects:
            self.kubectl("apply", "-n", namespace, "-f", "-", given=obj)


def wait_until(check: Callable[[], object], what: str, seconds: float = SECONDS) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, f"it never came to this: {what}"
        time.sleep(0.2)


def workload(
    kind: str, name: str, version: str = "apps/v1", *, script: str = "sleep 1000", **spec: Any
) -> dict[str, Any]:
    pod: dict[str, Any] = {
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "c", "image": IMAGE, "command": ["sh", "-c", script]}],
    }
    template: dict[str, Any] = {"metadata": {"labels": {"app": name}}, "spec": pod}
    if kind == "Job":
        pod["restartPolicy"] = "Never"
    else:
        spec["selector"] = {"matchLabels": {"app": name}}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": {"template": template, **spec}}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKubernetes]:
    cluster = RealKubernetes(tmp_path_factory.mktemp("kubernetes"))
    try:
        cluster.start()
        wait_until(lambda: len(cluster.get("nodes").get("items", ())) == 2, "two nodes have registered")
        wait_until(lambda: cluster.get("serviceaccount", "default", "-n", "default"), "controllers are at work")
        yield cluster
    finally:
        cluster.stop()
        for name in ("platform", "scheduler", "controller-manager"):
            print(f"---- {name}\n" + "\n".join(cluster.log(name).splitlines()[-60:]))


@pytest.fixture
def namespace(cluster: RealKubernetes, request: pytest.FixtureRequest) -> str:
    name = re.sub("[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[-40:].strip("-")
    cluster.kubectl("create", "namespace", name)
    wait_until(lambda: cluster.get("serviceaccount", "default", "-n", name), "the namespace has its account")
    return name


def rolled_out(cluster: RealKubernetes, what: str, namespace: str) -> None:
    cluster.kubectl("rollout", "status", what, "-n", namespace, f"--timeout={SECONDS:.0f}s")


def test_a_deployment_rolls_out_changes_and_goes_back(cluster: RealKubernetes, namespace: str) -> None:
    cluster.apply(workload("Deployment", "web", replicas=3), namespace=namespace)
    rolled_out(cluster, "deployment/web", namespace)
    pods = cluster.get("pods", "-n", namespace)["items"]
    assert {pod["spec"]["nodeName"] for pod in pods} == {"node-1", "node-2"}
    cluster.apply(workload("Deployment", "web", replicas=3, script="sleep 2000"), namespace=namespace)
    rolled_out(cluster, "deployment/web", namespace)
    assert len(cluster.get("replicasets", "-n", namespace)["items"]) == 2
    cluster.kubectl("rollout", "undo", "deployment/web", "-n", namespace)
    rolled_out(cluster, "deployment/web", namespace)


def test_a_stateful_set_starts_its_pods_in_order(cluster: RealKubernetes, namespace: str) -> None:
    cluster.apply(workload("StatefulSet", "db", replicas=2, serviceName="db"), namespace=namespace)
    rolled_out(cluster, "statefulset/db", namespace)
    names = [pod["metadata"]["name"] for pod in cluster.get("pods", "-n", namespace)["items"]]
    assert sorted(names) == ["db-0", "db-1"]
    assert cluster.get("controllerrevisions", "-n", namespace)["items"]


def test_a_daemon_set_runs_on_each_node(cluster: RealKubernetes, namespace: str) -> None:
    cluster.apply(workload("DaemonSet", "each"), namespace=namespace)
    rolled_out(cluster, "daemonset/each", namespace)
    pods = cluster.get("pods", "-n", namespace)["items"]
    assert sorted(pod["spec"]["nodeName"] for pod in pods) == ["node-1", "node-2"]


def test_jobs_complete(cluster: RealKubernetes, namespace: str) -> None:
    job = workload("Job", "once", "batch/v1", script="echo done", completions=3, parallelism=2)
    cluster.apply(job, namespace=namespace)
    cluster.kubectl("wait", "--for=condition=complete", "job/once", "-n", namespace, f"--timeout={SECONDS:.0f}s")
    cron = {"schedule": "* * * * *", "jobTemplate": {"spec": job["spec"]}}
    cluster.apply(
        {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "often"}, "spec": cron}, namespace=namespace
    )
    wait_until(lambda: len(cluster.get("jobs", "-n", namespace)["items"]) > 1, "the CronJob has made a Job")


def test_a_service_gets_its_endpoints(cluster: RealKubernetes, namespace: str) -> None:
    cluster.apply(workload("Deployment", "web", replicas=2), namespace=namespace)
    spec = {"selector": {"app": "web"}, "ports": [{"port": 80}]}
    cluster.apply(
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec}, namespace=namespace
    )
    rolled_out(cluster, "deployment/web", namespace)

    def addresses() -> int:
        slices = cluster.get("endpointslices", "-n", namespace)["items"]
        return sum(len(each.get("endpoints") or ()) for each in slices)

    wait_until(lambda: addresses() == 2, "both pods are endpoints")


def test_owned_objects_are_collected(cluster: RealKubernetes, namespace: str) -> None:
    cluster.apply(workload("Deployment", "web", replicas=2), namespace=namespace)
    rolled_out(cluster, "deployment/web", namespace)
    cluster.kubectl("delete", "deployment/web", "-n", namespace, "--cascade=background")
    wait_until(
        lambda: not cluster.get("replicasets,pods", "-n", namespace)["items"], "nothing of the deployment is left"
    )
    cluster.apply(workload("Deployment", "kept", replicas=1), namespace=namespace)
    rolled_out(cluster, "deployment/kept", namespace)
    cluster.kubectl("delete", "deployment/kept", "-n", namespace, "--cascade=foreground", f"--timeout={SECONDS:.0f}s")
    assert not cluster.get("replicasets", "-n", namespace)["items"]


def test_a_namespace_is_emptied_and_goes(cluster: RealKubernetes, namespace: str) -> None:
    cluster.apply(workload("Deployment", "web", replicas=2), namespace=namespace)
    cluster.kubectl("create", "configmap", "c", "--from-literal=a=b", "-n", namespace)
    rolled_out(cluster, "deployment/web", namespace)
    cluster.kubectl("delete", "namespace", namespace, f"--timeout={SECONDS:.0f}s")
    assert not cluster.get("namespace", namespace)


def test_custom_resources_are_collected_too(cluster: RealKubernetes, namespace: str) -> None:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    spec = {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
    }
    name = {"name": "things.example.com"}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": name,
        "spec": spec,
    }
    cluster.apply(definition, namespace=namespace)
    cluster.kubectl("wait", "--for=condition=established", "crd/things.example.com", f"--timeout={SECONDS:.0f}s")
    cluster.apply({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "owner"}}, namespace=namespace)
    owner = cluster.get("thing", "owner", "-n", namespace)["metadata"]
    reference = {"apiVersion": "example.com/v1", "kind": "Thing", "name": "owner", "uid": owner["uid"]}
    cluster.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owned", "ownerReferences": [reference]}},
        namespace=namespace,
    )
    # The garbage collector looks for new kinds every 30 seconds.
    cluster.kubectl("delete", "thing", "owner", "-n", namespace)
    wait_until(lambda: not cluster.get("configmap", "owned", "-n", namespace), "what it owned is gone", 180.0)


def test_quotas_count(cluster: RealKubernetes, namespace: str) -> None:
    spec = {"hard": {"pods": "1", "configmaps": "5"}}
    cluster.apply(
        {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": spec}, namespace=namespace
    )
    wait_until(lambda: cluster.get("quota", "q", "-n", namespace).get("status", {}).get("used"), "the quota is counted")
    cluster.apply(workload("Deployment", "web", replicas=2), namespace=namespace)

    def used() -> str:
        return str(cluster.get("quota", "q", "-n", namespace)["status"]["used"]["pods"])

    wait_until(lambda: used() == "1", "one pod counts")
    assert len(cluster.get("pods", "-n", namespace)["items"]) == 1


@pytest.mark.parametrize("program", OLDEST_AND_NEWEST, ids=lambda path: path.name)
def test_kubectl_old_and_new(cluster: RealKubernetes, namespace: str, program: Path) -> None:
    def kubectl(*words: str, given: Any = None) -> str:
        return cluster.kubectl("-n", namespace, *words, given=given, program=program)

    kubectl("create", "deployment", "web", f"--image={IMAGE}", "--replicas=1", "--", "sh", "-c", "sleep 1000")
    kubectl("rollout", "status", "deployment/web", f"--timeout={SECONDS:.0f}s")
    kubectl("scale", "deployment/web", "--replicas=2")
    kubectl("rollout", "status", "deployment/web", f"--timeout={SECONDS:.0f}s")
    assert "web" in kubectl("get", "all") and "Normal" in kubectl("describe", "deployment", "web")
    kubectl("delete", "deployment", "web")


@pytest.mark.parametrize("port", [10257, 10259], ids=["controller-manager", "scheduler"])
def test_they_know_our_users(cluster: RealKubernetes, port: int) -> None:
    """Their own endpoints trust the authorities that extension-apiserver-authentication names, and ask us who may."""
    pki = cluster.root / "platform/var/certs/pki"
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def status() -> int:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context)
        try:
            connection.request("GET", "/metrics")
            return connection.getresponse().status
        finally:
            connection.close()

    assert status() == 403
    context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
    assert status() == 200


def test_nothing_was_missing(cluster: RealKubernetes) -> None:
    """Last of this file: the logs of all that happened above."""
    for name in ("scheduler", "controller-manager"):
        found = [line for line in cluster.log(name).splitlines() if MISSING.search(line)]
        assert not found, (name, found[:5])
