"""What clients of object stores have in common: requests that are asked again when a store is busy, errors as ours, no redirects.

A client gives tables what they need of a store (`s3.py`): look, list, get, put, upload in parts, delete. On asyncio, nothing buffered twice.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from xml.etree import ElementTree

import aiohttp

from coterie.http.client_sessions import close_session, tcp_connector
from coterie.kuscia.sources.protocol import DataNotFound, SourceError, SourceUnreachable

_ATTEMPTS = 3
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=60)


class ObjectClient:
    def __init__(self, host: str, bucket: str) -> None:
        if not bucket or "/" in bucket or bucket in (".", ".."):
            raise SourceError(f"{bucket!r} is not the name of a bucket")
        self._host, self._bucket = host, bucket
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        connector = tcp_connector(limit=8)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=_TIMEOUT, auto_decompress=False, read_bufsize=1024 * 1024
        )

    async def close(self) -> None:
        if self._session is not None:
            await close_session(self._session)

    @asynccontextmanager
    async def request(
        self,
        method: str,
        key: str,
        query: Mapping[str, str] | None = None,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A good answer, its body not yet read. Asked again when the server is busy or the line breaks."""
        for attempt in range(_ATTEMPTS):
            last = attempt == _ATTEMPTS - 1
            try:
                response = await self._send(method, key, query or {}, body, headers or {})
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                if last:
                    raise SourceUnreachable(f"{self._host} does not answer: {type(error).__name__}") from error
            else:
                async with response:
                    if response.status < 500 or last:
                        await self._check(response, key)
                        yield response
                        return
            await asyncio.sleep(0.2 * 2**attempt)

    async def _send(
        self, method: str, key: str, query: Mapping[str, str], body: bytes, headers: Mapping[str, str]
    ) -> aiohttp.ClientResponse:
        """Once, with what the store takes for a signature."""
        raise NotImplementedError

    async def _check(self, response: aiohttp.ClientResponse, key: str) -> None:
        status = response.status
        if status < 300:
            return
        code = error_code(await response.read())
        if status == 404:
            raise DataNotFound(
                f"there is no {key or self._bucket}"
                + (" (no such bucket)" if code in ("NoSuchBucket", "ContainerNotFound") else "")
            )
        if status in (401, 403):
            raise SourceUnreachable(
                f"{self._host} denied access ({code or status}); check the source's keys and rights"
            )
        if status == 412:
            raise SourceError(f"{key} was replaced while it was read; read it again")
        raise SourceError(f"{self._host} refused {key}: {status} {code}".rstrip())

    def tag_of(self, response: aiohttp.ClientResponse) -> str:
        """Which version it is that comes."""
        return response.headers.get("ETag", "")

    async def head(self, key: str) -> tuple[int, str] | None:
        """Size and tag; None when there is no such object."""
        try:
            async with self.request("HEAD", key) as response:
                return int(response.headers.get("Content-Length", "0")), self.tag_of(response)
        except DataNotFound:
            return None

    def listed(self, prefix: str) -> AsyncIterator[tuple[str, int, str]]:
        """Key, size and tag of all objects whose key begins so."""
        raise NotImplementedError

    async def get_range(self, key: str, tag: str, start: int, size: int) -> bytes:
        headers = {"range": f"bytes={start}-{start + size - 1}"} | ({"if-match": tag} if tag else {})
        async with self.request("GET", key, headers=headers) as response:
            if start and response.status != 206:
                raise SourceError(f"{self._host} does not give ranges of objects, which this format needs; use CSV")
            kept = bytearray()
            try:
                # A store that takes no ranges sends the whole object.
                while len(kept) < size and (piece := await response.content.read(size - len(kept))):
                    kept += piece
                return bytes(kept)
            except (aiohttp.ClientError, TimeoutError) as error:
                raise SourceUnreachable(f"{self._host} stopped answering") from error

    async def put(self, key: str, body: bytes) -> None:
        async with self.request("PUT", key, body=body):
            pass

    async def delete(self, key: str) -> None:
        async with self.request("DELETE", key):
            pass

    # Uploads in parts.

    async def begin(self, key: str) -> str:
        raise NotImplementedError

    async def put_part(self, key: str, upload: str, number: int, body: bytes) -> str:
        raise NotImplementedError

    async def complete(self, key: str, upload: str, tags: list[str]) -> None:
        raise NotImplementedError

    async def abandon(self, key: str, upload: str) -> None:
        raise NotImplementedError


def xml_tree(body: bytes) -> ElementTree.Element:
    if b"<!DOCTYPE" in body or b"<!ENTITY" in body:
        raise SourceError("the server's answer has entities, which no object store sends")
    try:
        return ElementTree.fromstring(re.sub(rb'\sxmlns="[^"]*"', b"", body, count=1))
    except ElementTree.ParseError as error:
        raise SourceError("the server's answer is not that of an object store") from error


def error_code(body: bytes) -> str:
    """The error's name in an answer; empty when there is none."""
    found = re.search(rb"<Error>.*?<Code>([A-Za-z0-9._-]{1,64})</Code>", body, re.DOTALL)
    return found.group(1).decode() if found else ""
