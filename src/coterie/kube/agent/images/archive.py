"""Images from files: the tar of an OCI layout (`skopeo`, `buildah`, new `docker save`) or of old `docker save`.

Everything in it is checked against the digest by which it is named before it is used; layers are unpacked aside and put in
place whole, so an archive that is cut off or forged leaves nothing behind.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from coterie.kube.agent.images.layers import architecture, hexadecimal, install_layer, layers_of, stored_image
from coterie.kube.agent.images.model import ImageError, StoredImage, normalise
from coterie.kube.agent.images.store import ImageStore
from coterie.kube.agent.images.unpack import LayerMember

_MOST_JSON = 16 << 20
_CHUNK = 1 << 20
_MOST_MEMBERS = 100_000


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
        with store.installing(), tarfile.open(fileobj=file, mode="r:*", tarinfo=LayerMember) as archive:
            members = _members(archive)
            found = _find(archive, members)
            return [image for entry in found for image in _add(store, archive, members, entry, name)]
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as problem:
        raise ImageError(f"the archive cannot be read: {problem}") from problem
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as problem:
        raise ImageError(f"the archive is not an image of OCI or Docker: {problem}") from problem


def _members(archive: tarfile.TarFile) -> dict[str, tarfile.TarInfo]:
    found = {}
    for count, member in enumerate(archive):
        if count > _MOST_MEMBERS:
            raise ImageError("the archive has more files than an image has")
        if member.isreg():
            found[_clean(member.name)] = member
    return found


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
    wanted = architecture()
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
    digests = layers_of(found.config, len(found.layers))
    names = [name] if name else list(found.names)
    if not names:
        raise ImageError("the image in the archive has no name; give it one with --name")
    normal = [normalise(each) for each in names]
    size = sum(
        install_layer(store, digest, lambda path=path: _open(archive, members, path))  # type: ignore[misc]
        for path, digest in zip(found.layers, digests, strict=True)
    )
    store.keep_config(found.config)
    return [store.save(stored_image(each, found.config, size=size)) for each in normal]


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


def _blob_path(digest: str) -> str:
    return f"blobs/sha256/{hexadecimal(digest)}"


def _blob(archive: tarfile.TarFile, members: dict[str, tarfile.TarInfo], digest: str) -> bytes:
    data = _small(archive, members, _blob_path(digest))
    if hashlib.sha256(data).hexdigest() != hexadecimal(digest):
        raise ImageError(f"{digest[:19]} is not what its digest says: the archive is damaged or forged")
    return data


def _verify(archive: tarfile.TarFile, members: dict[str, tarfile.TarInfo], path: str, digest: str) -> None:
    file = _open(archive, members, path)
    value = hashlib.sha256()
    while data := file.read(_CHUNK):
        value.update(data)
    if value.hexdigest() != hexadecimal(digest):
        raise ImageError(f"layer {digest[:19]} is not what its digest says: the archive is damaged or forged")
