"""The few S3 requests that tables need: look, list, get, put, upload in parts, delete. On asyncio, nothing buffered
twice."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from urllib.parse import urlsplit
from xml.etree import ElementTree

import aiohttp
from yarl import URL

from coterie.base.secret import SecretValue
from coterie.http.client_sessions import close_session, tcp_connector
from coterie.kuscia.sources import s3_signing
from coterie.kuscia.sources.protocol import DataNotFound, SourceError, SourceInfo, SourceUnreachable

_ATTEMPTS = 3
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=60)
DEFAULT_REGION = "us-west-2"


class S3Client:
    def __init__(self, info: SourceInfo) -> None:
        split = urlsplit(info.endpoint if "://" in info.endpoint else f"https://{info.endpoint}")
        if split.scheme not in ("http", "https") or not split.hostname or "@" in split.netloc or not info.bucket:
            raise SourceError("the source needs an endpoint (https://host:port) and a bucket")
        if "/" in info.bucket or info.bucket in (".", ".."):
            raise SourceError(f"{info.bucket!r} is not the name of a bucket")
        self._scheme, self._bucket, self._virtual = split.scheme, info.bucket, info.virtual_host
        self._host = f"{info.bucket}.{split.netloc}" if info.virtual_host else split.netloc
        self._keys = s3_signing.S3Keys(
            info.access_key_id, info.access_key_secret or SecretValue(""), _region(info, split.netloc)
        )
        self._old = info.signature == "s3v2"
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
        assert self._session is not None, "the source is entered first"
        quoted = s3_signing.quoted(key)
        resource = f"/{self._bucket}/{quoted}" if key else f"/{self._bucket}" + ("/" if self._virtual else "")
        path = f"/{quoted}" if self._virtual else resource
        asked = s3_signing.SignableRequest(method, self._host, path, query, resource)
        now = datetime.now(UTC)
        signed = (
            s3_signing.version2(asked, self._keys, now, headers)
            if self._old
            else s3_signing.version4(asked, self._keys, now, body, headers)
        )
        text = s3_signing.query_text(query)
        url = URL(f"{self._scheme}://{self._host}{path}{'?' + text if text else ''}", encoded=True)
        return await self._session.request(
            method,
            url,
            data=io.BytesIO(body) if body else None,
            headers=signed,
            allow_redirects=False,
            skip_auto_headers=("Content-Type",),
        )

    async def _check(self, response: aiohttp.ClientResponse, key: str) -> None:
        status = response.status
        if status < 300:
            return
        code = _code(await response.read())
        if status == 404:
            raise DataNotFound(
                f"there is no {key or self._bucket}" + (" (no such bucket)" if code == "NoSuchBucket" else "")
            )
        if status in (401, 403):
            raise SourceUnreachable(
                f"{self._host} denied access ({code or status}); check the source's keys and rights"
            )
        if status == 412:
            raise SourceError(f"{key} was replaced while it was read; read it again")
        raise SourceError(f"{self._host} refused {key}: {status} {code}".rstrip())

    async def head(self, key: str) -> tuple[int, str] | None:
        """Size and tag; None when there is no such object."""
        try:
            async with self.request("HEAD", key) as response:
                return int(response.headers.get("Content-Length", "0")), response.headers.get("ETag", "")
        except DataNotFound:
            return None

    async def listed(self, prefix: str) -> AsyncIterator[tuple[str, int, str]]:
        token = ""
        while True:
            query = {"list-type": "2", "prefix": prefix} | ({"continuation-token": token} if token else {})
            async with self.request("GET", "", query) as response:
                tree = _tree(await response.read())
            for each in tree.iter("Contents"):
                yield each.findtext("Key", ""), int(each.findtext("Size", "0")), each.findtext("ETag", "")
            token = tree.findtext("NextContinuationToken", "")
            if tree.findtext("IsTruncated") != "true" or not token:
                return

    async def get_range(self, key: str, tag: str, start: int, size: int) -> bytes:
        headers = {"range": f"bytes={start}-{start + size - 1}"} | ({"if-match": tag} if tag else {})
        async with self.request("GET", key, headers=headers) as response:
            try:
                return await response.read()
            except (aiohttp.ClientError, TimeoutError) as error:
                raise SourceUnreachable(f"{self._host} stopped answering") from error

    async def put(self, key: str, body: bytes) -> None:
        async with self.request("PUT", key, body=body):
            pass

    async def delete(self, key: str) -> None:
        async with self.request("DELETE", key):
            pass

    async def begin(self, key: str) -> str:
        async with self.request("POST", key, {"uploads": ""}) as response:
            return _tree(await response.read()).findtext("UploadId", "")

    async def put_part(self, key: str, upload: str, number: int, body: bytes) -> str:
        async with self.request("PUT", key, {"partNumber": str(number), "uploadId": upload}, body) as response:
            return response.headers.get("ETag", "")

    async def complete(self, key: str, upload: str, tags: list[str]) -> None:
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber>"
            f"<ETag>{tag.replace('&', '&amp;').replace('<', '&lt;')}</ETag></Part>"
            for number, tag in enumerate(tags, 1)
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        async with self.request("POST", key, {"uploadId": upload}, body) as response:
            answer = await response.read()
        # The server may begin its answer with 200 and find only then that it fails.
        if code := _code(answer):
            raise SourceError(f"{self._host} could not put {key} together: {code}")

    async def abandon(self, key: str, upload: str) -> None:
        async with self.request("DELETE", key, {"uploadId": upload}):
            pass


def _region(info: SourceInfo, host: str) -> str:
    match = re.search(r"s3[.-]([a-z]{2}(?:-[a-z]+)+-\d)\.amazonaws\.", host)
    return info.extra.get("region") or (match.group(1) if match else DEFAULT_REGION)


def _tree(body: bytes) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(re.sub(rb'\sxmlns="[^"]*"', b"", body, count=1))
    except ElementTree.ParseError as error:
        raise SourceError("the server's answer is not S3's") from error


def _code(body: bytes) -> str:
    """The error's name in an answer; empty when there is none."""
    found = re.search(rb"<Error>.*?<Code>([A-Za-z0-9._-]{1,64})</Code>", body, re.DOTALL)
    return found.group(1).decode() if found else ""
