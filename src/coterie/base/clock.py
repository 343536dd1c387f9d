"""Time as something that is handed in, so that tests decide how it passes.

Everything that asks for the time or waits takes a `Clock`. `SystemClock` is the machine's; `VirtualClock` stands still
until a test calls `await clock.advance(seconds)`, which wakes sleepers in the order of their deadlines.

Kubernetes writes time in two ways, both UTC: whole seconds (`metadata.creationTimestamp`) and microseconds
(`Lease.spec.renewTime`); `rfc3339` and `rfc3339_micro` are these two, `parse_rfc3339` reads both and any offset.
"""

from __future__ import annotations

import asyncio
import heapq
import re
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """The time of day, aware, in UTC."""

    def monotonic(self) -> float:
        """Seconds from some fixed point; never goes back."""

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    __slots__ = ()

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


SYSTEM_CLOCK = SystemClock()

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

_SETTLE_ROUNDS = 20
"""Turns of the event loop given to woken tasks before time goes on: enough for a few awaits each."""


class VirtualClock:
    """A clock that a test moves by hand."""

    def __init__(self, start: datetime | None = None) -> None:
        self._start = start or datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        if self._start.tzinfo is None:
            raise ValueError("a clock starts at an aware datetime")
        self._elapsed = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._counter = 0

    def now(self) -> datetime:
        return (self._start + timedelta(seconds=self._elapsed)).astimezone(UTC)

    def monotonic(self) -> float:
        return self._elapsed

    @property
    def sleepers(self) -> int:
        """How many tasks sleep now."""
        return sum(1 for _, _, future in self._sleepers if not future.done())

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._counter += 1
        heapq.heappush(self._sleepers, (self._elapsed + seconds, self._counter, future))
        await future

    async def advance(self, seconds: float) -> None:
        """Let `seconds` pass. Each sleeper wakes at its own time and may sleep again before later ones wake."""
        if seconds < 0:
            raise ValueError("time does not go back")
        target = self._elapsed + seconds
        # Tasks that were just started must first reach their sleep, or they would miss this step.
        await _settle()
        while self._sleepers and self._sleepers[0][0] <= target:
            deadline, _, future = heapq.heappop(self._sleepers)
            if future.done():  # cancelled while asleep
                continue
            self._elapsed = max(self._elapsed, deadline)
            future.set_result(None)
            await _settle()
        self._elapsed = target
        await _settle()


async def _settle() -> None:
    for _ in range(_SETTLE_ROUNDS):
        await asyncio.sleep(0)


def rfc3339(moment: datetime) -> str:
    """`2026-01-02T03:04:05Z`; parts of a second are cut off."""
    return _utc(moment).isoformat(timespec="seconds")[:19] + "Z"


def rfc3339_micro(moment: datetime) -> str:
    """`2026-01-02T03:04:05.000006Z`, always with six digits."""
    return _utc(moment).isoformat(timespec="microseconds")[:26] + "Z"


def http_date(seconds: float) -> str:
    """`Fri, 02 Jan 2026 03:04:05 GMT`, as HTTP writes it, from seconds since 1970. English in every locale."""
    at = time.gmtime(seconds)
    clock = f"{at.tm_hour:02}:{at.tm_min:02}:{at.tm_sec:02}"
    return f"{_DAYS[at.tm_wday]}, {at.tm_mday:02} {_MONTHS[at.tm_mon - 1]} {at.tm_year} {clock} GMT"


def _utc(moment: datetime) -> datetime:
    if moment.tzinfo is UTC:
        return moment
    if moment.tzinfo is None:
        raise ValueError("a datetime without time zone is no moment")
    return moment.astimezone(UTC)


# datetime.fromisoformat alone would also take "20260102" or "2026-W01-5", which no Kubernetes client may send.
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII)


def parse_rfc3339(text: str) -> datetime:
    """The moment a timestamp names, in UTC. Raises ValueError for anything that is not RFC 3339."""
    if not _RFC3339.fullmatch(text):
        raise ValueError(f"not an RFC 3339 time: {text[:64]!r}")
    return datetime.fromisoformat(text.upper()).astimezone(UTC)


_cached_second = -1
_cached_text = ""


def now_rfc3339(clock: Clock = SYSTEM_CLOCK) -> str:
    """The present second as `rfc3339` writes it. For the system's clock the text is made once per second."""
    global _cached_second, _cached_text
    if clock is not SYSTEM_CLOCK:
        return rfc3339(clock.now())
    second = int(time.time())
    if second != _cached_second:
        _cached_text = rfc3339(datetime.fromtimestamp(second, UTC))
        _cached_second = second
    return _cached_text
