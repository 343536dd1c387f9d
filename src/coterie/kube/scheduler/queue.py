"""Who is tried next, who waits for what, who waits how long.

    put ──> active ──pop──> (the engine tries) ──placed──> gone
               ^                 │
               │             did not fit ──> waiting ── woken by a change that could help, or after minutes
               │                 │
               └── time is up ── backing off <── something failed

An entry is a pod that goes alone or a whole gang. Waiting entries cost nothing. Entries that ask for the same (a `group`)
are woken one at a time: only when the first was placed is the next worth a try.

The order of the active ones: priority, then age of the gang (or pod), then name.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from coterie.base.backoff import Policy, base_delay
from coterie.kube.scheduler.filters import UnschedulableCause

QueueOrder = tuple[int, str, str]
"""(-priority, creation time, namespace/name); RFC 3339 text sorts by time."""

BACKOFF = Policy(first=1.0, factor=2.0, limit=10.0, jitter=0.0)
FLUSH_AFTER = 300.0
"""Seconds after which a waiting entry is tried again although nothing seemed to help it: insurance, as in Kubernetes."""


@dataclass(slots=True)
class QueuedPod:
    key: str
    order: QueueOrder
    attempts: int = 0
    causes: UnschedulableCause = UnschedulableCause.ERROR
    group: Hashable = None
    state: str = "active"
    token: int = 0
    """Heap elements with another token are outdated."""
    tried_at: float = field(default=float("-inf"))


class SchedulingQueue:
    def __init__(self, backoff: Policy = BACKOFF, flush_after: float = FLUSH_AFTER) -> None:
        self._entries: dict[str, QueuedPod] = {}
        self._active: list[tuple[QueueOrder, int, str]] = []
        self._timed: list[tuple[float, int, str]] = []
        self._waiting: dict[str, QueuedPod] = {}
        self._single: dict[str, QueuedPod] = {}
        """Those of the waiting that are in no group."""
        self._groups: dict[Hashable, list[tuple[QueueOrder, int, str]]] = {}
        self._tokens = 0
        self._backoff = backoff
        self._flush_after = flush_after

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def state(self, key: str) -> str:
        """`active`, `waiting`, `backoff`, `popped`, or empty."""
        entry = self._entries.get(key)
        return "" if entry is None else entry.state

    def counts(self) -> dict[str, int]:
        out = {"active": 0, "waiting": 0, "backoff": 0, "popped": 0}
        for entry in self._entries.values():
            out[entry.state] += 1
        return out

    def put(self, key: str, order: QueueOrder) -> None:
        """Try it as soon as its turn comes; for new entries and for those whose object changed."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = QueuedPod(key, order)
        elif entry.state == "active":
            if entry.order == order:
                return
            self.wake_next(entry.group)
        entry.order = order
        self._activate(entry)

    def remove(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._leave(entry)
            entry.token = -1
            if entry.state == "active":
                # It was woken for its whole group and goes without having tried.
                self.wake_next(entry.group)

    def pop(self, now: float) -> QueuedPod | None:
        """The next to try. It stays known until `remove`, `wait` or `retry_later`."""
        self._due(now)
        while self._active:
            _, token, key = heapq.heappop(self._active)
            entry = self._entries.get(key)
            if entry is not None and entry.token == token and entry.state == "active":
                entry.state = "popped"
                entry.attempts += 1
                entry.tried_at = now
                return entry
        return None

    def take(self, key: str, now: float) -> None:
        """As if it had been popped: it is tried out of turn."""
        entry = self._entries.get(key)
        if entry is not None:
            self._leave(entry)
            entry.state, entry.tried_at = "popped", now
            entry.attempts += 1
            entry.token = -1

    def wait(self, key: str, causes: UnschedulableCause, now: float, group: Hashable = None) -> None:
        """It does not fit. Until a change may help, it is left alone."""
        entry = self._entries.get(key)
        if entry is None:
            return
        entry.state, entry.causes, entry.group = "waiting", causes, group
        self._waiting[key] = entry
        self._at(now + self._flush_after, entry)
        if group is None:
            self._single[key] = entry
        else:
            heapq.heappush(self._groups.setdefault(group, []), (entry.order, entry.token, key))

    def retry_later(self, key: str, now: float, at: float | None = None) -> None:
        """Something failed, or a moment is known at which to look again."""
        entry = self._entries.get(key)
        if entry is None:
            return
        self._leave(entry)
        entry.state = "backoff"
        self._at(self.backoff_ends(entry) if at is None else max(at, now), entry)

    def backoff_ends(self, entry: QueuedPod) -> float:
        return entry.tried_at + base_delay(self._backoff, entry.attempts - 1)

    def wake(self, causes: UnschedulableCause, helps: Callable[[str], bool]) -> int:
        """Something changed that lifts such causes. `helps` looks closer at each that waits for one of them."""
        first = [self._first(group) for group in list(self._groups)]
        asked = [entry for entry in (*first, *self._single.values()) if entry is not None and entry.causes & causes]
        woken = [entry for entry in asked if helps(entry.key)]
        for entry in woken:
            self._activate(entry)
        return len(woken)

    def placed(self, key: str) -> None:
        """It found its place. It stays known until it is bound, in case that fails; the next of its group may try."""
        entry = self._entries.get(key)
        if entry is not None:
            self.wake_next(entry.group)

    def wake_next(self, group: Hashable) -> None:
        """One of the group was placed; perhaps there is room for another."""
        entry = self._first(group)
        if entry is not None:
            self._activate(entry)

    def wake_one(self, key: str) -> None:
        """Try this one now, whatever it waits for."""
        entry = self._entries.get(key)
        if entry is not None and entry.state in ("waiting", "backoff"):
            self._activate(entry)

    def wake_after_backoff(self, key: str, now: float) -> None:
        """As `wake_one`, but one that was tried a moment ago waits out its pause."""
        entry = self._entries.get(key)
        if entry is None or entry.state != "waiting":
            return
        if self.backoff_ends(entry) <= now:
            self._activate(entry)
        else:
            self.retry_later(key, now)

    def forgive(self, key: str) -> None:
        """Earlier failures no longer tell anything."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.attempts = 0

    def next_due(self) -> float | None:
        """When to pop again, if nothing happens until then; None: never."""
        while self._timed:
            at, token, key = self._timed[0]
            entry = self._entries.get(key)
            if entry is not None and entry.token == token and entry.state in ("waiting", "backoff"):
                return at
            heapq.heappop(self._timed)
        return None

    @property
    def has_active(self) -> bool:
        while self._active:
            _, token, key = self._active[0]
            entry = self._entries.get(key)
            if entry is not None and entry.token == token and entry.state == "active":
                return True
            heapq.heappop(self._active)
        return False

    def _first(self, group: Hashable) -> QueuedPod | None:
        """Who of a group is to be tried first."""
        heap = self._groups.get(group)
        while heap:
            _, token, key = heap[0]
            entry = self._waiting.get(key)
            if entry is not None and entry.token == token:
                return entry
            heapq.heappop(heap)
        self._groups.pop(group, None)
        return None

    def _activate(self, entry: QueuedPod) -> None:
        self._leave(entry)
        entry.state = "active"
        self._tokens += 1
        entry.token = self._tokens
        heapq.heappush(self._active, (entry.order, entry.token, entry.key))

    def _leave(self, entry: QueuedPod) -> None:
        self._waiting.pop(entry.key, None)
        self._single.pop(entry.key, None)

    def _at(self, when: float, entry: QueuedPod) -> None:
        self._tokens += 1
        entry.token = self._tokens
        heapq.heappush(self._timed, (when, entry.token, entry.key))
        if len(self._timed) > 2 * len(self._entries) + 64:
            # Outdated elements leave only at the top; without this they would pile up while pods come and go.
            self._timed = [t for t in self._timed if (e := self._entries.get(t[2])) is not None and e.token == t[1]]
            heapq.heapify(self._timed)

    def _due(self, now: float) -> None:
        while (at := self.next_due()) is not None and at <= now:
            _, _, key = heapq.heappop(self._timed)
            self._activate(self._entries[key])
