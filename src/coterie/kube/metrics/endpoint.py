"""`GET /metrics` on the node's one port for metrics. Rates tell about business, so not everybody may ask.

The page is in Prometheus' text format, or as OpenMetrics where the Accept header prefers it. Allowed are the machine itself, the addresses and networks that the configuration names, and whoever shows the token.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.base.exposition import CONTENT_TYPE, OPENMETRICS_CONTENT_TYPE
from coterie.base.lazy_import import lazy_import
from coterie.base.secret import SecretValue
from coterie.http.messages import Request, Response
from coterie.kube.metrics.sources import MetricsPage

if TYPE_CHECKING:
    import gzip
else:
    gzip = lazy_import("gzip")

_PATHS = ("/metrics", "/")
_COMPRESSED_FROM = 4096
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
        openmetrics = prefers_openmetrics(request.headers.get("accept", ""))
        content_type = OPENMETRICS_CONTENT_TYPE if openmetrics else CONTENT_TYPE
        body = (await self._page.text(openmetrics=openmetrics)).encode()
        if len(body) >= _COMPRESSED_FROM and "gzip" in request.headers.get("accept-encoding", ""):
            return Response(200, gzip.compress(body, 1), content_type, headers=[("Content-Encoding", "gzip")])
        return Response(200, body, content_type)
