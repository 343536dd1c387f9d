"""The log in one SQLite file: an acknowledged write is on disk.

    loop:    submit ─▶ ledger ─▶ waiting ┐                    ┌─▶ revision, listeners, watchers, futures
    writer:                              └─▶ one transaction ─┘   (WAL, synchronous=FULL: one fsync for all of them)
    readers: get, scan, history ─▶ snapshots of their own, no waiting either way

See `sqlite_file.py` for the file, `sqlite_writer.py` for group commit and failure, `sqlite_reader.py` for reads,
`blobs.py` for big values.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from collections.abc import Mapping
from pathlib import Path

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.kube.store.blobs import BLOB_THRESHOLD, FileBlobs
from coterie.kube.store.core import WATCH_LIMIT, LoggedStore
from coterie.kube.store.ledger import PendingWrite
from coterie.kube.store.protocol import StoreError
from coterie.kube.store.rows import StoreRow
from coterie.kube.store.sqlite_file import StoreFile
from coterie.kube.store.sqlite_reader import Readers
from coterie.kube.store.sqlite_writer import SqliteWriter

_SWITCH_SECONDS = 0.001
_DROP_BATCH = 1000
"""Revisions looked at in one transaction of a compaction; writes go in between."""


class SqliteStore(LoggedStore):
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock = SYSTEM_CLOCK,
        blob_threshold: int = BLOB_THRESHOLD,
        watch_limit: int = WATCH_LIMIT,
        readers: int = 2,
        max_bytes: int = 0,
    ) -> None:
        """`blob_threshold`: values bigger than this many bytes are kept aside. `max_bytes`: the database file may not
        grow beyond it (0: as far as the disk goes); writes that would need more are refused, as on a full disk.
        """
        super().__init__(clock=clock, watch_limit=watch_limit)
        self._path = Path(path)
        self._threshold = blob_threshold
        self._reader_threads = readers
        self._max_bytes = max_bytes
        self._blobs = FileBlobs(self._path.with_name(self._path.name + ".blobs"))
        self._readers: Readers
        self._writer: SqliteWriter

    async def _start(self) -> None:
        # The writer wants the interpreter's lock a few times for each transaction. A loop whose turns are shorter than
        # the switch interval lets go of it at each poll and has it back before a waiting thread is awake; the thread
        # never waits long enough to demand it, and a busy server was seen to hold up a commit for seconds.
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_SECONDS))
        file = await asyncio.to_thread(self._open_file)
        content = file.content
        self._revision = content.revision
        self._compacted = content.compacted
        self._ledger.leases.restore(content.leases, content.last_lease, self._clock.monotonic())
        self._ledger.restore(content.heads, content.revision)
        self._readers = Readers(self._path, self._blobs, self._reader_threads)
        self._writer = SqliteWriter(
            file,
            self._blobs,
            self._threshold,
            settled=self._settled,
            failed=self._failed,
            durations=self.metrics.durations,
        )

    def _open_file(self) -> StoreFile:
        file = StoreFile(self._path, self._max_bytes)
        try:
            self._sweep_blobs(file.connection)
        except (sqlite3.Error, OSError) as error:
            file.close()
            raise StoreError(f"{self._path} cannot be opened as a store: {error}") from error
        return file

    async def _stop(self) -> None:
        # Readers first: the last connection to close writes the WAL back, and they may only read.
        await self._readers.close()
        await self._writer.stop()

    def _persist(self, writes: list[PendingWrite]) -> None:
        self._writer.write(writes)

    def _failed(self, reason: str, final: bool) -> None:
        super()._failed(reason, final)
        self._writer.next_generation()

    def sizes(self) -> Mapping[str, int]:
        name = self._path.name
        found = {"database": _size(self._path), "wal": _size(self._path.with_name(f"{name}-wal"))}
        return {**found, "blobs": self._blobs.size()}

    async def _load(self, key: str, revision: int) -> StoreRow | None:
        return await self._readers.newest(key, revision)

    async def _load_page(self, prefix: str, revision: int, after: str, limit: int) -> list[StoreRow]:
        return await self._readers.page(prefix, revision, after, limit)

    async def _load_history(self, prefix: str, after: int, upto: int, limit: int) -> list[StoreRow]:
        return await self._readers.history(prefix, after, upto, limit)

    async def _mark_compacted(self, revision: int) -> None:
        def mark(connection: sqlite3.Connection) -> None:
            connection.execute("UPDATE meta SET number = ? WHERE name = 'compacted'", (revision,))

        await self._writer.run(mark)

    async def _drop_superseded(self, revision: int) -> None:
        """Each row names the row it supersedes, so looking at the rows since the last time finds all there is to drop;
        what exists and has not changed since is never touched.
        """

        def drop(connection: sqlite3.Connection) -> int:
            (swept,) = connection.execute("SELECT number FROM meta WHERE name = 'swept'").fetchone()
            reach = min(swept + _DROP_BATCH, revision)
            window = (swept, reach)
            connection.execute(
                """DELETE FROM log WHERE revision IN (
                       SELECT previous FROM log WHERE revision > ? AND revision <= ? AND previous > 0)""",
                window,
            )
            connection.execute("DELETE FROM log WHERE revision > ? AND revision <= ? AND deleted", window)
            connection.execute("UPDATE meta SET number = ? WHERE name = 'swept'", (reach,))
            return int(reach)

        while await self._writer.run(drop) < revision:
            pass
        await self._writer.run(self._sweep_blobs)

    def _sweep_blobs(self, connection: sqlite3.Connection) -> None:
        """On the writer's thread, so no blob can be on its way into a row meanwhile."""
        if self._blobs.folder.exists():
            named = connection.execute("SELECT DISTINCT digest FROM log WHERE digest IS NOT NULL")
            self._blobs.sweep({digest for (digest,) in named})


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
