"""Networks in which pods attack: victims beside them, targets on the machine, and what the attackers report.

    with attacked(root, "p2p", kubectl, "guest") as scene:
        scene.results("guest")["file own domain key"]       # a pod at alice's that bob began

Kinds of attackers, all of them pods of alice's node:

    guest      an engine of a task that bob began
    engine     an engine of a task that alice began, together with bob
    ordinary   a pod that alice's people made with kubectl
"""

from __future__ import annotations

import base64
import contextlib
import ipaddress
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
from functools import cache
from pathlib import Path
from typing import Any

import pod_probe
import psutil
from jobs_kit import API, Domain, Net, Object, job, network, task, until

import coterie
from coterie.base import pki
from coterie.base.paths import DomainPaths
from coterie.kube.agent.runtimes.runp.network_access import RELAY_PORT
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.kuscia.identity import engine_certificates
from coterie.kuscia.identity.engine_certificates import EngineIdentity
from coterie.node import config

PROBE = Path(pod_probe.__file__).read_text()
KINDS = ("guest", "engine", "ordinary")
VICTIM_PORT = 8000
SECRET = "an-operators-secret"
TABLE = "customers"
PIDS = 200
"""Of each pod at alice's. The probe itself needs two dozen."""
FLOOD_SECONDS = 5
_DIRECTORIES = ("/root", "/home", "/var", "/srv", "/mnt", "/opt", "/boot", "/media", "/run", "/sys/fs")
_DEVICES = (
    "mem", "kmem", "port", "kmsg", "net/tun", "fuse", "kvm", "loop-control", "loop0", "mapper/control", "console",
    "nvidia0", "nvidiactl", "nvidia-uvm", "dri/renderD128", "kfd", "vfio/vfio", "vhost-vsock", "vda", "sda", "uinput",
)  # fmt: skip
_NAMES = ("apiserver", "kusciaapi", "kuscia-handshake")
_SOCKETS = ("gw", "api", "kapi", "kapi-node", "handshake", "reporter", "datamesh", "envoy", "console", "console-api")
_NODE_PORTS = {
    "API": 6443, "KusciaAPI": 8082, "KusciaAPI gRPC": 8083, "agent": 10250, "gateway": 1080, "console": 8088,
}  # fmt: skip
_DONE_SECONDS = 150.0

# What a pod may do that another may not. All else is refused to all of them.
_CONFIGURATION = {"port ConfManager 8060", "port ConfManager 8061"}
ALLOWED: Mapping[str, set[str]] = {
    "guest": set(),
    "engine": _CONFIGURATION
    | {"file table", "data without a grant"}
    | {f"data mesh, {what}" for what in ("place of a source", "grant to itself", "change of the table", "delete the table")},
    "ordinary": _CONFIGURATION
    | {"ordinary pod", "ordinary pod, UDP", "ordinary pod, ping", "engine of another task", "engine of another task, ping"}
    | {"scan of neighbours", "call another task's service", "call another task's partner", "report for another task"}
    | {"call inner", "call inner.alice.svc", "call opened.bob.svc"}
    | {"relay to a foreign name", "relay to a foreign name, TCP", "relay to a foreign name, TXT"},
}  # fmt: skip


# ---- what attackers are told ----


def pod_range(paths: DomainPaths) -> ipaddress.IPv4Network:
    """Of the domain's node; which one it has depends on what else runs on the machine. Before it is there: any."""
    try:
        settings = config.load(paths.etc / "coterie.yaml")
    except config.ConfigError:
        return ipaddress.IPv4Network("100.96.0.0/20")
    assert settings.agent is not None
    return ipaddress.IPv4Network(settings.agent.pod_cidr)


def api_service_address(paths: DomainPaths) -> str:
    """Of `default/kubernetes`, the first of the domain's Services. Before it is there: any."""
    try:
        cidr = config.load(paths.etc / "coterie.yaml").network.service_cidr
    except config.ConfigError:
        cidr = "100.112.0.0/16"
    return str(ipaddress.IPv4Network(cidr)[1])


