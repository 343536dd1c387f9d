"""The agent's side of the pod network: addresses of pods, and the supervisor's description of what there is."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coterie
from coterie.base.files import private_directory, write_atomic
from coterie.kube.agent.runtimes.protocol import RuntimeFailure
from coterie.kube.agent.runtimes.runp import pod_networks, wire
from coterie.kube.agent.runtimes.runp.settings import PodNetworkSettings
from coterie.kube.network.pods.netlink import NetlinkSocket

RELAY_PORT = 1
"""Inside the domain's namespace: where what the domain's processes send out is redirected to, for the relay."""
_FIRST = 2
_SUPERVISOR_SECONDS = 10.0


class PodAddresses:
    """Which pod has which address of the range. One that became free is given out again as late as possible: others
    may still take it for the earlier pod."""

    def __init__(self, cidr: str) -> None:
        network = ipaddress.ip_network(cidr)
        self._base = int(network.network_address)
        half = network.num_addresses // 2
        self._halves = {False: (_FIRST, half), True: (half, network.num_addresses - 1)}
        """By whether it is an engine: the first offset and the one after the last."""
        self._next = {False: _FIRST, True: half}
        self._by_pod: dict[str, int] = {}
        self._taken: set[int] = set()

    def of(self, pod_uid: str) -> str:
        offset = self._by_pod.get(pod_uid)
        return self._text(offset) if offset is not None else ""

    def assign(self, pod_uid: str, *, engine: bool) -> str:
        known = self._by_pod.get(pod_uid)
        if known is None:
            known = self._free(engine)
            self._by_pod[pod_uid] = known
            self._taken.add(known)
        return self._text(known)

    def _free(self, engine: bool) -> int:
        first, end = self._halves[engine]
        start = self._next[engine]
        for step in range(end - first):
            offset = first + (start - first + step) % (end - first)
            if offset not in self._taken:
                self._next[engine] = offset + 1 if offset + 1 < end else first
                return offset
        raise RuntimeFailure("NoAddress", "all addresses of the pod range of this node are taken; widen agent.podCIDR")

    def take(self, pod_uid: str, address: str) -> None:
        """Of a pod that was there before."""
        offset = int(ipaddress.ip_address(address)) - self._base
        self._by_pod[pod_uid] = offset
        self._taken.add(offset)
        for engine, (first, end) in self._halves.items():
            if first <= offset < end and offset >= self._next[engine]:
                self._next[engine] = offset + 1 if offset + 1 < end else first

    def free(self, pod_uid: str) -> None:
        offset = self._by_pod.pop(pod_uid, None)
        if offset is not None:
            self._taken.discard(offset)

    def _text(self, offset: int) -> str:
        return str(ipaddress.ip_address(self._base + offset))


def engine_range(cidr: str) -> str:
    """The upper half: where engines have their addresses."""
    return str(list(ipaddress.ip_network(cidr).subnets(1))[1])


def ordinary_range(cidr: str) -> str:
    """The lower half: where all other pods have theirs, and the node itself."""
    return str(next(ipaddress.ip_network(cidr).subnets(1)))


@dataclass(frozen=True, slots=True)
class PodNetworkFacts:
    """The pod network that there is."""

    gateway: str
    """The address under which pods reach the node's services."""
    cidr: str
    namespace: Path
    """Of the network namespace; the name changes with the namespace."""
    holder: int
    """A process that is in the namespace for as long as it exists."""
    root: bool
    """Whether it is a network namespace of the machine's own user namespace."""
    own_users: bool = True
    """Whether containers run in user namespaces of their own."""


class NotFenced(Exception):
    """This machine does not allow pod networks: the step that failed and the kernel's error number."""

    def __init__(self, step: str, number: int) -> None:
        super().__init__(f"{step}: {os.strerror(number) if number else 'unknown error'}")
        self.step = step
        self.number = number


def ensure(directory: Path, group: str, settings: PodNetworkSettings, without: tuple[str, ...] = ()) -> PodNetworkFacts:
    """See that the pod network is there. Starts the supervisor when it is not, which takes a tenth of a second.

    Raises NotFenced, or RuntimeFailure when the supervisor does not start at all.
    """
    private_directory(directory)
    wanted = _document(settings)
    path = directory / pod_networks.SETTINGS_FILE
    if _load(path) != wanted:
        write_atomic(path, json.dumps(wanted))
    found = pod_networks.read_facts(str(directory))
    if found is None or not pod_networks.holder_alive(found) or found["cidr"] != settings.cidr:
        (directory / pod_networks.FACTS_FILE).unlink(missing_ok=True)
        _start_supervisor(directory, group, without)
        found = pod_networks.read_facts(str(directory))
    if found is None:
        raise RuntimeFailure("RuntimeNotReady", "the pod supervisor did not say whether there is a pod network")
    if "problem" in found:
        raise NotFenced(*found["problem"])
    return PodNetworkFacts(
        found["gateway"], found["cidr"], Path(found["path"]), found["holder"], found["root"], found["users"]
    )


