"""A loop for one thread: handles that become ready, timers, children that end. Nothing else, to stay small."""

from __future__ import annotations

import heapq
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


BULK_SECONDS = 0.01
"""Most of one round that is spent on the output of containers."""


class Loop:
    def __init__(self) -> None:
        self._poll = select.epoll()
        self._ready: dict[int, Callable[[int], None]] = {}
        self._bulk: set[int] = set()
        self._last_bulk = -1
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.on_child: Callable[[], None] | None = None
        self.on_terminate: Callable[[], None] | None = None
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wake = reading
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        self.watch(reading, select.EPOLLIN, self._signalled)

    def watch(self, handle: int, events: int, call: Callable[[int], None], *, bulk: bool = False) -> None:
        """`bulk`: what comes here may be endless, and comes after everything else."""
        if bulk:
            self._bulk.add(handle)
        if handle in self._ready:
            self._poll.modify(handle, events)
        else:
            self._poll.register(handle, events)
        self._ready[handle] = call

    def forget(self, handle: int) -> None:
        self._bulk.discard(handle)
        if self._ready.pop(handle, None) is not None:
            self._poll.unregister(handle)

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._timers, (time.monotonic() + seconds, self._count, call))

    def _signalled(self, _: int) -> None:
        numbers = os.read(self._wake, 4096)
        if signal.SIGTERM in numbers and self.on_terminate is not None:
            self.on_terminate()
        if self.on_child is not None:
            self.on_child()

    def step(self) -> None:
        wait = -1.0 if not self._timers else max(0.0, self._timers[0][0] - time.monotonic())
        bulk = []
        for handle, events in self._poll.poll(wait):
            if handle in self._bulk:
                bulk.append((handle, events))
            else:
                self._call(handle, events)
        if bulk:
            self._take_turns(bulk)
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _safely(heapq.heappop(self._timers)[2])

    def _call(self, handle: int, events: int) -> None:
        call = self._ready.get(handle)
        if call is not None:
            _safely(lambda: call(events))

    def _take_turns(self, ready: list[tuple[int, int]]) -> None:
        """Output that waits is taken for a short while, beginning where the last round stopped; the rest waits for the
        next round, after whatever is more urgent."""
        end = time.monotonic() + BULK_SECONDS
        for handle, events in sorted(ready, key=lambda each: (each[0] <= self._last_bulk, each[0])):
            self._call(handle, events)
            self._last_bulk = handle
            if time.monotonic() >= end:
                return


def _safely(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:  # noqa: BLE001 - one container's trouble must not cost the others their parent
        sys.excepthook(*sys.exc_info())  # `traceback` would be a tenth of this process
