"""How late the event loop calls what is due: the first sign of work that blocks it.

Measured four times a second, from the first scrape on and as long as somebody scrapes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from coterie.base.exposition import Family
from coterie.base.measurements import Histogram

_PERIOD = 0.25
_WANTED_SECONDS = 300.0
"""After a scrape."""
_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class LoopLagSource:
    """A source of metrics."""

    name = "loop"

    def __init__(self) -> None:
        self._lags = Histogram(_BOUNDS)
        self._longest = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._until = 0.0

    async def families(self) -> Sequence[Family]:
        loop = asyncio.get_running_loop()
        self._until = loop.time() + _WANTED_SECONDS
        if self._timer is None:
            self._arm(loop)
        longest, self._longest = self._longest, 0.0
        return [
            Family(
                "coterie_loop_lag_seconds",
                "How late the event loop called what was due.",
                "histogram",
                self._lags.rows(),
            ),
            Family(
                "coterie_loop_lag_max_seconds",
                "The longest delay of the event loop since the last scrape.",
                "gauge",
                [("", longest)],
            ),
        ]

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + _PERIOD
        self._timer = loop.call_at(due, self._tick, loop, due)

    def _tick(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        now = loop.time()
        lag = max(0.0, now - due)
        self._lags.add(lag)
        self._longest = max(self._longest, lag)
        self._timer = None
        if now < self._until:
            self._arm(loop)
