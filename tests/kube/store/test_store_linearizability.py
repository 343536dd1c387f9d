"""Reads and writes of several servers could have happened one after the other; and the checker that says so can say no."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from itertools import count

import pytest
from linearizability_kit import FOREVER, Operation, linearizable

from coterie.kube.store import CompareFailed, PutOp, StoreEvent
from coterie.kube.store.shared import SharedStore

OpenShared = Callable[..., Awaitable[SharedStore]]
Read = Callable[[str], Awaitable[bytes | None]]


@pytest.mark.parametrize(
    ("history", "possible"),
    [
        ([Operation("write", 1, 0, 1), Operation("read", 1, 2, 3)], True),
        ([Operation("write", 1, 0, 1), Operation("read", None, 2, 3)], False),
        ([Operation("write", 1, 0, 3), Operation("read", None, 1, 2)], True),
        ([Operation("write", 1, 0, 5), Operation("read", 1, 1, 2), Operation("read", None, 3, 4)], False),
        ([Operation("swap", 1, 0, 1), Operation("swap", 2, 0, 1)], False),
        ([Operation("swap", 1, 0, 1), Operation("swap", 2, 0, 2, seen=1)], True),
        ([Operation("swap", 1, 0, 1), Operation("refused", 2, 2, 3)], True),
        ([Operation("refused", 2, 0, 1)], False),
        ([Operation("write", 1, 0, FOREVER), Operation("read", None, 5, 6), Operation("read", 1, 7, 8)], True),
        ([Operation("write", 1, 0, FOREVER), Operation("read", 1, 5, 6), Operation("read", None, 7, 8)], False),
    ],
)
def test_the_checker(history: list[Operation], possible: bool) -> None:
    assert linearizable(history) is possible


async def _history(stores: Sequence[SharedStore], reads: Sequence[Read], turns: int) -> dict[str, list[Operation]]:
    """What clients of several servers saw of a few keys."""
    ticks = count()
    values = count(1)
    found: dict[str, list[Operation]] = {f"k{n}": [] for n in range(3)}
    chooser = random.Random(7)

    async def client(store: SharedStore, read: Read) -> None:
        for _ in range(turns):
            key = chooser.choice(sorted(found))
            if chooser.random() < 0.5:
                began = next(ticks)
                value = await read(key)
                found[key].append(Operation("read", value, began, next(ticks)))
                continue
            new = b"%d" % next(values)
            record = await store.get(key)
            seen, expect = (record.value, record.revision) if record is not None else (None, 0)
            began = next(ticks)
            try:
                await store.commit([PutOp(key, new, expect)])
                found[key].append(Operation("swap", new, began, next(ticks), seen))
            except CompareFailed:
                # The value may be the same again only if it never changed: values are used once.
                found[key].append(Operation("refused", new, began, next(ticks), seen))

    await asyncio.gather(*(client(store, read) for store, read in zip(stores, reads, strict=True) for _ in range(3)))
    return found


async def test_reads_of_two_servers_are_linearizable(open_shared: OpenShared) -> None:
    stores = [await open_shared(), await open_shared()]
    reads = [_cached(store, fresh=True, delay=0) for store in stores]
    for key, history in (await _history(stores, reads, 25)).items():
        assert linearizable(history), key


async def test_the_checker_finds_a_cache_that_is_not_asked_whether_it_is_fresh(open_shared: OpenShared) -> None:
    """The bug is put in here: a server that answers from its cache at once, with others' writes a little later."""
    stores = [await open_shared(), await open_shared()]
    reads = [_cached(store, fresh=False, delay=0.02) for store in stores]
    found = await _history(stores, reads, 25)
    assert not all(linearizable(history) for history in found.values())


def _cached(store: SharedStore, *, fresh: bool, delay: float) -> Read:
    """A read as the API server does it: from what its listener was told."""
    cache: dict[str, bytes | None] = {}

    def update(events: Sequence[StoreEvent]) -> None:
        cache.update({event.key: event.value for event in events})

    def listen(events: Sequence[StoreEvent]) -> None:
        if delay:
            asyncio.get_running_loop().call_later(delay, update, events)
        else:
            update(events)

    store.subscribe(listen)

    async def read(key: str) -> bytes | None:
        if fresh:
            await store.reached(await store.current())
        else:
            await asyncio.sleep(0)
        return cache.get(key)

    return read
