"""Brings images that containers name and the node lacks, once for all that wait for one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.base.lazy_import import lazy_import
from coterie.kube.agent.images.model import ImageError, StoredImage, id_problem
from coterie.kube.agent.images.signature_policy import required_rule
from coterie.kube.agent.images.sources import PullSettings, RegistryCredentials
from coterie.kube.agent.images.store import ImageStore

if TYPE_CHECKING:
    from coterie.kube.agent.images import pull as pulling
else:
    pulling = lazy_import("coterie.kube.agent.images.pull")  # with an HTTP client and archives; most nodes pull nothing

ALWAYS, NEVER = "Always", "Never"
_AT_ONCE = 3
_FIRST_PAUSE = 0.5


@dataclass(frozen=True, slots=True)
class PullOutcome:
    image: StoredImage
    seconds: float


class ImagePuller:
    def __init__(self, store: ImageStore, settings: PullSettings) -> None:
        self._store = store
        self._settings = settings
        self._running: dict[tuple[str, tuple[RegistryCredentials, ...]], asyncio.Task[PullOutcome]] = {}
        self._turn = asyncio.Semaphore(_AT_ONCE)

    def needed(self, image: str, policy: str, required: str = "") -> bool:
        """Whether it must be pulled before a container starts. Names that are none are the runtime's to refuse. `required`:
        the id that it must have; the image of the name in the registry may be another one than the one that is here."""
        if not self._settings.remote or policy == NEVER:
            return False
        try:
            found = self._store.find(image)
        except ImageError:
            return False
        if found is not None and found.builtin:
            return False
        # By digest an image is always the same one.
        changed = policy == ALWAYS or bool(id_problem(found, required)) if found is not None else False
        return found is None or (changed and "@" not in image and bool(found.manifest))

    async def pull(self, image: str, credentials: Sequence[RegistryCredentials]) -> PullOutcome:
        """Raises ImageError. Who asks for what is being pulled with the same credentials waits for that."""
        key = (image, tuple(credentials))
        running = self._running.get(key)
        if running is None:
            running = asyncio.create_task(self._pull(image, credentials), name=f"pull {image}")
            self._running[key] = running
            running.add_done_callback(lambda _: self._running.pop(key, None))
        return await asyncio.shield(running)

    async def _pull(self, image: str, credentials: Sequence[RegistryCredentials]) -> PullOutcome:
        wanted = pulling.parse(image)
        sources = self._settings.sources(wanted, credentials)
        async with self._turn:
            began = time.monotonic()
            pulled = await asyncio.to_thread(
                pulling.pull,
                self._store,
                wanted,
                sources,
                pause=lambda attempt: time.sleep(_FIRST_PAUSE * 2**attempt),
                signed_by=required_rule(self._settings.signatures, wanted.name),
            )
            return PullOutcome(pulled, time.monotonic() - began)

    async def close(self) -> None:
        """Nobody waits any more; threads that are under way end with their part, and what they have is kept."""
        for task in list(self._running.values()):
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
