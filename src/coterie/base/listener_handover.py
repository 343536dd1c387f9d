"""Listening sockets that one process holds and another serves.

The holder opens the socket and passes its descriptor to the process that serves. Both hold the same socket, so the port
stays taken while the serving process starts, ends or dies, and connections wait in the backlog meanwhile:

    held = {"http": listen("127.0.0.1", 8082)}
    ProcessSpec(..., argv=(..., "--listeners", encode(held)), pass_fds=[each.fileno() for each in held.values()])
    inherited(option)["http"]      in the other process

Some servers cannot take a descriptor and must open the port themselves. Where no other program can (in a network
namespace of our own), the holder's socket is a shared one: `listen_shared`, `prefer_successor`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import struct
import time
from collections.abc import Mapping

BACKLOG = 512
"""Connections that wait until somebody accepts them."""
_PREDECESSOR_SECONDS = 2.0
"""For which a port may still be held by the ending child of a node that was killed."""
_RETRY_SECONDS = 0.02
_ATTACH_FILTER = 51
"""SO_ATTACH_REUSEPORT_CBPF."""
_RETURN_CONSTANT = 0x06
_SECOND = 1


def listen(address: str, port: int, *, wait: float = _PREDECESSOR_SECONDS) -> socket.socket:
    """Listens, so that no other process can have the port. `wait`: seconds to retry while somebody else listens there.

    Raises OSError. As in Go, every address of version 4 is every address.
    """
    deadline = time.monotonic() + wait
    while True:
        try:
            return _listening(address, port)
        except OSError as problem:
            if problem.errno != errno.EADDRINUSE or time.monotonic() >= deadline:
                raise
        time.sleep(_RETRY_SECONDS)


def _listening(address: str, port: int) -> socket.socket:
    both = address in ("0.0.0.0", "::") and _has_ipv6()
    family = socket.AF_INET6 if both or ":" in address else socket.AF_INET
    made = socket.create_server(
        ("::" if both else address, port), family=family, backlog=BACKLOG, dualstack_ipv6=both, reuse_port=False
    )
    made.setblocking(False)
    return made


def listen_shared(address: str, port: int) -> socket.socket:
    """Listens with SO_REUSEPORT: every process of this user may open the port too. For a network namespace of our own.

    Of the family that gRPC takes there, because sockets of two families do not share. Raises OSError.
    """
    made = socket.socket(socket.AF_INET6 if ":" in address or _has_ipv6() else socket.AF_INET)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if made.family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            address = address if ":" in address else f"::ffff:{address}"
            address = "::" if address == "::ffff:0.0.0.0" else address
        made.bind((address, port))
        made.listen(BACKLOG)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made


def prefer_successor(held: socket.socket) -> None:
    """Of a shared socket: whoever opens the port after it gets all new connections for as long as it listens.

    A filter of one instruction chooses the second socket. While there is only one, the choice is void. Raises OSError.
    """
    code = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN_CONSTANT, 0, 0, _SECOND))
    held.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HxxxxxxP", 1, ctypes.addressof(code)))


def _has_ipv6() -> bool:
    """As gRPC decides it: whether the loopback address is there, which may be disabled in a network namespace."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
            return True
    except OSError:
        return False


# What the serving process is started with.


def encode(held: Mapping[str, socket.socket]) -> str:
    return ",".join(f"{name}={each.fileno()}" for name, each in held.items())


def inherited(text: str) -> dict[str, socket.socket]:
    """What `encode` described, by name. Processes that this one starts do not get them. Raises ValueError, OSError."""
    made: dict[str, socket.socket] = {}
    for pair in filter(None, text.split(",")):
        name, _, number = pair.partition("=")
        os.set_inheritable(int(number), False)
        made[name] = socket.socket(fileno=int(number))
        made[name].setblocking(False)
    return made


def close(*held: socket.socket) -> None:
    for each in held:
        with contextlib.suppress(OSError):
            each.close()
