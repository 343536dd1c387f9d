"""A real node on a machine with a GPU: `coterie start`, and its API by HTTPS. No kubectl is needed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import yaml

from coterie.kube.client import kubeconfig

Object = dict[str, Any]
GPU = "nvidia.com/gpu"
PYTHON_IMAGE = "coterie/python:latest"
HOST_IMAGE = "coterie/host:latest"
PROBE = (Path(__file__).parent / "probe.py").read_text()
NAMESPACE = "default"


def until(what: str, look: Callable[[], Any], seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        answer = look()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.1)


class GpuNode:
    """One node with API server, scheduler and agent."""

    def __init__(self, root: Path, domain: str = "alice", **agent: Any) -> None:
        self.root = root
        self.domain = domain
        self.home = root / domain
        self.log = root / f"{domain}.log"
        self.name = f"gpu-{domain}"
        self.shared = root / "shared"
        """What pods may mount."""
        self.shared.mkdir(exist_ok=True)
        settings = {
            "domainID": domain,
            "mode": "autonomy",
            "apiServer": {"port": 0},
            "agent": {"nodeName": self.name, "port": 0, "hostPaths": [str(self.shared)], **agent},
            "dns": {"enabled": False},
            "gateway": {"enabled": False},
            "kusciaAPI": {"enabled": False},
        }
        self._config = root / f"{domain}.yaml"
        self._config.write_text(yaml.safe_dump(settings))
        self._process: subprocess.Popen[bytes] | None = None
        self._tls: ssl.SSLContext | None = None
        self._server = ""

    # Life.

    def start(self) -> GpuNode:
        command = [sys.executable, "-m", "coterie", "start", "-c", str(self._config), "--root", str(self.root)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.root)
        self._tls = None
        until(f"{self.domain}: the API answers\n{self.log_tail()}", lambda: self._alive() and self._answers(), 90)
        until("the node is ready", lambda: self.condition("Ready") == "True", 60)
        return self

    def _alive(self) -> bool:
        assert self._process is not None and self._process.poll() is None, self.log_tail()
        return True

    def _answers(self) -> bool:
        file = self.home / "kubeconfig"
        if not file.exists():
            return False
        try:
            self._connect(file)
            return self.raw("/readyz") == b"ok"
        except (OSError, kubeconfig.KubeconfigError):
            return False

    def _connect(self, file: Path) -> None:
        found = kubeconfig.read(file).resolve()
        context = ssl.create_default_context(cadata=found.ca.decode())
        with tempfile.NamedTemporaryFile() as pair:
            pair.write(found.certificate + b"\n" + found.key)
            pair.flush()
            context.load_cert_chain(pair.name)
        self._tls, self._server = context, found.server

    def kill(self) -> None:
        """As by a crash: containers go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def destroy(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
        where = str(self.home / "var" / "run" / "runp")
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if where in process.cmdline():
                    for each in (process, *process.children(recursive=True)):
                        each.kill()

    def log_tail(self, lines: int = 60) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    # The API.

    def raw(self, path: str, method: str = "GET", body: Object | None = None) -> bytes:
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(
            f"{self._server}{path}", data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, context=self._tls, timeout=30) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as refused:
            with refused:
                text = refused.read().decode(errors="replace")
            if refused.code == 404:
                return b""
            raise AssertionError(f"{method} {path}: {refused.code} {text[:800]}") from None

    def get(self, path: str) -> Any:
        data = self.raw(path)
        return json.loads(data) if data else None

    def node(self) -> Object:
        return self.get(f"/api/v1/nodes/{self.name}") or {}

    def condition(self, kind: str) -> str:
        found = self.node().get("status", {}).get("conditions", ())
        return next((each["status"] for each in found if each["type"] == kind), "")

    def create(self, pod: Object) -> None:
        self.raw(f"/api/v1/namespaces/{NAMESPACE}/pods", "POST", pod)

    def pod(self, name: str) -> Object:
        return self.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}") or {}

    def delete(self, name: str) -> None:
        self.raw(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}", "DELETE", {"gracePeriodSeconds": 0})
        until(f"{name} is gone", lambda: not self.pod(name))

    def phase(self, name: str, *wanted: str, seconds: float = 90.0) -> Object:
        def look() -> Object | None:
            found = self.pod(name)
            return found if found.get("status", {}).get("phase") in wanted else None

        try:
            return until(f"pod {name} is {' or '.join(wanted)}", look, seconds)
        except AssertionError as problem:
            status, events = json.dumps(self.pod(name).get("status"), indent=1), "\n".join(self.events(name))
            raise AssertionError(f"{problem}\n{status}\n{events}\n{self.logs(name)}\n{self.log_tail()}") from problem

    def logs(self, name: str) -> str:
        return self.raw(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/log").decode(errors="replace")

    def events(self, name: str) -> list[str]:
        found = self.get(f"/api/v1/namespaces/{NAMESPACE}/events")["items"]
        return [f"{each['reason']}: {each['message']}" for each in found if each["involvedObject"]["name"] == name]

    def metrics(self) -> dict[str, tuple[dict[str, str], float]]:
        """By name, of the first GPU: labels and value."""
        text = self.raw(f"/api/v1/nodes/{self.name}/proxy/metrics/dcgm").decode()
        found = {}
        for line in text.splitlines():
            if match := re.fullmatch(r"(\w+)\{(.*)\} (\S+)", line):
                found.setdefault(match[1], (dict(re.findall(r'(\w+)="([^"]*)"', match[2])), float(match[3])))
        return found

    # Pods.

    def report(self, name: str) -> Object:
        """What the probe in a pod that has ended printed last."""
        self.phase(name, "Succeeded")
        return json.loads(self.logs(name).strip().splitlines()[-1])


def pod(name: str, command: list[str], *, gpus: int = 0, image: str = PYTHON_IMAGE, **more: Any) -> Object:
    resources = {"limits": {GPU: str(gpus)}} if gpus else {}
    mounts = more.pop("mounts", [])
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "command": command,
                    "resources": resources,
                    "volumeMounts": mounts,
                    "env": more.pop("env", []),
                }
            ],
            **more,
        },
    }


def probe(name: str, *words: str, **more: Any) -> Object:
    return pod(name, ["python", "-c", PROBE, *words], **more)


def have_gpu() -> bool:
    return os.path.exists("/proc/driver/nvidia/version") or os.path.exists("/dev/nvidiactl")
