"""How agent and supervisor talk: JSON with a length in front, on a Unix socket, with file handles riding along.

    request  {"id": 7, "op": "start", ...}
    answer   {"id": 7, "ok": {...}} or {"id": 7, "error": ["CreateContainerError", "..."]}; "fds": how many handles
    event    {"event": "run", ...}

`VERSION` grows when an old supervisor could not do what a new agent asks. A supervisor is told at `hello` who speaks.
"""

from __future__ import annotations

import json
import os
import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERSION = 2
OLDEST = 2
"""The oldest supervisor this agent can still talk to."""
SOCKET_NAME = "shepherd.sock"
MOST_HANDLES = 8
_LONGEST = 16 << 20
_HEAD = struct.Struct(">I")
_HANDLE = struct.Struct("=i")


class WireError(Exception):
    """The other side does not speak as agreed."""


def encode(message: dict[str, Any]) -> bytes:
    # ASCII: file names and arguments that are no UTF-8 travel as lone surrogates, which only escapes can carry.
    data = json.dumps(message, separators=(",", ":")).encode("ascii")
    if len(data) > _LONGEST:
        raise WireError(f"a message of {len(data)} bytes is too long")
    return _HEAD.pack(len(data)) + data


class Inbox:
    """Bytes and handles as they arrive in; whole messages, each with its handles, out."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._handles: list[int] = []

    def feed(self, data: bytes, handles: list[int]) -> list[tuple[dict[str, Any], list[int]]]:
        self._data += data
        self._handles += handles
        found = []
        while len(self._data) >= 4:
            (length,) = _HEAD.unpack_from(self._data)
            if length > _LONGEST:
                raise WireError(f"a message of {length} bytes is too long")
            if len(self._data) < 4 + length:
                break
            message = json.loads(self._data[4 : 4 + length])
            del self._data[: 4 + length]
            count = message.get("fds", 0)
            found.append((message, self._handles[:count]))
            del self._handles[:count]
        return found

    def close(self) -> None:
        for handle in self._handles:
            os.close(handle)
        self._handles.clear()


def receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """What has arrived, with its handles, which no program that this process starts inherits: a listener that a child has
    too would outlive us."""
    # `socket.recv_fds` of Python 3.11 takes flags and drops them.
    data, rest, _, _ = connection.recvmsg(65536, socket.CMSG_LEN(MOST_HANDLES * _HANDLE.size), socket.MSG_CMSG_CLOEXEC)
    handles: list[int] = []
    for level, kind, given in rest:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            whole = len(given) - len(given) % _HANDLE.size
            handles += [number for (number,) in _HANDLE.iter_unpack(given[:whole])]
    return data, handles


def address(directory: str) -> tuple[str, int]:
    """A name for the socket that fits into the 107 bytes of a Unix address however deep the directory lies.

    The handle must stay open while the name is used.
    """
    handle = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    return f"/proc/self/fd/{handle}/{SOCKET_NAME}", handle


def peer(connection: socket.socket) -> tuple[int, int]:
    """Process and user id at the other end."""
    pid, uid, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid
