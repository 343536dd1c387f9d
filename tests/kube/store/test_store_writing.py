"""Compare-and-swap, batches, and who hears of a write when."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from coterie.kube.store import (
    CompareFailed,
    DeleteOp,
    LeaseNotFound,
    MemoryStore,
    Op,
    PutOp,
    Store,
    StoreClosed,
    StoreError,
    StoreEvent,
    StoreRecord,
)


@pytest.mark.parametrize(
    ("op", "expected", "actual"),
    [
        pytest.param(PutOp("there", b"x", expect=0), 0, 1, id="create-what-exists"),
        pytest.param(PutOp("there", b"x", expect=7), 7, 1, id="update-wrong-revision"),
        pytest.param(PutOp("missing", b"x", expect=1), 1, 0, id="update-what-is-not-there"),
        pytest.param(PutOp("gone", b"x", expect=2), 2, 0, id="update-what-was-deleted"),
        pytest.param(DeleteOp("there", expect=7), 7, 1, id="delete-wrong-revision"),
        pytest.param(DeleteOp("missing"), -1, 0, id="delete-what-is-not-there"),
        pytest.param(DeleteOp("missing", expect=0), 0, 0, id="delete-expecting-nothing"),
    ],
)
async def test_an_expectation_that_does_not_hold_changes_nothing(
    store: Store, op: Op, expected: int, actual: int
) -> None:
    await store.commit([PutOp("there", b"1"), PutOp("gone", b"2")])
    await store.commit([DeleteOp("gone")])
    with pytest.raises(CompareFailed) as refused:
        await store.commit([PutOp("there", b"other"), PutOp("new", b"n"), op][1:])
    assert (refused.value.index, refused.value.key) == (1, op.key)
    assert (refused.value.expected, refused.value.actual) == (expected, actual)
    assert store.revision == 3
    assert await store.get("new") is None
    assert await store.commit([PutOp("new", b"n", expect=0)]) == [4]


async def test_a_key_keeps_its_creation_until_it_is_deleted(store: Store) -> None:
    assert await store.commit([PutOp("a", b"1", expect=0)]) == [1]
    assert await store.commit([PutOp("a", b"2", expect=1)]) == [2]
    assert await store.get("a") == StoreRecord("a", b"2", 2, 1)
    assert await store.commit([DeleteOp("a", expect=2)]) == [3]
    assert await store.get("a") is None
    assert await store.commit([PutOp("a", b"", expect=0)]) == [4]
    assert await store.get("a") == StoreRecord("a", b"", 4, 4)


async def test_ops_of_a_batch_see_each_other_in_order(store: Store) -> None:
    assert await store.commit(
        [PutOp("a", b"1", expect=0), PutOp("a", b"2", expect=1), DeleteOp("a"), PutOp("a", b"3", 0)]
    ) == [
        1,
        2,
        3,
        4,
    ]
    assert await store.get("a") == StoreRecord("a", b"3", 4, 4)
    assert await store.get("a", revision=2) == StoreRecord("a", b"2", 2, 1)
    with pytest.raises(CompareFailed):
        await store.commit([DeleteOp("a"), PutOp("a", b"x", expect=4)])
    assert await store.get("a") == StoreRecord("a", b"3", 4, 4)


@pytest.mark.stores("memory", "sqlite")  # a shared back-end decides, not this process
async def test_writes_on_their_way_already_count(store: Store) -> None:
    first = store.submit([PutOp("a", b"1", expect=0)])
    with pytest.raises(CompareFailed):
        store.submit([PutOp("a", b"2", expect=0)])
    second = store.submit([PutOp("a", b"2", expect=1)])
    assert store.revision == 0  # decided, but not visible
    assert (await second, await first) == ([2], [1])
    assert store.revision == 2


async def test_of_many_racing_for_a_key_one_wins_each_round(store: Store) -> None:
    async def add() -> int:
        tries = 0
        while True:
            tries += 1
            record = await store.get("counter")
            value, expect = (int(record.value), record.revision) if record else (0, 0)
            try:
                await store.commit([PutOp("counter", str(value + 1).encode(), expect)])
            except CompareFailed:
                continue
            return tries

    tries = await asyncio.gather(*(add() for _ in range(12)))
    record = await store.get("counter")
    assert record is not None
    assert record.value == b"12"
    assert sum(tries) > 12


async def test_a_listener_hears_before_the_writer_goes_on(store: Store) -> None:
    cache: dict[str, int] = {}

    def listen(events: Sequence[StoreEvent]) -> None:
        for event in events:
            assert event.revision <= store.revision
            cache[event.key] = event.revision

    end = store.subscribe(listen)

    async def write(key: str) -> None:
        (revision,) = await store.commit([PutOp(key, b"v")])
        assert cache[key] == revision

    await asyncio.gather(*(write(f"k{i}") for i in range(50)))
    end()
    await store.commit([PutOp("unheard", b"v")])
    assert "unheard" not in cache


async def test_events_tell_all_about_a_change(store: Store) -> None:
    heard: list[StoreEvent] = []
    store.subscribe(heard.extend)
    await store.commit([PutOp("a", b"1"), PutOp("a", b""), DeleteOp("a"), PutOp("a", b"2")])
    assert heard == [
        StoreEvent("a", 1, b"1", created=1, previous=0),
        StoreEvent("a", 2, b"", created=1, previous=1),
        StoreEvent("a", 3, None, created=1, previous=2),
        StoreEvent("a", 4, b"2", created=4, previous=0),
    ]
    assert [events async for events in _upto(store, 4)] == [heard]


async def _upto(store: Store, revision: int):  # type: ignore[no-untyped-def]
    async for events in store.watch("", 0):
        yield list(events)
        if events[-1].revision >= revision:
            return


async def test_a_listener_may_write_and_unsubscribe_while_it_listens(store: Store) -> None:
    follow_ups: list[asyncio.Future[list[int]]] = []
    heard: list[str] = []

    def once(events: Sequence[StoreEvent]) -> None:
        end()
        follow_ups.append(store.submit([PutOp("second", b"")]))

    end = store.subscribe(once)
    store.subscribe(lambda events: heard.extend(event.key for event in events))
    await store.commit([PutOp("first", b"")])
    assert await follow_ups[0] == [2]
    assert heard == ["first", "second"]
    assert len(follow_ups) == 1


async def test_a_listeners_fault_is_reported_and_harms_nobody(store: Store) -> None:
    reported: list[BaseException] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    heard: list[int] = []

    def fail(events: Sequence[StoreEvent]) -> None:
        raise ZeroDivisionError

    store.subscribe(fail)
    store.subscribe(lambda events: heard.extend(event.revision for event in events))
    assert await store.commit([PutOp("a", b"1")]) == [1]
    assert heard == [1]
    assert [type(error) for error in reported] == [ZeroDivisionError]


async def test_giving_up_on_a_commit_does_not_undo_it(store: Store) -> None:
    assert await store.commit([PutOp("first", b"")]) == [1], (
        "one in MySQL holds the database now; before, writes take another way"
    )
    commit = asyncio.create_task(store.commit([PutOp("a", b"1")]))
    await asyncio.sleep(0)
    commit.cancel()
    await asyncio.gather(commit, return_exceptions=True)
    assert await store.commit([PutOp("b", b"2")]) == [3]
    assert await store.get("a") == StoreRecord("a", b"1", 2, 2)


async def test_an_empty_batch_waits_for_those_before(store: Store) -> None:
    write = store.submit([PutOp("a", b"1")])
    assert await store.commit([]) == []
    assert write.done()
    assert store.revision == 1


@pytest.mark.parametrize(
    ("op", "error"),
    [
        pytest.param(PutOp("", b""), StoreError, id="empty-key"),
        pytest.param(PutOp("a\ud800", b""), StoreError, id="surrogate"),
        pytest.param(PutOp("a", "text"), TypeError, id="text-as-value"),  # type: ignore[arg-type]
        pytest.param(PutOp("a", b"", lease=9), LeaseNotFound, id="unknown-lease"),
    ],
)
async def test_what_cannot_be_written_is_refused_at_once(store: Store, op: Op, error: type[Exception]) -> None:
    with pytest.raises(error):
        await store.submit([PutOp("before", b""), op])
    assert await store.commit([PutOp("before", b"", expect=0)]) == [1]


async def test_closing_finishes_what_was_accepted_and_refuses_the_rest(store: Store) -> None:
    writes = [store.submit([PutOp(f"k{i}", b"v")]) for i in range(10)]
    await asyncio.gather(store.close(), store.close())
    assert [write.result() for write in writes] == [[i + 1] for i in range(10)]
    for ask in (store.commit([PutOp("a", b"")]), store.get("a"), store.scan(""), store.compact(1), store.grant(1)):
        with pytest.raises(StoreClosed, match="closed"):
            await ask
    with pytest.raises(StoreError, match="only once"):
        await store.open()


async def test_a_store_must_be_opened() -> None:
    store = MemoryStore()
    with pytest.raises(StoreClosed, match="not open"):
        await store.get("a")
    await store.close()
