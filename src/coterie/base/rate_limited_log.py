"""Log lines about what strangers do. They choose how often; so most are counted rather than written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coterie.base.clock import Clock
from coterie.base.log import Logger


@dataclass(frozen=True, slots=True)
class RateLimit:
    burst: float
    per_second: float


LOG_RATE = RateLimit(20, 1)


class TokenBucket:
    def __init__(self, allowance: RateLimit, clock: Clock) -> None:
        self._allowance = allowance
        self._clock = clock
        self._left = allowance.burst
        self._filled = clock.monotonic()

    def take(self) -> bool:
        now = self._clock.monotonic()
        gained = (now - self._filled) * self._allowance.per_second
        self._left = min(self._allowance.burst, self._left + gained)
        self._filled = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class RateLimitedLog:
    def __init__(self, log: Logger, clock: Clock) -> None:
        self._log = log
        self._bucket = TokenBucket(LOG_RATE, clock)
        self._unwritten = 0

    def warn(self, sentence: str, **fields: Any) -> None:
        if not self._bucket.take():
            self._unwritten += 1
            return
        if self._unwritten:
            fields["unwritten_before"] = self._unwritten
            self._unwritten = 0
        self._log.warning(sentence, **fields)
