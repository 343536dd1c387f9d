"""How much an action is called: what scaling decides on."""

from __future__ import annotations

from collections import deque
from statistics import median

from coterie.functions.messages import CallRecord
from coterie.functions.model import ActionLoad

WINDOW_SECONDS = 60
PANIC_SECONDS = 6
_DURATIONS = 101


class LoadCounter:
    """Calls are counted by seconds, so a busy action costs no more than a quiet one."""

    def __init__(self) -> None:
        self._calls: deque[list[int]] = deque()
        """(second, calls), ascending but for a few that come late."""
        self._errors: deque[list[int]] = deque()
        self._durations: deque[float] = deque(maxlen=_DURATIONS)
        self._median: float | None = 0.0
        self.last_call = 0
        self.cold_starts = 0
        self.dead_letters = 0

    def arrived(self, time: int) -> None:
        """`time`: milliseconds since 1970, when it came onto the bus."""
        _count(self._calls, time // 1000)
        self.last_call = max(self.last_call, time)

    def ended(self, record: CallRecord) -> None:
        self._durations.append(record.milliseconds / 1000)
        self._median = None
        self.cold_starts += record.cold
        if record.error:
            _count(self._errors, record.time // 1000)

    def restore(self, record: CallRecord) -> None:
        """From `action-monitor`, after a restart."""
        self.arrived(record.time)
        self.ended(record)

    def load(self, now: int, lag: int, running: int) -> ActionLoad:
        second = now // 1000
        for counts in (self._calls, self._errors):
            while counts and counts[0][0] <= second - WINDOW_SECONDS:
                counts.popleft()
        if self._median is None:
            self._median = median(self._durations)
        return ActionLoad(
            calls=_sum(self._calls, second - WINDOW_SECONDS),
            calls_panic=_sum(self._calls, second - PANIC_SECONDS),
            errors=_sum(self._errors, second - WINDOW_SECONDS),
            lag=lag,
            running=running,
            median_seconds=self._median,
            last_call=self.last_call,
            cold_starts=self.cold_starts,
            dead_letters=self.dead_letters,
        )


def _count(counts: deque[list[int]], second: int) -> None:
    for entry in reversed(counts):
        if entry[0] == second:
            entry[1] += 1
            return
        if entry[0] < second:
            break
    at = len(counts)
    while at and counts[at - 1][0] > second:
        at -= 1
    counts.insert(at, [second, 1])


def _sum(counts: deque[list[int]], after: int) -> int:
    return sum(calls for second, calls in counts if second > after)
