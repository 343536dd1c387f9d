"""rtnetlink in the kernel's own encoding: messages about devices, addresses, routes and neighbours, and what it answers.

What `ip -d link`, `ip route` and `bridge fdb` do is what the functions here are called with. IPv4 only.
"""

from __future__ import annotations

import errno
import socket
import struct

from coterie.kube.network.pods.netlink import (
    CREATE,
    DUMP,
    EXCL,
    REPLACE,
    NetlinkMessage,
    NetlinkSocket,
    attribute,
    attributes,
    nest,
    text,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

LOOPBACK_INDEX = 1

_NEWLINK, _DELLINK, _GETLINK, _NEWADDR, _GETADDR, _NEWROUTE, _DELROUTE, _GETROUTE = 16, 17, 18, 20, 22, 24, 25, 26
_NEWNEIGH, _DELNEIGH, _GETSTATS = 28, 29, 94
_STATS_LINK_64 = 1
_STATS_MESSAGE, _STATS_FIELDS = struct.Struct("=B3xiI"), struct.Struct("=4Q")
"""`struct if_stats_msg` (family, index, filter), and the beginning of `rtnl_link_stats64`."""
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_LINKINFO, _IFLA_NET_NS_FD, _IFLA_EXT_MASK = 1, 3, 4, 18, 28, 29
_IFLA_LINK, _IFLA_AF_SPEC, _IFLA_GROUP, _IFLA_NUM_TX_QUEUES, _IFLA_NUM_RX_QUEUES = 5, 26, 27, 31, 32
_INET_CONF, _RP_FILTER, _RP_FILTER_LOOSE = 1, 8, 2
_MACVLAN_MODE, _MACVLAN_PRIVATE = 1, 1
_ETHERNET = 1
_INFO_KIND, _INFO_DATA, _VETH_PEER = 1, 2, 1
_VXLAN_ID, _VXLAN_LOCAL, _VXLAN_LEARNING, _VXLAN_PORT = 1, 4, 7, 15
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_NDA_DST, _NDA_LLADDR = 1, 2
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PREFSRC, _RTA_VIA = 1, 4, 5, 7, 18
_TABLE_MAIN, _PROTOCOL_STATIC, _UNICAST, _ONLINK = 254, 4, 1, 4
_SCOPE_UNIVERSE, _SCOPE_LINK = 0, 253
_PERMANENT, _UP, _NO_ARP, _SKIP_STATISTICS = 0x80, 1, 0x80, 8
_NTF_SELF = 2
_LEAVING = struct.pack("=I", 0x70)
"""The device group that is deleted as a whole."""


class Device:
    """A device as the kernel lists it."""

    __slots__ = ("ethernet", "index", "kind", "local", "mac", "mtu", "name", "parent", "up", "vni")

    def __init__(self, answer: bytes) -> None:
        hardware, self.index, flags = struct.unpack_from("=HiI", answer, 2)
        self.up = bool(flags & _UP)
        self.ethernet = hardware == _ETHERNET
        self.parent = 0
        """The index of the device that this one is on, in that device's network namespace."""
        self.name = self.kind = self.local = ""
        self.mac, self.mtu, self.vni = b"", 0, 0
        """`vni`, `local`: of a VXLAN device, its number and the source address of its packets."""
        for kind, value in attributes(answer[16:]):
            if kind == _IFLA_IFNAME:
                self.name = _string(value)
            elif kind == _IFLA_ADDRESS:
                self.mac = value
            elif kind == _IFLA_LINK:
                self.parent = struct.unpack("=I", value)[0]
            elif kind == _IFLA_MTU:
                self.mtu = struct.unpack("=I", value)[0]
            elif kind == _IFLA_LINKINFO:
                self._information(value)

    def _information(self, information: bytes) -> None:
        for kind, value in attributes(information):
            if kind == _INFO_KIND:
                self.kind = _string(value)
            elif kind == _INFO_DATA and self.kind == "vxlan":
                for key, field in attributes(value):
                    if key == _VXLAN_ID:
                        self.vni = struct.unpack("=I", field)[0]
                    elif key == _VXLAN_LOCAL:
                        self.local = socket.inet_ntoa(field)


class KernelRoute:
    """A route of the main table as the kernel lists it."""

    __slots__ = ("destination", "index")

    def __init__(self, destination: str, index: int) -> None:
        self.destination = destination
        """"100.96.16.0/20"; "0.0.0.0/0" is the default route."""
        self.index = index


# --- questions ------------------------------------------------------------------------------------------------------


def devices(netlink: NetlinkSocket) -> Iterator[Device]:
    body = link(0) + attribute(_IFLA_EXT_MASK, struct.pack("=I", _SKIP_STATISTICS))
    for answer in netlink.dump(NetlinkMessage("list devices", _GETLINK, DUMP, body)):
        yield Device(answer)


def traffic(netlink: NetlinkSocket) -> dict[int, tuple[int, int, int, int]]:
    """Of each device, by its index: packets received and sent, bytes received and sent. Only these: a list of devices is 20 times as long."""
    body = _STATS_MESSAGE.pack(0, 0, 1 << (_STATS_LINK_64 - 1))
    found = {}
    for answer in netlink.dump(NetlinkMessage("list traffic of devices", _GETSTATS, DUMP, body)):
        _, index, _ = _STATS_MESSAGE.unpack_from(answer)
        for kind, value in attributes(answer[_STATS_MESSAGE.size :]):
            if kind == _STATS_LINK_64:
                found[index] = _STATS_FIELDS.unpack_from(value)
    return found


def routes(netlink: NetlinkSocket) -> Iterator[KernelRoute]:
    """Unicast routes of the main table."""
    body = struct.pack("=BBBBBBBBI", socket.AF_INET, 0, 0, 0, 0, 0, 0, 0, 0)
    for answer in netlink.dump(NetlinkMessage("list routes", _GETROUTE, DUMP, body)):
        length, table, kind = answer[1], answer[4], answer[7]
        if table != _TABLE_MAIN or kind != _UNICAST:
            continue
        found = dict(attributes(answer[12:]))
        destination = socket.inet_ntoa(found[_RTA_DST]) if _RTA_DST in found else "0.0.0.0"
        yield KernelRoute(f"{destination}/{length}", struct.unpack("=I", found.get(_RTA_OIF, bytes(4)))[0])


def route_to(netlink: NetlinkSocket, address: str) -> int:
    """The index of the device that leads to an address. OSError where there is no way."""
    return _route_to(netlink, address)[0]


def direct_route_to(netlink: NetlinkSocket, address: str) -> int:
    """As `route_to`; 0 where the address is behind a router. OSError where there is no way."""
    index, routed = _route_to(netlink, address)
    return 0 if routed else index


def _route_to(netlink: NetlinkSocket, address: str) -> tuple[int, bool]:
    """(index of the device, whether a router is on the way)."""
    body = struct.pack("=BBBBBBBBI", socket.AF_INET, 32, 0, 0, 0, 0, 0, 0, 0) + attribute(_RTA_DST, packed(address))
    for answer in netlink.dump(NetlinkMessage(f"route to {address}", _GETROUTE, 0, body)):
        found = dict(attributes(answer[12:]))
        if _RTA_OIF in found:
            return struct.unpack("=I", found[_RTA_OIF])[0], _RTA_GATEWAY in found or _RTA_VIA in found
    raise OSError(errno.ENETUNREACH, "no route", address)


def device_with(netlink: NetlinkSocket, address: str) -> int:
    """The index of the device that has an address; 0: none has it."""
    body = struct.pack("=BBBBi", socket.AF_INET, 0, 0, 0, 0)
    for answer in netlink.dump(NetlinkMessage("list addresses", _GETADDR, DUMP, body)):
        for kind, value in attributes(answer[8:]):
            if kind == _IFA_LOCAL and value == packed(address):
                return int(struct.unpack_from("=i", answer, 4)[0])
    return 0


# --- changes --------------------------------------------------------------------------------------------------------


def packed(address: str) -> bytes:
    return socket.inet_pton(socket.AF_INET, address)


def link(index: int, flags: int = 0) -> bytes:
    return struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, flags, flags)


