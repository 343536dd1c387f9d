"""Deterministic fuzzing: the same examples in every run, more of them with COTERIE_FUZZ=long."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fuzz_server import FuzzServer
from hypothesis import HealthCheck, settings

settings.register_profile(
    "fuzz",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)


@pytest.fixture(scope="module")
def untouched() -> Iterator[list[FuzzServer]]:
    """Servers that are as they were when they started."""
    servers: list[FuzzServer] = []
    yield servers
    for server in servers:
        server.close()


@pytest.fixture
def server(untouched: list[FuzzServer]) -> Iterator[FuzzServer]:
    """A server that no other test has changed; it must be well afterwards."""
    running = untouched.pop() if untouched else FuzzServer().open()
    before = running.store.revision
    yield running
    running.alive()
    if running.store.revision == before:
        untouched.append(running)
    else:
        running.close()
