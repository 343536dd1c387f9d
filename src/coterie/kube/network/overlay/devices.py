"""The overlay in the kernel: VXLAN device, ways to other nodes, and the pair of devices between machine and domain.

    the machine's namespace                         the domain's namespace
    eth0  <── outer packets (UDP 8472) ────────────  vx0      one route, neighbour and forwarding entry for each peer
    eth0  <── frames with an address of their own ─  vlink0   neighbours on the same link: see link_routes.py
    ct<vni>, last address of the node's range  <──>  host0    routes of the machine to pods and Services

The VXLAN device is made from the machine's namespace into the domain's: its packets travel on the machine's network, and
pods never see that. All link-layer addresses are known, so nothing is learned or asked for.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from coterie.kube.network.overlay import plan
from coterie.kube.network.overlay.plan import (
    HEADER_BYTES,
    VXLAN_PORT,
    Changes,
    OverlaySettings,
    PeerNode,
)
from coterie.kube.network.pods import links, rtnetlink
from coterie.kube.network.pods.links import HOST_DEVICE, LINK_DEVICE, OVERLAY_DEVICE
from coterie.kube.network.pods.netlink import CREATE, REPLACE, NetlinkMessage, NetlinkSocket
from coterie.kube.network.pods.rtnetlink import Device, DeviceEnd

_HOST_MAC = bytes.fromhex("02000000c003")
_GONE = (errno.ENODEV, errno.ENOENT, errno.ESRCH)
_SMALLEST_MTU = 576


@dataclass(frozen=True, slots=True)
class Namespaces:
    """How the two network namespaces are reached."""

    machine: NetlinkSocket
    """A socket for routes and devices of the machine."""
    domain: NetlinkSocket
    handle: int
    """A descriptor of the domain's namespace."""


