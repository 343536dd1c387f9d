"""Images into files: the tar of an OCI layout, or what `docker load` reads. `archive.py` reads both again.

Layers are packed from what was unpacked. With the record of a layer's tar they are the same bytes as before, and the image keeps
its id; without (images from a directory, layers of an earlier version) they are packed anew, and the saved image has another id.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from coterie.base.files import private_directory
from coterie.kube.agent.images.layers import architecture
from coterie.kube.agent.images.model import HOST, ImageError, StoredImage
from coterie.kube.agent.images.store import ImageStore
from coterie.kube.agent.images.tar_record import RECORD, rebuilt
from coterie.kube.agent.images.unpack import OPAQUE, WHITEOUT, is_opaque, is_whiteout

OCI, DOCKER = "oci", "docker"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_CHUNK = 1 << 20
_PACKED_LEVEL = 6


@dataclass(frozen=True, slots=True)
class SavedImage:
    name: str
    id: str
    exact: bool
    """Whether the id is that of the image in the store."""


@dataclass(slots=True)
class _Layer:
    file: IO[bytes]
    size: int
    digest: str
    """Of what is in the file."""
    diff_id: str
    """Of the unpacked tar."""


def save(store: ImageStore, images: Sequence[StoredImage], out: IO[bytes], form: str = OCI) -> list[SavedImage]:
    """Write images into one archive. Raises ImageError for those that have no file system of their own."""
    for image in images:
        if image.kind == HOST:
            raise ImageError(f"{image.name} is a host environment: it is what this machine has, and cannot be saved")
    private_directory(store.directory)
    with (
        store.installing(),
        tempfile.TemporaryDirectory(prefix=".save-", dir=store.directory) as work,
        tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        writer = _Writer(archive)
        saved = [_add(store, image, writer, Path(work), form) for image in images]
        if form == OCI:
            writer.add("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
            writer.add("index.json", json.dumps({"schemaVersion": 2, "manifests": writer.manifests}).encode())
        else:
            writer.add("manifest.json", json.dumps(writer.manifests).encode())
    return saved


class _Writer:
    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._names: set[str] = set()
        self.manifests: list[dict[str, Any]] = []

    def add(self, name: str, content: bytes) -> None:
        self.add_file(name, io.BytesIO(content), len(content))

    def add_file(self, name: str, file: IO[bytes], size: int) -> None:
        if name in self._names:
            return
        self._names.add(name)
        info = tarfile.TarInfo(name)
        info.size, info.mode = size, 0o644
        self._archive.addfile(info, file)


def _add(store: ImageStore, image: StoredImage, writer: _Writer, work: Path, form: str) -> SavedImage:
    layers = []
    sources: list[Path] = [Path(image.directory)] if image.directory else [store.layer(each) for each in image.layers]
    digests = ("",) if image.directory else image.layers
    for source, digest in zip(sources, digests, strict=True):
        layer = _pack(source, digest, work, compress=form == OCI, plain=bool(image.directory))
        name = f"blobs/sha256/{layer.digest[7:]}" if form == OCI else f"{layer.diff_id[7:]}.tar"
        with layer.file:
            writer.add_file(name, layer.file, layer.size)
        layers.append(layer)
    config = store.config(image.id)
    if config is None or [layer.diff_id for layer in layers] != list(image.layers):
        config = _config(image, [layer.diff_id for layer in layers])
    found = f"sha256:{hashlib.sha256(config).hexdigest()}"
    if form == DOCKER:
        writer.add(f"{found[7:]}.json", config)
        writer.manifests.append(
            {
                "Config": f"{found[7:]}.json",
                "RepoTags": [image.name],
                "Layers": [f"{layer.diff_id[7:]}.tar" for layer in layers],
            }
        )
    else:
        _add_manifest(writer, image.name, config, layers)
    return SavedImage(image.name, found, found == image.id)


def _add_manifest(writer: _Writer, name: str, config: bytes, layers: list[_Layer]) -> None:
    described = {"mediaType": _CONFIG, "digest": _sha(config), "size": len(config)}
    parts = [{"mediaType": _LAYER, "digest": layer.digest, "size": layer.size} for layer in layers]
    manifest = json.dumps(
        {"schemaVersion": 2, "mediaType": _MANIFEST, "config": described, "layers": parts}, separators=(",", ":")
    ).encode()
    for blob in (config, manifest):
        writer.add(f"blobs/sha256/{_sha(blob)[7:]}", blob)
    parsed = json.loads(config)
    writer.manifests.append(
        {
            "mediaType": _MANIFEST,
            "digest": _sha(manifest),
            "size": len(manifest),
            "platform": {"architecture": parsed.get("architecture") or architecture(), "os": "linux"},
            "annotations": {"org.opencontainers.image.ref.name": name, "io.containerd.image.name": name},
        }
    )


def _sha(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _config(image: StoredImage, diff_ids: list[str]) -> bytes:
    settings = {
        "Entrypoint": list(image.entrypoint),
        "Cmd": list(image.cmd),
        "Env": [f"{key}={value}" for key, value in image.env],
        "WorkingDir": image.workdir,
        "User": image.user,
    }
    document = {
        "architecture": architecture(),
        "os": "linux",
        "config": {key: value for key, value in settings.items() if value},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


# ----- layers


def _pack(source: Path, digest: str, work: Path, *, compress: bool, plain: bool) -> _Layer:
    if digest and (source / RECORD).is_file():
        layer = _spool(rebuilt(source), work, compress=compress)
        if layer.diff_id == digest:
            return layer
        layer.file.close()
    return _spool(_anew(source if plain else source / "fs", plain=plain), work, compress=compress)


def _spool(chunks: Iterator[bytes], work: Path, *, compress: bool) -> _Layer:
    """Into a file that has no name."""
    file = tempfile.TemporaryFile(dir=work)  # noqa: SIM115 - the caller closes it
    try:
        value = hashlib.sha256()
        packed = gzip.GzipFile(fileobj=file, mode="wb", compresslevel=_PACKED_LEVEL, mtime=0) if compress else None
        for chunk in chunks:
            value.update(chunk)
            (packed or file).write(chunk)
        if packed is not None:
            packed.close()
        size = file.tell()
        file.seek(0)
        diff_id = f"sha256:{value.hexdigest()}"
        return _Layer(file, size, _hash_of(file) if compress else diff_id, diff_id)
    except BaseException:
        file.close()
        raise


def _hash_of(file: IO[bytes]) -> str:
    value = hashlib.sha256()
    while data := file.read(_CHUNK):
        value.update(data)
    file.seek(0)
    return f"sha256:{value.hexdigest()}"


class _Sink(io.RawIOBase):
    """What tarfile writes, for a generator to pass on."""

    def __init__(self) -> None:
        super().__init__()
        self.chunks: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.chunks.append(bytes(data))
        return len(data)

    def take(self) -> list[bytes]:
        taken, self.chunks = self.chunks, []
        return taken


def _anew(top: Path, *, plain: bool) -> Iterator[bytes]:
    """A tar of the files below `top`, in a fixed order. Unless `plain`, overlayfs' marks become whiteouts."""
    sink = _Sink()
    links: dict[tuple[int, int], str] = {}
    with tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for path, name in _entries(top):
            info = _info(path, name, links, plain=plain)
            if info is None:
                continue
            if info.isreg() and info.size:
                with open(path, "rb") as file:
                    archive.addfile(info, file)
            else:
                archive.addfile(info)
            if info.isdir() and not plain and is_opaque(path):
                archive.addfile(tarfile.TarInfo(f"{name}/{OPAQUE}"))
            yield from sink.take()
    yield from sink.take()


