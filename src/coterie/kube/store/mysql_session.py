"""The session of a store in MySQL: its connections, each in a thread while it is used, and what any server may do over them:
read, keep leases, move the mark of compaction, restore. Who writes is in `mysql.py`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.base.store_address import StoreAddress
from coterie.kube.store import mysql_schema as sql
from coterie.kube.store.mysql_connection import MysqlStoreConnection, StatementFailed, tls_of
from coterie.kube.store.mysql_decisions import lease_gone
from coterie.kube.store.protocol import Compacted, RecordPage, StoreError, StoreEvent, StoreRecord, StoreUnavailable
from coterie.kube.store.rows import StoreRow, event_of, prefix_end, record_of
from coterie.kube.store.shared import SharedStore, check_ttl

PAGE_ROWS = 2000
FOLLOW_ROWS = 1000
MARGIN = 64 * 1024
"""Of a packet, for statements without their values."""
ANSWERED_WITHIN = 10.0
ASKED_SECONDS = 0.01
REQUESTS_LIVE = 30.0
_IDLE_SECONDS = 12
"""The database closes the writer's connection after so long without a word: a client that sleeps holds no lock for longer."""
_LONG_IDLE_SECONDS = 3600
_READERS = 2
_SWEEP_STEP = 2000
_log = logger("store.mysql")

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class MysqlHead:
    history: int
    revision: int
    compacted: int
    epoch: int
    beat: int
    holder: str
    format: int


class MysqlLane:
    """A connection that one task uses at a time, whoever comes first."""

    def __init__(self, connection: MysqlStoreConnection) -> None:
        self.connection = connection
        self.turn = asyncio.Lock()


@dataclass(eq=False)
class MysqlSession:
    writer: MysqlLane
    follower: MysqlLane
    asker: MysqlLane
    readers: list[MysqlLane]
    ended: asyncio.Future[str]
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def all(self) -> list[MysqlLane]:
        return [self.writer, self.follower, self.asker, *self.readers]

    def end(self, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)
        self.woken.set()

    def abandon(self) -> None:
        self.end("the session was given up")
        for each in self.all:
            each.connection.interrupt()


