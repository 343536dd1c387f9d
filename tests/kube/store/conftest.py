from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from coterie.base.clock import VirtualClock
from coterie.kube.store import MemoryStore, SqliteStore, Store

MakeStore = Callable[..., Awaitable[Store]]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture(params=["memory", "sqlite"])
async def make_store(request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock) -> AsyncIterator[MakeStore]:
    """Opens stores of one kind with the given settings, and closes them."""
    opened: list[Store] = []

    async def make(**settings: object) -> Store:
        store: Store
        if request.param == "memory":
            store = MemoryStore(clock=clock, **settings)  # type: ignore[arg-type]
        else:
            store = SqliteStore(tmp_path / f"store-{len(opened)}.db", clock=clock, **settings)  # type: ignore[arg-type]
        await store.open()
        opened.append(store)
        return store

    yield make
    for store in opened:
        await store.close()


@pytest.fixture
async def store(make_store: MakeStore) -> Store:
    return await make_store()
