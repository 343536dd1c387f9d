"""Real servers for stores that are shared: one of each kind in a session, a store of its own for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
from store_servers_kit import SHARED, StoreServer, fresh_address, server_of, shared_store

from coterie.base.store_address import StoreAddress
from coterie.kube.store.shared import SharedStore

OpenShared = Callable[..., Awaitable[SharedStore]]


@pytest.fixture(scope="session")
def postgresql() -> Iterator[StoreServer]:
    with server_of("postgresql") as server:
        yield server


@pytest.fixture(scope="session")
def etcd() -> Iterator[StoreServer]:
    with server_of("etcd") as server:
        yield server


@pytest.fixture(scope="session")
def mysql() -> Iterator[StoreServer]:
    with server_of("mysql") as server:
        yield server


@pytest.fixture(params=SHARED)
def shared_address(request: pytest.FixtureRequest) -> StoreAddress:
    """The address of an empty store."""
    return fresh_address(request.param, request.getfixturevalue(request.param))


@pytest.fixture
async def open_shared(shared_address: StoreAddress) -> AsyncIterator[OpenShared]:
    """Opens store objects on one and the same back-end."""
    opened: list[SharedStore] = []

    async def open_one(**settings: object) -> SharedStore:
        store = shared_store(shared_address, **settings)
        await store.open()
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        await store.close()
