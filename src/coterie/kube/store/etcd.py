"""The log in etcd: any number of API servers write, the cluster decides.

One Txn for each write, one watch of everything below our prefix. etcd's revisions count the writes of all its users, so
they have gaps here. What we have been told is therefore always the revision of an event below our prefix, and where
the cluster is ahead of that and nothing comes, a small key of our own is written (`_settle`): its event comes in order,
after all that went before. Progress notifications would tell the same without a write, but overtake events up to etcd
3.4.30 and 3.5.12.

    <prefix>/keys<key>         the objects
    <prefix>/meta/compacted    the mark of compaction
    <prefix>/meta/settled      the small key
    <prefix>/meta/offset       added to etcd's revisions: a restored store goes on above all it ever gave out
    <prefix>/meta/restoring    there while a restore is under way
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.store_address import StoreAddress
from coterie.kube.store import etcd_messages as messages
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
    ValueTooLarge,
)
from coterie.kube.store.shared import SharedStore, SharedWrite, check_ttl

CALL_SECONDS = 5.0
_SILENCE_SECONDS = 2.0
_GONE_SECONDS = 7.0
_OWN_EVENT_SECONDS = 0.05
"""For so long the event of a revision is waited for before it is taken for somebody else's."""
_OTHERS_SECONDS = 60.0
_PAGE = 1000
_IN_FLIGHT = 256
_REPLACE_OPS = 100
_REPLACE_BYTES = 512 * 1024
_ANY = -1
_NEVER = -1
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.lb_policy_name", "round_robin"),
    # The time-out of a ping is another setting than that of keepalive; faster than this the server takes it for abuse.
    ("grpc.keepalive_time_ms", 11_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
)
_LEADER = ("hasleader", "true")
"""Without it a member that has lost the others would be silent for ever."""


class _Session:
    def __init__(self, channel: Any, token: str) -> None:
        self.channel = channel
        self.metadata: tuple[tuple[str, str], ...] = (("token", token),) if token else ()
        self.calls = {
            path: channel.unary_unary(path)
            for path in (
                messages.RANGE,
                messages.TXN,
                messages.COMPACT,
                messages.LEASE_GRANT,
                messages.LEASE_REVOKE,
                messages.STATUS,
                messages.AUTHENTICATE,
            )
        }

    async def call(self, path: str, request: bytes) -> bytes:
        answer: bytes = await self.calls[path](request, timeout=CALL_SECONDS, metadata=self.metadata)
        return answer


