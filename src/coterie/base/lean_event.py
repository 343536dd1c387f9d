"""An event that weighs little until somebody waits for it.

`asyncio.Event` has a queue of 600 bytes for its waiters from the beginning. A control plane has hundreds of events, most of
which nobody waits for, and the others have one waiter.
"""

from __future__ import annotations

import asyncio
from typing import Literal


class LeanEvent(asyncio.Event):
    """Behaves as its base class does."""

    def __init__(self) -> None:
        self._value = False
        self._waiters: list[asyncio.Future[Literal[True]]] | tuple[()] = ()  # type: ignore[assignment]

    async def wait(self) -> Literal[True]:
        if self._value:
            return True
        waiter: asyncio.Future[Literal[True]] = asyncio.get_running_loop().create_future()
        waiters = self._waiters
        if isinstance(waiters, list):
            waiters.append(waiter)
        else:
            self._waiters = waiters = [waiter]
        try:
            await waiter
            return True
        finally:
            waiters.remove(waiter)
            if not waiters and self._waiters is waiters:
                self._waiters = ()
