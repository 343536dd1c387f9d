"""The face without `await`: each operation of `resources.py` run by a loop in a thread of its own.

class Jobs(Face):
    get = blocking(groups.Jobs.get)          # (job_id: str) -> Job, for type checkers too
    watch = iterating(groups.Jobs.watch)     # a plain iterator
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_CLOSE_TIMEOUT = 5.0


class Background:
    """A loop in a thread, until `close`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_serve, args=(self._loop,), name="coterie-sdk", daemon=True)
        self._thread.start()

    def wait(self, doing: Coroutine[Any, Any, T]) -> T:
        """What it gives or raises. Ctrl-C ends it."""
        future = asyncio.run_coroutine_threadsafe(doing, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_TIMEOUT)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


class SyncResourceClient:
    def __init__(self, background: Background, under: Any) -> None:
        self._background = background
        self._under = under


class blocking(Generic[P, T]):
    def __init__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, face: SyncResourceClient | None, owner: type) -> Callable[P, T]:
        method = self._method

        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            assert face is not None
            return face._background.wait(method(face._under, *args, **kwargs))

        call.__name__, call.__doc__ = method.__name__, method.__doc__
        return call


class iterating(Generic[P, T]):
    def __init__(self, method: Callable[Concatenate[Any, P], AsyncIterator[T]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, face: SyncResourceClient | None, owner: type) -> Callable[P, Iterator[T]]:
        method = self._method

        def call(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
            assert face is not None
            return _each(face._background, method(face._under, *args, **kwargs))

        call.__name__, call.__doc__ = method.__name__, method.__doc__
        return call


def _each(background: Background, pieces: Any) -> Iterator[T]:
    """Ends the stream when the caller looks away."""
    try:
        while True:
            try:
                yield background.wait(anext(pieces))
            except StopAsyncIteration:
                return
    finally:
        background.wait(pieces.aclose())
