"""Netlink: attributes, messages, and requests whose answers are checked.

The kernel handles a request while it is sent and queues every answer before send(2) returns, so nothing here waits.
It answers each message that fails; of those that succeed only the one that asks for it (NLM_F_ACK).
"""

from __future__ import annotations

import errno
import os
import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NETLINK_ROUTE = 0
NETLINK_NETFILTER = 12

REQUEST, ACK, DUMP = 0x1, 0x4, 0x300
REPLACE, EXCL, CREATE, APPEND = 0x100, 0x200, 0x400, 0x800

NESTED = 0x8000

_ERROR, _DONE = 2, 3
_CAPPED, _HAS_ATTRIBUTES = 0x100, 0x200
_ERROR_TEXT = 1
_SOL_NETLINK, _CAP_ACK, _EXT_ACK = 270, 10, 11
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_SEND_BUFFER = 1 << 20
_SO_SNDBUFFORCE = 32


def attribute(kind: int, data: bytes) -> bytes:
    length = 4 + len(data)
    return _ATTRIBUTE.pack(length, kind) + data + b"\0" * (-length % 4)


def nest(kind: int, *parts: bytes) -> bytes:
    return attribute(kind | NESTED, b"".join(parts))


def text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(kind without its flags, content) of each attribute in `data`."""
    at = 0
    while at + 4 <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < 4 or at + length > len(data):
            return
        yield kind & 0x3FFF, data[at + 4 : at + length]
        at += length + (-length % 4)


def open_netlink(protocol: int) -> socket.socket:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)


class NetlinkMessage:
    """One message to the kernel; `what` names it in errors."""

    __slots__ = ("body", "flags", "kind", "what")

    def __init__(self, what: str, kind: int, flags: int, body: bytes) -> None:
        self.what = what
        self.kind = kind
        self.flags = flags
        self.body = body


class NetlinkSocket:
    """A socket of one netlink protocol. It stays in the network namespace in which it was made: here and now, or by
    whoever made `existing`."""

    def __init__(self, protocol: int, existing: socket.socket | None = None) -> None:
        self._socket = existing or open_netlink(protocol)
        self._socket.setsockopt(_SOL_NETLINK, _CAP_ACK, 1)
        self._socket.setsockopt(_SOL_NETLINK, _EXT_ACK, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        self._sequence = 0

    def request(self, messages: Sequence[NetlinkMessage], acknowledged: int = -1) -> None:
        """Send them at once and raise the first failure. `acknowledged`: which of them the kernel must confirm."""
        acknowledged %= len(messages)
        first = self._send(messages, acknowledged)
        confirmed = False
        for kind, _, sequence, body in self._answers(first):
            if kind == _ERROR:
                number = -struct.unpack_from("=i", body)[0]
                if number:
                    self._discard()
                    raise _error(number, messages[sequence - first].what, body)
                confirmed = confirmed or sequence == first + acknowledged
        if not confirmed:
            raise OSError(errno.EPROTO, "the kernel did not answer", messages[acknowledged].what)

    def dump(self, message: NetlinkMessage) -> list[bytes]:
        """The bodies of all answers to a request for a list."""
        first = self._send([message], 0)
        found: list[bytes] = []
        for kind, _, _, body in self._answers(first):
            if kind == _ERROR:
                number = -struct.unpack_from("=i", body)[0]
                if number:
                    self._discard()
                    raise _error(number, message.what, body)
            elif kind != _DONE:
                found.append(body)
        return found

    def enlarge(self, size: int) -> None:
        """Let one request have so many bytes; without the right to do so it stays as it is."""
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, size)
        except PermissionError:
            return

    def close(self) -> None:
        self._socket.close()

    def _send(self, messages: Sequence[NetlinkMessage], acknowledged: int) -> int:
        first = self._sequence + 1
        self._sequence += len(messages)
        framed = []
        for index, message in enumerate(messages):
            flags = message.flags | REQUEST | (ACK if index == acknowledged else 0)
            framed.append(_HEADER.pack(16 + len(message.body), message.kind, flags, first + index, 0))
            framed.append(message.body)
        self._socket.sendto(b"".join(framed), (0, 0))
        return first

    def _answers(self, first: int) -> Iterator[tuple[int, int, int, bytes]]:
        """(kind, flags, sequence, body) of everything that is queued for the request that began with `first`."""
        while True:
            try:
                data = self._socket.recv(1 << 16, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            at = 0
            while at + 16 <= len(data):
                length, kind, flags, sequence, _ = _HEADER.unpack_from(data, at)
                if sequence >= first:
                    yield kind, flags, sequence, _body(data[at : at + length], kind, flags)
                at += max(16, length + (-length % 4))

    def _discard(self) -> None:
        for _ in self._answers(self._sequence + 1):
            pass


def _body(message: bytes, kind: int, flags: int) -> bytes:
    if kind != _ERROR:
        return message[16:]
    # An error: its number, the header of the request, then attributes with the kernel's explanation.
    return message[16:20] + (message[36:] if flags & _CAPPED and flags & _HAS_ATTRIBUTES else b"")


def _error(number: int, what: str, body: bytes) -> OSError:
    explained = [value.rstrip(b"\0").decode() for kind, value in attributes(body[4:]) if kind == _ERROR_TEXT]
    return OSError(number, ": ".join([os.strerror(number), *explained]), what)
