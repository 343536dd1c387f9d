"""IP addresses as plain bytes, without the weight of `ipaddress`: this is loaded by the relay, which stays small."""

from __future__ import annotations

from _socket import AF_INET, AF_INET6, inet_ntop, inet_pton

_MAPPED = bytes(10) + b"\xff\xff"


def packed(text: str) -> bytes:
    """4 or 16 bytes; an IPv4 address that is written as an IPv6 one counts as what it is. ValueError when it is none."""
    text = text.partition("%")[0]
    try:
        data = inet_pton(AF_INET6 if ":" in text else AF_INET, text)
    except OSError:
        raise ValueError(f'"{text}" is not an IP address') from None
    return data[12:] if len(data) == 16 and data.startswith(_MAPPED) else data


def unpacked(data: bytes) -> str:
    return inet_ntop(AF_INET if len(data) == 4 else AF_INET6, data)


def in_network(address: bytes, network: str) -> bool:
    """`network` is CIDR notation: 100.96.0.0/16."""
    base, _, length = network.partition("/")
    first = packed(base)
    if len(first) != len(address):
        return False
    shift = len(first) * 8 - int(length or len(first) * 8)
    if not 0 <= shift <= len(first) * 8:
        raise ValueError(f'"{network}" is not a network')
    return int.from_bytes(first, "big") >> shift == int.from_bytes(address, "big") >> shift


def split_address(text: str) -> tuple[str, int]:
    """`host:port` or `[host]:port`, the host an IP address."""
    host, colon, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    packed(host)
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ValueError(f'"{text}" is not an address with a port')
    return host, int(port)


def joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
