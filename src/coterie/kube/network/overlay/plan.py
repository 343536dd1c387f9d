"""What the overlay of a node consists of, decided from the Node objects. Pure.

vni_of(...)                    the number of the domain's VXLAN
peers_of(own node, nodes)      the other nodes: address on the machines' network, range of pods
changes(before, after)         what to add and to remove
on_link(...)                   the peers that may be reached without VXLAN
"""

from __future__ import annotations

import hashlib
import ipaddress
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coterie.kube.api.types.nodes import Node

VXLAN_PORT = 8472
HEADER_BYTES = 50
"""What VXLAN adds to a packet: an Ethernet, a VXLAN, a UDP and an IPv4 header."""
_INTERNAL = "InternalIP"


@dataclass(frozen=True, slots=True)
class OverlaySettings:
    """One node's place in the pod network of its domain."""

    node: str
    address: str
    """On the machines' network: the source of outer packets."""
    pod_cidr: str
    """This node's range."""
    cluster_cidr: str
    """All pods of the domain."""
    service_cidr: str
    vni: int
    mtu: int = 0
    """Of pods and of the overlay; 0: the kernel's default."""
    each_service: bool = False
    """The machine has a route for each Service of the domain, not for `service_cidr`: domains of one control plane share that range."""
    between_machines: bool = True
    """False: this node has no peers to look for."""
    link_routes: bool = True
    """False: VXLAN also to peers on the same link."""

    @property
    def gateway(self) -> str:
        return gateway_of(self.pod_cidr)

    @property
    def host_address(self) -> str:
        return host_address_of(self.pod_cidr)

    @property
    def host_device(self) -> str:
        return host_device(self.vni)


@dataclass(frozen=True, slots=True)
class PeerNode:
    """Another node of the domain."""

    node: str
    outer: str
    """Its address on the machines' network."""
    pod_cidr: str

    @property
    def gateway(self) -> str:
        return gateway_of(self.pod_cidr)

    @property
    def mac(self) -> bytes:
        return mac_of(self.pod_cidr)


@dataclass(frozen=True, slots=True)
class Changes:
    removed: tuple[PeerNode, ...] = ()
    added: tuple[PeerNode, ...] = ()
    """New ones, and those whose outer address changed."""

    def __bool__(self) -> bool:
        return bool(self.removed or self.added)


def host_device(vni: int) -> str:
    """The machine's end of the pair of devices that leads to the domain."""
    return f"ct{vni:x}"


def filter_table(vni: int) -> str:
    return f"coterie-{vni:x}"


def gateway_of(pod_cidr: str) -> str:
    """The address of a node's own processes in the pod network: the first of its range."""
    return str(ipaddress.IPv4Network(pod_cidr)[1])


def host_address_of(pod_cidr: str) -> str:
    """The address of the machine in the pod network: the last of the node's range."""
    return str(ipaddress.IPv4Network(pod_cidr)[-1])


def mac_of(pod_cidr: str) -> bytes:
    """Of a node's VXLAN device: locally administered, different for different ranges, and known to everybody."""
    return b"\x02\xc0" + socket.inet_aton(pod_cidr.partition("/")[0])


def link_mac_of(vni: int, node: str) -> bytes:
    """Of a node's device on the link that it shares with others: locally administered, and known to everybody in the domain. Other
    domains on the link have others."""
    found = hashlib.sha256(f"coterie link {vni} {node}".encode()).digest()[:6]
    return bytes([found[0] & 0xFC | 0x02]) + found[1:]


def on_link(
    own: OverlaySettings, peers: Mapping[str, PeerNode], directly: Mapping[str, int], card: int
) -> dict[str, PeerNode]:
    """The peers that the network card with the node's own address reaches without a router. It is the same card for all of them, so
    that both sides come to the same answer. `directly`: the index of the device that leads to an outer address, 0: by a router;
    `card`: that of the network card, 0: there is none that could have a second link-layer address."""
    length = ipaddress.IPv4Network(own.pod_cidr).prefixlen
    return {
        cidr: peer
        for cidr, peer in peers.items()
        if card and directly.get(peer.outer) == card and ipaddress.IPv4Network(cidr).prefixlen == length
    }


