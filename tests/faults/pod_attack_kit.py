"""Networks in which pods attack: victims beside them, targets on the machine, and what the attackers report.

    with attacked(root, "p2p", kubectl) as scene:
        scene.results("guest")["file own domain key"]       # a pod at alice's that bob began

Kinds of attackers, all of them pods of alice's node:

    guest      an engine of a task that bob began
    engine     an engine of a task that alice began, together with bob
    ordinary   a pod that alice's people made with kubectl
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import struct
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
from jobs_kit import API, Domain, Net, Object, job, network, task, until

import coterie
from coterie.base import pki
from coterie.kube.agent.runtimes.runp.network_access import RELAY_PORT
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.kuscia.identity import engine_certificates
from coterie.kuscia.identity.engine_certificates import EngineIdentity

PROBE = Path(__file__).with_name("pod_probe.py").read_text()
KINDS = ("guest", "engine", "ordinary")
GATEWAY = "100.96.0.1"
VICTIM_PORT = 8000
SECRET = "an-operators-secret"
TABLE = "customers"
CANARY_ZONE = "canary.test"
BOMB_MEMORY, BOMB_DISK, BOMB_PIDS = "96Mi", "48Mi", 120
_DIRECTORIES = ("/root", "/home", "/var", "/srv", "/mnt", "/opt", "/boot", "/media", "/run", "/sys/fs")
_DEVICES = (
    "mem", "kmem", "port", "kmsg", "net/tun", "fuse", "kvm", "loop-control", "loop0", "mapper/control", "console",
    "nvidia0", "nvidiactl", "nvidia-uvm", "dri/renderD128", "kfd", "vfio/vfio", "vhost-vsock", "vda", "sda", "uinput",
)  # fmt: skip
_NAMES = ("apiserver", "kusciaapi", "kuscia-handshake")
_DONE_SECONDS = 150.0
CERTIFICATE = "another pod's certificate"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one attack."""

    state: str
    """succeeded, refused, or broken: the attack does not work as it is written."""
    how: str
    seconds: float


