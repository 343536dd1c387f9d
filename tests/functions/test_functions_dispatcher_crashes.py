"""A dispatcher that is killed at any moment loses no accepted call and answers none twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from dispatcher_kit import RETURN, FakeActors, FakeAnswer, World, call, config, invoke, milliseconds, respond, running
from memory_bus_kit import DyingBus, MemoryBus

from coterie.base.clock import VirtualClock
from coterie.functions.bus.protocol import Bus
from coterie.functions.dispatcher.actor_client import ActorFailed, ActorUnreachable, CallHead
from coterie.functions.dispatcher.progress import PartitionProgress

CONFIGS = [
    config("a", "b", concurrency=2, first_delay=0.01),
    config("b", "c", concurrency=2),
    config("c", concurrency=3),
]
CALLS = 12
_STEPS = 3 * CALLS


class Effects:
    """What the code of users did, over all restarts."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.done: Counter[tuple[str, str]] = Counter()
        self.order: list[str] = []

    async def _work(self, head: CallHead) -> None:
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(0)
        if head.attempt < 2 and self.random.random() < 0.1:
            raise ActorFailed("crashed")
        if self.random.random() < 0.05:
            raise ActorUnreachable("not there")
        self.done[head.request, head.action] += 1

    def code(self) -> dict[str, object]:
        async def pass_on(head: CallHead, body: bytes) -> FakeAnswer:
            await self._work(head)
            return invoke({"a": "b", "b": "c"}[head.action], body.decode() + head.action)

        async def answer(head: CallHead, body: bytes) -> FakeAnswer:
            await self._work(head)
            return respond(body.decode() + head.action)

        return {"a": pass_on, "b": pass_on, "c": answer}


def calls() -> list[tuple[str, str]]:
    return [(f"r{number}", f"key{number % 3}" if number % 2 else "") for number in range(CALLS)]


async def send_all(world: World, accepted: set[str]) -> None:
    for uid, key in calls():
        if uid not in accepted:
            await world.dispatcher.submit(call("a", uid, key=key, payload="-"))
            accepted.add(uid)


def check(world: World, effects: Effects) -> None:
    answers = world.answers()
    assert Counter(each.request_uid for each in answers) == Counter(uid for uid, _ in calls())
    assert {each.payload for each in answers} == {"-abc"}
    assert len(world.records()) == _STEPS, "each call is recorded once"
    assert set(effects.done) == {(uid, action) for uid, _ in calls() for action in "abc"}
    assert not world.letters


async def restart_and_check(
    store: MemoryBus, clock: VirtualClock, effects: Effects, accepted: set[str], index: Path | None
) -> World:
    actors = FakeActors(effects.code(), clock)  # type: ignore[arg-type]
    async with running({}, CONFIGS, 2, store=store, clock=clock, actors=actors, index=index) as world:
        # The gateway sends again what was not accepted before the crash.
        await send_all(world, accepted)
        await world.settle(60)
        check(world, effects)
        return world


async def run_until(
    bus: Bus,
    store: MemoryBus,
    clock: VirtualClock,
    effects: Effects,
    accepted: set[str],
    index: Path | None,
    steps: int,
) -> bool:
    """Says whether all was answered before the end."""
    actors = FakeActors(effects.code(), clock)  # type: ignore[arg-type]
    async with running({}, CONFIGS, 2, store=store, clock=clock, bus=bus, actors=actors, index=index) as world:
        sending = asyncio.ensure_future(send_all(world, accepted))
        for step in range(steps):
            if step % 10 == 9:
                await clock.advance(0.05)
            await asyncio.sleep(0)
            if isinstance(bus, DyingBus) and bus.dead.is_set():
                break
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        return len(world.answers()) == CALLS


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("keep_index", [True, False], ids=["index", "no-index"])
async def test_killed_at_each_write(tmp_path: Path, before: bool, keep_index: bool) -> None:
    """With the write done, and not done; nothing else that the process would do happens."""
    for number in range(1, 60):
        clock = VirtualClock()
        store = MemoryBus(lambda clock=clock: milliseconds(clock))  # type: ignore[misc]
        effects, accepted = Effects(number), set[str]()
        index = tmp_path / f"{number}.db" if keep_index else None
        bus = DyingBus(store, number, before=before)
        complete = await run_until(bus, store, clock, effects, accepted, index, 4000)
        await restart_and_check(store, clock, effects, accepted, index)
        if complete:
            break
    else:
        raise AssertionError("it was never complete")
    assert number > 20


