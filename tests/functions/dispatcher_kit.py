"""A dispatcher with actors that are functions in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import msgspec
from memory_bus_kit import MemoryBus, RecordedBus

from coterie.base.clock import VirtualClock
from coterie.functions.bus.protocol import Bus
from coterie.functions.dispatcher.actor_client import (
    ActorTimeout,
    AnswerHead,
    AnswerTooLarge,
    CallHead,
    NextCall,
    ResponseHead,
)
from coterie.functions.dispatcher.dead_letters import DeadCall
from coterie.functions.dispatcher.dispatcher import CallDispatcher
from coterie.functions.dispatcher.served_action import DispatcherEvents, DispatcherLimits
from coterie.functions.messages import CallRecord, FunctionResponse, Invoke
from coterie.functions.model import ActionConfig, ActorAddress

RETURN = "ReturnGateway-g1"
Store = MemoryBus | RecordedBus
OPEN_STORE: list[Callable[[], Awaitable[RecordedBus]]] = []
"""How a test that names no store gets one; else it is in memory."""
REAL_SECONDS = 0.08
"""That a real bus has for its part while the clock stands still."""


class FakeAnswer:
    def __init__(self, head: AnswerHead, pieces: Sequence[bytes | Exception], streamed: bool = False) -> None:
        self.head = head
        self.streamed = streamed
        self.closed = False
        self._pieces = pieces

    async def body(self, limit: int) -> bytes:
        found = b""
        async for piece in self.pieces():
            found += piece
        if len(found) > limit:
            raise AnswerTooLarge
        return found

    async def pieces(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            await asyncio.sleep(0)
            if isinstance(piece, Exception):
                raise piece
            yield piece

    def close(self) -> None:
        self.closed = True


def respond(text: str | bytes = "", status: int = 200, error: str = "", **fields: object) -> FakeAnswer:
    body = text.encode() if isinstance(text, str) else text
    head = ResponseHead(status=status, error=error, **fields)  # type: ignore[arg-type]
    return FakeAnswer(AnswerHead(response=head), [body])


def stream(*pieces: bytes | Exception) -> FakeAnswer:
    return FakeAnswer(AnswerHead(response=ResponseHead()), pieces, streamed=True)


def invoke(action: str, body: str = "", **params: object) -> FakeAnswer:
    return FakeAnswer(AnswerHead(invoke=NextCall(action=action, params=params)), [body.encode()])


Code = Callable[[CallHead, bytes], Awaitable[FakeAnswer]]


class FakeActors:
    """Runs calls in this process. `calls` tells (actor, call) in the order in which they began."""

    def __init__(self, code: Mapping[str, Code], clock: VirtualClock) -> None:
        self.code = dict(code)
        self.clock = clock
        self.calls: list[tuple[str, CallHead]] = []
        self.bodies: list[bytes] = []
        self.running = 0
        self.most = 0
        self.forgotten: list[str] = []

    async def invoke(self, actor: ActorAddress, head: CallHead, body: bytes, timeout: float) -> FakeAnswer:
        self.calls.append((actor.name, head))
        self.bodies.append(body)
        self.running += 1
        self.most = max(self.most, self.running)
        work = asyncio.ensure_future(self.code[head.action](head, body))
        timer = asyncio.ensure_future(self.clock.sleep(timeout))
        try:
            await asyncio.wait((work, timer), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ActorTimeout(f"no answer within {timeout:g} s")
            return work.result()
        finally:
            self.running -= 1
            timer.cancel()
            work.cancel()
            await asyncio.gather(work, timer, return_exceptions=True)

    async def forget(self, actor: ActorAddress) -> None:
        self.forgotten.append(actor.name)

    async def close(self) -> None: ...

    def actions(self) -> list[str]:
        return [head.action for _, head in self.calls]


def config(name: str, *next_actions: str, **fields: object) -> ActionConfig:
    settings: dict[str, object] = {
        "timeout": 30.0,
        "concurrency": 1,
        "retries": 3,
        "first_delay": 0.2,
        "traffic": {"v1": 100},
        **fields,
    }
    return ActionConfig(name=name, next=frozenset(next_actions), **settings)  # type: ignore[arg-type]


def actor(action: str, number: int = 0, version: str = "v1") -> ActorAddress:
    return ActorAddress(f"{action}-{version}-{number}", action, version, "127.0.0.1", 6811, "token")


def call(action: str, uid: str, **fields: object) -> Invoke:
    return Invoke(request_uid=uid, action=action, **{"return_topic": RETURN, **fields})  # type: ignore[arg-type]


class World:
    def __init__(self, bus: Bus, store: Store, actors: FakeActors, clock: VirtualClock) -> None:
        self.bus = bus
        self.store = store
        self.actors = actors
        self.clock = clock
        self.wanted: list[tuple[str, str]] = []
        self.stuck: list[str] = []
        self.letters: list[DeadCall] = []
        self.dispatcher: CallDispatcher
        self.task: asyncio.Future[None] | None = None

    def answers(self, topic: str = RETURN) -> list[FunctionResponse]:
        return [msgspec.json.decode(each.value, type=FunctionResponse) for each in self.store.records(topic)]

    def records(self) -> list[CallRecord]:
        return [msgspec.json.decode(each.value, type=CallRecord) for each in self.store.records("action-monitor")]

    async def settle(self, seconds: float = 0.0) -> None:
        """Let what can happen happen."""
        # What a real bus acknowledges cannot go on within one step of the clock.
        steps = 3 if isinstance(self.store, MemoryBus) else min(max(3, int(seconds)), 12)
        for _ in range(steps):
            await self._quiet()
            await self.clock.advance(seconds / steps)
        await self._quiet()
        for _ in range(60):
            await asyncio.sleep(0)
        if self.task is not None and self.task.done():
            self.task.result()

    async def _quiet(self) -> None:
        """Until a real bus has done what it was asked to do."""
        if isinstance(self.store, RecordedBus):
            seen = -1
            while seen != self.store.changes or self.store.busy:
                seen = self.store.changes
                await asyncio.sleep(REAL_SECONDS)


def milliseconds(clock: VirtualClock) -> int:
    return int(clock.now().timestamp() * 1000)


@asynccontextmanager
async def running(
    code: Mapping[str, Code],
    configs: Sequence[ActionConfig],
    actors_each: int = 1,
    *,
    clock: VirtualClock | None = None,
    store: Store | None = None,
    bus: Bus | None = None,
    index: Path | None = None,
    limits: DispatcherLimits | None = None,
    actors: FakeActors | None = None,
) -> AsyncIterator[World]:
    clock = clock or VirtualClock()
    if store is None:
        store = await OPEN_STORE[-1]() if OPEN_STORE else MemoryBus(lambda: milliseconds(clock))
    await store.create_topic(RETURN, 1)
    world = World(bus or store, store, actors or FakeActors(code, clock), clock)
    events = DispatcherEvents(
        lambda action, version: world.wanted.append((action, version)),
        lambda stuck: world.stuck.append(stuck.name),
        world.letters.append,
    )
    world.dispatcher = CallDispatcher(
        world.bus, world.actors, events=events, clock=clock, index=index, limits=limits, random=Random(7)
    )
    world.task = task = asyncio.ensure_future(world.dispatcher.run())
    world.dispatcher.configure({each.name: each for each in configs})
    for each in configs:
        versions = list(each.traffic) or ["v1"]
        world.dispatcher.set_actors(
            each.name, [actor(each.name, number, version) for version in versions for number in range(actors_each)]
        )
    await world.settle()
    try:
        yield world
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
