"""Connections that the kernel tracks: forget those of endpoints that are gone.

TCP ends by itself. Datagrams of a known client go to the endpoint that was chosen for the first one for as long as the client
sends, so entries of UDP endpoints that are gone must be deleted.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Collection

from coterie.kube.network.pods.netlink import DUMP, NetlinkMessage, NetlinkSocket, attributes, nest
from coterie.kube.network.services.plan import Backend

_SUBSYSTEM, _GET, _DELETE = 1, 1, 2
_TUPLE_ORIGINAL, _TUPLE_REPLY = 1, 2
_IP, _PROTOCOL = 1, 2
_IPV4_SOURCE, _NUMBER, _SOURCE_PORT = 1, 1, 2
_UDP = 17


def forget_udp(netlink: NetlinkSocket, gone: Collection[Backend]) -> int:
    """Delete the entries whose datagrams go to one of the endpoints; how many they were."""
    wanted = {(socket.inet_pton(socket.AF_INET, each.address), each.port) for each in gone}
    count = 0
    for entry in netlink.dump(NetlinkMessage("list connections", _kind(_GET), DUMP, _header())):
        found = dict(attributes(entry[4:]))
        original, reply = found.get(_TUPLE_ORIGINAL), found.get(_TUPLE_REPLY)
        if original is None or reply is None or _source_of(reply) not in wanted:
            continue
        message = NetlinkMessage("forget a connection", _kind(_DELETE), 0, _header() + nest(_TUPLE_ORIGINAL, original))
        try:
            netlink.request([message])
        except OSError as problem:
            if problem.errno != errno.ENOENT:  # it ended meanwhile
                raise
        else:
            count += 1
    return count


def _source_of(connection: bytes) -> tuple[bytes, int] | None:
    """Address and port from which the answers come; None for other protocols."""
    parts = dict(attributes(connection))
    address, protocol = dict(attributes(parts.get(_IP, b""))), dict(attributes(parts.get(_PROTOCOL, b"")))
    source, port = address.get(_IPV4_SOURCE), protocol.get(_SOURCE_PORT)
    if protocol.get(_NUMBER, b"")[:1] != bytes([_UDP]) or source is None or port is None:
        return None
    return source, struct.unpack(">H", port)[0]


def _kind(message: int) -> int:
    return _SUBSYSTEM << 8 | message


def _header() -> bytes:
    return struct.pack("=BBH", socket.AF_INET, 0, 0)
