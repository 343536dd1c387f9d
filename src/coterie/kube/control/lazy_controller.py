"""Parts that sleep until there is something for them to do.

A control plane has a controller for each of many kinds, and most control planes use few of them. A dormant part is
made, and what it is made of loaded, when the first object of its kind is seen; from then on it stays awake. For the
manager it is an ordinary Runnable: when such objects exist at start it is ready when the part is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from coterie.base.lean_event import LeanEvent
from coterie.base.tasks import TaskOwner
from coterie.kube.client.informer import Informer, ObjectChange
from coterie.kube.control.manager import Runnable, Stoppable


class LazyController:
    """`make` gives the parts; it is called once, when one of the informers has seen an object."""

    def __init__(self, name: str, wakers: Sequence[Informer[Any]], make: Callable[[], Sequence[Runnable]]) -> None:
        self.name = name
        self.ready: asyncio.Event = LeanEvent()
        self._wakers = tuple(wakers)
        self._make = make
        self._parts: Sequence[Runnable] = ()
        self._called = LeanEvent()
        self._stopped = LeanEvent()

    @property
    def started(self) -> bool:
        return bool(self._parts)

    def stop(self) -> None:
        self._stopped.set()
        self._called.set()
        for part in self._parts:
            if isinstance(part, Stoppable):
                part.stop()

    async def run(self) -> None:
        removers = [waker.add_handler(self._start) for waker in self._wakers]
        try:
            for waker in self._wakers:
                await waker.ready.wait()
            if not any(len(waker.cache) for waker in self._wakers):
                self.ready.set()
                await self._called.wait()
        finally:
            for remove in removers:
                remove()
        if self._stopped.is_set():
            return
        self._parts = self._make()
        async with TaskOwner(self.name) as owner:
            tasks = {owner.start(part.name, part.run()): part for part in self._parts}
            owner.start("readiness", self._announce())
            stopped = owner.start("stopping", self._stopped.wait())
            # The first that ends was told to, or failed; the owner raises what it failed with.
            await asyncio.wait((*tasks, stopped), return_when=asyncio.FIRST_COMPLETED)
            ending = [task for task, part in tasks.items() if isinstance(part, Stoppable)]
            if self._stopped.is_set() and ending:
                await asyncio.wait(ending)  # the others are cancelled by the owner

    async def _announce(self) -> None:
        for part in self._parts:
            await part.ready.wait()
        self.ready.set()

    def _start(self, _: ObjectChange[Any]) -> None:
        self._called.set()
