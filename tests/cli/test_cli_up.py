"""A whole network of real processes: up, a pod on it, its log, a command in it, down, and nothing is left."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import urllib.request
from pathlib import Path

import pytest
import yaml

from coterie.base.paths import DomainPaths
from coterie.cli import background

POD = """
apiVersion: v1
kind: Pod
metadata: {name: hello, namespace: alice, labels: {app: hello}}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  nodeSelector: {kuscia.secretflow/namespace: alice}
  containers:
  - name: main
    image: coterie/host:latest
    command: [sh, -c, 'echo one; echo; echo "two of $MARK"; exec sleep 600']
    env: [{name: MARK, value: MARK-OF-THIS-TEST}]
"""


def _processes(mark: str) -> list[str]:
    """Command lines and environments that mention the mark."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if mark.encode() in text:
                found.append(text.replace(b"\0", b" ").decode(errors="replace"))
    return found


def _account_of(link: str) -> str:
    """Who is logged in by a link."""
    console, _, code = link.partition("/#login=")
    asked = urllib.request.Request(f"{console}/login", json.dumps({"code": code}).encode(), {"Origin": console})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return str(json.load(answer)["account"])


@pytest.fixture
def network(cli):
    """`net("get", "pods")` on a network under a directory of the test's own; it is removed whatever happens."""
    root = str(cli.folder / "net")

    def net(*words: str, stdin: str = ""):
        return cli("--root", root, *words, stdin=stdin)

    yield net
    net("down", "--purge", "--grace", "1")


