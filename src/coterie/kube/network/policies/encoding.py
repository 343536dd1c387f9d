"""Messages and expressions of nftables that only policies need: chains to jump to, verdict maps, ranges of ports."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

from coterie.kube.network.pods.netlink import CREATE, NetlinkMessage, attribute, nest, text
from coterie.kube.network.pods.nftables import FIRST, VERDICT

AT_LEAST, AT_MOST = 5, 3
"""Operators of `nftables.compare`."""
_SUBSYSTEM, _FAMILY_INET = 10, 1
_NEWCHAIN, _DELCHAIN, _DELRULE, _NEWSET, _DELSET, _NEWSETELEM, _DELSETELEM = 3, 5, 8, 9, 11, 12, 14
_SET_MAP, _DATA_VERDICT = 0x8, 0xFFFFFF00
_JUMP = -3


def _number(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack(">I", value & 0xFFFFFFFF))


def _message(what: str, kind: int, flags: int, *parts: bytes) -> NetlinkMessage:
    body = struct.pack("=BBH", _FAMILY_INET, socket.AF_UNSPEC, 0) + b"".join(parts)
    return NetlinkMessage(what, _SUBSYSTEM << 8 | kind, flags, body)


def add_plain_chain(table: str, name: str) -> NetlinkMessage:
    """One that rules and maps jump to."""
    return _message(f"add chain {name}", _NEWCHAIN, CREATE, text(1, table), text(3, name))


def flush_chain(table: str, name: str) -> NetlinkMessage:
    return _message(f"flush chain {name}", _DELRULE, 0, text(1, table), text(2, name))


def delete_chain(table: str, name: str) -> NetlinkMessage:
    return _message(f"delete chain {name}", _DELCHAIN, 0, text(1, table), text(3, name))


def add_verdict_map(table: str, name: str, identifier: int, key_type: int, key_length: int) -> NetlinkMessage:
    parts = (text(1, table), text(2, name), _number(3, _SET_MAP), _number(4, key_type), _number(5, key_length))
    return _message(f"add map {name}", _NEWSET, CREATE, *parts, _number(6, _DATA_VERDICT), _number(10, identifier))


def delete_set(table: str, name: str) -> NetlinkMessage:
    return _message(f"delete set {name}", _DELSET, 0, text(1, table), text(2, name))


def add_map_elements(table: str, name: str, elements: Sequence[tuple[bytes, str]]) -> NetlinkMessage:
    """(key, chain to jump to)."""
    made = [nest(1, nest(1, attribute(1, key)), nest(2, _jump(chain))) for key, chain in elements]
    return _message(f"add to map {name}", _NEWSETELEM, CREATE, text(1, table), text(2, name), nest(3, *made))


def delete_map_elements(table: str, name: str, keys: Sequence[bytes]) -> NetlinkMessage:
    made = [nest(1, nest(1, attribute(1, key))) for key in keys]
    return _message(f"delete from map {name}", _DELSETELEM, 0, text(1, table), text(2, name), nest(3, *made))


def _jump(chain: str) -> bytes:
    return nest(2, _number(1, _JUMP), text(2, chain))


def jump(chain: str) -> bytes:
    return _expression("immediate", _number(1, VERDICT), nest(2, _jump(chain)))


def look_up_verdict(name: str, identifier: int, register: int = FIRST) -> bytes:
    """Go where the map says for the key in the register; the next rule, if it has no such key."""
    return _expression("lookup", text(1, name), _number(2, register), _number(3, VERDICT), _number(4, identifier))


def _expression(name: str, *parts: bytes) -> bytes:
    return nest(1, text(1, name), nest(2, *parts))
