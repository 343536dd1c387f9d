"""A control plane of ours on a real Kubernetes: etcd, kube-apiserver and kube-controller-manager; no kubelet, no scheduler.

alice's API server is the cluster, with the rights that `coterie install kubernetes` gives and no others; her own agent is a node
of the cluster. bob has an API server of ours. Not part of `make test`: `make kubernetes` builds the binaries and runs this.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubectl_runner
import pytest
import yaml
from cluster_kit import BINARIES, RealCluster, wait_until
from jobs_kit import Domain, Net, job, network, task

from coterie.base.clock import SYSTEM_CLOCK, rfc3339_micro
from coterie.kube.apiserver.auth.default_roles import parse_rule
from coterie.node.kubernetes_install import (
    ACCOUNT,
    AGENT_LEASE_RULES,
    AGENT_RULES,
    CONTROLLER_RULES,
    LEASE_RULES,
    NAMESPACE,
)

pytestmark = [
    pytest.mark.skipif(not os.environ.get("COTERIE_REAL_KUBERNETES"), reason="only `make kubernetes` runs this"),
    pytest.mark.timeout(900),
    pytest.mark.slow,
]
USER = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
CHART = Path(__file__).resolve().parents[2] / "charts/coterie"
_ROOMY: dict[str, Any] = {"capacity": {"cpu": 4, "memory": "8Gi"}, "reservedResources": {"cpu": 0, "memory": 0}}


def coterie(*words: str, code: int = 0) -> str:
    ran = subprocess.run([sys.executable, "-m", "coterie", *words], capture_output=True, text=True, timeout=300)
    assert ran.returncode == code, f"coterie {' '.join(words)}: {ran.stdout}{ran.stderr}"
    return ran.stdout + ran.stderr


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    made = RealCluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.start()
        yield made
    finally:
        made.stop()
        for name in ("kube-apiserver", "kube-controller-manager"):
            print(f"---- {name}\n" + "\n".join(made.log(name).splitlines()[-30:]))


def install(cluster: RealCluster, *words: str) -> str:
    return coterie("install", "kubernetes", *words, "--kubeconfig", str(cluster.kubeconfig))


@pytest.fixture(scope="module")
def account(cluster: RealCluster) -> Path:
    """The kubeconfig of the account that the installation made."""
    install(cluster, "--apply", "--agent", "alice")
    file = cluster.account_kubeconfig(NAMESPACE, ACCOUNT, cluster.root / "coterie.kubeconfig")
    attempt = ("create", "namespace", "evil", "--dry-run=server")
    # The API server reads new policies within a second.
    wait_until(lambda: cluster.try_kubectl(*attempt, config=file).returncode, "policies are in force")
    return file


def image(name: str, script: str, restart: str) -> dict[str, Any]:
    container = {
        "name": "main",
        "workingDir": "/tmp",
        "command": ["sh", "-c", script],
        "ports": [{"name": "peer", "port": 20000, "protocol": "HTTP", "scope": "Cluster"}],
    }
    template = {"name": name, "replicas": 1, "spec": {"restartPolicy": restart, "containers": [container]}}
    return {
        "apiVersion": "kuscia.secretflow/v1alpha1",
        "kind": "AppImage",
        "metadata": {"name": name},
        "spec": {"image": {"name": "coterie/host", "tag": "latest"}, "deployTemplates": [template]},
    }


IMAGES = (
    image("short", "echo done", "Never"),
    image("long", "sleep 1000", "Never"),
    image("server", "echo serving; sleep 1000", "Always"),
)


@pytest.fixture(scope="module")
def net(cluster: RealCluster, account: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    real = {"apiServer": {"kubeconfig": str(account), "host": None, "port": None}, **_ROOMY}
    root = tmp_path_factory.mktemp("net") / "net"
    version = kubectl_runner.chosen()[-1]
    with network(root, "p2p", "alice", "bob", kubectl=version, settings={"alice": real, "bob": _ROOMY}) as made:
        made.register(*IMAGES)
        yield made
        print("\n".join(made.domains["alice"].said().splitlines()[-80:]))


def phase(domain: Domain, name: str) -> str:
    shown = domain.try_kubectl("get", "kj", name, "-n", "cross-domain", "-o", "jsonpath={.status.phase}")
    return shown.out


def run_job(net: Net, name: str, initiator: str) -> None:
    parts = [task("a", "alice", "bob", image="short")]
    net.domains[initiator].apply(job(name, initiator, *parts))
    for domain in net.domains.values():
        wait_until(lambda d=domain: phase(d, name) in ("Succeeded", "Failed"), f"job {name} ended at {domain.name}")
        assert phase(domain, name) == "Succeeded"


@pytest.mark.parametrize("initiator", ["alice", "bob"])
def test_a_job_of_two_parties(cluster: RealCluster, net: Net, initiator: str) -> None:
    run_job(net, f"by-{initiator}", initiator)
    bound = [each for each in cluster.audited(USER) if each["objectRef"].get("subresource") == "binding"]
    assert bound, "pods were bound by our scheduler"
    nodes = {each["metadata"]["name"]: each for each in cluster.get("nodes")["items"]}
    (node,) = nodes.values()
    assert any(each["key"] == "kuscia.secretflow/agent" for each in node["spec"]["taints"])


def test_a_serving_has_pods_with_output_and_commands(cluster: RealCluster, net: Net) -> None:
    """Deployment and ReplicaSet are the cluster's, its scheduler is ours, the node is our agent."""
    served = {
        "apiVersion": "kuscia.secretflow/v1alpha1",
        "kind": "KusciaDeployment",
        "metadata": {"name": "served", "namespace": "cross-domain"},
        "spec": {
            "initiator": "alice",
            "inputConfig": "{}",
            "parties": [{"domainID": "alice", "appImageRef": "server"}],
        },
    }
    net.domains["alice"].apply(served)

    def running() -> list[str]:
        pods = cluster.get("pods", "-n", "alice")["items"]
        return [each["metadata"]["name"] for each in pods if each["status"]["phase"] == "Running"]

    wait_until(running, "its pod runs")
    wait_until(lambda: "serving" in cluster.try_kubectl("logs", "-n", "alice", running()[0]).stdout, "it printed")
    assert cluster.kubectl("exec", "-n", "alice", running()[0], "--", "echo", "hello").strip() == "hello"
    cluster.kubectl("delete", "kd", "served", "-n", "cross-domain", "--timeout=60s")
    wait_until(lambda: not cluster.get("deployments,pods,services", "-n", "alice")["items"], "nothing of it is left")