def set_up(index: int, name: str) -> NetlinkMessage:
    return NetlinkMessage(f"set {name} up", _NEWLINK, 0, link(index, _UP))


def set_up_without_arp(index: int, name: str) -> NetlinkMessage:
    return NetlinkMessage(f"set {name} up", _NEWLINK, 0, link(index, _UP | _NO_ARP))


def accept_any_way_back(index: int, name: str) -> NetlinkMessage:
    """A packet may come by this device although the route to its sender goes by another one (`rp_filter` 2), also where the
    namespace is stricter. Only for a device with an address."""
    value = attribute(_RP_FILTER, struct.pack("=I", _RP_FILTER_LOOSE))
    body = link(index) + nest(_IFLA_AF_SPEC, nest(socket.AF_INET, nest(_INET_CONF, value)))
    return NetlinkMessage(f"set rp_filter of {name}", _NEWLINK, 0, body)


def set_up_by_name(name: str) -> NetlinkMessage:
    return NetlinkMessage(f"set {name} up", _NEWLINK, 0, link(0, _UP) + text(_IFLA_IFNAME, name))


def set_mtu(index: int, name: str, mtu: int) -> NetlinkMessage:
    return NetlinkMessage(f"set the MTU of {name}", _NEWLINK, 0, link(index) + _mtu(mtu))


