"""Real nodes as child processes and a real kubectl beside them.

A node's containers outlive it by design, so whoever starts one here also ends what it left: `Node.destroy`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml
from kubectl_runner import Kubectl, Result, Running, poll_pause

from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.paths import DomainPaths
from coterie.kube.client import kubeconfig
from coterie.node import join_bundle

DOMAIN = "alice"
PATIENCE = 30.0
WITHOUT_DOORS = {"dns": {"enabled": False}, "gateway": {"enabled": False}}
"""Their usual ports can be had once on a machine; tests about them give their own."""
HOST_IMAGE = "coterie/host:latest"
_START_SECONDS = 40.0


def until(what: str, look: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Look again and again until the answer is true; it is returned."""
    began = time.monotonic()
    while True:
        asked = time.monotonic()
        answer = look()
        if answer:
            return answer
        now = time.monotonic()
        assert now < began + seconds, f"not within {seconds:.0f} s: {what}"
        time.sleep(poll_pause(now - began, now - asked))


class Node:
    """One `coterie start` with a root of its own."""

    def __init__(self, root: Path, name: str, settings: dict[str, Any]) -> None:
        self.root = root
        self.name = name
        self.home = root / DOMAIN
        self.kubeconfig = self.home / "kubeconfig"
        self.log = root / "node.log"
        root.mkdir(parents=True, exist_ok=True)
        self._config = root / "coterie.yaml"
        self._config.write_text(yaml.safe_dump({"domainID": DOMAIN, **WITHOUT_DOORS, **settings}))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Node:
        command = [sys.executable, "-m", "coterie", "start", "-c", str(self._config), "--root", str(self.root)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.root
            )
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(20)
            self._process = None

    def kill(self) -> None:
        """As a crash of the node's process: its containers go on."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def die(self) -> None:
        """As a loss of the machine: the node's process, the supervisor and all containers, at once."""
        family = [process for keeper in self.shepherds() for process in (keeper, *keeper.children(recursive=True))]
        self.kill()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=10)

    def destroy(self) -> None:
        """End everything: nothing of a node may outlive the tests."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(15)
        self.die()

    def shepherds(self) -> list[psutil.Process]:
        where = str(self.home / "var" / "run" / "runp")
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if where in process.cmdline():
                    found.append(process)
        return found

    def log_tail(self, lines: int = 60) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    def complaints(self) -> list[str]:
        """Errors in the node's log: none are expected, whatever happens to its pods."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return [line for line in lines if re.search(r"^\S+ error |^Traceback", line)]


def joined_node(plane: Node, root: Path, name: str, **more: Any) -> Node:
    """A node that joins `plane` with a file made there; `more` are settings of its own."""
    server = kubeconfig.read(plane.kubeconfig).resolve().server
    bundle = join_bundle.make_bundle(DomainPaths.of(plane.root, DOMAIN), name, ("127.0.0.1",), server, SYSTEM_CLOCK)
    root.mkdir()
    bundle.write(root / "join.yaml")
    agent = {"nodeName": name, "port": 0, "leaseSeconds": 4}
    settings = {"mode": "lite", "join": str(root / "join.yaml"), "agent": agent}
    return Node(root, name, {**settings, "capacity": {"cpu": 16, "memory": "32Gi"}, **more})


