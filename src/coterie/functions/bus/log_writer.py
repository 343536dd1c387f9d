"""The one thread that writes the file of the embedded bus: group commit.

The loop hands over what was published in one of its turns. Whatever has gathered while the last fsync ran goes into the next
transaction together, up to a limit. Offsets are given here, in the order of the file; a transaction that fails has used none,
so what comes after it needs no repair. Changes of topics come through the same queue, so each publish sees the topics as they
are at its place in the file. The loop hears of everything in the same order (`Written`).
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from queue import Empty, SimpleQueue
from typing import Any
from zlib import crc32

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.sqlite_database import explain_error
from coterie.functions.bus.log_file import OFFSET_BITS, PARTITION_IDS, BusFile
from coterie.functions.bus.protocol import BusError, Commit, Entry, Record, UnknownTopic, partition_of
from coterie.functions.bus.topic_state import answer
from coterie.functions.bus.validation import check_partition

_ROWS_PER_STATEMENT = 256
_ENTRIES_PER_TRANSACTION = 2048
_BYTES_PER_TRANSACTION = 16 << 20
_ROWS_PER_DROP = 512
_FREE_PAGES = 4096
"""Pages that stay in the file for reuse (16 MiB); more go back to the file system."""

_log = logger("functions.bus")


class Publication:
    """Entries and commits that are written together."""

    __slots__ = ("commits", "entries", "failure", "future", "records", "size")

    def __init__(
        self, entries: Sequence[Entry], commits: Sequence[Commit], future: asyncio.Future[list[Record]]
    ) -> None:
        self.entries = entries
        self.commits = commits
        self.future = future
        self.size = sum(len(entry.value) for entry in entries)
        self.records: list[Record] = []
        self.failure: BusError | None = None


@dataclass(frozen=True, slots=True)
class TopicChange:
    create: bool
    name: str
    partitions: int
    future: asyncio.Future[bool]
    """Whether something changed."""


@dataclass(frozen=True, slots=True)
class TrimStep:
    topic: str
    before: int
    future: asyncio.Future[tuple[list[int], bool]]
    """The first offset of each partition, and whether that was all."""


Item = list[Publication] | TopicChange | TrimStep | None


class Written:
    """What the loop is told, in the order of the file. Called on the event loop."""

    def published(self, publications: list[Publication]) -> None: ...

    def created(self, topic: str, ids: list[int]) -> None: ...

    def deleted(self, topic: str) -> None: ...

    def trimmed(self, topic: str, firsts: list[int]) -> None: ...

    def ended(self) -> None:
        """Nothing is written any more."""


class _Partition:
    __slots__ = ("end", "first", "id")

    def __init__(self, id: int, first: int, end: int) -> None:
        self.id = id
        self.first = first
        self.end = end


class BusWriter:
    def __init__(self, file: BusFile, written: Written, clock: Clock) -> None:
        self._loop = asyncio.get_running_loop()
        self._written = written
        self._clock = clock
        self._file = file
        self._connection = file.connection
        self._topics = {
            name: [_Partition(each.id, each.first, each.end) for each in partitions]
            for name, partitions in file.content.topics.items()
        }
        self._dropped = deque(file.content.dropped)
        self._next_id = file.content.next_id
        self._final = ""
        """Why nothing is written any more."""
        self._queue: SimpleQueue[Item] = SimpleQueue()
        self._held: deque[Item] = deque()
        """What was taken from the queue and did not belong to the transaction."""
        self._ended: asyncio.Future[None] = self._loop.create_future()
        # A daemon: what it has acknowledged is on disk, so it need not hold up a program that forgot to close.
        self._thread = threading.Thread(target=self._run, name="bus-writer", daemon=True)
        self._thread.start()

    # On the event loop.

    def hand_over(self, item: list[Publication] | TopicChange | TrimStep) -> None:
        self._queue.put(item)

    async def stop(self) -> None:
        """Finish what was handed over, close the file."""
        self._queue.put(None)
        await asyncio.shield(self._ended)
        self._thread.join()

    # On the thread.

    def _run(self) -> None:
        try:
            self._work()
        finally:
            # Also if a fault of ours ends the thread: nobody may wait for an answer for ever.
            self._file.close()
            self._call_in_loop(self._end)

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
        self._written.ended()

    def _work(self) -> None:
        while True:
            item = self._next()
            if item is None:
                return
            if isinstance(item, list):
                self._publish(self._gather(item))
            elif isinstance(item, TopicChange):
                self._answer(item.future, self._change(item))
            else:
                self._answer(item.future, self._trim(item))

    def _next(self) -> Item:
        """What is to be done now. Records of deleted topics are dropped only while there is nothing else to do."""
        if self._held:
            return self._held.popleft()
        while self._dropped:
            try:
                return self._queue.get_nowait()
            except Empty:
                if not self._drop_some():
                    break
        return self._queue.get()

    def _gather(self, first: list[Publication]) -> list[Publication]:
        taken: list[Publication] = []
        entries = size = 0
        pending = deque(first)
        while True:
            while pending:
                each = pending.popleft()
                taken.append(each)
                entries += len(each.entries) + len(each.commits)
                size += each.size
                if entries >= _ENTRIES_PER_TRANSACTION or size >= _BYTES_PER_TRANSACTION:
                    if pending:
                        self._held.appendleft(list(pending))
                    return taken
            try:
                item = self._held.popleft() if self._held else self._queue.get_nowait()
            except Empty:
                return taken
            if not isinstance(item, list):
                self._held.appendleft(item)
                return taken
            pending.extend(item)

    def _publish(self, publications: list[Publication]) -> None:
        ends: dict[int, int] = {}
        rows: list[tuple[int, int, int, str, bytes]] = []
        commits: dict[tuple[int, str], tuple[int, str]] = {}
        now = int(self._clock.now().timestamp() * 1000)
        valid = [each for each in publications if self._resolve(each, now, ends, rows, commits)]
        failure = self._guarded(lambda: self._insert(rows, commits)) if valid else None
        if failure is None:
            for each in valid:
                for record in each.records:
                    self._topics[record.topic][record.partition].end = record.offset + 1
        else:
            for each in valid:
                each.failure = failure
        self._call_in_loop(self._written.published, publications)

    def _resolve(
        self,
        publication: Publication,
        now: int,
        ends: dict[int, int],
        rows: list[tuple[int, int, int, str, bytes]],
        commits: dict[tuple[int, str], tuple[int, str]],
    ) -> bool:
        """Gives offsets to the entries; False, with `failure` set, when a topic or partition is not there."""
        topics = self._topics
        try:
            for commit in publication.commits:
                check_partition(commit.topic, commit.partition, len(topics[commit.topic]))
            for entry in publication.entries:
                topics[entry.topic]
        except KeyError as error:
            publication.failure = UnknownTopic(f"topic {error.args[0]} does not exist")
            return False
        except BusError as error:
            publication.failure = error
            return False
        for entry in publication.entries:
            partitions = topics[entry.topic]
            number = partition_of(entry.key, len(partitions))
            partition = partitions[number]
            offset = ends.get(partition.id, partition.end)
            ends[partition.id] = offset + 1
            checksum = crc32(entry.value, crc32(entry.key.encode()))
            rows.append(((partition.id << OFFSET_BITS) + offset, now, checksum, entry.key, entry.value))
            publication.records.append(Record(entry.topic, number, offset, entry.key, entry.value, now))
        for commit in publication.commits:
            commits[topics[commit.topic][commit.partition].id, commit.group] = commit.offset, commit.note
        return True

    def _insert(
        self, rows: list[tuple[int, int, int, str, bytes]], commits: dict[tuple[int, str], tuple[int, str]]
    ) -> None:
        execute = self._connection.execute
        if len(rows) <= _ROWS_PER_STATEMENT and not commits:
            if rows:
                execute(_insert_records(len(rows)), list(chain.from_iterable(rows)))
            return
        execute("BEGIN IMMEDIATE")
        for at in range(0, len(rows), _ROWS_PER_STATEMENT):
            chunk = rows[at : at + _ROWS_PER_STATEMENT]
            execute(_insert_records(len(chunk)), list(chain.from_iterable(chunk)))
        pairs = [(*key, *value) for key, value in commits.items()]
        for at in range(0, len(pairs), _ROWS_PER_STATEMENT):
            part = pairs[at : at + _ROWS_PER_STATEMENT]
            execute(_insert_commits(len(part)), list(chain.from_iterable(part)))
        execute("COMMIT")

    def _change(self, change: TopicChange) -> bool | BusError:
        name = change.name
        if change.create == (name in self._topics):
            return False
        if change.create:
            ids = list(range(self._next_id, self._next_id + change.partitions))
            if ids[-1] >= PARTITION_IDS:
                return BusError("the bus has had too many topics; start with an empty file")
            rows = [(each, name, number, 0) for number, each in enumerate(ids)]
            failure = self._guarded(lambda: self._in_transaction(("INSERT INTO partitions VALUES (?,?,?,?)", rows)))
            if failure is not None:
                return failure
            self._next_id = ids[-1] + 1
            self._topics[name] = [_Partition(each, 0, 0) for each in ids]
            self._call_in_loop(self._written.created, name, ids)
            return True
        gone = [(each.id,) for each in self._topics[name]]
        failure = self._guarded(
            lambda: self._in_transaction(
                ("UPDATE partitions SET topic = NULL WHERE id = ?", gone),
                ("DELETE FROM commits WHERE partition = ?", gone),
            )
        )
        if failure is not None:
            return failure
        del self._topics[name]
        self._dropped.extend(each for (each,) in gone)
        self._call_in_loop(self._written.deleted, name)
        return True

    def _trim(self, step: TrimStep) -> tuple[list[int], bool] | BusError:
        """Drops some of what is older, of one partition after the other: a long transaction would hold up who publishes."""
        partitions = self._topics.get(step.topic)
        if partitions is None:
            return UnknownTopic(f"topic {step.topic} does not exist")
        for partition in partitions:
            rows = 0

            def drop(partition: _Partition = partition) -> None:
                nonlocal rows
                rows = self._drop(partition.id, partition.first, partition.end, step.before)
                if rows:
                    self._connection.execute(
                        "UPDATE partitions SET floor = ? WHERE id = ?", (partition.first + rows, partition.id)
                    )

            failure = self._guarded(lambda drop=drop: self._transact(drop))  # type: ignore[misc]
            if failure is not None:
                return failure
            if rows:
                partition.first += rows
                firsts = [each.first for each in partitions]
                self._call_in_loop(self._written.trimmed, step.topic, firsts)
                self._guarded(self._shrink)
                return firsts, False
        return [each.first for each in partitions], True

    def _drop_some(self) -> bool:
        """Some records of a deleted topic. False when it does not work now: the next open or deletion goes on."""
        partition = self._dropped[0]
        rows = 0

        def drop() -> None:
            nonlocal rows
            rows = self._drop(partition, 0, 1 << OFFSET_BITS, None)
            if not rows:
                self._connection.execute("DELETE FROM partitions WHERE id = ?", (partition,))

        if self._final or self._guarded(lambda: self._transact(drop)) is not None:
            return False
        if not rows:
            self._dropped.popleft()
        self._guarded(self._shrink)
        return True

    def _drop(self, partition: int, first: int, end: int, before: int | None) -> int:
        """How many records were dropped from the front. Lengths are read from the head of a row, values are not."""
        base = partition << OFFSET_BITS
        found = self._connection.execute(
            "SELECT position, time, length(value) FROM records WHERE position >= ? AND position < ? ORDER BY position LIMIT ?",
            (base + first, base + end, _ROWS_PER_DROP),
        ).fetchall()
        size = rows = 0
        last = -1
        for position, moment, length in found:
            if (before is not None and moment >= before) or size > _BYTES_PER_TRANSACTION:
                break
            size += length
            rows += 1
            last = position
        if rows:
            self._connection.execute("DELETE FROM records WHERE position >= ? AND position <= ?", (base + first, last))
        return rows

    def _shrink(self) -> None:
        (free,) = self._connection.execute("PRAGMA freelist_count").fetchone()
        if free > _FREE_PAGES:
            # As a script: it has a step for each page, and `execute` would do the first alone.
            self._connection.executescript(f"PRAGMA incremental_vacuum({min(free - _FREE_PAGES, _FREE_PAGES)})")

    def _in_transaction(self, *statements: tuple[str, list[Any]]) -> None:
        def work() -> None:
            for statement, rows in statements:
                self._connection.executemany(statement, rows)

        self._transact(work)

    def _transact(self, work: Callable[[], None]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        work()
        self._connection.execute("COMMIT")

    def _guarded(self, work: Callable[[], None]) -> BusError | None:
        """Runs `work`; undone, and why, when it failed."""
        if self._final:
            return BusError(self._final)
        try:
            work()
        except (sqlite3.Error, OSError) as error:
            reason, final = explain_error(error)
            try:
                self._connection.rollback()
            except sqlite3.Error:
                final = True
            reason = f"the bus at {self._file.path} cannot write: {reason}"
            if final:
                reason = self._final = f"{reason}; it must be opened again"
            _log.error("Bus write failed", reason=reason, final=final)
            return BusError(reason)
        return None

    def _answer(self, future: asyncio.Future[Any], result: Any) -> None:
        self._call_in_loop(answer, future, result)

    def _call_in_loop(self, callback: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            _log.warning("Event loop ended before its bus was closed")


@lru_cache(maxsize=_ROWS_PER_STATEMENT)
def _insert_records(rows: int) -> str:
    return "INSERT INTO records VALUES " + ",".join(["(?,?,?,?,?)"] * rows)


@lru_cache(maxsize=_ROWS_PER_STATEMENT)
def _insert_commits(rows: int) -> str:
    values = ",".join(["(?,?,?,?)"] * rows)
    return (
        f"INSERT INTO commits VALUES {values} ON CONFLICT DO UPDATE SET offset = excluded.offset, note = excluded.note"
    )
