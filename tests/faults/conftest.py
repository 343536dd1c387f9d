"""Deterministic fuzzing: the same examples in every run, more of them with COTERIE_FUZZ=long."""

from __future__ import annotations

from collections.abc import Iterator

import kubectl_runner
import pytest
from fuzz_server import FuzzServer
from hypothesis import HealthCheck, settings
from pod_attack_kit import KINDS, Scene, attacked

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


@pytest.fixture(scope="session")
def attacked_p2p(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Alice and bob; all kinds of pods of alice's node attack."""
    with attacked(tmp_path_factory.mktemp("p2p"), "p2p", kubectl_runner.chosen()[-1], *KINDS) as scene:
        yield scene


@pytest.fixture(scope="session")
def attacked_center(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A master with alice and bob as lites; a pod at alice's that bob began attacks."""
    with attacked(tmp_path_factory.mktemp("center"), "center", kubectl_runner.chosen()[-1], "guest") as scene:
        yield scene
