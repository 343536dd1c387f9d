"""From pod to pod: on one node, and across machines by VXLAN and by plain routes, beside a plain veth pair and two of them with a router between.

Machines are network namespaces that a veth pair joins; devices, rules and the overlay are those of a node. Nothing leaves the
machine. A process of its own, because it moves between namespaces:

    python -m benchmarks.bench_cluster SECONDS ROUNDS
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measures import Bench
from benchmarks.table import Row
from coterie.kube.api.meta import ObjectMeta
from coterie.kube.api.types.nodes import Node, NodeAddress, NodeSpec, NodeStatus
from coterie.kube.network.overlay.node_overlay import NodeOverlay
from coterie.kube.network.overlay.plan import OverlaySettings, gateway_of, host_address_of
from coterie.kube.network.pods import links, namespaces, rtnetlink
from coterie.kube.network.pods.firewall import ClusterPlan, Firewall, FirewallPlan
from coterie.kube.network.pods.netlink import CREATE, NETLINK_ROUTE, REPLACE, NetlinkSocket
from coterie.kube.network.pods.rtnetlink import DeviceEnd

_CLUSTER, _PREFIX, _MTU = "100.96.0.0/16", 20, 1450
_BLOCK = 1 << 18
_MACS = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")


def cluster(bench: Bench) -> list[Row]:
    if os.getuid():
        return []
    words = [sys.executable, "-m", "benchmarks.bench_cluster", str(bench.plan.seconds), str(bench.plan.rounds)]
    done = subprocess.run(words, stdout=subprocess.PIPE, cwd=Path(__file__).parent.parent, check=True)
    found: dict[str, list[float]] = json.loads(done.stdout)
    rows = []
    for name, (rate, latency) in found.items():
        plain, routed = found["plain veth"], found["two plain veth pairs and a router"]
        ours = name.startswith("pod to pod")
        notes = [f"{value:.2f} of two plain pairs and a router" for value in (rate / routed[0], routed[1] / latency)]
        rows.append(
            Row(f"{name}: TCP", rate, "Gbit/s", None, plain[0] if ours else None, note=notes[0] if ours else "")
        )
        rows.append(
            Row(
                f"{name}: one byte and back, p50",
                latency,
                "µs",
                None,
                plain[1] if ours else None,
                lower_is_better=True,
                note=notes[1] if ours else "",
            )
        )
    return rows


# --- inside -----------------------------------------------------------------------------------------------------------


@dataclass
class Space:
    netns: int
    netlink: NetlinkSocket


@contextmanager
def inside(netns: int) -> Iterator[None]:
    before = namespaces.own_netns_fd()
    namespaces.enter(netns)
    try:
        yield
    finally:
        namespaces.enter(before)
        os.close(before)


def space() -> Space:
    before = namespaces.own_netns_fd()
    namespaces.unshare_net()
    made = Space(namespaces.own_netns_fd(), NetlinkSocket(NETLINK_ROUTE))
    links.Links(made.netlink).loopback()
    namespaces.enter(before)
    os.close(before)
    return made


def index_of(where: Space, name: str) -> int:
    return next(device.index for device in rtnetlink.devices(where.netlink) if device.name == name)


def plug(one: Space, other: Space, addresses: tuple[str, str], names: tuple[str, str] = ("eth0", "eth0")) -> None:
    """A veth pair with an address at each end."""
    ends = [DeviceEnd(name, mac) for name, mac in zip(names, _MACS, strict=True)]
    one.netlink.request([rtnetlink.add_pair(ends[0], ends[1], other.netns)])
    for at, where in enumerate((one, other)):
        index = index_of(where, names[at])
        where.netlink.request(
            [
                rtnetlink.set_up(index, names[at]),
                rtnetlink.add_address(index, names[at], addresses[at]),
                rtnetlink.add_route(addresses[1 - at], index, flags=CREATE | REPLACE),
            ]
        )


@dataclass
class Machine:
    """A node: the machine's namespace, the domain's, and a pod or two."""

    number: int
    outer: Space

    def __post_init__(self) -> None:
        self.name, self.address = f"node-{self.number}", f"10.7.0.{self.number + 1}"
        self.cidr = f"100.96.{16 * self.number}.0/{_PREFIX}"
        self.domain = space()
        with inside(self.domain.netns):
            links.configure_domain(gateway_of(self.cidr))
            self.links, self.firewall = links.Links(), Firewall()
        cluster_plan = ClusterPlan(_CLUSTER, _PREFIX, "", host_address_of(self.cidr))
        self.firewall.load(FirewallPlan(gateway_of(self.cidr), self.cidr, [("tcp", 80)], cluster=cluster_plan))

    def node(self) -> Node:
        return Node(
            metadata=ObjectMeta(name=self.name),
            spec=NodeSpec(pod_cidr=self.cidr),
            status=NodeStatus(addresses=(NodeAddress(type="InternalIP", address=self.address),)),
        )

    def domain_netlink(self, protocol: int) -> NetlinkSocket:
        with inside(self.domain.netns):
            return NetlinkSocket(protocol)

    def connect(self, nodes: list[Node], directory: str, *, by_link: bool) -> None:
        """`by_link`: without VXLAN."""
        settings = OverlaySettings(self.name, self.address, self.cidr, _CLUSTER, "100.112.0.0/16", 77, _MTU)
        with inside(self.outer.netns):
            overlay = NodeOverlay(
                settings,
                Path(directory),
                namespace=lambda: Path(f"/proc/self/fd/{self.domain.netns}"),
                domain_netlink=self.domain_netlink,
            )
            overlay.reconcile(nodes, frozenset(each.spec.pod_cidr for each in nodes if by_link))

    def pod(self, offset: int) -> tuple[int, str]:
        address = f"{self.cidr.rpartition('.')[0]}.{offset}"
        made = space()
        self.links.attach(f"p{offset}", made.netns, address, _MTU)
        with inside(made.netns):
            links.configure_pod_end(address)
        self.firewall.add_pod(f"p{offset}", address, "ordinary")
        return made.netns, address


def plain() -> tuple[int, int, str]:
    one, other = space(), space()
    plug(one, other, ("10.9.0.1", "10.9.0.2"))
    return one.netns, other.netns, "10.9.0.2"


def plain_routed() -> tuple[int, int, str]:
    one, router, other = space(), space(), space()
    with inside(router.netns):
        links.write_sysctl("ipv4/ip_forward", "1")
    plug(router, one, ("10.8.0.254", "10.8.0.1"), ("r0", "eth0"))
    plug(router, other, ("10.9.0.254", "10.9.0.1"), ("r1", "eth0"))
    for end, via in ((one, "10.8.0.254"), (other, "10.9.0.254")):
        end.netlink.request([rtnetlink.add_route("", index_of(end, "eth0"), via=via, flags=CREATE | REPLACE)])
    return one.netns, other.netns, "10.9.0.1"


def same_node() -> tuple[int, int, str]:
    machine = Machine(0, space())
    (one, _), (other, address) = machine.pod(2), machine.pod(3)
    return one, other, address


def across_by_link() -> tuple[int, int, str]:
    return across(by_link=True)


def across(*, by_link: bool = False) -> tuple[int, int, str]:
    first, second = space(), space()
    plug(first, second, ("10.7.0.1", "10.7.0.2"))
    machines = [Machine(0, first), Machine(1, second)]
    for machine in machines:
        machine.connect([each.node() for each in machines], tempfile.mkdtemp(prefix="coterie-bench-"), by_link=by_link)
    (one, _), (other, address) = machines[0].pod(2), machines[1].pod(3)
    return one, other, address


WAYS: dict[str, Callable[[], tuple[int, int, str]]] = {
    "plain veth": plain,
    "two plain veth pairs and a router": plain_routed,
    "pod to pod on one node": same_node,
    "pod to pod across machines (VXLAN)": across,
    "pod to pod across machines (plain routes)": across_by_link,
}


def connected(source: int, target: int, address: str) -> tuple[socket.socket, socket.socket]:
    with inside(target):
        listener = socket.create_server((address, 5000))
    with inside(source):
        client = socket.socket()
    client.connect((address, 5000))
    accepted, _ = listener.accept()
    listener.close()
    for each in (client, accepted):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client, accepted


@contextmanager
def child(work: Callable[[], None]) -> Iterator[None]:
    pid = os.fork()
    if not pid:
        try:
            work()
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def throughput(source: int, target: int, address: str, seconds: float) -> float:
    client, accepted = connected(source, target, address)
    block, buffer = bytes(_BLOCK), bytearray(_BLOCK)

    def send() -> None:
        while True:
            client.sendall(block)

    with child(send), client, accepted:
        received, begin = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - begin) < seconds:
            received += accepted.recv_into(buffer)
    return received * 8 / elapsed / 1e9


def latency(source: int, target: int, address: str, seconds: float) -> float:
    client, accepted = connected(source, target, address)

    def answer() -> None:
        while word := accepted.recv(1):
            accepted.sendall(word)

    took = []
    with child(answer), client, accepted:
        end = time.perf_counter() + seconds
        while (begin := time.perf_counter()) < end:
            client.sendall(b"x")
            client.recv(1)
            took.append(time.perf_counter() - begin)
    return statistics.median(took) * 1e6


def main() -> None:
    seconds, rounds = float(sys.argv[1]), int(sys.argv[2])
    namespaces.unshare_net()
    with tempfile.TemporaryDirectory(prefix="coterie-bench-") as tempfile.tempdir:
        print(json.dumps(measured(seconds, rounds)))


def measured(seconds: float, rounds: int) -> dict[str, list[float]]:
    """Of each way: Gbit/s and microseconds, the best of the rounds, in which they take turns."""
    ways = {name: make() for name, make in WAYS.items()}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append((throughput(*way, seconds), latency(*way, seconds / 2)))
    return {name: [max(rate for rate, _ in each), min(time for _, time in each)] for name, each in found.items()}


if __name__ == "__main__":
    main()
