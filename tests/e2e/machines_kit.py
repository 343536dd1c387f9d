"""Machines of a test: network namespaces that are joined by a cable (veth), each with a home directory and an address.

    test ── runs this file ──> site ──> a process for each machine, which only waits in the machine's namespaces

Root's machines are network namespaces. An ordinary user's are too, in a user namespace of the test in which that user is an
ordinary one again: it has a number other than 0 and no capabilities, whoever runs the test.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

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