class Canary:
    """What the machine has beside Coterie: a service on all its addresses, an abstract socket, a file socket, a DNS server
    that knows all names below `canary.test`, and a file of the user who runs the nodes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.asked: list[str] = []
        """Names that the DNS server was asked for."""
        self.abstract = f"coterie-canary-{os.getpid()}"
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Canary:
        tcp = self._stack.enter_context(socket.create_server(("0.0.0.0", 0)))
        self.port = tcp.getsockname()[1]
        abstract = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind("\0" + self.abstract)
        named = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        # Paths of sockets have a limit, which pytest's directories reach.
        self.socket = Path(self._stack.enter_context(tempfile.TemporaryDirectory())) / "canary.sock"
        named.bind(str(self.socket))
        for each in (tcp, abstract, named):
            each.listen(64)
            threading.Thread(target=_greet, args=(each,), daemon=True).start()
        self._dns = self._stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self._dns.bind(("127.0.0.1", 0))
        self.dns_port = self._dns.getsockname()[1]
        threading.Thread(target=self._answer, daemon=True).start()
        self.secret = self.directory / "private"
        self.secret.write_text(SECRET)
        self.secret.chmod(0o600)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _answer(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                data, sender = self._dns.recvfrom(4096)
                labels, at = [], 12
                while data[at]:
                    labels.append(data[at + 1 : at + 1 + data[at]].decode(errors="replace").lower())
                    at += 1 + data[at]
                self.asked.append(".".join(labels))
                question = data[12 : at + 5]
                record = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + socket.inet_aton("192.0.2.7")
                self._dns.sendto(data[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + question + record, sender)


def _greet(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            made, _ = listener.accept()
            with made:
                made.sendall(b"canary\n")


@dataclass(slots=True)
class Attacker:
    kind: str
    pod: str
    address: str
    uid: str


@dataclass
class Scene:
    net: Net
    canary: Canary
    link: Path
    """A link to the directory that holds all domains."""
    input: dict[str, Any] = field(default_factory=dict)
    attackers: dict[str, Attacker] = field(default_factory=dict)
    _results: dict[str, dict[str, Outcome]] = field(default_factory=dict)

    @property
    def alice(self) -> Domain:
        return self.net.domains["alice"]

    @property
    def bob(self) -> Domain:
        return self.net.domains["bob"]

    # ---- objects ----

    def pod_of(self, job: str, domain: str = "alice") -> Object:
        """The pod of a job's only task, once it runs."""

        def running() -> Object | None:
            for each in self.net.at(domain).list(f"/api/v1/namespaces/{domain}/pods"):
                mine = (each["metadata"].get("annotations") or {}).get("kuscia.secretflow/job-id") == job
                if mine and each["status"].get("phase") == "Running" and each["status"].get("podIP"):
                    return each
            return None

        try:
            return until(f"the engine of {job} runs at {domain}", running)
        except AssertionError as problem:
            plane = self.net.at(domain)
            raise AssertionError(f"{problem}\n{plane.told(job)}\n{plane.kubectl('get', 'events', '-A')}") from problem

    def ordinary(self, domain: str, name: str, given: Mapping[str, Any], **spec: Any) -> Object:
        """A pod of the domain's own people, running."""
        container = {
            "name": "main",
            "image": "coterie/host:latest",
            "command": [sys.executable, "-c", PROBE],
            "env": [{"name": "PROBE_INPUT", "value": json.dumps(given)}],
            **spec.pop("container", {}),
        }
        meta = {"name": name, "namespace": domain, "labels": {"app": name}}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container], **spec}}
        body["spec"] |= {"terminationGracePeriodSeconds": 1, "restartPolicy": "Never"}
        plane, path = self.net.at(domain), f"/api/v1/namespaces/{domain}/pods"
        plane.call("POST", path, body)

        def running() -> Object | None:
            found = plane.get(f"{path}/{name}")
            return found if found["status"].get("phase") == "Running" and found["status"].get("podIP") else None

        return until(f"pod {name} of {domain} runs", running)

    def serves(self, domain: str, pod: str) -> None:
        until(f"{pod} serves", lambda: "serving" in self.output(domain, pod))

    def service(self, domain: str, name: str, pod: str, **notes: str) -> None:
        known = {f"kuscia.secretflow/{key.replace('_', '-')}": value for key, value in notes.items()}
        ports = [{"name": "http", "port": 80, "targetPort": VICTIM_PORT}]
        body = {
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": domain, "annotations": known},
            "spec": {"clusterIP": "None", "selector": {"app": pod}, "ports": ports},
        }  # fmt: skip
        self.net.at(domain).call("POST", f"/api/v1/namespaces/{domain}/services", body)

    def output(self, domain: str, pod: str) -> str:
        found = self.net.at(domain).try_kubectl("logs", "-n", domain, pod)
        return found.out if found.rc == 0 else ""

    # ---- attacks ----

    def attack(self, kind: str) -> Attacker:
        """Begin one; `results` waits for it."""
        given = {**self.input, "kind": kind, "mode": "probe"}
        if kind == "ordinary":
            pod = self.ordinary("alice", "attacker", {**given, "allowed host": "inner.alice.svc"})
        else:
            initiator = "bob" if kind == "guest" else "alice"
            name = f"{kind}-attack"
            parties = task("a", "alice", "bob", image="probe", input=hidden(given))
            self.net.at(initiator).submit(job(name, initiator, parties))
            pod = self.pod_of(name)
        meta = pod["metadata"]
        made = self.attackers[kind] = Attacker(kind, meta["name"], pod["status"]["podIP"], meta["uid"])
        return made

    def results(self, kind: str) -> dict[str, Outcome]:
        if kind not in self._results:
            attacker = self.attackers[kind]

            def done() -> str:
                text = self.output("alice", attacker.pod)
                return text if "\nDONE " in text else ""

            try:
                text = until(f"the attacks of {kind} are over", done, _DONE_SECONDS)
            except AssertionError as problem:
                raise AssertionError(f"{problem}\n{self.output('alice', attacker.pod)[-3000:]}") from problem
            lines = (json.loads(line[5:]) for line in text.splitlines() if line.startswith("CASE "))
            found = {}
            for name, state, how, seconds in lines:
                found[name] = Outcome(state, how, seconds)
            self._results[kind] = found
        return self._results[kind]

    # ---- logs ----

    def gateway_log(self, domain: str = "alice") -> list[str]:
        path = GatewayPaths.of(self.net.domains[domain].paths).logs / "internal.log"
        return path.read_text(errors="replace").splitlines()

    def logged(self, *words: str, domain: str = "alice") -> str:
        """The line with these words; Envoy writes its log once a second."""

        def found() -> str:
            return next((line for line in self.gateway_log(domain) if all(word in line for word in words)), "")

        return str(until(f"a line with {words} in the log of {domain}'s gateway", found, 15))

    # ---- targets ----

    @cached_property
    def machine_address(self) -> str:
        """One that is not loopback; empty when the machine has none."""
        found = [
            each.address
            for name, addresses in psutil.net_if_addrs().items()
            for each in addresses
            if name != "lo" and each.family == socket.AF_INET
        ]
        return next(iter(found), "")

    def prepare(self) -> None:
        """Victims, then what attackers are told about them and the machine."""
        self.net.register(probe_image("probe"))
        serve = {"mode": "serve", "port": VICTIM_PORT}
        volume = {"volumes": [{"name": "v", "emptyDir": {}}]}
        mounted = {"volumeMounts": [{"name": "v", "mountPath": "/volume"}]}
        victim = self.ordinary("alice", "victim", {**serve, "word": "pod of alice"}, container=mounted, **volume)
        other = self.ordinary("bob", "victim", {**serve, "word": "pod of bob"})
        self.service("alice", "inner", "victim", access_domain="")
        self.service("bob", "closed", "victim", access_domain="")
        self.service("bob", "opened", "victim", access_domain="alice")
        parties = task("a", "alice", "bob", image="probe", input=hidden({"mode": "serve"}))
        self.net.at("alice").submit(job("victim", "alice", parties))
        engines = {each: self.pod_of("victim", each) for each in ("alice", "bob")}
        for domain, pod in (("alice", victim), ("bob", other), *engines.items()):
            self.serves(domain, pod["metadata"]["name"])
        self._table()
        self.input = {
            **self._files(victim, engines["alice"]),
            **self._network(victim, other, engines),
            **self._identities(engines["alice"]),
            "node pid": self.alice.pid,
            "victim pid": self.pid_in(victim["metadata"]["name"]),
            "flood seconds": 4,
        }

    def pid_in(self, pod: str, domain: str = "alice") -> int:
        mark = f"HOSTNAME={pod}\0".encode()
        for process in self.net.domains[domain].containers():
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{process.pid}/environ").read_bytes():
                    return process.pid
        raise AssertionError(f"nothing runs in {pod}")

    def _table(self) -> None:
        spec = {
            "author": "alice", "name": TABLE, "type": "table", "dataSource": "default-data-source",
            "relativeURI": "customers.csv", "columns": [{"name": "id", "type": "str"}],
        }  # fmt: skip
        body = {
            "apiVersion": API,
            "kind": "DomainData",
            "metadata": {"name": TABLE, "namespace": "alice"},
            "spec": spec,
        }
        self.net.at("alice").call("POST", f"/apis/{API}/namespaces/alice/domaindatas", body)
        (self.alice.paths.data / "customers.csv").write_text("id\n1\n")

    def _files(self, victim: Object, engine: Object) -> dict[str, Any]:
        alice, bob, pods = self.alice.paths, self.bob.paths, self.alice.paths.var / "pods"
        volume = next((pods / victim["metadata"]["uid"]).rglob("*/v"), pods)
        (volume / "private").write_text(SECRET)
        below = alice.domain_key.relative_to(self.net.root)
        files = {
            "own domain key": alice.domain_key,
            "own authority's key": alice.ca_key,
            "own KusciaAPI token": alice.api_token,
            "own configuration": alice.etc / "coterie.yaml",
            "own gateway's configuration": GatewayPaths.of(alice).directory / "lds.json",
            "own log": alice.log("coterie"),
            "other domain's key": bob.domain_key,
            "other domain's authority": bob.ca_key,
            "other domain's configuration": bob.etc / "coterie.yaml",
            "own key by a link to the root": self.link / below,
            "of the node's user": self.canary.secret,
            "another pod's volume": volume / "private",
            "another pod's key": pods / engine["metadata"]["uid"] / "certificates" / "client.key",
            "table": alice.data / "customers.csv",
            "/etc/shadow": Path("/etc/shadow"),
            "/etc/machine-id": Path("/etc/machine-id"),
            "/etc/ssl/private": Path("/etc/ssl/private"),
        }
        for name, path in (
            ("own kubeconfig", self.alice.plane.paths.kubeconfig),
            ("own administrator's key", self.alice.plane.paths.pki / "admin.key"),
            ("own database", self.alice.plane.paths.database),
        ):
            files[name] = path
        visible = [Path(each) for each in (sys.prefix, sys.base_prefix, sys.executable)]
        visible += [Path(sys.executable).resolve(), Path(coterie.__file__).parents[1]]
        expected: dict[str, list[str]] = {"/home": ["app"], "/var": ["tmp"]}
        for place in visible:
            for top in _DIRECTORIES:
                if place.is_relative_to(top) and str(place) != top:
                    expected.setdefault(top, []).append(place.relative_to(top).parts[0])
        disk = os.stat("/").st_dev
        return {
            "files": {label: str(path) for label, path in files.items()},
            "directories": list(_DIRECTORIES),
            "expected": expected,
            "devices": list(_DEVICES),
            "disk": [os.major(disk), os.minor(disk)],
            "environment": os.path.realpath(sys.executable),
            "read only": [
                "/usr/evil", "/evil", "/etc/passwd", "/etc/hosts", "/etc/resolv.conf", "/etc/ld.so.preload",
                f"{sys.prefix}/evil", f"{sysconfig.get_paths()['purelib']}/evil.pth", f"{sys.base_prefix}/evil",
                f"{Path(coterie.__file__).parent}/evil.py", os.path.realpath(sys.executable),
            ],
        }  # fmt: skip

    def _network(self, victim: Object, other: Object, engines: Mapping[str, Object]) -> dict[str, Any]:
        alice, bob = (each.settings.agent.address for each in (self.alice, self.bob) if each.settings.agent)
        ports = {
            "machine loopback": ("127.0.0.1", self.canary.port),
            "another loopback address": ("127.77.0.1", self.canary.port),
            "metadata": ("169.254.169.254", 80),
            "its own router": ("169.254.1.1", 80),
            "the Internet": ("192.0.2.1", 443),
            "nowhere": ("0.0.0.0", 6443),
        }
        if self.machine_address:
            ports["machine address"] = (self.machine_address, self.canary.port)
        plane = self.alice.plane.settings.api
        for label, address in (("own", alice), ("other", bob)):
            known = {"KusciaAPI": 8082, "KusciaAPI gRPC": 8083, "agent": 10250, "gateway": 1080}
            ports |= {f"{label} {name}": (address, port) for name, port in known.items()}
            ports[f"{label} API"] = (address, 6443)
        ports["own API"] = (plane.host, plane.port)
        for port in (6443, 8082, 8083, 10250, 1080, 8088, 8090, 9091, 22, 111, RELAY_PORT, self.canary.port):
            ports[f"{port} of the pods' gateway"] = (GATEWAY, port)
        for port in (8060, 8061):
            ports[f"ConfManager {port}"] = (GATEWAY, port)
        services = [f"{engines['alice']['metadata']['name']}-talk"]
        hosts = [f"{name}.{domain}.svc" for name in _NAMES for domain in ("alice", "bob", "master")]
        hosts += [f"{name}.{domain}.svc" for name in services for domain in ("alice", "bob")]
        hosts += ["inner.alice.svc", "inner", "closed.bob.svc", "opened.bob.svc", "reporter.bob.svc", "nobody.bob.svc"]
        engine, there = engines["alice"], engines["bob"]
        pods = {
            "victim": {"address": victim["status"]["podIP"], "port": VICTIM_PORT},
            "engine victim": {"address": engine["status"]["podIP"], "port": port_of(engine)},
            "other network": {
                "ordinary pod": (other["status"]["podIP"], VICTIM_PORT, "pod of bob"),
                "engine": (there["status"]["podIP"], port_of(there), "engine of bob"),
            },
            "other pod name": f"{services[0]}.bob.svc",
            "other pod addresses": [each["status"]["podIP"] for each in (other, there)],
        }
        sockets = {"file": str(self.canary.socket)}
        for domain in (self.alice, self.bob):
            for run in {domain.paths.run, GatewayPaths.of(domain.paths).run}:
                sockets |= {f"{domain.name} {each.name}": str(each) for each in run.rglob("*.sock")}
        return {
            "gateway": GATEWAY,
            "ports": ports,
            "hosts": hosts,
            "sockets": sockets,
            "abstract": self.canary.abstract,
            "vsock port": 1024,
            **pods,
        }

    def _identities(self, engine: Object) -> dict[str, Any]:
        meta = engine["metadata"]
        victim = EngineIdentity("alice", meta["name"], meta["uid"], meta["annotations"]["kuscia.secretflow/task-id"])
        now = datetime.now(UTC)
        made = pki.self_signed_ca("alice", pki.new_key("ec"), now=now)
        theirs = pki.Authority(
            pki.load_certificate(self.bob.paths.ca_certificate.read_bytes()),
            pki.load_key(self.bob.paths.ca_key.read_bytes()),
        )
        gone = EngineIdentity("alice", "gone-0", "00000000-0000-0000-0000-000000000000", "gone")
        ours = pki.Authority(
            pki.load_certificate(self.alice.paths.ca_certificate.read_bytes()),
            pki.load_key(self.alice.paths.ca_key.read_bytes()),
        )
        pairs = {
            "a self-made certificate": engine_certificates.issue_client_pair(made, victim, now),
            "a certificate of the partner's authority": engine_certificates.issue_client_pair(theirs, victim, now),
            "a certificate of a pod that is gone": engine_certificates.issue_client_pair(ours, gone, now),
        }
        leaked = self.alice.paths.var / "pods" / meta["uid"] / "certificates"
        found = {label: (each.certificate.decode(), each.key.decode()) for label, each in pairs.items()}
        found[CERTIFICATE] = ((leaked / "client.crt").read_text(), (leaked / "client.key").read_text())
        return {
            "pairs": found,
            "table": TABLE,
            "other task": victim.task,
            "secrets": {"KusciaAPI token": self.alice.paths.api_token.read_text().strip()},
        }


