"""Reads of records that are no longer in memory, in a thread with a read-only connection.

Under WAL a statement sees a snapshot and neither waits for the writer nor holds it up.
"""

from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote
from zlib import crc32

from coterie.functions.bus.log_file import OFFSET_BITS
from coterie.functions.bus.protocol import BusError, Record
from coterie.functions.bus.topic_state import BYTES_PER_READ


class BusReader:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="bus-reader")

    async def read(self, topic: str, partition: int, id: int, offset: int, end: int, limit: int) -> list[Record]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._read, topic, partition, id, offset, end, limit)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _read(self, topic: str, partition: int, id: int, offset: int, end: int, limit: int) -> list[Record]:
        base = id << OFFSET_BITS
        found: list[Record] = []
        size = 0
        try:
            if self._connection is None:
                address = f"file:{quote(str(self._path.absolute()))}?mode=ro"
                self._connection = sqlite3.connect(
                    address, uri=True, isolation_level=None, check_same_thread=False, timeout=5.0
                )
            cursor = self._connection.execute(
                "SELECT position, time, checksum, key, value FROM records WHERE position >= ? AND position < ? ORDER BY position LIMIT ?",
                (base + offset, base + end, limit),
            )
            try:
                for position, moment, checksum, key, value in cursor:
                    if crc32(value, crc32(key.encode())) != checksum:
                        raise BusError(
                            f"record {position - base} of partition {partition} of topic {topic} is damaged in {self._path}"
                        )
                    found.append(Record(topic, partition, position - base, key, value, moment))
                    size += len(value)
                    if size >= BYTES_PER_READ:
                        break
            finally:
                cursor.close()
        except (sqlite3.Error, UnicodeDecodeError, TypeError, AttributeError) as error:
            # The last three: a damaged file may hold other types than were written.
            raise BusError(f"topic {topic} cannot be read from {self._path}: {error}") from error
        return found
