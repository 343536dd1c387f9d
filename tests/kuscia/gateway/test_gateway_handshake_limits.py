"""Allowances and the memory for requests."""

from __future__ import annotations

import pytest

from coterie.base.clock import VirtualClock
from coterie.base.log import logger
from coterie.base.rate_limited_log import RateLimit, RateLimitedLog
from coterie.kuscia.gateway.handshake.limits import HandshakeRateLimiter, ReplayCache, RequestNovelty


async def test_a_source_has_a_burst_and_then_a_rate() -> None:
    clock = VirtualClock()
    door = HandshakeRateLimiter(clock, RateLimit(3, 0.5), RateLimit(100, 1))
    assert [door.admits("alice", False) for _ in range(5)] == [True, True, True, False, False]
    assert door.admits("carol", False), "others are not concerned"
    await clock.advance(2.1)
    assert [door.admits("alice", False) for _ in range(2)] == [True, False]


async def test_forgers_cannot_use_up_what_is_proven() -> None:
    door = HandshakeRateLimiter(VirtualClock(), RateLimit(2, 0.1), RateLimit(4, 0.1))
    for name in ("alice", "carol", "dave", "erin"):
        for _ in range(3):
            door.admits(name, False)
    assert not door.admits("frank", False), "all together have come too often"
    assert door.admits("alice", True)


@pytest.mark.parametrize(
    ("after", "sight"),
    [
        (0.0, RequestNovelty.REPEAT),
        (60.0, RequestNovelty.REPEAT),
        (61.0, RequestNovelty.REPLAY),
        (1799.0, RequestNovelty.REPLAY),
    ],
    ids=["at once", "within a minute", "after a minute", "as long as its time would let it in"],
)
async def test_a_request_that_was_here_is_known(after: float, sight: RequestNovelty) -> None:
    clock = VirtualClock()
    memory: ReplayCache[str] = ReplayCache(clock)
    assert memory.check("a", "first") == (RequestNovelty.NEW, "first")
    await clock.advance(after)
    assert memory.check("a", "second") == (sight, "first")


async def test_memory_is_bounded_in_time_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.kuscia.gateway.handshake.limits._REMEMBERED", 10)
    clock = VirtualClock()
    memory: ReplayCache[int] = ReplayCache(clock)
    for number in range(50):
        memory.check(number, number)
    assert len(memory) == 10
    assert memory.check(49, 0)[0] is RequestNovelty.REPEAT
    await clock.advance(1801)
    assert memory.check(49, 0)[0] is RequestNovelty.NEW
    assert len(memory) == 1


async def test_complaints_are_counted_rather_than_written(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    complaints = RateLimitedLog(logger("gateway.handshake"), clock)
    for _ in range(1000):
        complaints.warn("Refused a handshake", source="alice")
    assert len(caplog.records) == 20
    await clock.advance(2)
    complaints.warn("Refused a handshake", source="alice")
    assert len(caplog.records) == 21
