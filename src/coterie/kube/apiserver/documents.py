"""Sending documents that describe the server itself: named by content, asked for again and again, seldom changed.

A client that still has the document is answered 304; one that takes gzip gets the bytes as they are kept.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from coterie.http.messages import Request, Response
from coterie.kube.api.errors import MethodNotAllowed, NotAcceptable

COMPRESS_FROM = 1400
"""Smaller bodies fit one packet anyway."""
_GZIP = 31
"""zlib's way to ask for gzip's frame around the data (`wbits`)."""


@dataclass(frozen=True, slots=True)
class Document:
    """`packed` is the gzip form when that is what we keep; then `body` is empty."""

    content_type: str
    etag: str
    body: bytes = b""
    packed: bytes = b""


@dataclass(frozen=True, slots=True)
class MediaRange:
    """One clause of an Accept header."""

    media_type: str
    params: dict[str, str] = field(default_factory=dict)


def content_hash(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()[:32].upper()


def document(content_type: str, body: bytes, etag: str = "") -> Document:
    """A document kept packed when that saves memory."""
    etag = etag or content_hash(body)
    if len(body) < COMPRESS_FROM:
        return Document(content_type, etag, body=body)
    return Document(content_type, etag, packed=zlib.compress(body, 6, wbits=_GZIP))


def media_ranges(accept: str) -> Sequence[MediaRange]:
    """What the client takes, best first; no header means anything."""
    return _media_ranges(accept[:4096] or "*/*")


@lru_cache(maxsize=64)
def _media_ranges(accept: str) -> Sequence[MediaRange]:
    ranked: list[tuple[float, MediaRange]] = []
    for clause in accept.split(","):
        name, *pieces = (piece.strip() for piece in clause.split(";"))
        params = {key.strip().lower(): value.strip() for key, _, value in (piece.partition("=") for piece in pieces)}
        try:
            quality = float(params.pop("q", "1"))
        except ValueError:
            quality = 0.0
        if name and quality > 0:
            ranked.append((-quality, MediaRange(name.lower(), params)))
    ranked.sort(key=lambda item: item[0])
    return tuple(item for _, item in ranked)


def best_of(accept: str, offered: Sequence[str]) -> str:
    """The first offered media type that the client takes; what is offered first answers `*/*`."""
    for wanted in media_ranges(accept):
        for offer in offered:
            if wanted.media_type in (offer, "*/*", offer.partition("/")[0] + "/*"):
                return offer
    raise NotAcceptable(f"only the following media types are accepted: {', '.join(offered)}")


def only_reads(request: Request) -> None:
    if request.method not in ("GET", "HEAD"):
        raise MethodNotAllowed("the server does not allow this method on the requested resource")


def send(request: Request, found: Document, headers: Sequence[tuple[str, str]] = ()) -> Response:
    tag = f'"{found.etag}"'
    out = [("ETag", tag), ("Vary", "Accept, Accept-Encoding" if found.packed else "Accept"), *headers]
    known = [item.strip().removeprefix("W/") for item in request.headers.get("if-none-match", "").split(",")]
    if tag in known or "*" in known:
        return Response(304, b"", found.content_type, out)
    if not found.packed:
        return Response(200, found.body, found.content_type, out)
    if _takes_gzip(request.headers.get("accept-encoding", "")):
        return Response(200, found.packed, found.content_type, [*out, ("Content-Encoding", "gzip")])
    return Response(200, zlib.decompress(found.packed, wbits=_GZIP), found.content_type, out)


def _takes_gzip(header: str) -> bool:
    return any(wanted.media_type in ("gzip", "*") for wanted in media_ranges(header)) if header else False
