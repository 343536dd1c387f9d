"""Objects in a bucket (S3, OSS, MinIO, and by clients of their own Azure Blob Storage ...), below one prefix.

An object is there, whole, when its upload is completed, and never before: the store's own promise. Small tables go in
one request, larger ones in parts; a failure abandons the parts. Tables that are read in order come as one stream, which
the store keeps whole even when the object is replaced meanwhile; other formats are read in ranges of one version.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import io
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import aiohttp
import pyarrow as pa

from coterie.kuscia.sources.files import FileOutput, FileReader, FileSource, FoundFiles, Parts
from coterie.kuscia.sources.object_client import ObjectClient
from coterie.kuscia.sources.protocol import DataNotFound, DataSource, SourceError, SourceInfo, SourceUnreachable
from coterie.kuscia.sources.s3_client import S3Client
from coterie.kuscia.sources.worker_thread import LoopFile

PART = 8 * 1024 * 1024
_MANY_PARTS = 1000
_AHEAD = 1024 * 1024
_RESUMES = 3
T = TypeVar("T")


def s3(info: SourceInfo) -> DataSource:
    return FileSource(ObjectStore(S3Client(info), info.prefix))


class ObjectStore:
    def __init__(self, client: ObjectClient, prefix: str) -> None:
        self._client = client
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""

    async def open(self) -> None:
        await self._client.open()

    async def close(self) -> None:
        await self._client.close()

    def _key(self, parts: Parts) -> str:
        return self._prefix + "/".join(parts)

    async def find(self, parts: Parts) -> list[FoundFiles]:
        key = self._key(parts)
        whole = await self._client.head(key)
        if whole is not None:
            return [FoundFiles(parts, *whole)]
        found = []
        try:
            async for name, size, tag in self._client.listed(f"{key}/"):
                below = tuple(name.removeprefix(self._prefix).split("/"))
                if not any(each.startswith((".", "_")) or not each for each in below):
                    found.append(FoundFiles(below, size, tag))
        except DataNotFound:
            raise SourceUnreachable("there is no such bucket; check the source's settings") from None
        return found

    def reading(self) -> FileReader:
        return _S3Reading(self._client, self._prefix)

    async def create(self, parts: Parts) -> FileOutput:
        return _S3Output(self._client, self._key(parts))

    async def remove(self, parts: Parts) -> None:
        await self._client.delete(self._key(parts))


class _S3Reading:
    def __init__(self, client: ObjectClient, prefix: str) -> None:
        self._client, self._prefix = client, prefix
        self._loop = asyncio.get_running_loop()
        self._waiting: concurrent.futures.Future[Any] | None = None
        self._streams: list[_Stream] = []
        self._stopped = False

    def start(self, found: FoundFiles, size: int) -> bytes:
        return self.ranged(replace(found, tag=""), 0, min(size, found.size))

    def ranged(self, found: FoundFiles, start: int, size: int) -> bytes:
        """SourceError when the object is not the version that was found, where that is said."""
        key = self._prefix + "/".join(found.parts)
        return self._in_loop(self._client.get_range(key, found.tag, start, size)) if size > 0 else b""

    def _in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        if self._stopped:
            work.close()
            raise SourceError("reading was stopped")
        waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._waiting = waiting
        try:
            return waiting.result()
        except concurrent.futures.CancelledError:
            raise SourceError("reading was stopped") from None

    def open(self, found: FoundFiles, random: bool) -> Any:
        if random:
            return pa.PythonFile(RangeFile(self, found), mode="r")
        stream = _Stream(self._client, self._prefix + "/".join(found.parts), found)
        self._streams.append(stream)
        stream.file = self._in_loop(stream.begin())
        return pa.PythonFile(stream.file, mode="r")

    def interrupt(self) -> None:
        self._stopped = True
        if self._waiting is not None:
            self._waiting.cancel()
        for stream in self._streams:
            stream.stop()

    def close(self) -> None:
        pass


class _Stream:
    """One request whose body is read as it is needed; a broken line is taken up where it broke."""

    def __init__(self, client: ObjectClient, key: str, found: FoundFiles) -> None:
        self._client, self._key, self._found = client, key, found
        self._position = 0
        self._answer: aiohttp.ClientResponse | None = None
        self._context: Any = None
        self.file: LoopFile | None = None

    async def begin(self) -> LoopFile:
        return LoopFile(self._pull)

    async def _pull(self) -> bytes:
        for _ in range(_RESUMES):
            if self._position >= self._found.size:
                return b""
            try:
                if self._answer is None:
                    await self._ask()
                assert self._answer is not None
                data = await self._answer.content.readany()
            except (aiohttp.ClientError, TimeoutError):
                data = b""
            if data:
                self._position += len(data)
                return data
            self.drop()
        raise SourceUnreachable("the store stopped in the middle of the object")

    async def _ask(self) -> None:
        headers = {"range": f"bytes={self._position}-", "if-match": self._found.tag} if self._position else {}
        self._context = self._client.request("GET", self._key, headers=headers)
        answer = self._answer = await self._context.__aenter__()
        if not self._position:
            # Replaced since it was found? Then the new one is as good, if all of it is of that one.
            size = int(answer.headers.get("Content-Length", self._found.size))
            self._found = replace(self._found, size=size, tag=self._client.tag_of(answer))

    def drop(self) -> None:
        if self._answer is not None:
            self._answer.close()
            self._answer = None

    def stop(self) -> None:
        if self.file is not None:
            self.file.interrupt()
        self.drop()


class RangeReader(Protocol):
    def ranged(self, found: FoundFiles, start: int, size: int) -> bytes:
        """Exactly so many bytes of the version that was found. Blocks."""
        ...


class RangeFile(io.RawIOBase):
    """Reads of a version's ranges; a little more than asked for, as readers go on where they stopped."""

    def __init__(self, reading: RangeReader, found: FoundFiles) -> None:
        self._reading, self._found = reading, found
        self._position, self._cached_at, self._cached = 0, 0, b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self._found.size)[whence]
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = max(self._found.size - self._position, 0)
        size = left if size < 0 else min(size, left)
        at = self._position - self._cached_at
        if at < 0 or at + size > len(self._cached):
            self._cached_at, at = self._position, 0
            self._cached = self._reading.ranged(self._found, self._position, min(max(size, _AHEAD), left))
        self._position += size
        return self._cached[at : at + size]


