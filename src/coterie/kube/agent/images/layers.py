"""What every way of getting an image shares: layers checked and put in place whole, and the image's configuration read."""

from __future__ import annotations

import bz2
import contextlib
import fcntl
import gzip
import hashlib
import io
import json
import lzma
import os
import platform
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from coterie.base.files import private_directory
from coterie.kube.agent.images.model import ROOTFS, ImageError, StoredImage
from coterie.kube.agent.images.store import ImageStore, SharedLayers, remove_tree
from coterie.kube.agent.images.tar_record import RECORD, TarRecorder
from coterie.kube.agent.images.unpack import LayerMember, unpack

_CHUNK = 1 << 20
_MOST_LAYERS = 512
_MOST_PADDING = 16 << 20
_MOST_TEXTS, _MOST_TEXT_BYTES, _LONGEST_TEXT = 8192, 1 << 20, (128 << 10) - 1
_RATIO_FROM, _MOST_RATIO = 256 << 20, 200
"""A layer that unpacks to more than the first is refused when it is packed more tightly than the second: files are not."""
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_OPENERS: tuple[tuple[bytes, Callable[[IO[bytes]], Any]], ...] = (
    (b"\x1f\x8b", gzip.open),
    (b"BZh", bz2.open),
    (b"\xfd7zXZ\x00", lzma.open),
)
_ZSTD = b"\x28\xb5\x2f\xfd"


