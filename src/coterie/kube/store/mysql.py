"""The log in MySQL: one server writes, the others follow it, and hand their writes to it.

    holder     decides on its own copy of all heads; each batch is one packet of statements that begins with the fence
    standby    reads the log (MySQL has no NOTIFY: it asks), serves reads and watches, puts its writes into
               `coterie_requests`, where the holder finds them; a write and its answer are one transaction
    take-over  by a standby for which the holder's heartbeat stood still for a lease, by its own clock

The fence is `coterie_head.epoch`. Who takes over counts it up, and a batch of the holder before ends at its first statement,
however late it comes. Time only decides when somebody tries; nothing is wrong when two think that they hold it. See
`shared.py` for what happens when a session ends, `mysql_schema.py` for the tables.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import socket
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.base.store_address import StoreAddress
from coterie.kube.store import mysql_schema as sql
from coterie.kube.store.core import WATCH_LIMIT
from coterie.kube.store.mysql_connection import NOTHING_THERE, MysqlStoreConnection, StatementFailed
from coterie.kube.store.mysql_decisions import (
    DecidedBatch,
    KeyHead,
    answer_from_json,
    answer_to_json,
    decide,
    error_of,
    records_of,
    write_from_json,
    write_to_json,
)
from coterie.kube.store.mysql_session import (
    ANSWERED_WITHIN,
    ASKED_SECONDS,
    FOLLOW_ROWS,
    MARGIN,
    PAGE_ROWS,
    REQUESTS_LIVE,
    MysqlHead,
    MysqlSession,
    MysqlSessions,
    head_of,
    row_of,
)
from coterie.kube.store.protocol import (
    CompareFailed,
    Op,
    PutOp,
    StoreError,
    StoreRecord,
    StoreUnavailable,
    Unsettled,
    ValueTooLarge,
)
from coterie.kube.store.rows import StoreRow, event_of, record_of
from coterie.kube.store.shared import SharedWrite

LEASE_SECONDS = 6.0
"""A holder whose heartbeat stands still for so long is replaced."""
_BEAT_SECONDS = 1.0
_FOLLOW_SECONDS = 0.05
_QUIET_SECONDS = 0.2
"""How often the holder looks for requests where none came lately."""
_LATELY_SECONDS = 30.0
_BATCH = 256
_BATCH_BYTES = 4 * 1024 * 1024
_log = logger("store.mysql")

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _HolderWrite:
    """One write on its way to the log: of this server (`write`), or of another (`request`)."""

    ops: Sequence[Op]
    write: SharedWrite | None = None
    request: tuple[int, int] | None = None


@dataclass(slots=True, eq=False)
class _ForwardedWrite:
    write: SharedWrite
    since: float
    withdrawn: bool = False


class MysqlStore(MysqlSessions):
    def __init__(
        self,
        address: StoreAddress,
        *,
        clock: Clock = SYSTEM_CLOCK,
        watch_limit: int = WATCH_LIMIT,
        lease_seconds: float = LEASE_SECONDS,
        following: bool = False,
    ) -> None:
        """`following`: never take over; for tools that read."""
        super().__init__(address, clock=clock, watch_limit=watch_limit)
        self._following = following
        self._lease_seconds = lease_seconds
        self._name = f"{socket.gethostname()[:200]} (process {os.getpid()})"
        self._asker = secrets.randbits(62)
        self._queue: deque[SharedWrite] = deque()
        self._requests: deque[_HolderWrite] = deque()
        self._queued = asyncio.Event()
        self._forwarded: dict[int, _ForwardedWrite] = {}
        self._numbers = itertools.count(1)
        self._heads: dict[str, KeyHead] = {}
        self._keys_of: dict[int, set[str]] = {}
        """Keys of each lease."""
        self._history = 0
        self._last_epoch = 0
        self._taken: set[tuple[int, int]] = set()
        self._holder = ""
        self._seen: tuple[int, int] = (0, 0)
        self._seen_since = 0.0
        self._asked_lately = float("-inf")
        self._beaten = 0.0

    @property
    def active(self) -> bool:
        """This server writes."""
        return bool(self._epoch)

    @property
    def holder(self) -> str:
        """Who writes, as far as this server knows."""
        return self._name if self._epoch else self._holder

    # The session.

    async def _connect(self) -> None:
        session = await self._connected()
        try:
            await self._adopt(session)
        except BaseException:
            await self._end(session)
            raise
        self._session = session
        if not self._opened:
            self._tasks.start("writer", self._write_forever(), endless=True)

    async def _adopt(self, session: MysqlSession) -> None:
        try:
            head = await self._on(session, session.asker, head_of)
        except StatementFailed as problem:
            if problem.code not in NOTHING_THERE:
                raise StoreUnavailable(str(problem)) from problem
            head = None
        if head is None:
            head = await self._on(session, session.asker, self._make_tables)
        if head.format != sql.FORMAT:
            raise StoreError(f"{self.label}: its tables have the format {head.format}, this version knows {sql.FORMAT}")
        if not self._history:
            await self._load_heads(session)
        elif head.history != self._history or head.revision < self._revision or head.compacted > self._revision:
            await self._read_anew(session, "the database has another history than before")
        self._last_epoch, self._epoch = self._epoch or self._last_epoch, 0
        self._seen, self._seen_since = (0, 0), self._clock.monotonic()
        self._holder = head.holder

    async def _load_heads(self, session: MysqlSession) -> None:
        _, found, rows, _ = await self._on(
            session, session.follower, lambda c: c.packet_of([sql.SNAPSHOT, sql.HEAD, sql.HEADS, sql.COMMIT])
        )
        head = MysqlHead(*found[0])
        self._history, self._revision, self._compacted = head.history, head.revision, head.compacted
        self._set_heads((key.decode(), revision, created, lease) for key, revision, created, lease in rows)

    def _set_heads(self, heads: Iterable[tuple[str, int, int, int]]) -> None:
        self._heads, self._keys_of = {}, {}
        for key, revision, created, lease in heads:
            self._heads[key] = (revision, created, lease)
            if lease:
                self._keys_of.setdefault(lease, set()).add(key)

    async def _disconnect(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            if self._refusal and self._epoch and not session.ended.done():
                epoch = self._epoch
                with suppress(StoreError, TimeoutError):  # the lease runs out instead
                    async with asyncio.timeout(2):
                        await self._on(session, session.writer, lambda c: c.run(sql.release(epoch)))
            await self._end(session)
        self._last_epoch, self._epoch = self._epoch or self._last_epoch, 0
        self._requests.clear()
        self._taken.clear()
        away = self._away or "the store is closed"
        while self._queue:  # not sent yet: certainly not written
            _fail(self._queue.popleft(), StoreUnavailable(away))
        for each in self._forwarded.values():
            _fail(each.write, Unsettled(f"the database went away before the server that writes answered: {away}"))
        self._forwarded.clear()

    # Following.

    async def _follow(self) -> None:
        session = self._session
        assert session is not None
        while not session.ended.done():
            session.woken.clear()
            try:
                pause = await (self._hold(session) if self._epoch else self._stand_by(session))
                await self._beat(session)
            except StatementFailed as problem:
                raise StoreUnavailable(str(problem)) from problem
            if pause <= 0:
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await session.woken.wait()
        raise StoreUnavailable(f"{self.label}: {session.ended.result()}")

    async def _beat(self, session: MysqlSession) -> None:
        """The holder's heartbeat, which keeps the writer's connection open too. A batch is one as well."""
        now = self._clock.monotonic()
        if now - self._beaten < _BEAT_SECONDS:
            return
        epoch = self._epoch
        if epoch and session.writer.turn.locked():
            return  # a batch is on its way
        found = await self._on(session, session.writer, lambda c: c.run(sql.beat(epoch) if epoch else "DO 0"))
        self._beaten = now
        if epoch and not found and self._epoch == epoch:
            self._step_down()

    async def _stand_by(self, session: MysqlSession) -> float:
        head, full = await self._read_log(session)
        if full:
            return 0.0
        self._holder = head.holder
        if self._forwarded:
            await self._withdraw(session)
        if self._following:
            return ASKED_SECONDS / 2 if self._forwarded else _FOLLOW_SECONDS
        now = self._clock.monotonic()
        if (head.epoch, head.beat) != self._seen:
            self._seen, self._seen_since = (head.epoch, head.beat), now
        mine = head.epoch == self._last_epoch
        if mine or not head.holder or now - self._seen_since >= self._lease_seconds:
            await self._take_over(session, head)
            return 0.0
        return ASKED_SECONDS / 2 if self._forwarded else _FOLLOW_SECONDS

    async def _take_over(self, session: MysqlSession, head: MysqlHead) -> None:
        try:
            found = await self._on(session, session.writer, lambda c: c.run(sql.take_over(head.epoch, self._name)))
        except StatementFailed as problem:
            if problem.undone:  # the lock was not to be had: somebody works with it
                self._seen_since = self._clock.monotonic()
                return
            raise
        if not found:
            return
        # Nobody with an older epoch can write any more: what the log says now is all.
        while (await self._read_log(session))[1]:
            pass
        self._epoch = self._last_epoch = head.epoch + 1
        self._beaten = self._clock.monotonic()
        _log.info("This server writes to the store now", store=self.label, epoch=self._epoch, before=head.holder)
        self._queued.set()

    def _step_down(self) -> None:
        _log.warning("Another server took over the store; this one follows it", store=self.label)
        self._epoch = 0
        self._last_epoch = 0
        self._requests.clear()
        self._taken.clear()
        self._seen, self._seen_since = (0, 0), self._clock.monotonic()

    async def _read_log(self, session: MysqlSession) -> tuple[MysqlHead, bool]:
        """One look at the log, and at answers to what we asked; whether there may be more."""
        statements = [sql.SNAPSHOT, sql.HEAD, sql.log_after(self._revision, FOLLOW_ROWS)]
        if self._forwarded:
            statements.append(
                f"SELECT n, answer FROM coterie_requests WHERE asker = {self._asker} AND answer IS NOT NULL LIMIT 1000"
            )
        found = await self._on(session, session.follower, lambda c: c.packet_of([*statements, sql.COMMIT]))
        if not found[1]:
            raise StoreUnavailable(f"{self.label}: its tables are empty")
        head = MysqlHead(*found[1][0])
        if head.history != self._history or head.revision < self._revision or head.compacted > self._revision:
            await self._read_anew(session, "the database was restored, or history was compacted while we were away")
            return head, True
        self._compacted = max(self._compacted, head.compacted)
        rows = [row_of(each) for each in found[2]]
        if rows:
            if rows[-1].revision - self._revision != len(rows):
                raise StoreUnavailable(f"{self.label}: revisions are missing after {self._revision}")
            self._tell(rows)
        if self._forwarded:
            await self._answered(session, found[3])
        return head, len(rows) == FOLLOW_ROWS

    def _tell(self, rows: Sequence[StoreRow]) -> None:
        for row in rows:
            old = self._heads.pop(row.key, None)
            if old is not None and old[2]:
                self._keys_of.get(old[2], set()).discard(row.key)
            if not row.deleted:
                self._heads[row.key] = (row.revision, row.created, row.lease)
                if row.lease:
                    self._keys_of.setdefault(row.lease, set()).add(row.key)
        self._notify([event_of(row) for row in rows], rows[-1].revision)

    async def _read_anew(self, session: MysqlSession, reason: str) -> None:
        def everything(connection: MysqlStoreConnection) -> tuple[MysqlHead, list[StoreRecord]]:
            records: list[StoreRecord] = []
            connection.run(sql.SNAPSHOT)
            head = head_of(connection)
            if head is None:
                raise StoreUnavailable(f"{self.label}: its tables are empty")
            after = b""
            while True:
                rows = [row_of(each) for each in connection.query(sql.page(b"", None, after, 0, PAGE_ROWS))]
                records += [record_of(row) for row in rows if not row.deleted]
                if len(rows) < PAGE_ROWS:
                    break
                after = rows[-1].key.encode()
            connection.run(sql.COMMIT)
            return head, records

        head, records = await self._on(session, session.follower, everything)
        self._history = head.history
        self._set_heads((each.key, each.revision, each.created, each.lease) for each in records)
        self._history_lost(records, head.revision, head.compacted, reason)

    async def _ask_current(self) -> int:
        session = self._there()
        ((newest,),) = await self._on(
            session, session.asker, lambda c: c.query("SELECT revision FROM coterie_head WHERE one = 1")
        )
        if newest > self._revision:
            session.woken.set()
        return int(newest)

    async def _catch_up(self, revision: int) -> None:
        if revision > self._revision and self._session is not None:
            self._session.woken.set()
        await super()._catch_up(revision)

    # The holder.

    async def _hold(self, session: MysqlSession) -> float:
        """One look at what others ask for, and at leases that are over."""
        epoch = self._epoch
        statements = [
            sql.HEAD,
            sql.DUE,
            f"SELECT asker, n FROM coterie_requests WHERE answer IS NULL AND taken <> {epoch} ORDER BY asker, n LIMIT {_BATCH}",
        ]
        if self._forwarded:  # asked before this server took over
            statements.append(
                f"SELECT n, answer FROM coterie_requests WHERE asker = {self._asker} AND answer IS NOT NULL LIMIT 1000"
            )
        found = await self._on(session, session.follower, lambda c: c.packet_of(statements))
        head = MysqlHead(*found[0][0])
        if head.epoch != epoch or self._epoch != epoch:
            if self._epoch == epoch:
                self._step_down()
            return 0.0
        self._compacted = max(self._compacted, head.compacted)
        if found[1]:
            await self._end_leases(session, [each[0] for each in found[1]])
        if found[2]:
            await self._take_requests(session, found[2], epoch)
        if self._forwarded:
            await self._answered(session, found[3])
            await self._withdraw(session)
        now = self._clock.monotonic()
        if found[2] or self._taken or self._forwarded:
            self._asked_lately = now
        return ASKED_SECONDS if now - self._asked_lately < _LATELY_SECONDS else _QUIET_SECONDS

    async def _take_requests(self, session: MysqlSession, names: Sequence[tuple[int, ...]], epoch: int) -> None:
        """Ours from here on: who asked cannot withdraw them. Those of an epoch before were not carried out, or had an answer."""
        which = ",".join(f"({asker},{n})" for asker, n in names)
        old = f"DELETE FROM coterie_requests WHERE asked < {sql.NOW} - {REQUESTS_LIVE} AND (asker, n) IN ({which})"
        mine = f"UPDATE coterie_requests SET taken = {epoch} WHERE answer IS NULL AND (asker, n) IN ({which})"
        bodies = f"SELECT asker, n, body FROM coterie_requests WHERE taken = {epoch} AND answer IS NULL AND (asker, n) IN ({which})"
        try:
            found = await self._on(session, session.follower, lambda c: c.packet_of([old, mine, bodies]))
        except StatementFailed as problem:
            if not problem.undone:
                raise
            return  # who asked is just withdrawing: the next look
        if self._epoch != epoch:
            return
        for asker, n, body in sorted(found[2]):
            self._taken.add((asker, n))
            self._requests.append(_HolderWrite(write_from_json(body), request=(asker, n)))
        self._queued.set()

    async def _end_leases(self, session: MysqlSession, due: list[int]) -> None:
        """Closed first, so that nobody keeps one alive whose keys go; the rows go with the keys."""

        def close(connection: MysqlStoreConnection) -> Sequence[tuple[Any, ...]]:
            which = sql.numbers(due)
            connection.run(f"UPDATE coterie_leases SET deadline = 0 WHERE deadline <= {sql.NOW} AND id IN {which}")
            return connection.query(f"SELECT id FROM coterie_leases WHERE deadline = 0 AND id IN {which}")

        closed = [each[0] for each in await self._on(session, session.follower, close)]
        async with session.writer.turn:
            epoch, base = self._epoch, self._revision
            if not epoch or not closed:
                return
            keys = sorted(key for lease in closed for key in self._keys_of.get(lease, ()))
            rows = [
                StoreRow(base + n, key, self._heads[key][1], self._heads[key][0], 1, 0, None, None)
                for n, key in enumerate(keys, 1)
            ]
            statements = [f"DELETE FROM coterie_leases WHERE id IN {sql.numbers(closed)}"]
            if await self._commit(session, epoch, base, rows, statements) and rows:
                self._tell(rows)
        for lease in closed:
            self._keys_of.pop(lease, None)

    async def _commit(
        self, session: MysqlSession, epoch: int, base: int, rows: Sequence[StoreRow], more: Sequence[str]
    ) -> bool:
        """The writer's turn is ours. False: another server holds the store, and nothing was written."""
        packet = ["START TRANSACTION", sql.fenced(epoch, base, base + len(rows))]
        if rows:
            packet.append(sql.insert(rows))
        try:
            await self._in_thread(lambda: session.writer.connection.packet_of([*packet, *more, sql.COMMIT]))
        except StoreUnavailable as problem:
            session.end(str(problem))
            raise
        except StatementFailed as problem:
            if problem.code != sql.FENCED:
                raise
            self._step_down()
            session.woken.set()
            return False
        self._beaten = self._clock.monotonic()
        return True

    # Writing.

    def _send(self, write: SharedWrite) -> None:
        for op in write.ops:
            if len(op.key.encode()) > sql.LONGEST_KEY:
                _fail(write, StoreError(f"a key has {sql.LONGEST_KEY} bytes at most in MySQL"))
                return
        session = self._session
        if session is not None:
            # As text, a byte is two characters; and a request carries it in base64, which is less than that again.
            size = sum(len(op.value) for op in write.ops if isinstance(op, PutOp))
            room = (session.writer.connection.packet - MARGIN) // 3
            if size > room:
                _fail(write, ValueTooLarge(f"{size} bytes do not go into MySQL's max_allowed_packet ({room} would)"))
                return
        self._queue.append(write)
        self._queued.set()

    async def _write_forever(self) -> None:
        while True:
            await self._queued.wait()
            self._queued.clear()
            while self._queue or (self._epoch and self._requests):
                try:
                    session = self._there()
                except StoreUnavailable as problem:
                    while self._queue:
                        _fail(self._queue.popleft(), problem)
                    break
                if self._epoch:
                    await self._write(session, self._gather(session))
                else:
                    await self._forward(session)

    def _gather(self, session: MysqlSession) -> list[_HolderWrite]:
        room = min(_BATCH_BYTES, (session.writer.connection.packet - MARGIN) // 3)
        batch: list[_HolderWrite] = []
        size = 0
        while len(batch) < _BATCH and (self._requests or self._queue):
            if self._requests:
                following = self._requests[0]
            else:
                following = _HolderWrite(self._queue[0].ops, self._queue[0])
            size += sum(len(op.value) + 200 for op in following.ops if isinstance(op, PutOp))
            if batch and size > room:
                break
            (self._requests if following.request else self._queue).popleft()
            batch.append(following)
        return batch

    async def _write(self, session: MysqlSession, batch: list[_HolderWrite]) -> None:
        began = self._clock.monotonic()
        wanted = {op.lease for each in batch for op in each.ops if isinstance(op, PutOp) and op.lease}
        async with session.writer.turn:
            epoch, base = self._epoch, self._revision
            if not epoch:
                self._put_back(batch)
                return
            try:
                alive = await self._alive(session, wanted)
                decided = decide(self._heads, [each.ops for each in batch], base, alive)
                records = await self._standing(session, decided)
                answers = [
                    verdict if isinstance(verdict, list) else error_of(verdict, records) for verdict in decided.verdicts
                ]
                if not await self._commit(session, epoch, base, decided.rows, _answering(batch, answers)):
                    self._put_back(batch)
                    return
            except StatementFailed as problem:
                self.metrics.failures += 1
                self._refuse(session, batch, StoreError(str(problem)))
                return
            except StoreUnavailable as problem:
                session.end(str(problem))
                self.metrics.failures += 1
                self._refuse(session, batch, Unsettled(str(problem)))
                return
            except asyncio.CancelledError:
                self._refuse(session, batch, Unsettled("the store was closed before the database answered"))
                raise
            self.metrics.transactions += 1
            self.metrics.durations.add(self._clock.monotonic() - began)
            self.metrics.rows += len(decided.rows)
            if decided.rows:
                self._tell(decided.rows)
        for each, answer in zip(batch, answers, strict=True):
            if each.request is not None:
                self._taken.discard(each.request)
            elif each.write is not None and not each.write.future.done():
                if isinstance(answer, list):
                    each.write.future.set_result(answer)
                else:
                    each.write.future.set_exception(answer)

    async def _alive(self, session: MysqlSession, wanted: set[int]) -> set[int]:
        if not wanted:
            return set()
        ask = f"SELECT id FROM coterie_leases WHERE deadline > {sql.NOW} AND id IN {sql.numbers(wanted)}"
        return {each[0] for each in await self._in_thread(lambda: session.writer.connection.query(ask))}

    async def _standing(self, session: MysqlSession, decided: DecidedBatch) -> dict[int, StoreRecord]:
        """What stands in the way of the refused."""
        records = records_of(decided.rows)
        if at := decided.refused_at:
            ask = f"SELECT {sql.ROW} FROM coterie_log WHERE revision IN {sql.numbers(at)}"
            found = await self._in_thread(lambda: session.writer.connection.query(ask))
            records.update(records_of([row_of(each) for each in found]))
        return records

    def _put_back(self, batch: list[_HolderWrite]) -> None:
        """We hold the store no more, and nothing was written: ours are handed on, the others' are in the table."""
        self._queue.extendleft(each.write for each in reversed(batch) if each.write is not None)

    def _refuse(self, session: MysqlSession, batch: list[_HolderWrite], problem: StoreError) -> None:
        for each in batch:
            if each.write is not None:
                _fail(each.write, problem)
        if any(each.request for each in batch):
            # They have no answer. The next session has another epoch and takes them again.
            session.end(f"{self.label}: {problem}")

    # Handing writes to the holder.

    async def _forward(self, session: MysqlSession) -> None:
        batch: list[SharedWrite] = []
        size = 0
        room = (session.writer.connection.packet - MARGIN) // 3
        while self._queue and len(batch) < _BATCH:
            size += sum(len(op.value) + 200 for op in self._queue[0].ops if isinstance(op, PutOp))
            if batch and size > room:
                break
            batch.append(self._queue.popleft())
        numbered = [(next(self._numbers), write) for write in batch]
        values = ",".join(
            f"({self._asker},{n},{sql.NOW},0,{sql.blob(write_to_json(write.ops))})" for n, write in numbered
        )
        statement = f"INSERT INTO coterie_requests (asker, n, asked, taken, body) VALUES {values}"
        now = self._clock.monotonic()
        self._forwarded.update({n: _ForwardedWrite(write, now) for n, write in numbered})
        try:
            await self._on(session, session.writer, lambda c: c.run(statement))
        except StatementFailed as problem:
            for n, write in numbered:
                self._forwarded.pop(n, None)
                _fail(write, StoreError(str(problem)))
        except StoreUnavailable as problem:
            for n, write in numbered:
                self._forwarded.pop(n, None)
                _fail(write, Unsettled(str(problem)))
        session.woken.set()

    async def _answered(self, session: MysqlSession, found: Sequence[tuple[Any, ...]]) -> None:
        if not found:
            return
        for n, text in found:
            waiting = self._forwarded.pop(n, None)
            if waiting is None:
                continue
            answer = answer_from_json(text)
            if isinstance(answer, list):
                self._written(waiting.write, answer)
                continue
            if isinstance(answer, CompareFailed) and answer.actual:
                with suppress(StoreError):  # the refusal stands, and names the revision
                    answer.record = (await self._load(answer.key, 0))[1]
            _fail(waiting.write, answer)
        which = sql.numbers(each[0] for each in found)
        drop = f"DELETE FROM coterie_requests WHERE asker = {self._asker} AND n IN {which}"
        with suppress(StatementFailed):  # the holder drops what is old
            await self._on(session, session.follower, lambda c: c.run(drop))

    async def _withdraw(self, session: MysqlSession) -> None:
        """What nobody has taken up in time is taken back, and was certainly not written."""
        now = self._clock.monotonic()
        late = [n for n, each in self._forwarded.items() if now - each.since > ANSWERED_WITHIN and not each.withdrawn]
        if late:
            which = sql.numbers(late)
            mine = f"asker = {self._asker} AND n IN {which}"

            def withdraw(connection: MysqlStoreConnection) -> set[int]:
                connection.run(f"DELETE FROM coterie_requests WHERE {mine} AND taken = 0")
                return {each[0] for each in connection.query(f"SELECT n FROM coterie_requests WHERE {mine}")}

            kept = await self._on(session, session.follower, withdraw)
            for n in late:
                each = self._forwarded[n]
                each.withdrawn = True
                if n not in kept:
                    del self._forwarded[n]
                    holder = self._holder or "nobody"
                    _fail(
                        each.write,
                        StoreUnavailable(f"{self.label}: no server took the write; {holder} holds the store"),
                    )
        for n, each in list(self._forwarded.items()):
            if now - each.since > 2 * ANSWERED_WITHIN:
                del self._forwarded[n]
                _fail(
                    each.write,
                    Unsettled(f"{self.label}: {self._holder or 'the holder'} took the write and did not answer"),
                )


def _answering(batch: Sequence[_HolderWrite], answers: Sequence[list[int] | StoreError]) -> list[str]:
    return [
        f"UPDATE coterie_requests SET answer = {sql.blob(answer_to_json(answer))}"
        f" WHERE asker = {each.request[0]} AND n = {each.request[1]}"
        for each, answer in zip(batch, answers, strict=True)
        if each.request is not None
    ]


def _fail(write: SharedWrite, problem: StoreError) -> None:
    if not write.future.done():
        write.future.set_exception(problem)