class OverlayDevices:
    """Of one node, in one namespace of its domain."""

    def __init__(self, settings: OverlaySettings, where: Namespaces) -> None:
        self._settings = settings
        self._where = where
        self._index = 0
        """Of the VXLAN device; 0: there is none."""
        self._mtu = 0
        self._services: set[str] = set()
        """Routes of the machine to single Services."""

    # ----- the VXLAN

    def adopt(self) -> dict[str, PeerNode]:
        """What an earlier process left: the peers' ranges; their outer addresses are not known. A device that does not fit the
        settings is removed."""
        device = find_device(self._where.domain, OVERLAY_DEVICE)
        if device is None:
            return {}
        settings = self._settings
        if (device.vni, device.local, device.mac) != (settings.vni, settings.address, plan.mac_of(settings.pod_cidr)):
            self.remove_vxlan()
            return {}
        self._index, self._mtu = device.index, device.mtu
        plain = find_device(self._where.domain, LINK_DEVICE)
        ours = {device.index, plain.index if plain is not None else 0}
        routes = [route for route in rtnetlink.routes(self._where.domain) if route.index in ours]
        found = {route.destination: PeerNode("", "", route.destination) for route in routes}
        self.route([found[route.destination] for route in routes if route.index != device.index])
        return found

    def apply(self, changes: Changes) -> None:
        """Raises OSError."""
        domain = self._where.domain
        for peer in changes.removed:
            request_ignoring_gone(domain, rtnetlink.delete_route(peer.pod_cidr, self._index))
            request_ignoring_gone(domain, rtnetlink.delete_neighbour(peer.gateway, self._index))
            request_ignoring_gone(domain, rtnetlink.delete_forwarding(peer.mac, self._index))
        if changes.added:
            self._ensure_vxlan(self._mtu_to(changes.added))
        for peer in changes.added:
            domain.request(
                [
                    rtnetlink.add_forwarding(peer.mac, self._index, peer.outer),
                    rtnetlink.add_neighbour(peer.gateway, self._index, peer.mac),
                    route_message(self._settings, peer, self._index),
                ]
            )

    def route(self, peers: Iterable[PeerNode]) -> None:
        """Reach these peers by VXLAN, instead of however they are reached now. Raises OSError."""
        messages = [route_message(self._settings, peer, self._index) for peer in peers]
        if messages:
            self._where.domain.request(messages)

    @property
    def mtu(self) -> int:
        """Of the way to other nodes; 0: the kernel's default."""
        return self._mtu

    def remove_vxlan(self) -> None:
        self._index = self._mtu = 0
        request_ignoring_gone(self._where.domain, rtnetlink.delete_device(OVERLAY_DEVICE))

    def _ensure_vxlan(self, mtu: int) -> None:
        domain, settings = self._where.domain, self._settings
        if not self._index:
            end = DeviceEnd(OVERLAY_DEVICE, plan.mac_of(settings.pod_cidr), mtu=mtu)
            made = rtnetlink.add_vxlan(end, self._where.handle, settings.vni, settings.address, VXLAN_PORT)
            self._where.machine.request([made])
            device = find_device(domain, OVERLAY_DEVICE)
            if device is None:
                raise OSError(errno.ENODEV, "the device is not there", OVERLAY_DEVICE)
            self._index, self._mtu = device.index, mtu
            domain.request(
                [
                    rtnetlink.add_address(self._index, OVERLAY_DEVICE, settings.gateway),
                    rtnetlink.accept_any_way_back(self._index, OVERLAY_DEVICE),
                    rtnetlink.set_up(self._index, OVERLAY_DEVICE),
                ]
            )
        elif mtu and mtu < self._mtu:
            domain.request([rtnetlink.set_mtu(self._index, OVERLAY_DEVICE, mtu)])
            self._mtu = mtu

    def _mtu_to(self, peers: tuple[PeerNode, ...]) -> int:
        """What fits on the way to all of them."""
        found = [self._settings.mtu] if self._settings.mtu else []
        for peer in peers:
            with contextlib.suppress(OSError):  # no way there now: what is known of the others counts
                found.append(mtu_to(self._where.machine, peer.outer) - HEADER_BYTES)
        return max(min(found, default=0), _SMALLEST_MTU) if found else 0

    # ----- the machine's way to pods

    def link_machine(self, ours: Callable[[], bool]) -> list[str]:
        """Connect the machine with the domain; answers the ranges that lead elsewhere already. Without a way to pods there is none
        at all. `ours`: whether a device of our name is one that this node made earlier. Raises OSError."""
        settings, machine, domain = self._settings, self._where.machine, self._where.domain
        name = settings.host_device
        inner, outer = find_device(domain, HOST_DEVICE), find_device(machine, name)
        if (inner is None or outer is None) and outer is not None and not ours():
            raise FileExistsError(errno.EEXIST, "another node of this domain has it on this machine", name)
        known = [each for each in rtnetlink.routes(machine) if outer is None or each.index != outer.index]
        chosen, refused = plan.routes_of_machine(settings, [each.destination for each in known])
        if inner is None or outer is None or not chosen:
            request_ignoring_gone(machine, rtnetlink.delete_device(name))
            request_ignoring_gone(domain, rtnetlink.delete_device(HOST_DEVICE))
        if chosen:
            self._connect_machine(inner, outer)
            self._route_machine(chosen)
        return refused

    def route_services(self, addresses: Iterable[str]) -> list[str]:
        """Routes of the machine to single Services; answers the addresses that lead elsewhere already. Raises OSError."""
        settings, machine = self._settings, self._where.machine
        outer = find_device(machine, settings.host_device)
        if outer is None:
            return []  # the machine has no way to pods
        taken = [each.destination for each in rtnetlink.routes(machine) if each.index != outer.index]
        wanted, refused = plan.routes_of_services(settings, addresses, taken)
        via, source = links.NEXT_HOP, settings.host_address
        for text in self._services - wanted:
            request_ignoring_gone(machine, rtnetlink.delete_route(text, outer.index))
        for text in wanted - self._services:
            machine.request([rtnetlink.add_route(text, outer.index, via=via, source=source, flags=CREATE | REPLACE)])
        self._services = wanted
        return refused

    def _connect_machine(self, inner: Device | None, outer: Device | None) -> None:
        settings, machine, domain = self._settings, self._where.machine, self._where.domain
        name = settings.host_device
        if inner is None or outer is None:
            pair = rtnetlink.add_pair(
                DeviceEnd(name, _HOST_MAC, mtu=settings.mtu),
                DeviceEnd(HOST_DEVICE, links.GATEWAY_MAC, mtu=settings.mtu),
                self._where.handle,
            )
            machine.request([pair])
            inner, outer = find_device(domain, HOST_DEVICE), find_device(machine, name)
        if inner is None or outer is None:
            raise OSError(errno.ENODEV, "the device is not there", name)
        _disable_ipv6(name)
        domain.request(
            [
                rtnetlink.set_up(inner.index, HOST_DEVICE),
                rtnetlink.add_route(settings.host_address, inner.index, flags=CREATE | REPLACE),
                rtnetlink.add_neighbour(settings.host_address, inner.index, _HOST_MAC),
            ]
        )
        machine.request(
            [
                rtnetlink.set_up(outer.index, name),
                rtnetlink.add_address(outer.index, name, settings.host_address),
                rtnetlink.add_neighbour(links.NEXT_HOP, outer.index, links.GATEWAY_MAC),
            ]
        )

    def _route_machine(self, chosen: list[str]) -> None:
        settings, machine = self._settings, self._where.machine
        outer = find_device(machine, settings.host_device)
        if outer is None:
            raise OSError(errno.ENODEV, "the device is not there", settings.host_device)
        index, via, source = outer.index, links.NEXT_HOP, settings.host_address
        for stale in {each.destination for each in rtnetlink.routes(machine) if each.index == index} - set(chosen):
            request_ignoring_gone(machine, rtnetlink.delete_route(stale, index))
        for text in chosen:
            machine.request([rtnetlink.add_route(text, index, via=via, source=source, flags=CREATE | REPLACE)])