def test_jobs_go_on_after_the_api_server_was_restarted(cluster: RealCluster, net: Net) -> None:
    cluster.restart("kube-apiserver")
    run_job(net, "after-restart", "alice")


def test_controllers_stop_while_somebody_else_leads(cluster: RealCluster, net: Net) -> None:
    lease = cluster.get("lease", "coterie-controllers", "-n", "cross-domain")["spec"]
    assert lease["holderIdentity"].startswith("alice/")
    other = {"holderIdentity": "alice/other", "leaseDurationSeconds": 5, "renewTime": rfc3339_micro(SYSTEM_CLOCK.now())}
    cluster.kubectl(
        "patch", "lease", "coterie-controllers", "-n", "cross-domain", "--type=merge", "-p", json.dumps({"spec": other})
    )

    def holder() -> str:
        return str(cluster.get("lease", "coterie-controllers", "-n", "cross-domain")["spec"]["holderIdentity"])

    assert holder() == "alice/other"
    wait_until(lambda: holder() != "alice/other", "ours leads again once the other is gone")
    run_job(net, "after-election", "bob")


ATTACKS = {
    "another namespace": ("create", "namespace", "evil"),
    "a label on another namespace": ("label", "namespace", "kube-system", "kuscia.secretflow/domain-name=x"),
    "a binding elsewhere": (
        "create", "rolebinding", "x", "-n", "kube-system", "--clusterrole=coterie:domain", f"--serviceaccount={NAMESPACE}:{ACCOUNT}",
    ),
    "a binding everywhere": ("create", "clusterrolebinding", "x", "--clusterrole=coterie:domain", f"--serviceaccount={NAMESPACE}:{ACCOUNT}"),
    "cluster-admin": ("create", "clusterrolebinding", "x", "--clusterrole=cluster-admin", f"--serviceaccount={NAMESPACE}:{ACCOUNT}"),
    "a role": ("create", "role", "x", "-n", "alice", "--verb=*", "--resource=pods"),
    "secrets": ("get", "secrets", "-A"),
    "a token of another account": ("create", "token", "default", "-n", "kube-system"),
    "a pod elsewhere": ("run", "x", "--image=x", "-n", "kube-system"),
    "somebody's node": ("label", "node", "theirs", "x=y"),
    "somebody's lease": ("annotate", "lease", "theirs", "-n", "kube-node-lease", "x=y"),
}  # fmt: skip


