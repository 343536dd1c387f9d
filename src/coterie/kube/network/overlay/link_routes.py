"""Plain routes to the nodes on the machine's own link, in the kernel: packets without VXLAN around them.

    the machine's namespace          the domain's namespace
    eth0 ───────────────────────────  vlink0    one neighbour entry for each peer on the link, a route for those that answer

`vlink0` is a macvlan device on the network card with the node's address. It is made from the machine's namespace into the
domain's and has a link-layer address of its own, which follows from the domain and the node's name. So the machine's network has
no routes and forwards nothing. Which of the peers answer there is found out by `link_probe`.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
from collections.abc import Iterable, Mapping

from coterie.kube.network.overlay import plan
from coterie.kube.network.overlay.devices import Namespaces, find_device, request_ignoring_gone, route_message
from coterie.kube.network.overlay.link_filter import LinkFilter
from coterie.kube.network.overlay.plan import OverlaySettings, PeerNode
from coterie.kube.network.pods import rtnetlink
from coterie.kube.network.pods.links import LINK_DEVICE
from coterie.kube.network.pods.netlink import NetlinkSocket
from coterie.kube.network.pods.rtnetlink import DeviceEnd


class LinkRoutes:
    """Of one node, in one namespace of its domain."""

    def __init__(self, settings: OverlaySettings, where: Namespaces, rules: NetlinkSocket) -> None:
        """`rules`: a socket for the nftables of the domain's namespace; closed by `close`."""
        self._settings = settings
        self._where = where
        self._rules = rules
        self._filter = LinkFilter(rules, ipaddress.IPv4Network(settings.pod_cidr).prefixlen)
        self.index = 0
        """Of the device; 0: there is none."""
        self.peers: dict[str, PeerNode] = {}
        """By range: those that have an entry here, and may send."""
        self.plain: dict[str, PeerNode] = {}
        """Those that a route leads to."""

    def close(self) -> None:
        self._rules.close()

    def candidates(self, peers: Mapping[str, PeerNode]) -> tuple[int, dict[str, PeerNode]]:
        """The index of the network card, 0 where none has the node's address now; and the peers on its link."""
        machine = self._where.machine
        if not self._settings.link_routes:
            return -1, {}
        card = rtnetlink.device_with(machine, self._settings.address)
        if not any(device.index == card and device.ethernet for device in rtnetlink.devices(machine)):
            return card, {}
        directly: dict[str, int] = {}
        for peer in peers.values():
            with contextlib.suppress(OSError):  # no way there now
                directly[peer.outer] = rtnetlink.direct_route_to(machine, peer.outer)
        return card, plan.on_link(self._settings, peers, directly, card)

    def follow(self, card: int, peers: Mapping[str, PeerNode], mtu: int) -> None:
        """Have the device, and let these peers send. The caller has removed the routes of all others. Raises OSError."""
        if not peers:
            self.remove()
            return
        if peers != self.peers:  # first who may send, then the device
            self._filter.load((self._mac(peer), cidr) for cidr, peer in peers.items())
        self._ensure_device(card, mtu)
        domain = self._where.domain
        for cidr in self.peers.keys() - peers.keys():
            request_ignoring_gone(domain, rtnetlink.delete_neighbour(self.peers[cidr].gateway, self.index))
        added = [peer for cidr, peer in peers.items() if self.peers.get(cidr) != peer]
        if added:
            domain.request([rtnetlink.add_neighbour(peer.gateway, self.index, self._mac(peer)) for peer in added])
        self.peers = dict(peers)

    def route(self, peers: Iterable[PeerNode]) -> None:
        """Reach these peers by the link, instead of by VXLAN. Raises OSError."""
        for peer in peers:
            self._where.domain.request([route_message(self._settings, peer, self.index)])
            self.plain[peer.pod_cidr] = peer

    def remove(self) -> None:
        """Device and rules, if they are there. Raises OSError."""
        self.index, self.peers, self.plain = 0, {}, {}
        request_ignoring_gone(self._where.domain, rtnetlink.delete_device(LINK_DEVICE))
        self._filter.remove()

    def _mac(self, peer: PeerNode) -> bytes:
        return plan.link_mac_of(self._settings.vni, peer.node)

    def _ensure_device(self, card: int, mtu: int) -> None:
        domain, settings = self._where.domain, self._settings
        mac = plan.link_mac_of(settings.vni, settings.node)
        device = find_device(domain, LINK_DEVICE)
        if device is not None and (device.parent, device.mac) != (card, mac):
            domain.request([rtnetlink.delete_device(LINK_DEVICE)])
            device = None
        if device is None:
            made = rtnetlink.add_macvlan(DeviceEnd(LINK_DEVICE, mac, mtu=mtu), card, self._where.handle)
            self._where.machine.request([made])
            device = find_device(domain, LINK_DEVICE)
            if device is None:
                raise OSError(errno.ENODEV, "the device is not there", LINK_DEVICE)
        if not device.up:
            domain.request(
                [
                    rtnetlink.add_address(device.index, LINK_DEVICE, settings.gateway),
                    rtnetlink.accept_any_way_back(device.index, LINK_DEVICE),
                    rtnetlink.set_up_without_arp(device.index, LINK_DEVICE),
                ]
            )
        if 0 < mtu < device.mtu:
            domain.request([rtnetlink.set_mtu(device.index, LINK_DEVICE, mtu)])
        if self.index != device.index:
            self.index, self.peers, self.plain = device.index, {}, {}  # routes and neighbours went with the earlier one
