"""Which user of this machine has the other end of a TCP connection, as the kernel says it."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED = "01"
_WORD = 4


def owners(address: str, port: int, to_port: int) -> frozenset[int]:
    """Users of processes here that are connected from this address and port to `to_port`; none: it is another machine."""
    if not address:
        return frozenset()
    return frozenset(uid for lines in _tables() for uid in matching(lines, address, port, to_port))


def matching(lines: Iterable[str], address: str, port: int, to_port: int) -> Iterator[int]:
    """Lines of /proc/net/tcp or tcp6. Pure."""
    wanted = _plain(ipaddress.ip_address(address)), port
    for line in lines:
        words = line.split()
        if len(words) < 8 or words[3] != _ESTABLISHED:
            continue
        if _end(words[1]) == wanted and _end(words[2])[1] == to_port:
            yield int(words[7])


def _tables() -> Iterator[list[str]]:
    for path in _TABLES:
        try:
            yield path.read_text().splitlines()[1:]
        except OSError:
            continue  # a machine without IPv6


def _end(text: str) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]:
    """`0100007F:1F98`: words of 32 bits as the machine has them in memory."""
    digits, _, port = text.partition(":")
    words = bytes.fromhex(digits)
    if sys.byteorder == "little":
        words = b"".join(words[at : at + _WORD][::-1] for at in range(0, len(words), _WORD))
    return _plain(ipaddress.ip_address(words)), int(port, 16)


def _plain(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