def find_device(netlink: NetlinkSocket, name: str) -> Device | None:
    return next((device for device in rtnetlink.devices(netlink) if device.name == name), None)


def request_ignoring_gone(netlink: NetlinkSocket, message: NetlinkMessage) -> None:
    """What is to be deleted may be gone already."""
    try:
        netlink.request([message])
    except OSError as problem:
        if problem.errno not in _GONE:
            raise


def route_message(settings: OverlaySettings, peer: PeerNode, index: int) -> NetlinkMessage:
    """Of a peer's pods, by one device, in place of the route by another one."""
    return rtnetlink.add_route(peer.pod_cidr, index, via=peer.gateway, source=settings.gateway, flags=CREATE | REPLACE)


def mtu_to(machine: NetlinkSocket, address: str) -> int:
    """Of the device that leads to an address. OSError where there is no way."""
    return _mtu_of(machine, rtnetlink.route_to(machine, address))


def mtu_with(machine: NetlinkSocket, address: str) -> int:
    """Of the device that has an address; 0: none has it."""
    index = rtnetlink.device_with(machine, address)
    return _mtu_of(machine, index) if index else 0


def _mtu_of(machine: NetlinkSocket, index: int) -> int:
    return next((device.mtu for device in rtnetlink.devices(machine) if device.index == index), 0)


def outer_addresses(peers: Mapping[str, PeerNode]) -> set[str]:
    return {peer.outer for peer in peers.values()}


def _disable_ipv6(name: str) -> None:
    """The machine would announce itself to the domain, which drops all of it."""
    with contextlib.suppress(OSError):
        links.write_sysctl(f"ipv6/conf/{name}/disable_ipv6", "1")


def open_namespace(path: str | os.PathLike[str]) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
