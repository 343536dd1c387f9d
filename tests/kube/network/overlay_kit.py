"""Machines of a domain as network namespaces: each with an address, a domain namespace, pods and the overlay between them.

    link("10.1.0.1", "10.1.0.2")               two machines on one cable
    routed("10.1.0.1", "10.2.0.1", ...)        machines on subnets of their own, with a router between them

One process plays everybody: a socket stays in the network namespace in which it was made.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import tempfile
from collections.abc import Iterable
from pathlib import Path

from pod_network_scenarios import PORTS, PORTS_NOT_FOR_GUESTS, inside

from coterie.kube.api.meta import ObjectMeta
from coterie.kube.api.types.nodes import Node, NodeAddress, NodeSpec, NodeStatus
from coterie.kube.network.overlay.node_overlay import NodeOverlay
from coterie.kube.network.overlay.plan import OverlaySettings, gateway_of, host_address_of, link_mac_of
from coterie.kube.network.pods import namespaces, rtnetlink
from coterie.kube.network.pods.firewall import ClusterPlan, Firewall, FirewallPlan
from coterie.kube.network.pods.links import Links, configure_domain, configure_pod_end, write_sysctl
from coterie.kube.network.pods.netlink import CREATE, NETLINK_ROUTE, REPLACE, NetlinkSocket
from coterie.kube.network.pods.rtnetlink import DeviceEnd

CLUSTER, SERVICES, PREFIX = "100.96.0.0/16", "100.112.0.0/16", 20
HALF = 0x800
"""The first offset of engines in a node's range."""
MTU = 1450
VNI = 0xABCDEF
VICTIM_PORT = 9000
PLAIN = False
"""Whether machines on one link are taken to answer there, so that plain routes are in use."""


class Place:
    """A network namespace."""

    def __init__(self) -> None:
        before = namespaces.own_netns_fd()
        namespaces.unshare_net()
        self.netns = namespaces.own_netns_fd()
        self.netlink = NetlinkSocket(NETLINK_ROUTE)
        self.netlink.request([rtnetlink.set_up(rtnetlink.LOOPBACK_INDEX, "lo")])
        namespaces.enter(before)
        os.close(before)

    def device_names(self) -> list[str]:
        return sorted(device.name for device in rtnetlink.devices(self.netlink) if device.name != "lo")

    def device(self, name: str) -> rtnetlink.Device:
        return next(device for device in rtnetlink.devices(self.netlink) if device.name == name)


class Pod:
    def __init__(self, name: str, address: str, kind: str, netns: int) -> None:
        self.name, self.address, self.kind, self.netns = name, address, kind, netns


class Domain(Place):
    """The domain's namespace of one machine."""

    def __init__(self, cidr: str, control_gateway: str = "") -> None:
        super().__init__()
        self.cidr, self.gateway = cidr, gateway_of(cidr)
        with inside(self):
            configure_domain(self.gateway)
            self.links, self.firewall = Links(), Firewall()
        cluster = ClusterPlan(CLUSTER, PREFIX, control_gateway, host_address_of(cidr))
        self.plan = FirewallPlan(self.gateway, cidr, PORTS, PORTS_NOT_FOR_GUESTS, cluster=cluster)
        self.firewall.load(self.plan)

    def pod(self, offset: int, kind: str = "ordinary") -> Pod:
        address = str(ipaddress.IPv4Network(self.cidr)[offset])
        with inside(self):
            namespaces.unshare_net()
            pod = Pod(f"p{offset}", address, kind, namespaces.own_netns_fd())
            self.links.attach(pod.name, pod.netns, address, MTU)
            configure_pod_end(address)
        self.firewall.add_pod(pod.name, address, kind)
        return pod

    def end(self) -> None:
        self.netlink.close()
        self.links.close()
        self.firewall.close()
        os.close(self.netns)


