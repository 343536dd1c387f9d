"""start, kubectl and demo: the commands that deal with this machine instead of an API."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coterie.base import pki
from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.paths import DomainPaths
from coterie.cli.app import App
from coterie.cli.commands import demo
from coterie.cli.commands import kubectl as kubectl_command
from coterie.kube.client import kubeconfig
from coterie.node import api_identity, join_bundle

# node


@pytest.fixture
def plane(cli):
    """The files of a control plane that ran once."""
    paths = DomainPaths.of(cli.folder / "root", "alice")
    paths.prepare()
    api_identity.ensure(paths, ("127.0.0.1", "api.example"), SYSTEM_CLOCK)
    ca = (paths.pki / "ca.crt").read_bytes()
    kubeconfig.make("alice", "https://127.0.0.1:6443", ca=ca).write(paths.kubeconfig)
    return paths


def test_node_add_makes_a_secret_file_with_which_a_node_joins(cli, plane):
    words = ("--server", "https://api.example:6443", "--address", "10.0.0.2", "-o", "n.join")
    told = cli("--root", "root", "node", "add", "node-2", *words)
    assert (told.code, told.err) == (0, "")
    assert "coterie init --mode lite --domain alice --join n.join" in told.out
    file = cli.folder / "n.join"
    assert file.stat().st_mode & 0o777 == 0o600
    bundle = join_bundle.read_bundle(file)
    assert (bundle.server, bundle.node) == ("https://api.example:6443", "node-2")
    served = pki.load_certificate(bundle.serving_certificate)
    assert {"node-2", "10.0.0.2"} <= set(pki.names_of(served))
    assert pki.subject_of(pki.load_certificate(bundle.certificate)) == ("system:node:node-2", ("system:nodes",))


def test_node_add_beside_the_control_plane_needs_no_server(cli, plane):
    assert cli("--root", "root", "node", "add", "node-2", "--address", "127.0.0.1", "-o", "n.join").code == 0
    assert join_bundle.read_bundle(cli.folder / "n.join").server == "https://127.0.0.1:6443"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("Node_2", "--address", "10.0.0.2", "-o", "f"), 2, "no valid name"),
        (("n", "--address", "elsewhere", "-o", "f"), 2, "is not an IP address"),
        (("n", "--address", "10.0.0.2"), 2, "both --address and -o"),
        (("n", "--address", "10.0.0.2", "-o", "f"), 2, "cannot reach it; say how with --server"),
        (("n", "--address", "10.0.0.2", "-o", "f", "--server", "api.example"), 2, "is not an address such as"),
        (("n", "--address", "10.0.0.2", "-o", "f", "--server", "https://other:1"), 1, "apiServer.names"),
        (("n", "--address", "127.0.0.1", "-o", "no/f"), 1, "no/f cannot be written"),
        (("n", "--address", "127.0.0.1", "-o", "f", "--domain", "bob"), 1, "bob"),
    ],
    ids=["name", "address", "no-file", "loopback", "no-url", "certificate", "directory", "domain"],
)
def test_node_add_refuses(cli, plane, words, code, said):
    told = cli("--root", "root", "node", "add", *words)
    assert (told.code, said in told.err) == (code, True), told.err
    assert not (cli.folder / "f").exists()


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
        [sys.executable, "-m", "coterie", "demo", "--keep"],
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
