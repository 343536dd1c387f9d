"""The dispatcher: reads calls from the bus, has actors run them, writes what they lead to (docs/designs/functions.md).

    submit ──> <action>_TOPIC ──read──> lane: order per key, a free place of an actor ──> POST /invoke
                                                                                              │
      committed offset + answer | next call | retry count | dead letter   <──one publish── outcome

Everything that must survive is on the bus; killing the process at any moment loses no call that was accepted and answers none twice.
Whoever owns it calls `configure` first when all actions are known: topics of actions that are not there are removed.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

import msgspec

from coterie.base.backoff import Backoff
from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner
from coterie.functions.bus.protocol import PARTITIONS, Bus, BusError, Commit, Position, Record, UnknownTopic
from coterie.functions.dispatcher import dead_letters
from coterie.functions.dispatcher.acceptance import Accepted, CallAcceptance, acceptance_key, decode_invoke
from coterie.functions.dispatcher.actor_client import (
    ActorCaller,
)
from coterie.functions.dispatcher.answers import (
    answer_entries,
    encode,
    partners,
    plain_name,
    problem_response,
)
from coterie.functions.dispatcher.bus_retry import BUS_RETRY, until_done
from coterie.functions.dispatcher.call_runner import CallRunner
from coterie.functions.dispatcher.dead_letters import DeadCall, DeadLetterBox
from coterie.functions.dispatcher.lane import CallPhase, PendingCall
from coterie.functions.dispatcher.load import WINDOW_SECONDS, LoadCounter
from coterie.functions.dispatcher.output_writer import Output, OutputWriter, PartitionOf
from coterie.functions.dispatcher.progress import PartitionProgress
from coterie.functions.dispatcher.result_index import ResultIndex
from coterie.functions.dispatcher.served_action import DispatcherEvents, DispatcherLimits, ServedAction
from coterie.functions.dispatcher.streams import StreamWindows
from coterie.functions.dispatcher.versions import pick_version
from coterie.functions.messages import (
    MONITOR_TOPIC,
    RESULTS_TOPIC,
    CallRecord,
    FunctionResponse,
    Invoke,
    action_topic,
    dead_letter_topic,
    outbox_topic,
    payload_size,
    result_key,
)
from coterie.functions.model import ActionConfig, ActionLoad, ActorAddress

log = logger("functions.dispatcher")

READ_AHEAD = 256
"""Calls of one partition that were read and are not done."""
_READ_SECONDS = 30.0
_EXPIRY_SECONDS = 0.25
_FLUSH_SECONDS = 0.5
_TRIM_SECONDS = 60.0
_STOP_SECONDS, _STOP_LOOKS = 2.0, 40
"""For calls that run when the process is told to end."""
_KEEP_CALLS = 10 * 60 * 1000
"""Milliseconds that calls stay on the bus after they are done."""
_KEEP_RECORDS = 3600 * 1000
_TOPIC_SUFFIX = action_topic("")
_decode_record = msgspec.json.Decoder(CallRecord).decode


class TooManyWaiting(BusError):
    """More calls wait than may; nothing was accepted."""


class UnknownAction(Exception):
    """There is no such action; nothing was accepted."""


class CallDispatcher:
    """A Runnable."""

    name = "dispatcher"

    def __init__(
        self,
        bus: Bus,
        caller: ActorCaller,
        *,
        events: DispatcherEvents | None = None,
        index: Path | None = None,
        clock: Clock = SYSTEM_CLOCK,
        limits: DispatcherLimits | None = None,
        random: Random | None = None,
    ) -> None:
        """`index`: a file for what is known of results; it may be lost. None: in memory."""
        self.ready = asyncio.Event()
        self._bus = bus
        self._caller = caller
        self._events = events or DispatcherEvents()
        self._clock = clock
        self._limits = limits or DispatcherLimits()
        self._random = random
        self._index = ResultIndex(index)
        self._calls = CallAcceptance(bus, self._index, clock)
        self._writer = OutputWriter(bus, clock)
        self._letters = DeadLetterBox(bus)
        self._streams = StreamWindows()
        self._runner = CallRunner(
            caller,
            self._writer,
            self._calls,
            self._streams,
            events=self._events,
            limits=self._limits,
            clock=clock,
            random=random,
            configs=lambda: self._configs or {},
            pump=self._pump,
        )
        self._configs: Mapping[str, ActionConfig] | None = None
        self._configured = asyncio.Event()
        self._changed = asyncio.Event()
        self._served: dict[str, ServedAction] = {}
        self._addresses: dict[str, Sequence[ActorAddress]] = {}
        self._counters: dict[str, LoadCounter] = {}
        self._deadlines: list[tuple[int, int, ServedAction, weakref.ref[PendingCall]]] = []
        self._deadline_added = asyncio.Event()
        self._numbers = itertools.count()
        self._outboxes: set[str] = set()
        self._stopping = False
        self._stop = asyncio.Event()

    # -- for the controller ---------------------------------------------------------------------------------------

    def configure(self, actions: Mapping[str, ActionConfig]) -> None:
        """All actions. Topics of new ones are made; calls of those that are gone are answered 404 and their topics removed."""
        self._configs = dict(actions)
        self._configured.set()
        for name, config in actions.items():
            served = self._served.get(name)
            if served is None:
                served = self._served[name] = ServedAction(config, self._counter(name))
                served.lane.set_actors(self._addresses.get(name, ()))
            elif served.lane.config != config:
                served.lane.configure(config)
                self._pump(served)
        self._changed.set()

    def set_actors(self, action: str, actors: Sequence[ActorAddress]) -> None:
        """All actors of an action that take calls. What others run goes on until it ends."""
        self._addresses[action] = tuple(actors)
        served = self._served.get(action)
        if served is not None:
            for gone in served.lane.set_actors(actors):
                if not gone.running and served.tasks is not None and not served.removed:
                    served.start("forget actor", self._caller.forget(gone.address))
            self._pump(served)

    def loads(self) -> Mapping[str, ActionLoad]:
        now = self._now()
        return {name: each.counter.load(now, each.lag, each.lane.running) for name, each in self._served.items()}

    async def dead_letter_topics(self) -> list[str]:
        """Actions and pools that may have dead letters."""
        suffix = dead_letter_topic("")
        return [each.removesuffix(suffix) for each in await self._bus.topics() if each.endswith(suffix)]

    async def dead_letters(self, action: str) -> list[DeadCall]:
        letters = list((await self._letters.calls(action)).values())
        if action in self._served:
            self._served[action].dead_letter_bytes = sum(each.size for each in letters)
        return letters

    async def replay(self, action: str, request_uid: str, hop: int = 0) -> bool:
        """The call goes back to its action, as a new one; False when there is no such dead letter."""
        if not await self._letters.replay(action, request_uid, hop):
            return False
        self._count_dead_letters(action, -1)
        return True

    async def drop(self, action: str, request_uid: str, hop: int = 0) -> bool:
        if not await self._letters.drop(action, request_uid, hop):
            return False
        self._count_dead_letters(action, -1)
        return True

    def _count_dead_letters(self, action: str, change: int) -> None:
        if action in self._served:
            self._served[action].counter.dead_letters += change

    # -- for gateways, triggers and partners ----------------------------------------------------------------------

    async def submit(self, invoke: Invoke, *, repeated: bool = True) -> Accepted:
        """The call is durably on the bus when it returns, once however often it is sent. `repeated` False: the sender has just made
        its requestUID. Raises UnknownAction, TooManyWaiting, BusError."""
        await self.ready.wait()
        await self._configured.wait()
        config = (self._configs or {}).get(invoke.action)
        if config is None:
            raise UnknownAction(f"there is no action {invoke.action!r}")
        served = self._served[invoke.action]
        await served.opened.wait()
        size = payload_size(invoke)
        if not self.has_room(invoke.action, size) and not self._index.is_accepted(acceptance_key(invoke)):
            raise TooManyWaiting(f"too many calls wait for action {invoke.action!r}; try again later")
        version = pick_version(invoke.request_uid, config.traffic)
        if version != invoke.version:
            invoke = msgspec.structs.replace(invoke, version=version)
        try:
            accepted = await self._calls.accept(invoke, len(served.partitions), repeated=repeated)
        except UnknownTopic:
            raise UnknownAction(f"the action {invoke.action!r} was removed") from None
        if not accepted.repeated:
            self.added(invoke.action, size)
        return accepted

    def has_room(self, action: str, size: int) -> bool:
        """Whether another call of so many bytes may wait. Those of before a restart do not count."""
        served = self._served.get(action)
        if served is not None and served.waiting >= self._limits.max_waiting:
            return False
        return sum(each.waiting_bytes for each in self._served.values()) + size <= self._limits.max_waiting_bytes

    def added(self, action: str, size: int) -> None:
        """A call that somebody sent is on the bus."""
        if (served := self._served.get(action)) is not None:
            served.waiting += 1
            served.waiting_bytes += size

    def version_of(self, action: str, request_uid: str) -> str:
        """Of the code that is to run a request that somebody else puts on the bus; empty: any."""
        config = (self._configs or {}).get(action)
        return pick_version(request_uid, config.traffic) if config is not None else ""

    def result_published(self, response: FunctionResponse, position: Position) -> None:
        """Somebody else put the answer to a request of ours on the bus: a partner gave it."""
        key, size = result_key(response.request_uid), len(encode(response))
        self._calls.add_result(key, response, position, self._now(), size)

    async def result(self, request_uid: str) -> FunctionResponse | None:
        await self.ready.wait()
        return await self._calls.result(request_uid)

    async def is_pending(self, request_uid: str) -> bool:
        await self.ready.wait()
        return self._calls.is_pending(request_uid)

    async def wait_result(self, request_uid: str) -> FunctionResponse:
        return await self._calls.wait_result(request_uid)

    def part_taken(self, request_uid: str, part: int) -> None:
        """A client has taken this part of a streamed answer."""
        self._streams.taken(request_uid, part)

    # -- life -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        try:
            async with TaskOwner("dispatcher") as owner:
                await until_done(self._open, self._clock)
                owner.start("output", self._writer.run(), endless=True)
                owner.start("expiry", self._expire(), endless=True)
                owner.start("index", self._flush_index(), endless=True)
                owner.start("trim", self._trim_topics(), endless=True)
                owner.start("actions", self._follow_actions(owner), endless=True)
                self.ready.set()
                waits = [asyncio.ensure_future(owner.wait()), asyncio.ensure_future(self._stopped())]
                try:
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for each in waits:
                        each.cancel()
                    await asyncio.gather(*waits, return_exceptions=True)  # the owner raises what failed
        finally:
            await self._caller.close()
            self._index.close()

    def stop(self) -> None:
        """Begin no more calls. What runs ends soon, or is run again after the next start."""
        self._stopping = True
        self._stop.set()

    async def _stopped(self) -> None:
        await self._stop.wait()
        for _ in range(_STOP_LOOKS):
            if not any(served.lane.running for served in self._served.values()):
                return
            await self._clock.sleep(_STOP_SECONDS / _STOP_LOOKS)

    async def _open(self) -> None:
        await self._bus.create_topic(MONITOR_TOPIC)
        await self._bus.create_topic(RESULTS_TOPIC)
        await self._calls.index_results()
        await self._restore_loads()

    async def _restore_loads(self) -> None:
        """From the last records of each partition, as many as there were in the last minute."""
        since = self._now() - WINDOW_SECONDS * 1000
        for partition, end in (await self._bus.ends(MONITOR_TOPIC)).items():
            back = 256
            while True:
                begin = max(0, end - back)
                first = await self._bus.read(MONITOR_TOPIC, partition, begin, 1)
                if not first or begin == 0 or first[0].time < since or back > 1 << 20:
                    break
                back *= 4
            while begin < end and (records := await self._bus.read(MONITOR_TOPIC, partition, begin, 1000)):
                begin = records[-1].offset + 1
                for each in records:
                    try:
                        record = _decode_record(each.value)
                    except msgspec.DecodeError:
                        continue
                    self._counter(record.action).restore(record)

    def _counter(self, action: str) -> LoadCounter:
        if action not in self._counters:
            self._counters[action] = LoadCounter()
        return self._counters[action]

    async def _follow_actions(self, owner: TaskOwner) -> None:
        first = True
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._configs is None:
                continue
            await until_done(self._open_outboxes, self._clock)
            for name, served in self._served.items():
                if name in self._configs and not served.begun:
                    served.begun = True
                    owner.start(f"action {name}", self._serve(name, served))
            if first:
                await until_done(self._remove_orphans, self._clock)
                first = False
            for name in [name for name in self._served if name not in self._configs]:
                served = self._served.pop(name)
                self._addresses.pop(name, None)
                served.removed = True
                if served.tasks is not None:
                    await served.tasks.close()
                await self._remove_until_done(name)

    async def _open_outboxes(self) -> None:
        named = {partner for config in (self._configs or {}).values() for partner in partners(config.next)}
        for partner in sorted(named - self._outboxes):
            await self._bus.create_topic(outbox_topic(partner))
            self._outboxes.add(partner)

    async def _remove_until_done(self, name: str) -> None:
        async def remove() -> None:
            await self._remove(name)

        await until_done(remove, self._clock)

    async def _remove_orphans(self) -> None:
        """Topics of actions that were deleted while no dispatcher ran. Ours have a commit; others of such a name are somebody else's."""
        for topic in await self._bus.topics():
            name = topic.removesuffix(_TOPIC_SUFFIX)
            if topic != name and name not in self._served and await self._bus.committed(name, topic):
                await self._remove(name)

    # -- reading --------------------------------------------------------------------------------------------------

    async def _serve(self, name: str, served: ServedAction) -> None:
        topic = action_topic(name)
        async with TaskOwner(f"action {name}") as tasks:
            served.tasks = tasks

            async def open_topic() -> None:
                await self._bus.create_topic(topic)
                await self._bus.create_topic(dead_letter_topic(name))
                committed = await self._bus.committed(name, topic)
                if not committed:
                    await self._bus.publish([], [Commit(name, topic, 0, 0)])
                notes = await self._bus.notes(name, topic)
                served.ends = await self._bus.ends(topic)
                indexed = self._index.positions(topic)
                for number in range(len(served.ends)):
                    await self._calls.index_calls(topic, number, indexed.get(number, 0))
                served.partitions = [
                    PartitionOf(name, topic, number, PartitionProgress(committed.get(number, 0), notes.get(number, "")))
                    for number in range(len(served.ends) or PARTITIONS)
                ]
                letters = await self._letters.calls(name)
                served.counter.dead_letters = len(letters)
                served.dead_letter_bytes = sum(each.size for each in letters.values())

            await until_done(open_topic, self._clock)
            for partition in served.partitions:
                tasks.start(f"partition {partition.number}", self._read(served, partition))
            served.opened.set()
            await tasks.wait()

    async def _read(self, served: ServedAction, partition: PartitionOf) -> None:
        progress = partition.progress
        backoff = Backoff(BUS_RETRY)
        while True:
            while not progress.has_room or progress.unfinished >= READ_AHEAD or self._stopping:
                served.room.clear()
                await self._learn_ends(served)
                await served.room.wait()
            limit = READ_AHEAD - progress.unfinished
            try:
                records = await self._bus.read(
                    partition.topic, partition.number, progress.position, limit, _READ_SECONDS
                )
                backoff.succeeded()
            except UnknownTopic:
                return  # removed; whoever removed it stops us
            except BusError as problem:
                log.warning("A partition cannot be read", topic=partition.topic, error=problem)
                await self._clock.sleep(backoff.failed())
                continue
            for record in records:
                self._take(served, partition, record)
            if records:
                self._pump(served)

    async def _learn_ends(self, served: ServedAction) -> None:
        """How much there is beyond what is read, for scaling; asked at most once a second."""
        now = self._clock.monotonic()
        if now >= served.ends_asked + 1 or not served.ends_asked:
            served.ends_asked = now
            try:
                served.ends = await self._bus.ends(served.partitions[0].topic)
            except BusError as problem:
                log.debug("The ends of a topic are not known", error=problem)

    def _take(self, served: ServedAction, partition: PartitionOf, record: Record) -> None:
        if not partition.progress.read(record.offset):
            return
        try:
            invoke = decode_invoke(record.value)
        except msgspec.DecodeError as problem:
            log.error("A record is no call and is dropped", topic=record.topic, offset=record.offset, error=problem)
            self._index.set_position(record.topic, record.partition, record.offset + 1)
            self._writer.put(Output([], partition, lambda progress: progress.finish(record.offset)))
            return
        self._calls.add_record(record, invoke)
        served.counter.arrived(record.time)
        call = PendingCall(invoke, partition, record.offset, record.time)
        if partition.progress.is_streamed(record.offset):
            served.start("broken stream", self._runner.break_stream(served, call), vital=False)
            return
        served.lane.add(call)
        if invoke.deadline:
            heapq.heappush(self._deadlines, (invoke.deadline, next(self._numbers), served, weakref.ref(call)))
            self._deadline_added.set()

    def _pump(self, served: ServedAction) -> None:
        """Begin what can begin."""
        if self._stopping or served.removed or not served.opened.is_set():
            return
        lane = served.lane
        if lane.config.problem:
            for call in lane.take_ready():
                served.start("refused call", self._runner.end(served, call, 500, lane.config.problem))
            return
        now = self._now()
        for call, places in lane.start():
            if call.invoke.deadline and call.invoke.deadline <= now:
                lane.release(places)
                call.phase = CallPhase.WAITING
                self._expire_call(served, call)
            else:
                served.start("call", self._runner.run(served, call, places))
        for version in lane.waiting_versions():
            self._events.wanted(lane.config.name, version)

    async def _expire(self) -> None:
        while True:
            if not self._deadlines:
                self._deadline_added.clear()
                await self._deadline_added.wait()
            await self._clock.sleep(_EXPIRY_SECONDS)
            now = self._now()
            while self._deadlines and self._deadlines[0][0] <= now:
                _, _, served, waiting = heapq.heappop(self._deadlines)
                call = waiting()
                if call is not None and call.phase is CallPhase.WAITING and not served.removed:
                    self._expire_call(served, call)

    def _expire_call(self, served: ServedAction, call: PendingCall) -> None:
        """Nobody waits for it any more: it is not run."""
        call.phase = CallPhase.ANSWERED
        served.start("expired call", self._runner.end_late(served, call))

    # -- the end of actions, and of old records --------------------------------------------------------------------

    async def _remove(self, name: str) -> None:
        """Answers what still waits and removes the topics."""
        topic = action_topic(name)
        await self._writer.put(Output([]))  # what its calls led to is written before it is asked for
        try:
            committed = await self._bus.committed(name, topic)
            notes = await self._bus.notes(name, topic)
            ends = await self._bus.ends(topic)
        except UnknownTopic:
            ends, committed, notes = {}, {}, {}
        for number, end in ends.items():
            progress = PartitionProgress(committed.get(number, 0), notes.get(number, ""))
            partition = PartitionOf(name, topic, number, progress)
            while progress.position < end:
                records = await self._bus.read(topic, number, progress.position, READ_AHEAD)
                if not records:
                    break
                for record in records:
                    await self._answer_removed(name, partition, record)
        await self._bus.delete_topic(topic)
        await self._bus.delete_topic(dead_letter_topic(name))
        self._index.forget_topic(topic)
        self._counters.pop(name, None)
        log.info("Action removed", action=name)

    async def _answer_removed(self, name: str, partition: PartitionOf, record: Record) -> None:
        if not partition.progress.read(record.offset):
            return
        try:
            invoke = decode_invoke(record.value)
        except msgspec.DecodeError:
            return
        response = problem_response(invoke, 404, f"the action {plain_name(name)} was removed")
        output = Output(answer_entries(invoke, response), partition, lambda progress: progress.finish(record.offset))
        positions = await self._writer.put(output)
        await self._calls.add_results(response, output.entries, positions)

    async def _flush_index(self) -> None:
        while True:
            await self._index.changed.wait()
            await self._clock.sleep(_FLUSH_SECONDS)
            self._index.flush()

    async def _trim_topics(self) -> None:
        while True:
            await self._clock.sleep(_TRIM_SECONDS)
            await until_done(self._trim, self._clock)

    async def _trim(self) -> None:
        now = self._now()
        await self._bus.trim(MONITOR_TOPIC, now - _KEEP_RECORDS)
        before = self._index.cut(now, self._limits.max_results, self._limits.max_result_bytes)
        await self._bus.trim(RESULTS_TOPIC, before)
        for name, served in list(self._served.items()):
            try:
                await self._bus.trim(dead_letter_topic(name), now - dead_letters.KEEP_MILLISECONDS)
                await self._bus.trim(action_topic(name), await self._oldest_call(served, now - _KEEP_CALLS))
            except UnknownTopic:
                continue

    async def _oldest_call(self, served: ServedAction, before: int) -> int:
        """Older calls are done."""
        for partition in served.partitions:
            found = await self._bus.read(partition.topic, partition.number, partition.progress.mark, 1)
            if found:
                before = min(before, found[0].time)
        return before

    def _now(self) -> int:
        return int(self._clock.now().timestamp() * 1000)
