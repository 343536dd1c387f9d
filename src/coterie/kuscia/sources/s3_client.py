"""The few S3 requests that tables need, beyond what all object stores have in common (object_client.py)."""

from __future__ import annotations

import io
import re
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from coterie.base.secret import SecretValue
from coterie.kuscia.sources import s3_signing
from coterie.kuscia.sources.object_client import ObjectClient, error_code, xml_tree
from coterie.kuscia.sources.protocol import SourceError, SourceInfo

DEFAULT_REGION = "us-west-2"


class S3Client(ObjectClient):
    def __init__(self, info: SourceInfo) -> None:
        split = urlsplit(info.endpoint if "://" in info.endpoint else f"https://{info.endpoint}")
        if split.scheme not in ("http", "https") or not split.hostname or "@" in split.netloc or not info.bucket:
            raise SourceError("the source needs an endpoint (https://host:port) and a bucket")
        super().__init__(f"{info.bucket}.{split.netloc}" if info.virtual_host else split.netloc, info.bucket)
        self._scheme, self._virtual = split.scheme, info.virtual_host
        self._keys = s3_signing.S3Keys(
            info.access_key_id, info.access_key_secret or SecretValue(""), _region(info, split.netloc)
        )
        self._old = info.signature == "s3v2"

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

    async def listed(self, prefix: str) -> AsyncIterator[tuple[str, int, str]]:
        token = ""
        while True:
            query = {"list-type": "2", "prefix": prefix} | ({"continuation-token": token} if token else {})
            async with self.request("GET", "", query) as response:
                tree = xml_tree(await response.read())
            for each in tree.iter("Contents"):
                yield each.findtext("Key", ""), int(each.findtext("Size", "0")), each.findtext("ETag", "")
            token = tree.findtext("NextContinuationToken", "")
            if tree.findtext("IsTruncated") != "true" or not token:
                return

    async def begin(self, key: str) -> str:
        async with self.request("POST", key, {"uploads": ""}) as response:
            return xml_tree(await response.read()).findtext("UploadId", "")

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
        if code := error_code(answer):
            raise SourceError(f"{self._host} could not put {key} together: {code}")

    async def abandon(self, key: str, upload: str) -> None:
        async with self.request("DELETE", key, {"uploadId": upload}):
            pass


def _region(info: SourceInfo, host: str) -> str:
    match = re.search(r"s3[.-]([a-z]{2}(?:-[a-z]+)+-\d)\.amazonaws\.", host)
    return info.extra.get("region") or (match.group(1) if match else DEFAULT_REGION)
