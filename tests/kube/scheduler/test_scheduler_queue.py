"""Who is tried when."""

from __future__ import annotations

import pytest

from coterie.kube.scheduler.filters import UnschedulableCause
from coterie.kube.scheduler.queue import QueueOrder, SchedulingQueue


def order(priority: int = 0, created: str = "", name: str = "") -> QueueOrder:
    return (-priority, created, name)


def drain(queue: SchedulingQueue, now: float = 0.0) -> list[str]:
    out = []
    while (entry := queue.pop(now)) is not None:
        out.append(entry.key)
    return out


def test_priority_then_age_then_name() -> None:
    queue = SchedulingQueue()
    queue.put("young", order(0, "2026-01-02", "a"))
    queue.put("old", order(0, "2026-01-01", "z"))
    queue.put("important", order(5, "2026-01-03", "z"))
    queue.put("b", order(0, "2026-01-02", "b"))
    assert drain(queue) == ["important", "old", "young", "b"]


def test_waiting_entries_are_left_alone_until_the_right_change() -> None:
    queue = SchedulingQueue()
    for key, causes in (
        ("room", UnschedulableCause.ROOM),
        ("face", UnschedulableCause.FACE),
        ("gang", UnschedulableCause.GANG),
    ):
        queue.put(key, order(name=key))
        queue.pop(0)
        queue.wait(key, causes, 0)
    assert queue.pop(10) is None and not queue.has_active
    assert queue.wake(UnschedulableCause.ROOM, lambda _: False) == 0
    assert queue.wake(UnschedulableCause.ROOM | UnschedulableCause.FACE, lambda key: key == "face") == 1
    assert drain(queue, 10) == ["face"]
    queue.wake_one("gang")
    assert drain(queue, 10) == ["gang"]
    assert queue.state("room") == "waiting"


def test_a_waiting_entry_is_tried_after_minutes_all_the_same() -> None:
    queue = SchedulingQueue(flush_after=300)
    queue.put("a", order())
    queue.pop(0)
    queue.wait("a", UnschedulableCause.ROOM, 5)
    assert queue.next_due() == 305
    assert drain(queue, 304) == []
    assert drain(queue, 305) == ["a"]


@pytest.mark.parametrize(("attempts", "pause"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (50, 10)])
def test_failures_pause_longer_each_time(attempts: int, pause: float) -> None:
    queue = SchedulingQueue()
    queue.put("a", order())
    now = 0.0
    for _ in range(attempts):
        assert (entry := queue.pop(now)) is not None
        queue.retry_later("a", now)
        due = queue.next_due()
        assert due is not None
        last, now = now, due
    assert entry.attempts == attempts
    assert now - last == pause


def test_of_entries_that_are_alike_one_is_woken_at_a_time() -> None:
    queue = SchedulingQueue()
    for i in range(4):
        queue.put(f"p{i}", order(name=f"p{i}"))
        queue.pop(0)
    for i in (3, 1, 2, 0):
        queue.wait(f"p{i}", UnschedulableCause.ROOM, 0, group="alike")
    asked: list[str] = []
    assert queue.wake(UnschedulableCause.ROOM, lambda key: asked.append(key) is None) == 1
    assert asked == ["p0"]
    assert drain(queue, 1) == ["p0"]
    queue.placed("p0")
    assert drain(queue, 1) == ["p1"]
    queue.wait("p1", UnschedulableCause.ROOM, 1, group="alike")
    assert drain(queue, 1) == []
    # The one that was woken for all goes away before it was tried: the next takes its turn.
    queue.wake(UnschedulableCause.ROOM, lambda _: True)
    queue.remove("p1")
    assert drain(queue, 1) == ["p2"]


def test_an_entry_that_was_just_tried_waits_out_its_pause() -> None:
    queue = SchedulingQueue()
    queue.put("a", order())
    queue.pop(0)
    queue.wait("a", UnschedulableCause.ROOM, 0)
    queue.wake_after_backoff("a", 0.5)
    assert queue.state("a") == "backoff" and queue.next_due() == 1.0
    assert drain(queue, 1.0) == ["a"]
    queue.wait("a", UnschedulableCause.ROOM, 1.0)
    queue.wake_after_backoff("a", 30.0)
    assert queue.state("a") == "active"


def test_removed_and_changed_entries_leave_nothing_behind() -> None:
    queue = SchedulingQueue()
    for round in range(1000):
        queue.put("a", order(name=str(round % 2)))
        queue.pop(0)
        queue.wait("a", UnschedulableCause.ROOM, 0, group="g")
    assert len(queue._timed) < 200
    queue.remove("a")
    assert len(queue) == 0 and queue.next_due() is None and not queue.has_active
    assert queue.wake(UnschedulableCause.ROOM, lambda _: True) == 0


def test_an_update_moves_an_entry_to_its_new_place() -> None:
    queue = SchedulingQueue()
    queue.put("a", order(0))
    queue.put("b", order(1))
    queue.put("a", order(2))
    assert drain(queue) == ["a", "b"]
    assert queue.counts() == {"active": 0, "waiting": 0, "backoff": 0, "popped": 2}
