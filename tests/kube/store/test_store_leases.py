"""Leases: keys that go when nobody keeps them alive."""

from __future__ import annotations

import asyncio

import pytest

from coterie.base.clock import VirtualClock
from coterie.kube.store import CompareFailed, DeleteOp, LeaseNotFound, PutOp, Store, StoreError, StoreEvent, StoreRecord

STORES = ("memory", "sqlite")
"""Their leases run by a clock that tests can move; for the others see `test_store_sharing.py`."""


async def deleted(store: Store, count: int) -> list[str]:
    """Keys of the first `count` deletions."""
    gone: list[str] = []
    async for events in store.watch("", 0):
        gone.extend(event.key for event in events if event.value is None)
        if len(gone) >= count:
            break
    return gone


async def test_keys_go_together_when_their_lease_expires(store: Store, clock: VirtualClock) -> None:
    lease = await store.grant(10)
    await store.commit([PutOp("b", b"1", lease=lease), PutOp("a", b"2", lease=lease), PutOp("stays", b"3")])
    assert await store.get("a") == StoreRecord("a", b"2", 2, 2, lease)
    heard: list[list[StoreEvent]] = []
    store.subscribe(lambda events: heard.append(list(events)))
    await clock.advance(9.9)
    assert await store.keep_alive(lease) == 10
    await clock.advance(9.9)
    assert heard == []
    await clock.advance(0.2)
    assert await deleted(store, 2) == ["a", "b"]
    assert heard == [[StoreEvent("a", 4, None, 2, 2), StoreEvent("b", 5, None, 1, 1)]]
    assert [record.key for record in (await store.scan("")).records] == ["stays"]
    with pytest.raises(LeaseNotFound):
        await store.keep_alive(lease)
    with pytest.raises(LeaseNotFound):
        store.submit([PutOp("c", b"", lease=lease)])


async def test_a_nearer_deadline_wakes_earlier(store: Store, clock: VirtualClock) -> None:
    slow = await store.grant(100)
    quick = await store.grant(1)
    await store.commit([PutOp("slow", b"", lease=slow), PutOp("quick", b"", lease=quick)])
    await clock.advance(1.5)
    assert await deleted(store, 1) == ["quick"]
    await clock.advance(100)
    assert await deleted(store, 2) == ["quick", "slow"]


async def test_revoking_ends_a_lease_at_once(store: Store) -> None:
    lease = await store.grant(10)
    await store.commit([PutOp("a", b"", lease=lease)])
    await store.revoke(lease)
    assert await store.get("a") is None
    for ask in (store.revoke(lease), store.keep_alive(lease), store.revoke(99)):
        with pytest.raises(LeaseNotFound):
            await ask
    assert await store.grant(10) > lease


async def test_a_key_leaves_its_lease_when_put_without_or_deleted(store: Store) -> None:
    first, second = await store.grant(10), await store.grant(10)
    await store.commit([PutOp(key, b"", lease=first) for key in ("kept", "moved", "gone", "ends")])
    await store.commit([PutOp("kept", b""), PutOp("moved", b"", lease=second), DeleteOp("gone")])
    await store.commit([PutOp("gone", b"")])
    await store.revoke(first)
    assert [record.key for record in (await store.scan("")).records] == ["gone", "kept", "moved"]
    await store.revoke(second)
    assert [record.key for record in (await store.scan("")).records] == ["gone", "kept"]


async def test_a_refused_batch_moves_no_key_between_leases(store: Store) -> None:
    lease = await store.grant(10)
    await store.commit([PutOp("a", b"", lease=lease), PutOp("b", b"")])
    with pytest.raises(CompareFailed):
        await store.commit([PutOp("a", b""), PutOp("b", b"", lease=lease), DeleteOp("missing")])
    await store.revoke(lease)
    assert [record.key for record in (await store.scan("")).records] == ["b"]


async def test_a_lease_over_while_writes_are_on_their_way(store: Store) -> None:
    lease = await store.grant(10)
    put = store.submit([PutOp("a", b"", lease=lease)])
    end = asyncio.create_task(store.revoke(lease))
    await asyncio.gather(put, end)
    assert await store.get("a") is None
    assert store.revision == 2


@pytest.mark.parametrize("ttl", [0, -1, float("inf"), float("nan")], ids=str)
async def test_a_ttl_is_positive(store: Store, ttl: float) -> None:
    with pytest.raises(StoreError, match="positive"):
        await store.grant(ttl)


async def test_closing_ends_the_expiry_but_not_the_leases(store: Store, clock: VirtualClock) -> None:
    lease = await store.grant(5)
    await store.commit([PutOp("a", b"", lease=lease)])
    await store.close()
    assert clock.sleepers == 0
    await clock.advance(10)
    assert store.revision == 1
