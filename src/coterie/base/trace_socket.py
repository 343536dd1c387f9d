"""How spans of a child process come to its node: one datagram each, over a Unix socket in a private directory.

    node    SpanReceiver(path).start()            what comes is in the node's ring
    child   ring = forward_from(os.environ)       its ring: sends each span at once

Sending never waits: when the node does not read, the span is dropped and counted by the child. Without the variable in
its environment the child's ring stays off.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from coterie.base.trace import RING, Span, TraceRing, bounded, span_from_wire

VARIABLE = "COTERIE_TRACES"
"""Environment variable of a child: the socket."""
_LARGEST = 64 << 10
_AT_ONCE = 256


class ForwardingRing(TraceRing):
    """Keeps nothing: each span goes to the node."""

    __slots__ = ("_path", "_socket")

    def __init__(self, path: str) -> None:
        super().__init__(1)
        self.on = True
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def record(self, span: Span) -> None:
        self.recorded += 1
        try:
            self._socket.sendto(json.dumps(bounded(span), separators=(",", ":")).encode(), self._path)
        except OSError:
            self.drop("node")

    def close(self) -> None:
        self._socket.close()


def environment(path: Path | None) -> dict[str, str]:
    """Of a child; `path`: the node's socket, None: nothing is recorded."""
    return {} if path is None else {VARIABLE: str(path)}


def forward_from(environ: Mapping[str, str] = os.environ) -> TraceRing:
    """The ring of this child: one that forwards, or the one that is off."""
    path = environ.get(VARIABLE)
    return ForwardingRing(path) if path else RING


class SpanReceiver:
    """The node's end. `path`: in a directory that only this user may enter. Raises OSError when it cannot be opened."""

    def __init__(self, path: Path, ring: TraceRing = RING) -> None:
        path.unlink(missing_ok=True)
        self._path = path
        self._ring = ring
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.bind(str(path))
            os.chmod(path, 0o600)
        except OSError:
            self._socket.close()
            raise
        self._socket.setblocking(False)

    def start(self) -> None:
        asyncio.get_running_loop().add_reader(self._socket, self._receive)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _receive(self) -> None:
        """A bounded number at a time: the loop calls again while there are more."""
        for _ in range(_AT_ONCE):
            try:
                data = self._socket.recv(_LARGEST)
            except OSError:  # nothing is there
                return
            try:
                self._ring.record(span_from_wire(json.loads(data)))
            except ValueError:
                self._ring.drop("unreadable")
