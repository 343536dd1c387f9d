"""The work queue: order, de-duplication, delays, fairness."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.base.backoff import Policy
from coterie.base.clock import VirtualClock
from coterie.kube.control.queue import QueueClosed, WorkQueue


async def take_all(queue: WorkQueue[str]) -> list[str]:
    out = []
    while len(queue):
        key = await queue.get()
        out.append(key)
        queue.done(key)
    return out


async def test_keys_come_once_and_in_order() -> None:
    queue: WorkQueue[str] = WorkQueue(clock=VirtualClock())
    for key in "abacb":
        queue.add(key)
    assert await take_all(queue) == ["a", "b", "c"] and queue.counters.adds == 3


async def test_a_key_added_while_worked_on_comes_back_after_done() -> None:
    queue: WorkQueue[str] = WorkQueue(clock=VirtualClock())
    queue.add("a")
    key = await queue.get()
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0 and queue.working == 1
    queue.done(key)
    assert len(queue) == 1
    assert await take_all(queue) == ["a"]
    await asyncio.wait_for(queue.drained(), 1)


async def test_getters_wait_and_are_served_in_turn() -> None:
    queue: WorkQueue[str] = WorkQueue(clock=VirtualClock())
    getters = [asyncio.create_task(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    getters[0].cancel()
    queue.add("a")
    queue.add("b")
    assert await getters[1] == "a" and await getters[2] == "b"


async def test_a_cancelled_getter_hands_its_key_on() -> None:
    queue: WorkQueue[str] = WorkQueue(clock=VirtualClock())
    first, second = (asyncio.create_task(queue.get()) for _ in range(2))
    await asyncio.sleep(0)
    queue.add("a")  # wakes the first
    first.cancel()
    assert await asyncio.wait_for(second, 1) == "a"


async def test_delays_earliest_wish_counts() -> None:
    clock = VirtualClock()
    queue: WorkQueue[str] = WorkQueue(clock=clock)
    pump = asyncio.create_task(queue.run())
    queue.add_after("slow", 10)
    await asyncio.sleep(0)
    queue.add_after("fast", 1)
    queue.add_after("slow", 3)
    queue.add_after("slow", 20)
    queue.add_after("now", 0)
    assert await take_all(queue) == ["now"] and queue.delayed == 2
    await clock.advance(1)
    assert await take_all(queue) == ["fast"]
    await clock.advance(2)
    assert await take_all(queue) == ["slow"]
    await clock.advance(30)
    assert len(queue) == 0 and queue.delayed == 0
    queue.close()
    await asyncio.wait_for(pump, 1)


async def test_retries_back_off_and_forget() -> None:
    queue: WorkQueue[str] = WorkQueue(
        clock=VirtualClock(), retry=Policy(first=1, factor=2, limit=5, jitter=0), random=Random(1)
    )
    assert [queue.retry("a") for _ in range(5)] == [1, 2, 4, 5, 5]
    assert queue.failures("a") == 5 and queue.retry("b") == 1
    queue.forget("a")
    assert queue.failures("a") == 0 and queue.retry("a") == 1


async def test_what_is_gone_does_not_come_back_later() -> None:
    clock = VirtualClock()
    queue: WorkQueue[str] = WorkQueue(clock=clock)
    running = asyncio.create_task(queue.run())
    queue.add_after("gone", 10)
    queue.add_after("stays", 20)
    queue.cancel_later("gone")
    await clock.advance(15)
    assert len(queue) == 0 and queue.delayed == 1
    await clock.advance(10)
    assert await take_all(queue) == ["stays"]
    queue.close()
    await running


async def test_overtaken_wishes_take_no_room() -> None:
    clock = VirtualClock()
    queue: WorkQueue[str] = WorkQueue(clock=clock)
    running = asyncio.create_task(queue.run())
    month = 30 * 86400.0
    for number in range(1000):
        queue.add_after(f"job-{number}", month)
        queue.add_after(f"job-{number}", month / 2)
        queue.add_after(f"job-{number}", 5)
        if number != 7:
            queue.cancel_later(f"job-{number}")
    assert queue.delayed == 1 and len(queue._later) < 100
    await clock.advance(5)
    assert await take_all(queue) == ["job-7"]
    queue.close()
    await running


async def test_groups_take_turns() -> None:
    queue: WorkQueue[str] = WorkQueue(clock=VirtualClock(), group=lambda key: key[0])
    for key in ("a1", "a2", "a3", "a4", "b1", "c1", "c2"):
        queue.add(key)
    assert await take_all(queue) == ["a1", "b1", "c1", "a2", "c2", "a3", "a4"]


async def test_close_gives_out_what_waits_and_then_ends() -> None:
    queue: WorkQueue[str] = WorkQueue(clock=VirtualClock())
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.close()
    with pytest.raises(QueueClosed):
        await waiting
    queue.add("late")
    queue.add_after("later", 1)
    assert len(queue) == 0 and queue.delayed == 0


async def test_oldest_work_shows_what_is_stuck() -> None:
    clock = VirtualClock()
    queue: WorkQueue[str] = WorkQueue(clock=clock)
    assert queue.oldest_work() == 0
    queue.add("a")
    await clock.advance(2)
    await queue.get()
    await clock.advance(7)
    assert queue.oldest_work() == 7 and queue.counters.waited == 2


@settings(max_examples=80, deadline=None)
@given(steps=st.lists(st.tuples(st.sampled_from(["add", "get", "done"]), st.sampled_from("abc")), max_size=60))
def test_no_key_is_lost_or_worked_on_twice_at_once(steps: list[tuple[str, str]]) -> None:
    async def check() -> None:
        queue: WorkQueue[str] = WorkQueue(clock=VirtualClock())
        working: set[str] = set()
        owed: set[str] = set()  # added since its last get
        for action, key in steps:
            if action == "add":
                queue.add(key)
                owed.add(key)
            elif action == "get" and len(queue):
                got = await queue.get()
                assert got not in working
                working.add(got)
                owed.discard(got)
            elif action == "done" and key in working:
                working.discard(key)
                queue.done(key)
        for key in sorted(working):
            queue.done(key)
        assert set(await take_all(queue)) == owed

    asyncio.run(check())