@dataclass(frozen=True, slots=True)
class Place:
    """A pod, as its victims and neighbours know it."""

    name: str = ""
    uid: str = ""
    address: str = "100.96.0.1"
    port: int = 0
    task: str = ""

    @classmethod
    def of(cls, pod: Object, port: int = VICTIM_PORT) -> Place:
        meta = pod["metadata"]
        variables = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0].get("env") or ()}
        port = int(variables.get("KUSCIA_PORT_TALK_NUMBER") or port)
        notes = meta.get("annotations") or {}
        return cls(meta["name"], meta["uid"], pod["status"]["podIP"], port, notes.get("kuscia.secretflow/task-id", ""))


@dataclass(frozen=True, slots=True)
class Targets:
    """Everything on the machine that a pod could want."""

    alice: DomainPaths
    bob: DomainPaths
    plane: DomainPaths
    """Of alice: her own, or her master's."""
    addresses: tuple[str, str, str] = ("", "", "")
    """Of alice's node, of bob's, and of alice's API."""
    link: Path = Path("/link")
    secret: Path = Path("/secret")
    volume: Path = Path("/volume")
    victim: Place = Place()
    other: Place = Place()
    """Ordinary pods of alice and of bob."""
    engine: Place = Place()
    partner: Place = Place()
    """Engines of another task at alice's and at bob's."""
    canary: tuple[int, str, str] = (0, "", "")
    """A port on all addresses of the machine, a file socket, an abstract socket."""
    pairs: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    token: bytes = b""
    pids: tuple[int, int] = (0, 0)
    """Of alice's node and of her ordinary pod."""

    @property
    def gateway(self) -> str:
        """Where alice's pods reach the services of their node."""
        return str(pod_range(self.alice)[1])

    def told(self) -> dict[str, Any]:
        return {**self._files(), **self._network(), **self._pods(), "pairs": dict(self.pairs)}

    def _files(self) -> dict[str, Any]:
        alice, bob, pods = self.alice, self.bob, self.alice.var / "pods"
        files = {
            "own domain key": alice.domain_key,
            "own authority's key": alice.ca_key,
            "own KusciaAPI token": alice.api_token,
            "own configuration": alice.etc / "coterie.yaml",
            "own gateway's configuration": GatewayPaths.of(alice).directory / "lds.json",
            "own log": alice.log("coterie"),
            "own kubeconfig": self.plane.kubeconfig,
            "own administrator's key": self.plane.pki / "admin.key",
            "own database": self.plane.database,
            "other domain's key": bob.domain_key,
            "other domain's authority": bob.ca_key,
            "other domain's configuration": bob.etc / "coterie.yaml",
            "own key by a link to the root": self.link / alice.domain_key.relative_to(alice.home.parent),
            "of the node's user": self.secret,
            "another pod's volume": self.volume / "private",
            "another pod's key": pods / self.engine.uid / "certificates" / "client.key",
            "table": alice.data / "customers.csv",
            "/etc/shadow": Path("/etc/shadow"),
            "/etc/group-": Path("/etc/group-"),
            "/etc/fstab": Path("/etc/fstab"),
        }
        disk = os.stat("/").st_dev
        return {
            "files": {label: str(path) for label, path in files.items()},
            "directories": list(_DIRECTORIES),
            "expected": _visible(),
            "devices": list(_DEVICES),
            "disk": [os.major(disk), os.minor(disk)],
            "environment": os.path.realpath(sys.executable),
            "read only": {
                "/usr": "/usr/evil",
                "the root": "/evil",
                "/etc/passwd": "/etc/passwd",
                "/etc/hosts": "/etc/hosts",
                "/etc/resolv.conf": "/etc/resolv.conf",
                "/etc/ld.so.preload": "/etc/ld.so.preload",
                "the environment": f"{sys.prefix}/evil",
                "its packages": f"{sysconfig.get_paths()['purelib']}/evil.pth",
                "its base": f"{sys.base_prefix}/evil",
                "Coterie's code": f"{Path(coterie.__file__).parent}/evil.py",
                "the interpreter": os.path.realpath(sys.executable),
            },
            "secrets": {"KusciaAPI token": base64.b64encode(self.token).decode()},
            "node pid": self.pids[0],
            "victim pid": self.pids[1],
        }

    def _network(self) -> dict[str, Any]:
        alice, bob, api = self.addresses
        port, file, abstract = self.canary
        ports = {
            "machine loopback": ("127.0.0.1", port),
            "another loopback address": ("127.77.0.1", port),
            "machine address": (machine_address() or alice, port),
            "the machine's service at the pods' gateway": (self.gateway, port),
            "metadata": ("169.254.169.254", 80),
            "its own router": ("169.254.1.1", 80),
            "the Internet": ("192.0.2.1", 443),
            "nowhere": ("0.0.0.0", 6443),
            "the machine by its address among pods": (str(pod_range(self.alice)[-1]), port),
            "the machine by its address among the other domain's pods": (str(pod_range(self.bob)[-1]), port),
            "the other domain's gateway": (str(pod_range(self.bob)[1]), 80),
            "the API by its Service": (api_service_address(self.alice), 443),
            "the other domain's API by its Service": (api_service_address(self.bob), 443),
        }
        for label, address in (("own", alice), ("other", bob)):
            ports |= {f"{label} {name}": (address, number) for name, number in _NODE_PORTS.items()}
        ports["own API"] = (api, 6443)
        for number in (*_NODE_PORTS.values(), 8090, 9091, 22, 111, RELAY_PORT):
            ports[f"{number} of the pods' gateway"] = (self.gateway, number)
        for number in (8060, 8061):
            ports[f"ConfManager {number}"] = (self.gateway, number)
        sockets = {"file": file}
        for paths in (self.alice, self.bob):
            name, run = paths.home.name, GatewayPaths.of(paths).run
            sockets |= {f"{name} {each}": str(run / f"{each}.sock") for each in _SOCKETS}
            sockets[f"{name} supervisor"] = str(paths.run / "runp" / "shepherd.sock")
        return {"gateway": self.gateway, "ports": ports, "sockets": sockets, "abstract": abstract, "vsock port": 1024}

    def _pods(self) -> dict[str, Any]:
        victim, other, engine, partner = self.victim, self.other, self.engine, self.partner
        service = f"{engine.name}-talk"
        names = [f"{name}.{domain}.svc" for name in _NAMES for domain in ("alice", "bob", "master")]
        names += ["inner.alice.svc", "inner", "closed.bob.svc", "opened.bob.svc", "reporter.bob.svc", "nobody.bob.svc"]
        hosts = {each: each for each in names}
        hosts |= {"another task's service": f"{service}.alice.svc", "another task's partner": f"{service}.bob.svc"}
        return {
            "hosts": hosts,
            "victim": {"address": victim.address, "port": victim.port},
            "engine victim": {"address": engine.address, "port": engine.port},
            "other network": {
                "ordinary pod": (other.address, other.port, "pod of bob"),
                "engine": (partner.address, partner.port, "engine of bob"),
            },
            "other pod name": f"{service}.bob.svc",
            "other pod addresses": [other.address, partner.address],
            "other task": engine.task,
            "flood seconds": FLOOD_SECONDS,
        }


