"""The images of one node as its agent uses them: pulled where they lack, verified before a container starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.lazy_import import lazy_import
from coterie.kube.agent.images.environment_ids import EnvironmentIds
from coterie.kube.agent.images.model import (
    ANY_IMAGE,
    HOST,
    ID_MISMATCH,
    SIGNATURE_FAILED,
    ImageError,
    ImageRefused,
    RequiredImage,
    StoredImage,
    id_problem,
    normalise,
)
from coterie.kube.agent.images.puller import NEVER, ImagePuller, PullOutcome
from coterie.kube.agent.images.signature_policy import required_rule
from coterie.kube.agent.images.sources import PullSettings, RegistryCredentials
from coterie.kube.agent.images.store import ImageStore

if TYPE_CHECKING:
    from coterie.kube.agent.images import signatures
else:
    signatures = lazy_import("coterie.kube.agent.images.signatures")


class NodeImages:
    def __init__(self, store: ImageStore, settings: PullSettings, clock: Clock = SYSTEM_CLOCK) -> None:
        self.store = store
        self.settings = settings
        self._puller = ImagePuller(store, settings)
        self._environments = EnvironmentIds(store.environments, clock)

    async def prepare(self) -> None:
        """Ends when the first container of no host image has to wait for the image's id."""
        found = [each for each in self.store.images() if each.kind == HOST]
        await self._environments.prepare(found)
        for image in found:
            if image.builtin and image.entrypoint:
                await self._code_id(image, exact=False)

    async def _code_id(self, image: StoredImage, *, exact: bool) -> str:
        """Of the files as they are now (`exact`) or were a moment ago; what is seen of a built-in image the node reports from then on."""
        found = await self._environments.id_of(image, exact=exact)
        if image.builtin and image.entrypoint and found != image.id:
            self.store.code_ids[image.name] = found
        return found

    def needed(self, image: str, policy: str, required: RequiredImage = ANY_IMAGE) -> bool:
        """Whether it must be pulled before a container starts."""
        return self._puller.needed(image, policy, required.id) or self._lacks_signature(image, policy, required)

    def _lacks_signature(self, name: str, policy: str, required: RequiredImage) -> bool:
        """An image that came before signatures were demanded: the registry may have one."""
        if not self.settings.signatures or not self.settings.remote or policy == NEVER:
            return False
        try:
            found = self.store.find(name)
        except ImageError:
            return False
        return found is not None and bool(found.manifest and self._signature_problem(name, found, required))

    async def pull(self, image: str, credentials: Sequence[RegistryCredentials]) -> PullOutcome:
        """Raises ImageError."""
        return await self._puller.pull(image, credentials)

    async def verified(self, name: str, required: RequiredImage = ANY_IMAGE) -> StoredImage | None:
        """The image that may be started, with the id of its code as it is now; None: there is none. Raises ImageRefused."""
        try:
            image = self.store.find(name)
        except ImageError:
            return None  # no name of an image
        if image is None:
            return None
        if image.kind == HOST:
            # Built-in code changes only when Coterie is replaced, so a start need not look at all of it.
            image = replace(image, id=await self._code_id(image, exact=required != ANY_IMAGE and not image.builtin))
        problem = id_problem(image, required.id)
        if problem:
            raise ImageRefused(ID_MISMATCH, problem)
        unsigned = self._signature_problem(name, image, required)
        if unsigned:
            raise ImageRefused(SIGNATURE_FAILED, unsigned)
        if image.layers:
            self.store.mark_used((image.id,))
        return image

    def _signature_problem(self, name: str, image: StoredImage, required: RequiredImage) -> str:
        """Why the image must not start for want of a signature; empty: it may. What comes with Coterie needs none."""
        rule = required_rule(self.settings.signatures, normalise(name), image.name)
        if rule is None or image.builtin:
            return ""
        try:
            keys = signatures.load_keys(rule.keys)
        except ImageError as problem:
            return f'image "{image.name}" must be signed (image.signatures), and {problem}'
        digests = {each for each in (image.manifest, image.platform_manifest) if each}
        known = (signatures.ImageSignature.of_text(*each) for each in image.signatures)
        if any(signatures.is_valid(each, digests, keys) for each in known):
            return ""
        if required.signature and signatures.is_signed_id(required.signature, image.id, keys):
            return ""
        return f'image "{image.name}" must be signed (image.signatures), and it has no valid signature here'

    async def close(self) -> None:
        await self._environments.close()
        await self._puller.close()
