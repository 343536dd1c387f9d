"""A stream of the uids of pods that changed, as runtimes give it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class PodEvents:
    """Uids of pods that changed, each at most once in the queue. Begins when it is made, not when it is first asked."""

    def __init__(self, forget: Callable[[PodEvents], None]) -> None:
        self._forget = forget
        self._waiting: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._over = False

    def put(self, uid: str) -> None:
        self._waiting[uid] = None
        self._wake.set()

    def end(self) -> None:
        self._over = True
        self._wake.set()

    def __aiter__(self) -> PodEvents:
        return self

    async def __anext__(self) -> str:
        while not self._waiting:
            if self._over:
                self._forget(self)
                raise StopAsyncIteration
            self._wake.clear()
            try:
                await self._wake.wait()
            except asyncio.CancelledError:
                self._forget(self)
                raise
        uid = next(iter(self._waiting))
        del self._waiting[uid]
        return uid