class Machine(Place):
    def __init__(self, number: int, address: str, *, vni: int = VNI, control_gateway: str = "") -> None:
        super().__init__()
        self.name, self.address, self.vni = f"node-{number}", address, vni
        self.cidr = str(list(ipaddress.IPv4Network(CLUSTER).subnets(new_prefix=PREFIX))[number])
        self.directory = Path(tempfile.mkdtemp(prefix="coterie-overlay-"))
        self.control_gateway = control_gateway
        self.each_service = False
        self.domain = Domain(self.cidr, control_gateway)
        self.overlay = self.new_overlay()
        self.problems: list[str] = []

    @property
    def gateway(self) -> str:
        return self.domain.gateway

    @property
    def host_address(self) -> str:
        return host_address_of(self.cidr)

    def settings(self) -> OverlaySettings:
        return OverlaySettings(
            node=self.name,
            address=self.address,
            pod_cidr=self.cidr,
            cluster_cidr=CLUSTER,
            service_cidr=SERVICES,
            vni=self.vni,
            mtu=MTU,
            each_service=self.each_service,
        )

    def new_overlay(self) -> NodeOverlay:
        def netlink(protocol: int) -> NetlinkSocket:
            with inside(self.domain):
                return NetlinkSocket(protocol)

        with inside(self):
            return NodeOverlay(
                self.settings(),
                self.directory,
                namespace=lambda: Path(f"/proc/self/fd/{self.domain.netns}"),
                domain_netlink=netlink,
            )

    def restart(self) -> None:
        self.overlay.close()
        self.overlay = self.new_overlay()

    def node(self) -> Node:
        return Node(
            metadata=ObjectMeta(name=self.name),
            spec=NodeSpec(pod_cidr=self.cidr),
            status=NodeStatus(addresses=(NodeAddress(type="InternalIP", address=self.address),)),
        )

    def knows(self, *machines: Machine, answering: Iterable[Machine] | None = None) -> None:
        """`answering`: on the link; by default nobody, or everybody where PLAIN says so."""
        if answering is None:
            answering = machines if PLAIN else ()
        with inside(self):
            ranges = frozenset(each.cidr for each in answering)
            self.problems = self.overlay.reconcile([each.node() for each in machines], ranges)

    def way_to(self, other: Machine) -> str:
        """The name of the device to another node's pods."""
        found = {device.index: device.name for device in rtnetlink.devices(self.domain.netlink)}
        routes = [route for route in rtnetlink.routes(self.domain.netlink) if route.destination == other.cidr]
        (index,) = (route.index for route in routes)
        return found[index]

    def frame(self, target: Machine, packet: bytes, mac: bytes = b"") -> None:
        """Send an IPv4 packet on the wire to the device of another machine; `mac`: by default that of our own device."""
        with inside(self):
            made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
            made.bind(("eth0", 0))
        with made:
            source = mac or link_mac_of(self.vni, self.name)
            made.send(link_mac_of(target.vni, target.name) + source + b"\x08\x00" + packet)

    def configure(self, address: str, router: str = "") -> None:
        device = self.device("eth0")
        subnet = f"{ipaddress.IPv4Interface(f'{address}/24').network}"
        messages = [
            rtnetlink.set_up(device.index, "eth0"),
            rtnetlink.add_address(device.index, "eth0", address),
            rtnetlink.add_route(subnet, device.index, source=address, flags=CREATE | REPLACE),
        ]
        if router:
            messages.append(rtnetlink.add_route("", device.index, via=router, flags=CREATE | REPLACE))
        self.netlink.request(messages)


def cable(one: Place, name: str, other: Place, other_name: str, macs: tuple[int, int]) -> None:
    first, second = (bytes.fromhex("0200000000") + bytes([mac]) for mac in macs)
    one.netlink.request([rtnetlink.add_pair(DeviceEnd(name, first), DeviceEnd(other_name, second), other.netns)])


def link(*addresses: str, control_gateway: str = "", vni: int = VNI) -> tuple[Machine, Machine]:
    one, other = (
        Machine(number, address, control_gateway=control_gateway if number else "", vni=vni)
        for number, address in enumerate(addresses)
    )
    cable(one, "eth0", other, "eth0", (1, 2))
    for machine in (one, other):
        machine.configure(machine.address)
    return one, other


def routed(*addresses: str) -> tuple[Place, list[Machine]]:
    router = Place()
    with inside(router):
        write_sysctl("ipv4/ip_forward", "1")
    machines = []
    for number, address in enumerate(addresses):
        machine = Machine(number, address)
        cable(machine, "eth0", router, f"r{number}", (10 + number, 20 + number))
        gateway = f"{address.rpartition('.')[0]}.254"
        device = router.device(f"r{number}")
        subnet = str(ipaddress.IPv4Interface(f"{address}/24").network)
        router.netlink.request(
            [
                rtnetlink.set_up(device.index, device.name),
                rtnetlink.add_address(device.index, device.name, gateway),
                rtnetlink.add_route(subnet, device.index, source=gateway, flags=CREATE | REPLACE),
            ]
        )
        machine.configure(address, gateway)
        machines.append(machine)
    return router, machines


def all_know(machines: Iterable[Machine]) -> None:
    machines = list(machines)
    for machine in machines:
        machine.knows(*machines)


# --- packets made by hand -------------------------------------------------------------------------------------------


def checksum(data: bytes) -> int:
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def datagram(source: str, destination: str, port: int, content: bytes, identifier: int = 1) -> bytes:
    """An IPv4 packet with UDP in it."""
    udp = struct.pack(">HHHH", 40000, port, 8 + len(content), 0) + content
    return ip_header(source, destination, len(udp), 17, identifier) + udp


def ip_header(source: str, destination: str, length: int, protocol: int, identifier: int = 1, offset: int = 0) -> bytes:
    """`offset`: flags and offset of a fragment, as in the header."""
    fields = [0x45, 0, 20 + length, identifier, offset, 64, protocol, 0]
    addresses = socket.inet_aton(source) + socket.inet_aton(destination)
    head = struct.pack(">BBHHHBBH", *fields) + addresses
    return head[:10] + struct.pack(">H", checksum(head)) + head[12:]


def vxlan(inner: bytes, target: Machine, vni: int = VNI) -> bytes:
    """What a UDP packet to port 8472 holds."""
    mac = target.domain.device("vx0").mac
    frame = mac + bytes.fromhex("02c0ffffffff") + b"\x08\x00" + inner
    return struct.pack(">BxxxI", 8, vni << 8) + frame