class EtcdStore(SharedStore):
    def __init__(
        self,
        address: StoreAddress,
        *,
        clock: Clock = SYSTEM_CLOCK,
        watch_limit: int = WATCH_LIMIT,
        restoring: bool = False,
    ) -> None:
        super().__init__(address.label, clock=clock, watch_limit=watch_limit)
        self._address = address
        root = address.prefix.encode()
        self._keys = root + b"/keys"
        self._meta = root + b"/meta/"
        self._mark_key = self._meta + b"compacted"
        self._settled_key = self._meta + b"settled"
        self._offset_key = self._meta + b"offset"
        self._restoring_key = self._meta + b"restoring"
        self._offset = 0
        self.restoring = restoring
        """To be opened although a restore was begun: to do it again."""
        self._watched = (root + b"/", root + b"0")
        self._session: _Session | None = None
        self._cluster = 0
        self._heads: dict[bytes, tuple[int, int]] = {}
        """Revision and creation of each key that exists, as of `_revision`."""
        self._tails: dict[str, asyncio.Future[list[int]]] = {}
        """The last write of each key that is on its way: the next of that key waits for it."""
        self._slots = asyncio.Semaphore(_IN_FLIGHT)
        self._others_until = 0.0
        """Until then others are known to use the cluster too."""

    # The session.

    async def _connect(self) -> None:
        channel = await self._channel()
        session = _Session(channel, "")
        try:
            if self._address.user:
                request = messages.authenticate_request(self._address.user, self._address.password.reveal())
                token = messages.token_of(await session.call(messages.AUTHENTICATE, request))
                session = _Session(channel, token)
            await self._adopt(session)
        except grpc.aio.AioRpcError as problem:
            await channel.close(0)
            raise StoreUnavailable(f"{self.label} did not answer: {_words(problem)}") from problem
        except BaseException:
            await channel.close(0)
            raise
        self._session = session

    async def _channel(self) -> Any:
        loop = asyncio.get_running_loop()
        places: list[str] = []
        family = "ipv4"
        for host, port in self._address.hosts:
            try:
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except OSError as problem:
                if len(self._address.hosts) == 1:
                    raise StoreUnavailable(f"{host} has no address: {problem.strerror}") from problem
                continue
            four = [each[4][0] for each in found if each[0] == socket.AF_INET]
            six = [each[4][0] for each in found if each[0] == socket.AF_INET6]
            if four:
                places.append(f"{four[0]}:{port}")
            elif six and not places:
                family = "ipv6"
                places.append(f"[{six[0]}]:{port}")
        if not places:
            raise StoreUnavailable(f"{self.label}: none of its hosts has an address")
        target = f"{family}:{','.join(places)}"
        if not self._address.tls:
            return grpc.aio.insecure_channel(target, options=_OPTIONS)
        files = await asyncio.to_thread(self._read_files)
        credentials = grpc.ssl_channel_credentials(*files)
        name = ("grpc.ssl_target_name_override", self._address.hosts[0][0])
        return grpc.aio.secure_channel(target, credentials, options=(*_OPTIONS, name))

    def _read_files(self) -> list[bytes | None]:
        address = self._address
        try:
            return [Path(name).read_bytes() if name else None for name in (address.ca, address.key, address.cert)]
        except OSError as problem:
            raise StoreUnavailable(f"{problem.filename} cannot be read: {problem.strerror}") from problem

    async def _adopt(self, session: _Session) -> None:
        meta = messages.range_response(
            await session.call(messages.RANGE, messages.range_request(self._meta, _end(self._meta))), 0
        )
        values = {record.key: record.value for record in meta.records}
        if self._restoring_key in values and not self.restoring:
            raise StoreUnavailable(f"{self.label}: a restore is under way, or was not finished: run it again")
        before, self._offset = (self._cluster, self._offset), int(values.get(self._offset_key, b"0"))
        cluster, newest = meta.header.cluster, meta.header.revision + self._offset
        if not self._cluster:
            # A write of our own first: its revision is one that an event has.
            await self._load_heads(session, await self._write_settled(session))
        elif before != (cluster, self._offset) or newest < self._revision:
            await self._read_anew(session, "the cluster is another one, or was restored")
        self._cluster = cluster

    async def _load_heads(self, session: _Session, revision: int) -> None:
        heads: dict[bytes, tuple[int, int]] = {}
        key = self._keys
        while True:
            answer = await session.call(
                messages.RANGE,
                messages.range_request(
                    key, _end(self._keys), revision=self._theirs(revision), limit=_PAGE * 5, keys_only=True
                ),
            )
            page = messages.range_response(answer, self._offset)
            for each in page.records:
                heads[each.key] = (each.revision, each.created)
            if not page.more:
                break
            key = page.records[-1].key + b"\0"
        self._heads = heads
        self._revision = revision
        self._compacted = await self._read_mark(session)

    async def _read_mark(self, session: _Session) -> int:
        found = messages.range_response(await session.call(messages.RANGE, messages.range_request(self._mark_key)), 0)
        return int(found.records[0].value) if found.records else 0

    async def _read_anew(self, session: _Session, reason: str) -> None:
        revision = await self._write_settled(session)
        await self._load_heads(session, revision)
        records: list[StoreRecord] = []
        key = self._keys
        while True:
            request = messages.range_request(key, _end(self._keys), revision=self._theirs(revision), limit=_PAGE)
            page = messages.range_response(await session.call(messages.RANGE, request), self._offset)
            records += [self._record(each) for each in page.records]
            if not page.more:
                break
            key = page.records[-1].key + b"\0"
        self._history_lost(records, revision, self._compacted, reason)

    async def _write_settled(self, session: _Session) -> int:
        answer = await session.call(messages.TXN, messages.txn_request((), (messages.put(self._settled_key, b""),), ()))
        return messages.header_of(answer, self._offset).revision

    async def _disconnect(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.channel.close(0)

    def _there(self) -> _Session:
        """Also while the store is being closed: what was accepted is still written."""
        if self._session is None or self._away:
            raise StoreUnavailable(self._away or f"{self.label}: no session")
        return self._session

    async def _call(self, path: str, request: bytes) -> bytes:
        """What is not a write."""
        session = self._there()
        try:
            return await session.call(path, request)
        except grpc.aio.AioRpcError as problem:
            raise self._problem(problem) from problem
        except asyncio.CancelledError:
            if self._session is session:
                raise
            raise StoreUnavailable(self._away or f"{self.label}: the session ended") from None

    def _problem(self, problem: grpc.aio.AioRpcError) -> StoreError:
        code, words = problem.code(), problem.details() or ""
        if "compacted" in words:
            return Compacted(0, self._compacted)
        if code is grpc.StatusCode.NOT_FOUND:
            return LeaseNotFound("the lease expired, was revoked or never existed")
        if code is grpc.StatusCode.INVALID_ARGUMENT and "too large" in words:
            return ValueTooLarge(
                "the object is larger than etcd takes (1.5 MB, unless it was started with another limit)"
            )
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "space exceeded" in words:
            return StoreError(
                f"{self.label} is full (--quota-backend-bytes): compact and defragment it, then run `etcdctl alarm disarm`"
            )
        if code in _UNKNOWN:
            return StoreUnavailable(f"{self.label} did not answer: {_words(problem)}")
        return StoreError(f"{self.label}: {words or code.name}")

    # Following.

    async def _follow(self) -> None:
        session = self._session
        assert session is not None
        call = session.channel.stream_stream(messages.WATCH)(metadata=(_LEADER, *session.metadata))
        last = [self._clock.monotonic()]
        heartbeat = self._tasks.start("heartbeat", self._beat(call, last), vital=False)
        try:
            await call.write(messages.watch_request(*self._watched, self._theirs(self._revision) + 1))
            while True:
                answer = await call.read()
                if answer is grpc.aio.EOF:
                    raise StoreUnavailable(f"{self.label} ended the watch: {await _why(call)}")
                last[0] = self._clock.monotonic()
                found = messages.watch_response(answer, self._offset)
                if found.canceled:
                    if not found.compacted:
                        raise StoreUnavailable(f"{self.label} ended the watch: {found.reason}")
                    await self._read_anew(session, "history was compacted while we were away")
                    return
                if found.events:
                    self._take(found.events)
        except grpc.aio.AioRpcError as problem:
            raise StoreUnavailable(f"{self.label} did not answer: {_words(problem)}") from problem
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise StoreUnavailable(f"{self.label} was silent for {_GONE_SECONDS:.0f} s") from None
        finally:
            heartbeat.cancel()
            call.cancel()

    async def _beat(self, call: Any, last: list[float]) -> None:
        """Ask for a sign of life where there is silence."""
        while True:
            await self._clock.sleep(_SILENCE_SECONDS / 2)
            silent = self._clock.monotonic() - last[0]
            if silent > _GONE_SECONDS:
                call.cancel()
                return
            if silent > _SILENCE_SECONDS:
                try:
                    await call.write(messages.PROGRESS_REQUEST)
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    return  # whoever reads hears of it

    def _take(self, found: Sequence[messages.EtcdEvent]) -> None:
        events: list[StoreEvent] = []
        for each in found:
            record = each.record
            if record.key in (self._offset_key, self._restoring_key) and not self.restoring:
                raise StoreUnavailable(f"{self.label} is being restored")
            if record.key == self._mark_key:
                self._compacted = max(self._compacted, int(record.value or b"0"))
            if not record.key.startswith(self._keys):
                continue
            previous, created = self._heads.pop(record.key, (0, 0))
            if each.deleted:
                events.append(StoreEvent(self._name(record.key), record.revision, None, created, previous))
            else:
                self._heads[record.key] = (record.revision, record.created)
                if previous and previous < record.created:
                    previous = 0
                events.append(
                    StoreEvent(self._name(record.key), record.revision, record.value, record.created, previous)
                )
        self._notify(events, found[-1].record.revision)

    async def _ask_current(self) -> int:
        if self._clock.monotonic() < self._others_until:
            return await self._settle()
        answer = await self._call(messages.RANGE, messages.range_request(self._settled_key, count_only=True))
        return await self._settled(messages.header_of(answer, self._offset).revision)

    async def _settled(self, revision: int) -> int:
        """A revision not older than this one that an event below our prefix has."""
        if revision <= self._revision:
            return self._revision
        try:
            async with asyncio.timeout(_OWN_EVENT_SECONDS):
                await self.reached(revision)
        except TimeoutError:
            self._others_until = self._clock.monotonic() + _OTHERS_SECONDS
            return await self._settle()
        return self._revision

    async def _settle(self) -> int:
        session = self._there()
        try:
            return await self._write_settled(session)
        except grpc.aio.AioRpcError as problem:
            raise self._problem(problem) from problem

    async def _catch_up(self, revision: int) -> None:
        await self.reached(await self._settled(revision))

    # Writing.

    def _send(self, write: SharedWrite) -> None:
        before = {self._tails[op.key] for op in write.ops if op.key in self._tails}
        for op in write.ops:
            self._tails[op.key] = write.future
        write.future.add_done_callback(lambda done: self._forget(write, done))
        self._tasks.start("write", self._write(write, before), vital=False)

    def _forget(self, write: SharedWrite, done: asyncio.Future[list[int]]) -> None:
        for op in write.ops:
            if self._tails.get(op.key) is done:
                del self._tails[op.key]

    async def _write(self, write: SharedWrite, before: set[asyncio.Future[list[int]]]) -> None:
        if before:
            await asyncio.wait(before)
        async with self._slots:
            try:
                if len({op.key for op in write.ops}) < len(write.ops):
                    raise StoreError("etcd changes a key only once in a transaction")
                session = self._there()
                answer = messages.txn_response(await session.call(messages.TXN, self._txn(write.ops)), self._offset)
                if not answer.succeeded:
                    raise self._refusal_of(write.ops, answer)
            except StoreError as problem:
                _fail(write, problem)
            except grpc.aio.AioRpcError as problem:
                self.metrics.failures += 1
                meaning = self._problem(problem)
                _fail(write, Unsettled(str(meaning)) if isinstance(meaning, StoreUnavailable) else meaning)
            except asyncio.CancelledError:
                _fail(write, Unsettled(f"{self.label}: the session ended before it answered"))
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
            else:
                self.metrics.transactions += 1
                self._written(write, [answer.header.revision] * len(write.ops))

    def _txn(self, ops: Sequence[Op]) -> bytes:
        conditions = [messages.revision_is(self._restoring_key, 0)]
        then: list[bytes] = []
        for op in ops:
            key = self._key(op.key)
            if op.expect is not None:
                conditions.append(messages.revision_is(key, self._theirs(op.expect)))
            if isinstance(op, PutOp):
                then.append(messages.put(key, op.value, op.lease))
            else:
                conditions.append(messages.exists(key))
                then.append(messages.delete(key))
        return messages.txn_request(conditions, then, (messages.read(self._key(op.key)) for op in ops))

    def _refusal_of(self, ops: Sequence[Op], answer: messages.EtcdTxn) -> StoreError:
        for index, (op, found) in enumerate(zip(ops, answer.ranges, strict=True)):
            record = self._record(found.records[0]) if found.records else None
            actual = record.revision if record is not None else 0
            if (op.expect is not None and op.expect != actual) or (not isinstance(op, PutOp) and not actual):
                return CompareFailed(index, op.key, _ANY if op.expect is None else op.expect, actual, record)
        return StoreUnavailable(f"{self.label} is being restored")

    # Reading.

    def _theirs(self, revision: int) -> int:
        """Our revision as etcd counts; one from before a restore is none that a key can have."""
        if not revision:
            return 0
        return revision - self._offset if revision > self._offset else _NEVER

    def _key(self, key: str) -> bytes:
        return self._keys + key.encode()

    def _name(self, key: bytes) -> str:
        return key[len(self._keys) :].decode()

    def _record(self, found: messages.EtcdRecord) -> StoreRecord:
        return StoreRecord(self._name(found.key), found.value, found.revision, found.created, found.lease)

    async def _load(self, key: str, revision: int) -> tuple[int, StoreRecord | None]:
        answer = await self._range(messages.range_request(self._key(key), revision=self._theirs(revision)), revision)
        record = self._record(answer.records[0]) if answer.records else None
        return revision or answer.header.revision, record

    async def _range(self, request: bytes, revision: int) -> messages.EtcdRange:
        try:
            return messages.range_response(await self._call(messages.RANGE, request), self._offset)
        except Compacted:
            raise Compacted(revision, max(self._compacted, revision + 1)) from None

    async def _load_page(self, prefix: str, revision: int, after: str, limit: int) -> RecordPage:
        start, end = self._key(prefix), _end(self._key(prefix))
        if after >= prefix:
            start = self._key(after) + b"\0"
        if start >= end:
            return RecordPage(revision or await self._ask_current(), [], False)
        records: list[StoreRecord] = []
        at, more = revision, True
        while more:
            wanted = min(limit - len(records), _PAGE) if limit else _PAGE
            try:
                page = await self._range(
                    messages.range_request(start, end, revision=self._theirs(at), limit=wanted), at
                )
            except Compacted:
                if revision:
                    raise
                records, at, start = [], 0, self._key(after) + b"\0" if after >= prefix else self._key(prefix)
                continue
            at = at or page.header.revision
            records += [self._record(each) for each in page.records]
            more = page.more
            if limit and len(records) >= limit:
                break
            if page.records:
                start = page.records[-1].key + b"\0"
        return RecordPage(at, records, more)

    async def _load_history(self, prefix: str, after: int, upto: int) -> AsyncGenerator[Sequence[StoreEvent], None]:
        """A watch of its own. It ends: an event at `upto` or behind it is there already, for we have been told of it."""
        session = self._there()
        call = session.channel.stream_stream(messages.WATCH)(metadata=(_LEADER, *session.metadata))
        wanted = self._key(prefix)
        try:
            await call.write(messages.watch_request(*self._watched, self._theirs(after) + 1, previous=True))
            while True:
                async with asyncio.timeout(CALL_SECONDS):
                    answer = await call.read()
                if answer is grpc.aio.EOF:
                    raise StoreUnavailable(f"{self.label} ended the watch: {await _why(call)}")
                found = messages.watch_response(answer, self._offset)
                if found.canceled:
                    if found.compacted:
                        raise Compacted(after, max(found.compacted, self._compacted))
                    raise StoreUnavailable(f"{self.label} ended the watch: {found.reason}")
                if not found.events:
                    continue
                yield [
                    self._past_event(each)
                    for each in found.events
                    if each.record.revision <= upto and each.record.key.startswith(wanted)
                ]
                if found.events[-1].record.revision >= upto:
                    return
                if after < self._compacted:
                    raise Compacted(after, self._compacted)
                after = found.events[-1].record.revision
        except grpc.aio.AioRpcError as problem:
            raise self._problem(problem) from problem
        except TimeoutError as problem:
            raise StoreUnavailable(f"{self.label} did not answer") from problem
        finally:
            call.cancel()

    def _past_event(self, each: messages.EtcdEvent) -> StoreEvent:
        record, before = each.record, each.previous
        previous = before.revision if before is not None else 0
        if each.deleted:
            created = before.created if before is not None else 0
            return StoreEvent(self._name(record.key), record.revision, None, created, previous)
        if record.version > 1 and not previous:
            previous = record.created  # it existed; its last state before is compacted
        return StoreEvent(self._name(record.key), record.revision, record.value, record.created, previous)

    # Forgetting.

    async def _compact(self, revision: int) -> int:
        """The mark goes first, under a condition; then etcd forgets."""
        while True:
            found = messages.range_response(await self._call(messages.RANGE, messages.range_request(self._mark_key)), 0)
            known = found.records[0] if found.records else None
            mark = int(known.value) if known is not None else 0
            if mark >= revision:
                revision = mark
                break
            condition = messages.revision_is(self._mark_key, known.revision if known is not None else 0)
            request = messages.txn_request((condition,), (messages.put(self._mark_key, b"%d" % revision),), ())
            if messages.txn_response(await self._call(messages.TXN, request), 0).succeeded:
                break
        self._compacted = max(self._compacted, revision)
        with suppress(Compacted):  # by somebody else, or by us before a crash
            await self._call(messages.COMPACT, messages.compact_request(self._theirs(revision)))
        return revision

    # Leases.

    async def grant(self, ttl: float) -> int:
        self._check_there()
        check_ttl(ttl)
        answer = await self._call(messages.LEASE_GRANT, messages.lease_grant_request(math.ceil(ttl)))
        return messages.lease_response(answer)[0]

    async def keep_alive(self, lease: int) -> float:
        self._check_there()
        session = self._there()
        call = session.channel.stream_stream(messages.LEASE_KEEP_ALIVE)(metadata=session.metadata, timeout=CALL_SECONDS)
        try:
            await call.write(messages.lease_request(lease))
            answer = await call.read()
            if answer is grpc.aio.EOF:
                raise StoreUnavailable(f"{self.label} did not answer: {await _why(call)}")
            seconds = messages.lease_response(answer)[1]
        except grpc.aio.AioRpcError as problem:
            raise self._problem(problem) from problem
        finally:
            call.cancel()
        if not seconds:
            raise LeaseNotFound(f"lease {lease} expired, was revoked or never existed")
        return float(seconds)

    async def revoke(self, lease: int) -> None:
        self._check_there()
        answer = await self._call(messages.LEASE_REVOKE, messages.lease_request(lease))
        await self._catch_up(messages.header_of(answer, self._offset).revision)

    # Restoring.

    async def replace(self, records: Sequence[StoreRecord], above: int) -> int:
        """Everything that is here goes, `records` come in its place, with revisions higher than `above` and than any that was
        given out here. It takes several transactions: until the last, nobody can open the store. Returns the revision."""

        async def txn(*ops: bytes) -> int:
            answer = await self._call(messages.TXN, messages.txn_request((), ops, ()))
            return messages.header_of(answer, 0).revision

        now = await txn(messages.put(self._restoring_key, b""))
        # A range that is deleted and the keys that are put into it may not be in one transaction.
        await txn(messages.delete(self._keys, _end(self._keys)))
        offset = max(self._revision, above, self._offset + now) + 1 - now
        batch: list[bytes] = []
        size = 0
        for record in records:
            batch.append(messages.put(self._key(record.key), record.value))
            size += len(record.value)
            if len(batch) == _REPLACE_OPS or size > _REPLACE_BYTES:
                await txn(*batch)
                batch, size = [], 0
        if batch:
            await txn(*batch)
        mark = b"%d" % (now + offset)
        newest = await txn(
            messages.put(self._mark_key, mark),
            messages.put(self._offset_key, b"%d" % offset),
            messages.delete(self._restoring_key),
        )
        return newest + offset


_UNKNOWN = frozenset(
    (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.ABORTED,
    )
)
"""After these nobody knows whether a write took place."""


def _fail(write: SharedWrite, problem: StoreError) -> None:
    if not write.future.done():
        write.future.set_exception(problem)


def _end(prefix: bytes) -> bytes:
    """The smallest key behind all that start with `prefix`, which ends in no 0xff: it is text in UTF-8."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def _words(problem: grpc.aio.AioRpcError) -> str:
    return problem.details() or problem.code().name


async def _why(call: Any) -> str:
    return str(await call.details() or (await call.code()).name)
