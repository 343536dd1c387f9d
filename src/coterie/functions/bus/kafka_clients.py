"""The connections to Kafka, made and closed together, and what is asked once when they are made.

Two transactional producers take turns: a broker writes the end of a transaction into the partitions after it has acknowledged it, and
refuses a new one of the same producer until then. The plain producer is for publishes of one entry, which are atomic by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.errors import (
    KafkaError,
    NotControllerError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    for_code,
)

from coterie.base.log import logger
from coterie.base.tasks import retrieve_exception
from coterie.functions.bus.kafka_settings import KafkaSettings, client_options
from coterie.functions.bus.protocol import VALUE_LIMIT, BusError

TRANSACTIONAL_PRODUCERS = 2
_MESSAGE_LIMIT = VALUE_LIMIT + (1 << 20)
_RECORDS = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": str(_MESSAGE_LIMIT),
}
"""What is old is dropped by `trim`, never by the broker."""
SHARED = {**_RECORDS, "retention.ms": str(7 * 24 * 3600 * 1000)}
"""Of topics for others, where we make them."""
COMMITS = "committed-offsets"
"""The topic for what groups have committed: [group, topic, partition] -> [offset, note]."""
COMPACTED = {
    "cleanup.policy": "compact",
    "max.message.bytes": str(_MESSAGE_LIMIT),
    "segment.bytes": str(16 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
_CLOSE_SECONDS = 5.0
_RETRY_SECONDS = 0.2
_GONE_ROUNDS = 25
_LOOKS = 6
"""In the time that Kafka has for anything, it is asked so often for its topics."""
_GROWTH_ROUNDS, _GROWTH_MILLISECONDS = 20, 200

log = logger("functions.bus")
# It reports every retry as a warning or an error. What matters reaches us as an exception.
logging.getLogger("aiokafka").setLevel(logging.CRITICAL)

UNREACHABLE = (KafkaError, TimeoutError, OSError)
"""What aiokafka raises when brokers do not do what they are asked."""


@dataclass(frozen=True, slots=True)
class StoredTopic:
    firsts: list[int]
    ends: list[int]


@dataclass(slots=True)
class PartitionGrowth:
    first: int
    seen: int
    """Up to here it was looked at: beyond the last record, where there are marks of transactions."""
    end: int = 0
    """After the last record that is new."""


class KafkaClients:
    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        options = client_options(settings)
        timeout = {"request_timeout_ms": int(settings.timeout * 1000)}
        sending = {**options, **timeout, "acks": "all", "max_request_size": _MESSAGE_LIMIT, "max_batch_size": 1 << 20}
        self.admin = AIOKafkaAdminClient(**options, **timeout)
        self.plain = AIOKafkaProducer(**sending, enable_idempotence=True)
        self.transactional = [
            AIOKafkaProducer(
                **sending, transactional_id=f"{settings.prefix}functions-{number}", retry_backoff_ms=20,
                transaction_timeout_ms=int(settings.timeout * 1000),
            )
            for number in range(TRANSACTIONAL_PRODUCERS)
        ]  # fmt: skip
        self._options = options
        self.commits = f"{settings.prefix}{COMMITS}"
        self.consumer = self._new_consumer()
        self._turn = 0

    def _new_consumer(self) -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            **self._options,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )

    def _rest(self) -> None:
        """The consumer fetches nothing any more, and asks for no topic that may be deleted. (Its `unsubscribe` may end the task that
        fetches: it looks at an assignment that is no longer there.)"""
        idle = TopicPartition(self.commits, 0)
        self.consumer.assign([idle])
        self.consumer.pause(idle)

    async def start(self) -> None:
        """The transactional producers first: transactions of an earlier process are then finished or undone."""
        for producer in (*self.transactional, self.plain):
            await producer.start()
        await self.admin.start()
        await self.create_topic(self.commits, 1, COMPACTED)
        await self.consumer.start()

    async def close(self) -> None:
        """Never waits long: brokers may be gone."""
        parts: list[Callable[[], Awaitable[Any]]] = [self.admin.close, self.consumer.stop, self.plain.stop]
        for close in (*parts, *(each.stop for each in self.transactional)):
            with contextlib.suppress(*UNREACHABLE):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await close()

    def next_transactional(self) -> AIOKafkaProducer:
        self._turn = (self._turn + 1) % len(self.transactional)
        return self.transactional[self._turn]

    async def send(
        self,
        producer: AIOKafkaProducer,
        topic: str,
        partition: int,
        key: bytes,
        value: bytes | None,
        time: int | None = None,
    ) -> asyncio.Future[Any]:
        # It does not do so itself for a topic that it still remembers from before it was deleted.
        await producer.client.add_topic(topic)
        future: asyncio.Future[Any] = await producer.send(topic, value, key=key, partition=partition, timestamp_ms=time)
        future.add_done_callback(retrieve_exception)
        return future

    # Topics.

    async def create_topic(
        self, name: str, partitions: int, configs: Mapping[str, str] = _RECORDS, *, try_only: bool = False
    ) -> bool:
        """False: it is there already. `try_only`: nothing is made."""
        brokers = len((await self.admin.describe_cluster())["brokers"])
        replication = self._settings.replication or min(3, brokers)
        in_sync = {"min.insync.replicas": "2" if replication > 2 else "1"}
        topic = NewTopic(name, partitions, replication, topic_configs={**configs, **in_sync})
        code, message = await self._to_controller(
            lambda: self.admin.create_topics([topic], validate_only=try_only), "topic_errors"
        )
        if for_code(code) is TopicAlreadyExistsError:
            return False
        if code:
            raise BusError(f"Kafka does not create topic {name}: {message or for_code(code).__name__}")
        return True

    async def delete_topic(self, name: str, remaining: Iterable[str]) -> None:
        for producer in (*self.transactional, self.plain):
            # Else it would go on to ask for the topic, and brokers create what clients ask for.
            producer.client.set_topics(remaining)
        code, _ = await self._to_controller(lambda: self.admin.delete_topics([name]), "topic_error_codes")
        if code and for_code(code) is not UnknownTopicOrPartitionError:
            raise BusError(f"Kafka does not delete topic {name}: {for_code(code).__name__}")
        # A broker may still tell of it; who believes that and asks for its partitions makes it again.
        for _ in range(_GONE_ROUNDS):
            if name not in {each["topic"] for each in await self.admin.describe_topics()}:
                return
            await asyncio.sleep(_RETRY_SECONDS)

    async def _to_controller(self, send: Callable[[], Awaitable[Any]], field: str) -> tuple[int, str]:
        """The error code and message of the only topic; asks again while controllers change."""
        while True:
            with contextlib.suppress(NotControllerError):
                ((_, code, *message),) = getattr(await send(), field)
                if for_code(code) is not NotControllerError:
                    return code, message[0] if message else ""
            await asyncio.sleep(_RETRY_SECONDS)

    async def topics(self, only: str = "") -> dict[str, StoredTopic]:
        """All with our prefix, or one of them."""
        while True:
            try:
                async with asyncio.timeout(self._settings.timeout / _LOOKS):
                    return await self._described(only)
            except TimeoutError:
                # A broker may still tell of a topic that is being deleted; its partitions are waited for without end.
                log.info("Kafka is asked again which topics there are")

    async def _described(self, only: str) -> dict[str, StoredTopic]:
        prefix = self._settings.prefix
        counts = {
            each["topic"]: len(each["partitions"])
            for each in await self.admin.describe_topics()
            if (each["topic"] == only if only else each["topic"].startswith(prefix))
        }
        partitions = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]
        if not partitions:
            return {}
        firsts = await self.consumer.beginning_offsets(partitions)
        ends = await self._ends(firsts, await self.consumer.end_offsets(partitions))
        return {
            topic: StoredTopic(
                [firsts[TopicPartition(topic, number)] for number in range(count)],
                [ends[TopicPartition(topic, number)] for number in range(count)],
            )
            for topic, count in counts.items()
        }

    async def made_topic(self, name: str) -> StoredTopic:
        """One that the controller knows; the broker that is asked may hear of it later."""
        while True:
            found = await self.topics(name)
            if name in found:
                return found[name]
            await asyncio.sleep(_RETRY_SECONDS)

    async def growth(self, topic: str, seen: Mapping[int, int]) -> dict[int, PartitionGrowth]:
        """What there is beyond `seen`, by partition. A transaction of somebody else that is open holds back what comes after it: so this goes as far as it
        can at once, and the rest is seen later."""
        partitions = [TopicPartition(topic, number) for number in seen]
        firsts = await self.consumer.beginning_offsets(partitions)
        logs = await self.consumer.end_offsets(partitions)
        found = {
            each.partition: PartitionGrowth(firsts[each], max(firsts[each], seen[each.partition]))
            for each in partitions
        }
        behind = [each for each in partitions if found[each.partition].seen < logs[each]]
        if behind:
            self.consumer.assign(behind)
            for each in behind:
                self.consumer.seek(each, found[each.partition].seen)
            for _ in range(_GROWTH_ROUNDS):
                brought = await self.consumer.getmany(*behind, timeout_ms=_GROWTH_MILLISECONDS)
                for each, records in brought.items():
                    found[each.partition].end = records[-1].offset + 1
                for each in behind:
                    found[each.partition].seen = await self.consumer.position(each)
                behind = [each for each in behind if found[each.partition].seen < logs[each]]
                if not behind or not brought:
                    break
            self._rest()
        return found

    async def _ends(
        self, firsts: dict[TopicPartition, int], logs: dict[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """The offset after the last record of each. What Kafka calls the end is later: transactions leave marks."""
        found = dict(firsts)
        waiting = {each for each, end in logs.items() if end > firsts[each]}
        back = 4
        while waiting:
            starts = {each: max(firsts[each], logs[each] - back) for each in waiting}
            async for record in self._read_to_end(starts, logs):
                each = TopicPartition(record.topic, record.partition)
                found[each] = max(found[each], record.offset + 1)
                waiting.discard(each)
            waiting = {each for each in waiting if starts[each] > firsts[each]}
            back *= 8
        return found

    async def read_whole(self, topic: str) -> AsyncIterator[Any]:
        """All records of a topic of one partition that is there."""
        partition = TopicPartition(topic, 0)
        firsts = await self.consumer.beginning_offsets([partition])
        async for record in self._read_to_end(firsts, await self.consumer.end_offsets([partition])):
            yield record

    async def _read_to_end(
        self, starts: dict[TopicPartition, int], logs: dict[TopicPartition, int]
    ) -> AsyncIterator[Any]:
        self.consumer.assign(list(starts))
        for each, start in starts.items():
            self.consumer.seek(each, start)
        waiting = {each for each, start in starts.items() if start < logs[each]}
        while waiting:
            for records in (await self.consumer.getmany(*waiting, timeout_ms=200)).values():
                for record in records:
                    yield record
            waiting = {each for each in waiting if await self.consumer.position(each) < logs[each]}
        self._rest()

    async def read(self, partition: TopicPartition, offset: int) -> list[Any]:
        """As much as one request brings."""
        self.consumer.assign([partition])
        self.consumer.seek(partition, offset)
        try:
            found = await self.consumer.getmany(partition, timeout_ms=int(self._settings.timeout * 1000))
        except KafkaError:
            broken, self.consumer = self.consumer, self._new_consumer()
            with contextlib.suppress(*UNREACHABLE):
                await broken.stop()
            await self.consumer.start()
            raise
        self._rest()
        return list(found.get(partition, ()))

    async def trim(self, partitions: dict[TopicPartition, int], before: int) -> dict[TopicPartition, int]:
        """`partitions` with their ends; the first offsets that are left."""
        found = await self.consumer.offsets_for_times(dict.fromkeys(partitions, before))
        cuts = {each: min(end, found[each].offset if found[each] else end) for each, end in partitions.items()}
        await self.admin.delete_records({each: RecordsToDelete(cut) for each, cut in cuts.items() if cut > 0})
        return cuts
