"""Connections of a listening socket, carried to a Unix socket of this process.

For servers that cannot listen on a descriptor (gRPC for Python): they listen on a private Unix socket, and this thread
accepts from the descriptor and copies bytes both ways.

    client ──TCP──> held listener ──pump──> Unix socket ──> gRPC      TLS and HTTP/2 are between client and gRPC

One thread with epoll for all connections; nothing in it blocks. What a slow reader has not taken is at most one buffer,
and nothing more is read for it meanwhile. The end of one direction is passed on as such; an error ends both.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.base.log import logger

log = logger("pump")

MAX_CONNECTIONS = 4096
"""Further ones wait in the backlog."""
_BUFFER = 256 << 10
_RETRY_SECONDS = 0.5
"""Without descriptors, or without the server."""
_FULL_SECONDS = 0.01
_FILES_PER_CONNECTION = 3
"""Both ends here, and the server's."""
_OTHER_FILES = 256
_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""A peer that is gone without a word is noticed after two minutes."""
_GONE = (ConnectionError, TimeoutError)


@contextmanager
def private_address(target: Path) -> Iterator[str]:
    """For who binds this Unix socket inside the block and cannot set its mode: nobody but this user may connect.

    The address as gRPC spells it. Meanwhile files of other threads are private too.
    """
    target.unlink(missing_ok=True)
    before = os.umask(0o177)
    try:
        yield f"unix:{target}"
    finally:
        os.umask(before)


class _End:
    """One of the two sockets of a connection."""

    __slots__ = ("ended", "events", "number", "other", "pending", "shut", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.number = sock.fileno()
        self.other = self
        self.pending = b""
        """To be written here; until then nothing is read from the other."""
        self.ended = False
        """Nothing more comes from here."""
        self.shut = False
        """Nothing more is written here."""
        self.events = 0
        """What epoll watches for; 0: not registered, because a hang-up is always reported."""


class ConnectionPump:
    """Runs from `start` to `close`. The listener is closed with it."""

    def __init__(self, listener: socket.socket, target: Path, *, limit: int = MAX_CONNECTIONS) -> None:
        """`target`: where a server of this process listens."""
        self._listener = listener
        self._target = str(target)
        self._limit = min(limit, _affordable())
        self._epoll = select.epoll()
        self._ends: dict[int, _End] = {}
        self._buffer = memoryview(bytearray(_BUFFER))
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._accepting = False
        self._paused = False
        self._resume_at = 0.0
        self._stop_accepting = threading.Event()
        self._no_accepts = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pump", daemon=True)

    @property
    def connections(self) -> int:
        return len(self._ends) // 2

    def start(self) -> None:
        self._listener.setblocking(False)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._thread.start()

    def stop_accepting(self) -> None:
        """Returns when no further connection is taken; those that come wait in the backlog."""
        if self._thread.is_alive():
            self._stop_accepting.set()
            os.eventfd_write(self._wake, 1)
            self._no_accepts.wait()

    def close(self) -> None:
        """Ends all connections."""
        if self._epoll.closed:
            return
        if self._thread.is_alive():
            self._stop.set()
            os.eventfd_write(self._wake, 1)
            self._thread.join()
        self._epoll.close()
        os.close(self._wake)
        self._listener.close()

    # In the thread.

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                pause = self._resume_at - time.monotonic()
                self._accept_more(pause <= 0 and self.connections < self._limit and not self._stop_accepting.is_set())
                if self._stop_accepting.is_set():
                    self._no_accepts.set()
                for number, _ in self._epoll.poll(pause if pause > 0 else None):
                    if number == self._wake:
                        os.eventfd_read(self._wake)
                    elif number == self._listener.fileno():
                        self._accept()
                    elif (end := self._ends.get(number)) is not None:
                        self._move(end)
        finally:
            self._no_accepts.set()
            for end in list(self._ends.values()):
                self._close(end)

    def _accept_more(self, wanted: bool) -> None:
        if wanted != self._accepting:
            self._accepting = wanted
            if wanted:
                self._epoll.register(self._listener.fileno(), select.EPOLLIN)
            else:
                self._epoll.unregister(self._listener.fileno())

    def _accept(self) -> None:
        """Takes one connection. One that cannot be taken stays in the backlog for a while."""
        try:
            server = self._connect()
        except BlockingIOError:
            self._resume_at = time.monotonic() + _FULL_SECONDS
            return
        except OSError as problem:
            self._pause(problem)
            return
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            server.close()
            return
        except OSError as problem:
            server.close()
            self._pause(problem)
            return
        self._paused = False
        client.setblocking(False)
        _tune(client)
        one, two = _End(client), _End(server)
        one.other, two.other = two, one
        for each in (one, two):
            self._ends[each.number] = each
            self._watch(each)

    def _pause(self, problem: OSError) -> None:
        if not self._paused:
            log.warning("Connections cannot be accepted", error=problem)
        self._paused = True
        self._resume_at = time.monotonic() + _RETRY_SECONDS

    def _connect(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        try:
            made.setblocking(False)
            made.connect(self._target)
            pid, _, _ = struct.unpack("3i", made.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if pid != os.getpid():
                raise PermissionError(f"another process listens on {self._target}")
        except OSError:
            made.close()
            raise
        return made

    def _move(self, end: _End) -> None:
        try:
            if end.pending:
                self._flush(end)
            if end.events & select.EPOLLIN and not end.ended and not end.other.pending:
                self._read(end)
        except BlockingIOError:
            pass
        except OSError as problem:
            if not isinstance(problem, _GONE):
                log.debug("A connection broke", error=problem)
            self._close(end)
            return
        if end.shut and end.other.shut:
            self._close(end)
            return
        self._watch(end)
        self._watch(end.other)

    def _read(self, end: _End) -> None:
        size = end.sock.recv_into(self._buffer)
        if not size:
            end.ended = True
            self._shut(end.other)
            return
        data = self._buffer[:size]
        try:
            sent = end.other.sock.send(data)
        except BlockingIOError:
            sent = 0
        if sent < size:
            end.other.pending = bytes(data[sent:])

    def _flush(self, end: _End) -> None:
        end.pending = end.pending[end.sock.send(end.pending) :]
        if not end.pending and end.other.ended:
            self._shut(end)

    def _shut(self, end: _End) -> None:
        """Once all is written."""
        if not end.pending:
            end.shut = True
            end.sock.shutdown(socket.SHUT_WR)

    def _watch(self, end: _End) -> None:
        events = select.EPOLLOUT if end.pending else 0
        if not end.ended and not end.other.pending:
            events |= select.EPOLLIN
        if events == end.events:
            return
        if not end.events:
            self._epoll.register(end.number, events)
        elif events:
            self._epoll.modify(end.number, events)
        else:
            self._epoll.unregister(end.number)
        end.events = events

    def _close(self, end: _End) -> None:
        for each in (end, end.other):
            if self._ends.pop(each.number, None) is None:
                continue
            if each.events:
                self._epoll.unregister(each.number)
            each.sock.close()


def _tune(client: socket.socket) -> None:
    if client.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with contextlib.suppress(OSError):  # it is gone already
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            client.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _affordable() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(16, (soft - _OTHER_FILES) // _FILES_PER_CONNECTION)
