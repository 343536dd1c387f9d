"""Ports that one process holds while another may serve them: whoever came last gets the connections.

A port with SO_REUSEPORT may be opened by several processes of one user. A filter of one instruction, attached to the
first socket, chooses the second: while the first is alone the choice is void and it gets everything, from the moment
that another opens the port the other does, and when the other ends, it is the first's turn again. No connection is lost
on the way.

Both sockets must be of one family. gRPC takes IPv6 for all addresses where the machine has it, so we do too.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct

_ATTACH_FILTER = 51
"""SO_ATTACH_REUSEPORT_CBPF."""
_RETURN_CONSTANT = 0x06
_SECOND = 1
_BACKLOG = 128


class AddressTaken(OSError):
    """Somebody else listens there."""


class HandoverUnsupported(OSError):
    """This kernel has no such filters."""


def listen_until_handover(address: str, port: int) -> socket.socket:
    """Listens until somebody else opens the port. Raises Taken or CannotHold, or another OSError."""
    # Without sharing first: who listens there now is no successor of ours but a stranger.
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.create_server((address, port), family=family):
            pass
    except OSError as problem:
        raise AddressTaken(problem.errno, problem.strerror) from problem
    made = listen_shared(address, port)
    try:
        code = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN_CONSTANT, 0, 0, _SECOND))
        made.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HxxxxxxP", 1, ctypes.addressof(code)))
    except OSError as problem:
        made.close()
        raise HandoverUnsupported(problem.errno, problem.strerror) from problem
    return made


def listen_shared(address: str, port: int) -> socket.socket:
    """Listens beside others that do, as gRPC does."""
    try:
        made = socket.socket(socket.AF_INET6)
    except OSError:
        made = socket.socket(socket.AF_INET)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if made.family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            address = address if ":" in address else f"::ffff:{address}"
            # As gRPC has it: every address of version 4 is every address.
            address = "::" if address == "::ffff:0.0.0.0" else address
        made.bind((address, port))
        made.listen(_BACKLOG)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made


def close(*held: socket.socket) -> None:
    for each in held:
        with contextlib.suppress(OSError):
            each.close()
