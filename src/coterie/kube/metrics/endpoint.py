"""`GET /metrics` on the node's one port for metrics. Rates tell about business, so not everybody may ask.

The page is in Prometheus' text format, or as OpenMetrics where the Accept header prefers it. Allowed are the machine itself, the addresses and networks that the configuration names, and whoever shows the token.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.base.exposition import CONTENT_TYPE, OPENMETRICS_CONTENT_TYPE, openmetrics_pieces, text_pieces
from coterie.base.lazy_import import lazy_import
from coterie.base.secret import SecretValue
from coterie.http.messages import Request, Response
from coterie.kube.metrics.sources import MetricsPage

if TYPE_CHECKING:
    import zlib
else:
    zlib = lazy_import("zlib")

_PATHS = ("/metrics", "/")
_GZIP = 31
"""zlib's name for its format."""
_PAUSE_AFTER = 1 << 18
"""Bytes: about 2 ms."""
_BEARER = "bearer "
_OPENMETRICS = "application/openmetrics-text"
_OPENMETRICS_VERSIONS = ("", "0.0.1", "1.0.0")
_TEXT = ("text/plain", "text/*")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class ScrapeAccess:
    networks: Sequence[Network] = ()
    token: SecretValue | None = None

    def allows(self, address: str, authorization: str) -> bool:
        if self.token and authorization[: len(_BEARER)].lower() == _BEARER:
            return self.token.matches(authorization[len(_BEARER) :].strip())
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        return found.is_loopback or any(found in network for network in self.networks)


def prefers_openmetrics(accept: str) -> bool:
    """Whether the Accept header names OpenMetrics, and text not as better."""
    openmetrics = text = 0.0
    for each in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in each.split(";"))
        weight = _weight(parameters)
        if kind == _OPENMETRICS:
            version = next((part[len("version=") :] for part in parameters if part.startswith("version=")), "")
            if version in _OPENMETRICS_VERSIONS:
                openmetrics = max(openmetrics, weight)
        elif kind in _TEXT:
            text = max(text, weight)
    return openmetrics > 0 and openmetrics >= text


def _weight(parameters: Sequence[str]) -> float:
    for each in parameters:
        if each.startswith("q="):
            try:
                return min(1.0, max(0.0, float(each[2:])))
            except ValueError:
                return 0.0
    return 1.0


class MetricsEndpoint:
    def __init__(self, page: MetricsPage, access: ScrapeAccess) -> None:
        self._page = page
        self._access = access

    async def handle(self, request: Request) -> Response:
        if not self._access.allows(request.peer.address, request.headers.get("authorization", "")):
            words = (
                "scraping is allowed from this machine, from metrics.allow of the configuration, or with its token\n"
            )
            return Response(401, words.encode(), "text/plain", headers=[("WWW-Authenticate", "Bearer")])
        if request.path not in _PATHS:
            return Response(404, b"the page is /metrics\n", "text/plain")
        if request.method not in ("GET", "HEAD"):
            return Response(405, b"only GET is possible\n", "text/plain", headers=[("Allow", "GET, HEAD")])
        families = await self._page.families()
        if prefers_openmetrics(request.headers.get("accept", "")):
            pieces, content_type = openmetrics_pieces(families), OPENMETRICS_CONTENT_TYPE
        else:
            pieces, content_type = text_pieces(families), CONTENT_TYPE
        if "gzip" in request.headers.get("accept-encoding", ""):
            compressor = zlib.compressobj(1, wbits=_GZIP)
            found = [compressor.compress(piece) async for piece in _with_pauses(pieces)]
            body = b"".join((*found, compressor.flush()))
            return Response(200, body, content_type, headers=[("Content-Encoding", "gzip")])
        return Response(200, b"".join([piece async for piece in _with_pauses(pieces)]), content_type)


async def _with_pauses(pieces: Iterable[str]) -> AsyncIterator[bytes]:
    """Others have their turn while a long page is made."""
    made = 0
    for piece in pieces:
        yield piece.encode()
        made += len(piece)
        if made > _PAUSE_AFTER:
            made = 0
            await asyncio.sleep(0)
