"""Ends leases when their time is over.

One task sleeps until the nearest deadline. A lease that is kept alive only makes it wake in vain and sleep again; only
a new lease with a nearer deadline replaces it. If the end of a lease cannot be written (the disk is full), the lease is
still there and is tried again a little later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from coterie.base.clock import Clock
from coterie.base.tasks import TaskOwner
from coterie.kube.store.leases import StoreLease, StoreLeases
from coterie.kube.store.protocol import StoreClosed

_RETRY_SECONDS = 1.0


class Expiry:
    def __init__(
        self, leases: StoreLeases, clock: Clock, end: Callable[[StoreLease], asyncio.Future[list[int]]]
    ) -> None:
        self._leases = leases
        self._clock = clock
        self._end = end
        self._tasks = TaskOwner("store")
        self._alarm: asyncio.Task[Any] | None = None
        self._rings_at = 0.0
        self._closed = False

    def arm(self, not_before: float = 0.0) -> None:
        """Wake at the nearest deadline; to be called when a lease was added."""
        deadline = self._leases.next_deadline()
        if deadline is None or self._closed:
            return
        rings_at = max(deadline, not_before)
        if self._alarm is not None:
            if self._rings_at <= rings_at:
                return
            self._alarm.cancel()
        self._rings_at = rings_at
        self._alarm = self._tasks.start("lease-expiry", self._on_alarm())

    async def close(self) -> None:
        self._closed = True
        await self._tasks.close()

    async def _on_alarm(self) -> None:
        await self._clock.sleep(self._rings_at - self._clock.monotonic())
        self._alarm = None
        for lease in self._leases.due(self._clock.monotonic()):
            self._end(lease).add_done_callback(self._ended)
        self.arm()

    def _ended(self, written: asyncio.Future[list[int]]) -> None:
        error = written.exception()
        if error is not None and not isinstance(error, StoreClosed):
            self.arm(self._clock.monotonic() + _RETRY_SECONDS)