@dataclass(slots=True)
class Cluster:
    """A control plane with its nodes, and kubectl in a namespace of its own."""

    plane: Node
    kubectl_version: str
    namespace: str = "default"
    nodes: dict[str, Node] = field(default_factory=dict)

    def _tool(self) -> Kubectl:
        work, home = self.plane.root / "work", self.plane.root / "home"
        for path in (work, home):
            path.mkdir(exist_ok=True)
        return Kubectl(self.kubectl_version, self.plane.kubeconfig, work, home)

    @property
    def work(self) -> Path:
        """Where kubectl's own files lie."""
        return self.plane.root / "work"

    def wait_until_up(self, *names: str) -> None:
        until(
            "the API answers", lambda: self.plane.kubeconfig.exists() and self.try_("get", "--raw", "/readyz").rc == 0
        )
        until("nodes are ready", lambda: set(names) <= self.ready_nodes(), _START_SECONDS)

    def ready_nodes(self) -> set[str]:
        found = self.json("get nodes")["items"]
        return {node["metadata"]["name"] for node in found if condition(node, "Ready") == "True"}

    def in_namespace(self, name: str) -> Cluster:
        self.do(f"create namespace {name}")
        inside = Cluster(self.plane, self.kubectl_version, name, self.nodes)
        until("the namespace has its account", lambda: inside.try_("get", "sa", "default").rc == 0)
        return inside

    def try_(self, *words: str, stdin: str = "") -> Result:
        return self._tool().run("-n", self.namespace, *words, stdin=stdin)

    def do(self, line: str, stdin: str = "") -> str:
        """One command that must succeed; its output."""
        result = self.try_(*shlex.split(line), stdin=stdin)
        assert result.rc == 0, f"{result}\n{self.plane.log_tail(20)}"
        return result.out

    def fail(self, line: str) -> str:
        """One command that must not succeed; what it complained about."""
        result = self.try_(*shlex.split(line))
        assert result.rc != 0, str(result)
        return result.err + result.out

    def begin(self, line: str) -> Running:
        return self._tool().start("-n", self.namespace, *shlex.split(line))

    def json(self, line: str) -> Any:
        return json.loads(self.do(f"{line} -o json"))

    def apply(self, *objects: dict[str, Any]) -> None:
        self.do("apply -f -", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def pod(self, name: str) -> dict[str, Any]:
        return self.json(f"get pod {name}")

    def pods(self, selector: str = "") -> list[dict[str, Any]]:
        return self.json(f"get pods -l '{selector}'")["items"]

    def phase(self, name: str, wanted: str, seconds: float = PATIENCE) -> dict[str, Any]:
        """The pod once it is in that phase."""

        def look() -> dict[str, Any] | None:
            pod = self.pod(name)
            return pod if pod["status"]["phase"] == wanted else None

        try:
            return until(f"pod {name} is {wanted}", look, seconds)
        except AssertionError as problem:
            raise AssertionError(f"{problem}\n{self.do(f'describe pod {name}')}") from problem

    def ready(self, name: str, wanted: str = "True", seconds: float = PATIENCE) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            pod = self.pod(name)
            return pod if condition(pod, "Ready") == wanted else None

        try:
            return until(f"pod {name} is ready: {wanted}", look, seconds)
        except AssertionError as problem:
            raise AssertionError(f"{problem}\n{self.do(f'describe pod {name}')}") from problem

    def logs(self, name: str, *options: str) -> str:
        return self.do(f"logs {name} {' '.join(options)}")


def condition(thing: dict[str, Any], type_: str) -> str:
    for found in thing.get("status", {}).get("conditions", ()):
        if found["type"] == type_:
            return str(found["status"])
    return ""


def container(name: str = "main", script: str = "sleep 1000", **more: Any) -> dict[str, Any]:
    return {"name": name, "image": HOST_IMAGE, "command": ["sh", "-c", script], **more}


def pod(name: str, *containers: dict[str, Any], labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    spec.setdefault("terminationGracePeriodSeconds", 1)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {"app": name}},
        "spec": {"containers": list(containers) or [container()], **spec},
    }


def deployment(name: str, replicas: int, *containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"terminationGracePeriodSeconds": 1, "containers": list(containers) or [container()]},
            },
            **spec,
        },
    }


def state(pod: dict[str, Any], name: str = "main", *, init: bool = False) -> dict[str, Any]:
    """The status of one container."""
    listed = pod["status"].get("initContainerStatuses" if init else "containerStatuses", ())
    return next((found for found in listed if found["name"] == name), {})


def starts(pod: dict[str, Any]) -> list[tuple[str, int, str]]:
    """What must not change while a pod goes on: container ids, restarts and the moments they began."""
    return [
        (found["containerID"], found["restartCount"], found["state"]["running"]["startedAt"])
        for found in pod["status"]["containerStatuses"]
    ]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
