"""An SQLite file that one process writes: its lock, its connection, and what its errors mean.

NAME          the database             NAME-wal, NAME-shm   SQLite's own
NAME.lock     held by the one process that writes
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from pathlib import Path

from coterie.base.files import PRIVATE_FILE, sync_directory

# After these a transaction is rolled back and the next may succeed. After any other fault (a failed fsync above all:
# the kernel may have thrown away what it could not write) nothing can be trusted until the file is opened anew.
_PASSING = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_NOMEM})
_PASSING_EXTENDED = frozenset({sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE})


def explain_error(error: sqlite3.Error | OSError) -> tuple[str, bool]:
    """A sentence for the caller, and whether the fault is final."""
    if isinstance(error, OSError):  # of a blob: its file is written anew the next time, nothing depends on this one
        return f"the write did not reach the disk: {error.strerror}", False
    code = getattr(error, "sqlite_errorcode", 0)
    passing = code & 0xFF in _PASSING or code in _PASSING_EXTENDED
    return f"the write did not reach the disk: {error}", not passing


def lock_database(path: Path) -> int:
    """A handle that holds the lock until it is closed. Raises BlockingIOError when somebody has it."""
    handle = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        # Held until the handle closes, so also a killed process lets go. The file stays: removing it would be a race.
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(handle)
        raise
    return handle


def connect_database(path: Path) -> sqlite3.Connection:
    # Made here and not by SQLite, because values hold secrets: the WAL and its index take over this mode.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE))
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=512, timeout=5.0)


def sync_wal(path: Path) -> None:
    """After a kill the WAL may end in transactions that no fsync covered yet. They are about to be shown to readers, so they
    must not vanish with a power cut."""
    handle = os.open(f"{path}-wal", os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    sync_directory(path.parent)
