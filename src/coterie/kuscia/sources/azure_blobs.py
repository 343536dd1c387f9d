"""Objects in a container of Azure Blob Storage, below one prefix.

    endpoint  https://<account>.blob.core.windows.net, or http://127.0.0.1:10000/<account> of an emulator
    bucket    the container        access_key_id, access_key_secret    the account and its key; or secrets.sas_token

Blocks are uploaded one by one, and a blob is there when their list is committed; blocks that are not committed the store forgets after a week.
There is no other way in: the machine's own identity in a cloud is never asked for.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import io
import secrets
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from email.utils import format_datetime
from urllib.parse import parse_qsl, urlsplit

import aiohttp
from yarl import URL

from coterie.base.secret import SecretValue
from coterie.kuscia.sources.files import FileSource
from coterie.kuscia.sources.object_client import ObjectClient, xml_tree
from coterie.kuscia.sources.protocol import DataSource, SourceError, SourceInfo
from coterie.kuscia.sources.s3 import ObjectStore
from coterie.kuscia.sources.s3_signing import query_text, quoted

_VERSION = "2021-12-02"
_SIGNED = (
    "content-encoding", "content-language", "content-length", "content-md5", "content-type", "date",
    "if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range",
)  # fmt: skip


def azure_blobs(info: SourceInfo) -> DataSource:
    return FileSource(ObjectStore(AzureClient(info), info.prefix))


class AzureClient(ObjectClient):
    def __init__(self, info: SourceInfo) -> None:
        split = urlsplit(info.endpoint if "://" in info.endpoint else f"https://{info.endpoint}")
        if split.scheme not in ("http", "https") or not split.hostname or "@" in split.netloc or split.query:
            raise SourceError("the source needs an endpoint such as https://account.blob.core.windows.net")
        super().__init__(split.netloc, info.bucket)
        self._scheme, self._base = split.scheme, split.path.rstrip("/")
        self._account = info.access_key_id
        self._key = _key(info.access_key_secret)
        self._sas = info.secrets.get("sas_token")
        if (self._key is None) == (self._sas is None) or (self._key is not None and not self._account):
            raise SourceError(
                "the source needs access_key_id (the account) and access_key_secret (its key), or secrets.sas_token"
            )

    async def _send(
        self, method: str, key: str, query: Mapping[str, str], body: bytes, headers: Mapping[str, str]
    ) -> aiohttp.ClientResponse:
        assert self._session is not None, "the source is entered first"
        path = f"{self._base}/{self._bucket}" + (f"/{quoted(key)}" if key else "")
        sent = {
            "x-ms-version": _VERSION,
            "x-ms-date": format_datetime(datetime.now(UTC), usegmt=True),
            **headers,
            **({"x-ms-blob-type": "BlockBlob"} if method == "PUT" and key and "comp" not in query else {}),
        }
        if self._key is not None:
            text = string_to_sign(method, self._account, path, query, sent, len(body))
            found = hmac.new(base64.b64decode(self._key.reveal()), text.encode(), hashlib.sha256).digest()
            sent["Authorization"] = f"SharedKey {self._account}:{base64.b64encode(found).decode()}"
            asked = dict(query)
        else:
            assert self._sas is not None
            asked = {**query, **dict(parse_qsl(self._sas.reveal().removeprefix("?")))}
        words = query_text(asked)
        url = URL(f"{self._scheme}://{self._host}{path}{'?' + words if words else ''}", encoded=True)
        return await self._session.request(
            method,
            url,
            data=io.BytesIO(body) if body else None,
            headers=sent,
            allow_redirects=False,
            skip_auto_headers=("Content-Type",),
        )

    async def listed(self, prefix: str) -> AsyncIterator[tuple[str, int, str]]:
        marker = ""
        while True:
            query = {"restype": "container", "comp": "list", "prefix": prefix} | ({"marker": marker} if marker else {})
            async with self.request("GET", "", query) as response:
                tree = xml_tree(await response.read())
            for each in tree.iter("Blob"):
                size = int(each.findtext("Properties/Content-Length", "0"))
                tag = each.findtext("Properties/Etag", "").strip('"')
                yield each.findtext("Name", ""), size, f'"{tag}"' if tag else ""
            marker = tree.findtext("NextMarker", "") or ""
            if not marker:
                return

    async def begin(self, key: str) -> str:
        """Which upload it is only the names of its blocks say; all have the same length, as the store wants."""
        return secrets.token_hex(8)

    async def put_part(self, key: str, upload: str, number: int, body: bytes) -> str:
        block = base64.b64encode(f"{upload}-{number:08}".encode()).decode()
        async with self.request("PUT", key, {"comp": "block", "blockid": block}, body):
            return block

    async def complete(self, key: str, upload: str, tags: list[str]) -> None:
        blocks = "".join(f"<Uncommitted>{each}</Uncommitted>" for each in tags)
        body = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{blocks}</BlockList>'.encode()
        async with self.request("PUT", key, {"comp": "blocklist"}, body):
            pass

    async def abandon(self, key: str, upload: str) -> None:
        """Blocks cannot be deleted; nobody sees them, and the store forgets them."""


def string_to_sign(
    method: str, account: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], length: int
) -> str:
    """Of the scheme SharedKey. Pure."""
    lower = {name.lower(): value for name, value in headers.items()}
    if length:
        lower["content-length"] = str(length)
    own = "".join(f"{name}:{lower[name]}\n" for name in sorted(lower) if name.startswith("x-ms-"))
    resource = f"/{account}{path}" + "".join(f"\n{name}:{query[name]}" for name in sorted(query))
    return "\n".join((method, *(lower.get(name, "") for name in _SIGNED), own + resource))


def _key(secret: SecretValue | None) -> SecretValue | None:
    if secret is None:
        return None
    try:
        base64.b64decode(secret.reveal(), validate=True)
    except (binascii.Error, ValueError):
        raise SourceError("access_key_secret is no key of a storage account, which is in base64") from None
    return secret