def can_carry(address: str) -> bool:
    """Whether other machines may reach this address."""
    try:
        found = ipaddress.IPv4Address(address)
    except ValueError:
        return False
    return not (found.is_loopback or found.is_unspecified or found.is_multicast)


def outer_address(addresses: Iterable[str]) -> str:
    """Of those that a node has, the one for packets between machines: the first that others may reach. All nodes choose the same."""
    found = list(addresses)
    return next((each for each in found if can_carry(each)), found[0] if found else "")


def peers_of(own: OverlaySettings, nodes: Iterable[Node]) -> tuple[dict[str, PeerNode], list[str]]:
    """The peers by range, and why some nodes are none. Of two nodes with one range the older counts."""
    found: dict[str, PeerNode] = {}
    problems: list[str] = []
    taken = [(ipaddress.IPv4Network(own.pod_cidr), own.node)]
    cluster = ipaddress.IPv4Network(own.cluster_cidr)
    for node in sorted(nodes, key=lambda each: (each.metadata.creation_timestamp or "", each.metadata.name)):
        name, text = node.metadata.name, node.spec.pod_cidr
        outer = _internal_address(node)
        if name == own.node or not text or not outer:
            continue  # ours, or one that is not registered completely
        try:
            network = ipaddress.IPv4Network(text)
        except ValueError:
            problems.append(f"node {name}: {text} is no range of IPv4 addresses")
            continue
        other = next((whose for range_, whose in taken if range_.overlaps(network)), "")
        if not network.subnet_of(cluster):
            problems.append(f"node {name}: its range {text} is outside of {own.cluster_cidr}")
        elif other:
            problems.append(f"node {name}: its range {text} overlaps that of node {other}")
        elif not can_carry(outer) or outer == own.address:
            problems.append(f"node {name}: its address {outer} is not one of another machine")
        else:
            taken.append((network, name))
            found[str(network)] = PeerNode(name, outer, str(network))
    return found, problems


def changes(before: Mapping[str, PeerNode], after: Mapping[str, PeerNode]) -> Changes:
    """Who only got another name is neither removed nor added."""
    removed = tuple(peer for cidr, peer in before.items() if cidr not in after)
    added = tuple(peer for cidr, peer in after.items() if cidr not in before or before[cidr].outer != peer.outer)
    return Changes(removed, added)


def routes_of_machine(own: OverlaySettings, taken: Iterable[str]) -> tuple[list[str], list[str]]:
    """The ranges that the machine reaches through this domain, and those that it cannot because others have them. Without its
    pods it reaches no Services either: it would have no address of its own. `taken`: ranges that lead elsewhere."""
    others = [ipaddress.IPv4Network(each) for each in taken]
    chosen: list[str] = []
    refused: list[str] = []
    for text in dict.fromkeys((own.cluster_cidr, "" if own.each_service else own.service_cidr)):
        network = ipaddress.IPv4Network(text) if text else None
        if network is not None:
            clash = any(network.overlaps(each) for each in others if each.prefixlen)
            (refused if clash or refused else chosen).append(text)
    return chosen, refused


def routes_of_services(
    own: OverlaySettings, addresses: Iterable[str], taken: Iterable[str]
) -> tuple[set[str], list[str]]:
    """Routes of the machine to the cluster IPs of single Services, and those that it cannot have because others have them. `taken`:
    ranges that lead elsewhere."""
    services = ipaddress.IPv4Network(own.service_cidr)
    others = [network for each in taken if (network := ipaddress.IPv4Network(each)).prefixlen]
    found = sorted(address for each in addresses if (address := ipaddress.IPv4Address(each)) in services)
    refused = [address for address in found if any(address in each for each in others)]
    return {f"{address}/32" for address in found if address not in refused}, [str(address) for address in refused]


def _internal_address(node: Node) -> str:
    return outer_address(each.address for each in node.status.addresses or () if each.type == _INTERNAL)
