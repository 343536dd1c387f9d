from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from store_servers_kit import fresh_address, shared_store

from coterie.base.clock import VirtualClock
from coterie.kube.store import MemoryStore, SqliteStore, Store

MakeStore = Callable[..., Awaitable[Store]]
EXCLUSIVE = ("memory", "sqlite")
COUNTING = (*EXCLUSIVE, "postgresql", "mysql")
"""Stores whose revisions grow by one from zero."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test of a store runs on each kind that its module (`STORES`) or its marker `stores` names."""
    if "store_kind" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("stores")
        kinds = marker.args if marker is not None else getattr(metafunc.module, "STORES", COUNTING)
        metafunc.parametrize("store_kind", kinds)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def make_store(
    request: pytest.FixtureRequest, store_kind: str, tmp_path: Path, clock: VirtualClock
) -> AsyncIterator[MakeStore]:
    """Opens stores of one kind with the given settings, and closes them."""
    opened: list[Store] = []

    async def make(**settings: object) -> Store:
        store: Store
        if store_kind == "memory":
            store = MemoryStore(clock=clock, **settings)  # type: ignore[arg-type]
        elif store_kind == "sqlite":
            store = SqliteStore(tmp_path / f"store-{len(opened)}.db", clock=clock, **settings)  # type: ignore[arg-type]
        else:
            server = request.getfixturevalue(store_kind)
            store = shared_store(fresh_address(store_kind, server), **settings)
        await store.open()
        opened.append(store)
        return store

    yield make
    for store in opened:
        await store.close()


@pytest.fixture
async def store(make_store: MakeStore) -> Store:
    return await make_store()
