"""Saved images are read by skopeo and by ourselves, and keep their ids."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from image_kit import docker, entry, folder, link, oci, tar

from coterie.kube.agent.images import archive, export
from coterie.kube.agent.images.model import ImageError, StoredImage
from coterie.kube.agent.images.store import HOST_IMAGE, ImageStore
from coterie.kube.agent.images.tar_record import RECORD

_SKOPEO = shutil.which("skopeo")
LAYERS = [
    tar(
        [
            folder("etc"),
            entry("etc/passwd", b"root:x:0:0::/:/bin/sh\n" * 1000, uid=0, mode=0o644),
            entry("bin/busybox", os.urandom(70_000), mode=0o4755, uid=7, gid=8, mtime=1234567890.25),
            link("bin/sh", "busybox"),
            link("bin/ls", "bin/busybox", tarfile.LNKTYPE),
            entry("empty"),
            entry("a/" + "very-long-name/" * 20 + "file", b"x"),
            entry("pipe", type=tarfile.FIFOTYPE),
            entry("dev/null", type=tarfile.CHRTYPE),
            entry("gone", b"in the lower layer"),
            folder("dir"),
            entry("dir/hidden", b"1"),
        ]
    ),
    tar([entry(".wh.gone"), entry("dir/.wh..wh..opq"), entry("dir/new", b"2")]) + bytes(4096),
]


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "images")


def load(store: ImageStore, data: bytes) -> StoredImage:
    (image,) = archive.load(store, io.BytesIO(data))
    return image


def saved(store: ImageStore, image: StoredImage, form: str) -> tuple[bytes, export.SavedImage]:
    out = io.BytesIO()
    (found,) = export.save(store, [image], out, form)
    return out.getvalue(), found


@pytest.mark.parametrize("make", [oci, docker])
@pytest.mark.parametrize("form", [export.OCI, export.DOCKER])
def test_an_image_keeps_its_id(store: ImageStore, tmp_path: Path, make: object, form: str) -> None:
    image = load(store, make(LAYERS, Entrypoint=["/bin/sh"], Labels={"a": "b"}))  # type: ignore[operator]
    data, found = saved(store, image, form)
    assert found.exact and found.id == image.id
    other = ImageStore(tmp_path / "other")
    again = load(other, data)
    assert (again.id, again.layers, again.entrypoint) == (image.id, image.layers, ("/bin/sh",))
    assert other.config(image.id) == store.config(image.id)
    # And once more, from what was loaded: the archive is the same.
    assert saved(other, again, form)[0] == data


def test_layers_are_the_same_bytes(store: ImageStore) -> None:
    data, _ = saved(store, load(store, oci(LAYERS)), export.OCI)
    with tarfile.open(fileobj=io.BytesIO(data)) as read:
        blobs = [read.extractfile(member).read() for member in read if member.name.startswith("blobs/")]  # type: ignore[union-attr]
    unpacked = [gzip.decompress(blob) for blob in blobs if blob.startswith(b"\x1f\x8b")]
    assert unpacked == LAYERS


def test_without_a_record_it_is_packed_anew_with_the_same_files(store: ImageStore, tmp_path: Path) -> None:
    image = load(store, oci(LAYERS))
    for digest in image.layers:
        (store.layer(digest) / RECORD).unlink()
    data, found = saved(store, image, export.OCI)
    assert not found.exact
    other = ImageStore(tmp_path / "other")
    again = load(other, data)
    assert again.id == found.id != image.id
    for before, after in zip(store.layer_paths(image), other.layer_paths(again), strict=True):
        assert describe(before) == describe(after)


def describe(top: Path) -> list[tuple[object, ...]]:
    found = []
    for path in sorted(top.rglob("*")):
        info = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found.append((path.relative_to(top), info.st_mode, info.st_uid, info.st_nlink, info.st_rdev, content))
    return found


def test_a_layer_that_was_changed_is_not_saved_as_what_it_was(store: ImageStore) -> None:
    image = load(store, oci(LAYERS))
    (store.layer_paths(image)[-1] / "etc/passwd").write_bytes(b"forged" * 4000)
    _, found = saved(store, image, export.OCI)
    assert not found.exact and found.id != image.id


def test_a_directory_becomes_an_image(store: ImageStore, tmp_path: Path) -> None:
    top = tmp_path / "rootfs"
    (top / "bin").mkdir(parents=True)
    (top / "bin" / "run").write_text("#!/bin/sh\n")
    image = store.add_rootfs("team/root:1", top, command=("/bin/run",), env=(("A", "1"),))
    data, found = saved(store, image, export.DOCKER)
    again = load(ImageStore(tmp_path / "other"), data)
    assert (again.name, again.id, again.entrypoint, again.env) == (
        "team/root:1",
        found.id,
        ("/bin/run",),
        (("A", "1"),),
    )


def test_host_environments_cannot_be_saved(store: ImageStore) -> None:
    with pytest.raises(ImageError, match="is a host environment"):
        saved(store, store.resolve(HOST_IMAGE), export.OCI)


def skopeo(*words: str) -> str:
    done = subprocess.run([_SKOPEO or "", *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not _SKOPEO, reason="skopeo is not installed (scripts/get-runtimes)")
@pytest.mark.parametrize("form", [export.OCI, export.DOCKER])
def test_skopeo_reads_and_copies_it(store: ImageStore, tmp_path: Path, form: str) -> None:
    image = load(store, oci(LAYERS, Entrypoint=["/bin/sh"]))
    data, _ = saved(store, image, form)
    (tmp_path / "saved.tar").write_bytes(data)
    source = f"{form}-archive:{tmp_path}/saved.tar"
    told = json.loads(skopeo("inspect", "--config", source))
    assert told["config"]["Entrypoint"] == ["/bin/sh"] and told["rootfs"]["diff_ids"] == list(image.layers)
    for target in (export.OCI, export.DOCKER):
        copy = tmp_path / f"{target}.tar"
        skopeo("--insecure-policy", "copy", source, f"{target}-archive:{copy}:team/copy:1")
        with copy.open("rb") as file:
            (again,) = archive.load(ImageStore(tmp_path / target), file, "team/copy:1")
        assert again.layers == image.layers
        assert again.id == image.id or form == export.DOCKER  # skopeo writes configurations anew between formats
