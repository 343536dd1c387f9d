"""The pod network of a node as the supervisor makes it: a network namespace of the domain, and one for each pod.

    machine ── (unshare) ── the domain's namespace: GW on lo, firewall, p2, p3, ...      held by a `pause` process
                                 │ veth                                                  its own supervisor lives in it
                                 └── the pod's namespace: eth0 with the pod's address    held by a descriptor and the containers

As root the domain's namespace is a network namespace. Otherwise it is a user, a mount and a network namespace of the
supervisor's own, in which it may do all of this too. Files in the supervisor's directory:

    network-settings.json    what the agent wants: address range, ports
    network.json             what there is: the process that holds the namespace, its inode, or why there is none
    netns-<inode>            a link to the namespace, for programs that are given a path
    remote-pods.json         the engines of other nodes
    connected/<uid>.json     pods whose namespaces another runtime makes, with the path of the namespace
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket

from coterie.base import listener_handover
from coterie.kube.agent.runtimes.runp import linux, pause, processes
from coterie.kube.network.pods import firewall, links
from coterie.kube.network.pods.netlink import open_netlink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from coterie.kube.agent.runtimes.runp.loop import Loop

SETTINGS_FILE, FACTS_FILE, LINK_PREFIX = "network-settings.json", "network.json", "netns-"
REMOTE_FILE = "remote-pods.json"
CONNECTED = "connected"
POD, HOST = "pod", "host"
ENGINE_KINDS = ("engine", "guest")
_TRIAL = 1
"""Offset of the gateway's address, which no pod has."""


class NetworkUnavailable(Exception):
    """The machine does not allow a pod network: the step that failed, and the kernel's error number."""

    def __init__(self, step: str, number: int) -> None:
        super().__init__(f"{step}: {os.strerror(number)}")
        self.step = step
        self.number = number


def gateway_of(cidr: str) -> str:
    return _text(_number(cidr.partition("/")[0]) + 1)


def last_of(cidr: str) -> str:
    """The last address of a range: the machine's."""
    address, _, length = cidr.partition("/")
    return _text(_number(address) | (1 << (32 - int(length))) - 1)


def _number(address: str) -> int:
    return int.from_bytes(socket.inet_aton(address), "big")


def _text(number: int) -> str:
    return socket.inet_ntoa(number.to_bytes(4, "big"))


