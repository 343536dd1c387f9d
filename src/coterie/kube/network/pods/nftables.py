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

FAMILY_INET, FAMILY_IP = 1, 2
"""Of a table: IPv4 and IPv6, or IPv4 alone."""

# Registers: the first two of 16 bytes, and the words of 4 bytes that the same memory consists of.
VERDICT, FIRST, SECOND, SECOND_WORD, THIRD_WORD = 0, 1, 2, 9, 10

ACCEPT, DROP, RETURN, GOTO = 1, 0, 0xFFFFFFFB, 0xFFFFFFFC
PREROUTING, INPUT, FORWARD, OUTPUT, POSTROUTING = 0, 1, 2, 3, 4

META_IIFNAME, META_OIFNAME, META_NFPROTO, META_L4PROTO = 6, 7, 15, 16
CT_STATE, CT_STATUS = 0, 2
CT_ESTABLISHED, CT_RELATED = 2, 4
CT_STATUS_DNAT = 1 << 5
LINK_HEADER, NETWORK_HEADER, TRANSPORT_HEADER = 0, 1, 2
EQUAL, NOT_EQUAL = 0, 1

TYPE_INTEGER, TYPE_IPV4_ADDRESS, TYPE_LINK_ADDRESS, TYPE_PROTOCOL, TYPE_PORT, TYPE_INTERFACE = 4, 7, 9, 12, 13, 41
"""How `nft` calls the fields of a set's key; the kernel only keeps them."""

ANONYMOUS = "__map%d"
"""The name of a map that belongs to one rule: the kernel puts a number in."""

_SUBSYSTEM = 10
_BATCH_BEGIN, _BATCH_END = 16, 17
_NEWTABLE, _DELTABLE, _NEWCHAIN, _DELCHAIN, _NEWRULE, _DELRULE = 0, 2, 3, 5, 6, 8
_NEWSET, _DELSET, _NEWSETELEM, _DELSETELEM = 9, 11, 12, 14
_REJECT_ICMP, _REJECT_TCP_RESET, _REJECT_ICMPX, _ICMPX_PORT_UNREACHABLE, _ICMP_PORT_UNREACHABLE = 0, 1, 2, 1, 3
_REDIRECT_PORT_GIVEN = 2
_SNAT, _DNAT = 0, 1
_SET_ANONYMOUS, _SET_CONSTANT, _SET_MAP, _SET_TIMEOUT, _SET_DYNAMIC = 0x1, 0x2, 0x8, 0x10, 0x20
_LARGEST_DYNAMIC_SET = 65535
_VERDICTS = 0xFFFFFF00
"""The data type of a map whose values are verdicts."""
_KEYS_IN_HOST_ORDER = bytes((0, 4)) + struct.pack("=I", 1)
"""For `nft list`: user data of a set, in the encoding of libnftnl."""
_ELEMENTS_IN_MESSAGE = 1000
"""The length of an attribute has 16 bits."""
_MORE_THAN = 1
_RANDOM, _DYNAMIC_UPDATE = 1, 1


def _number(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack(">I", value & 0xFFFFFFFF))


# --- messages -------------------------------------------------------------------------------------------------------


def batch(messages: Sequence[NetlinkMessage]) -> list[NetlinkMessage]:
    """All of them or none. The last but one of the result is the last of `messages`."""
    body = struct.pack("=BBH", socket.AF_UNSPEC, 0, socket.htons(_SUBSYSTEM))
    begin = NetlinkMessage("nftables transaction", _BATCH_BEGIN, 0, body)
    return [begin, *messages, NetlinkMessage("nftables transaction", _BATCH_END, 0, body)]


def _message(what: str, kind: int, flags: int, *parts: bytes, family: int = FAMILY_INET) -> NetlinkMessage:
    body = struct.pack("=BBH", family, 0, 0) + b"".join(parts)
    return NetlinkMessage(what, _SUBSYSTEM << 8 | kind, flags, body)


def add_table(table: str, *, family: int = FAMILY_INET) -> NetlinkMessage:
    return _message(f"add table {table}", _NEWTABLE, CREATE, text(1, table), _number(2, 0), family=family)


def delete_table(table: str, *, family: int = FAMILY_INET) -> NetlinkMessage:
    return _message(f"delete table {table}", _DELTABLE, 0, text(1, table), family=family)


