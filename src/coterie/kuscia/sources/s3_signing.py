"""How requests to S3 are signed: version 4 (all of today), and version 2 for old stores. Pure."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from urllib.parse import quote

from coterie.base.secret import SecretValue

_IN_V2 = ("partNumber", "uploadId", "uploads")


@dataclass(frozen=True, slots=True)
class SignableRequest:
    method: str
    host: str
    path: str
    """As sent, quoted."""
    query: Mapping[str, str]
    resource: str
    """/bucket/key, quoted: what version 2 signs, wherever the bucket is named."""


@dataclass(frozen=True, slots=True)
class S3Keys:
    id: str
    secret: SecretValue
    region: str = "us-west-2"


def quoted(path: str) -> str:
    return quote(path, safe="/~")


def query_text(query: Mapping[str, str]) -> str:
    return "&".join(f"{quote(key, safe='~')}={quote(value, safe='~')}" for key, value in sorted(query.items()))


def version4(
    request: SignableRequest, keys: S3Keys, now: datetime, body: bytes, extra: Mapping[str, str]
) -> dict[str, str]:
    """The headers to send; those in `extra` are signed too."""
    moment = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    digest = hashlib.sha256(body).hexdigest()
    headers = {"host": request.host, "x-amz-content-sha256": digest, "x-amz-date": moment}
    headers |= {name.lower(): value for name, value in extra.items()}
    names = ";".join(sorted(headers))
    canonical = "\n".join(
        [
            request.method,
            request.path,
            query_text(request.query),
            *(f"{name}:{headers[name].strip()}" for name in sorted(headers)),
            "",
            names,
            digest,
        ]
    )
    scope = f"{moment[:8]}/{keys.region}/s3/aws4_request"
    to_sign = "\n".join(["AWS4-HMAC-SHA256", moment, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{keys.secret.reveal()}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    credential = f"Credential={keys.id}/{scope},SignedHeaders={names},Signature={signature}"
    return {**headers, "authorization": f"AWS4-HMAC-SHA256 {credential}"}


def version2(request: SignableRequest, keys: S3Keys, now: datetime, extra: Mapping[str, str]) -> dict[str, str]:
    date = format_datetime(now.astimezone(UTC))
    pieces = [f"{key}={request.query[key]}" if request.query[key] else key for key in _IN_V2 if key in request.query]
    resource = request.resource + ("?" + "&".join(pieces) if pieces else "")
    text = f"{request.method}\n\n{extra.get('content-type', '')}\n{date}\n{resource}"
    signature = base64.b64encode(hmac.digest(keys.secret.reveal().encode(), text.encode(), "sha1")).decode()
    return {"host": request.host, "date": date, **extra, "authorization": f"AWS {keys.id}:{signature}"}