def delete_device(name: str) -> NetlinkMessage:
    return NetlinkMessage(f"delete device {name}", _DELLINK, 0, link(0) + text(_IFLA_IFNAME, name))


def mark_for_deletion(index: int, name: str) -> NetlinkMessage:
    return NetlinkMessage(f"group device {name}", _NEWLINK, 0, link(index) + attribute(_IFLA_GROUP, _LEAVING))


def delete_marked() -> NetlinkMessage:
    return NetlinkMessage("delete devices", _DELLINK, 0, link(0) + attribute(_IFLA_GROUP, _LEAVING))


class DeviceEnd:
    """One end of a veth pair. index 0: the kernel chooses; mtu 0: the kernel's default."""

    __slots__ = ("index", "mac", "mtu", "name")

    def __init__(self, name: str, mac: bytes, index: int = 0, mtu: int = 0) -> None:
        self.name = name
        self.mac = mac
        self.index = index
        self.mtu = mtu

    def body(self) -> bytes:
        # One queue each: by default the kernel makes one for every processor the machine might have.
        queues = attribute(_IFLA_NUM_TX_QUEUES, b"\1\0\0\0") + attribute(_IFLA_NUM_RX_QUEUES, b"\1\0\0\0")
        named = link(self.index) + text(_IFLA_IFNAME, self.name) + attribute(_IFLA_ADDRESS, self.mac)
        return named + _mtu(self.mtu) + queues


def add_pair(here: DeviceEnd, there: DeviceEnd, netns: int) -> NetlinkMessage:
    """A veth pair whose other end is in the network namespace behind the descriptor `netns`."""
    peer = there.body() + attribute(_IFLA_NET_NS_FD, struct.pack("=i", netns))
    information = nest(_IFLA_LINKINFO, text(_INFO_KIND, "veth"), nest(_INFO_DATA, nest(_VETH_PEER, peer)))
    return NetlinkMessage(f"create device {here.name}", _NEWLINK, CREATE | EXCL, here.body() + information)


def add_vxlan(device: DeviceEnd, netns: int, vni: int, local: str, port: int) -> NetlinkMessage:
    """A VXLAN device in the network namespace behind `netns`, whose packets travel in the namespace of the socket that
    makes it. It learns nothing: see `add_forwarding`."""
    data = nest(
        _INFO_DATA,
        attribute(_VXLAN_ID, struct.pack("=I", vni)),
        attribute(_VXLAN_LOCAL, packed(local)),
        attribute(_VXLAN_LEARNING, b"\0"),
        attribute(_VXLAN_PORT, struct.pack(">H", port)),
    )
    body = link(0) + text(_IFLA_IFNAME, device.name) + attribute(_IFLA_ADDRESS, device.mac) + _mtu(device.mtu)
    body += attribute(_IFLA_NET_NS_FD, struct.pack("=i", netns)) + nest(_IFLA_LINKINFO, text(_INFO_KIND, "vxlan"), data)
    return NetlinkMessage(f"create device {device.name}", _NEWLINK, CREATE | EXCL, body)


def add_macvlan(device: DeviceEnd, parent: int, netns: int) -> NetlinkMessage:
    """A device in the network namespace behind `netns` with a link-layer address of its own on the link of the device
    `parent`, which is in the namespace of the socket that makes it. It reaches no other such device of `parent`."""
    data = nest(_INFO_DATA, attribute(_MACVLAN_MODE, struct.pack("=I", _MACVLAN_PRIVATE)))
    body = link(0) + text(_IFLA_IFNAME, device.name) + attribute(_IFLA_ADDRESS, device.mac) + _mtu(device.mtu)
    body += attribute(_IFLA_LINK, struct.pack("=I", parent)) + attribute(_IFLA_NET_NS_FD, struct.pack("=i", netns))
    body += nest(_IFLA_LINKINFO, text(_INFO_KIND, "macvlan"), data)
    return NetlinkMessage(f"create device {device.name}", _NEWLINK, CREATE | EXCL, body)


