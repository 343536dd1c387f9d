"""Decides writes, in the order they are submitted, before any of them is on disk.

The ledger knows of each key that exists its revision, created and lease, including writes that are still on their way
to the disk. So two compare-and-swaps of the same batch meet each other here, and a commit costs a few dictionary
look-ups. Each write remembers what it replaced: when a transaction fails, it and all that was built on it are undone
in reverse order, and the ledger is again what the disk is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from coterie.kube.store.leases import StoreLease, StoreLeases
from coterie.kube.store.protocol import CompareFailed, Op, PutOp
from coterie.kube.store.rows import StoreRow, check_key

Head = tuple[int, int, int]
"""Revision, created and lease of a key that exists."""

_NOTHING: Head = (0, 0, 0)
_ANY = -1


class PendingWrite:
    """What one `submit` changes; all of it reaches the disk or nothing."""

    __slots__ = ("before", "ended", "future", "granted", "rows")

    future: asyncio.Future[list[int]]

    def __init__(self, rows: list[StoreRow], before: list[Head]) -> None:
        self.rows = rows
        self.before = before
        self.granted: StoreLease | None = None
        self.ended: StoreLease | None = None


class Ledger:
    def __init__(self) -> None:
        self.heads: dict[str, Head] = {}
        self.last = 0
        """The newest revision given out, durable or not."""
        self.leases = StoreLeases()

    def restore(self, heads: Iterable[tuple[str, int, int, int]], revision: int) -> None:
        """Take over what a file holds. Leases are restored before."""
        self.last = revision
        for key, *head in heads:
            self.heads[key] = (head[0], head[1], head[2])
            if head[2]:
                self.leases.move(key, 0, head[2])

    def decide(self, ops: Sequence[Op]) -> PendingWrite:
        """Give each op its revision. If one does not hold, nothing has changed."""
        heads = self.heads
        revision = self.last
        rows: list[StoreRow] = []
        before: list[Head] = []
        write = PendingWrite(rows, before)
        decided = False
        try:
            for op in ops:
                key = op.key
                expect = op.expect
                old = heads.get(key, _NOTHING)
                actual, created, old_lease = old
                revision += 1
                if isinstance(op, PutOp):
                    if expect is not None and expect != actual:
                        raise CompareFailed(len(rows), key, expect, actual)
                    if type(op.value) is not bytes:  # found late, on the writer's thread, it would close the store
                        raise TypeError(f"{key}: a value is bytes, not {type(op.value).__name__}")
                    if not actual:
                        check_key(key)
                        created = revision
                    lease = op.lease
                    if lease != old_lease:
                        if lease:
                            self.leases.find(lease)
                        self.leases.move(key, old_lease, lease)
                    heads[key] = (revision, created, lease)
                    rows.append(StoreRow(revision, key, created, actual, 0, lease, op.value, None))
                else:
                    if not actual or (expect is not None and expect != actual):
                        raise CompareFailed(len(rows), key, _ANY if expect is None else expect, actual)
                    if old_lease:
                        self.leases.move(key, old_lease, 0)
                    del heads[key]
                    rows.append(StoreRow(revision, key, created, actual, 1, 0, None, None))
                before.append(old)
            decided = True
        finally:
            if not decided:
                self._undo_rows(write)
        self.last = revision
        return write

    def grant(self, lease: StoreLease) -> PendingWrite:
        write = PendingWrite([], [])
        write.granted = lease
        return write

    def end(self, lease: StoreLease, deletes: Sequence[Op]) -> PendingWrite:
        write = self.decide(deletes)
        write.ended = self.leases.granted.pop(lease.id)
        return write

    def undo(self, writes: Sequence[PendingWrite], durable: int) -> None:
        """Forget writes that did not reach the disk: all that are not settled, oldest first."""
        for write in reversed(writes):
            if write.ended is not None:
                self.leases.add(write.ended)
            self._undo_rows(write)
            if write.granted is not None:
                del self.leases.granted[write.granted.id]
        self.last = durable

    def _undo_rows(self, write: PendingWrite) -> None:
        for row, old in zip(reversed(write.rows), reversed(write.before), strict=True):
            if old[2] != row.lease:
                self.leases.move(row.key, row.lease, old[2])
            if old[0]:
                self.heads[row.key] = old
            else:
                self.heads.pop(row.key, None)
