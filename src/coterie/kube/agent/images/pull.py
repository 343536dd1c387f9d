"""Images from registries into the store.

The manifest says what the image consists of; each part is fetched by digest and checked. Parts that were fetched before an
interruption are kept (`<store>/downloads/<digest>`) and continued, layers that are already there are not fetched.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import json
import lzma
import os
import shutil
import tarfile
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.base.files import private_directory
from coterie.base.lazy_import import lazy_import
from coterie.kube.agent.images.layers import (
    architecture,
    hexadecimal,
    install_layer,
    layer_size,
    layers_of,
    stored_image,
)
from coterie.kube.agent.images.model import (
    SIGNATURE_FAILED,
    ImageError,
    ImageRefused,
    StoredImage,
    normalise,
    split,
)
from coterie.kube.agent.images.references import ImageReference, RegistryEndpoint
from coterie.kube.agent.images.registry import RegistryClient, RegistryUnavailable
from coterie.kube.agent.images.signature_policy import SignatureRule
from coterie.kube.agent.images.store import ImageStore
from coterie.kube.agent.images.unpack import MOST_BYTES

if TYPE_CHECKING:
    from coterie.kube.agent.images import signatures
else:
    signatures = lazy_import("coterie.kube.agent.images.signatures")

_CHUNK = 1 << 18
_AT_ONCE = 3
_ATTEMPTS = 5
_SPARE_BYTES = 64 << 20
_MOST_NESTED = 2
_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")

Progress = Callable[[str, int, int], None]
"""(digest, bytes that are here, bytes in all), from any thread."""
Pause = Callable[[int], None]
"""Before another attempt, whose number it gets."""


@dataclass(frozen=True, slots=True)
class _Part:
    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class _Manifest:
    digest: str
    platform: str
    """The digest of the manifest for this machine."""
    config: _Part
    layers: tuple[_Part, ...]


def parse(name: str) -> ImageReference:
    """Raises ImageError for nonsense."""
    normal = normalise(name)
    plain, _, digest = normal.partition("@")
    if digest:
        hexadecimal(digest)
    repository, tag = split(plain)
    first, slash, rest = repository.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        first, rest = "", repository
    return ImageReference(first, rest, digest or tag, plain)


def pull(
    store: ImageStore,
    wanted: ImageReference,
    sources: Sequence[RegistryEndpoint],
    *,
    progress: Progress = lambda digest, done, total: None,
    pause: Pause = lambda attempt: None,
    signed_by: SignatureRule | None = None,
) -> StoredImage:
    """From the first of the sources that has it. Raises ImageError with what the last one answered. `signed_by`: a signature is
    demanded before anything is fetched."""
    problem: ImageError = ImageError(f"there is no source for {wanted.name}")
    for source in sources:
        try:
            with store.installing():
                return _Pull(store, RegistryClient(source), wanted, progress, pause, signed_by).run()
        except ImageError as failed:
            problem = failed
        except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as failed:
            problem = ImageError(f"a layer of {wanted.name} cannot be read: {failed}")
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as failed:
            problem = ImageError(f"{source.host} answers with something that is not an image: {failed}")
    raise problem


@dataclass(slots=True)
class _Pull:
    store: ImageStore
    client: RegistryClient
    wanted: ImageReference
    progress: Progress
    pause: Pause
    signed_by: SignatureRule | None

    def run(self) -> StoredImage:
        manifest = self._attempts(lambda: self._manifest(self.wanted.reference, 0))
        signed = self._attempts(lambda: self._signatures(manifest)) if self.signed_by is not None else ()
        config = self._attempts(lambda: self.client.small_blob(self.wanted.repository, manifest.config.digest))
        if hashlib.sha256(config).hexdigest() != hexadecimal(manifest.config.digest):
            raise ImageError(f"the configuration of {self.wanted.name} is not what its digest says")
        unpacked = layers_of(config, len(manifest.layers))
        missing = [
            (part, digest)
            for part, digest in zip(manifest.layers, unpacked, strict=True)
            if layer_size(self.store, digest) is None
        ]
        self._check_room(part for part, _ in missing)
        stop = threading.Event()
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="pull") as pool:
            fetches = [pool.submit(self._attempts, lambda part=part: self._fetch(part, stop)) for part, _ in missing]  # type: ignore[misc]
            try:
                for fetch, (_, digest) in zip(fetches, missing, strict=True):
                    path = fetch.result()
                    install_layer(self.store, digest, lambda path=path: path.open("rb"))  # type: ignore[misc]
                    path.unlink(missing_ok=True)
            finally:
                stop.set()
                for fetch in fetches:
                    fetch.cancel()
        size = sum(layer_size(self.store, digest) or 0 for digest in unpacked)
        self.store.keep_config(config)
        image = stored_image(self.wanted.name, config, size=size, manifest=manifest.digest)
        platform = manifest.platform if manifest.platform != manifest.digest else ""
        return self.store.save(replace(image, platform_manifest=platform, signatures=signed))

    def _signatures(self, manifest: _Manifest) -> tuple[tuple[str, str, str, str], ...]:
        """Those that count. Raises ImageRefused when there is none."""
        assert self.signed_by is not None
        digests = dict.fromkeys((manifest.digest, manifest.platform))
        keys = signatures.load_keys(self.signed_by.keys)
        found = [each for digest in digests for each in signatures.find(self.client, self.wanted.repository, digest)]
        valid = [each for each in found if signatures.is_valid(each, digests, keys)]
        if not valid:
            what = f"none of its {len(found)} signatures is valid for the keys" if found else "it has no signature"
            raise ImageRefused(SIGNATURE_FAILED, f"{self.wanted.name} must be signed (image.signatures), and {what}")
        return tuple(each.as_text() for each in valid)

    def _attempts(self, work: Callable[[], Any]) -> Any:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return work()
            except RegistryUnavailable:
                if attempt == _ATTEMPTS:
                    raise
                self.pause(attempt)
        return None

    def _manifest(self, reference: str, nested: int) -> _Manifest:
        """The one for this machine; an index names several."""
        raw = self.client.manifest(self.wanted.repository, reference)
        digest = f"sha256:{hashlib.sha256(raw).hexdigest()}"
        if ":" in reference and digest != reference:
            raise ImageError(f"{self.client.endpoint.host} gives another manifest than {reference[:19]}")
        body = json.loads(raw)
        if body.get("mediaType") in _INDEXES or "manifests" in body:
            if nested == _MOST_NESTED:
                raise ImageError(f"{self.wanted.name} is an index of indexes")
            inner = self._manifest(_for_this_machine(body["manifests"]), nested + 1)
            # A name by digest names the index: it stays the image's.
            return _Manifest(digest if not nested else inner.digest, inner.platform, inner.config, inner.layers)
        if body.get("schemaVersion") != 2 or "config" not in body:
            raise ImageError(f"{self.wanted.name} has a manifest of an old form; push it again with a newer tool")
        parts = tuple(_part(each) for each in body["layers"])
        return _Manifest(digest, digest, _part(body["config"]), parts)

    def _check_room(self, parts: Iterator[_Part]) -> None:
        needed = sum(part.size for part in parts)
        if needed > MOST_BYTES:
            raise ImageError(f"{self.wanted.name} is larger than what may be unpacked")
        private_directory(self.store.directory)
        free = shutil.disk_usage(self.store.directory).free
        if needed and needed + _SPARE_BYTES > free:
            raise ImageError(f"{self.wanted.name} needs {needed >> 20} MiB of downloads; {free >> 20} MiB are free")

    def _fetch(self, part: _Part, stop: threading.Event) -> Path:
        """A part on disk, checked. Whoever wants the same one waits for it."""
        folder = self.store.directory / "downloads"
        private_directory(folder)
        path = folder / hexadecimal(part.digest)
        with path.open("ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            begin = os.fstat(file.fileno()).st_size
            value = hashlib.sha256()
            if begin > part.size:
                begin = 0
            file.seek(0)
            while data := file.read(min(_CHUNK, begin - file.tell())) if file.tell() < begin else b"":
                value.update(data)
            if begin < part.size:
                try:
                    value = self._receive(part, file, begin, value, stop)
                except (OSError, http.client.HTTPException) as problem:
                    raise RegistryUnavailable(f"{self.client.endpoint.host} stopped sending: {problem}") from problem
            if value.hexdigest() != hexadecimal(part.digest):
                file.truncate(0)
                raise ImageError(f"layer {part.digest[:19]} is not what its digest says: it is damaged or forged")
        return path

    def _receive(self, part: _Part, file: Any, begin: int, value: Any, stop: threading.Event) -> Any:
        with self.client.blob(self.wanted.repository, part.digest, begin) as (answer, at):
            if at != begin:
                value = hashlib.sha256()
            file.truncate(at)
            file.seek(at)
            done = at
            while data := answer.read(_CHUNK):
                done += len(data)
                if done > part.size:
                    file.truncate(0)
                    raise ImageError(f"layer {part.digest[:19]} is larger than its manifest says")
                if stop.is_set():
                    raise ImageError("the pull was stopped")
                value.update(data)
                file.write(data)
                self.progress(part.digest, done, part.size)
            file.flush()
        if done < part.size:
            raise RegistryUnavailable(f"{self.client.endpoint.host} sent {done} of {part.size} bytes of a layer")
        return value


def _part(raw: dict[str, Any]) -> _Part:
    hexadecimal(raw["digest"])
    size = raw["size"]
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= MOST_BYTES:
        raise ImageError("the manifest names a part of an impossible size")
    return _Part(raw["digest"], size)


def _for_this_machine(manifests: Sequence[dict[str, Any]]) -> str:
    wanted = architecture()
    for entry in manifests:
        platform = entry.get("platform") or {}
        if platform.get("architecture") == wanted and platform.get("os", "linux") == "linux":
            hexadecimal(entry["digest"])
            return str(entry["digest"])
    raise ImageError(f"the image is not made for this machine ({wanted})")
