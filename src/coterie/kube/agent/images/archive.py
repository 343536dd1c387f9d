"""Images from files: the tar of an OCI layout (`skopeo`, `buildah`, new `docker save`) or of old `docker save`.

Everything in it is checked against the digest by which it is named before it is used; layers are unpacked aside and put in
place whole, so an archive that is cut off or forged leaves nothing behind.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import os
import platform
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from coterie.base.files import private_directory
from coterie.kube.agent.images.model import ROOTFS, ImageError, StoredImage, normalise
from coterie.kube.agent.images.store import ImageStore, remove_tree
from coterie.kube.agent.images.unpack import unpack

_MOST_JSON = 16 << 20
_CHUNK = 1 << 20
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_OPENERS: tuple[tuple[bytes, Callable[[IO[bytes]], Any]], ...] = (
    (b"\x1f\x8b", gzip.open),
    (b"BZh", bz2.open),
    (b"\xfd7zXZ\x00", lzma.open),
)
_ZSTD = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True, slots=True)
class _Found:
    """One image of an archive: its names, its configuration, and where its layers are."""

    names: tuple[str, ...]
    config: bytes
    layers: tuple[str, ...]
    """Members of the archive, lowest first."""


def load(store: ImageStore, file: IO[bytes], name: str = "") -> list[StoredImage]:
    """Add all images of an archive; `name` is for one that bears none. Raises ImageError."""
    try:
        with tarfile.open(fileobj=file, mode="r:*") as archive:
            members = {_clean(member.name): member for member in archive if member.isreg()}
            found = _find(archive, members)
            return [image for entry in found for image in _add(store, archive, members, entry, name)]
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as problem:
        raise ImageError(f"the archive cannot be read: {problem}") from problem
    except (KeyError, TypeError, ValueError) as problem:
        raise ImageError(f"the archive is not an image of OCI or Docker: {problem}") from problem


def _clean(name: str) -> str:
    return name.removeprefix("./")


def _find(archive: tarfile.TarFile, members: dict[str, tarfile.TarInfo]) -> list[_Found]:
    repo_tags: dict[str, tuple[str, ...]] = {}
    docker = json.loads(_small(archive, members, "manifest.json")) if "manifest.json" in members else []
    for entry in docker:
        repo_tags[Path(entry["Config"]).name.removesuffix(".json")] = tuple(entry.get("RepoTags") or ())
    if "index.json" in members:
        index = json.loads(_small(archive, members, "index.json"))
        return [_manifest(archive, members, entry, repo_tags) for entry in _platform_manifests(archive, members, index)]
    if docker:
        return [_docker(archive, members, entry) for entry in docker]
    raise ImageError("the archive has neither index.json (OCI) nor manifest.json (Docker)")


def _platform_manifests(
    archive: tarfile.TarFile, members: dict[str, tarfile.TarInfo], index: dict[str, Any]
) -> list[dict[str, Any]]:
    """The manifests for this machine; an index inside an index is one image for several machines."""
    wanted = _ARCHITECTURES.get(platform.machine(), platform.machine())
    found = []
    for entry in index["manifests"]:
        annotations = entry.get("annotations") or {}
        if "index" in entry["mediaType"] or "manifest.list" in entry["mediaType"]:
            inner = json.loads(_blob(archive, members, entry["digest"]))
            named = {"manifests": [{**below, "annotations": annotations} for below in inner["manifests"]]}
            found += _platform_manifests(archive, members, named)
        elif (entry.get("platform") or {}).get("architecture", wanted) == wanted:
            found.append(entry)
    if not found:
        raise ImageError(f"the archive has no image for this machine ({wanted})")
    return found


def _manifest(
    archive: tarfile.TarFile,
    members: dict[str, tarfile.TarInfo],
    entry: dict[str, Any],
    repo_tags: dict[str, tuple[str, ...]],
) -> _Found:
    manifest = json.loads(_blob(archive, members, entry["digest"]))
    annotations = entry.get("annotations") or {}
    full = annotations.get("io.containerd.image.name") or annotations.get("org.opencontainers.image.ref.name", "")
    digest = manifest["config"]["digest"]
    # The reference annotation may be a bare tag, which names nothing.
    names = (full,) if "/" in full or ":" in full else repo_tags.get(digest.removeprefix("sha256:"), ())
    layers = []
    for layer in manifest["layers"]:
        path = _blob_path(layer["digest"])
        _verify(archive, members, path, layer["digest"])
        layers.append(path)
    return _Found(names, _blob(archive, members, digest), tuple(layers))


def _docker(archive: tarfile.TarFile, members: dict[str, tarfile.TarInfo], entry: dict[str, Any]) -> _Found:
    config = _small(archive, members, entry["Config"])
    named = Path(entry["Config"]).name.removesuffix(".json")
    if len(named) == 64 and hashlib.sha256(config).hexdigest() != named:
        raise ImageError("the image's configuration is not what its name says: the archive is damaged")
    return _Found(tuple(entry.get("RepoTags") or ()), config, tuple(_clean(name) for name in entry["Layers"]))


def _add(
    store: ImageStore, archive: tarfile.TarFile, members: dict[str, tarfile.TarInfo], found: _Found, name: str
) -> list[StoredImage]:
    config = json.loads(found.config)
    wanted = _ARCHITECTURES.get(platform.machine(), platform.machine())
    if config.get("architecture", wanted) != wanted:
        raise ImageError(f"the image is for {config['architecture']}, this machine is {wanted}")
    digests = tuple(config["rootfs"]["diff_ids"])
    if len(digests) != len(found.layers):
        raise ImageError("the image's configuration names other layers than the archive has")
    names = [name] if name else list(found.names)
    if not names:
        raise ImageError("the image in the archive has no name; give it one with --name")
    normal = [normalise(each) for each in names]
    size = sum(
        _layer(store, archive, members, path, digest) for path, digest in zip(found.layers, digests, strict=True)
    )
    settings = config.get("config") or {}
    identity = f"sha256:{hashlib.sha256(found.config).hexdigest()}"
    return [
        store.save(
            StoredImage(
                each,
                identity,
                ROOTFS,
                size=size,
                entrypoint=tuple(settings.get("Entrypoint") or ()),
                cmd=tuple(settings.get("Cmd") or ()),
                env=tuple(
                    (key, value) for key, _, value in (line.partition("=") for line in settings.get("Env") or ())
                ),
                workdir=settings.get("WorkingDir") or "",
                user=settings.get("User") or "",
                layers=digests,
            )
        )
        for each in normal
    ]


def _layer(
    store: ImageStore, archive: tarfile.TarFile, members: dict[str, tarfile.TarInfo], path: str, digest: str
) -> int:
    """Unpack a layer unless it is there; its size."""
    _hex(digest)
    place = store.layer(digest)
    if (place / "size").exists():
        return int((place / "size").read_text())
    private_directory(store.layers)
    aside = Path(tempfile.mkdtemp(prefix=".new-", dir=store.layers))
    try:
        (aside / "fs").mkdir(mode=0o755)
        stream = _Hashing(_uncompressed(_open(archive, members, path)))
        with tarfile.open(fileobj=stream, mode="r|") as inner:
            size = unpack(inner, aside / "fs")
        stream.drain()
        if stream.digest != digest:
            raise ImageError(f"layer {digest[:19]} is not what its digest says: the archive is damaged or forged")
        (aside / "lock").touch()
        (aside / "size").write_text(str(size))
        if place.exists():
            remove_tree(place)  # an earlier attempt that did not come to its end
        os.replace(aside, place)
    except BaseException:
        remove_tree(aside)
        raise
    return size


class _Hashing(io.RawIOBase):
    """Hashes what is read through it."""

    def __init__(self, source: IO[bytes]) -> None:
        super().__init__()
        self._source = source
        self._hash = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size)
        self._hash.update(data)
        return data

    def drain(self) -> None:
        while self.read(_CHUNK):
            pass

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


def _uncompressed(file: IO[bytes]) -> IO[bytes]:
    start = file.read(6)
    file.seek(0)
    for magic, opener in _OPENERS:
        if start.startswith(magic):
            opened: IO[bytes] = opener(file)
            return opened
    if start.startswith(_ZSTD):
        raise ImageError("the image's layers are packed with zstd, which is not supported; save it with gzip")
    return file


def _open(archive: tarfile.TarFile, members: dict[str, tarfile.TarInfo], path: str) -> IO[bytes]:
    member = members.get(path)
    file = archive.extractfile(member) if member is not None else None
    if file is None:
        raise ImageError(f"the archive lacks {path}")
    return file


def _small(archive: tarfile.TarFile, members: dict[str, tarfile.TarInfo], path: str) -> bytes:
    file = _open(archive, members, _clean(path))
    data = file.read(_MOST_JSON + 1)
    if len(data) > _MOST_JSON:
        raise ImageError(f"{path} in the archive is too large to be what it should be")
    return data


def _hex(digest: str) -> str:
    algorithm, _, value = digest.partition(":")
    if algorithm != "sha256" or len(value) != 64 or any(c not in "0123456789abcdef" for c in value):
        raise ImageError(f'"{digest}" is not a SHA-256 digest')
    return value


def _blob_path(digest: str) -> str:
    return f"blobs/sha256/{_hex(digest)}"


def _blob(archive: tarfile.TarFile, members: dict[str, tarfile.TarInfo], digest: str) -> bytes:
    data = _small(archive, members, _blob_path(digest))
    if hashlib.sha256(data).hexdigest() != _hex(digest):
        raise ImageError(f"{digest[:19]} is not what its digest says: the archive is damaged or forged")
    return data


def _verify(archive: tarfile.TarFile, members: dict[str, tarfile.TarInfo], path: str, digest: str) -> None:
    file = _open(archive, members, path)
    value = hashlib.sha256()
    while data := file.read(_CHUNK):
        value.update(data)
    if value.hexdigest() != _hex(digest):
        raise ImageError(f"layer {digest[:19]} is not what its digest says: the archive is damaged or forged")
