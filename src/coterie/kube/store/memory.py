"""The log in memory: for tests, for throw-away nodes, and as the plain reading of what a store must do.

It takes the same two steps as the one on disk: a write is decided when submitted, and becomes visible at the end of the
loop's turn. So nothing that works here depends on writes being instant. Reads give way once for the same reason: who
lost a compare-and-swap and reads again must let the winner's write become visible.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from operator import attrgetter

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.kube.store.blobs import BLOB_THRESHOLD, MemoryBlobs
from coterie.kube.store.core import WATCH_LIMIT, LoggedStore
from coterie.kube.store.ledger import PendingWrite
from coterie.kube.store.rows import StoreRow, prefix_end

_revision = attrgetter("revision")


class MemoryStore(LoggedStore):
    def __init__(
        self, *, clock: Clock = SYSTEM_CLOCK, blob_threshold: int = BLOB_THRESHOLD, watch_limit: int = WATCH_LIMIT
    ) -> None:
        super().__init__(clock=clock, watch_limit=watch_limit)
        self._threshold = blob_threshold
        self._blobs = MemoryBlobs()
        self._log: list[StoreRow] = []
        self._by_key: dict[str, list[StoreRow]] = {}
        self._keys: list[str] = []
        """All keys that have rows, sorted."""

    async def _start(self) -> None:
        """Nothing to open."""

    async def _stop(self) -> None:
        """Writes are settled as soon as they are flushed."""

    def _persist(self, writes: list[PendingWrite]) -> None:
        for write in writes:
            for row in write.rows:
                self._append(row)
        self._settled(len(writes))

    def _append(self, row: StoreRow) -> None:
        if row.value is not None and len(row.value) > self._threshold:
            row = row._replace(value=None, digest=self._blobs.put(row.value))
        self._log.append(row)
        rows = self._by_key.get(row.key)
        if rows is None:
            self._by_key[row.key] = [row]
            insort(self._keys, row.key)
        else:
            rows.append(row)

    def _whole(self, row: StoreRow) -> StoreRow:
        return row if row.digest is None else row._replace(value=self._blobs.get(row.digest))

    def _at(self, key: str, revision: int) -> StoreRow | None:
        rows = self._by_key.get(key, [])
        found = bisect_right(rows, revision, key=_revision)
        return self._whole(rows[found - 1]) if found else None

    async def _load(self, key: str, revision: int) -> StoreRow | None:
        await asyncio.sleep(0)
        return self._at(key, revision)

    async def _load_page(self, prefix: str, revision: int, after: str, limit: int) -> list[StoreRow]:
        await asyncio.sleep(0)
        first = bisect_right(self._keys, after) if after >= prefix else bisect_left(self._keys, prefix)
        end = prefix_end(prefix)
        stop = len(self._keys) if end is None else bisect_left(self._keys, end)
        page: list[StoreRow] = []
        for at in range(first, stop):
            row = self._at(self._keys[at], revision)
            if row is not None and not row.deleted:
                page.append(row)
                if len(page) == limit:
                    break
        return page

    async def _load_history(self, prefix: str, after: int, upto: int, limit: int) -> list[StoreRow]:
        await asyncio.sleep(0)
        page: list[StoreRow] = []
        for at in range(bisect_right(self._log, after, key=_revision), len(self._log)):
            row = self._log[at]
            if row.revision > upto or len(page) == limit:
                break
            if row.key.startswith(prefix):
                page.append(self._whole(row))
        return page

    async def _mark_compacted(self, revision: int) -> None:
        """The mark lives in the store object."""

    async def _drop_superseded(self, revision: int) -> None:
        upto = bisect_right(self._log, revision, key=_revision)
        old = self._log[:upto]
        superseded = {row.previous for row in old}
        self._log[:upto] = [row for row in old if not row.deleted and row.revision not in superseded]
        self._by_key = {}
        for row in self._log:
            self._by_key.setdefault(row.key, []).append(row)
        self._keys = sorted(self._by_key)
        self._blobs.sweep({row.digest for row in self._log if row.digest is not None})
