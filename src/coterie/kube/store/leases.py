"""Leases: which exist, until when, and which keys live on them.

Time is not kept on disk: after a restart every lease starts anew with its full ttl. A key may thus live longer than
asked, never shorter; nobody loses a lock because the store was down.

Deadlines are in a heap that is corrected lazily: `keep_alive` is the frequent call and only moves a number, the stale
heap entry is put right when it comes up.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from coterie.kube.store.protocol import LeaseNotFound

_ROUNDING = 1e-9
"""A sleep of (deadline - now) may end an ulp early; without slack the expiry would spin on that ulp."""


class StoreLease:
    __slots__ = ("deadline", "id", "keys", "ttl")

    def __init__(self, id: int, ttl: float, deadline: float) -> None:
        self.id = id
        self.ttl = ttl
        self.deadline = deadline
        self.keys: set[str] = set()


class StoreLeases:
    def __init__(self) -> None:
        self.granted: dict[int, StoreLease] = {}
        self.last = 0
        """The highest id ever given, so that none is given twice."""
        self._deadlines: list[tuple[float, int]] = []

    def restore(self, leases: Iterable[tuple[int, float]], last: int, now: float) -> None:
        """Take over what a file remembers; everybody gets the full ttl again."""
        for id, ttl in leases:
            self.add(StoreLease(id, ttl, now + ttl))
        self.last = max([last, *self.granted])

    def new(self, ttl: float, now: float) -> StoreLease:
        self.last += 1
        lease = StoreLease(self.last, ttl, now + ttl)
        self.add(lease)
        return lease

    def add(self, lease: StoreLease) -> None:
        self.granted[lease.id] = lease
        heapq.heappush(self._deadlines, (lease.deadline, lease.id))

    def find(self, id: int) -> StoreLease:
        lease = self.granted.get(id)
        if lease is None:
            raise LeaseNotFound(f"lease {id} expired, was revoked or never existed")
        return lease

    def keep_alive(self, id: int, now: float) -> float:
        lease = self.find(id)
        if lease.deadline <= now + _ROUNDING:  # over, though its keys may not be deleted yet
            raise LeaseNotFound(f"lease {id} expired")
        lease.deadline = now + lease.ttl
        return lease.ttl

    def move(self, key: str, old: int, new: int) -> None:
        """The key now lives on lease `new` (0: on none)."""
        if old:
            lease = self.granted.get(old)
            if lease is not None:
                lease.keys.discard(key)
        if new:
            self.granted[new].keys.add(key)

    def due(self, now: float) -> list[StoreLease]:
        """Leases that are over. They stay listed until their end is written."""
        return [lease for lease in self.granted.values() if lease.deadline <= now + _ROUNDING]

    def next_deadline(self) -> float | None:
        heap = self._deadlines
        while heap:
            deadline, id = heap[0]
            lease = self.granted.get(id)
            if lease is None:
                heapq.heappop(heap)
            elif lease.deadline > deadline:
                heapq.heapreplace(heap, (lease.deadline, id))
            else:
                return deadline
        return None
