"""A body that comes piece by piece from an iterator, at the speed of whoever reads it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Protocol

from coterie.http.messages import Sink
from coterie.http.server import Tasks


class TruncatedBody(Exception):
    """Raised by a source of pieces: the reader must not take what came for all."""


class ByteChunks(Protocol):
    """As asynchronous generators are; one that holds something must let go of it in `aclose` even if never asked."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    def aclose(self) -> Awaitable[None]: ...


class StreamedBody:
    """A Stream. The iterator is closed when it ends, when the reader leaves and when the server stops."""

    def __init__(self, pieces: ByteChunks, tasks: Tasks, name: str) -> None:
        self._pieces = pieces
        self._tasks = tasks
        self._name = name
        self._task: asyncio.Task[None] | None = None
        self._pumping = False

    def opened(self, sink: Sink) -> None:
        self._task = self._tasks.create_task(self._pump(sink), name=self._name)

    def closed(self) -> None:
        if not self._pumping:
            if self._task is not None:
                self._task.cancel()  # it never ran, so it would not close what it was to pump
            self._task = self._tasks.create_task(self._given_up(), name=self._name)
        elif self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    async def _given_up(self) -> None:
        await self._pieces.aclose()

    async def _pump(self, sink: Sink) -> None:
        self._pumping = True
        try:
            async for piece in self._pieces:
                sink.write(piece)
                await sink.drain()
        except ConnectionResetError:
            return  # the reader left
        except TruncatedBody:
            sink.abort()
            return
        finally:
            await self._pieces.aclose()
        sink.close()
