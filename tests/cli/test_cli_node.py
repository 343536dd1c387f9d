"""start, kubectl and demo: the commands that deal with this machine instead of an API."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from coterie.base import pki
from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.paths import DomainPaths
from coterie.cli.app import App
from coterie.cli.commands import demo, node_add, node_describe
from coterie.cli.commands import kubectl as kubectl_command
from coterie.cli.nodes import drain
from coterie.kube.api.labels import RUNTIME_HANDLERS
from coterie.kube.client import kubeconfig
from coterie.kube.client.http_transport import HttpTransport
from coterie.kube.client.kubeconfig import ClusterConnection
from coterie.kuscia.engine.certificates import DomainAuthority
from coterie.kuscia.identity import domain_identity, engine_certificates
from coterie.node import api_identity, join_bundle
from coterie.node.cluster_network import ClusterNetwork

TOKEN = "a-token-for-tests"
"""Of the server in conftest."""

# node


class _Plane:
    """The files of a control plane that ran once, and a real API server behind them."""

    def __init__(self, cli, server) -> None:
        self.paths = DomainPaths.of(cli.folder / "root", "alice")
        self.paths.prepare()
        api_identity.ensure(self.paths, ("127.0.0.1", "api.example"), SYSTEM_CLOCK)
        ca = (self.paths.pki / "ca.crt").read_bytes()
        kubeconfig.make("alice", "https://127.0.0.1:6443", ca=ca).write(self.paths.kubeconfig)
        self._cli = cli
        self.server = f"http://127.0.0.1:{server.port}"

    def __call__(self, *words: str, stdin: str = ""):
        """A command with a new connection each: the server has no certificate for what the kubeconfig says."""
        self._cli.transport = HttpTransport(ClusterConnection(server=self.server, token=TOKEN))
        return self._cli("--root", "root", *words, stdin=stdin)

    def apply(self, *objects: dict[str, object]) -> None:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        made = self("apply", "-f", "-", stdin=text)
        assert made.code == 0, made.err


def _patch_status(server: str, path: str, status: dict[str, object]) -> None:
    request = urllib.request.Request(
        f"{server}{path}/status",
        json.dumps({"status": status}).encode(),
        {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/merge-patch+json"},
        method="PATCH",
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200


def _node(name: str, **spec: object) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec}


NETWORK = ClusterNetwork("100.96.0.0/12", 20, "100.112.0.0/16", 4711, "100.96.0.1")


@pytest.fixture
def plane(cli, server):
    made = _Plane(cli, server)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}}
    meta = {"name": "coterie-network", "namespace": "kube-system"}
    made.apply(namespace, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": NETWORK.data()})
    yield made
    made("delete", "node", "node-2")


def test_node_add_makes_a_secret_file_with_which_a_node_joins(cli, plane):
    plane.apply(_node("node-2", podCIDR="100.96.16.0/20"))
    words = ("--server", "https://api.example:6443", "--address", "10.0.0.2", "--address", "10.1.0.2", "-o", "n.join")
    told = plane("node", "add", "node-2", *words)
    assert (told.code, told.err) == (0, "")
    assert "coterie node join n.join" in told.out
    file = cli.folder / "n.join"
    assert file.stat().st_mode & 0o777 == 0o600
    bundle = join_bundle.read_bundle(file)
    assert (bundle.server, bundle.node, bundle.domain) == ("https://api.example:6443", "node-2", "alice")
    assert (bundle.pod_cidr, bundle.cluster_cidr, bundle.node_mask_size) == ("100.96.16.0/20", "100.96.0.0/12", 20)
    assert (bundle.service_cidr, bundle.vni, bundle.gateway) == ("100.112.0.0/16", 4711, "100.96.0.1")
    assert bundle.addresses == ("10.0.0.2", "10.1.0.2")
    served = pki.load_certificate(bundle.serving_certificate)
    assert {"node-2", "10.0.0.2", "10.1.0.2"} <= set(pki.names_of(served))
    assert pki.subject_of(pki.load_certificate(bundle.certificate)) == ("system:node:node-2", ("system:nodes",))
    again = plane("node", "add", "node-2", *words[:-1], "-")
    assert join_bundle.parse_bundle(again.out.encode(), "-").pod_cidr == "100.96.16.0/20", "a new file for a known node"


def test_the_join_file_has_an_authority_for_the_nodes_engines(cli, plane):
    plane.apply(_node("node-2", podCIDR="100.96.16.0/20"))
    now, paths = SYSTEM_CLOCK.now(), plane.paths
    domain_identity.ensure(paths, "alice", None, now)
    assert plane("node", "add", "node-2", "--address", "127.0.0.1", "-o", "n.join").code == 0
    bundle = join_bundle.read_bundle(cli.folder / "n.join")
    assert bundle.engines.able
    assert "PRIVATE" not in repr(bundle) + repr(bundle.engines)
    made, domain = bundle.engines.load(), DomainAuthority(paths).load()
    assert pki.signed_by(made.certificate, domain.certificate)
    assert made.certificate.not_valid_after_utc >= pki.load_certificate(bundle.certificate).not_valid_after_utc
    assert bundle.engines.trusted() == DomainAuthority(paths).trusted()
    pair = engine_certificates.issue_client_pair(made, engine_certificates.EngineIdentity("alice", "p", "u"), now)
    engine = engine_certificates.engine_of(pki.load_certificate(pair.certificate))
    assert (engine.node, engine.issued_for("node-2"), engine.issued_for("node-1")) == ("node-2", True, False)


def test_node_add_beside_the_control_plane_needs_no_server(cli, plane):
    plane.apply(_node("node-2", podCIDR="100.96.16.0/20"))
    assert plane("node", "add", "node-2", "--address", "127.0.0.1").code == 0
    assert join_bundle.read_bundle(cli.folder / "node-2.join").server == "https://127.0.0.1:6443"


def test_node_add_says_why_there_are_no_addresses_left(cli, plane):
    plane.apply(_node("node-2"))
    condition = {"type": "NetworkUnavailable", "status": "True", "message": "all 4 ranges are in use"}
    _patch_status(plane.server, "/api/v1/nodes/node-2", {"conditions": [condition]})
    told = plane("node", "add", "node-2", "--address", "127.0.0.1")
    assert (told.code, told.err) == (1, "Error: node node-2 got no pod addresses: all 4 ranges are in use\n")
    assert not (cli.folder / "node-2.join").exists()


def test_node_add_at_a_control_plane_of_before(cli, plane):
    plane("-n", "kube-system", "delete", "configmap", "coterie-network")
    told = plane("node", "add", "node-2", "--address", "127.0.0.1")
    assert told.code == 1 and "runs an earlier version" in told.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("Node_2", "--address", "10.0.0.2", "-o", "f"), 2, "no valid name"),
        (("n", "--address", "elsewhere", "-o", "f"), 2, "is not an IP address"),
        (("n", "-o", "f"), 2, "--address is needed"),
        (("n", "--address", "10.0.0.2", "-o", "f"), 2, "cannot reach it; set apiServer.host"),
        (("n", "--address", "10.0.0.2", "-o", "f", "--server", "api.example"), 2, "is not an address such as"),
        (("n", "--address", "10.0.0.2", "-o", "f", "--server", "https://other:1"), 1, "apiServer.names"),
        (("n", "--address", "127.0.0.1", "-o", "no/f"), 1, "no/f cannot be written"),
        (("n", "--address", "127.0.0.1", "-o", "f", "--domain", "bob"), 1, "bob"),
    ],
    ids=["name", "address", "no-address", "loopback", "no-url", "certificate", "directory", "domain"],
)
def test_node_add_refuses(cli, plane, words, code, said):
    told = plane("node", "add", *words)
    assert (told.code, said in told.err) == (code, True), told.err
    assert not (cli.folder / "f").exists()


def test_a_node_that_is_not_there_yet_is_asked_for_with_its_addresses():
    made = node_add._new_node("n", ("10.0.0.2", "10.1.0.2"), "alice")
    internal = [each["address"] for each in made["status"]["addresses"] if each["type"] == "InternalIP"]
    assert internal == ["10.0.0.2", "10.1.0.2"]
    assert made["status"]["conditions"][0]["status"] == "Unknown", "nothing is scheduled there"


def _bundle(**more: object) -> join_bundle.Bundle:
    fields = {"addresses": ("127.0.0.1",), "domain": "alice", "pod_cidr": "100.96.16.0/20", **more}
    return join_bundle.Bundle("https://127.0.0.1:1", "node-2", *[b"x"] * 5, **fields)


def _written(cli, bundle: join_bundle.Bundle) -> str:
    bundle.write(cli.folder / "n.join")
    return "n.join"


@pytest.mark.parametrize(
    ("bundle", "said"),
    [
        (_bundle(domain=""), "was made by an earlier version; make a new one with `coterie node add node-2`"),
        (
            _bundle(addresses=("203.0.113.1", "203.0.113.2")),
            "this machine has none of the addresses in the file (203.0.113.1, ",
        ),
        (_bundle(), "the certificates in the file cannot be used; make a new one"),
    ],
    ids=["earlier-version", "other-machine", "certificates"],
)
def test_node_join_refuses(cli, bundle, said):
    told = cli("--root", "root", "node", "join", _written(cli, bundle))
    assert (told.code, said in told.err) == (1, True), told.err


def test_node_join_says_when_the_control_plane_is_not_reached(cli, plane):
    plane.apply(_node("node-2", podCIDR="100.96.16.0/20"))
    assert plane("node", "add", "node-2", "--address", "127.0.0.1", "-o", "n.join").code == 0
    told = cli("--root", "other", "node", "join", "n.join")
    assert told.code == 1
    assert "the control plane at https://127.0.0.1:6443 cannot be reached from this machine" in told.err
    assert "route to it" in told.err


@pytest.mark.parametrize("content", ["", "[", "a: b", "node: x\nserver: y\nca: '!'"])
def test_node_join_refuses_what_is_no_join_file(cli, content):
    told = cli("--root", "root", "node", "join", "-", stdin=content)
    assert (told.code, told.err) == (1, "Error: standard input: is not a file that `coterie node add` made\n")


@pytest.mark.parametrize("words", [("join",), ("leave",), ("reset", "--force")])
def test_without_a_node_on_this_machine(cli, words):
    told = cli("--root", "root", "node", *words)
    assert told.code == 1
    assert told.err.endswith(
        "there is no node under " + str(cli.folder / "root") + "; `coterie node join FILE` starts one\n"
    )


def test_a_control_plane_is_not_reset(cli):
    etc = cli.folder / "root" / "alice" / "etc"
    etc.mkdir(parents=True)
    (etc / "coterie.yaml").write_text("mode: autonomy\ndomainID: alice\n")
    told = cli("--root", "root", "node", "reset", "--force")
    assert (told.code, "alice under" in told.err, "`coterie down`" in told.err) == (1, True, True)
    assert etc.exists()


# drain


def _pod(name: str, owner: str = "ReplicaSet", phase: str = "Running", **spec: object) -> dict[str, object]:
    owners = [{"kind": owner, "name": "o", "uid": "u", "apiVersion": "v1", "controller": True}] if owner else []
    meta = {"name": name, "namespace": "default", "uid": name, "ownerReferences": owners}
    return {"metadata": meta, "spec": {"nodeName": "n", **spec}, "status": {"phase": phase}}


_EMPTY_DIR = [{"name": "v", "emptyDir": {}}]


@pytest.mark.parametrize(
    ("pods", "options", "evicted", "problem"),
    [
        ([_pod("web")], {}, ["web"], ""),
        ([_pod("bare", "")], {}, ["bare"], "evict them with --force: default/bare"),
        ([_pod("bare", "")], {"force": True}, ["bare"], ""),
        ([_pod("bare", "", "Succeeded")], {}, ["bare"], ""),
        ([_pod("agent", "DaemonSet"), _pod("web")], {}, ["web"], "with --ignore-daemonsets: default/agent"),
        ([_pod("agent", "DaemonSet"), _pod("web")], {"ignore_daemonsets": True}, ["web"], ""),
        ([_pod("agent", "DaemonSet", "Failed")], {}, ["agent"], ""),
        ([_pod("cache", volumes=_EMPTY_DIR)], {}, ["cache"], "--delete-emptydir-data: default/cache"),
        ([_pod("cache", volumes=_EMPTY_DIR)], {"delete_emptydir_data": True}, ["cache"], ""),
    ],
)
def test_which_pods_are_evicted(pods, options, evicted, problem):
    found = drain.sort_pods(pods, drain.DrainOptions(**options))
    assert [pod["metadata"]["name"] for pod in found.evicted] == evicted
    assert [problem in each for each in found.problems] == ([True] if problem else [])


def test_drain_evicts_and_waits_for_budgets(live, server):
    """Of a node without an agent, so nobody lets deleted pods go but their grace of 0 s."""
    node = f"drained-{os.getpid()}"

    def apply(*objects: dict[str, object]) -> None:
        assert (
            live("apply", "-f", "-", stdin=json.dumps({"kind": "List", "apiVersion": "v1", "items": objects})).code == 0
        )

    containers = [{"name": "c", "image": "i"}]
    owner = {"kind": "ReplicaSet", "name": "o", "uid": "u", "apiVersion": "apps/v1", "controller": True}
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": name}, "ownerReferences": [owner]},
            "spec": {"nodeName": node, "containers": containers},
        }
        for name in ("free", "guarded")
    ]
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "guarded"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "guarded"}}},
    }
    apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}, *pods, budget)
    namespace = json.loads(live("get", "pod", "guarded", "-o", "json").out)["metadata"]["namespace"]
    running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    _patch_status(f"http://127.0.0.1:{server.port}", f"/api/v1/namespaces/{namespace}/pods/guarded", running)
    told = live("node", "drain", node, "--timeout", "2s", "--grace-period", "0")
    assert told.code == 1
    assert "is cordoned, but not empty after 2 s" in told.err and "guarded: " in told.err, told.err
    assert live("get", "pods", "-o", "name", "--no-headers").lines == ["pod/guarded"]
    assert live("get", "node", node, "-o", "json").out.count('"unschedulable": true') == 1
    assert live("delete", "pdb", "guarded").code == 0
    told = live("node", "drain", node, "--grace-period", "0", "-o", "json")
    assert told.code == 0, told.err
    document = json.loads(told.out)
    assert (document["node"], document["drained"], len(document["evicted"])) == (node, True, 1)
    live("delete", "node", node)


def test_describe_tells_what_runs_containers(live, server):
    name = f"described-{os.getpid()}"
    about = {
        "handlers": [
            {"name": "runp", "available": True, "version": "1.2"},
            {"name": "runc", "available": True, "version": "1.1.5"},
            {"name": "gvisor", "available": False, "why": "runsc is not installed; install it"},
        ],
        "limitations": ["Landlock is not used."],
    }
    notes = {"coterie.io/runtime": json.dumps(about)}
    labels = {"nvidia.com/gpu.product": "NVIDIA-H200"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "annotations": notes, "labels": labels}}
    assert live("apply", "-f", "-", stdin=json.dumps(node)).code == 0
    gpus = {"capacity": {"cpu": "2", "nvidia.com/gpu": "2"}, "allocatable": {"cpu": "2", "nvidia.com/gpu": "1"}}
    _patch_status(f"http://127.0.0.1:{server.port}", f"/api/v1/nodes/{name}", gpus)
    found = live("node", "describe", name)
    assert found.code == 0, found.err
    for words in (
        r"runp +1\.2 +3 ms +0 +namespaces",
        r"gvisor: +runsc is not installed; install it",
        r"nvidia\.com/gpu +2 +1 +NVIDIA-H200",
        r"Missing walls and limits:\n +Landlock is not used\.\n +runc 1\.1\.5 is older than 1\.1\.12",
    ):
        assert re.search(words, found.out), found.out
    document = json.loads(live("node", "describe", name, "-o", "json").out)
    assert document["handlers"][2] | {"wall": ""} == {
        **about["handlers"][2],
        "version": "",
        "startMedian": "135 ms",
        "memoryPerPod": "40 MB",
        "wall": "",
    }
    assert live("node", "describe", "nowhere").code == 1
    assert live("delete", "node", name).code == 0


def test_costs_are_those_of_the_guide():
    page = (Path(__file__).parents[2] / "docs" / "guide" / "sandboxes.md").read_text()
    for name, cost in node_describe.COSTS.items():
        assert f"| `{name}` | {cost.wall} | {cost.start} | {cost.memory} |" in page
    assert tuple(node_describe.COSTS) == RUNTIME_HANDLERS


def test_drain_of_a_node_that_is_not_there(live):
    told = live("node", "drain", "nowhere")
    assert told.code == 1 and 'nodes "nowhere" not found' in told.err


# start


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read"),
        ("mode: [", "is not YAML"),
        ("mode: master\n", "domainID: is missing"),
        ("mode: master\ndomainID: alice\nfoo: 1\n", "foo: is not a known key"),
        ("mode: lite\ndomainID: alice\n", "masterEndpoint: is missing: a lite node needs"),
    ],
    ids=["missing", "no-yaml", "no-domain", "unknown-key", "no-join"],
)
def test_start_with_a_bad_file_is_one_sentence(cli, text, said):
    if text is not None:
        (cli.folder / "c.yaml").write_text(text)
    told = cli("start", "-c", "c.yaml", "--root", str(cli.folder))
    assert told.code == 1
    assert told.err.startswith("Error: ")
    assert said in told.err
    assert "Traceback" not in told.err


def _start(folder: Path, port: int = 0) -> subprocess.Popen[str]:
    file = folder / f"c{port}.yaml"
    file.write_text(
        f"mode: master\ndomainID: alice\nlogLevel: WARN\ndns: {{enabled: false}}\ngateway: {{enabled: false}}\napiServer: {{port: {port}}}\n"
    )
    return subprocess.Popen(
        [sys.executable, "-m", "coterie", "start", "-c", str(file), "--root", str(folder)],
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def _until(condition, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["sigterm", "ctrl-c"])
def test_start_serves_until_it_is_told_to_stop(cli, number):
    child = _start(cli.folder)
    try:
        _until(lambda: (cli.folder / "alice" / "kubeconfig").exists() or child.poll() is not None)
        told = cli("--root", str(cli.folder), "status")
        assert told.code == 0, told.err
        child.send_signal(number)
        assert child.wait(20) == 0
        gone = cli("--root", str(cli.folder), "get", "ns")
        assert gone.code == 1
        assert "no control plane answers" in gone.err
    finally:
        child.kill()
        child.communicate()


def test_a_port_that_is_taken_is_told(cli):
    first = _start(cli.folder)
    try:
        file = cli.folder / "alice" / "kubeconfig"
        _until(lambda: file.exists() or first.poll() is not None)
        port = int(kubeconfig.read(file).resolve().server.rpartition(":")[2])
        other = cli.folder / "other"
        other.mkdir()
        second = _start(other, port)
        _, err = second.communicate(timeout=30)
        assert second.returncode == 1
        last = err.splitlines()[-1]
        assert last.startswith("Error: the node stopped: ")
        assert "choose another apiServer.port in the configuration" in last
    finally:
        first.kill()
        first.communicate()


# kubectl


def _program(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def executed(monkeypatch):
    """What would have been executed instead of this process."""
    calls: list[tuple[str, list[str], dict[str, str]]] = []

    def remember(program: str, words: list[str], env: dict[str, str]) -> None:
        calls.append((program, words, env))
        raise OSError(0, "remembered")

    monkeypatch.setattr(kubectl_command.os, "execvpe", remember)
    return calls


def _domain(cli, name: str) -> str:
    file = cli.folder / ".coterie" / name / "kubeconfig"
    kubeconfig.make(name, "https://x.test").write(file)
    return str(file)


@pytest.mark.parametrize(
    ("typed", "passed"),
    [
        ("kubectl get pods -A -o wide", ["get", "pods", "-A", "-o", "wide"]),
        ("--domain alice kubectl get pods", ["get", "pods"]),
        ("kubectl --domain alice get pods", ["get", "pods"]),
        ("kubectl --domain=alice get pods --help", ["get", "pods", "--help"]),
        ("-n x --context c kubectl get pods", ["--context", "c", "-n", "x", "get", "pods"]),
    ],
)
def test_kubectl_gets_its_words_and_the_kubeconfig(cli, executed, typed, passed):
    file = _domain(cli, "alice")
    program = _program(cli.folder / "bin" / "kubectl")
    cli.environ["PATH"] = str(program.parent)
    cli(*typed.split())
    ((ran, words, env),) = executed
    assert (ran, words) == (str(program), [str(program), *passed])
    assert env["KUBECONFIG"] == file


def test_kubectls_own_kubeconfig_option_wins(cli, executed):
    cli.environ["PATH"] = str(_program(cli.folder / "bin" / "kubectl").parent)
    cli("kubectl", "get", "pods", "--kubeconfig", "theirs")
    assert "KUBECONFIG" not in executed[0][2]


def test_the_newest_fetched_kubectl_is_taken(cli, executed):
    _domain(cli, "alice")
    cli.environ["PATH"] = str(cli.folder)
    for minor in ("9", "36", "27"):
        _program(cli.folder / ".tools" / "kubectl" / f"kubectl-1.{minor}")
    cli("kubectl", "get", "pods")
    assert executed[0][0].endswith("kubectl-1.36")


def test_without_kubectl_there_is_another_way(cli):
    cli.environ["PATH"] = str(cli.folder)
    told = cli("kubectl", "get", "pods")
    assert told.code == 1
    assert "there is no kubectl on the PATH" in told.err
    assert told.err.count("\n") == 1


def test_kubectl_really_runs_with_its_own_exit_status(tmp_path):
    program = _program(tmp_path / "bin" / "kubectl", 'echo "$KUBECONFIG $*"; exit 7')
    file = tmp_path / "alice" / "kubeconfig"
    kubeconfig.make("a", "https://x.test").write(file)
    done = subprocess.run(
        [sys.executable, "-m", "coterie", "--root", str(tmp_path), "kubectl", "get", "pods"],
        env={**os.environ, "PATH": str(program.parent)}, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (7, f"{file} get pods\n")


# demo


def test_the_demo_tells_its_story_and_leaves_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "coterie", "demo"],
        env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for expected in (
        "== 1. Start a node: control plane and agent in one ==",
        "primes below 100000 are 9592",
        "greets the world",
        "still here",
        "contract.demo.example/alice-bob created",
        "a contract may not hand over more rows than its limit",
        "spec.tasks[0].parties: Required value",
        "Signed",
        "Stopped and removed.",
    ):
        assert expected in done.stdout
    assert "\x1b" not in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_kept_demo_can_be_used_and_stopped(tmp_path, cli):
    done = subprocess.run(
        [sys.executable, "-m", "coterie", "demo", "--keep", "--console"],
        env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = (path for path in tmp_path.iterdir() if path.name.startswith("coterie-demo-"))
    try:
        told = cli("--root", str(folder), "get", "kj", "-A", "-o", "name")
        assert told.lines == ["kusciajob.kuscia.secretflow/common-customers"]
        pods = cli("--root", str(folder), "get", "pods", "-l", "app=greeter", "--no-headers").lines
        assert len(pods) == 2 and all("Running" in line for line in pods)
        assert f"coterie down --root {folder} --purge" in done.stdout
        assert re.search(r"^  demo   http://127\.0\.0\.1:\d+/#login=\S{40,}$", done.stdout, re.MULTILINE)
        assert f"`coterie console --domain demo --root {folder}`" in done.stdout
    finally:
        ended = cli("down", "--root", str(folder), "--purge")
    assert (ended.code, ended.out) == (0, "demo stopped, 2 pods stopped, files removed.\n")
    assert not folder.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["sigterm", "ctrl-c"])
def test_an_interrupted_demo_cleans_up(tmp_path, number):
    child = subprocess.Popen(
        [sys.executable, "-m", "coterie", "demo"],
        env={**os.environ, "TMPDIR": str(tmp_path)}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        # Whoever runs the tests in the background lets them ignore Ctrl-C; the demo must not inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        _until(lambda: list(tmp_path.glob("coterie-demo-*/demo/var/logs/coterie.log")))
        child.send_signal(number)
        _, err = child.communicate(timeout=30)
    finally:
        child.kill()
    assert child.returncode == 130
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_a_step_that_is_interrupted_ends_the_demo(tmp_path, monkeypatch):
    """Each step is a command with a status of its own, and that of Ctrl-C is no failure of the step."""
    monkeypatch.setattr(demo, "main", lambda words, app: 130)
    told = demo._SampleDemo(App(io.StringIO(), io.StringIO()), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        told.coterie("get", "pods")
