"""Requests before controllers: while the loop has more to do than it can, controllers pause between two keys.

Who sent a request waits for its answer; nobody waits for a controller. A pause grows while the loop's thread never sleeps and many requests
come by sockets, shrinks as soon as one of both ends, and is never longer than `LONGEST`: each worker goes on, if slowly.

    Controller._work ──before a key──> RequestPriority.pause()     HttpServer ──counts──> REQUESTS
                                              │
                                   /proc/thread-self/schedstat: time on the processor, and time in which it waited for it

Time here is the machine's, whatever clock a controller has: it is measured how busy the machine is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from coterie.http.server import REQUESTS

LONGEST = 0.05
"""Seconds between two keys of one worker at most."""
_SHORTEST = 0.001
_WINDOW = 0.05
"""Seconds for which a measurement holds."""
_MANY = 500.0
"""Requests in a second. Parts of a cluster that tell how they are stay below it, as do jobs that are carried out."""
_BUSY = 0.5
"""Share of the time in which the thread ran or was kept waiting by others."""
_SCHEDULER = Path("/proc/thread-self/schedstat")


def thread_demand() -> float | None:
    """Seconds for which this thread ran or wanted to run so far; None where the system does not tell."""
    try:
        ran, waited, _ = _SCHEDULER.read_text().split()
    except (OSError, ValueError):
        return None
    return (int(ran) + int(waited)) / 1e9


class RequestPriority:
    """For all controllers of a process: they share its loop."""

    def __init__(
        self,
        requests: Callable[[], int] = lambda: REQUESTS.served,
        demand: Callable[[], float | None] = thread_demand,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._requests = requests
        self._demand = demand
        self._now = now
        self._pause = 0.0
        self._at = now()
        self._seen: tuple[int, float | None] | None = None

    def pause(self) -> float:
        """Seconds for which a worker waits before its next key; mostly 0."""
        now = self._now()
        if (passed := now - self._at) >= _WINDOW:
            self._measure(now, passed)
        return self._pause

    def _measure(self, now: float, passed: float) -> None:
        before, self._at = self._seen, now
        requests = self._requests()
        if before is not None and requests - before[0] < _MANY * passed:
            # Nearly always so: the system is not asked.
            self._seen, self._pause = (requests, None), self._less()
            return
        self._seen = requests, (demand := self._demand())
        if before is None or before[1] is None or demand is None or demand - before[1] < _BUSY * passed:
            self._pause = self._less()
        else:
            self._pause = min(LONGEST, max(_SHORTEST, 2 * self._pause))

    def _less(self) -> float:
        half = self._pause / 2
        return half if half >= _SHORTEST else 0.0


REQUEST_PRIORITY = RequestPriority()
