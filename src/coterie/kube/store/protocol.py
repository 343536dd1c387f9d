"""What a store is: a revisioned log of keys with compare-and-swap, snapshots, watches, compaction and leases.

Revisions are positive integers that grow by one with each change of a key, are never reused (also not after a
crash), and are the only clock of the system. Revision 0 means "now" when reading and "does not exist" when expecting.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class StoreError(Exception):
    """Base of what a store can refuse."""


class CompareFailed(StoreError):
    """An operation's expectation does not hold; nothing of the batch was written.

    `expected` is -1 where any existing revision would have done (deleting what does not exist).
    """

    def __init__(self, index: int, key: str, expected: int, actual: int) -> None:
        wanted = "any revision" if expected < 0 else f"revision {expected}"
        super().__init__(f"{key}: expected {wanted}, found {actual}")
        self.index = index
        self.key = key
        self.expected = expected
        self.actual = actual


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


class Store(Protocol):
    @property
    def revision(self) -> int:
        """The newest revision that readers may see (for SQLite: the newest on disk)."""

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

        CompareFailed may name a revision that readers cannot see yet: who wants to read and try again awaits
        `commit([])` first, which returns when all that was submitted before is visible.
        """

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` on the event loop with every durable batch, in order, before the futures of its writes
        resolve: a cache fed this way holds a write when its writer goes on. Returns what ends the subscription.
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
