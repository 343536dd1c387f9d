"""The images of one node as its agent uses them: pulled where they lack, verified before a container starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.kube.agent.images.environment_ids import EnvironmentIds
from coterie.kube.agent.images.model import (
    ANY_IMAGE,
    HOST,
    ID_MISMATCH,
    ImageRefused,
    RequiredImage,
    StoredImage,
    id_problem,
)
from coterie.kube.agent.images.puller import ImagePuller, PullOutcome
from coterie.kube.agent.images.sources import PullSettings, RegistryCredentials
from coterie.kube.agent.images.store import ImageStore


class NodeImages:
    def __init__(self, store: ImageStore, settings: PullSettings, clock: Clock = SYSTEM_CLOCK) -> None:
        self.store = store
        self.settings = settings
        self._puller = ImagePuller(store, settings)
        self._environments = EnvironmentIds(store.environments, clock)

    def needed(self, image: str, policy: str, required: RequiredImage = ANY_IMAGE) -> bool:
        """Whether it must be pulled before a container starts."""
        return self._puller.needed(image, policy, required.id)

    async def pull(self, image: str, credentials: Sequence[RegistryCredentials]) -> PullOutcome:
        """Raises ImageError."""
        return await self._puller.pull(image, credentials)

    async def verified(self, name: str, required: RequiredImage = ANY_IMAGE) -> StoredImage | None:
        """The image that may be started, with the id of its code as it is now; None: there is none. Raises ImageRefused, and
        ImageError for a name that is none."""
        image = self.store.find(name)
        if image is None:
            return None
        if image.kind == HOST:
            image = replace(image, id=await self._environments.id_of(image, exact=bool(required.id)))
        problem = id_problem(image, required.id)
        if problem:
            raise ImageRefused(ID_MISMATCH, problem)
        return image

    async def close(self) -> None:
        await self._environments.close()
        await self._puller.close()