def _until(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_center(network, cli):
    root = cli.folder / "net"
    mark = f"mark-{cli.folder.name}"
    up = network("up", "--topology", "center", "--domains", "alice,bob", "--wait", "150")
    assert up.code == 0, up.err
    rows = [line.split() for line in up.lines if "Ready" in line.split()[-1:]]
    assert [(row[0], row[1], row[4]) for row in rows] == [
        ("kuscia-system", "master", "<none>"),
        ("alice", "lite", "alice-node"),
        ("bob", "lite", "bob-node"),
    ]
    assert f"  export KUBECONFIG={root}/kuscia-system/kubeconfig" in up.lines
    assert "\x1b" not in up.out

    assert not [each for each in _processes(str(root)) if "coterie.console" in each], "nobody looks yet"
    again = json.loads(network("up", "--console", "-o", "json").out)
    assert [each["ready"] for each in again["domains"]] == [True, True, True]
    console = again["domains"][0]["console"]
    assert console.endswith(":8088") and not again["domains"][1]["console"]
    assert list(again["consoleLinks"]) == ["kuscia-system"], "lites have none"
    assert _account_of(again["consoleLinks"]["kuscia-system"]) == "coterie-console/console-admin"
    assert f"Consoles: kuscia-system {console} (`coterie console` prints" in network("status").out
    assert network("console", "--role", "view").out.startswith(f"{console}/#login=")
    refused = network("console", "--domain", "alice")
    assert (refused.code, refused.err) == (
        1,
        "Error: alice is a lite and has no console; that of its master shows its jobs, pods and tables: "
        "run `coterie console --domain kuscia-system`\n",
    )
    assert [(each["source"], each["destination"], each["ready"]) for each in again["routes"]] == [
        ("alice", "bob", True),
        ("alice", "kuscia-system", True),
        ("bob", "alice", True),
        ("bob", "kuscia-system", True),
    ]
    assert network("status").lines[1].startswith("kuscia-system")
    assert network("get", "domains,ns", "-o", "name").lines[:2] == [
        "domain.kuscia.secretflow/alice",
        "domain.kuscia.secretflow/bob",
    ]

    assert network("apply", "-f", "-", stdin=POD.replace("MARK-OF-THIS-TEST", mark)).code == 0
    _until(lambda: "Running" in network("get", "pod", "hello", "-n", "alice").out)
    assert "alice-node" in network("get", "pod", "hello", "-n", "alice", "-o", "wide").out
    logs = network("logs", "pod/hello", "-n", "alice")
    assert (logs.code, logs.out) == (0, f"one\n\ntwo of {mark}\n")
    last = network("logs", "hello", "-n", "alice", "--tail", "1", "--timestamps")
    assert last.out.endswith(f"Z two of {mark}\n")
    done = network("exec", "hello", "-n", "alice", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.code, done.out, done.err) == (7, "out\n", "err\n")
    piped = network("exec", "-i", "hello", "-n", "alice", "--", "tr", "a-z", "A-Z", stdin="typed\n")
    assert (piped.code, piped.out) == (0, "TYPED\n")
    missing = network("exec", "hello", "-n", "alice", "--", "no-such-program")
    assert missing.code == 127
    assert network("top", "pod", "-A", "--no-headers").out.startswith("alice")
    assert len(network("top", "node", "--no-headers").lines) == 2
    assert _processes(mark) and _processes(str(root))

    down = network("down", "--purge", "--grace", "1")
    assert down.lines == [
        "kuscia-system stopped, files removed.",
        "alice stopped, 1 pod stopped, files removed.",
        "bob stopped, files removed.",
    ]
    assert not root.exists()
    assert _processes(mark) + _processes(str(root)) == []


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_p2p_keeps_its_objects_and_its_pods(network, cli):
    root = cli.folder / "net"
    mark = f"mark-{cli.folder.name}"
    assert network("up", "--topology", "p2p", "--domains", "alice", "--wait", "150").code == 0
    assert network("apply", "-f", "-", stdin=POD.replace("MARK-OF-THIS-TEST", mark)).code == 0
    _until(lambda: "Running" in network("get", "pod", "hello", "-n", "alice").out)

    assert network("down", "--keep-pods").lines == ["alice stopped."]
    assert _processes(mark)
    assert network("status").code == 1
    assert network("up", "--wait", "150").code == 0
    told = network("get", "pod", "hello", "-n", "alice", "--no-headers").out.split()
    assert told[1:4] == ["1/1", "Running", "0"]

    assert network("down", "--grace", "1").lines == ["alice stopped, 1 pod stopped."]
    assert _processes(mark) + _processes(str(root)) == []
    assert (root / "alice" / "kubeconfig").exists()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_node_that_does_not_come_back_stops_the_others(network, cli):
    assert network("up", "--topology", "center", "--domains", "alice", "--wait", "150").code == 0
    assert network("down").code == 0
    agent = yaml.safe_load((cli.folder / "net" / "alice" / "etc" / "coterie.yaml").read_text())["agent"]
    with socket.create_server((agent["address"], agent["port"])):
        told = network("up")
    assert told.code == 1
    assert told.err.startswith("Error: alice did not start, so all was stopped again.\n")
    assert "ddress already in use" in told.err
    assert _processes(str(cli.folder / "net")) == []


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_nodes_of_one_network_share_memory_and_carry_nothing_they_do_not_use(network, cli):
    root = cli.folder / "net"
    assert network("up", "--topology", "p2p", "--domains", "alice,bob", "--wait", "150").code == 0
    for domain in ("alice", "bob"):
        paths = DomainPaths.of(root, domain)
        node = Path(f"/proc/{background.running(paths)}")
        shown = (node / "cmdline").read_bytes().rstrip(b"\0").decode().split("\0")
        assert shown[1:] == ["-m", "coterie", "start", "-c", f"{paths.home}/etc/coterie.yaml", "--root", str(root)]
        assert os.getsid(int(node.name)) == int(node.name)
        loaded = (node / "maps").read_text()
        assert "/cryptography/" in loaded
        assert [each for each in ("aiohttp", "pyarrow", "grpc", "multidict") if f"/{each}/" in loaded] == []
        shared = next(line for line in (node / "smaps_rollup").read_text().splitlines() if "Shared_Dirty" in line)
        assert int(shared.split()[1]) > 5_000, "kB that were loaded before the nodes were forked"
        log = background.log_file(paths).read_text()
        assert f"domain={domain}" in log and "Traceback" not in log


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_route_that_does_not_work_stops_nothing(network, cli):
    root = cli.folder / "net"
    assert network("up", "--topology", "p2p", "--domains", "alice,bob", "--wait", "150").code == 0
    assert network("route", "add", "alice", "bob", "--via", "joe").code == 0
    _until(lambda: "TransitRouteMissing" in network("route", "ls").out)
    told = network("up", "--wait", "1")
    assert told.code == 1
    assert told.err.startswith(
        "Error: all nodes run, but routes are not ready within 1 s:\n  alice -> bob: TransitRoute"
    )
    assert "`coterie route check alice bob` says what is wrong" in told.err
    status = json.loads(network("status", "-o", "json").out)
    assert [each["ready"] for each in status["domains"]] == [True, True]
    assert len(status["problems"]) == 1 and "TransitRouteMissing" in status["problems"][0]

    # A node that is killed leaves its gateway behind, so that partners notice nothing; `down` ends it too.
    alice = DomainPaths.of(root, "alice")
    os.kill(background.running(alice), signal.SIGKILL)
    _until(lambda: not background.running(alice))
    assert any("envoy" in each for each in _processes(str(alice.home)))
    assert network("down", "--grace", "1").lines == ["alice was not running.", "bob stopped."]
    assert _processes(str(root)) == []