class DomainNetwork:
    """The namespace of the domain. `open` enters the one there is, or makes it; the process then lives in it."""

    def __init__(self, directory: str, settings: dict[str, Any]) -> None:
        self.directory = directory
        self.cidr: str = settings["cidr"]
        self.gateway = gateway_of(self.cidr)
        self._settings = settings
        self.machine = -1
        """The machine's network namespace; -1 where this process cannot go back to it."""
        self.own = -1
        self.inode = 0
        self.created = False
        self.own_users = True
        """Whether containers run in user namespaces of their own; for the file."""
        self.holder = 0
        self._holder_handle = -1

    def open(self) -> None:
        """Raises NetworkUnavailable."""
        if os.getuid() == 0:
            self.machine = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self.created = not self._enter_existing()
        if self.created:
            self._create()
        self.own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self.inode = os.fstat(self.own).st_ino

    def _kinds(self) -> list[tuple[str, int]]:
        network = ("net", linux.CLONE_NEWNET)
        if self._settings.get("root", True):
            return [network]
        return [("user", linux.CLONE_NEWUSER), ("mnt", linux.CLONE_NEWNS), network]

    def _enter_existing(self) -> bool:
        """Through descriptors of the agent, which outlive the holder, or through the holder."""
        given = [int(number) for number in os.environ.get("COTERIE_NAMESPACES", "").split(",") if number]
        facts = read_facts(self.directory)
        kinds = self._kinds()
        if len(given) == len(kinds):
            handles = given
        elif facts is not None and holder_alive(facts):
            try:
                handles = [
                    os.open(f"/proc/{facts['holder']}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name, _ in kinds
                ]
            except OSError:
                return False  # it ended just now
        else:
            return False
        try:
            for handle, (_, kind) in zip(handles, kinds, strict=True):
                linux.setns(handle, kind)
                os.close(handle)
        except OSError as problem:
            raise NetworkUnavailable("setns", problem.errno or 0) from problem
        if facts is not None and holder_alive(facts):
            self.holder = facts["holder"]
        return True

    def _create(self) -> None:
        step = "unshare"
        try:
            owner = (os.getuid(), os.getgid())
            flags = 0
            for _, kind in self._kinds():
                flags |= kind
            linux.unshare(flags)
            if flags & linux.CLONE_NEWUSER:
                step = "maps"
                for path, text in (
                    ("setgroups", "deny"),
                    ("gid_map", f"0 {owner[1]} 1"),
                    ("uid_map", f"0 {owner[0]} 1"),
                ):
                    with open(f"/proc/self/{path}", "w") as file:
                        file.write(text)
                step = "mount"
                linux.mount("none", "/", "", linux.MS_REC | linux.MS_PRIVATE)
            step = "loopback"
            links.configure_domain(self.gateway)
        except OSError as problem:
            raise NetworkUnavailable(step, problem.errno or 0) from problem

    def hold(self, loop: Loop) -> None:
        """See that a process holds the namespace, now and when that one is killed; and write down what there is."""
        if self.holder:
            self._write()
        else:
            pause.start(self._started)
        try:
            self._holder_handle = os.pidfd_open(self.holder)
        except OSError:
            self._holder_lost(loop)
            return
        loop.watch(self._holder_handle, select.EPOLLIN, lambda _: self._holder_lost(loop))

    def _started(self, pid: int) -> None:
        self.holder = pid
        self._write()

    def _holder_lost(self, loop: Loop) -> None:
        if self._holder_handle >= 0:
            loop.forget(self._holder_handle)
            os.close(self._holder_handle)
            self._holder_handle = -1
        self.holder = 0
        self.hold(loop)

    def _write(self) -> None:
        path = f"{self.directory}/{LINK_PREFIX}{self.inode}"
        for name in os.listdir(self.directory):
            if name.startswith(LINK_PREFIX):
                os.unlink(f"{self.directory}/{name}")
        os.symlink(f"/proc/{self.holder}/ns/net", path)
        write_facts(
            self.directory,
            {
                "holder": self.holder,
                "ticks": processes.start_ticks(self.holder),
                "boot": processes.boot_id(),
                "inode": self.inode,
                "path": path,
                "cidr": self.cidr,
                "gateway": self.gateway,
                "root": self._settings.get("root", True),
                "users": self.own_users,
            },
        )

    def write_remote(self, pods: dict[str, dict[str, Any]]) -> None:
        """For the next supervisor, which may start before the agent speaks to it."""
        _write(f"{self.directory}/{REMOTE_FILE}", pods)

    def handles(self) -> list[int]:
        """Of the namespaces, for the agent: while it has them the network cannot vanish."""
        return [os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name, _ in self._kinds()]

    def enter(self) -> None:
        linux.setns(self.own, linux.CLONE_NEWNET)

    def release(self, loop: Loop) -> None:
        """The node has ended and no pod is left: nothing of the network stays behind."""
        if self._holder_handle >= 0:
            loop.forget(self._holder_handle)
            os.close(self._holder_handle)
            self._holder_handle = -1
        release(self.directory)


class PodNetworks:
    """The networks of all pods of one supervisor."""

    def __init__(self, domain: DomainNetwork, settings: dict[str, Any]) -> None:
        self.domain = domain
        self._links = links.Links()
        self._firewall = firewall.Firewall()
        self._plan = firewall.FirewallPlan(
            domain.gateway,
            domain.cidr,
            [(kind, port) for kind, port in settings["ports"]],
            [(kind, port) for kind, port in settings["ports_not_for_guests"]],
            settings.get("relay_port", 0),
            cluster=_cluster(settings),
        )
        self._mtu: int = settings.get("mtu", 0)
        self._handles: dict[str, int] = {}
        self._pods: dict[str, dict[str, Any]] = {}
        self._remote = read_remote(domain.directory)
        """Engines of other nodes by address: their kind and group."""

    def check(self) -> None:
        """Whether this machine has what pods need, found out by doing it once. Raises NetworkUnavailable."""
        step = "nftables"
        try:
            self._firewall.load(self._plan)
            if self._plan.relay_port:
                self._links.default_by_loopback(self.domain.gateway)
            step = "veth"
            trial = {"uid": "", "address": _text(_number(self.domain.cidr.partition("/")[0]) + _TRIAL)}
            self._links.detach(self._name(trial))
            os.close(self._make(trial))
            self._links.detach(self._name(trial))
        except OSError as problem:
            raise NetworkUnavailable(step, problem.errno or 0) from problem

    def load(self, pods: list[tuple[dict[str, Any], list[int]]]) -> None:
        """The rules with all pods that there are, each with the process numbers of its running containers; devices of
        pods that are gone are removed, and namespaces that lost their device get it again."""
        known = {self._name(about): about for about, _ in pods if about.get("address")}
        there = self._links.names()
        self._links.detach_all([name for name in there if name not in known])
        self._pods = {about["uid"]: about for about in known.values()}
        self._firewall.load(
            self._plan,
            [(name, about["address"], about["kind"]) for name, about in known.items()],
            [pair for about in known.values() for pair in self._pairs_from(about) + self._remote_pairs(about)],
            [(address, remote["kind"]) for address, remote in self._remote.items()],
        )
        for about, running in pods:
            if about.get("address"):
                self._adopt(about, running, self._name(about) in there)

    def _adopt(self, about: dict[str, Any], running: list[int], attached: bool) -> None:
        if "netns" in about:
            self._adopt_connected(about, attached)
            return
        for pid in running:
            try:
                handle = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            self._handles[about["uid"]] = handle
            if not attached:
                self._configure(about, handle)
            return
        if attached:
            self._links.detach(self._name(about))
        self._handles[about["uid"]] = self._make(about)

    def _adopt_connected(self, about: dict[str, Any], attached: bool) -> None:
        try:
            handle = os.open(about["netns"], os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return  # the other runtime makes it anew, and asks again
        self._handles[about["uid"]] = handle
        if not attached:
            self._configure(about, handle)

    def _name(self, about: dict[str, Any]) -> str:
        return f"p{_number(about['address']) - _number(self.domain.cidr.partition('/')[0])}"

    def _pairs_from(self, about: dict[str, Any]) -> list[tuple[str, str]]:
        """To the other pods of its group."""
        if not about.get("group"):
            return []
        return [
            (about["address"], other["address"])
            for other in self._pods.values()
            if other["uid"] != about["uid"] and other.get("group") == about["group"] and other["kind"] == about["kind"]
        ]

    def _remote_pairs(
        self, about: dict[str, Any], remote: dict[str, dict[str, Any]] | None = None
    ) -> list[tuple[str, str]]:
        """Both ways between it and the pods of its group on other nodes."""
        if not about.get("group"):
            return []
        known = self._remote if remote is None else remote
        wanted, own = {"group": about["group"], "kind": about["kind"]}, about["address"]
        others = [address for address, each in known.items() if each == wanted]
        return [pair for other in others for pair in ((own, other), (other, own))]

    def set_remote(self, pods: dict[str, dict[str, Any]]) -> None:
        """All engines of other nodes: what changed since the last time is changed. Raises OSError."""
        wanted = {
            address: {"kind": each["kind"], "group": each["group"]}
            for address, each in pods.items()
            if each["kind"] in ENGINE_KINDS and not self._is_local(address)
        }
        gone = {address: each for address, each in self._remote.items() if wanted.get(address) != each}
        new = {address: each for address, each in wanted.items() if self._remote.get(address) != each}
        if gone:
            self._firewall.forbid([pair for about in self._pods.values() for pair in self._remote_pairs(about, gone)])
            self._firewall.remove_remote([(address, each["kind"]) for address, each in gone.items()])
            self._remote = {address: each for address, each in self._remote.items() if address not in gone}
        if new:
            self._firewall.add_remote([(address, each["kind"]) for address, each in new.items()])
            self._firewall.allow([pair for about in self._pods.values() for pair in self._remote_pairs(about, new)])
            self._remote = wanted
        self.domain.write_remote(pods)

    def _is_local(self, address: str) -> bool:
        base, _, length = self.domain.cidr.partition("/")
        return not (_number(address) ^ _number(base)) >> (32 - int(length))

    def add(self, about: dict[str, Any]) -> None:
        """A pod with an address gets its namespace. Twice is as good as once. Raises OSError."""
        if about["uid"] not in self._handles and about.get("address"):
            self._add(about, self._make(about))

    def connect(self, about: dict[str, Any]) -> None:
        """As `add`, with the namespace that `netns` names, in place of one that it had before. Raises OSError."""
        handle = os.open(about["netns"], os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(handle).st_ino in (self.domain.inode, _inode(self.domain.machine)):
                raise OSError(1, "that is not a namespace of a pod")
            self.remove(about["uid"])
            self._configure(about, handle)
        except OSError:
            os.close(handle)
            raise
        self._add(about, handle)

    def _add(self, about: dict[str, Any], handle: int) -> None:
        uid, name = about["uid"], self._name(about)
        self._pods[uid], self._handles[uid] = about, handle
        try:
            self._firewall.add_pod(name, about["address"], about["kind"])
            pairs = self._pairs_from(about)
            both = [*pairs, *((to, source) for source, to in pairs), *self._remote_pairs(about)]
            if both:
                self._firewall.allow(both)
        except OSError:
            self.remove(uid)
            raise

    def _make(self, about: dict[str, Any]) -> int:
        """Of a pod that has no namespace yet: this process goes there for a moment."""
        linux.unshare(linux.CLONE_NEWNET)
        try:
            handle = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            self.domain.enter()
        try:
            self._configure(about, handle)
        except OSError:
            os.close(handle)
            raise
        return handle

    def _configure(self, about: dict[str, Any], handle: int) -> None:
        name = self._name(about)
        try:
            self._links.attach(name, handle, about["address"], self._mtu)
        except FileExistsError:
            # Somebody holds a connection out of the namespace of the pod that had the address before.
            self._links.detach(name)
            self._links.attach(name, handle, about["address"], self._mtu)
        linux.setns(handle, linux.CLONE_NEWNET)
        try:
            links.configure_pod_end(about["address"])
            for name, value in (about.get("sysctls") or {}).items():
                links.write_sysctl(name.replace(".", "/").removeprefix("net/"), value)
        finally:
            self.domain.enter()

    def remove(self, uid: str) -> None:
        about = self._pods.get(uid)
        handle = self._handles.pop(uid, -1)
        if about is None:
            return
        pairs = self._pairs_from(about)
        self._firewall.forbid([*pairs, *((to, source) for source, to in pairs), *self._remote_pairs(about)])
        self._firewall.remove_pod(self._name(about), about["address"], about["kind"])
        del self._pods[uid]
        # The device goes with the namespace, some milliseconds after the last process and descriptor; taking it away by
        # name would make us wait for that.
        if handle >= 0:
            os.close(handle)

    def enter(self, about: dict[str, Any]) -> None:
        """This process is in the pod's network until `leave`."""
        if about.get("network") == HOST:
            if self.domain.machine < 0:
                raise OSError(1, "hostNetwork needs root on this machine")
            linux.setns(self.domain.machine, linux.CLONE_NEWNET)
        elif about["uid"] in self._handles:
            linux.setns(self._handles[about["uid"]], linux.CLONE_NEWNET)
        else:
            raise OSError(2, "the pod has no network")

    def leave(self) -> None:
        self.domain.enter()

    def socket_in(self, about: dict[str, Any], *, udp: bool = False) -> int:
        """A socket of the pod's network that is not connected yet: whoever gets it connects from there."""
        self.enter(about)
        try:
            made = socket.socket(
                socket.AF_INET, (socket.SOCK_DGRAM if udp else socket.SOCK_STREAM) | socket.SOCK_NONBLOCK
            )
        finally:
            self.leave()
        return made.detach()


def _inode(handle: int) -> int:
    return os.fstat(handle).st_ino if handle >= 0 else 0


def _cluster(settings: dict[str, Any]) -> firewall.ClusterPlan | None:
    found = settings.get("cluster")
    if not found:
        return None
    return firewall.ClusterPlan(found["cidr"], found["node_prefix"], found["gateway"], last_of(settings["cidr"]))


def listener(kind: str, address: str, port: int, *, shared: bool) -> int:
    """A bound socket of the namespace this process is in; `shared`: a process of the same user may bind it too.

    `netlink`: one of the netlink protocol `port`, with which its owner changes devices and rules of the namespace.
    `stream`: one of TCP that is neither bound nor connected.
    """
    if kind == "netlink":
        return open_netlink(port).detach()
    if kind == "stream":
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK).detach()
    if kind == "tcp":
        made = listener_handover.listen_shared(address, port) if shared else listener_handover.listen(address, port)
        return made.detach()
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        made.bind((address, port))
    except OSError:
        made.close()
        raise
    return made.detach()


# ----- files


def read_settings(directory: str) -> dict[str, Any] | None:
    return _read(f"{directory}/{SETTINGS_FILE}")


def read_facts(directory: str) -> dict[str, Any] | None:
    return _read(f"{directory}/{FACTS_FILE}")


def _read(path: str) -> dict[str, Any] | None:
    try:
        with open(path) as file:
            found: dict[str, Any] = json.load(file)
            return found
    except (OSError, ValueError):
        return None


def read_remote(directory: str) -> dict[str, dict[str, Any]]:
    return _read(f"{directory}/{REMOTE_FILE}") or {}


class ConnectedPods:
    """The pods whose namespaces another runtime makes, by uid; each also in a file."""

    def __init__(self, directory: str) -> None:
        self._directory = f"{directory}/{CONNECTED}"
        self.pods: dict[str, dict[str, Any]] = {}
        for path in connected_files(directory):
            about = _read(path)
            if about is not None:
                self.pods[about["uid"]] = about

    def save(self, about: dict[str, Any]) -> None:
        """Raises OSError."""
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        _write(f"{self._directory}/{about['uid']}.json", about)
        self.pods[about["uid"]] = about

    def forget(self, uid: str) -> None:
        if self.pods.pop(uid, None) is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self._directory}/{uid}.json")


def connected_files(directory: str) -> list[str]:
    """One for each pod whose namespace another runtime made: while there are some, the network is needed."""
    try:
        names = os.listdir(f"{directory}/{CONNECTED}")
    except FileNotFoundError:
        return []
    return [f"{directory}/{CONNECTED}/{name}" for name in names if name.endswith(".json")]


def write_facts(directory: str, facts: dict[str, Any]) -> None:
    _write(f"{directory}/{FACTS_FILE}", facts)


def _write(path: str, content: dict[str, Any]) -> None:
    with open(f"{path}.tmp", "w") as file:
        json.dump(content, file)
    os.replace(f"{path}.tmp", path)


def holder_alive(facts: dict[str, Any]) -> bool:
    if not facts.get("holder") or facts.get("boot") != processes.boot_id():
        return False
    try:
        return bool(processes.start_ticks(facts["holder"]) == facts["ticks"])
    except OSError:
        return False


def release(directory: str) -> None:
    """End the holder and remove the files: with the last process in it the namespace goes, and all that is in it."""
    facts = read_facts(directory)
    if facts is not None and holder_alive(facts):
        with contextlib.suppress(ProcessLookupError):
            os.kill(facts["holder"], signal.SIGKILL)
    for name in os.listdir(directory) if os.path.isdir(directory) else ():
        if name in (FACTS_FILE, REMOTE_FILE) or name.startswith(LINK_PREFIX):
            os.unlink(f"{directory}/{name}")
