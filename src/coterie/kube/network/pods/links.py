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

from coterie.kube.network.pods import namespaces, rtnetlink
from coterie.kube.network.pods.netlink import (
    CREATE,
    EXCL,
    NETLINK_ROUTE,
    REPLACE,
    NetlinkMessage,
    NetlinkSocket,
)
from coterie.kube.network.pods.rtnetlink import LOOPBACK_INDEX, DeviceEnd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

GATEWAY_MAC = bytes.fromhex("02000000c001")
"""Of the domain's end of every pair."""
POD_MAC = bytes.fromhex("02000000c002")
POD_DEVICE = "eth0"
DEVICE_PREFIX = "p"
PEER_PREFIX = "v"
"""Names of devices that lead to other nodes, in the domain's network namespace, begin with it."""
OVERLAY_DEVICE = "vx0"
"""The VXLAN to other nodes."""
LINK_DEVICE = "vlink0"
"""To nodes on the machine's own link, without VXLAN."""
HOST_DEVICE = "host0"
"""The domain's end of the pair of devices that leads to the machine."""
NEXT_HOP = "169.254.1.1"
"""What pods have as their router: an address that nobody owns, with a fixed neighbour entry."""

_SIOCETHTOOL, _ETHTOOL_GLINK = 0x8946, 0x0A
_FIRST_INDEX = 0x10000

_SYSCTL = "/proc/sys/net"
_ALL_GROUPS, _OWN_GROUP = "0 2147483647", "0 0"


class Links:
    """Changes devices and routes of the network namespace in which it or `netlink` was made, wherever its caller is now."""

    def __init__(self, netlink: NetlinkSocket | None = None) -> None:
        self._netlink = netlink or NetlinkSocket(NETLINK_ROUTE)

    def loopback(self, address: str = "") -> None:
        """Bring `lo` up and, where an address is given, add it there."""
        messages = [rtnetlink.set_up(LOOPBACK_INDEX, "lo")]
        if address:
            messages.append(rtnetlink.add_address(LOOPBACK_INDEX, "lo", address))
        self._netlink.request(messages)

    def default_by_loopback(self, source: str) -> None:
        """A default route by way of `lo`: calls to the outside become packets, which the output hook redirects."""
        self._netlink.request([rtnetlink.add_route("", LOOPBACK_INDEX, source=source, flags=CREATE | REPLACE)])

    def route_by_loopback(self, cidr: str, source: str) -> None:
        """As `default_by_loopback`, for one range."""
        self._netlink.request([rtnetlink.add_route(cidr, LOOPBACK_INDEX, source=source, flags=CREATE | REPLACE)])

    def attach(self, name: str, netns: int, address: str, mtu: int = 0) -> None:
        """Connect the network namespace behind the descriptor `netns`. FileExistsError where `name` exists already.
        mtu 0: the kernel's default."""
        index = _index_of(name)
        ours = DeviceEnd(name, GATEWAY_MAC, index, mtu)
        self._netlink.request([rtnetlink.add_pair(ours, DeviceEnd(POD_DEVICE, POD_MAC, mtu=mtu), netns)])
        try:
            # The pod's end first: see _await_carrier.
            _request_in(netns, [rtnetlink.set_up_by_name(POD_DEVICE)])
            self._netlink.request(
                [
                    rtnetlink.set_up(index, name),
                    rtnetlink.add_route(address, index, flags=CREATE | EXCL),
                    rtnetlink.add_neighbour(address, index, POD_MAC),
                ]
            )
        except OSError:
            self.detach(name)
            raise

    def detach(self, name: str) -> None:
        """Remove a pod's pair of devices, if it is there, with its routes."""
        try:
            self._netlink.request([rtnetlink.delete_device(name)])
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise

    def detach_all(self, names: Iterable[str]) -> None:
        """As `detach`, for many at the price of one: most of the time goes into waiting for other processors."""
        here = set(self.names())
        moved = [rtnetlink.mark_for_deletion(_index_of(name), name) for name in names if name in here]
        if moved:
            try:
                self._netlink.request([*moved, rtnetlink.delete_marked()])
            except OSError as error:
                # Devices go by themselves when a pod's namespace ends, at any time.
                if error.errno != errno.ENODEV:
                    raise

    def names(self) -> list[str]:
        """Our ends of pods' pairs."""
        found = [device.name for device in rtnetlink.devices(self._netlink)]
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
            rtnetlink.set_up(LOOPBACK_INDEX, "lo"),
            rtnetlink.add_address(index, POD_DEVICE, address),
            rtnetlink.add_neighbour(NEXT_HOP, index, GATEWAY_MAC),
            rtnetlink.add_route("", index, via=NEXT_HOP, flags=CREATE | REPLACE),
        ]
    )
    _await_carrier(POD_DEVICE)


def configure_domain(gateway: str) -> None:
    """For a caller inside the domain's network namespace: `lo` up with the gateway's address, forwarding on."""
    _disable_ipv6()
    write_sysctl("ipv4/ip_forward", "1")
    _request_here([rtnetlink.set_up(LOOPBACK_INDEX, "lo"), rtnetlink.add_address(LOOPBACK_INDEX, "lo", gateway)])


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


def pod_device_index(number: int) -> int:
    """The interface index that a pod's device is given: known beforehand, so that nobody has to ask for it. `number`: the offset of the pod's
    address in the node's range."""
    return _FIRST_INDEX + number


def _index_of(name: str) -> int:
    if not _is_pod_device(name):
        raise ValueError(f"{name}: the device of a pod is named {DEVICE_PREFIX}<number>")
    return pod_device_index(int(name.removeprefix(DEVICE_PREFIX)))
