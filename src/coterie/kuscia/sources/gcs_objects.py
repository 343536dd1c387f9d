"""Objects in a bucket of Google Cloud Storage, below one prefix, by its JSON interface.

    secrets.service_account   the JSON key of a service account, for which a token of an hour is fetched from the token server that it names
    secrets.token             or an access token

A version is the generation of an object. Large tables are uploaded in a resumable session: the object is there when its last part is. There is
no other way in: the machine's own identity in a cloud is never asked for.
"""

from __future__ import annotations

import base64
import io
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from yarl import URL

from coterie.base import pki
from coterie.base.pki import PkiError
from coterie.base.secret import SecretValue
from coterie.kuscia.sources.files import FileSource
from coterie.kuscia.sources.object_client import ObjectClient
from coterie.kuscia.sources.protocol import DataNotFound, DataSource, SourceError, SourceInfo, SourceUnreachable
from coterie.kuscia.sources.s3 import ObjectStore

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_LIFE = 3600
_EARLY = 300
_HERE = ("127.0.0.1", "localhost", "::1")


def gcs_objects(info: SourceInfo) -> DataSource:
    return FileSource(ObjectStore(GcsClient(info), info.prefix))


class GcsClient(ObjectClient):
    def __init__(self, info: SourceInfo) -> None:
        endpoint = info.endpoint or "https://storage.googleapis.com"
        split = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
        if split.scheme not in ("http", "https") or not split.hostname or "@" in split.netloc or split.path.strip("/"):
            raise SourceError("the endpoint of the source must be such as https://storage.googleapis.com")
        super().__init__(split.netloc, info.bucket)
        self._scheme = split.scheme
        self._fixed = info.secrets.get("token")
        account = info.secrets.get("service_account")
        if (self._fixed is None) == (account is None):
            raise SourceError("the source needs secrets.service_account (a JSON key) or secrets.token")
        self._account = _ServiceAccount(account) if account is not None else None
        self._token: tuple[SecretValue, float] | None = None
        self._uploads: dict[str, _Upload] = {}

    async def _send(
        self, method: str, key: str, query: Mapping[str, str], body: bytes, headers: Mapping[str, str]
    ) -> aiohttp.ClientResponse:
        asked, sent = dict(query), dict(headers)
        path = f"/storage/v1/b/{quote(self._bucket, safe='')}/o" + (f"/{quote(key, safe='')}" if key else "")
        if tag := sent.pop("if-match", ""):
            asked["ifGenerationMatch"] = tag
        if method == "GET" and key:
            asked["alt"] = "media"
        elif method == "HEAD":
            method = "GET"  # what is known of it
        elif method == "PUT":
            method, path = "POST", f"/upload{path.removesuffix('/' + quote(key, safe=''))}"
            asked |= {"uploadType": "media", "name": key}
        text = urlencode(asked, quote_via=quote)
        return await self._call(method, f"{self._scheme}://{self._host}{path}{'?' + text if text else ''}", body, sent)

    async def _call(self, method: str, url: str, body: bytes, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        assert self._session is not None, "the source is entered first"
        return await self._session.request(
            method,
            URL(url, encoded=True),
            data=io.BytesIO(body) if body else None,
            headers={**headers, "Authorization": f"Bearer {(await self._bearer()).reveal()}"},
            allow_redirects=False,
            skip_auto_headers=("Content-Type",),
        )

    async def _bearer(self) -> SecretValue:
        if self._fixed is not None:
            return self._fixed
        if self._token is None or self._token[1] < time.time():
            assert self._account is not None and self._session is not None
            self._token = await self._account.token(self._session)
        return self._token[0]

    def tag_of(self, response: aiohttp.ClientResponse) -> str:
        return response.headers.get("x-goog-generation", "")

    async def head(self, key: str) -> tuple[int, str] | None:
        try:
            async with self.request("HEAD", key) as response:
                found = _json(await response.read())
        except DataNotFound:
            return None
        return _number(found.get("size")), str(found.get("generation") or "")

    async def listed(self, prefix: str) -> AsyncIterator[tuple[str, int, str]]:
        token = ""
        while True:
            query = {"prefix": prefix} | ({"pageToken": token} if token else {})
            async with self.request("GET", "", query) as response:
                found = _json(await response.read())
            for each in found.get("items") or ():
                yield str(each["name"]), _number(each.get("size")), str(each.get("generation") or "")
            token = str(found.get("nextPageToken") or "")
            if not token:
                return

    # All parts but the last must be multiples of 256 KiB and say that more follows, so one is held back.

    async def begin(self, key: str) -> str:
        path = f"/upload/storage/v1/b/{quote(self._bucket, safe='')}/o"
        text = urlencode({"uploadType": "resumable", "name": key}, quote_via=quote)
        async with await self._asked("POST", f"{self._scheme}://{self._host}{path}?{text}", b"", {}, key) as response:
            session = response.headers.get("Location", "")
        if urlsplit(session)[:2] != (self._scheme, self._host):
            raise SourceError(f"{self._host} names another server for the upload, which is not called")
        self._uploads[session] = _Upload()
        return session

    async def put_part(self, key: str, upload: str, number: int, body: bytes) -> str:
        kept = self._uploads[upload]
        if kept.held:
            await self._sent(key, upload, last=False)
        kept.held = body
        return str(number)

    async def complete(self, key: str, upload: str, tags: list[str]) -> None:
        await self._sent(key, upload, last=True)
        del self._uploads[upload]

    async def _sent(self, key: str, upload: str, *, last: bool) -> None:
        kept = self._uploads[upload]
        end = kept.start + len(kept.held)
        headers = {"Content-Range": f"bytes {kept.start}-{end - 1}/{end if last else '*'}"}
        async with await self._asked("PUT", upload, kept.held, headers, key, more=not last):
            kept.start, kept.held = end, b""

    async def _asked(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], key: str, more: bool = False
    ) -> aiohttp.ClientResponse:
        try:
            response = await self._call(method, url, body, headers)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise SourceUnreachable(f"{self._host} does not answer: {type(error).__name__}") from error
        try:
            if not (more and response.status == 308):
                await self._check(response, key)
        except SourceError:
            response.close()
            raise
        return response

    async def abandon(self, key: str, upload: str) -> None:
        self._uploads.pop(upload, None)
        with suppress(aiohttp.ClientError, TimeoutError, OSError):  # the store forgets it in a week
            (await self._call("DELETE", upload, b"", {})).close()


