"""How long ago was something last news, by our own clock?

Heartbeats and revisions carry times that other machines wrote. Their clocks may be minutes off, so a time is not
compared with ours: what counts is when we saw it change. Only at the first sight (we just started) is the written time
all there is; one that lies in the future then counts as now. A beating heart with a wrong clock is so misjudged for
one beat after our start, and never again.
"""

from __future__ import annotations

from collections.abc import Hashable
from datetime import datetime

from coterie.base.clock import Clock
from coterie.kube.api.pod_state import parse_time
from coterie.kube.client.informer import Informer, ObjectChange
from coterie.kuscia.api.types.domain import Gateway

GATEWAY_LIFE = 180.0
"""Seconds after its last heartbeat for which a gateway counts as live."""


class LastSeen:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[Hashable, tuple[Hashable, float]] = {}

    def age(self, key: Hashable, mark: Hashable, written: datetime | None) -> float:
        """Seconds since `mark` was new. `written` is the time it carries."""
        now = self._clock.monotonic()
        known = self._seen.get(key)
        if known is not None and known[0] == mark:
            return now - known[1]
        age = 0.0
        if known is None and written is not None:
            age = max(0.0, (self._clock.now() - written).total_seconds())
        self._seen[key] = (mark, now - age)
        return age

    def forget(self, key: Hashable) -> None:
        self._seen.pop(key, None)


class LiveGateways:
    """The gateways whose heartbeat is fresh."""

    def __init__(self, gateways: Informer[Gateway], clock: Clock, life: float = GATEWAY_LIFE) -> None:
        self._cache = gateways.cache
        self._last_seen = LastSeen(clock)
        self._life = life
        self._reported: dict[str, frozenset[str]] = {}
        gateways.add_handler(self._changed)

    def of(self, namespace: str) -> dict[str, float]:
        """Names of the live ones, with the seconds they have left without another heartbeat."""
        out = {}
        for gateway in self._cache.list(namespace):
            left = self.left(gateway)
            if left > 0:
                out[gateway.metadata.name] = left
        self._reported[namespace] = frozenset(out)
        return out

    def left(self, gateway: Gateway) -> float:
        if gateway.status is None or gateway.metadata.deleting:
            return 0.0
        beat = gateway.status.heartbeat_time
        return self._life - self._last_seen.age(gateway.metadata.uid, beat, parse_time(beat))

    def has_changed(self, namespace: str) -> bool:
        """Whether others are live now than those that somebody was last told of. Heartbeats alone are no news."""
        before = self._reported.get(namespace)
        return before != frozenset(self.of(namespace))

    def _changed(self, change: ObjectChange[Gateway]) -> None:
        # Seen as it arrives, not when somebody next asks: ages must not depend on who asks.
        if change.type == "deleted":
            self._last_seen.forget(change.object.metadata.uid)
        else:
            self.left(change.object)
