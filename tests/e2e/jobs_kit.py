"""Networks of real domains that `coterie up` brings up, and jobs on them.

with network(root, "p2p", "alice", "bob") as net, Puppets() as puppets:
    puppets.register(net)
    net.at("alice").apply(job("hello", "alice", task("a", "alice", "bob")))
    net.at("alice").until_phase("hello", "Succeeded")
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import yaml
from inside_kit import InsidePort
from kubectl_runner import Kubectl, Result, poll_pause

from coterie.base.paths import DomainPaths
from coterie.cli import background
from coterie.cli import network as layout
from coterie.kube.agent.runtimes.runp import pause, pod_networks
from coterie.kube.client import kubeconfig
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.node.config import NodeSettings

Object = dict[str, Any]
PATIENCE = 60.0
"""Seconds: nothing here takes a tenth of it on an idle machine."""
API = "kuscia.secretflow/v1alpha1"
CROSS_DOMAIN = "cross-domain"
PUPPET = "puppet"
PORTS = 16
"""How many ports for engines a control plane has: so few that those which are not given back are soon missed."""
_KUSCIA = f"/apis/{API}"
_UP_SECONDS = 110
_CALL_SECONDS = 20.0
_FIRST_BLOCK, _SLOTS = 100, 120
"""Networks have 127.0.100.0/24 and so on, of which `mesh_nodes` takes none."""
_CLAIMS: list[socket.socket] = []
_TRANSIENT = (OSError, http.client.HTTPException)


def until(what: str, look: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Look again and again until the answer is true; it is returned. A node that is away counts as no."""
    began = time.monotonic()
    last: Any = None
    while True:
        asked = time.monotonic()
        try:
            last = look()
            if last:
                return last
        except _TRANSIENT as problem:
            last = problem
        now = time.monotonic()
        assert now < began + seconds, f"not within {seconds:.0f} s: {what}; last: {last!r}"
        time.sleep(poll_pause(now - began, now - asked, 0.03))


# Objects.


def task(alias: str, *parties: str | Object, after: Sequence[str] = (), image: str = PUPPET, **more: Any) -> Object:
    return {
        "alias": alias,
        "appImage": image,
        "taskInputConfig": more.pop("input", alias),
        "parties": [{"domainID": each} if isinstance(each, str) else each for each in parties],
        **({"dependencies": list(after)} if after else {}),
        **more,
    }


def job(name: str, initiator: str, *tasks: Object, **spec: Any) -> Object:
    return {
        "apiVersion": API,
        "kind": "KusciaJob",
        "metadata": {"name": name, "namespace": CROSS_DOMAIN},
        "spec": {"initiator": initiator, "tasks": list(tasks), **spec},
    }


def app_image(name: str, script: str, shell: str = "sh", **more: Any) -> Object:
    """An engine of one shell script, with one port that other parties can reach."""
    container = {
        "name": "main",
        "workingDir": "/tmp",
        "command": [shell, "-c", script],
        "configVolumeMounts": [{"mountPath": "/tmp/task.conf", "subPath": "task.conf"}],
        "ports": [{"name": "talk", "protocol": "HTTP", "scope": "Cluster"}],
        **more,
    }
    template = {"name": "any", "replicas": 1, "spec": {"restartPolicy": "Never", "containers": [container]}}
    return {
        "apiVersion": API,
        "kind": "AppImage",
        "metadata": {"name": name},
        "spec": {
            "image": {"name": "coterie/host", "tag": "latest"},
            "configTemplates": {"task.conf": "{{.TASK_ID}} {{.KUSCIA_DOMAIN_ID}} {{.TASK_INPUT_CONFIG}}\n"},
            "deployTemplates": [template],
        },
    }


# Networks.


class Refused(AssertionError):
    """The API said no."""


