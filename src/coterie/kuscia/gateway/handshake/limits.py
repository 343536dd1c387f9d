"""What keeps strangers from wearing us out: who may ask how often, and which requests were here before. No I/O.

Whoever knows two public keys can write a handshake that looks like a source's; only the source can read the answer. Such
a request costs us an RSA operation, a write, and a new snapshot at each gateway, so it is counted before any of that.
Callers whose certificate proved who they are have allowances of their own: a forger cannot use those up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from enum import Enum, auto
from typing import Generic, TypeVar

from coterie.base.clock import Clock
from coterie.base.rate_limited_log import RateLimit, TokenBucket

T = TypeVar("T")

CLOCK_TOLERANCE = 15 * 60.0
"""Seconds by which a partner's clock may differ from ours."""
REPEAT_SPAN = 60.0
"""Kuscia sends an unanswered handshake again, byte by byte: five times, within fifty-five seconds."""
_REMEMBERED = 20_000
_SOURCES = 10_000

PER_SOURCE = RateLimit(20, 0.5)
IN_TOTAL = RateLimit(100, 50)
LIVE_READS = RateLimit(20, 2)


class HandshakeRateLimiter:
    """Per source and in total, for proven callers and for others."""

    def __init__(self, clock: Clock, per_source: RateLimit = PER_SOURCE, in_total: RateLimit = IN_TOTAL) -> None:
        self._clock = clock
        self._per_source = per_source
        self._total = {proven: TokenBucket(in_total, clock) for proven in (True, False)}
        self._sources: OrderedDict[tuple[str, bool], TokenBucket] = OrderedDict()

    def admits(self, source: str, proven: bool) -> bool:
        key = (source, proven)
        bucket = self._sources.pop(key, None) or TokenBucket(self._per_source, self._clock)
        self._sources[key] = bucket
        if len(self._sources) > _SOURCES:
            self._sources.popitem(last=False)
        return bucket.take() and self._total[proven].take()


class RequestNovelty(Enum):
    NEW = auto()
    REPEAT = auto()
    """The same request again, so soon that its sender may just not have got the answer."""
    REPLAY = auto()


class ReplayCache(Generic[T]):
    """Requests that were here, each with what was made of it, for as long as their time would let them in again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: OrderedDict[Hashable, tuple[float, T]] = OrderedDict()

    def check(self, mark: Hashable, fresh: T) -> tuple[RequestNovelty, T]:
        """`fresh` is remembered with a request that is new; a repeated one gets what the first got."""
        now = self._clock.monotonic()
        while self._seen:
            oldest = next(iter(self._seen.values()))
            if now - oldest[0] <= 2 * CLOCK_TOLERANCE and len(self._seen) < _REMEMBERED:
                break
            self._seen.popitem(last=False)
        known = self._seen.get(mark)
        if known is None:
            self._seen[mark] = (now, fresh)
            return RequestNovelty.NEW, fresh
        return (RequestNovelty.REPEAT if now - known[0] <= REPEAT_SPAN else RequestNovelty.REPLAY), known[1]

    def __len__(self) -> int:
        return len(self._seen)