class MysqlSessions(SharedStore):
    """All but writing."""

    def __init__(self, address: StoreAddress, *, clock: Clock, watch_limit: int) -> None:
        super().__init__(address.label, clock=clock, watch_limit=watch_limit)
        self._address = address
        self._threads = ThreadPoolExecutor(3 + _READERS, thread_name_prefix="store-mysql")
        self._session: MysqlSession | None = None
        self._epoch = 0
        """Ours, while this server is the holder."""

    async def close(self) -> None:
        closing = self._opened
        await super().close()
        if closing:  # who closes it a second time does not wait for the first
            self._threads.shutdown(wait=False)

    # Threads.

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Returns only when the thread is done, also where the caller is cancelled: the connection is not free before."""
        running = self._loop.run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait((running,))
            if not running.cancelled():
                running.exception()
            raise

    async def _on(self, session: MysqlSession, lane: MysqlLane, work: Callable[[MysqlStoreConnection], T]) -> T:
        """`work` on a connection. A connection that fails ends the session."""
        async with lane.turn:
            if session.ended.done():
                raise StoreUnavailable(session.ended.result())
            try:
                return await self._in_thread(lambda: work(lane.connection))
            except StoreUnavailable as problem:
                session.end(str(problem))
                raise

    async def _read(self, work: Callable[[MysqlStoreConnection], T]) -> T:
        session = self._there()
        lane = min(session.readers, key=lambda each: each.turn.locked())
        return await self._on(session, lane, work)

    # The session.

    async def _connected(self) -> MysqlSession:
        problem: StoreError = StoreUnavailable(f"{self.label}: no host")
        for host in self._address.hosts:
            made: list[MysqlStoreConnection] = []
            try:
                tls = await self._in_thread(lambda: tls_of(self._address))
                for number in range(3 + _READERS):
                    one = MysqlStoreConnection(
                        self._address,
                        host,
                        isolation="REPEATABLE READ" if number else "READ COMMITTED",
                        idle_seconds=_LONG_IDLE_SECONDS if number else _IDLE_SECONDS,
                        tls=tls,
                    )
                    made.append(one)
                    await self._in_thread(one.connect)
                    if one.read_only:
                        raise StoreUnavailable(f"{self.label}: {host[0]} cannot be written to (read_only)")
                if not made[0].durable:
                    _log.warning(
                        "The database may lose acknowledged writes: innodb_flush_log_at_trx_commit is not 1",
                        store=self.label,
                    )
                lanes = [MysqlLane(each) for each in made]
                return MysqlSession(lanes[0], lanes[1], lanes[2], lanes[3:], self._loop.create_future())
            except BaseException as failed:
                for each in made:
                    each.interrupt()
                    each.close()
                if not isinstance(failed, StoreUnavailable):
                    raise
                problem = failed
        raise problem

    def _make_tables(self, connection: MysqlStoreConnection) -> MysqlHead:
        try:
            for statement in (*sql.TABLES, sql.first_head(secrets.randbits(62))):
                connection.run(statement)
        except StatementFailed as problem:
            raise StoreError(f"{self.label}: the tables cannot be made: {problem}") from problem
        _log.info("Tables of the store were made", store=self.label)
        head = head_of(connection)
        if head is None:
            raise StoreUnavailable(f"{self.label}: its tables are empty")
        return head

    async def _end(self, session: MysqlSession) -> None:
        session.abandon()
        for lane in session.all:
            async with lane.turn:  # interrupted: whatever ran has failed
                await self._in_thread(lane.connection.close)

    def _there(self) -> MysqlSession:
        """Also while the store is being closed: what was accepted is still written."""
        session = self._session
        if session is None or session.ended.done() or self._away:
            raise StoreUnavailable(self._away or f"{self.label}: {session.ended.result() if session else 'no session'}")
        return session

    # Reading.

    async def _load(self, key: str, revision: int) -> tuple[int, StoreRecord | None]:
        statements = [sql.SNAPSHOT, sql.HEAD, sql.newest_of(key.encode(), revision), sql.COMMIT]
        found = await self._read(lambda c: c.packet_of(statements))
        head = MysqlHead(*found[1][0])
        at = revision or head.revision
        if at < head.compacted:
            raise Compacted(at, head.compacted)
        row = row_of(found[2][0]) if found[2] else None
        return at, None if row is None or row.deleted else record_of(row)

    async def _load_page(self, prefix: str, revision: int, after: str, limit: int) -> RecordPage:
        end = prefix_end(prefix)
        last = None if end is None else end.encode()
        records: list[StoreRecord] = []
        at, cursor = revision, after.encode()
        while True:
            wanted = min(limit + 1 - len(records), PAGE_ROWS) if limit else PAGE_ROWS
            statements = [sql.SNAPSHOT, sql.HEAD, sql.page(prefix.encode(), last, cursor, at, wanted), sql.COMMIT]
            found = await self._read(lambda c, s=statements: c.packet_of(s))  # type: ignore[misc]
            head = MysqlHead(*found[1][0])
            at = at or head.revision
            if at < head.compacted:
                if revision:
                    raise Compacted(at, head.compacted)
                records, at, cursor = [], 0, after.encode()
                continue
            rows = [row_of(each) for each in found[2]]
            records += [record_of(row) for row in rows if not row.deleted]
            if len(rows) < wanted or (limit and len(records) > limit):
                break
            cursor = rows[-1].key.encode()
        more = bool(limit) and len(records) > limit
        return RecordPage(at, records[:limit] if more else records, more)

    async def _load_history(self, prefix: str, after: int, upto: int) -> AsyncGenerator[Sequence[StoreEvent], None]:
        end = prefix_end(prefix)
        last = None if end is None else end.encode()
        cursor, limit = after, FOLLOW_ROWS // 2
        while cursor < upto:
            ask = sql.history(prefix.encode(), last, cursor, upto, limit)
            found = await self._read(lambda c, a=ask: c.packet_of([sql.SNAPSHOT, sql.HEAD, a, sql.COMMIT]))  # type: ignore[misc]
            mark = MysqlHead(*found[1][0]).compacted
            if mark > cursor:
                raise Compacted(cursor, mark)
            rows = [row_of(each) for each in found[2]]
            if rows:
                yield [event_of(row) for row in rows]
            if len(rows) < limit:
                return
            cursor = rows[-1].revision

    # Forgetting.

    async def _compact(self, revision: int) -> int:
        """Anybody moves the mark; the holder drops."""

        def mark(connection: MysqlStoreConnection) -> int:
            connection.run(f"UPDATE coterie_head SET compacted = GREATEST(compacted, {revision}) WHERE one = 1")
            head = head_of(connection)
            return head.compacted if head is not None else 0

        reached = await self._read(mark)
        if not self._epoch:
            return reached
        forgotten = f"DELETE FROM coterie_requests WHERE asked < {sql.NOW} - {2 * REQUESTS_LIVE}"
        with suppress(StatementFailed):  # of servers that did not come back for their answers
            await self._read(lambda c: c.run(forgotten))
        ((swept,),) = await self._read(lambda c: c.query("SELECT swept FROM coterie_sweeping"))
        for start in range(swept, reached, _SWEEP_STEP):
            steps = sql.sweep(start, min(start + _SWEEP_STEP, reached))

            def sweep(connection: MysqlStoreConnection, steps: Sequence[str] = steps) -> None:
                for each in steps:
                    connection.run(each)

            try:
                await self._read(sweep)
            except StatementFailed as problem:
                if not problem.undone:
                    raise
                break  # in the way of a writer; the next compaction goes on here
        return reached

    # Leases.

    async def grant(self, ttl: float) -> int:
        self._check_there()
        check_ttl(ttl)

        def insert(connection: MysqlStoreConnection) -> int:
            connection.run(
                f"INSERT INTO coterie_leases (ttl, deadline) VALUES ({float(ttl)!r}, {sql.NOW} + {float(ttl)!r})"
            )
            return connection.last_id()

        return await self._read(insert)

    async def keep_alive(self, lease: int) -> float:
        self._check_there()

        def extend(connection: MysqlStoreConnection) -> float:
            there = f"id = {lease} AND deadline > {sql.NOW}"
            if not connection.run(f"UPDATE coterie_leases SET deadline = {sql.NOW} + ttl WHERE {there}"):
                raise lease_gone(lease)
            ((ttl,),) = connection.query(f"SELECT ttl FROM coterie_leases WHERE id = {lease}")
            return float(ttl)

        return await self._read(extend)

    async def revoke(self, lease: int) -> None:
        self._check_there()
        end = f"UPDATE coterie_leases SET deadline = 0 WHERE id = {lease} AND deadline > {sql.NOW}"
        if not await self._read(lambda c: c.run(end)):
            raise lease_gone(lease)
        waited = self._clock.monotonic()
        there = f"SELECT 1 FROM coterie_leases WHERE id = {lease}"
        while await self._read(lambda c: c.query(there)):
            if self._clock.monotonic() - waited > ANSWERED_WITHIN:
                raise StoreUnavailable(f"{self.label}: the lease ended, but nobody has taken its keys away yet")
            self._there().woken.set()
            await self._clock.sleep(ASKED_SECONDS)
        await self.reached(await self.current())

    # Restoring.

    async def replace(self, records: Sequence[StoreRecord], above: int) -> int:
        """Everything that is here goes, `records` come in its place, with revisions higher than `above` and than any that was
        given out here; one transaction. Servers that run find another history and read all anew. Returns the revision."""

        def work(connection: MysqlStoreConnection) -> int:
            connection.patient()
            connection.run("START TRANSACTION")
            ((newest,),) = connection.query("SELECT revision FROM coterie_head WHERE one = 1 FOR UPDATE")
            base = max(newest, above) + 1
            for table in ("coterie_log", "coterie_leases", "coterie_requests"):
                connection.run(f"DELETE FROM {table}")
            rows = [
                StoreRow(base + n, each.key, base + n, 0, 0, 0, each.value, None) for n, each in enumerate(records, 1)
            ]
            for part in _pieces(rows, (connection.packet - MARGIN) // 3):
                connection.run(sql.insert(part))
            reached = base + len(rows)
            connection.run(f"UPDATE coterie_sweeping SET swept = {reached}")
            connection.run(
                f"UPDATE coterie_head SET revision = {reached}, compacted = {reached}, history = {secrets.randbits(62)},"
                " epoch = epoch + 1, beat = beat + 1, holder = '' WHERE one = 1"
            )
            connection.run(sql.COMMIT)
            return int(reached)

        session = self._there()
        try:
            return await self._on(session, session.writer, work)
        except StatementFailed as problem:
            raise StoreError(str(problem)) from problem


def head_of(connection: MysqlStoreConnection) -> MysqlHead | None:
    found = connection.query(sql.HEAD)
    return MysqlHead(*found[0]) if found else None


def row_of(found: tuple[Any, ...]) -> StoreRow:
    revision, key, created, previous, deleted, lease, value = found
    return StoreRow(revision, key.decode(), created, previous, deleted, lease, value, None)


def _pieces(rows: Sequence[StoreRow], room: int) -> list[list[StoreRow]]:
    pieces: list[list[StoreRow]] = []
    size = room + 1
    for row in rows:
        needed = len(row.value or b"") + len(row.key) + 100
        if size + needed > room:
            pieces.append([])
            size = 0
        pieces[-1].append(row)
        size += needed
    return pieces
