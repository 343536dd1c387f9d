"""The file of the embedded bus: an SQLite database that one process writes.

`records` is one tree for all partitions: `position` is the number of the partition in the upper bits and the offset in the
lower 40, so the records of a partition lie side by side and an append needs no index. The next offset is not stored: it is the
one after the last record, or `floor`, which trimming leaves behind. Partitions of a deleted topic have no topic; their records
are dropped piece by piece (`log_writer.py`), also after a restart.
"""

from __future__ import annotations

import os
import sqlite3
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from coterie.base.sqlite_database import connect_database, lock_database, sync_wal
from coterie.functions.bus.protocol import BusError

APPLICATION_ID = 0x436F4275
SCHEMA_VERSION = 1
OFFSET_BITS = 40
PARTITION_IDS = 1 << (63 - OFFSET_BITS)

_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE records (
    position INTEGER PRIMARY KEY,
    time INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    key TEXT NOT NULL,
    value BLOB NOT NULL
);
CREATE TABLE partitions (id INTEGER PRIMARY KEY, topic TEXT, number INTEGER NOT NULL, floor INTEGER NOT NULL);
CREATE TABLE commits (
    partition INTEGER NOT NULL,
    consumers TEXT NOT NULL,
    offset INTEGER NOT NULL,
    note TEXT NOT NULL,
    PRIMARY KEY (partition, consumers)
) WITHOUT ROWID;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""


@dataclass(frozen=True, slots=True)
class StoredPartition:
    id: int
    first: int
    """The oldest record that may be there."""
    end: int
    committed: dict[str, tuple[int, str]]
    """Offset and note of each group."""


@dataclass(frozen=True, slots=True)
class BusContent:
    """What a file held when it was opened."""

    topics: dict[str, list[StoredPartition]]
    dropped: list[int]
    """Partitions of deleted topics whose records may still be there."""
    next_id: int


@dataclass(slots=True)
class BusFile:
    """The database, open for writing. Its methods block."""

    path: Path
    lock: int
    connection: sqlite3.Connection
    content: BusContent = field(repr=False)

    def close(self) -> None:
        try:
            self.connection.close()
        finally:
            os.close(self.lock)


def open_file(path: Path) -> BusFile:
    """Raises BusError, in one sentence, for a file that cannot be ours to write."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = lock_database(path)
    except BlockingIOError as error:
        raise BusError(f"{path} is already open, in another process or another bus") from error
    except OSError as error:
        raise BusError(f"{path} cannot be opened as a bus: {error.strerror}") from error
    try:
        connection = connect_database(path)
        try:
            return BusFile(path, lock, connection, _prepare(connection, path))
        except BaseException:
            connection.close()
            raise
    except BaseException as error:
        os.close(lock)
        if isinstance(error, (sqlite3.Error, OSError)):
            raise BusError(
                f"{path} cannot be opened as a bus: {error}; remove it to start with an empty one"
            ) from error
        raise


def _prepare(connection: sqlite3.Connection, path: Path) -> BusContent:
    tables = _check_identity(connection, path)
    if not tables:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise BusError(f"{path} lies on a file system without write-ahead logging")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA cache_size = -4096")
    connection.execute(f"PRAGMA journal_size_limit = {32 << 20}")
    if not tables:
        connection.executescript(_SCHEMA)
    sync_wal(path)
    return _content(connection)


def _check_identity(connection: sqlite3.Connection, path: Path) -> int:
    """The number of tables."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if not application and not tables:
        return 0
    if application != APPLICATION_ID:
        raise BusError(f"{path} is a database of another program, not a bus")
    if version != SCHEMA_VERSION:
        raise BusError(f"{path} has schema version {version}; this program reads version {SCHEMA_VERSION} only")
    return int(tables)


def _content(connection: sqlite3.Connection) -> BusContent:
    committed: dict[int, dict[str, tuple[int, str]]] = defaultdict(dict)
    for partition, group, offset, note in connection.execute("SELECT partition, consumers, offset, note FROM commits"):
        committed[partition][group] = offset, note
    topics: dict[str, list[StoredPartition]] = defaultdict(list)
    dropped = []
    newest = 0
    for number, topic, floor in connection.execute(
        "SELECT id, topic, floor FROM partitions ORDER BY topic, number"
    ).fetchall():
        newest = max(newest, number)
        if topic is None:
            dropped.append(number)
        else:
            end = max(floor, _end(connection, number))
            topics[topic].append(StoredPartition(number, floor, end, committed[number]))
    return BusContent(dict(topics), dropped, newest + 1)


def _end(connection: sqlite3.Connection, partition: int) -> int:
    low, high = partition << OFFSET_BITS, (partition + 1) << OFFSET_BITS
    (last,) = connection.execute(
        "SELECT max(position) FROM records WHERE position >= ? AND position < ?", (low, high)
    ).fetchone()
    return 0 if last is None else int(last) - low + 1
