"""From the log to those who follow it.

    durable batch ─▶ listeners (synchronous, each batch)
                  └▶ mailboxes: filtered once for each prefix, the same tuple for all watchers of that prefix

Nobody is waited for. A listener is a plain function; a watcher has a mailbox with a bound, and one that lets it
overflow is dropped with SlowWatcher, after which it must list anew.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from coterie.kube.store.protocol import Listener, SlowWatcher, StoreError, StoreEvent


class Broadcast:
    def __init__(self) -> None:
        # Replaced, never changed in place: a listener may end its subscription while a batch goes round.
        self._listeners: dict[object, Listener] = {}

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        token = object()  # the same function may subscribe twice
        self._listeners = {**self._listeners, token: listener}

        def unsubscribe() -> None:
            self._listeners = {
                other: each_listener for other, each_listener in self._listeners.items() if other is not token
            }

        return unsubscribe

    def publish(self, events: Sequence[StoreEvent]) -> None:
        """Everyone hears every batch; a listener's fault is raised only after all have heard it."""
        with ExitStack() as stack:
            for listener in reversed(self._listeners.values()):
                stack.callback(listener, events)


class WatcherQueue:
    """What one watcher has not taken yet."""

    def __init__(self, prefix: str, limit: int) -> None:
        self.prefix = prefix
        self.error: StoreError | None = None
        self._limit = limit
        self._batches: deque[Sequence[StoreEvent]] = deque()
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None

    def put(self, batch: Sequence[StoreEvent]) -> None:
        # One batch alone is always taken, however big: dropping for it would drop the watcher again and again.
        if self._size and self._size + len(batch) > self._limit:
            self._batches.clear()
            self.end(SlowWatcher(f"the watcher of {self.prefix!r} fell more than {self._limit} events behind"))
            return
        self._batches.append(batch)
        self._size += len(batch)
        self._wake()

    def end(self, error: StoreError) -> None:
        """What lies in the box may still be taken, then `error` is raised."""
        if self.error is None:
            self.error = error
            self._wake()

    async def take(self) -> Sequence[StoreEvent]:
        while not self._batches:
            if self.error is not None:
                raise self.error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        batch = self._batches.popleft()
        self._size -= len(batch)
        return batch

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class WatcherQueues:
    """All mailboxes, by prefix. `deliver` is a listener like any other."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_prefix: dict[str, list[WatcherQueue]] = {}

    def __len__(self) -> int:
        return sum(len(boxes) for boxes in self._by_prefix.values())

    def open(self, prefix: str) -> WatcherQueue:
        box = WatcherQueue(prefix, self._limit)
        self._by_prefix.setdefault(prefix, []).append(box)
        return box

    def close(self, box: WatcherQueue) -> None:
        boxes = self._by_prefix.get(box.prefix, [])
        if box in boxes:
            boxes.remove(box)
            if not boxes:
                del self._by_prefix[box.prefix]

    def deliver(self, events: Sequence[StoreEvent]) -> None:
        slow: list[WatcherQueue] = []
        for prefix, boxes in self._by_prefix.items():
            batch = tuple(event for event in events if event.key.startswith(prefix))
            if not batch:
                continue
            for box in boxes:
                box.put(batch)
                if box.error is not None:
                    slow.append(box)
        for box in slow:
            self.close(box)

    def end(self, error: StoreError) -> None:
        for boxes in self._by_prefix.values():
            for box in boxes:
                box.end(error)
        self._by_prefix.clear()
