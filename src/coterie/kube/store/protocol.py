"""What a store is: a revisioned log of keys with compare-and-swap, snapshots, watches, compaction and leases.

Revisions are positive integers that grow with each change of a key, are never reused (also not after a crash), and are
the only clock of the system. Revision 0 means "now" when reading and "does not exist" when expecting. They grow by one
in memory, SQLite, PostgreSQL and MySQL. In etcd they have gaps, and all keys of one batch or of one ended lease share theirs.

There are two families. An *exclusive* store (memory, SQLite) has one writer, this process, which knows all and decides
at once. A *shared* store (PostgreSQL, etcd) has any number of them, and the back-end decides: the answer comes through
the future of `submit`, others' writes are heard a moment after they happened, and the back-end may be away. MySQL is shared
too, but one server decides, and the others hand their writes to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class StoreError(Exception):
    """Base of what a store can refuse."""


class CompareFailed(StoreError):
    """An operation's expectation does not hold; nothing of the batch was written.

    `expected` is -1 where any existing revision would have done (deleting what does not exist). `record` is what is
    there now, where the store is shared (None: nothing is); an exclusive one has told all its listeners already.
    """

    def __init__(self, index: int, key: str, expected: int, actual: int, record: StoreRecord | None = None) -> None:
        wanted = "any revision" if expected < 0 else f"revision {expected}"
        super().__init__(f"{key}: expected {wanted}, found {actual}")
        self.index = index
        self.key = key
        self.expected = expected
        self.actual = actual
        self.record = record


class Compacted(StoreError):
    """The asked revision is older than what the store still keeps."""

    def __init__(self, asked: int, compacted: int) -> None:
        super().__init__(f"revision {asked} was compacted away; the oldest kept is {compacted}")
        self.asked = asked
        self.compacted = compacted


class FutureRevision(StoreError):
    """The asked revision does not exist yet."""

    def __init__(self, asked: int, current: int) -> None:
        super().__init__(f"revision {asked} is in the future; the newest is {current}")
        self.asked = asked
        self.current = current


class LeaseNotFound(StoreError):
    """The lease expired, was revoked or never existed."""


class StoreClosed(StoreError):
    """The store was closed, or its disk failed: no write can be acknowledged any more."""


class StoreUnavailable(StoreError):
    """The back-end is away: nothing was written or read. The store works again by itself when it is back."""


class Unsettled(StoreError):
    """Nobody knows whether the write took place: the back-end went away before it answered. Read before writing again."""


class ValueTooLarge(StoreError):
    """The back-end does not take values of this size."""


@dataclass(frozen=True, slots=True)
class StoreRecord:
    key: str
    value: bytes
    revision: int
    """Revision of the last change."""
    created: int
    """Revision at which this incarnation of the key was created."""
    lease: int = 0


@dataclass(frozen=True, slots=True)
class PutOp:
    key: str
    value: bytes
    expect: int | None = None
    """Revision the key must have now; 0: must not exist; None: whatever it is."""
    lease: int = 0


@dataclass(frozen=True, slots=True)
class DeleteOp:
    key: str
    expect: int | None = None
    """As for Put. Deleting a key that does not exist with expect=None raises CompareFailed(actual=0)."""


Op = PutOp | DeleteOp


@dataclass(frozen=True, slots=True)
class StoreEvent:
    """One change. `value` is None for a deletion, `created` then tells the incarnation that ended.

    `previous` is the revision that the key had before, 0 when this change created it. It is a number and not a record,
    because a store does not keep old values at hand: ask `get(key, revision=previous)` unless that is compacted.
    """

    key: str
    revision: int
    value: bytes | None
    created: int
    previous: int


@dataclass(frozen=True, slots=True)
class RecordPage:
    revision: int
    """The revision this list is a snapshot of."""
    records: list[StoreRecord]
    more: bool
    """True when `limit` cut the list: go on with after=<last key> and revision=<this revision>."""


Listener = Callable[[Sequence[StoreEvent]], None]
Reset = Callable[[Sequence[StoreRecord], int], None]
"""Called with all that exists, and the revision it is of, where events were missed or the past is another one now."""


class Store(Protocol):
    @property
    def shared(self) -> bool:
        """Others may write too, and the back-end decides."""

    @property
    def away(self) -> str:
        """Why the back-end cannot be asked now; empty while it can."""

    @property
    def revision(self) -> int:
        """The newest revision that our listeners have heard of (for SQLite: the newest on disk)."""

    @property
    def compacted(self) -> int:
        """Reads and watches below this revision raise Compacted."""

    async def open(self) -> None: ...

    async def close(self) -> None:
        """Finish writes that were accepted, end watches, release the files."""

    async def get(self, key: str, revision: int = 0) -> StoreRecord | None: ...

    async def scan(self, prefix: str, *, revision: int = 0, after: str = "", limit: int = 0) -> RecordPage:
        """Records whose key starts with prefix, sorted by key, as they were at `revision`."""

    async def commit(self, ops: Sequence[Op]) -> list[int]:
        """Apply all ops or none; returns one revision for each. When it returns, they are durable and visible."""

    def submit(self, ops: Sequence[Op]) -> asyncio.Future[list[int]]:
        """`commit` in two steps, for callers on the hot path: expectations are decided at once, against all that was
        submitted before (CompareFailed, LeaseNotFound and StoreClosed are raised here); the future resolves when the
        writes are durable and visible, or fails with StoreError. Cancelling it does not undo the write.

        A shared store raises CompareFailed and LeaseNotFound through the future instead, and may fail it with
        StoreUnavailable (not written) or Unsettled (unknown).

        CompareFailed may name a revision that readers cannot see yet: who wants to read and try again awaits
        `commit([])` first, which returns when all that was submitted before is visible.
        """

    async def current(self) -> int:
        """A revision not older than any write that was acknowledged, by whichever server, before the call."""

    async def reached(self, revision: int) -> None:
        """Return when our listeners have heard of everything up to `revision`."""

    def replay(self, prefix: str, after: int, upto: int) -> AsyncGenerator[Sequence[StoreEvent], None]:
        """The events with after < revision <= upto, in order, and no more; `upto` is not newer than `revision`.
        Raises Compacted where history is gone."""

    def subscribe(self, listener: Listener, reset: Reset | None = None) -> Callable[[], None]:
        """Call `listener` on the event loop with every durable batch, in order, before the futures of its writes
        resolve: a cache fed this way holds a write when its writer goes on. Returns what ends the subscription.

        `reset` is called in place of `listener` where a shared store cannot tell what happened: it was away for so
        long that history is gone, or somebody restored a backup.
        """

    def watch(self, prefix: str, after_revision: int) -> AsyncIterator[Sequence[StoreEvent]]:
        """Batches of events with revision > after_revision, in order, without gap or duplicate.

        Raises Compacted at the first step if history is gone, FutureRevision if after_revision is newer than the
        newest, StoreClosed when the store closes, and SlowWatcher when the consumer does not keep up.
        """

    async def compact(self, revision: int) -> None:
        """Forget history below `revision`; what exists now stays readable."""

    async def grant(self, ttl: float) -> int:
        """A lease that ends after ttl seconds unless kept alive; keys put with it are deleted when it ends."""

    async def keep_alive(self, lease: int) -> float:
        """Start the lease's time anew; returns the ttl."""

    async def revoke(self, lease: int) -> None: ...


class SlowWatcher(StoreError):
    """The watcher was dropped because it fell too far behind."""
