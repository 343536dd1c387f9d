"""A node with `runtime: runc` on a real containerd: names, services, streams, probes, and a node that is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import kubectl_runner
import psutil
import pytest
from cri_kit import IMAGE, add_busybox, needs_containerd, sweep
from e2e_kit import Cluster, Node, alive, container, pod, state, until

from coterie.kube.agent.runtimes.cri.settings import CriSettings
from coterie.kube.agent.runtimes.halt_node import halt_node
from coterie.kube.agent.runtimes.runp.client import group_of

pytestmark = [needs_containerd, pytest.mark.xdist_group("e2e-containerd")]
NODE = "node-c"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    settings = {
        "mode": "autonomy",
        "runtime": "runc",
        "apiServer": {"port": 0},
        "dns": {"enabled": True},
        "agent": {"nodeName": NODE, "port": 0},
    }
    node = Node(tmp_path / "root", NODE, settings)
    run = node.home / "var/run"
    add_busybox(node.home / "var/images")
    try:
        cluster = Cluster(node.start(), kubectl_runner.chosen()[-1], nodes={NODE: node})
        cluster.wait_until_up(NODE)
        yield cluster
        assert node.complaints() == []
    finally:
        node.destroy()
        sweep(CriSettings.below(run, NODE, group_of(NODE, run / "runp")))


def _box(name: str, script: str, **more: object) -> dict[str, object]:
    return pod(name, container(image=IMAGE, script=script, imagePullPolicy="Never", **more), labels={"app": name})


def _containerds(node: Node) -> list[int]:
    where = str(node.home / "var/run/cri/config.toml")
    return [each.pid for each in psutil.process_iter(["cmdline"]) if where in (each.info["cmdline"] or ())]


def _pids_of(cluster: Cluster) -> set[int]:
    """Processes of the pods' programs."""
    return {each.pid for each in psutil.process_iter(["cmdline"]) if (each.info["cmdline"] or [""])[-1:] == ["/srv"]}


def test_pods_on_containerd(cluster: Cluster) -> None:
    node = cluster.nodes[NODE]
    probe = {"exec": {"command": ["ls", "/tmp/up"]}, "periodSeconds": 1}
    http = {"httpGet": {"port": 8080, "path": "/name"}, "periodSeconds": 1, "failureThreshold": 60}
    cluster.apply(
        _box("web", "mkdir /srv; hostname > /srv/name; touch /tmp/up; exec httpd -f -p 8080 -h /srv",
             readinessProbe=http, livenessProbe={**probe, "initialDelaySeconds": 1}),
        _box("client", "while read x; do echo got $x; done; sleep 1000", stdin=True),
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
         "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}},
        pod("native", container(script="sleep 1000")),
    )  # fmt: skip
    for name in ("web", "client", "native"):
        cluster.ready(name)
    assert _containerds(node), "no containerd was started"
    identity = state(cluster.pod("web"))["containerID"]

    # Names and services.
    def fetched() -> bool:
        return (
            cluster.try_("exec", "client", "--", "wget", "-qO-", "http://web.default.svc.cluster.local/name").out
            == "web\n"
        )

    until("the service answers by its name", fetched)
    # Streams.
    assert cluster.do("exec -i client -- wc -c", stdin="x" * 300_000).strip() == "300000"
    result = cluster.try_("exec", "client", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (result.rc, result.out) == (7, "out\n") and "err\n" in result.err
    assert "got ping" in cluster.try_("attach", "-i", "client", stdin="ping\n").out
    assert cluster.logs("client") == "got ping\n"
    forward = cluster.begin("port-forward pod/web :8080")
    try:
        match = forward.wait_for(r"Forwarding from 127.0.0.1:(\d+)")
        assert match, forward.stop()
        with socket.create_connection(("127.0.0.1", int(match[1])), 10) as connection:
            connection.sendall(b"GET /name HTTP/1.0\r\n\r\n")
            assert connection.makefile("rb").read().endswith(b"web\n")
    finally:
        forward.stop()

    # A crash of the node: containerd and the containers go on, and the next node finds them.
    daemons, programs = _containerds(node), _pids_of(cluster)
    assert programs
    node.kill()
    assert all(alive(pid) for pid in (*daemons, *programs))
    node.start()
    cluster.wait_until_up(NODE)
    cluster.ready("web")
    assert state(cluster.pod("web"))["containerID"] == identity and not state(cluster.pod("web"))["restartCount"]
    until("the service answers after the crash", fetched)

    # A crash of containerd: another one takes over, and the end of a container is still seen.
    os.kill(daemons[0], signal.SIGKILL)
    until("there is another containerd", lambda: [pid for pid in _containerds(node) if pid not in daemons])
    assert all(alive(pid) for pid in programs)
    for pid in programs:
        os.kill(pid, signal.SIGKILL)
    until("it was restarted", lambda: state(cluster.pod("web"))["restartCount"] == 1)
    until("the service answers after the restart", fetched)

    # The end, as `coterie down` makes it: nothing is left.
    node.stop()
    run = node.home / "var/run"
    assert asyncio.run(halt_node(run, NODE, 1.0, forget=True)) == 3
    assert not _containerds(node) and not _pids_of(cluster)
    assert str(node.home) not in Path("/proc/self/mounts").read_text()
    assert not list((run / "cri/pods").iterdir())
