"""What must be done on the bus, however long it does not answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from coterie.base.backoff import Backoff, Policy
from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.functions.bus.protocol import BusError

log = logger("functions.dispatcher")

BUS_RETRY = Policy(first=0.1, factor=2.0, limit=5.0, jitter=0.2)


async def until_done(work: Callable[[], Awaitable[None]], clock: Clock) -> None:
    """`work` may be done twice."""
    backoff = Backoff(BUS_RETRY)
    while True:
        try:
            await work()
            return
        except BusError as problem:
            log.warning("The bus does not answer", error=problem)
            await clock.sleep(backoff.failed())
