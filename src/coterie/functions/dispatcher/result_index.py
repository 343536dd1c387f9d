"""Where the result of a request is: an index over `action-results`, in SQLite beside the bus, and of the requests that have none yet.

Everything in it comes from the bus, with the offsets up to which it was read, so it may be lost: what is missing is read again. It answers
repeated calls (`Idempotency-Key`, links that broke) and `GET /calls/ID`. Results are dropped after 24 hours, or before when
there are too many.

Not every row is written at once: new ones stand in memory until the next `flush`, at most half a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from coterie.base.log import logger

log = logger("functions.results")

KEEP_MILLISECONDS = 24 * 3600 * 1000
_SCHEMA = """
CREATE TABLE IF NOT EXISTS results (
  key TEXT PRIMARY KEY, part INTEGER NOT NULL, place INTEGER NOT NULL, time INTEGER NOT NULL, size INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS results_by_time ON results (time);
CREATE TABLE IF NOT EXISTS accepted (key TEXT PRIMARY KEY, time INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS positions (topic TEXT, part INTEGER, place INTEGER NOT NULL, PRIMARY KEY (topic, part)) WITHOUT ROWID;
"""


class ResultPlace(NamedTuple):
    partition: int
    offset: int
    time: int
    size: int


@dataclass(slots=True)
class _Rows:
    """Not written yet."""

    results: dict[str, ResultPlace] = field(default_factory=dict)
    accepted: dict[str, int] = field(default_factory=dict)
    positions: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        return not (self.results or self.accepted or self.positions)


class ResultIndex:
    def __init__(self, path: Path | None = None) -> None:
        """`path` None: in memory, for tests."""
        self._path = path
        self._rows = _Rows()
        self.changed = asyncio.Event()
        """There is something to flush."""
        self._database = self._open()

    def _open(self) -> sqlite3.Connection:
        if self._path is None:
            return _database(":memory:")
        try:
            return _database(str(self._path))
        except sqlite3.DatabaseError as problem:
            log.warning("The index of results cannot be read and is made anew", path=self._path, error=problem)
            for suffix in ("", "-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    self._path.with_name(self._path.name + suffix).unlink()
            return _database(str(self._path))

    # -- what is known ------------------------------------------------------------------------------------------

    def result(self, key: str) -> ResultPlace | None:
        if (found := self._rows.results.get(key)) is not None:
            return found
        row = self._database.execute("SELECT part, place, time, size FROM results WHERE key = ?", (key,)).fetchone()
        return ResultPlace(*row) if row is not None else None

    def is_accepted(self, key: str) -> bool:
        """A call by this key is on the bus, and has no result yet, or had none when it was accepted."""
        if key in self._rows.accepted:
            return True
        return self._database.execute("SELECT 1 FROM accepted WHERE key = ?", (key,)).fetchone() is not None

    def positions(self, topic: str) -> Mapping[int, int]:
        """Up to where each partition was read."""
        rows = self._database.execute("SELECT part, place FROM positions WHERE topic = ?", (topic,))
        found: dict[int, int] = {part: place for part, place in rows}
        found.update({part: place for (name, part), place in self._rows.positions.items() if name == topic})
        return found

    # -- news ---------------------------------------------------------------------------------------------------

    def add_result(self, topic: str, key: str, place: ResultPlace) -> None:
        self._rows.results[key] = place
        self.changed.set()
        self._rows.positions[topic, place.partition] = place.offset + 1

    def add_accepted(self, key: str, time: int) -> None:
        self._rows.accepted[key] = time
        self.changed.set()

    def set_position(self, topic: str, partition: int, offset: int) -> None:
        self._rows.positions[topic, partition] = offset
        self.changed.set()

    def forget_topic(self, topic: str) -> None:
        """It was deleted: one of the same name begins at 0 again."""
        self._database.execute("DELETE FROM positions WHERE topic = ?", (topic,))
        self._database.commit()
        for place in [place for place in self._rows.positions if place[0] == topic]:
            del self._rows.positions[place]

    def flush(self) -> None:
        """Without waiting for the disk: what is lost is read from the bus again."""
        self.changed.clear()
        if not self._rows.empty:
            rows, self._rows = self._rows, _Rows()
            self._write(rows)

    def _write(self, rows: _Rows) -> None:
        with self._database as database:
            database.executemany("INSERT OR REPLACE INTO accepted VALUES (?, ?)", list(rows.accepted.items()))
            database.executemany(
                "INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?, ?)",
                [(key, *place) for key, place in rows.results.items()],
            )
            positions = [(topic, part, place) for (topic, part), place in rows.positions.items()]
            database.executemany("INSERT OR REPLACE INTO positions VALUES (?, ?, ?)", positions)

    def cut(self, now: int, max_rows: int, max_bytes: int) -> int:
        """Drops what is too old or too much; says before which time results may be dropped from the bus."""
        self.flush()
        before = now - KEEP_MILLISECONDS
        with self._database as database:
            rows, size = database.execute("SELECT count(*), coalesce(sum(size), 0) FROM results").fetchone()
            if rows > max_rows or size > max_bytes:
                # The newest that fit.
                for time, bytes_of in database.execute("SELECT time, size FROM results ORDER BY time"):
                    if rows <= max_rows and size <= max_bytes:
                        break
                    rows, size, before = rows - 1, size - bytes_of, max(before, time + 1)
            database.execute("DELETE FROM results WHERE time < ?", (before,))
            database.execute("DELETE FROM accepted WHERE time < ?", (before,))
        return before

    def close(self) -> None:
        self.flush()
        self._database.close()


def _database(path: str) -> sqlite3.Connection:
    """Only its owner reads the file: ids of calls are enough to fetch their answers."""
    if path != ":memory:":
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        os.chmod(path, 0o600)  # one of an older version
    made = sqlite3.connect(path)
    try:
        made.execute("PRAGMA journal_mode = WAL")
        made.execute("PRAGMA synchronous = NORMAL")
        made.executescript(_SCHEMA)
    except BaseException:
        made.close()
        raise
    return made
