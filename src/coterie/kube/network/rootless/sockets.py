"""What the relay does with sockets besides moving bytes.

`_socket` instead of `socket`: that would bring enum, selectors and more, and weigh more than all of the relay.
"""

from __future__ import annotations

import errno
import os
from _socket import (
    AF_INET,
    AF_INET6,
    IPPROTO_IPV6,
    IPPROTO_TCP,
    IPV6_V6ONLY,
    SO_KEEPALIVE,
    SO_REUSEADDR,
    SOCK_CLOEXEC,
    SOCK_DGRAM,
    SOCK_NONBLOCK,
    SOCK_STREAM,
    SOL_SOCKET,
    TCP_KEEPCNT,
    TCP_KEEPIDLE,
    TCP_KEEPINTVL,
    TCP_NODELAY,
    socket,
)

from coterie.kube.network.rootless import limits
from coterie.kube.network.rootless.addresses import packed, split_address, unpacked

STREAM = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC
_SOL_IP, _SO_ORIGINAL_DST = 0, 80


def original_destination(connection: socket) -> tuple[str, int]:
    """Where a connection was going before nftables redirected it to us. OSError: it was not redirected."""
    data = connection.getsockopt(_SOL_IP, _SO_ORIGINAL_DST, 16)
    return unpacked(data[4:8]), int.from_bytes(data[2:4], "big")


def is_machine_address(host: str) -> bool:
    """The source address that the kernel would choose towards an address of its own is that address. Sends nothing."""
    probe = socket(AF_INET6 if ":" in host else AF_INET, SOCK_DGRAM | SOCK_CLOEXEC)
    try:
        probe.connect((host, 9))
        return packed(probe.getsockname()[0]) == packed(host)
    except OSError as error:
        return error.errno == errno.EACCES  # a broadcast address
    finally:
        probe.close()


class ListenError(Exception):
    def __init__(self, code: int, address: str) -> None:
        super().__init__(f"cannot listen on {address}: {os.strerror(code)}")
        self.code = code


class Listener:
    """Where connections are accepted. `address` is empty for the one inside the domain."""

    __slots__ = ("address", "fd", "socket")

    def __init__(self, sock: socket, address: str) -> None:
        self.socket = sock
        self.fd = sock.fileno()
        self.address = address


def accept(listener: socket) -> tuple[int, tuple[str, int]]:
    """Descriptor and address; `_socket` has nothing else."""
    found: tuple[int, tuple[str, int]] = listener._accept()  # type: ignore[attr-defined]
    return found


def listen(address: str) -> socket:
    host, port = split_address(address)
    family = AF_INET6 if ":" in host else AF_INET
    sock = socket(family, STREAM)
    try:
        sock.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        if family == AF_INET6:
            sock.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 1)
        sock.bind((host, port))
        sock.listen(limits.BACKLOG)
    except OSError as error:
        sock.close()
        raise ListenError(error.errno or 0, address) from None
    return sock


def tune(sock: socket) -> None:
    """Small packets at once; a peer that vanished is noticed while nothing is sent."""
    sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
    sock.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
    sock.setsockopt(IPPROTO_TCP, TCP_KEEPIDLE, limits.KEEPALIVE_IDLE)
    sock.setsockopt(IPPROTO_TCP, TCP_KEEPINTVL, limits.KEEPALIVE_INTERVAL)
    sock.setsockopt(IPPROTO_TCP, TCP_KEEPCNT, limits.KEEPALIVE_COUNT)
