"""Two sockets whose bytes go to each other: through a pipe in the kernel (splice), never through this process.

Edge-triggered: an event sets `readable` or `writable` of a side, EAGAIN takes it back. A pipe is held only while bytes wait
in it, so an idle connection costs two descriptors, and a slow reader holds at most one pipe full.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from _socket import SHUT_WR, SO_ERROR, SO_LINGER, SOL_SOCKET

from coterie.kube.network.rootless.limits import IDLE_PIPES, LARGE_PIPES, PIPE_BYTES, SPLICES_AT_ONCE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket

_FLAGS = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""The machine has no descriptors or memory at the moment."""
_RESET_ON_CLOSE = (1).to_bytes(4, sys.byteorder) + bytes(4)


class Pipes:
    """Empty pipes, kept for the next use."""

    def __init__(self, idle: int = IDLE_PIPES) -> None:
        self._idle = idle
        self._free: list[tuple[int, int]] = []
        self.open = 0
        self.exhausted = False
        """Somebody got none since this was last set to false."""

    def take(self) -> tuple[int, int] | None:
        """None: the machine has none at the moment."""
        if self._free:
            return self._free.pop()
        try:
            pipe = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            if error.errno not in EXHAUSTED:
                raise
            self.exhausted = True
            return None
        self.open += 1
        if self.open <= LARGE_PIPES:
            try:  # noqa: SIM105 - contextlib is too heavy here
                fcntl.fcntl(pipe[1], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            except OSError:
                pass  # The user has many pipes already: a smaller one works too.
        return pipe

    def give_back(self, pipe: tuple[int, int], *, empty: bool) -> None:
        if empty and len(self._free) < self._idle:
            self._free.append(pipe)
            return
        self._close(pipe)

    def close(self) -> None:
        while self._free:
            self._close(self._free.pop())

    def _close(self, pipe: tuple[int, int]) -> None:
        self.open -= 1
        os.close(pipe[0])
        os.close(pipe[1])


class Side:
    __slots__ = ("end_of_file", "failed", "fd", "readable", "socket", "writable")

    def __init__(self, sock: socket) -> None:
        self.socket = sock
        self.fd = sock.fileno()
        self.readable = self.writable = True
        self.end_of_file = False
        self.failed = False
        """It was reset. What had arrived before can still be read."""

    def error(self) -> int:
        return self.socket.getsockopt(SOL_SOCKET, SO_ERROR)

    def close(self, *, reset: bool) -> None:
        if reset:
            try:  # noqa: SIM105
                self.socket.setsockopt(SOL_SOCKET, SO_LINGER, _RESET_ON_CLOSE)
            except OSError:
                pass  # It is closed anyway.
        self.socket.close()


class Flow:
    """One direction."""

    __slots__ = ("broken", "bytes", "done", "pending", "pipe", "sink", "source")

    def __init__(self, source: Side, sink: Side) -> None:
        self.source, self.sink = source, sink
        self.pipe: tuple[int, int] | None = None
        self.pending = 0
        self.bytes = 0
        self.done = False
        """The end of the source was passed on."""
        self.broken = False
        """The sink takes nothing any more; what comes from it is still passed on."""

    @property
    def finished(self) -> bool:
        return self.done or self.broken

    def pump(self, pipes: Pipes) -> bool:
        """Move what can be moved. True: there may be more, but it is the turn of others. OSError: the source failed."""
        for _ in range(SPLICES_AT_ONCE):
            if self.finished:
                break
            if not self.pending and not self._fill(pipes):
                break
            if self.pending and not self._drain():
                break
        else:
            if not self.finished:
                return True
        if self.pipe is not None and (self.finished or not self.pending):
            self.release(pipes)
        return False

    def _fill(self, pipes: Pipes) -> bool:
        source = self.source
        if source.end_of_file:
            if source.failed:
                raise ConnectionResetError
            self._shut_down()
            return False
        if not source.readable:
            return False
        self.pipe = self.pipe or pipes.take()
        if self.pipe is None:
            return False
        try:
            self.pending = os.splice(source.fd, self.pipe[1], PIPE_BYTES, flags=_FLAGS)
        except BlockingIOError:
            source.readable = False
            return False
        source.end_of_file = not self.pending
        return True

    def _drain(self) -> bool:
        assert self.pipe is not None
        if not self.sink.writable:
            return False
        try:
            moved = os.splice(self.pipe[0], self.sink.fd, self.pending, flags=_FLAGS)
        except BlockingIOError:
            self.sink.writable = False
            return False
        except OSError:
            self.broken = True
            return False
        self.pending -= moved
        self.bytes += moved
        return True

    def _shut_down(self) -> None:
        self.done = True
        try:
            self.sink.socket.shutdown(SHUT_WR)
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                raise
            self.broken = True

    def release(self, pipes: Pipes) -> None:
        pipe, self.pipe = self.pipe, None
        if pipe is not None:
            pipes.give_back(pipe, empty=not self.pending)
        self.pending = 0


class Connection:
    """`client` is the side that was accepted, `server` the one that was dialled."""

    __slots__ = ("backward", "client", "closed", "forward", "inward", "queued", "server", "source")

    def __init__(self, client: Side, server: Side, *, inward: bool, source: str) -> None:
        self.client, self.server = client, server
        self.forward, self.backward = Flow(client, server), Flow(server, client)
        self.inward = inward
        self.source = source
        """Whose limit it counts against; empty: nobody's."""
        self.queued = False
        self.closed = False

    def event(self, side: Side, *, readable: bool, writable: bool, hung_up: bool) -> None:
        side.readable = side.readable or readable or hung_up
        side.writable = side.writable or writable
        if hung_up:
            into = self.backward if side is self.client else self.forward
            into.broken = not into.done

    def pump(self, pipes: Pipes) -> bool:
        more = self.forward.pump(pipes)
        return self.backward.pump(pipes) or more

    @property
    def finished(self) -> bool:
        return self.forward.finished and self.backward.finished

    def close(self, pipes: Pipes, *, reset: bool) -> None:
        self.closed = True
        for flow in (self.forward, self.backward):
            flow.release(pipes)
        for side in (self.client, self.server):
            side.close(reset=reset)
