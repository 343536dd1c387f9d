"""Machines of a test: network namespaces that are joined by cables (veth), each with a home directory and an address.

`Bench`: five machines of root on two subnets with a router between them, which can be killed and cut off. `Site`: two machines
on one cable, also of an ordinary user.

    test ── runs this file ──> site ──> a process for each machine, which only waits in the machine's namespaces

Root's machines are network namespaces. An ordinary user's are too, in a user namespace of the test in which that user is an
ordinary one again: it has a number other than 0 and no capabilities, whoever runs the test.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.base.linux_namespaces import CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWUSER, setns, unshare
from coterie.kube.network.pods.netlink import (
    CREATE,
    EXCL,
    NETLINK_ROUTE,
    NetlinkMessage,
    NetlinkSocket,
    attribute,
    nest,
    text,
)
from coterie.kube.network.rootless.probe import loopback_up, private_mounts, probe

ORDINARY = 1000
"""The number of the ordinary user on its machines."""
_NEWLINK, _NEWADDR = 16, 20
_ADDRESS_LOCAL, _ADDRESS = 2, 1
_DEVICE_NAME, _DEVICE_NAMESPACE, _DEVICE_INFO = 3, 28, 18
_PR_SET_PDEATHSIG = 1
_DEVICE = "eth0"


def user_namespaces_allowed() -> bool:
    """Whether an ordinary user may have them here: what the machines of such a user are made of."""
    return probe().ok


class Site:
    """Two machines at the addresses given, until `close`."""

    def __init__(self, addresses: Sequence[str], *, ordinary: bool, forbidden: Sequence[str] = ()) -> None:
        """`forbidden`: addresses of machines that let an ordinary user make no namespaces."""
        words = ["ordinary" if ordinary else "root", ",".join(forbidden), *addresses]
        self._process = subprocess.Popen(
            [sys.executable, __file__, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().split()
        assert len(answer) == len(addresses), "the machines of the test could not be made"
        self.machines = [(self._process.pid, int(each)) for each in answer]
        """The numbers of the site's process and of the machine's."""

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class Machine:
    """One of them, at which somebody types commands."""

    def __init__(self, site: int, pid: int, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.pid, self.home = pid, home
        self._prefix = (sys.executable, __file__, "enter", str(site), str(pid))

    def command(self, *words: str) -> list[str]:
        return [*self._prefix, sys.executable, "-m", *words]

    @property
    def environ(self) -> dict[str, str]:
        return {"HOME": str(self.home), "PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}

    def try_(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`coterie` with these words."""
        return subprocess.run(
            self.command("coterie", *words),
            cwd=self.home,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def __call__(self, *words: str) -> str:
        done = self.try_(*words)
        assert done.returncode == 0, f"coterie {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def processes(self) -> list[str]:
        """What runs on the machine, other than the process that stands for it."""
        own = os.stat(f"/proc/{self.pid}/ns/net").st_ino
        return [command for pid, command in processes_in(own).items() if pid != self.pid]


def processes_in(network_namespace: int) -> dict[int, str]:
    """Numbers and command lines of the processes in the namespace with this inode."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if (entry / "ns" / "net").stat().st_ino == network_namespace:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found[int(entry.name)] = command
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


# The bench.

A, B = "10.77.1", "10.77.2"
"""The two subnets; the router is .1 in both."""
PLAN = {
    "m1": (f"{A}.11",),
    "m2": (f"{A}.12",),
    "m3": (f"{A}.13", f"{B}.13"),
    "m4": (f"{B}.14",),
    "m5": (f"{B}.15",),
}
"""Machines and their addresses, one network card each. m3 has two."""
DOMAIN = "alice"
_TOOLS = ("ip", "nsenter", "unshare")
_INIT = """
import os, signal, sys
print(os.getpid(), flush=True)
sys.stdin.close()
while True:
    try:
        os.wait()
    except ChildProcessError:
        signal.sigtimedwait([signal.SIGCHLD], 0.2)
"""


def bench_problem() -> str:
    """Why the bench cannot be made here; empty: it can."""
    if os.geteuid() != 0:
        return "needs root: makes network and process namespaces"
    missing = [name for name in _TOOLS if shutil.which(name) is None]
    return f"needs the programs {', '.join(missing)}" if missing else ""


class _Namespaces:
    """A first process in namespaces of its own. All processes of the machine end with it."""

    def __init__(self) -> None:
        # Without its own process namespace `unshare` cannot say the number of the first process, so that is read from /proc.
        command = ["unshare", "--net", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"]
        self._process = subprocess.Popen(
            [*command, sys.executable, "-c", _INIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None and self._process.stdin is not None
        assert self._process.stdout.readline() == "1\n", "the namespaces of a machine could not be made"
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        self.pid = int(children[0])
        self.inode = os.stat(f"/proc/{self.pid}/ns/pid").st_ino
        self.ip("link set lo up")

    def ip(self, words: str) -> None:
        subprocess.run(["nsenter", "-t", str(self.pid), "-n", "ip", *words.split()], check=True, capture_output=True)

    def close(self) -> None:
        """As pulling the plug: kill -9 of everything in there."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        deadline = time.monotonic() + 10
        while _runs(self.pid) and time.monotonic() < deadline:
            time.sleep(0.01)


def _runs(pid: int) -> bool:
    """Who has ended and waits for its parent does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended."""

    words: str
    code: int
    out: str
    err: str

    def __str__(self) -> str:
        return f"$ {self.words}\nstatus {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


class BenchMachine:
    def __init__(self, name: str, addresses: tuple[str, ...], home: Path, plug: Callable[[BenchMachine], None]) -> None:
        self.name, self.addresses, self.home = name, addresses, home
        self.root = home / "root"
        self._plug = plug
        self.namespaces: _Namespaces | None = None
        self.variables: dict[str, str] = {}
        """More of the environment of its commands."""
        home.mkdir(parents=True)

    @property
    def address(self) -> str:
        return self.addresses[0]

    @property
    def pid(self) -> int:
        assert self.namespaces is not None, f"{self.name} is off"
        return self.namespaces.pid

    def boot(self) -> None:
        """Nothing runs on it at first; its files are those of before."""
        assert self.namespaces is None
        self.namespaces = _Namespaces()
        self._plug(self)

    def kill(self) -> None:
        """As a loss of power."""
        if self.namespaces is not None:
            self.namespaces.close()
            self.namespaces = None

    def command(self, *words: str) -> list[str]:
        return ["nsenter", "-t", str(self.pid), "-n", "-p", "-m", "--", *words]

    @property
    def environ(self) -> dict[str, str]:
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
        usual = {"HOME": str(self.home), "PATH": path, "LANG": "C.UTF-8", "COTERIE_ROOT": str(self.root)}
        return {**usual, **self.variables}

    def pretend_version(self, version: str) -> None:
        """Coterie on this machine takes itself for another version; empty: for its own."""
        folder = self.home.parent / f"version-{version}"
        self.variables = {"PYTHONPATH": str(folder)} if version else {}
        if version:
            folder.mkdir(exist_ok=True)
            (folder / "sitecustomize.py").write_text(f"import coterie\ncoterie.__version__ = {version!r}\n")

    def run(self, *words: str, stdin: str = "", timeout: float = 90.0) -> Done:
        done = subprocess.run(
            self.command(*words),
            cwd=self.home,
            env=self.environ,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Done(shlex.join(words), done.returncode, done.stdout, done.stderr)

    def do(self, *words: str, stdin: str = "", timeout: float = 90.0) -> str:
        """As `run`, of a command that must succeed."""
        done = self.run(*words, stdin=stdin, timeout=timeout)
        assert done.code == 0, f"on {self.name}: {done}"
        return done.out

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """A command that goes on."""
        return subprocess.Popen(
            self.command(*words),
            cwd=self.home,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def coterie(self, *words: str, stdin: str = "") -> str:
        return self.do(sys.executable, "-m", "coterie", *words, stdin=stdin)

    def try_coterie(self, *words: str, stdin: str = "") -> Done:
        return self.run(sys.executable, "-m", "coterie", *words, stdin=stdin)

    def node_pid(self) -> int:
        """Of the node process, as this machine's processes see it; 0: none runs."""
        file = self.root / DOMAIN / "var" / "run" / "coterie.pid"
        number = int(file.read_text().split()[0]) if file.exists() else 0
        return number if number and self.run("kill", "-0", str(number)).code == 0 else 0

    def kill_node(self) -> None:
        """The node process alone, as a crash: pods go on."""
        self.do("kill", "-9", str(self.node_pid()))

    def processes(self) -> dict[int, str]:
        """Command lines of what runs here, other than its first process, by the numbers of the whole system."""
        assert self.namespaces is not None
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != self.pid:
                try:
                    inside = (entry / "ns" / "pid").stat().st_ino == self.namespaces.inode
                    # Containers have a process namespace of their own; all of them are children of who is in ours.
                    if inside:
                        words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                        found[int(entry.name)] = words.strip()
                except (FileNotFoundError, ProcessLookupError, PermissionError):
                    continue
        return found

    def network_state(self) -> dict[str, str]:
        """Devices, routes and rules of the machine's own network namespace."""
        words = {
            "devices": "ip -o link",
            "addresses": "ip -o address",
            "routes": "ip route",
            "rules": "nft list ruleset",
        }
        texts = {name: self.run(*command.split()).out for name, command in words.items()}
        texts["devices"] = re.sub(r"qlen \d+|mtu \d+", "", texts["devices"])
        return {name: "\n".join(sorted(text.splitlines())) for name, text in texts.items()}

    def log(self, lines: int = 40) -> str:
        file = self.root / DOMAIN / "var" / "logs" / "coterie.log"
        return "\n".join(file.read_text(errors="replace").splitlines()[-lines:]) if file.exists() else ""


class Bench:
    """Five machines, two subnets, a router; no way out. m1 is to have the control plane."""

    def __init__(self, folder: Path, kubectl: Path) -> None:
        self._kubectl = kubectl
        self.router = _Namespaces()
        for number, subnet in enumerate((A, B), 1):
            self.router.ip(f"link add br{number} type bridge forward_delay 0")
            self.router.ip(f"addr add {subnet}.1/24 dev br{number}")
            self.router.ip(f"link set br{number} up")
        forward = "echo 1 > /proc/sys/net/ipv4/ip_forward"
        subprocess.run(["nsenter", "-t", str(self.router.pid), "-n", "-m", "sh", "-c", forward], check=True)
        self.machines = {name: BenchMachine(name, given, folder / name, self._plug) for name, given in PLAN.items()}
        for machine in self.machines.values():
            machine.boot()

    def __getitem__(self, name: str) -> BenchMachine:
        return self.machines[name]

    def close(self) -> None:
        for machine in self.machines.values():
            machine.kill()
        self.router.close()

    def _plug(self, machine: BenchMachine) -> None:
        assert machine.namespaces is not None
        for number, address in enumerate(machine.addresses):
            port, card = f"{machine.name}-{number}", f"eth{number}"
            subnet, bridge = (A, "br1") if address.startswith(f"{A}.") else (B, "br2")
            self.router.ip(f"link add {port} type veth peer name {card} netns {machine.pid}")
            self.router.ip(f"link set {port} master {bridge} up")
            machine.namespaces.ip(f"addr add {address}/24 dev {card}")
            machine.namespaces.ip(f"link set {card} up")
            if number == 0:
                other = B if subnet == A else A
                if not any(each.startswith(f"{other}.") for each in machine.addresses):
                    machine.namespaces.ip(f"route add {other}.0/24 via {subnet}.1")

    def cut(self, name: str) -> None:
        """Pull the cables of a machine: its cards lose their carrier."""
        for number, _ in enumerate(PLAN[name]):
            self.router.ip(f"link set {name}-{number} down")

    def mend(self, name: str) -> None:
        for number, _ in enumerate(PLAN[name]):
            self.router.ip(f"link set {name}-{number} up")

    def cut_router(self) -> None:
        """The two subnets do not reach each other."""
        self.router.ip("link set br2 down")

    def mend_router(self) -> None:
        self.router.ip("link set br2 up")

    # The cluster on it.

    def start_control_plane(self, settings: Mapping[str, Any] | None = None, mode: str = "autonomy") -> None:
        """On m1, in the background."""
        plane = self["m1"]
        home = plane.root / DOMAIN / "etc"
        document: dict[str, Any] = {
            "mode": mode,
            "domainID": DOMAIN,
            "root": str(plane.root),
            "apiServer": {"host": "0.0.0.0", "names": [plane.address]},
            "agent": {"nodeName": "m1", "address": plane.address},
            **(settings or {}),
        }
        if mode == "master":
            del document["agent"]
        home.mkdir(parents=True)
        (home / "coterie.yaml").write_text(json.dumps(document))
        self.start_node("m1")
        until("the API answers", lambda: self.try_kubectl("get", "--raw", "/readyz").code == 0, 60)
        if mode != "master":
            until("m1 is ready", lambda: "m1" in self.ready_nodes(), 60)

    def start_node(self, name: str) -> None:
        """A node that was stopped, as its machine's service manager does it after a boot."""
        script = (
            "import os, pathlib; from coterie.base.paths import DomainPaths; from coterie.cli import background; "
            f"paths = DomainPaths.of(pathlib.Path({str(self[name].root)!r}), {DOMAIN!r}).prepare(); "
            "background.start(paths, os.environ)"
        )
        self[name].do(sys.executable, "-c", script)

    def stop_node(self, name: str) -> None:
        """In order; pods go on."""
        self[name].coterie("down", "--keep-pods")

    def add(self, name: str, *addresses: str) -> str:
        """The join file of a machine."""
        words = [word for address in addresses or (self[name].address,) for word in ("--address", address)]
        return self["m1"].coterie("node", "add", name, *words, "-o", "-")

    def join(self, name: str, *addresses: str) -> str:
        """What `coterie node join` says."""
        return self[name].coterie("node", "join", "-", stdin=self.add(name, *addresses))

    def join_all(self, *names: str) -> None:
        """At the same time."""
        with ThreadPoolExecutor(len(names)) as threads:
            list(threads.map(self.join, names))

    def try_kubectl(self, *words: str, stdin: str = "") -> Done:
        plane = self["m1"]
        config = f"KUBECONFIG={plane.root / DOMAIN / 'kubeconfig'}"
        return plane.run("env", config, str(self._kubectl), "--request-timeout=20s", *words, stdin=stdin)

    def kubectl(self, line: str, stdin: str = "") -> str:
        done = self.try_kubectl(*shlex.split(line), stdin=stdin)
        assert done.code == 0, str(done)
        return done.out

    def json(self, line: str) -> Any:
        return json.loads(self.kubectl(f"{line} -o json"))

    def apply(self, *objects: Mapping[str, Any]) -> None:
        self.kubectl("apply -f -", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def ready_nodes(self) -> set[str]:
        done = self.try_kubectl("get", "nodes", "-o", "json")
        items = json.loads(done.out)["items"] if done.code == 0 else []
        return {
            node["metadata"]["name"]
            for node in items
            for each in node.get("status", {}).get("conditions", ())
            if (each["type"], each["status"]) == ("Ready", "True")
        }

    def pods(self, selector: str) -> list[dict[str, Any]]:
        """Those that are not being deleted."""
        found = self.json(f"get pods -l {selector}")["items"]
        return [each for each in found if "deletionTimestamp" not in each["metadata"]]

    def ready_pods(self, selector: str, count: int, seconds: float = 30.0) -> list[dict[str, Any]]:
        def look() -> list[dict[str, Any]]:
            found = self.pods(selector)
            ready = [
                each
                for each in found
                for condition in each["status"].get("conditions", ())
                if (condition["type"], condition["status"]) == ("Ready", "True")
            ]
            return ready if len(ready) == len(found) == count else []

        return until(f"{count} pods of {selector} are ready", look, seconds)


def until(what: str, look: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Look again and again until the answer is true; it is returned."""
    began = asked = time.monotonic()
    while not (answer := look()):
        now = time.monotonic()
        assert now < began + seconds, f"not within {seconds:.0f} s: {what}"
        # As `kubectl_runner.poll_pause` (this file is run as a program, too): a look is often two processes.
        time.sleep(max(0.1, min(2 * (now - asked), (now - began) / 10)))
        asked = time.monotonic()
    return answer


# What the site's process does.


def _map(inside: int, uid: int, gid: int) -> None:
    for name, line in (("setgroups", "deny"), ("uid_map", f"{inside} {uid} 1"), ("gid_map", f"{inside} {gid} 1")):
        Path(f"/proc/self/{name}").write_text(line)


def _machine(*, ordinary: bool, forbidden: bool) -> tuple[int, socket.socket]:
    """A process in a network namespace of its own, which becomes the ordinary user when it is sent a byte."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        ours.recv(1)
        return pid, ours
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    unshare(CLONE_NEWNET)
    loopback_up()
    theirs.send(b".")
    theirs.recv(1)
    if ordinary:
        uid, gid = os.getuid(), os.getgid()
        unshare(CLONE_NEWUSER | CLONE_NEWNS)
        _map(ORDINARY, uid, gid)
    if forbidden:
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
    theirs.send(b".")
    while True:
        signal.pause()


def _link(index: int, up: bool = False) -> bytes:
    return struct.pack("=BxHiII", 0, 0, index, int(up), int(up))


def _ask(*messages: NetlinkMessage) -> None:
    netlink = NetlinkSocket(NETLINK_ROUTE)
    try:
        netlink.request(messages)
    finally:
        netlink.close()


def _join_by_cable(first: int, second: int) -> None:
    """A device in each of the two namespaces."""
    peer = _link(0) + text(_DEVICE_NAME, _DEVICE) + attribute(_DEVICE_NAMESPACE, struct.pack("=i", second))
    body = _link(0) + text(_DEVICE_NAME, _DEVICE) + nest(_DEVICE_INFO, text(1, "veth"), nest(2, nest(1, peer)))
    setns(first, CLONE_NEWNET)
    _ask(NetlinkMessage("create a cable", _NEWLINK, CREATE | EXCL, body))


def _give_address(namespace: int, address: str) -> None:
    setns(namespace, CLONE_NEWNET)
    index, packed = socket.if_nametoindex(_DEVICE), socket.inet_aton(address)
    body = struct.pack("=BBBBi", socket.AF_INET, 24, 0, 0, index)
    body += attribute(_ADDRESS_LOCAL, packed) + attribute(_ADDRESS, packed)
    _ask(
        NetlinkMessage("set the device up", _NEWLINK, 0, _link(index, up=True)),
        NetlinkMessage(f"add the address {address}", _NEWADDR, CREATE, body),
    )


def _become(site: int, pid: int, command: Sequence[str]) -> None:
    """Run a command on a machine. First into the user namespace that owns the networks, last into the ordinary user's."""
    kinds = [
        (site, "user", CLONE_NEWUSER),
        (pid, "net", CLONE_NEWNET),
        (pid, "user", CLONE_NEWUSER),
        (pid, "mnt", CLONE_NEWNS),
    ]
    handles = [
        (os.open(f"/proc/{owner}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC), name, kind) for owner, name, kind in kinds
    ]
    for handle, name, kind in handles:
        if os.fstat(handle).st_ino != os.stat(f"/proc/self/ns/{name}").st_ino:
            setns(handle, kind)
    os.chdir(os.environ["HOME"])
    os.execvp(command[0], command)


def _make(mode: str, forbidden: Sequence[str], addresses: Sequence[str]) -> None:
    ordinary = mode == "ordinary"
    if ordinary:
        uid, gid = os.getuid(), os.getgid()
        unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET)
        _map(0, uid, gid)
        private_mounts()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    made = [_machine(ordinary=ordinary, forbidden=address in forbidden) for address in addresses]
    namespaces = [os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC) for pid, _ in made]
    own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    _join_by_cable(*namespaces)
    for namespace, address in zip(namespaces, addresses, strict=True):
        _give_address(namespace, address)
    setns(own, CLONE_NEWNET)
    for _, connection in made:
        connection.send(b".")
        connection.recv(1)
    print(*(pid for pid, _ in made), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1] == "enter":
        _become(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
    _make(sys.argv[1], sys.argv[2].split(","), sys.argv[3:])
