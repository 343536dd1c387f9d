"""Removes images that nobody uses, by age and when the disk fills. What may go is decided in `collect.py`."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.kube.agent.images.collect import (
    CollectionSettings,
    UnusedImage,
    bytes_to_free,
    collectable,
    removable,
    too_old,
)
from coterie.kube.agent.images.model import ImageError
from coterie.kube.agent.images.store import ImageStore
from coterie.kube.api.errors import ApiError
from coterie.kube.client.transport import TransportError

log = logger("agent.images")
_DOWNLOADS_SECONDS = 86400.0


@dataclass(frozen=True, slots=True)
class UsedImages:
    """By pods of the node that have not ended."""

    names: frozenset[str] = frozenset()
    ids: frozenset[str] = frozenset()


async def _none() -> Iterable[str]:
    return ()


class ImageCollector:
    """A Runnable."""

    name = "image-garbage"

    def __init__(
        self,
        store: ImageStore,
        rules: CollectionSettings,
        clock: Clock,
        used: Callable[[], UsedImages],
        *,
        served: Callable[[], Awaitable[Iterable[str]]] = _none,
        report: Callable[[str, str], None] = lambda reason, message: None,
    ) -> None:
        """`served`: names of images that the domain's AppImages have; may raise ApiError and TransportError, then nothing is
        removed. `report`: an event of the node, reason and message."""
        self.ready = asyncio.Event()
        self._store = store
        self._rules = rules
        self._clock = clock
        self._used = used
        self._served = served
        self._report = report
        self._turn = asyncio.Lock()

    async def run(self) -> None:
        self.ready.set()
        while True:
            await self._clock.sleep(self._rules.period)
            try:
                await self.collect()
            except OSError as error:
                log.warning("Unused images cannot be removed", error=error)

    async def collect(self, *, urgent: bool = False) -> int:
        """One round; how many images went. `urgent`: the disk is short, so unused images go whatever the thresholds say."""
        async with self._turn:
            images = self._store.images()
            used = self._used()
            self._store.mark_used({image.id for image in images if image.layers and image.id in used.ids})
            try:
                names = {*used.names, *await self._served()}
            except (ApiError, TransportError) as problem:
                log.warning("Images are not collected: the AppImages cannot be read", error=problem)
                return 0
            await asyncio.to_thread(self._store.collect, downloads_before=self._now() - _DOWNLOADS_SECONDS)
            unused = collectable(images, names, used.ids, self._store.last_used([image.id for image in images]))
            now = self._now()
            gone = [
                image for image in too_old(unused, self._rules, now) if await self._remove(image, "unused for long")
            ]
            left = [image for image in removable(unused, self._rules, now) if image not in gone]
            gone += await self._free(left, urgent=urgent)
            return len(gone)

    async def _free(self, unused: list[UnusedImage], *, urgent: bool) -> list[UnusedImage]:
        disk = shutil.disk_usage(self._store.disk)
        wanted = disk.total if urgent else bytes_to_free(disk.total, disk.free, self._rules)
        target = disk.free + wanted
        gone = []
        for image in unused:
            if not wanted or shutil.disk_usage(self._store.disk).free >= target:
                break
            if await self._remove(image, "the disk is short"):
                gone.append(image)
        if wanted and not urgent and shutil.disk_usage(self._store.disk).free < target:
            message = f"wanted to free {wanted} bytes for images, but unused images have no more"
            log.warning("Removing unused images did not free enough", wanted=wanted, removed=len(gone))
            self._report("FreeDiskSpaceFailed", message)
        return gone

    async def _remove(self, image: UnusedImage, why: str) -> bool:
        if any(self._store.is_locked(found) for found in self._store.images() if found.id == image.id):
            return False
        try:
            for name in image.names:
                await asyncio.to_thread(self._store.remove, name)
        except (ImageError, OSError) as problem:
            log.warning("An unused image cannot be removed", image=image.names[0], error=problem)
            return False
        log.info("Removed an unused image", image=image.names[0], size=image.size, why=why)
        self._report("ImageRemoved", f"{', '.join(image.names)} ({image.size} bytes): {why}")
        return True

    def _now(self) -> float:
        return self._clock.now().timestamp()
