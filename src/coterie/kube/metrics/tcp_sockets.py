"""TCP sockets of this network namespace with their round-trip times, by netlink (NETLINK_SOCK_DIAG).

Needs neither root nor the program `ss`, and takes a quarter of its time. `established()` asks the kernel; `parse` is pure.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_SOCK_DIAG = 4
_BY_FAMILY = 20
_REQUEST_DUMP = 0x301
_ERROR, _DONE = 2, 3
_ESTABLISHED = 1 << 1
_INFO = 2
"""INET_DIAG_INFO: `struct tcp_info`."""
_HEADER = struct.Struct("=IHHII")
_MESSAGE = struct.Struct("=BBBB2s2s16s16sI8sIIIII")
_ATTRIBUTE = struct.Struct("=HH")
_RTT, _RETRANSMITS, _ACKED, _RECEIVED = 68, 100, 120, 128
"""Offsets in `tcp_info`."""
_BUFFER = 1 << 18


@dataclass(frozen=True, slots=True)
class TcpSocket:
    local: tuple[str, int]
    remote: tuple[str, int]
    inode: int
    rtt: float
    """Seconds, as the kernel smooths it."""
    retransmits: int
    """Segments sent again since the connection began."""
    sent: int
    """Bytes that the other side has acknowledged."""
    received: int


def established() -> list[TcpSocket]:
    """All connections of the calling thread's network namespace. Raises OSError."""
    found: list[TcpSocket] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(1.0)
        for family in (socket.AF_INET, socket.AF_INET6):
            kernel.send(_request(family))
            done = False
            while not done:
                sockets, done = parse(kernel.recv(_BUFFER))
                found += sockets
    return found


def _request(family: int) -> bytes:
    body = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, 1 << (_INFO - 1), _ESTABLISHED)
    return _HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST_DUMP, 1, 0) + body


def parse(data: bytes) -> tuple[list[TcpSocket], bool]:
    """(sockets, whether these were the last). Raises OSError for an error of the kernel."""
    found: list[TcpSocket] = []
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, at)
        if kind == _DONE:
            return found, True
        if kind == _ERROR:
            (code,) = struct.unpack_from("=i", data, at + _HEADER.size)
            raise OSError(-code, "the kernel does not list TCP sockets")
        if length < _HEADER.size or at + length > len(data):
            raise OSError("the kernel's list of TCP sockets is cut off")
        if (one := _socket(data[at + _HEADER.size : at + length])) is not None:
            found.append(one)
        at += (length + 3) & ~3
    return found, False


def _socket(message: bytes) -> TcpSocket | None:
    if len(message) < _MESSAGE.size:
        return None
    family, _, _, _, port, remote_port, address, remote, _, _, _, _, _, _, inode = _MESSAGE.unpack_from(message)
    info = next((data for kind, data in _attributes(message[_MESSAGE.size :]) if kind == _INFO), b"")
    if len(info) < _RECEIVED + 8:
        return None  # a kernel before 4.2
    (rtt,) = struct.unpack_from("=I", info, _RTT)
    (again,) = struct.unpack_from("=I", info, _RETRANSMITS)
    sent, received = struct.unpack_from("=QQ", info, _ACKED)
    return TcpSocket(
        (_address(family, address), int.from_bytes(port, "big")),
        (_address(family, remote), int.from_bytes(remote_port, "big")),
        inode,
        rtt / 1e6,
        again,
        sent,
        received,
    )


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            return
        yield kind, data[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3


def _address(family: int, raw: bytes) -> str:
    if family == socket.AF_INET:
        return socket.inet_ntoa(raw[:4])
    address = ipaddress.IPv6Address(raw)
    return str(address.ipv4_mapped or address)
