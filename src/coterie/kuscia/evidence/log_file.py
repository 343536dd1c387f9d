"""The log of one domain in one SQLite file. An append that was acknowledged is on disk.

    append ─▶ waiting ┐                                   ┌─▶ futures: index of each event
    writer thread:    └─▶ one transaction: bodies, hashes ┘   (WAL, synchronous=FULL: one fsync for all that wait)

`leaves` has an event (see `body_compression.py`) and its hash per row, `nodes` the complete subtrees above (see `merkle.py`),
`disclosures` salt and value of commitments, `witnessed` the newest checkpoint of each partner that this domain cosigned. Rows of the first
two are never changed; retention sets bodies to NULL and keeps the hashes. A disclosure is found by the first 8 bytes of its commitment,
which is not stored a second time, and by those of a hash of its value.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import queue
import re
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from msgspec import structs

from coterie.base.clock import Clock
from coterie.kuscia.api import evidence
from coterie.kuscia.api.evidence import EvidenceError, EvidenceEvent
from coterie.kuscia.evidence import merkle
from coterie.kuscia.evidence.body_compression import compressed, expanded
from coterie.kuscia.evidence.merkle import RunningRoot

T = TypeVar("T")
_BATCH = 512
_MOST_IDLE = 4
FILE_VERSION = 2
_SCHEMA = """
CREATE TABLE IF NOT EXISTS leaves (id INTEGER PRIMARY KEY, body BLOB, hash BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS nodes (level INTEGER NOT NULL, id INTEGER NOT NULL, hash BLOB NOT NULL, PRIMARY KEY (level, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS disclosed (id INTEGER PRIMARY KEY, salt BLOB NOT NULL, value BLOB NOT NULL, subject TEXT NOT NULL, lookup INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS disclosed_by_value ON disclosed (lookup);
CREATE TABLE IF NOT EXISTS witnessed (origin TEXT PRIMARY KEY, size INTEGER NOT NULL, root BLOB NOT NULL, note TEXT NOT NULL, time INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS statements (task TEXT PRIMARY KEY, envelope BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS heads (size INTEGER PRIMARY KEY, note TEXT NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Disclosure:
    """What a commitment stands for, as long as its salt exists."""

    commitment: str
    salt: bytes = field(repr=False)
    value: str = field(repr=False)
    subject: str = ""
    """What kind of value: person, table, ..."""


@dataclass(frozen=True, slots=True)
class StoredEvent:
    index: int
    body: bytes | None
    """None: removed by retention."""
    hash: bytes


@dataclass(slots=True)
class _Append:
    bodies: Sequence[bytes]
    disclosures: Sequence[Disclosure]
    done: asyncio.Future[int]
    loop: asyncio.AbstractEventLoop


@dataclass(slots=True)
class _Task:
    work: Callable[[sqlite3.Connection], Any]
    done: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    deletes: bool = False


class EvidenceReader:
    """Reads a log while another process or thread writes it; from any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def size(self) -> int:
        """Events that are on disk."""
        with self._connected() as connection:
            return _size(connection)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=10)
        connection.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA secure_delete=ON;")
        return connection

    def _connected(self) -> _Connected:
        return _Connected(self._connect())

    def root(self, size: int) -> bytes:
        with self._connected() as connection:
            return merkle.root_of(size, lambda level, index: read_hash(connection, level, index))

    def recomputed(self, known: merkle.RunningRoot, size: int) -> merkle.RunningRoot:
        """The tree of the first `size` events from their bytes on disk, going on from `known`: what is signed must be what is stored.
        Raises EvidenceError."""
        known = known.copy()
        with self._connected() as connection:
            for event in read_events(connection, known.size, size):
                if event.index != known.size:
                    raise EvidenceError(
                        f"event {known.size} of the evidence log is missing: it is damaged or was changed"
                    )
                if event.body is not None and merkle.leaf_hash(event.body) != event.hash:
                    raise EvidenceError(
                        f"event {event.index} on disk is not what was written: the file is damaged or was changed"
                    )
                known.add(event.hash)
        if known.size != size:
            raise EvidenceError(f"the evidence log has {known.size} events where {size} were written: it is damaged")
        return known

    def heads(self) -> list[tuple[int, str]]:
        """(size, note) of all checkpoints that were signed, the oldest first."""
        with self._connected() as connection:
            return list(connection.execute("SELECT size, note FROM heads ORDER BY size"))

    def statements(self, task: str = "") -> list[bytes]:
        """Envelopes of task statements: all, or that of one task."""
        with self._connected() as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'statements'").fetchone():
                return []
            rows = connection.execute(
                "SELECT envelope FROM statements WHERE ? = '' OR task = ? ORDER BY task", (task, task)
            )
            return [bytes(row[0]) for row in rows]

    def inclusion(self, index: int, size: int) -> list[bytes]:
        with self._connected() as connection:
            return merkle.inclusion_proof(index, size, lambda level, at: read_hash(connection, level, at))

    def consistency(self, old: int, size: int) -> list[bytes]:
        with self._connected() as connection:
            return merkle.consistency_proof(old, size, lambda level, at: read_hash(connection, level, at))

    def events(self, begin: int = 0, end: int | None = None) -> Iterator[StoredEvent]:
        with self._connected() as connection:
            yield from read_events(connection, begin, self.size if end is None else end)

    def newest_events(self, before: int | None = None) -> Iterator[StoredEvent]:
        """From the last one on backwards; `before`: only those with a smaller index."""
        with self._connected() as connection:
            yield from read_events(connection, 0, self.size if before is None else before, newest_first=True)

    def disclosures(self) -> dict[str, Disclosure]:
        """All of them, by commitment."""
        with self._connected() as connection:
            found = map(_disclosure, connection.execute("SELECT salt, value, subject FROM disclosed"))
            return {each.commitment: each for each in found}

    def disclosed(self, commitments: Iterable[str]) -> dict[str, str]:
        """The values of these commitments, as far as their salts exist."""
        found = {}
        with self._connected() as connection:
            for commitment in {each for each in commitments if _COMMITMENT.fullmatch(each)}:
                row = connection.execute(
                    "SELECT salt, value, subject FROM disclosed WHERE id = ?", (_short(bytes.fromhex(commitment)),)
                ).fetchone()
                if row is not None and (each := _disclosure(row)).commitment == commitment:
                    found[commitment] = each.value
        return found


class EvidenceFile(EvidenceReader):
    """One process writes; any number may read the file meanwhile."""

    def __init__(self, path: Path, clock: Clock) -> None:
        """Raises EvidenceError when the file cannot be used."""
        super().__init__(path)
        self._clock = clock
        self._waiting: queue.SimpleQueue[_Append | _Task | None] = queue.SimpleQueue()
        self._known: dict[tuple[str, str], Disclosure] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._idle: list[_Opened] = []
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._connected() as connection:
                _prepare(connection, path)
                self._tree = _stored_tree(connection)
            os.chmod(path, 0o600)
        except (OSError, sqlite3.Error) as problem:
            raise EvidenceError(f"the evidence log {path} cannot be opened: {problem}") from problem
        self._thread = threading.Thread(target=self._write_all, name="evidence-writer", daemon=True)
        self._thread.start()

    @property
    def size(self) -> int:
        """Events that are on disk."""
        return self._tree.size

    # Connections for reading: each is used by one reader at a time, and the last ones are kept.

    def _connected(self) -> _Connected:
        file = _file_number(self.path)
        while self._idle:
            try:
                opened = self._idle.pop()
            except IndexError:
                break  # another thread took it
            if opened.file == file:
                return _Connected(opened.connection, partial(self._keep, opened))
            # Another file was put in its place: that one is what is read.
            opened.connection.close()
        opened = _Opened(self._connect(), file)
        return _Connected(opened.connection, partial(self._keep, opened))

    def _keep(self, opened: _Opened) -> bool:
        if self._closed or not opened.file or len(self._idle) >= _MOST_IDLE:
            return False
        self._idle.append(opened)
        return True

    # Writing.

    async def append(self, *events: EvidenceEvent, disclosures: Sequence[Disclosure] = ()) -> int:
        """The index of the first, once all are on disk. All or none. Raises EvidenceError; ValueError for a bad event."""
        now = int(self._clock.now().timestamp() * 1000)
        bodies = [evidence.encode(each if each.time else structs.replace(each, time=now)) for each in events]
        self._check_open()
        loop = asyncio.get_running_loop()
        waiting = _Append(bodies, disclosures, loop.create_future(), loop)
        self._waiting.put(waiting)
        # A caller that gives up must not leave the question open whether the event is there.
        return await asyncio.shield(waiting.done)

    def commit(self, value: str, subject: str) -> Disclosure:
        """The commitment to a value: the same for the same value, so that its events can be found and erased together. Pass the result to
        `append` with the event that uses it."""
        with self._lock:
            known = self._known.get((subject, value))
            if known is None:
                known = self.find(value, subject)
                if known is None:
                    salt = os.urandom(evidence.SALT_SIZE)
                    known = Disclosure(evidence.commitment(salt, value), salt, value, subject)
                if len(self._known) > 4096:
                    # The older ones: a commitment that was just made is not on disk yet.
                    for old in list(self._known)[:2048]:
                        del self._known[old]
                self._known[subject, value] = known
            return known

    def find(self, value: str, subject: str) -> Disclosure | None:
        """What stands for a value already."""
        with self._connected() as connection:
            return _found(connection, value, subject)

    async def execute(self, work: Callable[[sqlite3.Connection], T], *, deletes: bool = False) -> T:
        """In a transaction of the writer: for tables beside the events. Raises EvidenceError, and what `work` raises."""
        self._check_open()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._waiting.put(_Task(work, done, loop, deletes))
        return await asyncio.shield(done)

    async def erase(self, value: str, subject: str) -> int:
        """Destroys the salt: from then on nobody can show or guess what the commitment stood for. The number of commitments; the
        erasure itself is an event of the caller."""

        def drop(connection: sqlite3.Connection) -> int:
            count = 0
            while found := _found(connection, value, subject):
                count += connection.execute(
                    "DELETE FROM disclosed WHERE id = ?", (_short(bytes.fromhex(found.commitment)),)
                ).rowcount
            return count

        count = await self.execute(drop, deletes=True)
        with self._lock:
            self._known.pop((subject, value), None)
        return count

    async def remove_bodies(self, before: int) -> int:
        """Of events with a smaller index, but the first, which certifies the key. Their hashes stay, so the tree stays the same. What no
        event that is left stands for goes too. The number of events."""

        def drop(connection: sqlite3.Connection) -> int:
            count = connection.execute(
                "UPDATE leaves SET body = NULL WHERE id > 0 AND id < ? AND body IS NOT NULL", (before,)
            ).rowcount
            if count:
                _drop_unused_disclosures(connection)
            return count

        return await self.execute(drop, deletes=True)

    async def keep_head(self, size: int, note: str) -> None:
        """A signed checkpoint; one with cosignatures replaces the one without."""

        def keep(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR REPLACE INTO heads VALUES (?, ?)", (size, note))

        await self.execute(keep)

    def _check_open(self) -> None:
        if self._closed:
            raise EvidenceError(f"the evidence log {self.path} was closed")

    async def keep_statement(self, task: str, envelope: bytes) -> None:
        """Of a task: the newest, which has the most signatures."""

        def keep(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR REPLACE INTO statements VALUES (?, ?)", (task, envelope))

        if await self.statement(task) != envelope:
            await self.execute(keep)

    async def statement(self, task: str) -> bytes | None:
        found = await asyncio.to_thread(self.statements, task)
        return found[0] if found else None

    async def close(self) -> None:
        self._closed = True
        self._waiting.put(None)
        await asyncio.to_thread(self._thread.join)
        while self._idle:
            self._idle.pop().connection.close()

    def _write_all(self) -> None:
        connection: sqlite3.Connection | None = None
        for batch in self._batches():
            try:
                connection = connection or self._connect()
                results = self._write(connection, batch)
            except Exception as problem:  # noqa: BLE001 - whoever waits gets it; the writer goes on for the next
                if connection is not None:
                    connection.close()
                    connection = None
                why = f"evidence cannot be written to {self.path}: {problem}; free the disk or repair the file"
                failure = EvidenceError(why) if isinstance(problem, (sqlite3.Error, OSError)) else problem
                _finish(batch, [failure] * len(batch))
            else:
                _finish(batch, results)
        if connection is not None:
            connection.close()

    def _batches(self) -> Iterator[list[_Append | _Task]]:
        """All appends that wait; each task alone."""
        batch: list[_Append | _Task] = []
        while True:
            try:
                item = self._waiting.get(block=not batch)
            except queue.Empty:
                yield batch
                batch = []
                continue
            if isinstance(item, _Append) and len(batch) < _BATCH:
                batch.append(item)
                continue
            if batch:
                yield batch
                batch = []
            if item is None:
                return
            if isinstance(item, _Append):
                batch.append(item)
            else:
                yield [item]

    def _write(self, connection: sqlite3.Connection, batch: Sequence[_Append | _Task]) -> list[object]:
        connection.execute("BEGIN IMMEDIATE")
        try:
            tree = self._tree.copy()
            results: list[object] = []
            rows = _Rows()
            for item in batch:
                if isinstance(item, _Task):
                    results.append(item.work(connection))
                else:
                    results.append(tree.size)
                    rows.add(tree, item)
            rows.insert(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        self._tree = tree
        if any(isinstance(item, _Task) and item.deletes for item in batch):
            # Nothing of what was deleted stays in the write-ahead log.
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return results


class _Rows:
    """What a transaction adds."""

    def __init__(self) -> None:
        self.leaves: list[tuple[int, bytes, bytes]] = []
        self.nodes: list[tuple[int, int, bytes]] = []
        self.disclosed: dict[str, Disclosure] = {}

    def add(self, tree: RunningRoot, item: _Append) -> None:
        for each in item.disclosures:
            self.disclosed[each.commitment] = each
        for body in item.bodies:
            leaf = merkle.leaf_hash(body)
            self.leaves.append((tree.size, compressed(body), leaf))
            tree.add(leaf, self.nodes)

    def insert(self, connection: sqlite3.Connection) -> None:
        connection.executemany("INSERT INTO leaves VALUES (?, ?, ?)", self.leaves)
        connection.executemany("INSERT INTO nodes VALUES (?, ?, ?)", self.nodes)
        insert_disclosures(connection, self.disclosed.values())


@dataclass(frozen=True, slots=True)
class _Opened:
    connection: sqlite3.Connection
    file: tuple[int, int] | None
    """Which file it reads."""


class _Connected:
    """Closed at the end, unless somebody keeps it. After an error it is closed in any case."""

    def __init__(self, connection: sqlite3.Connection, keep: Callable[[], bool] = lambda: False) -> None:
        self._connection = connection
        self._keep = keep

    def __enter__(self) -> sqlite3.Connection:
        return self._connection

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None or not self._keep():
            self._connection.close()


def _file_number(path: Path) -> tuple[int, int] | None:
    """None where there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Tables of this version; those of the version before are brought over. Raises EvidenceError for a newer one."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version == FILE_VERSION:
        return
    if version > FILE_VERSION:
        raise EvidenceError(
            f"the evidence log {path} is of version {version}, this program knows versions up to {FILE_VERSION}: "
            "use the newer program that wrote it"
        )
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in filter(str.strip, _SCHEMA.split(";")):
            connection.execute(statement)
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'disclosures'").fetchone():
            rows = connection.execute("SELECT commitment, salt, value, subject FROM disclosures").fetchall()
            insert_disclosures(connection, [Disclosure(*row) for row in rows])
            connection.execute("DROP TABLE disclosures")
        connection.execute(f"PRAGMA user_version = {FILE_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _stored_tree(connection: sqlite3.Connection) -> RunningRoot:
    return RunningRoot.of(_size(connection), partial(read_hash, connection))


_COMMITMENT = re.compile(r"[0-9a-f]{64}")
_HEX = re.compile(rb'"([0-9a-f]{64})"')


def _short(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big", signed=True)


def _value_lookup(value: str, subject: str) -> int:
    return _short(hashlib.sha256(f"{subject}\n{value}".encode()).digest())


def insert_disclosures(connection: sqlite3.Connection, disclosures: Iterable[Disclosure]) -> None:
    connection.executemany(
        "INSERT OR IGNORE INTO disclosed VALUES (?, ?, ?, ?, ?)",
        [
            (
                _short(bytes.fromhex(each.commitment)),
                each.salt,
                compressed(each.value.encode()),
                each.subject,
                _value_lookup(each.value, each.subject),
            )
            for each in disclosures
        ],
    )


def _disclosure(row: tuple[bytes, bytes, str]) -> Disclosure:
    salt, stored, subject = row
    value = expanded(stored).decode()
    return Disclosure(evidence.commitment(salt, value), salt, value, subject)


def _drop_unused_disclosures(connection: sqlite3.Connection) -> None:
    used: set[int] = set()
    for (body,) in connection.execute("SELECT CAST(body AS BLOB) FROM leaves WHERE body IS NOT NULL"):
        used.update(_short(bytes.fromhex(each.decode())) for each in _HEX.findall(expanded(body)))
    unused = [(each,) for (each,) in connection.execute("SELECT id FROM disclosed") if each not in used]
    connection.executemany("DELETE FROM disclosed WHERE id = ?", unused)


def _found(connection: sqlite3.Connection, value: str, subject: str) -> Disclosure | None:
    for row in connection.execute(
        "SELECT salt, value, subject FROM disclosed WHERE lookup = ?", (_value_lookup(value, subject),)
    ):
        found = _disclosure(row)
        if (found.value, found.subject) == (value, subject):
            return found
    return None


def _size(connection: sqlite3.Connection) -> int:
    found: int = connection.execute("SELECT coalesce(max(id) + 1, 0) FROM leaves").fetchone()[0]
    return found


def read_hash(connection: sqlite3.Connection, level: int, index: int) -> bytes:
    if level:
        row = connection.execute("SELECT hash FROM nodes WHERE level = ? AND id = ?", (level, index)).fetchone()
    else:
        row = connection.execute("SELECT hash FROM leaves WHERE id = ?", (index,)).fetchone()
    if row is None:
        raise EvidenceError(
            f"the evidence log has no hash {index} of level {level}: it is damaged; restore it or `coterie audit reopen`"
        )
    found: bytes = row[0]
    return found


def read_events(
    connection: sqlite3.Connection, begin: int, end: int, *, newest_first: bool = False
) -> Iterator[StoredEvent]:
    order = "DESC" if newest_first else "ASC"
    for index, body, leaf in connection.execute(
        f"SELECT id, CAST(body AS BLOB), hash FROM leaves WHERE id >= ? AND id < ? ORDER BY id {order}", (begin, end)
    ):
        yield StoredEvent(index, body if body is None else expanded(body), leaf)


def _finish(batch: Sequence[_Append | _Task], results: Sequence[object]) -> None:
    for item, result in zip(batch, results, strict=True):
        item.loop.call_soon_threadsafe(_settle, item.done, result)


def _settle(done: asyncio.Future[Any], result: object) -> None:
    if done.done():
        return
    if isinstance(result, Exception):
        done.set_exception(result)
    else:
        done.set_result(result)
