"""What every store on a shared back-end does alike; the back-end's own words are left to its kind.

    submit ─▶ back-end decides ─▶ answer ─┐
                                          ├─▶ the future resolves when both are there
    back-end's log ─▶ follower ─▶ listeners ─┘   (ours and everybody's writes, in order)

One *session* is everything that is connected. It ends as a whole when any part of it fails, and a task makes the next
one; until then whatever is asked is refused with the reason (`StoreUnavailable`), and a write that had been sent and not
been answered is `Unsettled`. Everything here runs on the event loop.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner, retrieve_exception
from coterie.kube.store.broadcast import Broadcast, WatcherQueues
from coterie.kube.store.core import WATCH_LIMIT
from coterie.kube.store.metrics import StoreMetrics
from coterie.kube.store.protocol import (
    Compacted,
    FutureRevision,
    Listener,
    Op,
    PutOp,
    RecordPage,
    Reset,
    StoreClosed,
    StoreError,
    StoreEvent,
    StoreRecord,
    StoreUnavailable,
    Unsettled,
)
from coterie.kube.store.rows import check_key

_NOT_OPEN = "the store is not open"
_RECONNECT_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0)
_NOTIFIED_WITHIN = 10.0
"""A write whose acknowledgement came but that our follower does not hear of for so long is told as unsettled."""
_LONG_HISTORY = 2000
_log = logger("store.shared")


@dataclass(slots=True, eq=False)
class SharedWrite:
    """One `submit` on its way."""

    ops: Sequence[Op]
    future: asyncio.Future[list[int]]


class JoinedQuestion:
    """Many ask the same at once. Who comes while the question is being asked shares the next one: the answer that is on
    its way may be older than he is."""

    def __init__(self, ask: Callable[[], Awaitable[int]], tasks: TaskOwner) -> None:
        self._ask = ask
        self._tasks = tasks
        self._next: asyncio.Future[int] | None = None
        self._asking = False

    async def answer(self) -> int:
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
            self._next.add_done_callback(retrieve_exception)
            if not self._asking:
                self._asking = True
                self._tasks.start("question", self._run(), vital=False)
        return await asyncio.shield(self._next)

    async def _run(self) -> None:
        try:
            while self._next is not None:
                asked, self._next = self._next, None
                try:
                    found = await self._ask()
                except StoreError as problem:
                    asked.set_exception(problem)
                except asyncio.CancelledError:
                    asked.set_exception(StoreClosed("the store is closed"))
                    raise
                else:
                    asked.set_result(found)
        finally:
            self._asking = False
            if self._next is not None:
                self._next.set_exception(StoreClosed("the store is closed"))
                self._next = None


class SharedStore(ABC):
    shared = True

    def __init__(self, label: str, *, clock: Clock = SYSTEM_CLOCK, watch_limit: int = WATCH_LIMIT) -> None:
        """`label`: the back-end as it may be shown to anybody, without passwords."""
        self.label = label
        self.metrics = StoreMetrics()
        self._clock = clock
        self._revision = 0
        self._compacted = 0
        self._refusal = _NOT_OPEN
        self._away = ""
        """Why nothing can be asked of the back-end now; empty while it is there."""
        self._opened = False
        self._broadcast = Broadcast()
        self._resets: dict[object, Reset] = {}
        self._mailboxes = WatcherQueues(watch_limit)
        self._unplug: Callable[[], None] | None = None
        self._tasks = TaskOwner(f"store {label}")
        self._outstanding: set[asyncio.Future[list[int]]] = set()
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        self._give_up: asyncio.TimerHandle | None = None
        self._question = JoinedQuestion(self._ask_current_guarded, self._tasks)
        self._loop: asyncio.AbstractEventLoop

    # For each kind of back-end.

    @abstractmethod
    async def _connect(self) -> None:
        """Make a session, and bring `_revision` to where following starts if this is the first. Raises
        StoreUnavailable, or StoreError where trying again is of no use."""

    @abstractmethod
    async def _disconnect(self) -> None:
        """Give up the session, whatever state it is in; does not wait for an answer."""

    @abstractmethod
    async def _follow(self) -> None:
        """Call `_notify` with what happens, until the session fails (StoreUnavailable)."""

    @abstractmethod
    def _send(self, write: SharedWrite) -> None:
        """Bring the write to the back-end; ends in `_written` or in an exception in its future."""

    @abstractmethod
    async def _ask_current(self) -> int: ...

    @abstractmethod
    async def _load(self, key: str, revision: int) -> tuple[int, StoreRecord | None]:
        """The key as of `revision` (0: now), and of which revision that is."""

    @abstractmethod
    async def _load_page(self, prefix: str, revision: int, after: str, limit: int) -> RecordPage: ...

    @abstractmethod
    def _load_history(self, prefix: str, after: int, upto: int) -> AsyncGenerator[Sequence[StoreEvent], None]: ...

    @abstractmethod
    async def _compact(self, revision: int) -> int:
        """Move the mark unless it is further already, and drop what it allows; returns the mark."""

    @abstractmethod
    async def grant(self, ttl: float) -> int: ...

    @abstractmethod
    async def keep_alive(self, lease: int) -> float: ...

    @abstractmethod
    async def revoke(self, lease: int) -> None: ...

    def sizes(self) -> Mapping[str, int]:
        return {}

    # Life.

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.label})"

    @property
    def revision(self) -> int:
        return self._revision

    @property
    def compacted(self) -> int:
        return self._compacted

    @property
    def away(self) -> str:
        """Why the back-end cannot be asked now; empty while it can."""
        return self._away

    async def open(self) -> None:
        if self._opened or self._refusal != _NOT_OPEN:
            raise StoreError("a store object is opened only once")
        self._loop = asyncio.get_running_loop()
        try:
            await self._connect()
        except BaseException:
            await self._disconnect()
            raise
        self._opened = True
        self._refusal = ""
        self._tasks.start("session", self._keep_session(), endless=True)

    async def close(self) -> None:
        if not self._opened:
            return
        self._opened = False
        self._refusal = "the store is closed"
        if self._outstanding:
            await asyncio.wait(list(self._outstanding), timeout=_NOTIFIED_WITHIN)
        await self._tasks.close()
        await self._disconnect()
        self._fail_waiters(StoreClosed(self._refusal))
        for future in list(self._outstanding):
            if not future.done():
                future.set_exception(Unsettled("the store was closed before the back-end answered"))
        if self._give_up is not None:
            self._give_up.cancel()
        self._mailboxes.end(StoreClosed(self._refusal))

    async def _keep_session(self) -> None:
        while True:
            try:
                await self._follow()
                reason = "the session ended"
            except StoreUnavailable as problem:
                reason = str(problem)
            self._went_away(reason)
            await self._reconnect()

    def _went_away(self, reason: str) -> None:
        if not self._away:
            _log.warning("The store's back-end is away", store=self.label, reason=reason)
        self._away = reason or "the back-end is away"
        if self._give_up is None:
            self._give_up = self._loop.call_later(_NOTIFIED_WITHIN, self._stop_waiting)

    async def _reconnect(self) -> None:
        attempt = 0
        while True:
            await self._disconnect()
            await self._clock.sleep(_RECONNECT_SECONDS[min(attempt, len(_RECONNECT_SECONDS) - 1)])
            attempt += 1
            try:
                await self._connect()
            except StoreError as problem:  # also what trying again may not mend: somebody may mend it
                self._away = str(problem)
                continue
            self._away = ""
            if self._give_up is not None:
                self._give_up.cancel()
                self._give_up = None
            _log.info("The store's back-end is back", store=self.label, attempts=attempt)
            return

    def _check_open(self) -> None:
        if self._refusal:
            raise StoreClosed(self._refusal)

    def _check_there(self) -> None:
        self._check_open()
        if self._away:
            raise StoreUnavailable(self._away)

    # Writing.

    def submit(self, ops: Sequence[Op]) -> asyncio.Future[list[int]]:
        self._check_there()
        for op in ops:
            check_key(op.key)
            if isinstance(op, PutOp) and type(op.value) is not bytes:
                raise TypeError(f"{op.key}: a value is bytes, not {type(op.value).__name__}")
        if not ops:
            return asyncio.ensure_future(self._all_before())
        future: asyncio.Future[list[int]] = self._loop.create_future()
        self._outstanding.add(future)
        future.add_done_callback(self._outstanding.discard)
        self._send(SharedWrite(ops, future))
        return future

    async def commit(self, ops: Sequence[Op]) -> list[int]:
        return await self.submit(ops)

    async def _all_before(self) -> list[int]:
        if self._outstanding:
            await asyncio.wait(list(self._outstanding))
        return []

    def _written(self, write: SharedWrite, revisions: list[int]) -> None:
        """The back-end has acknowledged it; whoever waits goes on when our listeners have heard of it too."""
        self.metrics.rows += len(revisions)
        if max(revisions) <= self._revision:
            if not write.future.done():
                write.future.set_result(revisions)
            return

        def notified(done: asyncio.Future[None]) -> None:
            problem = done.exception()
            if write.future.done():
                return
            if problem is None:
                write.future.set_result(revisions)
            else:
                write.future.set_exception(
                    Unsettled(f"written as revision {max(revisions)}, but this server has not heard of it: {problem}")
                )

        self._waiter(max(revisions)).add_done_callback(notified)

    # Hearing.

    def _notify(self, events: Sequence[StoreEvent], upto: int) -> None:
        """All that happened after `_revision`, up to and including `upto`."""
        self._revision = upto
        try:
            if events and self._broadcast:
                self._broadcast.publish(events)
        except Exception as problem:  # noqa: BLE001 - a listener's fault: reported as the loop reports them
            self._loop.call_exception_handler({"message": "a listener of the store failed", "exception": problem})
        finally:
            self._wake()

    def _wake(self) -> None:
        while self._waiters and self._waiters[0][0] <= self._revision:
            _, _, waiter = heapq.heappop(self._waiters)
            if not waiter.done():
                waiter.set_result(None)

    def _history_lost(self, records: Sequence[StoreRecord], revision: int, compacted: int, reason: str) -> None:
        """Events were missed for good. Everybody who keeps a copy gets what exists now instead."""
        _log.warning("The store's history was cut: everything is read anew", store=self.label, reason=reason)
        before, self._revision = self._revision, revision
        self._compacted = compacted
        self._mailboxes.end(Compacted(before, max(compacted, before + 1)))
        for reset in list(self._resets.values()):
            reset(records, revision)
        self._fail_waiters(StoreUnavailable(reason), above=revision)
        self._wake()

    def _waiter(self, revision: int) -> asyncio.Future[None]:
        waiter: asyncio.Future[None] = self._loop.create_future()
        waiter.add_done_callback(_retrieve)
        heapq.heappush(self._waiters, (revision, next(self._order), waiter))
        return waiter

    def _fail_waiters(self, problem: StoreError, above: int = -1) -> None:
        kept = [each for each in self._waiters if each[0] <= above]
        failed = [each for each in self._waiters if each[0] > above]
        self._waiters = kept
        heapq.heapify(self._waiters)
        for _, _, waiter in failed:
            if not waiter.done():
                waiter.set_exception(problem)

    def _stop_waiting(self) -> None:
        self._give_up = None
        self._fail_waiters(StoreUnavailable(self._away or "the back-end is away"))

    async def current(self) -> int:
        self._check_there()
        return await self._question.answer()

    async def _ask_current_guarded(self) -> int:
        self._check_there()
        return await self._ask_current()

    async def reached(self, revision: int) -> None:
        self._check_open()
        if revision > self._revision:
            if self._away:
                raise StoreUnavailable(self._away)
            await self._waiter(revision)

    async def _catch_up(self, revision: int) -> None:
        """Return when our listeners have been told of all that a read of `revision` shows."""
        await self.reached(revision)

    # Reading.

    async def get(self, key: str, revision: int = 0) -> StoreRecord | None:
        self._check_readable(revision)
        check_text(key)
        at, record = await self._load(key, revision)
        if not revision:
            await self._catch_up(at)
        return record

    async def scan(self, prefix: str, *, revision: int = 0, after: str = "", limit: int = 0) -> RecordPage:
        self._check_readable(revision)
        check_text(prefix)
        check_text(after)
        page = await self._load_page(prefix, revision, after, limit)
        if not revision:
            await self._catch_up(page.revision)
        return page

    def _check_readable(self, revision: int) -> None:
        self._check_there()
        if revision > self._revision:
            raise FutureRevision(revision, self._revision)
        if revision < 0 or 0 < revision < self._compacted:
            raise Compacted(revision, self._compacted)

    # Following.

    def subscribe(self, listener: Listener, reset: Reset | None = None) -> Callable[[], None]:
        unsubscribe = self._broadcast.subscribe(listener)
        token = object()
        if reset is not None:
            self._resets[token] = reset

        def end() -> None:
            unsubscribe()
            self._resets.pop(token, None)

        return end

    async def replay(self, prefix: str, after: int, upto: int) -> AsyncGenerator[Sequence[StoreEvent], None]:
        self._check_there()
        if upto > self._revision:
            raise FutureRevision(upto, self._revision)
        if after < self._compacted:
            raise Compacted(after, self._compacted)
        if after >= upto:
            return
        async with aclosing(self._load_history(prefix, after, upto)) as batches:
            async for events in batches:
                if events:
                    yield events

    async def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[Sequence[StoreEvent], None]:
        self._check_open()
        if after_revision > self._revision:
            raise FutureRevision(after_revision, self._revision)
        cursor = after_revision
        # A long history is read without a mailbox, which it would only fill: the reader sets the pace.
        while self._revision - cursor > _LONG_HISTORY:
            upto = self._revision
            async with aclosing(self.replay(prefix, cursor, upto)) as batches:
                async for events in batches:
                    yield events
            cursor = upto
        if self._unplug is None:
            self._unplug = self._broadcast.subscribe(self._mailboxes.deliver)
        box = self._mailboxes.open(prefix)
        start = self._revision
        try:
            async with aclosing(self.replay(prefix, cursor, start)) as batches:
                async for events in batches:
                    yield events
            while True:
                yield await box.take()
        finally:
            self._mailboxes.close(box)
            if not self._mailboxes and self._unplug is not None:
                self._unplug()
                self._unplug = None

    # Forgetting.

    async def compact(self, revision: int) -> None:
        self._check_there()
        if revision > self._revision:
            raise FutureRevision(revision, self._revision)
        if revision <= 0:
            return
        began = self._clock.monotonic()
        self._compacted = max(self._compacted, await self._compact(revision))
        self.metrics.compacted(self._clock.monotonic() - began)


def check_ttl(ttl: float) -> None:
    if not 0 < ttl < float("inf"):
        raise StoreError(f"a lease needs a positive ttl, not {ttl}")


def check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise StoreError("a key must be valid Unicode text") from error


def _retrieve(done: asyncio.Future[None]) -> None:
    if not done.cancelled():
        done.exception()
