"""What leaves HTTP behind: logs, exec, attach, cp, port-forward, proxy. The node's end is `fake_agent.py`."""

from __future__ import annotations

import json
import re
import socket
import urllib.request

from kubectl_steps import Act, Chapter, Command, Meanwhile, Scene

_POD = """
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: talk}}
spec: {nodeName: %s, containers: [{name: main, image: x}%s]}
---
"""


def _run_pods(scene: Scene) -> None:
    for name, containers in (("talk", ("main",)), ("two", ("main", "side"))):
        states = [
            {
                "name": container, "ready": True, "restartCount": 1, "image": "x", "imageID": "",
                "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
            }
            for container in containers
        ]  # fmt: skip
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": states}
        path = f"/api/v1/namespaces/{scene.namespace}/pods/{name}/status"
        scene.server.api("PATCH", path, {"status": status}, "application/merge-patch+json")


def _measure(scene: Scene) -> None:
    pod = scene.server.api("GET", f"/api/v1/namespaces/{scene.namespace}/pods/talk")["metadata"]
    used = {"cpu": {"usageNanoCores": 30_000_000}, "memory": {"workingSetBytes": 32 * 1024**2}}
    summary = {
        "node": {"nodeName": "edge-1", "cpu": {"usageNanoCores": 500_000_000}, "memory": {"workingSetBytes": 2**31}},
        "pods": [
            {
                "podRef": {"name": "talk", "namespace": scene.namespace, "uid": pod["uid"]},
                "containers": [{"name": "main", **used}],
                **used,
            }
        ],
    }
    (scene.server.root / "agent" / "summary.json").write_text(json.dumps(summary))


def _talk(scene: Scene, match: re.Match[str]) -> None:
    """Two connections through one forwarded port, the second while the first is still open."""
    where = ("127.0.0.1", int(match[1]))
    with socket.create_connection(where, 10) as first, socket.create_connection(where, 10) as second:
        for connection, word in ((first, b"one"), (second, b"two"), (first, b"three")):
            connection.sendall(word)
            expected = b"port 8080 got " + word
            received = b""
            while len(received) < len(expected):
                data = connection.recv(1024)
                assert data, f"closed after {received!r}"
                received += data
            assert received == expected, received


def _browse(scene: Scene, match: re.Match[str]) -> None:
    url = f"http://127.0.0.1:{match[1]}/api/v1/namespaces/{scene.namespace}/pods/talk"
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert b'"talk"' in answer.read()


def _browse_pod(scene: Scene, match: re.Match[str]) -> None:
    url = f"http://127.0.0.1:{match[1]}/api/v1/namespaces/{scene.namespace}/pods/talk:8080/proxy/page"
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert answer.read() == b"port 8080 got GET /page\n"