@pytest.fixture(scope="module")
def theirs(cluster: RealCluster) -> None:
    """A node of the cluster that is not ours, with its lease."""
    cluster.kubectl(
        "apply", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "theirs"}})
    )
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "theirs", "namespace": "kube-node-lease"},
    }
    cluster.kubectl("apply", "-f", "-", given=json.dumps(lease))


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_account_cannot_give_itself_more(cluster: RealCluster, account: Path, theirs: None, attack: str) -> None:
    refused = cluster.try_kubectl(*ATTACKS[attack], config=account)
    assert refused.returncode != 0, refused.stdout
    assert "orbidden" in refused.stderr or "denied request" in refused.stderr, refused.stderr


def test_a_domain_writes_its_own_nodes_only(cluster: RealCluster, net: Net, theirs: None) -> None:
    """With the account of a domain that lives under this control plane; its token never leaves the gateway, but pods of it could have one."""
    carol = {"apiVersion": "kuscia.secretflow/v1alpha1", "kind": "Domain", "metadata": {"name": "carol"}, "spec": {}}
    net.domains["alice"].apply(carol)
    wait_until(lambda: cluster.get("clusterrolebinding", "carol"), "carol has her rights")
    as_carol = cluster.account_kubeconfig("carol", "carol", cluster.root / "carol.kubeconfig")

    def node(name: str, owner: str) -> str:
        meta = {"name": name, "labels": {"kuscia.secretflow/namespace": owner}}
        return json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": meta})

    def lease(name: str, namespace: str, owner: str) -> str:
        meta = {"name": name, "namespace": namespace, "labels": {"kuscia.secretflow/namespace": owner}}
        return json.dumps({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta})

    cluster.kubectl("create", "-f", "-", given=node("carol-1", "carol"), config=as_carol)
    cluster.kubectl("create", "-f", "-", given=lease("carol-1", "kube-node-lease", "carol"), config=as_carol)
    for words, given in (
        (("create", "-f", "-"), node("carol-2", "alice")),
        (("create", "-f", "-"), lease("carol-2", "kube-node-lease", "alice")),
        (("create", "-f", "-"), lease("carol-2", "kube-system", "carol")),
        (("label", "--overwrite", "node", "theirs", "kuscia.secretflow/namespace=carol"), ""),
        (("delete", "node", "theirs"), ""),
        (("delete", "node", net.domains["alice"].settings.agent.node_name), ""),
        (("label", "node", "carol-1", "kuscia.secretflow/namespace-"), ""),
        (("annotate", "lease", "theirs", "-n", "kube-node-lease", "x=y"), ""),
        (("get", "secrets", "-n", "alice"), ""),
        (("get", "pods", "-n", "kube-system"), ""),
    ):
        refused = cluster.try_kubectl(*words, given=given, config=as_carol)
        assert refused.returncode != 0, (words, refused.stdout)
    cluster.kubectl("delete", "node", "carol-1", config=as_carol)


def test_another_control_plane_is_refused(cluster: RealCluster, net: Net, account: Path, tmp_path: Path) -> None:
    file = tmp_path / "dave.yaml"
    file.write_text(
        yaml.safe_dump(
            {"mode": "master", "domainID": "dave", "apiServer": {"kubeconfig": str(account)}, "dns": {"enabled": False}}
        )
    )
    told = coterie("start", "-c", str(file), "--root", str(tmp_path), code=1)
    assert 'this cluster has the control plane of "alice"' in told