class NamespaceSockets:
    """Listening sockets and netlink sockets in the domain's network namespace, made by the supervisor, which is started where there is none."""

    def __init__(self, directory: Path, group: str, without: tuple[str, ...] = ()) -> None:
        self._directory = directory
        self._group = group
        self._without = without

    def tcp(self, address: str, port: int) -> socket.socket:
        """Raises OSError."""
        return self._listener("tcp", address, port, shared=False)

    def shared_tcp(self, address: str, port: int) -> socket.socket:
        """With SO_REUSEPORT; no other program lives in the namespace."""
        return self._listener("tcp", address, port, shared=True)

    def udp(self, address: str, port: int) -> socket.socket:
        return self._listener("udp", address, port, shared=False)

    def netlink(self, protocol: int) -> NetlinkSocket:
        """Changes devices, routes or rules of the domain's network namespace from where this process is."""
        return NetlinkSocket(protocol, self._listener("netlink", "", protocol, shared=False))

    def stream(self) -> socket.socket:
        """Of TCP, to be connected from inside the namespace. Raises OSError."""
        made = self._listener("stream", "", 0, shared=False)
        if made.type != socket.SOCK_STREAM:
            made.close()
            raise OSError(errno.EOPNOTSUPP, "the pod supervisor is of an earlier version; restart the node")
        return made

    def _listener(self, kind: str, address: str, port: int, *, shared: bool) -> socket.socket:
        request = {"id": 1, "op": "listen", "kind": kind, "address": address, "port": port, "shared": shared}
        connection = self._connected()
        try:
            connection.sendall(wire.encode(request))
            inbox = wire.Inbox()
            while True:
                data, handles = wire.receive(connection)
                if not data:
                    raise ConnectionResetError(errno.ECONNRESET, "the pod supervisor went away")
                for message, given in inbox.feed(data, handles):
                    if message.get("id") != 1:
                        continue
                    if "error" in message:
                        raise OSError(message.get("code") or errno.EADDRNOTAVAIL, message["error"][1])
                    made = socket.socket(fileno=given[0])
                    made.setblocking(False)
                    return made
        finally:
            connection.close()

    def _connected(self) -> socket.socket:
        try:
            return self._dial()
        except (FileNotFoundError, ConnectionRefusedError):
            try:
                _start_supervisor(self._directory, self._group, self._without)
            except RuntimeFailure as problem:
                raise OSError(errno.EIO, problem.message) from problem
            return self._dial()

    def _dial(self) -> socket.socket:
        name, handle = wire.address(str(self._directory))
        made = socket.socket(socket.AF_UNIX)
        try:
            made.settimeout(_SUPERVISOR_SECONDS)
            made.connect(name)
        except OSError:
            made.close()
            raise
        finally:
            os.close(handle)
        return made


def _document(settings: PodNetworkSettings) -> dict[str, Any]:
    root = os.getuid() == 0
    document: dict[str, Any] = {
        "cidr": settings.cidr,
        "root": root,
        "ports": [list(each) for each in settings.ports],
        "ports_not_for_guests": [list(each) for each in settings.ports_not_for_guests],
        "relay_port": 0 if root else RELAY_PORT,
        "mtu": settings.mtu,
    }
    if root and settings.cluster_cidr:
        document["cluster"] = {
            "cidr": settings.cluster_cidr,
            "node_prefix": settings.node_mask_size,
            "gateway": settings.control_gateway,
        }
    return document


def _load(path: Path) -> Any:
    with contextlib.suppress(OSError, ValueError):
        return json.loads(path.read_text())
    return None


def run_supervisor(
    directory: Path, group: str, without: tuple[str, ...], namespaces: tuple[int, ...] = ()
) -> subprocess.CompletedProcess[bytes]:
    """Start the supervisor and wait until it can be reached. `namespaces`: of the pod network, which it enters by them."""
    command = (
        sys.executable,
        # Without `site` it starts faster and loads nothing of what else is installed.
        "-S",
        "-m",
        "coterie.kube.agent.runtimes.runp.supervisor",
        "--root",
        str(directory),
        "--group",
        group,
        "--without",
        ",".join(without),
    )
    environment = {"PYTHONPATH": str(Path(coterie.__file__).parents[1]), "PATH": os.defpath, "LANG": "C.UTF-8"}
    if namespaces:
        environment["COTERIE_NAMESPACES"] = ",".join(map(str, namespaces))
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
        pass_fds=namespaces,
        cwd="/",
        start_new_session=True,
        check=False,
    )


def _start_supervisor(directory: Path, group: str, without: tuple[str, ...]) -> None:
    done = run_supervisor(directory, group, without)
    if done.returncode and b"another one is at work" not in done.stderr:
        raise RuntimeFailure("RuntimeNotReady", done.stderr.decode(errors="replace").strip())
