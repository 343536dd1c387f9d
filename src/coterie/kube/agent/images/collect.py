"""Which images a node removes to have room, and in which order. Pure.

    used more than `high_percent` of the disk ──> images, longest unused first, until `low_percent`
    unused for longer than `maximum_age` ───────> gone, however much room there is

An image is used by the pods of the node that have not ended, by whatever runs from its layers, and by the AppImages that the
domain serves. Only images from registries are removed: the node can get them again. What an operator loaded or added stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coterie.kube.agent.images.model import ROOTFS, ImageError, StoredImage, normalise, without_registry


@dataclass(frozen=True, slots=True)
class CollectionSettings:
    """`image.gc`."""

    high_percent: int = 85
    """Use of the disk from which on unused images are removed; 100: never."""
    low_percent: int = 80
    """Use of the disk down to which they are removed."""
    minimum_age: float = 120.0
    """Seconds for which an image that came or was used is never removed."""
    maximum_age: float = 0.0
    """Seconds after which an unused image is removed; 0: never."""
    period: float = 300.0


@dataclass(frozen=True, slots=True)
class UnusedImage:
    id: str
    names: tuple[str, ...]
    size: int
    last_used: float
    """Seconds since 1970; when it came, if it was never used."""


def collectable(
    images: Iterable[StoredImage], used_names: Iterable[str], used_ids: Iterable[str], last_used: dict[str, float]
) -> list[UnusedImage]:
    """Longest unused first. `used_names`: as pods and AppImages write them."""
    names, ids = set(_stored_names(used_names)), set(used_ids)
    groups: dict[str, list[StoredImage]] = {}
    for image in images:
        groups.setdefault(image.id, []).append(image)
    found = []
    for image_id, group in groups.items():
        kept = image_id in ids or any(image.name in names or not _is_pulled(image) for image in group)
        if not kept:
            labels = tuple(image.name for image in group)
            found.append(UnusedImage(image_id, labels, group[0].size, last_used.get(image_id, 0.0)))
    return sorted(found, key=lambda each: (each.last_used, each.names))


def _is_pulled(image: StoredImage) -> bool:
    return image.kind == ROOTFS and bool(image.manifest) and not image.builtin and not image.directory


def _stored_names(names: Iterable[str]) -> Iterable[str]:
    for name in names:
        try:
            plain = normalise(name).partition("@")[0]
        except ImageError:
            continue
        yield plain
        yield without_registry(plain)


def too_old(unused: Sequence[UnusedImage], rules: CollectionSettings, now: float) -> list[UnusedImage]:
    if not rules.maximum_age:
        return []
    limit = max(rules.maximum_age, rules.minimum_age)
    return [image for image in unused if now - image.last_used >= limit]


def bytes_to_free(total: int, free: int, rules: CollectionSettings) -> int:
    """Down to the low threshold, once the high one is reached; 0: there is room."""
    if total <= 0 or (total - free) * 100 < total * rules.high_percent or rules.high_percent >= 100:
        return 0
    return max(0, (total - free) - total * rules.low_percent // 100)


def removable(unused: Sequence[UnusedImage], rules: CollectionSettings, now: float) -> list[UnusedImage]:
    """Those that may go for room."""
    return [image for image in unused if now - image.last_used >= rules.minimum_age]
