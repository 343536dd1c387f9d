"""Reads of the log, in a few threads with read-only connections.

Under WAL every statement sees a snapshot and neither waits for the writer nor holds it up. A statement may see rows
that the loop has not heard of yet; each names the revision it reads at, so they do not show.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar
from urllib.parse import quote

from coterie.kube.store.blobs import BlobError, Blobs
from coterie.kube.store.protocol import StoreError
from coterie.kube.store.rows import StoreRow, prefix_end

T = TypeVar("T")


class Readers:
    def __init__(self, path: Path, blobs: Blobs, threads: int) -> None:
        self._address = f"file:{quote(str(path.absolute()))}?mode=ro"
        self._blobs = blobs
        self._idle: SimpleQueue[sqlite3.Connection] = SimpleQueue()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="store-reader")

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown)
        while not self._idle.empty():
            self._idle.get().close()

    async def newest(self, key: str, revision: int) -> StoreRow | None:
        rows = await self._rows(
            "SELECT * FROM log WHERE key = ? AND revision <= ? ORDER BY revision DESC LIMIT 1", [key, revision]
        )
        return rows[0] if rows else None

    async def page(self, prefix: str, revision: int, after: str, limit: int) -> list[StoreRow]:
        where, values = _within(prefix, after)
        # The inner query walks the index alone, in order of keys; CROSS JOIN keeps it the outer loop, so rows come out
        # in that order and a limit stops the walk. An ORDER BY outside would sort again, whole values with it: six
        # times slower, since SQLite does not see that the order is there already.
        return await self._rows(
            f"""SELECT log.* FROM (
                    SELECT max(revision) AS newest FROM log
                    WHERE {where} AND revision <= ? GROUP BY key ORDER BY key
                ) CROSS JOIN log ON log.revision = newest
                WHERE NOT log.deleted LIMIT ?""",
            [*values, revision, limit or -1],
        )

    async def history(self, prefix: str, after: int, upto: int, limit: int) -> list[StoreRow]:
        where, values = _within(prefix, "")
        # The plus keeps SQLite from the index on keys: rows are wanted in order of revision.
        return await self._rows(
            f"""SELECT * FROM log WHERE revision > ? AND revision <= ? AND {where.replace("key", "+key")}
                ORDER BY revision LIMIT ?""",
            [after, upto, *values, limit],
        )

    async def _rows(self, sql: str, values: list[Any]) -> list[StoreRow]:
        def read(connection: sqlite3.Connection) -> list[StoreRow]:
            return [self._whole(StoreRow._make(row)) for row in connection.execute(sql, values).fetchall()]

        return await asyncio.get_running_loop().run_in_executor(self._threads, self._with_connection, read)

    def _with_connection(self, read: Callable[[sqlite3.Connection], T]) -> T:
        try:
            try:
                connection = self._idle.get_nowait()
            except Empty:
                connection = sqlite3.connect(
                    self._address, uri=True, isolation_level=None, check_same_thread=False, timeout=5.0
                )
            try:
                return read(connection)
            finally:
                self._idle.put(connection)
        except sqlite3.Error as error:
            raise StoreError(f"the log cannot be read: {error}") from error
        except UnicodeEncodeError as error:
            raise StoreError("a key must be valid Unicode text") from error

    def _whole(self, row: StoreRow) -> StoreRow:
        if row.digest is None:
            return row
        try:
            return row._replace(value=self._blobs.get(row.digest))
        except BlobError as error:
            raise StoreError(f"{row.key} at revision {row.revision}: {error}") from error


def _within(prefix: str, after: str) -> tuple[str, list[Any]]:
    """The SQL condition for keys that start with `prefix` and sort after `after`."""
    where, values = ("key > ?", [after]) if after >= prefix else ("key >= ?", [prefix])
    end = prefix_end(prefix)
    return (where, values) if end is None else (f"{where} AND key < ?", [*values, end])
