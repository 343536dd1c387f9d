"""Unused images are removed by age and when the disk fills, and images in use never."""

from __future__ import annotations

import asyncio
import fcntl
import io
import os
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from image_kit import entry, oci, tar

from coterie.base.clock import VirtualClock
from coterie.kube.agent.agent import used_images
from coterie.kube.agent.images import archive
from coterie.kube.agent.images.collect import CollectionSettings, bytes_to_free, collectable
from coterie.kube.agent.images.collector import ImageCollector, UsedImages
from coterie.kube.agent.images.model import StoredImage
from coterie.kube.agent.images.store import ImageStore
from coterie.kube.agent.runtimes.protocol import ContainerState, PodState
from coterie.kube.api.errors import ServiceUnavailable

_DAY = 86400.0


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "images")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def add(store: ImageStore, clock: VirtualClock, name: str, age: float, *, pulled: bool = True) -> StoredImage:
    """An image that was last used `age` seconds ago."""
    layer = tar([entry(name.replace(":", "-"), name.encode())])
    (image,) = archive.load(store, io.BytesIO(oci([layer], name)))
    if pulled:
        image = store.save(replace(image, manifest="sha256:" + "a" * 64))
    when = clock.now().timestamp() - age
    os.utime(store.directory / "used" / image.id[7:], (when, when))
    return image


def names(store: ImageStore) -> set[str]:
    return {image.name for image in store.images() if not image.builtin}


def full_disk(monkeypatch: pytest.MonkeyPatch, store: ImageStore, *, empty: int, per_image: int) -> None:
    """A disk of 1000 bytes; each image takes some of what is left without images."""

    def usage(path: object) -> SimpleNamespace:
        taken = per_image * len(names(store))
        return SimpleNamespace(total=1000, used=1000 - empty + taken, free=empty - taken)

    monkeypatch.setattr(shutil, "disk_usage", usage)


async def test_old_images_go_and_used_ones_stay(store: ImageStore, clock: VirtualClock) -> None:
    for name, age in (("old:1", 40 * _DAY), ("new:1", _DAY), ("served:1", 40 * _DAY), ("pending:1", 40 * _DAY)):
        add(store, clock, name, age)
    add(store, clock, "loaded:1", 40 * _DAY, pulled=False)
    running = add(store, clock, "running:1", 40 * _DAY)
    locked = add(store, clock, "locked:1", 40 * _DAY)
    store.add_host("environment:1", ("/usr/bin/env",))
    events: list[str] = []
    used = UsedImages(frozenset(("registry.example/pending:1",)), frozenset((running.id,)))

    async def served() -> Iterable[str]:
        return ["docker.io/served:1"]

    rules = CollectionSettings(high_percent=100, maximum_age=30 * _DAY)
    collector = ImageCollector(
        store, rules, clock, lambda: used, served=served, report=lambda reason, message: events.append(message)
    )
    with (store.layer(locked.layers[0]) / "lock").open() as handle:
        fcntl.flock(handle, fcntl.LOCK_SH)
        assert await collector.collect() == 1
    assert names(store) == {"new:1", "served:1", "pending:1", "loaded:1", "running:1", "locked:1", "environment:1"}
    assert [event.partition(" ")[0] for event in events] == ["old:1"]
    assert await collector.collect() == 1  # the lock was released
    assert "locked:1" not in names(store)


async def test_nothing_goes_while_the_app_images_are_unknown(store: ImageStore, clock: VirtualClock) -> None:
    add(store, clock, "old:1", 40 * _DAY)

    async def served() -> Iterable[str]:
        raise ServiceUnavailable("no")

    collector = ImageCollector(store, CollectionSettings(maximum_age=1.0), clock, UsedImages, served=served)
    assert await collector.collect(urgent=True) == 0


async def test_a_full_disk_is_freed_from_the_longest_unused_on(
    store: ImageStore, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        add(store, clock, f"a{number}:1", 1000.0 * (number + 1))
    add(store, clock, "young:1", 10.0)
    full_disk(monkeypatch, store, empty=400, per_image=40)
    events: list[str] = []
    collector = ImageCollector(
        store, CollectionSettings(), clock, UsedImages, report=lambda reason, message: events.append(reason)
    )
    # 88 % are used; below 80 % after two images.
    assert await collector.collect() == 2
    assert names(store) == {"a0:1", "a1:1", "a2:1", "a3:1", "young:1"}
    assert await collector.collect() == 0
    assert await collector.collect(urgent=True) == 4 and names(store) == {"young:1"}
    full_disk(monkeypatch, store, empty=100, per_image=40)
    assert await collector.collect() == 0
    assert events[-1] == "FreeDiskSpaceFailed"


async def test_it_runs_by_itself(store: ImageStore, clock: VirtualClock) -> None:
    add(store, clock, "old:1", 40 * _DAY)
    collector = ImageCollector(store, CollectionSettings(100, maximum_age=_DAY, period=300.0), clock, UsedImages)
    running = asyncio.create_task(collector.run())
    for _ in range(200):
        await clock.advance(5.0)
        await asyncio.sleep(0.005)
        if not names(store):
            break
    running.cancel()
    assert names(store) == set()


@pytest.mark.parametrize(("free", "wanted"), [(160, 0), (150, 50), (149, 51), (0, 200)])
def test_thresholds(free: int, wanted: int) -> None:
    assert bytes_to_free(1000, free, CollectionSettings()) == wanted
    assert bytes_to_free(1000, free, CollectionSettings(high_percent=100)) == 0


def test_two_names_of_one_image_go_together_or_not_at_all() -> None:
    one = StoredImage("a:1", "sha256:1", "rootfs", layers=("sha256:2",), manifest="sha256:3")
    both = [one, replace(one, name="b:1")]
    (found,) = collectable(both, (), (), {})
    assert found.names == ("a:1", "b:1")
    assert collectable(both, ("b:1",), (), {}) == []
    assert collectable([one, replace(one, name="b:1", manifest="")], (), (), {}) == []


def test_which_images_pods_use() -> None:
    def pod(phase: str, *images: str) -> dict[str, object]:
        return {
            "metadata": {"name": "p", "uid": phase},
            "spec": {"containers": [{"image": images[0]}], "initContainers": [{"image": each} for each in images[1:]]},
            "status": {"phase": phase},
        }

    run = ContainerState("main", 0, "d:1", "sha256:d", 1, 1.0)
    ended = replace(run, image="e:1", image_id="sha256:e", finished_at=2.0)
    state = PodState("u", "n", "p", (run, ended))
    found = used_images([pod("Pending", "a:1", "b:1"), pod("Succeeded", "c:1")], [state])
    assert found == UsedImages(frozenset(("a:1", "b:1", "d:1")), frozenset(("sha256:d",)))


def test_nothing_is_collected_while_an_image_is_being_installed(store: ImageStore, clock: VirtualClock) -> None:
    image = add(store, clock, "a:1", 0.0)
    with store.installing():
        store.remove("a:1")
        assert store.layer(image.layers[0]).is_dir()
    store.collect()
    assert not store.layer(image.layers[0]).exists() and store.config(image.id) is None


def test_downloads_that_nobody_continues_go(store: ImageStore) -> None:
    folder = store.directory / "downloads"
    folder.mkdir(parents=True)
    for name, when in (("old", 1000.0), ("new", 3000.0)):
        (folder / name).write_text("x")
        os.utime(folder / name, (when, when))
    store.collect(downloads_before=2000.0)
    assert [path.name for path in folder.iterdir()] == ["new"]
