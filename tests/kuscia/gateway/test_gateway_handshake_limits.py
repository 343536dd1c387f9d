"""Allowances and the memory for requests."""

from __future__ import annotations

import pytest

from coterie.base.clock import VirtualClock
from coterie.base.log import logger
from coterie.base.rate_limited_log import Allowance, Complaints
from coterie.kuscia.gateway.handshake.limits import Memory, Sight, Turnstile


async def test_a_source_has_a_burst_and_then_a_rate() -> None:
    clock = VirtualClock()
    door = Turnstile(clock, Allowance(3, 0.5), Allowance(100, 1))
    assert [door.admits("alice", False) for _ in range(5)] == [True, True, True, False, False]
    assert door.admits("carol", False), "others are not concerned"
    await clock.advance(2.1)
    assert [door.admits("alice", False) for _ in range(2)] == [True, False]


async def test_forgers_cannot_use_up_what_is_proven() -> None:
    door = Turnstile(VirtualClock(), Allowance(2, 0.1), Allowance(4, 0.1))
    for name in ("alice", "carol", "dave", "erin"):
        for _ in range(3):
            door.admits(name, False)
    assert not door.admits("frank", False), "all together have come too often"
    assert door.admits("alice", True)


@pytest.mark.parametrize(
    ("after", "sight"),
    [(0.0, Sight.REPEAT), (60.0, Sight.REPEAT), (61.0, Sight.REPLAY), (1799.0, Sight.REPLAY)],
    ids=["at once", "within a minute", "after a minute", "as long as its time would let it in"],
)
async def test_a_request_that_was_here_is_known(after: float, sight: Sight) -> None:
    clock = VirtualClock()
    memory: Memory[str] = Memory(clock)
    assert memory.see("a", "first") == (Sight.NEW, "first")
    await clock.advance(after)
    assert memory.see("a", "second") == (sight, "first")


async def test_memory_is_bounded_in_time_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.kuscia.gateway.handshake.limits._REMEMBERED", 10)
    clock = VirtualClock()
    memory: Memory[int] = Memory(clock)
    for number in range(50):
        memory.see(number, number)
    assert len(memory) == 10
    assert memory.see(49, 0)[0] is Sight.REPEAT
    await clock.advance(1801)
    assert memory.see(49, 0)[0] is Sight.NEW
    assert len(memory) == 1


async def test_complaints_are_counted_rather_than_written(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    complaints = Complaints(logger("gateway.handshake"), clock)
    for _ in range(1000):
        complaints.warn("Refused a handshake", source="alice")
    assert len(caplog.records) == 20
    await clock.advance(2)
    complaints.warn("Refused a handshake", source="alice")
    assert len(caplog.records) == 21