PAIRS = ("a self-made certificate", "a certificate of the partner's authority", "a certificate of a pod that is gone")


def _visible() -> dict[str, list[str]]:
    """By directory, what a pod may see there: what leads to the programs of its image."""
    visible = [Path(each) for each in (sys.prefix, sys.base_prefix, sys.executable)]
    visible += [Path(sys.executable).resolve(), Path(coterie.__file__).parents[1]]
    found: dict[str, list[str]] = {"/home": ["app"], "/var": ["tmp"]}
    for place in visible:
        for top in _DIRECTORIES:
            if place.is_relative_to(top) and str(place) != top:
                found.setdefault(top, []).append(place.relative_to(top).parts[0])
    return found


@cache
def machine_address() -> str:
    """One that is not loopback; empty when the machine has none."""
    for name, addresses in psutil.net_if_addrs().items():
        for each in addresses:
            if name != "lo" and each.family == socket.AF_INET:
                return each.address
    return ""


@cache
def cases(group: str, kind: str) -> tuple[str, ...]:
    """The names of the cases, which are known before anything runs."""
    nowhere = DomainPaths.of(Path("/net"), "alice"), DomainPaths.of(Path("/net"), "bob")
    placeholder = Targets(*nowhere, nowhere[0], pairs=dict.fromkeys(PAIRS, ("", "")))
    known = {"kind": kind, "own task": "", "allowed host": "", "peer host": "" if kind == "ordinary" else "peer"}
    pod_probe.P.clear()
    pod_probe.CASES.clear()
    pod_probe.P.update(placeholder.told(), **known)
    pod_probe.GROUPS[group]()
    return tuple(pod_probe.CASES)


