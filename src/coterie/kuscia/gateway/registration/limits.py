"""What keeps the one endpoint that strangers may call from being worn out or played back. Plain state, time handed in."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RegistrationRate:
    burst: float
    per_second: float


PER_ADDRESS = RegistrationRate(10, 0.5)
"""A lite that starts asks once; one that is refused asks again after seconds."""
TOGETHER = RegistrationRate(50, 20)
"""About one millisecond of CPU time each."""
ONCE_A_MINUTE = RegistrationRate(1, 1 / 60)
"""Log lines about one address that asks too often."""


class KeyedTokenBuckets:
    """How often something of one name may happen. The least recently seen names are forgotten when there are too many."""

    def __init__(self, rate: RegistrationRate, *, most: int = 4096) -> None:
        self._rate = rate
        self._most = most
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str, now: float) -> bool:
        level, then = self._levels.pop(name, (self._rate.burst, now))
        level = min(self._rate.burst, level + max(0.0, now - then) * self._rate.per_second)
        allowed = level >= 1
        self._levels[name] = (level - 1 if allowed else level, now)
        if len(self._levels) > self._most:
            self._levels.popitem(last=False)
        return allowed


class RequestReplayCache:
    """Requests that were carried out, remembered until their age alone makes them refused."""

    def __init__(self, *, most: int = 8192) -> None:
        self._most = most
        self._until: dict[bytes, float] = {}

    def add(self, request: bytes, until: float, now: float) -> bool:
        """False: it was here before, or there is no room to remember it."""
        if len(self._until) >= self._most:
            self._until = {each: end for each, end in self._until.items() if end > now}
        if request in self._until or len(self._until) >= self._most:
            return False
        self._until[request] = until
        return True

    def forget(self, request: bytes) -> None:
        """It was not carried out after all."""
        self._until.pop(request, None)
