"""After a burst of work a node is as small as before it.

Python's collector is seldom let loose on a node's caches (modes.py), and the C library keeps what was used once. Tidying up
takes tens of milliseconds in which nobody is answered, so it is done when the work is over, or when it does not end.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.lazy_import import lazy_import

if TYPE_CHECKING:
    from coterie.base import memory
else:
    # A node that never worked needs no `ctypes`.
    memory = lazy_import("coterie.base.memory")

CHECK_SECONDS = 10.0
CALM = 0.2
"""Of one core."""
WORTH = 2.0
"""Seconds of work after which there may be something to tidy up."""
LONGEST = 120.0


def due(worked: float, lately: float, since: float) -> bool:
    """`worked` are the seconds of processor time since the last tidying, which was `since` seconds ago; `lately` those of the
    last look."""
    return worked >= WORTH and (lately <= CALM * CHECK_SECONDS or since >= LONGEST)


def tidy_up() -> None:
    gc.collect()
    memory.trim()


class Housekeeper:
    """A Runnable."""

    name = "housekeeper"

    def __init__(
        self,
        clock: Clock = SYSTEM_CLOCK,
        *,
        worked: Callable[[], float] = time.process_time,
        tidy: Callable[[], None] = tidy_up,
    ) -> None:
        self.ready = asyncio.Event()
        self._clock = clock
        self._worked = worked
        self._tidy = tidy

    async def run(self) -> None:
        self.ready.set()
        before = self._worked()
        last = before - WORTH  # the start was work, too
        since = self._clock.monotonic()
        while True:
            await self._clock.sleep(CHECK_SECONDS)
            now = self._worked()
            if due(now - last, now - before, self._clock.monotonic() - since):
                self._tidy()
                last, since = now, self._clock.monotonic()
            before = now