RARE = {
    # When something goes wrong or changes: a claim waits for its node, a route gets another port, an old object comes back.
    ("", "persistentvolumeclaims", "patch"), ("", "configmaps", "update"), ("", "configmaps", "patch"), ("", "configmaps", "delete"),
    ("", "services", "patch"), ("", "services", "update"), ("", "resourcequotas", "create"), ("", "resourcequotas", "patch"),
    ("", "resourcequotas", "delete"), ("", "namespaces", "patch"), ("", "events", "patch"), ("", "pods", "patch"),
    ("", "pods/log", "get"), ("apps", "deployments", "update"), ("", "nodes", "patch"), ("", "nodes", "update"), ("", "nodes", "delete"),
    ("", "nodes/status", "update"),
    # Of Domains that are deleted; server-side apply asks for it when there is nothing yet.
    *((group, kind, verb) for group, kind in (("", "serviceaccounts"), ("rbac.authorization.k8s.io", "rolebindings"), ("rbac.authorization.k8s.io", "clusterrolebindings"))
      for verb in ("create", "delete")),
}  # fmt: skip


def test_rights_are_what_is_used(cluster: RealCluster, net: Net) -> None:
    """By the API server's own word, for everything that happened above: nothing was refused, and little else is allowed."""
    used, refused = set(), []
    for event in cluster.audited(USER):
        if event.get("userAgent", "").startswith("kubectl"):
            continue  # the attacks
        target = event["objectRef"]
        resource = "/".join(filter(None, (target["resource"], target.get("subresource"))))
        restarting = cluster.restarted_at <= event["requestReceivedTimestamp"] <= cluster.ready_again_at
        if event.get("responseStatus", {}).get("code") == 403 and not restarting:
            refused.append((event["verb"], event["requestURI"], event["responseStatus"].get("message")))
        used.add((target.get("apiGroup", ""), resource, event["verb"]))
    assert not refused
    allowed = {
        (group, resource, verb)
        for line in (*CONTROLLER_RULES, *LEASE_RULES, *AGENT_RULES, *AGENT_LEASE_RULES)
        for rule in [parse_rule(line)]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if group != "kuscia.secretflow" and verb not in ("get", "list", "watch")
    }
    assert allowed - used - RARE == set()
    read = {(group, resource) for group, resource, verb in used if verb in ("get", "list", "watch")}
    readable = {
        (rule["apiGroups"][0], resource)
        for line in CONTROLLER_RULES
        for rule in [parse_rule(line)]
        for resource in rule["resources"]
        if "watch" in rule["verbs"] and rule["apiGroups"] != ["kuscia.secretflow"]
    }
    assert readable - read == set()


# The chart.

CHART_VALUES: dict[str, dict[str, Any]] = {
    "master": {},
    "master-on-the-cluster": {"controlPlane": "kubernetes"},
    "masters": {"replicas": 2, "domainKey": "a2V5", "store": "postgresql://c@db/c", "storeSecret": "db", "networkPolicy": {"operators": [{"podSelector": {}}]}},
    "lite": {"mode": "lite", "runk": {"namespace": "engines"}, "lite": {"masterEndpoint": "https://m:1080", "deployToken": "t"}},
    "autonomy": {"mode": "autonomy", "runk": {"namespace": "engines"}, "image": {"repository": "r/c", "tag": "1", "pullSecrets": ["p"]}},
    "autonomy-with-processes": {"mode": "autonomy", "runtime": "runp", "affinity": {"nodeAffinity": {}}, "nodeSelector": {"a": "b"}},
}  # fmt: skip


def helm(cluster: RealCluster, folder: Path, *words: str, values: dict[str, Any] | None = None) -> str:
    command = [str(BINARIES / "helm"), *words, "--kubeconfig", str(cluster.kubeconfig)]
    if values is not None:
        file = folder / "values.yaml"
        file.write_text(yaml.safe_dump({"domainID": "alice", "image": {"repository": "r/c"}, **values}))
        command += ["-f", str(file)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, env={"HOME": str(folder)})
    assert ran.returncode == 0, f"helm {' '.join(words)}: {ran.stdout}{ran.stderr}"
    return ran.stdout


@pytest.fixture(scope="module")
def engines(cluster: RealCluster) -> None:
    for name in ("engines", "release"):
        cluster.kubectl("create", "namespace", name)
        # What the chart makes must be admitted under the strictest profile of Pod Security.
        cluster.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")