def architecture() -> str:
    """Of this machine, as images call it."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def hexadecimal(digest: Any) -> str:
    """Of `sha256:...`. Raises ImageError for anything else."""
    algorithm, _, value = str(digest).partition(":")
    if algorithm != "sha256" or len(value) != 64 or any(c not in "0123456789abcdef" for c in value):
        raise ImageError(f'"{digest}" is not a SHA-256 digest')
    return value


def sha256_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def layers_of(config: bytes, count: int) -> tuple[str, ...]:
    """Digests of the unpacked layers, lowest first, of an image that this machine can run and that has `count` of them."""
    parsed = json.loads(config)
    wanted = architecture()
    if parsed.get("architecture", wanted) != wanted:
        raise ImageError(f"the image is for {parsed['architecture']}, this machine is {wanted}")
    digests = tuple(parsed["rootfs"]["diff_ids"])
    for digest in digests:
        hexadecimal(digest)
    if len(digests) != count or count > _MOST_LAYERS:
        raise ImageError("the image's configuration names other layers than the image has")
    return digests


def stored_image(name: str, config: bytes, *, size: int, manifest: str = "") -> StoredImage:
    """`manifest`: the digest by which a registry knows the image."""
    parsed = json.loads(config)
    settings = parsed.get("config") or {}
    texts = [text for key in ("Entrypoint", "Cmd", "Env") for text in settings.get(key) or ()]
    texts += [settings.get(key) or "" for key in ("WorkingDir", "User")]
    _check_texts(texts)
    return StoredImage(
        name,
        f"sha256:{hashlib.sha256(config).hexdigest()}",
        ROOTFS,
        size=size,
        entrypoint=tuple(settings.get("Entrypoint") or ()),
        cmd=tuple(settings.get("Cmd") or ()),
        env=tuple((key, value) for key, _, value in (line.partition("=") for line in settings.get("Env") or ())),
        workdir=settings.get("WorkingDir") or "",
        user=settings.get("User") or "",
        layers=tuple(parsed["rootfs"]["diff_ids"]),
        manifest=manifest,
    )


def _check_texts(texts: Sequence[Any]) -> None:
    """What a kernel would not take as arguments and variables of a program is refused before it is stored."""
    if any(not isinstance(text, str) or "\0" in text for text in texts):
        raise ImageError("the image's configuration has a word or a variable that is not text")
    sizes = [len(text.encode("utf-8", "replace")) for text in texts]
    if len(sizes) > _MOST_TEXTS or sum(sizes) > _MOST_TEXT_BYTES or max(sizes) > _LONGEST_TEXT:
        raise ImageError("the image's configuration has more or longer words and variables than a program can be given")


def layer_size(store: ImageStore, digest: str) -> int | None:
    """Of a layer that is there."""
    try:
        return int((store.layer(digest) / "size").read_text())
    except FileNotFoundError:
        return None


def install_layer(store: ImageStore, digest: str, packed: Callable[[], IO[bytes]]) -> int:
    """Unpack a layer unless it is there; its size. With a shared directory it is unpacked there, once for all stores."""
    name = hexadecimal(digest)
    known = layer_size(store, digest)
    shared = store.shared
    if known is not None:
        if shared is not None and not store.layer(digest).is_symlink():
            _move(store.layer(digest), shared)
        return known
    private_directory(store.layers)
    if shared is None:
        return _unpacked(store.layer(digest), digest, packed)
    with shared.locked(fcntl.LOCK_SH):
        place = shared.layers / name
        if (place / "size").exists():
            size = _shown(place, digest, packed)
        else:
            size = _unpacked(place, digest, packed)
        aside = store.layers / f".link-{name}-{os.getpid()}"
        aside.unlink(missing_ok=True)
        aside.symlink_to(place)
        if store.layer(digest).is_dir() and not store.layer(digest).is_symlink():
            remove_tree(store.layer(digest))  # an earlier attempt that did not come to its end
        os.replace(aside, store.layer(digest))
        return size


def _move(layer: Path, shared: SharedLayers) -> None:
    """A layer that came before it was shared. It stays where it is if the shared directory is on another file system."""
    place = shared.layers / layer.name
    with shared.locked(fcntl.LOCK_SH), contextlib.suppress(OSError):
        if not place.exists():
            os.rename(layer, place)
            layer.symlink_to(place)


def _shown(place: Path, digest: str, packed: Callable[[], IO[bytes]]) -> int:
    """The size of a layer that another store brought, for one that has the content as well."""
    with packed() as source:
        stream = _Hashing(_uncompressed(source), source)
        while stream.read(_CHUNK):
            pass
    _check_digest(stream, digest)
    return int((place / "size").read_text())


def _check_digest(stream: _Hashing, digest: str) -> None:
    if stream.digest != digest:
        raise ImageError(f"layer {digest[:19]} is not what its digest says: the image is damaged or forged")


def _unpacked(place: Path, digest: str, packed: Callable[[], IO[bytes]]) -> int:
    aside = Path(tempfile.mkdtemp(prefix=".new-", dir=place.parent))
    try:
        (aside / "fs").mkdir(mode=0o755)
        with packed() as source, (aside / RECORD).open("wb") as record:
            recorder = TarRecorder(record)
            stream = _Hashing(_uncompressed(source), source, recorder)
            try:
                with tarfile.open(fileobj=stream, mode="r|", tarinfo=LayerMember) as inner:
                    size = unpack(inner, aside / "fs", observe=recorder.member)
            except (OverflowError, RecursionError) as problem:
                raise ImageError(f"layer {digest[:19]} has a file that cannot be: {problem}") from problem
            stream.drain()
            recorder.close()
        _check_digest(stream, digest)
        (aside / "lock").touch()
        (aside / "size").write_text(str(size))
        if place.is_symlink():
            place.unlink()  # to a shared layer that is gone
        elif place.exists() and not (place / "size").exists():
            remove_tree(place)  # an earlier attempt that did not come to its end
        try:
            os.replace(aside, place)
        except OSError:
            if not (place / "size").exists():
                raise
            remove_tree(aside)  # another process was faster
    except BaseException:
        remove_tree(aside)
        raise
    return size


class _Hashing(io.RawIOBase):
    """Hashes what is read through it, and tells a recorder. Stops when `packed` became too much."""

    def __init__(self, source: IO[bytes], packed: IO[bytes], recorder: TarRecorder | None = None) -> None:
        super().__init__()
        self._source = source
        self._packed = packed
        self._total = 0
        self._recorder = recorder
        self._hash = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size)
        self._total += len(data)
        if self._total > _RATIO_FROM and self._total > _MOST_RATIO * max(1, self._packed.tell()):
            raise ImageError("the image has a layer that unpacks to far more than any files would: it is a bomb")
        self._hash.update(data)
        if self._recorder is not None:
            self._recorder.feed(data)
        return data

    def drain(self) -> None:
        """What follows the end of the archive is padding."""
        left = _MOST_PADDING
        while data := self.read(_CHUNK):
            left -= len(data)
            if left < 0:
                raise ImageError("the image has a layer that goes on after its end")

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
