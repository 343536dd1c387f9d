"""nftables in the kernel's own encoding: tables, chains, sets, rules and the expressions that rules are made of.

What `nft --debug=netlink` prints is what the functions here are called with. An expression reads from or writes to
registers; a rule is a list of them that ends at the first one that does not match.
"""

from __future__ import annotations

import socket
import struct

from coterie.kube.network.pods.netlink import APPEND, CREATE, NetlinkMessage, attribute, nest, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# Registers: the first two of 16 bytes, and the words of 4 bytes that the same memory consists of.
VERDICT, FIRST, SECOND, SECOND_WORD = 0, 1, 2, 9

ACCEPT, DROP, RETURN = 1, 0, 0xFFFFFFFB
PREROUTING, INPUT, FORWARD, OUTPUT = 0, 1, 2, 3

META_IIFNAME, META_OIFNAME, META_NFPROTO, META_L4PROTO = 6, 7, 15, 16
CT_STATE, CT_STATUS = 0, 2
CT_ESTABLISHED, CT_RELATED = 2, 4
CT_STATUS_DNAT = 1 << 5
NETWORK_HEADER, TRANSPORT_HEADER = 1, 2
EQUAL, NOT_EQUAL = 0, 1

TYPE_IPV4_ADDRESS, TYPE_PROTOCOL, TYPE_PORT, TYPE_INTERFACE = 7, 12, 13, 41
"""How `nft` calls the fields of a set's key; the kernel only keeps them."""

_SUBSYSTEM = 10
_BATCH_BEGIN, _BATCH_END = 16, 17
_NEWTABLE, _DELTABLE, _NEWCHAIN, _NEWRULE, _NEWSET, _NEWSETELEM, _DELSETELEM = 0, 2, 3, 6, 9, 12, 14
_FAMILY_INET = 1
_REJECT_TCP_RESET, _REJECT_ICMPX, _ICMPX_PORT_UNREACHABLE = 1, 2, 1
_REDIRECT_PORT_GIVEN = 2
_DNAT = 1
_SET_DYNAMIC, _LARGEST_DYNAMIC_SET = 0x20, 65535
_MORE_THAN = 1


def _number(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack(">I", value & 0xFFFFFFFF))


# --- messages -------------------------------------------------------------------------------------------------------


def batch(messages: Sequence[NetlinkMessage]) -> list[NetlinkMessage]:
    """All of them or none. The last but one of the result is the last of `messages`."""
    body = struct.pack("=BBH", socket.AF_UNSPEC, 0, socket.htons(_SUBSYSTEM))
    begin = NetlinkMessage("nftables transaction", _BATCH_BEGIN, 0, body)
    return [begin, *messages, NetlinkMessage("nftables transaction", _BATCH_END, 0, body)]


def _message(what: str, kind: int, flags: int, *parts: bytes) -> NetlinkMessage:
    body = struct.pack("=BBH", _FAMILY_INET, 0, 0) + b"".join(parts)
    return NetlinkMessage(what, _SUBSYSTEM << 8 | kind, flags, body)


def add_table(table: str) -> NetlinkMessage:
    return _message(f"add table {table}", _NEWTABLE, CREATE, text(1, table), _number(2, 0))


def delete_table(table: str) -> NetlinkMessage:
    return _message(f"delete table {table}", _DELTABLE, 0, text(1, table))


def add_chain(table: str, name: str, kind: str, hook: int, priority: int, policy: int = ACCEPT) -> NetlinkMessage:
    where = nest(4, _number(1, hook), _number(2, priority))
    parts = (text(1, table), text(3, name), where, _number(5, policy), text(7, kind))
    return _message(f"add chain {name}", _NEWCHAIN, CREATE, *parts)


def add_set(
    table: str, name: str, identifier: int, fields: Sequence[int], key_length: int, *, dynamic: bool = False
) -> NetlinkMessage:
    """`identifier`: a number of its own within the transaction; `fields`: the types that the key consists of; `dynamic`: rules
    add elements to it."""
    key_type = 0
    for field in fields:
        key_type = key_type << 6 | field
    flags = _SET_DYNAMIC if dynamic else 0
    parts = [text(1, table), text(2, name), _number(3, flags), _number(4, key_type), _number(5, key_length)]
    if dynamic:
        parts.append(nest(9, _number(1, _LARGEST_DYNAMIC_SET)))
    return _message(f"add set {name}", _NEWSET, CREATE, *parts, _number(10, identifier))