# What kubectl falls back to when something between it and the server knows no WebSocket.
_SPDY = {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false", "KUBECTL_PORT_FORWARD_WEBSOCKETS": "false"}

STREAMS = Chapter(
    "streams",
    (
        Command("create", "create -f pods.yaml", out=("pod/talk created", "pod/two created")),
        Act("run the pods", _run_pods),
        Command("logs", "logs talk", out=r"\Aline 1\n(line \d\n){3}line 5\n\Z"),
        Command("logs tail", "logs talk --tail=2", out=r"\Aline 4\nline 5\n\Z"),
        Command("logs previous", "logs talk -p", out="the run before"),
        Command("logs timestamps", "logs talk --timestamps --tail=1", out=r"^\d{4}-\d\d-\d\dT\S+Z line 5"),
        Command("logs container", "logs two -c side", out="line 5"),
        Command("logs all containers", "logs two --all-containers --prefix --tail=1", out=(r"^\[pod/two/main\] line 5", r"^\[pod/two/side\] line 5")),
        Command("logs by label", "logs -l app=talk -c main --tail=1", out=r"line 5\nline 5"),
        Command("logs follow", "logs talk -f", meanwhile=Meanwhile("^line 5", None, "^tick 3")),
        Command("logs no such container", "logs two -c nope", rc=1, err="container nope is not valid for pod two"),
        Command("logs unscheduled", "logs waits", rc=1, err=r"does not have a host assigned"),
        Command("logs of a lost node", "logs lost", rc=1, err=r"nowhere.*not registered|ServiceUnavailable"),
        Command("exec", "exec talk -- echo hello", out=r"\Ahello\n\Z"),
        Command("exec streams", "exec talk -- sh -c 'echo out; echo err >&2'", out=r"\Aout\n\Z", err="^err$"),
        Command("exec status", "exec talk -- sh -c 'exit 7'", rc=7, err="exit code 7"),
        Command("exec stdin", "exec -i talk -- cat", stdin="through and back\n", out=r"\Athrough and back\n\Z"),
        Command("exec much", "exec -i talk -- wc -c", stdin="x" * 300_000, out=r"\A\s*300000\n\Z"),
        Command("exec much back", "exec talk -- sh -c 'yes 0123456789abcde | head -n 20000'", out=r"\A(0123456789abcde\n){20000}\Z"),
        Command("exec container", "exec two -c side -- echo side", out="side"),
        Command("exec no such pod", "exec nope -- true", rc=1, err="NotFound|not found"),
        Command("attach", "attach -i talk", stdin="ping\n", out=("^attached$", "^echo: ping$")),
        Command("cp prepare", "exec talk -- mkdir -p box", out=r"\A\Z"),
        Command("cp to", "cp local.txt talk:box/remote.txt"),
        Command("cp arrived", "exec talk -- cat box/remote.txt", out=r"\Acarried over\n\Z"),
        Command("cp from", "cp talk:box/remote.txt back.txt"),
        Command("cp directory", "cp tree talk:box/tree -c main"),
        Command("cp directory arrived", "exec talk -- cat box/tree/leaf.txt", out="a leaf"),
        Command("port-forward", "port-forward pod/talk :8080", meanwhile=Meanwhile(r"^Forwarding from 127\.0\.0\.1:(\d+) -> 8080", _talk)),
        Command("port-forward SPDY", "port-forward pod/talk :8080", env=_SPDY, meanwhile=Meanwhile(r"^Forwarding from 127\.0\.0\.1:(\d+) -> 8080", _talk)),
        Command("exec SPDY", "exec -i talk -- sh -c 'cat; exit 3'", env=_SPDY, stdin="x" * 100_000, rc=3, out=r"\Ax{100000}\Z"),
        Command("proxy", "proxy --port=0", meanwhile=Meanwhile(r"^Starting to serve on 127\.0\.0\.1:(\d+)", _browse)),
        Command("proxy to a pod", "get --raw /api/v1/namespaces/{ns}/pods/talk:8080/proxy/a/b?c=1", out=r"^port 8080 got GET /a/b\?c=1"),
        Command("proxy to no pod", "get --raw /api/v1/namespaces/{ns}/pods/none/proxy/", rc=1, err="NotFound"),
        Command("proxy through kubectl", "proxy --port=0", meanwhile=Meanwhile(r"^Starting to serve on 127\.0\.0\.1:(\d+)", _browse_pod)),
        Command("debug", "debug talk --image=busybox --target=main -c probe --attach=false -- sleep 9", since="1.25"),
        Command("debug container", "get pod talk -o json", check=lambda p: p["spec"]["ephemeralContainers"][0]["name"] == "probe", since="1.25"),
        Command("debug copy", "debug talk --image=busybox --copy-to=twin --attach=false -- sleep 9", since="1.22"),
        Command("debug twin", "get pod twin -o json", check=lambda p: len(p["spec"]["containers"]) == 2, since="1.22"),
        Act("measure", _measure),
        Command("proxy to a node", "get --raw /api/v1/nodes/edge-1/proxy/stats/summary", check=lambda s: s["node"]["nodeName"] == "edge-1"),
        Command("top node", "top node edge-1", out=r"^edge-1\s+500m\s+12%\s+2048Mi\s+25%"),
        Command("top pods", "top pods", out=r"^talk\s+30m\s+32Mi", absent="two"),
        Command("top containers", "top pod talk --containers", out=r"^talk\s+main\s+30m\s+32Mi"),
        Command("came back", "create cm copied --from-file=back.txt -o json", check=lambda c: c["data"] == {"back.txt": "carried over\n"}),
        Command("finish", "delete pods --all --force --grace-period=0", out="deleted"),
    ),
    files={
        "pods.yaml": _POD % ("talk", "edge-1", "")
        + _POD % ("two", "edge-1", ", {name: side, image: x}")
        + (_POD % ("waits", "", "")).replace("nodeName: , ", "").replace("talk}", "other}")
        + (_POD % ("lost", "nowhere", "")).replace("talk}", "other}"),
        "local.txt": "carried over\n",
        "tree/leaf.txt": "a leaf\n",
    },
    agent=True,
)  # fmt: skip
