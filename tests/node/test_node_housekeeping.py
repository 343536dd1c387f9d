"""When a node tidies up its memory: after work, never instead of it."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from coterie.base.clock import VirtualClock
from coterie.node.housekeeping import CALM, CHECK_SECONDS, LONGEST, WORTH, Housekeeper, due, tidy_up


@pytest.mark.parametrize(
    ("worked", "lately", "since", "wanted"),
    [
        pytest.param(0.1, 0.0, 3600.0, False, id="nothing was done"),
        pytest.param(WORTH, 0.0, CHECK_SECONDS, True, id="the work is over"),
        pytest.param(50.0, CHECK_SECONDS, CHECK_SECONDS, False, id="in the middle of work"),
        pytest.param(50.0, CALM * CHECK_SECONDS, CHECK_SECONDS, True, id="hardly any work"),
        pytest.param(50.0, CHECK_SECONDS, LONGEST, True, id="work without an end"),
    ],
)
def test_when_it_is_due(worked: float, lately: float, since: float, wanted: bool) -> None:
    assert due(worked, lately, since) is wanted


async def test_a_node_tidies_up_once_after_a_burst_and_now_and_then_in_a_long_one() -> None:
    clock = VirtualClock()
    spent = 0.0
    tidied: list[float] = []
    keeper = Housekeeper(clock, worked=lambda: spent, tidy=lambda: tidied.append(clock.monotonic()))
    task = asyncio.create_task(keeper.run())
    await clock.advance(5 * CHECK_SECONDS)
    assert tidied == [CHECK_SECONDS], "once after the start"
    for _ in range(3):
        spent += CHECK_SECONDS
        await clock.advance(CHECK_SECONDS)
    assert tidied == [CHECK_SECONDS]
    await clock.advance(10 * CHECK_SECONDS)
    assert tidied == [CHECK_SECONDS, 9 * CHECK_SECONDS]
    for _ in range(int(2 * LONGEST / CHECK_SECONDS)):
        spent += CHECK_SECONDS
        await clock.advance(CHECK_SECONDS)
    assert len(tidied) == 4
    task.cancel()


def test_what_only_knows_itself_goes() -> None:
    class Circle:
        def __init__(self) -> None:
            self.itself = self

    gone = weakref.ref(Circle())
    gc.disable()
    try:
        tidy_up()
    finally:
        gc.enable()
    assert gone() is None
