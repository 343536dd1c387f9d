"""The log in PostgreSQL: any number of API servers write, the database decides.

    writer     one call for all writes that gathered while the last one ran (group commit, 256 at most)
    follower   LISTEN wakes it, the log tells it; it looks each second anyway
    asker      the newest revision, for reads that must not be stale
    readers    get, scan, history

Four kinds of connections make a session; see `shared.py` for what happens when it ends, and `postgresql_schema.py` for
the tables. Connections belong to the primary and to this process: no pooler in transaction mode may lie between.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import asyncpg

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.base.store_address import StoreAddress
from coterie.kube.store import postgresql_schema as sql
from coterie.kube.store.core import WATCH_LIMIT
from coterie.kube.store.protocol import (
    Compacted,
    CompareFailed,
    LeaseNotFound,
    Op,
    PutOp,
    RecordPage,
    StoreError,
    StoreEvent,
    StoreRecord,
    StoreUnavailable,
    Unsettled,
)
from coterie.kube.store.rows import prefix_end
from coterie.kube.store.shared import SharedStore, SharedWrite, check_ttl

CONNECT_SECONDS = 5.0
COMMAND_SECONDS = 6.0
"""Longer than the database's own limits below, so that it is usually the database that says it."""
_SETTINGS = {
    "application_name": "coterie",
    "statement_timeout": "5s",
    "lock_timeout": "4s",
    "idle_in_transaction_session_timeout": "10s",
    "synchronous_commit": "on",
    "default_transaction_isolation": "read committed",
    "jit": "off",
}
_POLL_SECONDS = 1.0
_BATCH = 256
_BATCH_BYTES = 8 * 1024 * 1024
_FOLLOW_ROWS = 1000
_PAGE_ROWS = 2000
_READERS = 2
_SWEEP_STEP = 2000
_REPLACE_SECONDS = 600.0
_REFUSED = "CT001"
_ANY = -1
_log = logger("store.postgresql")

T = TypeVar("T")


class _Readers:
    """Connections for whoever comes first: one that is given back goes to him who waits longest. (A Queue would let
    somebody who comes just then overtake, and readers in a loop would starve all others.)"""

    def __init__(self, connections: list[Any]) -> None:
        self._idle = list(connections)
        self._waiting: deque[asyncio.Future[Any]] = deque()

    async def take(self) -> Any:
        if self._idle:
            return self._idle.pop()
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.give(waiter.result())
            raise

    def give(self, connection: Any) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        self._idle.append(connection)

    def end(self, problem: StoreError) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(problem)


class _Session:
    def __init__(self, writer: Any, follower: Any, asker: Any, readers: list[Any]) -> None:
        self.writer = writer
        self.follower = follower
        self.asker = asker
        self.readers = _Readers(readers)
        self.all = [writer, follower, asker, *readers]
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.woken = asyncio.Event()
        for each in self.all:
            each.add_termination_listener(lambda _: self.end("a connection was closed"))

    def end(self, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)
        self.woken.set()
        self.readers.end(StoreUnavailable(reason))

    def abandon(self) -> None:
        self.end("the session was given up")
        for each in self.all:
            if not each.is_closed():
                each.terminate()


