"""Waiting until a route is as one likes it, on top of the informer that is there anyway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from coterie.base.clock import Clock
from coterie.kube.api.meta import ObjectKey
from coterie.kube.client.informer import Informer, ObjectChange
from coterie.kuscia.api.types.domain import DomainRoute


class RouteWaiter:
    def __init__(self, routes: Informer[DomainRoute], clock: Clock) -> None:
        self._routes = routes
        self._clock = clock
        self._waiting: dict[ObjectKey, set[asyncio.Event]] = {}
        routes.add_handler(self._on_change)

    def _on_change(self, change: ObjectChange[DomainRoute]) -> None:
        for event in self._waiting.get(change.object.key, ()):
            event.set()

    async def until(self, key: ObjectKey, question: Callable[[DomainRoute | None], bool], seconds: float) -> bool:
        """Whether the question was answered with yes within the time."""
        if question(self._routes.cache.by_key(key)):
            return True
        event = asyncio.Event()
        self._waiting.setdefault(key, set()).add(event)
        alarm = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            while not alarm.done():
                event.clear()
                if question(self._routes.cache.by_key(key)):
                    return True
                changed = asyncio.ensure_future(event.wait())
                try:
                    await asyncio.wait({changed, alarm}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
            return question(self._routes.cache.by_key(key))
        finally:
            alarm.cancel()
            self._waiting[key].discard(event)
            if not self._waiting[key]:
                del self._waiting[key]
