"""Ids of host environments for an agent: a container's start does not wait until all files were looked at, unless its image is required to
have a certain id, or nobody looked at them so far. They are looked at when the agent starts, with rests, so that this is rare.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.kube.agent.images.environment import at_once, environment_id, environment_stamp
from coterie.kube.agent.images.model import StoredImage

log = logger("agent.images")
_FRESH_SECONDS = 10.0
"""For so long the files are not looked at again for containers that require no id."""
_LATER_SECONDS = 2.0
"""After the start of such a container, which has the machine first: thousands of files are looked at."""


_PREPARE_SECONDS = 1.0
"""After the agent's start, which has the machine first."""
_WORK_SECONDS, _REST_SECONDS = 0.005, 0.015
"""A thread with a low priority would keep the interpreter's lock while others have the CPU; one that rests does not."""


class PreparationStopped(Exception):
    """Nobody waits for the id any more."""


class Rests:
    """For a thread that works in the background: a quarter of the time, until somebody waits for it."""

    def __init__(self) -> None:
        self._awake = threading.Event()
        self._stopped = False
        self._since = time.monotonic()

    def __call__(self) -> None:
        """Raises PreparationStopped."""
        if not self._awake.is_set() and time.monotonic() - self._since >= _WORK_SECONDS:
            self._awake.wait(_REST_SECONDS)
            self._since = time.monotonic()
        if self._stopped:
            raise PreparationStopped

    def hurry(self) -> None:
        self._awake.set()

    def stop(self) -> None:
        self._stopped = True
        self._awake.set()


class _Known:
    def __init__(self, image: StoredImage) -> None:
        self.image = image
        self.id = ""
        self.stamp = ""
        self.seen_at = float("-inf")
        self.refreshing: asyncio.Task[str] | None = None
        self.first = asyncio.Lock()
        """While it is looked at for the first time."""
        self.rests: Rests | None = None
        """While it is prepared."""

    @property
    def unseen(self) -> bool:
        return not self.id and self.seen_at == float("-inf")


class EnvironmentIds:
    def __init__(self, cache: Path, clock: Clock) -> None:
        self._cache = cache
        self._clock = clock
        self._known: dict[str, _Known] = {}

    async def id_of(self, image: StoredImage, *, exact: bool) -> str:
        """As the files are now (`exact`), or as they were when they were last looked at; the first time it is waited for.
        Raises OSError when `exact`."""
        known = self._of(image)
        if exact:
            return await self._refresh(known)
        if known.unseen:
            if known.rests is not None:
                known.rests.hurry()
            async with known.first:
                await self._look_first(known)
        if self._clock.monotonic() - known.seen_at >= _FRESH_SECONDS and known.refreshing is None:
            known.refreshing = asyncio.create_task(self._refresh_later(known), name=f"environment {image.name}")
            known.refreshing.add_done_callback(lambda task: self._refreshed(known, task))
        return known.id or image.id

    async def prepare(self, images: Iterable[StoredImage]) -> None:
        """Look at the files of these before a container needs one, with rests."""
        await self._clock.sleep(_PREPARE_SECONDS)
        for image in images:
            known = self._of(image)
            async with known.first:
                known.rests = Rests()
                try:
                    await self._look_first(known, known.rests)
                finally:
                    known.rests.stop()  # the thread does not see that we were cancelled
                    known.rests = None

    def _of(self, image: StoredImage) -> _Known:
        known = self._known.get(image.name)
        if known is None or known.image != image:
            known = self._known[image.name] = _Known(image)
        return known

    async def _look_first(self, known: _Known, rest: Callable[[], None] = at_once) -> None:
        if known.unseen:
            try:
                await self._refresh(known, rest)
            except OSError as problem:
                self._failed(known, problem)

    def _refreshed(self, known: _Known, task: asyncio.Task[str]) -> None:
        known.refreshing = None
        if not task.cancelled() and (problem := task.exception()) is not None:
            self._failed(known, problem)

    def _failed(self, known: _Known, problem: BaseException) -> None:
        known.seen_at = self._clock.monotonic()
        log.warning("The files of a host environment cannot be read", image=known.image.name, error=problem)

    async def _refresh_later(self, known: _Known) -> str:
        await self._clock.sleep(_LATER_SECONDS)
        return await self._refresh(known)

    async def _refresh(self, known: _Known, rest: Callable[[], None] = at_once) -> str:
        stamp = await asyncio.to_thread(environment_stamp, known.image, rest)
        if stamp != known.stamp or not known.id:
            found = await asyncio.to_thread(environment_id, known.image, self._cache, rest)
            if known.id and found != known.id:
                log.info("The code of a host environment changed", image=known.image.name, id=found)
            known.id, known.stamp = found, stamp
        known.seen_at = self._clock.monotonic()
        return known.id

    async def close(self) -> None:
        for known in self._known.values():
            if known.refreshing is not None:
                known.refreshing.cancel()
                await asyncio.gather(known.refreshing, return_exceptions=True)
