"""The bus on Apache Kafka, through aiokafka.

    publish ─> one task writes batch after batch ─> a transaction (entries and offsets) ─> answers, recent records, readers

A publish is a Kafka transaction: all or nothing, committed offsets included. A single entry or offset goes without a transaction.
Publishes that wait for the same turn share it. As this process is the only one that publishes, readers at the end get records from
memory as with the embedded bus, and nothing polls; Kafka is read for older records only. Topics that Triggers read are *shared*: others write to
them as well, so Kafka is asked for them (`refresh`) and nothing of them is in memory; how long their records stay is the brokers' to decide.

Committed offsets are records of a compacted topic, `<prefix>committed-offsets`, and not those of Kafka's consumer groups: a transaction
of aiokafka takes the offsets of one group only, and brokers forget the offsets of groups without members after a week, after which a
domain that was off would run old calls again. Partitions are assigned by hand: nothing is ever rebalanced.

When brokers do not answer in time, the publish fails with BusError and *may or may not* be there. The task then connects anew, which
ends or undoes the transaction, and asks Kafka for the state before anything else is written or read. Nothing has to be done by hand.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import ProducerFenced

from coterie.base.backoff import Backoff, Policy
from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.lean_event import LeanEvent
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner
from coterie.functions.bus.kafka_clients import COMMITS, SHARED, UNREACHABLE, KafkaClients, StoredTopic
from coterie.functions.bus.kafka_settings import KafkaSettings
from coterie.functions.bus.protocol import (
    PARTITIONS,
    BusError,
    Commit,
    Entry,
    Position,
    Record,
    UnknownTopic,
    partition_of,
)
from coterie.functions.bus.topic_state import BYTES_PER_READ, PartitionState, TopicState, answer
from coterie.functions.bus.validation import check_partition, check_publish, check_topic

_ENTRIES_PER_TRANSACTION = 2048
_BYTES_PER_TRANSACTION = 16 << 20
_SHARED_VALUE_LIMIT = 900_000
_AHEAD_BYTES = 8 << 20
"""Of older records that one request brought and nobody has read yet."""

_CommitKey = tuple[str, str, int]
"""Group, topic, partition."""

_log = logger("functions.bus.kafka")


class _Publication:
    __slots__ = ("commits", "entries", "future", "size")

    def __init__(
        self, entries: Sequence[Entry], commits: Sequence[Commit], future: asyncio.Future[list[Record]]
    ) -> None:
        self.entries = entries
        self.commits = commits
        self.future = future
        self.size = sum(len(entry.value) for entry in entries)

    @property
    def atomic(self) -> bool:
        """By itself, without a transaction."""
        return len(self.entries) + len(self.commits) == 1


@dataclass(frozen=True, slots=True)
class _Sent:
    entry: Entry
    partition: int
    time: int
    future: asyncio.Future[Any]

    async def written(self) -> Record:
        offset = (await self.future).offset
        return Record(self.entry.topic, self.partition, offset, self.entry.key, self.entry.value, self.time)


class KafkaBus(TopicState):
    """Made by `KafkaBus.open`."""

    def __init__(self, settings: KafkaSettings, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__()
        self._settings = settings
        self._clock = clock
        self._clients: KafkaClients | None = None
        self._pending: list[_Publication] = []
        self._work = LeanEvent()
        self._writing = asyncio.Lock()
        """Held while something is published and while topics change."""
        self._reading = asyncio.Lock()
        self._ahead: dict[PartitionState, tuple[int, list[Record]]] = {}
        """Older records that a request brought and nobody has read yet, and the offset at which they go on."""
        self._stale: dict[_CommitKey, tuple[int, str]] = {}
        """What was committed to topics that are not there."""
        self._shared: dict[str, list[int]] = {}
        """Topics that others write to, and up to where each partition of theirs was looked at."""
        self._reason = ""
        """Why Kafka is away; empty: it is there."""
        self._owner = TaskOwner("functions-bus", on_failure=lambda _: self._end())

    @classmethod
    async def open(cls, settings: KafkaSettings, clock: Clock = SYSTEM_CLOCK) -> KafkaBus:
        bus = cls(settings, clock)
        try:
            await bus._connect()
        except UNREACHABLE as error:
            raise BusError(f"Kafka at {bus._servers} cannot be used: {_sentence(error)}") from error
        bus._owner.start("publish", bus._publish_forever(), endless=True)
        return bus

    # Topics.

    async def create_topic(self, name: str, partitions: int = PARTITIONS) -> None:
        check_topic(name, partitions)
        if name == COMMITS:
            raise BusError(f"topic {COMMITS} is used by the bus itself")
        self._check_open()
        async with self._changing() as clients:
            if name not in self._topics:
                self._topics[name] = await self._create(clients, name, partitions)

    @property
    def shared_value_limit(self) -> int:
        """What a broker takes where nobody said otherwise: one that refuses a value refuses all that is written with it."""
        return _SHARED_VALUE_LIMIT

    async def share_topic(self, name: str) -> int:
        check_topic(name, PARTITIONS)
        if name == COMMITS:
            raise BusError(f"topic {COMMITS} is used by the bus itself")
        self._check_open()
        async with self._changing() as clients:
            if name not in self._topics:
                await clients.create_topic(self._outer(name), PARTITIONS, SHARED)
                async with self._reading:
                    found = await clients.made_topic(self._outer(name))
                self._topics[name] = self._adopted(name, found)
            if name not in self._shared:
                self._shared[name] = []
                self._mark_shared(name)
        return len(self._partitions(name))

    def _mark_shared(self, name: str) -> None:
        """Nothing of it is remembered, and all of it is looked at again."""
        partitions = self._topics.get(name, ())
        self._shared[name] = [each.end for each in partitions]
        for each in partitions:
            each.shared = True
            each.forget_recent()

    async def refresh(self, topic: str) -> bool:
        partitions = self._partitions(topic)
        if topic not in self._shared:
            return True
        outer = self._outer(topic)
        try:
            async with asyncio.timeout(self._settings.timeout), self._reading:
                seen = dict(enumerate(self._shared[topic]))
                growth = await self._connected().growth(outer, seen)
        except UNREACHABLE as error:
            raise BusError(f"Kafka at {self._servers} cannot be asked: {self._reason or _sentence(error)}") from error
        if partitions is not self._topics.get(topic):
            return True  # connected anew meanwhile
        self._shared[topic] = [growth[number].seen for number in range(len(partitions))]
        for number, each in enumerate(partitions):
            before = each.end
            each.first = max(each.first, growth[number].first)
            each.grow(max(growth[number].end, each.first))
            if each.end > before:
                each.wake()
        return True

    async def _create(self, clients: KafkaClients, name: str, partitions: int) -> list[PartitionState]:
        """Offsets that were committed to an earlier topic of this name are removed first, but only when the controller says that there
        is none now: brokers may be late to hear of topics."""
        outer = self._outer(name)
        while not await clients.create_topic(outer, partitions, try_only=True):
            async with self._reading:
                found = (await clients.topics(outer)).get(outer)
            if found is not None and any(found.ends):
                return self._adopted(name, found)
            # Made by a broker, because a client still asked for it after it was deleted.
            await clients.delete_topic(outer, self._outer_topics())
        await self._forget(clients, [key for key in self._stale if key[1] == name])
        if not await clients.create_topic(outer, partitions):
            raise BusError(f"topic {name} was created by somebody else at the same time")
        return [PartitionState(0, 0, 0, {}) for _ in range(partitions)]

    def _adopted(self, name: str, stored: StoredTopic) -> list[PartitionState]:
        """One that we did not hear of when we connected."""
        states = [PartitionState(0, first, end, {}) for first, end in zip(stored.firsts, stored.ends, strict=True)]
        for key in [key for key in self._stale if key[1] == name and key[2] < len(states)]:
            states[key[2]].committed[key[0]] = self._stale.pop(key)
        return states

    async def delete_topic(self, name: str) -> None:
        self._check_open()
        async with self._changing() as clients:
            partitions = self._topics.get(name)
            if partitions is not None:
                await clients.delete_topic(self._outer(name), self._outer_topics(name))
                for each in partitions:
                    self._ahead.pop(each, None)
                self._remove(name)
                self._shared.pop(name, None)
                for number, each in enumerate(partitions):
                    self._stale.update({(group, name, number): value for group, value in each.committed.items()})
                await self._forget(clients, [key for key in self._stale if key[1] == name])

    async def _forget(self, clients: KafkaClients, keys: Sequence[_CommitKey]) -> None:
        topic = self._outer(COMMITS)
        sent = [await clients.send(clients.plain, topic, 0, _commit_key(*key), None) for key in keys]
        for each in sent:
            await each
        for key in keys:
            del self._stale[key]

    def _outer_topics(self, without: str = "") -> list[str]:
        return [self._outer(each) for each in (*self._topics, COMMITS) if each != without]

    async def trim(self, topic: str, before: int) -> None:
        self._partitions(topic)
        async with self._changing() as clients, self._reading:
            partitions = self._partitions(topic)
            asked = {TopicPartition(self._outer(topic), number): each.end for number, each in enumerate(partitions)}
            for each, first in (await clients.trim(asked, max(before, 0))).items():
                state = partitions[each.partition]
                state.trim(max(first, state.first))
                self._ahead.pop(state, None)

    @contextlib.asynccontextmanager
    async def _changing(self) -> AsyncIterator[KafkaClients]:
        try:
            async with asyncio.timeout(self._settings.timeout), self._writing:
                yield self._connected()
        except UNREACHABLE as error:
            raise BusError(f"Kafka at {self._servers} did not do it: {self._reason or _sentence(error)}") from error

    # Publishing.

    async def publish(self, entries: Sequence[Entry], commits: Sequence[Commit] = ()) -> list[Position]:
        check_publish(entries, commits)
        self._check_open()
        future: asyncio.Future[list[Record]] = asyncio.get_running_loop().create_future()
        publication = _Publication(entries, commits, future)
        self._pending.append(publication)
        self._work.set()
        try:
            # Once for what is written before it, once for itself.
            async with asyncio.timeout(2 * self._settings.timeout):
                records = await future
        except TimeoutError:
            raise BusError(f"Kafka at {self._servers} does not answer: {self._reason or 'timeout'}") from None
        return [Position(record.topic, record.partition, record.offset) for record in records]

    async def _publish_forever(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while self._pending:
                async with self._writing:
                    await self._publish_batch(self._take())

    def _take(self) -> list[_Publication]:
        """What is written together, in the order of the calls. Nobody waits any more for those that are done."""
        taken: list[_Publication] = []
        entries = size = 0
        for each in self._pending:
            if taken and (
                entries + len(each.entries) > _ENTRIES_PER_TRANSACTION or size + each.size > _BYTES_PER_TRANSACTION
            ):
                break
            taken.append(each)
            entries += len(each.entries)
            size += each.size
        del self._pending[: len(taken)]
        return [each for each in taken if not each.future.done()]

    async def _publish_batch(self, batch: list[_Publication]) -> None:
        valid = [each for each in batch if self._valid(each)]
        if not valid:
            return
        try:
            async with asyncio.timeout(self._settings.timeout):
                if all(each.atomic for each in valid):
                    written = await self._write_plainly(valid)
                else:
                    written = await self._write_transaction(valid)
        except UNREACHABLE as error:
            self._reason = _sentence(error)
            failure = BusError(
                f"Kafka at {self._servers} did not acknowledge: {self._reason}; it may or may not be there"
            )
            for each in valid:
                answer(each.future, failure)
            await self._reconnect()
            return
        records = [record for each in written for record in each]
        self._take_over(sorted(records, key=lambda record: record.offset), [])
        for each, found in zip(valid, written, strict=True):
            self._take_over((), each.commits)
            answer(each.future, found)

    def _valid(self, publication: _Publication) -> bool:
        topics = self._topics
        try:
            for commit in publication.commits:
                check_partition(commit.topic, commit.partition, len(topics[commit.topic]))
            for entry in publication.entries:
                topics[entry.topic]
        except KeyError as error:
            answer(publication.future, UnknownTopic(f"topic {error.args[0]} does not exist"))
            return False
        except BusError as error:
            answer(publication.future, error)
            return False
        return True

    async def _write_plainly(self, publications: list[_Publication]) -> list[list[Record]]:
        producer = self._connected().plain
        sent = [[await self._send(producer, entry) for entry in each.entries] for each in publications]
        commits = await self._send_commits(producer, publications)
        written = [[await record.written() for record in each] for each in sent]
        for future in commits:
            await future
        return written

    async def _write_transaction(self, publications: list[_Publication]) -> list[list[Record]]:
        producer = self._connected().next_transactional()
        await producer.begin_transaction()
        sent = [[await self._send(producer, entry) for entry in each.entries] for each in publications]
        await self._send_commits(producer, publications)
        written = [[await record.written() for record in each] for each in sent]
        await producer.commit_transaction()
        return written

    async def _send_commits(
        self, producer: AIOKafkaProducer, publications: list[_Publication]
    ) -> list[asyncio.Future[Any]]:
        last = {
            _commit_key(commit.group, commit.topic, commit.partition): msgspec.json.encode((commit.offset, commit.note))
            for each in publications
            for commit in each.commits
        }
        sent = []
        for key, value in last.items():
            sent.append(await self._connected().send(producer, self._outer(COMMITS), 0, key, value))
        return sent

    async def _send(self, producer: AIOKafkaProducer, entry: Entry) -> _Sent:
        partition = partition_of(entry.key, len(self._topics[entry.topic]))
        now = int(self._clock.now().timestamp() * 1000)
        topic, key = self._outer(entry.topic), entry.key.encode()
        future = await self._connected().send(producer, topic, partition, key, entry.value, now)
        return _Sent(entry, partition, now, future)

    # Reading.

    async def _read_old(
        self, source: PartitionState, topic: str, partition: int, offset: int, limit: int
    ) -> list[Record]:
        async with self._reading:
            start, ahead = self._ahead.pop(source, (-1, []))
            if start != offset:
                ahead = await self._fetch(source, topic, partition, offset)
            size = count = 0
            for record in ahead[:limit]:
                count += 1
                size += len(record.value)
                if size >= BYTES_PER_READ:
                    break
            if len(ahead) > count:
                self._keep(source, ahead[count - 1].offset + 1, ahead[count:])
            return ahead[:count]

    async def _fetch(self, source: PartitionState, topic: str, partition: int, offset: int) -> list[Record]:
        try:
            async with asyncio.timeout(self._settings.timeout):
                found = await self._connected().read(TopicPartition(self._outer(topic), partition), offset)
        except UNREACHABLE as error:
            raise BusError(f"Kafka at {self._servers} cannot be read: {self._reason or _sentence(error)}") from error
        if not found and not source.deleted and offset >= source.first:
            raise BusError(f"Kafka at {self._servers} brought nothing of topic {topic} in {self._settings.timeout:g} s")
        return [
            Record(
                topic,
                partition,
                each.offset,
                (each.key or b"").decode(errors="replace"),
                each.value or b"",
                each.timestamp,
            )
            for each in found
            if each.offset < source.end
        ]

    def _keep(self, source: PartitionState, start: int, ahead: list[Record]) -> None:
        self._ahead[source] = start, ahead
        while sum(len(record.value) for _, each in self._ahead.values() for record in each) > _AHEAD_BYTES:
            del self._ahead[next(iter(self._ahead))]

    # The connection.

    async def _connect(self) -> None:
        """New clients, and the state as Kafka has it."""
        clients = KafkaClients(self._settings)
        try:
            async with asyncio.timeout(self._settings.timeout):
                await clients.start()
                topics = await clients.topics()
                commits = await self._read_commits(clients)
        except BaseException:
            await clients.close()
            raise
        self._clients = clients
        self._ahead.clear()
        names = {self._inner(outer): stored for outer, stored in topics.items() if self._inner(outer) != COMMITS}
        for name in set(self._topics) - set(names):
            self._remove(name)
        for name, stored in names.items():
            partitions = self._topics.get(name)
            if partitions is None or len(partitions) != len(stored.ends):
                self._remove(name)
                self._topics[name] = partitions = [PartitionState(0, 0, 0, {}) for _ in stored.ends]
            for each, first, end in zip(partitions, stored.firsts, stored.ends, strict=True):
                each.first, each.end = first, end
                each.committed.clear()
                each.forget_recent()
        for name in self._shared:
            self._mark_shared(name)
        self._stale.clear()
        for key, committed in commits.items():
            group, name, number = key
            if number < len(self._topics.get(name, ())):
                self._topics[name][number].committed[group] = committed
            else:
                self._stale[key] = committed
        self._reason = ""
        self._wake_all()

    async def _read_commits(self, clients: KafkaClients) -> dict[_CommitKey, tuple[int, str]]:
        found: dict[_CommitKey, tuple[int, str]] = {}
        async for record in clients.read_whole(clients.commits):
            try:
                key = msgspec.json.decode(record.key, type=_CommitKey)
                found.pop(key, None)
                if record.value is not None:
                    found[key] = msgspec.json.decode(record.value, type=tuple[int, str])
            except (msgspec.MsgspecError, TypeError) as error:
                raise BusError(f"Kafka's topic {clients.commits} has records that are not ours: {error}") from error
        return found

    async def _reconnect(self) -> None:
        """Until it works. Who publishes meanwhile waits for it, or for the timeout."""
        _log.error("Kafka is away", servers=self._servers, reason=self._reason)
        backoff = Backoff(Policy(first=0.2, limit=10.0))
        async with self._reading:
            clients, self._clients = self._clients, None
            if clients is not None:
                await clients.close()
        while True:
            try:
                async with self._reading:
                    await self._connect()
            except (*UNREACHABLE, BusError) as error:
                self._reason = _sentence(error)
                await asyncio.sleep(backoff.failed())
            else:
                _log.info("Kafka is back", servers=self._servers)
                return

    def _connected(self) -> KafkaClients:
        if self._clients is None:
            raise BusError(f"Kafka at {self._servers} is away: {self._reason}")
        return self._clients

    @property
    def _servers(self) -> str:
        return ",".join(self._settings.servers)

    def _outer(self, name: str) -> str:
        return self._settings.prefix + name

    def _inner(self, name: str) -> str:
        return name.removeprefix(self._settings.prefix)

    def _end(self) -> None:
        self._closed = True
        for each in self._pending:
            answer(each.future, BusError("the bus is closed"))
        self._pending.clear()
        self._wake_all()

    async def close(self) -> None:
        """Publishes that were begun are finished; readers that wait get BusError."""
        if self._closed:
            return
        self._closed = True
        self._wake_all()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.timeout):
                if self._pending and not self._reason:
                    await asyncio.wait([each.future for each in self._pending])
                if not self._reason:
                    async with self._writing:
                        pass
        await self._owner.close()
        self._end()
        if self._clients is not None:
            await self._clients.close()


def _commit_key(group: str, topic: str, partition: int) -> bytes:
    return msgspec.json.encode((group, topic, partition))


def _sentence(error: BaseException) -> str:
    if isinstance(error, ProducerFenced):
        return "another process uses the same prefix"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return f"{type(error).__name__}: {error}"
