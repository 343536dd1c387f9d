"""Who on the machine's own link may send into the domain: nftables table `inet coterie_links` of the domain's namespace.

Everybody on the link can send frames to the device `vlink0`. Only those pass that come from the link-layer address of a node of
the domain with a source in the range of that very node. What such a packet may do is for the rules of `pods/firewall.py`, which
come after.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Iterable, Sequence

from coterie.kube.network.pods import nftables
from coterie.kube.network.pods.links import LINK_DEVICE
from coterie.kube.network.pods.netlink import NetlinkMessage, NetlinkSocket

TABLE = "coterie_links"
_NODES, _NODES_ID, _KEY_LENGTH = "nodes", 1, 12
_CHAIN = "link_sources"
_BEFORE_RAW = -310


class LinkFilter:
    """Changes the rules of the network namespace in which `netlink` was made."""

    def __init__(self, netlink: NetlinkSocket, prefix: int) -> None:
        """`prefix`: the length of the prefix of every node's range."""
        self._netlink = netlink
        self._prefix = prefix

    def load(self, nodes: Iterable[tuple[bytes, str]]) -> None:
        """Create the table, or replace it. nodes: (link-layer address, range)."""
        keys = [key_of(mac, cidr) for mac, cidr in nodes]
        elements = [nftables.add_elements(TABLE, _NODES, keys)] if keys else []
        self._transact([*table_messages(self._prefix), *elements])

    def remove(self) -> None:
        """Delete the table, if it is there."""
        try:
            self._transact([nftables.delete_table(TABLE)])
        except OSError as problem:
            if problem.errno != errno.ENOENT:
                raise

    def _transact(self, messages: Sequence[NetlinkMessage]) -> None:
        self._netlink.request(nftables.batch(messages), acknowledged=-2)


def table_messages(prefix: int) -> list[NetlinkMessage]:
    bits = int(ipaddress.IPv4Network((0, prefix)).netmask).to_bytes(4, "big")
    from_link = nftables.load_meta(nftables.META_IIFNAME) + nftables.compare(
        nftables.EQUAL, LINK_DEVICE.encode() + b"\0"
    )
    from_node = (
        nftables.load_meta(nftables.META_NFPROTO)
        + nftables.compare(nftables.EQUAL, bytes([socket.AF_INET]))
        + nftables.load_payload(nftables.LINK_HEADER, 6, 6)
        + nftables.load_payload(nftables.NETWORK_HEADER, 12, 4, nftables.THIRD_WORD)
        + nftables.mask(bits, nftables.THIRD_WORD)
        + nftables.lookup(_NODES, _NODES_ID)
    )
    fields = (nftables.TYPE_LINK_ADDRESS, nftables.TYPE_IPV4_ADDRESS)
    return [
        nftables.add_table(TABLE),
        nftables.delete_table(TABLE),
        nftables.add_table(TABLE),
        nftables.add_set(TABLE, _NODES, _NODES_ID, fields, _KEY_LENGTH),
        nftables.add_chain(TABLE, _CHAIN, "filter", nftables.PREROUTING, _BEFORE_RAW),
        nftables.add_rule(TABLE, _CHAIN, from_link, from_node, nftables.verdict(nftables.ACCEPT)),
        nftables.add_rule(TABLE, _CHAIN, from_link, nftables.count(), nftables.verdict(nftables.DROP)),
    ]


def key_of(mac: bytes, cidr: str) -> bytes:
    """Each field begins at a multiple of four bytes."""
    return mac + bytes(2) + socket.inet_aton(cidr.partition("/")[0])
