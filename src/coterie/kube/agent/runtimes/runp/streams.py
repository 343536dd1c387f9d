"""Output of containers on its way: from pipe or terminal into the log, and to whoever is attached."""

from __future__ import annotations

import errno
import os
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from coterie.kube.agent.runtimes.runp.logs import LogStream
    from coterie.kube.agent.runtimes.runp.loop import Loop

_CHUNK = 64 << 10
_SHARE = 0.25
"""Of one core that one stream of a container may cost."""
_BURST_SECONDS = 0.25
"""So much more at once, for a stream that was quiet."""
_MOST_LEFT = 4 << 20
"""Bytes that are taken from a pipe after the end; a pipe holds less unless somebody still writes."""
_MOST_WAITING = 1 << 20
"""Bytes kept for a reader that is slower than the container; one that falls further behind is let go."""


class OutputListener:
    """Somebody attached: a pipe of which the agent holds the other end."""

    def __init__(self, loop: Loop, handle: int) -> None:
        self._loop = loop
        self._handle = handle
        self._waiting = bytearray()
        self._ending = False
        os.set_blocking(handle, False)

    @property
    def open(self) -> bool:
        return self._handle >= 0

    def send(self, data: bytes) -> None:
        if self.open and not self._ending:
            self._waiting += data
            self._flush(0)
            if len(self._waiting) > _MOST_WAITING:
                self._close()

    def end(self) -> None:
        self._ending = True
        if not self._waiting:
            self._close()

    def _flush(self, _: int) -> None:
        try:
            while self._waiting:
                del self._waiting[: os.write(self._handle, self._waiting[:_CHUNK])]
        except BlockingIOError:
            self._loop.watch(self._handle, select.EPOLLOUT, self._flush)
            return
        except OSError:
            self._close()
            return
        self._loop.forget(self._handle)
        if self._ending:
            self._close()

    def _close(self) -> None:
        if self.open:
            self._loop.forget(self._handle)
            os.close(self._handle)
            self._handle = -1
            self._waiting.clear()


class OutputStream:
    """One stream of a container. `handle` is a non-blocking pipe or the master of a terminal."""

    def __init__(self, loop: Loop, handle: int, log: LogStream) -> None:
        self._loop = loop
        self._handle = handle
        self._log = log
        self.listeners: list[OutputListener] = []
        self._credit = _BURST_SECONDS
        self._since = time.monotonic()
        self._watch()

    def _watch(self) -> None:
        if self._handle >= 0:
            self._loop.watch(self._handle, select.EPOLLIN, self._ready, bulk=True)

    def _ready(self, _: int) -> None:
        began = time.monotonic()
        if not self._take():
            # The last writer is gone. The container may still live; there will be nothing more to read.
            self._loop.forget(self._handle)
            return
        now = time.monotonic()
        self._credit = min(_BURST_SECONDS, self._credit + (began - self._since) * _SHARE) - (now - began)
        self._since = now
        if self._credit < 0:
            # It writes faster than it may: the pipe fills, and the container waits for us.
            self._loop.forget(self._handle)
            self._loop.call_later(-self._credit / _SHARE, self._watch)

    def _take(self) -> bool:
        """Read once; False at the end of the stream."""
        try:
            data = os.read(self._handle, _CHUNK)
        except BlockingIOError:
            return True
        except OSError as problem:
            if problem.errno == errno.EIO:  # how a terminal tells that nobody is left
                return False
            raise
        if data:
            self._log.feed(data)
            for listener in self.listeners:
                listener.send(data)
        return bool(data)

    def finish(self) -> None:
        """The container is gone: take what is left in the pipe and close everything."""
        try:
            for _ in range(_MOST_LEFT // _CHUNK):
                data = os.read(self._handle, _CHUNK)
                if not data:
                    break
                self._log.feed(data)
                for listener in self.listeners:
                    listener.send(data)
        except OSError:
            pass
        self._log.end()
        self._loop.forget(self._handle)
        os.close(self._handle)
        self._handle = -1
        for listener in self.listeners:
            listener.end()
