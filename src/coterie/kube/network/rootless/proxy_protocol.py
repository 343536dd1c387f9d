"""The header of the PROXY protocol, version 2 (haproxy.org, "The PROXY protocol", section 2.2), as its sender."""

from __future__ import annotations

from coterie.kube.network.rootless.addresses import packed

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
_PROXY = b"\x21"
"""Version 2, command PROXY."""
_TCP4, _TCP6 = b"\x11", b"\x21"
_MAPPED = bytes(10) + b"\xff\xff"


def header(source: tuple[str, int], destination: tuple[str, int]) -> bytes:
    """Both addresses in one family: when one of them is IPv6, the other is written as an IPv6 address too."""
    ends = packed(source[0]), packed(destination[0])
    family = _TCP4
    if len(ends[0]) + len(ends[1]) > 8:
        family, ends = _TCP6, (_as_ipv6(ends[0]), _as_ipv6(ends[1]))
    body = b"".join(ends) + source[1].to_bytes(2, "big") + destination[1].to_bytes(2, "big")
    return SIGNATURE + _PROXY + family + len(body).to_bytes(2, "big") + body


def _as_ipv6(address: bytes) -> bytes:
    return address if len(address) == 16 else _MAPPED + address