async def test_cancelled_at_each_turn_of_the_loop() -> None:
    for steps in range(1, 240, 3):
        clock = VirtualClock()
        store = MemoryBus(lambda clock=clock: milliseconds(clock))  # type: ignore[misc]
        effects, accepted = Effects(steps), set[str]()
        await run_until(store, store, clock, effects, accepted, None, steps)
        await restart_and_check(store, clock, effects, accepted, None)


async def test_killed_again_and_again() -> None:
    """Every few writes, until all is done."""
    for seed in range(6):
        random = Random(seed)
        clock = VirtualClock()
        store = MemoryBus(lambda clock=clock: milliseconds(clock))  # type: ignore[misc]
        effects, accepted = Effects(seed), set[str]()
        for _ in range(40):
            bus = DyingBus(store, random.randrange(2, 9), before=random.random() < 0.5)
            if await run_until(bus, store, clock, effects, accepted, None, 2000):
                break
        await restart_and_check(store, clock, effects, accepted, None)


async def test_nothing_is_answered_by_a_restart_after_the_end() -> None:
    clock = VirtualClock()
    store = MemoryBus(lambda: milliseconds(clock))
    effects, accepted = Effects(1), set[str]()
    world = await restart_and_check(store, clock, effects, accepted, None)
    world = await restart_and_check(store, clock, effects, accepted, None)
    assert not world.actors.calls and store.records(RETURN)


def test_progress_against_a_plain_model() -> None:
    """Records are read, fail and end in any order, with gaps between offsets and restarts from what was committed."""
    for seed in range(40):
        random = Random(seed)
        offsets, at = [], 0
        for _ in range(120):
            at += random.choice((1, 1, 1, 2, 5))
            offsets.append(at)
        progress = PartitionProgress()
        committed = (0, "")
        done: set[int] = set()
        attempts: Counter[int] = Counter()
        started: list[int] = []
        unread = list(offsets)
        for _ in range(600):
            match random.randrange(8):
                case 0 | 1 | 2 if unread:
                    offset = unread.pop(0)
                    if progress.read(offset):
                        assert offset not in done
                        assert progress.attempts(offset) == attempts[offset]
                        started.append(offset)
                    else:
                        assert offset in done
                case 3 | 4 | 5 if started:
                    offset = started.pop(random.randrange(len(started)))
                    progress.finish(offset)
                    done.add(offset)
                    committed = (progress.mark, progress.note())
                case 6 if started:
                    offset = random.choice(started)
                    attempts[offset] += 1
                    progress.set_attempts(offset, attempts[offset])
                    committed = (progress.mark, progress.note())
                case 7 if random.random() < 0.2:
                    progress = PartitionProgress(*committed)
                    assert all(offset in done for offset in offsets if offset < progress.mark)
                    started = []
                    unread = [offset for offset in offsets if offset >= progress.mark]
            assert len(progress.note()) <= 4096


def test_the_longest_note_fits() -> None:
    progress = PartitionProgress(10**12)
    for offset in range(10**12, 10**12 + 4096):
        progress.read(offset)
    for offset in range(10**12 + 256, 10**12 + 4096):
        progress.finish(offset)
    for offset in range(10**12, 10**12 + 256):
        progress.set_attempts(offset, 99)
    note = progress.note()
    assert len(note) <= 4096 and not progress.has_room
    again = PartitionProgress(10**12, note)
    assert again.attempts(10**12 + 255) == 99
    assert PartitionProgress(5, "no note of ours!").note() == ""