def hidden(given: Mapping[str, Any]) -> str:
    """The input of a task. A job whose input names a table openly is refused before it begins, without a grant."""
    return base64.b64encode(json.dumps(given).encode()).decode()


def port_of(engine: Object) -> int:
    variables = {each["name"]: each.get("value") for each in engine["spec"]["containers"][0]["env"]}
    return int(variables["KUSCIA_PORT_TALK_NUMBER"])


def probe_image(name: str, templates: Mapping[str, str] | None = None, **limits: str) -> Object:
    known = {
        "probe.py": PROBE,
        "task.json": '{"task": "{{.TASK_ID}}", "domain": "{{.KUSCIA_DOMAIN_ID}}", "input": "{{.TASK_INPUT_CONFIG}}",'
        ' "cluster": "{{.TASK_CLUSTER_DEFINE}}"}',
        **(templates or {}),
    }
    container: Object = {
        "name": "main",
        "workingDir": "/attack",
        "command": [sys.executable, "/attack/probe.py", "/attack/task.json"],
        "configVolumeMounts": [{"mountPath": f"/attack/{each}", "subPath": each} for each in known],
        "ports": [{"name": "talk", "protocol": "HTTP", "scope": "Cluster"}],
    }
    if limits:
        container["resources"] = {"limits": {key.replace("_", "-"): value for key, value in limits.items()}}
    template = {"name": "any", "replicas": 1, "spec": {"restartPolicy": "Never", "containers": [container]}}
    return {
        "apiVersion": API,
        "kind": "AppImage",
        "metadata": {"name": name},
        "spec": {
            "image": {"name": "coterie/host", "tag": "latest"},
            "configTemplates": known,
            "deployTemplates": [template],
        },
    }


@contextlib.contextmanager
def attacked(root: Path, topology: str, kubectl: str, *kinds: str) -> Iterator[Scene]:
    """All attacks begin at once."""
    outside = root / "outside"
    outside.mkdir(parents=True)
    with Canary(outside) as canary:
        link = outside / "link"
        link.symlink_to(root / "net")
        settings = {
            "alice": {
                "dns": {"upstream": [f"127.0.0.1:{canary.dns_port}"]},
                "agent": {"defaults": {"pids": BOMB_PIDS}},
            }
        }
        with network(root / "net", topology, "alice", "bob", kubectl=kubectl, settings=settings) as net:
            scene = Scene(net, canary, link)
            scene.prepare()
            for kind in kinds:
                scene.attack(kind)
            yield scene