@dataclass(slots=True)
class Domain:
    """One node of the network. `plane` is where its objects are: itself, or its master."""

    settings: NodeSettings
    kubectl_version: str
    work: Path
    plane: Domain = field(init=False)
    _connection: http.client.HTTPSConnection | None = None
    _inside: InsidePort | None = None

    @property
    def inside(self) -> tuple[str, int]:
        """Where a call is one of the domain's own pods."""
        address = self.settings.gateway.internal
        assert address is not None, "a master has no pods"
        if self._inside is None:
            self._inside = InsidePort.open(self.paths.run, address.host, address.port)
        return address.host, address.port

    @property
    def name(self) -> str:
        return self.settings.domain

    @property
    def paths(self) -> DomainPaths:
        return self.settings.paths

    # ---- its API ----

    def _tls(self) -> ssl.SSLContext:
        pki = self.paths.home / "var" / "certs" / "pki"
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.load_cert_chain(str(pki / "admin.crt"), str(pki / "admin.key"))
        return context

    def _socket(self, host: str, port: int) -> ssl.SSLSocket:
        """Wrapped before it connects: what is wrapped later is lost, and warned about, when the server dies meanwhile."""
        made = self._tls().wrap_socket(socket.socket(), server_hostname=host)
        made.settimeout(_CALL_SECONDS)
        try:
            made.connect((host, port))
        except OSError:
            made.close()
            raise
        return made

    def call(self, method: str, path: str, body: Object | None = None, kind: str = "application/json") -> Any:
        """One request; None when there is no such thing. Raises Refused, or what the network raises."""
        if self._connection is None:
            at = urlsplit(kubeconfig.read(self.paths.kubeconfig).resolve().server)
            self._connection = http.client.HTTPSConnection(at.hostname or "", at.port, timeout=_CALL_SECONDS)
            self._connection.sock = self._socket(at.hostname or "", at.port or 443)
        try:
            text = json.dumps(body) if body is not None else None
            self._connection.request(method, path, text, {"Content-Type": kind} if text else {})
            answer = self._connection.getresponse()
            said = answer.read()
        except _TRANSIENT:
            self.forget()
            raise
        if answer.status == 404:
            return None
        if answer.status >= 500:
            raise ConnectionError(f"{answer.status} {said[:300]!r}")
        if answer.status >= 300:
            raise Refused(f"{method} {path}: {answer.status} {said[:500]!r}")
        return json.loads(said)

    def forget(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._inside is not None:
            self._inside.close()
            self._inside = None

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def list(self, path: str) -> list[Object]:
        found = self.call("GET", path)
        return list(found["items"]) if found else []

    def merge(self, path: str, patch: Object) -> Any:
        return self.call("PATCH", path, patch, "application/merge-patch+json")

    # ---- kubectl ----

    def kubectl(self, *words: str, stdin: str = "") -> str:
        result = self.try_kubectl(*words, stdin=stdin)
        assert result.rc == 0, str(result)
        return result.out

    def try_kubectl(self, *words: str, stdin: str = "") -> Result:
        return Kubectl(self.kubectl_version, self.paths.kubeconfig, self.work, self.work).run(*words, stdin=stdin)

    def apply(self, *things: Object) -> str:
        return self.kubectl("apply", "-f", "-", stdin="---\n".join(yaml.safe_dump(each) for each in things))

    # ---- jobs ----

    def open_to(self, partner: str) -> None:
        """What `coterie policy allow PARTNER` does."""
        path = f"{_KUSCIA}/partnerpolicies"
        if self.get(f"{path}/{partner}") is None:
            body = {"apiVersion": API, "kind": "PartnerPolicy", "metadata": {"name": partner}}
            self.call("POST", path, {**body, "spec": {"appImages": ["*"]}})

    def submit(self, thing: Object) -> None:
        self.call("POST", f"{_KUSCIA}/namespaces/{CROSS_DOMAIN}/kusciajobs", thing)

    def job(self, name: str) -> Object | None:
        return self.get(f"{_KUSCIA}/namespaces/{CROSS_DOMAIN}/kusciajobs/{name}")

    def tasks(self, job: str) -> dict[str, Object]:
        """By alias."""
        found = self.list(f"{_KUSCIA}/namespaces/{CROSS_DOMAIN}/kusciatasks")
        mine = [each for each in found if each["metadata"]["annotations"].get("kuscia.secretflow/job-id") == job]
        return {
            each["metadata"]["annotations"]["kuscia.secretflow/task-alias"]: {"status": {}, **each} for each in mine
        }

    def phase(self, job: str) -> str:
        found = self.job(job)
        return str((found or {}).get("status", {}).get("phase", ""))

    def until_phase(self, name: str, *wanted: str, seconds: float = PATIENCE) -> Object:
        """The job once it is in one of those phases."""

        def look() -> Object | None:
            found = self.job(name)
            return found if found and found.get("status", {}).get("phase") in wanted else None

        try:
            return until(f"job {name} is {' or '.join(wanted)} at {self.name}", look, seconds)
        except AssertionError as problem:
            raise AssertionError(f"{problem}\n{self.told(name)}") from problem

    def told(self, name: str) -> str:
        """All that is known here about a job, for a person to read."""
        found = [self.job(name), *self.tasks(name).values()]
        return yaml.safe_dump_all([{"metadata": each["metadata"]["name"], **each.get("status", {})} for each in found if each])  # fmt: skip

    def command(self, job: str, stage: str) -> None:
        """As `coterie job` and Kuscia's API do it: a label with a version above the last one."""
        found = self.job(job)
        assert found is not None
        before = (found["metadata"].get("labels") or {}).get("kuscia.secretflow/job-stage-version", "0")
        marks = {
            "kuscia.secretflow/job-stage": stage,
            "kuscia.secretflow/job-stage-version": str(int(before) + 1),
            "kuscia.secretflow/job-stage-trigger": self.name,
        }
        self.merge(f"{_KUSCIA}/namespaces/{CROSS_DOMAIN}/kusciajobs/{job}", {"metadata": {"labels": marks}})

    def decide(self, job: str, word: str) -> None:
        """Approve or reject a partner's job: `JobAccepted`, `JobRejected`."""
        path = f"{_KUSCIA}/namespaces/{CROSS_DOMAIN}/kusciajobs/{job}/status"
        self.merge(path, {"status": {"approveStatus": {self.name: word}}})

    # ---- processes ----

    @property
    def pid(self) -> int:
        return background.running(self.paths)

    @property
    def envoy(self) -> int:
        return int((GatewayPaths.of(self.paths).run / "envoy.pid").read_text())

    def kill(self, number: int = signal.SIGKILL) -> None:
        """The coterie process alone; its Envoy and its containers go on."""
        pid = self.pid
        os.kill(pid, number)
        until(f"{self.name} is dead", lambda: not self.pid)
        self.forget()

    def start(self) -> None:
        background.start(self.paths, os.environ)

    def until_up(self) -> None:
        until(f"the API of {self.name} answers", lambda: self.list("/api/v1/namespaces"))

    def containers(self) -> list[psutil.Process]:
        """Processes of containers that run now."""
        where = str(self.runp)
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if where in process.cmdline():
                    children = process.children(recursive=True)
                    # Besides containers the supervisor has the process that holds the pod network.
                    for each in children:
                        with contextlib.suppress(psutil.Error):  # one that ends now hides no other
                            if each.cmdline() != [pause.NAME]:
                                found.append(each)
        return found

    @property
    def runp(self) -> Path:
        return self.paths.home / "var" / "run" / "runp"

    @property
    def supervisor(self) -> int:
        """The parent of the pods; 0: there is none now."""
        where = str(self.runp)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                if where in words and any(word.endswith("runp.supervisor") for word in words):
                    return process.pid
        return 0

    @property
    def holder(self) -> int:
        """The process that keeps the pod network."""
        facts = pod_networks.read_facts(str(self.runp))
        return int(facts.get("holder", 0)) if facts is not None else 0

    @property
    def relay(self) -> int:
        """The way out of an ordinary user's domain; 0: there is none."""
        where = str(self.paths.run / "relay")
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                if any("rootless.relay" in word for word in words) and any(where in word for word in words):
                    return process.pid
        return 0

    def kill_engine(self, pod: str) -> None:
        """kill -9 of what runs in a pod."""
        mark = f"HOSTNAME={pod}".encode()
        found = []
        for process in self.containers():
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{process.pid}/environ").read_bytes():
                    found.append(process.pid)
        assert found, f"nothing runs in {pod}"
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def said(self) -> str:
        return background.log_file(self.paths).read_text(errors="replace")

    def complaints(self) -> list[str]:
        return [line for line in self.said().splitlines() if " error " in line[:60] or line.startswith("Traceback")]


class Net:
    def __init__(self, root: Path, topology: str, names: Sequence[str], kubectl_version: str, master: str = "") -> None:
        self.root, self.topology, self.master = root, topology, master
        work = root.with_name(root.name + "-work")
        work.mkdir(parents=True, exist_ok=True)
        layout.choose(root, topology, list(names), master)
        _move(root)
        chosen = layout.members(root)
        self.domains = {each.domain: Domain(each, kubectl_version, work) for each in chosen}
        for each in self.domains.values():
            each.plane = self.domains[master or layout.MASTER] if each.settings.mode == "lite" else each

    @property
    def planes(self) -> list[Domain]:
        return [each for each in self.domains.values() if each.plane is each]

    def at(self, name: str) -> Domain:
        """Where objects of a domain are."""
        return self.domains[name].plane

    def configure(self, name: str, more: Mapping[str, Any]) -> None:
        """Settings on top of those that `coterie up` writes, before the first start."""
        file = background.config_file(self.domains[name].paths)
        known = yaml.safe_load(file.read_text())
        for key, value in more.items():
            known[key] = {**known.get(key, {}), **value} if isinstance(value, dict) else value
        file.write_text(yaml.safe_dump(known))

    def up(self) -> None:
        names = [each.name for each in self.domains.values() if each.settings.mode != "master"]
        command = [
            sys.executable, "-m", "coterie", "up", "--topology", self.topology, "--root", str(self.root),
            "--domains", ",".join(names), "--wait", str(_UP_SECONDS), *(("--master", self.master) if self.master else ()),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=_UP_SECONDS + 30)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"

    def down(self) -> None:
        for each in self.domains.values():
            each.forget()
        command = [sys.executable, "-m", "coterie", "down", "--root", str(self.root), "--grace", "1"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        for left in self._left():
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"

    def _left(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if any(f"{self.root}{os.sep}" in word for word in process.cmdline()):
                    found.append(process)
        return found

    def register(self, *images: Object) -> None:
        for plane in self.planes:
            plane.apply(*images)

    # ---- what stays behind ----

    def leftovers(self) -> list[str]:
        """Everything of tasks that is still there on any control plane, and processes of containers."""
        found = []
        for plane in self.planes:
            for kind, path in (
                ("pod", "/api/v1/pods"),
                ("service", "/api/v1/services"),
                ("configmap", "/api/v1/configmaps"),
                ("group", f"{_KUSCIA}/taskresourcegroups"),
                ("reservation", f"{_KUSCIA}/taskresources"),
            ):
                for each in plane.list(path):
                    marks = each["metadata"].get("labels") or {}
                    if kind in ("group", "reservation") or "kuscia.secretflow/task-uid" in marks:
                        found.append(f"{plane.name}: {kind} {each['metadata'].get('namespace', '')}/{each['metadata']['name']}")  # fmt: skip
        found += [
            f"{each.name}: process {process.pid}" for each in self.domains.values() for process in each.containers()
        ]
        return found

    def until_clean(self) -> None:
        """Nothing of any task is left. Pods that failed are kept with their jobs; see `remove_jobs`."""
        last: list[str] = []

        def clean() -> bool:
            last[:] = self.leftovers()
            return not last

        try:
            until("nothing is left behind", clean)
        except AssertionError as problem:
            raise AssertionError(f"{problem}\nleft: {last}") from problem

    def remove_jobs(self) -> None:
        """Delete all jobs where they began; they and all that belongs to them go everywhere."""
        for plane in self.planes:
            for each in plane.list(f"{_KUSCIA}/namespaces/{CROSS_DOMAIN}/kusciajobs"):
                if self.at(each["spec"]["initiator"]) is plane:
                    plane.call("DELETE", f"{_KUSCIA}/namespaces/{CROSS_DOMAIN}/kusciajobs/{each['metadata']['name']}")
        kinds = ("kusciajobs", "kusciatasks", "kusciajobsummaries", "kusciatasksummaries")
        for plane in self.planes:
            for kind in kinds:
                until(f"no {kind} are left at {plane.name}", lambda p=plane, k=kind: not p.list(f"{_KUSCIA}/{k}"))
        self.until_clean()


def _move(root: Path) -> None:
    """To addresses and ports for engines that nobody else uses: `coterie up` picks what is free at that moment, but here
    the nodes start only later."""
    slot = _claim_slot()
    for place, file in enumerate(sorted(root.glob("*/etc/coterie.yaml"))):
        known = yaml.safe_load(file.read_text().replace("127.0.1.", f"127.0.{_FIRST_BLOCK + slot}."))
        if "controllers" in known:
            first = 10_000 + PORTS * (slot * 4 + place)
            known["controllers"] = {"portRange": [first, first + PORTS - 1]}
        file.write_text(yaml.safe_dump(known))


def _claim_slot() -> int:
    """Of all test processes that share these addresses one has it, until it ends: it holds an abstract socket of that name."""
    for slot in range(_SLOTS):
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            claim.bind(f"\0coterie-test-network-{slot}")
        except OSError:
            claim.close()
            continue
        _CLAIMS.append(claim)
        return slot
    raise AssertionError(f"{_SLOTS} networks are in use already")


@contextlib.contextmanager
def network(
    root: Path, topology: str, *names: str, kubectl: str = "", settings: Mapping[str, Mapping[str, Any]] | None = None
) -> Iterator[Net]:
    """`settings`: by domain, what its configuration says besides; under "" for all of them."""
    net = Net(root, topology, names, kubectl)
    try:
        for each in net.domains:
            for more in ((settings or {}).get(""), (settings or {}).get(each)):
                if more:
                    net.configure(each, more)
        net.up()
        yield net
    finally:
        net.down()
