"""The bus under test: embedded always, Kafka with COTERIE_KAFKA (`make kafka`)."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from kafka_broker import kafka_wanted, shared_kafka

from coterie.functions.bus.factory import open_bus
from coterie.functions.bus.protocol import Bus

OpenBus = Callable[[], Awaitable[Bus]]
_numbers = itertools.count()
IMPLEMENTATIONS = [
    "embedded",
    pytest.param("kafka", marks=pytest.mark.skipif(not kafka_wanted(), reason="COTERIE_KAFKA is not set")),
]


@pytest.fixture(params=IMPLEMENTATIONS)
def bus_url(request: pytest.FixtureRequest) -> str:
    """Each test has topics of its own."""
    return "embedded" if request.param == "embedded" else shared_kafka().url(f"test{next(_numbers)}-")


@pytest.fixture
async def opens(bus_url: str, tmp_path: Path) -> AsyncIterator[OpenBus]:
    """Opens the same bus again each time; one at a time."""
    opened: list[Bus] = []

    async def open_again() -> Bus:
        for each in opened:
            await each.close()
        bus = await open_bus(bus_url, tmp_path / "bus.db")
        opened.append(bus)
        return bus

    yield open_again
    for each in opened:
        await each.close()


@pytest.fixture
async def bus(opens: OpenBus) -> Bus:
    return await opens()
