"""Status changes that only inform are written together with the next one that matters, or after a short delay.

Each write of a status is a commit to disk and an event for every watcher. What nobody acts on (which node a pod is on,
that a task which was just created is pending) need not cost one of its own while more news is on its way.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from coterie.base.clock import SYSTEM_CLOCK, Clock

K = TypeVar("K", bound=Hashable)

DELAY = 0.5
"""Seconds for which a change that only informs may be held back."""


class Deferred(Generic[K]):
    """When each key's unwritten change is due. Nothing is lost with it: a restart computes the change anew."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, delay: float = DELAY) -> None:
        self._clock = clock
        self._delay = delay
        self._due: dict[K, float] = {}

    def wait(self, key: K) -> float | None:
        """Seconds until the change of this key has to be written; None when that is now."""
        now = self._clock.monotonic()
        left = self._due.setdefault(key, now + self._delay) - now
        if left > 0:
            return left
        del self._due[key]
        return None

    def clear(self, key: K) -> None:
        """There is nothing left to write."""
        self._due.pop(key, None)


def earliest(*moments: float | None) -> float | None:
    """The first of some delays, as `Result.after` takes it."""
    return min((moment for moment in moments if moment is not None), default=None)