def every(group: str) -> list[tuple[str, str]]:
    """Each kind of attacker with each case of a group."""
    return [(kind, case) for kind in KINDS for case in cases(group, kind)]


# ---- the machine ----


class Canary:
    """What the machine has beside Coterie: a service on all its addresses, an abstract socket, a file socket, a DNS server
    that knows all names, and a file of the user who runs the nodes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.asked: list[str] = []
        """Names that the DNS server was asked for."""
        self.abstract = f"coterie-canary-{os.getpid()}-{directory.parent.name}"
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


# ---- attackers and victims ----


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one attack."""

    state: str
    """succeeded, refused, or broken: the attack does not work as it is written."""
    how: str
    seconds: float


@dataclass
class Scene:
    net: Net
    canary: Canary
    link: Path
    """To the directory that holds all domains."""
    targets: Targets = field(init=False)
    attackers: dict[str, Place] = field(default_factory=dict)
    _results: dict[str, dict[str, Outcome]] = field(default_factory=dict)

    @property
    def alice(self) -> Domain:
        return self.net.domains["alice"]

    @property
    def bob(self) -> Domain:
        return self.net.domains["bob"]

    # ---- objects ----

    def pod_of(self, job: str, domain: str = "alice", *phases: str) -> Object:
        """The pod of a job's only task, once it runs, or has one of these phases."""

        def found() -> Object | None:
            for each in self.net.at(domain).list(f"/api/v1/namespaces/{domain}/pods"):
                mine = (each["metadata"].get("annotations") or {}).get("kuscia.secretflow/job-id") == job
                if mine and each["status"].get("phase") in (phases or ("Running",)):
                    return each
            return None

        try:
            return until(f"the engine of {job} at {domain}", found)
        except AssertionError as problem:
            plane = self.net.at(domain)
            raise AssertionError(f"{problem}\n{plane.told(job)}\n{plane.kubectl('get', 'events', '-A')}") from problem

    def ordinary(self, domain: str, name: str, given: Mapping[str, Any], **spec: Any) -> Place:
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

        return Place.of(until(f"pod {name} of {domain} runs", running))

    def service(self, domain: str, name: str, pod: str, access: str) -> None:
        notes = {"kuscia.secretflow/access-domain": access}
        ports = [{"name": "http", "port": 80, "targetPort": VICTIM_PORT}]
        spec = {"clusterIP": "None", "selector": {"app": pod}, "ports": ports}
        meta = {"name": name, "namespace": domain, "annotations": notes}
        body = {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}
        self.net.at(domain).call("POST", f"/api/v1/namespaces/{domain}/services", body)

    def output(self, domain: str, pod: str, *options: str) -> str:
        found = self.net.at(domain).try_kubectl("logs", "-n", domain, pod, *options)
        return found.out if found.rc == 0 else ""

    def begin(self, name: str, initiator: str, given: Mapping[str, Any], image: str = "probe") -> None:
        """A job of alice and bob. One whose input names a table openly is refused before it begins, without a grant."""
        text = base64.b64encode(json.dumps(given).encode()).decode()
        self.net.at(initiator).submit(job(name, initiator, task("a", "alice", "bob", image=image, input=text)))

    # ---- attacks ----

    def attack(self, kind: str) -> None:
        """Begin one; `results` waits for it."""
        given = {**self.targets.told(), "kind": kind, "mode": "probe", "table": f"{TABLE}-{kind}"}
        if kind == "ordinary":
            self.attackers[kind] = self.ordinary("alice", "attacker", {**given, "allowed host": "inner.alice.svc"})
            return
        self.begin(f"{kind}-attack", "bob" if kind == "guest" else "alice", given)
        self.attackers[kind] = Place.of(self.pod_of(f"{kind}-attack"))

    def results(self, kind: str) -> dict[str, Outcome]:
        if kind not in self._results:
            attacker = self.attackers[kind]

            def done() -> str:
                text = self.output("alice", attacker.name)
                return text if "\nDONE " in text else ""

            try:
                text = until(f"the attacks of {kind} are over", done, _DONE_SECONDS)
            except AssertionError as problem:
                raise AssertionError(f"{problem}\n{self.output('alice', attacker.name)[-3000:]}") from problem
            lines = (json.loads(line[5:]) for line in text.splitlines() if line.startswith("CASE "))
            self._results[kind] = {name: Outcome(*rest) for name, *rest in lines}
        return self._results[kind]

    def check(self, kind: str, case: str) -> None:
        """It was refused, unless this kind of pod may do so."""
        found = self.results(kind)[case]
        expected = "succeeded" if case in ALLOWED[kind] else "refused"
        assert found.state == expected, f"{kind}: {case}: {found.state}: {found.how}"

    # ---- logs ----

    @property
    def has_cgroups(self) -> bool:
        """Alice's node limits pods as a whole, and names who reaches a limit; an ordinary user's often cannot."""
        return "control groups cannot be made here" not in self.alice.said()

    def logged(self, *words: str) -> list[str]:
        """Lines of the gateway's log for pods with all these words; Envoy writes its log once a second."""
        path = GatewayPaths.of(self.alice.paths).logs / "internal.log"

        def found() -> list[str]:
            lines = path.read_text(errors="replace").splitlines()
            return [line for line in lines if all(word in line for word in words)]

        return list(until(f"a line with {words} in the log of alice's gateway", found, 15))

    # ---- targets ----

    def prepare(self) -> None:
        """Victims, then what attackers are told about them and the machine."""
        self.net.register(probe_image("probe"))
        serve = {"mode": "serve", "port": VICTIM_PORT}
        volume = {"volumes": [{"name": "v", "emptyDir": {}}]}
        mounted = {"volumeMounts": [{"name": "v", "mountPath": "/volume"}]}
        victim = self.ordinary("alice", "victim", {**serve, "word": "pod of alice"}, container=mounted, **volume)
        other = self.ordinary("bob", "victim", {**serve, "word": "pod of bob"})
        self.service("alice", "inner", "victim", "")
        self.service("bob", "closed", "victim", "")
        self.service("bob", "opened", "victim", "alice")
        self.begin("victim", "alice", {"mode": "serve"})
        engine, partner = (Place.of(self.pod_of("victim", each)) for each in ("alice", "bob"))
        for domain, place in (("alice", victim), ("alice", engine), ("bob", other), ("bob", partner)):
            until(
                f"{place.name} serves", lambda domain=domain, place=place: "serving" in self.output(domain, place.name)
            )
        alice, bob = self.alice, self.bob
        self._tables()
        place = next((alice.paths.var / "pods" / victim.uid).rglob("*/v"))
        (place / "private").write_text(SECRET)
        assert alice.settings.agent is not None and bob.settings.agent is not None
        self.targets = Targets(
            alice=alice.paths,
            bob=bob.paths,
            plane=alice.plane.paths,
            addresses=(alice.settings.agent.address, bob.settings.agent.address, alice.plane.settings.api.host),
            link=self.link,
            secret=self.canary.secret,
            volume=place,
            victim=victim,
            other=other,
            engine=engine,
            partner=partner,
            canary=(self.canary.port, str(self.canary.socket), self.canary.abstract),
            pairs=dict(zip(PAIRS, self._certificates(engine), strict=True)),
            token=alice.paths.api_token.read_bytes().strip() if alice.paths.api_token.exists() else b"none",
            pids=(alice.pid, self.pid_in(victim.name)),
        )

    def pid_in(self, pod: str) -> int:
        mark = f"HOSTNAME={pod}\0".encode()
        for process in self.alice.containers():
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{process.pid}/environ").read_bytes():
                    return process.pid
        raise AssertionError(f"nothing runs in {pod}")

    def _tables(self) -> None:
        (self.alice.paths.data / "customers.csv").write_text("id\n1\n")
        for kind in KINDS:
            name = f"{TABLE}-{kind}"
            spec = {
                "author": "alice",
                "name": name,
                "type": "table",
                "dataSource": "default-data-source",
                "relativeURI": "customers.csv",
                "columns": [{"name": "id", "type": "str"}],
            }
            meta = {"name": name, "namespace": "alice"}
            body = {"apiVersion": API, "kind": "DomainData", "metadata": meta, "spec": spec}
            self.net.at("alice").call("POST", f"/apis/{API}/namespaces/alice/domaindatas", body)

    def _certificates(self, engine: Place) -> list[tuple[str, str]]:
        """As `PAIRS` says."""
        victim = EngineIdentity("alice", engine.name, engine.uid, engine.task)
        gone = EngineIdentity("alice", "gone-0", "00000000-0000-0000-0000-000000000000", "gone")
        now = datetime.now(UTC)
        own = pki.self_signed_ca("alice", pki.new_key("ec"), now=now)
        made = ((own, victim), (_authority(self.bob.paths), victim), (_authority(self.alice.paths), gone))
        pairs = [engine_certificates.issue_client_pair(authority, identity, now) for authority, identity in made]
        return [(each.certificate.decode(), each.key.decode()) for each in pairs]


def _authority(paths: DomainPaths) -> pki.Authority:
    key = pki.load_key(paths.ca_key.read_bytes())
    return pki.Authority(pki.load_certificate(paths.ca_certificate.read_bytes()), key)


def probe_image(name: str, more: Mapping[str, str] | None = None, **limits: str) -> Object:
    """An engine that runs the probe. `more`: further config templates; limits by their names, `_` for `-`."""
    known = {
        "probe.py": PROBE,
        "task.json": '{"task": "{{.TASK_ID}}", "domain": "{{.KUSCIA_DOMAIN_ID}}", "input": "{{.TASK_INPUT_CONFIG}}",'
        ' "cluster": "{{.TASK_CLUSTER_DEFINE}}"}',
        **(more or {}),
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
        alice = {
            "dns": {"upstream": [f"127.0.0.1:{canary.dns_port}"]},
            "agent": {"defaults": {"pids": PIDS}},
        }
        with network(root / "net", topology, "alice", "bob", kubectl=kubectl, settings={"alice": alice}) as net:
            scene = Scene(net, canary, link)
            scene.prepare()
            for kind in kinds:
                scene.attack(kind)
            yield scene
