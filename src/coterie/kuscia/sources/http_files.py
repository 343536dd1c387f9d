"""Tables that a web server gives: files below one address, read-only.

CSV and bytes come as one stream, also where the server does not know their length; other formats need a server that gives
ranges. A stream that is longer than the source's `max_bytes` ends with an error, as does one that stops early.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Coroutine
from typing import Any, TypeVar

import aiohttp
import pyarrow as pa

from coterie.kuscia.sources.files import FileOutput, FileReader, FileSource, FoundFiles, Parts
from coterie.kuscia.sources.http_client import HttpClient, check_good
from coterie.kuscia.sources.protocol import (
    DataSource,
    SourceError,
    SourceInfo,
    SourceReadOnly,
    SourceUnreachable,
)
from coterie.kuscia.sources.s3 import RangeFile
from coterie.kuscia.sources.s3_signing import quoted
from coterie.kuscia.sources.worker_thread import LoopFile

T = TypeVar("T")
_READ_ONLY = "tables of web servers are only read; write to another source"


def http_files(info: SourceInfo) -> DataSource:
    return FileSource(HttpStore(HttpClient(info)))


class HttpStore:
    def __init__(self, client: HttpClient) -> None:
        self._client = client

    async def open(self) -> None:
        await self._client.open()

    async def close(self) -> None:
        await self._client.close()

    async def find(self, parts: Parts) -> list[FoundFiles]:
        found = await self._client.head(_key(parts))
        return [] if found is None else [FoundFiles(parts, found.size, found.tag)]

    def reading(self) -> FileReader:
        return _HttpReading(self._client)

    async def create(self, parts: Parts) -> FileOutput:
        raise SourceReadOnly(_READ_ONLY)

    async def remove(self, parts: Parts) -> None:
        raise SourceReadOnly(_READ_ONLY)


def _key(parts: Parts) -> str:
    return quoted("/".join(parts))


class _HttpReading:
    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._waiting: concurrent.futures.Future[Any] | None = None
        self._streams: list[_HttpStream] = []
        self._stopped = False

    def start(self, found: FoundFiles, size: int) -> bytes:
        return self._in_loop(self._client.start(_key(found.parts), size)) if size > 0 and found.size else b""

    def ranged(self, found: FoundFiles, start: int, size: int) -> bytes:
        if size <= 0:
            return b""
        return self._in_loop(self._client.get_range(_key(found.parts), found.tag, start, size))

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
            if found.size < 0:
                raise SourceError("the server does not tell the length of the file, which this format needs; use CSV")
            return pa.PythonFile(RangeFile(self, found), mode="r")
        stream = _HttpStream(self._client, _key(found.parts))
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


class _HttpStream:
    """One request, whose body is read as it is needed."""

    def __init__(self, client: HttpClient, key: str) -> None:
        self._client, self._key = client, key
        self._answer: aiohttp.ClientResponse | None = None
        self._context: Any = None
        self._received = 0
        self.file: LoopFile | None = None

    async def begin(self) -> LoopFile:
        return LoopFile(self._pull)

    async def _pull(self) -> bytes:
        if self._answer is None:
            self._context = self._client.request("GET", self._key)
            self._answer = await self._context.__aenter__()
            check_good(self._answer)
        try:
            data = await self._answer.content.readany()
        except (aiohttp.ClientError, TimeoutError, OSError) as problem:
            raise SourceUnreachable("the server stopped in the middle of the file") from problem
        self._received += len(data)
        if self._received > self._client.limits.max_bytes:
            self.drop()
            raise SourceError("the file is longer than the source's max_bytes")
        return data

    def drop(self) -> None:
        if self._answer is not None:
            self._answer.close()

    def stop(self) -> None:
        if self.file is not None:
            self.file.interrupt()
        self.drop()
