"""Which machines may send packets into the domain's VXLAN: nftables table `inet coterie-<vni>` of the machine.

VXLAN itself asks nobody who he is. Packets with the number of our VXLAN whose outer source is not the address of a node of the
domain are dropped. The rule is at the input hook, where fragments have been put together: a header that is spread over two
of them is seen all the same.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterable, Sequence

from coterie.kube.network.overlay.plan import VXLAN_PORT, filter_table
from coterie.kube.network.pods import nftables
from coterie.kube.network.pods.netlink import NetlinkMessage, NetlinkSocket

_NODES, _NODES_ID = "nodes", 1
_CHAIN = "outer_sources"
_RAW = -300
_UDP = bytes([17])
_VNI_OFFSET = 12
"""From the beginning of the UDP header: 8 bytes of it and 4 of VXLAN's."""


class OuterFilter:
    """Changes the rules of the network namespace in which `netlink` was made."""

    def __init__(self, netlink: NetlinkSocket, vni: int) -> None:
        self._netlink = netlink
        self._vni = vni
        self._table = filter_table(vni)

    def load(self, addresses: Iterable[str]) -> None:
        """Create the table, or replace it."""
        self._transact([*table_messages(self._vni), *self._elements(addresses)])

    def change(self, added: Iterable[str], removed: Iterable[str]) -> None:
        gone = [_packed(address) for address in removed]
        messages = self._elements(added)
        if gone:
            messages.append(nftables.delete_elements(self._table, _NODES, gone))
        if messages:
            self._transact(messages)

    def remove(self) -> None:
        """Delete the table, if it is there."""
        try:
            self._transact([nftables.delete_table(self._table)])
        except OSError as problem:
            if problem.errno != errno.ENOENT:
                raise

    def _elements(self, addresses: Iterable[str]) -> list[NetlinkMessage]:
        keys = [_packed(address) for address in addresses]
        return [nftables.add_elements(self._table, _NODES, keys)] if keys else []

    def _transact(self, messages: Sequence[NetlinkMessage]) -> None:
        self._netlink.request(nftables.batch(messages), acknowledged=-2)


def table_messages(vni: int) -> list[NetlinkMessage]:
    table = filter_table(vni)
    ours = (
        nftables.load_meta(nftables.META_L4PROTO)
        + nftables.compare(nftables.EQUAL, _UDP)
        + nftables.load_payload(nftables.TRANSPORT_HEADER, 2, 2)
        + nftables.compare(nftables.EQUAL, struct.pack(">H", VXLAN_PORT))
        + nftables.load_payload(nftables.TRANSPORT_HEADER, _VNI_OFFSET, 3)
        + nftables.compare(nftables.EQUAL, vni.to_bytes(3, "big"))
    )
    from_node = (
        nftables.load_meta(nftables.META_NFPROTO)
        + nftables.compare(nftables.EQUAL, bytes([socket.AF_INET]))
        + nftables.load_payload(nftables.NETWORK_HEADER, 12, 4)
        + nftables.lookup(_NODES, _NODES_ID)
    )
    return [
        nftables.add_table(table),
        nftables.delete_table(table),
        nftables.add_table(table),
        nftables.add_set(table, _NODES, _NODES_ID, (nftables.TYPE_IPV4_ADDRESS,), 4),
        nftables.add_chain(table, _CHAIN, "filter", nftables.INPUT, _RAW),
        nftables.add_rule(table, _CHAIN, ours, from_node, nftables.verdict(nftables.ACCEPT)),
        nftables.add_rule(table, _CHAIN, ours, nftables.count(), nftables.verdict(nftables.DROP)),
    ]


def _packed(address: str) -> bytes:
    return socket.inet_pton(socket.AF_INET, address)
