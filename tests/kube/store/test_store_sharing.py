"""Stores on a shared back-end, several objects on each: who decides, who is told what, and that no read is stale."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TypeVar, cast

import pytest

from coterie.kube.store import (
    Compacted,
    CompareFailed,
    DeleteOp,
    FutureRevision,
    LeaseNotFound,
    PutOp,
    StoreClosed,
    StoreError,
    StoreEvent,
    StoreRecord,
    StoreUnavailable,
)
from coterie.kube.store.shared import SharedStore

OpenShared = Callable[..., Awaitable[SharedStore]]


@pytest.fixture
async def one(open_shared: OpenShared) -> SharedStore:
    return await open_shared()


@pytest.fixture
async def two(open_shared: OpenShared, one: SharedStore) -> SharedStore:
    return await open_shared()


async def put(store: SharedStore, key: str, value: bytes, expect: int | None = None) -> int:
    return (await store.commit([PutOp(key, value, expect)]))[0]


async def events_after(store: SharedStore, prefix: str, after: int) -> list[StoreEvent]:
    found: list[StoreEvent] = []
    async with aclosing(store.replay(prefix, after, store.revision)) as batches:
        async for batch in batches:
            found.extend(batch)
    return found


async def test_the_back_end_decides_and_tells_what_is_there(one: SharedStore, two: SharedStore) -> None:
    first = await put(one, "a", b"1", 0)
    with pytest.raises(CompareFailed) as refused:
        await put(two, "a", b"2", 0)
    assert (refused.value.actual, refused.value.record) == (first, StoreRecord("a", b"1", first, first))
    second = await put(two, "a", b"2", first)
    assert second > first
    with pytest.raises(CompareFailed) as refused:
        await one.commit([DeleteOp("a", first)])
    assert refused.value.record == StoreRecord("a", b"2", second, first)
    await one.commit([DeleteOp("a", second)])
    for op in (DeleteOp("a"), PutOp("a", b"", second)):
        with pytest.raises(CompareFailed) as refused:
            await two.commit([op])
        assert (refused.value.actual, refused.value.record) == (0, None)


async def test_writers_of_one_process_go_in_order(one: SharedStore) -> None:
    futures = [one.submit([PutOp("k", str(n).encode())]) for n in range(30)]
    revisions = [(await future)[0] for future in futures]
    assert revisions == sorted(set(revisions))
    record = await one.get("k")
    assert record is not None
    assert record.value == b"29"


async def test_a_batch_is_all_or_nothing(one: SharedStore, two: SharedStore) -> None:
    at = await put(one, "b", b"1")
    with pytest.raises(CompareFailed) as refused:
        await two.commit([PutOp("a", b"new"), PutOp("b", b"2", at + 1), DeleteOp("none")])
    assert (refused.value.index, refused.value.key, refused.value.actual) == (1, "b", at)
    assert await one.get("a") is None
    await two.commit([PutOp("a", b"new", 0), PutOp("b", b"2", at)])
    assert [record.value for record in (await one.scan("")).records] == [b"new", b"2"]


async def test_no_increment_is_lost_between_two(one: SharedStore, two: SharedStore) -> None:
    async def add(store: SharedStore) -> None:
        for _ in range(10):
            while True:
                record = await store.get("n")
                value, expect = (int(record.value), record.revision) if record else (0, 0)
                try:
                    await put(store, "n", b"%d" % (value + 1), expect)
                    break
                except CompareFailed:
                    continue

    await asyncio.gather(*(add(store) for store in (one, two) for _ in range(3)))
    record = await one.get("n")
    assert record is not None
    assert record.value == b"60"


async def test_no_read_is_stale(one: SharedStore, two: SharedStore) -> None:
    told: dict[str, bytes | None] = {}

    def listen(events: Sequence[StoreEvent]) -> None:
        told.update({event.key: event.value for event in events})

    two.subscribe(listen)
    for n in range(30):
        revision = await put(one, "a", b"%d" % n)
        record = await two.get("a")
        assert record is not None
        assert record.value == b"%d" % n
        revision = await put(one, "b", b"%d" % n)
        current = await two.current()
        assert current >= revision
        await two.reached(current)
        assert told["b"] == b"%d" % n


async def test_a_listener_is_told_before_the_writer_goes_on(one: SharedStore) -> None:
    told: dict[str, int] = {}
    one.subscribe(lambda events: told.update({event.key: event.revision for event in events}))

    async def write(key: str) -> None:
        revision = await put(one, key, b"")
        assert told[key] == revision <= one.revision

    await asyncio.gather(*(write(f"k{n}") for n in range(100)))


async def test_everybody_is_told_everything_in_the_same_order(one: SharedStore, two: SharedStore) -> None:
    stories: tuple[list[StoreEvent], list[StoreEvent]] = ([], [])
    one.subscribe(stories[0].extend)
    two.subscribe(stories[1].extend)
    start = await one.current()
    await asyncio.gather(
        *(put(store, f"k{n % 7}", b"%d" % n) for n in range(60) for store in (one, two)),
    )
    await asyncio.gather(*(store.commit([DeleteOp(f"k{n}")]) for n, store in enumerate((one, two, one))))
    for store in (one, two):
        await store.reached(await store.current())
    assert stories[0] == stories[1]
    assert len(stories[0]) == 123
    revisions = [event.revision for event in stories[0]]
    assert revisions == sorted(set(revisions))
    assert await events_after(two, "", min(start, two.revision)) == stories[0]
    # Each event continues its key's own history.
    heads: dict[str, tuple[int, int]] = {}
    for event in stories[0]:
        previous, created = heads.pop(event.key, (0, event.revision))
        assert (event.previous, event.created) == (previous, created)
        if event.value is not None:
            heads[event.key] = (event.revision, created)


async def test_a_watch_goes_from_history_to_what_others_write(one: SharedStore, two: SharedStore) -> None:
    start = await put(one, "/x/0", b"")
    for n in range(1, 5):
        await put(one, f"/x/{n}", b"")
        await put(one, f"/y/{n}", b"")
    await two.reached(await two.current())
    keys: list[str] = []

    async def follow() -> None:
        async for batch in two.watch("/x/", start):
            keys.extend(event.key for event in batch)
            if keys[-1] == "/x/9":
                return

    following = asyncio.create_task(follow())
    for n in range(5, 10):
        await put(one, f"/x/{n}", b"")
    await asyncio.wait_for(following, 30)
    assert keys == [f"/x/{n}" for n in range(1, 10)]


async def test_snapshots_are_the_same_everywhere(one: SharedStore, two: SharedStore) -> None:
    for n in range(10):
        await put(one, f"/p/{n}", b"old")
    page = await two.scan("/p/", limit=4)
    assert page.more
    await asyncio.gather(*(put(one, f"/p/{n}", b"new") for n in range(10)))
    await one.commit([DeleteOp("/p/9")])
    rest = await two.scan("/p/", revision=page.revision, after=page.records[-1].key)
    assert [(r.key, r.value) for r in page.records + rest.records] == [(f"/p/{n}", b"old") for n in range(10)]
    record = await two.get("/p/9", page.revision)
    assert record is not None
    assert record.value == b"old"
    assert [r.value for r in (await two.scan("/p/")).records] == [b"new"] * 9
    assert (await two.scan("/none/")).records == []
    with pytest.raises(FutureRevision):
        await two.get("/p/1", two.revision + 1000)


T = TypeVar("T")


async def while_away(call: Callable[[], Awaitable[T]]) -> T:
    """A store whose history was cut under it begins anew; for that moment it is away."""
    for _ in range(3000):
        try:
            return await call()
        except StoreUnavailable:
            await asyncio.sleep(0.01)
    raise AssertionError("the store stays away")


async def test_compaction_of_one_holds_for_the_other(one: SharedStore, two: SharedStore) -> None:
    first = await put(one, "a", b"1")
    second = await put(one, "a", b"2")
    third = await put(one, "b", b"3")
    await one.compact(second)
    assert one.compacted == second

    async def reached() -> None:
        await two.reached(await two.current())

    await while_away(reached)
    with pytest.raises(Compacted):
        await while_away(lambda: two.get("a", first))
    with pytest.raises(Compacted):
        await while_away(lambda: anext(cast("object", two.watch("", first - 1))))  # type: ignore[call-overload]
    assert await while_away(lambda: two.get("a")) == StoreRecord("a", b"2", second, first)
    assert [event.revision for event in await while_away(lambda: events_after(two, "", second))] == [third]
    await while_away(lambda: two.compact(first))  # lower than it is: nothing
    assert two.compacted == second


async def test_leases_end_and_take_their_keys_along(one: SharedStore, two: SharedStore) -> None:
    lease = await one.grant(1)
    stays = await one.grant(100)
    await one.commit([PutOp("a", b"", lease=lease)])
    await one.commit([PutOp("b", b"", lease=stays)])
    gone = asyncio.Event()
    two.subscribe(lambda events: gone.set() if any(e.key == "a" and e.value is None for e in events) else None)
    assert await two.keep_alive(stays) == 100
    await asyncio.wait_for(gone.wait(), 40)
    assert [record.key for record in (await one.scan("")).records] == ["b"]
    await two.revoke(stays)
    assert (await one.scan("")).records == []
    for ask in (two.keep_alive(stays), one.revoke(stays), one.commit([PutOp("c", b"", lease=stays)])):
        with pytest.raises(LeaseNotFound):
            await ask
    with pytest.raises(StoreError, match="positive"):
        await one.grant(0)


async def test_keys_are_any_text(one: SharedStore) -> None:
    unusual = ["a\x00b", "a%", "a_", "aé", "a\ud7ff", "a\ue000", "a\U0010ffff", "b"]
    for key in reversed(unusual):
        await put(one, key, b"v")
    assert [record.key for record in (await one.scan("")).records] == unusual
    assert [record.key for record in (await one.scan("a")).records] == unusual[:-1]
    with pytest.raises(StoreError, match="Unicode"):
        await one.get("\ud800")


async def test_closing_finishes_what_was_accepted(one: SharedStore, two: SharedStore) -> None:
    writes = [one.submit([PutOp(f"k{n}", b"v")]) for n in range(20)]
    await one.close()
    assert all(write.exception() is None for write in writes)
    assert len((await two.scan("k")).records) == 20
    with pytest.raises(StoreClosed):
        await one.get("k1")


async def test_neither_address_nor_store_shows_a_password(one: SharedStore) -> None:
    shown = repr(one) + repr(vars(one)) + one.label
    assert "pa55" not in shown