def add_chain(
    table: str, name: str, kind: str, hook: int, priority: int, policy: int = ACCEPT, *, family: int = FAMILY_INET
) -> NetlinkMessage:
    where = nest(4, _number(1, hook), _number(2, priority))
    parts = (text(1, table), text(3, name), where, _number(5, policy), text(7, kind))
    return _message(f"add chain {name}", _NEWCHAIN, CREATE, *parts, family=family)


def add_plain_chain(table: str, name: str, *, family: int = FAMILY_INET) -> NetlinkMessage:
    """One without a hook, for `go_to`."""
    return _message(f"add chain {name}", _NEWCHAIN, CREATE, text(1, table), text(3, name), family=family)


def delete_chain(table: str, name: str, *, family: int = FAMILY_INET) -> NetlinkMessage:
    """It must have no rules, and nothing may lead to it."""
    return _message(f"delete chain {name}", _DELCHAIN, 0, text(1, table), text(3, name), family=family)


def delete_rules(table: str, chain: str, *, family: int = FAMILY_INET) -> NetlinkMessage:
    """All rules of a chain, with their anonymous maps."""
    return _message(f"delete rules of chain {chain}", _DELRULE, 0, text(1, table), text(2, chain), family=family)


def add_set(
    table: str,
    name: str,
    identifier: int,
    fields: Sequence[int],
    key_length: int,
    *,
    dynamic: bool = False,
    timeout: int = 0,
    family: int = FAMILY_INET,
) -> NetlinkMessage:
    """`identifier`: a number of its own within the transaction; `fields`: the types that the key consists of; `dynamic`: rules
    add elements to it, which go after `timeout` seconds, where it is given."""
    flags = (_SET_DYNAMIC if dynamic else 0) | (_SET_TIMEOUT if timeout else 0)
    parts = [text(1, table), text(2, name), _number(3, flags), _number(4, _type(fields)), _number(5, key_length)]
    if dynamic:
        parts.append(nest(9, _number(1, _LARGEST_DYNAMIC_SET)))
    if timeout:
        parts.append(attribute(11, struct.pack(">Q", timeout * 1000)))
    return _message(f"add set {name}", _NEWSET, CREATE, *parts, _number(10, identifier), family=family)


def delete_set(table: str, name: str, *, family: int = FAMILY_INET) -> NetlinkMessage:
    """No rule may use it."""
    return _message(f"delete set {name}", _DELSET, 0, text(1, table), text(2, name), family=family)


def add_verdict_map(
    table: str, name: str, identifier: int, fields: Sequence[int], key_length: int, *, family: int = FAMILY_INET
) -> NetlinkMessage:
    """From keys to chains."""
    parts = [text(1, table), text(2, name), _number(3, _SET_MAP), _number(4, _type(fields)), _number(5, key_length)]
    parts += [_number(6, _VERDICTS), _number(10, identifier)]
    return _message(f"add map {name}", _NEWSET, CREATE, *parts, family=family)


def add_anonymous_map(
    table: str, identifier: int, data_fields: Sequence[int], values: Sequence[bytes], *, family: int = FAMILY_INET
) -> list[NetlinkMessage]:
    """From 0, 1, ... to `values`, for one rule of the same transaction: `lookup(ANONYMOUS, identifier, ...)`."""
    flags = _SET_ANONYMOUS | _SET_CONSTANT | _SET_MAP
    parts = [text(1, table), text(2, ANONYMOUS), _number(3, flags), _number(4, TYPE_INTEGER), _number(5, 4)]
    parts += [_number(6, _type(data_fields)), _number(7, len(values[0])), nest(9, _number(1, len(values)))]
    parts += [_number(10, identifier), attribute(13, _KEYS_IN_HOST_ORDER)]
    elements = [
        nest(1, nest(1, attribute(1, struct.pack("=I", index))), nest(2, attribute(1, value)))
        for index, value in enumerate(values)
    ]
    messages = [_message("add a map", _NEWSET, CREATE, *parts, family=family)]
    for start in range(0, len(elements), _ELEMENTS_IN_MESSAGE):
        listed = nest(3, *elements[start : start + _ELEMENTS_IN_MESSAGE])
        filled = (text(1, table), text(2, ANONYMOUS), listed, _number(4, identifier))
        messages.append(_message("fill a map", _NEWSETELEM, CREATE, *filled, family=family))
    return messages


def _type(fields: Sequence[int]) -> int:
    found = 0
    for field in fields:
        found = found << 6 | field
    return found


