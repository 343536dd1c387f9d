"""What every store of ours does alike; where the log lies is left to `MemoryStore` and `SqliteStore`.

    submit ─▶ ledger decides ─▶ waiting ─(end of the loop's turn)─▶ _persist ─▶ _settled: revision moves, listeners and
                                                                                watchers hear, futures resolve
                                                                            └─▶ _failed: ledger is undone, futures fail

Everything here runs on the event loop. Readers and watchers see only what is settled; the ledger alone knows more.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.kube.store.broadcast import Broadcast, WatcherQueues
from coterie.kube.store.expiry import Expiry
from coterie.kube.store.leases import StoreLease
from coterie.kube.store.ledger import Ledger, PendingWrite
from coterie.kube.store.metrics import StoreMetrics
from coterie.kube.store.protocol import (
    Compacted,
    DeleteOp,
    FutureRevision,
    Listener,
    Op,
    RecordPage,
    Reset,
    StoreClosed,
    StoreError,
    StoreEvent,
    StoreRecord,
)
from coterie.kube.store.rows import StoreRow, event_of, record_of

WATCH_LIMIT = 20_000
"""Events that may wait for one watcher before it is dropped."""
_HISTORY_PAGE = 500
_NOT_OPEN = "the store is not open"

T = TypeVar("T")


class LoggedStore(ABC):
    shared = False
    away = ""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK, watch_limit: int = WATCH_LIMIT) -> None:
        self._clock = clock
        self._ledger = Ledger()
        self._revision = 0
        self._compacted = 0
        self._refusal = _NOT_OPEN
        """Why nothing can be asked of the store; empty while it is open."""
        self._waiting: list[PendingWrite] = []
        self._unsettled: deque[PendingWrite] = deque()
        self._flush_due = False
        self._broadcast = Broadcast()
        self._mailboxes = WatcherQueues(watch_limit)
        self._unplug: Callable[[], None] | None = None
        self._compacting = asyncio.Lock()
        self._expiry = Expiry(self._ledger.leases, clock, self._end_lease)
        self._opened = False
        self.metrics = StoreMetrics()
        self._loop: asyncio.AbstractEventLoop

    # Where the log lies: for each kind of store.

    @abstractmethod
    async def _start(self) -> None:
        """Open the log and restore the ledger from it."""

    @abstractmethod
    async def _stop(self) -> None:
        """Return when every write handed to `_persist` is settled and the log is released."""

    @abstractmethod
    def _persist(self, writes: list[PendingWrite]) -> None:
        """Make the writes durable, together or not at all, and answer `_settled` or `_failed` in the same order."""

    @abstractmethod
    async def _load(self, key: str, revision: int) -> StoreRow | None:
        """The newest row of the key that is not newer than `revision`."""

    @abstractmethod
    async def _load_page(self, prefix: str, revision: int, after: str, limit: int) -> list[StoreRow]:
        """As `scan`, `limit` rows at most (0: all)."""

    @abstractmethod
    async def _load_history(self, prefix: str, after: int, upto: int, limit: int) -> list[StoreRow]:
        """The first `limit` rows with after < revision <= upto, by revision."""

    @abstractmethod
    async def _mark_compacted(self, revision: int) -> None:
        """Remember the mark. Only then may rows be dropped."""

    @abstractmethod
    async def _drop_superseded(self, revision: int) -> None: ...

    def sizes(self) -> Mapping[str, int]:
        """Bytes on disk by part; may read directories, so not on the event loop."""
        return {}

    # Life.

    @property
    def revision(self) -> int:
        return self._revision

    @property
    def compacted(self) -> int:
        return self._compacted

    async def open(self) -> None:
        if self._opened or self._refusal != _NOT_OPEN:
            raise StoreError("a store object is opened only once")
        self._loop = asyncio.get_running_loop()
        await self._start()
        self._opened = True
        self._refusal = ""
        self._expiry.arm()

    async def close(self) -> None:
        if not self._opened:
            return
        self._opened = False
        self._refusal = "the store is closed"
        await self._expiry.close()
        self._flush()
        await self._stop()
        self._mailboxes.end(StoreClosed(self._refusal))

    def _check_open(self) -> None:
        if self._refusal:
            raise StoreClosed(self._refusal)

    # Writing.

    def submit(self, ops: Sequence[Op]) -> asyncio.Future[list[int]]:
        if self._refusal:
            raise StoreClosed(self._refusal)
        return self._enqueue(self._ledger.decide(ops))

    async def commit(self, ops: Sequence[Op]) -> list[int]:
        return await self.submit(ops)

    def _enqueue(self, write: PendingWrite) -> asyncio.Future[list[int]]:
        write.future = future = self._loop.create_future()
        self._unsettled.append(write)
        self._waiting.append(write)
        if not self._flush_due:
            # Not at once: what else is submitted in this turn of the loop shares the transaction.
            self._flush_due = True
            self._loop.call_soon(self._flush)
        return future

    def _flush(self) -> None:
        self._flush_due = False
        if self._waiting:
            writes, self._waiting = self._waiting, []
            self._persist(writes)

    def _settled(self, count: int) -> None:
        """The `count` oldest unsettled writes are durable."""
        writes = [self._unsettled.popleft() for _ in range(count)]
        rows = [row for write in writes for row in write.rows]
        self.metrics.transactions += 1
        self.metrics.rows += len(rows)
        if rows:
            self._revision = rows[-1].revision
        try:
            if rows and self._broadcast:
                self._broadcast.publish([event_of(row) for row in rows])
        finally:  # a listener's fault goes to the loop's handler; the writes are durable all the same
            for write in writes:
                if not write.future.done():  # its owner may have gone away
                    write.future.set_result([row.revision for row in write.rows])

    def _failed(self, reason: str, final: bool) -> None:
        """The oldest unsettled writes did not reach the disk, so all that were decided after them fall with them."""
        self.metrics.failures += 1
        writes = list(self._unsettled)
        self._unsettled.clear()
        self._waiting.clear()
        self._ledger.undo(writes, self._revision)
        if final and not self._refusal:
            self._refusal = reason
            self._mailboxes.end(StoreClosed(reason))
        for write in writes:
            if not write.future.done():
                write.future.set_exception(StoreClosed(reason) if final else StoreError(reason))

    # Reading.

    async def get(self, key: str, revision: int = 0) -> StoreRecord | None:
        _, row = await self._snapshot(revision, lambda at: self._load(key, at))
        return None if row is None or row.deleted else record_of(row)

    async def scan(self, prefix: str, *, revision: int = 0, after: str = "", limit: int = 0) -> RecordPage:
        wanted = limit + 1 if limit else 0
        at, rows = await self._snapshot(revision, lambda at: self._load_page(prefix, at, after, wanted))
        more = bool(limit) and len(rows) > limit
        return RecordPage(at, [record_of(row) for row in (rows[:limit] if more else rows)], more)

    async def _snapshot(self, revision: int, load: Callable[[int], Awaitable[T]]) -> tuple[int, T]:
        """Read as of `revision`. Compaction may run meanwhile: its mark moves before the first row goes, so a read is
        whole if the mark is still not above it afterwards; a read of "now" is simply done again.
        """
        while True:
            self._check_open()
            at = revision or self._revision
            if at > self._revision:
                raise FutureRevision(at, self._revision)
            if at < self._compacted:
                raise Compacted(at, self._compacted)
            try:
                found = await load(at)
            except StoreError:
                if at >= self._compacted:
                    raise
            else:
                if at >= self._compacted:
                    return at, found
            if revision:
                raise Compacted(at, self._compacted)

    # Following.

    async def current(self) -> int:
        self._check_open()
        return self._revision

    async def reached(self, revision: int) -> None:
        """Nobody else writes: what is newer than the newest will not come by waiting."""
        self._check_open()
        if revision > self._revision:
            raise FutureRevision(revision, self._revision)

    def subscribe(self, listener: Listener, reset: Reset | None = None) -> Callable[[], None]:
        """`reset` is never called: nobody else writes, so nothing is missed."""
        return self._broadcast.subscribe(listener)

    async def replay(self, prefix: str, after: int, upto: int) -> AsyncGenerator[Sequence[StoreEvent], None]:
        if upto > self._revision:
            raise FutureRevision(upto, self._revision)
        cursor = after
        while cursor < upto:
            events, cursor = await self._replay(prefix, cursor, upto)
            if events:
                yield events

    async def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[Sequence[StoreEvent], None]:
        self._check_open()
        if after_revision > self._revision:
            raise FutureRevision(after_revision, self._revision)
        cursor = after_revision
        # A long history is read page by page without a mailbox, which it would only fill: the reader sets the pace.
        while self._revision - cursor > _HISTORY_PAGE:
            events, cursor = await self._replay(prefix, cursor, self._revision)
            if events:
                yield events
        # The last stretch: from here on the mailbox gets all that is newer than `start`, the log has all up to it.
        if self._unplug is None:
            self._unplug = self._broadcast.subscribe(self._mailboxes.deliver)
        box = self._mailboxes.open(prefix)
        start = self._revision
        try:
            while cursor < start:
                events, cursor = await self._replay(prefix, cursor, start)
                if events:
                    yield events
            while True:
                yield await box.take()
        finally:
            self._mailboxes.close(box)
            if not self._mailboxes and self._unplug is not None:
                self._unplug()
                self._unplug = None

    async def _replay(self, prefix: str, cursor: int, upto: int) -> tuple[list[StoreEvent], int]:
        """Events after `cursor`, and how far they reach."""
        self._check_open()
        if cursor < self._compacted:
            raise Compacted(cursor, self._compacted)
        try:
            rows = await self._load_history(prefix, cursor, upto, _HISTORY_PAGE)
        except StoreError:
            if cursor >= self._compacted:
                raise
            rows = []
        if cursor < self._compacted:
            raise Compacted(cursor, self._compacted)
        reached = rows[-1].revision if len(rows) == _HISTORY_PAGE else upto
        return [event_of(row) for row in rows], reached

    # Forgetting.

    async def compact(self, revision: int) -> None:
        self._check_open()
        if revision > self._revision:
            raise FutureRevision(revision, self._revision)
        async with self._compacting:
            # The same mark again is not idle: dropping may have been cut short by a full disk or a crash.
            if revision <= 0 or revision < self._compacted:
                return
            began = self._clock.monotonic()
            await self._mark_compacted(revision)
            self._compacted = revision
            await self._drop_superseded(revision)
            self.metrics.compacted(self._clock.monotonic() - began)

    # Leases.

    async def grant(self, ttl: float) -> int:
        self._check_open()
        if not 0 < ttl < float("inf"):
            raise StoreError(f"a lease needs a positive ttl, not {ttl}")
        lease = self._ledger.leases.new(ttl, self._clock.monotonic())
        await self._enqueue(self._ledger.grant(lease))
        self._expiry.arm()
        return lease.id

    async def keep_alive(self, lease: int) -> float:
        self._check_open()
        return self._ledger.leases.keep_alive(lease, self._clock.monotonic())

    async def revoke(self, lease: int) -> None:
        self._check_open()
        await self._end_lease(self._ledger.leases.find(lease))

    def _end_lease(self, lease: StoreLease) -> asyncio.Future[list[int]]:
        return self._enqueue(self._ledger.end(lease, [DeleteOp(key) for key in sorted(lease.keys)]))
