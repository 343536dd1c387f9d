"""Big values, kept aside by the SHA-256 of their content.

The log stays slim, and the same content is kept once however often it is written. Order makes this safe: a blob is on
disk before the row that names it is committed, and is removed only after the last such row is gone from the disk. What
a crash leaves in between are blobs that no row names; `sweep` removes them, at open and with each compaction.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Set
from pathlib import Path
from typing import Protocol

from coterie.base.files import private_directory, sync_directory, write_atomic
from coterie.kube.store.protocol import StoreError

BLOB_THRESHOLD = 64 * 1024


class BlobError(StoreError):
    """A value kept aside is missing or is not what was written."""


class Blobs(Protocol):
    def put(self, value: bytes) -> bytes:
        """Keep the value; returns its digest."""

    def get(self, digest: bytes) -> bytes: ...

    def sweep(self, named: Set[bytes]) -> int:
        """Remove what is not named by a row any more; returns how many were removed."""


class MemoryBlobs:
    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        return len(self._values)

    def put(self, value: bytes) -> bytes:
        digest = hashlib.sha256(value).digest()
        self._values.setdefault(digest, value)
        return digest

    def get(self, digest: bytes) -> bytes:
        return self._values[digest]

    def sweep(self, named: Set[bytes]) -> int:
        lost = self._values.keys() - named
        for digest in lost:
            del self._values[digest]
        return len(lost)


class FileBlobs:
    """One file for each value, its name the digest in hexadecimal. The folder appears with the first blob.

    `put` and `sweep` belong to one thread, the writer; `get` may run in any.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._doubtful: set[bytes] = set()
        """Digests whose writing failed: a file may be there all the same, but nobody knows how much of it lasts."""
        self._folder_lasts = False

    def put(self, value: bytes) -> bytes:
        digest = hashlib.sha256(value).digest()
        path = self._path(digest)
        if digest in self._doubtful or not path.exists():
            self._doubtful.add(digest)
            if not self._folder_lasts:
                private_directory(self.folder)
                sync_directory(self.folder.parent)
                self._folder_lasts = True
            write_atomic(path, value)
            self._doubtful.discard(digest)
        return digest

    def get(self, digest: bytes) -> bytes:
        try:
            value = self._path(digest).read_bytes()
        except OSError as error:
            raise BlobError(f"the value kept aside as {digest.hex()} cannot be read: {error.strerror}") from error
        if hashlib.sha256(value).digest() != digest:
            raise BlobError(f"the value kept aside as {digest.hex()} is damaged: its content has another hash")
        return value

    def sweep(self, named: Set[bytes]) -> int:
        if not self.folder.exists():
            return 0
        names = {digest.hex() for digest in named}
        removed = 0
        for name in os.listdir(self.folder):  # also what a crash left half written
            if name not in names:
                (self.folder / name).unlink()
                removed += 1
        sync_directory(self.folder)
        return removed

    def size(self) -> int:
        """Bytes of all values."""
        try:
            with os.scandir(self.folder) as entries:
                return sum(entry.stat().st_size for entry in entries)
        except OSError:
            return 0  # there is none yet, or one went while we looked

    def _path(self, digest: bytes) -> Path:
        return self.folder / digest.hex()
