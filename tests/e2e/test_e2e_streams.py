"""What a person does with a pod that runs: read its output, look inside, carry files, reach its ports, measure it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import socket
import struct
import subprocess
import termios
import time

import kubectl_runner
import pytest
from e2e_kit import Cluster, container, pod, state, until

pytestmark = pytest.mark.xdist_group("e2e-autonomy")


def test_logs(autonomy: Cluster) -> None:
    script = "i=0; while :; do i=$((i+1)); echo line $i; echo err $i >&2; sleep 0.2; done"
    autonomy.apply(
        pod("talks", container(script=script)),
        pod("again", container(script="if [ -e /v/x ]; then echo second; sleep 1000; fi; touch /v/x; echo first; exit 1",
                               volumeMounts=[{"name": "v", "mountPath": "/v"}]), volumes=[{"name": "v", "emptyDir": {}}]),
    )  # fmt: skip
    autonomy.ready("talks")
    until("there is some output", lambda: "line 4\n" in autonomy.logs("talks"))
    assert autonomy.logs("talks").startswith("line 1\nerr 1\n")
    assert len(autonomy.logs("talks", "--tail=3").splitlines()) == 3
    assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z line 1\n", autonomy.logs("talks", "--timestamps"))
    assert autonomy.logs("talks", "--limit-bytes=6") == "line 1"
    until("time goes by", lambda: "line 15\n" in autonomy.logs("talks"))
    recent = autonomy.logs("talks", "--since=1s")
    assert recent and "line 1\n" not in recent
    following = autonomy.begin("logs -f talks --tail=1")
    try:
        assert following.wait_for(r"^(?:line|err) \d+$[\s\S]*^line \d+$[\s\S]*^line \d+$"), following.stop()
    finally:
        following.stop()
    until("it is restarted", lambda: state(autonomy.pod("again"))["restartCount"] == 1)
    until("it runs again", lambda: autonomy.logs("again") == "second\n")
    assert autonomy.logs("again", "--previous") == "first\n"
    assert "previous terminated container" in autonomy.fail("logs talks --previous")


def test_a_followed_log_ends_with_its_container(autonomy: Cluster) -> None:
    autonomy.apply(pod("short", container(script="echo begin; sleep 1; echo end"), restartPolicy="Never"))
    until("it has begun", lambda: "begin" in autonomy.try_("logs", "short").out)
    assert autonomy.do("logs -f short") == "begin\nend\n"


def test_exec(autonomy: Cluster) -> None:
    autonomy.apply(pod("box", container(), container("side")))
    autonomy.ready("box")
    assert autonomy.do("exec box -c main -- echo hello") == "hello\n"
    assert autonomy.do("exec -i box -c main -- wc -c", stdin="x" * 300_000).strip() == "300000"
    result = autonomy.try_("exec", "box", "-c", "main", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (result.rc, result.out) == (7, "out\n")
    assert "err\n" in result.err
    assert "container none is not valid" in autonomy.fail("exec box -c none -- true")
    assert "no-such-program" in autonomy.fail("exec box -c main -- no-such-program")


def test_a_terminal(autonomy: Cluster) -> None:
    """-it: the far end has a terminal of its own, which echoes, knows its size and handles Ctrl-C."""
    autonomy.apply(pod("term", container()))
    autonomy.ready("term")
    told = _in_terminal(
        autonomy,
        # The size comes a moment after the terminal, so it is told often. A shell runs a trap when the command before it has ended: short ones, so that no moment is a bad one.
        [
            "exec",
            "-it",
            "term",
            "--",
            "sh",
            "-c",
            "trap 'echo caught; exit 5' INT; tty; while :; do stty size; sleep 0.1; done",
        ],
        [(rb"31 97", b"\x03"), (rb"caught", b"")],
    )
    assert re.search(rb"/dev/(pts/|console)", told), told
    assert b"not a tty" not in told


def _in_terminal(cluster: Cluster, words: list[str], talk: list[tuple[bytes, bytes]]) -> bytes:
    """Run kubectl in a terminal of 31 rows and 97 columns; type each answer when its question appears."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 31, 97, 0, 0))
    binary = str(kubectl_runner.found()[cluster.kubectl_version])
    command = [binary, "--kubeconfig", str(cluster.plane.kubeconfig), "-n", cluster.namespace, *words]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    told, deadline = b"", time.monotonic() + 20
    waiting = list(talk)
    try:
        while time.monotonic() < deadline:
            if waiting and re.search(waiting[0][0], told):
                os.write(ours, waiting.pop(0)[1])
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    told += os.read(ours, 4096)
                except OSError:
                    break  # the other end hung up
            elif process.poll() is not None:
                break
        assert not waiting, f"never printed {waiting[0][0]!r}: {told!r}"
        return told
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_attach(autonomy: Cluster) -> None:
    autonomy.apply(pod("echoes", container(script="while read x; do echo got $x; done", stdin=True)))
    autonomy.ready("echoes")
    talking = autonomy.try_("attach", "-i", "echoes", stdin="ping\npong\n")
    assert autonomy.logs("echoes") == "got ping\ngot pong\n"
    assert "got ping" in talking.out, talking


