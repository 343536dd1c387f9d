"""Devices, addresses and routes of the pod network.

Every pod has an address of its own and a veth pair: `p<number>` in the domain's network namespace, `eth0` in the pod's.
The domain routes; there is no bridge. All link-layer addresses are fixed and entered in the neighbour tables, so that
there is no ARP to forge. IPv6 is off.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct

from coterie.kube.network.pods import namespaces
from coterie.kube.network.pods.netlink import (
    CREATE,
    DUMP,
    EXCL,
    NETLINK_ROUTE,
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
    from collections.abc import Iterable

GATEWAY_MAC = bytes.fromhex("02000000c001")
"""Of the domain's end of every pair."""
POD_MAC = bytes.fromhex("02000000c002")
POD_DEVICE = "eth0"
DEVICE_PREFIX = "p"
NEXT_HOP = "169.254.1.1"
"""What pods have as their router: an address that nobody owns, with a fixed neighbour entry."""

_NEWLINK, _DELLINK, _GETLINK, _NEWADDR, _NEWROUTE, _NEWNEIGH = 16, 17, 18, 20, 24, 28
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_LINKINFO, _IFLA_NET_NS_FD, _IFLA_EXT_MASK = 1, 3, 18, 28, 29
_IFLA_GROUP, _IFLA_NUM_TX_QUEUES, _IFLA_NUM_RX_QUEUES = 27, 31, 32
_INFO_KIND, _INFO_DATA, _VETH_PEER = 1, 2, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_NDA_DST, _NDA_LLADDR = 1, 2
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PREFSRC = 1, 4, 5, 7
_TABLE_MAIN, _PROTOCOL_STATIC, _UNICAST, _ONLINK = 254, 4, 1, 4
_SCOPE_UNIVERSE, _SCOPE_LINK = 0, 253
_PERMANENT, _UP, _SKIP_STATISTICS = 0x80, 1, 8
_SIOCETHTOOL, _ETHTOOL_GLINK = 0x8946, 0x0A
_LOOPBACK_INDEX = 1
_FIRST_INDEX = 0x10000

_LEAVING = struct.pack("=I", 0x70)
"""The device group that is deleted as a whole."""

_SYSCTL = "/proc/sys/net"
_ALL_GROUPS, _OWN_GROUP = "0 2147483647", "0 0"


class Links:
    """Changes devices and routes of the network namespace in which it or `netlink` was made, wherever its caller is now."""

    def __init__(self, netlink: NetlinkSocket | None = None) -> None:
        self._netlink = netlink or NetlinkSocket(NETLINK_ROUTE)

    def loopback(self, address: str = "") -> None:
        """Bring `lo` up and, where an address is given, add it there."""
        messages = [_set_up(_LOOPBACK_INDEX, "lo")]
        if address:
            messages.append(_add_address(_LOOPBACK_INDEX, "lo", address))
        self._netlink.request(messages)

    def default_by_loopback(self, source: str) -> None:
        """A default route by way of `lo`: calls to the outside become packets, which the output hook redirects."""
        self._netlink.request([_add_route("", _LOOPBACK_INDEX, source=source, flags=CREATE | REPLACE)])

    def route_by_loopback(self, cidr: str, source: str) -> None:
        """As `default_by_loopback`, for one range."""
        address, _, length = cidr.partition("/")
        self._netlink.request(
            [_add_route(address, _LOOPBACK_INDEX, length=int(length), source=source, flags=CREATE | REPLACE)]
        )

    def attach(self, name: str, netns: int, address: str) -> None:
        """Connect the network namespace behind the descriptor `netns`. FileExistsError where `name` exists already."""
        index = _index_of(name)
        self._netlink.request([_add_pair(name, index, netns)])
        try:
            # The pod's end first: see _await_carrier.
            _request_in(netns, [_set_up_by_name(POD_DEVICE)])
            self._netlink.request(
                [
                    _set_up(index, name),
                    _add_route(address, index, flags=CREATE | EXCL),
                    _add_neighbour(address, index, POD_MAC),
                ]
            )
        except OSError:
            self.detach(name)
            raise

    def detach(self, name: str) -> None:
        """Remove a pod's pair of devices, if it is there, with its routes."""
        body = _link(0) + text(_IFLA_IFNAME, name)
        try:
            self._netlink.request([NetlinkMessage(f"delete device {name}", _DELLINK, 0, body)])
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise

    def detach_all(self, names: Iterable[str]) -> None:
        """As `detach`, for many at the price of one: most of the time goes into waiting for other processors."""
        here = set(self.names())
        moved = [
            NetlinkMessage(
                f"group device {name}", _NEWLINK, 0, _link(_index_of(name)) + attribute(_IFLA_GROUP, _LEAVING)
            )
            for name in names
            if name in here
        ]
        if moved:
            delete = NetlinkMessage("delete devices", _DELLINK, 0, _link(0) + attribute(_IFLA_GROUP, _LEAVING))
            try:
                self._netlink.request([*moved, delete])
            except OSError as error:
                # Devices go by themselves when a pod's namespace ends, at any time.
                if error.errno != errno.ENODEV:
                    raise

    def names(self) -> list[str]:
        """Our ends of pods' pairs."""
        body = _link(0) + attribute(_IFLA_EXT_MASK, struct.pack("=I", _SKIP_STATISTICS))
        found = []
        for answer in self._netlink.dump(NetlinkMessage("list devices", _GETLINK, DUMP, body)):
            for kind, value in attributes(answer[16:]):
                if kind == _IFLA_IFNAME:
                    found.append(value.rstrip(b"\0").decode())
        return sorted(name for name in found if _is_pod_device(name))

    def close(self) -> None:
        self._netlink.close()


