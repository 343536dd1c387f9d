"""Blocking work in a thread of its own, step by step, for asyncio.

Arrow's readers and one database driver block. Each stream gets one thread; a step makes one batch, the next step begins
while the caller looks at the batch (so two batches are in memory, not more). When the caller leaves early, `interrupt`
makes a step that waits for a network end at once.

`LoopFile` is the other way around: a file for blocking code whose bytes come from a coroutine in the loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

import pyarrow as pa

from coterie.base.tasks import retrieve_exception
from coterie.kuscia.sources.protocol import SourceError

T = TypeVar("T")


class WorkerThread:
    """One thread; what is asked of it happens in order."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    def start(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def run(self, work: Callable[[], T]) -> T:
        return await self.start(work)

    async def finish(self, work: Callable[[], object] = lambda: None) -> None:
        """The last work, done also when whoever waits for it is cancelled."""
        last = self.start(work)
        self._pool.shutdown(wait=False)
        await asyncio.shield(last)


@asynccontextmanager
async def stepping(
    make: Callable[[], Iterator[pa.RecordBatch]], interrupt: Callable[[], None] = lambda: None
) -> AsyncIterator[AsyncIterator[pa.RecordBatch]]:
    """Errors of opening are raised on entering: the first batch is made there."""
    lane = WorkerThread("source")
    steps: list[Iterator[pa.RecordBatch]] = []

    def first() -> pa.RecordBatch | None:
        steps.append(make())
        return next(steps[0], None)

    def following() -> pa.RecordBatch | None:
        return next(steps[0], None)

    def close() -> None:
        for each in steps:
            getattr(each, "close", lambda: None)()

    async def batches(ahead: pa.RecordBatch | None) -> AsyncIterator[pa.RecordBatch]:
        while ahead is not None:
            coming = lane.start(following)
            # Whoever leaves early never asks for it; its end is then nobody's news.
            coming.add_done_callback(retrieve_exception)
            yield ahead
            ahead = await coming

    try:
        begun = await lane.run(first)
        stream = batches(begun)
        try:
            yield stream
        finally:
            interrupt()
            await stream.aclose()  # type: ignore[attr-defined]
    finally:
        interrupt()
        await lane.finish(close)


class PulledFile:
    """A file that Arrow reads in order; `pull` gives some bytes at a time, at the end none."""

    def __init__(self, pull: Callable[[], bytes]) -> None:
        self._pull = pull
        self._rest = memoryview(b"")
        self._position = 0
        self._ended = False  # whoever pulls is not asked again after the end
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        pieces, wanted = [], size if size >= 0 else 1 << 62
        while wanted and not self._ended:
            if not self._rest:
                self._rest = memoryview(self._pull())
                self._ended = not self._rest
            piece = self._rest[:wanted]
            pieces.append(piece)
            self._rest = self._rest[len(piece) :]
            wanted -= len(piece)
        out = b"".join(pieces)
        self._position += len(out)
        return out


class LoopFile(PulledFile):
    """Its bytes come from a coroutine in the loop."""

    def __init__(self, pull: Callable[[], Awaitable[bytes]]) -> None:
        super().__init__(self._from_loop)
        self._loop = asyncio.get_running_loop()
        self._coroutine = pull
        self._pending: concurrent.futures.Future[bytes] | None = None

    def interrupt(self) -> None:
        self.closed = True
        if self._pending is not None:
            self._pending.cancel()

    def _from_loop(self) -> bytes:
        if self.closed:
            raise SourceError("reading was stopped")
        self._pending = asyncio.run_coroutine_threadsafe(self._awaited(), self._loop)
        try:
            return self._pending.result()
        except concurrent.futures.CancelledError:
            raise SourceError("reading was stopped") from None

    async def _awaited(self) -> bytes:
        return await self._coroutine()