def test_run_with_output(autonomy: Cluster) -> None:
    assert "hi from a pod" in autonomy.do(
        "run once --image=coterie/host:latest --restart=Never --rm -i --command -- echo hi from a pod"
    )


def test_copy_both_ways(autonomy: Cluster) -> None:
    autonomy.apply(pod("box", container()))
    autonomy.ready("box")
    work = autonomy.work
    (work / "tree").mkdir(exist_ok=True)
    (work / "tree" / "leaf").write_bytes(os.urandom(200_000))
    autonomy.do("exec box -- mkdir -p /tmp/in")
    autonomy.do("cp tree box:/tmp/in/tree")
    autonomy.do("cp box:/tmp/in/tree/leaf back")
    assert (work / "back").read_bytes() == (work / "tree" / "leaf").read_bytes()
    autonomy.do("exec box -- rm -r /tmp/in")


def test_port_forward(autonomy: Cluster) -> None:
    server = "import socket\ns = socket.create_server(('127.0.0.1', 18432))\nwhile True:\n c, _ = s.accept(); c.sendall(b'got ' + c.recv(99)); c.close()"
    autonomy.apply(pod("srv", {"name": "main", "image": "coterie/python:latest", "args": ["-c", server]}))
    autonomy.ready("srv")
    forward = autonomy.begin("port-forward pod/srv :18432")
    try:
        match = forward.wait_for(r"Forwarding from 127.0.0.1:(\d+)")
        assert match, forward.stop()

        def ask(word: bytes) -> bytes:
            with socket.create_connection(("127.0.0.1", int(match[1])), 10) as connection:
                connection.sendall(word)
                return connection.recv(99)

        until("the server listens", lambda: ask(b"one") == b"got one")
        assert ask(b"two") == b"got two"
    finally:
        forward.stop()


def test_top(autonomy: Cluster) -> None:
    autonomy.apply(
        pod("busy", container(script="while :; do :; done", resources={"limits": {"cpu": "200m", "memory": "32Mi"}}))
    )
    autonomy.ready("busy")

    def busy() -> bool:
        shown = re.search(r"^busy\s+(\d+)m\s+\d+Mi", autonomy.try_("top", "pod").out, re.MULTILINE)
        return shown is not None and 50 <= int(shown[1]) <= 320

    until("the pod's use is told, and within its limit", busy, 45)
    assert re.search(r"^node-a\s+\d+m\s+\d+%\s+\d+Mi\s+\d+%", autonomy.do("top node"), re.MULTILINE)


def test_requests_through_the_api(autonomy: Cluster) -> None:
    """pods/proxy, services/proxy and nodes/proxy, and what is there of the API itself."""
    autonomy.apply(
        {
            **pod("page", container(script="mkdir /tmp/w; cd /tmp/w; echo hello >x; exec python3 -m http.server 8000")),
            "metadata": {"name": "page", "labels": {"app": "page"}},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "page"},
            "spec": {"selector": {"app": "page"}, "ports": [{"name": "http", "port": 80, "targetPort": 8000}]},
        },
    )
    autonomy.ready("page")
    base = f"/api/v1/namespaces/{autonomy.namespace}"
    until("the pod answers", lambda: autonomy.try_("get", "--raw", f"{base}/pods/page:8000/proxy/x").out == "hello\n")
    until(
        "the Service does", lambda: autonomy.try_("get", "--raw", f"{base}/services/page:http/proxy/x").out == "hello\n"
    )
    assert "refused" in autonomy.fail(f"get --raw {base}/pods/page:8001/proxy/x")
    node = autonomy.pod("page")["spec"]["nodeName"]
    assert autonomy.do(f"get --raw /api/v1/nodes/{node}/proxy/healthz") == "ok"
    assert re.search(r"kubernetes +ClusterIP +\S+\.0\.1 ", autonomy.do("get service kubernetes -n default"))
    assert re.search(
        r"kubernetes +127\.0\.0\.\d+:\d+|kubernetes +\S+:\d+", autonomy.do("get endpoints kubernetes -n default")
    )
    seconds = [each.get("tolerationSeconds") for each in autonomy.pod("page")["spec"]["tolerations"]]
    assert seconds == [5, 5] or seconds == [1, 1]