class PostgresqlStore(SharedStore):
    def __init__(self, address: StoreAddress, *, clock: Clock = SYSTEM_CLOCK, watch_limit: int = WATCH_LIMIT) -> None:
        super().__init__(address.label, clock=clock, watch_limit=watch_limit)
        self._address = address
        name = address.schema
        self._schema = '"' + name.replace('"', '""') + '"'
        self._channel = f"coterie {name}"
        self._session: _Session | None = None
        self._queue: deque[SharedWrite] = deque()
        self._queued = asyncio.Event()
        self._history: tuple[int, str] | None = None
        """Epoch and timeline that `_revision` belongs to."""
        self._newest: StoreEvent | None = None
        """The newest event that our listeners heard."""

    def _sql(self, template: str) -> str:
        return template.replace("{schema}", self._schema)

    # The session.

    async def _connect(self) -> None:
        # One after the other: a server that is away is asked once, not five times.
        made: list[Any] = []
        try:
            for _ in range(3 + _READERS):
                made.append(await self._connection())
            session = _Session(made[0], made[1], made[2], made[3:])
            await self._adopt(session)
        except BaseException:
            for each in made:
                each.terminate()
            raise
        self._session = session
        if not self._opened:
            self._tasks.start("writer", self._write_forever(), endless=True)

    async def _connection(self) -> Any:
        address = self._address
        try:
            return await asyncpg.connect(
                address.dsn.reveal(),
                password=address.password.reveal() if address.password else None,
                timeout=CONNECT_SECONDS,
                command_timeout=COMMAND_SECONDS,
                server_settings=_SETTINGS,
            )
        except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as problem:
            raise StoreUnavailable(f"{self.label} does not let us in: {problem}") from problem
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as problem:
            raise StoreUnavailable(f"{self.label} cannot be reached: {_words(problem)}") from problem
        except (asyncpg.InternalClientError, ValueError) as problem:
            raise StoreUnavailable(f"{self.label} cannot be reached: {_words(problem)}") from problem

    async def _adopt(self, session: _Session) -> None:
        """Find out which history this is, make the tables where there are none, and begin to listen."""
        try:
            known = await self._identity(session)
        except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
            await self._make_tables(session)
            known = await self._identity(session)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as problem:
            raise StoreUnavailable(f"{self.label} did not answer: {_words(problem)}") from problem
        if known["standby"]:
            raise StoreUnavailable(f"{self.label} is a standby, which cannot be written to")
        if known["format"] != sql.FORMAT:
            raise StoreError(
                f"{self.label}: its tables have the format {known['format']}, this version knows {sql.FORMAT}"
            )
        try:
            await session.follower.add_listener(self._channel, lambda *_: session.woken.set())
            history = (known["epoch"], known["timeline"])
            if self._history is None:
                self._revision, self._compacted = known["revision"], known["compacted"]
            elif (
                history != self._history
                or known["revision"] < self._revision
                or known["compacted"] > self._revision
                or not await self._goes_on(session, known["compacted"])
            ):
                await self._read_anew(session, "the database has another history than before")
            self._history = history
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as problem:
            raise StoreUnavailable(f"{self.label} did not answer: {_words(problem)}") from problem

    async def _goes_on(self, session: _Session, compacted: int) -> bool:
        """Whether the log still says what it said. An older backup may have been restored, and others may have written since: then no
        revision is too low."""
        newest = self._newest
        if newest is None or newest.revision != self._revision:
            return True
        row = await session.follower.fetchrow(self._sql(sql.AT), newest.revision)
        if row is None:
            return newest.revision <= compacted
        found = _event(row)
        return (found.key, found.value, found.created) == (newest.key, newest.value, newest.created)

    async def _identity(self, session: _Session) -> Any:
        return await session.asker.fetchrow(self._sql(sql.IDENTITY))

    async def _make_tables(self, session: _Session) -> None:
        text = sql.SCHEMA.replace("{channel}", self._channel.replace("'", "''"))
        text = text.replace("{format}", str(sql.FORMAT)).replace("{epoch}", str(secrets.randbits(62)))
        try:
            async with session.asker.transaction():
                # Servers that start together: the second finds the tables.
                await session.asker.execute("SELECT pg_advisory_xact_lock(hashtext($1))", self._channel)
                if await session.asker.fetchval("SELECT to_regclass($1)", f"{self._schema}.head") is None:
                    await session.asker.execute(self._sql(text))
                    _log.info("Tables of the store were made", store=self.label)
        except (OSError, TimeoutError, asyncpg.InterfaceError) as problem:
            raise StoreUnavailable(f"{self.label} did not answer: {_words(problem)}") from problem
        except asyncpg.PostgresError as problem:
            raise StoreError(f"{self.label}: the tables cannot be made: {_words(problem)}") from problem

    async def _disconnect(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.abandon()
        while self._queue:  # not sent yet: certainly not written
            _fail(self._queue.popleft(), StoreUnavailable(self._away or "the store is closed"))

    def _there(self) -> _Session:
        """Also while the store is being closed: what was accepted is still written."""
        session = self._session
        if session is None or session.ended.done() or self._away:
            raise StoreUnavailable(self._away or f"{self.label}: {session.ended.result() if session else 'no session'}")
        return session

    # Following.

    async def _follow(self) -> None:
        session = self._session
        assert session is not None
        while not session.ended.done():
            session.woken.clear()
            try:
                full, due = await self._read_log(session)
                if due:
                    await session.follower.fetchval(self._sql("SELECT {schema}.end_leases(0)"))
                    full = True
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as problem:
                raise StoreUnavailable(f"{self.label} did not answer: {_words(problem)}") from problem
            except asyncpg.InternalClientError as problem:
                raise StoreUnavailable(f"{self.label} did not answer: {_words(problem)}") from problem
            if full:
                continue
            try:
                async with asyncio.timeout(_POLL_SECONDS):
                    await session.woken.wait()
            except TimeoutError:
                pass  # a second without a word: look
        raise StoreUnavailable(f"{self.label}: {session.ended.result()}")

    async def _read_log(self, session: _Session) -> tuple[bool, bool]:
        """One look at the log; whether there may be more, and whether leases are over."""
        rows = await session.follower.fetch(self._sql(sql.FOLLOW), self._revision, _FOLLOW_ROWS)
        if not rows:
            raise StoreUnavailable(f"{self.label}: its tables are empty")
        first = rows[0]
        assert self._history is not None
        if first["epoch"] != self._history[0] or first["newest"] < self._revision or first["mark"] > self._revision:
            self._history = (first["epoch"], self._history[1])
            await self._read_anew(session, "the database was restored, or history was compacted while we were away")
            return True, False
        self._compacted = first["mark"]
        if first["revision"] is None:
            return False, first["due"]
        events = [_event(row) for row in rows]
        if events[-1].revision - self._revision != len(events):
            raise StoreUnavailable(f"{self.label}: revisions are missing after {self._revision}")
        self._newest = events[-1]
        self._notify(events, events[-1].revision)
        return len(rows) == _FOLLOW_ROWS, first["due"]

    async def _read_anew(self, session: _Session, reason: str) -> None:
        records: list[StoreRecord] = []
        at, mark, after = 0, 0, b""
        while True:
            if not at:
                rows = await session.follower.fetch(self._sql(sql.PAGE_NOW), b"", after, None, _PAGE_ROWS)
            else:
                rows = await session.follower.fetch(self._sql(sql.PAGE_PAST), b"", after, None, _PAGE_ROWS, at)
            at, mark = at or rows[0]["newest"], rows[0]["mark"]
            if mark > at:  # compaction overtook us
                records, at, after = [], 0, b""
                continue
            found = [_record(row) for row in rows if row["revision"] is not None]
            records += found
            if len(found) < _PAGE_ROWS:
                break
            after = found[-1].key.encode()
        self._history_lost(records, at, mark, reason)

    async def _ask_current(self) -> int:
        session = self._there()
        async with self._errors(session):
            return int(await session.asker.fetchval(self._sql("SELECT revision FROM {schema}.head")))

    # Writing.

    def _send(self, write: SharedWrite) -> None:
        self._queue.append(write)
        self._queued.set()

    async def _write_forever(self) -> None:
        while True:
            await self._queued.wait()
            while self._queue:
                await self._write(self._gather())
            self._queued.clear()

    def _gather(self) -> list[SharedWrite]:
        """What goes in one call: single operations on different keys, or one write with several."""
        queue = self._queue
        if len(queue[0].ops) > 1:
            return [queue.popleft()]
        batch: list[SharedWrite] = []
        keys: set[str] = set()
        size = 0
        while queue and len(batch) < _BATCH and size < _BATCH_BYTES:
            ops = queue[0].ops
            if len(ops) > 1 or ops[0].key in keys:
                break
            keys.add(ops[0].key)
            size += len(ops[0].value) if isinstance(ops[0], PutOp) else 0
            batch.append(queue.popleft())
        return batch

    async def _write(self, batch: list[SharedWrite]) -> None:
        ops = [op for write in batch for op in write.ops]
        together = len(batch) == 1 and len(ops) > 1
        arguments = (
            [op.key.encode() for op in ops],
            [op.expect for op in ops],
            [op.value if isinstance(op, PutOp) else None for op in ops],
            [not isinstance(op, PutOp) for op in ops],
            [op.lease if isinstance(op, PutOp) else 0 for op in ops],
        )
        try:
            session = self._there()
        except StoreError as problem:
            for write in batch:
                _fail(write, problem)
            return
        began = self._clock.monotonic()
        function = "put_all" if together else "put_many"
        try:
            rows = await session.writer.fetch(
                self._sql(f"SELECT * FROM {{schema}}.{function}($1, $2, $3, $4, $5)"), *arguments
            )
        except asyncpg.PostgresError as problem:
            if problem.sqlstate == _REFUSED:
                _fail(batch[0], await self._refusal_of(session, ops, problem))
                return
            if _certainly_undone(problem):
                self._fail_batch(batch, StoreError(f"{self.label}: {_words(problem)}"))
                return
            self._unsettled(session, batch, problem)
        except (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError) as problem:
            self._unsettled(session, batch, problem)
        except asyncio.CancelledError:
            self._fail_batch(batch, Unsettled("the store was closed before the database answered"))
            raise
        else:
            self.metrics.transactions += 1
            self.metrics.durations.add(self._clock.monotonic() - began)
            rows.sort(key=lambda row: row["i"])
            if together:
                self._written(batch[0], [row["given"] for row in rows])
                return
            for write, row in zip(batch, rows, strict=True):
                if row["verdict"] == 0:
                    self._written(write, [row["given"]])
                else:
                    _fail(write, _refusal(0, write.ops[0], row))

    async def _refusal_of(self, session: _Session, ops: list[Op], problem: Any) -> StoreError:
        at, verdict, actual = (int(part) for part in problem.detail.split())
        op = ops[at - 1]
        if verdict == 2:
            assert isinstance(op, PutOp)
            return LeaseNotFound(f"lease {op.lease} expired, was revoked or never existed")
        record: StoreRecord | None = None
        with suppress(StoreError):  # the refusal stands, and names the revision
            _, record = await self._load(op.key, 0)
        return CompareFailed(at - 1, op.key, _ANY if op.expect is None else op.expect, actual, record)

    def _fail_batch(self, batch: list[SharedWrite], problem: StoreError) -> None:
        self.metrics.failures += 1
        for write in batch:
            _fail(write, problem)

    def _unsettled(self, session: _Session, batch: list[SharedWrite], problem: BaseException) -> None:
        reason = f"{self.label} did not answer a write: {_words(problem)}"
        session.end(reason)
        self._fail_batch(batch, Unsettled(reason))

    # Reading.

    @asynccontextmanager
    async def _reader(self) -> AsyncIterator[Any]:
        session = self._there()
        taken = await session.readers.take()
        try:
            async with self._errors(session):
                yield taken
        finally:
            session.readers.give(taken)

    @asynccontextmanager
    async def _errors(self, session: _Session) -> AsyncIterator[None]:
        try:
            yield
        except asyncpg.PostgresError as problem:
            if _certainly_undone(problem):
                raise StoreError(f"{self.label}: {_words(problem)}") from problem
            session.end(f"{self.label} did not answer: {_words(problem)}")
            raise StoreUnavailable(f"{self.label} did not answer: {_words(problem)}") from problem
        except (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError) as problem:
            session.end(f"{self.label} did not answer: {_words(problem)}")
            raise StoreUnavailable(f"{self.label} did not answer: {_words(problem)}") from problem

    async def _load(self, key: str, revision: int) -> tuple[int, StoreRecord | None]:
        async with self._reader() as connection:
            (row,) = await connection.fetch(self._sql(sql.GET), key.encode(), revision)
        at = revision or row["newest"]
        self._check_mark(at, row["mark"])
        return at, None if row["revision"] is None or row["deleted"] else _record(row)

    def _check_mark(self, at: int, mark: int) -> None:
        if at < mark:
            raise Compacted(at, mark)

    async def _load_page(self, prefix: str, revision: int, after: str, limit: int) -> RecordPage:
        records: list[StoreRecord] = []
        at = revision
        cursor = after.encode()
        end = prefix_end(prefix)
        while True:
            wanted = min(limit + 1 - len(records), _PAGE_ROWS) if limit else _PAGE_ROWS
            arguments = (prefix.encode(), cursor, None if end is None else end.encode(), wanted)
            async with self._reader() as connection:
                if not at:
                    rows = await connection.fetch(self._sql(sql.PAGE_NOW), *arguments)
                else:
                    rows = await connection.fetch(self._sql(sql.PAGE_PAST), *arguments, at)
            first = rows[0]
            at = at or first["newest"]
            if at < first["mark"]:
                if revision:
                    raise Compacted(at, first["mark"])
                records, at, cursor = [], 0, after.encode()
                continue
            found = [_record(row) for row in rows if row["revision"] is not None]
            records += found
            if len(found) < wanted or (limit and len(records) > limit):
                break
            cursor = records[-1].key.encode()
        more = bool(limit) and len(records) > limit
        return RecordPage(at, records[:limit] if more else records, more)

    async def _load_history(self, prefix: str, after: int, upto: int) -> AsyncGenerator[Sequence[StoreEvent], None]:
        end = prefix_end(prefix)
        bounds = (prefix.encode(), None if end is None else end.encode())
        cursor = after
        while cursor < upto:
            async with self._reader() as connection:
                rows = await connection.fetch(self._sql(sql.HISTORY), cursor, upto, *bounds, _FOLLOW_ROWS // 2)
            if rows[0]["mark"] > cursor:
                raise Compacted(cursor, rows[0]["mark"])
            events = [_event(row) for row in rows if row["revision"] is not None]
            cursor = events[-1].revision if len(events) == _FOLLOW_ROWS // 2 else upto
            yield events

    # Forgetting.

    async def _compact(self, revision: int) -> int:
        async def ask(question: Callable[[Any], Awaitable[T]]) -> T:
            async with self._reader() as connection:
                return await question(connection)

        mark = int(
            await ask(
                lambda c: c.fetchval(
                    self._sql("UPDATE {schema}.head SET compacted = greatest(compacted, $1) RETURNING compacted"),
                    revision,
                )
            )
        )
        self._compacted = max(self._compacted, mark)
        sweep = self._sql("SELECT {schema}.sweep($1, $2)")
        while await ask(lambda c: c.fetchval(sweep, mark, _SWEEP_STEP)) < mark:
            pass
        return mark

    # Leases.

    async def grant(self, ttl: float) -> int:
        self._check_there()
        check_ttl(ttl)
        async with self._reader() as connection:
            return int(
                await connection.fetchval(
                    self._sql(
                        "INSERT INTO {schema}.leases (ttl, deadline) VALUES ($1, now() + $1 * interval '1 second')"
                        " RETURNING id"
                    ),
                    float(ttl),
                )
            )

    async def keep_alive(self, lease: int) -> float:
        self._check_there()
        async with self._reader() as connection:
            ttl = await connection.fetchval(
                self._sql(
                    "UPDATE {schema}.leases SET deadline = now() + ttl * interval '1 second'"
                    " WHERE id = $1 AND deadline > now() RETURNING ttl"
                ),
                lease,
            )
        if ttl is None:
            raise LeaseNotFound(f"lease {lease} expired, was revoked or never existed")
        return float(ttl)

    async def revoke(self, lease: int) -> None:
        self._check_there()
        async with self._reader() as connection:
            ended = await connection.fetchval(self._sql("SELECT {schema}.end_leases($1)"), lease)
        if not lease or ended < 0:
            raise LeaseNotFound(f"lease {lease} expired, was revoked or never existed")
        await self.reached(ended)

    # Restoring.

    async def replace(self, records: Sequence[StoreRecord], above: int) -> int:
        """Everything that is here goes, `records` come in its place, with revisions higher than `above` and than any that was
        given out here; one transaction. Servers that run find another history and read all anew. Returns the revision."""
        session = self._there()
        schema = self._address.schema
        async with self._errors(session), session.asker.transaction():
            ask = session.asker
            await ask.execute("SET LOCAL statement_timeout = 0")
            newest: int = await ask.fetchval(self._sql("SELECT revision FROM {schema}.head FOR UPDATE"))
            base = max(newest, above) + 1
            await ask.execute(
                self._sql("TRUNCATE {schema}.heads, {schema}.log, {schema}.leases"), timeout=_REPLACE_SECONDS
            )
            numbered = [(base + n, record) for n, record in enumerate(records, 1)]
            await ask.copy_records_to_table(
                "log",
                schema_name=schema,
                columns=["revision", "key", "created", "previous", "deleted", "lease", "value"],
                records=[(at, each.key.encode(), at, 0, False, 0, each.value) for at, each in numbered],
                timeout=_REPLACE_SECONDS,
            )
            await ask.copy_records_to_table(
                "heads",
                schema_name=schema,
                columns=["key", "revision", "created", "lease"],
                records=[(each.key.encode(), at, at, 0) for at, each in numbered],
                timeout=_REPLACE_SECONDS,
            )
            reached = base + len(numbered)
            await ask.execute(
                self._sql("UPDATE {schema}.head SET revision = $1, compacted = $1, epoch = $2"),
                reached,
                secrets.randbits(62),
            )
            await ask.execute(self._sql("UPDATE {schema}.sweeping SET swept = $1"), reached)
            await ask.execute("SELECT pg_notify($1, $2)", self._channel, str(reached))
        return reached


def _fail(write: SharedWrite, problem: StoreError) -> None:
    if not write.future.done():
        write.future.set_exception(problem)


def _refusal(index: int, op: Op, row: Any) -> StoreError:
    if row["verdict"] == 2:
        assert isinstance(op, PutOp)
        return LeaseNotFound(f"lease {op.lease} expired, was revoked or never existed")
    record = None
    if row["actual"]:
        record = StoreRecord(op.key, row["value"] or b"", row["actual"], row["created"], row["lease"])
    return CompareFailed(index, op.key, _ANY if op.expect is None else op.expect, row["actual"], record)


def _certainly_undone(problem: Any) -> bool:
    """An ERROR ends its transaction. Anything graver ends the connection, perhaps after a commit: a database that is
    shut down while it waits for its standby has written already."""
    state = problem.sqlstate or ""
    return problem.severity_en == "ERROR" and not state.startswith(("57P", "08", "XX"))


def _words(problem: BaseException) -> str:
    return str(problem) or type(problem).__name__


def _record(row: Any) -> StoreRecord:
    return StoreRecord(row["key"].decode(), row["value"] or b"", row["revision"], row["created"], row["lease"])


def _event(row: Any) -> StoreEvent:
    value = None if row["deleted"] else row["value"] or b""
    return StoreEvent(row["key"].decode(), row["revision"], value, row["created"], row["previous"])
