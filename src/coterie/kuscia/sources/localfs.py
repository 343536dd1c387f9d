"""Files of this machine, below one folder.

A file that is written has no name until it is whole: it is made nameless (O_TMPFILE), so that even a killed writer
leaves nothing; at the end it gets a hidden name and is renamed over the old file, which readers that have it open read
on.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa

from coterie.kuscia.sources.confined_files import check_regular, make_folders, open_beneath
from coterie.kuscia.sources.files import FileOutput, FileReader, FileSource, FoundFiles, Parts
from coterie.kuscia.sources.paths import STAGING
from coterie.kuscia.sources.protocol import DataSource, SourceError, SourceForbidden, SourceInfo, SourceUnreachable

_READ = os.O_RDONLY | os.O_NONBLOCK  # a pipe must not hold us


def localfs(info: SourceInfo) -> DataSource:
    if not os.path.isabs(info.path):
        raise SourceError(f"the path {info.path!r} of the source is not absolute; write it from the root")
    if os.path.realpath(info.path) == "/":
        raise SourceForbidden("the whole machine cannot be a data source; name a directory with data only")
    return FileSource(LocalStore(info.path))


class LocalStore:
    def __init__(self, root: str) -> None:
        self._path = root
        self._root = -1

    async def open(self) -> None:
        try:
            self._root = await asyncio.to_thread(os.open, self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise SourceUnreachable(
                f"the folder {self._path} of the source cannot be opened: {error.strerror}"
            ) from error

    async def close(self) -> None:
        os.close(self._root)
        self._root = -1

    async def find(self, parts: Parts) -> list[FoundFiles]:
        return await asyncio.to_thread(lambda: list(self._find(parts)))

    def _find(self, parts: Parts) -> Iterator[FoundFiles]:
        try:
            descriptor = open_beneath(self._root, parts, _READ)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise _source_error(error, parts) from error
        try:
            try:
                names = _names(descriptor, parts)
            except NotADirectoryError:
                yield FoundFiles(parts, check_regular(descriptor, "/".join(parts)).st_size)
                return
        finally:
            os.close(descriptor)
        for name in names:
            yield from self._find((*parts, name))

    def reading(self) -> FileReader:
        return _LocalReading(self._root)

    async def create(self, parts: Parts) -> FileOutput:
        return await asyncio.to_thread(_LocalOutput, self._root, parts)

    async def remove(self, parts: Parts) -> None:
        await asyncio.to_thread(self._remove, parts)

    def _remove(self, parts: Parts) -> None:
        with _errors(parts):
            folder = open_beneath(self._root, parts[:-1], os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.unlink(parts[-1], dir_fd=folder)
            finally:
                os.close(folder)


def _names(folder: int, parts: Parts) -> list[str]:
    """What counts in a folder. One that is a link is refused: it is somebody else's too, and may lead back up here."""
    with os.scandir(folder) as found:
        listed = sorted((each for each in found if not each.name.startswith((".", "_"))), key=lambda each: each.name)
        for each in listed:
            if _links_to_folder(each):
                name = "/".join((*parts, each.name))
                raise SourceForbidden(
                    f"{name} is a link to a folder, inside of a table; put the files themselves there"
                )
    return [each.name for each in listed]


def _links_to_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_symlink() and entry.is_dir()
    except OSError:  # links in a circle; whoever opens it is told
        return False


class _LocalReading:
    def __init__(self, root: int) -> None:
        self._root = root
        self._files: list[Any] = []

    def start(self, found: FoundFiles, size: int) -> bytes:
        with _errors(found.parts), os.fdopen(self._descriptor(found), "rb") as file:
            return file.read(size)

    def open(self, found: FoundFiles, random: bool) -> Any:
        with _errors(found.parts):
            descriptor = self._descriptor(found)
            try:
                # The same file once more, now opened by Arrow, which reads without holding Python's lock.
                self._files.append(pa.OSFile(f"/proc/self/fd/{descriptor}", "rb"))
            finally:
                os.close(descriptor)
        return self._files[-1]

    def _descriptor(self, found: FoundFiles) -> int:
        descriptor = open_beneath(self._root, found.parts, _READ)
        try:
            check_regular(descriptor, "/".join(found.parts))
        except SourceForbidden:
            os.close(descriptor)
            raise
        return descriptor

    def interrupt(self) -> None:
        pass  # a disk answers

    def close(self) -> None:
        while self._files:
            self._files.pop().close()


class _LocalOutput:
    def __init__(self, root: int, parts: Parts) -> None:
        self._parts = parts
        self._staged = ""
        with _errors(parts):
            self._folder = make_folders(root, parts[:-1])
            try:
                self.file = _ErrorTranslatingFile(self._nameless(), parts)
            except OSError:
                os.close(self._folder)
                raise

    def _nameless(self) -> int:
        try:
            return os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o644, dir_fd=self._folder)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
                raise
        self._staged = f"{STAGING}{secrets.token_hex(8)}"
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(self._staged, flags, 0o644, dir_fd=self._folder)

    async def flush(self) -> None:
        pass

    async def commit(self) -> None:
        await asyncio.to_thread(self._commit)

    def _commit(self) -> None:
        with _errors(self._parts):
            self.file.flush()
            os.fsync(self.file.fileno())
            if not self._staged:
                self._staged = f"{STAGING}{secrets.token_hex(8)}"
                os.link(
                    f"/proc/self/fd/{self.file.fileno()}", self._staged, dst_dir_fd=self._folder, follow_symlinks=True
                )
            os.rename(self._staged, self._parts[-1], src_dir_fd=self._folder, dst_dir_fd=self._folder)
            os.fsync(self._folder)
            self._close()

    async def abort(self) -> None:
        await asyncio.to_thread(self._abort)

    def _abort(self) -> None:
        if self._folder < 0:
            return  # it was whole already
        if self._staged:
            with suppress(FileNotFoundError):
                os.unlink(self._staged, dir_fd=self._folder)
        self._close()

    def _close(self) -> None:
        self.file.close()
        os.close(self._folder)
        self._folder = -1


class _ErrorTranslatingFile:
    """A file whose errors are told as ours. Unbuffered: batches are big, and closing must have nothing left to fail
    at."""

    def __init__(self, descriptor: int, parts: Parts) -> None:
        self._descriptor, self._parts = descriptor, parts
        self.closed = False

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        with _errors(self._parts):
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        return size

    def flush(self) -> None:
        pass

    def fileno(self) -> int:
        return self._descriptor

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            os.close(self._descriptor)


@contextmanager
def _errors(parts: Parts) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _source_error(error, parts) from error


def _source_error(error: OSError, parts: Parts) -> SourceError:
    name = "/".join(parts)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return SourceError(f"there is no space left for {name}; make room and write it again")
    if error.errno in (errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY):
        return SourceForbidden(f"{name} is a folder, or lies below a file; choose another name")
    return SourceError(f"{name}: {error.strerror}")
