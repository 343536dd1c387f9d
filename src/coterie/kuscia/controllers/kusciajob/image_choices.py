"""What tasks may mean by the engines that they write, worked out once until an AppImage changes: jobs come by the thousand, AppImages seldom."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coterie.kube.client.informer import Informer, ObjectChange
from coterie.kuscia.api.engine_versions import EngineVersion, images_named, versions_named
from coterie.kuscia.api.types.job import AppImage

_MOST = 100
"""Answers that are kept: what jobs write is their submitters' choice."""

_Pins = tuple[tuple[str, str], ...]


class ImageChoices:
    def __init__(self, images: Informer[AppImage]) -> None:
        self._cache = images.cache
        self._images: dict[tuple[tuple[str, ...], _Pins], dict[str, AppImage]] = {}
        self._versions: dict[tuple[str, _Pins], tuple[EngineVersion, ...]] = {}
        images.add_handler(self._changed)

    def images(self, references: Iterable[str], pinned: Mapping[str, str]) -> dict[str, AppImage]:
        """As `images_named`, of all AppImages; the caller may change the answer."""
        key = (tuple(sorted(references)), _key(pinned))
        found = self._images.get(key)
        if found is None:
            self._make_room()
            known = {image.metadata.name: image for image in self._cache.list()}
            found = self._images[key] = images_named(key[0], known, pinned)
        return dict(found)

    def versions(self, text: str, pinned: Mapping[str, str]) -> tuple[EngineVersion, ...]:
        """As `versions_named`, of all AppImages."""
        key = (text, _key(pinned))
        found = self._versions.get(key)
        if found is None:
            self._make_room()
            found = self._versions[key] = versions_named(text, self._cache.list(), pinned)
        return found

    def _changed(self, change: ObjectChange[AppImage]) -> None:
        self._forget()

    def _make_room(self) -> None:
        if len(self._images) + len(self._versions) >= _MOST:
            self._forget()

    def _forget(self) -> None:
        self._images.clear()
        self._versions.clear()


def _key(pinned: Mapping[str, str]) -> _Pins:
    return tuple(sorted(pinned.items()))