def _entries(top: Path) -> Iterator[tuple[str, str]]:
    for folder, folders, names in os.walk(top):
        folders.sort()
        inside = os.path.relpath(folder, top)
        here = "" if inside == "." else f"{inside}/"
        for name in sorted([*folders, *names]):
            yield os.path.join(folder, name), f"{here}{name}"


def _info(path: str, name: str, links: dict[tuple[int, int], str], *, plain: bool) -> tarfile.TarInfo | None:
    """None for what an image does not have: devices and sockets."""
    status = os.lstat(path)
    if not plain and is_whiteout(path):
        folder, slash, hidden = name.rpartition("/")
        return tarfile.TarInfo(f"{folder}{slash}{WHITEOUT}{hidden}")
    info = tarfile.TarInfo(name)
    info.mode, info.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
    # An ordinary user owns all that it unpacked, whoever owned it in the image.
    info.uid, info.gid = (status.st_uid, status.st_gid) if os.geteuid() == 0 else (0, 0)
    if stat.S_ISDIR(status.st_mode):
        info.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(status.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
    elif stat.S_ISFIFO(status.st_mode):
        info.type = tarfile.FIFOTYPE
    elif not stat.S_ISREG(status.st_mode):
        return None
    elif status.st_nlink > 1 and (first := links.setdefault((status.st_dev, status.st_ino), name)) != name:
        info.type, info.linkname = tarfile.LNKTYPE, first
    else:
        info.size = status.st_size
    return info