@pytest.mark.parametrize("variant", CHART_VALUES)
def test_the_api_server_takes_what_the_chart_makes(
    cluster: RealCluster, engines: None, tmp_path: Path, variant: str
) -> None:
    made = helm(
        cluster,
        tmp_path,
        "template",
        "rel",
        str(CHART),
        "-n",
        "release",
        "--kube-version",
        "1.36.3",
        values=CHART_VALUES[variant],
    )
    said = cluster.try_kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", given=made)
    assert said.returncode == 0 and "unknown field" not in said.stderr, said.stderr
    assert "violate PodSecurity" not in said.stderr, said.stderr


def test_a_release_is_installed_changed_and_removed(cluster: RealCluster, engines: None, tmp_path: Path) -> None:
    """Pods are made by the cluster's controllers, and wait: there is no kubelet."""
    release = ("rel", str(CHART), "-n", "release")
    helm(cluster, tmp_path, "install", *release, values=CHART_VALUES["autonomy"])
    wait_until(lambda: cluster.get("pod", "rel-0", "-n", "release"), "its pod is made")
    first = cluster.get("statefulset", "rel", "-n", "release")["spec"]["template"]["metadata"]["annotations"]
    helm(
        cluster,
        tmp_path,
        "upgrade",
        *release,
        values={**CHART_VALUES["autonomy"], "config": {"logLevel": "DEBUG"}, "service": {"type": "NodePort"}},
    )
    second = cluster.get("statefulset", "rel", "-n", "release")["spec"]["template"]["metadata"]["annotations"]
    assert first["checksum/config"] != second["checksum/config"]
    assert cluster.get("service", "rel", "-n", "release")["spec"]["type"] == "NodePort"
    helm(cluster, tmp_path, "uninstall", "rel", "-n", "release")
    kinds = "statefulsets,services,secrets,roles,rolebindings,networkpolicies,pods"
    wait_until(lambda: not cluster.get(kinds, "-n", "release")["items"], "nothing but the claim is left")
    assert [each["metadata"]["name"] for each in cluster.get("pvc", "-n", "release")["items"]] == ["data-rel-0"]
    assert not cluster.get("roles,rolebindings", "-n", "engines")["items"]


# The end.


def test_removing_while_the_controllers_run(cluster: RealCluster, net: Net) -> None:
    """The last one with the network: afterwards nothing of ours is in the cluster."""
    net.domains["alice"].apply(job("hanging", "alice", task("a", "alice", image="long")))
    wait_until(lambda: cluster.get("pods", "-n", "alice")["items"], "a task runs")
    said = install(cluster, "--delete", "--domains", "--agent", "alice")
    assert "finalizers" not in said, said
    for kind in ("crd", "clusterrole", "clusterrolebinding", "validatingadmissionpolicy", "flowschema"):
        names = cluster.kubectl("get", kind, "-o", "name").split()
        assert not [each for each in names if "coterie" in each or "kuscia" in each or "domain-cluster" in each], (
            kind,
            names,
        )
    wait_until(lambda: not {"alice", "bob", "carol", "cross-domain", NAMESPACE} & set(
        each["metadata"]["name"] for each in cluster.get("namespaces")["items"]
    ), "the namespaces are gone")  # fmt: skip
    net.domains["alice"].kill()


def test_removing_without_controllers_does_not_hang(cluster: RealCluster, net: Net) -> None:
    install(cluster, "--apply")
    held = {
        "apiVersion": "kuscia.secretflow/v1alpha1",
        "kind": "KusciaDeployment",
        "metadata": {"name": "held", "namespace": "cross-domain", "finalizers": ["coterie.io/deployment-resources"]},
        "spec": {
            "initiator": "alice",
            "inputConfig": "{}",
            "parties": [{"domainID": "alice", "appImageRef": "server"}],
        },
    }
    cluster.kubectl("apply", "-f", "-", given=json.dumps(held))
    began = time.monotonic()
    assert "finalizers" in install(cluster, "--delete", "--timeout", "3s")
    assert time.monotonic() - began < 120
    wait_until(lambda: not cluster.get("namespace", "cross-domain"), "the namespace is gone")
    assert not [each for each in cluster.kubectl("get", "crd", "-o", "name").split() if "kuscia" in each]
