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


@pytest.fixture
def server() -> Iterator[FuzzServer]:
    with FuzzServer() as running:
        yield running
        running.alive()
