"""The work queue: which keys wait, which are worked on, which come back later.

    add ──> waiting ──get──> working ──done──> (gone, or waiting again when it was added meanwhile)
             ^                  │
             └── later <── retry / add_after

A key stands in the queue at most once, and while it is worked on nobody else gets it: adding it then only marks it, and
`done` puts it back. So the order for one key is kept, events that say the same melt into one, and none is lost.
With `group` (say, the namespace of a key) groups take turns, so that one busy group does not make the others wait.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from random import Random
from typing import Generic, TypeVar

from coterie.base.backoff import Policy, delay
from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.measurements import Histogram

K = TypeVar("K", bound=Hashable)

_UNTIDY = 64
MAX_REQUEUE_ROWS = 200
"""Keys whose retries are counted one by one; of more, the oldest are dropped."""
RETRY = Policy(first=0.05, factor=2.0, limit=300.0, jitter=0.1)


class QueueClosed(Exception):
    """The queue gives out no more keys."""


@dataclass(slots=True)
class QueueCounters:
    adds: int = 0
    """Keys that entered; an add that melted into a waiting one does not count."""
    retries: int = 0
    done: int = 0
    waited: float = 0.0
    """Seconds that keys spent waiting, in total."""
    worked: float = 0.0
    """Seconds spent on keys, in total."""


class WorkQueue(Generic[K]):
    def __init__(
        self,
        *,
        clock: Clock = SYSTEM_CLOCK,
        retry: Policy = RETRY,
        group: Callable[[K], Hashable] | None = None,
        random: Random | None = None,
    ) -> None:
        self._clock = clock
        self._retry = retry
        self._group = group
        self._random = random
        self._ready: dict[Hashable, deque[K]] = {}  # by group; groups take turns
        self._waiting: dict[K, float] = {}  # since when
        self._working: dict[K, float] = {}
        self._again: set[K] = set()
        self._failures: dict[K, int] = {}
        self._later: list[tuple[float, int, K]] = []
        self._deadlines: dict[K, float] = {}
        self._sequence = 0
        self._earlier = asyncio.Event()
        self._getters: deque[asyncio.Future[None]] = deque()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
        self.counters = QueueCounters()
        self.durations = Histogram()
        """Seconds spent on one key each time."""
        self.requeues: dict[K, int] = {}
        """Retries of keys since they were seen first, for metrics; the owner of the queue removes keys that are gone."""

    def __len__(self) -> int:
        """Keys that wait to be worked on now."""
        return len(self._waiting)

    @property
    def working(self) -> int:
        return len(self._working)

    @property
    def delayed(self) -> int:
        """Keys that come back at a later time."""
        return len(self._deadlines)

    def failures(self, key: K) -> int:
        return self._failures.get(key, 0)

    def comes_again(self, key: K) -> bool:
        """Whether it was added while it is worked on: the next look, not this one, says when to come back."""
        return key in self._again

    def oldest_work(self) -> float:
        """Seconds since the longest-running key was taken: how a stuck reconcile shows."""
        return self._clock.monotonic() - min(self._working.values()) if self._working else 0.0

    # Putting keys in.

    def add(self, key: K) -> None:
        if self._closed or key in self._waiting:
            return
        if key in self._working:
            self._again.add(key)
            return
        self.counters.adds += 1
        self._waiting[key] = self._clock.monotonic()
        self._idle.clear()
        self._ready.setdefault(self._group(key) if self._group else None, deque()).append(key)
        while self._getters:
            getter = self._getters.popleft()
            if not getter.done():
                getter.set_result(None)
                break

    def add_after(self, key: K, seconds: float) -> None:
        """Add the key in a while; of several such wishes the earliest counts."""
        if seconds <= 0:
            self.add(key)
            return
        at = self._clock.monotonic() + seconds
        if self._closed or self._deadlines.get(key, float("inf")) <= at:
            return
        self._deadlines[key] = at
        self._sequence += 1
        heapq.heappush(self._later, (at, self._sequence, key))
        self._tidy()
        if self._later[0][2] is key:
            self._earlier.set()

    def cancel_later(self, key: K) -> None:
        """No wish to look at the key later counts any more: what it names is gone."""
        if self._deadlines.pop(key, None) is not None:
            self._tidy()

    def _tidy(self) -> None:
        """Of wishes that an earlier one overtook a note stays behind, for as long as they reached: days, for some."""
        if len(self._later) > 2 * len(self._deadlines) + _UNTIDY:
            self._later = [each for each in self._later if self._deadlines.get(each[2]) == each[0]]
            heapq.heapify(self._later)

    def retry(self, key: K) -> float:
        """Add the key after a pause that grows with its failures; returns the pause."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self.counters.retries += 1
        if key not in self.requeues and len(self.requeues) >= MAX_REQUEUE_ROWS:
            del self.requeues[next(iter(self.requeues))]
        self.requeues[key] = self.requeues.get(key, 0) + 1
        wait = delay(self._retry, failures, self._random)
        self.add_after(key, wait)
        return wait

    def forget(self, key: K) -> None:
        """The key went well: its next failure is its first."""
        self._failures.pop(key, None)

    # Taking keys out.

    async def get(self) -> K:
        """The next key; whoever gets it must call `done`. Raises QueueClosed when there will be none."""
        while not self._waiting:
            if self._closed:
                raise QueueClosed
            getter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._getters.append(getter)
            try:
                await getter
            except asyncio.CancelledError:
                # Woken and cancelled at once: the key we were woken for must wake somebody else.
                if getter.done() and not getter.cancelled():
                    self._wake_one()
                raise
        key = self._take()
        now = self._clock.monotonic()
        self.counters.waited += now - self._waiting.pop(key)
        self._working[key] = now
        return key

    def _take(self) -> K:
        group, keys = next(iter(self._ready.items()))
        key = keys.popleft()
        del self._ready[group]
        if keys:
            self._ready[group] = keys  # behind the other groups
        return key

    def _wake_one(self) -> None:
        while self._waiting and self._getters:
            getter = self._getters.popleft()
            if not getter.done():
                getter.set_result(None)
                return

    def done(self, key: K) -> None:
        started = self._working.pop(key)
        took = self._clock.monotonic() - started
        self.counters.done += 1
        self.counters.worked += took
        self.durations.add(took)
        if key in self._again:
            self._again.discard(key)
            self.add(key)
        if not self._waiting and not self._working:
            self._idle.set()

    # Life.

    async def run(self) -> None:
        """Brings delayed keys back when their time comes. Runs until the queue is closed."""
        while not self._closed:
            self._earlier.clear()
            if not self._later:
                await self._earlier.wait()
                continue
            at, _, key = self._later[0]
            wait = at - self._clock.monotonic()
            if wait > 0:
                await self._sleep_unless_earlier(wait)
                continue
            heapq.heappop(self._later)
            if self._deadlines.get(key) == at:  # else an earlier wish has brought it back already
                del self._deadlines[key]
                self.add(key)

    async def _sleep_unless_earlier(self, seconds: float) -> None:
        waits = {asyncio.ensure_future(self._clock.sleep(seconds)), asyncio.ensure_future(self._earlier.wait())}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()

    def close(self) -> None:
        """Take nothing new; what waits is still given out, what was delayed is dropped."""
        self._closed = True
        self._later.clear()
        self._deadlines.clear()
        self._again.clear()
        self._earlier.set()
        for getter in self._getters:
            if not getter.done():
                getter.set_result(None)

    def discard_waiting(self) -> None:
        """Drop what waits too: only what is worked on now is finished."""
        self._ready.clear()
        self._waiting.clear()
        if not self._working:
            self._idle.set()

    async def drained(self) -> None:
        """Until nothing waits and nothing is worked on. Delayed keys do not count."""
        await self._idle.wait()