class _S3Output:
    def __init__(self, client: ObjectClient, key: str) -> None:
        self._client, self._key = client, key
        self._upload = ""
        self._tags: list[str] = []
        self.file = _Gathered()

    async def flush(self) -> None:
        # Parts grow, as there may be ten thousand of them at most.
        while len(self.file.data) >= (size := PART * (1 + len(self._tags) // _MANY_PARTS)):
            await self._part(size)

    async def _part(self, size: int) -> None:
        if not self._upload:
            self._upload = await self._client.begin(self._key)
        body = bytes(memoryview(self.file.data)[:size])
        del self.file.data[:size]
        self._tags.append(await self._client.put_part(self._key, self._upload, len(self._tags) + 1, body))

    async def commit(self) -> None:
        await self.flush()
        if not self._upload:
            await self._client.put(self._key, bytes(self.file.data))
            return
        if self.file.data:
            await self._part(len(self.file.data))
        await self._client.complete(self._key, self._upload, self._tags)
        self._upload = ""

    async def abort(self) -> None:
        if self._upload:
            # What cannot be abandoned now is nobody's object; a store's own rule removes old parts.
            with suppress(SourceError):
                await asyncio.shield(self._client.abandon(self._key, self._upload))


class _Gathered:
    """What the format wrote and the store does not have yet."""

    closed = False

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, piece: Any) -> int:
        self.data += memoryview(piece)
        return len(piece)

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False
