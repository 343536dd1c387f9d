"""The one thread that writes: group commit.

The loop hands over what was submitted in one of its turns; whatever has gathered while the last fsync ran goes into the
next transaction together. Each transaction is answered once, with one wake-up of the loop however many writes it had.

A transaction of rows alone is a single INSERT with many rows, outside of BEGIN and COMMIT. That is not only shorter:
sqlite3 lets go of the interpreter's lock for each step of a statement and must get it back from a busy event loop, so
what counts is the number of steps, not of rows.

When a transaction fails, all writes that were decided before the loop hears of it are based on what is not there. They
carry the generation of the failed one and are passed over; the loop has failed them by itself and goes on with the next
generation.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from itertools import chain
from queue import Empty, SimpleQueue
from typing import Any

from coterie.base.log import logger
from coterie.base.measurements import Histogram
from coterie.base.sqlite_database import explain_error
from coterie.kube.store.blobs import Blobs
from coterie.kube.store.ledger import PendingWrite
from coterie.kube.store.protocol import StoreClosed, StoreError
from coterie.kube.store.rows import StoreRow
from coterie.kube.store.sqlite_file import StoreFile

_ROWS_PER_STATEMENT = 256
_WRITES_PER_TRANSACTION = 2048
_NEVER = 1 << 62

_log = logger("store.sqlite")

Job = Callable[[sqlite3.Connection], Any]


class _Batch:
    __slots__ = ("generation", "writes")

    def __init__(self, generation: int, writes: list[PendingWrite]) -> None:
        self.generation = generation
        self.writes = writes


class _Task:
    __slots__ = ("future", "job")

    def __init__(self, job: Job, future: asyncio.Future[Any]) -> None:
        self.job = job
        self.future = future


class SqliteWriter:
    def __init__(
        self,
        file: StoreFile,
        blobs: Blobs,
        threshold: int,
        *,
        settled: Callable[[int], None],
        failed: Callable[[str, bool], None],
        durations: Histogram | None = None,
    ) -> None:
        """`settled` (how many writes) and `failed` (why, for good or not) are called on the event loop. `durations`: of
        transactions, written by the thread alone."""
        self._loop = asyncio.get_running_loop()
        self._settled = settled
        self._failed = failed
        self._durations = durations or Histogram()
        self._file = file
        self._connection = file.connection
        self._blobs = blobs
        self._threshold = threshold
        self._queue: SimpleQueue[_Batch | _Task | None] = SimpleQueue()
        self._held: list[_Batch | _Task | None] = []
        """What was taken from the queue and turned out not to belong to the transaction."""
        self._generation = 0
        self._failed_generation = -1
        self._final = ""
        """Why nothing is written any more."""
        self._stopping = False
        self._asked: set[asyncio.Future[Any]] = set()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        # A daemon: what it has acknowledged is on disk, so it need not hold up a program that forgot to close.
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    # On the event loop.

    def write(self, writes: list[PendingWrite]) -> None:
        self._queue.put(_Batch(self._generation, writes))

    def next_generation(self) -> None:
        """To be called when a failure was heard and undone: what comes now is based on the disk again."""
        self._generation += 1

    async def run(self, job: Job) -> Any:
        """Run `job` in a transaction of its own, between those of the writes."""
        if self._stopping:
            raise StoreClosed("the store is closed")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._asked.add(future)
        future.add_done_callback(self._asked.discard)
        self._queue.put(_Task(job, future))
        return await future

    async def stop(self) -> None:
        """Finish what was handed over, close the file."""
        self._stopping = True
        self._queue.put(None)
        await self._ended
        self._thread.join()

    # On the thread.

    def _run(self) -> None:
        finished = False
        try:
            self._work()
            finished = True
        finally:
            # Also if a fault of ours ends the thread: nobody may wait forever for an answer.
            self._file.close()
            if not finished:
                self._call_in_loop(self._failed, "the store's writer failed; see the log", True)
            self._call_in_loop(self._end)

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
        self._stopping = True
        for future in self._asked:
            _answer(future, None, StoreClosed("the store is closed"))

    def _work(self) -> None:
        while True:
            item = self._held.pop() if self._held else self._queue.get()
            if item is None:
                return
            if isinstance(item, _Task):
                self._do(item)
            elif item.generation > self._failed_generation:
                self._write(item.generation, self._gather(item))

    def _gather(self, first: _Batch) -> list[PendingWrite]:
        writes = list(first.writes)
        while len(writes) < _WRITES_PER_TRANSACTION:
            try:
                item = self._queue.get_nowait()
            except Empty:
                break
            if not isinstance(item, _Batch) or item.generation != first.generation:
                self._held.append(item)
                break
            writes += item.writes
        return writes

    def _write(self, generation: int, writes: list[PendingWrite]) -> None:
        began = time.monotonic()
        try:
            self._transact(writes)
        except (sqlite3.Error, OSError) as error:
            reason, final = self._roll_back(error)
            self._failed_generation = _NEVER if final else generation
            _log.error("Writes failed", reason=reason, writes=len(writes), final=final)
            self._call_in_loop(self._failed, reason, final)
        else:
            self._durations.add(time.monotonic() - began)
            self._call_in_loop(self._settled, len(writes))

    def _transact(self, writes: list[PendingWrite]) -> None:
        rows = [
            row if row.value is None or len(row.value) <= self._threshold else self._put_aside(row)
            for write in writes
            for row in write.rows
        ]
        leases = [write for write in writes if write.granted is not None or write.ended is not None]
        execute = self._connection.execute
        if len(rows) <= _ROWS_PER_STATEMENT and not leases:
            if rows:
                execute(_insert(len(rows)), list(chain.from_iterable(rows)))
            return
        execute("BEGIN IMMEDIATE")
        for write in leases:
            if write.granted is not None:
                execute("INSERT INTO leases (id, ttl) VALUES (?, ?)", (write.granted.id, write.granted.ttl))
            if write.ended is not None:
                execute("DELETE FROM leases WHERE id = ?", (write.ended.id,))
        for at in range(0, len(rows), _ROWS_PER_STATEMENT):
            chunk = rows[at : at + _ROWS_PER_STATEMENT]
            execute(_insert(len(chunk)), list(chain.from_iterable(chunk)))
        execute("COMMIT")

    def _put_aside(self, row: StoreRow) -> StoreRow:
        assert row.value is not None
        return row._replace(value=None, digest=self._blobs.put(row.value))

    def _do(self, task: _Task) -> None:
        result: Any = None
        failure: StoreError | None = StoreClosed(self._final) if self._final else None
        if failure is None:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                result = task.job(self._connection)
                self._connection.execute("COMMIT")
            except (sqlite3.Error, OSError) as error:
                reason, final = self._roll_back(error)
                failure = StoreClosed(reason) if final else StoreError(reason)
                _log.error("Store maintenance failed", reason=reason, final=final)
                if final:
                    self._failed_generation = _NEVER
                    self._call_in_loop(self._failed, reason, True)
        self._call_in_loop(_answer, task.future, result, failure)

    def _roll_back(self, error: sqlite3.Error | OSError) -> tuple[str, bool]:
        reason, final = explain_error(error)
        try:
            self._connection.rollback()
        except sqlite3.Error:
            final = True
        if final:
            self._final = reason
        return reason, final

    def _call_in_loop(self, callback: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            _log.warning("Event loop ended before its store was closed")


def _answer(future: asyncio.Future[Any], result: Any, failure: StoreError | None) -> None:
    if future.done():
        return
    if failure is not None:
        future.set_exception(failure)
    else:
        future.set_result(result)


@lru_cache(maxsize=_ROWS_PER_STATEMENT)
def _insert(rows: int) -> str:
    return "INSERT INTO log VALUES " + ",".join(["(?,?,?,?,?,?,?,?)"] * rows)
