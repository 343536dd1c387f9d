"""Layers that several domains of one machine share: stored once, trusted by digest alone, and nobody's key to another's images."""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from image_kit import config, entry, oci, sha, tar
from registry_kit import Content, Registry

from coterie.kube.agent.images import archive
from coterie.kube.agent.images import pull as pulling
from coterie.kube.agent.images.model import ImageError, StoredImage
from coterie.kube.agent.images.references import RegistryEndpoint
from coterie.kube.agent.images.store import ImageStore

BASE = tar([entry("etc/base", b"base")])
SECRET = tar([entry("etc/secret", b"of alice")])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "shared"


@pytest.fixture
def alice(tmp_path: Path, place: Path) -> ImageStore:
    return joined(tmp_path / "alice", place)


@pytest.fixture
def bob(tmp_path: Path, place: Path) -> ImageStore:
    return joined(tmp_path / "bob", place)


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry(Content()).serving() as running:
        yield running


def joined(directory: Path, place: Path) -> ImageStore:
    store = ImageStore(directory)
    store.share(place)
    return ImageStore(directory)  # whoever opens it later finds the setting


def load(store: ImageStore, data: bytes) -> StoredImage:
    (image,) = archive.load(store, io.BytesIO(data))
    return image


def layers(directory: Path) -> set[str]:
    return {path.name for path in (directory / "layers").iterdir()}


def forged(diff_id: str, content: bytes) -> bytes:
    """A docker archive whose configuration names a layer that is not the one in it."""
    about = json.loads(config([content]))
    about["rootfs"]["diff_ids"] = [diff_id]
    text = json.dumps(about).encode()
    manifest = [{"Config": "c.json", "RepoTags": ["team/thief:1"], "Layers": ["l.tar"]}]
    return tar([entry("c.json", text), entry("manifest.json", json.dumps(manifest).encode()), entry("l.tar", content)])


def test_a_layer_is_stored_once_and_names_are_each_domains_own(alice: ImageStore, bob: ImageStore, place: Path) -> None:
    first, second = load(alice, oci([BASE, SECRET], "team/one:1")), load(bob, oci([BASE], "team/two:1"))
    assert layers(place) == {sha(BASE)[7:], sha(SECRET)[7:]}
    assert (bob.layer_paths(second)[0] / "etc/base").samefile(alice.layer_paths(first)[-1] / "etc/base")
    assert bob.find("team/one:1") is None and alice.find("team/two:1") is None
    assert bob.config(first.id) is None
    assert place.stat().st_mode & 0o777 == 0o700


def test_a_digest_does_not_open_another_domains_layer(alice: ImageStore, bob: ImageStore, registry: Registry) -> None:
    load(alice, oci([SECRET], "team/private:1"))
    with pytest.raises(ImageError, match="is not what its digest says"):
        load(bob, forged(sha(SECRET), BASE))
    # The same through a registry of the thief: without the content there is no access.
    about = json.loads(config([BASE]))
    about["rootfs"]["diff_ids"] = [sha(SECRET)]
    text, packed = json.dumps(about).encode(), gzip.compress(BASE)
    registry.content.blobs |= {sha(text): text, sha(packed): packed}
    parts = {
        "config": {"digest": sha(text), "size": len(text)},
        "layers": [{"digest": sha(packed), "size": len(packed)}],
    }
    registry.content.manifest({"schemaVersion": 2, **parts}, "1")
    with pytest.raises(ImageError, match="is not what its digest says"):
        pulling.pull(bob, pulling.parse(f"{registry.host}/team/app:1"), [RegistryEndpoint.of(registry.host)])
    assert layers(bob.directory) == set()
    # Whoever has the content may use what is there.
    image = load(bob, oci([SECRET], "team/same:1"))
    assert (bob.layer_paths(image)[0] / "etc/secret").read_text() == "of alice"


def test_a_forged_layer_does_not_come_in(alice: ImageStore, bob: ImageStore, place: Path) -> None:
    with pytest.raises(ImageError, match="is not what its digest says"):
        load(alice, forged(sha(SECRET), BASE))
    assert layers(place) == set()
    image = load(bob, oci([SECRET], "team/app:1"))
    assert (bob.layer_paths(image)[0] / "etc/secret").read_text() == "of alice"


def test_a_layer_goes_with_its_last_user(alice: ImageStore, bob: ImageStore, place: Path, tmp_path: Path) -> None:
    load(alice, oci([BASE, SECRET], "team/one:1"))
    load(bob, oci([BASE], "team/two:1"))
    alice.remove("team/one:1")
    assert layers(place) == {sha(BASE)[7:]} and layers(alice.directory) == set()
    # A domain that is gone uses nothing any more.
    os.rename(bob.directory, tmp_path / "elsewhere")
    alice.collect()
    assert layers(place) == set() and len(list((place / "stores").iterdir())) == 1


def test_a_store_that_lost_the_shared_layer_gets_it_again(alice: ImageStore, place: Path) -> None:
    image = load(alice, oci([BASE]))
    os.rename(place / "layers" / sha(BASE)[7:], place / "layers" / ".gone")
    assert load(alice, oci([BASE])) == image
    assert (alice.layer_paths(image)[0] / "etc/base").read_text() == "base"
    # Also when it shares no longer.
    os.rename(place / "layers" / sha(BASE)[7:], place / "layers" / ".gone-too")
    alice.share(None)
    assert load(alice, oci([BASE])) == image and not alice.layer(sha(BASE)).is_symlink()


def test_layers_that_came_before_are_shared_with_the_next_image(tmp_path: Path, place: Path, bob: ImageStore) -> None:
    store = ImageStore(tmp_path / "alice")
    image = load(store, oci([BASE], "team/one:1"))
    assert store.overlay_layers(image) == (str(store.layers), [f"{sha(BASE)[7:]}/fs"])
    store.share(place)
    both = load(store, oci([BASE, SECRET], "team/two:1"))
    names = [f"{sha(SECRET)[7:]}/fs", f"{sha(BASE)[7:]}/fs"]
    assert store.overlay_layers(both) == (str(place / "layers"), names)
    assert (store.layer_paths(image)[0] / "etc/base").read_text() == "base"
    # What is mixed cannot be one overlay.
    store.share(None)
    mixed = load(store, oci([BASE, tar([entry("new", b"1")])], "team/three:1"))
    assert store.overlay_layers(mixed) is None


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o1777])
def test_a_directory_that_others_can_open_is_refused_and_stays_as_it_is(tmp_path: Path, place: Path, mode: int) -> None:
    place.mkdir()
    place.chmod(mode)
    store = ImageStore(tmp_path / "alice")
    with pytest.raises(ImageError, match="closed to others"):
        store.share(place)
    assert store.shared is None and place.stat().st_mode & 0o7777 == mode


def test_links_and_other_users_directories_are_refused(tmp_path: Path, place: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    place.symlink_to(tmp_path / "real")
    with pytest.raises(ImageError, match="closed to others"):
        ImageStore(tmp_path / "alice").share(place)
    if os.geteuid() == 0:
        other = tmp_path / "other"
        other.mkdir(mode=0o700)
        os.chown(other, 65534, 65534)
        with pytest.raises(ImageError, match="closed to others"):
            ImageStore(tmp_path / "alice").share(other)
