"""An event behaves as asyncio's does, whoever waits and whoever gives up."""

from __future__ import annotations

import asyncio

from coterie.base.lean_event import LeanEvent


async def test_all_who_wait_are_woken():
    event = LeanEvent()
    waiting = [asyncio.ensure_future(event.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    await asyncio.sleep(0)
    event.set()
    assert await waiting[0] and await waiting[2] and waiting[1].cancelled()
    assert event.is_set() and await event.wait()


async def test_it_can_be_used_again():
    event = LeanEvent()
    for _ in range(2):
        waiter = asyncio.ensure_future(event.wait())
        await asyncio.sleep(0)
        assert not waiter.done()
        event.set()
        assert await waiter
        event.clear()
    assert not event.is_set()


async def test_who_waits_again_while_others_are_being_woken_is_not_lost():
    event = LeanEvent()

    async def twice() -> None:
        await event.wait()
        event.clear()
        await event.wait()

    first, second = asyncio.ensure_future(twice()), asyncio.ensure_future(event.wait())
    await asyncio.sleep(0)
    event.set()
    await second
    await asyncio.sleep(0)
    assert not first.done()
    event.set()
    await first
