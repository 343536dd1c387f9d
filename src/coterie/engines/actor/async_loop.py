"""Asynchronous functions run on one event loop, in a thread of its own that starts with the first of them: asyncio takes time to import."""

from __future__ import annotations

import importlib
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable
    from typing import Any

_CANCEL_SECONDS = 2.0


class CallTimeout(Exception):
    """The call has not ended at its deadline and was cancelled."""


class LoopStuck(Exception):
    """The call has not ended at its deadline, and cancelling it did not help."""


class AsyncLoop:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asyncio: Any = None
        self._loop: Any = None

    def run(self, awaitable: Awaitable[Any], seconds: float | None) -> Any:
        """From any other thread. The context of the caller is that of the task."""
        with self._lock:
            if self._loop is None:
                self._start()
        ended = threading.Event()
        future = self._asyncio.run_coroutine_threadsafe(_watched(awaitable, ended), self._loop)
        try:
            return future.result(seconds)
        except TimeoutError:
            if future.done():
                raise  # one of the user's
        future.cancel()
        if not ended.wait(_CANCEL_SECONDS):
            raise LoopStuck
        raise CallTimeout

    def _start(self) -> None:
        self._asyncio = importlib.import_module("asyncio")
        self._loop = self._asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="async-calls", daemon=True).start()


async def _watched(awaitable: Awaitable[Any], ended: threading.Event) -> Any:
    try:
        return await awaitable
    finally:
        ended.set()