class _Upload:
    def __init__(self) -> None:
        self.start, self.held = 0, b""


class _ServiceAccount:
    def __init__(self, text: SecretValue) -> None:
        wrong = SourceError("secrets.service_account is no JSON key of a service account")
        try:
            found = json.loads(text.reveal())
            self._email, self._server = str(found["client_email"]), str(found["token_uri"])
            key = pki.load_key(str(found["private_key"]).encode())
        except (ValueError, KeyError, TypeError, PkiError):
            raise wrong from None  # without the cause, which may quote it
        split = urlsplit(self._server)
        if not isinstance(key, rsa.RSAPrivateKey) or not split.hostname:
            raise wrong
        if split.scheme != "https" and not (split.scheme == "http" and split.hostname in _HERE):
            raise SourceError("token_uri of the service account must be https")
        self._key = key

    async def token(self, session: aiohttp.ClientSession) -> tuple[SecretValue, float]:
        """And when to fetch another."""
        now = int(time.time())
        claims = {"iss": self._email, "scope": _SCOPE, "aud": self._server, "iat": now, "exp": now + _LIFE}
        signed = f"{_part({'alg': 'RS256', 'typ': 'JWT'})}.{_part(claims)}"
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        form = {
            "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
            "assertion": f"{signed}.{_text(signature)}",
        }
        try:
            async with session.post(self._server, data=form, allow_redirects=False) as response:
                found = _json(await response.read()) if response.status == 200 else {}
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise SourceUnreachable(f"the token server does not answer: {type(error).__name__}") from error
        if not isinstance(found.get("access_token"), str):
            raise SourceUnreachable(f"the token server gives the service account no token ({response.status})")
        return SecretValue(found["access_token"]), now + max(_number(found.get("expires_in")) - _EARLY, 30)


def _part(value: Mapping[str, Any]) -> str:
    return _text(json.dumps(value, separators=(",", ":")).encode())


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _json(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise SourceError("the server's answer is not that of an object store")
    return found


def _number(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        return 0