def configure_pod_end(address: str) -> None:
    """For a caller inside the pod's network namespace, after `attach`: `address, route, sysctls, `lo` up."""
    _disable_ipv6()
    write_sysctl("ipv4/ip_unprivileged_port_start", "0")
    try:
        write_sysctl("ipv4/ping_group_range", _ALL_GROUPS)
    except OSError as error:
        # In a user namespace that maps one group only, pods have no other one either.
        if error.errno != errno.EINVAL:
            raise
        write_sysctl("ipv4/ping_group_range", _OWN_GROUP)
    index = socket.if_nametoindex(POD_DEVICE)
    _request_here(
        [
            _set_up(_LOOPBACK_INDEX, "lo"),
            _add_address(index, POD_DEVICE, address),
            _add_neighbour(NEXT_HOP, index, GATEWAY_MAC),
            _add_route("", index, via=NEXT_HOP, flags=CREATE | REPLACE),
        ]
    )
    _await_carrier(POD_DEVICE)


def configure_domain(gateway: str) -> None:
    """For a caller inside the domain's network namespace: `lo` up with the gateway's address, forwarding on."""
    _disable_ipv6()
    write_sysctl("ipv4/ip_forward", "1")
    _request_here([_set_up(_LOOPBACK_INDEX, "lo"), _add_address(_LOOPBACK_INDEX, "lo", gateway)])


def write_sysctl(name: str, value: str) -> None:
    """Set a `net` sysctl of the network namespace of the caller."""
    handle = os.open(f"{_SYSCTL}/{name}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, value.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, f"{_SYSCTL}/{name}") from None
    finally:
        os.close(handle)


def _disable_ipv6() -> None:
    try:
        write_sysctl("ipv6/conf/all/disable_ipv6", "1")  # the kernel sets the default of new devices with it
    except OSError:
        return  # a kernel without IPv6, or a read-only /proc/sys: then the rules, which drop all of it, must do


def _request_here(messages: list[NetlinkMessage]) -> None:
    netlink = NetlinkSocket(NETLINK_ROUTE)
    try:
        netlink.request(messages)
    finally:
        netlink.close()


def _request_in(netns: int, messages: list[NetlinkMessage]) -> None:
    here = namespaces.own_netns_fd()
    try:
        namespaces.enter(netns)
        try:
            netlink = NetlinkSocket(NETLINK_ROUTE)
        finally:
            namespaces.enter(here)
    finally:
        os.close(here)
    try:
        netlink.request(messages)
    finally:
        netlink.close()


def _await_carrier(name: str) -> None:
    """Let the kernel act on a carrier that came on just now.

    Until then a device drops what it is to send. Of a pair the end that is set up last (the domain's) is ready at once; the
    other one when a worker of the kernel comes to it, which takes long on a busy machine, or when its state is asked for.
    """
    answer = ctypes.create_string_buffer(struct.pack("=II", _ETHTOOL_GLINK, 0))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        request = struct.pack("16sP16x", name.encode(), ctypes.addressof(answer))
        fcntl.ioctl(handle, _SIOCETHTOOL, request)


def _is_pod_device(name: str) -> bool:
    number = name.removeprefix(DEVICE_PREFIX)
    return number != name and number.isascii() and number.isdigit()


def _index_of(name: str) -> int:
    """The interface index that a pod's device is given: known beforehand, so that nobody has to ask for it."""
    if not _is_pod_device(name):
        raise ValueError(f"{name}: the device of a pod is named {DEVICE_PREFIX}<number>")
    return _FIRST_INDEX + int(name.removeprefix(DEVICE_PREFIX))


def _packed(address: str) -> bytes:
    return socket.inet_pton(socket.AF_INET, address)


def _link(index: int, flags: int = 0) -> bytes:
    return struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, flags, flags)


