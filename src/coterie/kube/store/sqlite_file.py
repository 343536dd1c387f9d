"""The file: who may open it, what is in it, and how it is brought back after a crash.

    store.db         the database: log, leases, meta        store.db-wal, store.db-shm   SQLite's own
    store.db.lock    held by the one process that writes    store.db.blobs/              big values (see blobs.py)

`log` has a row for each change. `meta` holds two numbers: `compacted`, the mark below which history may be gone, and
`swept`, how far dropping has come; a compaction that was cut short goes on from there. No counter of revisions is kept:
rows above the mark are never dropped, so the newest revision is the highest of the log or the mark itself.
"""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from coterie.base.sqlite_database import connect_database, lock_database, sync_wal
from coterie.kube.store.protocol import StoreError

APPLICATION_ID = 0x436F7465
SCHEMA_VERSION = 1

_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE log (
    revision INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    created INTEGER NOT NULL,
    previous INTEGER NOT NULL,
    deleted INTEGER NOT NULL,
    lease INTEGER NOT NULL,
    value BLOB,
    digest BLOB
);
CREATE UNIQUE INDEX log_by_key ON log (key, revision);
CREATE INDEX log_by_digest ON log (digest) WHERE digest IS NOT NULL;
CREATE TABLE leases (id INTEGER PRIMARY KEY AUTOINCREMENT, ttl REAL NOT NULL);
CREATE TABLE meta (name TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('compacted', 0), ('swept', 0);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""

_HEADS = """
SELECT log.key, log.revision, log.created, log.lease
FROM (SELECT key, max(revision) AS newest FROM log GROUP BY key) CROSS JOIN log ON log.revision = newest
WHERE NOT log.deleted
"""


@dataclass(frozen=True, slots=True)
class StoreContent:
    """What a file held when it was opened."""

    revision: int
    compacted: int
    heads: list[tuple[str, int, int, int]]
    leases: list[tuple[int, float]]
    last_lease: int


class StoreFile:
    """The database, open for writing. Its methods block; they belong to the writer's thread."""

    def __init__(self, path: Path, max_bytes: int = 0) -> None:
        """Raises StoreError, in one sentence, for a file that cannot be ours to write."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        try:
            self._lock = lock_database(path)
        except BlockingIOError as error:
            raise StoreError(f"{path} is already open, in another process or another store object") from error
        try:
            self.connection = connect_database(path)
            try:
                self.content = _prepare(self.connection, path, max_bytes)
            except BaseException:
                self.connection.close()
                raise
        except BaseException as error:
            os.close(self._lock)
            if isinstance(error, (sqlite3.Error, OSError)):
                raise StoreError(f"{path} cannot be opened as a store: {error}") from error
            raise

    def close(self) -> None:
        """The last connection to close writes the WAL back and removes it."""
        try:
            self.connection.close()
        finally:
            os.close(self._lock)


def _prepare(connection: sqlite3.Connection, path: Path, max_bytes: int) -> StoreContent:
    _check_identity(connection, path)
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreError(f"{path} lies on a file system without write-ahead logging")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA cache_size = -8192")
    if max_bytes:
        (page_size,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute(f"PRAGMA max_page_count = {max(max_bytes // page_size, 1)}")
    if not _tables(connection):
        connection.executescript(_SCHEMA)
    # After a kill the WAL may end in transactions that no fsync covered yet. They will be shown to readers now, so they
    # must not vanish with a power cut and let their revisions be given out again.
    sync_wal(path)
    return _content(connection)


def _check_identity(connection: sqlite3.Connection, path: Path) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if not application and not _tables(connection):
        return
    if application != APPLICATION_ID:
        raise StoreError(f"{path} is a database of another program, not a store")
    if version != SCHEMA_VERSION:
        raise StoreError(f"{path} has schema version {version}; this program reads version {SCHEMA_VERSION} only")


def _tables(connection: sqlite3.Connection) -> int:
    (count,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    return int(count)


def _content(connection: sqlite3.Connection) -> StoreContent:
    (newest,) = connection.execute("SELECT coalesce(max(revision), 0) FROM log").fetchone()
    (compacted,) = connection.execute("SELECT number FROM meta WHERE name = 'compacted'").fetchone()
    last_lease = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'leases'").fetchone()
    return StoreContent(
        revision=max(newest, compacted),
        compacted=compacted,
        heads=connection.execute(_HEADS).fetchall(),
        leases=connection.execute("SELECT id, ttl FROM leases").fetchall(),
        last_lease=last_lease[0] if last_lease else 0,
    )