def add_elements(table: str, name: str, keys: Sequence[bytes], *, family: int = FAMILY_INET) -> NetlinkMessage:
    return _message(f"add to set {name}", _NEWSETELEM, CREATE, *_elements(table, name, keys), family=family)


def add_chain_elements(
    table: str, name: str, elements: Sequence[tuple[bytes, str]], *, family: int = FAMILY_INET
) -> NetlinkMessage:
    """To a verdict map: (key, chain where packets with that key go)."""
    listed = [nest(1, nest(1, attribute(1, key)), nest(2, _verdict(GOTO, chain))) for key, chain in elements]
    parts = (text(1, table), text(2, name), nest(3, *listed))
    return _message(f"add to map {name}", _NEWSETELEM, CREATE, *parts, family=family)


def delete_elements(table: str, name: str, keys: Sequence[bytes], *, family: int = FAMILY_INET) -> NetlinkMessage:
    return _message(f"delete from set {name}", _DELSETELEM, 0, *_elements(table, name, keys), family=family)


def _elements(table: str, name: str, keys: Sequence[bytes]) -> tuple[bytes, ...]:
    return text(1, table), text(2, name), nest(3, *(nest(1, nest(1, attribute(1, key))) for key in keys))


def add_rule(table: str, chain: str, *expressions: bytes, family: int = FAMILY_INET) -> NetlinkMessage:
    parts = (text(1, table), text(2, chain), nest(4, *expressions))
    return _message(f"add rule to chain {chain}", _NEWRULE, CREATE | APPEND, *parts, family=family)


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


def map_lookup(name: str, identifier: int, result: int = FIRST, register: int = FIRST) -> bytes:
    """The value of a map into register `result`; VERDICT: go where the value says. The rule ends where there is none."""
    return _expression("lookup", text(1, name), _number(2, register), _number(3, result), _number(4, identifier))


def random_number(below: int, register: int = FIRST) -> bytes:
    return _expression("numgen", _number(1, register), _number(2, below), _number(3, _RANDOM), _number(4, 0))


def remember(name: str, identifier: int, register: int = FIRST) -> bytes:
    """Add the key in the register to a dynamic set; where it is there already, its timeout begins anew."""
    parts = (text(1, name), _number(2, identifier), _number(3, _DYNAMIC_UPDATE), _number(4, register))
    return _expression("dynset", *parts)


def has_more_connections(name: str, identifier: int, limit: int, register: int = FIRST) -> bytes:
    """Matches when the connections counted under the key in the register, in a dynamic set, are more than `limit`."""
    counting = nest(7, text(1, "connlimit"), nest(2, _number(1, limit), _number(2, _MORE_THAN)))
    return _expression("dynset", text(1, name), _number(2, identifier), _number(3, 0), _number(4, register), counting)


def load_value(value: bytes, register: int = FIRST) -> bytes:
    return _expression("immediate", _number(1, register), nest(2, attribute(1, value)))


def verdict(code: int) -> bytes:
    return _expression("immediate", _number(1, VERDICT), nest(2, _verdict(code)))


def _verdict(code: int, chain: str = "") -> bytes:
    return nest(2, _number(1, code), *((text(2, chain),) if chain else ()))


def count() -> bytes:
    return _expression("counter")


def reset_connection() -> bytes:
    """Answer with a TCP reset; for TCP packets only."""
    return _expression("reject", _number(1, _REJECT_TCP_RESET), attribute(2, b"\0"))


def refuse() -> bytes:
    """Answer with ICMP "port unreachable"."""
    return _expression("reject", _number(1, _REJECT_ICMPX), attribute(2, bytes([_ICMPX_PORT_UNREACHABLE])))


def refuse_ipv4() -> bytes:
    """As `refuse`, in a table of family `ip`."""
    return _expression("reject", _number(1, _REJECT_ICMP), attribute(2, bytes([_ICMP_PORT_UNREACHABLE])))


def redirect(port_register: int = FIRST) -> bytes:
    """To a port of this network namespace (output hook: on 127.0.0.1)."""
    return _expression("redir", _number(1, port_register), _number(3, _REDIRECT_PORT_GIVEN))


def change_destination(address_register: int = FIRST, port_register: int = SECOND) -> bytes:
    parts = (_number(1, _DNAT), _number(2, socket.AF_INET), _number(3, address_register), _number(5, port_register))
    return _expression("nat", *parts)


def change_source(address_register: int = FIRST) -> bytes:
    parts = (_number(1, _SNAT), _number(2, socket.AF_INET), _number(3, address_register))
    return _expression("nat", *parts)
