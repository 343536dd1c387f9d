"""Snapshots at a revision, paging, compaction."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from coterie.kube.store import Compacted, DeleteOp, FutureRevision, PutOp, RecordPage, Store, StoreEvent, StoreRecord
from coterie.kube.store.rows import prefix_end


def keys(page: RecordPage) -> list[str]:
    return [record.key for record in page.records]


async def fill(store: Store) -> None:
    await store.commit(
        [PutOp("/a/1", b"1"), PutOp("/a/2", b"2"), PutOp("/a/3", b"3"), PutOp("/b/1", b"4"), PutOp("/a", b"5")]
    )
    await store.commit([DeleteOp("/a/2"), PutOp("/a/3", b"33"), PutOp("/a/0", b"0")])


@pytest.mark.parametrize(
    ("prefix", "revision", "after", "limit", "found", "more"),
    [
        pytest.param("", 0, "", 0, ["/a", "/a/0", "/a/1", "/a/3", "/b/1"], False, id="all"),
        pytest.param("/a/", 0, "", 0, ["/a/0", "/a/1", "/a/3"], False, id="prefix"),
        pytest.param("/a/", 5, "", 0, ["/a/1", "/a/2", "/a/3"], False, id="before-the-changes"),
        pytest.param("/a/", 6, "", 0, ["/a/1", "/a/3"], False, id="within-a-batch"),
        pytest.param("/a/", 0, "", 2, ["/a/0", "/a/1"], True, id="first-page"),
        pytest.param("/a/", 0, "/a/1", 2, ["/a/3"], False, id="last-page"),
        pytest.param("/a/", 0, "", 3, ["/a/0", "/a/1", "/a/3"], False, id="limit-just-fits"),
        pytest.param("/a/", 0, "/a/11", 0, ["/a/3"], False, id="after-a-key-that-is-not-there"),
        pytest.param("/b/", 0, "/a/3", 0, ["/b/1"], False, id="after-lies-before-the-prefix"),
        pytest.param("/a/", 0, "/b", 0, [], False, id="after-lies-behind-the-prefix"),
        pytest.param("/c", 0, "", 0, [], False, id="nothing"),
    ],
)
async def test_scan(
    store: Store, prefix: str, revision: int, after: str, limit: int, found: list[str], more: bool
) -> None:
    await fill(store)
    page = await store.scan(prefix, revision=revision, after=after, limit=limit)
    assert (keys(page), page.more, page.revision) == (found, more, revision or 8)


async def test_pages_of_a_list_belong_to_one_revision(store: Store) -> None:
    await fill(store)
    first = await store.scan("", limit=2)
    await store.commit([DeleteOp("/a/3"), PutOp("/a/2", b"back"), PutOp("/b/1", b"new")])
    rest = await store.scan("", revision=first.revision, after=first.records[-1].key)
    assert keys(first) + keys(rest) == ["/a", "/a/0", "/a/1", "/a/3", "/b/1"]
    assert rest.records[-1] == StoreRecord("/b/1", b"4", 4, 4)


async def test_pages_are_in_order_among_many_keys_with_long_histories(store: Store) -> None:
    for turn in range(4):
        await store.commit([PutOp(f"/{i * 7919 % 1000:04}", b"%d" % turn) for i in range(1000)])
    await store.commit([DeleteOp(f"/{i:04}") for i in range(0, 1000, 3)])
    wanted = [f"/{i:04}" for i in range(1000) if i % 3]
    assert keys(await store.scan("/")) == wanted
    walked: list[str] = []
    page = await store.scan("/", limit=150)
    while page.more:
        walked += keys(page)
        page = await store.scan("/", limit=150, after=walked[-1], revision=page.revision)
    assert walked + keys(page) == wanted


UNUSUAL = ["a\x00b", "a%", "a_", "aé", "a\ud7ff", "a\ue000", "a\U0010ffff", "a\U0010ffff\U0010ffff", "b"]


async def test_keys_are_any_text_and_sort_by_code_point(store: Store) -> None:
    await store.commit([PutOp(key, b"") for key in reversed(UNUSUAL)])
    assert keys(await store.scan("")) == UNUSUAL
    for prefix in [*UNUSUAL, "a", "\U0010ffff"]:
        assert keys(await store.scan(prefix)) == [key for key in UNUSUAL if key.startswith(prefix)]


@pytest.mark.parametrize(
    ("prefix", "end"),
    [("a", "b"), ("a\U0010ffff", "b"), ("\ud7ff", "\ue000"), ("", None), ("\U0010ffff", None)],
    ids=ascii,
)
def test_prefix_end(prefix: str, end: str | None) -> None:
    assert prefix_end(prefix) == end


async def test_the_future_and_the_forgotten_are_refused(store: Store) -> None:
    await fill(store)
    await store.compact(6)
    for revision, error in ((9, FutureRevision), (5, Compacted), (-1, Compacted)):
        with pytest.raises(error):
            await store.get("/a/1", revision=revision)
        with pytest.raises(error):
            await store.scan("", revision=revision)
    with pytest.raises(FutureRevision):
        await store.compact(9)
    assert store.compacted == 6
    assert keys(await store.scan("/a/", revision=6)) == ["/a/1", "/a/3"]


async def test_compaction_keeps_what_exists_and_what_is_newer(store: Store) -> None:
    await fill(store)  # 6: /a/2 deleted, 7: /a/3 changed, 8: /a/0 created
    await store.commit([PutOp("/a/1", b"11"), DeleteOp("/b/1")])  # 9, 10
    before = {at: await store.scan("", revision=at) for at in range(8, 11)}
    await store.compact(8)
    for at, page in before.items():
        assert await store.scan("", revision=at) == page
    history: list[StoreEvent] = []
    async for events in store.watch("", 8):
        history.extend(events)
        if history[-1].revision == 10:
            break
    assert history == [StoreEvent("/a/1", 9, b"11", 1, 1), StoreEvent("/b/1", 10, None, 4, 4)]
    assert await store.get("/a/3") == StoreRecord("/a/3", b"33", 7, 3)  # changed before and after nothing is lost
    assert await store.get("/a/1", revision=8) == StoreRecord("/a/1", b"1", 1, 1)


async def test_compacting_again_or_lower_changes_nothing(store: Store) -> None:
    await fill(store)
    await store.compact(0)
    assert store.compacted == 0
    await store.compact(8)
    await store.compact(8)
    await store.compact(3)
    assert store.compacted == 8
    assert keys(await store.scan("")) == ["/a", "/a/0", "/a/1", "/a/3", "/b/1"]
    await store.commit([PutOp("/a/2", b"again", expect=0)])
    assert await store.get("/a/2") == StoreRecord("/a/2", b"again", 9, 9)


async def test_reads_of_now_survive_compaction_under_load(store: Store) -> None:
    """Compaction may overtake a read: one of "now" must still answer, and with the newest of some moment."""
    done = False

    async def write() -> None:
        nonlocal done
        for i in range(60):
            (revision,) = await store.commit([PutOp("a", str(i).encode())])
            await store.compact(revision)
        done = True

    async def read() -> int:
        seen = 0
        while not done:
            record = await store.get("a")
            page = await store.scan("")
            assert record is not None
            assert page.records[0].revision >= record.revision >= seen
            seen = record.revision
        return seen

    await store.commit([PutOp("a", b"start")])
    seen = await asyncio.gather(write(), read(), read())
    assert min(seen[1:]) > 1  # type: ignore[type-var]


async def test_a_large_compaction_goes_in_steps_between_writes(store: Store) -> None:
    await store.commit([PutOp(f"k{i % 50:02}", str(i).encode()) for i in range(3500)])
    heard: list[Sequence[StoreEvent]] = []
    store.subscribe(heard.append)
    compaction = asyncio.create_task(store.compact(3500))
    writes = await asyncio.gather(*(store.commit([PutOp(f"new{i}", b"")]) for i in range(20)))
    await compaction
    assert [revision for (revision,) in writes] == list(range(3501, 3521))
    page = await store.scan("k")
    assert [record.revision for record in page.records] == list(range(3451, 3501))
    assert store.revision == 3520
