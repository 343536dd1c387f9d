"""Watches: history, then live, in order, without gap or duplicate; the slow are dropped."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import cast

import pytest

from coterie.kube.store import Compacted, DeleteOp, FutureRevision, PutOp, SlowWatcher, Store, StoreClosed, StoreEvent

MakeStore = Callable[..., Awaitable[Store]]


def watch(store: Store, prefix: str, after: int) -> AsyncGenerator[Sequence[StoreEvent], None]:
    return cast(AsyncGenerator[Sequence[StoreEvent], None], store.watch(prefix, after))


async def follow(store: Store, prefix: str, after: int, until: int, pause: bool = False) -> list[StoreEvent]:
    """All events up to the revision `until`, which must match the prefix."""
    got: list[StoreEvent] = []
    async with aclosing(watch(store, prefix, after)) as batches:
        async for events in batches:
            got.extend(events)
            if got[-1].revision >= until:
                break
            if pause:
                await asyncio.sleep(0)
    return got


@pytest.mark.parametrize("after", [0, 1, 700, 1499, 1500], ids=str)
async def test_history_then_live(store: Store, after: int) -> None:
    for start in range(1, 1501, 100):
        await store.commit([PutOp(f"/{i % 3}/{i}", str(i).encode()) for i in range(start, start + 100)])
    following = asyncio.create_task(follow(store, "/", after, 1510))
    await asyncio.sleep(0)
    for i in range(1501, 1511):
        await store.commit([PutOp(f"/{i % 3}/{i}", str(i).encode())])
    events = await following
    assert [event.revision for event in events] == list(range(after + 1, 1511))
    assert all(event.value == str(event.revision).encode() for event in events)


async def test_no_gap_and_no_duplicate_under_load(store: Store) -> None:
    """Watchers join at every moment of a steady stream, from various points of history."""
    total = 600

    async def write() -> None:
        for i in range(1, total + 1):
            key = f"/{'even' if i % 2 == 0 else 'odd'}/{i % 7}"
            await store.commit([PutOp(key, b"v")])

    async def join(at: int) -> None:
        if at:
            await follow(store, "/", 0, at)
        after = at // 2
        everything, even = await asyncio.gather(
            follow(store, "/", after, total, pause=True), follow(store, "/even/", after, total)
        )
        assert [event.revision for event in everything] == list(range(after + 1, total + 1))
        assert [event.revision for event in even] == [r for r in range(after + 1, total + 1) if r % 2 == 0]

    await asyncio.gather(write(), *(join(at) for at in range(0, total, 60)))


async def test_watchers_of_a_prefix_share_their_batches(store: Store) -> None:
    first, second, other = (watch(store, prefix, 0) for prefix in ("/a/", "/a/", "/b/"))
    steps = [asyncio.create_task(anext(batches)) for batches in (first, second, other)]
    await asyncio.sleep(0.01)
    await store.commit([PutOp("/a/1", b"1"), PutOp("/b/1", b"2"), PutOp("/a/2", b"3")])
    one, two, three = await asyncio.gather(*steps)
    assert one is two
    assert [event.key for event in one] == ["/a/1", "/a/2"]
    assert [event.key for event in three] == ["/b/1"]
    for batches in (first, second, other):
        await batches.aclose()


async def test_the_slow_are_dropped_and_the_quick_are_not(make_store: MakeStore) -> None:
    store = await make_store(watch_limit=10)
    slow = watch(store, "", 0)
    step = asyncio.create_task(anext(slow))
    quick = asyncio.create_task(follow(store, "", 0, 31))
    await asyncio.sleep(0.01)
    for i in range(30):
        await store.commit([PutOp(f"k{i}", b"v")])
        await asyncio.sleep(0)
    assert [event.revision for event in await step] == [1]
    with pytest.raises(SlowWatcher, match="10 events"):
        await anext(slow)
    await store.commit([PutOp("last", b"v")])
    assert [event.revision for event in await quick] == list(range(1, 32))


async def test_one_big_batch_alone_does_not_make_a_watcher_slow(make_store: MakeStore) -> None:
    store = await make_store(watch_limit=10)
    following = asyncio.create_task(follow(store, "", 0, 50))
    await asyncio.sleep(0.01)
    await store.commit([PutOp(f"k{i}", b"v") for i in range(50)])
    assert len(await following) == 50


async def test_history_that_is_gone_or_not_there_yet(store: Store) -> None:
    await store.commit([PutOp("a", b"1"), PutOp("a", b"2"), DeleteOp("a")])
    await store.compact(2)
    for after, error in ((1, Compacted), (0, Compacted), (4, FutureRevision)):
        with pytest.raises(error):
            await anext(watch(store, "", after))
    assert [event.revision for event in await follow(store, "", 2, 3)] == [3]


async def test_compaction_overtakes_a_reader_of_history(store: Store) -> None:
    await store.commit([PutOp("a", b"") for _ in range(1200)])
    batches = watch(store, "", 0)
    assert len(await anext(batches)) == 500
    await store.compact(1200)
    with pytest.raises(Compacted):
        await anext(batches)


async def test_a_live_watcher_does_not_mind_compaction(store: Store) -> None:
    following = asyncio.create_task(follow(store, "", 0, 5))
    for i in range(5):
        (revision,) = await store.commit([PutOp("a", str(i).encode())])
        await asyncio.sleep(0.001)
        await store.compact(revision)
    assert [event.revision for event in await following] == [1, 2, 3, 4, 5]


async def test_closing_gives_what_was_written_then_ends(store: Store) -> None:
    batches = watch(store, "", 0)
    step = asyncio.create_task(anext(batches))
    await asyncio.sleep(0.01)
    await store.commit([PutOp("a", b"1")])
    await store.commit([PutOp("b", b"2")])
    await store.close()
    assert [event.key for event in await step] == ["a"]
    assert [event.key for event in await anext(batches)] == ["b"]
    with pytest.raises(StoreClosed):
        await anext(batches)
    with pytest.raises(StoreClosed):
        await anext(watch(store, "", 0))


async def test_an_abandoned_watch_lets_go(store: Store) -> None:
    batches = watch(store, "", 0)
    step = asyncio.create_task(anext(batches))
    await asyncio.sleep(0.01)
    await store.commit([PutOp("a", b"1")])
    await step
    assert len(store._mailboxes) == 1  # type: ignore[attr-defined]
    del batches, step
    gc.collect()
    await asyncio.sleep(0.01)
    assert len(store._mailboxes) == 0  # type: ignore[attr-defined]
    assert not store._broadcast  # type: ignore[attr-defined]


async def test_a_cancelled_step_loses_nothing(store: Store) -> None:
    """Waiting with a time limit is how servers send bookmarks; the wait is cancelled, not the watch."""
    async with aclosing(watch(store, "", 0)) as batches:
        step = asyncio.ensure_future(anext(batches))
        done, _ = await asyncio.wait({step}, timeout=0.01)
        assert not done
        await store.commit([PutOp("a", b"1")])
        assert [event.key for event in await step] == ["a"]