def add_elements(table: str, name: str, keys: Sequence[bytes]) -> NetlinkMessage:
    return _message(f"add to set {name}", _NEWSETELEM, CREATE, *_elements(table, name, keys))


def delete_elements(table: str, name: str, keys: Sequence[bytes]) -> NetlinkMessage:
    return _message(f"delete from set {name}", _DELSETELEM, 0, *_elements(table, name, keys))


def _elements(table: str, name: str, keys: Sequence[bytes]) -> tuple[bytes, ...]:
    return text(1, table), text(2, name), nest(3, *(nest(1, nest(1, attribute(1, key))) for key in keys))


def add_rule(table: str, chain: str, *expressions: bytes) -> NetlinkMessage:
    parts = (text(1, table), text(2, chain), nest(4, *expressions))
    return _message(f"add rule to chain {chain}", _NEWRULE, CREATE | APPEND, *parts)


# --- expressions ----------------------------------------------------------------------------------------------------


def _expression(name: str, *parts: bytes) -> bytes:
    return nest(1, text(1, name), nest(2, *parts))


def load_meta(key: int, register: int = FIRST) -> bytes:
    return _expression("meta", _number(1, register), _number(2, key))


def load_conntrack(key: int, register: int = FIRST) -> bytes:
    return _expression("ct", _number(1, register), _number(2, key))


def load_payload(base: int, offset: int, length: int, register: int = FIRST) -> bytes:
    return _expression("payload", _number(1, register), _number(2, base), _number(3, offset), _number(4, length))


def compare(operator: int, value: bytes, register: int = FIRST) -> bytes:
    return _expression("cmp", _number(1, register), _number(2, operator), nest(3, attribute(1, value)))


def mask(bits: bytes, register: int = FIRST) -> bytes:
    parts = (_number(1, register), _number(2, register), _number(3, len(bits)))
    return _expression("bitwise", *parts, nest(4, attribute(1, bits)), nest(5, attribute(1, bytes(len(bits)))))


def lookup(name: str, identifier: int, *, inverted: bool = False, register: int = FIRST) -> bytes:
    parts = (text(1, name), _number(2, register), _number(4, identifier), _number(5, int(inverted)))
    return _expression("lookup", *parts)


def has_more_connections(name: str, identifier: int, limit: int, register: int = FIRST) -> bytes:
    """Matches when the connections counted under the key in the register, in a dynamic set, are more than `limit`."""
    counting = nest(7, text(1, "connlimit"), nest(2, _number(1, limit), _number(2, _MORE_THAN)))
    return _expression("dynset", text(1, name), _number(2, identifier), _number(3, 0), _number(4, register), counting)


def load_value(value: bytes, register: int = FIRST) -> bytes:
    return _expression("immediate", _number(1, register), nest(2, attribute(1, value)))


def verdict(code: int) -> bytes:
    return _expression("immediate", _number(1, VERDICT), nest(2, nest(2, _number(1, code))))


def count() -> bytes:
    return _expression("counter")


def reset_connection() -> bytes:
    """Answer with a TCP reset; for TCP packets only."""
    return _expression("reject", _number(1, _REJECT_TCP_RESET), attribute(2, b"\0"))


def refuse() -> bytes:
    """Answer with ICMP "port unreachable"."""
    return _expression("reject", _number(1, _REJECT_ICMPX), attribute(2, bytes([_ICMPX_PORT_UNREACHABLE])))


def redirect(port_register: int = FIRST) -> bytes:
    """To a port of this network namespace (output hook: on 127.0.0.1)."""
    return _expression("redir", _number(1, port_register), _number(3, _REDIRECT_PORT_GIVEN))


def change_destination(address_register: int = FIRST, port_register: int = SECOND) -> bytes:
    parts = (_number(1, _DNAT), _number(2, socket.AF_INET), _number(3, address_register), _number(5, port_register))
    return _expression("nat", *parts)
