"""Clocks and the two spellings of time."""

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from email.utils import formatdate

import pytest

from coterie.base import clock as clocks
from coterie.base.clock import SystemClock, VirtualClock, http_date, now_rfc3339, parse_rfc3339, rfc3339, rfc3339_micro

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


async def test_virtual_clock_wakes_sleepers_in_order_of_deadline():
    clock = VirtualClock(START)
    seen: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        seen.append((name, clock.monotonic()))

    async with asyncio.TaskGroup() as group:
        group.create_task(sleeper("late", 5))
        group.create_task(sleeper("early", 1))
        group.create_task(sleeper("middle", 3))
        await clock.advance(4)
        assert seen == [("early", 1.0), ("middle", 3.0)]
        assert clock.sleepers == 1
        await clock.advance(1)
    assert seen[-1] == ("late", 5.0)
    assert clock.now() == START + timedelta(seconds=5)


async def test_virtual_clock_lets_a_loop_sleep_again_within_one_step():
    clock = VirtualClock(START)
    ticks: list[float] = []

    async def ticker() -> None:
        while True:
            await clock.sleep(10)
            ticks.append(clock.monotonic())

    task = asyncio.create_task(ticker())
    await clock.advance(35)
    task.cancel()
    assert ticks == [10.0, 20.0, 30.0]
    assert clock.monotonic() == 35


async def test_cancelled_sleeper_is_skipped():
    clock = VirtualClock(START)
    task = asyncio.create_task(clock.sleep(1))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert clock.sleepers == 0
    await clock.advance(2)
    assert clock.monotonic() == 2


async def test_virtual_clock_refuses_to_go_back_and_to_start_naive():
    with pytest.raises(ValueError, match="go back"):
        await VirtualClock().advance(-1)
    with pytest.raises(ValueError, match="aware"):
        VirtualClock(datetime(2026, 1, 1))


async def test_zero_sleep_only_yields():
    await asyncio.wait_for(VirtualClock().sleep(0), 1)


async def test_system_clock_passes():
    clock = SystemClock()
    before = clock.monotonic()
    await clock.sleep(0.001)
    assert clock.monotonic() > before
    assert clock.now().tzinfo is UTC


@pytest.mark.parametrize(
    ("moment", "seconds", "micro"),
    [
        (START, "2026-01-02T03:04:05Z", "2026-01-02T03:04:05.000000Z"),
        (START.replace(microsecond=999_999), "2026-01-02T03:04:05Z", "2026-01-02T03:04:05.999999Z"),
        (
            datetime(2026, 1, 2, 5, 4, 5, tzinfo=timezone(timedelta(hours=2))),
            "2026-01-02T03:04:05Z",
            "2026-01-02T03:04:05.000000Z",
        ),
        (datetime(33, 1, 1, tzinfo=UTC), "0033-01-01T00:00:00Z", "0033-01-01T00:00:00.000000Z"),
    ],
    ids=["utc", "micro", "offset", "early-year"],
)
def test_spellings(moment, seconds, micro):
    assert rfc3339(moment) == seconds
    assert rfc3339_micro(moment) == micro
    assert parse_rfc3339(micro) == moment


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-02T03:04:05Z", START),
        ("2026-01-02t03:04:05z", START),
        ("2026-01-02T03:04:05.123456789Z", START.replace(microsecond=123456)),
        ("2026-01-02T03:04:05.1Z", START.replace(microsecond=100000)),
        ("2026-01-02T05:04:05+02:00", START),
    ],
)
def test_parse(text, expected):
    assert parse_rfc3339(text) == expected
    assert parse_rfc3339(text).tzinfo is UTC


@pytest.mark.parametrize(
    "text",
    ["", "2026-01-02", "20260102T030405Z", "2026-01-02T03:04:05", "2026-13-02T03:04:05Z", "2026-W01-5", "x" * 99],
)
def test_parse_refuses(text):
    with pytest.raises(ValueError):
        parse_rfc3339(text)


def test_naive_moments_are_refused():
    with pytest.raises(ValueError, match="time zone"):
        rfc3339(datetime(2026, 1, 1))


def test_now_rfc3339_follows_the_second(monkeypatch):
    at = 1_767_323_045.9
    monkeypatch.setattr(clocks.time, "time", lambda: at)
    assert now_rfc3339() == "2026-01-02T03:04:05Z"
    assert now_rfc3339() is now_rfc3339()
    at += 0.2
    assert now_rfc3339() == "2026-01-02T03:04:06Z"
    assert now_rfc3339(VirtualClock(START)) == "2026-01-02T03:04:05Z"


@pytest.mark.parametrize("seconds", [0, 951_782_400.9, 1_767_323_045, 1_798_761_599, 4_102_444_800])
def test_http_date_is_that_of_the_standard_library(seconds: float) -> None:
    assert http_date(seconds) == formatdate(int(seconds), usegmt=True)
