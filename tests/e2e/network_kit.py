"""`coterie` as somebody types it, with a home directory of its own, and pods that speak HTTP and gRPC."""

from __future__ import annotations

import io
import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from e2e_kit import until

from coterie.cli.app import App
from coterie.cli.main import main
from coterie.kube.network.rootless.probe import probe
from coterie.node.config import ports

PATIENCE = 60.0
needs_names = pytest.mark.skipif(
    not (probe().ok or ports.lowest_port() <= 53),
    reason="names in pods need pod networks, which are forbidden here, or port 53, which is not ours to open",
)
ROOM = {"terminationGracePeriodSeconds": 1}
ACCESS, PROTOCOL = "kuscia.secretflow/access-domain", "kuscia.secretflow/protocol"

ECHO = """
import json, sys, http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = json.dumps({"path": self.path, "headers": {k.lower(): v for k, v in self.headers.items()}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
"""
TALK = """
import sys, grpc
from concurrent.futures import ThreadPoolExecutor
def upper(messages, context):
    for each in messages:
        yield each.upper()
handler = grpc.method_handlers_generic_handler("Talk", {"Upper": grpc.stream_stream_rpc_method_handler(upper)})
server = grpc.server(ThreadPoolExecutor(4))
server.add_generic_rpc_handlers((handler,))
server.add_insecure_port(f"{sys.argv[1]}:{sys.argv[2]}")
server.start()
server.wait_for_termination()
"""
CALL = """
import sys, urllib.error, urllib.request
try:
    with urllib.request.urlopen(sys.argv[1], timeout=20) as answer:
        print(answer.status, answer.read().decode())
except urllib.error.HTTPError as refused:
    print(refused.code, refused.headers.get("kuscia-error-message", ""))
"""
CONVERSE = """
import sys, grpc
with grpc.insecure_channel(sys.argv[1]) as channel:
    said = channel.stream_stream("/Talk/Upper")(iter([b"one", b"two", b"three"]), timeout=20)
    try:
        print(b" ".join(said).decode())
    except grpc.RpcError as refused:
        print(refused.code().name)
"""


class Result:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class Hand:
    """One who types, at one machine."""

    def __init__(self, home: Path, *always: str) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self.always = always

    def try_(self, *words: str, stdin: str = "") -> Result:
        out, err = io.StringIO(), io.StringIO()
        app = App(out, err, {"HOME": str(self.home)}, io.StringIO(stdin), self.home)
        code = main([*self.always, *words], app)
        return Result(code, out.getvalue(), err.getvalue())

    def __call__(self, *words: str, stdin: str = "") -> Result:
        result = self.try_(*words, stdin=stdin)
        assert result.code == 0, f"coterie {' '.join(words)}: {result.out}{result.err}"
        return result

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "-o", "json").out)

    def apply(self, domain: str, *objects: dict[str, Any]) -> None:
        many = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self("apply", "--domain", domain, "-f", "-", stdin=json.dumps(many))

    def pod_ready(self, plane: str, namespace: str, name: str) -> None:
        def look() -> bool:
            status = self.json("get", "pod", name, "-n", namespace, "--domain", plane).get("status") or {}
            return any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions") or ())

        until(f"pod {namespace}/{name} is ready", look, PATIENCE)

    def run_in(self, plane: str, namespace: str, script: str, *words: str) -> str:
        """What a program prints inside the pod `caller` of a domain."""
        command = ("exec", "caller", "-n", namespace, "--domain", plane, "--", "python", "-c", script, *words)
        return self(*command).out.strip()

    def steps(self, source: str, destination: str, *words: str) -> dict[str, str]:
        """Each step of `route check` with its verdict. A control plane that does not answer in time is asked again."""
        for _ in range(3):
            told = self.try_("route", "check", source, destination, *words, "-o", "json")
            if told.out:
                break
        assert told.out, told.err
        found = json.loads(told.out)
        assert told.code == (0 if found["ok"] else 1)
        return {each["step"]: each["verdict"] for each in found["steps"]}

    def reaches(self, source: str, destination: str) -> None:
        """Wait until every step is well. A gateway answers only so many questions about tokens that it does not know, and
        those of the other gateway count too, so it is not asked all the time."""

        def works() -> bool:
            if set(self.steps(source, destination).values()) == {"ok"}:
                return True
            time.sleep(1)
            return False

        until(f"{source} reaches {destination}", works, PATIENCE)


def free_port(address: str) -> int:
    with socket.socket() as trial:
        trial.bind((address, 0))
        return int(trial.getsockname()[1])


def a_pod(
    domain: str, name: str, script: str = "import time; time.sleep(1000)", *words: str, **more: Any
) -> dict[str, Any]:
    container = {"name": "main", "image": "coterie/python:latest", "args": ["-c", script, *words], **more}
    meta = {"name": name, "namespace": domain, "labels": {"app": name}}
    # A domain's pods run on its own nodes; one control plane may have those of several.
    spec = {"containers": [container], "nodeSelector": {"kuscia.secretflow/namespace": domain}, **ROOM}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def a_server(domain: str, name: str, script: str, access: str, **annotations: str) -> list[dict[str, Any]]:
    """A pod that listens, and the service by which some may call it."""
    port = 8000
    ready = {"readinessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 1}}
    meta = {"name": name, "namespace": domain, "annotations": {ACCESS: access, **annotations}}
    ports = [{"name": "main", "port": port, "targetPort": port}]
    service = {"apiVersion": "v1", "kind": "Service", "metadata": meta}
    return [
        a_pod(domain, name, script, "0.0.0.0", str(port), **ready),
        {**service, "spec": {"clusterIP": "None", "selector": {"app": name}, "ports": ports}},
    ]


def processes(mark: str) -> list[str]:
    """Command lines that mention it, other than our own."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if mark in text and "pytest" not in text.split(mark)[0]:
                found.append(text)
    return found


def listening(address: str) -> list[int]:
    """Ports of an address on which somebody listens."""
    found = []
    for port in (53, 80, 1080, 6443, 10250):
        with socket.socket() as trial:
            trial.settimeout(2)
            if trial.connect_ex((address, port)) == 0:
                found.append(port)
    return found
