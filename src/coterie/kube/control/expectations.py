"""Has the cache seen what we wrote?

A controller that counts objects in a cache and writes the difference would write it twice when the cache is behind. So
each write is remembered with the version the server gave it, and until the informer has come that far the key is left
alone. Versions are revisions of one store, so one number for each key is enough, whatever was written and in whichever
order the news comes.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Generic, TypeVar

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.kube.client.informer import Informer

K = TypeVar("K", bound=Hashable)

EXPECTATION_TIMEOUT = 300.0
"""Seconds after which an expectation is dropped: better to act on an old cache than never again."""
_MANY = 4096


class Expectations(Generic[K]):
    def __init__(
        self, informer: Informer[Any], clock: Clock = SYSTEM_CLOCK, timeout: float = EXPECTATION_TIMEOUT
    ) -> None:
        self._informer = informer
        self._clock = clock
        self._timeout = timeout
        self._wanted: dict[K, tuple[int, float]] = {}

    def expect(self, key: K, version: str) -> None:
        """The object we have just written has this version; versions that are no numbers cannot be waited for."""
        number = _number(version)
        if number is not None:
            known = self._wanted.get(key)
            highest = number if known is None else max(number, known[0])
            self._wanted[key] = (highest, self._clock.monotonic() + self._timeout)
            if len(self._wanted) > _MANY:
                self._sweep()

    def fulfilled(self, key: K) -> bool:
        wanted = self._wanted.get(key)
        if wanted is None:
            return True
        version, deadline = wanted
        seen = _number(self._informer.resource_version)
        if (seen is not None and seen >= version) or self._clock.monotonic() >= deadline:
            del self._wanted[key]
            return True
        return False

    def _sweep(self) -> None:
        """Keys of objects that are gone are never asked for again."""
        for key in list(self._wanted):
            self.fulfilled(key)

    def forget(self, key: K) -> None:
        self._wanted.pop(key, None)


def _number(version: str) -> int | None:
    return int(version) if version.isascii() and version.isdecimal() else None
