"""Routes, their tokens and the certificates that a gateway shows or trusts: whether they work, and until when. Reading them is pure.

A row of a certificate is named after its use: `domain`, `ca`, `external` (the organisation's own at the public port), `partner/<domain>`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path

from coterie.base.clock import parse_rfc3339
from coterie.base.exposition import Family, Row, labels
from coterie.base.files import read_bytes_or_none
from coterie.base.pki import PkiError, load_certificate
from coterie.kuscia.api.types.domain import DomainRoute
from coterie.kuscia.gateway.certificate_validity import is_undated
from coterie.kuscia.gateway.metrics.route_labels import route_labels
from coterie.kuscia.gateway.model import Route, SnapshotInputs


def is_up(route: DomainRoute) -> bool:
    """Whether calls can go over it: authorized and reachable, with a token in force where it needs one."""
    status = route.status
    if status is None or status.is_destination_unreachable:
        return False
    if not route.spec.needs_token:
        return True
    newest = route.token_status.newest
    return status.is_destination_authorized and newest is not None and newest.is_ready


def route_families(routes: Iterable[DomainRoute], domain: str) -> list[Family]:
    """Whether a route works is known to its source; its tokens to both ends."""
    up: list[Row] = []
    expiry: list[Row] = []
    for route in routes:
        where = route_labels(route.spec.source, route.spec.destination)
        if route.spec.source == domain:
            up.append((where, int(is_up(route))))
        newest = route.token_status.newest
        if newest is not None and newest.expiration_time and (ends := _moment(newest.expiration_time)) is not None:
            expiry.append((where, ends))
    return [
        Family("coterie_route_up", "Whether calls can go over a route.", "gauge", up),
        Family("coterie_token_expiry_timestamp_seconds", "When the newest token of a route expires.", "gauge", expiry),
    ]


@lru_cache(maxsize=4096)
def _moment(text: str) -> float | None:
    try:
        return parse_rfc3339(text).timestamp()
    except ValueError:
        return None


def certificate_family(own: Mapping[str, str], routes: Iterable[Route]) -> Family:
    """`own`: PEM by name. Of a partner with several certificates, the one that ends last counts: the others are on their way out."""
    rows = [(labels(name=name), ends) for name, pem in own.items() if (ends := _ends(pem)) is not None]
    partners: dict[str, float] = {}
    for route in routes:
        for ends in filter(None, map(_ends, route.certificates)):
            partners[route.destination] = max(ends, partners.get(route.destination, 0))
    rows += [(labels(name=f"partner/{name}"), ends) for name, ends in sorted(partners.items())]
    return Family(
        "coterie_certificate_expiry_timestamp_seconds", "When a certificate expires, by its use.", "gauge", rows
    )


@lru_cache(maxsize=4096)
def _ends(pem: str) -> float | None:
    """None: it cannot be read, or its dates mean nothing."""
    try:
        ends: datetime = load_certificate(pem.encode()).not_valid_after_utc
    except PkiError:
        return None
    return None if is_undated(pem) else ends.timestamp()


class RouteSource:
    """`files`: of own certificates, by name; read on each scrape, for they are replaced while the node runs."""

    name = "routes"

    def __init__(
        self,
        domain: str,
        routes: Callable[[], Iterable[DomainRoute]],
        inputs: Callable[[], SnapshotInputs | None],
        files: Mapping[str, Path],
    ) -> None:
        self._domain = domain
        self._routes = routes
        self._inputs = inputs
        self._files = files

    async def families(self) -> Sequence[Family]:
        inputs = self._inputs()
        own = {}
        for name, path in self._files.items():
            if content := read_bytes_or_none(path):
                own[name] = content.decode("ascii", "replace")
        return [
            *route_families(self._routes(), self._domain),
            certificate_family(own, inputs.outbound if inputs is not None else ()),
        ]
