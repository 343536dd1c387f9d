"""Ids of host environments for an agent: a container's start does not wait until all files were looked at, unless it is the first one
or its image is required to have a certain id."""

from __future__ import annotations

import asyncio
from pathlib import Path

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.kube.agent.images.environment import environment_id, environment_stamp
from coterie.kube.agent.images.model import StoredImage

log = logger("agent.images")
_FRESH_SECONDS = 10.0
"""For so long the files are not looked at again for containers that require no id."""


class _Known:
    def __init__(self, image: StoredImage) -> None:
        self.image = image
        self.id = ""
        self.stamp = ""
        self.seen_at = float("-inf")
        self.refreshing: asyncio.Task[str] | None = None


class EnvironmentIds:
    def __init__(self, cache: Path, clock: Clock) -> None:
        self._cache = cache
        self._clock = clock
        self._known: dict[str, _Known] = {}

    async def id_of(self, image: StoredImage, *, exact: bool) -> str:
        """As the files are now (`exact`), or as they were when they were last looked at; the first time it is waited for.
        Raises OSError when `exact`."""
        known = self._known.get(image.name)
        if known is None or known.image != image:
            known = self._known[image.name] = _Known(image)
        if exact:
            return await self._refresh(known)
        if not known.id and known.seen_at == float("-inf"):
            try:
                return await self._refresh(known)
            except OSError as problem:
                self._failed(known, problem)
        if self._clock.monotonic() - known.seen_at >= _FRESH_SECONDS and known.refreshing is None:
            known.refreshing = asyncio.create_task(self._refresh(known), name=f"environment {image.name}")
            known.refreshing.add_done_callback(lambda task: self._refreshed(known, task))
        return known.id or image.id

    def _refreshed(self, known: _Known, task: asyncio.Task[str]) -> None:
        known.refreshing = None
        if not task.cancelled() and (problem := task.exception()) is not None:
            self._failed(known, problem)

    def _failed(self, known: _Known, problem: BaseException) -> None:
        known.seen_at = self._clock.monotonic()
        log.warning("The files of a host environment cannot be read", image=known.image.name, error=problem)

    async def _refresh(self, known: _Known) -> str:
        stamp = await asyncio.to_thread(environment_stamp, known.image)
        if stamp != known.stamp or not known.id:
            found = await asyncio.to_thread(environment_id, known.image, self._cache)
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