def add_address(index: int, name: str, address: str) -> NetlinkMessage:
    value = packed(address)
    body = struct.pack("=BBBBi", socket.AF_INET, 32, 0, _SCOPE_UNIVERSE, index)
    body += attribute(_IFA_LOCAL, value) + attribute(_IFA_ADDRESS, value)
    return NetlinkMessage(f"add address {address} to {name}", _NEWADDR, CREATE | REPLACE, body)


def add_route(destination: str, index: int, *, via: str = "", source: str = "", flags: int) -> NetlinkMessage:
    """To one address, to a range such as "100.96.16.0/20", or ("") the default route."""
    address, _, prefix = destination.partition("/")
    length = int(prefix) if prefix else 32 if address else 0
    scope, route_flags = _SCOPE_LINK, 0
    rest = attribute(_RTA_OIF, struct.pack("=I", index))
    if address:
        rest += attribute(_RTA_DST, packed(address))
    if via:
        scope, route_flags = _SCOPE_UNIVERSE, _ONLINK
        rest += attribute(_RTA_GATEWAY, packed(via))
    if source:
        rest += attribute(_RTA_PREFSRC, packed(source))
    kinds = (_TABLE_MAIN, _PROTOCOL_STATIC, scope, _UNICAST)
    body = struct.pack("=BBBBBBBBI", socket.AF_INET, length, 0, 0, *kinds, route_flags) + rest
    return NetlinkMessage(f"add route to {destination or 'the outside'}", _NEWROUTE, flags, body)


def delete_route(destination: str, index: int) -> NetlinkMessage:
    """Of a range, by way of one device."""
    address, _, prefix = destination.partition("/")
    kinds = (_TABLE_MAIN, 0, 255, 0)
    body = struct.pack("=BBBBBBBBI", socket.AF_INET, int(prefix or 32), 0, 0, *kinds, 0)
    body += attribute(_RTA_DST, packed(address)) + attribute(_RTA_OIF, struct.pack("=I", index))
    return NetlinkMessage(f"delete route to {destination}", _DELROUTE, 0, body)


def add_neighbour(address: str, index: int, mac: bytes) -> NetlinkMessage:
    return NetlinkMessage(f"add neighbour {address}", _NEWNEIGH, CREATE | REPLACE, _neighbour(address, index, mac))


def delete_neighbour(address: str, index: int) -> NetlinkMessage:
    return NetlinkMessage(f"delete neighbour {address}", _DELNEIGH, 0, _neighbour(address, index, b""))


def add_forwarding(mac: bytes, index: int, outer: str) -> NetlinkMessage:
    """Of a VXLAN device: which machine has the device with this link-layer address."""
    body = struct.pack("=BxxxiHBB", socket.AF_BRIDGE, index, _PERMANENT, _NTF_SELF, 0)
    body += attribute(_NDA_LLADDR, mac) + attribute(_NDA_DST, packed(outer))
    return NetlinkMessage(f"add forwarding to {outer}", _NEWNEIGH, CREATE | REPLACE, body)


def delete_forwarding(mac: bytes, index: int) -> NetlinkMessage:
    body = struct.pack("=BxxxiHBB", socket.AF_BRIDGE, index, _PERMANENT, _NTF_SELF, 0) + attribute(_NDA_LLADDR, mac)
    return NetlinkMessage("delete forwarding", _DELNEIGH, 0, body)


def _neighbour(address: str, index: int, mac: bytes) -> bytes:
    body = struct.pack("=BxxxiHBB", socket.AF_INET, index, _PERMANENT, 0, _UNICAST) + attribute(
        _NDA_DST, packed(address)
    )
    return body + (attribute(_NDA_LLADDR, mac) if mac else b"")


def _mtu(mtu: int) -> bytes:
    return attribute(_IFLA_MTU, struct.pack("=I", mtu)) if mtu else b""


def _string(value: bytes) -> str:
    return value.rstrip(b"\0").decode()