def _set_up(index: int, name: str) -> NetlinkMessage:
    return NetlinkMessage(f"set {name} up", _NEWLINK, 0, _link(index, _UP))


def _set_up_by_name(name: str) -> NetlinkMessage:
    return NetlinkMessage(f"set {name} up", _NEWLINK, 0, _link(0, _UP) + text(_IFLA_IFNAME, name))


def _add_pair(name: str, index: int, netns: int) -> NetlinkMessage:
    # One queue each: by default the kernel makes one for every processor the machine might have.
    queues = attribute(_IFLA_NUM_TX_QUEUES, b"\1\0\0\0") + attribute(_IFLA_NUM_RX_QUEUES, b"\1\0\0\0")
    peer = (
        _link(0)
        + text(_IFLA_IFNAME, POD_DEVICE)
        + attribute(_IFLA_ADDRESS, POD_MAC)
        + attribute(_IFLA_NET_NS_FD, struct.pack("=i", netns))
        + queues
    )
    body = (
        _link(index)
        + text(_IFLA_IFNAME, name)
        + attribute(_IFLA_ADDRESS, GATEWAY_MAC)
        + queues
        + nest(_IFLA_LINKINFO, text(_INFO_KIND, "veth"), nest(_INFO_DATA, nest(_VETH_PEER, peer)))
    )
    return NetlinkMessage(f"create device {name}", _NEWLINK, CREATE | EXCL, body)


def _add_address(index: int, name: str, address: str) -> NetlinkMessage:
    packed = _packed(address)
    body = struct.pack("=BBBBi", socket.AF_INET, 32, 0, _SCOPE_UNIVERSE, index)
    body += attribute(_IFA_LOCAL, packed) + attribute(_IFA_ADDRESS, packed)
    return NetlinkMessage(f"add address {address} to {name}", _NEWADDR, CREATE | REPLACE, body)


def _add_route(
    destination: str, index: int, *, length: int = 32, via: str = "", source: str = "", flags: int
) -> NetlinkMessage:
    """To one address, to a range where `length` is given, or the default route."""
    scope, route_flags = _SCOPE_LINK, 0
    length = length if destination else 0
    rest = attribute(_RTA_OIF, struct.pack("=I", index))
    if destination:
        rest += attribute(_RTA_DST, _packed(destination))
    if via:
        scope, route_flags = _SCOPE_UNIVERSE, _ONLINK
        rest += attribute(_RTA_GATEWAY, _packed(via))
    if source:
        rest += attribute(_RTA_PREFSRC, _packed(source))
    kinds = (_TABLE_MAIN, _PROTOCOL_STATIC, scope, _UNICAST)
    body = struct.pack("=BBBBBBBBI", socket.AF_INET, length, 0, 0, *kinds, route_flags) + rest
    return NetlinkMessage(f"add route to {destination or 'the outside'}", _NEWROUTE, flags, body)


def _add_neighbour(address: str, index: int, mac: bytes) -> NetlinkMessage:
    body = struct.pack("=BxxxiHBB", socket.AF_INET, index, _PERMANENT, 0, _UNICAST)
    body += attribute(_NDA_DST, _packed(address)) + attribute(_NDA_LLADDR, mac)
    return NetlinkMessage(f"add neighbour {address}", _NEWNEIGH, CREATE | REPLACE, body)
